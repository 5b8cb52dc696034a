#include "runtime/session.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <limits>
#include <new>

namespace adder {
namespace {

void Scale(float factor, std::span<float> values) {
  if (factor == 1.0f) return;
  for (float& value : values) value *= factor;
}

}  // namespace

// Where everything lies in a session's buffer.
struct Session::Layout {
  Session* session;
  float* state;
  uint8_t* kv;
  uint8_t* kv_token;
  float* hidden;
  float* embedding;
  float* normed;
  float* logits;
  Activations head_input;
  CheckpointRing checkpoints;
  OpenGeneration* generation;
  uint8_t* scratch;
  size_t scratch_bytes;

  static Layout Carve(Arena* arena, const Model& model, const SessionOptions& options) {
    const size_t tile = options.tile;
    const size_t stride = RoundUp(model.config().d_model, kLanes);
    Layout layout = {};
    layout.session = arena->Take<Session>(1);
    layout.state = arena->Take<float>(model.StateFloats(options.state_type));
    layout.kv = arena->Take<uint8_t>(model.KvBytes(options.context, options.kv_type));
    size_t token_bytes = 0;
    for (const auto& block : model.blocks()) {
      token_bytes = std::max(token_bytes, block->Kv(options.kv_type).TokenBytes());
    }
    layout.kv_token = arena->Take<uint8_t>(token_bytes);
    layout.hidden = arena->Take<float>(tile * stride);
    if (model.ReadsEmbedding()) layout.embedding = arena->Take<float>(tile * stride);
    layout.normed = arena->Take<float>(stride);
    layout.logits = arena->Take<float>(model.head().padded_rows());
    layout.head_input = Activations::Carve(arena, 1, model.config().d_model);
    layout.checkpoints = CheckpointRing::Carve(arena, options.checkpoints,
                                               model.StateFloats(options.state_type), stride);
    layout.generation = arena->Take<OpenGeneration>(1);
    for (const auto& block : model.blocks()) {
      layout.scratch_bytes = std::max(layout.scratch_bytes, block->ScratchBytes(tile));
    }
    layout.scratch = arena->Take<uint8_t>(layout.scratch_bytes);
    return layout;
  }
};

Result<size_t> Session::Bytes(const Model& model, const SessionOptions& options) {
  if (options.tile == 0 || options.tile > kMaxTile) {
    return Error(Code::kInvalidArgument, "tile is %" PRIu32 ", expected 1 to %" PRIu32,
                 options.tile, kMaxTile);
  }
  if (options.threads == 0 || options.threads > kMaxThreads) {
    return Error(Code::kInvalidArgument, "threads is %" PRIu32 ", expected 1 to %" PRIu32,
                 options.threads, kMaxThreads);
  }
  if (options.context == 0 || options.context > kMaxContext) {
    return Error(Code::kInvalidArgument, "context is %" PRIu32 ", expected 1 to %" PRIu32,
                 options.context, kMaxContext);
  }
  if (options.checkpoints > kMaxCheckpoints) {
    return Error(Code::kInvalidArgument, "checkpoints is %" PRIu32 ", expected 0 to %" PRIu32,
                 options.checkpoints, kMaxCheckpoints);
  }
  if (options.state_type != StateType::kF32 &&
      model.StateFloats(options.state_type) == model.StateFloats()) {
    return Error(Code::kUnsupported, "a 16-bit state needs Mamba-2 layers, this %s model has none",
                 model.config().family.c_str());
  }
  if (options.kv_type != KvChoice::kDefault && model.KvBytesPerToken() == 0) {
    return Error(Code::kUnsupported,
                 "8-bit keys and values need attention layers, this %s model has none",
                 model.config().family.c_str());
  }
  Arena measure;
  Layout::Carve(&measure, model, options);
  return measure.used();
}

Result<Session*> Session::Place(const Model& model, const SessionOptions& options, void* buffer,
                                size_t bytes) {
  ADDER_ASSIGN_OR_RETURN(const size_t needed, Bytes(model, options));
  if (buffer == nullptr || reinterpret_cast<uintptr_t>(buffer) % kAlignment != 0) {
    return Error(Code::kInvalidArgument, "session buffer must be aligned to %zu", kAlignment);
  }
  if (bytes < needed) {
    return Error(Code::kInvalidArgument, "session buffer has %zu bytes, needs %zu", bytes, needed);
  }
  Arena arena(buffer, bytes);
  const Layout layout = Layout::Carve(&arena, model, options);
  ADDER_ASSIGN_OR_RETURN(Team team, Team::Create(model.kernels(), options.threads));
  Session* session = new (layout.session) Session(model, std::move(team));
  session->tile_ = options.tile;
  session->stride_ = RoundUp(model.config().d_model, kLanes);
  session->state_type_ = options.state_type;
  session->state_floats_ = model.StateFloats(options.state_type);
  session->context_ = options.context;
  session->kv_choice_ = options.kv_type;
  const bool limited = model.KvBytesPerToken() > 0 && options.when_full == ContextPolicy::kStop;
  session->limit_ = limited ? options.context : std::numeric_limits<uint64_t>::max();
  session->state_ = layout.state;
  session->kv_ = layout.kv;
  session->kv_token_ = layout.kv_token;
  session->VisitRings([&](const KvRing& ring) { session->kv_slots_ = ring.slots(); });
  session->hidden_ = layout.hidden;
  session->embedding_ = layout.embedding;
  session->normed_ = layout.normed;
  session->logits_ = layout.logits;
  session->head_input_ = layout.head_input;
  session->checkpoints_ = layout.checkpoints;
  session->generation_ = new (layout.generation) OpenGeneration;
  session->scratch_ = Arena(layout.scratch, layout.scratch_bytes);
  session->Reset();
  return session;
}

void Session::Reset() {
  std::memset(state_, 0, state_floats_ * sizeof(float));
  // Embedding look-ups write d_model values; the padding behind them stays 0 for ever.
  std::memset(hidden_, 0, tile_ * stride_ * sizeof(float));
  last_hidden_ = hidden_;
  position_ = 0;
  hash_ = {};
  written_ = 0;
  checkpoints_.Keep(0);
  generation_->open = false;
}

std::span<const float> Session::logits() const {
  return position_ == 0 ? std::span<const float>()
                        : std::span(logits_, model_->config().vocab_rows);
}

Status Session::CheckTokens(std::span<const int32_t> tokens, uint64_t position) const {
  if (tokens.size() > limit_ - position) {
    return Error(Code::kContextFull,
                 "the context holds %" PRIu64 " tokens, %" PRIu64 " of them used: no room for %zu",
                 limit_, position, tokens.size());
  }
  const uint32_t rows = model_->config().vocab_rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || static_cast<uint32_t>(tokens[i]) >= rows) {
      return Error(Code::kInvalidArgument,
                   "token %zu is %" PRId32 ", the vocabulary has ids 0 to %" PRIu32, i, tokens[i],
                   rows - 1);
    }
  }
  return {};
}

