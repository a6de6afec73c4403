#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;

// A slot of the gradient arena starts at a multiple of 16 bytes, as every tensor does.
template <typename T, bool kOverwrite>
__global__ void Accumulate(const T* __restrict__ gradient, int64_t size, float* __restrict__ sum) {
  constexpr int kN = 4;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = first; i < size / kN; i += stride) {
    const auto g = reinterpret_cast<const Pack<T, kN>*>(gradient)[i];
    Pack<float, kN> s = {};
    if (!kOverwrite) s = reinterpret_cast<Pack<float, kN>*>(sum)[i];
    for (int j = 0; j < kN; ++j) s.values[j] = kOverwrite ? Load(g.values[j]) : s.values[j] + Load(g.values[j]);
    reinterpret_cast<Pack<float, kN>*>(sum)[i] = s;
  }
  const int64_t rest = size / kN * kN + first;
  if (rest < size) sum[rest] = kOverwrite ? Load(gradient[rest]) : sum[rest] + Load(gradient[rest]);
}

}  // namespace

void RegisterAccumulateGrad(runtime::KernelTable* table, Context* context) {
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kAccumulateGrad, {t, DType::kF32}, {}, [context](const runtime::NodeDesc& desc) {
      const bool overwrite = desc.attributes.Bool("overwrite");
      return MakeKernel(0, [context, name = desc.name, overwrite](const runtime::KernelArgs& args) {
        const TensorView& g = args.inputs[0];
        return VisitData(g.dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          const unsigned blocks = BlocksFor(CeilDiv(g.size(), 4), kThreads, context->properties().sm_count);
          return Launch(name, overwrite ? Accumulate<T, true> : Accumulate<T, false>, blocks, kThreads, 0,
                        context->stream(), g.as<T>(), g.size(), args.inputs[1].as<float>());
        });
      });
    });
  }
}

}  // namespace ampd::cuda
