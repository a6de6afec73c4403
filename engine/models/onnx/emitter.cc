#include "engine/models/onnx/emitter.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/core/status.h"
#include "engine/ops/op_def.h"

namespace ampd::models::onnx {
namespace {

using ir::OpKind;

// Above this many elements a constant operation is left to the graph.
constexpr double kMaxFoldedElements = 1 << 20;
// Of a constant that an operation stands for.
constexpr double kMaxConstantElements = 1 << 26;
// Of all constants together, besides what a model may make of its own tensors: each in a few shapes and orders.
constexpr double kMaxKnownBytes = int64_t{1} << 32;
constexpr double kCopiesOfFile = 4;

const std::vector<int64_t> kToImage = {0, 2, 3, 1};
const std::vector<int64_t> kFromImage = {0, 3, 1, 2};

Shape Permuted(const Shape& shape, const std::vector<int64_t>& permutation) {
  Shape result;
  for (int64_t axis : permutation) result.push_back(shape[axis]);
  return result;
}

// Whether only axes of extent 1 change places, so that the elements stay where they are.
bool KeepsOrder(const Shape& shape, const std::vector<int64_t>& permutation) {
  int64_t last = -1;
  for (int64_t axis : permutation) {
    if (shape[axis] == 1) continue;
    if (axis < last) return false;
    last = axis;
  }
  return true;
}

std::vector<int64_t> Extents(const Shape& shape) { return {shape.begin(), shape.end()}; }

absl::StatusOr<OpKind> FindOp(absl::string_view name) {
  for (OpKind kind : ir::kAllOpKinds) {
    if (ir::OpName(kind) == name) return kind;
  }
  return absl::InternalError(absl::StrCat("[onnx] the engine has no operation ", name));
}

bool IsEmpty(const Shape& shape) { return std::find(shape.begin(), shape.end(), 0) != shape.end(); }

double ElementsOf(const Shape& shape) {
  double n = 1;
  for (int64_t extent : shape) n *= static_cast<double>(extent);
  return n;
}

}  // namespace

Emitter::Emitter(ir::Graph* graph, double max_elements, int64_t file_bytes)
    : graph_(graph),
      elements_left_(max_elements),
      known_bytes_left_(std::min(kMaxKnownBytes, max_elements * sizeof(int64_t)) +
                        kCopiesOfFile * static_cast<double>(file_bytes)) {}

V Emitter::Fail(absl::Status status) {
  status_.Update(status);
  return Placeholder();
}

V Emitter::Placeholder() { return Known(HostFilled(DType::kF32, {}, 0)); }

bool Emitter::FollowsInput(V v) {
  const ir::ValueId id = v->ir >= 0 ? v->ir : v->image;
  if (id < 0) return false;
  for (size_t i = follows_.size(); i < graph_->values.size(); ++i) {
    follows_.push_back(graph_->values[i].kind == ir::ValueKind::kInput);
  }
  // Nodes come after what they read.
  for (; followed_nodes_ < graph_->nodes.size(); ++followed_nodes_) {
    const ir::Node& node = graph_->nodes[followed_nodes_];
    const bool follows = std::any_of(node.inputs.begin(), node.inputs.end(),
                                     [&](ir::ValueId input) { return follows_[static_cast<size_t>(input)]; });
    for (const ir::ValueId output : node.outputs) follows_[static_cast<size_t>(output)] = follows;
  }
  return follows_[static_cast<size_t>(id)];
}

V Emitter::NewValue(ir::TensorType type) {
  values_.push_back({.type = std::move(type)});
  return &values_.back();
}

V Emitter::Known(TensorPtr tensor) {
  if (known_.insert(tensor.get()).second) known_bytes_left_ -= static_cast<double>(tensor->view().bytes());
  // Not by Fail(), which gives a known value.
  if (known_bytes_left_ < 0) {
    status_.Update(absl::ResourceExhaustedError(absl::StrCat("[onnx] the model's constants take too much memory, here ",
                                                             ShapeString(tensor->shape()), ", node ", layer_)));
  }
  V v = NewValue({tensor->dtype(), tensor->shape()});
  v->host = std::move(tensor);
  return v;
}

V Emitter::FromGraph(ir::ValueId id) {
  V v = NewValue(graph_->type(id));
  v->ir = id;
  return v;
}

V Emitter::FromImage(ir::ValueId id) {
  V v = NewValue({graph_->type(id).dtype, Permuted(graph_->type(id).shape, kFromImage)});
  v->image = id;
  return v;
}

int64_t Emitter::Extent(V v, int64_t axis) { return axis >= 0 && axis < Rank(v) ? v->type.shape[axis] : 1; }

ir::ValueId Emitter::Id(V v) {
  if (v->ir >= 0) return v->ir;
  if (v->host != nullptr) {
    const auto [it, inserted] = constants_.insert({v->host.get(), -1});
    if (inserted) it->second = graph_->AddConstant(absl::StrCat("constant_", constants_.size()), v->host);
    return v->ir = it->second;
  }
  return v->ir = TransposeId(v->image, kFromImage);
}

ir::ValueId Emitter::ImageId(V v) {
  if (v->image >= 0) return v->image;
  if (Rank(v) != 4) {
    Fail(absl::InternalError(absl::StrCat("[onnx] ", ShapeString(v->type.shape), " is no image, node ", layer_)));
    return Id(v);
  }
  if (v->host != nullptr) return v->image = Id(Transpose(v, kToImage));
  return v->image = TransposeId(v->ir, kToImage);
}

bool Emitter::Fits(const Shape& shape) {
  if (std::any_of(shape.begin(), shape.end(), [](int64_t extent) { return extent < 1; })) {
    Fail(absl::InvalidArgumentError(absl::StrCat("[onnx] a tensor of ", ShapeString(shape), ", node ", layer_)));
    return false;
  }
  elements_left_ -= ElementsOf(shape);
  if (elements_left_ >= 0) return true;
  Fail(absl::ResourceExhaustedError(
      absl::StrCat("[onnx] the model's tensors have too many elements, here ", ShapeString(shape), ", node ", layer_)));
  return false;
}

bool Emitter::AllowConstant(double elements) {
  if (elements <= kMaxConstantElements) return true;
  Fail(absl::ResourceExhaustedError(absl::StrCat("[onnx] a constant of ", elements, " elements, node ", layer_)));
  return false;
}

bool Emitter::Foldable(const std::vector<V>& inputs, double elements) const {
  if (elements > kMaxFoldedElements) return false;
  return std::all_of(inputs.begin(), inputs.end(), [](V v) { return v->host != nullptr; });
}

std::vector<ir::ValueId> Emitter::EmitNode(OpKind op, std::vector<ir::ValueId> inputs, ir::Attributes attributes) {
  if (!ok()) return {};
  std::string name = absl::StrCat(layer_, ".", ir::OpName(op));
  const int repeat = names_[name]++;
  if (repeat > 0) absl::StrAppend(&name, "_", repeat);
  absl::StatusOr<std::vector<ir::ValueId>> outputs = ops::Emit(
      graph_,
      {.op = op, .name = name, .layer = layer_, .inputs = std::move(inputs), .attributes = std::move(attributes)});
  if (!outputs.ok()) {
    Fail(outputs.status());
    return {};
  }
  for (ir::ValueId id : *outputs) Fits(graph_->type(id).shape);
  return *std::move(outputs);
}

ir::ValueId Emitter::CastId(ir::ValueId v, DType dtype) {
  if (graph_->type(v).dtype == dtype) return v;
  const auto it = casts_.find({v, dtype});
  if (it != casts_.end()) return it->second;
  const std::vector<ir::ValueId> y = EmitNode(OpKind::kCast, {v}, {{"dtype", std::string(DTypeName(dtype))}});
  return y.empty() ? v : casts_[{v, dtype}] = y[0];
}

ir::ValueId Emitter::TransposeId(ir::ValueId v, const std::vector<int64_t>& permutation) {
  const Shape shape = graph_->type(v).shape;
  if (!ok() || shape.size() != permutation.size()) return v;
  absl::StatusOr<OpKind> transpose = FindOp("transpose");
  const bool keeps = KeepsOrder(shape, permutation);
  if (!keeps && !transpose.ok()) {
    Fail(transpose.status());
    return v;
  }
  const std::vector<ir::ValueId> y =
      keeps ? EmitNode(OpKind::kReshape, {v}, {{"shape", Extents(Permuted(shape, permutation))}})
            : EmitNode(*transpose, {v}, {{"perm", permutation}});
  return y.empty() ? v : y[0];
}

std::vector<V> Emitter::Op(absl::string_view op, const std::vector<V>& inputs, ir::Attributes attributes) {
  return ImageOp(op, inputs, std::vector<bool>(inputs.size(), false), std::move(attributes));
}

V Emitter::Op1(absl::string_view op, const std::vector<V>& inputs, ir::Attributes attributes) {
  return Op(op, inputs, std::move(attributes))[0];
}

std::vector<V> Emitter::ImageOp(absl::string_view op, const std::vector<V>& inputs, const std::vector<bool>& images,
                                ir::Attributes attributes) {
  absl::StatusOr<OpKind> kind = FindOp(op);
  if (!kind.ok()) Fail(kind.status());
  if (!ok()) return std::vector<V>(8, Placeholder());
  const ops::OpDef& def = ops::GetOpDef(*kind);
  DType back = DType::kF32;
  std::vector<ir::ValueId> ids;
  for (size_t i = 0; i < inputs.size(); ++i) {
    ir::ValueId id = images[i] ? ImageId(inputs[i]) : Id(inputs[i]);
    const DType dtype = graph_->type(id).dtype;
    const ops::Role role = ops::RoleOf(def, i);
    const bool data = role == ops::Role::kData || role == ops::Role::kNumber || role == ops::Role::kWide;
    const bool denied = def.precision == ops::PrecisionClass::kDeny && data;
    if (denied && IsFloat(dtype) && dtype != DType::kF32) back = dtype;
    if (IsFloat(dtype) && (denied || role == ops::Role::kFloat || role == ops::Role::kMask))
      id = CastId(id, DType::kF32);
    ids.push_back(id);
  }
  const bool any_image = std::any_of(images.begin(), images.end(), [](bool image) { return image; });
  std::vector<V> outputs;
  for (ir::ValueId id : EmitNode(*kind, std::move(ids), std::move(attributes))) {
    if (back != DType::kF32 && graph_->type(id).dtype == DType::kF32) id = CastId(id, back);
    outputs.push_back(any_image && graph_->type(id).shape.size() == 4 ? FromImage(id) : FromGraph(id));
  }
  return ok() && !outputs.empty() ? outputs : std::vector<V>(8, Placeholder());
}

bool Emitter::PrefersImages(const std::vector<V>& inputs) const {
  bool any = false;
  for (V v : inputs) {
    if (Rank(v) > 4) return false;
    if (v->host == nullptr && v->image < 0) return false;
    any = any || (v->image >= 0 && v->ir < 0);
  }
  return any;
}

// A known operand of an elementwise operation on images: its axes, filled up to 4, in an image's order.
V Emitter::AsImageOperand(V v) {
  if (v->host == nullptr) return FromGraph(v->image);
  if (Rank(v) == 0) return v;
  Shape shape(static_cast<size_t>(4 - Rank(v)), 1);
  shape.insert(shape.end(), v->type.shape.begin(), v->type.shape.end());
  return Transpose(Reshape(v, shape), kToImage);
}

V Emitter::Elementwise(absl::string_view op, const std::vector<V>& inputs, ir::Attributes attributes) {
  if (!PrefersImages(inputs)) return Op1(op, inputs, std::move(attributes));
  std::vector<V> images;
  for (V v : inputs) images.push_back(AsImageOperand(v));
  V y = Op1(op, images, std::move(attributes));
  return ok() ? FromImage(y->ir) : y;
}

V Emitter::Unary(absl::string_view op, V x, ir::Attributes attributes) {
  if (!ok()) return Placeholder();
  if (Foldable({x}, ElementsOf(x->type.shape)) && attributes.items().empty()) {
    if (TensorPtr y = HostUnary(op, *x->host)) return Known(std::move(y));
  }
  if (IsEmpty(x->type.shape)) return x;
  return Elementwise(op, {x}, std::move(attributes));
}

V Emitter::Binary(absl::string_view op, V a, V b) {
  if (!ok()) return Placeholder();
  const absl::optional<Shape> shape = BroadcastShape(a->type.shape, b->type.shape);
  if (!shape || a->type.dtype != b->type.dtype) {
    const auto type = [](V v) { return absl::StrCat(DTypeName(v->type.dtype), ShapeString(v->type.shape)); };
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("[", op, "] operands ", type(a), " and ", type(b), " do not fit, node ", layer_)));
  }
  if (IsEmpty(*shape) || Foldable({a, b}, ElementsOf(*shape))) {
    const auto known = [&](V v) { return v->host != nullptr ? v->host : HostFilled(v->type.dtype, v->type.shape, 0); };
    if (TensorPtr y = HostBinary(op, *known(a), *known(b))) return Known(std::move(y));
  }
  return Elementwise(op, {a, b}, {});
}

