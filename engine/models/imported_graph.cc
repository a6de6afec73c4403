#include "engine/models/imported_graph.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "engine/core/status.h"
#include "engine/models/sample_axis.h"
#include "engine/ops/op_def.h"

namespace ampd::models {
namespace {

using ir::OpKind;
using ir::ValueId;

// Where axis `axis` of a reshape's result lies in its operand; nullopt where it was cut or joined.
absl::optional<int64_t> AxisBefore(const Shape& from, const Shape& to, int64_t axis) {
  int64_t behind = 1;
  for (size_t a = to.size() - 1; static_cast<int64_t>(a) > axis; --a) behind *= to[a];
  int64_t product = 1;
  for (size_t a = from.size(); a-- > 0;) {
    if (product == behind && from[a] == to[static_cast<size_t>(axis)]) return static_cast<int64_t>(a);
    product *= from[a];
  }
  return absl::nullopt;
}

bool LossIncludes(const v1::LossSpec& loss, OpKind op) {
  if (loss.has_sigmoid_cross_entropy()) return op == OpKind::kSigmoid;
  const bool of_classes = loss.has_softmax_cross_entropy() || loss.has_ctc();
  return of_classes && (op == OpKind::kSoftmax || op == OpKind::kLogSoftmax);
}

bool MovesElements(OpKind op) {
  switch (op) {
    case OpKind::kReshape:
    case OpKind::kTranspose:
    case OpKind::kSlice:
    case OpKind::kConcat:
    case OpKind::kCast:
    case OpKind::kBroadcastTo:
      return true;
    default:
      return false;
  }
}

// Draws parameters by their first reader behind operations that move elements.
class Drawing {
 public:
  explicit Drawing(ir::Graph* graph) : graph_(graph), readers_(graph->values.size()) {
    for (size_t n = 0; n < graph->nodes.size(); ++n) {
      for (size_t i = 0; i < graph->nodes[n].inputs.size(); ++i) {
        readers_[static_cast<size_t>(graph->nodes[n].inputs[i])].push_back({n, i});
      }
    }
  }

  ir::Initializer For(ValueId v) const {
    // A chain is at most as long as the graph.
    for (size_t hops = 0; hops <= graph_->nodes.size(); ++hops) {
      const std::vector<Reader>& readers = readers_[static_cast<size_t>(v)];
      if (readers.empty()) break;
      const ir::Node& node = graph_->nodes[readers[0].node];
      if (!MovesElements(node.op) && !IsConstantFactor(node, readers[0].input)) return ByReader(v, readers[0]);
      v = node.outputs[0];
    }
    return {};
  }

 private:
  struct Reader {
    size_t node;
    size_t input;
  };

  // A product with a constant number, e.g. beta of Gemm.
  bool IsConstantFactor(const ir::Node& node, size_t input) const {
    if (node.op != OpKind::kMul || node.inputs.size() != 2) return false;
    const ir::Value& other = graph_->values[static_cast<size_t>(node.inputs[1 - input])];
    return other.kind == ir::ValueKind::kConstant && NumElements(other.type.shape) == 1;
  }

  // x * slope where x is negative, else x.
  bool IsSlope(const ir::Node& mul) const {
    const std::vector<Reader>& readers = readers_[static_cast<size_t>(mul.outputs[0])];
    return readers.size() == 1 && graph_->nodes[readers[0].node].op == OpKind::kWhere && readers[0].input == 1;
  }

  static ir::Initializer Uniform(int64_t fan) {
    return {ir::Initializer::Kind::kUniform, 1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(fan, 1)))};
  }

  ir::Initializer OfProduct(const ir::Node& matmul, size_t input, const Shape& shape) const {
    if (shape.size() < 2) return Uniform(NumElements(shape));
    const bool transposed = matmul.attributes.Bool(input == 0 ? "transpose_a" : "transpose_b");
    // Summed over: the left operand's columns, the right one's rows.
    return Uniform(shape[shape.size() - ((input == 0) != transposed ? 1 : 2)]);
  }

  ir::Initializer ByReader(ValueId v, const Reader& reader) const {
    const ir::Node& node = graph_->nodes[reader.node];
    const Shape& shape = graph_->type(v).shape;
    const ir::Initializer zeros, ones{ir::Initializer::Kind::kOnes};
    switch (node.op) {
      case OpKind::kConv2d:
      case OpKind::kConvTranspose2d:
        return reader.input == 1 ? Uniform(NumElements(shape) / shape[0]) : zeros;
      case OpKind::kMatmul:
        return OfProduct(node, reader.input, shape);
      case OpKind::kGather:
      case OpKind::kEmbedding:
        return shape.size() > 1 ? Uniform(shape.back()) : zeros;
      case OpKind::kLstm:
      case OpKind::kGru:
        return shape.size() > 1 ? Uniform(shape.back()) : zeros;
      case OpKind::kBatchNorm:
      case OpKind::kBatchNormInference:
      case OpKind::kGroupNorm:
      case OpKind::kLayerNorm:
      case OpKind::kRmsNorm:
        return reader.input == 1 ? ones : zeros;
      case OpKind::kMul:
        return IsSlope(node) ? zeros : ones;
      case OpKind::kDiv:
        return ones;
      default:
        return zeros;
    }
  }

