// What jobs cost: all time on devices at the devices' prices, and of it what was for nothing. It is charged with every
// event, with every write and at an attempt's end, so that it is durable together with what it was paid for; who takes
// the job up charges from where the last write ended.
#include <algorithm>
#include <limits>
#include <utility>

#include "engine/core/status.h"
#include "server/jobs/core.h"
#include "server/metrics/metrics.h"

namespace ampd {
namespace {

constexpr double kSecondsPerHour = 3600;
// Of idle time, as much is lost with a daemon.
constexpr absl::Duration kIdlePeriod = absl::Minutes(1);

double UsdPerHour(const std::vector<v1::DeviceModel>& models, const v1::Device& device) {
  const v1::DeviceModel* model = ModelOfDevice(models, device);
  return model == nullptr ? 0 : model->usd_per_hour();
}

}  // namespace

void ControllerCore::StartCharging(LiveJob& live, absl::Duration since) {
  live.charged_until = since;
  live.charged = absl::ZeroDuration();
  live.usd_per_second = 0;
  for (const std::string& id : live.job.proto().devices()) {
    const DeviceSlot* slot = FindDevice(id);
    if (slot != nullptr) live.usd_per_second += UsdPerHour(options_.device_models, slot->device) / kSecondsPerHour;
  }
  // Of one that is shared its part, so that what all jobs cost together is what their devices do.
  if (!live.devices.empty()) live.usd_per_second *= DevicesOf(live) / static_cast<double>(live.devices.size());
}

void ControllerCore::Charge(LiveJob& live) {
  if (!live.charged_until) return;
  const absl::Duration now = clock_->Monotonic();
  const absl::Duration held = std::max(absl::ZeroDuration(), now - *live.charged_until);
  const double seconds = absl::ToDoubleSeconds(held);
  live.charged_until = now;
  live.charged += held;
  CountUse(live, seconds);
  ChargeUsage(live, held);
  if (live.usd_per_second <= 0) return;
  const double usd = live.usd_per_second * seconds;
  v1::Job& job = live.job.MutableRecord().job;
  job.set_cost_usd(job.cost_usd() + usd);
  // Present beside it, also while nothing was wasted.
  job.set_wasted_usd(job.wasted_usd());
}

// Counters only grow, and what was for nothing is known afterwards: as much of the time that follows is counted for it.
void ControllerCore::CountUse(LiveJob& live, double seconds) {
  if (!(seconds > 0)) return;
  const double wasted = std::min(seconds, live.wasted_seconds);
  live.wasted_seconds -= wasted;
  const std::string& user = live.job.proto().user();
  const double devices = DevicesOf(live);
  const double usd = live.usd_per_second;
  std::map<std::string, double> deltas;
  for (const auto& [use, part] : {std::pair(kUseful, seconds - wasted), std::pair(kWasted, wasted)}) {
    if (part > 0) deltas[UseCounter(kDeviceSecondsCounter, use, user)] = part * devices;
    if (part > 0 && usd > 0) deltas[UseCounter(kCostCounter, use, user)] = part * usd;
  }
  live.job.AddToCounters(deltas);
}

void ControllerCore::CountIdle() {
  const absl::Duration now = clock_->Monotonic();
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(now - std::exchange(idle_until_, now)));
  for (const DeviceSlot& slot : devices_) {
    if (!slot.job_ids.empty() || !(seconds > 0)) continue;
    idle_[UseCounter(kDeviceSecondsCounter, kIdle, "")] += seconds;
    const double usd = seconds * UsdPerHour(options_.device_models, slot.device) / kSecondsPerHour;
    if (usd > 0) idle_[UseCounter(kCostCounter, kIdle, "")] += usd;
  }
}

