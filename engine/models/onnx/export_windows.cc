// Convolutions and pools.
#include <algorithm>
#include <limits>

#include "engine/core/status.h"
#include "engine/models/onnx/exporter.h"

namespace ampd::models::onnx {
namespace {

using ir::OpKind;
using Ints = std::vector<int64_t>;

const Arrangement& Image() {
  static const Arrangement& image = *new Arrangement(ChannelsFirst(4));
  return image;
}

Dims ImageDims(const Dims& dims) { return {dims[0], dims[3], dims[1], dims[2]}; }

Ints Pair(const ExportNode& n, const char* name, int64_t fallback) {
  const Ints given = n.a.Ints(name);
  return given.empty() ? Ints{fallback, fallback} : given;
}

Ints Pads(const ExportNode& n) {
  const Ints given = n.a.Ints("pads");
  return given.empty() ? Ints{0, 0, 0, 0} : given;
}

absl::Status Convolution(ExportNode& n) {
  const Shape& filter = n.type(1).shape;
  ir::Attributes attributes{{"kernel_shape", Ints{filter[1], filter[2]}},
                            {"strides", Pair(n, "strides", 1)},
                            {"pads", Pads(n)},
                            {"dilations", Pair(n, "dilations", 1)},
                            {"group", n.a.Int("groups", 1)}};
  if (n.node().op == OpKind::kConvTranspose2d) attributes.Set("output_padding", Pair(n, "output_padding", 0));
  std::vector<T> inputs = {n.e.Get(n.in(0), Image()), n.e.Get(n.in(1), Image())};
  const FollowingBias bias = TakeBias(n);
  if (bias.bias != nullptr) inputs.push_back(bias.bias);
  n.e.Bind(bias.result, Image(), n.e.Op(n.onnx, inputs, ImageDims(n.out_dims()), attributes));
  return absl::OkStatus();
}

// Whether padding is narrower than the window, as runtimes want it.
bool IsNarrow(const Ints& pads, const Ints& size) {
  return std::max(pads[0], pads[2]) < size[0] && std::max(pads[1], pads[3]) < size[1];
}

absl::Status MaxPool(ExportNode& n) {
  const Ints size = n.a.Ints("size");
  Ints pads = Pads(n);
  T x = n.e.Get(n.in(0), Image());
  if (!n.e.status().ok()) return n.e.status();
  if (!IsNarrow(pads, size)) {
    Dims padded = x->dims;
    padded[2].count += pads[0] + pads[2];
    padded[3].count += pads[1] + pads[3];
    const DType dtype = n.type(0).dtype;
    const T least = n.e.Scalar(dtype, IsFloat(dtype) ? -std::numeric_limits<double>::infinity() : 0);
    const Ints around = {0, 0, pads[0], pads[1], 0, 0, pads[2], pads[3]};
    x = n.e.Op("Pad", {x, n.e.Ints(around, "pads"), least}, padded, {{"mode", std::string("constant")}});
    pads = {0, 0, 0, 0};
  }
  const ir::Attributes attributes{{"kernel_shape", size},
                                  {"strides", Pair(n, "strides", 1)},
                                  {"pads", pads},
                                  {"dilations", Pair(n, "dilations", 1)}};
  n.e.Bind(n.out(), Image(), n.e.Op("MaxPool", {x}, ImageDims(n.out_dims()), attributes));
  return absl::OkStatus();
}

// Of a pool, along one axis.
struct PoolAxis {
  int64_t input, size, stride, dilation, before, after, uncounted;
};

// How many cells of the window at `position` its mean is over.
int64_t Counted(const PoolAxis& e, int64_t position, bool count_pads) {
  int64_t count = 0;
  for (int64_t i = 0; i < e.size; ++i) {
    const int64_t at = position * e.stride - e.before + i * e.dilation;
    const bool real = at >= 0 && at < e.input;
    if (real || (count_pads && at < e.input + e.after - e.uncounted)) ++count;
  }
  return count;
}

// As sums by a convolution with ones, divided by how many cells each is of: for what AveragePool cannot say.
T SumsOverCounts(ExportNode& n, T x, const Ints& size, const Ints& ceil) {
  const Ints strides = Pair(n, "strides", 1), dilations = Pair(n, "dilations", 1), pads = Pads(n);
  const Shape &in = n.type(0).shape, &out = n.e.graph().type(n.out()).shape;
  Tensor ones(DType::kF32, {in[3], 1, size[0], size[1]}), counts(DType::kF32, {1, 1, out[1], out[2]});
  std::fill(ones.as<float>().begin(), ones.as<float>().end(), 1.0f);
  const bool count_pads = n.a.Bool("count_include_pad");
  const PoolAxis rows = {in[1], size[0], strides[0], dilations[0], pads[0], pads[2], ceil[0]};
  const PoolAxis columns = {in[2], size[1], strides[1], dilations[1], pads[1], pads[3], ceil[1]};
  for (int64_t p = 0; p < out[1]; ++p) {
    for (int64_t q = 0; q < out[2]; ++q) {
      const int64_t count = Counted(rows, p, count_pads) * Counted(columns, q, count_pads);
      counts.as<float>()[static_cast<size_t>(p * out[2] + q)] = static_cast<float>(count);
    }
  }
  const ir::Attributes attributes{
      {"kernel_shape", size}, {"strides", strides}, {"pads", pads}, {"dilations", dilations}, {"group", in[3]}};
  const Dims dims = ImageDims(n.out_dims());
  const T sums = n.e.Op("Conv", {x, n.e.Constant("ones", ones)}, dims, attributes);
  return n.e.Op("Div", {sums, n.e.Constant("counts", counts)}, dims);
}

absl::Status AveragePool(ExportNode& n) {
  const Ints size = n.a.Ints("size"), ceil = Pair(n, "ceil_pads", 0), pads = Pads(n);
  const T x = n.e.Get(n.in(0), Image());
  T y;
  if (Pair(n, "dilations", 1) != Ints{1, 1} || ceil != Ints{0, 0} || !IsNarrow(pads, size)) {
    if (n.type(0).dtype != DType::kF32) return n.Refuse("has holes or padding of 16-bit numbers");
    y = SumsOverCounts(n, x, size, ceil);
  } else {
    y = n.e.Op("AveragePool", {x}, ImageDims(n.out_dims()),
               {{"kernel_shape", size},
                {"strides", Pair(n, "strides", 1)},
                {"pads", pads},
                {"count_include_pad", int64_t{n.a.Bool("count_include_pad")}}});
  }
  n.e.Bind(n.out(), Image(), y);
  return absl::OkStatus();
}

absl::Status GlobalAveragePool(ExportNode& n) {
  const Dims &from = n.dims(0), pooled = {from[0], from[3], {}, {}};
  const T mean = n.e.Op("GlobalAveragePool", {n.e.Get(n.in(0), Image())}, pooled);
  n.e.Bind(n.out(), InOrder(2), n.e.Reshape(mean, n.out_dims()));
  return absl::OkStatus();
}

}  // namespace

// Both kinds of addition: layers' own, and what an imported model's became.
FollowingBias TakeBias(ExportNode& n) {
  FollowingBias none{nullptr, n.out()};
  const ir::Graph& graph = n.e.graph();
  const ir::Node* reader = n.e.OnlyReader(n.out());
  if (reader == nullptr || (reader->op != OpKind::kBiasAdd && reader->op != OpKind::kAdd)) return none;
  const ir::ValueId bias = reader->inputs[0] == n.out() ? reader->inputs[1] : reader->inputs[0];
  const ir::TensorType &type = graph.type(n.out()), &other = graph.type(bias);
  const bool a_channel = other.shape == Shape{type.shape.back()} && graph.type(reader->outputs[0]) == type;
  if (!a_channel || other.dtype != type.dtype || !n.e.IsAtHand(bias) || n.e.DimsOf(bias)[0].per_sample) return none;
  n.e.Skip(*reader);
  return {n.e.Get(bias), reader->outputs[0]};
}

std::vector<Writer> WindowWriters() {
  return {
      {OpKind::kConv2d, Convolution, "Conv"},
      {OpKind::kConvTranspose2d, Convolution, "ConvTranspose"},
      {OpKind::kMaxPool2d, MaxPool},
      {OpKind::kAvgPool2d, AveragePool},
      {OpKind::kGlobalAvgPool, GlobalAveragePool},
  };
}

}  // namespace ampd::models::onnx
