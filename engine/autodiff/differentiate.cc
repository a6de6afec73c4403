#include "engine/autodiff/differentiate.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/half.h"
#include "engine/core/status.h"
#include "engine/core/tensor.h"
#include "engine/ir/printer.h"
#include "engine/ir/zeros.h"
#include "engine/ops/compute.h"
#include "engine/ops/gradient_context.h"
#include "engine/ops/op_def.h"

namespace ampd::autodiff {
namespace {

// The walk's state: which values want a gradient, and the gradients found so far.
class Walk {
 public:
  // Gradients by `leaves`, or, where there are none, by the parameters that are `trained` (empty: all), which are
  // accumulated in their arena.
  explicit Walk(ir::Graph* graph, const std::vector<ir::ValueId>& leaves, const std::vector<bool>& trained = {})
      : graph_(graph),
        accumulates_(leaves.empty()),
        leaves_(leaves.begin(), leaves.end()),
        gradients_(graph->values.size(), -1),
        wanted_(MarkWanted(*graph, leaves, trained)) {
    for (const ir::Node& node : graph->nodes) names_[node.name] = 1;
  }

  ir::Graph* graph() { return graph_; }
  const absl::Status& status() const { return status_; }
  bool wanted(ir::ValueId v) const { return static_cast<size_t>(v) < wanted_.size() && wanted_[v]; }
  ir::ValueId gradient(ir::ValueId v) const { return gradients_[v]; }
  // What goes on to the node that made `v`: nothing from a leaf.
  ir::ValueId flowing(ir::ValueId v) const { return leaves_.count(v) > 0 ? -1 : gradients_[v]; }
  void SetSeed(ir::ValueId v, ir::ValueId seed) { gradients_[v] = seed; }

  std::vector<ir::ValueId> Emit(ir::Node node) {
    const size_t outputs = ops::GetOpDef(node.op).output_suffixes.size();
    const std::string name = node.name;
    for (int repeat = names_[name]++; repeat > 0 && names_.count(node.name) > 0; repeat = names_[name]++) {
      node.name = absl::StrCat(name, "_", repeat);
    }
    names_.insert({node.name, 1});
    node.stage = ir::Stage::kGradient;
    if (status_.ok() && std::any_of(node.inputs.begin(), node.inputs.end(), [](ir::ValueId v) { return v < 0; })) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("[", ir::OpName(node.op), "] has no gradient through those outputs alone, node ", node.name));
    }
    absl::StatusOr<std::vector<ir::ValueId>> values =
        status_.ok() ? ops::Emit(graph_, std::move(node)) : absl::StatusOr<std::vector<ir::ValueId>>(status_);
    if (!values.ok()) {
      status_.Update(values.status());
      return std::vector<ir::ValueId>(outputs, -1);
    }
    gradients_.resize(graph_->values.size(), -1);
    return *std::move(values);
  }

  void Contribute(ir::ValueId v, ir::ValueId gradient, const std::string& layer) {
    if (!wanted(v) || !status_.ok()) return;
    v = accumulates_ ? ParameterOf(v) : v;
    const std::string name = absl::StrCat(graph_->values[v].name, ".grad");
    if (accumulates_ && graph_->values[v].kind == ir::ValueKind::kParameter) {
      Emit({.op = ir::OpKind::kAccumulateGrad, .name = name, .layer = layer, .inputs = {gradient, v}});
      ++parameter_contributions_;
    } else if (gradients_[v] < 0) {
      gradients_[v] = gradient;
    } else {
      // What views and casts make of a parameter takes sums of both widths.
      const bool mixed = graph_->type(gradients_[v]).dtype != graph_->type(gradient).dtype;
      const ir::ValueId before = mixed ? ToF32(gradients_[v], name, layer) : gradients_[v];
      const std::vector<ir::ValueId> sum = Emit({.op = ir::OpKind::kAdd,
                                                 .name = absl::StrCat(name, "_sum"),
                                                 .layer = layer,
                                                 .inputs = {before, mixed ? ToF32(gradient, name, layer) : gradient}});
      gradients_[v] = sum[0];
    }
  }
  // One constant a type, however many want it.
  ir::ValueId Zeros(const ir::TensorType& type) {
    const std::string name = absl::StrCat(ir::kZerosPrefix, ir::TypeString(type));
    const auto [it, added] = zeros_.insert({name, -1});
    if (added) {
      // Of an imported graph's own gradients the numbers may be looked at.
      it->second = accumulates_ ? ir::AddZeros(graph_, type)
                                : graph_->AddConstant(name, std::make_shared<Tensor>(type.dtype, type.shape));
    }
    gradients_.resize(graph_->values.size(), -1);
    return it->second;
  }
  // The first one stays.
  void Fail(const absl::Status& status) { status_.Update(status); }
  int parameter_contributions() const { return parameter_contributions_; }

