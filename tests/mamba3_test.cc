// Mamba-3 checkpoints of every option against ARCHITECTURES.md section 6.2 in double precision, and
// the contradictions that are refused.
#include <gtest/gtest.h>

#include <functional>

#include "converter/convert.h"
#include "tests/equals_reference.h"

namespace adder::test {
namespace {

// Loops over checkpoint tensors in their own order; the angles are summed in radians.
class ReferenceMamba3 final : public Reference {
 public:
  ReferenceMamba3(const TinyCheckpoint& checkpoint, const Mamba3Shape& shape)
      : Reference(checkpoint), s_(shape), states_(shape.layers) {}

 protected:
  Vec Mixer(size_t layer, const std::string& mixer, const Vec& u) override {
    const size_t H = s_.n_heads, p = s_.head_dim, N = s_.d_state, R = s_.rank, di = H * p;
    const size_t angles = s_.n_angles();
    State& state = states_[layer];
    state.th.resize(H * angles);
    state.ssm.resize(di * N);
    state.k.resize(R * H * N);
    state.x.resize(di);
    const Vec in = MatVec(mixer + "in_proj.weight", u);  // z, x, B, C, dt, a, trap, angle
    const auto part = [&](size_t begin, size_t count) {
      const auto at = in.begin() + static_cast<std::ptrdiff_t>(begin);
      return Vec(at, at + static_cast<std::ptrdiff_t>(count));
    };
    const Vec z = part(0, di), x = part(di, di);
    const Vec b = part(2 * di, s_.bc()), c = part(2 * di + s_.bc(), s_.bc());
    const size_t scalars = 2 * di + 2 * s_.bc();
    const Vec dt_raw = part(scalars, H), a = part(scalars + H, H), trap = part(scalars + 2 * H, H);
    const Vec angle = part(scalars + 3 * H, angles);
    const Vec dt_bias = Get(mixer + "dt_bias"), d = Get(mixer + "D");
    const Vec ones(R * di, 1.0);
    const Vec mimo_x = s_.mimo ? Get(mixer + "mimo_x") : ones;
    const Vec mimo_z = s_.mimo ? Get(mixer + "mimo_z") : ones;
    const Vec mimo_o = s_.mimo ? Get(mixer + "mimo_o") : ones;
    Vec out(di);
    for (size_t h = 0; h < H; ++h) {
      const double f = a[h] >= 0 ? 1 + a[h] : 1 / (1 - a[h]);
      const double dt = Softplus(dt_raw[h] + dt_bias[h]);
      const double tr = 1 / (1 + std::exp(-trap[h]));
      const double al = std::exp(std::min(-f, -s_.a_floor) * dt);
      const double be = (1 - tr) * dt * al, ga = tr * dt;
      for (size_t s = 0; s < angles; ++s) {
        state.th[h * angles + s] += M_PI * std::tanh(angle[s]) * dt;
      }
      std::vector<Vec> k, q;
      for (size_t r = 0; r < R; ++r) {
        k.push_back(HeadState(mixer + "B", b, r, h, state.th.data() + h * angles));
        q.push_back(HeadState(mixer + "C", c, r, h, state.th.data() + h * angles));
      }
      std::vector<Vec> y(R, Vec(p));
      for (size_t i = 0; i < p; ++i) {
        for (size_t r = 0; r < R; ++r) y[r][i] = d[h] * x[h * p + i] * mimo_x[(h * R + r) * p + i];
        for (size_t n = 0; n < N; ++n) {
          double& s = state.ssm[(h * p + i) * N + n];
          s *= al;
          for (size_t r = 0; r < R; ++r) {
            const double weight = mimo_x[(h * R + r) * p + i];
            s += be * state.k[(r * H + h) * N + n] * state.x[h * p + i] * weight +
                 ga * k[r][n] * x[h * p + i] * weight;
          }
          for (size_t r = 0; r < R; ++r) y[r][i] += s * q[r][n];
        }
      }
      for (size_t r = 0; r < R; ++r) {
        if (s_.out_norm) {
          const Vec weight = Get(mixer + "norm.weight");
          const auto at = weight.begin() + static_cast<std::ptrdiff_t>(h * p);
          y[r] = Rms(y[r], Vec(at, at + static_cast<std::ptrdiff_t>(p)), 1);
        }
        for (size_t i = 0; i < p; ++i) {
          const size_t w = (h * R + r) * p + i;
          out[h * p + i] += y[r][i] * Silu(z[h * p + i] * mimo_z[w]) * mimo_o[w];
        }
        std::copy(k[r].begin(), k[r].end(),
                  state.k.begin() + static_cast<std::ptrdiff_t>((r * H + h) * N));
      }
    }
    state.x = x;
    return MatVec(mixer + "out_proj.weight", out);
  }

 private:
  struct State {
    Vec th, ssm, k, x;
  };

  // B or C of one rank as head h sees it: its group's row [R][G][N], norm, bias, rotation.
  Vec HeadState(const std::string& name, const Vec& rows, size_t r, size_t h, const double* th) {
    const size_t N = s_.d_state, group = h / (s_.n_heads / s_.n_groups);
    const auto at = rows.begin() + static_cast<std::ptrdiff_t>((r * s_.n_groups + group) * N);
    Vec out = Rms(Vec(at, at + static_cast<std::ptrdiff_t>(N)), Get(name + "_norm.weight"), 1);
    const Vec bias = Get(name + "_bias");
    for (size_t n = 0; n < N; ++n) out[n] += bias[(h * s_.rank + r) * N + n];
    for (size_t s = 0; s < s_.n_angles(); ++s) {
      double& t0 = out[s_.mimo ? s : 2 * s];
      double& t1 = out[s_.mimo ? s + N / 2 : 2 * s + 1];
      const double old = t0;
      t0 = old * std::cos(th[s]) - t1 * std::sin(th[s]);
      t1 = old * std::sin(th[s]) + t1 * std::cos(th[s]);
    }
    return out;
  }

