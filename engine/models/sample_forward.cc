#include "engine/models/sample_forward.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/rng.h"
#include "engine/core/status.h"
#include "engine/core/tensor.h"
#include "engine/models/phase_calls.h"
#include "engine/ops/op_def.h"
#include "proto/spec/names.h"

namespace ampd::models {
namespace {

using ir::OpKind;
using ir::ValueId;

constexpr char kField[] = "report.samples.images";
// Of a whole picture; libpng and viewers have their limits, too.
constexpr int64_t kMaxPixels = int64_t{1} << 26;

std::string NetworkField() { return absl::StrCat(kField, ".network"); }

class ImageSampleBuilder {
 public:
  ImageSampleBuilder(const v1::JobSpec& spec, const SampleInfo& sample, ElementBudget* budget)
      : spec_(spec), images_(spec.report().samples().images()), sample_(sample), budget_(budget) {}

  absl::StatusOr<ir::Graph> Build() {
    const auto& networks = spec_.model().networks();
    const bool known = std::any_of(networks.begin(), networks.end(),
                                   [&](const v1::Network& n) { return n.name() == images_.network(); });
    if (!known) return InvalidField(NetworkField(), "names no network");
    AMPD_ASSIGN_OR_RETURN(const Call call, FindCall());
    PhaseCalls calls(
        spec_, call.phase, /*training=*/false,
        [this](const std::string& name, const std::string&) { return AddSource(name); }, budget_, &graph_);
    AMPD_RETURN_IF_ERROR(calls.Add(call.index, absl::StrCat("samples.", images_.network(), ".")));
    const std::string& name = spec_.phases(call.phase).calls(call.index).name();
    AMPD_ASSIGN_OR_RETURN(const LayerOutput last, calls.ValueOf(name, NetworkField()));
    graph_.outputs = {{"samples", last.value}};
    AMPD_RETURN_IF_ERROR(CheckImage(graph_.type(last.value)));
    return std::move(graph_);
  }

 private:
  int64_t count() const { return images_.rows() * images_.columns(); }

  struct Call {
    int phase, index;
  };

  absl::StatusOr<Call> FindCall() const {
    for (int phase = 0; phase < spec_.phases_size(); ++phase) {
      for (int i = 0; i < spec_.phases(phase).calls_size(); ++i) {
        const v1::NetworkCall& call = spec_.phases(phase).calls(i);
        const bool of_sources = std::all_of(call.inputs().begin(), call.inputs().end(), [&](const std::string& input) {
          return input == "labels" || FindNoise(spec_.model(), input) != nullptr;
        });
        if (call.network() == images_.network() && of_sources) return Call{phase, i};
      }
    }
    return InvalidField(NetworkField(),
                        absl::StrCat("no phase calls ", Quoted(images_.network()), " on noise and labels alone"));
  }

  absl::StatusOr<LayerOutput> AddSource(const std::string& name) {
    if (name == "labels") return AddRows();
    const v1::NoiseSource* source = FindNoise(spec_.model(), name);
    Shape shape{count()};
    shape.insert(shape.end(), source->shape().begin(), source->shape().end());
    AMPD_RETURN_IF_ERROR(ElementBudget(*budget_).Count(shape, kField));
    const std::string stream = absl::StrCat("samples.", name, ".noise");
    const bool uniform = source->distribution() == v1::NoiseSource::UNIFORM;
    ir::Attributes attributes{{"shape", std::vector<int64_t>(shape.begin(), shape.end())},
                              {"stream", int64_t{RngStream(stream)}}};
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> outputs,
                          ops::Emit(&graph_, {.op = uniform ? OpKind::kRandomUniform : OpKind::kRandomNormal,
                                              .name = stream,
                                              .attributes = std::move(attributes),
                                              .stage = ir::Stage::kForward}));
    return LayerOutput{outputs[0], {}};
  }

  absl::StatusOr<LayerOutput> AddRows() {
    if (!sample_.label_shape.empty()) {
      return InvalidField(NetworkField(), "reads labels, of which the data has many a sample: a row is of one class");
    }
    if (images_.rows() > sample_.classes) {
      return InvalidField(
          absl::StrCat(kField, ".rows"),
          absl::StrCat("are ", images_.rows(), ", a row a class, but the ", "data has ", sample_.classes, " classes"));
    }
    auto rows = std::make_shared<Tensor>(DType::kI32, Shape{count()});
    for (int64_t i = 0; i < count(); ++i) rows->as<int32_t>()[i] = static_cast<int32_t>(i / images_.columns());
    return LayerOutput{graph_.AddConstant("samples.rows", std::move(rows)), {}};
  }

  absl::Status CheckImage(const ir::TensorType& type) const {
    const bool image = IsFloat(type.dtype) && type.shape.size() == 4 && (type.shape[3] == 1 || type.shape[3] == 3);
    if (!image) {
      return InvalidField(NetworkField(), absl::StrCat("gives ", ShapeString(type.shape),
                                                       ", no images [samples, height, width, 1 or 3 channels]"));
    }
    if (NumElements(type.shape) <= kMaxPixels) return absl::OkStatus();
    return InvalidField(kField,
                        absl::StrCat("a picture of ", NumElements(type.shape), " values, at most ", kMaxPixels));
  }

  const v1::JobSpec& spec_;
  const v1::ImageSamples& images_;
  const SampleInfo& sample_;
  ElementBudget* budget_;
  ir::Graph graph_;
};

// A network that continues text gives classes, the `vocabulary`'s among them, at each step.
absl::Status CheckText(const LayerOutput& last, const Shape& shape, int64_t time, int64_t vocabulary) {
  if (last.flattened.empty() && shape.size() == 3 && shape[1] == time && shape[2] >= vocabulary) {
    return absl::OkStatus();
  }
  return InvalidField("report.samples.text",
                      absl::StrCat("the network gives ", ShapeString(shape), ", not [1, ", time, ", ", vocabulary,
                                   "]: what each of a sequence's bytes or tokens is followed by"));
}

absl::StatusOr<ir::Graph> BuildText(const v1::JobSpec& spec, const SampleInfo& sample, ElementBudget* budget) {
  ir::Graph graph;
  const int64_t time = sample.input_shape[0];
  if (sample.input_shape.size() != 1 || sample.lengths) {
    return InvalidField("report.samples.text", "needs sequences of one length");
  }
  const LayerOutput input{graph.AddInput("x", {DType::kF32, {1, time}}), {}};
  LayerBuilder layers(&graph, /*training=*/false);
  AMPD_ASSIGN_OR_RETURN(const LayerOutput last,
                        AddLayers(spec.model().layers(), "model.layers", {{"input", input}}, &layers, budget, &graph));
  AMPD_RETURN_IF_ERROR(CheckText(last, graph.type(last.value).shape, time, sample.classes));
  graph.outputs = {{"logits", last.value}};
  return graph;
}

}  // namespace

absl::StatusOr<ir::Graph> BuildSampleForward(const v1::JobSpec& spec, const SampleInfo& sample, ElementBudget* budget) {
  if (spec.report().samples().has_text()) return BuildText(spec, sample, budget);
  if (!spec.report().samples().has_images()) return ir::Graph();
  return ImageSampleBuilder(spec, sample, budget).Build();
}

int SampledPhase(const v1::JobSpec& spec) {
  for (int i = 0; i < spec.phases_size(); ++i) {
    for (const v1::NetworkCall& call : spec.phases(i).calls()) {
      if (call.network() == spec.report().samples().images().network()) return i;
    }
  }
  return 0;
}

}  // namespace ampd::models
