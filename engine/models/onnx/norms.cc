// Normalisations and softmax.
#include "engine/core/status.h"
#include "engine/models/onnx/initializers.h"
#include "engine/models/onnx/node.h"

namespace ampd::models::onnx {
namespace {

using Ints = std::vector<int64_t>;

// ONNX's is the share of a running statistic that stays, the engine's, as PyTorch's, that which is new.
constexpr double kMomentum = 0.9;

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
  const double momentum = n.Float("momentum", kMomentum);
  for (int i = 1; i < 3; ++i) {
    const V statistic = n.e.Cast(y[i], n.dtype(2 + i));
    const V running = n.e.Add(n.e.MulScalar(n[2 + i], momentum), n.e.MulScalar(statistic, 1 - momentum));
    AMPD_RETURN_IF_ERROR(n.Out(i, running));
  }
  return absl::OkStatus();
}

// Outputs besides the first: the statistics, of older opsets twice.
absl::Status KeepStatistics(Node& n) {
  for (int i = 1; i < 5; ++i) {
    if (n.Wants(i)) AMPD_RETURN_IF_ERROR(n.Out(i, n[i % 2 == 1 ? 3 : 4]));
  }
  return absl::OkStatus();
}

absl::Status InferenceBatchNorm(Node& n, V x) {
  const bool image = Emitter::Rank(x) == 4;
  ir::Attributes attributes{{"epsilon", n.Float("epsilon", 1e-5)}};
  const double kept = n.Float("momentum", kMomentum);
  if (kept >= 0 && kept <= 1) attributes.Set("momentum", 1 - kept);
  const V y = n.e.ImageOp("batch_norm_inference", {x, n[1], n[2], n[3], n[4]}, {image, false, false, false, false},
                          attributes)[0];
  return n.Out(n.e.Reshape(y, n.shape(0)));
}

// Whether training moves what is normalised by.
bool MovesStatistics(const Node& n) {
  const auto moves = [&](V v) {
    if (v->ir < 0) return false;
    const ir::Value& value = n.e.graph()->values[static_cast<size_t>(v->ir)];
    return value.kind == ir::ValueKind::kState && n.options().updates_statistic(value.name);
  };
  return n.services().batches(n[3]) != nullptr && moves(n[3]) && moves(n[4]);
}

// A training would shrink and move them as it does weights.
absl::Status RefuseTrainedStatistics(const Node& n) {
  for (const int input : {kMeanInput, kVarianceInput}) {
    const V v = n[input];
    if (v->ir < 0) continue;
    const ir::Value& value = n.e.graph()->values[static_cast<size_t>(v->ir)];
    if (value.kind != ir::ValueKind::kParameter || !n.options().updates_statistic(value.name)) continue;
    const std::string what =
        absl::StrCat(input == kMeanInput ? "the mean" : "the variance", " is parameter ", value.name);
    if (n.services().in_function) {
      return n.Bad(absl::StrCat(what,
                                ", which is read within a function of the model: a batch norm that is trained "
                                "stands in the model's own graph; write its functions out, or freeze it"));
    }
    return n.Bad(absl::StrCat(what,
                              ", which something else reads, too: a batch norm that is trained has statistics of "
                              "its own; or freeze it"));
  }
  return absl::OkStatus();
}

// Of a network that a job trains.
absl::Status JobBatchNorm(Node& n, V x) {
  if (n.options().training) AMPD_RETURN_IF_ERROR(RefuseTrainedStatistics(n));
  AMPD_RETURN_IF_ERROR(KeepStatistics(n));
  if (!n.options().training || !MovesStatistics(n)) return InferenceBatchNorm(n, x);
  const bool image = Emitter::Rank(x) == 4;
  const double kept = n.Float("momentum", kMomentum);
  if (!(kept >= 0 && kept <= 1)) return n.Bad(absl::StrCat("momentum is ", kept));
  const int64_t count = Emitter::Size(x) / n.shape(0)[1];
  if (count < 2) {
    return n.Bad(absl::StrCat("needs more than one value a channel to train, has ", ShapeString(n.shape(0))));
  }
  const std::vector<V> y =
      n.e.ImageOp("batch_norm", {x, n[1], n[2]}, {image, false, false}, {{"epsilon", n.Float("epsilon", 1e-5)}});
  if (!n.e.ok()) return absl::OkStatus();
  n.e.Op("batch_norm_update", {y[1], y[2], n[3], n[4], n.services().batches(n[3])},
         {{"momentum", 1 - kept}, {"count", count}});
  return n.Out(n.e.Reshape(y[0], n.shape(0)));
}

absl::Status BatchNormalization(Node& n) {
  if (n.rank(0) < 2) return n.Bad(absl::StrCat("input is ", ShapeString(n.shape(0))));
  for (int i = 1; i < 5; ++i) {
    if (n.shape(i) != Shape{n.shape(0)[1]}) return n.Bad(absl::StrCat("input ", i, " is ", ShapeString(n.shape(i))));
  }
  if (n.Int("spatial", 1) == 0) return n.Unsupported("spatial=0");
  const V x = AsImage(n, n[0]);
  if (!n.e.ok()) return absl::OkStatus();
  if (n.options().updates_statistic != nullptr) return JobBatchNorm(n, x);
  const bool training = n.opset() >= 14 ? n.Int("training_mode", 0) != 0 : n.Wants(1);
  return training ? TrainingBatchNorm(n, x) : InferenceBatchNorm(n, x);
}

// Over the pixels of groups of channels, with scale and bias (either may be null) a channel.
V NormalizeGroups(Node& n, int64_t groups, V scale, V bias) {
  const V x = AsImage(n, n[0]);
  std::vector<V> inputs = {x};
  if (scale != nullptr) inputs.insert(inputs.end(), {scale, bias});
  std::vector<bool> images(inputs.size(), false);
  images[0] = true;
  const ir::Attributes attributes{{"groups", groups}, {"epsilon", n.Float("epsilon", 1e-5)}};
  return n.e.Reshape(n.e.ImageOp("group_norm", inputs, images, attributes)[0], n.shape(0));
}

absl::Status InstanceNormalization(Node& n) {
  const Shape& s = n.shape(0);
  if (n.rank(0) < 3) return n.Bad(absl::StrCat("input is ", ShapeString(s)));
  if (n.options().training && NumElements(absl::MakeConstSpan(s).subspan(2)) == 1) {
    return n.Bad(absl::StrCat("needs more than one value a channel to train, has ", ShapeString(s)));
  }
  return n.Out(NormalizeGroups(n, s[1], n[1], n[2]));
}

// Scale and bias stand one a group before opset 21, one a channel from then on.
absl::Status GroupNormalization(Node& n) {
  const int64_t groups = n.Int("num_groups", 0);
  const Shape& s = n.shape(0);
  if (n.rank(0) < 3 || groups < 1 || s[1] % groups != 0) {
    return n.Bad(absl::StrCat(groups, " groups of ", ShapeString(s)));
  }
  const auto by_channel = [&](V v) {
    if (Emitter::Size(v) != groups) return v;
    return n.e.Reshape(n.e.Expand(n.e.Reshape(v, {groups, 1}), {groups, s[1] / groups}), {s[1]});
  };
  return n.Out(NormalizeGroups(n, groups, by_channel(n[1]), by_channel(n[2])));
}

// Whether `v` has exactly the axes of the input from `axis` on, as the engine's scales and biases do.
bool FitsRow(const Node& n, V v, int axis) {
  return v->type.shape == Shape(n.shape(0).begin() + axis, n.shape(0).end());
}

// A scale or bias that only broadcasts is applied for itself.
absl::Status LayerNormalization(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int axis, n.Axis(n.Int("axis", -1), n.rank(0)));
  const ir::Attributes attributes{{"axis", int64_t{axis}}, {"epsilon", n.Float("epsilon", 1e-5)}};
  const bool fits = FitsRow(n, n[1], axis) && (!n.Has(2) || FitsRow(n, n[2], axis));
  std::vector<V> inputs = {n[0]};
  if (fits) inputs.push_back(n[1]);
  if (fits && n.Has(2)) inputs.push_back(n[2]);
  if (fits && !n.Has(2)) inputs.push_back(n.e.Expand(n.e.Scalar(DType::kF32, 0), n[1]->type.shape));
  const std::vector<V> norm = n.e.Op("layer_norm", inputs, attributes);
  V y = norm[0];
  if (!fits) y = n.e.Mul(y, n[1]);
  if (!fits && n.Has(2)) y = n.e.Add(y, n[2]);
  AMPD_RETURN_IF_ERROR(n.Out(0, y));
  AMPD_RETURN_IF_ERROR(n.Out(1, norm[1]));
  return n.Out(2, norm[2]);
}

