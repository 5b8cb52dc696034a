// Eight lanes for the kernels of kernels_simd/. Only files compiled with -mavx2 -mfma may include
// it.
#pragma once

#include "kernels_x86/math_avx2.h"

namespace adder {
namespace {

struct Avx2Vector {
  using Vector = __m256;
  using Mask = __m256;
  static constexpr size_t kWidth = 8;
  static constexpr size_t kSisoVectors = 2, kMimoVectors = 1;

  static Vector Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, Vector v) { _mm256_storeu_ps(p, v); }
  static __m256i First(size_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Vector LoadFirst(const float* p, size_t count) {
    return count >= kWidth ? Load(p) : _mm256_maskload_ps(p, First(count));
  }
  static void StoreFirst(float* p, Vector v, size_t count) {
    if (count >= kWidth) return Store(p, v);
    _mm256_maskstore_ps(p, First(count), v);
  }

  static Vector Set(float x) { return _mm256_set1_ps(x); }
  static Vector Add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector Sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
  static Vector Mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static Vector Div(Vector a, Vector b) { return _mm256_div_ps(a, b); }
  static Vector Fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static Vector Negate(Vector x) { return adder::Negate(x); }
  static Vector Absolute(Vector x) { return adder::Absolute(x); }
  static Vector CopySign(Vector magnitude, Vector sign) {
    return _mm256_or_ps(Absolute(magnitude), _mm256_and_ps(Set(-0.0f), sign));
  }

  static Mask Less(Vector a, Vector b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static Mask LessEqual(Vector a, Vector b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
  static Vector Select(Mask mask, Vector yes, Vector no) { return _mm256_blendv_ps(no, yes, mask); }

  // Whole numbers: to the nearest even one, and from and to 16 bits.
  static Vector Round(Vector x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vector LoadShorts(const int16_t* p) {
    const __m128i shorts = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(shorts));
  }
  static void StoreShorts(int16_t* p, Vector v) {
    const __m256i ints = _mm256_cvtps_epi32(v);
    const __m128i shorts =
        _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), shorts);
  }

  static Vector Exp2(Vector x) { return adder::Exp2(x); }
  static Vector Exp(Vector x) { return adder::Exp(x); }
  static Vector Silu(Vector x) { return adder::Silu(x); }
};

}  // namespace
}  // namespace adder
