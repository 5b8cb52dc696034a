// Throughput of the kernels, per slot and table. Decode reads its weights from a region larger than
// any cache, so bytes_per_second compares with BM_Read; prefill counts multiply-adds.
//   kernels_bench --benchmark_filter=avx2
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#if defined(ADDER_KERNELS_X86)
// gcc 12 warns of the undefined values that its own intrinsics use on purpose (PR105593).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

#include "cli/peaks.h"
#include "runtime/kernels_dispatch.h"

namespace adder {
namespace {

constexpr size_t kWeightBytes = size_t{512} << 20;
constexpr size_t kCols = 2560, kRows = 5120;  // in_proj of a 2.8b model, one half

struct Free {
  void operator()(void* p) const { std::free(p); }
};
template <typename T>
using Array = std::unique_ptr<T[], Free>;

// Aligned memory with every page touched.
template <typename T>
Array<T> Allocate(size_t count, T value) {
  const size_t bytes = RoundUp(count * sizeof(T), kAlignment);
  Array<T> array(static_cast<T*>(std::aligned_alloc(kAlignment, bytes)));
  for (size_t i = 0; i < count; ++i) array[i] = value;
  return array;
}

Array<float> Numbers(size_t count, float low, float high) {
  Array<float> array = Allocate(count, 0.0f);
  for (size_t i = 0; i < count; ++i) {
    array[i] = low + (high - low) * static_cast<float>(i * 2654435761u % 1024) / 1024.0f;
  }
  return array;
}

void CountBytes(benchmark::State& state, size_t bytes) {
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}
void CountOperations(benchmark::State& state, const char* name, size_t operations) {
  state.counters[name] = benchmark::Counter(static_cast<double>(operations),
                                            benchmark::Counter::kIsIterationInvariantRate);
}

// ---- What the machine can do: rows to read the others against.

// Reads the region in equal parts side by side, a line of each in turn.
typedef uint32_t Vector16 __attribute__((vector_size(16)));

template <size_t kStreams>
void Read(const uint64_t* memory) {
  constexpr size_t kLine = 64 / sizeof(Vector16);
  constexpr size_t kPart = kWeightBytes / kStreams / sizeof(Vector16);
  const Vector16* vectors = reinterpret_cast<const Vector16*>(memory);
  Vector16 sums[kLine] = {vectors[0], vectors[1], vectors[2], vectors[3]};
  for (size_t i = 0; i < kPart; i += kLine) {
    for (size_t s = 0; s < kStreams; ++s) {
      for (size_t j = 0; j < kLine; ++j) sums[j] += vectors[s * kPart + i + j];
    }
  }
  benchmark::DoNotOptimize(sums[0] + sums[1] + sums[2] + sums[3]);
}

void BM_Read(benchmark::State& state, void (*read)(const uint64_t*)) {
  static const Array<uint64_t> memory = Allocate<uint64_t>(kWeightBytes / 8, 1);
  for (auto _ : state) read(memory.get());
  CountBytes(state, kWeightBytes);
}
BENCHMARK_CAPTURE(BM_Read, 1_stream, Read<1>)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Read, 4_streams, Read<4>)->Unit(benchmark::kMillisecond);

void Peak(benchmark::State& state, const cli::PeakLoop& loop) {
  for (auto _ : state) loop.run();
  CountOperations(state, "MAC", static_cast<size_t>(loop.multiply_adds));
}

// A quantized matmul of [kRows, kCols]. One token: successive calls read successive matrices of
// the region, each with its scales as in a model file. More: one matrix again and again.
void Quantized(benchmark::State& state, const Kernels& kernels, DType type, size_t tokens) {
  static const Array<uint8_t> region = Allocate<uint8_t>(kWeightBytes, 0x35);
  const size_t row_blocks = RowBlocks(kRows), groups = Groups(kCols);
  const size_t weight_bytes = MatrixWeightBytes(type, kRows, kCols);
  const size_t bytes = MatrixBytes(type, kRows, kCols);
  const auto x = Numbers(tokens * kCols, -1, 1);
  const auto values = Allocate<int8_t>(tokens * kCols, 0);
  const auto a_scales = Allocate(tokens * groups, 0.0f);
  const auto sums = Allocate<int32_t>(tokens * groups, 0);
  const auto y = Allocate(tokens * kRows, 0.0f);
  for (size_t t = 0; t < tokens; ++t) {
    kernels.quantize_row(&x[t * kCols], kCols, &values[t * kCols], &a_scales[t * groups],
                         &sums[t * groups]);
  }
  const QuantizedRows rows = {values.get(), a_scales.get(), sums.get()};
  const size_t matrices = tokens == 1 ? kWeightBytes / bytes : 1;
  size_t next = 0;
  for (auto _ : state) {
    const uint8_t* w = region.get() + next * bytes;
    next = (next + 1) % matrices;
    if (type == DType::kMatQ8) {
      kernels.matmul_q8(reinterpret_cast<const int8_t*>(w),
                        reinterpret_cast<const float*>(w + weight_bytes), row_blocks, groups, &rows,
                        tokens, y.get(), kRows);
    } else {
      kernels.matmul_q4(w, reinterpret_cast<const uint16_t*>(w + weight_bytes), row_blocks, groups,
                        &rows, tokens, y.get(), kRows);
    }
    benchmark::DoNotOptimize(y[0]);
  }
  CountBytes(state, bytes);
  CountOperations(state, "MAC", kRows * kCols * tokens);
}

void Float(benchmark::State& state, const Kernels& kernels, DType type, size_t tokens) {
  constexpr size_t kFloatCols = 160, kFloatRows = 5120;  // dt_proj
  const auto w32 = Numbers(kFloatRows * kFloatCols, -1, 1);
  const auto w16 = Allocate<uint16_t>(kFloatRows * kFloatCols, 0x3000);
  const auto x = Numbers(tokens * kFloatCols, -1, 1);
  const auto y = Allocate(tokens * kFloatRows, 0.0f);
  for (auto _ : state) {
    if (type == DType::kMatF32) {
      kernels.matmul_f32(w32.get(), RowBlocks(kFloatRows), kFloatCols, x.get(), kFloatCols, tokens,
                         y.get(), kFloatRows);
    } else {
      kernels.matmul_f16(w16.get(), RowBlocks(kFloatRows), kFloatCols, x.get(), kFloatCols, tokens,
                         y.get(), kFloatRows);
    }
    benchmark::DoNotOptimize(y[0]);
  }
  CountBytes(state, MatrixWeightBytes(type, kFloatRows, kFloatCols));
  CountOperations(state, "MAC", kFloatRows * kFloatCols * tokens);
}

constexpr size_t kInner = 5120, kStates = 16;

struct ScanInputs {
  explicit ScanInputs(size_t tokens)
      : x(Numbers(tokens * kInner, -1, 1)),
        dt(Numbers(tokens * kInner, 0.001f, 0.1f)),
        z(Numbers(tokens * kInner, -1, 1)),
        b(Numbers(tokens * kStates, -1, 1)),
        c(Numbers(tokens * kStates, -1, 1)),
        a(Numbers(kInner * kStates, -16, -1)),
        d(Numbers(kInner, -1, 1)),
        state(Numbers(kInner * kStates, -1, 1)) {}
  Array<float> x, dt, z, b, c, a, d, state;
};

// Scans and gates work in place. Their input is renewed each time, or it would shrink to
// subnormals, which are slow; the copy takes about a hundredth of the time.
void Renew(const Array<float>& from, const Array<float>& to, size_t count) {
  std::memcpy(to.get(), from.get(), count * sizeof(float));
}

// Rows of n floats: the slots that work on one row.
void Rows(benchmark::State& state, const Kernels& kernels, const std::string& slot) {
  constexpr size_t kN = 5120, kTaps = 4;
  const auto x = Numbers(kN, -2, 2), y = Numbers(kN, -1, 1), weights = Numbers(kN * kTaps, -1, 1);
  const auto history = Numbers(kN * kTaps, -1, 1);
  const auto values = Allocate<int8_t>(kN, 0);
  const auto scales = Allocate(Groups(kN), 0.0f);
  const auto sums = Allocate<int32_t>(Groups(kN), 0);
  const auto fresh = Numbers(kN, -1, 1);
  for (auto _ : state) {
    Renew(fresh, y, kN);
    if (slot == "quantize_row") {
      kernels.quantize_row(x.get(), kN, values.get(), scales.get(), sums.get());
    } else if (slot == "rms_norm") {
      kernels.rms_norm(x.get(), weights.get(), kN, kN, 1e-5f, y.get());
    } else if (slot == "silu_mul") {
      kernels.silu_mul(x.get(), kN, y.get());
    } else if (slot == "relu2_mul") {
      kernels.relu2_mul(x.get(), kN, y.get());
    } else if (slot == "gelu_mul") {
      kernels.gelu_mul(x.get(), kN, y.get());
    } else if (slot == "add_scaled") {
      kernels.add_scaled(x.get(), 0.5f, kN, y.get());
    } else if (slot == "softplus") {
      kernels.softplus(weights.get(), kN, 0.0f, INFINITY, y.get());
    } else {
      kernels.conv1d_silu(weights.get(), x.get(), kN / kLanes, kTaps, 1, kN, history.get(),
                          y.get());
    }
    benchmark::ClobberMemory();
  }
  CountOperations(state, "elements", kN);
}

void Scan(benchmark::State& state, const Kernels& kernels, size_t tokens) {
  const ScanInputs in(tokens);
  const SelectiveScanArgs args = {.tokens = tokens,
                                  .channel_blocks = kInner / kLanes,
                                  .d_state = kStates,
                                  .stride = kInner,
                                  .bc_stride = kStates,
                                  .x = in.x.get(),
                                  .dt = in.dt.get(),
                                  .z = in.z.get(),
                                  .b = in.b.get(),
                                  .c = in.c.get(),
                                  .a = in.a.get(),
                                  .d = in.d.get(),
                                  .state = in.state.get()};
  const auto x = Numbers(tokens * kInner, -1, 1);
  for (auto _ : state) {
    Renew(x, in.x, tokens * kInner);
    kernels.selective_scan(&args);
    benchmark::ClobberMemory();
  }
  CountOperations(state, "tokens", tokens);
}

// What engines without a vector scan do: one expf per channel and state.
void BM_SelectiveScanExpf(benchmark::State& state) {
  const ScanInputs in(1);
  const auto x = Numbers(kInner, -1, 1);
  for (auto _ : state) {
    Renew(x, in.x, kInner);
    for (size_t i = 0; i < kInner; ++i) {
      float y = 0.0f;
      float* s = &in.state[i * kStates];
      for (size_t n = 0; n < kStates; ++n) {
        s[n] = s[n] * expf(in.dt[i] * in.a[i * kStates + n]) + in.dt[i] * in.x[i] * in.b[n];
        y += s[n] * in.c[n];
      }
      const float z = in.z[i];
      in.x[i] = (y + in.d[i] * in.x[i]) * (z / (1.0f + expf(-z)));
    }
    benchmark::ClobberMemory();
  }
  CountOperations(state, "tokens", 1);
}
BENCHMARK(BM_SelectiveScanExpf)->Unit(benchmark::kMicrosecond);

constexpr size_t kHeads = 80, kHeadDim = 64, kSsdStates = 128, kChannels = kHeads * kHeadDim;

struct SsdInputs {
  SsdInputs(size_t tokens, size_t layers)
      : x(Numbers(tokens * kChannels, -1, 1)),
        fresh(Numbers(tokens * kChannels, -1, 1)),
        dt(Numbers(tokens * kHeads, 0.001f, 0.1f)),
        b(Numbers(tokens * kSsdStates, -1, 1)),
        c(Numbers(tokens * kSsdStates, -1, 1)),
        a(Numbers(kHeads, -16, -1)),
        d(Numbers(kChannels, -1, 1)),
        state(Numbers(layers * kChannels * kSsdStates, -1, 1)),
        limits(Numbers(kChannels, 1, 2)) {}
  SsdScanArgs Args(size_t tokens) const {
    return {.tokens = tokens,
            .head_begin = 0,
            .head_end = kHeads,
            .head_blocks = kHeadDim / kLanes,
            .d_state = kSsdStates,
            .heads_per_group = kHeads,
            .stride = kChannels,
            .dt_stride = kHeads,
            .bc_stride = kSsdStates,
            .x = x.get(),
            .dt = dt.get(),
            .b = b.get(),
            .c = c.get(),
            .a = a.get(),
            .d = d.get(),
            .state = state.get(),
            .values = reinterpret_cast<int16_t*>(state.get()),
            .limits = limits.get()};
  }
  Array<float> x, fresh, dt, b, c, a, d, state, limits;
};

// Decode: successive calls read and write the states of successive layers, more than any cache
// holds. Prefill: one layer again and again.
void Ssd(benchmark::State& state, const Kernels& kernels, size_t tokens, bool bits16) {
  const size_t layers = tokens == 1 ? 64 : 1;
  const SsdInputs in(tokens, layers);
  SsdScanArgs args = in.Args(tokens);
  size_t next = 0;
  for (auto _ : state) {
    Renew(in.fresh, in.x, tokens * kChannels);
    args.state = in.state.get() + next * kChannels * kSsdStates;
    args.values = reinterpret_cast<int16_t*>(args.state);
    next = (next + 1) % layers;
    (bits16 ? kernels.ssd_scan_16 : kernels.ssd_scan)(&args);
    benchmark::ClobberMemory();
  }
  CountBytes(state, 2 * (bits16 ? sizeof(int16_t) : sizeof(float)) * kChannels * kSsdStates);
  CountOperations(state, "token_heads", tokens * kHeads);
}

// The state-space part of a Mamba-3 layer of 64 heads, with one rank or four: k and q of kRotated
// tokens at a time, as the block has it. Layers as above.
struct Mamba3Inputs {
  static constexpr size_t kRotated = 16, kHeads3 = 64, kInner3 = 64 * kHeadDim, kAngles = 32;

