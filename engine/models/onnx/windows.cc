// Convolutions and pools. One spatial axis is an image of height 1; more than two are refused.
#include <algorithm>
#include <numeric>

#include "engine/core/status.h"
#include "engine/models/onnx/node.h"

namespace ampd::models::onnx {
namespace {

using Ints = std::vector<int64_t>;

constexpr int64_t kMaxExtent = int64_t{1} << 31;

// The numbers of a window over images, [height, width].
struct Window {
  Ints kernel, strides, dilations;
  Ints pads;            // top, left, bottom, right
  Ints output_padding;  // of a transposed convolution
  bool ceil = false;
};

// With one spatial axis, [n, c, w] becomes [n, c, 1, w].
V AsImage(Node& n, V x) {
  if (Emitter::Rank(x) != 3) return x;
  return n.e.Reshape(x, {x->type.shape[0], x->type.shape[1], 1, x->type.shape[2]});
}

V FromImage(Node& n, V y, int spatial) {
  if (spatial == 2 || !n.e.ok() || Emitter::Rank(y) != 4) return y;
  return n.e.Reshape(y, {y->type.shape[0], y->type.shape[1], y->type.shape[3]});
}

absl::StatusOr<int> SpatialRank(const Node& n, int input) {
  const int spatial = n.rank(input) - 2;
  if (spatial < 1) return n.Bad(absl::StrCat("input ", input, " is ", ShapeString(n.shape(input))));
  if (spatial > 2) return n.Unsupported(absl::StrCat("spatial rank ", spatial));
  return spatial;
}

// Attribute `name` of `count` numbers >= least, or `fallback` everywhere.
absl::StatusOr<Ints> Numbers(const Node& n, const char* name, size_t count, int64_t fallback, int64_t least) {
  Ints values = n.Ints(name);
  if (values.empty()) values.assign(count, fallback);
  const bool fits = std::all_of(values.begin(), values.end(), [&](int64_t v) { return v >= least && v < kMaxExtent; });
  if (values.size() != count || !fits) return n.Bad(absl::StrCat(name, " is ", ShapeString(values)));
  return values;
}

// `kernel` over `spatial` axes, filled up to two.
absl::StatusOr<Window> WindowOf(const Node& n, Ints kernel, int spatial) {
  const size_t count = static_cast<size_t>(spatial);
  if (kernel.size() != count) return n.Bad(absl::StrCat("kernel_shape is ", ShapeString(kernel)));
  for (int64_t k : kernel) {
    if (k < 1 || k >= kMaxExtent) return n.Bad(absl::StrCat("kernel_shape is ", ShapeString(kernel)));
  }
  Window w{.kernel = std::move(kernel)};
  AMPD_ASSIGN_OR_RETURN(w.strides, Numbers(n, "strides", count, 1, 1));
  AMPD_ASSIGN_OR_RETURN(w.dilations, Numbers(n, "dilations", count, 1, 1));
  AMPD_ASSIGN_OR_RETURN(w.pads, Numbers(n, "pads", 2 * count, 0, 0));
  AMPD_ASSIGN_OR_RETURN(w.output_padding, Numbers(n, "output_padding", count, 0, 0));
  w.ceil = n.Int("ceil_mode", 0) != 0;
  if (spatial == 1) {
    for (Ints* v : {&w.kernel, &w.strides, &w.dilations}) v->insert(v->begin(), 1);
    w.output_padding.insert(w.output_padding.begin(), 0);
    w.pads = {0, w.pads[0], 0, w.pads[1]};
  }
  return w;
}

int64_t Reach(const Window& w, int axis) { return (w.kernel[axis] - 1) * w.dilations[axis] + 1; }

// SAME_UPPER and SAME_LOWER keep ceil(input / stride) outputs; an odd pad goes to the end, or to the beginning.
absl::Status AutoPad(const Node& n, const Shape& x, Window* w) {
  const std::string mode = n.String("auto_pad", "NOTSET");
  if (mode == "NOTSET") return absl::OkStatus();
  if (mode == "VALID") {
    w->pads = {0, 0, 0, 0};
    return absl::OkStatus();
  }
  if (mode != "SAME_UPPER" && mode != "SAME_LOWER") return n.Bad(absl::StrCat("auto_pad is ", mode));
  for (int a = 0; a < 2; ++a) {
    const int64_t outputs = (x[2 + a] + w->strides[a] - 1) / w->strides[a];
    const int64_t total = std::max<int64_t>((outputs - 1) * w->strides[a] + Reach(*w, a) - x[2 + a], 0);
    const int64_t small = total / 2;
    w->pads[a] = mode == "SAME_UPPER" ? small : total - small;
    w->pads[2 + a] = total - w->pads[a];
  }
  return absl::OkStatus();
}

// Windows that begin inside the input or its left padding are kept where ceil_mode is set: as padding after the end.
void CeilPad(const Shape& x, Window* w) {
  for (int a = 0; a < 2 && w->ceil; ++a) {
    const int64_t span = x[2 + a] + w->pads[a] + w->pads[2 + a] - Reach(*w, a);
    if (span < 0) continue;
    int64_t last = (span + w->strides[a] - 1) / w->strides[a] * w->strides[a];
    if (last >= x[2 + a] + w->pads[a]) last -= w->strides[a];
    w->pads[2 + a] = std::max(w->pads[2 + a], last + Reach(*w, a) - x[2 + a] - w->pads[a]);
  }
}

// A filter [k, c, r, s], which the engine reads as [k, r, s, c].
V Filter(Node& n, V w) { return AsImage(n, w); }

// Adds a bias [c] to an image [n, c, h, w]. As it is, not given four axes: precision follows the image.
V AddBias(Node& n, V y, int input) {
  if (!n.Has(input) || !n.e.ok()) return y;
  return n.e.ImageOp("bias_add", {y, n[input]}, {true, false}, {})[0];
}

absl::Status Conv(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int spatial, SpatialRank(n, 0));
  if (n.rank(1) != n.rank(0)) return n.Bad(absl::StrCat("filter of ", ShapeString(n.shape(1))));
  Ints kernel = n.Ints("kernel_shape");
  if (kernel.empty()) kernel.assign(n.shape(1).begin() + 2, n.shape(1).end());
  AMPD_ASSIGN_OR_RETURN(Window w, WindowOf(n, std::move(kernel), spatial));
  const V x = AsImage(n, n[0]), filter = Filter(n, n[1]);
  if (!n.e.ok()) return absl::OkStatus();
  if (filter->type.shape[2] != w.kernel[0] || filter->type.shape[3] != w.kernel[1]) {
    return n.Bad(absl::StrCat("filter of ", ShapeString(n.shape(1)), " for another kernel_shape"));
  }
  AMPD_RETURN_IF_ERROR(AutoPad(n, x->type.shape, &w));
  V y = n.e.ImageOp(
      "conv2d", {x, filter}, {true, true},
      {{"strides", w.strides}, {"pads", w.pads}, {"dilations", w.dilations}, {"groups", n.Int("group", 1)}})[0];
  return n.Out(FromImage(n, AddBias(n, y, 2), spatial));
}

// Pads from output_shape or auto_pad: what is left of the full output is cut off.
absl::Status TransposedPads(const Node& n, const Shape& x, int spatial, Window* w) {
  const std::string mode = n.String("auto_pad", "NOTSET");
  Ints output = n.Ints("output_shape");
  if (static_cast<int>(output.size()) > spatial) output.erase(output.begin(), output.end() - spatial);
  if (output.empty() && (mode == "NOTSET" || mode == "VALID")) {
    if (mode == "VALID") w->pads = {0, 0, 0, 0};
    return absl::OkStatus();
  }
  if (spatial == 1 && !output.empty()) output.insert(output.begin(), 1);
  if (!output.empty() && output.size() != 2) return n.Bad(absl::StrCat("output_shape is ", ShapeString(output)));
  for (int a = 0; a < 2; ++a) {
    const int64_t wanted = output.empty() ? x[2 + a] * w->strides[a] : output[a];
    const int64_t full = w->strides[a] * (x[2 + a] - 1) + w->output_padding[a] + Reach(*w, a);
    if (wanted < 1 || wanted >= kMaxExtent) return n.Bad(absl::StrCat("output_shape is ", ShapeString(output)));
    const int64_t total = std::max<int64_t>(full - wanted, 0);
    // A larger output than the full one is filled up at the end.
    w->output_padding[a] += std::max<int64_t>(wanted - full, 0);
    const int64_t begin = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
    w->pads[a] = begin;
    w->pads[2 + a] = total - begin;
  }
  return absl::OkStatus();
}

absl::Status ConvTranspose(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int spatial, SpatialRank(n, 0));
  if (n.rank(1) != n.rank(0)) return n.Bad(absl::StrCat("filter of ", ShapeString(n.shape(1))));
  Ints kernel = n.Ints("kernel_shape");
  if (kernel.empty()) kernel.assign(n.shape(1).begin() + 2, n.shape(1).end());
  AMPD_ASSIGN_OR_RETURN(Window w, WindowOf(n, std::move(kernel), spatial));
  const V x = AsImage(n, n[0]), filter = Filter(n, n[1]);
  if (!n.e.ok()) return absl::OkStatus();
  AMPD_RETURN_IF_ERROR(TransposedPads(n, x->type.shape, spatial, &w));
  // The engine's extra rows and columns stay below the stride. What is wanted beyond them is what a pad would cut off,
  // and then what no input reaches.
  Ints beyond(4, 0);
  for (int a = 0; a < 2; ++a) {
    const int64_t most = w.strides[a] - 1;
    beyond[2 + a] = std::max<int64_t>(w.output_padding[a] - most, 0);
    w.output_padding[a] = std::min(w.output_padding[a], most);
    const int64_t uncut = std::min(beyond[2 + a], w.pads[2 + a]);
    w.pads[2 + a] -= uncut;
    beyond[2 + a] -= uncut;
  }
  V y = n.e.ImageOp("conv_transpose2d", {x, filter}, {true, true},
                    {{"strides", w.strides},
                     {"pads", w.pads},
                     {"dilations", w.dilations},
                     {"groups", n.Int("group", 1)},
                     {"output_padding", w.output_padding}})[0];
  y = n.e.Pad(y, Ints(4, 0), beyond, 0);
  return n.Out(FromImage(n, AddBias(n, y, 2), spatial));
}

