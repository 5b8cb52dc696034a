// Every compiled table that this CPU can run against kScalarKernels, bit for bit. The inputs are
// those of kernel_cases.h: all kinds of floats, guard pages before and behind every buffer,
// read-only inputs, strides larger than the rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "runtime/kernels_dispatch.h"
#include "tests/kernel_cases.h"
#include "tests/kernel_cases_mamba3.h"

namespace adder {
namespace {

class KernelsParity : public testing::TestWithParam<const Kernels*> {
 protected:
  void SetUp() override {
    const uint32_t missing = GetParam()->required & ~DetectCpuFeatures();
    if (missing != 0) GTEST_SKIP() << "this CPU lacks " << CpuFeatureNames(missing);
    const Result<Kernels> selected = SelectKernels(DetectCpuFeatures(), GetParam()->name);
    ASSERT_TRUE(selected.ok()) << selected.status().message();
    kernels_ = selected.value();
  }

  // run(kernels, inputs) of the table and of scalar must agree.
  template <typename Run>
  void Compare(const Inputs& inputs, const Run& run) {
    const Outputs expected = run(kScalarKernels, inputs);
    const Outputs actual = run(kernels_, inputs);
    ASSERT_EQ(actual.ints, expected.ints);
    ASSERT_EQ(actual.floats.size(), expected.floats.size());
    const auto [a, e] =
        std::mismatch(actual.floats.begin(), actual.floats.end(), expected.floats.begin());
    ASSERT_TRUE(a == actual.floats.end())
        << "element " << a - actual.floats.begin() << " of " << expected.floats.size() << ": "
        << std::bit_cast<float>(*a) << ", expected " << std::bit_cast<float>(*e) << ", fill "
        << static_cast<int>(inputs.fill) << ", seed " << inputs.seed;
  }

  // The same for every fill and both guards.
  template <typename Run>
  void CompareFills(const Run& run) {
    for (const Fill fill : kAllFills) {
      for (const Guard guard : {Guard::kBefore, Guard::kAfter}) {
        ASSERT_NO_FATAL_FAILURE(Compare({fill, ++seed_, guard}, run));
      }
    }
  }

  // All small shapes on one fill, then a few on all fills.
  template <typename Run>
  void CompareMatmul(size_t col_step, const Run& run) {
    for (size_t row_blocks = 1; row_blocks <= 5; ++row_blocks) {
      for (size_t groups = 1; groups <= 5; ++groups) {
        for (size_t tokens = 1; tokens <= 9; ++tokens) {
          const MatmulShape shape = {row_blocks, groups * col_step, tokens, tokens % 3 * kLanes};
          SCOPED_TRACE(Name(shape));
          const Guard guard = seed_ % 2 == 0 ? Guard::kBefore : Guard::kAfter;
          ASSERT_NO_FATAL_FAILURE(Compare(
              {Fill::kNormal, ++seed_, guard},
              [&](const Kernels& k, const Inputs& inputs) { return run(k, inputs, shape); }));
        }
      }
    }
    for (const MatmulShape shape :
         {MatmulShape{1, 2 * col_step, 1}, MatmulShape{5, 3 * col_step, 1},
          MatmulShape{2, col_step, 7}, MatmulShape{2, 35 * col_step, 14},
          MatmulShape{3, 40 * col_step, 5}}) {
      SCOPED_TRACE(Name(shape));
      CompareFills([&](const Kernels& k, const Inputs& inputs) { return run(k, inputs, shape); });
    }
  }

  static std::string Name(const MatmulShape& shape) {
    return std::to_string(shape.row_blocks) + " row blocks, " + std::to_string(shape.cols) +
           " columns, " + std::to_string(shape.tokens) + " tokens";
  }

