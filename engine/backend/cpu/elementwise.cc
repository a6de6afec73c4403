#include <algorithm>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

using UnaryLoop = void (*)(const float* x, int64_t n, float* y);
using BinaryLoop = void (*)(const float* a, const float* b, int64_t n, float* y);

AMPD_CPU_CLONES void AddLoop(const float* __restrict a, const float* __restrict b, int64_t n, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

// The negated comparison keeps NaN.
AMPD_CPU_CLONES void ReluLoop(const float* __restrict x, int64_t n, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] <= 0 ? 0.0f : x[i];
}

AMPD_CPU_CLONES void ReluGradLoop(const float* __restrict dy, const float* __restrict y, int64_t n,
                                  float* __restrict dx) {
  for (int64_t i = 0; i < n; ++i) dx[i] = y[i] <= 0 ? 0.0f : dy[i];
}

void RunUnary(int threads, UnaryLoop loop, const KernelArgs& args) {
  const int64_t n = args.outputs[0].size();
  ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock, [&](int, int64_t begin, int64_t end) {
    alignas(64) float in[kBlock], out[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t m = std::min(kBlock, end - i);
      float* y = Target(args.outputs[0], i, out);
      loop(Load(args.inputs[0], i, m, in), m, y);
      Store(args.outputs[0], i, m, y);
    }
  });
}

void RunBinary(int threads, BinaryLoop loop, const KernelArgs& args) {
  const int64_t n = args.outputs[0].size();
  ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock, [&](int, int64_t begin, int64_t end) {
    alignas(64) float in0[kBlock], in1[kBlock], out[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t m = std::min(kBlock, end - i);
      float* y = Target(args.outputs[0], i, out);
      loop(Load(args.inputs[0], i, m, in0), Load(args.inputs[1], i, m, in1), m, y);
      Store(args.outputs[0], i, m, y);
    }
  });
}

runtime::PrepareKernel Unary(UnaryLoop loop) {
  return [loop](const NodeDesc& desc) {
    return MakeKernel(0, [loop, threads = desc.threads](const KernelArgs& args) { RunUnary(threads, loop, args); });
  };
}

runtime::PrepareKernel Binary(BinaryLoop loop) {
  return [loop](const NodeDesc& desc) {
    return MakeKernel(0, [loop, threads = desc.threads](const KernelArgs& args) { RunBinary(threads, loop, args); });
  };
}

}  // namespace

void RegisterElementwise(runtime::KernelTable* table) {
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kAdd, {t, t}, {t}, Binary(AddLoop));
    table->Add(ir::OpKind::kRelu, {t}, {t}, Unary(ReluLoop));
    table->Add(ir::OpKind::kReluGrad, {t, t}, {t}, Binary(ReluGradLoop));
  }
}

}  // namespace ampd::cpu
