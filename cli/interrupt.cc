#include "cli/interrupt.h"

#include <signal.h>

#include <atomic>

namespace adder::cli {
namespace {

// All that a signal handler may touch.
std::atomic<int> interrupting_signal{0};
std::atomic<Session*> current_session{nullptr};
static_assert(std::atomic<int>::is_always_lock_free);
static_assert(std::atomic<Session*>::is_always_lock_free);

void OnInterrupt(int signal) {
  interrupting_signal.store(signal);
  if (Session* session = current_session.load()) session->Cancel();
}

}  // namespace

void CatchInterrupts() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = OnInterrupt;
    // Not SA_RESTART: a read that waits for input shall end.
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(signal, &action, nullptr);
  }
}

bool Interrupted() { return interrupting_signal.load() != 0; }

int InterruptExitCode() { return 128 + interrupting_signal.load(); }

CancelOnInterrupt::CancelOnInterrupt(Session& session) {
  current_session.store(&session);
  if (Interrupted()) session.Cancel();  // it came before there was a session
}

CancelOnInterrupt::~CancelOnInterrupt() { current_session.store(nullptr); }

}  // namespace adder::cli
