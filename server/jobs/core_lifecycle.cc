// How attempts begin and end.
#include <string.h>

#include <algorithm>
#include <random>

#include "engine/core/status.h"
#include "server/jobs/core.h"
#include "server/jobs/retry_policy.h"
#include "server/launch/worker_contract.h"
#include "server/scheduling/capability.h"

namespace ampd {
namespace {

// That a job which is to leave a drained device has for a checkpoint.
constexpr int kMoveGraces = 10;
constexpr absl::Duration kAfterKill = absl::Seconds(10);
// Workers lost together with the daemon, in a row and without a checkpoint between, that are not held against the job.
constexpr int kForgivenLosses = 3;

std::string Describe(const std::optional<WorkerExit>& exit) {
  if (exit && exit->signal != 0) {
    const char* name = sigabbrev_np(exit->signal);
    return absl::StrCat("the worker was ended by signal ", exit->signal, name == nullptr ? "" : " (SIG",
                        name == nullptr ? "" : name, name == nullptr ? "" : ")");
  }
  if (exit && exit->exit_status >= 0) {
    return absl::StrCat("the worker exited with status ", exit->exit_status, " without reporting an outcome");
  }
  return "the worker ended without reporting an outcome";
}

}  // namespace

absl::Status ControllerCore::Recover() {
  AMPD_ASSIGN_OR_RETURN(last_submit_sequence_,
                        store_->Await([](const Database& database) { return database.LastSubmitSequence(); }));
  AMPD_ASSIGN_OR_RETURN(const std::string last_id,
                        store_->Await([](const Database& database) { return database.LastJobId(); }));
  ids_.StartAfter(last_id);
  AMPD_ASSIGN_OR_RETURN(std::vector<JobRecord> records,
                        store_->Await([](const Database& database) { return database.ActiveJobs(); }));
  AMPD_RETURN_IF_ERROR(RecoverDrains());
  std::set<std::string> ids;
  for (const JobRecord& record : records) ids.insert(record.job.id());
  starts_.KeepOnly(ids);
  AMPD_RETURN_IF_ERROR(RestoreUsage());
  for (JobRecord& record : records) RecoverJob(std::move(record));
  std::set<std::string> ended;
  for (auto& [id, live] : live_) {
    ended.merge(AddDependencies(live));
    Touch(live);
  }
  LookUpDependencies(ended);
  for (const FoundWorker& found : launcher_->FindWorkers()) AdoptOrEnd(found);
  for (auto& [id, live] : live_) {
    if (!NeverBegan(live)) continue;
    if (live.stop == Stop::kNone) live.stop = Stop::kNotLaunched;
    WorkerGone(live);
  }
  StoreIdle();
  return absl::OkStatus();
}

void ControllerCore::RecoverJob(JobRecord record) {
  const std::string id = record.job.id();
  LiveJob& live = live_.emplace(id, LiveJob(Job(std::move(record)))).first->second;
  NoteDatasets(live);
  NotePaused(live);
  if (HoldsDevice(live.job.state())) return RecoverWorker(live);
  // The attempt is over and that is durable: its process has nothing left to say.
  if (live.job.record().worker.pid != 0) {
    KillUntilGone(std::exchange(live.job.MutableRecord().worker, WorkerProcess()));
    Touch(live);
  }
  if (live.job.state() == v1::Job::RETRYING) {
    live.retry_timer = After(BackOff(live), live, &ControllerCore::RetryNow);
  }
  if (live.job.state() == v1::Job::PAUSED) {
    live.space_timer = After(absl::ZeroDuration(), live, &ControllerCore::ResumeForSpace);
  }
}

void ControllerCore::RecoverWorker(LiveJob& live) {
  live.has_worker = true;
  live.launched = true;
  live.adopted = true;
  int threads = 0;
  for (const std::string& device : live.job.proto().devices()) {
    live.devices.push_back(device);
    DeviceSlot* slot = FindDevice(device);
    if (slot == nullptr) continue;
    slot->job_ids.push_back(live.job.id());
    threads += slot->device.threads();
  }
  // When a later attempt began is not known any more.
  const v1::Job& job = live.job.proto();
  live.held_since = SteadyNow();
  if (job.attempt() == 1 && job.has_start_time()) {
    live.held_since = std::min(live.held_since, absl::FromUnixSeconds(job.start_time().seconds()));
  }
  live.meter.emplace(threads);
  const WorkerProcess process = live.job.record().worker;
  if (process.pid != 0 && !launcher_->IsAlive(process)) {
    // How long it held them after the last write is not known: nothing is charged for it.
    live.job.StopRunClock();
    live.stop = Stop::kLost;
    return WorkerGone(live);
  }
  // It held its devices while no daemon was there.
  const absl::Duration now = clock_->Monotonic();
  StartCharging(live, std::min(now, live.job.record().run_counted.value_or(now)));
  if (live.job.proto().pause_reason() != v1::Job::PAUSE_REASON_UNSPECIFIED) {
    live.stop = Stop::kPause;
  } else if (MustLeave(live)) {
    live.stop = Stop::kMove;
  }
  if (live.job.state() == v1::Job::CANCELLING) {
    AskToStop(live, Stop::kCancel);
  } else if (live.job.state() != v1::Job::RECOVERING) {
    Enter(live, v1::Job::RECOVERING, "the daemon restarted");
  }
  // Without a pid it is not known whether a worker was started: one that was dials in soon.
  live.attach_timer =
      After(process.pid != 0 ? options_.reattach_timeout : options_.start_timeout, live, &ControllerCore::OnNoAttach);
  if (process.pid != 0) live.poll_timer = After(kPollInterval, live, &ControllerCore::Poll);
  // The daemon before may have ended before it did so.
  if (live.job.record().cancel_now) Kill(live);
}

void ControllerCore::Launch(LiveJob& live) {
  LaunchRequest request{live.job.id(), live.job.proto().attempt(), std::exchange(live.token, ""), {}};
  for (const std::string& device : live.devices) {
    const DeviceSlot* slot = FindDevice(device);
    if (slot != nullptr && slot->device.kind() == v1::Device::CUDA) request.gpus.push_back(device);
  }
  const absl::StatusOr<WorkerProcess> process = launcher_->Launch(request);
  if (!process.ok()) {
    live.finished = true;
    const bool full = absl::IsResourceExhausted(process.status());
    Fail(live, full ? v1::Failure::DISK_FULL : v1::Failure::INTERNAL,
         absl::StrCat("the worker was not started: ", process.status().message()));
    return WorkerGone(live);
  }
  live.launched = true;
  live.job.MutableRecord().worker = *process;
  live.attach_timer = After(options_.start_timeout, live, &ControllerCore::OnNoAttach);
  Touch(live);
}

void ControllerCore::OnNoAttach(LiveJob& live) {
  live.attach_timer = 0;
  if (live.stop == Stop::kNone) live.stop = live.adopted ? Stop::kLost : Stop::kNoAttach;
  if (live.job.record().worker.pid == 0) return WorkerGone(live);
  Kill(live);
}

void ControllerCore::Finish(LiveJob& live, const v1::WorkerFinished& finished) {
  live.finished = true;
  EndCheckpointWaiters(live, finished.outcome() == v1::WorkerFinished::SUCCEEDED);
  EndProfileWaiters(live);
  timers_.Cancel(&live.heartbeat_timer);
  timers_.Cancel(&live.run_timer);
  timers_.Cancel(&live.preempt_timer);
  timers_.Cancel(&live.cost_timer);
  timers_.Cancel(&live.stop_timer);
  live.stop_timer = After(options_.stop_grace, live, &ControllerCore::Kill);
  if (live.job.state() == v1::Job::CANCELLING) return Enter(live, v1::Job::CANCELLED, CancelReason(live));
  switch (finished.outcome()) {
    case v1::WorkerFinished::SUCCEEDED:
      return Enter(live, v1::Job::SUCCEEDED, finished.reason());
    case v1::WorkerFinished::STOPPED:
      if (live.stop == Stop::kLimit || live.stop == Stop::kCost) return DecideUnfinished(live);
      if (live.stop == Stop::kPreempt) return RequeuePreempted(live);
      if (live.stop == Stop::kMove) return Requeue(live, "its device is drained");
      return Requeue(live, live.stop == Stop::kDrain ? StoppedWithDaemon() : "the worker stopped");
    case v1::WorkerFinished::FAILED:
      if (finished.failure().class_() == v1::Failure::DISK_FULL &&
          (live.stop == Stop::kLimit || live.stop == Stop::kCost)) {
        // Its last checkpoint did not fit; it would only be stopped again.
        return DecideUnfinished(live);
      }
      return Fail(live, finished.failure().class_(), finished.failure().message());
    default:
      return Fail(live, v1::Failure::INTERNAL, "the worker finished without an outcome");
  }
}

void ControllerCore::Fail(LiveJob& live, v1::Failure::Class failure_class, const std::string& message) {
  if (failure_class == v1::Failure::DISK_FULL) return PauseForSpace(live, message);
  JobRecord& record = live.job.MutableRecord();
  const int failures = static_cast<int>(record.job.failures()) + 1;
  record.job.set_failures(failures);
  v1::Failure failure;
  failure.set_class_(failure_class == v1::Failure::CLASS_UNSPECIFIED ? v1::Failure::INTERNAL : failure_class);
  failure.set_message(message);
  const auto& retry = record.job.spec().retry();
  const int max_attempts = retry.has_max_attempts() ? retry.max_attempts() : 3;
  if (failure.class_() == v1::Failure::OUT_OF_MEMORY && FitsNowhere(live)) {
    failure.set_message(absl::StrCat(message, "; no device here that could run it has as much: it is not tried again"));
    return Enter(live, v1::Job::FAILED, "", &failure);
  }
  if (!ShouldRetry(failure.class_(), failures, max_attempts)) return Enter(live, v1::Job::FAILED, "", &failure);
  const absl::Duration delay = BackOff(live);
  Enter(live, v1::Job::RETRYING,
        absl::StrCat("failure ", failures, " of ", max_attempts, ", again in ", absl::FormatDuration(delay)), &failure);
  if (live.job.proto().pause_reason() != v1::Job::PAUSE_REASON_UNSPECIFIED) return Requeue(live, "");
  live.retry_timer = After(delay, live, &ControllerCore::RetryNow);
}

bool ControllerCore::FitsNowhere(LiveJob& live) const {
  const DeviceSet& usable = UsableDevices(live);
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (usable[i] && !ExceedsMemory(live.job.proto().plan(), devices_[i].device)) return false;
  }
  return true;
}

