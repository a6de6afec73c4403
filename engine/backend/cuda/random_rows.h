// The random numbers of a node whose first axis is the batch: by row and element, as engine/core/rng.h defines them.
// For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_RANDOM_ROWS_H_
#define AMPD_ENGINE_BACKEND_CUDA_RANDOM_ROWS_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/strided_index.h"
#include "engine/core/rng.h"
#include "engine/runtime/step_state.h"

namespace ampd::cuda {

// A tensor cut into runs of `width` elements of one row, the row's last run shorter. Plain data, passed to kernels by
// value.
struct RowRuns {
  int64_t rows = 0;
  int64_t row_size = 0;
  int64_t runs_per_row = 0;
  Divisor divisor;
  int32_t width = 0;

  RowRuns(const Shape& shape, int width)
      : rows(shape.empty() ? 1 : shape[0]),
        row_size(NumElements(shape) / std::max<int64_t>(rows, 1)),
        runs_per_row(CeilDiv(row_size, width)),
        width(width) {
    if (runs() < int64_t{1} << 31) divisor = Divisor(runs_per_row);
  }
  __host__ __device__ int64_t runs() const { return rows * runs_per_row; }

  // Row and first element in it of run `r`.
  __device__ __forceinline__ void Place(int64_t r, int64_t* row, int64_t* element) const {
    *row = runs() < int64_t{1} << 31 ? divisor.Divide(static_cast<uint32_t>(r)) : r / runs_per_row;
    *element = (r - *row * runs_per_row) * width;
  }
};

// Draws first..first+N-1 of the sample at `row` of this micro-batch; four divides `first` and N.
template <int N>
__device__ __forceinline__ void Draw(const runtime::StepState& step, uint32_t stream, int64_t row, int64_t first,
                                     uint32_t (&words)[N]) {
  const uint32_t sample = step.first_sample + static_cast<uint32_t>(row);
  for (int i = 0; i < N; i += 4) {
    const PhiloxBlock block =
        Philox4x32(RngCounter(step.attempted_step, sample, static_cast<uint64_t>(first + i), stream), step.seed);
    for (int j = 0; j < 4; ++j) words[i + j] = block[j];
  }
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_RANDOM_ROWS_H_
