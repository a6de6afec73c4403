#include "engine/models/phase_forward.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/core/rng.h"
#include "engine/core/status.h"
#include "engine/core/tensor.h"
#include "engine/models/layers.h"
#include "engine/models/loss.h"
#include "engine/models/phase_calls.h"
#include "engine/ops/op_def.h"
#include "proto/spec/names.h"

namespace ampd::models {
namespace {

using ir::OpKind;
using ir::ValueId;

std::vector<int64_t> Ints(const Shape& shape) { return {shape.begin(), shape.end()}; }

class PhaseBuilder {
 public:
  PhaseBuilder(const v1::JobSpec& spec, int phase, const SampleInfo& sample, int64_t batch, ElementBudget* budget,
               std::vector<PhaseGraph::LabelShare>* shares)
      : spec_(spec),
        phase_(spec.phases(phase)),
        field_(absl::StrCat("phases[", phase, "]")),
        sample_(sample),
        batch_(batch),
        budget_(budget),
        shares_(shares),
        calls_(
            spec, phase, /*training=*/true,
            [this](const std::string& name, const std::string& field) { return AddSource(name, field); }, budget,
            &graph_) {}

  absl::StatusOr<ir::Graph> Build() {
    if (sample_.lengths || sample_.label_lengths) {
      return InvalidField("data.train", "samples that differ in length are not supported with model.networks yet");
    }
    for (int i = 0; i < phase_.calls_size(); ++i) {
      AMPD_RETURN_IF_ERROR(calls_.Add(i, absl::StrCat(phase_.name(), ".", phase_.calls(i).name(), ".")));
    }
    ValueId total = -1;
    for (int i = 0; i < phase_.losses_size(); ++i) {
      const std::string field = absl::StrCat(field_, ".losses[", i, "]");
      AMPD_ASSIGN_OR_RETURN(const ValueId term, AddTerm(i, field));
      AMPD_ASSIGN_OR_RETURN(total,
                            total < 0 ? term : Emit(OpKind::kAdd, absl::StrCat(LossName(i), ".sum"), {total, term}));
    }
    graph_.outputs = {{"loss", total}};
    return std::move(graph_);
  }

 private:
  Shape Batched(const Shape& sample) const {
    Shape shape{batch_};
    shape.insert(shape.end(), sample.begin(), sample.end());
    return shape;
  }

  absl::StatusOr<LayerOutput> AddSource(const std::string& name, const std::string& field) {
    if (name == "data") return LayerOutput{graph_.AddInput("x", {DType::kF32, Batched(sample_.input_shape)}), {}};
    if (name == "labels") {
      if (sample_.classes == 0) return InvalidField(field, "the data has float targets, no class labels");
      return LayerOutput{graph_.AddInput("labels", {DType::kI32, Batched(sample_.label_shape)}), {}};
    }
    if (name == "targets") {
      if (sample_.classes > 0) return InvalidField(field, "the data has class labels, no float targets");
      return LayerOutput{graph_.AddInput("targets", {DType::kF32, Batched({sample_.target_features})}), {}};
    }
    const v1::NoiseSource* noise = FindNoise(spec_.model(), name);
    if (noise != nullptr) return AddNoise(*noise, field);
    return InvalidField(field, absl::StrCat("no source and no earlier call is named ", Quoted(name)));
  }

  // The stream is the source's, not the node's: every phase draws the same.
  absl::StatusOr<LayerOutput> AddNoise(const v1::NoiseSource& noise, const std::string& field) {
    const Shape shape = Batched({noise.shape().begin(), noise.shape().end()});
    AMPD_RETURN_IF_ERROR(ElementBudget(*budget_).Count(shape, field));
    const std::string name = noise.name() + ".noise";
    const bool uniform = noise.distribution() == v1::NoiseSource::UNIFORM;
    AMPD_ASSIGN_OR_RETURN(const ValueId y, Emit(uniform ? OpKind::kRandomUniform : OpKind::kRandomNormal,
                                                absl::StrCat(phase_.name(), ".", name), {},
                                                {{"shape", Ints(shape)}, {"stream", int64_t{RngStream(name)}}}));
    return LayerOutput{y, {}};
  }

  std::string LossName(int i) const { return absl::StrCat(phase_.name(), ".loss_", i); }

