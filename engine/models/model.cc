#include "engine/models/model.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/autodiff/differentiate.h"
#include "engine/core/status.h"
#include "engine/models/layers.h"
#include "engine/models/loss.h"
#include "engine/ops/compute.h"
#include "engine/ops/op_def.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/pad_for_tensor_cores.h"
#include "engine/passes/pipeline.h"
#include "engine/passes/precision.h"
#include "engine/passes/publish_parameters.h"
#include "engine/passes/quantize_fp8.h"
#include "engine/passes/recompute_inputs.h"

namespace ampd::models {
namespace {

// Parameters and activations that a graph may have; far above any machine's memory, and small enough that no product of
// extents overflows.
constexpr double kMaxElements = 1e12;

double Elements(const Shape& shape) {
  double n = 1;
  for (int64_t extent : shape) n *= static_cast<double>(extent);
  return n;
}

passes::ComputeType ComputeOf(v1::PrecisionSpec::Mode mode) {
  switch (mode) {
    case v1::PrecisionSpec::TF32:
      return passes::kTf32;
    case v1::PrecisionSpec::FP8:
      return passes::kFp8;
    case v1::PrecisionSpec::FP16:
      return DType::kF16;
    case v1::PrecisionSpec::BF16:
      return DType::kBF16;
    default:
      return DType::kF32;
  }
}

passes::PrecisionPolicy PolicyOf(const v1::PrecisionSpec& spec) {
  passes::PrecisionPolicy policy{.compute = ComputeOf(spec.mode())};
  for (const v1::PrecisionRule& rule : spec.rules()) policy.rules.push_back({rule.match(), ComputeOf(rule.dtype())});
  return policy;
}

absl::Status InvalidField(const std::string& field, absl::string_view description) {
  return InvalidFields({{field, std::string(description)}});
}

// The forward graph and the loss, in f32.
class ForwardBuilder {
 public:
  ForwardBuilder(const v1::JobSpec& spec, const SampleInfo& sample, int64_t batch, bool training)
      : spec_(spec), sample_(sample), batch_(batch), training_(training) {}

  absl::StatusOr<ir::Graph> Build() {
    Shape input{batch_};
    input.insert(input.end(), sample_.input_shape.begin(), sample_.input_shape.end());
    AMPD_RETURN_IF_ERROR(Count(input, "data.train"));
    outputs_["input"] = {graph_.AddInput("x", {DType::kF32, input}), {}, sample_.lengths};
    if (sample_.lengths) lengths_ = graph_.AddInput("lengths", {DType::kI32, {batch_}});
    LayerBuilder layers(&graph_, training_, lengths_);
    LayerOutput last = outputs_["input"];
    for (int i = 0; i < spec_.model().layers_size(); ++i) {
      const std::string field = absl::StrCat("model.layers[", i, "]");
      absl::StatusOr<LayerOutput> output = AddLayer(spec_.model().layers(i), last, &layers);
      if (!output.ok()) return InvalidField(field, output.status().message());
      last = *output;
      outputs_[spec_.model().layers(i).name()] = last;
      AMPD_RETURN_IF_ERROR(Count(graph_.type(last.value).shape, field));
      for (; counted_ < graph_.parameters.size(); ++counted_) {
        AMPD_RETURN_IF_ERROR(Count(graph_.parameters[counted_].type.shape, field));
      }
    }
    AMPD_ASSIGN_OR_RETURN(last, layers.InTorchOrder(spec_.model().layers().rbegin()->name(), last));
    absl::Status status = AddLoss(spec_.model().loss(), sample_, training_, last, lengths_, &graph_);
    if (!status.ok()) return InvalidField("model.loss", status.message());
    return std::move(graph_);
  }

 private:
  absl::Status Count(const Shape& shape, const std::string& field) {
    elements_ += Elements(shape);
    if (elements_ <= kMaxElements) return absl::OkStatus();
    return InvalidField(field, "the model's parameters and activations exceed 10^12 elements");
  }

  absl::StatusOr<LayerOutput> AddLayer(const v1::Layer& layer, const LayerOutput& before, LayerBuilder* layers) {
    std::vector<LayerOutput> inputs;
    for (const std::string& name : layer.inputs()) {
      auto it = outputs_.find(name);
      if (it == outputs_.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("layer ", layer.name(), " reads ", name, ", which stands nowhere before it"));
      }
      inputs.push_back(it->second);
    }
    if (inputs.empty()) inputs.push_back(before);
    return layers->Add(layer, inputs);
  }

