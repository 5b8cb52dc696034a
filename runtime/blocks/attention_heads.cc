#include "runtime/blocks/attention_heads.h"

#include <algorithm>

namespace adder {

AttentionHeads::Buffers AttentionHeads::Carve(Arena* arena, size_t max_tokens) const {
  const size_t tokens = std::min(max_tokens, kStoredAhead);
  const size_t rows = c_.n_heads * tokens;
  Buffers s = {};
  s.queries = arena->Take<float>(rows * head_dim_);
  s.turns = arena->Take<float>(tokens * c_.rotary_dim);
  s.scores = arena->Take<float>(rows * kChunk);
  s.sums = arena->Take<float>(rows * head_dim_);
  s.added = arena->Take<float>(rows * head_dim_);
  s.largest = arena->Take<float>(rows);
  s.weight_sums = arena->Take<float>(rows);
  s.rescale = arena->Take<float>(rows);
  const auto quantized = [&](size_t cols) {
    const size_t groups = rows * Groups(cols);
    return QuantizedRows{arena->Take<int8_t>(groups * kGroup), arena->Take<float>(groups),
                         arena->Take<int32_t>(groups)};
  };
  s.queries_q8 = quantized(head_dim_);
  s.weights_q8 = quantized(kChunk);
  return s;
}

void AttentionHeads::Forward(const ForwardArgs& args, const Buffers& s, float* q, float* k,
                             const float* v) const noexcept {
  const KvRing ring(Kv(args.kv_choice), args.context, args.kv);
  for (size_t first = 0; first < args.tokens; first += kStoredAhead) {
    const AttentionArgs a = {.tokens = std::min(args.tokens - first, kStoredAhead),
                             .context = args.context,
                             .position = args.position + first,
                             .n_heads = c_.n_heads,
                             .n_kv_heads = c_.n_kv_heads,
                             .head_dim = head_dim_,
                             .rotary_dim = c_.rotary_dim,
                             .rope = rope_,
                             .scale = c_.scale,
                             .q = q + first * q_channels(),
                             .k = k + first * kv_channels(),
                             .v = v + first * kv_channels(),
                             .ring = ring,
                             .queries = s.queries,
                             .turns = s.turns,
                             .scores = s.scores,
                             .sums = s.sums,
                             .added = s.added,
                             .largest = s.largest,
                             .weight_sums = s.weight_sums,
                             .rescale = s.rescale,
                             .queries_q8 = s.queries_q8,
                             .weights_q8 = s.weights_q8};
    args.team.Run(RowBytes(a.tokens, q_channels() + 2 * kv_channels()),
                  [&](const Worker& w) { w.StoreTokens(w.Share(a.tokens), a); });
    // A prompt reads the ring once but computes with it for every token.
    args.team.Run(a.tokens * a.SeenTokens() * ring.shape().SlotBytes(),
                  [&](const Worker& w) { w.Attend(w.Share(c_.n_heads), a); });
  }
}

}  // namespace adder
