// Checkpoints of a session, and what it knows of a text.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "runtime/session.h"

namespace adder {

uint64_t Session::KvTokens(uint64_t position) const {
  return kv_slots_ == 0 ? 0 : std::min<uint64_t>(position, context_);
}

Status Session::CheckKept(uint64_t position) const {
  const uint64_t needed = KvTokens(position);
  if (kv_slots_ == 0 || position - needed + kv_slots_ >= written_) return {};
  return Error(Code::kContextLost,
               "back at position %" PRIu64 " attention would look back on %" PRIu64
               " tokens, but all before position %" PRIu64 " have been overwritten",
               position, needed, written_ - kv_slots_);
}

void Session::SetPosition(uint64_t position, TokenHash hash) {
  position_ = position;
  hash_ = hash;
  last_hidden_ = hidden_;
  if (position > 0) ComputeLogits(last_hidden_);
}

Status Session::Checkpoint() {
  if (checkpoints_.capacity() == 0) {
    return Status(Code::kInvalidArgument,
                  "the session has no room for a checkpoint: its option checkpoints is 0");
  }
  const CheckpointRing::Mark mark = checkpoints_.Add(position_, hash_);
  std::memcpy(mark.state, state_, state_floats_ * sizeof(float));
  std::memcpy(mark.hidden, last_hidden_, stride_ * sizeof(float));
  return {};
}

void Session::Restore(size_t i) {
  const CheckpointRing::Mark mark = checkpoints_[i];
  checkpoints_.Keep(i + 1);
  std::memcpy(state_, mark.state, state_floats_ * sizeof(float));
  std::memcpy(hidden_, mark.hidden, stride_ * sizeof(float));
  SetPosition(mark.position, mark.hash);
}

Status Session::RollBack(uint64_t position) {
  for (size_t i = 0; i < checkpoints_.size(); ++i) {
    if (checkpoints_[i].position != position) continue;
    ADDER_RETURN_IF_ERROR(CheckKept(position));
    Restore(i);
    return {};
  }
  return Error(Code::kNotFound, "no checkpoint at position %" PRIu64 ", there are %zu others",
               position, checkpoints_.size());
}

Status Session::FeedFromStart(std::span<const int32_t> tokens, uint64_t* reused) {
  ADDER_RETURN_IF_ERROR(CheckTokens(tokens, 0));
  constexpr size_t kNone = SIZE_MAX;
  bool here = false;
  size_t best = kNone, next = 0;  // checkpoints
  TokenHash hash;
  for (size_t n = 0;; ++n) {
    here = position_ == n && hash_ == hash;
    if (here) break;  // no checkpoint is later
    for (; next < checkpoints_.size() && checkpoints_[next].position <= n; ++next) {
      const CheckpointRing::Mark mark = checkpoints_[next];
      if (mark.position == n && mark.hash == hash && CheckKept(n).ok()) best = next;
    }
    if (n == tokens.size()) break;
    hash.Add(tokens[n]);
  }
  if (!here && best != kNone) Restore(best);
  if (!here && best == kNone) Reset();
  *reused = position_;
  return Feed(tokens.subspan(static_cast<size_t>(position_)));
}

const OpenGeneration* Session::open_generation() const {
  const OpenGeneration& g = *generation_;
  return g.open && g.position == position_ && g.hash == hash_ ? &g : nullptr;
}

}  // namespace adder
