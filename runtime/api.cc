// The C API: models and sessions.
#include <cinttypes>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#include "runtime/api_internal.h"

using namespace adder::api;
using adder::Code;
using adder::Error;
using adder::Result;
using adder::Status;

namespace {

constexpr size_t kSessionHeader = adder::RoundUp(sizeof(adder_session), adder::kAlignment);

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
  if (copy.threads != 0) out.threads = copy.threads;
  if (copy.state_type != ADDER_STATE_F32 && copy.state_type != ADDER_STATE_INT16) {
    return Error(Code::kInvalidArgument, "state_type is %" PRId32 ", expected 0 (f32) or 1 (int16)",
                 copy.state_type);
  }
  if (copy.state_type == ADDER_STATE_INT16) out.state_type = adder::StateType::kInt16;
  if (copy.context != 0) out.context = copy.context;
  if (copy.when_full != ADDER_CONTEXT_STOP && copy.when_full != ADDER_CONTEXT_SLIDE) {
    return Error(Code::kInvalidArgument, "when_full is %d, expected %d (stop) or %d (slide)",
                 static_cast<int>(copy.when_full), ADDER_CONTEXT_STOP, ADDER_CONTEXT_SLIDE);
  }
  out.when_full = static_cast<adder::ContextPolicy>(copy.when_full);
  if (copy.kv_type != ADDER_KV_DEFAULT && copy.kv_type != ADDER_KV_INT8) {
    return Error(Code::kInvalidArgument, "kv_type is %" PRId32 ", expected 0 (default) or 1 (int8)",
                 copy.kv_type);
  }
  if (copy.kv_type == ADDER_KV_INT8) out.kv_type = adder::KvChoice::kInt8;
  out.checkpoints = copy.checkpoints;
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

}  // namespace

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
    case ADDER_CONTEXT_FULL:
      return "context_full";
    case ADDER_OTHER_MODEL:
      return "other_model";
    case ADDER_OTHER_TYPE:
      return "other_type";
    case ADDER_CONTEXT_LOST:
      return "context_lost";
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
  out.kv_bytes_per_token = m.KvBytesPerToken();
  return Report(WriteStruct(out, info, "adder_model_info"), error);
}
ADDER_CATCH

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

}  // extern "C"
