#include "client/output/event_line.h"

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/output/environment_text.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

// " gan" for a job of several phases; nothing for "main".
std::string PhaseName(const std::string& name) {
  return name.empty() || name == "main" ? "" : absl::StrCat(" ", Clean(name));
}

std::string Line(const v1::StateChange& change) {
  std::string line = v1::Job::State_Name(change.to());
  if (change.has_failure()) {
    absl::StrAppend(&line, " ", FailureText(change.failure()));
  } else if (!change.reason().empty()) {
    absl::StrAppend(&line, ": ", Clean(change.reason()));
  }
  return line;
}

std::string Line(const v1::StepReport& step, const IdlePhases& idle) {
  std::string line = absl::StrCat("step ", step.last_step());
  if (step.total_steps() > 0) absl::StrAppend(&line, "/", step.total_steps());
  absl::StrAppend(&line, "  epoch ", step.epoch());
  for (const v1::PhaseReport& phase : step.phases()) {
    absl::StrAppend(&line, " ", PhaseName(phase.name()), " loss ", idle.Has(phase.name()) ? "-" : Figure(phase.loss()),
                    "  lr ", Figure(phase.learning_rate()), "  scale ", Figure(phase.loss_scale()), "  skips ",
                    phase.steps_skipped());
  }
  absl::StrAppend(&line, "  ", Count(step.samples_per_second()), " samples/s");
  if (step.has_step_seconds()) absl::StrAppend(&line, "  ", StepTime(step.step_seconds()), " a step");
  if (step.has_model_flops_utilization()) absl::StrAppend(&line, "  MFU ", Percent(step.model_flops_utilization()));
  return line;
}

std::string Line(const v1::OverflowSkip& skip) {
  std::string line = absl::StrCat("overflow", PhaseName(skip.phase()), "  step ", skip.step(), " skipped, ");
  if (skip.scale_before() == skip.scale_after()) {
    absl::StrAppend(&line, "scale stays ", Figure(skip.scale_after()));
  } else {
    absl::StrAppend(&line, "scale ", Figure(skip.scale_before()), " -> ", Figure(skip.scale_after()));
  }
  if (skip.kind() != v1::OverflowSkip::KIND_UNSPECIFIED) {
    absl::StrAppend(&line, ", ", skip.kind() == v1::OverflowSkip::KIND_NAN ? "NaN" : "Inf", " in ",
                    v1::OverflowSkip::Stage_Name(skip.stage()));
    if (!skip.first_tensor().empty()) absl::StrAppend(&line, " ", Clean(skip.first_tensor()));
  }
  absl::StrAppend(&line, ", epoch ", skip.epoch(), " batch ", skip.batch());
  return skip.calibration() ? line + " (calibration)" : line;
}

std::string Line(const v1::LossScaleChange& change) {
  return absl::StrCat("scale", PhaseName(change.phase()), " ", Figure(change.scale_before()), " -> ",
                      Figure(change.scale_after()), " at step ", change.step());
}

std::string Line(const v1::PrecisionChange& change) {
  return absl::StrCat("precision", PhaseName(change.phase()), " ", v1::PrecisionSpec::Mode_Name(change.mode_before()),
                      " -> ", v1::PrecisionSpec::Mode_Name(change.mode_after()), " after step ", change.step(), ": ",
                      Clean(change.reason()));
}

std::string Percent(double share) { return absl::StrCat(Figure(100 * share), "%"); }

// "2^20" where that is what it is.
std::string Power(double value) {
  int exponent;
  return std::frexp(value, &exponent) == 0.5 ? absl::StrCat("2^", exponent - 1) : Figure(value);
}

