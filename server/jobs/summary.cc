#include "server/jobs/summary.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "proto/spec/start_step.h"
#include "server/metrics/metrics.h"

namespace ampd {
namespace {

using Deltas = std::map<std::string, double>;

void AddDelta(Deltas* deltas, const char* name, double delta) {
  if (delta > 0) (*deltas)[name] += delta;
}

// Attempted steps after which a step weighs 1/e of a new one in the loss.
constexpr double kLossSteps = 100;

// What the newest `steps` steps weigh in the mean, of all steps that there could be. Steps are a worker's word, whose
// sums and differences integers might not hold.
double LossWeight(double steps) { return -std::expm1(-std::max(steps, 0.0) / kLossSteps); }

// Takes into the mean the loss of the last `steps` attempted steps. How many there were before them, `others`' among
// them, is still in `summary`.
void FoldLoss(double loss, double steps, int64_t others, v1::JobSummary* summary) {
  if (!std::isfinite(loss)) return summary->set_loss(std::numeric_limits<double>::quiet_NaN());
  if (!summary->has_loss() || !std::isfinite(summary->loss())) return summary->set_loss(loss);
  const double own = static_cast<double>(summary->step()) - static_cast<double>(others);
  const double before = LossWeight(own) * std::exp(-std::max(steps, 0.0) / kLossSteps);
  const double now = LossWeight(steps);
  if (now > 0) summary->set_loss((before * summary->loss() + now * loss) / (before + now));
}

// Whether the first phase, which runs in every N-th step, ran in these. Where it did not, its loss is NaN as well.
bool FirstPhaseRan(double first_step, double last_step, const v1::JobSpec& spec) {
  const double every = spec.phases().empty() ? 1 : static_cast<double>(std::max<int64_t>(1, spec.phases(0).every()));
  return std::floor(last_step / every) > std::floor((first_step - 1) / every);
}

template <typename Phases>
void FoldCounts(const Phases& phases, v1::JobSummary* summary, Deltas* deltas) {
  int64_t applied = 0;
  int64_t skipped = 0;
  for (const auto& phase : phases) {
    applied += phase.steps_applied();
    skipped += phase.steps_skipped();
  }
  AddDelta(deltas, kStepsAppliedCounter, static_cast<double>(applied - summary->steps_applied()));
  AddDelta(deltas, kStepsSkippedCounter, static_cast<double>(skipped - summary->steps_skipped()));
  summary->set_steps_applied(applied);
  summary->set_steps_skipped(skipped);
}

void FoldStep(const v1::StepReport& step, JobRecord* record, Deltas* deltas) {
  v1::JobSummary& summary = *record->job.mutable_summary();
  if (!step.phases().empty()) {
    const v1::PhaseReport& main = step.phases(0);
    const auto first = static_cast<double>(step.first_step()), last = static_cast<double>(step.last_step());
    if (FirstPhaseRan(first, last, record->job.spec())) {
      FoldLoss(main.loss(), last - first + 1, StepsBefore(record->job.spec()), &summary);
    }
    summary.set_loss_scale(main.loss_scale());
  }
  FoldCounts(step.phases(), &summary, deltas);
  const double steps = static_cast<double>(step.last_step()) - static_cast<double>(step.first_step()) + 1;
  AddDelta(deltas, kSamplesCounter, steps * static_cast<double>(record->job.spec().train().batch_size()));
  AddDelta(deltas, kInputWaitCounter, step.input_wait_seconds());
  summary.set_step(step.last_step());
  summary.set_total_steps(step.total_steps());
  summary.set_epoch(step.epoch());
  summary.set_samples_per_second(step.samples_per_second());
  summary.clear_step_seconds();
  summary.clear_model_flops_utilization();
  if (step.has_step_seconds()) summary.set_step_seconds(step.step_seconds());
  if (step.has_model_flops_utilization()) summary.set_model_flops_utilization(step.model_flops_utilization());
}

// Steps that have no reports: their attempt had lost the daemon.
void FoldUnreported(const v1::CheckpointSaved& checkpoint, JobRecord* record, Deltas* deltas) {
  v1::JobSummary& summary = *record->job.mutable_summary();
  if (checkpoint.phases().empty() || checkpoint.step() < summary.step()) return;
  const int64_t others = StepsBefore(record->job.spec());
  const double steps = static_cast<double>(checkpoint.step()) - static_cast<double>(std::max(summary.step(), others));
  AddDelta(deltas, kSamplesCounter, steps * static_cast<double>(record->job.spec().train().batch_size()));
  const v1::CheckpointSaved::Phase& main = checkpoint.phases(0);
  // The last of the steps that have no reports speaks for all: one batch's loss is nearer to the newest than what they
  // have left behind. A report's mean says more than that of its last step.
  if (main.has_loss() && (steps > 0 || !summary.has_loss())) FoldLoss(main.loss(), steps, others, &summary);
  summary.set_loss_scale(main.loss_scale());
  FoldCounts(checkpoint.phases(), &summary, deltas);
  summary.set_step(checkpoint.step());
  summary.set_epoch(checkpoint.epoch());
  if (checkpoint.total_steps() > 0) summary.set_total_steps(checkpoint.total_steps());
}

void FoldCheckpoint(const v1::CheckpointSaved& checkpoint, JobRecord* record, Deltas* deltas) {
  v1::JobSummary& summary = *record->job.mutable_summary();
  // What an attempt after it need not do again.
  const bool is_progress = !checkpoint.already_written() || checkpoint.step() > summary.step();
  if (is_progress) record->lost_attempts = 0;
  if (!checkpoint.already_written()) {
    AddDelta(deltas, kCheckpointBytesCounter, static_cast<double>(checkpoint.size_bytes()));
  }
  FoldUnreported(checkpoint, record, deltas);
  summary.set_checkpoint(checkpoint.checkpoint());
  std::map<int64_t, v1::JobSummary>& known = record->at_checkpoints;
  // A worker of an earlier build that had lost the daemon does not tell where it stands.
  if (checkpoint.step() == summary.step()) known[checkpoint.step()] = summary;
  if (known.size() > kCheckpointsKnown) known.erase(known.begin());
  summary.set_step(std::max(summary.step(), checkpoint.step()));
}

void FoldRewound(int64_t step, JobRecord* record) {
  v1::JobSummary& summary = *record->job.mutable_summary();
  std::map<int64_t, v1::JobSummary>& known = record->at_checkpoints;
  known.erase(known.upper_bound(step), known.end());
  summary.set_step(step);
  summary.clear_epoch();
  summary.clear_loss();
  summary.clear_eval_loss();
  summary.clear_accuracy();
  const auto then = known.find(step);
  // Neither: the totals are told anew with the next report.
  if (then == known.end() && step > StepsBefore(record->job.spec())) return;
  const v1::JobSummary before = then == known.end() ? v1::JobSummary() : then->second;
  summary.set_epoch(before.epoch());
  if (before.has_loss()) summary.set_loss(before.loss());
  if (before.has_eval_loss()) summary.set_eval_loss(before.eval_loss());
  if (before.has_accuracy()) summary.set_accuracy(before.accuracy());
  summary.set_steps_applied(before.steps_applied());
  summary.set_steps_skipped(before.steps_skipped());
}

void Reported(int64_t step, JobRecord* record) {
  record->last_reported_step = std::max(record->last_reported_step, step);
}

}  // namespace

void FoldEvent(const v1::JobEvent& event, JobRecord* record, Deltas* deltas) {
  v1::JobSummary& summary = *record->job.mutable_summary();
  AddDelta(deltas, kEventsCounter, 1);
  switch (event.payload_case()) {
    case v1::JobEvent::kStep:
      FoldStep(event.step(), record, deltas);
      Reported(event.step().last_step(), record);
      break;
    case v1::JobEvent::kOverflowSkip:
      Reported(event.overflow_skip().step(), record);
      break;
    case v1::JobEvent::kLossScaleChange:
      summary.set_loss_scale(event.loss_scale_change().scale_after());
      Reported(event.loss_scale_change().step(), record);
      break;
    case v1::JobEvent::kPrecisionChange:
      Reported(event.precision_change().step(), record);
      break;
    case v1::JobEvent::kGradientDiagnostics:
      Reported(event.gradient_diagnostics().step(), record);
      break;
    case v1::JobEvent::kStepProfile:
      Reported(event.step_profile().last_step(), record);
      break;
    case v1::JobEvent::kArtifact:
      Reported(event.artifact().step(), record);
      break;
    case v1::JobEvent::kTextSample:
      Reported(event.text_sample().step(), record);
      break;
    case v1::JobEvent::kEvaluation:
      summary.set_eval_loss(event.evaluation().loss());
      if (event.evaluation().has_accuracy()) summary.set_accuracy(event.evaluation().accuracy());
      Reported(event.evaluation().step(), record);
      break;
    case v1::JobEvent::kBenchCell:
      summary.set_step(event.bench_cell().index());
      summary.set_total_steps(event.bench_cell().total());
      Reported(event.bench_cell().index(), record);
      // What an attempt after it need not do again, as with a checkpoint.
      record->lost_attempts = 0;
      break;
    case v1::JobEvent::kModeChosen:
      summary.set_mode(event.mode_chosen().mode());
      break;
    case v1::JobEvent::kCheckpoint:
      FoldCheckpoint(event.checkpoint(), record, deltas);
      Reported(event.checkpoint().step(), record);
      break;
    case v1::JobEvent::kRewound:
      record->last_reported_step = event.rewound().to_step();
      FoldRewound(event.rewound().to_step(), record);
      break;
    default:
      break;
  }
}

}  // namespace ampd
