// Losses over classes: axis 1 of the input.
#include "engine/core/status.h"
#include "engine/models/onnx/node.h"

namespace ampd::models::onnx {
namespace {

absl::Status CheckLabels(const Node& n) {
  const Shape &x = n.shape(0), &labels = n.shape(1);
  bool fits = x.size() >= 2 && labels.size() + 1 == x.size() && labels[0] == x[0];
  for (size_t a = 2; fits && a < x.size(); ++a) fits = labels[a - 1] == x[a];
  fits = fits && (!n.Has(2) || n.shape(2) == Shape{x[1]});
  return fits ? absl::OkStatus() : n.Bad(absl::StrCat("labels ", ShapeString(labels), " for ", ShapeString(x)));
}

// -weight[label] * log_probability[label], and its reduction.
absl::StatusOr<V> Likelihood(Node& n, V log_probability) {
  Emitter& e = n.e;
  V labels = e.Cast(n[1], DType::kI32), counted = nullptr;
  if (n.Attribute("ignore_index") != nullptr) {
    const V ignored = e.Scalar(DType::kI32, static_cast<double>(n.Int("ignore_index", 0)));
    const V skip = e.Binary("equal", labels, ignored);
    labels = e.Where(skip, e.Scalar(DType::kI32, 0), labels);
    counted = e.Cast(e.Unary("logical_not", skip), n.dtype(0));
  }
  Shape column = n.shape(1);
  column.insert(column.begin() + 1, 1);
  const V picked = e.Reshape(e.GatherElements(log_probability, e.Reshape(labels, column), 1), n.shape(1));
  V weights = counted;
  if (n.Has(2)) {
    weights = e.Gather(n[2], labels, 0);
    if (counted != nullptr) weights = e.Mul(weights, counted);
  }
  V losses = e.Unary("neg", picked);
  if (weights != nullptr) losses = e.Mul(losses, weights);
  const std::string reduction = n.String("reduction", "mean");
  if (reduction == "none") return losses;
  std::vector<int64_t> axes;
  for (int a = 0; a < n.rank(1); ++a) axes.push_back(a);
  if (reduction == "sum") return e.Reduce("reduce_sum", losses, axes, false);
  if (reduction != "mean") return n.Bad(absl::StrCat("reduction is ", reduction));
  if (weights == nullptr) return e.Reduce("reduce_mean", losses, axes, false);
  return e.Div(e.Reduce("reduce_sum", losses, axes, false), e.Reduce("reduce_sum", weights, axes, false));
}

absl::Status NegativeLogLikelihood(Node& n) {
  AMPD_RETURN_IF_ERROR(CheckLabels(n));
  AMPD_ASSIGN_OR_RETURN(const V loss, Likelihood(n, n[0]));
  return n.Out(loss);
}

absl::Status SoftmaxCrossEntropy(Node& n) {
  AMPD_RETURN_IF_ERROR(CheckLabels(n));
  const V log_probability = n.e.Op1("log_softmax", {n[0]}, {{"axis", int64_t{1}}});
  AMPD_ASSIGN_OR_RETURN(const V loss, Likelihood(n, log_probability));
  AMPD_RETURN_IF_ERROR(n.Out(0, loss));
  return n.Out(1, log_probability);
}

}  // namespace

std::vector<Rule> LossRules() {
  return NeverEmpty(
      {{"NegativeLogLikelihoodLoss", NegativeLogLikelihood, 2}, {"SoftmaxCrossEntropyLoss", SoftmaxCrossEntropy, 2}});
}

}  // namespace ampd::models::onnx