V Emitter::Where(V condition, V a, V b) {
  if (!ok()) return Placeholder();
  absl::optional<Shape> shape = BroadcastShape(a->type.shape, b->type.shape);
  if (shape) shape = BroadcastShape(*shape, condition->type.shape);
  if (!shape || a->type.dtype != b->type.dtype || condition->type.dtype != DType::kBool) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("[where] operands do not fit, node ", layer_)));
  }
  if (IsEmpty(*shape)) return Empty(a->type.dtype, *shape);
  if (Foldable({condition, a, b}, ElementsOf(*shape))) return Known(HostWhere(*condition->host, *a->host, *b->host));
  return Elementwise("where", {condition, a, b}, {});
}

V Emitter::RootOfSquares(V sum) {
  const V zero = Scalar(sum->type.dtype, 0);
  const V none = Binary("equal", sum, zero);
  return Where(none, zero, Unary("sqrt", Where(none, Scalar(sum->type.dtype, 1), sum)));
}

V Emitter::Cast(V x, DType dtype, bool saturate) {
  if (!ok() || x->type.dtype == dtype) return x;
  if (Foldable({x}, ElementsOf(x->type.shape)) || IsEmpty(x->type.shape))
    return Known(HostCast(x->host, dtype, saturate));
  ir::Attributes attributes{{"dtype", std::string(DTypeName(dtype))}};
  if (saturate && IsF8(dtype)) attributes.Set("saturate", int64_t{1});
  return Elementwise("cast", {x}, std::move(attributes));
}

