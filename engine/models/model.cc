#include "engine/models/model.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/autodiff/differentiate.h"
#include "engine/core/status.h"
#include "engine/models/build_layers.h"
#include "engine/models/join_graphs.h"
#include "engine/models/layers.h"
#include "engine/models/loss.h"
#include "engine/models/phase_forward.h"
#include "engine/models/sample_forward.h"
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

// Layers and loss of a job without networks, in f32.
absl::StatusOr<ir::Graph> BuildForward(const v1::ModelSpec& model, const SampleInfo& sample, int64_t batch,
                                       bool training) {
  ir::Graph graph;
  ElementBudget budget;
  Shape shape{batch};
  shape.insert(shape.end(), sample.input_shape.begin(), sample.input_shape.end());
  AMPD_RETURN_IF_ERROR(budget.Count(shape, "data.train"));
  LayerOutput input{graph.AddInput("x", {DType::kF32, shape}), {}};
  if (sample.lengths) input.lengths = graph.AddInput("lengths", {DType::kI32, {batch}});
  LayerBuilder layers(&graph, training);
  AMPD_ASSIGN_OR_RETURN(LayerOutput last,
                        AddLayers(model.layers(), "model.layers", {{"input", input}}, &layers, &budget, &graph));
  AMPD_ASSIGN_OR_RETURN(last, layers.InTorchOrder(model.layers().rbegin()->name(), last));
  const absl::Status status = AddLoss(model.loss(), sample, training, last, &graph);
  if (!status.ok()) return InvalidField("model.loss", status.message());
  return graph;
}

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

// What a layer computes in: its first ALLOW op's operands, else what it writes. `name` is what its nodes say.
v1::LayerPlan DescribeLayer(const std::string& name, const v1::Layer& layer, const ir::Graph& train) {
  v1::LayerPlan plan;
  plan.set_name(name);
  plan.set_kind(KindName(layer));
  bool computes = false;  // has an ALLOW op
  for (const ir::Node& node : train.nodes) {
    if (node.layer != name || node.stage != ir::Stage::kForward || node.outputs.empty()) continue;
    if (node.op == ir::OpKind::kCast) continue;
    const ir::TensorType& type = train.type(node.outputs[0]);
    const bool allow = ops::GetOpDef(node.op).precision == ops::PrecisionClass::kAllow;
    if (plan.dtype().empty() || (allow && !computes)) plan.set_dtype(ComputeName(train, node));
    computes = computes || allow;
    plan.clear_output_shape();
    for (size_t i = 1; i < type.shape.size(); ++i) plan.add_output_shape(type.shape[i]);
  }
  for (const ir::Persistent& p : train.parameters) {
    if (p.name.rfind(name + ".", 0) != 0 || p.name.find('.', name.size() + 1) != std::string::npos) continue;
    plan.set_parameters(plan.parameters() + NumElements(p.type.shape));
  }
  return plan;
}

// A network's layers are described by the first phase that calls it.
const ir::Graph& GraphOf(const v1::JobSpec& spec, const std::string& network, const std::vector<ir::Graph>& graphs) {
  for (size_t i = 0; i < graphs.size(); ++i) {
    for (const v1::NetworkCall& call : spec.phases(static_cast<int>(i)).calls()) {
      if (call.network() == network) return graphs[i];
    }
  }
  return graphs[0];
}

std::vector<v1::LayerPlan> DescribeLayers(const v1::JobSpec& spec, const std::vector<ir::Graph>& graphs) {
  std::vector<v1::LayerPlan> plans;
  for (const v1::Layer& layer : spec.model().layers()) plans.push_back(DescribeLayer(layer.name(), layer, graphs[0]));
  for (const v1::Network& network : spec.model().networks()) {
    const ir::Graph& graph = GraphOf(spec, network.name(), graphs);
    for (const v1::Layer& layer : network.layers()) {
      plans.push_back(DescribeLayer(absl::StrCat(network.name(), ".", layer.name()), layer, graph));
    }
  }
  return plans;
}

// The passes between a forward graph and the one that is planned.
class Preparation {
 public:
  Preparation(const v1::PrecisionSpec& precision, const passes::PaddingPolicy& padding)
      : policy_(PolicyOf(precision)), padding_(padding) {}

