#include "runtime/session_state.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>

namespace adder {
namespace {

static_assert(std::endian::native == std::endian::little, "states are copied as they lie");

constexpr uint64_t kMostTokens = uint64_t{1} << 62;  // so that positions never overflow

// Of the open generation; the sampler's state and the held text follow.
struct GenerationHeader {
  uint32_t sampler_bytes;
  uint32_t text_bytes;
  uint32_t text_begins;
  uint32_t reserved;
};
static_assert(sizeof(GenerationHeader) == 16);

uint64_t HeaderChecksumOf(StateHeader header) {
  header.checksum = 0;
  return Checksum({reinterpret_cast<const uint8_t*>(&header), sizeof(header)});
}

class Writer {
 public:
  explicit Writer(uint8_t* out) : out_(out) {}
  uint8_t* Take(size_t bytes) {
    uint8_t* at = out_;
    out_ += bytes;
    return at;
  }
  void Put(const void* data, size_t bytes) { std::memcpy(Take(bytes), data, bytes); }

 private:
  uint8_t* out_;
};

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : at_(bytes.data()) {}
  const uint8_t* Take(size_t bytes) {
    const uint8_t* at = at_;
    at_ += bytes;
    return at;
  }
  void Get(void* data, size_t bytes) { std::memcpy(data, Take(bytes), bytes); }

 private:
  const uint8_t* at_;
};

Status Corrupt(const char* what, uint64_t value, uint64_t expected) {
  return Error(Code::kCorruptFile, "session state: %s %" PRIu64 ", expected %" PRIu64, what, value,
               expected);
}

Status CheckSize(const char* what, uint64_t bytes, uint64_t expected) {
  return bytes == expected ? Status() : Corrupt(what, bytes, expected);
}

const char* Name(StateType type) { return type == StateType::kF32 ? "f32" : "int16"; }
const char* Name(KvChoice type) { return type == KvChoice::kDefault ? "f16 (or f32)" : "int8"; }

Status CheckGeneration(std::span<const uint8_t> bytes) {
  GenerationHeader g;
  if (bytes.empty()) return {};
  if (bytes.size() < sizeof(g)) return Corrupt("generation bytes", bytes.size(), sizeof(g));
  std::memcpy(&g, bytes.data(), sizeof(g));
  const uint64_t total = uint64_t{g.sampler_bytes} + g.text_bytes + sizeof(g);
  if (total != bytes.size()) return Corrupt("generation bytes", bytes.size(), total);
  if (g.sampler_bytes > OpenGeneration::kMaxSampler)
    return Corrupt("sampler bytes", g.sampler_bytes, OpenGeneration::kMaxSampler);
  if (g.text_bytes > OpenGeneration::kMaxText)
    return Corrupt("held bytes", g.text_bytes, OpenGeneration::kMaxText);
  if (g.text_begins > 1) return Corrupt("text_begins", g.text_begins, 1);
  return CheckSize("reserved bits", g.reserved, 0);
}

}  // namespace

Session::Facts Session::facts() const {
  return {.model = model_->file().identity(),
          .state_type = state_type_,
          .kv_type = kv_choice_,
          .context = kv_slots_ == 0 ? 0 : context_,
          .position = position_};
}

Status Session::CheckFits(const Facts& facts) const {
  const Facts mine = this->facts();
  if (facts.model != mine.model) {
    return Error(Code::kOtherModel,
                 "the state belongs to the model file %016" PRIx64 ", the session to %016" PRIx64
                 " (checksums of their headers)",
                 facts.model, mine.model);
  }
  if (facts.state_type != mine.state_type) {
    return Error(Code::kOtherType, "state_type of the state is %s, of the session %s",
                 Name(facts.state_type), Name(mine.state_type));
  }
  if (facts.kv_type != mine.kv_type) {
    return Error(Code::kOtherType, "kv_type of the state is %s, of the session %s",
                 Name(facts.kv_type), Name(mine.kv_type));
  }
  if (mine.context == 0) return {};
  // Where a text has outgrown a context, its ring turned, and with it the order of sums.
  const bool fits = facts.context == mine.context
                        ? facts.position <= limit_
                        : facts.position <= std::min(facts.context, mine.context);
  if (fits) return {};
  return Error(Code::kContextLost,
               "the state has %" PRIu64 " tokens with a context of %" PRIu64
               ", the session has a context of %" PRIu64
               "%s: the tokens must fit both, or the contexts be equal",
               facts.position, facts.context, mine.context,
               limit_ == context_ ? " and stops when it is full" : "");
}