V Emitter::Reshape(V x, const Shape& shape) {
  if (!ok() || x->type.shape == shape) return x;
  const bool negative = std::any_of(shape.begin(), shape.end(), [](int64_t extent) { return extent < 0; });
  if (negative || ElementsOf(shape) != ElementsOf(x->type.shape)) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("[reshape] ", ShapeString(x->type.shape), " does not fit into ",
                                                        ShapeString(shape), ", node ", layer_)));
  }
  if (x->host != nullptr) return Known(HostReshape(x->host, shape));
  return Op1("reshape", {x}, {{"shape", Extents(shape)}});
}

V Emitter::Transpose(V x, const std::vector<int64_t>& permutation) {
  if (!ok() || static_cast<int>(permutation.size()) != Rank(x)) return x;
  const Shape shape = Permuted(x->type.shape, permutation);
  if (x->host != nullptr) {
    const std::vector<int64_t> strides = StridesOf(x->type.shape);
    std::vector<int64_t> permuted;
    for (int64_t axis : permutation) permuted.push_back(strides[axis]);
    return Known(HostStrided(*x->host, shape, permuted, 0));
  }
  if (permutation == kToImage && x->ir < 0) return FromGraph(x->image);
  if (permutation == kFromImage && x->ir >= 0) return FromImage(x->ir);
  return FromGraph(TransposeId(Id(x), permutation));
}