// Nothing else may be written for days.
void ControllerCore::StoreIdle() {
  CountIdle();
  timers_.Add(clock_->Monotonic() + kIdlePeriod, [this] { StoreIdle(); });
  if (idle_.empty() || idle_in_flight_) return;
  idle_in_flight_ = true;
  auto deltas = std::make_shared<std::map<std::string, double>>(std::exchange(idle_, {}));
  store_->Change([deltas](Database& database) { return database.AddToCounters(*deltas); },
                 [this, deltas](const absl::Status& status) {
                   if (status.ok() && metrics_ != nullptr) metrics_->AddToCounters(*deltas);
                   post_([this, deltas, ok = status.ok()] {
                     idle_in_flight_ = false;
                     if (ok) return;
                     for (const auto& [name, delta] : *deltas) idle_[name] += delta;
                   });
                 });
}

void ControllerCore::ChargeEvent(LiveJob& live, const v1::JobEvent& event) {
  Charge(live);
  const JobRecord& record = live.job.record();
  const v1::JobSummary& summary = record.job.summary();
  int64_t steps = 0;
  double step_seconds = summary.step_seconds();
  if (event.has_step() && event.step().phases_size() > 0) {
    int64_t skipped = 0;
    int64_t attempted = 0;
    for (const v1::PhaseReport& phase : event.step().phases()) {
      skipped += phase.steps_skipped();
      attempted += phase.steps_skipped() + phase.steps_applied();
    }
    // Of several phases of a step one may be skipped: that share of the step.
    const int64_t new_skips = std::max<int64_t>(0, skipped - summary.steps_skipped());
    const int64_t new_attempts = attempted - summary.steps_skipped() - summary.steps_applied();
    const int64_t covered = event.step().last_step() - event.step().first_step() + 1;
    if (event.step().has_step_seconds()) step_seconds = event.step().step_seconds();
    if (new_attempts > 0 && covered > 0) {
      AddWaste(live, step_seconds * static_cast<double>(covered) * static_cast<double>(new_skips) /
                         static_cast<double>(new_attempts));
    }
    return;
  }
  if (event.has_rewound()) steps = std::max<int64_t>(0, record.last_reported_step - event.rewound().to_step());
  AddWaste(live, step_seconds * static_cast<double>(steps));
}

void ControllerCore::AddWaste(LiveJob& live, double seconds) {
  if (!(seconds > 0)) return;
  live.wasted_seconds += seconds;
  if (live.usd_per_second <= 0) return;
  v1::Job& job = live.job.MutableRecord().job;
  // Repeated steps may take longer than those that were paid for.
  job.set_wasted_usd(std::min(job.cost_usd(), job.wasted_usd() + live.usd_per_second * seconds));
}

bool ControllerCore::HasPrice(const v1::Device& device) const { return UsdPerHour(options_.device_models, device) > 0; }

void ControllerCore::ArmCostLimit(LiveJob& live) {
  const auto& limits = live.job.proto().spec().limits();
  if (!limits.has_max_cost_usd() || live.cost_timer != 0) return;
  Charge(live);
  const double left = limits.max_cost_usd() - live.job.proto().cost_usd();
  // Its devices had a price when it was submitted; without one the limit cannot be kept.
  const double seconds = live.usd_per_second > 0 ? std::max(0.0, left / live.usd_per_second) : 0;
  live.cost_timer = After(absl::Seconds(seconds), live, &ControllerCore::OnCostLimit);
}

void ControllerCore::OnCostLimit(LiveJob& live) {
  live.cost_timer = 0;
  if (LimitHolds(live)) AskToStop(live, Stop::kCost);
}

std::string ControllerCore::CostLimitText(const LiveJob& live) const {
  const double limit = live.job.proto().spec().limits().max_cost_usd();
  if (live.usd_per_second <= 0) return absl::StrCat("limits.max_cost_usd: ", limit, ", but its device has no price");
  return absl::StrCat("limits.max_cost_usd: costs ", live.job.proto().cost_usd(), " of at most ", limit, " at ",
                      live.usd_per_second * kSecondsPerHour, " an hour");
}

}  // namespace ampd
