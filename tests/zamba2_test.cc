// Zamba2's hybrid layers against a plain version in double precision: two layers that share a block
// and one that has another, with and without adapters and rotation.
#include <gtest/gtest.h>

#include <cstring>

#include "runtime/session_buffer.h"
#include "tests/made_reference.h"

namespace adder::test {
namespace {

constexpr uint32_t kModel = 20, kVocab = 30, kHeads = 3, kHeadDim = 10, kFf = 36;
constexpr uint32_t kSharedOf[] = {0, 1, 0};  // by layer
constexpr Mamba2Config kSsm = {
    .n_heads = 4, .head_dim = 12, .n_groups = 2, .d_state = 5, .d_conv = 3, .norm_groups = 2};

struct Shape {
  const char* name;
  uint32_t rotary_dim = 0, adapter_rank = 0, attention_adapter_rank = 0;
  DType type = DType::kMatF32;
};
constexpr Shape kShapes[] = {
    {.name = "Plain"},
    {.name = "Adapted", .adapter_rank = 6},
    {.name = "Everything", .rotary_dim = 10, .adapter_rank = 6, .attention_adapter_rank = 4},
    {.name = "Q8",
     .rotary_dim = 10,
     .adapter_rank = 6,
     .attention_adapter_rank = 4,
     .type = DType::kMatQ8},
};

MadeModel Made(const Shape& s) {
  MadeModel made(kModel, kVocab);
  made.matrix_type = s.type;
  const uint64_t bc = 2 * kSsm.n_groups * kSsm.d_state;
  const uint64_t channels = kSsm.n_heads * RoundUp(kSsm.head_dim, kLanes);
  for (size_t i = 0; i < std::size(kSharedOf); ++i) {
    const AttentionConfig attention = {.n_heads = kHeads,
                                       .n_kv_heads = kHeads,
                                       .head_dim = kHeadDim,
                                       .rotary_dim = s.rotary_dim,
                                       .scale = 0.4f};
    made.config.layers.push_back(
        {.norm_eps = 1e-5f,
         .mixer = Zamba2Config{.mamba2 = kSsm,
                               .attention = attention,
                               .shared = kSharedOf[i],
                               .d_ff = kFf,
                               .adapter_rank = s.adapter_rank,
                               .attention_adapter_rank = s.attention_adapter_rank}});
    const std::string layer = "layers." + std::to_string(i) + ".";
    made.Matrix(layer + "linear", kModel, kModel);
    if (s.adapter_rank > 0) {
      made.Matrix(layer + "adapter_in", s.adapter_rank, kModel);
      made.Matrix(layer + "adapter_gate", kFf, s.adapter_rank);
      made.Matrix(layer + "adapter_up", kFf, s.adapter_rank);
    }
    for (const std::string name : {"q", "k", "v"}) {
      if (s.attention_adapter_rank == 0) continue;
      made.Matrix(layer + name + "_adapter_in", s.attention_adapter_rank, 2 * kModel);
      made.HeadRows(layer + name + "_adapter_out", kHeads, kHeadDim, s.attention_adapter_rank);
    }
    if (s.rotary_dim > 0) made.Floats(layer + "rope", {s.rotary_dim / 2}, 0.5, 0.5);

    const std::string ssm = layer + "ssm.";
    made.Floats(ssm + "norm", {kModel}, 1, 0.3);
    made.HeadRows(ssm + "in_z", kSsm.n_heads, kSsm.head_dim, kModel);
    made.HeadRows(ssm + "in_x", kSsm.n_heads, kSsm.head_dim, kModel);
    made.Matrix(ssm + "in_bc", bc, kModel);
    made.Matrix(ssm + "in_dt", kSsm.n_heads, kModel);
    made.Floats(ssm + "conv_x.weight", {channels / kLanes, kSsm.d_conv, kLanes}, 0.2, 0.6);
    made.HeadFloats(ssm + "conv_x.bias", kSsm.n_heads, kSsm.head_dim, 0.3);
    made.Floats(ssm + "conv_bc.weight", {RowBlocks(bc), kSsm.d_conv, kLanes}, 0.2, 0.6);
    made.Floats(ssm + "conv_bc.bias", {RowBlocks(bc) * kLanes}, 0, 0.3);
    made.Floats(ssm + "dt_bias", {kLanes}, -1, 0.5);
    made.Floats(ssm + "a", {kSsm.n_heads}, -1, 0.5);
    made.HeadFloats(ssm + "d", kSsm.n_heads, kSsm.head_dim, 1);
    made.HeadFloats(ssm + "gated_norm", kSsm.n_heads, kSsm.head_dim, 1);
    made.HeadColumns(ssm + "out_proj", kModel, kSsm.n_heads, kSsm.head_dim);
  }
  for (const std::string shared : {"shared.0.", "shared.1."}) {
    made.Floats(shared + "norm", {2 * kModel}, 1, 0.3);
    made.Floats(shared + "mlp_norm", {kModel}, 1, 0.3);
    for (const std::string name : {"q", "k", "v"}) {
      made.HeadRows(shared + name, kHeads, kHeadDim, 2 * kModel);
    }
    made.HeadColumns(shared + "o", kModel, kHeads, kHeadDim);
    made.Matrix(shared + "gate", kFf, kModel);
    made.Matrix(shared + "up", kFf, kModel);
    made.Matrix(shared + "down", kModel, kFf);
  }
  return made;
}

class Reference final : MadeReference {
 public:
  explicit Reference(const MadeModel& made) : MadeReference(made) {}