ir::Attributes PoolAttributes(const Window& w) {
  return {{"size", w.kernel}, {"strides", w.strides}, {"pads", w.pads}, {"dilations", w.dilations}};
}

absl::StatusOr<Window> PoolWindow(Node& n, int spatial, const Shape& x) {
  AMPD_ASSIGN_OR_RETURN(Window w, WindowOf(n, n.Ints("kernel_shape"), spatial));
  AMPD_RETURN_IF_ERROR(AutoPad(n, x, &w));
  return w;
}

// How many elements of the padded input each window of a pool covers, [1, 1, p, q]; with ceil_mode the last ones reach
// past it.
TensorPtr CoveredByWindow(const Shape& x, const Window& before, const Window& after) {
  Ints covered[2];
  for (int a = 0; a < 2; ++a) {
    const int64_t end = before.pads[a] + x[2 + a] + before.pads[2 + a];
    const int64_t span = x[2 + a] + after.pads[a] + after.pads[2 + a] - Reach(after, a);
    for (int64_t begin = 0; begin <= span; begin += after.strides[a]) {
      int64_t count = 0;
      for (int64_t k = 0; k < after.kernel[a]; ++k) count += begin + k * after.dilations[a] < end;
      covered[a].push_back(count);
    }
  }
  auto counts = std::make_shared<Tensor>(
      DType::kF32, Shape{1, 1, static_cast<int64_t>(covered[0].size()), static_cast<int64_t>(covered[1].size())});
  float* to = counts->as<float>().data();
  for (int64_t rows : covered[0]) {
    for (int64_t columns : covered[1]) *to++ = static_cast<float>(rows * columns);
  }
  return counts;
}

