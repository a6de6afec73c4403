#include "engine/models/model.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/autodiff/differentiate.h"
#include "engine/core/status.h"
#include "engine/models/build_layers.h"
#include "engine/models/imported.h"
#include "engine/models/imported_notes.h"
#include "engine/models/join_graphs.h"
#include "engine/models/layers.h"
#include "engine/models/loss.h"
#include "engine/models/phase_forward.h"
#include "engine/models/sample_forward.h"
#include "engine/ops/compute.h"
#include "engine/ops/op_def.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/drop_norm_biases.h"
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

passes::PrecisionPolicy PolicyOf(const v1::PrecisionSpec& spec, const v1::ModelSpec& model) {
  passes::PrecisionPolicy policy{.compute = ComputeOf(spec.mode())};
  for (const v1::Network& network : model.networks()) policy.networks.push_back(network.name());
  for (const v1::PrecisionRule& rule : spec.rules()) policy.rules.push_back({rule.match(), ComputeOf(rule.dtype())});
  const v1::LossScaleSpec::Kind kind = spec.loss_scale().kind();
  if (kind == v1::LossScaleSpec::STATIC || kind == v1::LossScaleSpec::DYNAMIC) policy.first_gradient_exponent = 0;
  return policy;
}

// Integers are read from the samples, as ids are, as they are stored.
absl::Status CheckIds(const SampleInfo& sample, const ir::Graph& forward) {
  // What ids are still ids behind: moved, bounded or shifted. Products scale, and may undo what normalisation did.
  static const auto* const kMoves = [] {
    using Kind = ir::OpKind;
    return new std::set<Kind>{Kind::kReshape,
                              Kind::kTranspose,
                              Kind::kSlice,
                              Kind::kConcat,
                              Kind::kGather,
                              Kind::kPad,
                              Kind::kGatherElements,
                              Kind::kGatherNd,
                              Kind::kBroadcastTo,
                              Kind::kCast,
                              Kind::kClip,
                              Kind::kMin,
                              Kind::kMax,
                              Kind::kAbs,
                              Kind::kNeg,
                              Kind::kFloor,
                              Kind::kCeil,
                              Kind::kRound,
                              Kind::kMod,
                              Kind::kWhere,
                              Kind::kReduceMax,
                              Kind::kReduceMin,
                              Kind::kAdd,
                              Kind::kSub};
  }();
  if (sample.normalized.empty()) return absl::OkStatus();
  std::vector<bool> stored(forward.values.size(), false);
  for (size_t i = 0; i < stored.size(); ++i) {
    stored[i] = forward.values[i].kind == ir::ValueKind::kInput && forward.values[i].name == "x";
  }
  for (const ir::Node& node : forward.nodes) {
    // What chooses is none of what is chosen from.
    const auto first = node.inputs.begin() + (node.op == ir::OpKind::kWhere ? 1 : 0);
    const bool moved = std::any_of(first, node.inputs.end(),
                                   [&](ir::ValueId input) { return input >= 0 && stored[static_cast<size_t>(input)]; });
    if (!moved) continue;
    const auto output = static_cast<size_t>(node.outputs[0]);
    const DType dtype = forward.values[output].type.dtype;
    if (node.op == ir::OpKind::kCast && (dtype == DType::kI32 || dtype == DType::kI64)) {
      return InvalidField("data.image.normalize",
                          absl::StrCat("is ", sample.normalized, ", but node ", node.name,
                                       " reads the samples' numbers as ids, which must come as stored: NONE"));
    }
    if (kMoves->count(node.op) > 0) stored[output] = true;
  }
  return absl::OkStatus();
}

// Layers and loss of a job without networks, in f32.
absl::StatusOr<ir::Graph> BuildForward(const v1::ModelSpec& model, const SampleInfo& sample, int64_t batch,
                                       bool training) {
  ir::Graph graph;
  AMPD_ASSIGN_OR_RETURN(const LayerOutput last, AddModelLayers(model, sample, batch, training, &graph));
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
  return plan;
}