  // With everything but padding, which layers are described without.
  absl::StatusOr<ir::Graph> Train(ir::Graph forward, const std::vector<bool>& trained) const {
    const auto differentiate = [&](ir::Graph g) {
      const ir::ValueId loss = g.outputs.at("loss");
      return autodiff::Differentiate(std::move(g), loss, trained);
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

absl::StatusOr<ir::Graph> BuildPhase(const v1::JobSpec& spec, int phase, const SampleInfo& sample, int64_t batch,
                                     const Preparation& prepare, ElementBudget* budget,
                                     std::vector<PhaseGraph::LabelShare>* shares) {
  if (spec.model().networks().empty()) {
    AMPD_ASSIGN_OR_RETURN(ir::Graph forward, BuildForward(spec.model(), sample, batch, true));
    if (forward.parameters.empty()) return InvalidField("model", "has no parameters: there is nothing to train");
    return prepare.Train(std::move(forward), {});
  }
  AMPD_ASSIGN_OR_RETURN(ir::Graph forward, BuildPhaseForward(spec, phase, sample, batch, budget, shares));
  AMPD_ASSIGN_OR_RETURN(const std::vector<bool> trained, TrainedBy(spec, phase, forward));
  absl::StatusOr<ir::Graph> graph = prepare.Train(std::move(forward), trained);
  if (!graph.ok()) return InvalidField(absl::StrCat("phases[", phase, "].losses"), graph.status().message());
  return graph;
}

// What a phase's losses do not depend on it does not update, as PyTorch's optimizers do not: a network that only other
// phases call, though a glob names its parameters, or one whose results no loss reads.
void KeepThoseWithGradients(const ir::Graph& graph, std::vector<bool>* trains) {
  std::vector<bool> reached(trains->size(), false);
  for (const ir::Node& node : graph.nodes) {
    if (node.op == ir::OpKind::kAccumulateGrad) reached[static_cast<size_t>(graph.values[node.inputs[1]].slot)] = true;
  }
  for (size_t p = 0; p < trains->size(); ++p) (*trains)[p] = (*trains)[p] && reached[p];
}

// Scales of FP8 belong to calls in phases, of which a sample is none.
v1::PrecisionSpec SamplePrecision(const v1::JobSpec& spec, const std::vector<v1::PrecisionSpec>& precisions) {
  v1::PrecisionSpec precision =
      precisions.empty() ? spec.precision() : precisions[static_cast<size_t>(SampledPhase(spec))];
  if (precision.mode() == v1::PrecisionSpec::FP8) precision.set_mode(v1::PrecisionSpec::BF16);
  for (v1::PrecisionRule& rule : *precision.mutable_rules()) {
    if (rule.dtype() == v1::PrecisionSpec::FP8) rule.set_dtype(v1::PrecisionSpec::BF16);
  }
  return precision;
}

}  // namespace

absl::StatusOr<Model> BuildModel(const ResolvedJobSpec& resolved, const SampleInfo& sample, int64_t train_batch,
                                 int64_t eval_batch, const passes::PaddingPolicy& padding,
                                 const std::vector<v1::PrecisionSpec>& precisions) {
  const v1::JobSpec& spec = resolved.proto();
  std::vector<Preparation> prepare;
  std::vector<ir::Graph> graphs;
  std::vector<ir::Graph*> shared;
  ElementBudget budget;
  std::vector<std::vector<PhaseGraph::LabelShare>> shares(static_cast<size_t>(spec.phases_size()));
  for (int i = 0; i < spec.phases_size(); ++i) {
    prepare.emplace_back(precisions.empty() ? spec.precision() : precisions[static_cast<size_t>(i)], padding);
    AMPD_ASSIGN_OR_RETURN(ir::Graph graph, BuildPhase(spec, i, sample, train_batch, prepare.back(), &budget,
                                                      &shares[static_cast<size_t>(i)]));
    graphs.push_back(std::move(graph));
  }
  for (ir::Graph& graph : graphs) shared.push_back(&graph);
  const Preparation prepare_sample(SamplePrecision(spec, precisions), padding);
  AMPD_ASSIGN_OR_RETURN(ir::Graph sampled, BuildSampleForward(spec, sample, &budget));
  const bool samples = !sampled.nodes.empty();
  if (samples) {
    AMPD_ASSIGN_OR_RETURN(sampled, prepare_sample.Evaluate(std::move(sampled)));
    shared.push_back(&sampled);
  }
  const absl::Status status = ShareParameters(shared);
  if (!status.ok()) return InvalidField("phases", status.message());
  Model model;
  model.layers = DescribeLayers(spec, graphs);
  for (int i = 0; i < spec.phases_size(); ++i) {
    const auto index = static_cast<size_t>(i);
    PhaseGraph phase;
    phase.label_shares = std::move(shares[index]);
    AMPD_ASSIGN_OR_RETURN(phase.trains, TrainedBy(spec, i, graphs[index]));
    if (!spec.model().networks().empty()) KeepThoseWithGradients(graphs[index], &phase.trains);
    AMPD_ASSIGN_OR_RETURN(phase.train, prepare[index].Finish(std::move(graphs[index]), &model.padding));
    model.phases.push_back(std::move(phase));
  }
  if (samples) {
    AMPD_ASSIGN_OR_RETURN(model.sample, prepare_sample.Finish(std::move(sampled), nullptr));
  }
  if (!spec.model().networks().empty()) return model;
  AMPD_ASSIGN_OR_RETURN(ir::Graph eval, BuildForward(spec.model(), sample, eval_batch, false));
  AMPD_ASSIGN_OR_RETURN(eval, prepare[0].Evaluate(std::move(eval)));
  AMPD_ASSIGN_OR_RETURN(model.eval, prepare[0].Finish(std::move(eval), nullptr));
  return model;
}

}  // namespace ampd::models
