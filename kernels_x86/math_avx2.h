// The functions of runtime/scalar_math.h in AVX2 and FMA, operation by operation.
// Static inline: only files compiled with -mavx2 -mfma may include it.
#pragma once

#include <immintrin.h>

#include "runtime/kernels.h"

namespace adder {
namespace {

inline __m256 Negate(__m256 x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }
inline __m256 Absolute(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

// `value` where x is not below `least` (NaN is not), else 0.
inline __m256 ZeroBelow(__m256 least, __m256 x, __m256 value) {
  return _mm256_and_ps(_mm256_cmp_ps(x, least, _CMP_NLT_UQ), value);
}

// A first operand of min_ps or max_ps loses against NaN in the second, as in the scalar text.
inline __m256 Exp2Scaled(__m256 shifted, __m256 r) {
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(kExp2C5), r, _mm256_set1_ps(kExp2C4));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp2C3));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp2C2));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp2C1));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const __m256i bits = _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23),
                                        _mm256_set1_epi32(0x3f800000));
  return _mm256_mul_ps(p, _mm256_castsi256_ps(bits));
}

inline __m256 Exp2(__m256 x) {
  const __m256 shift = _mm256_set1_ps(kRoundingShift);
  const __m256 clamped = _mm256_min_ps(_mm256_set1_ps(kExp2Max), x);
  const __m256 shifted = _mm256_add_ps(clamped, shift);
  const __m256 r = _mm256_sub_ps(clamped, _mm256_sub_ps(shifted, shift));
  return ZeroBelow(_mm256_set1_ps(kExp2Min), x, Exp2Scaled(shifted, r));
}

inline __m256 Exp(__m256 x) {
  const __m256 shift = _mm256_set1_ps(kRoundingShift);
  const __m256 high = _mm256_set1_ps(kLog2eHigh);
  const __m256 clamped = _mm256_min_ps(_mm256_set1_ps(kExpMax), x);
  const __m256 shifted = _mm256_fmadd_ps(clamped, high, shift);
  const __m256 n = _mm256_sub_ps(shifted, shift);
  const __m256 r =
      _mm256_fmadd_ps(clamped, _mm256_set1_ps(kLog2eLow), _mm256_fmsub_ps(clamped, high, n));
  return ZeroBelow(_mm256_set1_ps(kExpMin), x, Exp2Scaled(shifted, r));
}

inline __m256 Silu(__m256 x) {
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), Exp(Negate(x))));
}

inline __m256 Softplus(__m256 x) {
  const __m256 u = Exp(Negate(Absolute(x)));
  const __m256 s = _mm256_div_ps(u, _mm256_add_ps(_mm256_set1_ps(2.0f), u));
  const __m256 z = _mm256_mul_ps(s, s);
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(kAtanhC4), z, _mm256_set1_ps(kAtanhC3));
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kAtanhC2));
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kAtanhC1));
  const __m256 twice = _mm256_add_ps(s, s);
  const __m256 log1p = _mm256_fmadd_ps(_mm256_mul_ps(twice, z), p, twice);
  return _mm256_add_ps(_mm256_max_ps(x, _mm256_setzero_ps()), log1p);
}

inline __m256 Relu2(__m256 x) {
  const __m256 positive = _mm256_max_ps(_mm256_setzero_ps(), x);
  return _mm256_mul_ps(positive, positive);
}

inline __m256 Gelu(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 minus_half = _mm256_set1_ps(-0.5f);
  const __m256 a = _mm256_min_ps(_mm256_set1_ps(kGeluMax), Absolute(x));
  const __m256 t = _mm256_div_ps(one, _mm256_fmadd_ps(_mm256_set1_ps(kGeluScale), a, one));
  const __m256 z = _mm256_sub_ps(one, t);
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(kGeluC7), z, _mm256_set1_ps(kGeluC6));
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kGeluC5));
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kGeluC4));
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kGeluC3));
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kGeluC2));
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kGeluC1));
  p = _mm256_fmadd_ps(p, z, one);
  const __m256 tail = Exp(_mm256_mul_ps(_mm256_mul_ps(a, a), minus_half));
  const __m256 erfc = _mm256_mul_ps(tail, _mm256_mul_ps(t, p));
  const __m256 positive = _mm256_max_ps(x, _mm256_setzero_ps());
  return _mm256_fmadd_ps(_mm256_mul_ps(a, minus_half), erfc, positive);
}

}  // namespace
}  // namespace adder
