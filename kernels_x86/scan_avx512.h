// The recurrences of avx512.cc: selective_scan and ssd_scan.
// Static inline: only files compiled with -mavx512f -mavx512dq may include it.
#pragma once

#include "kernels_x86/math_avx512.h"
#include "runtime/kernels.h"

namespace adder {
namespace {

// ---- selective_scan
//
// One channel block, tokens inner. With 16 states, the width of every published Mamba-1, the state
// stays in 16 registers; other widths keep it in the first cache.

constexpr size_t kScanStates = 16;

// What one token needs besides states.
struct ScanStep {
  __m512 x, dt, u, y;
  const float* b;
  const float* c;
};

inline ScanStep BeginStep(const SelectiveScanArgs* args, size_t t, size_t channel) {
  ScanStep step;
  const size_t row = t * args->stride + channel;
  step.x = Load(args->x + row);
  step.dt = Load(args->dt + row);
  step.u = _mm512_mul_ps(step.dt, step.x);
  step.y = _mm512_setzero_ps();
  step.b = args->b + t * args->bc_stride;
  step.c = args->c + t * args->bc_stride;
  return step;
}

inline void AdvanceState(ScanStep* step, size_t n, const float* a, __m512* s) {
  const __m512 decay = Exp2(_mm512_mul_ps(step->dt, Load(a + n * kLanes)));
  *s = _mm512_fmadd_ps(decay, *s, _mm512_mul_ps(step->u, _mm512_set1_ps(step->b[n])));
  step->y = _mm512_fmadd_ps(*s, _mm512_set1_ps(step->c[n]), step->y);
}

inline void EndStep(const SelectiveScanArgs* args, size_t t, size_t channel, const ScanStep& step) {
  const size_t row = t * args->stride + channel;
  const __m512 y = _mm512_fmadd_ps(Load(args->d + channel), step.x, step.y);
  _mm512_storeu_ps(args->x + row, _mm512_mul_ps(y, Silu(Load(args->z + row))));
}

inline void SelectiveScan(const SelectiveScanArgs* args) {
  const size_t d_state = args->d_state;
  for (size_t block = 0; block < args->channel_blocks; ++block) {
    const size_t channel = block * kLanes;
    const float* a = args->a + channel * d_state;
    float* state = args->state + channel * d_state;
    if (d_state == kScanStates) {
      __m512 s[kScanStates];
      for (size_t n = 0; n < kScanStates; ++n) s[n] = Load(state + n * kLanes);
      for (size_t t = 0; t < args->tokens; ++t) {
        ScanStep step = BeginStep(args, t, channel);
#pragma GCC unroll 16  // or compilers keep s in memory
        for (size_t n = 0; n < kScanStates; ++n) AdvanceState(&step, n, a, &s[n]);
        EndStep(args, t, channel, step);
      }
      for (size_t n = 0; n < kScanStates; ++n) _mm512_storeu_ps(state + n * kLanes, s[n]);
      continue;
    }
    for (size_t t = 0; t < args->tokens; ++t) {
      ScanStep step = BeginStep(args, t, channel);
      for (size_t n = 0; n < d_state; ++n) {
        __m512 s = Load(state + n * kLanes);
        AdvanceState(&step, n, a, &s);
        _mm512_storeu_ps(state + n * kLanes, s);
      }
      EndStep(args, t, channel, step);
    }
  }
}

// ---- ssd_scan
//
// A head takes up to kSsdTokens tokens at a time. For each pair of its channel blocks the loop over
// states is outside and the one over tokens inside, so that a tile of 2 x kSsdStates states lives
// in registers while the sums y of all the tokens pass by; each y still adds its states in order.

constexpr size_t kSsdTokens = 32;
constexpr size_t kSsdStates = 8;
constexpr size_t kSsdBlocks = 2;

struct SsdChunk {
  size_t tokens;
  const float* b;  // of the head's group, row 0 of the chunk
  const float* c;
  size_t bc_stride;
  float decay[kSsdTokens];
  alignas(64) float u[kSsdTokens][kSsdBlocks][kLanes];
  alignas(64) float y[kSsdTokens][kSsdBlocks][kLanes];
};

// kStates states from `first` on of kBlocks channel blocks, whose states are d_state rows apart.
template <size_t kBlocks, size_t kStates>
void SsdTile(SsdChunk* chunk, size_t first, size_t d_state, float* state) {
  state += first * kLanes;
  __m512 s[kStates][kBlocks];
  for (size_t n = 0; n < kStates; ++n) {
    for (size_t i = 0; i < kBlocks; ++i) s[n][i] = Load(state + (i * d_state + n) * kLanes);
  }
  const float* b = chunk->b + first;
  const float* c = chunk->c + first;
  for (size_t t = 0; t < chunk->tokens; ++t, b += chunk->bc_stride, c += chunk->bc_stride) {
    const __m512 decay = _mm512_set1_ps(chunk->decay[t]);
    __m512 u[kBlocks], y[kBlocks];
    for (size_t i = 0; i < kBlocks; ++i) u[i] = Load(chunk->u[t][i]);
    for (size_t i = 0; i < kBlocks; ++i) y[i] = Load(chunk->y[t][i]);
    for (size_t n = 0; n < kStates; ++n) {
      const __m512 bn = _mm512_set1_ps(b[n]);
      const __m512 cn = _mm512_set1_ps(c[n]);
      for (size_t i = 0; i < kBlocks; ++i) {
        s[n][i] = _mm512_fmadd_ps(decay, s[n][i], _mm512_mul_ps(u[i], bn));
        y[i] = _mm512_fmadd_ps(s[n][i], cn, y[i]);
      }
    }
    for (size_t i = 0; i < kBlocks; ++i) _mm512_store_ps(chunk->y[t][i], y[i]);
  }
  for (size_t n = 0; n < kStates; ++n) {
    for (size_t i = 0; i < kBlocks; ++i) {
      _mm512_storeu_ps(state + (i * d_state + n) * kLanes, s[n][i]);
    }
  }
}

// Several tokens of kBlocks channel blocks. dt, x: first row of the chunk.
template <size_t kBlocks>
void SsdTokens(SsdChunk* chunk, const float* dt, size_t dt_stride, const float* d, size_t d_state,
               size_t stride, float* state, float* x) {
  for (size_t t = 0; t < chunk->tokens; ++t) {
    const __m512 step = _mm512_set1_ps(dt[t * dt_stride]);
    for (size_t i = 0; i < kBlocks; ++i) {
      _mm512_store_ps(chunk->u[t][i], _mm512_mul_ps(step, Load(x + t * stride + i * kLanes)));
      _mm512_store_ps(chunk->y[t][i], _mm512_setzero_ps());
    }
  }
  size_t n = 0;
  for (; d_state - n >= kSsdStates; n += kSsdStates) {
    SsdTile<kBlocks, kSsdStates>(chunk, n, d_state, state);
  }
  for (; n < d_state; ++n) SsdTile<kBlocks, 1>(chunk, n, d_state, state);
  for (size_t t = 0; t < chunk->tokens; ++t) {
    for (size_t i = 0; i < kBlocks; ++i) {
      float* out = x + t * stride + i * kLanes;
      _mm512_storeu_ps(out, _mm512_fmadd_ps(Load(d + i * kLanes), Load(out), Load(chunk->y[t][i])));
    }
  }
}

// One token of one channel block: the state streams through once. One block at a time, as memory
// serves one stream of reads and writes better than two.
inline void SsdStep(float dt, float decay, const float* b, const float* c, const float* d,
                    size_t d_state, float* state, float* x) {
  const __m512 u = _mm512_mul_ps(_mm512_set1_ps(dt), Load(x));
  __m512 y = _mm512_setzero_ps();
  for (size_t n = 0; n < d_state; ++n, state += kLanes) {
    const __m512 input = _mm512_mul_ps(u, _mm512_set1_ps(b[n]));
    const __m512 s = _mm512_fmadd_ps(_mm512_set1_ps(decay), Load(state), input);
    _mm512_storeu_ps(state, s);
    y = _mm512_fmadd_ps(s, _mm512_set1_ps(c[n]), y);
  }
  _mm512_storeu_ps(x, _mm512_fmadd_ps(Load(d), Load(x), y));
}

inline void SsdScan(const SsdScanArgs* args) {
  const size_t d_state = args->d_state;
  SsdChunk chunk;
  chunk.bc_stride = args->bc_stride;
  for (size_t head = args->head_begin; head < args->head_end; ++head) {
    const size_t group = head / args->heads_per_group;
    const __m512 a = _mm512_set1_ps(args->a[head]);
    for (size_t first = 0; first < args->tokens; first += chunk.tokens) {
      const size_t left = args->tokens - first;
      chunk.tokens = left < kSsdTokens ? left : kSsdTokens;
      chunk.b = args->b + first * args->bc_stride + group * d_state;
      chunk.c = args->c + first * args->bc_stride + group * d_state;
      const float* dt = args->dt + first * args->dt_stride + head;
      for (size_t t = 0; t < chunk.tokens; ++t) {
        const __m512 step = _mm512_mul_ps(_mm512_set1_ps(dt[t * args->dt_stride]), a);
        chunk.decay[t] = _mm512_cvtss_f32(Exp2(step));
      }
      for (size_t i = 0; i < args->head_blocks;) {
        const size_t channel = (head * args->head_blocks + i) * kLanes;
        float* x = args->x + first * args->stride + channel;
        float* state = args->state + channel * d_state;
        const float* d = args->d + channel;
        if (chunk.tokens == 1) {
          SsdStep(*dt, chunk.decay[0], chunk.b, chunk.c, d, d_state, state, x);
          i += 1;
        } else if (args->head_blocks - i >= kSsdBlocks) {
          SsdTokens<kSsdBlocks>(&chunk, dt, args->dt_stride, d, d_state, args->stride, state, x);
          i += kSsdBlocks;
        } else {
          SsdTokens<1>(&chunk, dt, args->dt_stride, d, d_state, args->stride, state, x);
          i += 1;
        }
      }
    }
  }
}

}  // namespace
}  // namespace adder
