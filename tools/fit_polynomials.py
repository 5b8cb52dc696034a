#!/usr/bin/env python3
"""Fits the polynomials of runtime/scalar_math.h and prints their coefficients as C float literals.

All have the form 1 + c1 z + c2 z^2 + ..., with the constant 1 exact, so that exp2(0) = 1 and
log1p keeps its relative accuracy near zero. Lawson's reweighted least squares finds the smallest
largest relative error (the constant term is not free, so Remez' alternation does not apply); then
the coefficients are rounded to float one by one, lowest power first, refitting the rest.
"""

import math

import numpy as np


def minimax(rows, target, iterations=3000):
    """Coefficients c that make max |rows @ c - target| small."""
    weight = np.full(len(target), 1 / len(target))
    best, best_error = None, np.inf
    for _ in range(iterations):
        root = np.sqrt(weight)
        c = np.linalg.lstsq(rows * root[:, None], target * root, rcond=None)[0]
        error = np.abs(rows @ c - target)
        if error.max() < best_error:
            best, best_error = c, error.max()
        weight *= error
        weight /= weight.sum()
    return best


def fit(name, f, low, high, degree):
    """f(z) ~ 1 + c1 z + ... + c_degree z^degree on [low, high]."""
    z = low + (high - low) * (1 - np.cos(np.linspace(0, np.pi, 1000))) / 2
    value = f(z)
    powers = z[:, None] ** np.arange(1, degree + 1) / value[:, None]
    target = (value - 1) / value
    coefficients = []
    for i in range(degree):
        c = np.float64(np.float32(minimax(powers[:, i:], target)[0]))
        coefficients.append(c)
        target = target - powers[:, i] * c
    print(f"{name}: largest relative error {np.abs(target).max():.3g} before evaluation in float")
    for i, c in enumerate(coefficients, 1):
        print(f"  c{i} = {float(c).hex().replace('0000000p', 'p')}f  // {c:.9g}")


if __name__ == "__main__":
    fit("exp2(r), r in [-1/2, 1/2]", np.exp2, -0.5, 0.5, 5)
    # log1p(u) = 2 atanh(s) with s = u / (2 + u); atanh(s) / s is a polynomial of z = s^2.
    atanh = lambda z: np.arctanh(np.sqrt(z)) / np.sqrt(z)
    fit("atanh(sqrt z) / sqrt z, z in [0, 1/9]", atanh, 1e-9, 1 / 9, 4)
    # erfc(a / sqrt 2) exp(a^2 / 2) (1 + scale a) as a polynomial of z = scale a / (1 + scale a).
    scale = 0.375

    def scaled_erfc(z):
        a = z / (scale * (1 - z))
        return np.vectorize(math.erfc)(a / np.sqrt(2)) * np.exp(a * a / 2) * (1 + scale * a)

    fit("scaled erfc(a / sqrt 2), a in [0, 6]", scaled_erfc, 1e-9, 6 * scale / (1 + 6 * scale), 7)
    # Odd functions f(x) = x p(x^2).
    tanh = lambda z: np.tanh(np.sqrt(z)) / np.sqrt(z)
    fit("tanh(sqrt z) / sqrt z, z in [0, 0.625^2]", tanh, 1e-9, 0.625**2, 5)
    sine = lambda z: np.sin(np.sqrt(z)) / np.sqrt(z)
    fit("sin(sqrt z) / sqrt z, z in [0, (pi/2)^2]", sine, 1e-9, (np.pi / 2) ** 2, 4)
