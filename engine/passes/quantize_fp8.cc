#include "engine/passes/quantize_fp8.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/ops/compute.h"
#include "engine/ops/op_def.h"
#include "engine/passes/fp8_scales.h"

namespace ampd::passes {
namespace {

class Rewriter {
 public:
  Rewriter(ir::Graph graph, bool train) : graph_(std::move(graph)), train_(train) {
    old_ = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (graph_.values[v].kind == ir::ValueKind::kState) {
        states_[graph_.values[v].name] = static_cast<ir::ValueId>(v);
      }
    }
  }

  absl::StatusOr<ir::Graph> Run() {
    for (ir::Node& node : old_) {
      const bool marked = absl::string_view(node.attributes.String(ops::kComputeAttribute)) == ops::kComputeFp8;
      if (marked) {
        AMPD_RETURN_IF_ERROR(Replace(node));
      } else {
        graph_.nodes.push_back(node);
      }
    }
    graph_.RefreshProducers();
    return std::move(graph_);
  }

 private:
  struct Quantized {
    ir::ValueId codes = -1;
    ir::ValueId scale = -1;
  };

  absl::Status Replace(ir::Node node) {
    const std::string scales = node.attributes.String(ops::kScalesAttribute);
    std::vector<ir::ValueId> factors;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ir::ValueId source = WidestSource(node.inputs[i]);
      if (quantized_.count({scales, source}) == 0) {
        const std::string operand = FromGradient(source) ? "grad" : kFp8Operands[i];
        AMPD_RETURN_IF_ERROR(Quantize(node, scales, operand, source));
      }
      const Quantized& q = quantized_[{scales, source}];
      factors.push_back(q.scale);
      AMPD_ASSIGN_OR_RETURN(node.inputs[i], ViewAs(node.inputs[i], node, q.codes));
    }
    const ir::ValueId result = node.outputs[0];
    const ir::TensorType type = graph_.type(result);
    node.outputs[0] = graph_.AddValue(absl::StrCat(node.name, ".accumulated"), {DType::kF32, type.shape});
    graph_.nodes.push_back(node);
    graph_.nodes.push_back({.op = ir::OpKind::kDequantize,
                            .name = absl::StrCat(node.name, ".dequantize"),
                            .layer = node.layer,
                            .inputs = {node.outputs[0], factors[0], factors[1]},
                            .outputs = {result},
                            .attributes = {{"dtype", std::string(DTypeName(type.dtype))}},
                            .stage = node.stage});
    return absl::OkStatus();
  }

  const ir::Node* Producer(ir::ValueId v) const {
    const ir::Value& value = graph_.values[v];
    const bool old = value.kind == ir::ValueKind::kActivation && static_cast<size_t>(value.producer) < old_.size();
    return old ? &old_[value.producer] : nullptr;
  }

  // What casts narrowed and reshapes show: the backward pass of a product over rows makes its own views of what the
  // forward pass read.
  ir::ValueId WidestSource(ir::ValueId v) const {
    for (const ir::Node* node = Producer(v); node != nullptr; node = Producer(v)) {
      const bool narrows = node->op == ir::OpKind::kCast && graph_.type(node->inputs[0]).dtype == DType::kF32;
      if (!narrows && node->op != ir::OpKind::kReshape) break;
      v = node->inputs[0];
    }
    return v;
  }

  // `codes` in the shape of `operand`, which `node` read. A reshape that stands for a layer's belongs to that layer.
  absl::StatusOr<ir::ValueId> ViewAs(ir::ValueId operand, const ir::Node& node, ir::ValueId codes) {
    const Shape& shape = graph_.type(operand).shape;
    if (graph_.type(codes).shape == shape) return codes;
    const ir::Node* source = Producer(operand);
    const ir::Node& owner = source != nullptr && source->op == ir::OpKind::kReshape ? *source : node;
    const auto [it, inserted] = views_.insert({{codes, shape}, -1});
    if (!inserted) return it->second;
    ir::Node reshape{.op = ir::OpKind::kReshape,
                     .name = absl::StrCat(graph_.values[codes].name, ".view", views_.size()),
                     .layer = owner.layer,
                     .inputs = {codes},
                     .attributes = {{"shape", std::vector<int64_t>(shape.begin(), shape.end())}},
                     .stage = owner.stage};
    AMPD_ASSIGN_OR_RETURN(const std::vector<ir::ValueId> view, ops::Emit(&graph_, reshape));
    it->second = view[0];
    return view[0];
  }

  bool FromGradient(ir::ValueId v) const {
    const ir::Node* node = Producer(v);
    return node != nullptr ? node->stage == ir::Stage::kGradient : graph_.values[v].kind == ir::ValueKind::kLossSeed;
  }

  absl::StatusOr<ir::ValueId> State(const ir::Node& node, const std::string& name) const {
    auto it = states_.find(name);
    if (it != states_.end()) return it->second;
    return absl::InternalError(absl::StrCat("node ", node.name, " has no state ", name));
  }

  absl::Status Quantize(const ir::Node& node, const std::string& scales, const std::string& operand,
                        ir::ValueId source) {
    const DType dtype = operand == "grad" ? DType::kF8E5M2 : DType::kF8E4M3;
    const ir::Attributes format{{"dtype", std::string(DTypeName(dtype))}};
    const std::string prefix = absl::StrCat(scales, ".", operand);
    AMPD_ASSIGN_OR_RETURN(const ir::ValueId scale, State(node, Fp8ScaleName(scales, operand)));
    const int repeat = names_[prefix]++;
    ir::Node quantize{.op = ir::OpKind::kQuantize,
                      .name = absl::StrCat(prefix, ".quantize", repeat > 0 ? absl::StrCat("_", repeat) : ""),
                      .layer = node.layer,
                      .inputs = {source, scale},
                      .attributes = format,
                      .stage = node.stage};
    if (train_) quantize.attributes.Set("amax", int64_t{1});
    AMPD_ASSIGN_OR_RETURN(const std::vector<ir::ValueId> outputs, ops::Emit(&graph_, quantize));
    quantized_[{scales, source}] = {outputs[0], scale};
    quantize.attributes = format;
    return train_ ? Track(quantize, outputs[1], scales, operand) : absl::OkStatus();
  }

  // `amax`: of what was quantized.
  absl::Status Track(const ir::Node& quantize, ir::ValueId amax, const std::string& scales,
                     const std::string& operand) {
    AMPD_ASSIGN_OR_RETURN(const ir::ValueId history, State(quantize, Fp8HistoryName(scales, operand)));
    AMPD_ASSIGN_OR_RETURN(const ir::ValueId count, State(quantize, Fp8CountName(scales, operand)));
    ir::Node update = quantize;
    update.op = ir::OpKind::kAmaxUpdate;
    update.name = absl::StrCat(quantize.name, ".amax");
    update.inputs = {amax, history, count, quantize.inputs[1]};
    update.attributes.Set("margin", int64_t{kFp8Margin});
    return ops::Emit(&graph_, std::move(update)).status();
  }

  ir::Graph graph_;
  const bool train_;
  std::vector<ir::Node> old_;
  std::map<std::string, ir::ValueId> states_;
  std::map<std::pair<std::string, ir::ValueId>, Quantized> quantized_;
  std::map<std::pair<ir::ValueId, Shape>, ir::ValueId> views_;  // of codes
  std::map<std::string, int> names_;
};

}  // namespace

absl::StatusOr<ir::Graph> QuantizeFp8(ir::Graph graph, bool train) { return Rewriter(std::move(graph), train).Run(); }

}  // namespace ampd::passes
