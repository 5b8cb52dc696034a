#include "converter/evaluation.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "runtime/session_buffer.h"

namespace adder {
namespace {

constexpr std::string_view kSeparator = "<|endoftext|>";
constexpr size_t kRows = 32;  // of logits that a comparison keeps

// log of the sum of exp(logits), in double.
double LogSumExp(std::span<const float> logits) {
  double largest = -INFINITY, sum = 0;
  for (const float l : logits) largest = std::max(largest, static_cast<double>(l));
  for (const float l : logits) sum += std::exp(static_cast<double>(l) - largest);
  return largest + std::log(sum);
}

// Mean and standard error of a sequence of numbers.
class Mean {
 public:
  void Add(double value) {
    ++count_;
    const double difference = value - mean_;
    mean_ += difference / static_cast<double>(count_);
    squares_ += difference * (value - mean_);
  }
  uint64_t count() const { return count_; }
  double mean() const { return mean_; }
  double standard_error() const {
    if (count_ < 2) return 0;
    const double n = static_cast<double>(count_);
    return std::sqrt(squares_ / (n - 1) / n);
  }

 private:
  uint64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

Perplexity ToPerplexity(const Mean& nll) { return {nll.count(), nll.mean(), nll.standard_error()}; }

// Calls row(token position, logits) for each position of a window from `first` on: the logits are
// those that predict that position.
template <typename Row>
class Rows final : public FeedObserver {
 public:
  Rows(size_t base, size_t first, size_t end, Row row)
      : base_(base), first_(first), end_(end), row_(row) {}
  void OnLogits(size_t token, std::span<const float> logits) override {
    const size_t position = base_ + token + 1;
    if (position >= first_ && position < end_) row_(position, logits);
  }

 private:
  size_t base_, first_, end_;
  Row row_;
};

// Feeds tokens [begin, end) of a window; with logits only where they are scored.
template <typename Row>
Status FeedPart(Session& session, std::span<const int32_t> window, size_t begin, size_t end,
                size_t first, Row row) {
  // The logits behind token i predict token i + 1.
  const size_t silent = std::clamp(first - 1, begin, end);
  ADDER_RETURN_IF_ERROR(session.Feed(window.subspan(begin, silent - begin)));
  Rows<Row> rows(silent, first, window.size(), row);
  return session.Feed(window.subspan(silent, end - silent), &rows);
}

SessionOptions OptionsFor(const EvaluationText& text, KvChoice kv_type = KvChoice::kDefault) {
  SessionOptions options;
  options.kv_type = kv_type;
  options.context = static_cast<uint32_t>(std::max<size_t>(text.Window(0).size(), 1));
  return options;
}

Status Stopped(const EvaluationProgress& progress, uint64_t done, uint64_t total) {
  if (!progress || progress(done, total)) return {};
  return Status(Code::kCancelled, "cancelled");
}

double Percentile(std::vector<float>& values, double part) {
  const auto nth =
      values.begin() + static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), nth, values.end());
  return static_cast<double>(*nth);
}

}  // namespace

Result<EvaluationText> EvaluationText::Create(const Model& model, std::string_view text,
                                              const EvaluationOptions& options) {
  if (model.tokenizer() == nullptr) {
    return Status(Code::kInvalidArgument, "this model has no tokenizer to read the text with");
  }
  if (options.context < 2) {
    return Error(Code::kInvalidArgument, "the context is %" PRIu32 " tokens, expected 2 or more",
                 options.context);
  }
  EvaluationText out;
  const ModelConfig& config = model.config();
  int32_t separator = model.tokenizer()->FindPiece(kSeparator);
  if (separator < 0 && !config.eos.empty()) separator = config.eos.front();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(kSeparator, begin), text.size());
    ADDER_ASSIGN_OR_RETURN(
        const std::vector<int32_t> ids,
        model.tokenizer()->Encode(text.substr(begin, end - begin), {.add_special = false}));
    out.tokens_.insert(out.tokens_.end(), ids.begin(), ids.end());
    if (end < text.size() && separator >= 0) out.tokens_.push_back(separator);
    begin = end + kSeparator.size();
  }
  out.bos_ = config.bos;
  out.second_half_ = options.second_half;
  out.stride_ = options.context - (config.bos >= 0 ? 1 : 0);
  const size_t least = config.bos >= 0 ? 1 : 2;
  if (out.tokens_.size() < least) {
    return Error(Code::kInvalidArgument, "the text has %zu tokens, too few to score one",
                 out.tokens_.size());
  }
  out.windows_ = std::max<size_t>(out.tokens_.size() / out.stride_, 1);
  if (options.windows > 0) {
    out.windows_ = static_cast<size_t>(std::min<uint64_t>(out.windows_, options.windows));
  }
  return out;
}

std::vector<int32_t> EvaluationText::Window(size_t index) const {
  std::vector<int32_t> window;
  if (bos_ >= 0) window.push_back(bos_);
  const size_t begin = index * stride_;
  const size_t end = std::min(begin + stride_, tokens_.size());
  window.insert(window.end(), tokens_.begin() + static_cast<std::ptrdiff_t>(begin),
                tokens_.begin() + static_cast<std::ptrdiff_t>(end));
  return window;
}