absl::Duration ControllerCore::BackOff(const LiveJob& live) const {
  const v1::Job& job = live.job.proto();
  return RetryDelay(job.spec().retry(), static_cast<int>(job.failures()), Draw());
}

double ControllerCore::Draw() const {
  static std::mt19937_64& random = *new std::mt19937_64(std::random_device()());
  return options_.draw ? options_.draw() : std::uniform_real_distribution(0.0, 1.0)(random);
}

void ControllerCore::RetryNow(LiveJob& live) {
  live.retry_timer = 0;
  Enter(live, v1::Job::QUEUED, "retry");
}

void ControllerCore::AskToStop(LiveJob& live, Stop reason) {
  live.stop = reason;
  timers_.Cancel(&live.stop_timer);
  live.stop_timer = After(options_.stop_grace, live, &ControllerCore::Kill);
  if (live.connection != nullptr && live.welcomed) SendStop(live);
}

void ControllerCore::SendStop(LiveJob& live) {
  SendCommand(live, v1::DaemonCommand::CHECKPOINT_AND_STOP);
  if (live.stop != Stop::kPreempt && live.stop != Stop::kMove) return;
  // Said again to a worker that comes back it has no more time than it had. One that leaves a drained device may
  // evaluate, or write for the first time, before it writes the checkpoint that keeps its work.
  const bool may_lose = live.stop == Stop::kMove && !live.job.proto().spec().has_bench();
  if (live.stop_timer == 0) ArmStop(live, may_lose ? kMoveGraces : 1);
}

