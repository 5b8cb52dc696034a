#include "runtime/team.h"

#include <algorithm>
#include <thread>

namespace adder {
namespace {

Op MatmulOp(DType dtype) {
  switch (dtype) {
    case DType::kMatQ8:
      return Op::kMatmulQ8;
    case DType::kMatQ4:
      return Op::kMatmulQ4;
    case DType::kMatF16:
      return Op::kMatmulF16;
    default:
      return Op::kMatmulF32;
  }
}

constexpr size_t kFloat = sizeof(float);

}  // namespace

void Worker::RmsNorm(Range tokens, const float* x, size_t x_stride, const float* weight, size_t n,
                     float count, float eps, float* y, size_t y_stride) const {
  const OpTimer timer(telemetry_, Op::kNorm, n * kFloat, tokens.size() * n * 4);
  for (size_t t = tokens.begin; t < tokens.end; ++t) {
    kernels_.rms_norm(x + t * x_stride, weight, n, count, eps, y + t * y_stride);
  }
}

void Worker::Quantize(Range tokens, Activations* activations) const {
  if (!activations->quantizing()) return;
  const OpTimer timer(telemetry_, Op::kQuantize, 0, tokens.size() * activations->cols() * 2);
  for (size_t t = tokens.begin; t < tokens.end; ++t) activations->QuantizeRow(kernels_, t);
}

void Worker::QuantizeGroups(Range groups, size_t tokens, Activations* activations) const {
  if (!activations->quantizing()) return;
  const OpTimer timer(telemetry_, Op::kQuantize, 0, tokens * groups.size() * kGroup * 2);
  for (size_t t = 0; t < tokens; ++t) {
    activations->QuantizeGroups(kernels_, t, groups.begin, groups.end);
  }
}

void Worker::Linear(const adder::Linear& linear, Range row_blocks, const Activations& x,
                    size_t tokens, float* y, size_t y_stride) const {
  if (row_blocks.size() == 0) return;
  const uint64_t rows = row_blocks.size() * kLanes;
  const OpTimer timer(telemetry_, MatmulOp(linear.dtype),
                      MatrixBytes(linear.dtype, rows, linear.cols),
                      2 * tokens * rows * linear.cols);
  linear.Apply(kernels_, row_blocks.begin, row_blocks.end, x, tokens, y, y_stride);
}

void Worker::LinearAdd(const adder::Linear& linear, Range row_blocks, const Activations& x,
                       size_t tokens, float* scratch, float* y, size_t y_stride) const {
  if (row_blocks.size() == 0) return;
  Linear(linear, row_blocks, x, tokens, scratch, y_stride);
  const size_t first = row_blocks.begin * kLanes;
  const size_t n = row_blocks.size() * kLanes;
  const OpTimer timer(telemetry_, Op::kAdd, 0, tokens * n);
  for (size_t t = 0; t < tokens; ++t) {
    kernels_.add(scratch + t * y_stride + first, n, y + t * y_stride + first);
  }
}

void Worker::StoreTokens(Range tokens, const AttentionArgs& args) const {
  const OpTimer timer(telemetry_, Op::kAttention, tokens.size() * args.ring.shape().SlotBytes(),
                      tokens.size() * (args.n_heads + args.n_kv_heads) * args.rotary_dim * 3);
  for (size_t t = tokens.begin; t < tokens.end; ++t) StoreToken(kernels_, args, t);
}

void Worker::Attend(Range heads, const AttentionArgs& args) const {
  const size_t seen = args.SeenTokens();
  const OpTimer timer(telemetry_, Op::kAttention,
                      heads.size() * seen * args.ring.shape().SlotBytes() / args.n_heads,
                      args.tokens * heads.size() * seen * args.head_dim * 4);
  adder::Attend(kernels_, heads.begin, heads.end, args);
}

void Worker::Add(Range tokens, const float* x, float* y, size_t channels) const {
  const OpTimer timer(telemetry_, Op::kAdd, 0, tokens.size() * channels);
  for (size_t t = tokens.begin; t < tokens.end; ++t) {
    kernels_.add(x + t * channels, channels, y + t * channels);
  }
}

void Worker::SiluMul(Range tokens, const float* z, float* y, size_t channels) const {
  const OpTimer timer(telemetry_, Op::kGate, 0, tokens.size() * channels * 2);
  for (size_t t = tokens.begin; t < tokens.end; ++t) {
    kernels_.silu_mul(z + t * channels, channels, y + t * channels);
  }
}

void Worker::Gate(Activation activation, Range blocks, size_t tokens, const float* z, float* y,
                  size_t stride) const {
  const size_t first = blocks.begin * kLanes;
  const size_t n = blocks.size() * kLanes;
  const OpTimer timer(telemetry_, Op::kGate, 0, tokens * n * 2);
  const auto gate = activation == Activation::kSilu    ? kernels_.silu_mul
                    : activation == Activation::kRelu2 ? kernels_.relu2_mul
                                                       : kernels_.gelu_mul;
  for (size_t t = 0; t < tokens; ++t) {
    const size_t at = t * stride + first;
    gate(z != nullptr ? z + at : nullptr, n, y + at);
  }
}

void Worker::AddScaled(Range blocks, const float* x, float scale, float* y) const {
  const size_t first = blocks.begin * kLanes;
  const size_t n = blocks.size() * kLanes;
  const OpTimer timer(telemetry_, Op::kAdd, 0, 2 * n);
  kernels_.add_scaled(x + first, scale, n, y + first);
}

void Worker::Softplus(Range blocks, size_t tokens, const float* bias, float lo, float hi, float* x,
                      size_t stride) const {
  const size_t first = blocks.begin * kLanes;
  const size_t n = blocks.size() * kLanes;
  const OpTimer timer(telemetry_, Op::kSoftplus, n * kFloat, tokens * n * 2);
  for (size_t t = 0; t < tokens; ++t) {
    kernels_.softplus(bias + first, n, lo, hi, x + t * stride + first);
  }
}

void Worker::Conv1dSilu(Range blocks, const float* weights, const float* bias, size_t d_conv,
                        size_t tokens, size_t stride, float* state, float* x) const {
  const size_t first = blocks.begin * kLanes;
  const size_t n = blocks.size() * kLanes;
  const OpTimer timer(telemetry_, Op::kConv, n * (d_conv + 1 + 2 * (d_conv - 1)) * kFloat,
                      tokens * n * 2 * d_conv);
  kernels_.conv1d_silu(weights + first * d_conv, bias + first, blocks.size(), d_conv, tokens,
                       stride, state + first * (d_conv - 1), x + first);
}

void Worker::SelectiveScan(Range blocks, SelectiveScanArgs args) const {
  const size_t first = blocks.begin * kLanes;
  const size_t n = blocks.size() * kLanes;
  // A read, S read and written; per state one product for exp2, two multiply-adds and a product.
  const OpTimer timer(telemetry_, Op::kScan, 3 * n * args.d_state * kFloat,
                      args.tokens * n * args.d_state * 6);
  args.channel_blocks = blocks.size();
  args.x += first;
  args.dt += first;
  args.z += first;
  args.a += first * args.d_state;
  args.d += first;
  args.state += first * args.d_state;
  kernels_.selective_scan(&args);
}

void Worker::SsdScan(Range heads, SsdScanArgs args, bool bits16) const {
  const size_t n = heads.size() * args.head_blocks * kLanes;
  const size_t width = bits16 ? sizeof(int16_t) : sizeof(float);
  const OpTimer timer(telemetry_, Op::kScan, 2 * n * args.d_state * width,
                      args.tokens * n * args.d_state * 5);
  args.head_begin = heads.begin;
  args.head_end = heads.end;
  (bits16 ? kernels_.ssd_scan_16 : kernels_.ssd_scan)(&args);
}

void Worker::Mamba3Rotate(Range heads, Mamba3RotateArgs args) const {
  const size_t n = heads.size() * args.rank * args.d_state;
  // Per pair of a rank, for k and q: two sums and two rotations of three operations; sine and
  // cosine are shared by the ranks.
  const OpTimer timer(telemetry_, Op::kRotate, 2 * n * kFloat,
                      args.tokens * (n * 8 + heads.size() * args.n_angles * 30));
  args.head_begin = heads.begin;
  args.head_end = heads.end;
  kernels_.mamba3_rotate(&args);
}

void Worker::Mamba3Scan(Range heads, Mamba3ScanArgs args) const {
  const size_t n = heads.size() * args.head_blocks * kLanes;
  const OpTimer timer(telemetry_, Op::kScan, 2 * n * args.d_state * kFloat,
                      args.tokens * n * args.d_state * (1 + 6 * args.rank));
  args.head_begin = heads.begin;
  args.head_end = heads.end;
  kernels_.mamba3_scan(&args);
}

void Worker::MimoGate(Range tokens, const float* y, const float* z, const float* mimo_z,
                      const float* mimo_o, size_t rank, size_t channels, float* out) const {
  const OpTimer timer(telemetry_, Op::kGate, 2 * rank * channels * kFloat,
                      tokens.size() * rank * channels * 5);
  for (size_t t = tokens.begin; t < tokens.end; ++t) {
    kernels_.mimo_gate(y + t * rank * channels, z + t * channels, mimo_z, mimo_o, rank, channels,
                       out + t * channels);
  }
}

Result<Team> Team::Create(const Kernels& kernels, size_t threads) {
  Team team;
  team.kernels_ = &kernels;
  const size_t processors = std::max(1u, std::thread::hardware_concurrency());
  team.workers_ = std::min(threads, processors);
  if (team.workers_ > 1) {
    team.pool_.reset(pthreadpool_create(team.workers_));
    if (team.pool_ == nullptr) {
      return Error(Code::kOutOfMemory, "cannot start %zu threads", team.workers_);
    }
  }
  return team;
}

}  // namespace adder
