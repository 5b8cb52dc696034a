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

  // Takes over what another one held back.
  void Resume(std::string_view held) {
    const std::string_view shown = stream_.Push(held);
    if (!shown.empty()) sink_.OnText(shown, -1);
  }
  std::string Held() const {
    std::string held;
    stream_.AppendHeld(&held);
    return held;
  }

  bool stopped() const { return stream_.stopped(); }
  bool text_begins() const { return text_begins_; }

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

Status CheckOptions(const Session& session, std::span<const int32_t> prompt,
                    const GenerateOptions& options) {
  if (options.max_tokens < -1) {
    return Error(Code::kInvalidArgument,
                 "max_tokens is %" PRId64 ", expected -1 (no limit) or more", options.max_tokens);
  }
  if (options.resume && !prompt.empty()) {
    return Error(Code::kInvalidArgument,
                 "a resumed generation takes no prompt, this has %zu tokens", prompt.size());
  }
  if (options.resume && session.open_generation() == nullptr) {
    return Error(Code::kInvalidArgument,
                 "there is nothing to resume: no generation was kept open at position %" PRIu64,
                 session.position());
  }
  if (!options.keep_open) return {};
  if (options.sampler.penalty_window > static_cast<int32_t>(OpenGeneration::kMaxWindow)) {
    return Error(Code::kInvalidArgument,
                 "penalty_window is %" PRId32 ", at most %zu in a generation that is kept open",
                 options.sampler.penalty_window, OpenGeneration::kMaxWindow);
  }
  for (const std::string& stop : options.stops) {
    if (stop.size() <= OpenGeneration::kMaxStop) continue;
    return Error(Code::kInvalidArgument,
                 "a stop string has %zu bytes, at most %zu in a generation that is kept open",
                 stop.size(), OpenGeneration::kMaxStop);
  }
  return {};
}

void KeepOpen(const Sampler& sampler, const Streamer& streamer, Session& session) {
  OpenGeneration& g = session.generation();
  const std::string held = streamer.Held();
  g.open = true;
  g.text_begins = streamer.text_begins();
  g.position = session.position();
  g.hash = session.token_hash();
  g.sampler_bytes = static_cast<uint32_t>(sampler.StateBytes());
  g.text_bytes = static_cast<uint32_t>(held.size());
  sampler.SaveState(g.sampler);
  std::copy(held.begin(), held.end(), g.text);
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
  ADDER_RETURN_IF_ERROR(CheckOptions(session, prompt, options));
  if (prompt.empty() && (session.position() == 0 || options.prompt_from_start)) {
    if (config.bos < 0) {
      return Status(Code::kInvalidArgument,
                    "the prompt is empty and the model has no BOS token to start with");
    }
    prompt = {&config.bos, 1};
  }
  ADDER_ASSIGN_OR_RETURN(Sampler sampler,
                         Sampler::Create(options.sampler, static_cast<int32_t>(config.vocab_size)));
  const OpenGeneration* open = options.resume ? session.open_generation() : nullptr;
  const bool from_start = session.position() == 0 || options.prompt_from_start;
  const bool text_begins =
      open != nullptr ? open->text_begins : from_start && OnlySpecial(model.tokenizer(), prompt);
  ADDER_ASSIGN_OR_RETURN(Streamer streamer,
                         Streamer::Create(model.tokenizer(), text_begins, options, sink));
  if (open != nullptr) {
    ADDER_RETURN_IF_ERROR(Annotate(sampler.RestoreState(open->sampler_state()),
                                   "resuming with other sampler options than before"));
    streamer.Resume(open->held_text());
  }
  session.generation().open = false;

  GenerateResult result;
  const uint64_t position = session.position();
  Clock::time_point start = Clock::now();
  const Status fed = options.prompt_from_start
                         ? session.FeedFromStart(prompt, &result.reused_tokens)
                         : session.Feed(prompt);
  result.prompt_seconds = SecondsSince(start);
  if (fed.code() == Code::kCancelled) {
    result.reason = FinishReason::kCancelled;
    result.prompt_tokens = session.position() - (options.prompt_from_start ? 0 : position);
    return result;
  }
  ADDER_RETURN_IF_ERROR(fed);
  result.prompt_tokens = prompt.size();
  for (const int32_t token : prompt) sampler.Accept(token);

  start = Clock::now();
  const auto limit = static_cast<uint64_t>(options.max_tokens);  // -1: never reached
  if (streamer.stopped()) result.reason = FinishReason::kStop;
  while (result.generated_tokens < limit && !streamer.stopped()) {
    if (session.TakeCancel()) {
      result.reason = FinishReason::kCancelled;
      break;
    }
    const bool full = session.room() == 0;
    // Before a number is drawn that will be drawn again.
    if (full && options.keep_open) KeepOpen(sampler, streamer, session);
    ADDER_ASSIGN_OR_RETURN(const int32_t token, sampler.Sample(session.logits()));
    if (!options.ignore_eos && IsEos(config, token)) {
      result.reason = FinishReason::kEos;
      break;
    }
    if (full) {
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
  // A Cancel that came too late for this call must not end the next one.
  if (session.TakeCancel() && result.reason == FinishReason::kLength)
    result.reason = FinishReason::kCancelled;
  const bool ended = result.reason == FinishReason::kEos || result.reason == FinishReason::kStop;
  if (ended || !options.keep_open) {
    session.generation().open = false;
    streamer.Flush();
  } else if (result.reason != FinishReason::kContext) {
    KeepOpen(sampler, streamer, session);
  }
  result.generate_seconds = SecondsSince(start);
  return result;
}

}  // namespace adder