V Emitter::Slice(V x, const std::vector<int64_t>& starts, const std::vector<int64_t>& ends,
                 const std::vector<int64_t>& steps) {
  if (!ok()) return x;
  Shape shape;
  for (int a = 0; a < Rank(x); ++a) {
    const int64_t span = steps[a] > 0 ? ends[a] - starts[a] : starts[a] - ends[a];
    const int64_t step = steps[a] > 0 ? steps[a] : -steps[a];
    shape.push_back(span <= 0 ? 0 : (span - 1) / step + 1);
  }
  if (IsEmpty(shape)) return Empty(x->type.dtype, shape);
  const bool whole = shape == x->type.shape && std::all_of(steps.begin(), steps.end(), [](int64_t s) { return s > 0; });
  if (whole) return x;
  if (x->host != nullptr) {
    std::vector<int64_t> strides = StridesOf(x->type.shape);
    int64_t offset = 0;
    for (size_t a = 0; a < strides.size(); ++a) {
      offset += strides[a] * starts[a];
      strides[a] *= shape[a] == 1 ? 1 : steps[a];
    }
    return Known(HostStrided(*x->host, shape, strides, offset));
  }
  return Op1("slice", {x}, {{"starts", starts}, {"ends", ends}, {"steps", steps}});
}

V Emitter::SliceAxis(V x, int axis, int64_t begin, int64_t end) {
  if (!ok()) return x;
  std::vector<int64_t> starts(x->type.shape.size(), 0), ends = Extents(x->type.shape), steps(starts.size(), 1);
  starts[axis] = begin;
  ends[axis] = end;
  return Slice(x, starts, ends, steps);
}

