#include "server/jobs/core.h"

#include "engine/core/status.h"

namespace ampd {
namespace {

constexpr absl::Duration kWriteRetry = absl::Seconds(1);
// Of what a damaged database does not take: it takes other jobs' changes, and heals by no waiting.
constexpr absl::Duration kDamageRetry = absl::Minutes(5);

}  // namespace

ControllerCore::ControllerCore(ControllerOptions options, Store* store, EventLog* log, Launcher* launcher,
                               Metrics* metrics, const Clock* clock, Poster post, Poster post_answer,
                               std::atomic<bool>* draining)
    : options_(std::move(options)),
      starts_(options_.start_root),
      store_(store),
      log_(log),
      launcher_(launcher),
      metrics_(metrics),
      clock_(clock),
      begin_(clock->Now()),
      begin_monotonic_(clock->Monotonic()),
      post_(std::move(post)),
      post_answer_(std::move(post_answer)),
      draining_(draining),
      usage_(options_.usage_half_life),
      idle_until_(clock->Monotonic()),
      disk_shortage_(options_.disk_shortage) {
  for (const v1::Device& device : options_.devices) devices_.push_back({device, {}});
  AddDevices(&snapshot_);
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
  live.job.Tick(clock_->Monotonic());
  const absl::Status status = live.job.TransitionTo(to, reason, clock_->Now(), failure);
  if (!status.ok()) Log(std::string(status.message()), About(live));
  NoteDatasets(live);
  NotePaused(live);
  needs_schedule_ = true;
  Touch(live);
}

void ControllerCore::Log(const std::string& text, const LogSubject& about) const {
  if (options_.log) options_.log(text, about);
}

void ControllerCore::Settle() {
  // What is forgotten lets others start, or ends them.
  do {
    if (needs_schedule_) Schedule();
    AnswerInserted();
    for (const std::string& id : std::exchange(touched_, {})) {
      LiveJob* live = Find(id);
      if (live == nullptr) continue;
      Flush(*live);
      ForgetIfOver(*live);
    }
  } while (needs_schedule_ || !touched_.empty());
  CheckDrained();
  CheckDetached();
}

void ControllerCore::ForgetIfOver(const LiveJob& live) {
  const bool over = IsTerminal(live.job.state()) && !live.has_worker;
  if (!over || live.job.dirty() || live.job.in_flight()) return;
  const std::string id = live.job.id();
  if (live.job.proto().spec().has_start_from()) starts_.Release(id);
  ForgetDependencies(live);
  live_.erase(id);
}

void ControllerCore::Flush(LiveJob& live) {
  if (!live.job.dirty() && !live.job.in_flight()) {
    for (const Waiter& waiter : std::exchange(live.waiters, {})) waiter(absl::OkStatus());
  }
  // Who asks is told at once what keeps the change out.
  if (live.write_damaged && !live.waiters.empty()) timers_.Cancel(&live.write_timer);
  if (!live.job.dirty() || live.job.in_flight() || live.write_timer != 0) return;
  live.job.Tick(clock_->Monotonic());
  Charge(live);
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
  live->write_damaged = absl::IsDataLoss(status);
  NoteStoreWrite(status);
  Touch(*live);
  if (status.ok()) {
    AfterDurable(*live, flight);
  } else {
    Log(absl::StrCat("not written, trying again: ", std::string(status.message())), About(*live));
    const absl::Duration wait = absl::IsDataLoss(status) ? kDamageRetry : kWriteRetry;
    live->write_timer = After(wait, *live, &ControllerCore::RetryWrite);
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

}  // namespace ampd
