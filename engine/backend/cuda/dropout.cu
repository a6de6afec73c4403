#include <cmath>

#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/random_rows.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;

struct DropoutConfig {
  // UniformFloat(word) >= rate, exactly, as an integer comparison: word >> 8 >= ceil(rate * 2^24).
  uint32_t threshold;
  float scale;
  uint32_t stream;
};

// kWhole: N divides the rows, so that every run is one aligned access.
template <typename T, int N, bool kWhole>
__global__ void __launch_bounds__(kThreads) Dropout(const T* __restrict__ x, RowRuns runs, DropoutConfig config,
                                                    const runtime::StepState* __restrict__ step, T* __restrict__ y) {
  const runtime::StepState state = *step;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; r < runs.runs(); r += stride) {
    int64_t row, element;
    runs.Place(r, &row, &element);
    uint32_t words[N];
    Draw(state, config.stream, row, element, words);
    const auto keep = [&](T value, uint32_t word) {
      const float kept = Load(value) * config.scale;
      return Store<T>(word >> 8 >= config.threshold ? kept : 0.0f);
    };
    const int64_t first = row * runs.row_size + element;
    if constexpr (kWhole) {
      auto pack = *reinterpret_cast<const Pack<T, N>*>(x + first);
      for (int j = 0; j < N; ++j) pack.values[j] = keep(pack.values[j], words[j]);
      *reinterpret_cast<Pack<T, N>*>(y + first) = pack;
    } else {
      for (int j = 0; j < N; ++j) {
        if (element + j < runs.row_size) y[first + j] = keep(x[first + j], words[j]);
      }
    }
  }
}

template <typename T>
std::unique_ptr<runtime::Kernel> Prepare(const Context* context, const runtime::NodeDesc& desc) {
  const double rate = desc.attributes.Double("rate");
  const DropoutConfig config = {static_cast<uint32_t>(std::ceil(rate * 0x1p24)), static_cast<float>(1 / (1 - rate)),
                                static_cast<uint32_t>(desc.attributes.Int("stream"))};
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
