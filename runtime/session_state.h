// The state of a session as bytes: saved here, loaded there, on any machine. docs/state.md is
// normative for the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/session.h"
#include "runtime/status.h"

namespace adder {

inline constexpr uint8_t kStateMagic[8] = {0x89, 'A', 'D', 'S', 'T', 'A', '\r', '\n'};
inline constexpr uint32_t kStateVersion = 1;

// All integers little-endian. Behind it: the hidden row, recurrent state, keys and values, and the
// open generation, without gaps.
struct StateHeader {
  uint8_t magic[8];
  uint32_t version;
  uint32_t state_type;  // StateType
  uint64_t bytes;       // of header and contents
  uint64_t checksum;    // XXH3-64 of the header with this field zero
  uint64_t contents_checksum;
  uint64_t model;             // ModelFile::identity
  uint64_t position;          // tokens fed
  uint64_t tokens_hash[2];    // TokenHash: low, high
  uint32_t kv_type;           // KvChoice
  uint32_t context;           // 0: the model has no attention layers
  uint64_t hidden_bytes;      // f32 [d_model] behind the last token, from which logits follow
  uint64_t state_bytes;       // of all blocks, as it lies in memory
  uint64_t kv_bytes;          // [block][min(position, context) tokens][KvShape::TokenBytes]
  uint64_t generation_bytes;  // 0: none is open here
  uint8_t reserved[16];       // zero
};
static_assert(sizeof(StateHeader) == 128);

class StateBlob {
 public:
  // What Save writes now. It grows with the text only by keys and values, up to those of the
  // context.
  static size_t Bytes(const Session& session);
  // Writes the first Bytes() of `out`; kBufferTooSmall if there are fewer.
  static Status Save(const Session& session, std::span<uint8_t> out);
  // Checks everything, then takes it over; on errors the session is as it was. The session's
  // checkpoints go. Codes: kCorruptFile, kUnsupported (another version), kOtherModel, kOtherType,
  // kContextLost.
  static Status Load(Session& session, std::span<const uint8_t> blob);

 private:
  static StateHeader HeaderOf(const Session& session);
  static Status Check(const Session& session, const StateHeader& header,
                      std::span<const uint8_t> contents);
};

}  // namespace adder
