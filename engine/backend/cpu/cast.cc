#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"

namespace ampd::cpu {
namespace {

std::unique_ptr<runtime::Kernel> PrepareCast(const runtime::NodeDesc& desc) {
  return MakeKernel(0, [threads = desc.threads](const runtime::KernelArgs& args) {
    const TensorView& x = args.inputs[0];
    const TensorView& y = args.outputs[0];
    ParallelConvert(threads, x.dtype, x.data, y.size(), y.dtype, y.data);
  });
}

}  // namespace

void RegisterCast(runtime::KernelTable* table) {
  for (DType from : kDataTypes) {
    for (DType to : kDataTypes) table->Add(ir::OpKind::kCast, {from}, {to}, PrepareCast);
  }
}

}  // namespace ampd::cpu
