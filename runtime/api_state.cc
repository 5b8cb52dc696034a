// The C API: states of sessions.
#include <span>

#include "runtime/api_internal.h"
#include "runtime/session_file.h"
#include "runtime/session_state.h"

using namespace adder::api;
using adder::Code;
using adder::Error;
using adder::StateBlob;
using adder::Status;

extern "C" {

adder_status adder_session_feed_from_start(adder_session* session, const int32_t* ids, size_t n_ids,
                                           uint64_t* reused, adder_error* error) try {
  ADDER_REQUIRE(session);
  const auto span = Ids(ids, n_ids, "ids");
  ADDER_CHECK(span.status());
  const InCall call(session->busy);
  ADDER_CHECK(call.status());
  uint64_t count = 0;
  const Status fed = session->session->FeedFromStart(*span, &count);
  if (reused != nullptr && (fed.ok() || fed.code() == Code::kCancelled)) *reused = count;
  return Report(fed, error);
}
ADDER_CATCH

adder_status adder_session_state_bytes(const adder_session* session, size_t* bytes,
                                       adder_error* error) try {
  ADDER_REQUIRE(session);
  ADDER_REQUIRE(bytes);
  const InCall call(session->busy);
  ADDER_CHECK(call.status());
  *bytes = StateBlob::Bytes(*session->session);
  return ADDER_OK;
}
ADDER_CATCH

adder_status adder_session_save(const adder_session* session, void* memory, size_t capacity,
                                size_t* bytes, adder_error* error) try {
  ADDER_REQUIRE(session);
  if (capacity > 0) ADDER_REQUIRE(memory);
  const InCall call(session->busy);
  ADDER_CHECK(call.status());
  if (bytes != nullptr) *bytes = StateBlob::Bytes(*session->session);
  return Report(StateBlob::Save(*session->session, {static_cast<uint8_t*>(memory), capacity}),
                error);
}
ADDER_CATCH

adder_status adder_session_load(adder_session* session, const void* data, size_t bytes,
                                adder_error* error) try {
  ADDER_REQUIRE(session);
  ADDER_REQUIRE(data);
  const InCall call(session->busy);
  ADDER_CHECK(call.status());
  return Report(StateBlob::Load(*session->session, {static_cast<const uint8_t*>(data), bytes}),
                error);
}
ADDER_CATCH

adder_status adder_session_save_file(const adder_session* session, const char* path,
                                     adder_error* error) try {
  ADDER_REQUIRE(session);
  ADDER_REQUIRE(path);
  const InCall call(session->busy);
  ADDER_CHECK(call.status());
  return Report(SaveStateFile(*session->session, path), error);
}
ADDER_CATCH

adder_status adder_session_load_file(adder_session* session, const char* path,
                                     adder_error* error) try {
  ADDER_REQUIRE(session);
  ADDER_REQUIRE(path);
  const InCall call(session->busy);
  ADDER_CHECK(call.status());
  return Report(LoadStateFile(*session->session, path), error);
}
ADDER_CATCH

adder_status adder_session_fork(const adder_session* from, adder_session* to,
                                adder_error* error) try {
  ADDER_REQUIRE(from);
  ADDER_REQUIRE(to);
  if (from == to) {
    return Report(Status(Code::kInvalidArgument, "from and to are the same session"), error);
  }
  const InCall reading(from->busy), writing(to->busy);
  ADDER_CHECK(reading.status());
  ADDER_CHECK(writing.status());
  return Report(to->session->CopyFrom(*from->session), error);
}
ADDER_CATCH

adder_status adder_session_checkpoint(adder_session* session, adder_error* error) try {
  ADDER_REQUIRE(session);
  const InCall call(session->busy);
  ADDER_CHECK(call.status());
  return Report(session->session->Checkpoint(), error);
}
ADDER_CATCH

adder_status adder_session_rollback(adder_session* session, uint64_t position,
                                    adder_error* error) try {
  ADDER_REQUIRE(session);
  const InCall call(session->busy);
  ADDER_CHECK(call.status());
  return Report(session->session->RollBack(position), error);
}
ADDER_CATCH

adder_status adder_session_checkpoints(const adder_session* session, uint64_t* positions,
                                       size_t capacity, size_t* n, adder_error* error) try {
  ADDER_REQUIRE(session);
  ADDER_REQUIRE(n);
  if (capacity > 0) ADDER_REQUIRE(positions);
  const InCall call(session->busy);
  ADDER_CHECK(call.status());
  const adder::Session& s = *session->session;
  *n = s.checkpoint_count();
  if (*n > capacity) {
    return Report(Error(Code::kBufferTooSmall, "room for %zu positions, needs %zu", capacity, *n),
                  error);
  }
  for (size_t i = 0; i < *n; ++i) positions[i] = s.checkpoint_position(i);
  return ADDER_OK;
}
ADDER_CATCH

}  // extern "C"
