// Mixtures of experts against their equations in double precision (ARCHITECTURES.md sections 7, 9
// and 10), and against themselves: every kernel table, tile, split and number of threads.
#include <gtest/gtest.h>

#include "tests/alloc_counter.h"
#include "tests/reference_feed_forward.h"

namespace adder::test {
namespace {

struct MoeCase {
  const char* name;
  MoeConfig config;
  uint32_t d_model;
  bool bias = false;  // of router_bias and of matrices
};

const MoeCase kCases[] = {
    {"jamba",
     {.n_experts = 5, .top_k = 2, .expert = {.d_ff = 50}, .routing = Routing::kSoftmaxAll},
     40},
    {"granite",
     {.n_experts = 18,
      .top_k = 4,
      .expert = {.d_ff = 35},
      .d_shared = 70,
      .routing = Routing::kSoftmaxTop},
     48},
    {"nemotron",
     {.n_experts = 8,
      .top_k = 3,
      .expert = {.d_ff = 33, .activation = Activation::kRelu2, .gated = false},
      .d_shared = 90,
      .routing = Routing::kSigmoid,
      .scale = 2.5f},
     40,
     true},
    {"latent",
     {.n_experts = 12,
      .top_k = 5,
      .expert = {.d_ff = 64, .activation = Activation::kRelu2, .gated = false},
      .d_shared = 20,
      .d_latent = 24,
      .routing = Routing::kSigmoid,
      .n_groups = 4,
      .top_groups = 2,
      .scale = 1.5f},
     40,
     true},
    {"wide_latent",  // wider than the model, all experts, no normalization
     {.n_experts = 3,
      .top_k = 3,
      .expert = {.d_ff = 16, .activation = Activation::kGelu},
      .d_latent = 70,
      .routing = Routing::kSigmoid,
      .normalize = false},
     20,
     true},
    {"one_expert",
     {.n_experts = 1, .top_k = 1, .expert = {.d_ff = 7}, .routing = Routing::kSoftmaxTop},
     16},
    {"threads",  // wide enough for its work to be handed to threads
     {.n_experts = 6,
      .top_k = 2,
      .expert = {.d_ff = 300},
      .d_shared = 330,
      .d_latent = 224,
      .routing = Routing::kSigmoid,
      .n_groups = 3,
      .top_groups = 2},
     256,
     true},
};

BlockModel MakeMoe(const MoeCase& test, DType type) {
  const MoeConfig& c = test.config;
  BlockModel model(c, test.d_model);
  const auto add = [&](const std::string& name, DType dtype, uint64_t rows, uint64_t cols,
                       float gain) {
    model.AddMatrix("layers.0." + name, dtype, rows, cols, gain);
  };
  const auto add_expert = [&](const std::string& prefix, uint64_t d_ff, uint64_t d_in) {
    if (c.expert.gated) add(prefix + "gate", type, d_ff, d_in, 2);
    add(prefix + "up", type, d_ff, d_in, 2);
    add(prefix + "down", type, d_in, d_ff, 1);
  };
  const uint32_t d_in = c.d_latent > 0 ? c.d_latent : test.d_model;
  add("router", DType::kMatF32, c.n_experts, test.d_model, 2);
  for (uint32_t e = 0; e < c.n_experts; ++e) {
    add_expert("experts." + std::to_string(e) + ".", c.expert.d_ff, d_in);
  }
  if (c.d_shared > 0) add_expert("shared.", c.d_shared, test.d_model);
  if (c.d_latent > 0) {
    add("latent_in", type, c.d_latent, test.d_model, 1);
    add("latent_out", type, test.d_model, c.d_latent, 1);
  }
  if (c.routing == Routing::kSigmoid) {
    model.AddFloats("layers.0.router_bias", {RoundUp(c.n_experts, kLanes)}, -0.3f, 0.3f);
  }
  if (test.bias) {
    model.AddBias("layers.0.experts.0.up", -1, 1);
    model.AddBias("layers.0.experts.0.down", -1, 1);
    if (c.d_shared > 0) model.AddBias("layers.0.shared.down", -1, 1);
  }
  return model;
}

double MoeError(const BlockModel& model, const MoeConfig& c, std::span<const float> hidden,
                std::span<const int32_t> tokens) {
  return LayerError(model, hidden, tokens,
                    [&](const Vec& h) { return ReferenceMoe(model, c, model.Normed(h)); });
}

class MoeOf : public testing::TestWithParam<MoeCase> {};

TEST_P(MoeOf, IsItsEquations) {
  const std::vector<int32_t> tokens = SomeTokens(23);
  const BlockModel model = MakeMoe(GetParam(), DType::kMatF32);
  const std::vector<float> hidden = HiddenBehind(*model.Open(), tokens, {.tile = 8});
  EXPECT_LT(MoeError(model, GetParam().config, hidden, tokens), 5e-6);
}

TEST_P(MoeOf, GivesTheSameBitsEverywhere) {
  const std::vector<int32_t> tokens = SomeTokens(12);
  for (const DType type : {DType::kMatF32, DType::kMatF16, DType::kMatQ8, DType::kMatQ4}) {
    SCOPED_TRACE(DTypeName(type));
    const BlockModel model = MakeMoe(GetParam(), type);
    const std::vector<float> hidden = ExpectSameBits(model, tokens);
    const double tolerance = type == DType::kMatQ4 ? 1.0 : type == DType::kMatQ8 ? 0.1 : 5e-3;
    EXPECT_LT(MoeError(model, GetParam().config, hidden, tokens), tolerance);
  }
}

TEST_P(MoeOf, CountsTheBytesOfTheExpertsOfOneToken) {
  for (const DType type : {DType::kMatF32, DType::kMatQ8, DType::kMatQ4}) {
    MoeCase test = GetParam();
    test.bias = false;
    const MoeConfig& c = test.config;
    const uint64_t d_in = c.d_latent > 0 ? c.d_latent : test.d_model;
    const uint64_t expert = MatrixBytes(type, c.expert.d_ff, d_in) * (c.expert.gated ? 2 : 1) +
                            MatrixBytes(type, d_in, c.expert.d_ff);
    const auto model = MakeMoe(test, type).Open();
    EXPECT_EQ(model->blocks()[0]->ExtraBytes(),
              -static_cast<int64_t>(expert * (c.n_experts - c.top_k)));
  }
}

TEST_P(MoeOf, AllocatesNothingPerToken) {
  const auto model = MakeMoe(GetParam(), DType::kMatQ8).Open();
  const auto buffer = SessionBuffer::Create(*model, {.tile = 8});
  ASSERT_TRUE(buffer.ok());
  const std::vector<int32_t> tokens = SomeTokens(20);
  const uint64_t before = adder_test::AllocationCount();
  bool ok = buffer->session().Feed(tokens).ok();
  for (const int32_t token : tokens) ok = ok && buffer->session().FeedOne(token).ok();
  const uint64_t allocations = adder_test::AllocationCount() - before;
  EXPECT_TRUE(ok);
  EXPECT_EQ(allocations, 0u);
}

// A router that fails for a single expert.
TEST_P(MoeOf, NaNOfALogitReachesTheOutput) {
  BlockModel model = MakeMoe(GetParam(), DType::kMatQ8);
  model.AddBias("layers.0.router", 0, 0);
  model.Values("layers.0.router.bias")[GetParam().config.n_experts - 1] = NAN;
  const std::vector<int32_t> tokens = SomeTokens(9);
  for (const float v : ExpectSameBits(model, tokens)) EXPECT_TRUE(std::isnan(v));
}

TEST_P(MoeOf, NamesTheTensorThatIsMissing) {
  const std::string name =
      "layers.0.experts." + std::to_string(GetParam().config.n_experts - 1) + ".down";
  BlockModel model = MakeMoe(GetParam(), DType::kMatQ8);
  model.Remove(name);
  const auto opened = model.TryOpen();
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), Code::kCorruptFile);
  EXPECT_NE(opened.status().message().find(name + " is missing"), std::string::npos)
      << opened.status().message();
}

INSTANTIATE_TEST_SUITE_P(Cases, MoeOf, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace adder::test
