// What jobs cost: all time on devices at the devices' prices, and of it what was for nothing. It is charged with every
// event, with every write and at an attempt's end, so that it is durable together with what it was paid for; who takes
// the job up charges from where the last write ended.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "engine/core/status.h"
#include "proto/spec/start_step.h"
#include "server/jobs/core.h"
#include "server/jobs/summary.h"
#include "server/metrics/metrics.h"

namespace ampd {
namespace {

constexpr double kSecondsPerHour = 3600;
// Of idle time, as much is lost with a daemon.
constexpr absl::Duration kIdlePeriod = absl::Minutes(1);
// Less of a device is what rounding left.
constexpr double kNobodysPart = 1e-9;
// Their names in the store are UseCounter(_, kWasted, USER). No metrics.
constexpr char kOwedDeviceSeconds[] = "owed_device_seconds";
constexpr char kOwedUsd[] = "owed_usd";

double UsdPerHour(const std::vector<v1::DeviceModel>& models, const v1::Device& device) {
  const v1::DeviceModel* model = ModelOfDevice(models, device);
  return model == nullptr ? 0 : model->usd_per_hour();
}

}  // namespace

void ControllerCore::StartCharging(LiveJob& live, absl::Duration since) {
  live.charged_until = since;
  live.charged = absl::ZeroDuration();
  live.charged_before.reset();
  if (!live.adopted) live.charged_before = ChargedSoFar(live);
  live.usd_per_second = 0;
  for (const std::string& id : live.job.proto().devices()) {
    const DeviceSlot* slot = FindDevice(id);
    if (slot != nullptr) live.usd_per_second += UsdPerHour(options_.device_models, slot->device) / kSecondsPerHour;
  }
  // Of one that is shared its part, so that what all jobs cost together is what their devices do.
  if (!live.devices.empty()) live.usd_per_second *= DevicesOf(live) / static_cast<double>(live.devices.size());
}

Charged ControllerCore::ChargedSoFar(const LiveJob& live) const {
  Charged charged = live.job.record().charged;
  charged.usd = live.job.proto().cost_usd();
  charged.wasted_usd = live.job.proto().wasted_usd();
  return charged;
}

void ControllerCore::Charge(LiveJob& live) {
  if (!live.charged_until) return;
  const absl::Duration now = clock_->Monotonic();
  const absl::Duration held = std::max(absl::ZeroDuration(), now - *live.charged_until);
  const double seconds = absl::ToDoubleSeconds(held);
  live.charged_until = now;
  live.charged += held;
  if (seconds > 0) live.job.MutableRecord().charged.device_seconds += seconds * DevicesOf(live);
  CountUse(live, seconds);
  ChargeUsage(live, held);
  if (live.usd_per_second <= 0) return;
  const double usd = live.usd_per_second * seconds;
  v1::Job& job = live.job.MutableRecord().job;
  job.set_cost_usd(job.cost_usd() + usd);
  // Present beside it, also while nothing was wasted.
  job.set_wasted_usd(job.wasted_usd());
}

// Counters only grow, and what was for nothing is known afterwards: as much of the user's time that follows, in
// whatever job, is counted for it.
void ControllerCore::CountUse(LiveJob& live, double seconds) {
  if (!(seconds > 0)) return;
  const std::string& user = live.job.proto().user();
  std::map<std::string, double> deltas;
  const auto count = [&](const char* counter, const char* owed_counter, double amount) {
    if (!(amount > 0)) return;
    const std::string owed_name = UseCounter(owed_counter, kWasted, user);
    const auto owed = owed_.find(owed_name);
    const double wasted = owed == owed_.end() ? 0 : std::min(amount, owed->second);
    if (amount > wasted) deltas[UseCounter(counter, kUseful, user)] = amount - wasted;
    if (!(wasted > 0)) return;
    deltas[UseCounter(counter, kWasted, user)] = wasted;
    deltas[owed_name] = -wasted;
    owed->second -= wasted;
  };
  count(kDeviceSecondsCounter, kOwedDeviceSeconds, seconds * DevicesOf(live));
  count(kCostCounter, kOwedUsd, seconds * live.usd_per_second);
  live.job.AddToCounters(deltas);
}

void ControllerCore::RestoreOwed(const std::map<std::string, double>& counters) {
  for (const auto& [name, value] : counters) {
    if (absl::StartsWith(name, kOwedDeviceSeconds) || absl::StartsWith(name, kOwedUsd)) {
      owed_[name] = std::max(0.0, value);
    }
  }
}

// Of a device that jobs share, too, what none of them pays for.
void ControllerCore::CountIdle() {
  const absl::Duration now = clock_->Monotonic();
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(now - std::exchange(idle_until_, now)));
  if (!(seconds > 0)) return;
  for (const DeviceSlot& slot : devices_) {
    double part = 1;
    for (const std::string& id : slot.job_ids) {
      const LiveJob* live = Find(id);
      // Each of a gang has its own device.
      part -= live == nullptr ? 1 : DevicesOf(*live) / std::max(1.0, static_cast<double>(live->devices.size()));
    }
    if (!(part > kNobodysPart)) continue;
    idle_[UseCounter(kDeviceSecondsCounter, kIdle, "")] += seconds * part;
    const double usd = seconds * part * UsdPerHour(options_.device_models, slot.device) / kSecondsPerHour;
    if (usd > 0) idle_[UseCounter(kCostCounter, kIdle, "")] += usd;
  }
}