  const v1::JobSpec& spec_;
  const SampleInfo& sample_;
  const int64_t batch_;
  const bool training_;
  ir::Graph graph_;
  ir::ValueId lengths_ = -1;
  std::map<std::string, LayerOutput> outputs_;
  size_t counted_ = 0;  // parameters
  double elements_ = 0;
};

std::string KindName(const v1::Layer& layer) {
  const google::protobuf::FieldDescriptor* field =
      layer.GetReflection()->GetOneofFieldDescriptor(layer, layer.GetDescriptor()->FindOneofByName("kind"));
  return field == nullptr ? "" : field->name();
}

std::string ComputeName(const ir::Graph& graph, const ir::Node& node) {
  if (node.attributes.String(ops::kComputeAttribute) == ops::kComputeTf32) return ops::kComputeTf32;
  const bool allow = ops::GetOpDef(node.op).precision == ops::PrecisionClass::kAllow;
  return std::string(DTypeName(graph.type(allow ? node.inputs[0] : node.outputs[0]).dtype));
}

// What a layer computes in: its first ALLOW op's operands, else what it writes.
std::vector<v1::LayerPlan> DescribeLayers(const v1::ModelSpec& model, const ir::Graph& train) {
  std::vector<v1::LayerPlan> plans;
  for (const v1::Layer& layer : model.layers()) {
    v1::LayerPlan plan;
    plan.set_name(layer.name());
    plan.set_kind(KindName(layer));
    bool computes = false;  // has an ALLOW op
    for (const ir::Node& node : train.nodes) {
      if (node.layer != layer.name() || node.stage != ir::Stage::kForward || node.outputs.empty()) continue;
      if (node.op == ir::OpKind::kCast) continue;
      const ir::TensorType& type = train.type(node.outputs[0]);
      const bool allow = ops::GetOpDef(node.op).precision == ops::PrecisionClass::kAllow;
      if (plan.dtype().empty() || (allow && !computes)) plan.set_dtype(ComputeName(train, node));
      computes = computes || allow;
      plan.clear_output_shape();
      for (size_t i = 1; i < type.shape.size(); ++i) plan.add_output_shape(type.shape[i]);
    }
    for (const ir::Persistent& p : train.parameters) {
      if (p.name.rfind(layer.name() + ".", 0) != 0 || p.name.find('.', layer.name().size() + 1) != std::string::npos)
        continue;
      plan.set_parameters(plan.parameters() + NumElements(p.type.shape));
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

// The passes between a forward graph and the one that is planned.
class Preparation {
 public:
  Preparation(const v1::PrecisionSpec& precision, const passes::PaddingPolicy& padding)
      : policy_(PolicyOf(precision)), padding_(padding) {}

  // With everything but padding, which layers are described without.
  absl::StatusOr<ir::Graph> Train(ir::Graph forward) const {
    const auto differentiate = [](ir::Graph g) {
      const ir::ValueId loss = g.outputs.at("loss");
      return autodiff::Differentiate(std::move(g), loss);
    };
    passes::Pipeline pipeline;
    pipeline.Add("precision", [&](ir::Graph g) { return passes::ApplyPrecision(g, policy_); })
        .Add("differentiate", differentiate)
        .Add("quantize_fp8", [](ir::Graph g) { return passes::QuantizeFp8(std::move(g), true); })
        .Add("dead_nodes", passes::RemoveDeadNodes);
    return pipeline.Run(std::move(forward));
  }

  absl::StatusOr<ir::Graph> Evaluate(ir::Graph forward) const {
    passes::Pipeline pipeline;
    pipeline.Add("precision", [&](ir::Graph g) { return passes::ApplyPrecision(g, policy_); })
        .Add("quantize_fp8", [](ir::Graph g) { return passes::QuantizeFp8(std::move(g), false); })
        .Add("dead_nodes", passes::RemoveDeadNodes);
    return pipeline.Run(std::move(forward));
  }

  absl::StatusOr<ir::Graph> Finish(ir::Graph graph, std::vector<passes::PaddedExtent>* padded) const {
    const auto pad = [&](ir::Graph g) { return passes::PadForTensorCores(std::move(g), padding_, padded); };
    passes::Pipeline pipeline;
    pipeline.Add("pad_for_tensor_cores", pad)
        .Add("publish_parameters", passes::PublishParameters)
        .Add("recompute_inputs", passes::RecomputeInputs);
    return pipeline.Run(std::move(graph));
  }

 private:
  const passes::PrecisionPolicy policy_;
  const passes::PaddingPolicy padding_;
};

}  // namespace

absl::StatusOr<Model> BuildModel(const ResolvedJobSpec& resolved, const SampleInfo& sample, int64_t train_batch,
                                 int64_t eval_batch, const passes::PaddingPolicy& padding,
                                 const std::vector<v1::PrecisionSpec>& precisions) {
  const v1::JobSpec& spec = resolved.proto();
  const Preparation prepare(precisions.empty() ? spec.precision() : precisions[0], padding);
  Model model;
  AMPD_ASSIGN_OR_RETURN(ir::Graph train, ForwardBuilder(spec, sample, train_batch, true).Build());
  if (train.parameters.empty()) return InvalidField("model", "has no parameters: there is nothing to train");
  AMPD_ASSIGN_OR_RETURN(train, prepare.Train(std::move(train)));
  model.layers = DescribeLayers(spec.model(), train);
  model.phases.emplace_back();
  model.phases[0].trains.assign(train.parameters.size(), true);
  AMPD_ASSIGN_OR_RETURN(model.phases[0].train, prepare.Finish(std::move(train), &model.padding));
  AMPD_ASSIGN_OR_RETURN(ir::Graph eval, ForwardBuilder(spec, sample, eval_batch, false).Build());
  AMPD_ASSIGN_OR_RETURN(eval, prepare.Evaluate(std::move(eval)));
  AMPD_ASSIGN_OR_RETURN(model.eval, prepare.Finish(std::move(eval), nullptr));
  return model;
}

}  // namespace ampd::models
