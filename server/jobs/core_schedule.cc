// The queue: what waits and why, what starts where, whose turn it is by what its user had.
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/device_memory.h"
#include "server/jobs/core.h"
#include "server/jobs/credentials.h"
#include "server/metrics/metrics.h"

namespace ampd {
namespace {

using google::protobuf::util::TimeUtil;

// Jobs whose start is estimated: those next in line.
constexpr int kEstimated = 200;
// What is left of a run may go slower than its last steps did.
constexpr double kProgressSlack = 1.25;
constexpr absl::Duration kWallClockPeriod = absl::Seconds(30);
// While jobs wait in line.
constexpr absl::Duration kRoundPeriod = absl::Seconds(30);

absl::Time FromTimestamp(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

// 0: not known.
int64_t ModelBytes(const v1::Job& job) { return job.plan().parameter_bytes() + job.plan().activation_bytes(); }

// With the samples that the job asks the device to keep; unasked one that shares keeps none.
int64_t PlannedBytes(const v1::Job& job) {
  return ModelBytes(job) + kProcessBytes + job.spec().data().device_cache().max_bytes();
}

// A job whose memory is not known shares with nobody.
bool Shares(const v1::Job& job) { return job.spec().resources().share() && ModelBytes(job) > 0; }

// On a device of its own; 0: whatever it has is tried. Samples are kept there only where there is room for them, and a
// measurement tells of each size whether it fits.
int64_t OwnPlannedBytes(const v1::Job& job) {
  return ModelBytes(job) > 0 && !job.spec().has_bench() ? ModelBytes(job) + kProcessBytes : 0;
}

int GpusOf(const v1::Job& job) { return std::max(1, job.spec().resources().gpus()); }

}  // namespace

absl::Duration ControllerCore::HoldLimit(const LiveJob& live) const {
  const auto& limits = live.job.proto().spec().limits();
  if (!limits.has_max_run_seconds()) return absl::InfiniteDuration();
  absl::Duration ran = live.job.RunTime();
  const std::optional<absl::Duration> counted = live.job.record().run_counted;
  if (counted) ran += std::max(absl::ZeroDuration(), clock_->Monotonic() - *counted);
  const absl::Duration left = absl::Seconds(limits.max_run_seconds()) - ran;
  return std::max(absl::ZeroDuration(), left) + options_.start_timeout + options_.stop_grace;
}

// Takes the job up, lets it go, or takes note of what has changed about it.
void ControllerCore::SyncQueue(const std::string& id) {
  LiveJob* live = Find(id);
  // The process of the attempt before must be gone: both would write the same checkpoints.
  if (live == nullptr || live->job.state() != v1::Job::QUEUED || live->has_worker) return queue_.Remove(id);
  const v1::Job& job = live->job.proto();
  const auto& resources = job.spec().resources();
  const QueuedJob* known = queue_.Find(id);
  if (known != nullptr && known->priority == resources.priority() && known->waits_for == live->waits_for) return;
  QueuedJob queued;
  queued.id = id;
  queued.submit_sequence = live->job.record().submit_sequence;
  queued.user = job.user();
  queued.priority = resources.priority();
  queued.waits_for = live->waits_for;
  if (job.attempt() == 0 && job.spec().has_not_before()) queued.not_before = FromTimestamp(job.spec().not_before());
  if (job.sweep().max_parallel() > 0) {
    queued.sweep_id = job.sweep().sweep_id();
    queued.sweep_max_parallel = job.sweep().max_parallel();
  }
  Requirement& need = queued.requirement;
  need.gpus = GpusOf(job);
  need.share = Shares(job);
  need.memory_bytes = need.share ? PlannedBytes(job) : OwnPlannedBytes(job);
  need.usable = UsableDevices(*live);
  MarkTooSmall(snapshot_.devices, &need);
  need.preemptible =
      resources.preemptible() && CheckpointFits(live->job.record().checkpoint_time, options_.preempt_grace);
  need.max_hold = HoldLimit(*live);
  queue_.Put(std::move(queued), clock_->Now());
}

void ControllerCore::SyncQueue() {
  for (const std::string& id : std::exchange(unsynced_, {})) SyncQueue(id);
}

// When the job lets go of its devices: by its limit, else as its steps go.
absl::Time ControllerCore::ExpectedEnd(const LiveJob& live) const {
  const absl::Time now = SteadyNow();
  const absl::Duration limit = HoldLimit(live);
  if (limit != absl::InfiniteDuration()) return now + limit;
  const v1::JobSummary& summary = live.job.proto().summary();
  if (summary.step() <= 0 || summary.total_steps() <= 0 || !(summary.step_seconds() > 0)) return absl::InfiniteFuture();
  const auto left = static_cast<double>(std::max<int64_t>(0, summary.total_steps() - summary.step()));
  return now + absl::Seconds(left * summary.step_seconds() * kProgressSlack);
}

RunningJob ControllerCore::RunningOf(const LiveJob& live) const {
  const v1::Job& job = live.job.proto();
  RunningJob running;
  running.id = job.id();
  running.user = job.user();
  running.priority = job.spec().resources().priority();
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (std::find(live.devices.begin(), live.devices.end(), devices_[i].device.id()) != live.devices.end()) {
      running.devices.push_back(static_cast<int>(i));
    }
  }
  running.share = Shares(job);
  running.memory_bytes = running.share ? PlannedBytes(job) : 0;
  running.start = live.held_since;
  running.end = ExpectedEnd(live);
  const bool can_be_told = live.connection != nullptr && live.welcomed && !LeftRunningLately(live);
  running.preemptible = job.spec().resources().preemptible() && job.state() == v1::Job::RUNNING && can_be_told;
  running.overtook = live.job.record().overtook;
  running.stopping = live.stop != Stop::kNone || live.finished || job.state() == v1::Job::CANCELLING ||
                     job.state() == v1::Job::PREEMPTING;
  const bool is_asked = job.state() == v1::Job::PREEMPTING && live.stop == Stop::kNone;
  if (is_asked || live.stop == Stop::kPreempt) running.stops_for = live.preempted_for;
  running.checkpoint_time = live.job.record().checkpoint_time;
  if (job.sweep().max_parallel() > 0) running.sweep_id = job.sweep().sweep_id();
  return running;
}

double ControllerCore::DevicesOf(const LiveJob& live) const {
  if (!Shares(live.job.proto()) || live.devices.empty()) return static_cast<double>(live.devices.size());
  for (const DeviceState& device : snapshot_.devices) {
    if (device.id != live.devices[0] || device.share_bytes <= 0) continue;
    return std::min(1.0, static_cast<double>(PlannedBytes(live.job.proto())) / static_cast<double>(device.share_bytes));
  }
  return 1;
}

// What has only begun counts as the charge of its start, so that devices that become free together are shared.
double ControllerCore::UnchargedSeconds(const LiveJob& live) const {
  const absl::Time now = SteadyNow();
  const absl::Duration held = live.charged_until ? clock_->Monotonic() - *live.charged_until : absl::ZeroDuration();
  return std::max(DecayedSeconds(now - held, now, now, usage_.half_life()),
                  absl::ToDoubleSeconds(options_.scheduling.start_charge - live.charged));
}

void ControllerCore::FillSnapshot() {
  const absl::Time now = SteadyNow();
  snapshot_.queue = &queue_;
  snapshot_.draining = draining_->load();
  snapshot_.no_space = Shortage();
  snapshot_.policy = options_.scheduling;
  snapshot_.policy.stop_grace = options_.preempt_grace;
  AddDevices(&snapshot_);
  snapshot_.usage.clear();
  for (const std::string& user : queue_.users()) snapshot_.usage[user] = usage_.At(user, now);
  snapshot_.running.clear();
  std::set<std::string> seen;
  for (const DeviceSlot& slot : devices_) {
    for (const std::string& id : slot.job_ids) {
      const LiveJob* live = Find(id);
      if (live == nullptr || !seen.insert(id).second) continue;
      snapshot_.running.push_back(RunningOf(*live));
      snapshot_.usage[live->job.proto().user()] += DevicesOf(*live) * UnchargedSeconds(*live);
    }
  }
}

void ControllerCore::Schedule() {
  // Who was asked to stop is gone after its grace, which reasons and estimated starts are to tell. It is not asked
  // again, so this ends.
  bool has_asked = true;
  while (has_asked) {
    has_asked = false;
    SyncQueue();
    queue_.Release(clock_->Now());
    FillSnapshot();
    decision_ = Pick(snapshot_, SteadyNow());
    estimates_.reset();
    for (const Assignment& assignment : decision_.start) StartJob(*Find(assignment.job_id), assignment);
    std::set<std::string> asked_for;
    for (const Preemption& preemption : decision_.preempt) {
      if (Preempt(*Find(preemption.job_id), preemption.for_job)) asked_for.insert(preemption.for_job);
    }
    for (const std::string& for_job : asked_for) StopIfReady(AskedFor(for_job));
    has_asked = !asked_for.empty();
  }
  needs_schedule_ = false;
  ArmRelease();
  ArmRound();
  PublishQueue();
  PublishDevices();
}

void ControllerCore::PublishQueue() const {
  if (metrics_ == nullptr) return;
  QueueFigures figures;
  figures.by_reason = CountReasons(snapshot_, decision_);
  const QueuedJob* oldest = OldestJob(queue_);
  const auto live = oldest == nullptr ? live_.end() : live_.find(oldest->id);
  if (live != live_.end()) figures.oldest = FromTimestamp(live->second.job.proto().create_time());
  metrics_->SetQueue(figures);
}

absl::Status ControllerCore::CheckQueueQuota(const std::string& user, int more) {
  const int64_t limit = options_.max_queued_jobs_per_user;
  // Others of this round may have been taken since the last.
  if (limit > 0) SyncQueue();
  const auto inserting = inserting_.find(user);
  const int64_t queued =
      static_cast<int64_t>(queue_.SizeOf(user)) + (inserting == inserting_.end() ? 0 : inserting->second);
  const auto held = paused_.find(user);
  const int64_t paused = held == paused_.end() ? 0 : static_cast<int64_t>(held->second.size());
  if (limit <= 0 || queued + paused + more <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(user.empty() ? "there are " : absl::StrCat(user, " has "), queued,
                                                   " queued and ", paused, " paused jobs, and ", more,
                                                   " more; a user may have ", limit, " (max_queued_jobs_per_user)"));
}

void ControllerCore::NotePaused(const LiveJob& live) {
  const std::string& user = live.job.proto().user();
  if (live.job.state() == v1::Job::PAUSED) {
    paused_[user].insert(live.job.id());
  } else if (const auto held = paused_.find(user); held != paused_.end()) {
    held->second.erase(live.job.id());
    if (held->second.empty()) paused_.erase(held);
  }
}

void ControllerCore::Inserted(const std::string& user) {
  const auto inserting = inserting_.find(user);
  if (inserting != inserting_.end() && --inserting->second == 0) inserting_.erase(inserting);
}

// Schedules again when the next not_before has come. Timers go by the clock that stands still in a suspend and that
// nobody sets, so the wall clock is looked at again before long.
void ControllerCore::ArmRelease() {
  const absl::Time next = queue_.NextRelease();
  if (next == release_at_) return;
  timers_.Cancel(&release_timer_);
  release_at_ = next;
  if (next == absl::InfiniteFuture()) return;
  release_timer_ = timers_.Add(clock_->Monotonic() + std::min(next - clock_->Now(), kWallClockPeriod), [this] {
    release_timer_ = 0;
    release_at_ = absl::InfiniteFuture();
    if (queue_.NextRelease() <= clock_->Now()) {
      needs_schedule_ = true;
    } else {
      ArmRelease();
    }
  });
}

// What runs may be stopped later that may not be now, without a change of any job: it has run its time then, or its
// checkpoints are quick again.
void ControllerCore::ArmRound() {
  if (round_timer_ != 0 || queue_.size() == queue_.held() || snapshot_.running.empty()) return;
  round_timer_ = timers_.Add(clock_->Monotonic() + kRoundPeriod, [this] {
    round_timer_ = 0;
    needs_schedule_ = true;
  });
}

void ControllerCore::StartJob(LiveJob& live, const Assignment& assignment) {
  queue_.Remove(live.job.id());
  CountIdle();
  int threads = 0;
  for (const std::string& device : assignment.device_ids) {
    DeviceSlot* slot = FindDevice(device);
    slot->job_ids.push_back(live.job.id());
    threads += slot->device.threads();
  }
  live.devices = assignment.device_ids;
  live.held_since = SteadyNow();
  live.has_worker = true;
  live.launched = false;
  live.adopted = false;
  live.finished = false;
  live.stop = Stop::kNone;
  live.exit.reset();
  live.durable_number = 0;
  live.meter.emplace(threads);
  live.evaluated_samples = 0;
  live.token = NewCredential();
  Enter(live, v1::Job::STARTING, absl::StrCat("on ", absl::StrJoin(live.devices, ", ")));
  JobRecord& record = live.job.MutableRecord();
  for (const std::string& device : live.devices) record.job.add_devices(device);
  record.worker = WorkerProcess();
  record.worker_number = 0;
  record.overtook = assignment.overtook;
  record.token_hash = Sha256(live.token);
  record.session_key_hash.clear();
  StartCharging(live, clock_->Monotonic());
}

// The longest, where each one before the last counts by half of what it counted: one that was slow, on a disk that was
// busy, is forgotten after a few.
void ControllerCore::NoteCheckpoint(LiveJob& live, const v1::CheckpointSaved& checkpoint) {
  if (!std::isfinite(checkpoint.write_seconds()) || checkpoint.write_seconds() < 0) return;
  const absl::Duration took = absl::Seconds(checkpoint.write_seconds());
  JobRecord& record = live.job.MutableRecord();
  record.checkpoint_time = std::max(record.checkpoint_time.value_or(absl::ZeroDuration()) / 2, took);
}

// Part of the job's next write.
void ControllerCore::ChargeUsage(LiveJob& live, absl::Duration held) {
  if (live.devices.empty() || held <= absl::ZeroDuration()) return;
  const absl::Time now = clock_->Now(), steady = SteadyNow();
  const double devices = DevicesOf(live);
  usage_.Add(live.job.proto().user(), devices, steady - held, steady);
  // The next daemon has only the wall clock in common with this one.
  live.job.AddToCounters(UsageCounters(live.job.proto().user(), devices, now - held, now));
}

absl::Status ControllerCore::RestoreUsage() {
  const auto counters = store_->Await([](const Database& database) { return database.Counters(); });
  if (!counters.ok()) return counters.status();
  for (const auto& [name, value] : *counters) AddUsageCounter(name, value, SteadyNow(), &usage_);
  std::vector<std::string> forgotten = ForgottenUsage(*counters, SteadyNow(), usage_.half_life());
  // What cannot be written now is forgotten by a later daemon.
  if (!forgotten.empty()) {
    store_->Change([forgotten = std::move(forgotten)](Database& db) { return db.RemoveCounters(forgotten); },
                   [](const absl::Status&) {});
  }
  RestoreOwed(*counters);
  return absl::OkStatus();
}

v1::Job ControllerCore::WithQueueInfo(v1::Job job) const {
  if (job.state() != v1::Job::QUEUED) return job;
  const QueuedJob* queued = queue_.Find(job.id());
  if (queued == nullptr) {
    const auto live = live_.find(job.id());
    if (live == live_.end() || !live->second.has_worker) return job;
    // It has left the queue, and that is not durable yet.
    if (live->second.job.state() != v1::Job::QUEUED) return job;
    job.set_queue_reason(v1::Job::RESOURCES);
    job.set_queue_message(absl::StrCat("the process of attempt ", job.attempt(), " is ending"));
    return job;
  }
  const QueueInfo info = Describe(snapshot_, decision_, *queued);
  job.set_queue_position(static_cast<int32_t>(std::min<int64_t>(info.position, INT32_MAX)));
  job.set_queue_reason(info.reason);
  job.set_queue_message(info.reason == v1::Job::DEPENDENCY ? DescribeDependencies(*queued) : info.message);
  if (!estimates_) estimates_ = EstimateStarts(snapshot_, decision_, SteadyNow(), kEstimated);
  const auto estimate = estimates_->find(job.id());
  if (estimate == estimates_->end()) return job;
  const absl::Duration left = std::max(absl::ZeroDuration(), estimate->second - SteadyNow());
  *job.mutable_estimated_start_time() = TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(clock_->Now() + left));
  return job;
}

}  // namespace ampd
