#include <algorithm>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

AMPD_CPU_CLONES void AccumulateLoop(const float* __restrict g, int64_t n, float* __restrict sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += g[i];
}

void Accumulate(int threads, bool overwrite, const runtime::KernelArgs& args) {
  const int64_t n = args.inputs[0].size();
  float* arena = args.inputs[1].as<float>();
  ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock, [&](int, int64_t begin, int64_t end) {
    alignas(64) float buffer[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t m = std::min(kBlock, end - i);
      const float* g = Load(args.inputs[0], i, m, buffer);
      if (overwrite) {
        std::copy(g, g + m, arena + i);
      } else {
        AccumulateLoop(g, m, arena + i);
      }
    }
  });
}

}  // namespace

void RegisterAccumulateGrad(runtime::KernelTable* table) {
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kAccumulateGrad, {t, DType::kF32}, {}, [](const runtime::NodeDesc& desc) {
      return MakeKernel(0, [threads = desc.threads, overwrite = desc.attributes.Bool("overwrite")](
                               const runtime::KernelArgs& args) { Accumulate(threads, overwrite, args); });
    });
  }
}

}  // namespace ampd::cpu
