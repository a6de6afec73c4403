#include <algorithm>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

constexpr DType kFloatTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};

void ToFloat8Saturating(const float* from, int64_t n, const TensorView& y, int64_t first) {
  if (y.dtype == DType::kF8E4M3) return FloatToFloat8Saturating(from, n, y.as<Float8E4M3>() + first);
  FloatToFloat8Saturating(from, n, y.as<Float8E5M2>() + first);
}

void CastSaturating(int threads, const TensorView& x, const TensorView& y) {
  ParallelRange(PartsFor(threads, y.size(), kMinElementsPerThread), y.size(), kBlock,
                [&](int, int64_t begin, int64_t end) {
                  alignas(64) float buffer[kBlock];
                  for (int64_t i = begin; i < end; i += kBlock) {
                    const int64_t m = std::min(kBlock, end - i);
                    ToFloat8Saturating(Load(x, i, m, buffer), m, y, i);
                  }
                });
}

std::unique_ptr<runtime::Kernel> PrepareCast(const runtime::NodeDesc& desc) {
  if (desc.attributes.Bool("saturate") && IsF8(desc.outputs[0].dtype)) {
    return MakeKernel(0, [threads = desc.threads](const runtime::KernelArgs& args) {
      CastSaturating(threads, args.inputs[0], args.outputs[0]);
    });
  }
  return MakeKernel(0, [threads = desc.threads](const runtime::KernelArgs& args) {
    const TensorView& x = args.inputs[0];
    const TensorView& y = args.outputs[0];
    ParallelConvert(threads, x.dtype, x.data, y.size(), y.dtype, y.data);
  });
}

}  // namespace

void RegisterCast(runtime::KernelTable* table) {
  for (DType from : kFloatTypes) {
    for (DType to : kFloatTypes) table->Add(ir::OpKind::kCast, {from}, {to}, PrepareCast);
  }
}

}  // namespace ampd::cpu
