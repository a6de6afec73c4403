// Values of the graph as tensors of the model, in whatever arrangement a node needs.
#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/core/status.h"
#include "engine/models/onnx/exporter.h"

namespace ampd::models::onnx {
namespace {

using ir::ValueId;
using ir::ValueKind;
using Ints64 = std::vector<int64_t>;
using Proto = ::onnx::TensorProto;

constexpr struct {
  DType dtype;
  int number;
} kElementTypes[] = {{DType::kF32, Proto::FLOAT}, {DType::kF16, Proto::FLOAT16}, {DType::kBF16, Proto::BFLOAT16},
                     {DType::kI32, Proto::INT32}, {DType::kI64, Proto::INT64},   {DType::kU8, Proto::UINT8},
                     {DType::kBool, Proto::BOOL}};

bool IsOne(const Dim& dim) { return dim == Dim{1, false}; }

Dims Permuted(const Dims& dims, const Ints64& axes) {
  Dims result;
  for (int64_t axis : axes) result.push_back(dims[static_cast<size_t>(axis)]);
  return result;
}

// Whether a transposition moves axes of one element alone, so that no element changes its place.
bool KeepsPlaces(const Dims& dims, const Ints64& axes) {
  int64_t last = -1;
  for (int64_t axis : axes) {
    if (IsOne(dims[static_cast<size_t>(axis)])) continue;
    if (axis < last) return false;
    last = axis;
  }
  return true;
}

// Elements of `x` with axis d of the result being x's axes[d].
Tensor PermutedTensor(const Tensor& x, const Ints64& axes) {
  const size_t rank = axes.size();
  Shape shape;
  for (int64_t axis : axes) shape.push_back(x.shape()[static_cast<size_t>(axis)]);
  Ints64 strides(rank, 1), index(rank, 0);
  for (size_t d = rank; d-- > 1;) strides[d - 1] = strides[d] * x.shape()[d];
  Tensor y(x.dtype(), shape);
  const int64_t width = SizeOf(x.dtype());
  const auto* from = static_cast<const char*>(x.view().data);
  auto* to = static_cast<char*>(y.view().data);
  for (int64_t i = 0; i < y.size(); ++i) {
    int64_t place = 0;
    for (size_t d = 0; d < rank; ++d) place += index[d] * strides[static_cast<size_t>(axes[d])];
    std::memcpy(to + i * width, from + place * width, static_cast<size_t>(width));
    for (size_t d = rank; d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
  return y;
}

// `x` with the first element of axis `axis` alone; false where its elements differ along the axis.
bool CutUniformAxis(std::shared_ptr<const Tensor>* x, size_t axis) {
  const Shape& shape = (*x)->shape();
  const absl::Span<const int64_t> all(shape.data(), shape.size());
  const int64_t rows = NumElements(all.subspan(0, axis)), count = shape[axis];
  const size_t run = static_cast<size_t>(NumElements(all.subspan(axis + 1)) * SizeOf((*x)->dtype()));
  Shape cut = shape;
  cut[axis] = 1;
  auto y = std::make_shared<Tensor>((*x)->dtype(), cut);
  const auto* from = static_cast<const char*>((*x)->view().data);
  for (int64_t r = 0; r < rows; ++r) {
    const char* first = from + static_cast<size_t>(r * count) * run;
    for (int64_t i = 1; i < count; ++i) {
      if (std::memcmp(first, first + static_cast<size_t>(i) * run, run) != 0) return false;
    }
    std::memcpy(static_cast<char*>(y->view().data) + static_cast<size_t>(r) * run, first, run);
  }
  *x = std::move(y);
  return true;
}

}  // namespace

int ElementTypeOf(DType dtype) {
  for (const auto& type : kElementTypes) {
    if (type.dtype == dtype) return type.number;
  }
  return Proto::UNDEFINED;
}

Dims FixedDims(absl::Span<const int64_t> shape) {
  Dims dims;
  for (int64_t extent : shape) dims.push_back({extent, false});
  return dims;
}

bool Arrangement::in_order() const { return flattened.empty() && std::is_sorted(axes.begin(), axes.end()); }

Arrangement InOrder(size_t rank, const Shape& flattened) {
  Arrangement arrangement{Ints64(rank), flattened};
  std::iota(arrangement.axes.begin(), arrangement.axes.end(), 0);
  return arrangement;
}

Arrangement ChannelsFirst(size_t rank) {
  Arrangement arrangement = InOrder(rank);
  if (rank > 2) std::rotate(arrangement.axes.begin() + 1, arrangement.axes.end() - 1, arrangement.axes.end());
  return arrangement;
}

const Dims& Exporter::DimsOf(ValueId v) {
  const auto known = dims_.find(v);
  if (known != dims_.end()) return known->second;
  const Shape &a = graph_.type(v).shape, &b = twin_.type(v).shape;
  Dims dims;
  for (size_t d = 0; d < a.size(); ++d) {
    const bool fixed = a[d] == b[d];
    const bool follows = batch_ > 0 && twin_batch_ > 0 && a[d] % batch_ == 0 && b[d] % twin_batch_ == 0 &&
                         a[d] / batch_ == b[d] / twin_batch_;
    if (!fixed && !follows) {
      Fail(absl::FailedPreconditionError(absl::StrCat(
          "[export] ", graph_.values[static_cast<size_t>(v)].name, " is ", ShapeString(a), " with a batch of ", batch_,
          " and ", ShapeString(b), " with one of ", twin_batch_, ": not so many for each sample")));
    }
    dims.push_back(fixed ? Dim{a[d], false} : Dim{a[d] / std::max<int64_t>(batch_, 1), true});
  }
  return dims_[v] = std::move(dims);
}

Arrangement Exporter::At(ValueId v) {
  Prepare(v);
  const auto held = held_.find(v);
  return held == held_.end() ? InOrder(graph_.type(v).shape.size()) : held->second[0].arrangement;
}

void Exporter::Bind(ValueId v, const Arrangement& arrangement, T tensor) {
  if (!status_.ok()) return;
  held_[v].push_back({arrangement, tensor});
}

void Exporter::BindTransposed(ValueId x, ValueId y, const Ints64& axes) {
  if (At(x).flattened.empty()) {
    Get(x, At(x));
  } else {
    Get(x);
  }
  if (!status_.ok()) return;
  // The tensor's axis d is x's axis a[d], which is y's axis inverse[a[d]].
  Ints64 inverse(axes.size());
  for (size_t d = 0; d < axes.size(); ++d) inverse[static_cast<size_t>(axes[d])] = static_cast<int64_t>(d);
  const std::vector<Held> all = held_[x];
  for (const Held& held : all) {
    if (!held.arrangement.flattened.empty()) continue;
    Arrangement arrangement = held.arrangement;
    for (int64_t& axis : arrangement.axes) axis = inverse[static_cast<size_t>(axis)];
    Bind(y, arrangement, held.tensor);
  }
}

absl::string_view Exporter::PersistentBytes(ValueId v) {
  const ir::Value& value = graph_.values[static_cast<size_t>(v)];
  const auto slot = static_cast<size_t>(value.slot);
  const ir::Persistent& tensor = value.kind == ValueKind::kState ? graph_.states[slot] : graph_.parameters[slot];
  absl::StatusOr<absl::string_view> bytes = options_.bytes(tensor);
  if (!bytes.ok()) {
    Fail(Annotate(bytes.status(), tensor.name));
    return "";
  }
  const int64_t size = NumElements(tensor.type.shape) * SizeOf(tensor.type.dtype);
  if (static_cast<int64_t>(bytes->size()) == size) return *bytes;
  Fail(absl::InternalError(absl::StrCat("[export] ", tensor.name, " has ", bytes->size(), " bytes, not ", size)));
  return "";
}

// Parameters and states become tensors once something reads them.
void Exporter::Prepare(ValueId v) {
  const ir::Value& value = graph_.values[static_cast<size_t>(v)];
  const bool persistent = value.kind == ValueKind::kParameter || value.kind == ValueKind::kState;
  if (!persistent || held_.count(v) > 0 || !status_.ok()) return;
  const auto slot = static_cast<size_t>(value.slot);
  const ir::Persistent& tensor = value.kind == ValueKind::kState ? graph_.states[slot] : graph_.parameters[slot];
  Arrangement arrangement = InOrder(tensor.type.shape.size());
  if (tensor.layout == ir::DiskLayout::kConvFilter) arrangement = ChannelsFirst(tensor.type.shape.size());
  if (tensor.layout == ir::DiskLayout::kChannelsLast) arrangement.flattened = tensor.flattened;
  Shape shape;
  for (int64_t axis : arrangement.axes) shape.push_back(tensor.type.shape[static_cast<size_t>(axis)]);
  const std::string name = IsInputOrOutput(tensor.name) ? UniqueName(tensor.name) : tensor.name;
  Bind(v, arrangement, Initializer(name, tensor.type.dtype, shape, PersistentBytes(v)));
}

// A constant that follows the batch has to say the same of every sample.
T Exporter::ConstantValue(ValueId v, const Arrangement& arrangement) {
  const ir::Value& value = graph_.values[static_cast<size_t>(v)];
  std::shared_ptr<const Tensor> ours = value.data, theirs = twin_.values[static_cast<size_t>(v)].data;
  const Dims& dims = DimsOf(v);
  bool follows = false, same = true;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!dims[d].per_sample) continue;
    follows = true;
    same = same && CutUniformAxis(&ours, d) && CutUniformAxis(&theirs, d);
  }
  same = same && std::memcmp(ours->view().data, theirs->view().data, static_cast<size_t>(ours->view().bytes())) == 0;
  if (!same) {
    return Fail(absl::FailedPreconditionError(
        absl::StrCat("[export] the constant ", value.name, " depends on the size of the batch")));
  }
  const T tensor = arrangement.in_order() ? Constant(value.name, *ours)
                                          : Constant(value.name, PermutedTensor(*ours, arrangement.axes));
  return follows ? Expand(tensor, Permuted(dims, arrangement.axes)) : tensor;
}

T Exporter::Get(ValueId v, const Arrangement& arrangement) {
  Prepare(v);
  const ir::Value& value = graph_.values[static_cast<size_t>(v)];
  for (const Held& held : held_[v]) {
    if (held.arrangement == arrangement) return held.tensor;
  }
  T tensor;
  if (!status_.ok()) return NewTensor("", {});
  if (value.kind == ValueKind::kConstant && arrangement.flattened.empty()) {
    tensor = ConstantValue(v, arrangement);
  } else if (value.kind == ValueKind::kConstant) {
    tensor = Arranged(v, {InOrder(arrangement.axes.size()), Get(v)}, arrangement);
  } else if (held_[v].empty()) {
    return Fail(absl::InternalError(absl::StrCat("[export] nothing writes ", value.name)));
  } else {
    tensor = Arranged(v, held_[v][0], arrangement);
  }
  Bind(v, arrangement, tensor);
  return tensor;
}

T Exporter::Arranged(ValueId v, const Held& from, const Arrangement& to) {
  const bool from_flat = !from.arrangement.flattened.empty(), to_flat = !to.flattened.empty();
  if (from_flat && to.in_order()) return Flattened(from.tensor, from.arrangement.flattened, false);
  if (to_flat && from.arrangement.in_order()) return Flattened(from.tensor, to.flattened, true);
  if (from_flat || to_flat) {
    const Arrangement middle = InOrder(to.axes.size());
    return Arranged(v, {middle, Get(v, middle)}, to);
  }
  Ints64 place(to.axes.size()), axes;
  for (size_t d = 0; d < place.size(); ++d)
    place[static_cast<size_t>(from.arrangement.axes[d])] = static_cast<int64_t>(d);
  for (int64_t axis : to.axes) axes.push_back(place[static_cast<size_t>(axis)]);
  return Transpose(from.tensor, axes);
}

// The last axis from (h, w, c) into (c, h, w), or back.
T Exporter::Flattened(T x, const Shape& image, bool to_tensor) {
  if (!status_.ok()) return x;
  Dims whole = x->dims;
  whole.pop_back();
  Ints64 axes(whole.size());
  std::iota(axes.begin(), axes.end(), 0);
  const int64_t rank = static_cast<int64_t>(whole.size());
  const Ints64 extents = to_tensor ? Ints64{image[0], image[1], image[2]} : Ints64{image[2], image[0], image[1]};
  for (int64_t extent : extents) whole.push_back({extent, false});
  for (int64_t axis : to_tensor ? Ints64{2, 0, 1} : Ints64{1, 2, 0}) axes.push_back(rank + axis);
  const Dims flat = x->dims;
  return Reshape(Transpose(Reshape(x, whole), axes), flat);
}

Arrangement Exporter::Common(const std::vector<ValueId>& operands, ValueId result) {
  const Shape& shape = graph_.type(result).shape;
  for (const bool whole : {true, false}) {
    for (ValueId v : operands) {
      const ir::Value& value = graph_.values[static_cast<size_t>(v)];
      if (value.kind == ValueKind::kConstant || value.type.shape.size() != shape.size()) continue;
      if (whole ? value.type.shape == shape : At(v).flattened.empty()) return At(v);
    }
  }
  return InOrder(shape.size());
}

T Exporter::Operand(ValueId v, const Arrangement& arrangement, size_t rank) {
  const Dims& dims = DimsOf(v);
  if (!arrangement.flattened.empty()) {
    const bool broadcast = dims.empty() || IsOne(dims.back());
    return Get(v, InOrder(dims.size(), broadcast ? Shape() : arrangement.flattened));
  }
  if (dims.size() == rank) return Get(v, arrangement);
  const T x = Get(v);
  if (arrangement.in_order() || std::all_of(dims.begin(), dims.end(), IsOne)) return x;
  Dims padded(rank - dims.size());
  padded.insert(padded.end(), dims.begin(), dims.end());
  Dims moved = Permuted(padded, arrangement.axes);
  if (!KeepsPlaces(padded, arrangement.axes)) return Transpose(Reshape(x, padded), arrangement.axes);
  while (IsOne(moved.front())) moved.erase(moved.begin());
  return Reshape(x, moved);
}

T Exporter::Reshape(T x, const Dims& dims) {
  const T source = x->source == nullptr ? x : x->source;
  if (source->dims == dims || !status_.ok()) return source;
  Ints64 shape;
  for (const Dim& dim : dims) shape.push_back(dim.per_sample ? -1 : dim.count);
  if (std::count(shape.begin(), shape.end(), -1) > 1) {
    return Fail(absl::FailedPreconditionError(
        absl::StrCat("[export] ", prefix_, " has more than one axis that follows the batch")));
  }
  if (shape.size() == 2 && !source->dims.empty() && source->dims[0] == dims[0] && dims[0].per_sample) {
    Op("Flatten", {source}, dims, {{"axis", int64_t{1}}});
  } else {
    Op("Reshape", {source, Ints(shape, "shape")}, dims);
  }
  tensors_.back().source = source;
  return &tensors_.back();
}

T Exporter::Transpose(T x, const Ints64& axes) {
  if (!status_.ok() || std::is_sorted(axes.begin(), axes.end())) return x;
  const Dims dims = Permuted(x->dims, axes);
  int open = 0;
  for (const Dim& dim : dims) open += dim.per_sample ? 1 : 0;
  if (open <= 1 && KeepsPlaces(x->dims, axes)) return Reshape(x, dims);
  return Op("Transpose", {x}, dims, {{"perm", axes}});
}

T Exporter::BatchSize() {
  if (batch_size_ != nullptr) return batch_size_;
  const ExportedValue& input = options_.inputs[0];
  Arrangement arrangement = InOrder(graph_.type(graph_.FindInput(input.value)).shape.size());
  if (!input.axes.empty()) arrangement.axes = input.axes;
  const auto axis = std::find(arrangement.axes.begin(), arrangement.axes.end(), 0) - arrangement.axes.begin();
  const T whole = Get(graph_.FindInput(input.value), arrangement);
  const ir::Attributes from{{"start", int64_t{axis}}, {"end", int64_t{axis + 1}}};
  return batch_size_ = Op("Shape", {whole}, FixedDims({1}), from);
}

T Exporter::Expand(T x, const Dims& dims) {
  if (x->dims == dims || !status_.ok()) return x;
  std::vector<T> parts;
  Ints64 known;
  const auto flush = [&] {
    if (!known.empty()) parts.push_back(Ints(known, "extents"));
    known.clear();
  };
  for (size_t d = 0; d < dims.size(); ++d) {
    const size_t missing = dims.size() - x->dims.size();
    const bool there = d >= missing && x->dims[d - missing] == dims[d];
    if (!dims[d].per_sample || there) {
      known.push_back(there ? 1 : dims[d].count);
      continue;
    }
    flush();
    T extent = BatchSize();
    if (dims[d].count != 1) extent = Op("Mul", {extent, Ints({dims[d].count}, "extents")}, FixedDims({1}));
    parts.push_back(extent);
  }
  flush();
  const Dims shape = FixedDims({static_cast<int64_t>(dims.size())});
  const T to = parts.size() == 1 ? parts[0] : Op("Concat", parts, shape, {{"axis", int64_t{0}}});
  return Op("Expand", {x, to}, dims);
}

}  // namespace ampd::models::onnx