  std::vector<Vec> Run(std::span<const int32_t> ids) {
    std::vector<Vec> logits;
    for (const int32_t id : ids) {
      const Vec e = Embedding(id);
      Vec h = e;
      for (size_t i = 0; i < std::size(kSharedOf); ++i) Layer(i, e, &h);
      logits.push_back(Product("embedding", Rms(h, "final_norm")));
    }
    return logits;
  }

 private:
  static void Add(const Vec& x, Vec* y) {
    for (size_t i = 0; i < y->size(); ++i) (*y)[i] += x[i];
  }

  void Layer(size_t i, const Vec& e, Vec* h) {
    const auto& c = std::get<Zamba2Config>(made_.config.layers[i].mixer);
    const std::string own = "layers." + std::to_string(i) + ".";
    const std::string shared = "shared." + std::to_string(kSharedOf[i]) + ".";
    Vec y = *h;
    y.insert(y.end(), e.begin(), e.end());
    y = Rms(y, shared + "norm");
    const auto project = [&](const std::string& name) {
      Vec x = Product(shared + name, y);
      if (c.attention_adapter_rank > 0) {
        Add(Product(own + name + "_adapter_out", Product(own + name + "_adapter_in", y)), &x);
      }
      return x;
    };
    Vec context;
    Attend(c.attention, own + "rope", 4096, &pasts_[i], project("q"), project("k"), project("v"),
           &context);
    y = Rms(Product(shared + "o", context), shared + "mlp_norm");
    Vec gate = Product(shared + "gate", y), up = Product(shared + "up", y);
    if (c.adapter_rank > 0) {
      const Vec a = Product(own + "adapter_in", y);
      Add(Product(own + "adapter_gate", a), &gate);
      Add(Product(own + "adapter_up", a), &up);
    }
    for (size_t d = 0; d < up.size(); ++d) {
      up[d] *= 0.5 * gate[d] * (1 + std::erf(gate[d] / std::sqrt(2.0)));
    }
    Vec x = Product(own + "linear", Product(shared + "down", up));
    Add(*h, &x);
    Add(Ssm(i, own + "ssm.", Rms(x, own + "ssm.norm")), h);
  }

  // ARCHITECTURES.md 5.1 over heads padded to kLanes.
  Vec Ssm(size_t i, const std::string& ssm, const Vec& u) {
    const size_t width = RoundUp(kSsm.head_dim, kLanes), states = kSsm.d_state;
    State& state = states_[i];
    const Vec z = Product(ssm + "in_z", u), dt_in = Product(ssm + "in_dt", u);
    Vec x = Convolve(ssm + "conv_x", kSsm.d_conv, &state.x, Product(ssm + "in_x", u));
    Vec bc = Convolve(ssm + "conv_bc", kSsm.d_conv, &state.bc, Product(ssm + "in_bc", u));
    for (Vec* v : {&x, &bc}) {
      for (double& value : *v) value = Silu64(value);
    }
    const Vec dt_bias = Get(ssm + "dt_bias"), a = Get(ssm + "a"), d = Get(ssm + "d");
    state.s.resize(x.size() * states);
    Vec y(x.size());
    for (size_t channel = 0; channel < x.size(); ++channel) {
      const size_t head = channel / width;
      const double raw = dt_in[head] + dt_bias[head];
      const double dt = std::max(raw, 0.0) + std::log1p(std::exp(-std::fabs(raw)));
      const double* b = &bc[head / (kSsm.n_heads / kSsm.n_groups) * states];
      const double* c = b + kSsm.n_groups * states;
      for (size_t n = 0; n < states; ++n) {
        double& s = state.s[channel * states + n];
        s = std::exp2(dt * a[head]) * s + dt * x[channel] * b[n];
        y[channel] += s * c[n];
      }
      y[channel] = (y[channel] + d[channel] * x[channel]) * Silu64(z[channel]);
    }
    const Vec weight = Get(ssm + "gated_norm");
    const size_t part = y.size() / kSsm.norm_groups;
    for (size_t begin = 0; begin < y.size(); begin += part) {
      double squares = 0;
      for (size_t k = begin; k < begin + part; ++k) squares += y[k] * y[k];
      const double count = kSsm.n_heads / kSsm.norm_groups * kSsm.head_dim;
      const double root = std::sqrt(squares / count + 1e-5);
      for (size_t k = begin; k < begin + part; ++k) y[k] = y[k] / root * weight[k];
    }
    return Product(ssm + "out_proj", y);
  }