size_t EvaluationText::first_scored(size_t window_tokens) const {
  return second_half_ ? std::max<size_t>(window_tokens / 2, 1) : 1;
}

double Perplexity::perplexity() const { return std::exp(mean_nll); }

Result<Perplexity> MeasurePerplexity(const Model& model, const EvaluationText& text,
                                     const EvaluationProgress& progress, KvChoice kv_type) {
  ADDER_ASSIGN_OR_RETURN(const SessionBuffer buffer,
                         SessionBuffer::Create(model, OptionsFor(text, kv_type)));
  Session& session = buffer.session();
  Mean nll;
  for (size_t i = 0; i < text.windows(); ++i) {
    ADDER_RETURN_IF_ERROR(Stopped(progress, i, text.windows()));
    const std::vector<int32_t> window = text.Window(i);
    session.Reset();
    ADDER_RETURN_IF_ERROR(
        FeedPart(session, window, 0, window.size() - 1, text.first_scored(window.size()),
                 [&](size_t position, std::span<const float> logits) {
                   const auto token = static_cast<size_t>(window[position]);
                   nll.Add(LogSumExp(logits) - static_cast<double>(logits[token]));
                 }));
  }
  return ToPerplexity(nll);
}

Result<Comparison> CompareModels(const Model& a, const Model& b, const EvaluationText& text,
                                 const EvaluationProgress& progress, KvChoice kv_type) {
  const uint32_t rows_a = a.config().vocab_rows, rows_b = b.config().vocab_rows;
  if (a.config().vocab_size != b.config().vocab_size) {
    return Error(Code::kInvalidArgument,
                 "the vocabularies differ: %" PRIu32 " and %" PRIu32 " tokens",
                 a.config().vocab_size, b.config().vocab_size);
  }
  const size_t vocab = std::min({rows_a, rows_b, a.config().vocab_size});
  ADDER_ASSIGN_OR_RETURN(const SessionBuffer buffer_a, SessionBuffer::Create(a, OptionsFor(text)));
  ADDER_ASSIGN_OR_RETURN(const SessionBuffer buffer_b,
                         SessionBuffer::Create(b, OptionsFor(text, kv_type)));
  std::vector<float> reference(kRows * vocab);
  std::vector<double> normalizers(kRows);
  std::vector<float> divergences;
  Mean nll_a, nll_b, difference, kl;
  uint64_t same = 0;
  for (size_t i = 0; i < text.windows(); ++i) {
    ADDER_RETURN_IF_ERROR(Stopped(progress, i, text.windows()));
    const std::vector<int32_t> window = text.Window(i);
    const size_t first = text.first_scored(window.size());
    buffer_a.session().Reset();
    buffer_b.session().Reset();
    for (size_t begin = 0; begin + 1 < window.size(); begin += kRows) {
      const size_t end = std::min(begin + kRows, window.size() - 1);
      ADDER_RETURN_IF_ERROR(FeedPart(buffer_a.session(), window, begin, end, first,
                                     [&](size_t position, std::span<const float> logits) {
                                       const size_t row = position - 1 - begin;
                                       std::copy_n(logits.begin(), vocab,
                                                   reference.begin() +
                                                       static_cast<std::ptrdiff_t>(row * vocab));
                                       normalizers[row] = LogSumExp(logits.first(vocab));
                                     }));
      ADDER_RETURN_IF_ERROR(
          FeedPart(buffer_b.session(), window, begin, end, first,
                   [&](size_t position, std::span<const float> logits) {
                     const size_t row = position - 1 - begin;
                     const std::span<const float> p(reference.data() + row * vocab, vocab);
                     const std::span<const float> q = logits.first(vocab);
                     const double norm_p = normalizers[row], norm_q = LogSumExp(q);
                     double divergence = 0;
                     for (size_t v = 0; v < vocab; ++v) {
                       const double log_p = static_cast<double>(p[v]) - norm_p;
                       const double log_q = static_cast<double>(q[v]) - norm_q;
                       if (log_p > -INFINITY) divergence += std::exp(log_p) * (log_p - log_q);
                     }
                     const auto token = static_cast<size_t>(window[position]);
                     const double a_nll = norm_p - static_cast<double>(p[token]);
                     const double b_nll = norm_q - static_cast<double>(q[token]);
                     nll_a.Add(a_nll);
                     nll_b.Add(b_nll);
                     difference.Add(b_nll - a_nll);
                     kl.Add(divergence);
                     divergences.push_back(static_cast<float>(divergence));
                     same += std::max_element(p.begin(), p.end()) - p.begin() ==
                             std::max_element(q.begin(), q.end()) - q.begin();
                   }));
    }
  }
  Comparison out;
  out.a = ToPerplexity(nll_a);
  out.b = ToPerplexity(nll_b);
  out.mean_kl = kl.mean();
  out.kl_standard_error = kl.standard_error();
  out.log_ratio_standard_error = difference.standard_error();
  if (divergences.empty()) return out;
  out.median_kl = Percentile(divergences, 0.5);
  out.kl_999 = Percentile(divergences, 0.999);
  out.max_kl = Percentile(divergences, 1);
  out.top1_agreement = static_cast<double>(same) / static_cast<double>(divergences.size());
  return out;
}

}  // namespace adder
