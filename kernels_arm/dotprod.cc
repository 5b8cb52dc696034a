// Kernels for the dot product instructions of ARMv8.2 (optional) and ARMv8.4: only the quantized
// matmuls, everything else is inherited from neon.cc.
#include "kernels_arm/matmul_dotprod.h"

namespace adder {
namespace {

void MatmulQ8(const int8_t* weights, const float* row_scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  for (size_t b = 0; b < row_blocks; ++b) {
    const int8_t* w = weights + b * groups * kGroup * kLanes;
    for (size_t t = 0; t < tokens;) {
      t += BlockQ8(w, row_scales + b * kLanes, groups, x->values + t * groups * kGroup,
                   x->scales + t * groups, tokens - t, y + t * y_stride + b * kLanes, y_stride);
    }
  }
}

void MatmulQ4(const uint8_t* weights, const uint16_t* scales, size_t row_blocks, size_t groups,
              const QuantizedRows* x, size_t tokens, float* y, size_t y_stride) {
  for (size_t b = 0; b < row_blocks; ++b) {
    const uint8_t* w = weights + b * groups * (kGroup / 2) * kLanes;
    for (size_t t = 0; t < tokens;) {
      t += BlockQ4(w, scales + b * groups * kLanes, groups, x->values + t * groups * kGroup,
                   x->scales + t * groups, x->sums + t * groups, tokens - t,
                   y + t * y_stride + b * kLanes, y_stride);
    }
  }
}

}  // namespace

constinit const Kernels kDotprodKernels = {
    .name = "dotprod",
    .required = kCpuNeon | kCpuDotProd,
    .matmul_q8 = MatmulQ8,
    .matmul_q4 = MatmulQ4,
};

}  // namespace adder