  struct State {
    std::vector<Vec> x, bc;  // inputs of the convolutions
    Vec s;
  };
  Past pasts_[std::size(kSharedOf)];
  State states_[std::size(kSharedOf)];
};

class Recorder final : public FeedObserver {
 public:
  void OnLogits(size_t, std::span<const float> logits) override {
    rows.emplace_back(logits.begin(), logits.end());
  }
  std::vector<std::vector<float>> rows;
};

std::vector<std::vector<float>> RowsOf(const Model& model, uint32_t tile,
                                       std::span<const int32_t> ids) {
  const auto buffer = SessionBuffer::Create(model, {.tile = tile});
  EXPECT_TRUE(buffer.ok()) << buffer.status().message();
  Recorder recorder;
  EXPECT_TRUE(buffer->session().Feed(ids, &recorder).ok());
  return recorder.rows;
}

std::vector<int32_t> Ids(size_t n) {
  std::mt19937 random(11);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % kVocab);
  return ids;
}

class Zamba2 : public testing::TestWithParam<Shape> {};

TEST_P(Zamba2, EqualsTheReference) {
  if (GetParam().type != DType::kMatF32) GTEST_SKIP() << "the reference has unrounded weights";
  const MadeModel made = Made(GetParam());
  const auto model = made.Open();
  ASSERT_NE(model, nullptr);
  const std::vector<int32_t> ids = Ids(40);
  EXPECT_LE(LargestError(RowsOf(*model, 64, ids), Reference(made).Run(ids)), 1e-4);
}

TEST_P(Zamba2, TilesChangeNoBit) {
  const auto model = Made(GetParam()).Open();
  ASSERT_NE(model, nullptr);
  const std::vector<int32_t> ids = Ids(40);
  const auto expected = RowsOf(*model, 1, ids);
  for (const uint32_t tile : {5u, 16u, 64u}) {
    const auto rows = RowsOf(*model, tile, ids);
    for (size_t t = 0; t < ids.size(); ++t) {
      ASSERT_EQ(std::memcmp(rows[t].data(), expected[t].data(), kVocab * sizeof(float)), 0) << t;
    }
  }
}

// Layers 0 and 2 read the tensors of block 0: once in the file, twice per token.
TEST_P(Zamba2, CountsSharedTensorsForEveryUse) {
  const auto model = Made(GetParam()).Open();
  ASSERT_NE(model, nullptr);
  uint64_t expected = 0;
  for (const Tensor& tensor : model->file().tensors()) {
    expected += tensor.data.size() * (tensor.name.starts_with("shared.0.") ? 2 : 1);
  }
  EXPECT_EQ(model->BytesPerToken(), expected);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Zamba2, testing::ValuesIn(kShapes),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Zamba2File, NamesWhatIsWrong) {
  for (const auto& [name, message] : {std::pair("shared.1.gate", "shared.1.gate is missing"),
                                      std::pair("layers.2.linear", "layers.2.linear is missing"),
                                      std::pair("layers.1.ssm.a", "layers.1.ssm.a is missing")}) {
    MadeModel made = Made(kShapes[0]);
    made.tensors.erase(name);
    const TempDir folder;
    const auto model = Model::Open(made.Write(folder));
    ASSERT_FALSE(model.ok());
    EXPECT_NE(model.status().message().find(message), std::string::npos)
        << model.status().message();
  }
}

}  // namespace
}  // namespace adder::test