// Nothing else may be written for days.
void ControllerCore::StoreIdle() {
  timers_.Add(clock_->Monotonic() + kIdlePeriod, [this] { StoreIdle(); });
  WriteIdle();
}

void ControllerCore::WriteIdle() {
  CountIdle();
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
  if (event.has_step()) ChargeStep(live, event.step());
  if (event.has_checkpoint()) ChargeCheckpoint(live, event.checkpoint());
  if (event.has_rewound()) ChargeRewound(live, event.rewound().to_step());
}

// Of several phases of a step one may be skipped: that share of the step.
void ControllerCore::ChargeStep(LiveJob& live, const v1::StepReport& step) {
  live.charged_before.reset();
  const v1::JobSummary& summary = live.job.proto().summary();
  int64_t skipped = 0;
  int64_t attempted = 0;
  for (const v1::PhaseReport& phase : step.phases()) {
    skipped += phase.steps_skipped();
    attempted += phase.steps_skipped() + phase.steps_applied();
  }
  const int64_t new_skips = std::max<int64_t>(0, skipped - summary.steps_skipped());
  const int64_t new_attempts = attempted - summary.steps_skipped() - summary.steps_applied();
  const int64_t covered = step.last_step() - step.first_step() + 1;
  if (new_attempts <= 0 || covered <= 0) return;
  const double step_seconds = step.has_step_seconds() ? step.step_seconds() : summary.step_seconds();
  AddWaste(live, step_seconds * static_cast<double>(covered) * static_cast<double>(new_skips) /
                     static_cast<double>(new_attempts));
}

void ControllerCore::ChargeCheckpoint(LiveJob& live, const v1::CheckpointSaved& checkpoint) {
  std::map<int64_t, Charged>& known = live.job.MutableRecord().charged_at_checkpoints;
  if (checkpoint.already_written()) {
    known.emplace(checkpoint.step(), live.charged_before.value_or(ChargedSoFar(live)));
  } else {
    known[checkpoint.step()] = ChargedSoFar(live);
  }
  if (known.size() > kCheckpointsKnown) known.erase(known.begin());
}

// All that was charged since the training stood there, but for what is waste already and for the start of the attempt
// that goes back.
void ControllerCore::ChargeRewound(LiveJob& live, int64_t to_step) {
  std::map<int64_t, Charged>& known = live.job.MutableRecord().charged_at_checkpoints;
  const JobRecord& record = live.job.record();
  const auto then = known.find(to_step);
  if (then != known.end() || to_step <= StepsBefore(record.job.spec())) {
    const Charged since = then == known.end() ? Charged() : then->second;
    const Charged now = ChargedSoFar(live);
    const Charged until = live.charged_before.value_or(now);
    AddWaste(live,
             until.device_seconds - since.device_seconds - (now.wasted_device_seconds - since.wasted_device_seconds),
             until.usd - since.usd - (now.wasted_usd - since.wasted_usd));
  } else {
    const auto steps = static_cast<double>(std::max<int64_t>(0, record.last_reported_step - to_step));
    AddWaste(live, record.job.summary().step_seconds() * steps);
  }
  known.erase(known.lower_bound(to_step), known.end());
  known[to_step] = ChargedSoFar(live);
}

void ControllerCore::AddWaste(LiveJob& live, double seconds) {
  AddWaste(live, seconds * DevicesOf(live), seconds * live.usd_per_second);
}

void ControllerCore::AddWaste(LiveJob& live, double device_seconds, double usd) {
  JobRecord& record = live.job.MutableRecord();
  const std::string& user = record.job.user();
  std::map<std::string, double> deltas;
  // Steps that were skipped may have taken longer than those that were paid for.
  device_seconds = std::min(device_seconds, record.charged.device_seconds - record.charged.wasted_device_seconds);
  if (device_seconds > 0) {
    record.charged.wasted_device_seconds += device_seconds;
    deltas[UseCounter(kOwedDeviceSeconds, kWasted, user)] = device_seconds;
  }
  usd = std::min(usd, record.job.cost_usd() - record.job.wasted_usd());
  if (usd > 0) {
    record.job.set_wasted_usd(record.job.wasted_usd() + usd);
    deltas[UseCounter(kOwedUsd, kWasted, user)] = usd;
  }
  for (const auto& [name, delta] : deltas) owed_[name] += delta;
  live.job.AddToCounters(deltas);
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