std::string Line(const v1::GradientDiagnostics& diagnostics) {
  double nonzero = 0, unscaled = 0, scaled = 0;
  const v1::TensorDiagnostics* worst = nullptr;
  const v1::TensorDiagnostics* largest = nullptr;
  for (const v1::TensorDiagnostics& tensor : diagnostics.tensors()) {
    const double count = static_cast<double>(tensor.nonzero());
    nonzero += count;
    unscaled += tensor.flushed_unscaled() * count;
    scaled += tensor.flushed_scaled() * count;
    if (worst == nullptr || tensor.flushed_unscaled() > worst->flushed_unscaled()) worst = &tensor;
    if (largest == nullptr || tensor.largest_safe_scale() < largest->largest_safe_scale()) largest = &tensor;
  }
  const std::string head = absl::StrCat("gradients", PhaseName(diagnostics.phase()), "  step ", diagnostics.step());
  if (worst == nullptr || nonzero == 0) return absl::StrCat(head, ": all zero");
  return absl::StrCat(head, ": fp16 flushes ", Percent(unscaled / nonzero), " to zero without a scale, ",
                      Percent(scaled / nonzero), " with ", Power(diagnostics.scale()), "; most in ",
                      Clean(worst->tensor()), ", ", Percent(worst->flushed_unscaled()), " and ",
                      Percent(worst->flushed_scaled()), "; largest safe scale ",
                      Power(diagnostics.largest_safe_scale()), " for ", Clean(largest->tensor()));
}

std::string Line(const v1::Evaluation& evaluation) {
  std::string line = "evaluation";
  // Epochs that are complete; a step's is the one that was begun.
  if (evaluation.epoch() > 0) absl::StrAppend(&line, "  after epoch ", evaluation.epoch());
  absl::StrAppend(&line, "  step ", evaluation.step());
  if (evaluation.has_accuracy()) absl::StrAppend(&line, "  accuracy ", Figure(evaluation.accuracy()));
  absl::StrAppend(&line, "  loss ", Figure(evaluation.loss()));
  const std::map<std::string, double> by_name(evaluation.metrics().begin(), evaluation.metrics().end());
  for (const auto& [name, value] : by_name) {
    if (name != "accuracy" && name != "loss") absl::StrAppend(&line, "  ", Clean(name), " ", Figure(value));
  }
  return line;
}

std::string Line(const v1::CheckpointSaved& checkpoint) {
  return absl::StrCat("checkpoint ", Clean(checkpoint.checkpoint()), "  ", Bytes(checkpoint.size_bytes()),
                      checkpoint.already_written() ? "  written before" : "");
}

std::string Line(const v1::Rewound& rewound) {
  const std::string reason = rewound.reason().empty() ? "" : absl::StrCat(": ", Clean(rewound.reason()));
  return absl::StrCat("rewound to step ", rewound.to_step(), reason);
}

std::string Line(const v1::LogLine& log) {
  const bool plain = log.severity() <= v1::LogLine::INFO;
  return absl::StrCat(plain ? "" : v1::LogLine::Severity_Name(log.severity()), plain ? "" : " ", Clean(log.text()));
}

std::string Line(const v1::StepProfile& profile) {
  const int64_t steps = profile.last_step() - profile.first_step() + 1;
  std::string line = absl::StrCat("profile  steps ", profile.first_step(), " to ", profile.last_step(), ": ",
                                  StepTime(profile.step_seconds()), " each");
  const double all = profile.step_seconds() * static_cast<double>(steps);
  // Longest first.
  if (profile.parts().empty() || !(all > 0)) return line;
  const v1::ProfilePart& longest = profile.parts(0);
  return absl::StrCat(line, "; most in ", Clean(longest.name()), ", ", Percent(longest.seconds() / all));
}

std::string Line(const v1::ArtifactSaved& artifact) {
  return absl::StrCat("artifact ", Clean(artifact.name()), "  ", Bytes(artifact.size_bytes()), "  after step ",
                      artifact.step());
}

std::string Line(const v1::TextSample& sample) {
  return absl::StrCat("sample after step ", sample.step(), ": ", Clean(sample.prompt()), Clean(sample.text()));
}

