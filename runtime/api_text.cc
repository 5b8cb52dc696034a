// The C API: text, tokens and generation.
#include <memory>
#include <new>
#include <span>
#include <string>

#include "runtime/api_internal.h"
#include "runtime/generate.h"
#include "runtime/text_stream.h"
#include "runtime/tokenizer.h"

using namespace adder::api;
using adder::Code;
using adder::Error;
using adder::Result;
using adder::Status;

struct adder_detokenizer {
  const adder_model* model;
  bool skip_special;
  adder::TextStream stream;
  std::string piece;
  bool first = true;
  std::atomic<bool> busy{false};
};

namespace {

static_assert(static_cast<int>(adder::FinishReason::kLength) == ADDER_FINISH_LENGTH);
static_assert(static_cast<int>(adder::FinishReason::kEos) == ADDER_FINISH_EOS);
static_assert(static_cast<int>(adder::FinishReason::kStop) == ADDER_FINISH_STOP);
static_assert(static_cast<int>(adder::FinishReason::kCancelled) == ADDER_FINISH_CANCELLED);
static_assert(static_cast<int>(adder::FinishReason::kContext) == ADDER_FINISH_CONTEXT);

Result<const adder::Tokenizer*> TokenizerOf(const adder_model* model) {
  if (model->model->tokenizer() == nullptr)
    return Status(Code::kNotFound, "the model has no tokenizer");
  return model->model->tokenizer();
}

Status CheckFlags(int flags, int allowed) {
  if ((flags & ~allowed) == 0) return {};
  return Error(Code::kInvalidArgument, "flags are %d, this call takes %d", flags, allowed);
}

template <typename T>
Status CopyOut(std::span<const T> values, T* out, size_t capacity, size_t* count,
               const char* what) {
  *count = values.size();
  if (values.size() > capacity) {
    return Error(Code::kBufferTooSmall, "room for %zu %s, needs %zu", capacity, what,
                 values.size());
  }
  if (!values.empty()) std::memcpy(out, values.data(), values.size_bytes());
  return {};
}

Result<adder::GenerateOptions> GenerateOptionsOf(const adder_generate_options* options) {
  ADDER_ASSIGN_OR_RETURN(const adder_generate_options in,
                         ReadOptions(options, "adder_generate_options"));
  adder::GenerateOptions out;
  if (in.max_tokens != 0) out.max_tokens = in.max_tokens;
  out.ignore_eos = in.ignore_eos != 0;
  out.prompt_from_start = in.prompt_from_start != 0;
  out.keep_open = in.keep_open != 0;
  out.resume = in.resume != 0;
  adder::SamplerOptions& sampler = out.sampler;
  sampler.temperature = in.temperature;
  sampler.top_k = in.top_k;
  if (in.top_p != 0) sampler.top_p = in.top_p;
  sampler.min_p = in.min_p;
  if (in.repetition_penalty != 0) sampler.repetition_penalty = in.repetition_penalty;
  sampler.presence_penalty = in.presence_penalty;
  sampler.frequency_penalty = in.frequency_penalty;
  if (in.penalty_window != 0) sampler.penalty_window = in.penalty_window;
  sampler.seed = in.seed;
  if (in.n_logit_bias > 0 && in.logit_bias == nullptr) return NullArgument("logit_bias");
  for (size_t i = 0; i < in.n_logit_bias; ++i) {
    sampler.logit_bias.push_back({in.logit_bias[i].token, in.logit_bias[i].bias});
  }
  if (in.n_stops > 0 && in.stops == nullptr) return NullArgument("stops");
  for (size_t i = 0; i < in.n_stops; ++i) {
    if (in.stops[i] == nullptr) return NullArgument("an entry of stops");
    out.stops.emplace_back(in.stops[i]);
  }
  return out;
}

class CallbackSink final : public adder::TextSink {
 public:
  CallbackSink(adder_text_callback callback, void* user) : callback_(callback), user_(user) {}
  bool OnText(std::string_view text, int32_t token) override {
    return callback_ == nullptr || callback_(user_, text.data(), text.size(), token) == 0;
  }

 private:
  adder_text_callback callback_;
  void* user_;
};

Status Generate(adder_session* session, std::span<const int32_t> prompt,
                const adder_generate_options* options, adder_text_callback callback, void* user,
                adder_generate_result* result) {
  ADDER_ASSIGN_OR_RETURN(const adder::GenerateOptions generate_options, GenerateOptionsOf(options));
  if (result != nullptr && result->struct_size < sizeof(size_t)) {
    return WriteStruct<adder_generate_result>({}, result, "adder_generate_result");
  }
  CallbackSink sink(callback, user);
  ADDER_ASSIGN_OR_RETURN(const adder::GenerateResult generated,
                         adder::Generate(*session->session, prompt, generate_options, sink));
  if (result == nullptr) return {};
  return WriteStruct<adder_generate_result>(
      {.struct_size = 0,
       .reason = static_cast<adder_finish_reason>(generated.reason),
       .prompt_tokens = generated.prompt_tokens,
       .generated_tokens = generated.generated_tokens,
       .prompt_seconds = generated.prompt_seconds,
       .generate_seconds = generated.generate_seconds,
       .reused_tokens = generated.reused_tokens},
      result, "adder_generate_result");
}

}  // namespace

