#include "engine/passes/split_norms.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace ampd::passes {
namespace {

using ir::OpKind;
using ir::ValueId;

class Splitter {
 public:
  explicit Splitter(ir::Graph graph) : graph_(std::move(graph)) {}

  ir::Graph Run() {
    std::vector<ir::Node> old = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (ir::Node& node : old) {
      if (node.op == OpKind::kBatchNorm) {
        Split(node);
      } else {
        graph_.nodes.push_back(std::move(node));
      }
    }
    graph_.RefreshProducers();
    return std::move(graph_);
  }

 private:
  void Split(const ir::Node& norm) {
    const ir::TensorType type = graph_.type(norm.inputs[0]);
    const ValueId factor = graph_.AddValue(norm.name + ".factor", {DType::kF32, {type.shape.back()}});
    Add(norm, OpKind::kBatchNormStatistics, ".statistics", {norm.inputs[0], norm.inputs[1]},
        {norm.outputs[1], norm.outputs[2], factor}, norm.attributes);
    const bool half = type.dtype != DType::kF32;
    const ValueId wide =
        half ? Step(norm, OpKind::kCast, ".wide", {norm.inputs[0]}, CastTo(DType::kF32)) : norm.inputs[0];
    const ValueId centred = Step(norm, OpKind::kSub, ".centred", {wide, norm.outputs[1]});
    const ValueId scaled = Step(norm, OpKind::kMul, ".scaled", {centred, factor});
    if (!half) return Add(norm, OpKind::kAdd, "", {scaled, norm.inputs[2]}, {norm.outputs[0]}, {});
    const ValueId shifted = Step(norm, OpKind::kAdd, ".shifted", {scaled, norm.inputs[2]});
    Add(norm, OpKind::kCast, "", {shifted}, {norm.outputs[0]}, CastTo(type.dtype));
  }

  static ir::Attributes CastTo(DType dtype) { return {{"dtype", std::string(DTypeName(dtype))}}; }

  // A node whose one result is f32 of the norm's shape.
  ValueId Step(const ir::Node& norm, OpKind op, const std::string& suffix, std::vector<ValueId> inputs,
               ir::Attributes attributes = {}) {
    const ValueId y = graph_.AddValue(norm.name + suffix, {DType::kF32, graph_.type(norm.inputs[0]).shape});
    Add(norm, op, suffix, std::move(inputs), {y}, std::move(attributes));
    return y;
  }

  void Add(const ir::Node& norm, OpKind op, const std::string& suffix, std::vector<ValueId> inputs,
           std::vector<ValueId> outputs, ir::Attributes attributes) {
    graph_.nodes.push_back({.op = op,
                            .name = norm.name + suffix,
                            .layer = norm.layer,
                            .inputs = std::move(inputs),
                            .outputs = std::move(outputs),
                            .attributes = std::move(attributes),
                            .stage = norm.stage});
  }

  ir::Graph graph_;
};

}  // namespace

absl::StatusOr<ir::Graph> SplitNorms(ir::Graph graph, const std::function<bool(ir::OpKind)>& can_fuse) {
  for (OpKind op : {OpKind::kSub, OpKind::kMul, OpKind::kAdd, OpKind::kCast}) {
    if (!can_fuse(op)) return graph;
  }
  return Splitter(std::move(graph)).Run();
}

}  // namespace ampd::passes
