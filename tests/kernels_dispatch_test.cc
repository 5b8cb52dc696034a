#include "runtime/kernels_dispatch.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace adder {
namespace {

// The slots of a table as bytes, in the order of their declaration, and their number.
constexpr size_t kFirstSlot = offsetof(Kernels, quantize_row);
constexpr size_t kSlots = (sizeof(Kernels) - kFirstSlot) / sizeof(void*);

std::vector<const void*> Slots(const Kernels& kernels) {
  std::vector<const void*> slots(kSlots);
  std::memcpy(slots.data(), reinterpret_cast<const char*>(&kernels) + kFirstSlot,
              kSlots * sizeof(void*));
  return slots;
}

void AddNothing(const float*, size_t, float*) {}
void AddTwice(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] += 2 * x[i];
}
void SiluOfNothing(const float*, size_t, float*) {}

// Three tables that fill two slots between them, above the complete one.
constexpr Kernels kBest = {.name = "best", .required = kCpuAvx512, .add = AddTwice};
constexpr Kernels kGood = {
    .name = "good", .required = kCpuAvx2, .silu_mul = SiluOfNothing, .add = AddNothing};
constexpr Kernels kOther = {.name = "other", .required = kCpuAvx2 | kCpuAvxVnni};
constexpr const Kernels* kTables[] = {&kBest, &kOther, &kGood, &kScalarKernels};

TEST(KernelsDispatch, ScalarIsCompleteAndLast) {
  ASSERT_FALSE(CompiledKernels().empty());
  EXPECT_EQ(CompiledKernels().back(), &kScalarKernels);
  EXPECT_EQ(kScalarKernels.required, 0u);
  for (const void* slot : Slots(kScalarKernels)) EXPECT_NE(slot, nullptr);
}

TEST(KernelsDispatch, EverySlotIsFilledForEverySubsetOfFeatures) {
  for (uint32_t features = 0; features < 1u << 11; ++features) {
    for (const auto tables : {CompiledKernels(), std::span<const Kernels* const>(kTables)}) {
      const Result<Kernels> selected = SelectKernels(tables, features, nullptr);
      ASSERT_TRUE(selected.ok());
      ASSERT_EQ(selected->required & ~features, 0u);
      const std::vector<const void*> slots = Slots(*selected);
      for (size_t i = 0; i < kSlots; ++i) {
        // The expected function: that of the first allowed table which has one.
        const void* expected = nullptr;
        for (const Kernels* table : tables) {
          if ((table->required & ~features) != 0) continue;
          if (expected == nullptr) expected = Slots(*table)[i];
        }
        ASSERT_NE(expected, nullptr);
        ASSERT_EQ(slots[i], expected) << "features " << features << ", slot " << i;
      }
    }
  }
}

TEST(KernelsDispatch, TheBestAllowedTableGivesTheName) {
  const auto name = [](uint32_t features) {
    return std::string(SelectKernels(kTables, features, "")->name);
  };
  EXPECT_EQ(name(0), "scalar");
  EXPECT_EQ(name(kCpuAvxVnni), "scalar");
  EXPECT_EQ(name(kCpuAvx2), "good");
  EXPECT_EQ(name(kCpuAvx2 | kCpuAvxVnni), "other");
  EXPECT_EQ(name(kCpuAvx2 | kCpuAvxVnni | kCpuAvx512), "best");
}

TEST(KernelsDispatch, AForcedTableInheritsOnlyFromThoseBelow) {
  const uint32_t all = kCpuAvx2 | kCpuAvxVnni | kCpuAvx512;
  const Result<Kernels> other = SelectKernels(kTables, all, "other");
  ASSERT_TRUE(other.ok());
  EXPECT_STREQ(other->name, "other");
  EXPECT_EQ(other->add, AddNothing) << "best's would be AddTwice";
  EXPECT_EQ(other->silu_mul, SiluOfNothing);
  EXPECT_EQ(other->rms_norm, kScalarKernels.rms_norm);

  const Result<Kernels> scalar = SelectKernels(kTables, all, "scalar");
  ASSERT_TRUE(scalar.ok());
  EXPECT_EQ(Slots(*scalar), Slots(kScalarKernels));
}

