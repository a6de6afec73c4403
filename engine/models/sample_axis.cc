#include "engine/models/sample_axis.h"

#include <algorithm>
#include <vector>

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
  explicit Check(const ir::Graph& telling) : graph_(telling), axes_(telling.values.size(), kNone) {}

  absl::Status Run() {
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (graph_.values[v].kind == ir::ValueKind::kInput) axes_[v] = 0;
    }
    for (const ir::Node& node : graph_.nodes) AMPD_RETURN_IF_ERROR(Look(node));
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kNone = -1;

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
      if (axis == kNone) continue;
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
      case Rule::kUnknown:
        return false;
      case Rule::kReshape: {
        const Shape& to = graph_.type(node.outputs[0]).shape;
        for (size_t a = 0; a < to.size(); ++a) {
          if (to[a] % kTellingBatch == 0) return ExtentBefore(to, a) == ExtentBefore(shape, static_cast<size_t>(axis));
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
      if (shape[a] % kTellingBatch != 0) continue;
      if (axes_[static_cast<size_t>(v)] != kNone) return Wrong(node, "would compare samples of a batch");
      axes_[static_cast<size_t>(v)] = static_cast<int64_t>(a);
    }
    if (axes_[static_cast<size_t>(v)] == kNone) return Wrong(node, "would join samples of a batch");
    return absl::OkStatus();
  }

  const ir::Graph& graph_;
  std::vector<int64_t> axes_;  // by value; kNone: it does not depend on the input
};

bool SameButForBatch(const Shape& telling, const Shape& shape, int64_t batch) {
  const auto same = [&](int64_t a, int64_t b) { return b == (a % kTellingBatch == 0 ? a / kTellingBatch * batch : a); };
  return std::equal(telling.begin(), telling.end(), shape.begin(), shape.end(), same);
}

}  // namespace

absl::Status CheckSamplesStayApart(const ir::Graph& telling, const ir::Graph& graph, int64_t batch) {
  AMPD_RETURN_IF_ERROR(Check(telling).Run());
  bool same = telling.nodes.size() == graph.nodes.size();
  for (size_t n = 0; same && n < graph.nodes.size(); ++n) {
    const ir::Node &a = telling.nodes[n], &b = graph.nodes[n];
    same = a.op == b.op && a.name == b.name && a.outputs.size() == b.outputs.size();
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
