// The C API over the C++ library: arguments checked, Status turned into adder_status.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>

#include "adder/adder.h"
#include "runtime/generate.h"
#include "runtime/model.h"
#include "runtime/session.h"
#include "runtime/text_stream.h"

using adder::Code;
using adder::Error;
using adder::Result;
using adder::Status;

struct adder_model {
  std::unique_ptr<adder::Model> model;
  mutable std::atomic<size_t> references{1};
};

struct adder_session {
  const adder_model* model;
  adder::Session* session;
  bool owns_memory;
  mutable std::atomic<bool> busy{false};
};

struct adder_detokenizer {
  const adder_model* model;
  bool skip_special;
  adder::TextStream stream;
  std::string piece;
  bool first = true;
  std::atomic<bool> busy{false};
};

namespace {

static_assert(static_cast<int>(Code::kOk) == ADDER_OK);
static_assert(static_cast<int>(Code::kInvalidArgument) == ADDER_INVALID_ARGUMENT);
static_assert(static_cast<int>(Code::kNotFound) == ADDER_NOT_FOUND);
static_assert(static_cast<int>(Code::kCorruptFile) == ADDER_CORRUPT_FILE);
static_assert(static_cast<int>(Code::kUnsupported) == ADDER_UNSUPPORTED);
static_assert(static_cast<int>(Code::kOutOfMemory) == ADDER_OUT_OF_MEMORY);
static_assert(static_cast<int>(Code::kIo) == ADDER_IO);
static_assert(static_cast<int>(Code::kCancelled) == ADDER_CANCELLED);
static_assert(static_cast<int>(Code::kInternal) == ADDER_INTERNAL);
static_assert(static_cast<int>(Code::kBufferTooSmall) == ADDER_BUFFER_TOO_SMALL);
static_assert(static_cast<int>(adder::FinishReason::kLength) == ADDER_FINISH_LENGTH);
static_assert(static_cast<int>(adder::FinishReason::kEos) == ADDER_FINISH_EOS);
static_assert(static_cast<int>(adder::FinishReason::kStop) == ADDER_FINISH_STOP);
static_assert(static_cast<int>(adder::FinishReason::kCancelled) == ADDER_FINISH_CANCELLED);

constexpr size_t kSessionHeader = adder::RoundUp(sizeof(adder_session), adder::kAlignment);

// The one place where a Status becomes an adder_status.
adder_status Report(const Status& status, adder_error* error) {
  const auto code = static_cast<adder_status>(status.code());
  if (error != nullptr) {
    error->code = code;
    std::snprintf(error->message, sizeof(error->message), "%s", status.message().c_str());
  }
  return code;
}

// The same when memory has run out: allocates nothing.
adder_status OutOfMemory(adder_error* error) {
  if (error != nullptr) {
    error->code = ADDER_OUT_OF_MEMORY;
    std::snprintf(error->message, sizeof(error->message), "out of memory");
  }
  return ADDER_OUT_OF_MEMORY;
}

Status NullArgument(const char* name) { return Error(Code::kInvalidArgument, "%s is NULL", name); }

// Copies what the caller's struct has into a zeroed one of this version. NULL: all defaults.
template <typename Options>
Result<Options> ReadOptions(const Options* options, const char* name) {
  Options copy = {};
  copy.struct_size = sizeof(Options);
  if (options == nullptr) return copy;
  const size_t size = options->struct_size;
  if (size < sizeof(size_t)) {
    return Error(Code::kInvalidArgument, "%s.struct_size is %zu, expected sizeof the struct (%zu)",
                 name, size, sizeof(Options));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(options);
  for (size_t i = sizeof(Options); i < size; ++i) {
    if (bytes[i] != 0) {
      return Error(Code::kUnsupported, "%s sets options of a later version of the library", name);
    }
  }
  std::memcpy(&copy, options, std::min(size, sizeof(Options)));
  return copy;
}

// Writes as much of `value` as the caller's struct has room for.
template <typename Info>
Status WriteStruct(Info value, Info* out, const char* name) {
  const size_t size = out->struct_size;
  if (size < sizeof(size_t)) {
    return Error(Code::kInvalidArgument, "%s.struct_size is %zu, expected sizeof the struct (%zu)",
                 name, size, sizeof(Info));
  }
  value.struct_size = size;
  std::memcpy(out, &value, std::min(size, sizeof(Info)));
  return {};
}

// Marks an object as being in a call, unless it already is.
class InCall {
 public:
  explicit InCall(std::atomic<bool>& busy)
      : busy_(busy), entered_(!busy.exchange(true, std::memory_order_acquire)) {}
  ~InCall() {
    if (entered_) busy_.store(false, std::memory_order_release);
  }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

  Status status() const {
    return entered_ ? Status()
                    : Status(Code::kInvalidArgument,
                             "the object is in another call (of a thread or its callback)");
  }

 private:
  std::atomic<bool>& busy_;
  bool entered_;
};

void Retain(const adder_model* model) { model->references.fetch_add(1, std::memory_order_relaxed); }
void Release(const adder_model* model) {
  if (model->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete model;
}

Status OpenModel(Result<std::unique_ptr<adder::Model>> opened, adder_model** out) {
  if (!opened.ok()) return opened.status();
  auto* model = new adder_model;
  model->model = std::move(*opened);
  *out = model;
  return {};
}

adder::ModelOptions ModelOptionsOf(const adder_model_options& options) {
  return {.isa = options.isa != nullptr ? options.isa : "",
          .verify_checksums = options.verify_checksums != 0};
}

Result<adder::SessionOptions> SessionOptionsOf(const adder_session_options* options) {
  ADDER_ASSIGN_OR_RETURN(const adder_session_options copy,
                         ReadOptions(options, "adder_session_options"));
  adder::SessionOptions out;
  if (copy.tile != 0) out.tile = copy.tile;
  return out;
}

Result<size_t> SessionBytes(const adder_model* model, const adder::SessionOptions& options) {
  ADDER_ASSIGN_OR_RETURN(const size_t bytes, adder::Session::Bytes(*model->model, options));
  return kSessionHeader + bytes;
}

// Places a session and its header in `memory`.
Result<adder_session*> PlaceSession(const adder_model* model, const adder::SessionOptions& options,
                                    void* memory, size_t bytes, bool owns_memory) {
  ADDER_ASSIGN_OR_RETURN(const size_t needed, SessionBytes(model, options));
  if (bytes < needed) {
    return Error(Code::kBufferTooSmall, "session memory has %zu bytes, needs %zu", bytes, needed);
  }
  void* rest = static_cast<unsigned char*>(memory) + kSessionHeader;
  ADDER_ASSIGN_OR_RETURN(
      adder::Session * placed,
      adder::Session::Place(*model->model, options, rest, bytes - kSessionHeader));
  auto* session = new (memory) adder_session{model, placed, owns_memory};
  Retain(model);
  return session;
}

Result<const adder::Tokenizer*> TokenizerOf(const adder_model* model) {
  if (model->model->tokenizer() == nullptr)
    return Status(Code::kNotFound, "the model has no tokenizer");
  return model->model->tokenizer();
}

Status CheckFlags(int flags, int allowed) {
  if ((flags & ~allowed) == 0) return {};
  return Error(Code::kInvalidArgument, "flags are %d, this call takes %d", flags, allowed);
}

Result<std::span<const int32_t>> Ids(const int32_t* ids, size_t n_ids, const char* name) {
  if (ids == nullptr && n_ids > 0) return NullArgument(name);
  return std::span<const int32_t>(ids, n_ids);
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
       .generate_seconds = generated.generate_seconds},
      result, "adder_generate_result");
}

}  // namespace

