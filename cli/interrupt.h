// Ctrl-C (SIGINT), SIGTERM and SIGHUP: the first one asks the command to come to a clean end, the
// same one again kills it. Signals that were ignored when the program started stay ignored.
#pragma once

#include "runtime/session.h"

namespace adder::cli {

// For commands that have something to bring to an end; the others just die.
void CatchInterrupts();
bool Interrupted();
int InterruptExitCode();  // 128 + signal, as a shell reports it

// While it lives, an interrupt cancels what `session` does. One at a time.
class CancelOnInterrupt {
 public:
  explicit CancelOnInterrupt(Session& session);
  CancelOnInterrupt(const CancelOnInterrupt&) = delete;
  CancelOnInterrupt& operator=(const CancelOnInterrupt&) = delete;
  ~CancelOnInterrupt();
};

}  // namespace adder::cli
