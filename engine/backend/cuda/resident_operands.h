// Operands of a resident program's instructions. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_RESIDENT_OPERANDS_H_
#define AMPD_ENGINE_BACKEND_CUDA_RESIDENT_OPERANDS_H_

#include <cstdint>

#include "engine/backend/cuda/cross_entropy.h"
#include "engine/backend/cuda/dropout.h"
#include "engine/backend/cuda/random_rows.h"
#include "engine/backend/cuda/regression_loss.h"
#include "engine/core/dtype.h"

namespace ampd::cuda {

// Addresses as resident_program.h tags them.

struct ResidentDropout {
  RowRuns runs;  // of four
  DropoutConfig config;
  DType dtype;
  const void* from;
  void* to;
};

// A matrix from the beginning of another, zero where that ends.
struct ResidentBox {
  int32_t from_rows, from_columns, rows, columns;
  int32_t bytes;  // of an element
  const void* from;
  void* to;
};

struct ResidentVector {
  int64_t size;  // of the larger of both
  int32_t rows, columns;
  DType dtype;  // of `from`
  const void* from;
  float* to;
};

struct ResidentWeighted {
  int64_t size;
  const float *from, *weights;
  float* to;
};

struct ResidentLoss {
  LossSamples samples;
  LossOperands operands;
  const float* dlosses;
  float* to;
};

// The mean of a loss and its gradient by the prediction. The losses themselves, and the gradient by each, are nowhere.
struct ResidentMeanLoss {
  LossSamples samples;
  LossOperands operands;
  const float* dmean;
  float *mean, *dprediction;
};

struct ResidentCrossEntropy {
  Goal goal;
  int64_t rows;
  const float *logits, *dlosses;
  float *to, *weights;
};

// Rows of so many classes are a warp's.
using ResidentRowTeam = RowTeam<1, kWarpItems, true>;
inline constexpr int64_t kMostResidentClasses = kWarp * kWarpItems;

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_RESIDENT_OPERANDS_H_
