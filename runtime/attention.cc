#include "runtime/attention.h"

#include <limits>
#include <type_traits>

#include "runtime/scalar_math.h"

namespace adder {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
alignas(kAlignment) constexpr float kOnes[kLanes] = {1, 1, 1, 1, 1, 1, 1, 1,
                                                     1, 1, 1, 1, 1, 1, 1, 1};

// Row `row` of rows of `groups` groups, and those behind it.
QuantizedRows From(const QuantizedRows& rows, size_t row, size_t groups) {
  return {rows.values + row * groups * kGroup, rows.scales + row * groups,
          rows.sums + row * groups};
}

void Rotate(const float* turns, size_t rotary_dim, float* head) {
  const size_t half = rotary_dim / 2;
  for (size_t i = 0; i < half; ++i) {
    const float cos = turns[i], sin = turns[half + i];
    const float a = head[i], b = head[half + i];
    head[i] = a * cos - b * sin;
    head[half + i] = b * cos + a * sin;
  }
}

struct Span {
  size_t begin, end;
  // The part within `other`; where there is none, an empty one at its nearer end.
  Span Within(const Span& other) const {
    return {std::clamp(begin, other.begin, other.end), std::clamp(end, other.begin, other.end)};
  }
};

// The slots of `count` <= slots tokens up to `newest`. They may run over the end of the ring: then
// the older ones lie in `high`.
struct Window {
  Span low, high;

  Window(uint64_t newest, size_t count, size_t slots) {
    const size_t end = static_cast<size_t>(newest % slots) + 1;
    low = {end - std::min(end, count), end};
    high = {slots - (count - std::min(end, count)), slots};
  }

  // The slots from the first to the last of the window within a chunk.
  Span Within(const Span& chunk) const {
    const Span a = low.Within(chunk), b = high.Within(chunk);
    if (a.begin == a.end) return b;
    return {a.begin, b.begin == b.end ? a.end : b.end};
  }

  // Scores of the chunk's slots; those outside of the window may be anything.
  void Mask(const Span& chunk, float* scores) const {
    const Span a = low.Within(chunk), b = high.Within(chunk);
    const auto mask = [&](size_t begin, size_t end) {
      std::fill(scores + (begin - chunk.begin), scores + (end - chunk.begin), kMasked);
    };
    mask(chunk.begin, a.begin);
    mask(a.end, b.begin);
    mask(b.end, chunk.end);
  }
};

// Query heads of one key/value head: rows [heads][tokens] of everything.
class Group {
 public:
  Group(const Kernels& kernels, const AttentionArgs& args, size_t head_begin, size_t head_end)
      : kernels_(kernels),
        a_(args),
        kv_head_(head_begin / (args.n_heads / args.n_kv_heads)),
        begin_(head_begin * args.tokens),
        end_(head_end * args.tokens) {}

  void Run() const {
    std::fill(a_.sums + begin_ * a_.head_dim, a_.sums + end_ * a_.head_dim, 0.0f);
    std::fill(a_.weight_sums + begin_, a_.weight_sums + end_, 0.0f);
    std::fill(a_.largest + begin_, a_.largest + end_, kMasked);
    // What any of the tokens sees: back from the last of them to where the first one looks.
    const size_t before = static_cast<size_t>(std::min<uint64_t>(a_.position, a_.context - 1));
    const Window seen(a_.position + a_.tokens - 1, before + a_.tokens, a_.slots());
    for (size_t begin = 0; begin < a_.slots(); begin += kChunk) {
      const Span used = seen.Within({begin, std::min(begin + kChunk, a_.slots())});
      if (used.begin >= used.end) continue;
      switch (a_.ring.shape().type) {
        case KvType::kF16:
          AddChunk<uint16_t>(used);
          break;
        case KvType::kF32:
          AddChunk<float>(used);
          break;
        case KvType::kInt8:
          AddChunk<int8_t>(used);
          break;
      }
    }
    for (size_t row = begin_; row < end_; ++row) Finish(row);
  }

