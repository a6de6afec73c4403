// Reductions over axes, and softmax along one.
#include <algorithm>
#include <numeric>

#include "engine/core/status.h"
#include "engine/models/onnx/exporter.h"

namespace ampd::models::onnx {
namespace {

using ir::OpKind;
using Ints = std::vector<int64_t>;

Arrangement WholeAxes(ExportNode& n) {
  const Arrangement at = n.e.At(n.in(0));
  return at.flattened.empty() ? at : InOrder(at.axes.size());
}

// The value's axes that are left, in the order in which the tensor has them.
Arrangement WithoutAxes(const Arrangement& at, const Ints& axes) {
  Arrangement left;
  for (int64_t axis : at.axes) {
    if (std::count(axes.begin(), axes.end(), axis) > 0) continue;
    left.axes.push_back(axis - std::count_if(axes.begin(), axes.end(), [&](int64_t gone) { return gone < axis; }));
  }
  return left;
}

absl::Status Reduce(ExportNode& n) {
  const int64_t rank = static_cast<int64_t>(n.rank(0));
  Ints axes = n.a.Ints("axes");
  for (int64_t& axis : axes) axis = axis < 0 ? axis + rank : axis;
  if (axes.empty()) {
    axes.resize(n.rank(0));
    std::iota(axes.begin(), axes.end(), 0);
  }
  const bool keep = n.a.Int("keepdims", 1) != 0;
  const Arrangement at = WholeAxes(n), result = keep ? at : WithoutAxes(at, axes);
  Ints places;
  for (int64_t axis : axes) places.push_back(std::find(at.axes.begin(), at.axes.end(), axis) - at.axes.begin());
  std::sort(places.begin(), places.end());
  Dims dims;
  for (int64_t axis : result.axes) dims.push_back(n.out_dims()[static_cast<size_t>(axis)]);
  const T x = n.e.Get(n.in(0), at);
  const bool pool = rank == 4 && keep && places == Ints{2, 3} && n.type(0).dtype == DType::kF32;
  if (pool && (n.node().op == OpKind::kReduceMean || n.node().op == OpKind::kReduceMax)) {
    const char* op = n.node().op == OpKind::kReduceMean ? "GlobalAveragePool" : "GlobalMaxPool";
    n.e.Bind(n.out(), result, n.e.Op(op, {x}, dims));
    return absl::OkStatus();
  }
  // Axes are an input of ReduceSum, an attribute of the others.
  ir::Attributes attributes{{"keepdims", int64_t{keep}}};
  std::vector<T> inputs = {x};
  if (n.node().op == OpKind::kReduceSum) {
    inputs.push_back(n.e.Ints(places, "axes"));
  } else if (!places.empty()) {
    attributes.Set("axes", places);
  }
  n.e.Bind(n.out(), result, n.e.Op(n.onnx, inputs, dims, attributes));
  return absl::OkStatus();
}

absl::Status Softmax(ExportNode& n) {
  const Arrangement at = WholeAxes(n);
  int64_t axis = n.a.Int("axis", -1);
  if (axis < 0) axis += static_cast<int64_t>(n.rank(0));
  const int64_t place = std::find(at.axes.begin(), at.axes.end(), axis) - at.axes.begin();
  const T x = n.e.Get(n.in(0), at);
  n.e.Bind(n.out(), at, n.e.Op(n.onnx, {x}, x->dims, {{"axis", place}}));
  return absl::OkStatus();
}

}  // namespace

std::vector<Writer> ReductionWriters() {
  return {
      {OpKind::kReduceMean, Reduce, "ReduceMean"},  {OpKind::kReduceSum, Reduce, "ReduceSum"},
      {OpKind::kReduceProd, Reduce, "ReduceProd"},  {OpKind::kReduceMax, Reduce, "ReduceMax"},
      {OpKind::kReduceMin, Reduce, "ReduceMin"},    {OpKind::kSoftmax, Softmax, "Softmax"},
      {OpKind::kLogSoftmax, Softmax, "LogSoftmax"},
  };
}

}  // namespace ampd::models::onnx
