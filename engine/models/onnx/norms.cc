// Normalisations and softmax.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/core/status.h"
#include "engine/models/onnx/node.h"

namespace ampd::models::onnx {
namespace {

using Ints = std::vector<int64_t>;

Ints AxesFrom(int first, int rank) {
  Ints axes(static_cast<size_t>(std::max(rank - first, 0)));
  std::iota(axes.begin(), axes.end(), first);
  return axes;
}

struct Normalized {
  V y, mean, inverse;  // inverse: 1 / sqrt(variance + epsilon)
};

// (x - mean) / sqrt(variance + epsilon) over `axes`, the variance biased and of centred values.
Normalized Normalize(Node& n, V x, const Ints& axes, double epsilon) {
  const V mean = n.e.Reduce("reduce_mean", x, axes, true);
  const V centred = n.e.Sub(x, mean);
  const V variance = n.e.Reduce("reduce_mean", n.e.Mul(centred, centred), axes, true);
  const V inverse = n.e.Unary("reciprocal", n.e.Unary("sqrt", n.e.AddScalar(variance, epsilon)));
  return {n.e.Mul(centred, inverse), mean, inverse};
}

// A vector over the channels of [n, c, ...] with axes after it.
V OverChannels(Node& n, V v, int rank) {
  Shape shape{Emitter::Size(v)};
  shape.resize(static_cast<size_t>(rank - 1), 1);
  return n.e.Reshape(v, shape);
}

// [n, c, anything] as an image [n, c, 1, pixels].
V AsImage(Node& n, V x) {
  const Shape& s = x->type.shape;
  if (s.size() == 4 || s.size() == 2) return x;
  const absl::Span<const int64_t> all(s.data(), s.size());
  return n.e.Reshape(x, {s[0], s[1], 1, NumElements(all.subspan(2))});
}

absl::Status TrainingBatchNorm(Node& n, V x) {
  const bool image = Emitter::Rank(x) == 4;
  const ir::Attributes attributes{{"epsilon", n.Float("epsilon", 1e-5)}};
  const std::vector<V> y = n.e.ImageOp("batch_norm", {x, n[1], n[2]}, {image, false, false}, attributes);
  AMPD_RETURN_IF_ERROR(n.Out(0, n.e.Reshape(y[0], n.shape(0))));
  const double momentum = n.Float("momentum", 0.9);
  for (int i = 1; i < 3; ++i) {
    const V statistic = n.e.Cast(y[i], n.dtype(2 + i));
    const V running = n.e.Add(n.e.MulScalar(n[2 + i], momentum), n.e.MulScalar(statistic, 1 - momentum));
    AMPD_RETURN_IF_ERROR(n.Out(i, running));
  }
  return absl::OkStatus();
}

absl::Status BatchNormalization(Node& n) {
  if (n.rank(0) < 2) return n.Bad(absl::StrCat("input is ", ShapeString(n.shape(0))));
  for (int i = 1; i < 5; ++i) {
    if (n.shape(i) != Shape{n.shape(0)[1]}) return n.Bad(absl::StrCat("input ", i, " is ", ShapeString(n.shape(i))));
  }
  if (n.Int("spatial", 1) == 0) return n.Unsupported("spatial=0");
  const V x = AsImage(n, n[0]);
  if (!n.e.ok()) return absl::OkStatus();
  const bool training = n.opset() >= 14 ? n.Int("training_mode", 0) != 0 : n.Wants(1);
  if (training) return TrainingBatchNorm(n, x);
  const bool image = Emitter::Rank(x) == 4;
  const V y = n.e.ImageOp("batch_norm_inference", {x, n[1], n[2], n[3], n[4]}, {image, false, false, false, false},
                          {{"epsilon", n.Float("epsilon", 1e-5)}})[0];
  return n.Out(n.e.Reshape(y, n.shape(0)));
}

absl::Status InstanceNormalization(Node& n) {
  if (n.rank(0) < 3) return n.Bad(absl::StrCat("input is ", ShapeString(n.shape(0))));
  const V x = n.e.Cast(n[0], DType::kF32);
  const Normalized y = Normalize(n, x, AxesFrom(2, n.rank(0)), n.Float("epsilon", 1e-5));
  const V scale = OverChannels(n, n.e.Cast(n[1], DType::kF32), n.rank(0));
  const V bias = OverChannels(n, n.e.Cast(n[2], DType::kF32), n.rank(0));
  return n.Out(n.e.Cast(n.e.Add(n.e.Mul(y.y, scale), bias), n.dtype(0)));
}

// Scale and bias stand one a group before opset 21, one a channel from then on.
absl::Status GroupNormalization(Node& n) {
  const int64_t groups = n.Int("num_groups", 0);
  const Shape s = n.shape(0);
  if (n.rank(0) < 3 || groups < 1 || s[1] % groups != 0)
    return n.Bad(absl::StrCat(groups, " groups of ", ShapeString(s)));
  const V x = n.e.Reshape(n.e.Cast(n[0], DType::kF32), {s[0], groups, Emitter::Size(n[0]) / s[0] / groups});
  V y = Normalize(n, x, {2}, n.Float("epsilon", 1e-5)).y;
  const bool by_group = n.opset() < 21 && Emitter::Size(n[1]) == groups;
  if (!by_group) y = n.e.Reshape(y, s);
  const int rank = by_group ? 3 : n.rank(0);
  y = n.e.Mul(y, OverChannels(n, n.e.Cast(n[1], DType::kF32), rank));
  y = n.e.Add(y, OverChannels(n, n.e.Cast(n[2], DType::kF32), rank));
  return n.Out(n.e.Cast(n.e.Reshape(y, s), n.dtype(0)));
}

absl::Status LayerNormalization(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int axis, n.Axis(n.Int("axis", -1), n.rank(0)));
  const Normalized norm =
      Normalize(n, n.e.Cast(n[0], DType::kF32), AxesFrom(axis, n.rank(0)), n.Float("epsilon", 1e-5));
  V y = n.e.Mul(n.e.Cast(norm.y, n.dtype(0)), n[1]);
  if (n.Has(2)) y = n.e.Add(y, n[2]);
  AMPD_RETURN_IF_ERROR(n.Out(0, y));
  AMPD_RETURN_IF_ERROR(n.Out(1, norm.mean));
  return n.Out(2, norm.inverse);
}

// Zhang and Sennrich 2019.
absl::Status RmsNormalization(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int axis, n.Axis(n.Int("axis", -1), n.rank(0)));
  const V x = n.e.Cast(n[0], DType::kF32);
  const V square = n.e.Reduce("reduce_mean", n.e.Mul(x, x), AxesFrom(axis, n.rank(0)), true);
  const V inverse = n.e.Unary("reciprocal", n.e.Unary("sqrt", n.e.AddScalar(square, n.Float("epsilon", 1e-5))));
  return n.Out(n.e.Mul(n.e.Cast(n.e.Mul(x, inverse), n.dtype(0)), n[1]));
}

