// The cases of kernel_cases.h for mamba3_rotate, mamba3_scan and mimo_gate.
#pragma once

#include "tests/kernel_cases.h"

namespace adder {

struct Mamba3Shape {
  size_t tokens, heads, head_begin, head_end, head_blocks, d_state, rank, heads_per_group, n_angles;
  size_t gap = 0;

  size_t groups() const { return (heads - 1) / heads_per_group + 1; }
  size_t kq() const { return heads * rank * d_state; }
  size_t channels() const { return heads * head_blocks * kLanes; }
};

inline Outputs RunMamba3Rotate(const Kernels& kernels, const Inputs& inputs,
                               const Mamba3Shape& shape) {
  Source source(inputs);
  const size_t bc = shape.rank * shape.groups() * shape.d_state;
  const size_t bc_stride = RoundUp(bc, kLanes) + shape.gap;
  const size_t dt_stride = RoundUp(shape.heads, kLanes) + shape.gap;
  const size_t angles = RoundUp(shape.n_angles, kLanes);
  const size_t kq_stride = shape.kq() + shape.gap;
  const size_t last = shape.tokens - 1;
  GuardedBuffer<float> b(last * bc_stride + bc, inputs.guard, alignof(float));
  GuardedBuffer<float> c(last * bc_stride + bc, inputs.guard, alignof(float));
  GuardedBuffer<float> b_bias(shape.kq(), inputs.guard, alignof(float));
  GuardedBuffer<float> c_bias(shape.kq(), inputs.guard, alignof(float));
  GuardedBuffer<float> dt(last * dt_stride + shape.heads, inputs.guard, alignof(float));
  GuardedBuffer<float> angle(shape.tokens * angles, inputs.guard);
  GuardedBuffer<float> turns(shape.heads * angles, inputs.guard);
  GuardedBuffer<float> k(last * kq_stride + shape.kq(), inputs.guard, alignof(float));
  GuardedBuffer<float> q(last * kq_stride + shape.kq(), inputs.guard, alignof(float));
  for (auto* buffer : {&b, &c, &b_bias, &c_bias, &dt, &angle, &turns, &k, &q})
    FillFloats(&source, buffer);
  for (float& v : dt) v = std::fabs(v);
  if (inputs.fill == Fill::kEdges) {  // where tanh changes its form
    for (float& v : angle) {
      const uint32_t step = source.Below(3);
      const float edge = step == 0 ? kTanhMax : std::nextafter(kTanhMax, step == 1 ? 0.0f : 1.0f);
      v = std::copysign(edge, v);
    }
  }
  for (auto* buffer : {&b, &c, &b_bias, &c_bias, &dt, &angle}) buffer->MakeReadOnly();
  const Mamba3RotateArgs args = {.tokens = shape.tokens,
                                 .head_begin = shape.head_begin,
                                 .head_end = shape.head_end,
                                 .d_state = shape.d_state,
                                 .rank = shape.rank,
                                 .groups = shape.groups(),
                                 .n_angles = shape.n_angles,
                                 .heads_per_group = shape.heads_per_group,
                                 .bc_stride = bc_stride,
                                 .dt_stride = dt_stride,
                                 .angle_stride = angles,
                                 .kq_stride = kq_stride,
                                 .b = b.data(),
                                 .c = c.data(),
                                 .b_bias = b_bias.data(),
                                 .c_bias = c_bias.data(),
                                 .dt = dt.data(),
                                 .angle = angle.data(),
                                 .turns = turns.data(),
                                 .k = k.data(),
                                 .q = q.data()};
  kernels.mamba3_rotate(&args);
  Outputs outputs;
  outputs.Append(k);
  outputs.Append(q);
  // What lies behind the angles of a head is of no account.
  for (size_t i = 0; i < turns.size(); ++i) {
    if (i % angles >= shape.n_angles) turns[i] = 0.0f;
  }
  outputs.Append(turns);
  return outputs;
}

inline Outputs RunMamba3Scan(const Kernels& kernels, const Inputs& inputs,
                             const Mamba3Shape& shape) {
  Source source(inputs);
  const size_t stride = shape.channels() + shape.gap;
  const size_t heads_stride = RoundUp(shape.heads, kLanes) + shape.gap;
  const size_t kq_stride = shape.kq() + shape.gap;
  const size_t last = shape.tokens - 1;
  const size_t per_head = last * heads_stride + shape.heads;
  const bool mimo = shape.rank > 1 || shape.gap > 0;
  GuardedBuffer<float> x(shape.tokens * stride, inputs.guard);
  GuardedBuffer<float> dt(per_head, inputs.guard, alignof(float));
  GuardedBuffer<float> a(per_head, inputs.guard, alignof(float));
  GuardedBuffer<float> trap(per_head, inputs.guard, alignof(float));
  GuardedBuffer<float> k(last * kq_stride + shape.kq(), inputs.guard, alignof(float));
  GuardedBuffer<float> q(last * kq_stride + shape.kq(), inputs.guard, alignof(float));
  GuardedBuffer<float> mimo_x(shape.rank * stride, inputs.guard);
  GuardedBuffer<float> d(shape.channels(), inputs.guard);
  GuardedBuffer<float> state(shape.channels() * shape.d_state, inputs.guard);
  GuardedBuffer<float> k_last(shape.kq(), inputs.guard, alignof(float));
  GuardedBuffer<float> x_last(shape.channels(), inputs.guard);
  GuardedBuffer<float> y(shape.tokens * shape.rank * stride, inputs.guard);
  for (auto* buffer : {&x, &dt, &a, &trap, &k, &q, &mimo_x, &d, &state, &k_last, &x_last, &y})
    FillFloats(&source, buffer);
  for (float& v : dt) v = std::fabs(v);
  for (auto* buffer : {&x, &dt, &a, &trap, &k, &q, &mimo_x, &d}) buffer->MakeReadOnly();
  const Mamba3ScanArgs args = {.tokens = shape.tokens,
                               .head_begin = shape.head_begin,
                               .head_end = shape.head_end,
                               .head_blocks = shape.head_blocks,
                               .d_state = shape.d_state,
                               .rank = shape.rank,
                               .stride = stride,
                               .heads_stride = heads_stride,
                               .kq_stride = kq_stride,
                               .a_floor = 0x1p-10f,
                               .x = x.data(),
                               .dt = dt.data(),
                               .a = a.data(),
                               .trap = trap.data(),
                               .k = k.data(),
                               .q = q.data(),
                               .mimo_x = mimo ? mimo_x.data() : nullptr,
                               .d = d.data(),
                               .state = state.data(),
                               .k_last = k_last.data(),
                               .x_last = x_last.data(),
                               .y = y.data()};
  kernels.mamba3_scan(&args);
  Outputs outputs;
  outputs.Append(y);
  outputs.Append(state);
  outputs.Append(k_last);
  outputs.Append(x_last);
  return outputs;
}

inline Outputs RunMimoGate(const Kernels& kernels, const Inputs& inputs, size_t rank, size_t n) {
  Source source(inputs);
  GuardedBuffer<float> y(rank * n, inputs.guard), z(n, inputs.guard), out(n, inputs.guard);
  GuardedBuffer<float> mimo_z(rank * n, inputs.guard), mimo_o(rank * n, inputs.guard);
  for (auto* buffer : {&y, &z, &mimo_z, &mimo_o}) {
    FillFloats(&source, buffer);
    buffer->MakeReadOnly();
  }
  kernels.mimo_gate(y.data(), z.data(), mimo_z.data(), mimo_o.data(), rank, n, out.data());
  Outputs outputs;
  outputs.Append(out);
  return outputs;
}

}  // namespace adder
