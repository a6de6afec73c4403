#include <algorithm>
#include <utility>

#include "engine/core/status.h"
#include "engine/data/length_buckets.h"
#include "engine/train/auto_mode.h"
#include "engine/train/bench_cell.h"
#include "engine/train/benchmark.h"
#include "engine/train/continuation.h"
#include "engine/train/data_checks.h"
#include "engine/train/evaluation.h"
#include "engine/train/gradient_diagnostics.h"
#include "engine/train/measured_run.h"
#include "engine/train/onnx_file.h"
#include "engine/train/plan_report.h"
#include "engine/train/planned_model.h"
#include "engine/train/spec_configs.h"
#include "engine/train/start_weights.h"
#include "engine/train/step_flops.h"
#include "engine/train/trainer.h"
#include "engine/train/training_data.h"

namespace ampd::train {
namespace {

// A plan's memory does not depend on the threads; one keeps the planning process small.
constexpr int kThreads = 1;

void AddErrors(const absl::Status& status, absl::string_view field, v1::PlanResponse* response) {
  std::vector<FieldViolation> violations = FieldViolationsOf(status);
  if (violations.empty()) violations = {{std::string(field), std::string(status.message())}};
  for (FieldViolation& violation : violations) {
    v1::FieldError* error = response->add_errors();
    error->set_field(std::move(violation.field));
    error->set_description(std::move(violation.description));
  }
}

// What the spec got wrong about data that can be read, as opposed to data that cannot.
bool IsSpecError(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsUnimplemented(status);
}

// INVALID_ARGUMENT and UNIMPLEMENTED became errors of the response; anything else its data_error. nullopt after either.
absl::optional<data::DatasetInfo> Describe(const v1::DataSpec& spec, const std::vector<std::string>& data_roots,
                                           bool is_eval, v1::PlanResponse* response) {
  const char* field = is_eval ? "data.eval" : "data.train";
  absl::StatusOr<data::DatasetInfo> info = data::DescribeDataset(spec, data_roots, is_eval);
  if (info.ok()) return *std::move(info);
  if (IsSpecError(info.status())) {
    AddErrors(info.status(), field, response);
  } else {
    response->set_data_error(std::string(Annotate(info.status(), field).message()));
  }
  return absl::nullopt;
}

void CheckData(const ResolvedJobSpec& spec, const data::DatasetInfo& train, v1::PlanResponse* response) {
  const absl::Status transform = data::CheckTransform(spec.proto().data().image(), train);
  if (!transform.ok()) AddErrors(transform, "data.image", response);
  // Of planning alone: what is so of a job from before is no reason to end it.
  const absl::Status vocabulary = CheckVocabularies(spec.proto(), train, nullptr);
  if (!vocabulary.ok()) AddErrors(vocabulary, "model", response);
  const absl::Status images = CheckImages(spec.proto(), train);
  if (!images.ok()) AddErrors(images, "data.train", response);
}

// The largest batch of a benchmark that the training set fills; 0: it fills none, and none is loaded.
int64_t LargestMeasured(const v1::BenchSpec& bench, int64_t samples) {
  int64_t largest = 0;
  for (const int64_t batch : bench.batch_sizes()) {
    if (batch <= samples) largest = std::max(largest, batch);
  }
  return largest;
}

void CheckEval(const v1::LossSpec& loss, const data::DatasetInfo& train, const data::DatasetInfo& eval, int64_t outputs,
               v1::PlanResponse* response) {
  const int64_t classes = eval.CountedClasses(IgnoredLabel(loss));
  Shape input_shape = eval.input_shape;
  // Sequences need not be stored with the same padding.
  if (!eval.lengths.empty() && !train.lengths.empty()) input_shape[0] = train.input_shape[0];
  if (input_shape != train.input_shape || eval.target_kind != train.target_kind) {
    AddErrors(absl::InvalidArgumentError(absl::StrCat("samples of ", eval.name, " are ", ShapeString(eval.input_shape),
                                                      ", those of ", train.name, " ", ShapeString(train.input_shape),
                                                      ", or their targets differ in kind")),
              "data.eval", response);
  } else if (classes > outputs) {
    AddErrors(absl::InvalidArgumentError(absl::StrCat(eval.name, " has labels up to ", classes - 1,
                                                      ", but the network has ", outputs, " outputs")),
              "data.eval", response);
  }
}

// Which metrics there are follows from the classes, and from what kind of targets the data has.
void CheckMetrics(const v1::JobSpec& spec, const PlannedModel& planned, v1::PlanResponse* response) {
  if (spec.has_bench()) return;
  const auto check = [&](const std::string& field, const std::string& metric) {
    if (metric.empty()) return;
    const absl::Status status = CheckMetric(metric, planned);
    if (!status.ok()) AddErrors(status, field, response);
  };
  const std::string& best = spec.checkpoint().keep_best();
  check("checkpoint.keep_best", best);
  // One that it names alone has been told of.
  if (spec.train().early_stopping().metric() != best) {
    check("train.early_stopping.metric", spec.train().early_stopping().metric());
  }
}

void FillPlan(const PlannedModel& planned, const models::SampleInfo& sample, v1::ModelPlan* plan) {
  plan->set_parameters(planned.parameters());
  plan->set_parameter_bytes(planned.parameter_bytes());
  plan->set_activation_bytes(planned.activation_bytes());
  plan->mutable_input_shape()->Add(sample.input_shape.begin(), sample.input_shape.end());
  plan->mutable_label_shape()->Add(sample.label_shape.begin(), sample.label_shape.end());
  if (sample.classes == 0) plan->set_target_features(sample.target_features);
  for (const v1::LayerPlan& layer : planned.layers) *plan->add_layers() = layer;
  for (const PlannedPhase& phase : planned.phases) {
    v1::PhasePlan* of = plan->add_phases();
    of->set_name(phase.name);
    of->set_activation_bytes(phase.arena_bytes());
    for (int32_t i : phase.parameters) {
      of->set_parameters(of->parameters() + NumElements(planned.layout.parameters()[i].type.shape));
    }
  }
}

absl::StatusOr<std::unique_ptr<PlannedModel>> PlanDiagnostics(const ResolvedJobSpec& spec,
                                                              const models::SampleInfo& sample) {
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Backend> backend, MakeBackend("cpu-0", kThreads));
  return GradientDiagnostics::Plan(spec, sample, std::move(backend), kThreads);
}

enum class Taken { kLargest, kSmallest };

// Makes `plan` as large, or as small, as what is planned for `spec`, in a benchmark with what it looks at gradients
// with. What cannot be planned is not loaded either.
void CountMode(const absl::StatusOr<ResolvedJobSpec>& spec, const models::SampleInfo& sample, bool diagnosed,
               Taken taken, v1::ModelPlan* plan) {
  auto backend = MakeBackend("cpu-0", kThreads);
  if (!spec.ok() || !backend.ok()) return;
  const auto planned =
      PlanModel(*spec, sample, *std::move(backend), kThreads, Fusion::kAll, {}, spec->proto().resources().gpus());
  if (!planned.ok()) return;
  int64_t parameters = (*planned)->parameter_bytes(), activations = (*planned)->activation_bytes();
  if (diagnosed) {
    const auto beside = PlanDiagnostics(*spec, sample);
    parameters += beside.ok() ? (*beside)->parameter_bytes() : 0;
    activations += beside.ok() ? (*beside)->activation_bytes() : 0;
  }
  const int64_t bytes = parameters + activations, so_far = plan->parameter_bytes() + plan->activation_bytes();
  if (taken == Taken::kLargest ? bytes <= so_far : bytes >= so_far) return;
  plan->set_parameter_bytes(parameters);
  plan->set_activation_bytes(activations);
}

// Whoever shares a device keeps to what was planned: the largest of what AUTO and `bench` load one after the other. Who
// has one alone is given none with less memory than planned: AUTO takes what fits, so that the smallest counts.
void CountOtherModes(const ResolvedJobSpec& spec, const models::SampleInfo& sample, int64_t samples,
                     v1::ModelPlan* plan) {
  const bool share = spec.proto().resources().share();
  const v1::BenchSpec& bench = spec.proto().bench();
  if (spec.proto().has_bench()) {
    const int64_t batch = LargestMeasured(bench, samples);
    if (!share || batch == 0) return;
    for (const v1::PrecisionSpec::Mode mode : ModesToMeasure(bench.modes(), absl::nullopt, kBenchModes)) {
      CountMode(InMode(spec, mode, batch), sample, mode == v1::PrecisionSpec::FP16, Taken::kLargest, plan);
    }
  } else if (spec.proto().precision().mode() == v1::PrecisionSpec::AUTO) {
    const auto& asked = spec.proto().precision().auto_().modes();
    for (const v1::PrecisionSpec::Mode mode : ModesToMeasure(asked, absl::nullopt, kAutoModes)) {
      CountMode(InChosenMode(spec, mode), sample, false, share ? Taken::kLargest : Taken::kSmallest, plan);
    }
  }
}

// The memory of the second model that looks at gradients.
void AddDiagnostics(const ResolvedJobSpec& spec, const models::SampleInfo& sample, v1::PlanResponse* response) {
  const auto planned = PlanDiagnostics(spec, sample);
  if (!planned.ok()) return AddErrors(planned.status(), "report.diagnostics_every_steps", response);
  v1::ModelPlan* plan = response->mutable_plan();
  plan->set_parameter_bytes(plan->parameter_bytes() + (*planned)->parameter_bytes());
  plan->set_activation_bytes(plan->activation_bytes() + (*planned)->activation_bytes());
}

void AddReport(const ResolvedJobSpec& spec, const models::SampleInfo& sample, const data::DatasetInfo& train,
               int64_t data_bytes, const v1::DeviceModel& device, const std::vector<v1::PrecisionSpec::Mode>& modes,
               v1::PlanResponse* response) {
  absl::StatusOr<v1::PlanReport> report = MakePlanReport(spec, sample, device, modes, train.size, train.lengths);
  if (!report.ok()) return AddErrors(report.status(), "model", response);
  report->set_data_bytes(data_bytes);
  *response->mutable_report() = *std::move(report);
}

absl::Status FitsStart(const ResolvedJobSpec& spec, const StartSources& sources, const PlannedModel& planned,
                       const TrainingLength& length) {
  const v1::WeightSource& source = spec.proto().start_from();
  AMPD_ASSIGN_OR_RETURN(const StartWeights weights, StartWeights::Open(source, sources));
  // That it is another training says more than names that do not fit.
  if (source.continue_training()) {
    AMPD_RETURN_IF_ERROR(CheckContinues(sources.start_checkpoint_dir, spec, length));
  }
  return weights.Check(planned.layout).status();
}

// A file beneath a data root may be put in place after the submit, as data may.
void CheckStart(const ResolvedJobSpec& spec, const StartSources& sources, const PlannedModel& planned,
                const TrainingLength& length, v1::PlanResponse* response) {
  const absl::Status status = FitsStart(spec, sources, planned, length);
  if (status.ok()) return;
  if (IsSpecError(status)) return AddErrors(status, "start_from", response);
  response->set_data_error(std::string(Annotate(status, "start_from").message()));
}

}  // namespace

