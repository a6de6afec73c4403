#include <algorithm>

#include "engine/backend/cpu/channels.h"
#include "engine/backend/cpu/kernels.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

AMPD_CPU_CLONES void AddLoop(const float* __restrict x, const float* __restrict bias, int64_t n, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] + bias[i];
}

AMPD_CPU_CLONES void SumLoop(const float* __restrict x, int64_t n, double* __restrict sums) {
  for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<double>(x[i]);
}

std::unique_ptr<runtime::Kernel> PrepareBiasAdd(const NodeDesc& desc) {
  const ChannelLoop loop = MakeChannelLoop(desc.inputs[0].shape, desc.threads);
  WorkspaceLayout workspace;
  const int64_t dense_at = workspace.Add(loop.channels * sizeof(float));
  const int64_t repeated_at = workspace.Add(loop.period * sizeof(float));
  return MakeKernel(workspace.bytes(), [=](const KernelArgs& args) {
    float* bias = WorkspaceAt<float>(args, repeated_at);
    loop.Repeat(Load(args.inputs[1], 0, loop.channels, WorkspaceAt<float>(args, dense_at)), bias);
    loop.ForEachPiece([&](int, int64_t first, int64_t n, int64_t offset) {
      alignas(64) float in[kBlock], out[kBlock];
      float* y = Target(args.outputs[0], first, out);
      AddLoop(Load(args.inputs[0], first, n, in), bias + offset, n, y);
      Store(args.outputs[0], first, n, y);
    });
  });
}

std::unique_ptr<runtime::Kernel> PrepareBiasAddGrad(const NodeDesc& desc) {
  const ChannelLoop loop = MakeChannelLoop(desc.inputs[0].shape, desc.threads);
  WorkspaceLayout workspace;
  const int64_t partial_at = workspace.Add(loop.parts * loop.period * sizeof(double));
  const int64_t sums_at = workspace.Add(loop.channels * sizeof(double));
  return MakeKernel(workspace.bytes(), [=](const KernelArgs& args) {
    double* partial = WorkspaceAt<double>(args, partial_at);
    double* sums = WorkspaceAt<double>(args, sums_at);
    std::fill(partial, partial + loop.parts * loop.period, 0.0);
    loop.ForEachPiece([&](int part, int64_t first, int64_t n, int64_t offset) {
      alignas(64) float in[kBlock];
      SumLoop(Load(args.inputs[0], first, n, in), n, partial + part * loop.period + offset);
    });
    loop.FoldSums(partial, loop.period, sums);
    for (int64_t c = 0; c < loop.channels; ++c) args.outputs[0].as<float>()[c] = static_cast<float>(sums[c]);
  });
}

}  // namespace

void RegisterBias(runtime::KernelTable* table) {
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kBiasAdd, {t, t}, {t}, PrepareBiasAdd);
    table->Add(ir::OpKind::kBiasAddGrad, {t}, {DType::kF32}, PrepareBiasAddGrad);
  }
}

}  // namespace ampd::cpu
