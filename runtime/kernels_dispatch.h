// Which kernels run: what the CPU has, which tables this build has, and the choice between them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/kernels.h"
#include "runtime/status.h"

namespace adder {

// CpuFeature bits of the CPU that runs this, as far as the operating system lets programs use them.
// Only those of the architecture itself where they cannot be found out.
uint32_t DetectCpuFeatures();

// The names of the bits, "avx2+avx512"; "none" for 0.
std::string CpuFeatureNames(uint32_t features);

// The tables of this build, best first; the last one is kScalarKernels.
std::span<const Kernels* const> CompiledKernels();

// The best of `tables` (best first, the last one complete) that `features` allow, with its empty
// slots filled from the allowed tables after it. forced_name (nullptr or "": no wish) takes that
// table and those after it instead: kInvalidArgument if no table has that name, kUnsupported if the
// features do not allow it. The name and required bits of the result are those of the table taken.
Result<Kernels> SelectKernels(std::span<const Kernels* const> tables, uint32_t features,
                              const char* forced_name);

// The same among CompiledKernels().
Result<Kernels> SelectKernels(uint32_t features, const char* forced_name);

}  // namespace adder
