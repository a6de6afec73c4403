// Constants, and what is said of shapes: known at import, whatever the data.
#include <algorithm>
#include <cmath>

#include "engine/core/status.h"
#include "engine/models/onnx/node.h"
#include "engine/models/onnx/tensor_proto.h"

namespace ampd::models::onnx {
namespace {

absl::Status Constant(Node& n) {
  if (const auto* value = n.Attribute("value")) {
    AMPD_ASSIGN_OR_RETURN(TensorPtr tensor, ToTensor(value->t()));
    return n.Out(n.e.Known(std::move(tensor)));
  }
  if (n.Attribute("value_float") != nullptr) return n.Out(n.e.Scalar(DType::kF32, n.Float("value_float", 0)));
  if (n.Attribute("value_int") != nullptr) {
    const std::vector<int64_t> value = {n.Int("value_int", 0)};
    return n.Out(n.e.Reshape(n.e.Ints(value), {}));
  }
  if (n.Attribute("value_ints") != nullptr) return n.Out(n.e.Ints(n.Ints("value_ints")));
  if (n.Attribute("value_floats") != nullptr) {
    const std::vector<double> values = n.Floats("value_floats");
    auto tensor = std::make_shared<Tensor>(DType::kF32, Shape{static_cast<int64_t>(values.size())});
    for (size_t i = 0; i < values.size(); ++i) tensor->as<float>()[i] = static_cast<float>(values[i]);
    return n.Out(n.e.Known(std::move(tensor)));
  }
  return n.Unsupported("a constant that is no dense tensor of numbers");
}

absl::Status CheckConstant(Node& n, const std::vector<int64_t>& shape) {
  double elements = 1;
  for (int64_t extent : shape) {
    if (extent < 0) return n.Bad(absl::StrCat("shape is ", ShapeString(shape)));
    elements *= static_cast<double>(extent);
  }
  n.e.AllowConstant(elements);
  return n.e.status();
}

absl::Status ConstantOfShape(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const std::vector<int64_t> shape, n.KnownInts(0));
  AMPD_RETURN_IF_ERROR(CheckConstant(n, shape));
  TensorPtr value = HostFilled(DType::kF32, {}, 0);
  if (const auto* given = n.Attribute("value")) {
    AMPD_ASSIGN_OR_RETURN(value, ToTensor(given->t()));
    if (value->size() != 1) return n.Bad("value has to be one element");
  }
  const Shape to(shape.begin(), shape.end());
  const std::vector<int64_t> strides(to.size(), 0);
  return n.Out(n.e.Known(HostStrided(*value, to, strides, 0)));
}

absl::Status ShapeOf(Node& n) {
  const int64_t rank = n.rank(0);
  const auto position = [&](const char* name, int64_t fallback) {
    const int64_t p = n.Int(name, fallback);
    return std::clamp<int64_t>(p < 0 ? p + rank : p, 0, rank);
  };
  const int64_t start = position("start", 0), end = std::max(start, position("end", rank));
  return n.Out(n.e.Ints(std::vector<int64_t>(n.shape(0).begin() + start, n.shape(0).begin() + end)));
}

absl::Status Size(Node& n) { return n.Out(n.e.Reshape(n.e.Ints(std::vector<int64_t>{NumElements(n.shape(0))}), {})); }

absl::Status Range(Node& n) {
  std::vector<TensorPtr> bounds;
  for (int i = 0; i < 3; ++i) {
    AMPD_ASSIGN_OR_RETURN(TensorPtr bound, n.Known(i));
    if (bound->size() != 1 || bound->dtype() != n.dtype(0)) return n.Bad("bounds have to be scalars of one type");
    bounds.push_back(std::move(bound));
  }
  const double start = DoubleAt(bounds[0]->view(), 0), limit = DoubleAt(bounds[1]->view(), 0);
  const double delta = DoubleAt(bounds[2]->view(), 0);
  const double count = std::max(std::ceil((limit - start) / delta), 0.0);
  if (!(count >= 0)) return n.Bad("steps of 0");
  AMPD_RETURN_IF_ERROR(CheckConstant(n, {static_cast<int64_t>(std::min(count, 1e12))}));
  const int64_t elements = static_cast<int64_t>(count);
  auto index = std::make_shared<Tensor>(DType::kI64, Shape{elements});
  for (int64_t i = 0; i < elements; ++i) index->as<int64_t>()[i] = i;
  if (!IsFloat(n.dtype(0))) {
    const int64_t first = IntAt(bounds[0]->view(), 0), step = IntAt(bounds[2]->view(), 0);
    for (int64_t& i : index->as<int64_t>()) i = first + i * step;
    return n.Out(n.e.Known(HostCast(index, n.dtype(0), false)));
  }
  auto values = std::make_shared<Tensor>(DType::kF32, Shape{elements});
  for (int64_t i = 0; i < elements; ++i) {
    values->as<float>()[i] = static_cast<float>(start + static_cast<double>(i) * delta);
  }
  return n.Out(n.e.Known(HostCast(values, n.dtype(0), false)));
}

absl::Status EyeLike(Node& n) {
  if (n.rank(0) != 2) return n.Bad("needs two axes");
  DType dtype = n.dtype(0);
  if (n.Attribute("dtype") != nullptr) {
    AMPD_ASSIGN_OR_RETURN(dtype, ToDType(static_cast<int>(n.Int("dtype", 0))));
  }
  AMPD_RETURN_IF_ERROR(CheckConstant(n, {n.shape(0)[0], n.shape(0)[1]}));
  auto eye = std::make_shared<Tensor>(DType::kBool, n.shape(0));
  const int64_t columns = n.shape(0)[1], k = n.Int("k", 0);
  for (int64_t i = 0; i < eye->size(); ++i) eye->as<uint8_t>()[i] = i % columns == i / columns + k;
  return n.Out(n.e.Known(HostCast(eye, dtype, false)));
}

// Keeps one triangle of the last two axes and zeroes the rest.
absl::Status Trilu(Node& n) {
  if (n.rank(0) < 2) return n.Bad("needs two axes");
  int64_t k = 0;
  if (n.Has(1)) {
    AMPD_ASSIGN_OR_RETURN(const std::vector<int64_t> ks, n.KnownInts(1));
    if (ks.size() != 1) return n.Bad("k has to be one number");
    k = ks[0];
  }
  const int64_t rows = n.shape(0)[n.rank(0) - 2], columns = n.shape(0)[n.rank(0) - 1];
  AMPD_RETURN_IF_ERROR(CheckConstant(n, {rows, columns}));
  auto keep = std::make_shared<Tensor>(DType::kBool, Shape{rows, columns});
  const bool upper = n.Int("upper", 1) != 0;
  for (int64_t i = 0; i < keep->size(); ++i) {
    const int64_t above = i % columns - i / columns;
    keep->as<uint8_t>()[i] = upper ? above >= k : above <= k;
  }
  return n.Out(n.e.Where(n.e.Known(std::move(keep)), n[0], n.e.Scalar(n.dtype(0), 0)));
}

// A branch whose condition is known is the node's place in the graph.
absl::Status If(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const TensorPtr condition, n.Known(0));
  const bool taken = condition->size() == 1 && IntAt(condition->view(), 0) != 0;
  const auto* branch = n.Attribute(taken ? "then_branch" : "else_branch");
  if (branch == nullptr || !branch->has_g()) return n.Bad("a branch is missing");
  AMPD_ASSIGN_OR_RETURN(const std::vector<V> outputs, n.services().inline_graph(branch->g()));
  for (size_t i = 0; i < outputs.size(); ++i) AMPD_RETURN_IF_ERROR(n.Out(static_cast<int>(i), outputs[i]));
  return absl::OkStatus();
}

}  // namespace

std::vector<Rule> ShapeRules() {
  return {
      {"Constant", Constant, 0}, {"ConstantOfShape", ConstantOfShape, 1},
      {"Shape", ShapeOf, 1},     {"Size", Size, 1},
      {"Range", Range, 3},       {"EyeLike", EyeLike, 1},
      {"Trilu", Trilu, 1},       {"If", If, 1},
  };
}

}  // namespace ampd::models::onnx