  Kernels kernels_;
  uint64_t seed_ = 0;
};

TEST_P(KernelsParity, QuantizeRow) {
  for (size_t n = 1; n <= 130; n += n < 40 ? 1 : 11) {
    SCOPED_TRACE(n);
    CompareFills([&](const Kernels& k, const Inputs& s) { return RunQuantizeRow(k, s, n); });
  }
}

TEST_P(KernelsParity, MatmulQ8) { CompareMatmul(kGroup, RunMatmulQ8); }
TEST_P(KernelsParity, MatmulQ4) { CompareMatmul(kGroup, RunMatmulQ4); }
TEST_P(KernelsParity, MatmulF16) { CompareMatmul(7, RunMatmulF16); }
TEST_P(KernelsParity, MatmulF32) { CompareMatmul(7, RunMatmulF32); }

TEST_P(KernelsParity, RmsNorm) {
  for (const size_t n : Sizes{1, 2, 7, 8, 9, 15, 16, 17, 25, 31, 32, 33, 1000}) {
    for (const bool weighted : {false, true}) {
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(n);
        CompareFills([&](const Kernels& k, const Inputs& s) {
          return RunRmsNorm(k, s, n, weighted, in_place);
        });
      }
    }
  }
}

TEST_P(KernelsParity, Softmax) {
  for (const size_t n : Sizes{16, 32, 48, 256, 1040}) {
    for (const float before : {-std::numeric_limits<float>::infinity(), -0.0f, 1.5f, 1e30f}) {
      SCOPED_TRACE(testing::Message() << n << " scores after " << before);
      CompareFills([&](const Kernels& k, const Inputs& s) { return RunSoftmax(k, s, n, before); });
    }
  }
}

TEST_P(KernelsParity, Elementwise) {
  for (const size_t n : Sizes{16, 32, 48, 4096}) {
    SCOPED_TRACE(n);
    CompareFills([&](const Kernels& k, const Inputs& s) { return RunElementwise(k, s, n); });
  }
}

TEST_P(KernelsParity, Gates) {
  for (const size_t n : Sizes{16, 32, 48, 4096}) {
    SCOPED_TRACE(n);
    CompareFills([&](const Kernels& k, const Inputs& s) { return RunGates(k, s, n); });
  }
}

TEST_P(KernelsParity, Conv1dSilu) {
  for (size_t d_conv = 1; d_conv <= kMaxConv; ++d_conv) {
    for (const size_t tokens : Sizes{1, 2, 3, 9}) {
      for (const size_t blocks : Sizes{1, 3}) {
        SCOPED_TRACE(testing::Message() << d_conv << " taps, " << tokens << " tokens");
        CompareFills([&](const Kernels& k, const Inputs& s) {
          return RunConv1dSilu(k, s, blocks, d_conv, tokens, tokens % 2 * kLanes);
        });
      }
    }
  }
}

TEST_P(KernelsParity, SelectiveScan) {
  for (const size_t d_state : Sizes{1, 3, 8, 16, 17, 64}) {
    for (const size_t tokens : Sizes{1, 2, 5, 9}) {
      for (const size_t blocks : Sizes{1, 2, 5}) {
        SCOPED_TRACE(testing::Message() << d_state << " states, " << tokens << " tokens, " << blocks
                                        << " channel blocks");
        CompareFills([&](const Kernels& k, const Inputs& s) {
          return RunSelectiveScan(k, s, {tokens, blocks, d_state, tokens % 2 * kLanes});
        });
      }
    }
  }
}

TEST_P(KernelsParity, SsdScan) {
  for (const SsdShape& shape : {
           SsdShape{1, 1, 0, 1, 1, 1, 1},
           SsdShape{1, 4, 0, 4, 4, 128, 4},
           SsdShape{1, 3, 1, 3, 5, 17, 2, kLanes},
           SsdShape{2, 2, 0, 2, 3, 6, 1},
           SsdShape{9, 6, 2, 5, 2, 16, 2, 2 * kLanes},
           SsdShape{33, 2, 0, 2, 1, 5, 2},
           SsdShape{67, 3, 0, 3, 4, 7, 3, kLanes},
           SsdShape{5, 2, 2, 2, 4, 16, 1},
       }) {
    SCOPED_TRACE(testing::Message()
                 << shape.tokens << " tokens, heads " << shape.head_begin << ".." << shape.head_end
                 << ", " << shape.head_blocks << " blocks, " << shape.d_state << " states");
    CompareFills([&](const Kernels& k, const Inputs& s) { return RunSsdScan(k, s, shape); });
    CompareFills([&](const Kernels& k, const Inputs& s) { return RunSsdScan16(k, s, shape); });
  }
}

constexpr Mamba3Shape kMamba3Shapes[] = {
    {1, 1, 0, 1, 1, 1, 1, 1, 0},       {1, 4, 0, 4, 4, 128, 1, 4, 32},
    {1, 3, 1, 3, 3, 34, 4, 2, 17, 16}, {2, 2, 0, 2, 1, 6, 2, 1, 3},
    {9, 6, 2, 5, 2, 16, 1, 2, 7, 32},  {33, 2, 0, 2, 1, 43, 3, 2, 21},
    {5, 2, 0, 2, 5, 64, 4, 1, 16},     {3, 1, 0, 1, 2, 40, 1, 1, 20, 16},
    {2, 1, 0, 1, 1, 3, 64, 1, 1},      {5, 2, 2, 2, 4, 16, 1, 1, 8},
};

TEST_P(KernelsParity, Mamba3Rotate) {
  for (const Mamba3Shape& shape : kMamba3Shapes) {
    SCOPED_TRACE(testing::Message()
                 << shape.tokens << " tokens, rank " << shape.rank << ", " << shape.n_angles
                 << " angles of " << shape.d_state << " states");
    CompareFills([&](const Kernels& k, const Inputs& s) { return RunMamba3Rotate(k, s, shape); });
  }
}

TEST_P(KernelsParity, Mamba3Scan) {
  for (const Mamba3Shape& shape : kMamba3Shapes) {
    SCOPED_TRACE(testing::Message()
                 << shape.tokens << " tokens, rank " << shape.rank << ", " << shape.head_blocks
                 << " blocks, " << shape.d_state << " states");
    CompareFills([&](const Kernels& k, const Inputs& s) { return RunMamba3Scan(k, s, shape); });
  }
}

TEST_P(KernelsParity, MimoGate) {
  for (const size_t rank : Sizes{1, 2, 4, 7}) {
    for (const size_t n : Sizes{16, 48, 1024}) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", " << n);
      CompareFills([&](const Kernels& k, const Inputs& s) { return RunMimoGate(k, s, rank, n); });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, KernelsParity, testing::ValuesIn(CompiledKernels()),
                         [](const auto& test) { return std::string(test.param->name); });

}  // namespace
}  // namespace adder