 private:
  ir::ValueId ToF32(ir::ValueId v, const std::string& name, const std::string& layer) {
    if (graph_->type(v).dtype == DType::kF32) return v;
    return Emit({.op = ir::OpKind::kCast,
                 .name = absl::StrCat(name, "_f32"),
                 .layer = layer,
                 .inputs = {v},
                 .attributes = {{"dtype", std::string(DTypeName(DType::kF32))}}})[0];
  }

  // The parameter that `v` is a copy of in another dtype, else `v`: the arena takes gradients of any dtype, and sums of
  // several uses would be rounded to the copy's.
  ir::ValueId ParameterOf(ir::ValueId v) const {
    if (graph_->values[v].producer < 0) return v;
    const ir::Node& node = graph_->nodes[graph_->values[v].producer];
    const bool copy = node.op == ir::OpKind::kCast && !node.attributes.Has("gradient_dtype") &&
                      graph_->values[node.inputs[0]].kind == ir::ValueKind::kParameter;
    return copy ? node.inputs[0] : v;
  }

  static std::vector<bool> MarkWanted(const ir::Graph& graph, const std::vector<ir::ValueId>& leaves,
                                      const std::vector<bool>& trained) {
    std::vector<bool> wanted;
    for (const ir::Value& value : graph.values) {
      const bool parameter = leaves.empty() && value.kind == ir::ValueKind::kParameter;
      wanted.push_back(parameter && (trained.empty() || trained[static_cast<size_t>(value.slot)]));
    }
    for (ir::ValueId leaf : leaves) wanted[leaf] = true;
    for (const ir::Node& node : graph.nodes) {
      bool any = false;
      for (ir::ValueId v : node.inputs) any = any || wanted[v];
      for (ir::ValueId v : node.outputs) wanted[v] = wanted[v] || (any && IsFloat(graph.type(v).dtype));
    }
    return wanted;
  }

  ir::Graph* graph_;
  bool accumulates_;
  std::set<ir::ValueId> leaves_;
  std::vector<ir::ValueId> gradients_;
  std::vector<bool> wanted_;
  std::map<std::string, int> names_;
  std::map<std::string, ir::ValueId> zeros_;
  absl::Status status_;
  int parameter_contributions_ = 0;
};

class NodeContext : public ops::GradientContext {
 public:
  // `node` is a copy: the graph's own nodes move as gradient nodes are added.
  NodeContext(Walk* walk, ir::Node node) : walk_(walk), node_(std::move(node)), asked_(node_.outputs.size(), false) {}

  // A rule that does not ask for an output's gradient has none through it; what comes from there must not get lost.
  absl::Status CheckAllAsked() const {
    for (size_t i = 0; i < asked_.size(); ++i) {
      const ir::ValueId v = node_.outputs[i];
      if (asked_[i] || walk_->flowing(v) < 0 || !walk_->wanted(v)) continue;
      return absl::InvalidArgumentError(absl::StrCat("[", ir::OpName(node_.op), "] has no gradient through its output ",
                                                     graph().values[v].name, ", node ", node_.name));
    }
    return absl::OkStatus();
  }

