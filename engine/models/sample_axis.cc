#include "engine/models/sample_axis.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd::models {
namespace {

using ir::OpKind;
using ir::ValueId;

// How a node's meaning is tied to where samples lie.
enum class Rule {
  kAnywhere,    // elementwise, products, reductions: what joins samples loses their axis
  kFirst,       // the operation takes the first axis as the samples'
  kNotLast,     // statistics along all axes but the last: of samples together, which is what batch norm is
  kNotAxis,     // mixes along attribute "axis"
  kBeforeAxis,  // mixes along attribute "axis" and all behind it
  kWholeAxis,   // takes a part of what lies along an axis
  kReshape,
  kUnknown,
};

Rule RuleOf(OpKind op) {
  switch (op) {
    case OpKind::kConv2d:
    case OpKind::kConvTranspose2d:
    case OpKind::kMaxPool2d:
    case OpKind::kMaxPool2dIndex:
    case OpKind::kAvgPool2d:
    case OpKind::kGlobalAvgPool:
    case OpKind::kGroupNorm:
    case OpKind::kAttention:
    case OpKind::kSelfAttention:
    case OpKind::kLstm:
    case OpKind::kGru:
      return Rule::kFirst;
    case OpKind::kBatchNorm:
    case OpKind::kBatchNormInference:
      return Rule::kNotLast;
    case OpKind::kSoftmax:
    case OpKind::kLogSoftmax:
    case OpKind::kConcat:
    case OpKind::kGather:
    case OpKind::kGatherElements:
      return Rule::kNotAxis;
    case OpKind::kLayerNorm:
    case OpKind::kRmsNorm:
      return Rule::kBeforeAxis;
    case OpKind::kSlice:
      return Rule::kWholeAxis;
    case OpKind::kReshape:
      return Rule::kReshape;
    case OpKind::kGatherNd:
      return Rule::kUnknown;
    default:
      return Rule::kAnywhere;
  }
}

int64_t ExtentBefore(const Shape& shape, size_t axis) {
  int64_t product = 1;
  for (size_t a = 0; a < axis; ++a) product *= shape[a];
  return product;
}

class Check {
 public:
  // `grows` tells of an axis of a value whether its extent is so many batches.
  Check(const ir::Graph& graph, std::function<bool(ValueId, size_t)> grows)
      : graph_(graph), grows_(std::move(grows)), axes_(graph.values.size(), kNoSampleAxis) {
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (graph_.values[v].kind == ir::ValueKind::kInput) axes_[v] = 0;
    }
  }

  absl::Status Run() {
    for (const ir::Node& node : graph_.nodes) AMPD_RETURN_IF_ERROR(Look(node));
    return absl::OkStatus();
  }

  // By value; kNoSampleAxis where a node along the way breaks a rule, too.
  std::vector<int64_t> Axes() {
    std::vector<bool> untold(graph_.values.size(), false);
    for (const ir::Node& node : graph_.nodes) {
      const bool reads = std::any_of(node.inputs.begin(), node.inputs.end(),
                                     [&](ValueId v) { return untold[static_cast<size_t>(v)]; });
      if (!reads && Look(node).ok()) continue;
      for (ValueId v : node.outputs) {
        untold[static_cast<size_t>(v)] = true;
        axes_[static_cast<size_t>(v)] = kNoSampleAxis;
      }
    }
    return axes_;
  }

