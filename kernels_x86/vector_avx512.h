// Sixteen lanes for the kernels of kernels_simd/. Only files compiled with -mavx512f -mavx512dq may
// include it.
#pragma once

#include "kernels_x86/math_avx512.h"

namespace adder {
namespace {

struct Avx512Vector {
  using Vector = __m512;
  using Mask = __mmask16;
  static constexpr size_t kWidth = 16;
  // Two lane blocks hide more latency than one and share what is broadcast.
  static constexpr size_t kSisoVectors = 2, kMimoVectors = 2;

  static Vector Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
  static Mask First(size_t count) {
    return static_cast<Mask>(count < kWidth ? (1u << count) - 1 : 0xffffu);
  }
  static Vector LoadFirst(const float* p, size_t count) {
    return _mm512_maskz_loadu_ps(First(count), p);
  }
  static void StoreFirst(float* p, Vector v, size_t count) {
    _mm512_mask_storeu_ps(p, First(count), v);
  }

  static Vector Set(float x) { return _mm512_set1_ps(x); }
  static Vector Add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector Sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  static Vector Mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector Div(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  static Vector Fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static Vector Negate(Vector x) { return adder::Negate(x); }
  static Vector Absolute(Vector x) { return adder::Absolute(x); }
  static Vector CopySign(Vector magnitude, Vector sign) {
    return _mm512_or_ps(Absolute(magnitude), _mm512_and_ps(Set(-0.0f), sign));
  }

  static Mask Less(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Mask LessEqual(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
  static Vector Select(Mask mask, Vector yes, Vector no) {
    return _mm512_mask_blend_ps(mask, no, yes);
  }

  // Whole numbers: to the nearest even one, and from and to 16 bits.
  static Vector Round(Vector x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vector LoadShorts(const int16_t* p) {
    const __m256i shorts = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(shorts));
  }
  static void StoreShorts(int16_t* p, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(v)));
  }

  static Vector Exp2(Vector x) { return adder::Exp2(x); }
  static Vector Exp(Vector x) { return adder::Exp(x); }
  static Vector Silu(Vector x) { return adder::Silu(x); }
};

}  // namespace
}  // namespace adder
