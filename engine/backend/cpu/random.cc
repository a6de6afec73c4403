#include <algorithm>
#include <cmath>

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/core/rng.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

// Four words of one sample's stream, from draw `element` on, which four divides.
PhiloxBlock Draw(const KernelArgs& args, uint32_t stream, int64_t row, int64_t element) {
  const uint32_t sample = args.step->first_sample + static_cast<uint32_t>(row);
  return Philox4x32(RngCounter(args.step->attempted_step, sample, static_cast<uint64_t>(element), stream),
                    args.step->seed);
}

// Box and Muller 1958. In double, so that other machines' mathematics rounds to the same float.
float Normal(uint32_t a, uint32_t b) {
  constexpr double kTwoPi = 6.283185307179586477;
  const double radius = std::sqrt(-2.0 * std::log(1.0 - static_cast<double>(UniformFloat(a))));
  return static_cast<float>(radius * std::cos(kTwoPi * static_cast<double>(UniformFloat(b))));
}

void NormalRow(const KernelArgs& args, uint32_t stream, int64_t row, int64_t size, float* y) {
  for (int64_t e = 0; e < size; e += 2) {
    const PhiloxBlock words = Draw(args, stream, row, 2 * e);
    y[e] = Normal(words[0], words[1]);
    if (e + 1 < size) y[e + 1] = Normal(words[2], words[3]);
  }
}

void UniformRow(const KernelArgs& args, uint32_t stream, int64_t row, int64_t size, float* y) {
  for (int64_t e = 0; e < size; e += 4) {
    const PhiloxBlock words = Draw(args, stream, row, e);
    for (int64_t i = 0; i < std::min<int64_t>(4, size - e); ++i) y[e + i] = 2.0f * UniformFloat(words[i]) - 1.0f;
  }
}

template <void (*kRow)(const KernelArgs&, uint32_t, int64_t, int64_t, float*)>
std::unique_ptr<runtime::Kernel> PrepareRandom(const NodeDesc& desc) {
  const Shape shape = desc.outputs[0].shape;
  const int64_t rows = shape[0], size = NumElements(shape) / std::max<int64_t>(rows, 1);
  const auto stream = static_cast<uint32_t>(desc.attributes.Int("stream"));
  const int parts = PartsFor(desc.threads, rows * size, kMinElementsPerThread / 32);
  return MakeKernel(0, [=](const KernelArgs& args) {
    float* y = args.outputs[0].as<float>();
    ParallelRange(parts, rows, 1, [&](int, int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) kRow(args, stream, row, size, y + row * size);
    });
  });
}

}  // namespace

void RegisterRandom(runtime::KernelTable* table) {
  table->Add(ir::OpKind::kRandomNormal, {}, {DType::kF32}, PrepareRandom<NormalRow>);
  table->Add(ir::OpKind::kRandomUniform, {}, {DType::kF32}, PrepareRandom<UniformRow>);
}

}  // namespace ampd::cpu