// Of layers "a" and "a.b", "a.b.weight" is the latter's; of "a" alone, its own ("attend.out_proj.weight").
void CountParameters(const std::vector<ir::Persistent>& parameters, std::vector<v1::LayerPlan>* plans) {
  std::map<absl::string_view, v1::LayerPlan*> by_name;
  for (v1::LayerPlan& plan : *plans) by_name[plan.name()] = &plan;
  for (const ir::Persistent& p : parameters) {
    absl::string_view owner = p.name;
    for (size_t dot = owner.rfind('.'); dot != absl::string_view::npos; dot = owner.rfind('.')) {
      owner = owner.substr(0, dot);
      const auto found = by_name.find(owner);
      if (found == by_name.end()) continue;
      found->second->set_parameters(found->second->parameters() + NumElements(p.type.shape));
      break;
    }
  }
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
  CountParameters(graphs[0].parameters, &plans);
  return plans;
}

// The passes between a forward graph and the one that is planned.
class Preparation {
 public:
  Preparation(const v1::PrecisionSpec& precision, const v1::ModelSpec& model, const passes::PaddingPolicy& padding)
      : policy_(PolicyOf(precision, model)), padding_(padding) {}

  // What layers are described by: each parameter is read in its layer, no extent is padded.
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
    pipeline.Add("drop_norm_biases", passes::DropNormBiases)
        .Add("dead_nodes", passes::RemoveDeadNodes)
        .Add("pad_for_tensor_cores", pad)
        .Add("publish_parameters", passes::PublishParameters)
        .Add("recompute_inputs", passes::RecomputeInputs);
    return pipeline.Run(std::move(graph));
  }

 private:
  const passes::PrecisionPolicy policy_;
  const passes::PaddingPolicy padding_;
};

// The one phase of a job with model.onnx; what became of its file goes to `forward`.
absl::StatusOr<ir::Graph> BuildImportedPhase(const v1::JobSpec& spec, const SampleInfo& sample, int64_t batch,
                                             const Preparation& prepare, ImportedForward* forward) {
  AMPD_ASSIGN_OR_RETURN(*forward, BuildImportedForward(spec.model(), sample, batch, /*training=*/true));
  if (forward->graph.parameters.empty()) {
    const std::string frozen = DescribeFrozenWeights(spec.model().onnx());
    return InvalidField("model.onnx.path",
                        absl::StrCat("has no parameters to train", frozen.empty() ? "" : "; ", frozen));
  }
  AMPD_RETURN_IF_ERROR(CheckRules(spec.precision(), *forward));
  AMPD_RETURN_IF_ERROR(CheckIds(sample, forward->graph));
  AMPD_ASSIGN_OR_RETURN(const std::vector<bool> trained, NotFrozen(spec.model().onnx(), forward->graph));
  absl::StatusOr<ir::Graph> graph = prepare.Train(std::move(forward->graph), trained);
  if (!graph.ok()) return InvalidField("model.onnx.path", graph.status().message());
  return graph;
}

