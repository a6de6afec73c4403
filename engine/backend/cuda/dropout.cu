#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/dropout.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, int N, bool kWhole>
__global__ void __launch_bounds__(kThreads) Dropout(const T* __restrict__ x, RowRuns runs, DropoutConfig config,
                                                    const runtime::StepState* __restrict__ step, T* __restrict__ y) {
  DropoutOfRuns<T, N, kWhole>(x, runs, config, *step, y);
}

template <typename T>
std::unique_ptr<runtime::Kernel> Prepare(const Context* context, const runtime::NodeDesc& desc) {
  const DropoutConfig config = DropoutConfig::Of(desc.attributes);
  const RowRuns packs(desc.inputs[0].shape, kPack<T>), fours(desc.inputs[0].shape, 4);
  const bool whole = packs.row_size % kPack<T> == 0;
  const RowRuns runs = whole ? packs : fours;
  const auto kernel = whole ? Dropout<T, kPack<T>, true> : Dropout<T, 4, false>;
  const unsigned blocks = BlocksFor(runs.runs(), kThreads, context->properties().sm_count);
  return MakeKernel(0, [=, name = desc.name](const runtime::KernelArgs& args) {
    return Launch(name, kernel, blocks, kThreads, 0, context->stream(), args.inputs[0].as<T>(), runs, config, args.step,
                  args.outputs[0].as<T>());
  });
}

}  // namespace

void RegisterDropout(runtime::KernelTable* table, Context* context) {
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kDropout, {t}, {t}, [context](const runtime::NodeDesc& desc) {
      return VisitData(desc.inputs[0].dtype,
                       [&](auto tag) { return Prepare<typename decltype(tag)::type>(context, desc); });
    });
  }
}

}  // namespace ampd::cuda
