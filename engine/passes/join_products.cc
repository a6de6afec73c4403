#include "engine/passes/join_products.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/ops/op_def.h"
#include "engine/passes/readers.h"

namespace ampd::passes {
namespace {

using ir::FusedStep;
using ir::NodeId;
using ir::OpKind;
using ir::ValueId;

// A chain as steps, whether passes/fuse made one node of it or it is a single op.
struct Chain {
  std::vector<FusedStep> steps;
  std::vector<int32_t> results;
};

Chain ChainOf(const ir::Graph& graph, const ir::Node& node) {
  if (node.op == OpKind::kFused) {
    Chain chain{node.steps, node.results};
    // What the step before leaves first, in either order of a sum.
    const auto inputs = static_cast<int32_t>(node.inputs.size());
    for (size_t s = 1; s < chain.steps.size(); ++s) {
      std::vector<int32_t>& operands = chain.steps[s].operands;
      const bool second = chain.steps[s].op == OpKind::kAdd && operands[1] == inputs + static_cast<int32_t>(s) - 1;
      if (second) std::swap(operands[0], operands[1]);
    }
    return chain;
  }
  Chain chain{{{.op = node.op, .attributes = node.attributes, .dtype = graph.type(node.outputs[0]).dtype}}, {0}};
  for (size_t i = 0; i < node.inputs.size(); ++i) chain.steps[0].operands.push_back(static_cast<int32_t>(i));
  return chain;
}

class Joiner {
 public:
  Joiner(ir::Graph graph, const JoinPolicy& policy)
      : graph_(std::move(graph)), policy_(policy), reads_(ReadsOf(graph_)) {}

