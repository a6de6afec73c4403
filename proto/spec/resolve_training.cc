#include <cfloat>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/spec/resolve_internal.h"

namespace ampd {
namespace {

constexpr int64_t kMaxEpochs = 1 << 20;
constexpr int64_t kMaxSteps = int64_t{1} << 40;
constexpr int64_t kMaxBatch = 1 << 20;
// Hyperparameters are applied in fp32.
const Interval kNotNegative = {.low = 0, .high = FLT_MAX};
const Interval kBeta = {.low = 0, .high = 1, .high_open = true};
const Interval kEpsilon = {.low = 1e-30, .high = 1};
const Interval kRatio = {.low = 0, .high = 1};

void ResolveSgd(v1::SgdOptimizer* sgd, Violations* violations) {
  const std::string path = "optimizer.sgd.";
  if (!sgd->has_learning_rate()) sgd->set_learning_rate(0.01);
  if (!sgd->has_momentum()) sgd->set_momentum(0);
  if (!sgd->has_nesterov()) sgd->set_nesterov(false);
  if (!sgd->has_weight_decay()) sgd->set_weight_decay(0);
  violations->CheckReal(path + "learning_rate", sgd->learning_rate(), kNotNegative);
  violations->CheckReal(path + "momentum", sgd->momentum(), kBeta);
  violations->CheckReal(path + "weight_decay", sgd->weight_decay(), kNotNegative);
  if (sgd->nesterov() && sgd->momentum() == 0) violations->Add(path + "nesterov", "needs momentum > 0");
}

// Adam and AdamW have the same fields and differ in one default.
template <typename Adam>
void ResolveAdam(const std::string& path, double weight_decay, Adam* adam, Violations* violations) {
  if (!adam->has_learning_rate()) adam->set_learning_rate(0.001);
  if (!adam->has_beta1()) adam->set_beta1(0.9);
  if (!adam->has_beta2()) adam->set_beta2(0.999);
  if (!adam->has_epsilon()) adam->set_epsilon(1e-8);
  if (!adam->has_weight_decay()) adam->set_weight_decay(weight_decay);
  violations->CheckReal(path + "learning_rate", adam->learning_rate(), kNotNegative);
  violations->CheckReal(path + "beta1", adam->beta1(), kBeta);
  violations->CheckReal(path + "beta2", adam->beta2(), kBeta);
  violations->CheckReal(path + "epsilon", adam->epsilon(), kEpsilon);
  violations->CheckReal(path + "weight_decay", adam->weight_decay(), kNotNegative);
}

void ResolveStepSchedule(v1::StepSchedule* step, Violations* violations) {
  const std::string path = "optimizer.schedule.step.";
  if (!step->has_gamma()) step->set_gamma(0.1);
  violations->CheckReal(path + "gamma", step->gamma(), {.low = 0, .high = 1, .low_open = true});
  violations->CheckInteger(path + "warmup_steps", step->warmup_steps(), 0, kMaxSteps);
  if (step->every_steps() == 0) return violations->Add(path + "every_steps", "required, at least 1");
  violations->CheckInteger(path + "every_steps", step->every_steps(), 1, kMaxSteps);
}

void ResolveSchedule(v1::ScheduleSpec* schedule, Violations* violations) {
  const std::string path = "optimizer.schedule.";
  switch (schedule->kind_case()) {
    case v1::ScheduleSpec::KIND_NOT_SET:
      schedule->mutable_constant();
      return;
    case v1::ScheduleSpec::kConstant:
      return violations->CheckInteger(path + "constant.warmup_steps", schedule->constant().warmup_steps(), 0,
                                      kMaxSteps);
    case v1::ScheduleSpec::kStep:
      return ResolveStepSchedule(schedule->mutable_step(), violations);
    case v1::ScheduleSpec::kCosine:
      violations->CheckInteger(path + "cosine.warmup_steps", schedule->cosine().warmup_steps(), 0, kMaxSteps);
      return violations->CheckReal(path + "cosine.min_ratio", schedule->cosine().min_ratio(), kRatio);
    case v1::ScheduleSpec::kLinear: {
      v1::LinearSchedule* linear = schedule->mutable_linear();
      if (!linear->has_min_ratio()) linear->set_min_ratio(1);
      violations->CheckInteger(path + "linear.warmup_steps", linear->warmup_steps(), 0, kMaxSteps);
      return violations->CheckReal(path + "linear.min_ratio", linear->min_ratio(), kRatio);
    }
  }
}

void ResolveLength(v1::TrainSpec* train, Violations* violations) {
  if (train->has_epochs() && train->has_steps()) {
    violations->Add("train", "exactly one of epochs and steps may be set; both are");
  }
  if (!train->has_epochs() && !train->has_steps()) train->set_epochs(1);
  if (train->has_epochs()) violations->CheckInteger("train.epochs", train->epochs(), 1, kMaxEpochs);
  if (train->has_steps()) violations->CheckInteger("train.steps", train->steps(), 1, kMaxSteps);
}

void ResolveBatch(v1::TrainSpec* train, Violations* violations) {
  if (!train->has_batch_size()) train->set_batch_size(32);
  if (!train->has_micro_batch_size()) train->set_micro_batch_size(train->batch_size());
  const int64_t batch = train->batch_size(), micro = train->micro_batch_size();
  violations->CheckInteger("train.batch_size", batch, 1, kMaxBatch);
  if (micro == batch) return;  // One error is enough.
  violations->CheckInteger("train.micro_batch_size", micro, 1, kMaxBatch);
  if (micro >= 1 && batch >= 1 && batch % micro != 0) {
    violations->Add("train.micro_batch_size", absl::StrCat("must divide batch_size, ", batch, ", is ", micro));
  }
}

}  // namespace

void ResolveOptimizer(v1::OptimizerSpec* optimizer, Violations* violations) {
  switch (optimizer->kind_case()) {
    case v1::OptimizerSpec::kSgd:
      ResolveSgd(optimizer->mutable_sgd(), violations);
      break;
    case v1::OptimizerSpec::kAdam:
      ResolveAdam("optimizer.adam.", 0, optimizer->mutable_adam(), violations);
      break;
    case v1::OptimizerSpec::kAdamw:
    case v1::OptimizerSpec::KIND_NOT_SET:
      ResolveAdam("optimizer.adamw.", 0.01, optimizer->mutable_adamw(), violations);
      break;
  }
  ResolveSchedule(optimizer->mutable_schedule(), violations);
  if (optimizer->has_clip_global_norm()) {
    violations->CheckReal("optimizer.clip_global_norm", optimizer->clip_global_norm(),
                          {.low = 0, .high = FLT_MAX, .low_open = true});
  }
}

void ResolveTrain(bool has_eval, v1::TrainSpec* train, Violations* violations) {
  ResolveLength(train, violations);
  ResolveBatch(train, violations);
  if (train->has_eval_every_epochs()) {
    violations->CheckInteger("train.eval_every_epochs", train->eval_every_epochs(), 1, kMaxEpochs);
    if (!has_eval) violations->Add("train.eval_every_epochs", "needs data.eval");
  } else if (has_eval) {
    train->set_eval_every_epochs(1);
  }
}

}  // namespace ampd