void Session::ClearForgotten(uint64_t kept) {
  const uint64_t oldest = position_ - std::min<uint64_t>(position_, kv_slots_);
  VisitRings([&](const KvRing& ring) {
    std::memset(kv_token_, 0, ring.shape().TokenBytes());
    for (uint64_t p = oldest; p < position_ - kept; ++p) {
      ring.WriteToken(static_cast<size_t>(p % kv_slots_), kv_token_);
    }
  });
}

Status Session::CopyFrom(const Session& other) {
  if (&other == this) return {};
  ADDER_RETURN_IF_ERROR(CheckFits(other.facts()));
  std::memcpy(state_, other.state_, state_floats_ * sizeof(float));
  std::memcpy(hidden_, other.last_hidden_, stride_ * sizeof(float));
  if (kv_slots_ == other.kv_slots_) {
    std::memcpy(kv_, other.kv_, model_->KvBytes(context_, kv_choice_));
  } else {  // never turned: token p is in slot p of both
    uint8_t* theirs = other.kv_;
    VisitRings([&](const KvRing& ring) {
      const KvRing from(ring.shape(), other.context_, theirs);
      for (size_t p = 0; p < other.position_; ++p) {
        from.ReadToken(p, kv_token_);
        ring.WriteToken(p, kv_token_);
      }
      theirs += ring.shape().Bytes(other.context_);
    });
  }
  *generation_ = *other.generation_;
  checkpoints_.Keep(0);
  written_ = other.position_;
  SetPosition(other.position_, other.hash_);
  return {};
}

StateHeader StateBlob::HeaderOf(const Session& session) {
  const Session::Facts facts = session.facts();
  StateHeader header = {};
  std::memcpy(header.magic, kStateMagic, sizeof(kStateMagic));
  header.version = kStateVersion;
  header.state_type = static_cast<uint32_t>(facts.state_type);
  header.model = facts.model;
  header.position = facts.position;
  header.tokens_hash[0] = session.hash_.low;
  header.tokens_hash[1] = session.hash_.high;
  header.kv_type = static_cast<uint32_t>(facts.kv_type);
  header.context = static_cast<uint32_t>(facts.context);
  header.hidden_bytes = session.model_->config().d_model * sizeof(float);
  header.state_bytes = session.state_floats_ * sizeof(float);
  const uint64_t tokens = session.KvTokens(facts.position);
  session.VisitRings(
      [&](const KvRing& ring) { header.kv_bytes += tokens * ring.shape().TokenBytes(); });
  if (const OpenGeneration* g = session.open_generation()) {
    header.generation_bytes = sizeof(GenerationHeader) + g->sampler_bytes + g->text_bytes;
  }
  header.bytes = sizeof(header) + header.hidden_bytes + header.state_bytes + header.kv_bytes +
                 header.generation_bytes;
  return header;
}

size_t StateBlob::Bytes(const Session& session) {
  return static_cast<size_t>(HeaderOf(session).bytes);
}

Status StateBlob::Save(const Session& session, std::span<uint8_t> out) {
  StateHeader header = HeaderOf(session);
  if (out.size() < header.bytes) {
    return Error(Code::kBufferTooSmall, "room for %zu bytes, the state has %" PRIu64, out.size(),
                 header.bytes);
  }
  const std::span<uint8_t> contents =
      out.first(static_cast<size_t>(header.bytes)).subspan(sizeof(StateHeader));
  Writer writer(contents.data());
  writer.Put(session.last_hidden_, static_cast<size_t>(header.hidden_bytes));
  writer.Put(session.state_, static_cast<size_t>(header.state_bytes));
  session.VisitRings([&](const KvRing& ring) {
    const uint64_t end = session.position_;
    for (uint64_t p = end - session.KvTokens(end); p < end; ++p) {
      ring.ReadToken(static_cast<size_t>(p % ring.slots()), writer.Take(ring.shape().TokenBytes()));
    }
  });
  if (const OpenGeneration* g = session.open_generation()) {
    const GenerationHeader generation = {g->sampler_bytes, g->text_bytes, g->text_begins ? 1u : 0u,
                                         0};
    writer.Put(&generation, sizeof(generation));
    writer.Put(g->sampler, g->sampler_bytes);
    writer.Put(g->text, g->text_bytes);
  }
  header.contents_checksum = Checksum(contents);
  header.checksum = HeaderChecksumOf(header);
  std::memcpy(out.data(), &header, sizeof(header));
  return {};
}

