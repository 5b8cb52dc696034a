// One stream of tokens through a model: recurrent state, scratch and logits in a single buffer.
//
// After creation nothing allocates. A session is used by one thread at a time; Cancel alone may be
// called from another.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <utility>

#include "runtime/model.h"
#include "runtime/session_checkpoints.h"
#include "runtime/session_generation.h"
#include "runtime/status.h"
#include "runtime/team.h"
#include "runtime/token_hash.h"

namespace adder {

// What becomes of a token beyond the context of a model with attention layers.
enum class ContextPolicy {
  kStop,   // it is refused with kContextFull
  kSlide,  // attention forgets the oldest token; recurrent state forgets nothing
};

struct SessionOptions {
  // Tokens of a prompt that go through a layer together: more makes prefill faster and scratch
  // larger. Results do not depend on it.
  uint32_t tile = 64;
  // Threads that share the work of this session, the caller's included. No more run than this
  // process may use processors. Results do not depend on it.
  uint32_t threads = 1;
  // Tokens that attention layers look back on, the current one included: their keys and values take
  // memory. Models without such layers have no limit and ignore both.
  uint32_t context = 4096;
  ContextPolicy when_full = ContextPolicy::kStop;
  // kInt16 is refused by models without Mamba-2 layers: they would gain nothing.
  StateType state_type = StateType::kF32;
  // kInt8 is refused by models without attention layers.
  KvChoice kv_type = KvChoice::kDefault;
  // States that Checkpoint can keep in the session's memory, each as large as the recurrent state.
  uint32_t checkpoints = 0;
};
inline constexpr uint32_t kMaxThreads = 256;
inline constexpr uint32_t kMaxTile = 4096;
inline constexpr uint32_t kMaxContext = 1u << 24;
inline constexpr uint32_t kMaxCheckpoints = 4096;

// Looks at what happens while tokens are fed; for verification and evaluation.
class FeedObserver {
 public:
  virtual ~FeedObserver() = default;
  // Residual stream [tokens][stride] after layer `layer`, tokens counted from the start of the
  // call.
  virtual void OnHidden(size_t /*layer*/, size_t /*first_token*/, size_t /*tokens*/,
                        const float* /*hidden*/, size_t /*stride*/) {}
  // Logits [vocab_rows] behind token `token` of the call.
  virtual void OnLogits(size_t /*token*/, std::span<const float> /*logits*/) {}
};

class Session {
 public:
  // Bytes that Place needs, or an error for options out of range.
  static Result<size_t> Bytes(const Model& model, const SessionOptions& options);
  // Makes a session at the start of `buffer` (aligned to 64), which holds everything of it but its
  // threads. Destroyed with ~Session; nothing else has to be freed but the buffer. The model must
  // outlive the session.
  static Result<Session*> Place(const Model& model, const SessionOptions& options, void* buffer,
                                size_t bytes);

  // Advances the state over `tokens`. On kInvalidArgument (an id outside the vocabulary) and
  // kContextFull nothing changed; on kCancelled position() tells how many tokens went in. With an
  // observer the logits of every token are computed, otherwise those of the last.
  Status Feed(std::span<const int32_t> tokens, FeedObserver* observer = nullptr);

  // Feed of a single token that Cancel does not stop.
  Status FeedOne(int32_t token);

  // Feeds what is missing of `tokens`, a whole text from its start: goes on from the present state,
  // or else from the latest checkpoint, whose tokens are the beginning of `tokens`, or else from
  // the start. *reused becomes the number of tokens that were not fed again. Errors as of Feed.
  Status FeedFromStart(std::span<const int32_t> tokens, uint64_t* reused);

  // Keeps the present state, to which RollBack returns. One at the same position is replaced; when
  // there are as many as the option `checkpoints` says, the oldest goes.
  Status Checkpoint();
  // Back to the state that Checkpoint kept at exactly this position; later checkpoints go. Keys and
  // values are not kept: kContextLost, when attention would need some that were overwritten since
  // (ContextPolicy::kSlide only).
  Status RollBack(uint64_t position);
  size_t checkpoint_count() const { return checkpoints_.size(); }
  uint64_t checkpoint_position(size_t i) const { return checkpoints_[i].position; }  // ascending

