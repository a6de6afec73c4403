// checkpoint.keep_best: which checkpoint is the best so far.
#include <cmath>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/train/evaluation.h"
#include "engine/train/failure.h"
#include "engine/train/trainer_impl.h"

namespace ampd::train {
namespace {

bool LowerIsBetter(absl::string_view metric) {
  return absl::StrContains(metric, "loss") || absl::StrContains(metric, "error") ||
         absl::StrContains(metric, "perplexity");
}

}  // namespace

absl::Status TrainerImpl::CheckKeepBest() const {
  const std::string& metric = job().checkpoint().keep_best();
  if (metric.empty()) return absl::OkStatus();
  const absl::Status status = CheckMetric(metric, *plan_);
  if (status.ok()) return status;
  return WithFailureClass(absl::InvalidArgumentError(absl::StrCat("checkpoint.keep_best: ", status.message())),
                          v1::Failure::INVALID_SPEC);
}

void TrainerImpl::JudgeEvaluation(const v1::Evaluation& evaluation) {
  const std::string& name = job().checkpoint().keep_best();
  if (name.empty()) return;
  evaluation_due_to_save_ = true;
  const double metric = evaluation.metrics().at(name);
  // One repeated after a restart is no better than itself.
  if (std::isnan(metric) || (state_.best && state_.best->step == evaluation.step())) return;
  const bool better =
      !state_.best || (LowerIsBetter(name) ? metric < state_.best->metric : metric > state_.best->metric);
  if (better) state_.best = BestEvaluation{evaluation.step(), metric};
}

}  // namespace ampd::train