absl::StatusOr<ir::Graph> BuildPhase(const v1::JobSpec& spec, int phase, const SampleInfo& sample, int64_t batch,
                                     const Preparation& prepare, ElementBudget* budget,
                                     std::vector<PhaseGraph::LabelShare>* shares, ImportedForward* imported) {
  if (spec.model().has_onnx()) return BuildImportedPhase(spec, sample, batch, prepare, imported);
  if (spec.model().networks().empty()) {
    AMPD_ASSIGN_OR_RETURN(ir::Graph forward, BuildForward(spec.model(), sample, batch, true));
    if (forward.parameters.empty()) return InvalidField("model", "has no parameters: there is nothing to train");
    AMPD_RETURN_IF_ERROR(CheckIds(sample, forward));
    return prepare.Train(std::move(forward), {});
  }
  AMPD_ASSIGN_OR_RETURN(ir::Graph forward, BuildPhaseForward(spec, phase, sample, batch, budget, shares));
  AMPD_RETURN_IF_ERROR(CheckIds(sample, forward));
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

// Which of the graph's parameters phase `phase` updates.
absl::StatusOr<std::vector<bool>> UpdatedBy(const v1::JobSpec& spec, int phase, const ir::Graph& graph) {
  const bool onnx = spec.model().has_onnx();
  AMPD_ASSIGN_OR_RETURN(std::vector<bool> trains,
                        onnx ? NotFrozen(spec.model().onnx(), graph) : TrainedBy(spec, phase, graph));
  KeepThoseWithGradients(graph, &trains);
  return trains;
}

std::set<std::string> PersistentNames(const ir::Graph& graph) {
  std::set<std::string> names;
  for (const ir::Persistent& parameter : graph.parameters) names.insert(parameter.name);
  for (const ir::Persistent& state : graph.states) names.insert(state.name);
  return names;
}

// Forward and loss for evaluation, of a job without networks. `kept`: as of BuildImportedForward.
absl::StatusOr<ir::Graph> BuildEvaluation(const v1::ModelSpec& model, const SampleInfo& sample, int64_t batch,
                                          const std::set<std::string>& kept) {
  if (!model.has_onnx()) return BuildForward(model, sample, batch, /*training=*/false);
  AMPD_ASSIGN_OR_RETURN(ImportedForward forward, BuildImportedForward(model, sample, batch, /*training=*/false, &kept));
  return std::move(forward.graph);
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
  ImportedForward imported;
  std::vector<std::vector<PhaseGraph::LabelShare>> shares(static_cast<size_t>(spec.phases_size()));
  for (int i = 0; i < spec.phases_size(); ++i) {
    prepare.emplace_back(precisions.empty() ? spec.precision() : precisions[static_cast<size_t>(i)], spec.model(),
                         padding);
    AMPD_ASSIGN_OR_RETURN(ir::Graph graph, BuildPhase(spec, i, sample, train_batch, prepare.back(), &budget,
                                                      &shares[static_cast<size_t>(i)], &imported));
    graphs.push_back(std::move(graph));
  }
  for (ir::Graph& graph : graphs) shared.push_back(&graph);
  const Preparation prepare_sample(SamplePrecision(spec, precisions), spec.model(), padding);
  AMPD_ASSIGN_OR_RETURN(ir::Graph sampled, BuildSampleForward(spec, sample, &budget));
  const bool samples = !sampled.nodes.empty();
  if (samples) {
    AMPD_ASSIGN_OR_RETURN(sampled, prepare_sample.Evaluate(std::move(sampled)));
    shared.push_back(&sampled);
  }
  const absl::Status status = ShareParameters(shared);
  if (!status.ok()) return InvalidField("phases", status.message());
  Model model;
  model.layers = spec.model().has_onnx() ? DescribeImported(imported, graphs[0]) : DescribeLayers(spec, graphs);
  const std::set<std::string> kept = PersistentNames(graphs[0]);
  for (int i = 0; i < spec.phases_size(); ++i) {
    const auto index = static_cast<size_t>(i);
    PhaseGraph phase;
    phase.label_shares = std::move(shares[index]);
    AMPD_ASSIGN_OR_RETURN(phase.trains, UpdatedBy(spec, i, graphs[index]));
    AMPD_ASSIGN_OR_RETURN(phase.train, prepare[index].Finish(std::move(graphs[index]), &model.padding));
    model.phases.push_back(std::move(phase));
  }
  if (samples) {
    AMPD_ASSIGN_OR_RETURN(model.sample, prepare_sample.Finish(std::move(sampled), nullptr));
  }
  if (!spec.model().networks().empty()) return model;
  AMPD_ASSIGN_OR_RETURN(ir::Graph eval, BuildEvaluation(spec.model(), sample, eval_batch, kept));
  AMPD_ASSIGN_OR_RETURN(eval, prepare[0].Evaluate(std::move(eval)));
  AMPD_ASSIGN_OR_RETURN(model.eval, prepare[0].Finish(std::move(eval), nullptr));
  return model;
}

}  // namespace ampd::models