// Leaves a C function with an error unless `argument` is set.
#define ADDER_REQUIRE(argument) \
  if ((argument) == nullptr) return Report(NullArgument(#argument), error)

// Leaves a C function with the error of `expression` (a Status or Result), if it is one.
#define ADDER_CHECK(expression) \
  if (const Status status_ = (expression); !status_.ok()) return Report(status_, error)

// Ends a C function whose body is a try block: the library throws nothing, but the standard library
// does when memory ends.
#define ADDER_CATCH                  \
  catch (const std::bad_alloc&) {    \
    return OutOfMemory(error);       \
  }                                  \
  catch (const std::length_error&) { \
    return OutOfMemory(error);       \
  }

extern "C" {

const char* adder_version_string(void) { return ADDER_VERSION; }

const char* adder_status_name(int code) {
  switch (code) {
    case ADDER_OK:
      return "ok";
    case ADDER_INVALID_ARGUMENT:
      return "invalid_argument";
    case ADDER_NOT_FOUND:
      return "not_found";
    case ADDER_CORRUPT_FILE:
      return "corrupt_file";
    case ADDER_UNSUPPORTED:
      return "unsupported";
    case ADDER_OUT_OF_MEMORY:
      return "out_of_memory";
    case ADDER_IO:
      return "io";
    case ADDER_CANCELLED:
      return "cancelled";
    case ADDER_INTERNAL:
      return "internal";
    case ADDER_BUFFER_TOO_SMALL:
      return "buffer_too_small";
  }
  return "unknown";
}

adder_status adder_model_open(const char* path, const adder_model_options* options,
                              adder_model** model, adder_error* error) try {
  ADDER_REQUIRE(path);
  ADDER_REQUIRE(model);
  const auto copy = ReadOptions(options, "adder_model_options");
  ADDER_CHECK(copy.status());
  return Report(OpenModel(adder::Model::Open(path, ModelOptionsOf(*copy)), model), error);
}
ADDER_CATCH

adder_status adder_model_from_memory(const void* data, size_t bytes,
                                     const adder_model_options* options, adder_model** model,
                                     adder_error* error) try {
  ADDER_REQUIRE(data);
  ADDER_REQUIRE(model);
  const auto copy = ReadOptions(options, "adder_model_options");
  ADDER_CHECK(copy.status());
  const std::span file(static_cast<const uint8_t*>(data), bytes);
  return Report(OpenModel(adder::Model::FromMemory(file, ModelOptionsOf(*copy)), model), error);
}
ADDER_CATCH

void adder_model_free(adder_model* model) {
  if (model != nullptr) Release(model);
}

adder_status adder_model_describe(const adder_model* model, adder_model_info* info,
                                  adder_error* error) try {
  ADDER_REQUIRE(model);
  ADDER_REQUIRE(info);
  const adder::Model& m = *model->model;
  const adder::ModelConfig& config = m.config();
  adder_model_info out = {};
  out.family = config.family.c_str();
  out.type = config.type.c_str();
  out.isa = m.kernels().name;
  out.n_layers = static_cast<uint32_t>(config.layers.size());
  out.d_model = config.d_model;
  out.vocab_size = config.vocab_size;
  out.n_logits = config.vocab_rows;
  out.bos = config.bos;
  out.eos = config.eos.data();
  out.n_eos = config.eos.size();
  out.has_tokenizer = m.tokenizer() != nullptr;
  out.chat_template = config.chat_template.empty() ? nullptr : config.chat_template.c_str();
  out.file_bytes = m.file().bytes();
  out.state_bytes = m.StateFloats() * sizeof(float);
  return Report(WriteStruct(out, info, "adder_model_info"), error);
}
ADDER_CATCH

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

adder_status adder_session_bytes(const adder_model* model, const adder_session_options* options,
                                 size_t* bytes, adder_error* error) try {
  ADDER_REQUIRE(model);
  ADDER_REQUIRE(bytes);
  const auto session_options = SessionOptionsOf(options);
  ADDER_CHECK(session_options.status());
  const auto needed = SessionBytes(model, *session_options);
  ADDER_CHECK(needed.status());
  *bytes = *needed;
  return ADDER_OK;
}
ADDER_CATCH

adder_status adder_session_init(const adder_model* model, const adder_session_options* options,
                                void* memory, size_t bytes, adder_session** session,
                                adder_error* error) try {
  ADDER_REQUIRE(model);
  ADDER_REQUIRE(memory);
  ADDER_REQUIRE(session);
  if (reinterpret_cast<uintptr_t>(memory) % adder::kAlignment != 0) {
    return Report(
        Error(Code::kInvalidArgument, "session memory must be aligned to %zu", adder::kAlignment),
        error);
  }
  const auto session_options = SessionOptionsOf(options);
  ADDER_CHECK(session_options.status());
  const auto placed = PlaceSession(model, *session_options, memory, bytes, /*owns_memory=*/false);
  ADDER_CHECK(placed.status());
  *session = *placed;
  return ADDER_OK;
}
ADDER_CATCH

adder_status adder_session_create(const adder_model* model, const adder_session_options* options,
                                  adder_session** session, adder_error* error) try {
  ADDER_REQUIRE(model);
  ADDER_REQUIRE(session);
  const auto session_options = SessionOptionsOf(options);
  ADDER_CHECK(session_options.status());
  const auto needed = SessionBytes(model, *session_options);
  ADDER_CHECK(needed.status());
  void* memory = std::aligned_alloc(adder::kAlignment, adder::RoundUp(*needed, adder::kAlignment));
  if (memory == nullptr)
    return Report(Error(Code::kOutOfMemory, "a session needs %zu bytes", *needed), error);
  const auto placed = PlaceSession(model, *session_options, memory, *needed, /*owns_memory=*/true);
  if (!placed.ok()) {
    std::free(memory);
    return Report(placed.status(), error);
  }
  *session = *placed;
  return ADDER_OK;
}
ADDER_CATCH

adder_status adder_session_free(adder_session* session) {
  if (session == nullptr) return ADDER_OK;
  if (session->busy.exchange(true)) return ADDER_INVALID_ARGUMENT;
  const adder_model* model = session->model;
  const bool owns_memory = session->owns_memory;
  session->session->~Session();
  session->~adder_session();
  if (owns_memory) std::free(session);
  Release(model);
  return ADDER_OK;
}

adder_status adder_session_reset(adder_session* session, adder_error* error) try {
  ADDER_REQUIRE(session);
  const InCall call(session->busy);
  ADDER_CHECK(call.status());
  session->session->Reset();
  return ADDER_OK;
}
ADDER_CATCH

adder_status adder_session_position(const adder_session* session, uint64_t* position,
                                    adder_error* error) try {
  ADDER_REQUIRE(session);
  ADDER_REQUIRE(position);
  const InCall call(session->busy);
  ADDER_CHECK(call.status());
  *position = session->session->position();
  return ADDER_OK;
}
ADDER_CATCH

adder_status adder_session_feed(adder_session* session, const int32_t* ids, size_t n_ids,
                                adder_error* error) try {
  ADDER_REQUIRE(session);
  const auto span = Ids(ids, n_ids, "ids");
  ADDER_CHECK(span.status());
  const InCall call(session->busy);
  ADDER_CHECK(call.status());
  return Report(session->session->Feed(*span), error);
}
ADDER_CATCH

adder_status adder_session_logits(const adder_session* session, const float** logits,
                                  size_t* n_logits, adder_error* error) try {
  ADDER_REQUIRE(session);
  ADDER_REQUIRE(logits);
  ADDER_REQUIRE(n_logits);
  const InCall call(session->busy);
  ADDER_CHECK(call.status());
  const std::span<const float> values = session->session->logits();
  if (values.empty())
    return Report(Status(Code::kInvalidArgument, "no token was fed yet, there are no logits"),
                  error);
  *logits = values.data();
  *n_logits = values.size();
  return ADDER_OK;
}
ADDER_CATCH

adder_status adder_session_cancel(adder_session* session) {
  if (session == nullptr) return ADDER_INVALID_ARGUMENT;
  session->session->Cancel();
  return ADDER_OK;
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
