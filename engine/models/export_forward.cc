#include "engine/models/export_forward.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/core/status.h"
#include "engine/models/build_layers.h"
#include "engine/models/imported.h"
#include "engine/models/layers.h"
#include "engine/models/phase_calls.h"
#include "engine/ops/op_def.h"
#include "proto/spec/names.h"

namespace ampd::models {
namespace {

struct Call {
  int phase = -1;
  int index = -1;
};

// The calls of a phase that one depends on, itself among them, and the sources that these read.
struct Upstream {
  std::vector<bool> calls;
  std::set<std::string> sources;
};

Upstream UpstreamOf(const v1::PhaseSpec& phase, int index) {
  Upstream upstream{std::vector<bool>(static_cast<size_t>(index) + 1), {}};
  std::set<std::string> wanted = {phase.calls(index).name()};
  // A call reads earlier ones alone.
  for (int i = index; i >= 0; --i) {
    const v1::NetworkCall& call = phase.calls(i);
    if (wanted.erase(call.name()) == 0) continue;
    upstream.calls[static_cast<size_t>(i)] = true;
    wanted.insert(call.inputs().begin(), call.inputs().end());
  }
  upstream.sources = std::move(wanted);
  return upstream;
}

bool ReadsDataAndNoNoise(const v1::ModelSpec& model, const std::set<std::string>& sources) {
  for (const v1::NoiseSource& noise : model.noise()) {
    if (sources.count(noise.name()) > 0) return false;
  }
  return sources.count("data") > 0;
}

std::string NetworkNames(const v1::ModelSpec& model) {
  const auto name = [](std::string* out, const v1::Network& n) { out->append(n.name()); };
  return absl::StrJoin(model.networks(), " or ", name);
}

std::string CallName(const v1::PhaseSpec& phase, int index) {
  return absl::StrCat(phase.name(), ".", phase.calls(index).name());
}

absl::StatusOr<Call> FindCall(const v1::JobSpec& spec, const std::string& network) {
  const v1::ModelSpec& model = spec.model();
  if (network.empty() && model.networks_size() == 1) return FindCall(spec, model.networks(0).name());
  if (network.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("the model has ", model.networks_size(),
                                                      " networks, of which a graph is of one: name `network`, ",
                                                      NetworkNames(model)));
  }
  Call first;
  for (int phase = 0; phase < spec.phases_size(); ++phase) {
    for (int i = 0; i < spec.phases(phase).calls_size(); ++i) {
      if (CallName(spec.phases(phase), i) == network) return Call{phase, i};
      if (spec.phases(phase).calls(i).network() != network) continue;
      if (ReadsDataAndNoNoise(model, UpstreamOf(spec.phases(phase), i).sources)) return Call{phase, i};
      if (first.phase < 0) first = {phase, i};
    }
  }
  if (first.phase >= 0) return first;
  return absl::InvalidArgumentError(absl::StrCat("network: the model has no network and no call ", Quoted(network),
                                                 "; it has ", NetworkNames(model), ", and calls PHASE.CALL of them"));
}

class NetworkBuilder {
 public:
  NetworkBuilder(const v1::JobSpec& spec, const SampleInfo& sample, int64_t batch)
      : spec_(spec), sample_(sample), batch_(batch) {}

  absl::StatusOr<ir::Graph> Build(Call call) {
    const v1::PhaseSpec& phase = spec_.phases(call.phase);
    const Upstream upstream = UpstreamOf(phase, call.index);
    PhaseCalls calls(
        spec_, call.phase, /*training=*/false,
        [this](const std::string& name, const std::string& field) { return AddSource(name, field); }, &budget_,
        &graph_);
    for (int i = 0; i <= call.index; ++i) {
      if (!upstream.calls[static_cast<size_t>(i)]) continue;
      AMPD_RETURN_IF_ERROR(calls.Add(i, absl::StrCat(phase.calls(i).name(), ".")));
    }
    const std::string& name = phase.calls(call.index).name();
    AMPD_ASSIGN_OR_RETURN(const LayerOutput last, calls.ValueOf(name, "network"));
    AMPD_ASSIGN_OR_RETURN(const LayerOutput output, LayerBuilder(&graph_, false).InTorchOrder(name, last));
    graph_.outputs = {{"output", output.value}};
    AMPD_RETURN_IF_ERROR(ops::VerifyGraph(graph_));
    return std::move(graph_);
  }

 private:
  absl::StatusOr<LayerOutput> AddSource(const std::string& name, const std::string& field) {
    if (name == "data") return AddInput("x", DType::kF32, sample_.input_shape, field);
    if (name == "labels") return AddInput(name, DType::kI32, sample_.label_shape, field);
    if (name == "targets") {
      if (sample_.target_features < 1) {
        return absl::FailedPreconditionError(absl::StrCat(
            field, ": how many targets a sample has is not known; a job that is submitted anew is planned with it"));
      }
      return AddInput(name, DType::kF32, {sample_.target_features}, field);
    }
    const v1::NoiseSource* noise = FindNoise(spec_.model(), name);
    if (noise == nullptr) return InvalidField(field, absl::StrCat("no source is named ", Quoted(name)));
    return AddInput("noise." + name, DType::kF32, {noise->shape().begin(), noise->shape().end()}, field);
  }

  absl::StatusOr<LayerOutput> AddInput(const std::string& name, DType dtype, const Shape& sample,
                                       const std::string& field) {
    Shape shape{batch_};
    shape.insert(shape.end(), sample.begin(), sample.end());
    AMPD_RETURN_IF_ERROR(ElementBudget(budget_).Count(shape, field));
    return LayerOutput{graph_.AddInput(name, {dtype, shape}), {}};
  }

  const v1::JobSpec& spec_;
  const SampleInfo& sample_;
  const int64_t batch_;
  ElementBudget budget_;
  ir::Graph graph_;
};

}  // namespace

absl::StatusOr<ir::Graph> BuildExportForward(const v1::JobSpec& spec, const SampleInfo& sample, int64_t batch,
                                             const std::string& network) {
  const v1::ModelSpec& model = spec.model();
  if (!model.networks().empty()) {
    AMPD_ASSIGN_OR_RETURN(const Call call, FindCall(spec, network));
    return NetworkBuilder(spec, sample, batch).Build(call);
  }
  if (!network.empty()) {
    return absl::InvalidArgumentError("network: the job has no model.networks, so that there is none to name");
  }
  if (model.has_onnx()) return BuildImportedInference(model, sample, batch);
  if (model.layers().empty()) return absl::FailedPreconditionError("the model has no layers");
  ir::Graph graph;
  AMPD_ASSIGN_OR_RETURN(const LayerOutput last, AddModelLayers(model, sample, batch, /*training=*/false, &graph));
  graph.outputs = {{"output", last.value}};
  AMPD_RETURN_IF_ERROR(ops::VerifyGraph(graph));
  return graph;
}

absl::StatusOr<std::string> ExportedCall(const v1::JobSpec& spec, const std::string& network) {
  AMPD_ASSIGN_OR_RETURN(const Call call, FindCall(spec, network));
  return CallName(spec.phases(call.phase), call.index);
}

}  // namespace ampd::models