  ir::Graph Run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) Join(static_cast<NodeId>(n));
    std::vector<ir::Node> nodes;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (auto it = regions_.find(static_cast<NodeId>(n)); it != regions_.end()) {
        for (ir::Node& node : it->second) nodes.push_back(std::move(node));
      } else if (gone_.count(static_cast<NodeId>(n)) == 0) {
        nodes.push_back(std::move(graph_.nodes[n]));
      }
    }
    graph_.nodes = std::move(nodes);
    graph_.RefreshProducers();
    return std::move(graph_);
  }

 private:
  bool IsReadOnce(ValueId v) const { return reads_[static_cast<size_t>(v)] == 1; }

  // The node that wrote `v`, or null.
  const ir::Node* Producer(ValueId v) const {
    const ir::Value& value = graph_.values[static_cast<size_t>(v)];
    return value.kind == ir::ValueKind::kActivation ? &graph_.nodes[static_cast<size_t>(value.producer)] : nullptr;
  }

  // Of what chain `n` reads first, through a reshape that keeps the last axis; null where that is no product that may
  // join.
  const ir::Node* ProductBefore(const ir::Node& n) const {
    const ir::Node* before = Producer(n.inputs[0]);
    if (before == nullptr || !IsReadOnce(n.inputs[0])) return nullptr;
    if (before->op == OpKind::kReshape) {
      const ValueId whole = before->inputs[0];
      if (!IsReadOnce(whole) || graph_.type(whole).shape.empty() || graph_.type(n.inputs[0]).shape.empty() ||
          graph_.type(whole).shape.back() != graph_.type(n.inputs[0]).shape.back()) {
        return nullptr;
      }
      before = Producer(whole);
    }
    return before != nullptr && before->stage == n.stage && IsProduct(*before) ? before : nullptr;
  }

  bool IsProduct(const ir::Node& node) const {
    if (std::none_of(policy_.patterns.begin(), policy_.patterns.end(),
                     [&](const JoinPattern& p) { return p.product == node.op; })) {
      return false;
    }
    const ir::TensorType &a = graph_.type(node.inputs[0]), &b = graph_.type(node.inputs[1]);
    const ir::TensorType& y = graph_.type(node.outputs[0]);
    // Codes with their scales (passes/scale_products), or operands of the result's dtype.
    const bool is_scaled = node.inputs.size() == 4 && IsF8(a.dtype) && IsF8(b.dtype);
    if (!is_scaled && (node.inputs.size() != 2 || a.dtype != y.dtype || b.dtype != y.dtype)) return false;
    if (NumElements(y.shape) * SizeOf(y.dtype) < policy_.fewest_bytes) return false;
    return node.op != OpKind::kMatmul ||
           (b.shape.size() == 2 && (a.shape.size() == 2 || !node.attributes.Bool("transpose_a")));
  }

  // Whether `chain`, whose inputs `node` has, is what stands behind the product in a pattern, each step on the one
  // before it.
  bool Matches(const ir::Node& product, const ir::Node& node, const Chain& chain) const {
    const bool known = std::any_of(policy_.patterns.begin(), policy_.patterns.end(), [&](const JoinPattern& p) {
      return p.product == product.op &&
             std::equal(p.behind.begin(), p.behind.end(), chain.steps.begin(), chain.steps.end(),
                        [](OpKind op, const FusedStep& step) { return op == step.op; });
    });
    if (!known) return false;
    // An add may repeat both its terms.
    const int64_t elements = NumElements(graph_.type(product.outputs[0]).shape);
    const auto fits = [&](ValueId v) { return NumElements(graph_.type(v).shape) == elements; };
    if (!std::all_of(node.outputs.begin(), node.outputs.end(), fits)) return false;
    const auto inputs = static_cast<int32_t>(node.inputs.size());
    for (size_t s = 0; s < chain.steps.size(); ++s) {
      const int32_t previous = s == 0 ? 0 : inputs + static_cast<int32_t>(s) - 1;
      if (chain.steps[s].operands[0] != previous || !IsEpilogue(product, node, chain.steps[s])) return false;
    }
    return true;
  }

  bool IsEpilogue(const ir::Node& product, const ir::Node& node, const FusedStep& step) const {
    const ir::TensorType& y = graph_.type(product.outputs[0]);
    if (step.dtype != y.dtype) return false;
    if (step.op == OpKind::kGelu || step.op == OpKind::kGeluGrad) {
      if (step.attributes.String("approximate") != "tanh") return false;
    }
    // All but the first operand come from outside.
    return std::all_of(step.operands.begin() + 1, step.operands.end(), [&](int32_t operand) {
      if (operand <= 0 || static_cast<size_t>(operand) >= node.inputs.size()) return false;
      const ir::TensorType& type = graph_.type(node.inputs[static_cast<size_t>(operand)]);
      const bool is_vector = type.shape == Shape{y.shape.back()};
      return type.dtype == y.dtype &&
             (step.op == OpKind::kBiasAdd ? is_vector : NumElements(type.shape) == NumElements(y.shape));
    });
  }

  void Join(NodeId n) {
    ir::Node& node = graph_.nodes[static_cast<size_t>(n)];
    if ((node.op != OpKind::kFused && !ops::GetOpDef(node.op).elementwise) || node.inputs.empty()) return;
    const ir::Node* product = ProductBefore(node);
    // Either of two terms may be the product.
    if (product == nullptr && node.op == OpKind::kAdd) {
      std::swap(node.inputs[0], node.inputs[1]);
      product = ProductBefore(node);
      if (product == nullptr) std::swap(node.inputs[0], node.inputs[1]);
    }
    if (product == nullptr) return;
    const Chain chain = ChainOf(graph_, node);
    if (!Matches(*product, node, chain)) return;
    const ValueId through = node.inputs[0];
    if (through != product->outputs[0]) gone_.insert(graph_.values[static_cast<size_t>(through)].producer);
    gone_.insert(graph_.values[static_cast<size_t>(product->outputs[0])].producer);
    regions_[n] = Region(*product, node, chain);
  }

  // The region, and reshapes before and behind it where the chain's shape is not the product's.
  std::vector<ir::Node> Region(const ir::Node& product, const ir::Node& node, const Chain& chain) {
    const Shape shape = graph_.type(product.outputs[0]).shape;
    ir::Node region{.op = OpKind::kRegion, .name = product.name, .layer = product.layer, .stage = node.stage};
    std::vector<ir::Node> before, behind;
    region.inputs = product.inputs;
    std::map<int32_t, int32_t> place;  // of the chain's inputs among the region's
    for (size_t i = 1; i < node.inputs.size(); ++i) {
      place[static_cast<int32_t>(i)] = static_cast<int32_t>(region.inputs.size());
      const bool is_bias =
          chain.steps[0].op == OpKind::kBiasAdd && chain.steps[0].operands[1] == static_cast<int32_t>(i);
      region.inputs.push_back(is_bias ? node.inputs[i] : InShape(node.inputs[i], shape, node, &before));
    }
    const auto outer = static_cast<int32_t>(node.inputs.size()), inner = static_cast<int32_t>(region.inputs.size());
    FusedStep first{.op = product.op, .attributes = product.attributes, .dtype = graph_.type(product.outputs[0]).dtype};
    for (size_t i = 0; i < product.inputs.size(); ++i) first.operands.push_back(static_cast<int32_t>(i));
    region.steps = {std::move(first)};
    for (FusedStep step : chain.steps) {
      for (int32_t& operand : step.operands) {
        // Input 0 is the product's result, step 0; the chain's own steps come one later.
        operand = operand == 0 ? inner : operand < outer ? place.at(operand) : inner + 1 + operand - outer;
      }
      region.steps.push_back(std::move(step));
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      region.results.push_back(chain.results[o] + 1);
      region.outputs.push_back(OutOf(node.outputs[o], shape, node, o, &behind));
    }
    std::vector<ir::Node> nodes = std::move(before);
    nodes.push_back(std::move(region));
    for (ir::Node& reshape : behind) nodes.push_back(std::move(reshape));
    return nodes;
  }

  // `v`, or a view of it in `shape`.
  ValueId InShape(ValueId v, const Shape& shape, const ir::Node& node, std::vector<ir::Node>* nodes) {
    const ir::TensorType type = graph_.type(v);
    if (type.shape == shape) return v;
    const std::string name = absl::StrCat(node.name, ".rows", nodes->size());
    const ValueId flat = graph_.AddValue(name, {type.dtype, shape});
    nodes->push_back(Reshape(name, v, flat, node));
    return flat;
  }

  // What the region writes in `shape` so that `v` is a view of it; `v` itself where that is its shape.
  ValueId OutOf(ValueId v, const Shape& shape, const ir::Node& node, size_t o, std::vector<ir::Node>* nodes) {
    const ir::TensorType type = graph_.type(v);
    if (type.shape == shape) return v;
    const std::string name = absl::StrCat(node.name, ".result", o);
    const ValueId flat = graph_.AddValue(name, {type.dtype, shape});
    nodes->push_back(Reshape(absl::StrCat(name, ".shape"), flat, v, node));
    return flat;
  }

  ir::Node Reshape(const std::string& name, ValueId from, ValueId to, const ir::Node& node) const {
    const Shape& shape = graph_.type(to).shape;
    return {.op = OpKind::kReshape,
            .name = name,
            .layer = node.layer,
            .inputs = {from},
            .outputs = {to},
            .attributes = {{"shape", std::vector<int64_t>(shape.begin(), shape.end())}},
            .stage = node.stage};
  }

  ir::Graph graph_;
  const JoinPolicy& policy_;
  std::vector<int> reads_;                           // by value; a graph's output is read from outside
  std::map<NodeId, std::vector<ir::Node>> regions_;  // by the chain they replace
  std::set<NodeId> gone_;                            // products and reshapes that a region holds
};

}  // namespace

const JoinPolicy& LibraryJoins() {
  static const auto& policy = *new JoinPolicy{.patterns = {{OpKind::kMatmul, {OpKind::kAdd}},
                                                           {OpKind::kMatmul, {OpKind::kBiasAdd}},
                                                           {OpKind::kMatmul, {OpKind::kBiasAdd, OpKind::kAdd}},
                                                           {OpKind::kMatmul, {OpKind::kBiasAdd, OpKind::kGelu}},
                                                           {OpKind::kMatmul, {OpKind::kGeluGrad}},
                                                           {OpKind::kConv2d, {OpKind::kBiasAdd}},
                                                           {OpKind::kConv2d, {OpKind::kBiasAdd, OpKind::kRelu}}},
                                              .fewest_bytes = int64_t{256} << 10};
  return policy;
}

absl::StatusOr<ir::Graph> JoinProducts(ir::Graph graph, const JoinPolicy& policy) {
  if (policy.patterns.empty()) return graph;
  return Joiner(std::move(graph), policy).Run();
}

}  // namespace ampd::passes