 private:
  // All slots of `used` have been written: what lies between the two parts of a window is older
  // than both. Those before it in its first block have been too, those behind it perhaps not.
  template <typename Element>
  void AddChunk(const Span& used) const {
    constexpr bool kIsInt8 = std::is_same_v<Element, int8_t>;
    constexpr size_t kBlock = kIsInt8 ? kGroup : kLanes;
    const Span blocks = {used.begin / kBlock * kBlock, RoundUp(used.end, kBlock)};
    Scores(a_.ring.keys<Element>(kv_head_) + blocks.begin * a_.ring.shape().key_dim(), blocks);
    for (size_t row = begin_; row < end_; ++row) Weigh(row, blocks);
    if constexpr (kIsInt8) {
      for (size_t row = begin_; row < end_; ++row) QuantizeWeights(row, blocks);
    }
    for (size_t d = 0; d < a_.head_dim; d += kLanes) {
      const Element* values = a_.ring.values<Element>(kv_head_) + d * a_.slots();
      AddValues(values + blocks.begin * kLanes, {blocks.begin, kIsInt8 ? blocks.end : used.end},
                a_.added + begin_ * a_.head_dim + d);
    }
    for (size_t row = begin_; row < end_; ++row) {
      float* sum = a_.sums + row * a_.head_dim;
      const float* added = a_.added + row * a_.head_dim;
      for (size_t d = 0; d < a_.head_dim; ++d) sum[d] = sum[d] * a_.rescale[row] + added[d];
    }
  }

  // Scores of whole blocks of slots, whose keys start at `keys`.
  template <typename Element>
  void Scores(const Element* keys, const Span& slots) const {
    Multiply(keys, (slots.end - slots.begin) / kLanes, a_.head_dim,
             a_.queries + begin_ * a_.head_dim, a_.head_dim, a_.scores + begin_ * kChunk, kChunk);
  }
  void Scores(const int8_t* keys, const Span& slots) const {
    const size_t groups = Groups(a_.head_dim);
    const QuantizedRows queries = From(a_.queries_q8, begin_, groups);
    kernels_.matmul_q8(keys, a_.ring.key_scales(kv_head_) + slots.begin,
                       (slots.end - slots.begin) / kLanes, groups, &queries, end_ - begin_,
                       a_.scores + begin_ * kChunk, kChunk);
  }

  // kLanes channels of the weighted sums of values, which start at `values`.
  template <typename Element>
  void AddValues(const Element* values, const Span& slots, float* added) const {
    Multiply(values, 1, slots.end - slots.begin, a_.scores + begin_ * kChunk, kChunk, added,
             a_.head_dim);
  }
  void AddValues(const int8_t* values, const Span& slots, float* added) const {
    const QuantizedRows weights = From(a_.weights_q8, begin_, kChunk / kGroup);
    kernels_.matmul_q8(values, kOnes, 1, (slots.end - slots.begin) / kGroup, &weights,
                       end_ - begin_, added, a_.head_dim);
  }

  template <typename Element>
  void Multiply(const Element* matrix, size_t row_blocks, size_t cols, const float* x,
                size_t x_stride, float* y, size_t y_stride) const {
    if constexpr (std::is_same_v<Element, float>) {
      kernels_.matmul_f32(matrix, row_blocks, cols, x, x_stride, end_ - begin_, y, y_stride);
    } else {
      kernels_.matmul_f16(matrix, row_blocks, cols, x, x_stride, end_ - begin_, y, y_stride);
    }
  }

  // Weights of a row take the scales of their slots' values. What is not seen has weight 0 and
  // perhaps no scale. Rows follow each other as closely as the products want them.
  void QuantizeWeights(size_t row, const Span& slots) const {
    const size_t n = slots.end - slots.begin;
    float* weights = a_.scores + row * kChunk;
    const float* scales = a_.ring.value_scales(kv_head_) + slots.begin;
    for (size_t i = 0; i < n; ++i) weights[i] = weights[i] == 0.0f ? 0.0f : weights[i] * scales[i];
    const QuantizedRows group = From(a_.weights_q8, begin_, kChunk / kGroup);
    const QuantizedRows out = From(group, row - begin_, n / kGroup);
    kernels_.quantize_row(weights, n, out.values, out.scales, out.sums);
  }

