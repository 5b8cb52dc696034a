// A session in memory of its own.
#pragma once

#include <cstdlib>
#include <memory>
#include <utility>

#include "runtime/session.h"

namespace adder {

class SessionBuffer {
 public:
  static Result<SessionBuffer> Create(const Model& model, const SessionOptions& options) {
    ADDER_ASSIGN_OR_RETURN(const size_t bytes, Session::Bytes(model, options));
    SessionBuffer out;
    out.memory_.reset(std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment)));
    if (out.memory_ == nullptr)
      return Error(Code::kOutOfMemory, "a session needs %zu bytes", bytes);
    ADDER_ASSIGN_OR_RETURN(Session * session,
                           Session::Place(model, options, out.memory_.get(), bytes));
    out.session_.reset(session);
    return out;
  }

  Session& session() const { return *session_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  struct Destroy {
    void operator()(Session* session) const { session->~Session(); }
  };
  std::unique_ptr<void, Free> memory_;
  std::unique_ptr<Session, Destroy> session_;  // in memory_, so destroyed before it
};

}  // namespace adder