  const ir::Graph* graph_;
  std::vector<std::vector<Reader>> readers_;
};

// A dropout among the reshapes and transposes that it needs.
class Redraw {
 public:
  // `axis` as of FindSampleAxes, of the input.
  Redraw(const ir::Node& dropout, int64_t axis, int64_t batch, ir::Graph* graph)
      : dropout_(dropout), axis_(axis), rows_(axis == kNoSampleAxis ? 1 : batch), graph_(graph) {}

  bool IsNeeded() const {
    const Shape& shape = graph_->type(dropout_.inputs[0]).shape;
    return axis_ > 0 || shape[0] != rows_;
  }

  absl::StatusOr<ValueId> Emit() {
    ValueId v = dropout_.inputs[0];
    const Shape before = graph_->type(v).shape;
    const std::vector<int64_t> perm = SamplesFirst(before);
    if (!perm.empty()) {
      AMPD_ASSIGN_OR_RETURN(v, Add(OpKind::kTranspose, ".samples_first", v, {{"perm", perm}}));
    }
    const Shape turned = graph_->type(v).shape;
    AMPD_ASSIGN_OR_RETURN(v, Reshape(".by_sample", v, {rows_, NumElements(turned) / rows_}));
    AMPD_ASSIGN_OR_RETURN(v, Add(OpKind::kDropout, "", v, dropout_.attributes));
    AMPD_ASSIGN_OR_RETURN(v, Reshape(".of_samples", v, turned));
    if (perm.empty()) return v;
    std::vector<int64_t> inverse(perm.size());
    for (size_t a = 0; a < perm.size(); ++a) inverse[static_cast<size_t>(perm[a])] = static_cast<int64_t>(a);
    return Add(OpKind::kTranspose, ".samples_back", v, {{"perm", inverse}});
  }

 private:
  // Empty where elements need not move: nothing lies before the samples' axis.
  std::vector<int64_t> SamplesFirst(const Shape& shape) const {
    std::vector<int64_t> perm;
    int64_t extents = 1;
    for (int64_t a = 0; a < axis_; ++a) extents *= shape[static_cast<size_t>(a)];
    if (extents == 1) return perm;
    perm.push_back(axis_);
    for (int64_t a = 0; a < static_cast<int64_t>(shape.size()); ++a) {
      if (a != axis_) perm.push_back(a);
    }
    return perm;
  }

  absl::StatusOr<ValueId> Reshape(const char* suffix, ValueId v, const Shape& shape) {
    if (graph_->type(v).shape == shape) return v;
    return Add(OpKind::kReshape, suffix, v, {{"shape", std::vector<int64_t>(shape.begin(), shape.end())}});
  }

  // The dropout keeps its name.
  absl::StatusOr<ValueId> Add(OpKind op, const char* suffix, ValueId v, ir::Attributes attributes) {
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> y, ops::Emit(graph_, {.op = op,
                                                                           .name = dropout_.name + suffix,
                                                                           .layer = dropout_.layer,
                                                                           .inputs = {v},
                                                                           .attributes = std::move(attributes),
                                                                           .stage = dropout_.stage}));
    return y[0];
  }

  const ir::Node& dropout_;
  const int64_t axis_, rows_;
  ir::Graph* graph_;
};

}  // namespace

