#include <cmath>

#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/random_rows.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 4;

// Of kWords draws each.
struct Uniform {
  static constexpr int kWords = 1;
  __device__ static float Of(const uint32_t* words) { return 2.0f * UniformFloat(words[0]) - 1.0f; }
};

// Box and Muller 1958. In double, so that other machines' mathematics rounds to the same float.
struct Normal {
  static constexpr int kWords = 2;
  __device__ static float Of(const uint32_t* words) {
    constexpr double kTwoPi = 6.283185307179586477;
    const double radius = sqrt(-2.0 * log(1.0 - static_cast<double>(UniformFloat(words[0]))));
    return static_cast<float>(radius * cos(kTwoPi * static_cast<double>(UniformFloat(words[1]))));
  }
};

template <typename Distribution>
__global__ void __launch_bounds__(kThreads)
    FillRandom(RowRuns runs, uint32_t stream, const runtime::StepState* __restrict__ step, float* __restrict__ y) {
  constexpr int kWords = Distribution::kWords;
  const runtime::StepState state = *step;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; r < runs.runs(); r += stride) {
    int64_t row, element;
    runs.Place(r, &row, &element);
    uint32_t words[kWidth * kWords];
    Draw(state, stream, row, kWords * element, words);
    Pack<float, kWidth> values;
    for (int j = 0; j < kWidth; ++j) values.values[j] = Distribution::Of(words + kWords * j);
    float* target = y + row * runs.row_size + element;
    if (runs.row_size % kWidth == 0) {
      *reinterpret_cast<Pack<float, kWidth>*>(target) = values;
    } else {
      for (int j = 0; j < kWidth; ++j) {
        if (element + j < runs.row_size) target[j] = values.values[j];
      }
    }
  }
}

template <typename Distribution>
runtime::PrepareKernel Prepare(const Context* context) {
  return [context](const runtime::NodeDesc& desc) {
    const RowRuns runs(desc.outputs[0].shape, kWidth);
    const auto stream = static_cast<uint32_t>(desc.attributes.Int("stream"));
    const unsigned blocks = BlocksFor(runs.runs(), kThreads, context->properties().sm_count);
    return MakeKernel(0, [=, name = desc.name](const runtime::KernelArgs& args) {
      return Launch(name, FillRandom<Distribution>, blocks, kThreads, 0, context->stream(), runs, stream, args.step,
                    args.outputs[0].as<float>());
    });
  };
}

}  // namespace

void RegisterRandom(runtime::KernelTable* table, Context* context) {
  table->Add(ir::OpKind::kRandomNormal, {}, {DType::kF32}, Prepare<Normal>(context));
  table->Add(ir::OpKind::kRandomUniform, {}, {DType::kF32}, Prepare<Uniform>(context));
}

}  // namespace ampd::cuda
