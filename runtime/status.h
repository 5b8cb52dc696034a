// Errors of the library: a code, and a message that names the thing and both values.
// The library has no exceptions; every function that can fail returns Status or Result<T>.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>

namespace adder {

// Values are pinned: they are the values of adder_status in adder.h.
enum class Code : int {
  kOk = 0,
  kInvalidArgument = 1,  // the caller's mistake
  kNotFound = 2,         // no such file, tensor or token
  kCorruptFile = 3,      // a file contradicts itself or its format
  kUnsupported = 4,      // well formed, but not something this build can do
  kOutOfMemory = 5,
  kIo = 6,              // the operating system refused to read or write
  kCancelled = 7,       // the caller asked to stop
  kInternal = 8,        // a fault of this library
  kBufferTooSmall = 9,  // the buffer of the caller
  kContextFull = 10,    // attention layers look back on no more tokens
  kOtherModel = 11,     // a session state of another model file
  kOtherType = 12,      // a session state whose numbers have another type than the session's
  kContextLost = 13,    // keys and values that attention needs are not there, or would be lost
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// Builds an error from a printf format.
[[gnu::format(printf, 2, 3)]] inline Status Error(Code code, const char* format, ...) {
  std::va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  std::string message(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  std::vsnprintf(message.data(), message.size() + 1, format, again);
  va_end(again);
  return Status(code, std::move(message));
}

// The same error with "context: " in front of its message.
inline Status Annotate(const Status& status, const std::string& context) {
  return status.ok() ? status : Status(status.code(), context + ": " + status.message());
}

// A value, or the error that kept it from being made.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}

  bool ok() const { return state_.index() == 0; }
  Status status() const { return ok() ? Status() : *std::get_if<1>(&state_); }
  T& value() { return *std::get_if<0>(&state_); }
  const T& value() const { return *std::get_if<0>(&state_); }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace adder

// Leaves the calling function with the error of `expression` (a Status), if it is one.
#define ADDER_RETURN_IF_ERROR(expression)                                                        \
  do {                                                                                           \
    if (::adder::Status adder_status_ = (expression); !adder_status_.ok()) return adder_status_; \
  } while (false)

#define ADDER_CONCAT_(a, b) a##b
#define ADDER_CONCAT(a, b) ADDER_CONCAT_(a, b)

// Declares or assigns `target` from `expression` (a Result), or leaves with its error.
#define ADDER_ASSIGN_OR_RETURN(target, expression)           \
  auto ADDER_CONCAT(adder_result_, __LINE__) = (expression); \
  if (!ADDER_CONCAT(adder_result_, __LINE__).ok())           \
    return ADDER_CONCAT(adder_result_, __LINE__).status();   \
  target = std::move(ADDER_CONCAT(adder_result_, __LINE__).value())
