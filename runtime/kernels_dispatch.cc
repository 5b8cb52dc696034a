#include "runtime/kernels_dispatch.h"

#include <cpuinfo.h>

#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace adder {
namespace {

constexpr const Kernels* kTables[] = {
#if defined(ADDER_KERNELS_X86)
    &kAvx512Kernels,
    &kAvxVnniKernels,
    &kAvx2Kernels,
#elif defined(ADDER_KERNELS_ARM)
    &kI8mmKernels,
    &kDotprodKernels,
    &kNeonKernels,
#endif
    &kScalarKernels,
};

struct FeatureName {
  uint32_t bit;
  const char* name;
};
constexpr FeatureName kFeatureNames[] = {
    {kCpuAvx2, "avx2"},     {kCpuAvxVnni, "avxvnni"},
    {kCpuAvx512, "avx512"}, {kCpuAvx512Vnni, "avx512vnni"},
    {kCpuNeon, "neon"},     {kCpuDotProd, "dotprod"},
    {kCpuI8mm, "i8mm"},
};

#if defined(__x86_64__)
// cpuinfo has no predicate for it before 2023. The registers are those of AVX2.
bool CpuHasAvxVnni() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & 1u << 4) != 0;
}
#elif defined(__aarch64__)
// cpuinfo has no predicate for it before 2023.
bool CpuHasI8mm() {
#if defined(__linux__)
  constexpr unsigned long kHwcap2I8mm = 1ul << 13;
  return (getauxval(AT_HWCAP2) & kHwcap2I8mm) != 0;
#else
  return false;
#endif
}
#endif

template <typename... Slot>
void FillEmpty(Kernels* kernels, const Kernels& from, Slot... slots) {
  ((kernels->*slots = kernels->*slots == nullptr ? from.*slots : kernels->*slots), ...);
}

void Inherit(Kernels* kernels, const Kernels& from) {
  static_assert(sizeof(Kernels) == 22 * sizeof(void*), "name every slot below");
  FillEmpty(kernels, from, &Kernels::quantize_row, &Kernels::matmul_q8, &Kernels::matmul_q4,
            &Kernels::matmul_f16, &Kernels::matmul_f32, &Kernels::rms_norm, &Kernels::softmax,
            &Kernels::silu_mul, &Kernels::relu2_mul, &Kernels::gelu_mul, &Kernels::add,
            &Kernels::add_scaled, &Kernels::softplus, &Kernels::conv1d_silu,
            &Kernels::selective_scan, &Kernels::ssd_scan, &Kernels::ssd_scan_16,
            &Kernels::mamba3_rotate, &Kernels::mamba3_scan, &Kernels::mimo_gate);
}

bool Allows(uint32_t features, const Kernels& table) {
  return (features & table.required) == table.required;
}

}  // namespace

uint32_t DetectCpuFeatures() {
  uint32_t features = 0;
#if defined(__aarch64__)
  features |= kCpuNeon;  // part of the architecture
#endif
  if (!cpuinfo_initialize()) return features;
#if defined(__x86_64__)
  if (cpuinfo_has_x86_avx2() && cpuinfo_has_x86_fma3() && cpuinfo_has_x86_f16c()) {
    features |= kCpuAvx2;
    if (CpuHasAvxVnni()) features |= kCpuAvxVnni;
  }
  if (cpuinfo_has_x86_avx512f() && cpuinfo_has_x86_avx512bw() && cpuinfo_has_x86_avx512dq() &&
      cpuinfo_has_x86_avx512vl()) {
    features |= kCpuAvx512;
    if (cpuinfo_has_x86_avx512vnni()) features |= kCpuAvx512Vnni;
  }
#elif defined(__aarch64__)
  if (cpuinfo_has_arm_neon_dot()) features |= kCpuDotProd;
  if (CpuHasI8mm()) features |= kCpuI8mm;
#endif
  return features;
}

std::string CpuFeatureNames(uint32_t features) {
  std::string names;
  for (const FeatureName& feature : kFeatureNames) {
    if ((features & feature.bit) == 0) continue;
    if (!names.empty()) names += '+';
    names += feature.name;
  }
  return names.empty() ? "none" : names;
}

std::span<const Kernels* const> CompiledKernels() { return kTables; }

Result<Kernels> SelectKernels(std::span<const Kernels* const> tables, uint32_t features,
                              const char* forced_name) {
  const std::string_view forced = forced_name == nullptr ? "" : forced_name;
  if (!forced.empty()) {
    std::string names;
    while (!tables.empty() && tables.front()->name != forced) {
      names += names.empty() ? "" : ", ";
      names += tables.front()->name;
      tables = tables.subspan(1);
    }
    if (tables.empty()) {
      return Error(Code::kInvalidArgument, "kernels \"%s\": unknown, this build has %s",
                   forced_name, names.c_str());
    }
    const Kernels& table = *tables.front();
    if (!Allows(features, table)) {
      return Error(Code::kUnsupported, "kernels \"%s\": this CPU lacks %s, it has %s", forced_name,
                   CpuFeatureNames(table.required & ~features).c_str(),
                   CpuFeatureNames(features).c_str());
    }
  }
  Kernels selected;
  for (const Kernels* table : tables) {
    if (!Allows(features, *table)) continue;
    if (selected.name == nullptr) {
      selected = *table;
    } else {
      Inherit(&selected, *table);
    }
  }
  return selected;
}

Result<Kernels> SelectKernels(uint32_t features, const char* forced_name) {
  return SelectKernels(CompiledKernels(), features, forced_name);
}

}  // namespace adder