void ControllerCore::Kill(LiveJob& live) {
  // Left alone it would kill the worker of the next attempt.
  timers_.Cancel(&live.stop_timer);
  if (!live.has_worker || live.exit) return;
  const WorkerProcess process = live.job.record().worker;
  if (process.pid == 0) return WorkerGone(live);
  Log(absl::StrCat("killing its worker, pid ", process.pid), About(live));
  live.killed = true;
  launcher_->Kill(process);
  if (live.poll_timer == 0) live.poll_timer = After(kPollInterval, live, &ControllerCore::Poll);
}

void ControllerCore::ArmLimits(LiveJob& live) {
  ArmCostLimit(live);
  const auto& limits = live.job.proto().spec().limits();
  if (!limits.has_max_run_seconds() || live.run_timer != 0) return;
  live.job.Tick(clock_->Monotonic());
  const absl::Duration left = absl::Seconds(limits.max_run_seconds()) - live.job.RunTime();
  live.run_timer = After(left, live, &ControllerCore::OnRunLimit);
}

void ControllerCore::OnRunLimit(LiveJob& live) {
  live.run_timer = 0;
  if (LimitHolds(live)) AskToStop(live, Stop::kLimit);
}

bool ControllerCore::LimitHolds(const LiveJob& live) {
  const v1::Job::State state = live.job.state();
  if (live.finished || (state != v1::Job::RUNNING && state != v1::Job::PREEMPTING)) return false;
  return live.stop == Stop::kNone || live.stop == Stop::kPause || live.stop == Stop::kMove ||
         live.stop == Stop::kPreempt;
}

