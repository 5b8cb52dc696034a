#include "cli/peaks.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace adder::cli {
namespace {

// More chains than latency times ports; in assembly, as compilers keep such arrays in memory.
constexpr size_t kChains = 12, kSteps = 4096;

#define ADDER_EACH_CHAIN(op)                                                               \
  op("0") op("1") op("2") op("3") op("4") op("5") op("6") op("7") op("8") op("9") op("10") \
      op("1"                                                                               \
         "1")
#define ADDER_LOOP(op, registers)                                                             \
  for (size_t i = 0; i < kSteps; ++i) {                                                       \
    asm volatile(ADDER_EACH_CHAIN(op)                                                         \
                 :                                                                            \
                 :                                                                            \
                 : registers "0", registers "1", registers "2", registers "3", registers "4", \
                   registers "5", registers "6", registers "7", registers "8", registers "9", \
                   registers "10", registers "11");                                           \
  }

constexpr double Count(double lanes) { return static_cast<double>(kChains * kSteps) * lanes; }

#if defined(ADDER_KERNELS_X86)

#define ADDER_DOT512(i) "vpdpbusd %%zmm15, %%zmm15, %%zmm" i "\n\t"
#define ADDER_FMA512(i) "vfmadd231ps %%zmm15, %%zmm15, %%zmm" i "\n\t"
#define ADDER_DOT256(i) "%{vex%} vpdpbusd %%ymm15, %%ymm15, %%ymm" i "\n\t"
#define ADDER_FMA256(i) "vfmadd231ps %%ymm15, %%ymm15, %%ymm" i "\n\t"
// AVX2 has no such instruction: two widening products and a sum.
#define ADDER_MADD256(i)                     \
  "vpmaddubsw %%ymm15, %%ymm15, %%ymm14\n\t" \
  "vpmaddwd %%ymm13, %%ymm14, %%ymm14\n\t"   \
  "vpaddd %%ymm14, %%ymm" i ", %%ymm" i "\n\t"

void Dot512() { ADDER_LOOP(ADDER_DOT512, "xmm") }
void Fma512() { ADDER_LOOP(ADDER_FMA512, "xmm") }
void Dot256() { ADDER_LOOP(ADDER_DOT256, "xmm") }
void Fma256() { ADDER_LOOP(ADDER_FMA256, "xmm") }
void Madd256() {
  asm volatile("" : : : "xmm13", "xmm14");
  ADDER_LOOP(ADDER_MADD256, "xmm")
}

constexpr PeakLoop kLoops[] = {
    {"avx512", "vpdpbusd zmm", true, Count(64), Dot512},
    {"avx512", "vfmadd231ps zmm", false, Count(16), Fma512},
    {"avxvnni", "vpdpbusd ymm", true, Count(32), Dot256},
    {"avxvnni", "vfmadd231ps ymm", false, Count(8), Fma256},
    {"avx2", "vpmaddubsw, vpmaddwd, vpaddd ymm", true, Count(32), Madd256},
    {"avx2", "vfmadd231ps ymm", false, Count(8), Fma256},
};

#elif defined(ADDER_KERNELS_ARM)

#define ADDER_MLAL(i) "smlal v" i ".8h, v31.8b, v31.8b\n\t"
// As words, since assemblers refuse what the baseline lacks: sdot and smmla vI, v31, v31.
#define ADDER_SDOT(i) ".inst 0x4e9f97e0 + " i "\n\t"
#define ADDER_SMMLA(i) ".inst 0x4e9fa7e0 + " i "\n\t"
#define ADDER_FMLA(i) "fmla v" i ".4s, v31.4s, v31.4s\n\t"

void Mlal() { ADDER_LOOP(ADDER_MLAL, "v") }
void Sdot() { ADDER_LOOP(ADDER_SDOT, "v") }
void Smmla() { ADDER_LOOP(ADDER_SMMLA, "v") }
void Fmla() { ADDER_LOOP(ADDER_FMLA, "v") }

constexpr PeakLoop kLoops[] = {
    {"neon", "smlal", true, Count(8), Mlal},    {"neon", "fmla", false, Count(4), Fmla},
    {"dotprod", "sdot", true, Count(16), Sdot}, {"dotprod", "fmla", false, Count(4), Fmla},
    {"i8mm", "smmla", true, Count(32), Smmla},  {"i8mm", "fmla", false, Count(4), Fmla},
};

#endif

}  // namespace

std::span<const PeakLoop> PeakLoops() {
#if defined(ADDER_KERNELS_X86) || defined(ADDER_KERNELS_ARM)
  return kLoops;
#else
  return {};
#endif
}

double MeasurePeak(std::string_view isa, bool int8) {
  for (const PeakLoop& loop : PeakLoops()) {
    if (isa != loop.isa || int8 != loop.int8) continue;
    double best = 0;
    for (int repeat = 0; repeat < 100; ++repeat) {  // some 20 us each
      const auto start = std::chrono::steady_clock::now();
      loop.run();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      best = std::max(best, loop.multiply_adds / seconds.count() / 1e9);
    }
    return best;
  }
  return 0;
}

}  // namespace adder::cli
