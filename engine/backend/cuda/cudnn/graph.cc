#include "engine/backend/cuda/cudnn/graph.h"

#include <initializer_list>
#include <utility>

#include "engine/backend/cuda/cudnn/maker.h"
#include "engine/core/status.h"

namespace ampd::cuda::cudnn {
namespace {

// Every tensor of a plan starts at a multiple of kTensorAlignment; cuDNN's fastest engines ask for this much.
constexpr int64_t kAlignment = 16;

// CUDNN_ATTR_OPERATIONGRAPH_HANDLE, which cuDNN's headers call deprecated since 9.8. Without it 9.14 and 9.19 list few
// engines on an H100 or none, and of those each run ends with ARCH_MISMATCH.
constexpr auto kGraphHandle = static_cast<cudnnBackendAttributeName_t>(800);

cudnnDataType_t DataType(DType dtype) {
  if (dtype == DType::kF16) return CUDNN_DATA_HALF;
  if (dtype == DType::kBF16) return CUDNN_DATA_BFLOAT16;
  if (dtype == DType::kI32) return CUDNN_DATA_INT32;
  if (dtype == DType::kBool) return CUDNN_DATA_BOOLEAN;
  return CUDNN_DATA_FLOAT;
}

absl::StatusOr<Descriptor> MakeTensor(const Tensor& tensor, int64_t id) {
  return Maker(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor")
      .Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, DataType(tensor.dtype))
      .Set(CUDNN_ATTR_TENSOR_DIMENSIONS, tensor.dims)
      .Set(CUDNN_ATTR_TENSOR_STRIDES, tensor.strides)
      .Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id)
      .Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment)
      .Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, tensor.is_virtual)
      .Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, tensor.by_value)
      .Finish();
}

absl::StatusOr<Descriptor> MakeWindow(const Node& node) {
  return Maker(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "convolution")
      .Set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .Set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION)
      .Set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, int64_t{2})
      .Set(CUDNN_ATTR_CONVOLUTION_DILATIONS, node.dilations)
      .Set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, node.strides)
      .Set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, node.before)
      .Set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, node.after)
      .Finish();
}

// Names of the attributes of a convolution's operation, in the order of Node: first operand, second, result.
struct ConvNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t window, alpha, beta;
  std::array<cudnnBackendAttributeName_t, 3> tensors;
};

ConvNames NamesOf(Op op) {
  if (op == Op::kConvForward) {
    return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y}};
  }
  if (op == Op::kConvGradInput) {
    return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX}};
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
          {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW}};
}

using Parts = std::vector<Descriptor>;

absl::StatusOr<Descriptor> MakeConv(const Node& node, const Parts& tensors) {
  const ConvNames names = NamesOf(node.op);
  AMPD_ASSIGN_OR_RETURN(const Descriptor window, MakeWindow(node));
  return Maker(names.type, "convolution")
      .Set(names.window, window)
      .Set(names.alpha, CUDNN_TYPE_FLOAT, 1.0f)
      .Set(names.beta, CUDNN_TYPE_FLOAT, 0.0f)
      .Set(names.tensors[0], tensors[node.inputs[0]])
      .Set(names.tensors[1], tensors[node.inputs[1]])
      .Set(names.tensors[2], tensors[node.outputs[0]])
      .Finish();
}

cudnnPointwiseMode_t PointwiseMode(Op op) {
  switch (op) {
    case Op::kAdd:
      return CUDNN_POINTWISE_ADD;
    case Op::kSubtract:
      return CUDNN_POINTWISE_SUB;
    case Op::kMultiply:
      return CUDNN_POINTWISE_MUL;
    case Op::kDivide:
      return CUDNN_POINTWISE_DIV;
    case Op::kExp:
      return CUDNN_POINTWISE_EXP;
    case Op::kLog:
      return CUDNN_POINTWISE_LOG;
    case Op::kRowIndex:
    case Op::kColumnIndex:
      return CUDNN_POINTWISE_GEN_INDEX;
    case Op::kGreaterEqual:
      return CUDNN_POINTWISE_CMP_GE;
    case Op::kSelect:
      return CUDNN_POINTWISE_BINARY_SELECT;
    case Op::kRelu:
      return CUDNN_POINTWISE_RELU_FWD;
    case Op::kReluGrad:
      return CUDNN_POINTWISE_RELU_BWD;
    default:
      return CUDNN_POINTWISE_IDENTITY;
  }
}