  // Scores of a row become weights.
  void Weigh(size_t row, const Span& slots) const {
    const uint64_t newest = a_.position + row % a_.tokens;
    const Window seen(newest, static_cast<size_t>(std::min<uint64_t>(newest + 1, a_.context)),
                      a_.slots());
    float* scores = a_.scores + row * kChunk;
    const size_t n = slots.end - slots.begin;
    const Span used = seen.Within(slots);
    a_.rescale[row] = 1.0f;
    if (used.begin == used.end) {  // another token of the group sees something here
      std::fill_n(scores, n, 0.0f);
      return;
    }
    seen.Mask(slots, scores);
    const float before = a_.largest[row];
    const float added = kernels_.softmax(scores, n, &a_.largest[row]);
    a_.rescale[row] = Exp(before - a_.largest[row]);
    a_.weight_sums[row] = a_.weight_sums[row] * a_.rescale[row] + added;
  }

  // Divides the sum of a row by that of its weights. + 0 makes -0 the 0 that it is on another path:
  // adding a weight 0 can change nothing else.
  void Finish(size_t row) const {
    const float inverse = 1.0f / a_.weight_sums[row];
    const size_t head = row / a_.tokens, token = row % a_.tokens;
    const float* sum = a_.sums + row * a_.head_dim;
    float* out = a_.q + (token * a_.n_heads + head) * a_.head_dim;
    for (size_t d = 0; d < a_.head_dim; ++d) out[d] = sum[d] * inverse + 0.0f;
  }

  const Kernels& kernels_;
  const AttentionArgs& a_;
  size_t kv_head_;
  size_t begin_, end_;  // rows
};

}  // namespace

void StoreToken(const Kernels& kernels, const AttentionArgs& a, size_t token) {
  const uint64_t position = a.position + token;
  const size_t half = a.rotary_dim / 2;
  float* turns = a.turns + token * a.rotary_dim;
  for (size_t i = 0; i < half; ++i) {
    const SinCos turn = SineAndCosine(static_cast<double>(position) * double{a.rope[i]});
    turns[i] = static_cast<float>(turn.cos);
    turns[half + i] = static_cast<float>(turn.sin);
  }
  for (size_t h = 0; h < a.n_heads; ++h) {
    const float* q = a.q + (token * a.n_heads + h) * a.head_dim;
    float* query = a.queries + (h * a.tokens + token) * a.head_dim;
    std::copy_n(q, a.head_dim, query);
    Rotate(turns, a.rotary_dim, query);
    for (size_t d = 0; d < a.head_dim; ++d) query[d] *= a.scale;
    if (a.ring.shape().type != KvType::kInt8) continue;
    const QuantizedRows out = From(a.queries_q8, h * a.tokens + token, Groups(a.head_dim));
    kernels.quantize_row(query, a.head_dim, out.values, out.scales, out.sums);
  }
  const size_t slot = static_cast<size_t>(position % a.slots());
  for (size_t h = 0; h < a.n_kv_heads; ++h) {
    float* k = a.k + (token * a.n_kv_heads + h) * a.head_dim;
    const float* v = a.v + (token * a.n_kv_heads + h) * a.head_dim;
    Rotate(turns, a.rotary_dim, k);
    a.ring.Store(h, slot, k, v);
  }
}

void Attend(const Kernels& kernels, size_t head_begin, size_t head_end, const AttentionArgs& args) {
  const size_t group = args.n_heads / args.n_kv_heads;
  for (size_t head = head_begin; head < head_end;) {
    const size_t end = std::min(head_end, (head / group + 1) * group);
    Group(kernels, args, head, end).Run();
    head = end;
  }
}

}  // namespace adder