  // Takes over the state of a session of the same model, state_type and kv_type whose text fits
  // both contexts, or whose context is the same. This session's checkpoints go. Refused: nothing
  // changes.
  Status CopyFrom(const Session& other);

  // [vocab_rows] behind the last token fed; empty before the first.
  std::span<const float> logits() const;
  uint64_t position() const { return position_; }       // tokens fed since the start
  uint64_t room() const { return limit_ - position_; }  // tokens that may be fed
  TokenHash token_hash() const { return hash_; }        // of the tokens fed
  // Where Generate keeps what it needs to go on.
  OpenGeneration& generation() { return *generation_; }
  // The same, if a generation ended exactly here and may go on, or else nullptr.
  const OpenGeneration* open_generation() const;
  const Model& model() const { return *model_; }
  size_t threads() const { return team_.workers(); }  // that really run
  // Adds up the times of operations from now on; nullptr: no more. Times are those of the calling
  // thread, counts those of its share of the work.
  void SetTelemetry(Telemetry* telemetry) {
    telemetry_ = telemetry;
    team_.SetTelemetry(telemetry);
  }

  // As created.
  void Reset();

  // Makes the running call, or else the next one, end soon with kCancelled; it ends that one call
  // only. Any thread.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  // Whether Cancel was called since the last TakeCancel.
  bool TakeCancel() {
    return cancelled_.load(std::memory_order_relaxed) && cancelled_.exchange(false);
  }

 private:
  friend class StateBlob;  // session_state.cc
  struct Layout;
  // What a state has to fit.
  struct Facts {
    uint64_t model;
    StateType state_type;
    KvChoice kv_type;
    uint64_t context, position;
  };
  Session(const Model& model, Team team) : model_(&model), team_(std::move(team)) {}
  Status CheckTokens(std::span<const int32_t> tokens, uint64_t position) const;
  void FeedTile(std::span<const int32_t> tokens, size_t first_token, bool last,
                FeedObserver* observer);
  void ComputeLogits(const float* hidden);
  Facts facts() const;
  Status CheckFits(const Facts& facts) const;
  // Tokens whose keys and values belong to the state at `position`.
  uint64_t KvTokens(uint64_t position) const;
  Status CheckKept(uint64_t position) const;
  void Restore(size_t mark);
  // Calls visit(ring) for each block's keys and values.
  template <typename Visit>
  void VisitRings(const Visit& visit) const;
  // Slots older than the `kept` newest tokens may be read with weight 0: clears them.
  void ClearForgotten(uint64_t kept);
  // Ends a change of state: everything of it is in place but the logits.
  void SetPosition(uint64_t position, TokenHash hash);

  const Model* model_;
  Team team_;
  Telemetry* telemetry_ = nullptr;
  size_t tile_ = 0;
  size_t stride_ = 0;  // of hidden, floats
  StateType state_type_ = StateType::kF32;
  size_t state_floats_ = 0;
  size_t context_ = 0;
  size_t kv_slots_ = 0;  // of every ring; 0: there is none
  KvChoice kv_choice_ = KvChoice::kDefault;
  uint64_t limit_ = 0;  // tokens that may be fed
  float* state_ = nullptr;
  uint8_t* kv_ = nullptr;
  uint8_t* kv_token_ = nullptr;   // [most TokenBytes of a block]
  float* hidden_ = nullptr;       // [tile][stride]
  float* last_hidden_ = nullptr;  // the row of hidden_ behind the last token
  float* embedding_ = nullptr;    // [tile][stride] if a block reads it
  float* normed_ = nullptr;       // [stride]
  float* logits_ = nullptr;       // [vocab_rows padded to kLanes]
  Activations head_input_;
  Arena scratch_;
  CheckpointRing checkpoints_;
  OpenGeneration* generation_ = nullptr;
  uint64_t position_ = 0;
  TokenHash hash_;
  uint64_t written_ = 0;  // end of the positions whose keys and values the rings have held
  std::atomic<bool> cancelled_{false};
};

template <typename Visit>
void Session::VisitRings(const Visit& visit) const {
  uint8_t* memory = kv_;
  for (const auto& block : model_->blocks()) {
    const KvShape shape = block->Kv(kv_choice_);
    if (shape.n_kv_heads == 0) continue;
    visit(KvRing(shape, context_, memory));
    memory += shape.Bytes(context_);
  }
}

}  // namespace adder