 private:
  static absl::Status Wrong(const ir::Node& node, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("[", ir::OpName(node.op), "] ", what,
                                                   " for another batch size than the file's, node ", node.name,
                                                   "; export it with an open batch"));
  }

  absl::Status Look(const ir::Node& node) {
    if (node.op == OpKind::kBatchNormUpdate) return absl::OkStatus();
    bool any = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const int64_t axis = axes_[static_cast<size_t>(node.inputs[i])];
      if (axis == kNoSampleAxis) continue;
      any = true;
      if (!Allows(node, i, axis)) return Wrong(node, "would join samples of a batch");
    }
    if (!any) return absl::OkStatus();
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      // Statistics belong to no sample; nothing but the update reads them.
      if (node.op == OpKind::kBatchNorm && i > 0) break;
      AMPD_RETURN_IF_ERROR(FindAxis(node, node.outputs[i]));
    }
    return absl::OkStatus();
  }

  bool Allows(const ir::Node& node, size_t input, int64_t axis) const {
    const Shape& shape = graph_.type(node.inputs[input]).shape;
    const int64_t rank = static_cast<int64_t>(shape.size());
    const int64_t given = node.attributes.Int("axis", -1), over = given < 0 ? given + rank : given;
    switch (RuleOf(node.op)) {
      case Rule::kFirst:
        return axis == 0;
      case Rule::kNotLast:
        return axis != rank - 1;
      case Rule::kNotAxis:
        // The indices of a gather say nothing of samples.
        return axis != over || (input > 0 && node.op != OpKind::kConcat);
      case Rule::kBeforeAxis:
        return axis < over;
      case Rule::kWholeAxis: {
        const auto at = [&](const char* name) { return node.attributes.Ints(name)[static_cast<size_t>(axis)]; };
        return at("starts") == 0 && at("steps") == 1 && at("ends") == shape[static_cast<size_t>(axis)];
      }
      case Rule::kUnknown:
        return false;
      case Rule::kReshape: {
        const Shape& to = graph_.type(node.outputs[0]).shape;
        for (size_t a = 0; a < to.size(); ++a) {
          if (grows_(node.outputs[0], a)) return ExtentBefore(to, a) == ExtentBefore(shape, static_cast<size_t>(axis));
        }
        return false;
      }
      case Rule::kAnywhere:
        return true;
    }
    return false;
  }

  absl::Status FindAxis(const ir::Node& node, ValueId v) {
    const Shape& shape = graph_.type(v).shape;
    for (size_t a = 0; a < shape.size(); ++a) {
      if (!grows_(v, a)) continue;
      if (axes_[static_cast<size_t>(v)] != kNoSampleAxis) return Wrong(node, "would compare samples of a batch");
      axes_[static_cast<size_t>(v)] = static_cast<int64_t>(a);
    }
    if (axes_[static_cast<size_t>(v)] == kNoSampleAxis) return Wrong(node, "would join samples of a batch");
    return absl::OkStatus();
  }

  const ir::Graph& graph_;
  const std::function<bool(ValueId, size_t)> grows_;
  std::vector<int64_t> axes_;  // by value; kNoSampleAxis: it does not depend on the input
};

bool SameButForBatch(const Shape& telling, const Shape& shape, int64_t batch) {
  const auto same = [&](int64_t a, int64_t b) { return b == (a % kTellingBatch == 0 ? a / kTellingBatch * batch : a); };
  return std::equal(telling.begin(), telling.end(), shape.begin(), shape.end(), same);
}

// Whether two graphs of one network are node by node the same, but for extents.
bool SameNodes(const ir::Graph& a, const ir::Graph& b) {
  const auto same_type = [](const ir::Value& x, const ir::Value& y) {
    return x.kind == y.kind && x.type.shape.size() == y.type.shape.size();
  };
  const auto same_node = [](const ir::Node& x, const ir::Node& y) {
    return x.op == y.op && x.name == y.name && x.inputs == y.inputs && x.outputs == y.outputs;
  };
  return std::equal(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(), same_type) &&
         std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(), same_node);
}

}  // namespace

std::vector<int64_t> FindSampleAxes(const ir::Graph& graph, int64_t batch, const ir::Graph& other,
                                    int64_t other_batch) {
  if (!SameNodes(graph, other)) return std::vector<int64_t>(graph.values.size(), kNoSampleAxis);
  const auto grows = [&](ValueId v, size_t a) {
    const int64_t extent = graph.type(v).shape[a], there = other.type(v).shape[a];
    return extent != there && extent * other_batch == there * batch;
  };
  return Check(graph, grows).Axes();
}

absl::Status CheckSamplesStayApart(const ir::Graph& telling, const ir::Graph& graph, int64_t batch) {
  const auto grows = [&](ValueId v, size_t a) { return telling.type(v).shape[a] % kTellingBatch == 0; };
  AMPD_RETURN_IF_ERROR(Check(telling, grows).Run());
  bool same = telling.nodes.size() == graph.nodes.size();
  for (size_t n = 0; same && n < graph.nodes.size(); ++n) {
    const ir::Node &a = telling.nodes[n], &b = graph.nodes[n];
    same =
        a.op == b.op && a.name == b.name && a.outputs.size() == b.outputs.size() && a.inputs.size() == b.inputs.size();
    // What was laid along the samples at import is seen by who reads it.
    for (size_t i = 0; same && i < a.inputs.size(); ++i) {
      same = SameButForBatch(telling.type(a.inputs[i]).shape, graph.type(b.inputs[i]).shape, batch);
    }
    for (size_t i = 0; same && i < a.outputs.size(); ++i) {
      same = SameButForBatch(telling.type(a.outputs[i]).shape, graph.type(b.outputs[i]).shape, batch);
    }
    if (!same) {
      return absl::InvalidArgumentError(absl::StrCat("[", ir::OpName(b.op), "] means something else for batches of ",
                                                     batch, " than for others, node ", b.name,
                                                     "; export it with an open batch"));
    }
  }
  if (same) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the network is another one for batches of ", batch,
                                                 " than for others; export it with an open batch"));
}

}  // namespace ampd::models
