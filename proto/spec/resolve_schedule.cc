#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/limits.h"
#include "proto/spec/resolve_internal.h"

namespace ampd {
namespace {

constexpr int kMaxMilestones = 1000;
constexpr int64_t kMaxPeriodFactor = 1000000;
const Interval kRatio = {.low = 0, .high = 1};
const Interval kGamma = {.low = 0, .high = 1, .low_open = true};
const Interval kDivisor = {.low = 1, .high = 1e30};

// Checks of one schedule's fields, named below its path.
class Fields {
 public:
  Fields(const char* kind, Violations* violations)
      : path_(absl::StrCat("optimizer.schedule.", kind, ".")), violations_(violations) {}

  void Warmup(int64_t steps) { violations_->CheckInteger(path_ + "warmup_steps", steps, 0, kMaxSteps); }
  void Real(const char* field, double value, const Interval& interval) {
    violations_->CheckReal(path_ + field, value, interval);
  }
  void Integer(const std::string& field, int64_t value, int64_t low, int64_t high) {
    violations_->CheckInteger(path_ + field, value, low, high);
  }
  // For a count that has no default: 0 is a field not set.
  void RequiredSteps(const char* field, int64_t value) {
    if (value == 0) return Add(field, "required, at least 1");
    Integer(field, value, 1, kMaxSteps);
  }
  void Add(const std::string& field, std::string description) {
    violations_->Add(path_ + field, std::move(description));
  }

 private:
  const std::string path_;
  Violations* violations_;
};

void ResolveStep(v1::StepSchedule* step, Fields fields) {
  if (!step->has_gamma()) step->set_gamma(0.1);
  fields.Real("gamma", step->gamma(), kGamma);
  fields.Warmup(step->warmup_steps());
  fields.RequiredSteps("every_steps", step->every_steps());
}

void ResolveMultiStep(v1::MultiStepSchedule* multi, Fields fields) {
  if (!multi->has_gamma()) multi->set_gamma(0.1);
  fields.Real("gamma", multi->gamma(), kGamma);
  fields.Warmup(multi->warmup_steps());
  if (multi->milestones().empty()) return fields.Add("milestones", "required, at least one");
  if (multi->milestones_size() > kMaxMilestones) {
    return fields.Add("milestones",
                      absl::StrCat("must be at most ", kMaxMilestones, ", are ", multi->milestones_size()));
  }
  for (int i = 0; i < multi->milestones_size(); ++i) {
    const std::string field = Indexed("milestones", i);
    const int64_t milestone = multi->milestones(i), before = i == 0 ? 0 : multi->milestones(i - 1);
    fields.Integer(field, milestone, 1, kMaxSteps);
    if (i == 0 || milestone > before || milestone < 1) continue;
    fields.Add(field, absl::StrCat("must be more than the one before, ", before, ", is ", milestone));
  }
}

void ResolveRestarts(v1::CosineRestartsSchedule* restarts, Fields fields) {
  if (!restarts->has_period_factor()) restarts->set_period_factor(1);
  fields.RequiredSteps("period_steps", restarts->period_steps());
  fields.Integer("period_factor", restarts->period_factor(), 1, kMaxPeriodFactor);
  fields.Real("min_ratio", restarts->min_ratio(), kRatio);
  fields.Warmup(restarts->warmup_steps());
}

void ResolvePolynomial(v1::PolynomialSchedule* polynomial, Fields fields) {
  if (!polynomial->has_power()) polynomial->set_power(1);
  fields.Real("power", polynomial->power(), {.low = 0, .high = 100, .low_open = true});
  fields.Real("min_ratio", polynomial->min_ratio(), kRatio);
  fields.Warmup(polynomial->warmup_steps());
}

void ResolveOneCycle(v1::OneCycleSchedule* cycle, Fields fields) {
  if (!cycle->has_rising_share()) cycle->set_rising_share(0.3);
  if (!cycle->has_start_divisor()) cycle->set_start_divisor(25);
  if (!cycle->has_end_divisor()) cycle->set_end_divisor(10000);
  if (!cycle->has_three_phase()) cycle->set_three_phase(false);
  if (cycle->shape() == v1::OneCycleSchedule::SHAPE_UNSPECIFIED) cycle->set_shape(v1::OneCycleSchedule::COSINE);
  // Three phases rise and fall in equal time: more than half cannot rise.
  fields.Real("rising_share", cycle->rising_share(), {.low = 0, .high = cycle->three_phase() ? 0.5 : 1});
  fields.Real("start_divisor", cycle->start_divisor(), kDivisor);
  fields.Real("end_divisor", cycle->end_divisor(), kDivisor);
}

void ResolveLinear(v1::LinearSchedule* linear, Fields fields) {
  if (!linear->has_min_ratio()) linear->set_min_ratio(1);
  fields.Warmup(linear->warmup_steps());
  fields.Real("min_ratio", linear->min_ratio(), kRatio);
}

void ResolveInverseSquareRoot(v1::InverseSquareRootSchedule* inverse, Fields fields) {
  if (!inverse->has_warmup_steps()) inverse->set_warmup_steps(4000);
  fields.Integer("warmup_steps", inverse->warmup_steps(), 1, kMaxSteps);
}

}  // namespace

void ResolveSchedule(v1::ScheduleSpec* schedule, Violations* violations) {
  switch (schedule->kind_case()) {
    case v1::ScheduleSpec::KIND_NOT_SET:
      schedule->mutable_constant();
      return;
    case v1::ScheduleSpec::kConstant:
      return Fields("constant", violations).Warmup(schedule->constant().warmup_steps());
    case v1::ScheduleSpec::kStep:
      return ResolveStep(schedule->mutable_step(), Fields("step", violations));
    case v1::ScheduleSpec::kCosine: {
      Fields fields("cosine", violations);
      fields.Warmup(schedule->cosine().warmup_steps());
      return fields.Real("min_ratio", schedule->cosine().min_ratio(), kRatio);
    }
    case v1::ScheduleSpec::kLinear:
      return ResolveLinear(schedule->mutable_linear(), Fields("linear", violations));
    case v1::ScheduleSpec::kMultiStep:
      return ResolveMultiStep(schedule->mutable_multi_step(), Fields("multi_step", violations));
    case v1::ScheduleSpec::kCosineRestarts:
      return ResolveRestarts(schedule->mutable_cosine_restarts(), Fields("cosine_restarts", violations));
    case v1::ScheduleSpec::kPolynomial:
      return ResolvePolynomial(schedule->mutable_polynomial(), Fields("polynomial", violations));
    case v1::ScheduleSpec::kOneCycle:
      return ResolveOneCycle(schedule->mutable_one_cycle(), Fields("one_cycle", violations));
    case v1::ScheduleSpec::kInverseSquareRoot:
      return ResolveInverseSquareRoot(schedule->mutable_inverse_square_root(),
                                      Fields("inverse_square_root", violations));
  }
}

}  // namespace ampd
