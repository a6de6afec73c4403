// Convolutions and what is fused with them, as cuDNN's graphs.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CUDNN_CONV_GRAPH_H_
#define AMPD_ENGINE_BACKEND_CUDA_CUDNN_CONV_GRAPH_H_

#include <utility>
#include <vector>

#include "engine/backend/cuda/conv.h"
#include "engine/backend/cuda/cudnn/graph.h"

namespace ampd::cuda::cudnn {

// Which pointer of ConvArgs a tensor of the graph is.
enum class ConvOperand {
  kA,
  kB,
  kResult,
  kBias,
  kScale,
  kSum,
  kSumOfSquares,
  kX,
  kMean,
  kInverseDeviation,
  kScaleGradient,
  kBiasGradient,
  kCoefficientDy,
  kCoefficientX,
  kCoefficient1,
};

struct ConvGraph {
  GraphDesc graph;
  // Indices of the tensors that are stored.
  std::vector<std::pair<int, ConvOperand>> operands;
};

// `intermediate`: the dtype of what is computed on the way and never stored. INVALID_ARGUMENT when the fusion is not
// one of the kind.
absl::StatusOr<ConvGraph> DescribeConv(const ConvDesc& desc, DType intermediate = DType::kF32);

void* PointerOf(const ConvArgs& args, ConvOperand operand);

}  // namespace ampd::cuda::cudnn

#endif  // AMPD_ENGINE_BACKEND_CUDA_CUDNN_CONV_GRAPH_H_