absl::Status MeanVarianceNormalization(Node& n) {
  Ints axes = n.Attribute("axes") != nullptr ? n.Ints("axes") : Ints{0, 2, 3};
  AMPD_ASSIGN_OR_RETURN(axes, n.Axes(axes, n.rank(0)));
  const V mean = n.e.Reduce("reduce_mean", n[0], axes, true);
  const V centred = n.e.Sub(n[0], mean);
  const V deviation = n.e.Unary("sqrt", n.e.Reduce("reduce_mean", n.e.Mul(centred, centred), axes, true));
  return n.Out(n.e.Div(centred, n.e.AddScalar(deviation, 1e-9)));
}

absl::Status LpNormalization(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int axis, n.Axis(n.Int("axis", -1), n.rank(0)));
  const int64_t p = n.Int("p", 2);
  if (p != 1 && p != 2) return n.Bad(absl::StrCat("p is ", p));
  const V powers = p == 1 ? n.e.Unary("abs", n[0]) : n.e.Mul(n[0], n[0]);
  V norm = n.e.Reduce("reduce_sum", powers, {axis}, true);
  if (p == 2) norm = n.e.Unary("sqrt", norm);
  const V zero = n.e.Scalar(n.dtype(0), 0);
  return n.Out(n.e.Where(n.e.Binary("equal", norm, zero), zero, n.e.Div(n[0], norm)));
}

// Before opset 13 the axes from `axis` on are one.
absl::Status Softmax(Node& n) {
  const char* op = n.op() == "Softmax" ? "softmax" : "log_softmax";
  if (Emitter::Size(n[0]) == 0) return n.Out(n[0]);
  AMPD_ASSIGN_OR_RETURN(const int axis, n.Axis(n.Int("axis", n.opset() >= 13 ? -1 : 1), n.rank(0)));
  if (n.opset() >= 13) return n.Out(n.e.Op1(op, {n[0]}, {{"axis", int64_t{axis}}}));
  const absl::Span<const int64_t> all(n.shape(0).data(), n.shape(0).size());
  const V flat = n.e.Reshape(n[0], {NumElements(all.subspan(0, axis)), NumElements(all.subspan(axis))});
  return n.Out(n.e.Reshape(n.e.Op1(op, {flat}, {{"axis", int64_t{1}}}), n.shape(0)));
}

}  // namespace

std::vector<Rule> NormRules() {
  std::vector<Rule> rules = NeverEmpty({
      {"BatchNormalization", BatchNormalization, 5},
      {"InstanceNormalization", InstanceNormalization, 3},
      {"GroupNormalization", GroupNormalization, 3},
      {"LayerNormalization", LayerNormalization, 2},
      {"RMSNormalization", RmsNormalization, 2},
      {"MeanVarianceNormalization", MeanVarianceNormalization, 1},
      {"LpNormalization", LpNormalization, 1},
  });
  rules.insert(rules.end(), {{"Softmax", Softmax, 1}, {"LogSoftmax", Softmax, 1}});
  return rules;
}

}  // namespace ampd::models::onnx