absl::Status AveragePool(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int spatial, SpatialRank(n, 0));
  const V x = AsImage(n, n[0]);
  if (!n.e.ok()) return absl::OkStatus();
  AMPD_ASSIGN_OR_RETURN(const Window given, PoolWindow(n, spatial, x->type.shape));
  Window w = given;
  CeilPad(x->type.shape, &w);
  const bool count_pads = n.Int("count_include_pad", 0) != 0;
  ir::Attributes attributes = PoolAttributes(w);
  attributes.Set("count_include_pad", int64_t{count_pads});
  V y = n.e.ImageOp("avg_pool2d", {x}, {true}, attributes)[0];
  if (count_pads && w.pads != given.pads) {
    // The mean is over the window's part of the padded input: what ceil_mode adds does not count.
    const double all = static_cast<double>(w.kernel[0]) * static_cast<double>(w.kernel[1]);
    const V whole = n.e.Scalar(DType::kF32, all);
    const V factor = n.e.Div(whole, n.e.Known(CoveredByWindow(x->type.shape, given, w)));
    y = n.e.Mul(y, n.e.Cast(factor, n.dtype(0)));
  }
  return n.Out(FromImage(n, y, spatial));
}

// The place of every window's maximum in the flattened input, whose images are counted row by row or column by column.
V MaxPlaces(Node& n, V x, V y, const Window& w) {
  Emitter& e = n.e;
  const Shape s = x->type.shape;
  const int64_t images = s[0] * s[1];
  V place = e.Cast(e.ImageOp("max_pool2d_index", {x, y}, {true, true}, PoolAttributes(w))[0], DType::kI64);
  if (n.Int("storage_order", 0) != 0) {
    const V width = e.Scalar(DType::kI64, static_cast<double>(s[3]));
    const V row = e.Div(place, width), column = e.Sub(place, e.Mul(row, width));
    place = e.Add(e.MulScalar(column, static_cast<double>(s[2])), row);
  }
  if (!e.AllowConstant(static_cast<double>(images))) return place;
  std::vector<int64_t> first(static_cast<size_t>(images));
  for (int64_t i = 0; i < images; ++i) first[static_cast<size_t>(i)] = i * s[2] * s[3];
  return e.Add(place, e.Reshape(e.Ints(first), {s[0], s[1], 1, 1}));
}

