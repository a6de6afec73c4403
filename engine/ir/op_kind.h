// Every operation a graph can hold. What each one means stands in engine/ops, one file per op.
#ifndef AMPD_ENGINE_IR_OP_KIND_H_
#define AMPD_ENGINE_IR_OP_KIND_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace ampd::ir {

// One line an operation: enumerator, name. Gradient operations stand behind the operation they belong to.
#define AMPD_OP_KINDS(X)                                    \
  /* Elementwise */                                         \
  X(kCast, "cast")                                          \
  X(kAdd, "add")                                            \
  X(kRelu, "relu")                                          \
  X(kReluGrad, "relu_grad")                                 \
  X(kDropout, "dropout")                                    \
  X(kBiasAdd, "bias_add")                                   \
  X(kBiasAddGrad, "bias_add_grad")                          \
  /* Reductions */                                          \
  X(kReduceMean, "reduce_mean")                             \
  X(kReduceMeanGrad, "reduce_mean_grad")                    \
  /* Moving data */                                         \
  X(kReshape, "reshape")                                    \
  /* Products, windows */                                   \
  X(kMatmul, "matmul")                                      \
  X(kConv2d, "conv2d")                                      \
  X(kConv2dGradInput, "conv2d_grad_input")                  \
  X(kConv2dGradFilter, "conv2d_grad_filter")                \
  X(kMaxPool2d, "max_pool2d")                               \
  X(kMaxPool2dGrad, "max_pool2d_grad")                      \
  X(kAvgPool2d, "avg_pool2d")                               \
  X(kAvgPool2dGrad, "avg_pool2d_grad")                      \
  X(kGlobalAvgPool, "global_avg_pool")                      \
  X(kGlobalAvgPoolGrad, "global_avg_pool_grad")             \
  /* Norms, attention */                                    \
  X(kBatchNorm, "batch_norm")                               \
  X(kBatchNormGrad, "batch_norm_grad")                      \
  X(kBatchNormInference, "batch_norm_inference")            \
  X(kBatchNormUpdate, "batch_norm_update")                  \
  /* Sequences */                                           \
  /* Losses, metrics */                                     \
  X(kSoftmaxCrossEntropy, "softmax_cross_entropy")          \
  X(kSoftmaxCrossEntropyGrad, "softmax_cross_entropy_grad") \
  X(kSquaredError, "squared_error")                         \
  X(kSquaredErrorGrad, "squared_error_grad")                \
  X(kArgmaxEqual, "argmax_equal")                           \
  /* 8-bit operands */                                      \
  X(kQuantize, "quantize")                                  \
  X(kDequantize, "dequantize")                              \
  X(kAmaxUpdate, "amax_update")                             \
  /* The backward pass */                                   \
  X(kAccumulateGrad, "accumulate_grad")

enum class OpKind : uint8_t {
#define X(kind, name) kind,
  AMPD_OP_KINDS(X)
#undef X
};

inline constexpr OpKind kAllOpKinds[] = {
#define X(kind, name) OpKind::kind,
    AMPD_OP_KINDS(X)
#undef X
};

// As printed, e.g. "conv2d_grad_input".
absl::string_view OpName(OpKind kind);

}  // namespace ampd::ir

#endif  // AMPD_ENGINE_IR_OP_KIND_H_
