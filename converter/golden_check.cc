#include "converter/golden_check.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "converter/checkpoint.h"
#include "converter/safetensors.h"
#include "runtime/session_buffer.h"

namespace adder {
namespace {

struct Reference {
  std::vector<uint64_t> shape;
  std::vector<float> values;
};

double StandardDeviation(std::span<const float> values) {
  double sum = 0, squares = 0;
  for (const float v : values) {
    sum += static_cast<double>(v);
    squares += static_cast<double>(v) * static_cast<double>(v);
  }
  const double n = static_cast<double>(values.size());
  return std::sqrt(std::max(squares / n - sum / n * (sum / n), 0.0));
}

double LargestDifference(std::span<const float> a, std::span<const float> b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= largest)) largest = difference;  // also takes NaN
  }
  return largest;
}

int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Rows of tokens of the residual stream: [rows][tokens][d_model], of which row first + i is what
// the published layer i leaves. Such a layer is `blocks` blocks of ours.
struct HiddenStates {
  Reference reference;
  size_t first, layers, blocks;
};

// Largest differences between what passes through a session and the reference.
class Comparison final : public FeedObserver {
 public:
  Comparison(const Reference& logits, const std::optional<HiddenStates>& hidden, size_t d_model)
      : logits_(logits), hidden_(hidden), d_model_(d_model) {}

  void OnHidden(size_t block, size_t first_token, size_t tokens, const float* hidden,
                size_t stride) override {
    if (!hidden_ || (block + 1) % hidden_->blocks != 0) return;
    if (block / hidden_->blocks >= hidden_->layers) return;
    const size_t row = hidden_->first + block / hidden_->blocks;
    const size_t length = hidden_->reference.shape[1];
    for (size_t t = 0; t < tokens; ++t) {
      const float* expected =
          hidden_->reference.values.data() + (row * length + first_token + t) * d_model_;
      hidden_difference =
          std::max(hidden_difference,
                   LargestDifference({hidden + t * stride, d_model_}, {expected, d_model_}));
    }
  }

  void OnLogits(size_t token, std::span<const float> logits) override {
    const std::span<const float> expected(logits_.values.data() + token * logits.size(),
                                          logits.size());
    logits_difference = std::max(logits_difference, LargestDifference(logits, expected));
    if (ArgMax(logits) == ArgMax(expected)) ++top1_equal;
  }

  double logits_difference = 0, hidden_difference = 0;
  size_t top1_equal = 0;

 private:
  const Reference& logits_;
  const std::optional<HiddenStates>& hidden_;
  size_t d_model_;
};

class GoldenFile {
 public:
  static Result<GoldenFile> Open(const std::string& path) {
    ADDER_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
    std::vector<std::string> warnings;
    ADDER_ASSIGN_OR_RETURN(TensorMap tensors, ParseSafetensors(file.bytes(), path, &warnings));
    return GoldenFile(path, std::move(file), std::move(tensors));
  }

  bool Has(const std::string& name) const { return tensors_.contains(name); }

  Result<Reference> Read(const std::string& name, size_t rank) const {
    const auto it = tensors_.find(name);
    if (it == tensors_.end())
      return Error(Code::kNotFound, "%s: no tensor %s", path_.c_str(), name.c_str());
    if (it->second.shape.size() != rank) {
      return Error(Code::kCorruptFile, "%s: %s has %zu dimensions, expected %zu", path_.c_str(),
                   name.c_str(), it->second.shape.size(), rank);
    }
    ADDER_ASSIGN_OR_RETURN(std::vector<float> values, ReadF32(it->second, name));
    return Reference{it->second.shape, std::move(values)};
  }

  Result<std::vector<int32_t>> ReadIds(const std::string& name) const {
    ADDER_ASSIGN_OR_RETURN(const Reference ids, Read(name, 1));
    std::vector<int32_t> out;
    for (const float id : ids.values) out.push_back(static_cast<int32_t>(id));
    return out;
  }

 private:
  GoldenFile(std::string path, MappedFile file, TensorMap tensors)
      : path_(std::move(path)), file_(std::move(file)), tensors_(std::move(tensors)) {}

  std::string path_;
  MappedFile file_;
  TensorMap tensors_;
};

}  // namespace

Result<GoldenReport> CheckGolden(const Model& model, const std::string& golden_path,
                                 const SessionOptions& options) {
  ADDER_ASSIGN_OR_RETURN(const GoldenFile golden, GoldenFile::Open(golden_path));
  ADDER_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, golden.ReadIds("input_ids"));
  ADDER_ASSIGN_OR_RETURN(const Reference logits, golden.Read("logits", 2));
  const size_t rows = model.config().vocab_rows;
  const size_t d_model = model.config().d_model;
  if (prompt.empty() || logits.shape != std::vector<uint64_t>{prompt.size(), rows}) {
    return Error(Code::kInvalidArgument, "%s: logits are [%llu, %llu], this model gives [%zu, %zu]",
                 golden_path.c_str(), static_cast<unsigned long long>(logits.shape[0]),
                 static_cast<unsigned long long>(logits.shape[1]), prompt.size(), rows);
  }
  std::optional<HiddenStates> hidden;
  if (golden.Has("hidden_states")) {
    ADDER_ASSIGN_OR_RETURN(Reference states, golden.Read("hidden_states", 3));
    // The families without attention: every layer, then the final norm. Mamba-3: the embedding,
    // then every layer. Hybrids: the embedding, every layer but the last, the final norm.
    const std::string& family = model.config().family;
    const bool pure = family == "mamba" || family == "falcon_mamba" || family == "mamba2";
    const size_t blocks = model.blocks().size(), layers = states.shape[0] - 1;
    const std::vector<uint64_t> expected = {layers + 1, prompt.size(), d_model};
    if (states.shape == expected && layers > 0 && blocks % layers == 0) {
      const size_t compared = pure || family == "mamba3" ? layers : layers - 1;
      hidden = HiddenStates{std::move(states), pure ? 0u : 1u, compared, blocks / layers};
    }
  }

  ADDER_ASSIGN_OR_RETURN(const SessionBuffer buffer, SessionBuffer::Create(model, options));
  Session& session = buffer.session();
  Comparison comparison(logits, hidden, d_model);
  ADDER_RETURN_IF_ERROR(session.Feed(prompt, &comparison));

  GoldenReport report;
  report.tokens = prompt.size();
  report.logits_error = comparison.logits_difference / StandardDeviation(logits.values);
  report.top1_equal = comparison.top1_equal;
  if (hidden) {
    report.hidden_layers = hidden->layers;
    const size_t row = prompt.size() * d_model;
    report.hidden_error =
        comparison.hidden_difference /
        StandardDeviation(
            std::span(hidden->reference.values).subspan(hidden->first * row, hidden->layers * row));
  }
  if (golden.Has("greedy_ids")) {
    ADDER_ASSIGN_OR_RETURN(const std::vector<int32_t> greedy, golden.ReadIds("greedy_ids"));
    report.greedy_expected = greedy.size();
    while (report.greedy_equal < greedy.size() &&
           ArgMax(session.logits()) == greedy[report.greedy_equal]) {
      const int32_t id = greedy[report.greedy_equal++];
      ADDER_RETURN_IF_ERROR(session.Feed({&id, 1}));
    }
  }
  return report;
}

}  // namespace adder