v1::PlanResponse PlanJob(const ResolvedJobSpec& spec, const std::vector<std::string>& data_roots,
                         const std::string& upload_dir, const v1::DeviceModel* device,
                         const std::vector<v1::PrecisionSpec::Mode>& modes, const std::string& start_checkpoint_dir) {
  v1::PlanResponse response;
  // Single operations have no layers.
  if (spec.proto().bench().has_sweep()) return response;
  const v1::DataSpec& data = spec.proto().data();
  const absl::optional<data::DatasetInfo> train = Describe(data, data_roots, false, &response);
  absl::optional<data::DatasetInfo> eval;
  if (data.has_eval()) eval = Describe(data, data_roots, true, &response);
  if (!train.has_value()) return response;
  CheckData(spec, *train, &response);
  // A plan says less of these, and of a batch that is far too large it takes long.
  const absl::Status fills = data::CheckFills(*train, spec.proto().train().batch_size());
  if (!fills.ok()) AddErrors(fills, "train.batch_size", &response);
  if (!fills.ok()) return response;
  absl::StatusOr<std::unique_ptr<runtime::Backend>> backend = MakeBackend("cpu-0", kThreads);
  if (!backend.ok()) {
    AddErrors(backend.status(), "resources", &response);
    return response;
  }
  const absl::StatusOr<models::SampleInfo> sample =
      SampleInfoOf(spec.proto(), *train, eval.has_value() ? &*eval : nullptr);
  if (!sample.ok()) {
    AddErrors(sample.status(), "data", &response);
    return response;
  }
  const absl::Status read = ReadOnnxFile(spec, data_roots, upload_dir);
  if (!read.ok()) {
    AddErrors(read, "model.onnx.path", &response);
    return response;
  }
  const auto planned =
      PlanModel(spec, *sample, *std::move(backend), kThreads, Fusion::kAll, {}, spec.proto().resources().gpus());
  if (!planned.ok()) {
    // Who submits a resolved spec may have changed the preset's layers: only of what cannot be planned it is the
    // reason.
    const absl::Status drawn = CheckDrawnImages(spec.proto(), *train);
    AddErrors(drawn.ok() ? planned.status() : drawn, "model", &response);
    return response;
  }
  if (eval.has_value()) CheckEval(spec.proto().model().loss(), *train, *eval, (*planned)->outputs, &response);
  if (eval.has_value()) CheckMetrics(spec.proto(), **planned, &response);
  if (spec.proto().has_start_from()) {
    TrainingLength length{.steps = TotalSteps(spec.proto().train(), train->size),
                          .samples = train->size,
                          .length_buckets = data::UsedBuckets(train->lengths, sample->buckets)};
    if (data.has_eval() && !eval.has_value() && data.length_buckets().empty()) length.length_buckets.reset();
    CheckStart(spec, {data_roots, upload_dir, start_checkpoint_dir}, **planned, length, &response);
  }
  FillPlan(**planned, SampleInfoOf(*train), response.mutable_plan());
  CountOtherModes(spec, *sample, train->size, response.mutable_plan());
  const absl::optional<double> flops = StepFlops(**planned, spec.proto().train());
  if (flops.has_value()) response.mutable_plan()->set_step_flops(*flops);
  if (spec.proto().report().diagnostics_every_steps() > 0) AddDiagnostics(spec, *sample, &response);
  if (device != nullptr && response.errors().empty()) {
    const int64_t data_bytes = data::HostBytes(data, *train, eval.has_value() ? &*eval : nullptr);
    AddReport(spec, *sample, *train, data_bytes, *device, modes, &response);
  }
  return response;
}

}  // namespace ampd::train
