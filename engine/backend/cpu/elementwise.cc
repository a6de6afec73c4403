#include <algorithm>

#include "engine/backend/cpu/block_functions.h"
#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

// One op over whole tensors of one shape.
std::unique_ptr<runtime::Kernel> PrepareElementwise(const NodeDesc& desc) {
  const BlockFunction function = MakeBlockFunction(desc.op, desc.attributes);
  return MakeKernel(0, [function, threads = desc.threads](const KernelArgs& args) {
    const int64_t n = args.outputs[0].size();
    ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock, [&](int, int64_t begin, int64_t end) {
      alignas(64) float in[2][kBlock], out[kBlock];
      const float* operands[2] = {};
      for (int64_t i = begin; i < end; i += kBlock) {
        const int64_t m = std::min(kBlock, end - i);
        for (size_t k = 0; k < args.inputs.size(); ++k) operands[k] = Load(args.inputs[k], i, m, in[k]);
        float* y = Target(args.outputs[0], i, out);
        function(operands, m, y);
        Store(args.outputs[0], i, m, y);
      }
    });
  });
}

}  // namespace

void RegisterElementwise(runtime::KernelTable* table) {
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kAdd, {t, t}, {t}, PrepareElementwise);
    table->Add(ir::OpKind::kRelu, {t}, {t}, PrepareElementwise);
    table->Add(ir::OpKind::kReluGrad, {t, t}, {t}, PrepareElementwise);
  }
}

}  // namespace ampd::cpu