Status Session::FeedOne(int32_t token) {
  ADDER_RETURN_IF_ERROR(CheckTokens({&token, 1}, position_));
  FeedTile({&token, 1}, 0, /*last=*/true, nullptr);
  return {};
}

Status Session::Feed(std::span<const int32_t> tokens, FeedObserver* observer) {
  ADDER_RETURN_IF_ERROR(CheckTokens(tokens, position_));
  for (size_t done = 0; done < tokens.size(); done += tile_) {
    if (TakeCancel()) {
      if (done > 0) ComputeLogits(last_hidden_);
      return Status(Code::kCancelled, "cancelled");
    }
    const size_t count = std::min(tile_, tokens.size() - done);
    FeedTile(tokens.subspan(done, count), done, done + count == tokens.size(), observer);
  }
  return {};
}

void Session::FeedTile(std::span<const int32_t> tokens, size_t first_token, bool last,
                       FeedObserver* observer) {
  {
    const OpTimer timer(telemetry_, Op::kEmbedding);
    for (size_t t = 0; t < tokens.size(); ++t) {
      float* row = hidden_ + t * stride_;
      model_->embedding().ReadRow(static_cast<size_t>(tokens[t]), row);
      Scale(model_->config().embedding_multiplier, {row, stride_});
    }
    if (embedding_ != nullptr) std::copy_n(hidden_, tokens.size() * stride_, embedding_);
  }
  float* state = state_;
  uint8_t* kv = kv_;
  for (size_t i = 0; i < model_->blocks().size(); ++i) {
    const Block& block = *model_->blocks()[i];
    block.Forward({.team = team_,
                   .tokens = tokens.size(),
                   .max_tokens = tile_,
                   .position = position_,
                   .input = hidden_,
                   .hidden = hidden_,
                   .embedding = embedding_,
                   .stride = stride_,
                   .state = state,
                   .state_type = state_type_,
                   .kv = kv,
                   .kv_choice = kv_choice_,
                   .context = context_,
                   .scratch = scratch_});
    state += block.StateFloats(state_type_);
    kv += block.Kv(kv_choice_).Bytes(context_);
    if (observer != nullptr) observer->OnHidden(i, first_token, tokens.size(), hidden_, stride_);
  }
  position_ += tokens.size();
  written_ = std::max(written_, position_);
  for (const int32_t token : tokens) hash_.Add(token);
  last_hidden_ = hidden_ + (tokens.size() - 1) * stride_;
  if (observer != nullptr) {
    for (size_t t = 0; t < tokens.size(); ++t) {
      ComputeLogits(hidden_ + t * stride_);
      observer->OnLogits(first_token + t, logits());
    }
  } else if (last) {
    ComputeLogits(last_hidden_);
  }
}

// logits = head * rms_norm(hidden)
void Session::ComputeLogits(const float* hidden) {
  const Linear& head = model_->head();
  const size_t d_model = model_->config().d_model;
  head_input_.Set(normed_, stride_, head.quantized());
  team_.Run(RowBytes(1, d_model), [&](const Worker& w) {
    w.RmsNorm(w.Share(1), hidden, stride_, model_->final_norm(), d_model,
              static_cast<float>(d_model), model_->config().final_norm_eps, normed_, stride_);
    w.Quantize(w.Share(1), &head_input_);
  });
  team_.Run(head.bytes(), [&](const Worker& w) {
    w.Linear(head, w.Share(head.row_blocks()), head_input_, 1, logits_, head.padded_rows());
  });
  Scale(model_->config().logits_multiplier, {logits_, head.padded_rows()});
}

}  // namespace adder
