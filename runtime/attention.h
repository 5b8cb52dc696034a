// Attention between its projections: rotation, a ring of keys and values, softmax.
//
// Token `position` of a text has slot position % slots of the ring, for ever. Per key/value head
// the ring holds halves (in models of f32 weights: floats) in two arrays, both laid out as matrices
// that matmul_f16 (matmul_f32) reads:
//   keys    [slots / kLanes][head_dim][kLanes]   a row per slot: scores = keys * query
//   values  [head_dim / kLanes][slots][kLanes]   a column per slot: output = values * weights
// A token sees the latest `context` tokens. The ring has room for kStoredAhead more, so that many
// tokens of a prompt can be stored and then attend together.
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

namespace adder {

inline constexpr size_t kChunk = 256;       // slots of one step of the softmax
inline constexpr size_t kStoredAhead = 16;  // tokens that may be stored before they attend
static_assert(kChunk % kLanes == 0);

inline size_t RingSlots(size_t context) { return RoundUp(context + kStoredAhead, kLanes); }

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
  bool f32;           // the ring holds floats, else halves
  void* ring;         // [n_kv_heads][2][RingSlots(context) * head_dim]
  // Scratch.
  float* queries;                          // [n_heads][tokens][head_dim] rotated and scaled
  float* turns;                            // [tokens][rotary_dim] cosines, then sines
  float* scores;                           // [n_heads][tokens][kChunk]
  float *sums, *added;                     // [n_heads][tokens][head_dim] of values, and a chunk's
  float *largest, *weight_sums, *rescale;  // [n_heads][tokens]

  size_t slots() const { return RingSlots(context); }
  size_t kv_channels() const { return n_kv_heads * head_dim; }
  template <typename Element>
  Element* keys(size_t kv_head) const {
    return static_cast<Element*>(ring) + 2 * kv_head * slots() * head_dim;
  }
  template <typename Element>
  Element* values(size_t kv_head) const {
    return keys<Element>(kv_head) + slots() * head_dim;
  }
  // Tokens that the last one sees, itself included.
  size_t SeenTokens() const {
    return static_cast<size_t>(std::min<uint64_t>(position + tokens, context));
  }
};

// Rotates queries and keys of one token and stores its keys and values.
void StoreToken(const AttentionArgs& args, size_t token);

// All tokens, once they are stored, for query heads [head_begin, head_end).
void Attend(const Kernels& kernels, size_t head_begin, size_t head_end, const AttentionArgs& args);

}  // namespace adder
