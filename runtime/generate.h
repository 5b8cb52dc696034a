// The loop of prompt, sampling and streaming text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/sampler.h"
#include "runtime/session.h"
#include "runtime/status.h"

namespace adder {

struct GenerateOptions {
  int64_t max_tokens = 256;  // -1: until an end of text, a stop string or Cancel
  bool ignore_eos = false;   // treat end-of-text tokens as any other
  SamplerOptions sampler;
  std::vector<std::string> stops;  // text that ends the generation and is not shown
  // The prompt is the whole text from its start: Session::FeedFromStart.
  bool prompt_from_start = false;
  // Unless the text ended (kEos, kStop), leaves it open for a later call with `resume`: what may
  // still become a character or a stop string is held back, and the session keeps it with the
  // sampler's state. Both become part of a saved state.
  bool keep_open = false;
  // Goes on with the generation that was left open where the session is now, as if it had never
  // stopped. Takes no prompt, and the same sampler options and stops; the seed is not used again.
  bool resume = false;
};

enum class FinishReason { kLength = 1, kEos = 2, kStop = 3, kCancelled = 4, kContext = 5 };
const char* FinishReasonName(FinishReason reason);  // "length", "eos", "stop", ...

struct GenerateResult {
  FinishReason reason = FinishReason::kLength;
  uint64_t prompt_tokens = 0;     // that went in
  uint64_t reused_tokens = 0;     // of them, not fed again: prompt_from_start
  uint64_t generated_tokens = 0;  // end-of-text tokens not counted
  double prompt_seconds = 0;      // feeding the prompt
  double generate_seconds = 0;    // everything behind it
};

// Told of every token. `text` holds whole UTF-8 characters that are safe to show: it is empty while
// a character is incomplete or a stop string may have begun, and may belong to earlier tokens.
// `token` is -1 for text that was held back to the end.
class TextSink {
 public:
  virtual ~TextSink() = default;
  virtual bool OnText(std::string_view text, int32_t token) = 0;  // false: stop
};

// Feeds `prompt`, then samples, shows and feeds tokens until something ends the text. Every token
// that was shown is part of the session's state afterwards; an end-of-text token is not. Nothing is
// allocated per token. An empty prompt continues the session's text, or starts one with the
// model's BOS. Models without a tokenizer give tokens without text.
// A full context (ContextPolicy::kStop) ends the text; a prompt that does not fit is an error.
// Errors leave the session at the last token fed.
Result<GenerateResult> Generate(Session& session, std::span<const int32_t> prompt,
                                const GenerateOptions& options, TextSink& sink);

}  // namespace adder
