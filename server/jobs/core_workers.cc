// The worker link: attaching, events, heartbeats, the end of a stream.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/limits.h"
#include "proto/spec/names.h"
#include "proto/spec/schedule_warnings.h"
#include "server/files/checkpoint_name.h"
#include "server/jobs/core.h"
#include "server/jobs/credentials.h"
#include "server/metrics/metrics.h"

namespace ampd {
namespace {

constexpr uint32_t kProtocol = 1;
// Events of one job that may wait for the store; beyond it the worker keeps them.
constexpr size_t kMaxPendingEvents = 4096;
// Of the heartbeat's time, what is left after the first look.
constexpr absl::Duration kHearingGrace = absl::Seconds(1);
// Time for the rest of a stream after its process ended.
constexpr absl::Duration kExitGrace = absl::Seconds(5);

template <typename Phase>
void AddCounts(const google::protobuf::RepeatedPtrField<Phase>& phases, std::vector<int64_t>* steps) {
  for (const Phase& phase : phases) steps->insert(steps->end(), {phase.steps_applied(), phase.steps_skipped()});
}

// The steps and counts of steps that it tells of; of a measurement its cells, which stand for steps.
std::vector<int64_t> StepsOf(const v1::JobEvent& event) {
  std::vector<int64_t> steps;
  switch (event.payload_case()) {
    case v1::JobEvent::kStep:
      steps = {event.step().first_step(), event.step().last_step()};
      AddCounts(event.step().phases(), &steps);
      return steps;
    case v1::JobEvent::kCheckpoint:
      steps = {event.checkpoint().step()};
      AddCounts(event.checkpoint().phases(), &steps);
      return steps;
    case v1::JobEvent::kOverflowSkip:
      return {event.overflow_skip().step()};
    case v1::JobEvent::kLossScaleChange:
      return {event.loss_scale_change().step()};
    case v1::JobEvent::kPrecisionChange:
      return {event.precision_change().step()};
    case v1::JobEvent::kGradientDiagnostics:
      return {event.gradient_diagnostics().step()};
    case v1::JobEvent::kEvaluation:
      return {event.evaluation().step()};
    case v1::JobEvent::kRewound:
      return {event.rewound().to_step()};
    case v1::JobEvent::kArtifact:
      return {event.artifact().step()};
    case v1::JobEvent::kTextSample:
      return {event.text_sample().step()};
    case v1::JobEvent::kBenchCell:
      return {event.bench_cell().index(), event.bench_cell().total()};
    case v1::JobEvent::kStepProfile:
      return {event.step_profile().first_step(), event.step_profile().last_step()};
    default:
      return steps;
  }
}

// Why it is none of a worker's, which is not to be trusted; empty: it is one.
std::string WrongEvent(const v1::JobEvent& event) {
  if (event.payload_case() == v1::JobEvent::PAYLOAD_NOT_SET || event.has_state_change()) {
    return "is of no kind a worker sends";
  }
  // They are reckoned with, and keys among which the store has a negative one of its own.
  for (const int64_t step : StepsOf(event)) {
    if (step < 0 || step > kMaxSteps) return absl::StrCat("tells of step ", step, ", which no job has");
  }
  // The name becomes a part of paths.
  if (!event.has_checkpoint() || IsCheckpointName(event.checkpoint().checkpoint())) return "";
  return absl::StrCat("tells of a checkpoint ", Quoted(event.checkpoint().checkpoint()), ", which is no name of one");
}

absl::Status AttemptOver(const v1::WorkerHello& hello) {
  return absl::FailedPreconditionError(absl::StrCat("job ", hello.job_id(), ": attempt ", hello.attempt(), " is over"));
}

}  // namespace

void ControllerCore::Attach(const v1::WorkerHello& hello, std::shared_ptr<WorkerConnection> connection) {
  if (hello.min_protocol() > kProtocol || hello.max_protocol() < kProtocol) {
    return connection->Close(
        absl::FailedPreconditionError(absl::StrCat("the worker speaks protocol ", hello.min_protocol(), " to ",
                                                   hello.max_protocol(), ", the daemon ", kProtocol)));
  }
  if (LiveJob* live = Find(hello.job_id())) return AttachLive(*live, hello, std::move(connection));
  AttachEnded(hello, std::move(connection));
}

void ControllerCore::AttachEnded(const v1::WorkerHello& hello, std::shared_ptr<WorkerConnection> connection) {
  // Before the read: a stream that ends meanwhile must not leave its address behind.
  ended_.emplace(connection.get(), false);
  store_->ReadInOrder([this, hello, connection = std::move(connection)](const Database& database) {
    post_([this, hello, connection, record = database.FindJob(hello.job_id())] {
      const auto ended = ended_.find(connection.get());
      if (ended == ended_.end()) return;
      if (!record.ok()) return connection->Close(record.status());
      const bool same = record->job.attempt() == hello.attempt() && record->job.id() == hello.job_id();
      if (!same || record->session_key_hash.empty()) return connection->Close(AttemptOver(hello));
      if (!MatchesHash(hello.credential(), record->session_key_hash)) {
        return connection->Close(absl::UnauthenticatedError("wrong credential"));
      }
      ended->second = true;
      v1::DaemonMessage message;
      v1::DaemonWelcome& welcome = *message.mutable_welcome();
      welcome.set_protocol(kProtocol);
      welcome.set_session_key(hello.credential());
      welcome.set_acknowledged_number(record->worker_number);
      connection->Send(std::move(message));
    });
  });
}

absl::Status ControllerCore::Authenticate(LiveJob& live, const v1::WorkerHello& hello) {
  if (!live.has_worker || live.job.proto().attempt() != hello.attempt()) return AttemptOver(hello);
  const JobRecord& record = live.job.record();
  if (MatchesHash(hello.credential(), record.session_key_hash)) {
    live.session_key = hello.credential();
    return absl::OkStatus();
  }
  // The token holds until the worker showed that the session key reached it.
  if (!MatchesHash(hello.credential(), record.token_hash)) return absl::UnauthenticatedError("wrong credential");
  live.session_key = NewCredential();
  live.job.MutableRecord().session_key_hash = Sha256(live.session_key);
  return absl::OkStatus();
}

void ControllerCore::AttachLive(LiveJob& live, const v1::WorkerHello& hello,
                                std::shared_ptr<WorkerConnection> connection) {
  const absl::Status status = Authenticate(live, hello);
  if (!status.ok()) return connection->Close(status);
  // Also where it is turned away: it lives, and the daemon's disk is not its fault.
  live.last_heard = clock_->Monotonic();
  if (live.job.pending_events() >= kMaxPendingEvents / 2) {
    return connection->Close(absl::UnavailableError("the state directory takes no events at present"));
  }
  WorkerProcess process = live.job.record().worker;
  if (process.pid == 0) {
    const absl::StatusOr<WorkerProcess> found = launcher_->Identify(hello.pid());
    // For want of descriptors, say. It comes back; one that is taken in unknown could not be killed.
    if (!found.ok() && !absl::IsNotFound(found.status())) {
      return connection->Close(absl::UnavailableError(found.status().message()));
    }
    if (found.ok()) process = *found;
  }
  CloseConnection(live, absl::UnavailableError("another connection of this worker took over"));
  // Also where nothing changes: the welcome follows a write.
  live.job.MutableRecord().worker = process;
  live.launched = true;
  if (live.adopted && live.poll_timer == 0) Poll(live);
  // It died after it dialled.
  if (!live.has_worker) return connection->Close(AttemptOver(hello));
  live.connection = connection;
  live.welcomed = false;
  connections_[connection.get()] = live.job.id();
  timers_.Cancel(&live.attach_timer);
  const v1::Job::State state = live.job.state();
  if (state == v1::Job::STARTING || state == v1::Job::RECOVERING) {
    Enter(live, v1::Job::RUNNING, state == v1::Job::RECOVERING ? "the worker is back" : "");
  }
  if ((live.stop == Stop::kPause || live.stop == Stop::kMove) && live.job.state() == v1::Job::RUNNING) {
    Enter(live, v1::Job::PREEMPTING, live.stop == Stop::kPause ? "to be paused" : "its device is drained");
  }
  CheckHeartbeat(live);
  ArmLimits(live);
  Touch(live);
}

void ControllerCore::Welcome(LiveJob& live) {
  live.welcomed = true;
  // From now on it may be asked to stop for another.
  needs_schedule_ = true;
  v1::DaemonMessage message;
  v1::DaemonWelcome& welcome = *message.mutable_welcome();
  welcome.set_protocol(kProtocol);
  welcome.set_session_key(live.session_key);
  *welcome.mutable_spec() = live.job.proto().spec();
  welcome.set_checkpoint_dir(absl::StrCat(options_.checkpoint_root, "/", live.job.id()));
  if (!options_.mirror_root.empty()) welcome.set_mirror_dir(absl::StrCat(options_.mirror_root, "/", live.job.id()));
  welcome.set_artifact_dir(absl::StrCat(options_.artifact_root, "/", live.job.id()));
  for (const std::string& root : options_.data_roots) welcome.add_data_roots(root);
  welcome.set_upload_dir(options_.upload_dir);
  const v1::WeightSource& start = live.job.proto().spec().start_from();
  if (!start.job_id().empty()) welcome.set_start_checkpoint_dir(starts_.PathOf(live.job.id(), start.checkpoint()));
  const auto& resources = live.job.proto().spec().resources();
  const DeviceSlot* slot = nullptr;
  int threads = 0;
  for (const std::string& device : live.devices) {
    welcome.add_devices(device);
    const DeviceSlot* found = FindDevice(device);
    if (found == nullptr) continue;
    welcome.add_device_names(found->device.name());
    if (slot == nullptr) slot = found;
    threads += found->device.threads();
  }
  welcome.set_cpu_threads(resources.has_cpu_threads() ? resources.cpu_threads() : std::max(1, threads));
  const v1::DeviceModel* kind = slot == nullptr ? nullptr : ModelOfDevice(options_.device_models, slot->device);
  if (kind != nullptr) *welcome.mutable_device_model() = *kind;
  welcome.set_acknowledged_number(live.durable_number);
  welcome.set_reattach_timeout_seconds(absl::ToInt64Seconds(options_.reattach_timeout));
  welcome.set_last_reported_step(live.job.record().last_reported_step);
  welcome.set_last_checkpoint(live.job.proto().summary().checkpoint());
  live.connection->Send(std::move(message));
  if (live.finished) return;
  if (live.stop != Stop::kNone) return SendStop(live);
  // A command may have gone down with the connection before.
  const bool is_asked = live.preempt_timer != 0 && !live.preempt_ready;
  if (is_asked || !live.checkpoint_waiters.empty()) SendCommand(live, v1::DaemonCommand::CHECKPOINT);
  SendProfile(live);
}

void ControllerCore::Message(const std::shared_ptr<WorkerConnection>& connection, v1::WorkerMessage message) {
  v1::DaemonMessage answer;
  if (const auto ended = ended_.find(connection.get()); ended != ended_.end()) {
    if (!ended->second) return;
    if (message.has_event()) answer.set_acknowledged_number(message.event().number());
    if (message.has_finished()) answer.mutable_goodbye();
    if (answer.body_case() != v1::DaemonMessage::BODY_NOT_SET) connection->Send(std::move(answer));
    return;
  }
  const auto known = connections_.find(connection.get());
  LiveJob* live = known == connections_.end() ? nullptr : Find(known->second);
  if (live == nullptr) return;
  live->last_heard = clock_->Monotonic();
  if (live->welcomed && !live->job.record().token_hash.empty()) live->job.MutableRecord().token_hash.clear();
  switch (message.body_case()) {
    case v1::WorkerMessage::kEvent:
      OnEvent(*live, std::move(*message.mutable_event()));
      break;
    case v1::WorkerMessage::kHeartbeat:
      OnHeartbeat(*live, message.heartbeat());
      break;
    case v1::WorkerMessage::kFinished:
      OnFinished(*live, message.finished());
      break;
    default:
      CloseConnection(*live, absl::InvalidArgumentError("a second hello, or a message this daemon does not know"));
      break;
  }
}

void ControllerCore::OnEvent(LiveJob& live, v1::WorkerEvent event) {
  const uint64_t have = live.job.record().worker_number;
  if (event.number() <= have || live.finished) return;
  if (event.number() != have + 1) {
    return CloseForGap(
        live, absl::StrCat("event ", event.number(), " where ", have + 1, " is next; connect and send it again"));
  }
  if (live.job.pending_events() >= kMaxPendingEvents) {
    return CloseConnection(live, absl::UnavailableError("the state directory takes no events at present"));
  }
  if (const std::string wrong = WrongEvent(event.event()); !wrong.empty()) {
    live.job.MutableRecord().worker_number = event.number();
    Log(absl::StrCat("event ", event.number(), " of its worker ", wrong), About(live));
    return Touch(live);
  }
  if (event.event().has_step()) RateStep(live, event.mutable_event()->mutable_step());
  if (event.event().has_checkpoint() && !event.event().checkpoint().already_written()) {
    NoteCheckpoint(live, event.event().checkpoint());
  }
  ChargeEvent(live, event.event());
  if (event.event().has_checkpoint()) OnCheckpoint(live, event.event());
  if (event.event().has_step_profile()) OnProfile(live, event.event().step_profile());
  const bool is_first = live.job.proto().summary().total_steps() == 0;
  live.job.AddWorkerEvent(std::move(*event.mutable_event()), event.number(), clock_->Now());
  if (is_first) WarnOfSchedule(live);
  Touch(live);
}

// How many steps a job takes that trains for so many epochs is known with its first report; of others its submit told.
void ControllerCore::WarnOfSchedule(LiveJob& live) {
  const v1::Job& job = live.job.proto();
  if (job.summary().total_steps() == 0 || job.spec().train().has_steps()) return;
  for (const std::string& warning : ScheduleWarnings(job.spec(), job.summary().total_steps())) {
    live.job.AddWarning(warning, clock_->Now());
  }
}

void ControllerCore::OnHeartbeat(LiveJob& live, const v1::WorkerHeartbeat& heartbeat) {
  // Workers of older builds always tell 0.
  if (heartbeat.evaluated_samples() > live.evaluated_samples && !live.finished) {
    live.evaluated_samples = heartbeat.evaluated_samples();
    if (metrics_ != nullptr) metrics_->OnEvaluating(live.job.id());
  }
  if (!live.meter) return;
  live.meter->Heartbeat(clock_->Monotonic(), heartbeat.cpu_seconds());
  PublishDevices();
}

void ControllerCore::OnFinished(LiveJob& live, const v1::WorkerFinished& finished) {
  const uint64_t have = live.job.record().worker_number;
  if (!live.finished && finished.last_event_number() > have) {
    return CloseForGap(live, absl::StrCat("finished after event ", finished.last_event_number(), ", but ", have,
                                          " is the last that came; send the rest again"));
  }
  if (!live.finished) return Finish(live, finished);
  // Said again on a new connection: the next write, or none, makes it durable.
  live.job.MutableRecord();
  Touch(live);
}

// A worker that was adopted may not have the events between any more: a daemon whose database was a newer one took
// them. One of this version sees that from the welcome and stops; others would come back for ever.
void ControllerCore::CloseForGap(LiveJob& live, const std::string& what) {
  if (live.adopted && live.stop == Stop::kNone) {
    AskToStop(live, Stop::kLost);
  } else if (live.adopted && live.stop_timer == 0) {
    live.stop_timer = After(options_.stop_grace, live, &ControllerCore::Kill);
  }
  CloseConnection(live, absl::UnavailableError(what));
}

void ControllerCore::CloseConnection(LiveJob& live, const absl::Status& status) {
  if (live.connection == nullptr) return;
  connections_.erase(live.connection.get());
  std::exchange(live.connection, nullptr)->Close(status);
}

void ControllerCore::CheckHeartbeat(LiveJob& live) {
  timers_.Cancel(&live.heartbeat_timer);
  const absl::Duration now = clock_->Monotonic();
  // Heartbeats wait with the events that the store does not take.
  if (live.connection != nullptr && !live.connection->Listens()) live.last_heard = now;
  const absl::Duration grace = std::min(kHearingGrace, options_.heartbeat_timeout / 2);
  const absl::Duration quiet = live.last_heard + options_.heartbeat_timeout - grace - now;
  if (quiet > absl::ZeroDuration()) {
    live.heartbeat_timer = After(quiet, live, &ControllerCore::CheckHeartbeat);
    return;
  }
  // A daemon that was stopped itself has yet to hear what was said meanwhile.
  if (!live.suspected || *live.suspected <= live.last_heard) {
    live.suspected = now;
    live.heartbeat_timer = After(grace, live, &ControllerCore::CheckHeartbeat);
    return;
  }
  if (live.stop == Stop::kNone) live.stop = Stop::kNoHeartbeat;
  Kill(live);
}

void ControllerCore::Disconnected(const std::shared_ptr<WorkerConnection>& connection) {
  ended_.erase(connection.get());
  const auto known = connections_.find(connection.get());
  if (known == connections_.end()) return;
  LiveJob* live = Find(known->second);
  connections_.erase(known);
  if (live == nullptr) return;
  live->connection = nullptr;
  if (live->exit) WorkerGone(*live);
}

void ControllerCore::Exited(const WorkerProcess& process, const WorkerExit& exit) {
  for (auto& [id, live] : live_) {
    if (!live.has_worker || !(live.job.record().worker == process) || live.exit) continue;
    live.exit = exit;
    // What the worker sent before it ended may still be on its way.
    if (live.connection == nullptr) return WorkerGone(live);
    live.exit_timer = After(kExitGrace, live, &ControllerCore::WorkerGone);
    return;
  }
}

}  // namespace ampd