void KeepWhatReaches(const std::string& output, ir::Graph* graph) {
  const ValueId result = graph->outputs.at(output);
  std::vector<bool> read(graph->values.size(), false), live(graph->nodes.size(), false);
  read[static_cast<size_t>(result)] = true;
  for (size_t n = graph->nodes.size(); n-- > 0;) {
    const ir::Node& node = graph->nodes[n];
    live[n] = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return read[v]; });
    if (!live[n]) continue;
    for (ValueId v : node.inputs) read[v] = true;
  }
  const auto made = [&](ValueId v) {
    const ir::NodeId producer = graph->values[static_cast<size_t>(v)].producer;
    return producer < 0 || live[static_cast<size_t>(producer)];
  };
  std::vector<ir::Node> kept;
  for (size_t n = 0; n < graph->nodes.size(); ++n) {
    ir::Node& node = graph->nodes[n];
    const bool effect = ops::GetOpDef(node.op).has_effects && std::all_of(node.inputs.begin(), node.inputs.end(), made);
    if (!live[n] && !effect) continue;
    live[n] = true;
    for (ValueId v : node.inputs) read[v] = true;
    kept.push_back(std::move(node));
  }
  graph->nodes = std::move(kept);
  graph->outputs = {{output, result}};
  graph->RefreshProducers();
  for (size_t v = 0; v < graph->values.size(); ++v) {
    ir::Value& value = graph->values[v];
    if (read[v] || value.kind == ir::ValueKind::kInput) continue;
    value.kind = ir::ValueKind::kActivation;
    value.data = nullptr;
  }
}

absl::Status StripLossActivation(const v1::LossSpec& loss, const std::string& output, ir::Graph* graph) {
  ValueId* read = &graph->outputs.at(output);
  int64_t axis = static_cast<int64_t>(graph->type(*read).shape.size()) - 1;
  const int64_t classes = axis;
  // `axis` below 0: classes lie along no axis of what is looked at, so that no softmax there is over them.
  while (classes >= 0) {
    const ir::NodeId producer = graph->values[static_cast<size_t>(*read)].producer;
    if (producer < 0) break;
    ir::Node& node = graph->nodes[static_cast<size_t>(producer)];
    if (LossIncludes(loss, node.op)) {
      const int64_t over = node.attributes.Int("axis", -1);
      const int64_t rank = static_cast<int64_t>(graph->type(*read).shape.size());
      if (node.op != OpKind::kSigmoid && (over < 0 ? over + rank : over) != axis) {
        return absl::InvalidArgumentError(
            absl::StrCat("[", ir::OpName(node.op), "] at the end is over axis ", over, " of ",
                         ShapeString(graph->type(*read).shape), ", the loss takes another over axis ",
                         axis < 0 ? absl::StrCat(classes, " of the output") : absl::StrCat(axis),
                         "; name the output before it, node ", node.name));
      }
      *read = node.inputs[0];
      return absl::OkStatus();
    }
    if (node.op == OpKind::kReshape) {
      const Shape &from = graph->type(node.inputs[0]).shape, &to = graph->type(*read).shape;
      if (axis >= 0) axis = AxisBefore(from, to, axis).value_or(-1);
    } else if (node.op == OpKind::kTranspose) {
      if (axis >= 0) axis = node.attributes.Ints("perm")[static_cast<size_t>(axis)];
    } else if (node.op != OpKind::kCast) {
      break;
    }
    read = &node.inputs[0];
  }
  return absl::OkStatus();
}

absl::Status DrawBySample(const std::vector<int64_t>& axes, int64_t batch, ir::Graph* graph) {
  std::map<ValueId, ValueId> redrawn;
  const auto renew = [&](ValueId& v) {
    const auto found = redrawn.find(v);
    if (found != redrawn.end()) v = found->second;
  };
  for (ir::Node& node : std::exchange(graph->nodes, {})) {
    const bool draws = node.op == OpKind::kDropout;
    const int64_t axis = draws ? axes[static_cast<size_t>(node.inputs[0])] : kNoSampleAxis;
    for (ValueId& v : node.inputs) renew(v);
    if (Redraw redraw(node, axis, batch, graph); draws && redraw.IsNeeded()) {
      AMPD_ASSIGN_OR_RETURN(redrawn[node.outputs[0]], redraw.Emit());
    } else {
      graph->AddNode(std::move(node));
    }
  }
  for (auto& [name, v] : graph->outputs) renew(v);
  graph->RefreshProducers();
  return ops::VerifyGraph(*graph);
}

void DrawAnew(ir::Graph* graph) {
  const Drawing drawing(graph);
  for (size_t v = 0; v < graph->values.size(); ++v) {
    const ir::Value& value = graph->values[v];
    if (value.kind != ir::ValueKind::kParameter) continue;
    graph->parameters[static_cast<size_t>(value.slot)].init = drawing.For(static_cast<ValueId>(v));
  }
  for (const ir::Node& node : graph->nodes) {
    const bool update = node.op == OpKind::kBatchNormUpdate;
    if (!update && node.op != OpKind::kBatchNormInference) continue;
    const ir::Value& variance = graph->values[static_cast<size_t>(node.inputs[update ? 3 : 4])];
    if (variance.kind != ir::ValueKind::kState) continue;
    graph->states[static_cast<size_t>(variance.slot)].init = {ir::Initializer::Kind::kOnes};
  }
}

}  // namespace ampd::models
