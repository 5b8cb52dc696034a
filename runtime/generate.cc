#include "runtime/generate.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>

#include "runtime/text_stream.h"

namespace adder {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Turns tokens into text for the sink.
class Streamer {
 public:
  static Result<Streamer> Create(const Tokenizer* tokenizer, bool text_begins,
                                 const GenerateOptions& options, TextSink& sink) {
    const size_t longest = tokenizer != nullptr ? tokenizer->max_piece_bytes() : 0;
    ADDER_ASSIGN_OR_RETURN(TextStream stream, TextStream::Create(options.stops, longest));
    Streamer streamer(tokenizer, text_begins, std::move(stream), sink);
    streamer.piece_.reserve(longest);
    return streamer;
  }

  // False when the sink wants no more.
  Result<bool> Push(int32_t token) {
    piece_.clear();
    if (tokenizer_ != nullptr && tokenizer_->Contains(token)) {
      ADDER_RETURN_IF_ERROR(
          tokenizer_->AppendPiece(token, text_begins_, /*skip_special=*/true, &piece_));
      text_begins_ = text_begins_ && tokenizer_->IsSpecial(token);
    }
    return sink_.OnText(stream_.Push(piece_), token);
  }

  void Flush() {
    const std::string_view rest = stream_.Flush();
    if (!rest.empty()) sink_.OnText(rest, -1);
  }

  bool stopped() const { return stream_.stopped(); }

 private:
  Streamer(const Tokenizer* tokenizer, bool text_begins, TextStream stream, TextSink& sink)
      : tokenizer_(tokenizer), text_begins_(text_begins), stream_(std::move(stream)), sink_(sink) {}

  const Tokenizer* tokenizer_;
  bool text_begins_;  // nothing but special tokens so far
  TextStream stream_;
  TextSink& sink_;
  std::string piece_;
};

bool IsEos(const ModelConfig& config, int32_t token) {
  return std::binary_search(config.eos.begin(), config.eos.end(), token);
}

bool OnlySpecial(const Tokenizer* tokenizer, std::span<const int32_t> tokens) {
  return std::all_of(tokens.begin(), tokens.end(),
                     [&](int32_t id) { return tokenizer != nullptr && tokenizer->IsSpecial(id); });
}

}  // namespace

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kEos:
      return "eos";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kContext:
      return "context";
  }
  return "unknown";
}

Result<GenerateResult> Generate(Session& session, std::span<const int32_t> prompt,
                                const GenerateOptions& options, TextSink& sink) {
  const Model& model = session.model();
  const ModelConfig& config = model.config();
  if (options.max_tokens < -1) {
    return Error(Code::kInvalidArgument,
                 "max_tokens is %" PRId64 ", expected -1 (no limit) or more", options.max_tokens);
  }
  if (prompt.empty() && session.position() == 0) {
    if (config.bos < 0) {
      return Status(Code::kInvalidArgument,
                    "the prompt is empty and the model has no BOS token to start with");
    }
    prompt = {&config.bos, 1};
  }
  ADDER_ASSIGN_OR_RETURN(Sampler sampler,
                         Sampler::Create(options.sampler, static_cast<int32_t>(config.vocab_size)));
  const bool text_begins = session.position() == 0 && OnlySpecial(model.tokenizer(), prompt);
  ADDER_ASSIGN_OR_RETURN(Streamer streamer,
                         Streamer::Create(model.tokenizer(), text_begins, options, sink));

  GenerateResult result;
  Clock::time_point start = Clock::now();
  const Status fed = session.Feed(prompt);
  result.prompt_seconds = SecondsSince(start);
  if (fed.code() == Code::kCancelled) {
    result.reason = FinishReason::kCancelled;
    return result;
  }
  ADDER_RETURN_IF_ERROR(fed);
  result.prompt_tokens = prompt.size();
  for (const int32_t token : prompt) sampler.Accept(token);

  start = Clock::now();
  const auto limit = static_cast<uint64_t>(options.max_tokens);  // -1: never reached
  while (result.generated_tokens < limit) {
    if (session.TakeCancel()) {
      result.reason = FinishReason::kCancelled;
      break;
    }
    ADDER_ASSIGN_OR_RETURN(const int32_t token, sampler.Sample(session.logits()));
    if (!options.ignore_eos && IsEos(config, token)) {
      result.reason = FinishReason::kEos;
      break;
    }
    if (session.room() == 0) {
      result.reason = FinishReason::kContext;
      break;
    }
    sampler.Accept(token);
    ++result.generated_tokens;
    ADDER_ASSIGN_OR_RETURN(const bool more, streamer.Push(token));
    ADDER_RETURN_IF_ERROR(session.FeedOne(token));
    if (streamer.stopped() || !more) {
      result.reason = streamer.stopped() ? FinishReason::kStop : FinishReason::kCancelled;
      break;
    }
  }
  streamer.Flush();
  // A Cancel that came too late for this call must not end the next one.
  if (session.TakeCancel() && result.reason == FinishReason::kLength)
    result.reason = FinishReason::kCancelled;
  result.generate_seconds = SecondsSince(start);
  return result;
}

}  // namespace adder
