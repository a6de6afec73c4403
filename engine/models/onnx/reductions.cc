// Reductions over axes.
#include <numeric>

#include "engine/core/status.h"
#include "engine/models/onnx/node.h"

namespace ampd::models::onnx {
namespace {

struct Over {
  std::vector<int64_t> axes;
  bool keepdims = true;
};

// Axes were an attribute, then an input. None means all, unless the node says that it means none.
absl::StatusOr<Over> AxesOf(const Node& n) {
  Over over{n.Ints("axes"), n.Int("keepdims", 1) != 0};
  if (n.Has(1)) {
    AMPD_ASSIGN_OR_RETURN(over.axes, n.KnownInts(1));
  }
  AMPD_ASSIGN_OR_RETURN(over.axes, n.Axes(over.axes, n.rank(0)));
  if (over.axes.empty() && n.Int("noop_with_empty_axes", 0) == 0) {
    over.axes.resize(static_cast<size_t>(n.rank(0)));
    std::iota(over.axes.begin(), over.axes.end(), 0);
  }
  return over;
}

V Absolute(Node& n, V x) {
  if (IsFloat(x->type.dtype)) return n.e.Unary("abs", x);
  return n.e.Binary("max", x, n.e.Sub(n.e.Scalar(x->type.dtype, 0), x));
}

absl::Status Reduce(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const Over over, AxesOf(n));
  const auto reduce = [&](const char* op, V x) { return n.e.Reduce(op, x, over.axes, over.keepdims); };
  const std::string& op = n.op();
  const V x = n[0];
  if (op == "ReduceSum") return n.Out(reduce("reduce_sum", x));
  if (op == "ReduceMean") return n.Out(reduce("reduce_mean", x));
  if (op == "ReduceProd") return n.Out(reduce("reduce_prod", x));
  if (op == "ReduceL1") return n.Out(reduce("reduce_sum", Absolute(n, x)));
  if (op == "ReduceSumSquare") return n.Out(reduce("reduce_sum", n.e.Mul(x, x)));
  if (op == "ReduceL2") return n.Out(n.e.RootOfSquares(reduce("reduce_sum", n.e.Mul(x, x))));
  return n.Out(n.e.Unary("log", reduce("reduce_sum", x)));
}

// Booleans are 0 and 1 here: any and all.
absl::Status MaxOrMin(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const Over over, AxesOf(n));
  const char* op = n.op() == "ReduceMax" ? "reduce_max" : "reduce_min";
  const bool boolean = n.dtype(0) == DType::kBool && n[0]->host == nullptr;
  const V x = boolean ? n.e.Cast(n[0], DType::kI32) : n[0];
  const V y = n.e.Reduce(op, x, over.axes, over.keepdims);
  return n.Out(boolean ? n.e.Cast(y, DType::kBool) : y);
}

// log(sum(exp(x))), with the largest element taken out first.
absl::Status LogSumExp(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const Over over, AxesOf(n));
  const V x = n[0];
  if (Emitter::Size(x) == 0) return n.Out(n.e.Unary("log", n.e.Reduce("reduce_sum", x, over.axes, over.keepdims)));
  if (over.axes.empty()) return n.Out(x);
  const V largest = n.e.Reduce("reduce_max", x, over.axes, true);
  V sum = n.e.Reduce("reduce_sum", n.e.Unary("exp", n.e.Sub(x, largest)), over.axes, true);
  V y = n.e.Add(n.e.Unary("log", sum), largest);
  if (over.keepdims || !n.e.ok()) return n.Out(y);
  Shape shape;
  for (int a = 0; a < n.rank(0); ++a) {
    if (std::find(over.axes.begin(), over.axes.end(), a) == over.axes.end()) shape.push_back(n.shape(0)[a]);
  }
  return n.Out(n.e.Reshape(y, shape));
}

}  // namespace

std::vector<Rule> ReductionRules() {
  std::vector<Rule> rules = {{"ReduceMax", MaxOrMin, 1}, {"ReduceMin", MaxOrMin, 1}, {"ReduceLogSumExp", LogSumExp, 1}};
  for (const char* op :
       {"ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"}) {
    rules.push_back({op, Reduce, 1});
  }
  return rules;
}

}  // namespace ampd::models::onnx