absl::StatusOr<Descriptor> MakePointwiseMode(Op op) {
  const cudnnDataType_t precision = op == Op::kGreaterEqual ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
  Maker maker(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "pointwise");
  maker.Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, PointwiseMode(op))
      .Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, precision);
  // The default makes a 0 of a NaN.
  if (op == Op::kRelu) {
    maker.Set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, CUDNN_PROPAGATE_NAN);
  }
  if (op == Op::kRowIndex) maker.Set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, int64_t{2});
  if (op == Op::kColumnIndex) maker.Set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, int64_t{3});
  return maker.Finish();
}

absl::StatusOr<Descriptor> MakePointwise(const Node& node, const Parts& tensors) {
  AMPD_ASSIGN_OR_RETURN(const Descriptor mode, MakePointwiseMode(node.op));
  Maker maker(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "pointwise");
  maker.Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode);
  if (node.op == Op::kReluGrad) {
    maker.Set(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, tensors[node.inputs[0]])
        .Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensors[node.inputs[1]])
        .Set(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, tensors[node.outputs[0]]);
    return maker.Finish();
  }
  maker.Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensors[node.inputs[0]]);
  if (node.inputs.size() > 1) maker.Set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensors[node.inputs[1]]);
  if (node.inputs.size() > 2) maker.Set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensors[node.inputs[2]]);
  return maker.Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensors[node.outputs[0]]).Finish();
}

absl::StatusOr<Descriptor> MakeMatmul(const Node& node, const Parts& tensors) {
  AMPD_ASSIGN_OR_RETURN(const Descriptor product,
                        Maker(CUDNN_BACKEND_MATMUL_DESCRIPTOR, "matmul")
                            .Set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
                            .Finish());
  return Maker(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "matmul")
      .Set(CUDNN_ATTR_OPERATION_MATMUL_DESC, product)
      .Set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensors[node.inputs[0]])
      .Set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensors[node.inputs[1]])
      .Set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensors[node.outputs[0]])
      .Finish();
}

absl::StatusOr<Descriptor> MakeReduction(const Node& node, const Parts& tensors) {
  const cudnnReduceTensorOp_t kind = node.op == Op::kSum ? CUDNN_REDUCE_TENSOR_ADD : CUDNN_REDUCE_TENSOR_MAX;
  AMPD_ASSIGN_OR_RETURN(const Descriptor reduction,
                        Maker(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "reduction")
                            .Set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, kind)
                            .Set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
                            .Finish());
  return Maker(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "reduction")
      .Set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction)
      .Set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensors[node.inputs[0]])
      .Set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensors[node.outputs[0]])
      .Finish();
}

absl::StatusOr<Descriptor> MakeReshape(const Node& node, const Parts& tensors) {
  return Maker(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "reshape")
      .Set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensors[node.inputs[0]])
      .Set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensors[node.outputs[0]])
      .Finish();
}

absl::StatusOr<Descriptor> MakeStatistics(const Node& node, const Parts& tensors) {
  return Maker(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, "statistics")
      .Set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, CUDNN_GENSTATS_SUM_SQSUM)
      .Set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .Set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, tensors[node.inputs[0]])
      .Set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, tensors[node.outputs[0]])
      .Set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, tensors[node.outputs[1]])
      .Finish();
}

// Sets the tensors that `names` are for, inputs first.
absl::StatusOr<Descriptor> SetInOrder(Maker maker, const Node& node, const Parts& tensors,
                                      std::initializer_list<cudnnBackendAttributeName_t> names) {
  std::vector<int> order = node.inputs;
  order.insert(order.end(), node.outputs.begin(), node.outputs.end());
  size_t i = 0;
  for (cudnnBackendAttributeName_t name : names) maker.Set(name, tensors[order[i++]]);
  return maker.Finish();
}