  Mamba3Inputs(size_t tokens, size_t rank_, size_t layers)
      : rank(rank_),
        kq(kHeads3 * rank_ * kSsdStates),
        x(Numbers(tokens * kInner3, -1, 1)),
        bc(Numbers(tokens * rank * kSsdStates, -1, 1)),
        bias(Numbers(kq, -1, 1)),
        dt(Numbers(tokens * kHeads3, 0.001f, 0.1f)),
        gates(Numbers(tokens * kHeads3, -1, 1)),
        angle(Numbers(tokens * kAngles, -1, 1)),
        mimo_x(Numbers(rank * kInner3, -1, 1)),
        d(Numbers(kInner3, -1, 1)),
        turns(Numbers(kHeads3 * kAngles, -0.5f, 0.5f)),
        k(Numbers(kRotated * kq, -1, 1)),
        q(Numbers(kRotated * kq, -1, 1)),
        k_last(Numbers(layers * kq, -1, 1)),
        x_last(Numbers(kInner3, -1, 1)),
        state(Numbers(layers * kInner3 * kSsdStates, -1, 1)),
        y(Numbers(tokens * rank * kInner3, -1, 1)) {}

  Mamba3RotateArgs RotateArgs(size_t first, size_t count) const {
    return {.tokens = count,
            .head_begin = 0,
            .head_end = kHeads3,
            .d_state = kSsdStates,
            .rank = rank,
            .groups = 1,
            .n_angles = kAngles,
            .heads_per_group = kHeads3,
            .bc_stride = rank * kSsdStates,
            .dt_stride = kHeads3,
            .angle_stride = kAngles,
            .kq_stride = kq,
            .b = bc.get() + first * rank * kSsdStates,
            .c = bc.get() + first * rank * kSsdStates,
            .b_bias = bias.get(),
            .c_bias = bias.get(),
            .dt = dt.get() + first * kHeads3,
            .angle = angle.get() + first * kAngles,
            .turns = turns.get(),
            .k = k.get(),
            .q = q.get()};
  }
  Mamba3ScanArgs ScanArgs(size_t layer, size_t first, size_t count) const {
    return {.tokens = count,
            .head_begin = 0,
            .head_end = kHeads3,
            .head_blocks = kHeadDim / kLanes,
            .d_state = kSsdStates,
            .rank = rank,
            .stride = kInner3,
            .heads_stride = kHeads3,
            .kq_stride = kq,
            .a_floor = 1e-4f,
            .x = x.get() + first * kInner3,
            .dt = dt.get() + first * kHeads3,
            .a = gates.get() + first * kHeads3,
            .trap = gates.get() + first * kHeads3,
            .k = k.get(),
            .q = q.get(),
            .mimo_x = rank > 1 ? mimo_x.get() : nullptr,
            .d = d.get(),
            .state = state.get() + layer * kInner3 * kSsdStates,
            .k_last = k_last.get() + layer * kq,
            .x_last = x_last.get(),
            .y = y.get() + first * rank * kInner3};
  }
  size_t rank, kq;
  Array<float> x, bc, bias, dt, gates, angle, mimo_x, d, turns, k, q, k_last, x_last, state, y;
};

void Mamba3(benchmark::State& state, const Kernels& kernels, size_t tokens, size_t rank,
            bool scan) {
  const size_t layers = tokens == 1 ? 64 : 1;
  const Mamba3Inputs in(tokens, rank, layers);
  size_t layer = 0;
  for (auto _ : state) {
    for (size_t first = 0; first < tokens; first += Mamba3Inputs::kRotated) {
      const size_t count = tokens == 1 ? 1 : Mamba3Inputs::kRotated;
      if (scan) {
        const Mamba3ScanArgs args = in.ScanArgs(layer, first, count);
        kernels.mamba3_scan(&args);
      } else {
        const Mamba3RotateArgs args = in.RotateArgs(first, count);
        kernels.mamba3_rotate(&args);
      }
    }
    layer = (layer + 1) % layers;
    benchmark::ClobberMemory();
  }
  if (scan) CountBytes(state, 2 * sizeof(float) * Mamba3Inputs::kInner3 * kSsdStates);
  CountOperations(state, "token_heads", tokens * Mamba3Inputs::kHeads3);
}

#if defined(ADDER_KERNELS_X86)
// What other engines do in a prompt: each token goes over the whole state of each head, states in
// the lanes, one sum across lanes per channel. Here with 16 lanes.
[[gnu::target("avx512f,fma")]] void StreamedToken(const SsdInputs& in, size_t t) {
  for (size_t channel = 0; channel < kChannels; ++channel) {
    const size_t head = channel / kHeadDim;
    const float dt = in.dt[t * kHeads + head];
    const __m512 decay = _mm512_set1_ps(exp2f(dt * in.a[head]));
    float* x = &in.x[t * kChannels + channel];
    const __m512 u = _mm512_set1_ps(dt * *x);
    __m512 y = _mm512_setzero_ps();
    for (size_t n = 0; n < kSsdStates; n += 16) {
      float* s = &in.state[channel * kSsdStates + n];
      const __m512 input = _mm512_mul_ps(u, _mm512_load_ps(&in.b[t * kSsdStates + n]));
      const __m512 next = _mm512_fmadd_ps(decay, _mm512_load_ps(s), input);
      _mm512_store_ps(s, next);
      y = _mm512_fmadd_ps(next, _mm512_load_ps(&in.c[t * kSsdStates + n]), y);
    }
    *x = _mm512_reduce_add_ps(y) + in.d[channel] * *x;
  }
}

void SsdStreamed(benchmark::State& state) {
  constexpr size_t kTokens = 64;
  const SsdInputs in(kTokens, 1);
  for (auto _ : state) {
    Renew(in.fresh, in.x, kTokens * kChannels);
    for (size_t t = 0; t < kTokens; ++t) StreamedToken(in, t);
    benchmark::ClobberMemory();
  }
  CountOperations(state, "token_heads", kTokens * kHeads);
}
#endif

const bool kRegistered = [] {
  const uint32_t features = DetectCpuFeatures();
  for (const cli::PeakLoop& loop : cli::PeakLoops()) {
    if (!SelectKernels(features, loop.isa).ok()) continue;
    const std::string name = std::string("peak/") + loop.isa + "/" + loop.instruction;
    benchmark::RegisterBenchmark(name.c_str(), [loop](benchmark::State& s) {
      Peak(s, loop);
    })->Unit(benchmark::kMicrosecond);
  }
#if defined(ADDER_KERNELS_X86)
  if ((features & kCpuAvx512) != 0) {
    benchmark::RegisterBenchmark("streamed/ssd_scan_zmm", SsdStreamed)
        ->Unit(benchmark::kMicrosecond);
  }
#endif
  for (const Kernels* table : CompiledKernels()) {
    if ((table->required & ~features) != 0) continue;
    const Kernels kernels = SelectKernels(features, table->name).value();
    const auto add = [&](const std::string& name, auto run) {
      benchmark::RegisterBenchmark((std::string(table->name) + "/" + name).c_str(), run)
          ->Unit(benchmark::kMicrosecond);
    };
    for (const size_t tokens : {size_t{1}, size_t{64}}) {
      const std::string suffix = tokens == 1 ? "/decode" : "/prefill64";
      for (const DType type : {DType::kMatQ8, DType::kMatQ4}) {
        add(DTypeName(type) + suffix,
            [=](benchmark::State& s) { Quantized(s, kernels, type, tokens); });
      }
      for (const DType type : {DType::kMatF16, DType::kMatF32}) {
        add(DTypeName(type) + suffix,
            [=](benchmark::State& s) { Float(s, kernels, type, tokens); });
      }
      add("selective_scan" + suffix, [=](benchmark::State& s) { Scan(s, kernels, tokens); });
      add("ssd_scan" + suffix, [=](benchmark::State& s) { Ssd(s, kernels, tokens, false); });
      add("ssd_scan_16" + suffix, [=](benchmark::State& s) { Ssd(s, kernels, tokens, true); });
      for (const size_t rank : {size_t{1}, size_t{4}}) {
        const std::string name = "/rank" + std::to_string(rank) + suffix;
        add("mamba3_rotate" + name,
            [=](benchmark::State& s) { Mamba3(s, kernels, tokens, rank, false); });
        add("mamba3_scan" + name,
            [=](benchmark::State& s) { Mamba3(s, kernels, tokens, rank, true); });
      }
    }
    for (const char* slot : {"quantize_row", "rms_norm", "silu_mul", "relu2_mul", "gelu_mul",
                             "add_scaled", "softplus", "conv1d_silu"}) {
      add(slot, [=](benchmark::State& s) { Rows(s, kernels, slot); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace adder