V Emitter::Expand(V x, const Shape& shape) {
  if (!ok() || x->type.shape == shape) return x;
  const absl::optional<Shape> common = BroadcastShape(x->type.shape, shape);
  if (!common || *common != shape) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "[expand] ", ShapeString(x->type.shape), " does not broadcast to ", ShapeString(shape), ", node ", layer_)));
  }
  if (IsEmpty(shape)) return Empty(x->type.dtype, shape);
  if (Foldable({x}, ElementsOf(shape))) {
    return Known(HostStrided(*x->host, shape, BroadcastStrides(x->type.shape, shape), 0));
  }
  return Op1("broadcast_to", {x}, {{"shape", Extents(shape)}});
}

V Emitter::Concat(const std::vector<V>& parts, int axis) {
  if (!ok()) return Placeholder();
  std::vector<V> kept;
  Shape shape = parts[0]->type.shape;
  if (axis >= static_cast<int>(shape.size())) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("[concat] no axis ", axis, ", node ", layer_)));
  }
  shape[axis] = 0;
  for (V part : parts) {
    Shape other = part->type.shape;
    if (other.size() == shape.size()) other[axis] = shape[axis];
    if (other != shape || part->type.dtype != parts[0]->type.dtype) {
      return Fail(absl::InvalidArgumentError(absl::StrCat("[concat] part ", ShapeString(part->type.shape),
                                                          " does not fit the first, ",
                                                          ShapeString(parts[0]->type.shape), ", node ", layer_)));
    }
    shape[axis] += part->type.shape[axis];
    if (!IsEmpty(part->type.shape)) kept.push_back(part);
  }
  if (kept.size() == 1) return kept[0];
  if (kept.empty()) return Empty(parts[0]->type.dtype, shape);
  if (Foldable(kept, ElementsOf(shape))) {
    std::vector<TensorPtr> tensors;
    for (V part : kept) tensors.push_back(part->host);
    return Known(HostConcat(tensors, axis));
  }
  return Op1("concat", kept, {{"axis", int64_t{axis}}});
}

V Emitter::Positions(V indices, int64_t extent) {
  if (indices->host == nullptr) return Cast(indices, DType::kI32);
  std::vector<int64_t> positions = ToInts(*indices->host);
  auto tensor = std::make_shared<Tensor>(DType::kI32, indices->type.shape);
  for (size_t i = 0; i < positions.size(); ++i) {
    const int64_t p = positions[i] < 0 ? positions[i] + extent : positions[i];
    if (p < 0 || p >= extent) {
      return Fail(absl::InvalidArgumentError(
          absl::StrCat("[gather] index ", positions[i], " on an axis of ", extent, ", node ", layer_)));
    }
    tensor->as<int32_t>()[i] = static_cast<int32_t>(p);
  }
  return Known(std::move(tensor));
}

V Emitter::Gather(V x, V indices, int axis) {
  if (!ok()) return x;
  V positions = Positions(indices, Extent(x, axis));
  if (!ok()) return x;
  Shape shape(x->type.shape.begin(), x->type.shape.begin() + axis);
  shape.insert(shape.end(), indices->type.shape.begin(), indices->type.shape.end());
  shape.insert(shape.end(), x->type.shape.begin() + axis + 1, x->type.shape.end());
  if (IsEmpty(x->type.shape) || IsEmpty(indices->type.shape)) return Empty(x->type.dtype, shape);
  if (Foldable({x, positions}, ElementsOf(shape))) {
    return Known(HostGather(*x->host, ToInts(*positions->host), positions->type.shape, axis));
  }
  return Op1("gather", {x, positions}, {{"axis", int64_t{axis}}});
}

