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
#include "runtime/status.h"
#include "runtime/team.h"

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
};
inline constexpr uint32_t kMaxThreads = 256;
inline constexpr uint32_t kMaxTile = 4096;
inline constexpr uint32_t kMaxContext = 1u << 24;

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

  // [vocab_rows] behind the last token fed; empty before the first.
  std::span<const float> logits() const;
  uint64_t position() const { return position_; }       // tokens fed since the start
  uint64_t room() const { return limit_ - position_; }  // tokens that may be fed
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
  struct Layout;
  Session(const Model& model, Team team) : model_(&model), team_(std::move(team)) {}
  Status CheckTokens(std::span<const int32_t> tokens) const;
  void FeedTile(std::span<const int32_t> tokens, size_t first_token, bool last,
                FeedObserver* observer);
  void ComputeLogits(const float* hidden);

  const Model* model_;
  Team team_;
  Telemetry* telemetry_ = nullptr;
  size_t tile_ = 0;
  size_t stride_ = 0;  // of hidden, floats
  StateType state_type_ = StateType::kF32;
  size_t state_floats_ = 0;
  size_t context_ = 0;
  KvChoice kv_choice_ = KvChoice::kDefault;
  uint64_t limit_ = 0;  // tokens that may be fed
  float* state_ = nullptr;
  uint8_t* kv_ = nullptr;
  float* hidden_ = nullptr;     // [tile][stride]
  float* embedding_ = nullptr;  // [tile][stride] if a block reads it
  float* normed_ = nullptr;     // [stride]
  float* logits_ = nullptr;     // [vocab_rows padded to kLanes]
  Activations head_input_;
  Arena scratch_;
  uint64_t position_ = 0;
  std::atomic<bool> cancelled_{false};
};

}  // namespace adder