  Mamba3Shape s_;
  std::vector<State> states_;
};

struct NamedMamba3 {
  const char* name;
  std::function<void(Mamba3Shape&)> change;
};

class Mamba3Options : public testing::TestWithParam<NamedMamba3> {};

TEST_P(Mamba3Options, EqualTheReference) {
  Mamba3Shape shape;
  GetParam().change(shape);
  const TinyCheckpoint checkpoint = MakeMamba3(shape);
  ExpectEqualsReference(checkpoint, ReferenceMamba3(checkpoint, shape), shape.layers);
}

const NamedMamba3 kMamba3Options[] = {
    {"Siso", [](Mamba3Shape&) {}},
    {"SisoGroups", [](Mamba3Shape& s) { s.n_groups = 2, s.head_dim = 20; }},
    {"SisoOddStates",
     [](Mamba3Shape& s) { s.d_state = 13, s.d_model = 44, s.rope_fraction = 1.0; }},
    {"SisoNorm", [](Mamba3Shape& s) { s.out_norm = true, s.head_dim = 7; }},
    {"NoAngles", [](Mamba3Shape& s) { s.rope_fraction = 0.0; }},
    {"Floor", [](Mamba3Shape& s) { s.a_floor = 1.1; }},
    {"Mlp", [](Mamba3Shape& s) { s.d_ff = 24; }},
    {"Mimo", [](Mamba3Shape& s) { s.mimo = true, s.rank = 4; }},
    {"MimoOfRankOne", [](Mamba3Shape& s) { s.mimo = true; }},
    {"MimoGroups",
     [](Mamba3Shape& s) { s.mimo = true, s.rank = 3, s.n_groups = 2, s.head_dim = 20; }},
    {"MimoGroupsOddStates",
     [](Mamba3Shape& s) {
       s.mimo = true, s.rank = 2, s.n_heads = s.n_groups = 6, s.d_state = 11;
       s.rope_fraction = 0.8;
     }},
    {"MimoNorm",
     [](Mamba3Shape& s) {
       s.mimo = s.out_norm = true, s.rank = 2, s.head_dim = 33, s.rope_fraction = 1.0;
     }},
    {"MimoManyHeads",
     [](Mamba3Shape& s) { s.mimo = true, s.rank = 2, s.n_heads = 34, s.head_dim = 2; }}};
INSTANTIATE_TEST_SUITE_P(Tiny, Mamba3Options, testing::ValuesIn(kMamba3Options),
                         [](const auto& test) { return test.param.name; });

// The state of a stream has the sizes of section 14 where nothing needs padding.
TEST(Mamba3, StateFloats) {
  struct Case {
    const char* folder;
    size_t floats;
  };
  for (const Case& c : {Case{"mamba3-siso", 17280}, Case{"mamba3-mimo-norm", 17792}}) {
    const auto converted = ConvertedModel(GoldenFolder(c.folder), WeightType::kQ8);
    ASSERT_NE(converted->model, nullptr);
    EXPECT_EQ(converted->model->StateFloats(), c.floats) << c.folder;
  }
}

TEST(Mamba3, Refused) {
  struct Refusal {
    const char *from, *to;
    Code code;
    const char* message;
  };
  Mamba3Shape shape;
  shape.mimo = shape.out_norm = true;
  shape.rank = 2;
  const TinyCheckpoint good = MakeMamba3(shape);
  for (const Refusal& refusal :
       {Refusal{"\"headdim\": 16", "\"headdim\": 32", Code::kCorruptFile, "headdim 32"},
        Refusal{"\"headdim\": 16", "\"headdim\": 0", Code::kCorruptFile, "headdim is 0"},
        Refusal{"\"ngroups\": 1", "\"ngroups\": 2", Code::kCorruptFile, "ngroups 2"},
        Refusal{"\"ngroups\": 1", "\"ngroups\": -1", Code::kCorruptFile, "ngroups is -1"},
        Refusal{"\"rope_fraction\": 0.500000", "\"rope_fraction\": 1.0", Code::kCorruptFile,
                "in_proj has 174 rows, expected 176"},
        Refusal{"\"rope_fraction\": 0.500000", "\"rope_fraction\": NaN", Code::kCorruptFile,
                "rope_fraction is nan"},
        Refusal{"\"is_mimo\": true", "\"is_mimo\": false", Code::kCorruptFile,
                "B_bias has rank 2, expected 1"},
        Refusal{"\"is_outproj_norm\": true", "\"is_outproj_norm\": false", Code::kUnsupported,
                "mixer.norm.weight belongs to no mamba3 layer"},
        Refusal{"\"d_intermediate\": 0", "\"d_intermediate\": 12", Code::kNotFound,
                "layers.0.mlp.fc2.weight is missing"},
        Refusal{"\"d_intermediate\": 0", "\"d_intermediate\": -1", Code::kCorruptFile,
                "d_intermediate is -1"}}) {
    SCOPED_TRACE(refusal.to);
    TinyCheckpoint checkpoint = good;
    const size_t at = checkpoint.config.find(refusal.from);
    ASSERT_NE(at, std::string::npos);
    checkpoint.config.replace(at, std::string(refusal.from).size(), refusal.to);
    const TempDir folder;
    checkpoint.Write(folder);
    const auto report = Convert(folder.path(), folder / "out", {});
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.status().code(), refusal.code);
    EXPECT_NE(report.status().message().find(refusal.message), std::string::npos)
        << report.status().message();
  }
}

}  // namespace
}  // namespace adder::test