  const ir::Graph& graph() const override { return *walk_->graph(); }
  const ir::Node& node() const override { return node_; }
  ir::ValueId output_grad(int i) const override {
    asked_[static_cast<size_t>(i)] = true;
    return walk_->flowing(node_.outputs[i]);
  }
  bool needs_grad(int i) const override { return walk_->wanted(node_.inputs[i]); }
  std::vector<ir::ValueId> Emit(ir::OpKind op, std::vector<ir::ValueId> inputs, ir::Attributes attributes,
                                const std::string& suffix) override {
    if (ops::GetOpDef(op).precision == ops::PrecisionClass::kAllow) {
      for (const char* name : {ops::kComputeAttribute, ops::kScalesAttribute}) {
        if (node_.attributes.Has(name)) attributes.Set(name, node_.attributes.String(name));
      }
    }
    return walk_->Emit({.op = op,
                        .name = absl::StrCat(node_.name, ".", suffix),
                        .layer = node_.layer,
                        .inputs = std::move(inputs),
                        .attributes = std::move(attributes)});
  }
  ir::ValueId Zeros(const ir::TensorType& type) override { return walk_->Zeros(type); }
  void RefuseInput(int i) override {
    walk_->Fail(absl::InvalidArgumentError(absl::StrCat("[", ir::OpName(node_.op), "] has no gradient through ",
                                                        graph().values[input(i)].name, ", node ", node_.name)));
  }
  void AddInputGrad(int i, ir::ValueId gradient) override { walk_->Contribute(node_.inputs[i], gradient, node_.layer); }

 private:
  Walk* walk_;
  ir::Node node_;
  mutable std::vector<bool> asked_;
};

// Emits the gradients of the first `nodes` nodes, last to first.
absl::Status WalkBack(Walk* walk, size_t nodes) {
  for (size_t n = nodes; n-- > 0;) {
    const ir::Node& node = walk->graph()->nodes[n];
    const auto counts = [&](ir::ValueId v) { return walk->flowing(v) >= 0 && walk->wanted(v); };
    if (std::none_of(node.outputs.begin(), node.outputs.end(), counts)) continue;
    const auto wanted = [&](ir::ValueId v) { return walk->wanted(v); };
    if (std::none_of(node.inputs.begin(), node.inputs.end(), wanted)) continue;
    const ops::OpDef& def = ops::GetOpDef(node.op);
    if (def.gradient == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("[", ir::OpName(node.op), "] has no gradient, node ", node.name));
    }
    NodeContext context(walk, node);
    def.gradient(context);
    AMPD_RETURN_IF_ERROR(Annotate(walk->status(), "gradient"));
    AMPD_RETURN_IF_ERROR(context.CheckAllAsked());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ir::Graph> Differentiate(ir::Graph forward, ir::ValueId loss, const std::vector<bool>& trained) {
  if (forward.type(loss) != ir::TensorType{DType::kF32, {}}) {
    return absl::InvalidArgumentError(absl::StrCat("[differentiate] ", forward.values[loss].name, " is no f32 scalar"));
  }
  const size_t forward_nodes = forward.nodes.size();
  const ir::ValueId seed = forward.AddLossSeed();
  Walk walk(&forward, {}, trained);
  walk.SetSeed(loss, seed);
  AMPD_RETURN_IF_ERROR(WalkBack(&walk, forward_nodes));
  if (walk.parameter_contributions() == 0) {
    return absl::InvalidArgumentError(
        "[differentiate] the loss depends on no parameter that is trained: there is nothing to train");
  }
  return forward;
}

absl::StatusOr<std::vector<ir::ValueId>> AddGradients(ir::Graph* graph, ir::ValueId y,
                                                      const std::vector<ir::ValueId>& leaves) {
  const ir::TensorType type = graph->type(y);
  if (leaves.empty()) return std::vector<ir::ValueId>{};
  if (type.dtype != DType::kF32 && !IsHalf(type.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("[differentiate] ", graph->values[y].name, " is ", DTypeName(type.dtype)));
  }
  auto ones = std::make_shared<Tensor>(type.dtype, type.shape);
  for (int64_t i = 0; i < ones->size(); ++i) {
    if (type.dtype == DType::kF32) ones->as<float>()[i] = 1;
    if (type.dtype == DType::kF16) ones->as<Half>()[i] = ToHalf(1);
    if (type.dtype == DType::kBF16) ones->as<BFloat16>()[i] = ToBFloat16(1);
  }
  const size_t forward_nodes = graph->nodes.size();
  const ir::ValueId seed = graph->AddConstant(absl::StrCat(graph->values[y].name, ".ones"), std::move(ones));
  Walk walk(graph, leaves);
  walk.SetSeed(y, seed);
  AMPD_RETURN_IF_ERROR(WalkBack(&walk, forward_nodes));
  std::vector<ir::ValueId> gradients;
  for (ir::ValueId leaf : leaves) gradients.push_back(walk.gradient(leaf));
  return gradients;
}

}  // namespace ampd::autodiff
