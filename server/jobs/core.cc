#include "server/jobs/core.h"

#include "engine/core/status.h"
#include "server/jobs/credentials.h"
#include "server/metrics/metrics.h"

namespace ampd {
namespace {

constexpr absl::Duration kWriteRetry = absl::Seconds(1);

}  // namespace

ControllerCore::ControllerCore(ControllerOptions options, Store* store, EventLog* log, Launcher* launcher,
                               Metrics* metrics, const Clock* clock, std::function<void(std::function<void()>)> post,
                               std::atomic<bool>* draining)
    : options_(std::move(options)),
      store_(store),
      log_(log),
      launcher_(launcher),
      metrics_(metrics),
      clock_(clock),
      post_(std::move(post)),
      draining_(draining) {
  for (const v1::Device& device : options_.devices) devices_.push_back({device, ""});
}

LiveJob* ControllerCore::Find(const std::string& id) {
  const auto it = live_.find(id);
  return it == live_.end() ? nullptr : &it->second;
}

TimerId ControllerCore::After(absl::Duration delay, const LiveJob& live, void (ControllerCore::*action)(LiveJob&)) {
  return timers_.Add(clock_->Monotonic() + delay, [this, id = live.job.id(), action] {
    if (LiveJob* found = Find(id)) (this->*action)(*found);
  });
}

void ControllerCore::Enter(LiveJob& live, v1::Job::State to, const std::string& reason, const v1::Failure* failure) {
  const absl::Status status = live.job.TransitionTo(to, reason, clock_->Now(), failure);
  if (!status.ok()) Log(std::string(status.message()));
  needs_schedule_ = true;
  Touch(live);
}

void ControllerCore::Log(const std::string& text) const {
  if (options_.log) options_.log(text);
}

void ControllerCore::Settle() {
  if (needs_schedule_) Schedule();
  for (const std::string& id : std::exchange(touched_, {})) {
    LiveJob* live = Find(id);
    if (live == nullptr) continue;
    Flush(*live);
    const bool over = IsTerminal(live->job.state()) && !live->has_worker;
    if (over && !live->job.dirty() && !live->job.in_flight()) live_.erase(id);
  }
  CheckDrained();
}

void ControllerCore::Flush(LiveJob& live) {
  if (!live.job.dirty() && !live.job.in_flight()) {
    for (const Waiter& waiter : std::exchange(live.waiters, {})) waiter(absl::OkStatus());
  }
  if (!live.job.dirty() || live.job.in_flight() || live.write_timer != 0) return;
  JobWrite write = live.job.TakeWrite();
  auto flight = std::make_shared<Flight>(Flight{live.job.id(), write.record.job.attempt(), write.record.job.state(),
                                                write.record.worker_number, live.finished,
                                                write.record.session_key_hash, std::exchange(live.waiters, {})});
  log_->Append(std::move(write), [this, flight](const absl::Status& status) {
    post_([this, flight, status] { Written(std::move(*flight), status); });
  });
}

void ControllerCore::RetryWrite(LiveJob& live) {
  live.write_timer = 0;
  Touch(live);
}

void ControllerCore::Written(Flight flight, const absl::Status& status) {
  LiveJob* live = Find(flight.job_id);
  live->job.WriteDone(status.ok());
  Touch(*live);
  if (status.ok()) {
    AfterDurable(*live, flight);
  } else {
    Log(absl::StrCat("job ", flight.job_id, ": not written, trying again: ", std::string(status.message())));
    live->write_timer = After(kWriteRetry, *live, &ControllerCore::RetryWrite);
  }
  for (const Waiter& waiter : flight.waiters) waiter(status);
}

void ControllerCore::AfterDurable(LiveJob& live, const Flight& flight) {
  if (flight.attempt != live.job.proto().attempt()) return;
  live.durable_number = flight.number;
  if (flight.state == v1::Job::STARTING && live.job.state() == v1::Job::STARTING && !live.launched) Launch(live);
  if (live.connection == nullptr) return;
  if (!live.welcomed) {
    if (flight.session_key_hash == live.job.record().session_key_hash) Welcome(live);
    return;
  }
  v1::DaemonMessage message;
  message.set_acknowledged_number(flight.number);
  live.connection->Send(message);
  if (!flight.finished) return;
  message.mutable_goodbye();
  live.connection->Send(std::move(message));
}

void ControllerCore::Schedule() {
  needs_schedule_ = false;
  SchedulingSnapshot snapshot;
  snapshot.draining = draining_->load();
  for (auto& [id, live] : live_) {
    // The process of the attempt before must be gone: both would write the same checkpoints.
    if (live.job.state() == v1::Job::QUEUED && !live.has_worker) {
      snapshot.queued.push_back({id, live.job.record().submit_sequence, UnusableDevices(live)});
    }
  }
  AddDevices(&snapshot);
  const Decision decision = Pick(snapshot, clock_->Now());
  waiting_.clear();
  for (const Waiting& waiting : decision.wait) waiting_[waiting.job_id] = {waiting.position, waiting.reason};
  for (const Assignment& assignment : decision.start) StartJob(*Find(assignment.job_id), assignment.device_id);
  needs_schedule_ = false;
  if (metrics_ != nullptr) metrics_->SetQueueDepth(static_cast<int64_t>(decision.wait.size()));
  PublishDevices();
}

void ControllerCore::StartJob(LiveJob& live, const std::string& device) {
  DeviceSlot* slot = FindDevice(device);
  slot->job_id = live.job.id();
  live.device = device;
  live.has_worker = true;
  live.launched = false;
  live.adopted = false;
  live.finished = false;
  live.stop = Stop::kNone;
  live.exit.reset();
  live.durable_number = 0;
  live.meter.emplace(slot->device.threads());
  live.token = NewCredential();
  Enter(live, v1::Job::STARTING, absl::StrCat("on ", device));
  JobRecord& record = live.job.MutableRecord();
  record.job.add_devices(device);
  record.worker = WorkerProcess();
  record.worker_number = 0;
  record.token_hash = Sha256(live.token);
  record.session_key_hash.clear();
}

}  // namespace ampd
