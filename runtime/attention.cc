#include "runtime/attention.h"

#include <cmath>
#include <limits>

#include "runtime/scalar_math.h"

namespace adder {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

void Rotate(const float* turns, size_t rotary_dim, float* head) {
  const size_t half = rotary_dim / 2;
  for (size_t i = 0; i < half; ++i) {
    const float cos = turns[i], sin = turns[half + i];
    const float a = head[i], b = head[half + i];
    head[i] = a * cos - b * sin;
    head[half + i] = b * cos + a * sin;
  }
}

inline void Store(float x, float* element) { *element = x; }
inline void Store(float x, uint16_t* element) { *element = F32ToF16(x); }
inline bool IsFinite(float x) { return std::fabs(x) <= std::numeric_limits<float>::max(); }
inline bool IsFinite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// Sums over values also run over slots with weight 0, so values must be finite. One that is not
// goes in as 0 with a key of NaN: so the fault reaches the tokens that see the slot, and no others.
template <typename Element>
void StoreHead(const AttentionArgs& args, const float* k, const float* v, size_t kv_head,
               size_t slot) {
  const size_t head_dim = args.head_dim, slots = args.slots();
  Element* key = args.keys<Element>(kv_head) + slot / kLanes * head_dim * kLanes + slot % kLanes;
  Element* values = args.values<Element>(kv_head);
  for (size_t d = 0; d < head_dim; ++d) Store(k[d], &key[d * kLanes]);
  for (size_t d = 0; d < head_dim; ++d) {
    Element* value = &values[(d / kLanes * slots + slot) * kLanes + d % kLanes];
    Store(v[d], value);
    if (!IsFinite(*value)) {
      *value = Element{};
      Store(std::numeric_limits<float>::quiet_NaN(), key);
    }
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
      if (a_.f32) {
        AddChunk<float>(used);
      } else {
        AddChunk<uint16_t>(used);
      }
    }
    for (size_t row = begin_; row < end_; ++row) Finish(row);
  }

 private:
  // All slots of `used` have been written: what lies between the two parts of a window is older
  // than both. Those before it in its first block of lanes have been too, those behind it perhaps
  // not.
  template <typename Element>
  void AddChunk(const Span& used) const {
    const Span blocks = {used.begin / kLanes * kLanes, RoundUp(used.end, kLanes)};
    const size_t rows = end_ - begin_;
    float* scores = a_.scores + begin_ * kChunk;
    Multiply<Element>(a_.keys<Element>(kv_head_) + blocks.begin * a_.head_dim,
                      (blocks.end - blocks.begin) / kLanes, a_.head_dim,
                      a_.queries + begin_ * a_.head_dim, a_.head_dim, rows, scores, kChunk);
    for (size_t row = begin_; row < end_; ++row) Weigh(row, blocks);
    for (size_t d = 0; d < a_.head_dim; d += kLanes) {
      Multiply<Element>(a_.values<Element>(kv_head_) + d * a_.slots() + blocks.begin * kLanes, 1,
                        used.end - blocks.begin, scores, kChunk, rows,
                        a_.added + begin_ * a_.head_dim + d, a_.head_dim);
    }
    for (size_t row = begin_; row < end_; ++row) {
      float* sum = a_.sums + row * a_.head_dim;
      const float* added = a_.added + row * a_.head_dim;
      for (size_t d = 0; d < a_.head_dim; ++d) sum[d] = sum[d] * a_.rescale[row] + added[d];
    }
  }

  template <typename Element>
  void Multiply(const Element* matrix, size_t row_blocks, size_t cols, const float* x,
                size_t x_stride, size_t rows, float* y, size_t y_stride) const {
    if constexpr (sizeof(Element) == sizeof(float)) {
      kernels_.matmul_f32(matrix, row_blocks, cols, x, x_stride, rows, y, y_stride);
    } else {
      kernels_.matmul_f16(matrix, row_blocks, cols, x, x_stride, rows, y, y_stride);
    }
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

void StoreToken(const AttentionArgs& a, size_t token) {
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
  }
  const size_t slot = static_cast<size_t>(position % a.slots());
  for (size_t h = 0; h < a.n_kv_heads; ++h) {
    float* k = a.k + (token * a.n_kv_heads + h) * a.head_dim;
    const float* v = a.v + (token * a.n_kv_heads + h) * a.head_dim;
    Rotate(turns, a.rotary_dim, k);
    (a.f32 ? StoreHead<float> : StoreHead<uint16_t>)(a, k, v, h, slot);
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