// Sees the end of processes whose end nobody reports.
void ControllerCore::Poll(LiveJob& live) {
  live.poll_timer = 0;
  const WorkerProcess process = live.job.record().worker;
  if (!live.has_worker || live.exit || process.pid == 0) return;
  if (!launcher_->IsAlive(process)) return Exited(process, WorkerExit());
  if (live.killed) launcher_->Kill(process);
  live.poll_timer = After(kPollInterval, live, &ControllerCore::Poll);
}

void ControllerCore::CancelTimers(LiveJob& live) {
  for (TimerId* timer : {&live.attach_timer, &live.heartbeat_timer, &live.stop_timer, &live.run_timer, &live.exit_timer,
                         &live.poll_timer, &live.preempt_timer, &live.cost_timer}) {
    timers_.Cancel(timer);
  }
}

void ControllerCore::WorkerGone(LiveJob& live) {
  if (!live.has_worker) return;
  CancelTimers(live);
  CloseConnection(live, absl::FailedPreconditionError("the attempt is over"));
  Charge(live);
  ReleaseDevices(live);
  EndCheckpointWaiters(live, false);
  EndProfileWaiters(live);
  live.charged_until.reset();
  live.meter.reset();
  live.has_worker = false;
  live.killed = false;
  JobRecord& record = live.job.MutableRecord();
  record.worker = WorkerProcess();
  record.token_hash.clear();
  record.session_key_hash.clear();
  if (!live.finished) DecideUnfinished(live);
  needs_schedule_ = true;
  Touch(live);
}

