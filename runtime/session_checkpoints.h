// The states of a session that Checkpoint kept: a ring in the session's own memory, in the order of
// their positions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/arena.h"
#include "runtime/token_hash.h"

namespace adder {

class CheckpointRing {
 public:
  struct Mark {
    uint64_t position;
    TokenHash hash;
    float* state;   // [state_floats]
    float* hidden;  // [stride], behind it in memory
  };

  static CheckpointRing Carve(Arena* arena, size_t capacity, size_t state_floats, size_t stride) {
    CheckpointRing ring;
    ring.capacity_ = capacity;
    ring.state_floats_ = state_floats;
    ring.slot_floats_ = state_floats + stride;
    if (capacity == 0) return ring;
    ring.tags_ = arena->Take<Tag>(capacity);
    ring.floats_ = arena->Take<float>(capacity * ring.slot_floats_);
    return ring;
  }

  size_t capacity() const { return capacity_; }
  size_t size() const { return size_; }
  // The oldest is 0.
  Mark operator[](size_t i) const {
    const size_t slot = (first_ + i) % capacity_;
    float* state = floats_ + slot * slot_floats_;
    return {tags_[slot].position, tags_[slot].hash, state, state + state_floats_};
  }

  // A place for the state behind `position`, which is at or behind the newest mark: that one, if it
  // is at this position; else a new one, for which the oldest of a full ring goes.
  Mark Add(uint64_t position, TokenHash hash) {
    if (size_ == 0 || (*this)[size_ - 1].position != position) {
      if (size_ == capacity_) {
        first_ = (first_ + 1) % capacity_;
      } else {
        ++size_;
      }
    }
    tags_[(first_ + size_ - 1) % capacity_] = {position, hash};
    return (*this)[size_ - 1];
  }

  // Drops all but the `count` oldest.
  void Keep(size_t count) { size_ = count; }

 private:
  struct Tag {
    uint64_t position;
    TokenHash hash;
  };

  size_t capacity_ = 0, state_floats_ = 0, slot_floats_ = 0;
  size_t first_ = 0, size_ = 0;
  Tag* tags_ = nullptr;
  float* floats_ = nullptr;
};

}  // namespace adder
