// The block formats of GGUF as float32. A block is a run of 32 or 256 neighbouring elements of a
// row with scales of its own; d and m are its f16 scale and minimum, q the stored integers.
//
//   Q4_0, Q5_0, Q8_0  d * q            32 elements; q is centred on 0
//   Q4_1, Q5_1        d * q + m        32 elements; q from 0 on
//   Q4_K, Q5_K        d * s * q - m * t   256 elements; 6-bit s, t for every 32 of them
//   Q6_K              d * s * q        256 elements; 8-bit s for every 16 of them
#pragma once

#include <cstdint>
#include <span>

#include "converter/checkpoint.h"

namespace adder {

// `type` is a block format, `out` has a whole number of its blocks. Products are formed from left
// to right, each rounded to float32.
void DequantizeBlocks(SourceType type, const uint8_t* blocks, std::span<float> out);

}  // namespace adder
