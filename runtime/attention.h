// Attention between its projections: rotation, a ring of keys and values (kv_ring.h), softmax.
//
// A token sees the latest `context` tokens. Query heads that share a key/value head, and the tokens
// of a prompt, are the "tokens" of two matrix products: keys by queries, and values by weights.
//
// Softmax goes over chunks of kChunk slots in the order of slots. Each chunk adds to a running sum
// of values, which is scaled down when a chunk brings a larger score. Chunks, lanes and orders are
// given by slots alone, and slots that a token does not see add exactly 0: so results do not depend
// on which tokens attend together, nor on what is in the ring.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quant/qtypes.h"
#include "runtime/kernels.h"
#include "runtime/kv_ring.h"

namespace adder {

inline constexpr size_t kChunk = 256;  // slots of one step of the softmax
static_assert(kChunk % kGroup == 0);

// At most kStoredAhead tokens. head_dim is padded to kLanes, with zeros in q, k and v.
struct AttentionArgs {
  size_t tokens, context;
  uint64_t position;  // of the first token
  size_t n_heads, n_kv_heads, head_dim, rotary_dim;
  const float* rope;  // [rotary_dim / 2] radians per token; dimension i turns with i + rotary_dim/2
  float scale;        // of the rotated query
  float* q;           // [tokens][n_heads][head_dim] in: queries; out: weighted sums of values
  float* k;           // [tokens][n_kv_heads][head_dim], rotated in place
  const float* v;     // [tokens][n_kv_heads][head_dim]
  KvRing ring;
  // Scratch.
  float* queries;                          // [n_heads][tokens][head_dim] rotated and scaled
  float* turns;                            // [tokens][rotary_dim] cosines, then sines
  float* scores;                           // [n_heads][tokens][kChunk]
  float *sums, *added;                     // [n_heads][tokens][head_dim] of values, and a chunk's
  float *largest, *weight_sums, *rescale;  // [n_heads][tokens]
  // With a ring of int8.
  QuantizedRows queries_q8;  // [n_heads][tokens][head_dim]
  QuantizedRows weights_q8;  // [n_heads][tokens] of a chunk's slots

  size_t slots() const { return ring.slots(); }
  // Tokens that the last one sees, itself included.
  size_t SeenTokens() const {
    return static_cast<size_t>(std::min<uint64_t>(position + tokens, context));
  }
};

// Rotates queries and keys of one token and stores its keys and values.
void StoreToken(const Kernels& kernels, const AttentionArgs& args, size_t token);

// All tokens, once they are stored, for query heads [head_begin, head_end).
void Attend(const Kernels& kernels, size_t head_begin, size_t head_end, const AttentionArgs& args);

}  // namespace adder