Status StateBlob::Check(const Session& session, const StateHeader& header,
                        std::span<const uint8_t> contents) {
  if (header.state_type > static_cast<uint32_t>(StateType::kInt16))
    return Corrupt("state_type", header.state_type, 1);
  if (header.kv_type > static_cast<uint32_t>(KvChoice::kInt8))
    return Corrupt("kv_type", header.kv_type, 1);
  if (header.position > kMostTokens) return Corrupt("position", header.position, kMostTokens);
  if (std::any_of(std::begin(header.reserved), std::end(header.reserved),
                  [](uint8_t b) { return b != 0; })) {
    return Status(Code::kCorruptFile, "session state: reserved bytes are not zero");
  }
  ADDER_RETURN_IF_ERROR(session.CheckFits({.model = header.model,
                                           .state_type = static_cast<StateType>(header.state_type),
                                           .kv_type = static_cast<KvChoice>(header.kv_type),
                                           .context = header.context,
                                           .position = header.position}));
  const StateHeader mine = HeaderOf(session);
  ADDER_RETURN_IF_ERROR(CheckSize("hidden bytes", header.hidden_bytes, mine.hidden_bytes));
  ADDER_RETURN_IF_ERROR(CheckSize("state bytes", header.state_bytes, mine.state_bytes));
  uint64_t kv_bytes = 0;
  session.VisitRings([&](const KvRing& ring) {
    kv_bytes += session.KvTokens(header.position) * ring.shape().TokenBytes();
  });
  ADDER_RETURN_IF_ERROR(CheckSize("kv bytes", header.kv_bytes, kv_bytes));
  const uint64_t before = mine.hidden_bytes + mine.state_bytes + kv_bytes;
  if (before > contents.size()) return Corrupt("bytes of contents", contents.size(), before);
  ADDER_RETURN_IF_ERROR(
      CheckSize("generation bytes", header.generation_bytes, contents.size() - before));
  if (Checksum(contents) != header.contents_checksum)
    return Status(Code::kCorruptFile, "session state: checksum of the contents differs");
  return CheckGeneration(contents.subspan(static_cast<size_t>(before)));
}

Status StateBlob::Load(Session& session, std::span<const uint8_t> blob) {
  StateHeader header;
  if (blob.size() < sizeof(header)) {
    return Error(Code::kCorruptFile, "session state: %zu bytes, the header alone has %zu",
                 blob.size(), sizeof(header));
  }
  std::memcpy(&header, blob.data(), sizeof(header));
  if (std::memcmp(header.magic, kStateMagic, sizeof(kStateMagic)) != 0)
    return Status(Code::kCorruptFile, "session state: wrong first bytes, this is none");
  if (header.version != kStateVersion) {
    return Error(Code::kUnsupported,
                 "session state: format version %" PRIu32 ", this build reads %" PRIu32,
                 header.version, kStateVersion);
  }
  if (header.bytes != blob.size()) {
    return Error(Code::kCorruptFile,
                 "session state: %zu bytes, the header says %" PRIu64 " (truncated?)", blob.size(),
                 header.bytes);
  }
  if (HeaderChecksumOf(header) != header.checksum)
    return Status(Code::kCorruptFile, "session state: checksum of the header differs");
  const std::span<const uint8_t> contents = blob.subspan(sizeof(header));
  ADDER_RETURN_IF_ERROR(Check(session, header, contents));

  Reader reader(contents);
  reader.Get(session.hidden_, static_cast<size_t>(header.hidden_bytes));
  reader.Get(session.state_, static_cast<size_t>(header.state_bytes));
  const uint64_t kept = session.KvTokens(header.position);
  session.VisitRings([&](const KvRing& ring) {
    for (uint64_t p = header.position - kept; p < header.position; ++p) {
      ring.WriteToken(static_cast<size_t>(p % ring.slots()),
                      reader.Take(ring.shape().TokenBytes()));
    }
  });
  OpenGeneration& g = *session.generation_;
  g.open = header.generation_bytes > 0;
  if (g.open) {
    GenerationHeader generation;
    reader.Get(&generation, sizeof(generation));
    g.text_begins = generation.text_begins != 0;
    g.position = header.position;
    g.hash = {header.tokens_hash[0], header.tokens_hash[1]};
    g.sampler_bytes = generation.sampler_bytes;
    g.text_bytes = generation.text_bytes;
    reader.Get(g.sampler, g.sampler_bytes);
    reader.Get(g.text, g.text_bytes);
  }
  session.checkpoints_.Keep(0);
  session.written_ = header.position;
  session.SetPosition(header.position, {header.tokens_hash[0], header.tokens_hash[1]});
  session.ClearForgotten(kept);
  return {};
}

}  // namespace adder