V Emitter::GatherElements(V x, V indices, int axis) {
  if (!ok()) return x;
  const Shape shape = indices->type.shape;
  const std::vector<int64_t> strides = StridesOf(x->type.shape);
  for (int a = 0; a < Rank(x); ++a) {
    if (a == axis || shape[a] <= x->type.shape[a]) continue;
    return Fail(absl::InvalidArgumentError(absl::StrCat("[gather_elements] indices ", ShapeString(shape), " for ",
                                                        ShapeString(x->type.shape), ", node ", layer_)));
  }
  V positions = Positions(indices, Extent(x, axis));
  if (IsEmpty(shape)) return Empty(x->type.dtype, shape);
  if (!ok() || !AllowConstant(ElementsOf(shape)) || !AllowIndices(x)) return x;
  if (!Foldable({x, positions}, ElementsOf(shape))) {
    return Op1("gather_elements", {x, positions}, {{"axis", int64_t{axis}}});
  }
  // By places in the flattened tensor.
  auto others = std::make_shared<Tensor>(DType::kI32, shape);
  for (int64_t i = 0; i < others->size(); ++i) {
    int64_t rest = i, place = 0;
    for (int a = Rank(x); a-- > 0; rest /= shape[a]) place += a == axis ? 0 : rest % shape[a] * strides[a];
    others->as<int32_t>()[i] = static_cast<int32_t>(place);
  }
  const V places = Add(MulScalar(positions, static_cast<double>(strides[axis])), Known(std::move(others)));
  return Gather(Reshape(x, {Size(x)}), places, 0);
}

bool Emitter::AllowIndices(V x) {
  if (Size(x) <= std::numeric_limits<int32_t>::max()) return true;
  Fail(absl::ResourceExhaustedError(
      absl::StrCat("[onnx] ", ShapeString(x->type.shape), " has more elements than an index counts, node ", layer_)));
  return false;
}

V Emitter::Pad(V x, const std::vector<int64_t>& begins, const std::vector<int64_t>& ends, double value) {
  if (!ok()) return x;
  if (x->host == nullptr && !IsEmpty(x->type.shape)) {
    std::vector<int64_t> pads = begins;
    pads.insert(pads.end(), ends.begin(), ends.end());
    if (std::all_of(pads.begin(), pads.end(), [](int64_t pad) { return pad == 0; })) return x;
    return Op1("pad", {x}, {{"pads", pads}, {"mode", std::string("constant")}, {"value", value}});
  }
  for (int a = 0; ok() && a < Rank(x); ++a) {
    const auto block = [&](int64_t extent) {
      Shape shape = x->type.shape;
      shape[a] = extent;
      return Expand(Scalar(x->type.dtype, value), shape);
    };
    x = Concat({block(begins[a]), x, block(ends[a])}, a);
  }
  return x;
}

V Emitter::Reduce(absl::string_view op, V x, const std::vector<int64_t>& axes, bool keepdims) {
  if (!ok() || axes.empty()) return x;
  std::vector<bool> reduced(x->type.shape.size(), false);
  for (int64_t axis : axes) reduced[axis] = true;
  Shape kept, squeezed;
  for (size_t a = 0; a < reduced.size(); ++a) {
    kept.push_back(reduced[a] ? 1 : x->type.shape[a]);
    if (!reduced[a]) squeezed.push_back(x->type.shape[a]);
  }
  const Shape& shape = keepdims ? kept : squeezed;
  if (IsEmpty(x->type.shape) || Foldable({x}, ElementsOf(x->type.shape))) {
    // Where there is nothing to reduce the other extents may be any.
    if (!AllowConstant(ElementsOf(kept))) return x;
    return Known(HostReshape(HostReduce(op, *x->host, reduced), shape));
  }
  std::vector<int64_t> sorted;
  for (size_t a = 0; a < reduced.size(); ++a) {
    if (reduced[a]) sorted.push_back(static_cast<int64_t>(a));
  }
  return Op1(op, {x}, {{"axes", sorted}, {"keepdims", int64_t{keepdims}}});
}

V Emitter::Matmul(V a, V b, bool transpose_a, bool transpose_b) {
  if (!ok()) return a;
  return Op1("matmul", {a, b}, {{"transpose_a", int64_t{transpose_a}}, {"transpose_b", int64_t{transpose_b}}});
}

}  // namespace ampd::models::onnx
