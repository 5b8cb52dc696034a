// What the files of the C API share: the objects behind its handles, checks of arguments, and the
// one place where a Status becomes an adder_status.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>

#include "adder/adder.h"
#include "runtime/model.h"
#include "runtime/session.h"
#include "runtime/status.h"

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

namespace adder::api {

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
static_assert(static_cast<int>(Code::kContextFull) == ADDER_CONTEXT_FULL);
static_assert(static_cast<int>(Code::kOtherModel) == ADDER_OTHER_MODEL);
static_assert(static_cast<int>(Code::kOtherType) == ADDER_OTHER_TYPE);
static_assert(static_cast<int>(Code::kContextLost) == ADDER_CONTEXT_LOST);
static_assert(static_cast<int>(ContextPolicy::kStop) == ADDER_CONTEXT_STOP);
static_assert(static_cast<int>(ContextPolicy::kSlide) == ADDER_CONTEXT_SLIDE);

// The one place where a Status becomes an adder_status.
inline adder_status Report(const Status& status, adder_error* error) {
  const auto code = static_cast<adder_status>(status.code());
  if (error != nullptr) {
    error->code = code;
    std::snprintf(error->message, sizeof(error->message), "%s", status.message().c_str());
  }
  return code;
}

// The same when memory has run out: allocates nothing.
inline adder_status OutOfMemory(adder_error* error) {
  if (error != nullptr) {
    error->code = ADDER_OUT_OF_MEMORY;
    std::snprintf(error->message, sizeof(error->message), "out of memory");
  }
  return ADDER_OUT_OF_MEMORY;
}

inline Status NullArgument(const char* name) {
  return Error(Code::kInvalidArgument, "%s is NULL", name);
}

// No struct of any version is larger: a larger struct_size was never set.
inline constexpr size_t kMaxStruct = 4096;

// Copies what the caller's struct has into a zeroed one of this version. NULL: all defaults.
template <typename Options>
Result<Options> ReadOptions(const Options* options, const char* name) {
  Options copy = {};
  copy.struct_size = sizeof(Options);
  if (options == nullptr) return copy;
  const size_t size = options->struct_size;
  if (size < sizeof(size_t) || size > kMaxStruct) {
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

inline void Retain(const adder_model* model) {
  model->references.fetch_add(1, std::memory_order_relaxed);
}
inline void Release(const adder_model* model) {
  if (model->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete model;
}

inline Result<std::span<const int32_t>> Ids(const int32_t* ids, size_t n_ids, const char* name) {
  if (ids == nullptr && n_ids > 0) return NullArgument(name);
  return std::span<const int32_t>(ids, n_ids);
}

}  // namespace adder::api

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