absl::StatusOr<Descriptor> MakeBatchNormFinalize(const Node& node, const Parts& tensors) {
  Maker maker(CUDNN_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR, "batch norm");
  maker
      .Set(CUDNN_ATTR_OPERATION_BN_FINALIZE_STATS_MODE, CUDNN_TYPE_BN_FINALIZE_STATS_MODE,
           CUDNN_BN_FINALIZE_STATISTICS_TRAINING)
      .Set(CUDNN_ATTR_OPERATION_BN_FINALIZE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  return SetInOrder(
      std::move(maker), node, tensors,
      {CUDNN_ATTR_OPERATION_BN_FINALIZE_Y_SUM_DESC, CUDNN_ATTR_OPERATION_BN_FINALIZE_Y_SQ_SUM_DESC,
       CUDNN_ATTR_OPERATION_BN_FINALIZE_SCALE_DESC, CUDNN_ATTR_OPERATION_BN_FINALIZE_BIAS_DESC,
       CUDNN_ATTR_OPERATION_BN_FINALIZE_EPSILON_DESC, CUDNN_ATTR_OPERATION_BN_FINALIZE_ACCUM_COUNT_DESC,
       CUDNN_ATTR_OPERATION_BN_FINALIZE_SAVED_MEAN_DESC, CUDNN_ATTR_OPERATION_BN_FINALIZE_SAVED_INV_STD_DESC,
       CUDNN_ATTR_OPERATION_BN_FINALIZE_EQ_SCALE_DESC, CUDNN_ATTR_OPERATION_BN_FINALIZE_EQ_BIAS_DESC});
}

absl::StatusOr<Descriptor> MakeBatchNormGrad(const Node& node, const Parts& tensors) {
  Maker maker(CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR, "batch norm's gradient");
  maker.Set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  return SetInOrder(
      std::move(maker), node, tensors,
      {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC,
       CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC,
       CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC,
       CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC,
       CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS});
}

absl::StatusOr<Descriptor> MakeOperation(const Node& node, const Parts& tensors) {
  switch (node.op) {
    case Op::kConvForward:
    case Op::kConvGradInput:
    case Op::kConvGradFilter:
      return MakeConv(node, tensors);
    case Op::kMatmul:
      return MakeMatmul(node, tensors);
    case Op::kMaximum:
    case Op::kSum:
      return MakeReduction(node, tensors);
    case Op::kReshape:
      return MakeReshape(node, tensors);
    case Op::kStatistics:
      return MakeStatistics(node, tensors);
    case Op::kBatchNormFinalize:
      return MakeBatchNormFinalize(node, tensors);
    case Op::kBatchNormGrad:
      return MakeBatchNormGrad(node, tensors);
    default:
      return MakePointwise(node, tensors);
  }
}

}  // namespace

absl::StatusOr<Graph> Graph::Make(const GraphDesc& desc, cudnnHandle_t handle) {
  Graph graph;
  Parts tensors, operations;
  for (size_t i = 0; i < desc.tensors.size(); ++i) {
    AMPD_ASSIGN_OR_RETURN(Descriptor tensor, MakeTensor(desc.tensors[i], static_cast<int64_t>(i)));
    tensors.push_back(std::move(tensor));
  }
  std::vector<void*> pointers;
  for (const Node& node : desc.nodes) {
    AMPD_ASSIGN_OR_RETURN(Descriptor operation, MakeOperation(node, tensors));
    operations.push_back(std::move(operation));
    pointers.push_back(operations.back().get());
  }
  Maker maker(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "operation graph");
  maker.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, absl::Span<void* const>(pointers));
  if (handle != nullptr) maker.Set(kGraphHandle, CUDNN_TYPE_HANDLE, handle);
  AMPD_ASSIGN_OR_RETURN(graph.graph_, maker.Finish());
  graph.parts_ = std::move(tensors);
  graph.parts_.insert(graph.parts_.end(), operations.begin(), operations.end());
  return graph;
}

}  // namespace ampd::cuda::cudnn
