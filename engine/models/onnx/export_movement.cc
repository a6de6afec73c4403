// Operations that move data and compute nothing.
#include <algorithm>
#include <limits>

#include "engine/core/status.h"
#include "engine/models/onnx/exporter.h"

namespace ampd::models::onnx {
namespace {

using ir::OpKind;
using Ints = std::vector<int64_t>;

Dims Arranged(const Dims& dims, const Arrangement& at) {
  Dims result;
  for (int64_t axis : at.axes) result.push_back(dims[static_cast<size_t>(axis)]);
  return result;
}

// The arrangement in which the value is at hand, if that is one of whole axes; else that of the graph.
Arrangement WholeAxes(ExportNode& n, size_t input) {
  const Arrangement at = n.e.At(n.in(input));
  return at.flattened.empty() ? at : InOrder(at.axes.size());
}

int64_t AxisOf(ExportNode& n, const char* name, int64_t fallback, size_t rank) {
  const int64_t axis = n.a.Int(name, fallback);
  return axis < 0 ? axis + static_cast<int64_t>(rank) : axis;
}

// Where the value's axis stands in a tensor arranged so.
int64_t PlaceOf(const Arrangement& at, int64_t axis) {
  return std::find(at.axes.begin(), at.axes.end(), axis) - at.axes.begin();
}

// A flattened image stays as ONNX and PyTorch flatten it, and a flattened one goes back to the image that it was.
absl::Status Reshape(ExportNode& n) {
  const Dims &from = n.dims(0), &to = n.out_dims();
  const Arrangement at = n.e.At(n.in(0));
  const auto fixed = [](const Dims& dims, size_t d) { return dims[d].count; };
  if (from.size() == 4 && to.size() == 2 && from[0] == to[0] && at == ChannelsFirst(4)) {
    const Shape image = {fixed(from, 1), fixed(from, 2), fixed(from, 3)};
    const bool same = image[2] == 1 || image[0] * image[1] == 1;
    n.e.Bind(n.out(), InOrder(2, same ? Shape() : image), n.e.Reshape(n.e.Get(n.in(0), at), to));
    return absl::OkStatus();
  }
  const Shape& image = at.flattened;
  if (!image.empty() && from.size() == 2 && to.size() > 2 && to.size() < 5 && to[0] == from[0]) {
    const Dims pixels = to.size() == 3 ? FixedDims({image[0] * image[1], image[2]}) : FixedDims(image);
    if (std::equal(pixels.begin(), pixels.end(), to.begin() + 1)) {
      const Arrangement first = ChannelsFirst(to.size());
      n.e.Bind(n.out(), first, n.e.Reshape(n.e.Get(n.in(0), at), Arranged(to, first)));
      return absl::OkStatus();
    }
  }
  n.e.Bind(n.out(), InOrder(to.size()), n.e.Reshape(n.e.Get(n.in(0)), to));
  return absl::OkStatus();
}

absl::Status Transpose(ExportNode& n) {
  n.e.BindTransposed(n.in(0), n.out(), n.a.Ints("perm"));
  return absl::OkStatus();
}

absl::Status BroadcastTo(ExportNode& n) {
  const bool same_rank = n.rank(0) == n.out_dims().size();
  const Arrangement at = same_rank ? WholeAxes(n, 0) : InOrder(n.out_dims().size());
  const T x = same_rank ? n.e.Get(n.in(0), at) : n.e.Get(n.in(0));
  n.e.Bind(n.out(), at, n.e.Expand(x, Arranged(n.out_dims(), at)));
  return absl::OkStatus();
}

absl::Status Slice(ExportNode& n) {
  const Ints starts = n.a.Ints("starts"), ends = n.a.Ints("ends"), steps = n.a.Ints("steps");
  const Arrangement at = WholeAxes(n, 0);
  Ints from, to, over, by;
  for (size_t d = 0; d < starts.size(); ++d) {
    const size_t axis = static_cast<size_t>(at.axes[d]);
    const Dim& dim = n.dims(0)[axis];
    const int64_t extent = n.type(0).shape[axis];
    if (starts[axis] == 0 && ends[axis] == extent && steps[axis] == 1) continue;
    if (dim.per_sample) return n.Refuse("cuts an axis that follows the batch");
    from.push_back(starts[axis]);
    // Before the first element, which -1 is not in ONNX.
    to.push_back(ends[axis] < 0 ? std::numeric_limits<int64_t>::min() : ends[axis]);
    over.push_back(static_cast<int64_t>(d));
    by.push_back(steps[axis]);
  }
  T x = n.e.Get(n.in(0), at);
  const Dims dims = Arranged(n.out_dims(), at);
  const bool by_one = std::all_of(by.begin(), by.end(), [](int64_t step) { return step == 1; });
  if (!from.empty()) {
    std::vector<T> inputs = {x, n.e.Ints(from, "starts"), n.e.Ints(to, "ends"), n.e.Ints(over, "axes")};
    if (!by_one) inputs.push_back(n.e.Ints(by, "steps"));
    x = n.e.Op("Slice", inputs, dims);
  }
  n.e.Bind(n.out(), at, x);
  return absl::OkStatus();
}

absl::Status Concat(ExportNode& n) {
  size_t model = 0;
  while (model + 1 < n.inputs() && n.e.At(n.in(model)).in_order()) ++model;
  const Arrangement at = WholeAxes(n, model);
  const int64_t axis = AxisOf(n, "axis", 0, n.rank(0));
  std::vector<T> parts;
  for (size_t i = 0; i < n.inputs(); ++i) parts.push_back(n.e.Get(n.in(i), at));
  n.e.Bind(n.out(), at, n.e.Op("Concat", parts, Arranged(n.out_dims(), at), {{"axis", PlaceOf(at, axis)}}));
  return absl::OkStatus();
}

absl::Status Gather(ExportNode& n) {
  const int64_t axis = AxisOf(n, "axis", 0, n.rank(0));
  // By indices of one axis the result has the operand's axes, and may stay arranged as that is.
  const bool keeps = n.rank(1) == 1 && n.out_dims().size() == n.rank(0);
  const Arrangement at = keeps ? WholeAxes(n, 0) : InOrder(n.rank(0));
  const Arrangement to = keeps ? at : InOrder(n.out_dims().size());
  const T y = n.e.Op(n.onnx, {n.e.Get(n.in(0), at), n.e.Get(n.in(1))}, Arranged(n.out_dims(), to),
                     {{"axis", PlaceOf(at, axis)}});
  n.e.Bind(n.out(), to, y);
  return absl::OkStatus();
}

absl::Status GatherNd(ExportNode& n) {
  const T y = n.e.Op("GatherND", {n.e.Get(n.in(0)), n.e.Get(n.in(1))}, n.out_dims(),
                     {{"batch_dims", n.a.Int("batch_dims", 0)}});
  n.e.Bind(n.out(), InOrder(n.out_dims().size()), y);
  return absl::OkStatus();
}

absl::Status Embedding(ExportNode& n) {
  const T y = n.e.Op("Gather", {n.e.Get(n.in(0)), n.e.Get(n.in(1))}, n.out_dims(), {{"axis", int64_t{0}}});
  n.e.Bind(n.out(), InOrder(n.out_dims().size()), y);
  return absl::OkStatus();
}

absl::Status OneHot(ExportNode& n) {
  Tensor values(DType::kF32, {2});
  values.as<float>()[1] = 1;
  const T y =
      n.e.Op("OneHot", {n.e.Get(n.in(0)), n.e.Ints({n.a.Int("depth")}, "depth"), n.e.Constant("off_on", values)},
             n.out_dims(), {{"axis", n.a.Int("axis", -1)}});
  n.e.Bind(n.out(), InOrder(n.out_dims().size()), y);
  return absl::OkStatus();
}

absl::Status Pad(ExportNode& n) {
  const Ints pads = n.a.Ints("pads");
  const Arrangement at = WholeAxes(n, 0);
  const size_t rank = at.axes.size();
  Ints arranged(2 * rank);
  for (size_t d = 0; d < rank; ++d) {
    const size_t axis = static_cast<size_t>(at.axes[d]);
    arranged[d] = pads[axis];
    arranged[rank + d] = pads[rank + axis];
    if (n.dims(0)[axis].per_sample && (pads[axis] != 0 || pads[rank + axis] != 0)) {
      return n.Refuse("pads an axis that follows the batch");
    }
  }
  const std::string mode = n.a.Has("mode") ? n.a.String("mode") : "constant";
  std::vector<T> inputs = {n.e.Get(n.in(0), at), n.e.Ints(arranged, "pads")};
  if (mode == "constant") inputs.push_back(n.e.Scalar(n.type(0).dtype, n.a.Double("value", 0)));
  n.e.Bind(n.out(), at, n.e.Op("Pad", inputs, Arranged(n.out_dims(), at), {{"mode", mode}}));
  return absl::OkStatus();
}

}  // namespace

std::vector<Writer> MovementWriters() {
  return {
      {OpKind::kReshape, Reshape},
      {OpKind::kTranspose, Transpose},
      {OpKind::kBroadcastTo, BroadcastTo},
      {OpKind::kSlice, Slice},
      {OpKind::kConcat, Concat},
      {OpKind::kGather, Gather, "Gather"},
      {OpKind::kGatherElements, Gather, "GatherElements"},
      {OpKind::kGatherNd, GatherNd},
      {OpKind::kEmbedding, Embedding},
      {OpKind::kOneHot, OneHot},
      {OpKind::kPad, Pad},
  };
}

}  // namespace ampd::models::onnx