absl::Status MaxPool(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int spatial, SpatialRank(n, 0));
  const V x = AsImage(n, n[0]);
  if (!n.e.ok()) return absl::OkStatus();
  AMPD_ASSIGN_OR_RETURN(Window w, PoolWindow(n, spatial, x->type.shape));
  CeilPad(x->type.shape, &w);
  const V y = n.e.ImageOp("max_pool2d", {x}, {true}, PoolAttributes(w))[0];
  if (!n.e.ok()) return absl::OkStatus();
  AMPD_RETURN_IF_ERROR(n.Out(0, FromImage(n, y, spatial)));
  if (!n.Wants(1)) return absl::OkStatus();
  return n.Out(1, FromImage(n, MaxPlaces(n, x, y, w), spatial));
}

absl::Status GlobalPool(Node& n) {
  if (n.rank(0) < 2) return n.Bad(absl::StrCat("input is ", ShapeString(n.shape(0))));
  Ints axes(static_cast<size_t>(n.rank(0)) - 2);
  std::iota(axes.begin(), axes.end(), 2);
  return n.Out(n.e.Reduce(n.op() == "GlobalMaxPool" ? "reduce_max" : "reduce_mean", n[0], axes, true));
}

}  // namespace

std::vector<Rule> WindowRules() {
  return NeverEmpty({
      {"Conv", Conv, 2},
      {"ConvTranspose", ConvTranspose, 2},
      {"AveragePool", AveragePool, 1},
      {"MaxPool", MaxPool, 1},
      {"GlobalAveragePool", GlobalPool, 1},
      {"GlobalMaxPool", GlobalPool, 1},
  });
}

}  // namespace ampd::models::onnx