absl::Status RmsNormalization(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int axis, n.Axis(n.Int("axis", -1), n.rank(0)));
  const ir::Attributes attributes{{"axis", int64_t{axis}}, {"epsilon", n.Float("epsilon", 1e-5)}};
  if (FitsRow(n, n[1], axis)) return n.Out(n.e.Op1("rms_norm", {n[0], n[1]}, attributes));
  return n.Out(n.e.Mul(n.e.Op1("rms_norm", {n[0]}, attributes), n[1]));
}

absl::Status MeanVarianceNormalization(Node& n) {
  Ints axes = n.Attribute("axes") != nullptr ? n.Ints("axes") : Ints{0, 2, 3};
  AMPD_ASSIGN_OR_RETURN(axes, n.Axes(axes, n.rank(0)));
  const V mean = n.e.Reduce("reduce_mean", n[0], axes, true);
  const V centred = n.e.Sub(n[0], mean);
  const V deviation = n.e.RootOfSquares(n.e.Reduce("reduce_mean", n.e.Mul(centred, centred), axes, true));
  return n.Out(n.e.Div(centred, n.e.AddScalar(deviation, 1e-9)));
}

absl::Status LpNormalization(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int axis, n.Axis(n.Int("axis", -1), n.rank(0)));
  const int64_t p = n.Int("p", 2);
  if (p != 1 && p != 2) return n.Bad(absl::StrCat("p is ", p));
  const V powers = p == 1 ? n.e.Unary("abs", n[0]) : n.e.Mul(n[0], n[0]);
  V norm = n.e.Reduce("reduce_sum", powers, {axis}, true);
  if (p == 2) norm = n.e.RootOfSquares(norm);
  const V zero = n.e.Scalar(n.dtype(0), 0);
  const V none = n.e.Binary("equal", norm, zero);
  // What is not chosen has a gradient too: of a quotient by 0 it would be NaN.
  return n.Out(n.e.Where(none, zero, n.e.Div(n[0], n.e.Where(none, n.e.Scalar(n.dtype(0), 1), norm))));
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
