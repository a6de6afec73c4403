// Normalisations.
#include <algorithm>

#include "engine/core/status.h"
#include "engine/models/onnx/exporter.h"

namespace ampd::models::onnx {
namespace {

using ir::OpKind;
using Ints = std::vector<int64_t>;

constexpr double kEpsilon = 1e-5;

Dims Arranged(const Dims& dims, const Arrangement& at) {
  Dims result;
  for (int64_t axis : at.axes) result.push_back(dims[static_cast<size_t>(axis)]);
  return result;
}

T Filled(ExportNode& n, const std::string& name, int64_t count, float value) {
  Tensor tensor(DType::kF32, {count});
  std::fill(tensor.as<float>().begin(), tensor.as<float>().end(), value);
  return n.e.Constant(name, tensor);
}

absl::Status BatchNorm(ExportNode& n) {
  Arrangement at = n.e.At(n.in(0));
  if (at.flattened.empty()) at = ChannelsFirst(n.rank(0));
  std::vector<T> inputs = {n.e.Get(n.in(0), at)};
  for (size_t i = 1; i < n.inputs(); ++i) inputs.push_back(n.e.Get(n.in(i), InOrder(1, at.flattened)));
  ir::Attributes attributes{{"epsilon", n.a.Double("epsilon", kEpsilon)}};
  // ONNX's is the share that stays. Inference has no use for it, a training that begins with the file has.
  if (n.a.Has("momentum")) attributes.Set("momentum", 1 - n.a.Double("momentum"));
  const T y = n.e.Op("BatchNormalization", inputs, Arranged(n.out_dims(), at), attributes);
  n.e.Bind(n.out(), at, y);
  return absl::OkStatus();
}

// A layer norm over the last axis is one over its features in any order.
Arrangement RowArrangement(ExportNode& n, int64_t axis) {
  const Arrangement at = n.e.At(n.in(0));
  const bool last = axis + 1 == static_cast<int64_t>(n.rank(0));
  return InOrder(n.rank(0), last ? at.flattened : Shape());
}

T RowOperand(ExportNode& n, size_t i, const Arrangement& at) {
  return n.e.Get(n.in(i), InOrder(n.rank(i), at.flattened));
}

absl::Status LayerNorm(ExportNode& n) {
  const int64_t axis = n.a.Int("axis");
  const Arrangement at = RowArrangement(n, axis);
  std::vector<T> inputs = {n.e.Get(n.in(0), at)};
  if (n.Has(1)) {
    inputs.push_back(RowOperand(n, 1, at));
  } else {
    const Shape& shape = n.type(0).shape;
    Tensor ones(DType::kF32, Shape(shape.begin() + axis, shape.end()));
    std::fill(ones.as<float>().begin(), ones.as<float>().end(), 1.0f);
    inputs.push_back(n.e.Constant(n.node().name + ".ones", ones));
  }
  if (n.Has(2)) inputs.push_back(RowOperand(n, 2, at));
  const std::vector<bool> wanted = {true, n.e.Uses(n.out(1)) > 0, n.e.Uses(n.out(2)) > 0};
  const std::vector<T> y = n.e.Ops("LayerNormalization", inputs, {n.out_dims(0), n.out_dims(1), n.out_dims(2)}, wanted,
                                   {{"axis", axis}, {"epsilon", n.a.Double("epsilon", kEpsilon)}});
  n.e.Bind(n.out(), at, y[0]);
  for (size_t i = 1; i < 3; ++i) {
    if (wanted[i]) n.e.Bind(n.out(i), InOrder(n.rank(0)), y[i]);
  }
  return absl::OkStatus();
}

// x / sqrt(mean(x^2) + eps) scale.
absl::Status RmsNorm(ExportNode& n) {
  AMPD_RETURN_IF_ERROR(n.OnlyOutputs(1));
  const int64_t axis = n.a.Int("axis"), rank = static_cast<int64_t>(n.rank(0));
  const Arrangement at = RowArrangement(n, axis);
  Ints axes;
  Dims rows = n.dims(0);
  for (int64_t a = axis; a < rank; ++a) {
    axes.push_back(a);
    rows[static_cast<size_t>(a)] = {};
  }
  const DType dtype = n.type(0).dtype;
  const T x = n.e.Get(n.in(0), at);
  const T squares = n.e.Op("Mul", {x, x}, x->dims);
  const T mean = n.e.Op("ReduceMean", {squares}, rows, {{"axes", axes}, {"keepdims", int64_t{1}}});
  const T epsilon = n.e.Scalar(dtype, n.a.Double("epsilon", kEpsilon));
  const T root = n.e.Op("Sqrt", {n.e.Op("Add", {mean, epsilon}, rows)}, rows);
  T y = n.e.Op("Div", {x, root}, x->dims);
  if (n.Has(1)) y = n.e.Op("Mul", {y, RowOperand(n, 1, at)}, x->dims);
  n.e.Bind(n.out(), at, y);
  return absl::OkStatus();
}

// Groups of channels are the channels of an instance norm; scale and bias are the real channels'.
absl::Status GroupNorm(ExportNode& n) {
  AMPD_RETURN_IF_ERROR(n.OnlyOutputs(1));
  const size_t rank = n.rank(0);
  const int64_t groups = n.a.Int("groups", 1), channels = n.type(0).shape.back();
  const Arrangement at = ChannelsFirst(rank);
  const T x = n.e.Get(n.in(0), at);
  const ir::Attributes attributes{{"epsilon", n.a.Double("epsilon", kEpsilon)}};
  if (groups == channels && rank > 2) {
    const T scale = n.Has(1) ? n.e.Get(n.in(1)) : Filled(n, n.node().name + ".ones", groups, 1);
    const T bias = n.Has(2) ? n.e.Get(n.in(2)) : Filled(n, n.node().name + ".zeros", groups, 0);
    n.e.Bind(n.out(), at, n.e.Op("InstanceNormalization", {x, scale, bias}, x->dims, attributes));
    return absl::OkStatus();
  }
  int64_t of_group = channels / groups;
  for (size_t d = 1; d + 1 < rank; ++d) of_group *= n.type(0).shape[d];
  const Dims grouped = {n.dims(0)[0], {groups, false}, {of_group, false}};
  const T ones = Filled(n, n.node().name + ".ones", groups, 1), zeros = Filled(n, n.node().name + ".zeros", groups, 0);
  T y = n.e.Op("InstanceNormalization", {n.e.Reshape(x, grouped), ones, zeros}, grouped, attributes);
  y = n.e.Reshape(y, x->dims);
  if (n.Has(1)) y = n.e.Op("Mul", {y, n.e.Operand(n.in(1), at, rank)}, x->dims);
  if (n.Has(2)) y = n.e.Op("Add", {y, n.e.Operand(n.in(2), at, rank)}, x->dims);
  n.e.Bind(n.out(), at, y);
  return absl::OkStatus();
}

}  // namespace

std::vector<Writer> NormWriters() {
  return {
      {OpKind::kBatchNormInference, BatchNorm},
      {OpKind::kLayerNorm, LayerNorm},
      {OpKind::kRmsNorm, RmsNorm},
      {OpKind::kGroupNorm, GroupNorm},
  };
}

}  // namespace ampd::models::onnx
