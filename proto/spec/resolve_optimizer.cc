#include <cfloat>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/spec/resolve_internal.h"

namespace ampd {
namespace {

// Hyperparameters are applied in fp32.
const Interval kNotNegative = {.low = 0, .high = FLT_MAX};
const Interval kPositive = {.low = 0, .high = FLT_MAX, .low_open = true};
const Interval kBeta = {.low = 0, .high = 1, .high_open = true};
const Interval kEpsilon = {.low = 1e-30, .high = 1};
const Interval kRatio = {.low = 0, .high = 1};
// Every group is tried on every parameter: the bounds keep a hostile spec cheap.
constexpr int kMaxGroups = 100;
constexpr size_t kMaxPatternBytes = 100;

void ResolveSgd(v1::SgdOptimizer* sgd, Violations* violations) {
  const std::string path = "optimizer.sgd.";
  if (!sgd->has_learning_rate()) sgd->set_learning_rate(0.01);
  if (!sgd->has_momentum()) sgd->set_momentum(0);
  if (!sgd->has_dampening()) sgd->set_dampening(0);
  if (!sgd->has_nesterov()) sgd->set_nesterov(false);
  if (!sgd->has_weight_decay()) sgd->set_weight_decay(0);
  violations->CheckReal(path + "learning_rate", sgd->learning_rate(), kNotNegative);
  violations->CheckReal(path + "momentum", sgd->momentum(), kBeta);
  violations->CheckReal(path + "dampening", sgd->dampening(), kRatio);
  violations->CheckReal(path + "weight_decay", sgd->weight_decay(), kNotNegative);
  if (sgd->dampening() != 0 && sgd->momentum() == 0) violations->Add(path + "dampening", "needs momentum > 0");
  if (sgd->nesterov() && sgd->momentum() == 0) violations->Add(path + "nesterov", "needs momentum > 0");
  if (sgd->nesterov() && sgd->dampening() != 0) violations->Add(path + "nesterov", "needs dampening 0");
}

// Adam, AdamW and LAMB have the same fields and differ in defaults.
template <typename Adam>
void ResolveAdam(const std::string& path, double epsilon, double weight_decay, Adam* adam, Violations* violations) {
  if (!adam->has_learning_rate()) adam->set_learning_rate(0.001);
  if (!adam->has_beta1()) adam->set_beta1(0.9);
  if (!adam->has_beta2()) adam->set_beta2(0.999);
  if (!adam->has_epsilon()) adam->set_epsilon(epsilon);
  if (!adam->has_weight_decay()) adam->set_weight_decay(weight_decay);
  violations->CheckReal(path + "learning_rate", adam->learning_rate(), kNotNegative);
  violations->CheckReal(path + "beta1", adam->beta1(), kBeta);
  violations->CheckReal(path + "beta2", adam->beta2(), kBeta);
  violations->CheckReal(path + "epsilon", adam->epsilon(), kEpsilon);
  violations->CheckReal(path + "weight_decay", adam->weight_decay(), kNotNegative);
}

void ResolveRmsProp(v1::RmsPropOptimizer* rmsprop, Violations* violations) {
  const std::string path = "optimizer.rmsprop.";
  if (!rmsprop->has_learning_rate()) rmsprop->set_learning_rate(0.01);
  if (!rmsprop->has_smoothing()) rmsprop->set_smoothing(0.99);
  if (!rmsprop->has_epsilon()) rmsprop->set_epsilon(1e-8);
  if (!rmsprop->has_momentum()) rmsprop->set_momentum(0);
  if (!rmsprop->has_centered()) rmsprop->set_centered(false);
  if (!rmsprop->has_weight_decay()) rmsprop->set_weight_decay(0);
  violations->CheckReal(path + "learning_rate", rmsprop->learning_rate(), kNotNegative);
  violations->CheckReal(path + "smoothing", rmsprop->smoothing(), kBeta);
  violations->CheckReal(path + "epsilon", rmsprop->epsilon(), kEpsilon);
  violations->CheckReal(path + "momentum", rmsprop->momentum(), kBeta);
  violations->CheckReal(path + "weight_decay", rmsprop->weight_decay(), kNotNegative);
}

void ResolveAdagrad(v1::AdagradOptimizer* adagrad, Violations* violations) {
  const std::string path = "optimizer.adagrad.";
  if (!adagrad->has_learning_rate()) adagrad->set_learning_rate(0.01);
  if (!adagrad->has_learning_rate_decay()) adagrad->set_learning_rate_decay(0);
  if (!adagrad->has_initial_accumulator()) adagrad->set_initial_accumulator(0);
  if (!adagrad->has_epsilon()) adagrad->set_epsilon(1e-10);
  if (!adagrad->has_weight_decay()) adagrad->set_weight_decay(0);
  violations->CheckReal(path + "learning_rate", adagrad->learning_rate(), kNotNegative);
  violations->CheckReal(path + "learning_rate_decay", adagrad->learning_rate_decay(), kNotNegative);
  violations->CheckReal(path + "initial_accumulator", adagrad->initial_accumulator(), kNotNegative);
  violations->CheckReal(path + "epsilon", adagrad->epsilon(), kEpsilon);
  violations->CheckReal(path + "weight_decay", adagrad->weight_decay(), kNotNegative);
}

void ResolveKind(v1::OptimizerSpec* optimizer, Violations* violations) {
  switch (optimizer->kind_case()) {
    case v1::OptimizerSpec::kSgd:
      return ResolveSgd(optimizer->mutable_sgd(), violations);
    case v1::OptimizerSpec::kAdam:
      return ResolveAdam("optimizer.adam.", 1e-8, 0, optimizer->mutable_adam(), violations);
    case v1::OptimizerSpec::kAdamw:
    case v1::OptimizerSpec::KIND_NOT_SET:
      return ResolveAdam("optimizer.adamw.", 1e-8, 0.01, optimizer->mutable_adamw(), violations);
    case v1::OptimizerSpec::kRmsprop:
      return ResolveRmsProp(optimizer->mutable_rmsprop(), violations);
    case v1::OptimizerSpec::kAdagrad:
      return ResolveAdagrad(optimizer->mutable_adagrad(), violations);
    case v1::OptimizerSpec::kLamb:
      return ResolveAdam("optimizer.lamb.", 1e-6, 0.01, optimizer->mutable_lamb(), violations);
  }
}

void ResolveClipping(const v1::OptimizerSpec& optimizer, Violations* violations) {
  if (optimizer.has_clip_global_norm()) {
    violations->CheckReal("optimizer.clip_global_norm", optimizer.clip_global_norm(), kPositive);
  }
  if (!optimizer.has_clip_value()) return;
  violations->CheckReal("optimizer.clip_value", optimizer.clip_value(), kPositive);
  if (optimizer.has_clip_global_norm()) {
    violations->Add("optimizer.clip_value", "exactly one of clip_global_norm and clip_value may be set; both are");
  }
}

void ResolveGroups(v1::OptimizerSpec* optimizer, Violations* violations) {
  if (!optimizer->has_decay_norms_and_biases()) optimizer->set_decay_norms_and_biases(true);
  if (optimizer->groups_size() > kMaxGroups) {
    return violations->Add("optimizer.groups",
                           absl::StrCat("must be at most ", kMaxGroups, ", are ", optimizer->groups_size()));
  }
  for (int i = 0; i < optimizer->groups_size(); ++i) {
    v1::ParameterGroup* group = optimizer->mutable_groups(i);
    const std::string path = Indexed("optimizer.groups", i);
    if (!group->has_learning_rate_scale()) group->set_learning_rate_scale(1);
    violations->CheckText(path + ".match", group->match(), kMaxPatternBytes);
    violations->CheckReal(path + ".learning_rate_scale", group->learning_rate_scale(), kNotNegative);
    if (group->has_weight_decay()) violations->CheckReal(path + ".weight_decay", group->weight_decay(), kNotNegative);
  }
}

void ResolveEma(bool has_eval, bool has_samples, v1::EmaSpec* ema, Violations* violations) {
  if (!ema->has_decay()) ema->set_decay(0.999);
  if (!ema->has_evaluate()) ema->set_evaluate(false);
  if (!ema->has_samples()) ema->set_samples(false);
  violations->CheckReal("optimizer.ema.decay", ema->decay(), kBeta);
  if (ema->evaluate() && !has_eval) violations->Add("optimizer.ema.evaluate", "needs data.eval");
  if (ema->samples() && !has_samples) violations->Add("optimizer.ema.samples", "needs report.samples");
}

}  // namespace

void ResolveOptimizer(bool has_eval, bool has_samples, v1::OptimizerSpec* optimizer, Violations* violations) {
  ResolveKind(optimizer, violations);
  ResolveSchedule(optimizer->mutable_schedule(), violations);
  ResolveClipping(*optimizer, violations);
  ResolveGroups(optimizer, violations);
  if (optimizer->has_ema()) ResolveEma(has_eval, has_samples, optimizer->mutable_ema(), violations);
}

}  // namespace ampd
