#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve_internal.h"

namespace ampd {
namespace {

using v1::LossScaleSpec;
using v1::PrecisionSpec;

// Every rule is tried on every layer: the bounds keep a hostile spec cheap.
constexpr size_t kMaxPatternBytes = 100;
constexpr int kMaxRules = 100;
constexpr int64_t kMaxInterval = int64_t{1} << 40;
const double kMaxScale = std::ldexp(1.0, 126);

void ResolveMode(PrecisionSpec* precision) {
  if (precision->mode() == PrecisionSpec::MODE_UNSPECIFIED) precision->set_mode(PrecisionSpec::FP32);
}

// What a layer of a job may compute in: as the job, or more precisely. FP16 needs the loss scaling that it brings.
std::vector<PrecisionSpec::Mode> ModesOfRules(PrecisionSpec::Mode job) {
  switch (job) {
    case PrecisionSpec::TF32:
      return {PrecisionSpec::FP32, PrecisionSpec::TF32};
    case PrecisionSpec::FP16:
      return {PrecisionSpec::FP32, PrecisionSpec::TF32, PrecisionSpec::BF16, PrecisionSpec::FP16};
    case PrecisionSpec::BF16:
      return {PrecisionSpec::FP32, PrecisionSpec::TF32, PrecisionSpec::BF16};
    case PrecisionSpec::FP8:
      return {PrecisionSpec::FP32, PrecisionSpec::TF32, PrecisionSpec::BF16, PrecisionSpec::FP8};
    default:
      return {PrecisionSpec::FP32};
  }
}

void CheckRuleMode(const std::string& field, PrecisionSpec::Mode job, PrecisionSpec::Mode mode,
                   Violations* violations) {
  const std::vector<PrecisionSpec::Mode> modes = ModesOfRules(job);
  if (std::find(modes.begin(), modes.end(), mode) != modes.end()) return;
  const auto name = [](std::string* out, PrecisionSpec::Mode m) { *out += PrecisionSpec::Mode_Name(m); };
  violations->Add(field, absl::StrCat("must be ", absl::StrJoin(modes, " or ", name), " in a job of mode ",
                                      PrecisionSpec::Mode_Name(job), ", is ", PrecisionSpec::Mode_Name(mode)));
}

bool MatchesALayer(const std::vector<std::string>& layers, const std::string& pattern) {
  return std::any_of(layers.begin(), layers.end(), [&](const std::string& name) { return GlobMatches(pattern, name); });
}

// `layers` is null where they are not known yet.
void ResolveRule(const std::string& path, const std::vector<std::string>* layers, PrecisionSpec::Mode mode,
                 v1::PrecisionRule* rule, Violations* violations) {
  if (rule->dtype() == PrecisionSpec::MODE_UNSPECIFIED) rule->set_dtype(PrecisionSpec::FP32);
  CheckRuleMode(absl::StrCat(path, ".dtype"), mode, rule->dtype(), violations);
  const std::string field = absl::StrCat(path, ".match");
  if (rule->match().empty() || rule->match().size() > kMaxPatternBytes) {
    return violations->CheckText(field, rule->match(), kMaxPatternBytes);
  }
  if (layers == nullptr || MatchesALayer(*layers, rule->match())) return;
  violations->Add(field, absl::StrCat("no layer matches ", Quoted(rule->match()), DidYouMean(rule->match(), *layers)));
}

void FillDynamic(LossScaleSpec* scale) {
  if (!scale->has_init()) scale->set_init(65536);
  if (!scale->has_growth_factor()) scale->set_growth_factor(2);
  if (!scale->has_backoff_factor()) scale->set_backoff_factor(0.5);
  if (!scale->has_growth_interval()) scale->set_growth_interval(2000);
  if (!scale->has_min()) scale->set_min(1);
  if (!scale->has_max()) scale->set_max(kMaxScale);
  if (!scale->has_hysteresis()) scale->set_hysteresis(1);
  if (scale->on_floor() == LossScaleSpec::ON_FLOOR_UNSPECIFIED) scale->set_on_floor(LossScaleSpec::FAIL);
  if (scale->hysteresis_refill() == LossScaleSpec::HYSTERESIS_REFILL_UNSPECIFIED) {
    scale->set_hysteresis_refill(LossScaleSpec::ON_APPLIED_STEP);
  }
  if (scale->on_floor() == LossScaleSpec::ROLLBACK && !scale->has_max_rollbacks()) scale->set_max_rollbacks(3);
}

// Fields of another kind than the spec's own are checked too, so that one file serves every mode.
void CheckScaleFields(const LossScaleSpec& scale, Violations* violations) {
  const std::string path = "precision.loss_scale.";
  const Interval scales = {.low = 0, .high = kMaxScale, .low_open = true};
  if (scale.has_init()) violations->CheckReal(path + "init", scale.init(), scales);
  if (scale.has_min()) violations->CheckReal(path + "min", scale.min(), scales);
  if (scale.has_max()) violations->CheckReal(path + "max", scale.max(), scales);
  if (scale.has_growth_factor()) {
    violations->CheckReal(path + "growth_factor", scale.growth_factor(), {.low = 1, .high = 1e6, .low_open = true});
  }
  if (scale.has_backoff_factor()) {
    violations->CheckReal(path + "backoff_factor", scale.backoff_factor(),
                          {.low = 0, .high = 1, .low_open = true, .high_open = true});
  }
  if (scale.has_growth_interval()) {
    violations->CheckInteger(path + "growth_interval", scale.growth_interval(), 1, kMaxInterval);
  }
  if (scale.has_hysteresis()) violations->CheckInteger(path + "hysteresis", scale.hysteresis(), 1, 1 << 20);
  if (scale.has_max_rollbacks()) {
    violations->CheckInteger(path + "max_rollbacks", scale.max_rollbacks(), 1, 1000);
    if (scale.on_floor() != LossScaleSpec::ROLLBACK) violations->Add(path + "max_rollbacks", "needs on_floor ROLLBACK");
  }
}

void ResolveLossScale(PrecisionSpec::Mode mode, LossScaleSpec* scale, Violations* violations) {
  // Which it is follows from the mode that AUTO takes.
  if (scale->kind() == LossScaleSpec::KIND_UNSPECIFIED && mode != PrecisionSpec::AUTO) {
    scale->set_kind(mode == PrecisionSpec::FP16 ? LossScaleSpec::DYNAMIC : LossScaleSpec::NONE);
  }
  if (scale->kind() == LossScaleSpec::DYNAMIC) FillDynamic(scale);
  CheckScaleFields(*scale, violations);
  if (scale->kind() == LossScaleSpec::STATIC && !scale->has_init()) {
    violations->Add("precision.loss_scale.init", "required for a STATIC scale");
  }
  // A static one does not fall, so that it has no floor. It is never what follows from a mode.
  if (scale->kind() == LossScaleSpec::STATIC && scale->on_floor() != LossScaleSpec::ON_FLOOR_UNSPECIFIED) {
    violations->Add("precision.loss_scale.on_floor", "goes with kind DYNAMIC: a STATIC scale never falls");
  }
  if (scale->kind() != LossScaleSpec::DYNAMIC) return;
  if (scale->min() > scale->max()) {
    violations->Add("precision.loss_scale.min",
                    absl::StrCat("must be at most max, ", scale->max(), ", is ", scale->min()));
  } else if (scale->init() < scale->min() || scale->init() > scale->max()) {
    violations->Add("precision.loss_scale.init", absl::StrCat("must be in [min, max], [", scale->min(), ", ",
                                                              scale->max(), "], is ", scale->init()));
  }
}

}  // namespace

void ResolvePrecision(const v1::ModelSpec& model, PrecisionSpec* precision, Violations* violations) {
  ResolveMode(precision);
  if (!precision->has_master_weights()) precision->set_master_weights(true);
  ResolveLossScale(precision->mode(), precision->mutable_loss_scale(), violations);
  if (precision->rules_size() > kMaxRules) {
    return violations->Add("precision.rules",
                           absl::StrCat("must be at most ", kMaxRules, ", are ", precision->rules_size()));
  }
  const std::vector<std::string> layers = LayerNamesOf(model);
  for (int i = 0; i < precision->rules_size(); ++i) {
    ResolveRule(Indexed("precision.rules", i), model.has_onnx() ? nullptr : &layers, precision->mode(),
                precision->mutable_rules(i), violations);
  }
}

}  // namespace ampd
