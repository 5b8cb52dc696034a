// Loads, and the functions of runtime/scalar_math.h in AVX-512, operation by operation.
// Static inline: only files compiled with -mavx512f -mavx512dq may include it.
#pragma once

// gcc 12 warns of the undefined values that its own intrinsics use on purpose (PR105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include "runtime/kernels.h"

namespace adder {
namespace {

inline __m512 Load(const float* p) { return _mm512_loadu_ps(p); }
inline __m512 Load(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

inline __m512 Negate(__m512 x) { return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f)); }
inline __m512 Absolute(__m512 x) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x); }

// 2^(n + r) where x is not below `least` (NaN is not), else 0. vscalefps is the product with 2^n of
// the scalar text: one rounding, and 2^n is a normal number wherever the result is kept.
inline __m512 Exp2Scaled(__m512 least, __m512 x, __m512 n, __m512 r) {
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(kExp2C5), r, _mm512_set1_ps(kExp2C4));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExp2C3));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExp2C2));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExp2C1));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ), p, n);
}

// A first operand of min_ps or max_ps loses against NaN in the second, as in the scalar text.
// vrndscaleps may give -0 where adding and subtracting kRoundingShift gives 0: x - n is then x or
// a zero, and the polynomial of either zero is 1.
inline __m512 Exp2(__m512 x) {
  const __m512 clamped = _mm512_min_ps(_mm512_set1_ps(kExp2Max), x);
  const __m512 n = _mm512_roundscale_ps(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return Exp2Scaled(_mm512_set1_ps(kExp2Min), x, n, _mm512_sub_ps(clamped, n));
}

inline __m512 Exp(__m512 x) {
  const __m512 shift = _mm512_set1_ps(kRoundingShift);
  const __m512 high = _mm512_set1_ps(kLog2eHigh);
  const __m512 clamped = _mm512_min_ps(_mm512_set1_ps(kExpMax), x);
  const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(clamped, high, shift), shift);
  const __m512 r =
      _mm512_fmadd_ps(clamped, _mm512_set1_ps(kLog2eLow), _mm512_fmsub_ps(clamped, high, n));
  return Exp2Scaled(_mm512_set1_ps(kExpMin), x, n, r);
}

inline __m512 Silu(__m512 x) {
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), Exp(Negate(x))));
}

inline __m512 Softplus(__m512 x) {
  const __m512 u = Exp(Negate(Absolute(x)));
  const __m512 s = _mm512_div_ps(u, _mm512_add_ps(_mm512_set1_ps(2.0f), u));
  const __m512 z = _mm512_mul_ps(s, s);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(kAtanhC4), z, _mm512_set1_ps(kAtanhC3));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(kAtanhC2));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(kAtanhC1));
  const __m512 twice = _mm512_add_ps(s, s);
  const __m512 log1p = _mm512_fmadd_ps(_mm512_mul_ps(twice, z), p, twice);
  return _mm512_add_ps(_mm512_max_ps(x, _mm512_setzero_ps()), log1p);
}

inline __m512 Relu2(__m512 x) {
  const __m512 positive = _mm512_max_ps(_mm512_setzero_ps(), x);
  return _mm512_mul_ps(positive, positive);
}

inline __m512 Gelu(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 minus_half = _mm512_set1_ps(-0.5f);
  const __m512 a = _mm512_min_ps(_mm512_set1_ps(kGeluMax), Absolute(x));
  const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(_mm512_set1_ps(kGeluScale), a, one));
  const __m512 z = _mm512_sub_ps(one, t);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(kGeluC7), z, _mm512_set1_ps(kGeluC6));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(kGeluC5));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(kGeluC4));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(kGeluC3));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(kGeluC2));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(kGeluC1));
  p = _mm512_fmadd_ps(p, z, one);
  const __m512 tail = Exp(_mm512_mul_ps(_mm512_mul_ps(a, a), minus_half));
  const __m512 erfc = _mm512_mul_ps(tail, _mm512_mul_ps(t, p));
  const __m512 positive = _mm512_max_ps(x, _mm512_setzero_ps());
  return _mm512_fmadd_ps(_mm512_mul_ps(a, minus_half), erfc, positive);
}

}  // namespace
}  // namespace adder
