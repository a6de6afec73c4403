// Evaluations, and what is judged by them: which checkpoint is the best, and whether the training ends early.
#include <cmath>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/evaluation.h"
#include "engine/train/failure.h"
#include "engine/train/trainer_impl.h"

namespace ampd::train {
namespace {

bool LowerIsBetter(absl::string_view metric) {
  return absl::StrContains(metric, "loss") || absl::StrContains(metric, "error") ||
         absl::StrContains(metric, "perplexity");
}

// By more than `least`. Nothing is better by being no number, and any number is better than none.
bool IsBetter(absl::string_view metric, double value, double best, double least) {
  if (std::isnan(value) || std::isnan(best)) return !std::isnan(value);
  return LowerIsBetter(metric) ? value < best - least : value > best + least;
}

}  // namespace

absl::Status TrainerImpl::CheckMetrics() const {
  const auto check = [&](absl::string_view field, const std::string& metric) {
    if (metric.empty()) return absl::OkStatus();
    const absl::Status status = CheckMetric(metric, *plan_);
    if (status.ok()) return status;
    return WithFailureClass(absl::InvalidArgumentError(absl::StrCat(field, ": ", status.message())),
                            v1::Failure::INVALID_SPEC);
  };
  AMPD_RETURN_IF_ERROR(check("checkpoint.keep_best", job().checkpoint().keep_best()));
  return check("train.early_stopping.metric", job().train().early_stopping().metric());
}

absl::Status TrainerImpl::EvaluateIfDue() {
  if (data_->eval() == nullptr) return absl::OkStatus();
  const v1::TrainSpec& train = job().train();
  const int64_t every =
      train.has_eval_every_steps() ? train.eval_every_steps() : train.eval_every_epochs() * batches_per_epoch_;
  if (state_.step % every != 0 && !AtEnd()) return absl::OkStatus();
  v1::JobEvent event;
  const bool of_average = job().optimizer().ema().evaluate();
  if (of_average) AMPD_RETURN_IF_ERROR(model_->SwapAverage());
  const auto count = [this](int64_t samples) { evaluated_samples_.fetch_add(samples, std::memory_order_relaxed); };
  AMPD_ASSIGN_OR_RETURN(*event.mutable_evaluation(), Evaluate(*data_, *plan_, model_.get(), count));
  if (of_average) AMPD_RETURN_IF_ERROR(model_->SwapAverage());
  AMPD_RETURN_IF_ERROR(ReportCorrupt());
  event.mutable_evaluation()->set_step(state_.step);
  event.mutable_evaluation()->set_epoch(EpochsCompleted());
  JudgeForKeepBest(event.evaluation());
  JudgeForEarlyStopping(event.evaluation());
  const auto loss = event.evaluation().metrics().find("loss");
  const bool no_number = loss != event.evaluation().metrics().end() && std::isnan(loss->second);
  AMPD_RETURN_IF_ERROR(reporter_->Emit(std::move(event)));
  if (!no_number) return absl::OkStatus();
  return reporter_->Log(v1::LogLine::WARNING,
                        absl::StrCat("the loss of the evaluation after step ", state_.step,
                                     " is no number: the weights are not what trains well, or a sample has what ",
                                     v1::PrecisionSpec::Mode_Name(job().precision().mode()), " does not hold"));
}

void TrainerImpl::JudgeForKeepBest(const v1::Evaluation& evaluation) {
  const std::string& name = job().checkpoint().keep_best();
  if (name.empty()) return;
  evaluation_due_to_save_ = true;
  const double metric = evaluation.metrics().at(name);
  // One repeated after a restart is no better than itself.
  if (std::isnan(metric) || (state_.best && state_.best->step == evaluation.step())) return;
  if (!state_.best || IsBetter(name, metric, state_.best->metric, 0)) {
    state_.best = BestEvaluation{evaluation.step(), metric};
  }
}

void TrainerImpl::JudgeForEarlyStopping(const v1::Evaluation& evaluation) {
  if (!job().train().has_early_stopping()) return;
  const v1::EarlyStoppingSpec& spec = job().train().early_stopping();
  if (!state_.stopping) state_.stopping = StoppingState{.best_metric = std::nan("")};
  StoppingState& stopping = *state_.stopping;
  int64_t applied = 0;
  for (const PhaseState& phase : state_.phases) applied += phase.scaler.steps_applied;
  // One repeated after a restart has been counted; of weights that have not changed nothing new can be told, and skips
  // have their own end.
  if (evaluation.step() <= stopping.step || applied <= stopping.applied) return;
  stopping.step = evaluation.step();
  stopping.applied = applied;
  const double metric = evaluation.metrics().at(spec.metric());
  if (IsBetter(spec.metric(), metric, stopping.best_metric, spec.min_delta())) {
    stopping.best_step = evaluation.step();
    stopping.best_metric = metric;
    stopping.waited = 0;
  } else {
    ++stopping.waited;
  }
}

bool TrainerImpl::StopsEarly() const {
  return state_.stopping && state_.stopping->waited >= job().train().early_stopping().patience();
}

std::string TrainerImpl::end_reason() const {
  if (!StopsEarly() || state_.step >= total_steps_) return "";
  const v1::EarlyStoppingSpec& spec = job().train().early_stopping();
  const StoppingState& stopping = *state_.stopping;
  const std::string where = absl::StrCat("stopped early, after step ", state_.step, " of ", total_steps_, ": in ",
                                         stopping.waited, stopping.waited == 1 ? " evaluation " : " evaluations ");
  if (std::isnan(stopping.best_metric)) return absl::StrCat(where, spec.metric(), " was no number");
  return absl::StrCat(where, spec.metric(), " got no better than ", stopping.best_metric, ", its value after step ",
                      stopping.best_step,
                      spec.min_delta() > 0 ? absl::StrCat(" (min_delta ", spec.min_delta(), ")") : "");
}

}  // namespace ampd::train
