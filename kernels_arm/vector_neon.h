// Four lanes for the kernels of kernels_simd/.
#pragma once

#include "kernels_arm/math_neon.h"

namespace adder {
namespace {

struct NeonVector {
  using Vector = float32x4_t;
  using Mask = uint32x4_t;
  static constexpr size_t kWidth = 4;
  static constexpr size_t kSisoVectors = 4, kMimoVectors = 2;

  static Vector Load(const float* p) { return vld1q_f32(p); }
  static void Store(float* p, Vector v) { vst1q_f32(p, v); }
  static Vector LoadFirst(const float* p, size_t count) {
    if (count >= kWidth) return Load(p);
    float lanes[kWidth] = {};
    __builtin_memcpy(lanes, p, count * sizeof(float));
    return Load(lanes);
  }
  static void StoreFirst(float* p, Vector v, size_t count) {
    if (count >= kWidth) return Store(p, v);
    float lanes[kWidth];
    Store(lanes, v);
    __builtin_memcpy(p, lanes, count * sizeof(float));
  }

  static Vector Set(float x) { return vdupq_n_f32(x); }
  static Vector Add(Vector a, Vector b) { return vaddq_f32(a, b); }
  static Vector Sub(Vector a, Vector b) { return vsubq_f32(a, b); }
  static Vector Mul(Vector a, Vector b) { return vmulq_f32(a, b); }
  static Vector Div(Vector a, Vector b) { return vdivq_f32(a, b); }
  static Vector Fma(Vector a, Vector b, Vector c) { return vfmaq_f32(c, a, b); }
  static Vector Negate(Vector x) { return vnegq_f32(x); }
  static Vector Absolute(Vector x) { return vabsq_f32(x); }
  static Vector CopySign(Vector magnitude, Vector sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude);
  }

  static Mask Less(Vector a, Vector b) { return vcltq_f32(a, b); }
  static Mask LessEqual(Vector a, Vector b) { return vcleq_f32(a, b); }
  static Vector Select(Mask mask, Vector yes, Vector no) { return vbslq_f32(mask, yes, no); }

  // Whole numbers: to the nearest even one, and from and to 16 bits.
  static Vector Round(Vector x) { return vrndnq_f32(x); }
  static Vector LoadShorts(const int16_t* p) { return vcvtq_f32_s32(vmovl_s16(vld1_s16(p))); }
  static void StoreShorts(int16_t* p, Vector v) { vst1_s16(p, vqmovn_s32(vcvtq_s32_f32(v))); }

  static Vector Exp2(Vector x) { return adder::Exp2(x); }
  static Vector Exp(Vector x) { return adder::Exp(x); }
  static Vector Silu(Vector x) { return adder::Silu(x); }
};

}  // namespace
}  // namespace adder
