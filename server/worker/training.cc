#include "server/worker/training.h"

#include <utility>

#include "engine/core/status.h"
#include "engine/train/environment.h"
#include "engine/train/failure.h"
#include "engine/train/report.h"

namespace ampd {

Training::Training(TrainerFactory factory, std::string work_dir, std::string engine_version, EventOutbox* outbox,
                   std::function<void()> on_finished)
    : factory_(std::move(factory)),
      work_dir_(std::move(work_dir)),
      engine_version_(std::move(engine_version)),
      outbox_(outbox),
      on_finished_(std::move(on_finished)) {}

Training::~Training() {
  if (thread_.joinable()) thread_.join();
}

void Training::Start(const v1::DaemonWelcome& assignment, int64_t attempt) {
  absl::StatusOr<ResolvedJobSpec> spec = ResolveJobSpec(assignment.spec());
  if (!spec.ok()) return Finish(spec.status());
  train::TrainerOptions options;
  options.data_roots.assign(assignment.data_roots().begin(), assignment.data_roots().end());
  options.upload_dir = assignment.upload_dir();
  options.start_checkpoint_dir = assignment.start_checkpoint_dir();
  options.checkpoint_dir = assignment.checkpoint_dir();
  options.mirror_dir = assignment.mirror_dir();
  options.artifact_dir = assignment.artifact_dir();
  options.autotune_dir = work_dir_;
  options.threads = std::max(1, assignment.cpu_threads());
  options.devices.assign(assignment.devices().begin(), assignment.devices().end());
  device_names_.assign(assignment.device_names().begin(), assignment.device_names().end());
  options.last_reported_step = assignment.last_reported_step();
  options.last_checkpoint = assignment.last_checkpoint();
  options.attempt = attempt;
  options.published_checkpoint = [this] { return PublishedCheckpoint(); };
  if (assignment.has_device_model()) options.device_model = assignment.device_model();
  thread_ = std::thread([this, spec = *std::move(spec), options = std::move(options)] { Run(spec, options); });
}

absl::Status Training::OnEvent(v1::JobEvent event) {
  const uint64_t before = outbox_->last_number();
  AMPD_RETURN_IF_ERROR(outbox_->Append(event));
  // A closed outbox drops it.
  const uint64_t number = outbox_->last_number();
  if (event.has_checkpoint() && number > before) told_.emplace_back(number, event.checkpoint().checkpoint());
  return absl::OkStatus();
}

std::string Training::PublishedCheckpoint() {
  const uint64_t durable = outbox_->acknowledged_number();
  for (; !told_.empty() && told_.front().first <= durable; told_.pop_front()) published_ = told_.front().second;
  return published_;
}

absl::Status Training::TellEnvironment(const train::TrainerOptions& options) {
  if (engine_version_.empty()) return absl::OkStatus();
  v1::JobEvent event;
  *event.mutable_time() = train::EventTime();
  v1::AttemptEnvironment& environment = *event.mutable_environment();
  environment = train::EnvironmentOf(options.devices, options.threads);
  environment.set_engine_version(engine_version_);
  environment.mutable_devices()->Assign(device_names_.begin(), device_names_.end());
  return OnEvent(std::move(event));
}

void Training::Run(const ResolvedJobSpec& spec, const train::TrainerOptions& options) { Finish(Train(spec, options)); }

absl::StatusOr<v1::WorkerFinished> Training::Train(const ResolvedJobSpec& spec, const train::TrainerOptions& options) {
  AMPD_RETURN_IF_ERROR(TellEnvironment(options));
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<train::Trainer> created, factory_(spec, options, this));
  train::Trainer* trainer = created.get();
  {
    const MutexLock lock(&mutex_);
    trainer_ = std::move(created);
    for (const train::Command command : pending_) trainer_->Request(command);
    if (pending_profile_.steps > 0) trainer_->Profile(pending_profile_);
  }
  AMPD_ASSIGN_OR_RETURN(const train::Outcome outcome, trainer->Run());
  v1::WorkerFinished finished;
  finished.set_outcome(outcome == train::Outcome::kCompleted ? v1::WorkerFinished::SUCCEEDED
                                                             : v1::WorkerFinished::STOPPED);
  if (outcome == train::Outcome::kCompleted) finished.set_reason(trainer->end_reason());
  return finished;
}

void Training::Finish(absl::StatusOr<v1::WorkerFinished> finished) {
  if (!finished.ok()) {
    v1::WorkerFinished failed;
    failed.set_outcome(v1::WorkerFinished::FAILED);
    *failed.mutable_failure() = train::FailureOf(finished.status());
    finished = std::move(failed);
  }
  {
    const MutexLock lock(&mutex_);
    finished_ = *std::move(finished);
  }
  on_finished_();
}

void Training::Request(train::Command command) {
  const MutexLock lock(&mutex_);
  if (finished_) return;
  if (trainer_ != nullptr) {
    trainer_->Request(command);
  } else {
    pending_.push_back(command);
  }
}

void Training::Profile(train::ProfileRequest request) {
  const MutexLock lock(&mutex_);
  if (finished_) return;
  if (trainer_ != nullptr) {
    trainer_->Profile(request);
  } else if (pending_profile_.steps == 0) {
    pending_profile_ = request;
  }
}

absl::Status Training::DropHeldCheckpoint() {
  if (thread_.joinable()) thread_.join();
  const MutexLock lock(&mutex_);
  const bool succeeded = finished_ && finished_->outcome() == v1::WorkerFinished::SUCCEEDED;
  return succeeded && trainer_ != nullptr ? trainer_->DropHeldCheckpoint() : absl::OkStatus();
}

absl::Status Training::LeaveCheckpoint() {
  if (thread_.joinable()) thread_.join();
  const MutexLock lock(&mutex_);
  if (trainer_ == nullptr || !finished_ || finished_->outcome() == v1::WorkerFinished::FAILED) return absl::OkStatus();
  return trainer_->LeaveCheckpoint();
}

int64_t Training::step() const {
  const MutexLock lock(&mutex_);
  return trainer_ != nullptr ? trainer_->step() : 0;
}

int64_t Training::evaluated_samples() const {
  const MutexLock lock(&mutex_);
  return trainer_ != nullptr ? trainer_->evaluated_samples() : 0;
}

std::optional<v1::WorkerFinished> Training::finished() const {
  const MutexLock lock(&mutex_);
  return finished_;
}

}  // namespace ampd