extern "C" {

adder_status adder_tokenize(const adder_model* model, const char* text, size_t text_bytes,
                            int flags, int32_t* ids, size_t capacity, size_t* n_ids,
                            adder_error* error) try {
  ADDER_REQUIRE(model);
  ADDER_REQUIRE(n_ids);
  if (text_bytes > 0) ADDER_REQUIRE(text);
  if (capacity > 0) ADDER_REQUIRE(ids);
  ADDER_CHECK(CheckFlags(flags, ADDER_ADD_SPECIAL | ADDER_PARSE_SPECIAL));
  const auto tokenizer = TokenizerOf(model);
  ADDER_CHECK(tokenizer.status());
  const auto encoded =
      (*tokenizer)
          ->Encode({text, text_bytes}, {.add_special = (flags & ADDER_ADD_SPECIAL) != 0,
                                        .parse_special = (flags & ADDER_PARSE_SPECIAL) != 0});
  ADDER_CHECK(encoded.status());
  return Report(CopyOut<int32_t>(*encoded, ids, capacity, n_ids, "token ids"), error);
}
ADDER_CATCH

adder_status adder_detokenize(const adder_model* model, const int32_t* ids, size_t n_ids, int flags,
                              char* text, size_t capacity, size_t* text_bytes,
                              adder_error* error) try {
  ADDER_REQUIRE(model);
  ADDER_REQUIRE(text_bytes);
  if (capacity > 0) ADDER_REQUIRE(text);
  ADDER_CHECK(CheckFlags(flags, ADDER_SKIP_SPECIAL));
  const auto tokenizer = TokenizerOf(model);
  ADDER_CHECK(tokenizer.status());
  const auto span = Ids(ids, n_ids, "ids");
  ADDER_CHECK(span.status());
  const auto decoded = (*tokenizer)->Decode(*span, (flags & ADDER_SKIP_SPECIAL) != 0);
  ADDER_CHECK(decoded.status());
  return Report(CopyOut<char>(*decoded, text, capacity, text_bytes, "bytes"), error);
}
ADDER_CATCH

adder_status adder_detokenizer_create(const adder_model* model, int flags,
                                      adder_detokenizer** detokenizer, adder_error* error) try {
  ADDER_REQUIRE(model);
  ADDER_REQUIRE(detokenizer);
  ADDER_CHECK(CheckFlags(flags, ADDER_SKIP_SPECIAL));
  const auto tokenizer = TokenizerOf(model);
  ADDER_CHECK(tokenizer.status());
  const size_t longest = (*tokenizer)->max_piece_bytes();
  auto stream = adder::TextStream::Create({}, longest);
  ADDER_CHECK(stream.status());
  std::unique_ptr<adder_detokenizer> made(
      new adder_detokenizer{model, (flags & ADDER_SKIP_SPECIAL) != 0, std::move(*stream), {}});
  made->piece.reserve(longest);
  Retain(model);
  *detokenizer = made.release();
  return ADDER_OK;
}
ADDER_CATCH

adder_status adder_detokenizer_push(adder_detokenizer* detokenizer, int32_t id, const char** text,
                                    size_t* text_bytes, adder_error* error) try {
  ADDER_REQUIRE(detokenizer);
  ADDER_REQUIRE(text);
  ADDER_REQUIRE(text_bytes);
  const InCall call(detokenizer->busy);
  ADDER_CHECK(call.status());
  const adder::Tokenizer& tokenizer = *detokenizer->model->model->tokenizer();
  detokenizer->piece.clear();
  ADDER_CHECK(tokenizer.AppendPiece(id, detokenizer->first, detokenizer->skip_special,
                                    &detokenizer->piece));
  detokenizer->first = detokenizer->first && tokenizer.IsSpecial(id);
  const std::string_view shown = detokenizer->stream.Push(detokenizer->piece);
  *text = shown.data();
  *text_bytes = shown.size();
  return ADDER_OK;
}
ADDER_CATCH

adder_status adder_detokenizer_flush(adder_detokenizer* detokenizer, const char** text,
                                     size_t* text_bytes, adder_error* error) try {
  ADDER_REQUIRE(detokenizer);
  ADDER_REQUIRE(text);
  ADDER_REQUIRE(text_bytes);
  const InCall call(detokenizer->busy);
  ADDER_CHECK(call.status());
  // Copied: a new text begins in the stream, and `text` stays until the next call.
  detokenizer->piece = detokenizer->stream.Flush();
  detokenizer->stream.Reset();
  detokenizer->first = true;
  *text = detokenizer->piece.data();
  *text_bytes = detokenizer->piece.size();
  return ADDER_OK;
}
ADDER_CATCH

void adder_detokenizer_free(adder_detokenizer* detokenizer) {
  if (detokenizer == nullptr) return;
  Release(detokenizer->model);
  delete detokenizer;
}

adder_status adder_session_generate(adder_session* session, const int32_t* prompt, size_t n_prompt,
                                    const adder_generate_options* options,
                                    adder_text_callback callback, void* user,
                                    adder_generate_result* result, adder_error* error) try {
  ADDER_REQUIRE(session);
  const auto span = Ids(prompt, n_prompt, "prompt");
  ADDER_CHECK(span.status());
  const InCall call(session->busy);
  ADDER_CHECK(call.status());
  return Report(Generate(session, *span, options, callback, user, result), error);
}
ADDER_CATCH

}  // extern "C"
