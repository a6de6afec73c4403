// The training domain: optimizers, whose update is a formula of their inputs, and gradients of values of the graph.
#include <cmath>

#include "engine/autodiff/differentiate.h"
#include "engine/core/status.h"
#include "engine/models/onnx/node.h"

namespace ampd::models::onnx {
namespace {

// The inputs are R, T, then `kinds` lists of equally many tensors; output i of a kind takes the inputs' place.
struct Tensors {
  V rate, steps;  // f32 and i64 scalars
  int count = 0;
};

absl::StatusOr<Tensors> ReadTensors(Node& n, int kinds) {
  if (n.inputs() < 2 + kinds || (n.inputs() - 2) % kinds != 0) return n.Bad(absl::StrCat(n.inputs(), " inputs"));
  for (int i = 0; i < n.inputs(); ++i) {
    if (!n.Has(i)) return n.Bad(absl::StrCat("input ", i, " is missing"));
  }
  if (Emitter::Size(n[0]) != 1 || Emitter::Size(n[1]) != 1) return n.Bad("R and T have to be scalars");
  return Tensors{n.e.Reshape(n[0], {}), n.e.Cast(n.e.Reshape(n[1], {}), n.dtype(0)), (n.inputs() - 2) / kinds};
}

// G plus the gradient of 0.5 * norm_coefficient * |X|^2.
V Regularized(Node& n, V x, V g) {
  const double c = n.Float("norm_coefficient", 0);
  return c == 0 ? g : n.e.Add(n.e.MulScalar(x, c), g);
}

// Duchi et al. 2011.
absl::Status Adagrad(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const Tensors t, ReadTensors(n, 3));
  Emitter& e = n.e;
  const V rate = e.Div(t.rate, e.AddScalar(e.MulScalar(t.steps, n.Float("decay_factor", 0)), 1));
  for (int i = 0; i < t.count; ++i) {
    const V x = n[2 + i], g = Regularized(n, x, n[2 + t.count + i]);
    const V h = e.Add(n[2 + 2 * t.count + i], e.Mul(g, g));
    const V step = e.Div(e.Mul(rate, g), e.AddScalar(e.Unary("sqrt", h), n.Float("epsilon", 1e-6)));
    AMPD_RETURN_IF_ERROR(n.Out(i, e.Sub(x, step)));
    AMPD_RETURN_IF_ERROR(n.Out(t.count + i, h));
  }
  return absl::OkStatus();
}

// Kingma and Ba 2015.
absl::Status Adam(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const Tensors t, ReadTensors(n, 4));
  Emitter& e = n.e;
  const DType dtype = t.rate->type.dtype;
  const double alpha = n.Float("alpha", 0.9), beta = n.Float("beta", 0.999);
  const auto correction = [&](double decay) {
    return e.Sub(e.Scalar(dtype, 1), e.Binary("pow", e.Scalar(dtype, decay), t.steps));
  };
  const V corrected = e.Div(e.Mul(t.rate, e.Unary("sqrt", correction(beta))), correction(alpha));
  const V rate = e.Where(e.Binary("greater", t.steps, e.Scalar(dtype, 0)), corrected, t.rate);
  for (int i = 0; i < t.count; ++i) {
    const V x = n[2 + i], g = Regularized(n, x, n[2 + t.count + i]);
    const V v = e.Add(e.MulScalar(n[2 + 2 * t.count + i], alpha), e.MulScalar(g, 1 - alpha));
    const V h = e.Add(e.MulScalar(n[2 + 3 * t.count + i], beta), e.MulScalar(e.Mul(g, g), 1 - beta));
    const V step = e.Div(e.Mul(rate, v), e.AddScalar(e.Unary("sqrt", h), n.Float("epsilon", 1e-6)));
    const V y = e.MulScalar(e.Sub(x, step), 1 - n.Float("norm_coefficient_post", 0));
    AMPD_RETURN_IF_ERROR(n.Out(i, y));
    AMPD_RETURN_IF_ERROR(n.Out(t.count + i, v));
    AMPD_RETURN_IF_ERROR(n.Out(2 * t.count + i, h));
  }
  return absl::OkStatus();
}

absl::Status Momentum(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const Tensors t, ReadTensors(n, 3));
  const std::string mode = n.String("mode", "standard");
  if (mode != "standard" && mode != "nesterov") return n.Bad(absl::StrCat("mode is ", mode));
  Emitter& e = n.e;
  const DType dtype = t.rate->type.dtype;
  const double alpha = n.Float("alpha", 0);
  const V one = e.Scalar(dtype, 1), beta = e.Scalar(dtype, n.Float("beta", 1));
  const V factor = e.Where(e.Binary("greater", t.steps, e.Scalar(dtype, 0)), beta, one);
  for (int i = 0; i < t.count; ++i) {
    const V x = n[2 + i], g = Regularized(n, x, n[2 + t.count + i]);
    const V v = e.Add(e.MulScalar(n[2 + 2 * t.count + i], alpha), e.Mul(factor, g));
    const V direction = mode == "nesterov" ? e.Add(g, e.MulScalar(v, alpha)) : v;
    AMPD_RETURN_IF_ERROR(n.Out(i, e.Sub(x, e.Mul(t.rate, direction))));
    AMPD_RETURN_IF_ERROR(n.Out(t.count + i, v));
  }
  return absl::OkStatus();
}

// Derivatives of the sum of y's elements by each of xs. The node's inputs are the values xs and zs name.
absl::Status Gradient(Node& n) {
  const std::vector<std::string> xs = n.Strings("xs");
  const V y = n.services().find(n.String("y", ""));
  if (y == nullptr) return n.Bad(absl::StrCat("y is \"", n.String("y", ""), "\", which nothing before it writes"));
  if (static_cast<int>(xs.size()) > n.inputs() || static_cast<int>(xs.size()) < n.outputs()) {
    return n.Bad(absl::StrCat(xs.size(), " names in xs"));
  }
  std::vector<ir::ValueId> leaves;
  for (size_t i = 0; i < xs.size(); ++i) {
    const int input = static_cast<int>(i);
    if (!n.Has(input) || n.services().find(xs[i]) != n[input]) {
      return n.Unsupported("gradients at other values than the graph's own");
    }
    // Of an image's two layouts the first that was made leads to the other.
    const V x = n[input];
    const ir::ValueId id = n.e.Id(x);
    leaves.push_back(x->image >= 0 && x->image < id ? x->image : id);
  }
  AMPD_ASSIGN_OR_RETURN(const std::vector<ir::ValueId> gradients,
                        autodiff::AddGradients(n.e.graph(), n.e.Id(y), leaves));
  for (size_t i = 0; i < gradients.size(); ++i) {
    const V x = n[static_cast<int>(i)];
    V g = gradients[i] < 0        ? n.e.Expand(n.e.Scalar(x->type.dtype, 0), x->type.shape)
          : leaves[i] == x->image ? n.e.FromImage(gradients[i])
                                  : n.e.FromGraph(gradients[i]);
    AMPD_RETURN_IF_ERROR(n.Out(static_cast<int>(i), g));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Rule> TrainingRules() {
  return NeverEmpty({{"Adagrad", Adagrad, 5}, {"Adam", Adam, 6}, {"Momentum", Momentum, 5}, {"Gradient", Gradient, 1}});
}

}  // namespace ampd::models::onnx