  absl::StatusOr<ValueId> AddTerm(int i, const std::string& field) {
    const v1::PhaseLoss& loss = phase_.losses(i);
    AMPD_ASSIGN_OR_RETURN(LayerOutput input, calls_.ValueOf(loss.input(), field + ".input"));
    AMPD_ASSIGN_OR_RETURN(input, LayerBuilder(&graph_, true).InTorchOrder(LossName(i), input));
    if (!IsFloat(graph_.type(input.value).dtype))
      return InvalidField(field + ".input", "class labels are no prediction");
    AMPD_ASSIGN_OR_RETURN(const ValueId target, TargetOf(i, input.value, field));
    absl::StatusOr<ValueId> mean = AddLossTerm(loss.loss(), LossName(i), sample_, input.value, target, &graph_);
    if (!mean.ok()) return InvalidField(field, mean.status().message());
    AMPD_ASSIGN_OR_RETURN(mean, AddShare(i, *mean, input.value, target));
    if (loss.weight() == 1) return *mean;
    return Emit(OpKind::kMul, absl::StrCat(LossName(i), ".weighted"),
                {*mean, Scalar(LossName(i) + ".weight", loss.weight())});
  }

  // The micro-batches' means of a loss over labels count by how many labels do, each loss of a phase by its own.
  absl::StatusOr<ValueId> AddShare(int i, ValueId mean, ValueId prediction, ValueId target) {
    const v1::LossSpec& loss = phase_.losses(i).loss();
    const bool over_labels = loss.has_softmax_cross_entropy() && graph_.type(target).dtype == DType::kI32;
    if (!over_labels || spec_.train().micro_batch_size() == spec_.train().batch_size()) return mean;
    const std::string input = LossName(i) + ".share";
    shares_->push_back({input, loss, graph_.type(prediction).shape.back()});
    const ValueId share = graph_.AddInput(input, {DType::kF32, {}});
    return Emit(OpKind::kMul, LossName(i) + ".shared", {mean, share});
  }

  absl::StatusOr<ValueId> TargetOf(int i, ValueId prediction, const std::string& field) {
    const v1::PhaseLoss& loss = phase_.losses(i);
    if (loss.has_target()) {
      return Emit(OpKind::kBroadcastTo, LossName(i) + ".targets", {Scalar(LossName(i) + ".target", loss.target())},
                  {{"shape", Ints(graph_.type(prediction).shape)}});
    }
    AMPD_ASSIGN_OR_RETURN(LayerOutput target, calls_.ValueOf(loss.target_from(), field + ".target_from"));
    AMPD_ASSIGN_OR_RETURN(target, LayerBuilder(&graph_, true).InTorchOrder(LossName(i) + ".target", target));
    return target.value;
  }

  ValueId Scalar(const std::string& name, double value) {
    auto tensor = std::make_shared<Tensor>(DType::kF32, Shape{});
    tensor->as<float>()[0] = static_cast<float>(value);
    return graph_.AddConstant(name, std::move(tensor));
  }

  absl::StatusOr<ValueId> Emit(OpKind op, const std::string& name, std::vector<ValueId> inputs,
                               ir::Attributes attributes = {}) {
    const bool source = op == OpKind::kRandomNormal || op == OpKind::kRandomUniform;
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> outputs,
                          ops::Emit(&graph_, {.op = op,
                                              .name = name,
                                              .inputs = std::move(inputs),
                                              .attributes = std::move(attributes),
                                              .stage = source ? ir::Stage::kForward : ir::Stage::kLoss}));
    return outputs[0];
  }

  const v1::JobSpec& spec_;
  const v1::PhaseSpec& phase_;
  const std::string field_;
  const SampleInfo& sample_;
  const int64_t batch_;
  ElementBudget* budget_;
  std::vector<PhaseGraph::LabelShare>* shares_;
  ir::Graph graph_;
  PhaseCalls calls_;
};

}  // namespace

absl::StatusOr<ir::Graph> BuildPhaseForward(const v1::JobSpec& spec, int phase, const SampleInfo& sample, int64_t batch,
                                            ElementBudget* budget, std::vector<PhaseGraph::LabelShare>* shares) {
  return PhaseBuilder(spec, phase, sample, batch, budget, shares).Build();
}

absl::StatusOr<std::vector<bool>> TrainedBy(const v1::JobSpec& spec, int phase, const ir::Graph& graph) {
  const v1::PhaseSpec& of = spec.phases(phase);
  std::vector<bool> trained(graph.parameters.size(), of.trains().empty());
  std::vector<std::string> names;
  for (const ir::Persistent& parameter : graph.parameters) names.push_back(parameter.name);
  for (int i = 0; i < of.trains_size(); ++i) {
    const std::string& entry = of.trains(i);
    bool any = false;
    for (size_t p = 0; p < names.size(); ++p) {
      if (!absl::StartsWith(names[p], entry + ".") && !GlobMatches(entry, names[p])) continue;
      trained[p] = any = true;
    }
    if (any) continue;
    return InvalidField(absl::StrCat("phases[", phase, "].trains[", i, "]"),
                        absl::StrCat("no parameter of the networks that the phase calls matches ", Quoted(entry),
                                     DidYouMean(entry, names)));
  }
  return trained;
}

}  // namespace ampd::models