void ControllerCore::DecideUnfinished(LiveJob& live) {
  if (live.job.state() == v1::Job::CANCELLING) return Enter(live, v1::Job::CANCELLED, CancelReason(live));
  const bool orphaned = live.stop == Stop::kNone && live.exit && live.exit->exit_status == kWorkerOrphaned;
  const bool lost =
      live.stop == Stop::kLost || orphaned || (live.stop == Stop::kNone && live.job.state() == v1::Job::RECOVERING);
  if (lost && ++live.job.MutableRecord().lost_attempts <= kForgivenLosses) {
    return Requeue(live, orphaned ? "the worker stopped: it did not reach the daemon"
                                  : "the worker was lost while the daemon was away");
  }
  if (lost) {
    return Fail(live, v1::Failure::WORKER_CRASH,
                absl::StrCat("worker and daemon lost each other ", live.job.record().lost_attempts,
                             " times in a row without a checkpoint"));
  }
  switch (live.stop) {
    case Stop::kNotLaunched:
      return Requeue(live, "the daemon ended before it launched a worker");
    case Stop::kDrain:
      return Requeue(live, StoppedWithDaemon());
    case Stop::kPause:
      return Requeue(live, "");
    case Stop::kMove:
      return Requeue(live, "its device is drained");
    case Stop::kPreempt:
      return RequeuePreempted(live);
    case Stop::kLimit:
      return Fail(live, v1::Failure::LIMIT,
                  absl::StrCat("limits.max_run_seconds: ran for more than ",
                               live.job.proto().spec().limits().max_run_seconds(), " s"));
    case Stop::kCost:
      return Fail(live, v1::Failure::LIMIT, CostLimitText(live));
    case Stop::kNoHeartbeat:
      return Fail(live, v1::Failure::WORKER_CRASH,
                  absl::StrCat("no sign of life from the worker for ", absl::FormatDuration(options_.heartbeat_timeout),
                               "; it was killed"));
    case Stop::kNoAttach:
      return Fail(live, v1::Failure::WORKER_CRASH,
                  absl::StrCat("the worker did not attach within ", absl::FormatDuration(options_.start_timeout),
                               "; it was killed"));
    default:
      break;
  }
  const int status = live.exit ? live.exit->exit_status : -1;
  if (status == kWorkerOutOfMemory) return Fail(live, v1::Failure::OUT_OF_MEMORY, "the worker ran out of memory");
  Fail(live, v1::Failure::WORKER_CRASH, Describe(live.exit));
}

std::string ControllerCore::StoppedWithDaemon() const {
  return absl::StrCat("stopped with the daemon", drain_reason_.empty() ? "" : ": ", drain_reason_);
}

int ControllerCore::Workers() const {
  return static_cast<int>(std::count_if(
      live_.begin(), live_.end(), [](const auto& entry) { return entry.second.has_worker && !entry.second.finished; }));
}

void ControllerCore::Drain(absl::Duration timeout, const std::string& reason, std::function<void(absl::Status)> done) {
  const bool first = !draining_->exchange(true);
  if (first) drain_reason_ = reason;
  drain_done_.push_back(std::move(done));
  needs_schedule_ = true;
  // Of several the first to run out counts.
  timers_.Add(clock_->Monotonic() + timeout, [this] { OnDrainTimeout(); });
  if (!first) return;
  for (auto& [id, live] : live_) {
    if (!live.has_worker || live.finished || live.job.state() == v1::Job::CANCELLING) continue;
    if (live.stop == Stop::kNone) live.stop = Stop::kDrain;
    if (!live.launched) {
      WorkerGone(live);
    } else if (live.job.state() == v1::Job::STARTING) {
      Kill(live);
    } else if (live.connection != nullptr && live.welcomed && live.stop == Stop::kDrain) {
      SendStop(live);
    }
  }
}

void ControllerCore::OnDrainTimeout() {
  if (!drain_late_.empty()) return;
  std::vector<std::string> late;
  for (auto& [id, live] : live_) {
    if (!live.has_worker) continue;
    late.push_back(id);
    if (live.stop == Stop::kNone) live.stop = Stop::kDrain;
    Kill(live);
  }
  if (late.empty()) late.push_back("none; the state directory cannot be written to");
  for (const std::string& id : late) absl::StrAppend(&drain_late_, drain_late_.empty() ? "" : ", ", id);
  timers_.Add(clock_->Monotonic() + kAfterKill, [this] {
    for (const auto& done : std::exchange(drain_done_, {})) {
      done(absl::DeadlineExceededError(absl::StrCat("still not gone after the drain: ", drain_late_)));
    }
  });
}

void ControllerCore::CheckDrained() {
  if (drain_done_.empty()) return;
  for (const auto& [id, live] : live_) {
    if (live.has_worker || live.job.dirty() || live.job.in_flight()) return;
  }
  if (!std::exchange(idle_of_drain_written_, true)) WriteIdle();
  if (idle_in_flight_) return;
  const absl::Status status =
      drain_late_.empty() ? absl::OkStatus()
                          : absl::DeadlineExceededError(absl::StrCat("killed after the drain's time: ", drain_late_));
  for (const auto& done : std::exchange(drain_done_, {})) done(status);
}

}  // namespace ampd
