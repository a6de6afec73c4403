// The losses of a prediction against a target (engine/ops/loss_elements.h), sample by sample. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_REGRESSION_LOSS_H_
#define AMPD_ENGINE_BACKEND_CUDA_REGRESSION_LOSS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/backend/cuda/strided_index.h"
#include "engine/core/status.h"
#include "engine/ops/loss_elements.h"
#include "engine/runtime/kernel_table.h"

namespace ampd::cuda {

struct LossOperands {
  const float *prediction = nullptr, *target = nullptr, *weights = nullptr;

  // `first` is the prediction's place among the inputs.
  static LossOperands Of(const runtime::KernelArgs& args, size_t first) {
    LossOperands o{args.inputs[first].as<float>(), args.inputs[first + 1].as<float>()};
    if (args.inputs.size() > first + 2) o.weights = args.inputs[first + 2].as<float>();
    return o;
  }
};

// Samples of `features` elements.
struct LossSamples {
  int64_t samples, features;
  double number;                  // beta or margin
  StridedIndex sample_of, place;  // an element's sample, and its place on the last axis

  // `desc` is of such a loss or its gradient; `shape` is the prediction's.
  static absl::StatusOr<LossSamples> Of(const runtime::NodeDesc& desc, const Shape& shape) {
    LossSamples s{.samples = shape[0],
                  .features = NumElements(shape) / shape[0],
                  .number = desc.attributes.Double("beta", desc.attributes.Double("margin", 1))};
    const int64_t size = NumElements(shape), last = shape.back();
    AMPD_ASSIGN_OR_RETURN(s.sample_of, MakeStridedIndex(desc.name, {{s.samples, s.features}, {1, 0}, 0}));
    AMPD_ASSIGN_OR_RETURN(s.place, MakeStridedIndex(desc.name, {{size / last, last}, {0, 1}, 0}));
    return s;
  }

  __device__ __forceinline__ ops::LossElement At(const LossOperands& o, int64_t i) const {
    const double positive = o.weights != nullptr ? static_cast<double>(o.weights[place.At(i)]) : 1.0;
    return {static_cast<double>(o.prediction[i]), static_cast<double>(o.target[i]), number, positive};
  }
};

// A sample's loss, the mean over its elements, by a team.
template <ops::LossFunction kElement, typename Team>
__device__ __forceinline__ float LossOfSample(const LossSamples& s, const LossOperands& o, int64_t row) {
  double sum = 0;
  Team::ForEach(s.features, [&](int, int64_t column) { sum += kElement(s.At(o, row * s.features + column)); });
  sum = Team::Sum(sum);
  // A division takes longer than all the rest of one feature.
  if (s.features != 1) sum /= static_cast<double>(s.features);
  return static_cast<float>(sum);
}

// By every team there is.
template <ops::LossFunction kElement, typename Team>
__device__ __forceinline__ void LossesOfSamples(const LossSamples& s, const LossOperands& o,
                                                float* __restrict__ losses) {
  for (int64_t row = Team::First(); row < s.samples; row += Team::Step()) {
    const float loss = LossOfSample<kElement, Team>(s, o, row);
    if (Team::rank() == 0) losses[row] = loss;
  }
}

// Of element i, where its sample's loss has gradient `dloss`.
template <ops::LossFunction kElement>
__device__ __forceinline__ float LossGradOfElement(const LossSamples& s, const LossOperands& o, float dloss,
                                                   int64_t i) {
  double share = static_cast<double>(dloss);
  if (s.features != 1) share /= static_cast<double>(s.features);
  return static_cast<float>(share * kElement(s.At(o, i)));
}

template <ops::LossFunction kElement>
__device__ __forceinline__ void LossesGradOfSamples(const LossSamples& s, const LossOperands& o,
                                                    const float* __restrict__ dlosses,
                                                    float* __restrict__ dprediction) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < s.samples * s.features;
       i += stride) {
    const float dloss = dlosses[s.features == 1 ? i : s.sample_of.At(i)];
    dprediction[i] = LossGradOfElement<kElement>(s, o, dloss, i);
  }
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_REGRESSION_LOSS_H_