std::string Line(const v1::BenchCell& cell) {
  std::string line = absl::StrCat("measured ", v1::PrecisionSpec::Mode_Name(cell.mode()));
  if (!cell.size().empty()) absl::StrAppend(&line, "  ", Clean(cell.size()));
  if (cell.batch_size() > 0) absl::StrAppend(&line, "  batch ", cell.batch_size());
  if (cell.has_failure()) return absl::StrCat(line, "  ", FailureText(cell.failure()));
  absl::StrAppend(&line, "  ", StepTime(cell.step_seconds()), " a step");
  if (cell.has_speed_up()) absl::StrAppend(&line, "  ", Figure(cell.speed_up()), "x of FP32's speed");
  return line;
}

std::string Line(const v1::ModeChosen& chosen) {
  return absl::StrCat("AUTO takes ", v1::PrecisionSpec::Mode_Name(chosen.mode()), ": ", Clean(chosen.reason()));
}

std::string Line(const v1::CorruptSample& sample) {
  return absl::StrCat("corrupt sample ", Clean(sample.file()), ": ", Clean(sample.reason()), "; ", sample.corrupt(),
                      " of ", sample.samples(), " so far");
}

std::string Line(const v1::AttemptEnvironment& environment) {
  std::vector<std::string> parts;
  for (const EnvironmentPart& part : EnvironmentParts(environment)) {
    parts.push_back(absl::StrCat(Clean(part.name), " ", Clean(part.value)));
  }
  return absl::StrCat("computes with  ", absl::StrJoin(parts, ", "));
}

std::string Payload(const v1::JobEvent& event, const IdlePhases& idle) {
  switch (event.payload_case()) {
    case v1::JobEvent::kStateChange:
      return Line(event.state_change());
    case v1::JobEvent::kStep:
      return Line(event.step(), idle);
    case v1::JobEvent::kOverflowSkip:
      return Line(event.overflow_skip());
    case v1::JobEvent::kLossScaleChange:
      return Line(event.loss_scale_change());
    case v1::JobEvent::kEvaluation:
      return Line(event.evaluation());
    case v1::JobEvent::kCheckpoint:
      return Line(event.checkpoint());
    case v1::JobEvent::kRewound:
      return Line(event.rewound());
    case v1::JobEvent::kLog:
      return Line(event.log());
    case v1::JobEvent::kPrecisionChange:
      return Line(event.precision_change());
    case v1::JobEvent::kGradientDiagnostics:
      return Line(event.gradient_diagnostics());
    case v1::JobEvent::kArtifact:
      return Line(event.artifact());
    case v1::JobEvent::kTextSample:
      return Line(event.text_sample());
    case v1::JobEvent::kBenchCell:
      return Line(event.bench_cell());
    case v1::JobEvent::kModeChosen:
      return Line(event.mode_chosen());
    case v1::JobEvent::kCorruptSample:
      return Line(event.corrupt_sample());
    case v1::JobEvent::kStepProfile:
      return Line(event.step_profile());
    case v1::JobEvent::kEnvironment:
      return Line(event.environment());
    case v1::JobEvent::PAYLOAD_NOT_SET:
      break;
  }
  return "an event of a newer version";
}

}  // namespace

std::string FailureText(const v1::Failure& failure) {
  return absl::StrCat(v1::Failure::Class_Name(failure.class_()), ": ", Clean(failure.message()));
}

void IdlePhases::Observe(const v1::JobEvent& event) {
  if (event.has_rewound()) {
    idle_.clear();
    known_ = false;
  }
  if (!event.has_step()) return;
  if (event.step().first_step() == 1) {
    attempted_.clear();
    known_ = true;
  }
  idle_.clear();
  std::map<std::string, int64_t> attempted;
  for (const v1::PhaseReport& phase : event.step().phases()) {
    attempted[phase.name()] = phase.steps_applied() + phase.steps_skipped();
    const auto before = attempted_.find(phase.name());
    const int64_t steps = before == attempted_.end() ? 0 : before->second;
    if (known_ && std::isnan(phase.loss()) && attempted[phase.name()] == steps) idle_.insert(phase.name());
  }
  attempted_ = std::move(attempted);
  known_ = true;
}

std::string EventLine(const v1::JobEvent& event, const IdlePhases& idle) {
  return absl::StrCat(TimeOfDay(event.time()), "  ", Payload(event, idle));
}

}  // namespace ampd::client
