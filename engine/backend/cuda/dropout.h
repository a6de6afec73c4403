// Dropout by the design's Philox, run by run. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_DROPOUT_H_
#define AMPD_ENGINE_BACKEND_CUDA_DROPOUT_H_

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/random_rows.h"
#include "engine/ir/graph.h"

namespace ampd::cuda {

struct DropoutConfig {
  // UniformFloat(word) >= rate, exactly, as an integer comparison: word >> 8 >= ceil(rate * 2^24).
  uint32_t threshold = 0;
  float scale = 1;
  uint32_t stream = 0;

  // Of a dropout node.
  static DropoutConfig Of(const ir::Attributes& attributes) {
    const double rate = attributes.Double("rate");
    return {static_cast<uint32_t>(std::ceil(rate * 0x1p24)), static_cast<float>(1 / (1 - rate)),
            static_cast<uint32_t>(attributes.Int("stream"))};
  }
};

// All runs, by every thread there is. kWhole: N divides the rows, so that every run is one aligned access.
template <typename T, int N, bool kWhole>
__device__ __forceinline__ void DropoutOfRuns(const T* __restrict__ x, const RowRuns& runs, const DropoutConfig& config,
                                              const runtime::StepState& state, T* __restrict__ y) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; r < runs.runs(); r += stride) {
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

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_DROPOUT_H_
