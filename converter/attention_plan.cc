// Attention of hybrid families, and the frequencies of rotation. ARCHITECTURES.md section 1.
#include <cinttypes>
#include <cmath>
#include <numbers>

#include "converter/layers.h"
#include "converter/text.h"

namespace adder {
namespace {

constexpr int64_t kMaxHeads = 1 << 16, kMaxHeadDim = 1 << 12;

Status CheckRange(const Config& config, const char* key, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return {};
  return Error(Code::kCorruptFile, "%s: %s is %" PRId64 ", expected 1 to %" PRId64,
               config.name().c_str(), key, value, most);
}

Result<double> Positive(const Config& config, const char* key) {
  ADDER_ASSIGN_OR_RETURN(const double value, config.Double({key}, std::nullopt));
  if (value > 0 && std::isfinite(value)) return value;
  return Error(Code::kCorruptFile, "%s: %s is %g, expected a positive number",
               config.name().c_str(), key, value);
}

// Llama 3: wavelengths that fit the original context often stay, those that do not are stretched,
// with a ramp between.
Status ScaleLlama3(const Config& rope, std::vector<double>* frequencies) {
  ADDER_ASSIGN_OR_RETURN(const double factor, Positive(rope, "factor"));
  ADDER_ASSIGN_OR_RETURN(const double low, Positive(rope, "low_freq_factor"));
  ADDER_ASSIGN_OR_RETURN(const double high, Positive(rope, "high_freq_factor"));
  ADDER_ASSIGN_OR_RETURN(const double original, Positive(rope, "original_max_position_embeddings"));
  if (low >= high) {
    return Error(Code::kCorruptFile, "%s: low_freq_factor %g is not below high_freq_factor %g",
                 rope.name().c_str(), low, high);
  }
  for (double& f : *frequencies) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength < original / high) continue;
    const double ramp =
        wavelength > original / low ? 0.0 : (original / wavelength - low) / (high - low);
    f = (1 - ramp) * f / factor + ramp * f;
  }
  return {};
}

}  // namespace

Result<AttentionSettings> ReadAttention(const Config& config, size_t d_model, int64_t head_dim) {
  ADDER_ASSIGN_OR_RETURN(const int64_t n_heads, config.Int({"num_attention_heads"}, 32));
  ADDER_RETURN_IF_ERROR(CheckRange(config, "num_attention_heads", n_heads, kMaxHeads));
  if (head_dim == 0) head_dim = static_cast<int64_t>(d_model) / n_heads;
  ADDER_ASSIGN_OR_RETURN(head_dim, config.Int({"head_dim", "attention_head_dim"}, head_dim));
  ADDER_RETURN_IF_ERROR(CheckRange(config, "head_dim", head_dim, kMaxHeadDim));
  AttentionSettings s;
  s.d_in = s.d_out = d_model;
  s.n_heads = static_cast<size_t>(n_heads);
  s.head_dim = static_cast<size_t>(head_dim);
  s.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  if (config.Has({"num_key_value_heads"})) {
    ADDER_ASSIGN_OR_RETURN(const int64_t n_kv_heads,
                           config.Int({"num_key_value_heads"}, std::nullopt));
    ADDER_RETURN_IF_ERROR(CheckRange(config, "num_key_value_heads", n_kv_heads, kMaxHeads));
    s.n_kv_heads = static_cast<size_t>(n_kv_heads);
  }
  return s;
}

Result<AttentionConfig> PlanAttention(const std::string& to, const std::string& from,
                                      const AttentionSettings& s, PlanBuilder& b) {
  const size_t n_kv_heads =
      s.n_kv_heads > 0 ? s.n_kv_heads : b.Rows(from + "k_proj.weight") / s.head_dim;
  const auto project = [&](const char* name, const char* source, size_t n_heads, double scale) {
    b.Matrix(to + name, Role::kBulk, from + source, n_heads * s.head_dim, s.d_in,
             std::vector<Part>{{Channels::Heads(0, n_heads, s.head_dim), s.in * scale, scale}},
             Channels::Range(0, s.d_in));
  };
  project("q", "q_proj.weight", s.n_heads, 1.0);
  project("k", "k_proj.weight", n_kv_heads, s.key);
  project("v", "v_proj.weight", n_kv_heads, 1.0);
  b.Matrix(to + "o", Role::kBulk, from + "o_proj.weight", s.d_out, s.n_heads * s.head_dim,
           std::vector<Part>{{Channels::Range(0, s.d_out), s.out, s.out}},
           Channels::Heads(0, s.n_heads, s.head_dim));
  if (!s.rope.empty()) b.Values(to + "rope", s.rope);
  ADDER_RETURN_IF_ERROR(b.status());
  return AttentionConfig{.n_heads = static_cast<uint32_t>(s.n_heads),
                         .n_kv_heads = static_cast<uint32_t>(n_kv_heads),
                         .head_dim = static_cast<uint32_t>(s.head_dim),
                         .rotary_dim = static_cast<uint32_t>(2 * s.rope.size()),
                         .scale = static_cast<float>(s.scale)};
}

Result<std::vector<float>> RopeFrequencies(const Config& config, size_t rotary_dim) {
  const char* key = config.Has({"rope_parameters"}) ? "rope_parameters" : "rope_scaling";
  ADDER_ASSIGN_OR_RETURN(const Config rope, config.Object(key));
  ADDER_ASSIGN_OR_RETURN(const double fallback, config.Double({"rope_theta"}, 10000.0));
  ADDER_ASSIGN_OR_RETURN(const double theta, rope.Double({"rope_theta"}, fallback));
  return RotationFrequencies(rope, theta, rotary_dim);
}

Result<std::vector<float>> RotationFrequencies(const Config& scaling, double theta,
                                               size_t rotary_dim) {
  if (rotary_dim % 2 != 0) {
    return Error(Code::kUnsupported, "%s: %zu dimensions of a head rotate, expected an even number",
                 scaling.name().c_str(), rotary_dim);
  }
  if (!(theta > 0) || !std::isfinite(theta)) {
    return Error(Code::kCorruptFile, "%s: theta of the rotations is %g, expected a positive number",
                 scaling.name().c_str(), theta);
  }
  std::vector<double> frequencies(rotary_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
  }
  ADDER_ASSIGN_OR_RETURN(const std::string type, scaling.String({"rope_type", "type"}, "default"));
  if (type == "linear") {
    ADDER_ASSIGN_OR_RETURN(const double factor, Positive(scaling, "factor"));
    for (double& f : frequencies) f /= factor;
  } else if (type == "llama3") {
    ADDER_RETURN_IF_ERROR(ScaleLlama3(scaling, &frequencies));
  } else if (type != "default") {
    return Error(Code::kUnsupported,
                 "%s: rope_type is \"%s\"; default, linear and llama3 are supported",
                 scaling.name().c_str(), Shown(type).c_str());
  }
  return std::vector<float>(frequencies.begin(), frequencies.end());
}

}  // namespace adder