TEST(KernelsDispatch, EveryCompiledTableCanBeForcedAndIsWhatRuns) {
  for (const Kernels* table : CompiledKernels()) {
    const Result<Kernels> selected = SelectKernels(table->required, table->name);
    ASSERT_TRUE(selected.ok()) << selected.status().message();
    EXPECT_STREQ(selected->name, table->name);
    const std::vector<const void*> own = Slots(*table), got = Slots(*selected);
    for (size_t i = 0; i < kSlots; ++i) EXPECT_EQ(got[i], own[i] != nullptr ? own[i] : got[i]);
  }
}

TEST(KernelsDispatch, UnknownNamesAreAnErrorThatListsTheKnownOnes) {
  for (const char* name : {"avx3", "Scalar", "scalar ", "best,good", "%s"}) {
    const Result<Kernels> selected = SelectKernels(kTables, kCpuAvx2, name);
    ASSERT_FALSE(selected.ok()) << name;
    EXPECT_EQ(selected.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(
        selected.status().message(),
        "kernels \"" + std::string(name) + "\": unknown, this build has best, other, good, scalar");
  }
}

TEST(KernelsDispatch, UnsupportedNamesAreAnErrorThatSaysWhatIsMissing) {
  const Result<Kernels> selected = SelectKernels(kTables, kCpuAvx2, "other");
  ASSERT_FALSE(selected.ok());
  EXPECT_EQ(selected.status().code(), Code::kUnsupported);
  EXPECT_EQ(selected.status().message(), "kernels \"other\": this CPU lacks avxvnni, it has avx2");
  EXPECT_EQ(SelectKernels(kTables, 0, "other").status().message(),
            "kernels \"other\": this CPU lacks avx2+avxvnni, it has none");
}

#if defined(ADDER_KERNELS_X86)
TEST(KernelsDispatch, X86TablesAreBestFirst) {
  std::vector<std::string> names;
  for (const Kernels* table : CompiledKernels()) names.push_back(table->name);
  EXPECT_EQ(names, (std::vector<std::string>{"avx512", "avxvnni", "avx2", "scalar"}));

  // AVX-512 without VNNI (Skylake) or without AVX2 (no such CPU) does not do.
  const auto name = [](uint32_t features) {
    return std::string(SelectKernels(features, nullptr)->name);
  };
  EXPECT_EQ(name(kCpuAvx2 | kCpuAvx512), "avx2");
  EXPECT_EQ(name(kCpuAvx512 | kCpuAvx512Vnni), "scalar");
  EXPECT_EQ(name(kCpuAvx2 | kCpuAvxVnni | kCpuAvx512), "avxvnni");
  EXPECT_EQ(name(kCpuAvx2 | kCpuAvx512 | kCpuAvx512Vnni), "avx512");

  const Result<Kernels> vnni = SelectKernels(kCpuAvx2 | kCpuAvxVnni, nullptr);
  EXPECT_EQ(vnni->matmul_q4, kAvxVnniKernels.matmul_q4);
  EXPECT_EQ(vnni->selective_scan, kAvx2Kernels.selective_scan);
}
#endif

TEST(KernelsDispatch, DetectedFeaturesAreThoseOfTheCompiler) {
  const uint32_t features = DetectCpuFeatures();
  EXPECT_EQ(features, DetectCpuFeatures());
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  EXPECT_EQ((features & kCpuAvx2) != 0, avx2);
  EXPECT_EQ((features & kCpuAvx512Vnni) != 0, __builtin_cpu_supports("avx512vnni") != 0);
#elif defined(__aarch64__)
  EXPECT_NE(features & kCpuNeon, 0u);
#if defined(__linux__)
  const bool dotprod = (getauxval(AT_HWCAP) & 1ul << 20) != 0;
  const bool i8mm = (getauxval(AT_HWCAP2) & 1ul << 13) != 0;
  if (dotprod) {
    EXPECT_NE(features & kCpuDotProd, 0u);
  }
  EXPECT_EQ((features & kCpuI8mm) != 0, i8mm);
#endif
  // What test.sh emulates.
  const char* emulated = std::getenv("QEMU_CPU");
  const std::string cpu = emulated == nullptr ? "" : emulated;
  if (cpu == "cortex-a72") {
    EXPECT_EQ(CpuFeatureNames(features), "neon");
  }
  if (cpu == "cortex-a76") {
    EXPECT_EQ(CpuFeatureNames(features), "neon+dotprod");
  }
  if (cpu == "max") {
    EXPECT_EQ(CpuFeatureNames(features), "neon+dotprod+i8mm");
  }
#endif
  RecordProperty("features", CpuFeatureNames(features));
}

}  // namespace
}  // namespace adder
