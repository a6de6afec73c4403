// The training of one attempt on a thread of its own.
#ifndef AMPD_SERVER_WORKER_TRAINING_H_
#define AMPD_SERVER_WORKER_TRAINING_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ampd/v1/worker_link.pb.h"
#include "engine/core/mutex.h"
#include "engine/train/trainer.h"
#include "server/worker/event_outbox.h"

namespace ampd {

// How a trainer is made; train::Trainer::Create in the real worker.
using TrainerFactory = std::function<absl::StatusOr<std::unique_ptr<train::Trainer>>(
    const ResolvedJobSpec& spec, const train::TrainerOptions& options, train::TrainerObserver* observer)>;

// Every function is called from one thread, which need not be the trainer's.
class Training : private train::TrainerObserver {
 public:
  // `work_dir`: the job's folder, for what its attempts share. `engine_version` not empty: the first event says what
  // the attempt computes with. `outbox` outlives this. `on_finished` is called once, on the training's thread.
  Training(TrainerFactory factory, std::string work_dir, std::string engine_version, EventOutbox* outbox,
           std::function<void()> on_finished);
  // Waits for the training to end; ask it to stop before.
  ~Training() override;

  // Resolves what the daemon sent to this attempt and starts. Call once.
  void Start(const v1::DaemonWelcome& assignment, int64_t attempt);

  // Reaches the trainer as soon as there is one; without effect once it ended.
  void Request(train::Command command);
  // Likewise.
  void Profile(train::ProfileRequest request);

  // Once it is finished, and the daemon knows: if it succeeded, no checkpoint is held for a next attempt.
  absl::Status DropHeldCheckpoint();
  // Once it is finished, and no daemon will hear of it: unless it failed the next attempt resumes from its checkpoint.
  absl::Status LeaveCheckpoint();

  // Attempted steps.
  int64_t step() const;
  // That the attempt's evaluations took so far.
  int64_t evaluated_samples() const;

  // How it ended, without last_event_number; nullopt while it runs.
  std::optional<v1::WorkerFinished> finished() const;

 private:
  absl::Status OnEvent(v1::JobEvent event) override;
  std::string PublishedCheckpoint();
  absl::Status TellEnvironment(const train::TrainerOptions& options);
  void Run(const ResolvedJobSpec& spec, const train::TrainerOptions& options);
  // How it ended.
  absl::StatusOr<v1::WorkerFinished> Train(const ResolvedJobSpec& spec, const train::TrainerOptions& options);
  void Finish(absl::StatusOr<v1::WorkerFinished> finished);

  const TrainerFactory factory_;
  const std::string work_dir_;
  const std::string engine_version_;
  EventOutbox* const outbox_;
  const std::function<void()> on_finished_;
  mutable Mutex mutex_;
  std::unique_ptr<train::Trainer> trainer_ ABSL_GUARDED_BY(mutex_);
  // Requested before there was a trainer.
  std::vector<train::Command> pending_ ABSL_GUARDED_BY(mutex_);
  train::ProfileRequest pending_profile_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::WorkerFinished> finished_ ABSL_GUARDED_BY(mutex_);
  // On the trainer's thread only: names of checkpoints, with the numbers of their events, oldest first.
  std::deque<std::pair<uint64_t, std::string>> told_;
  std::string published_;
  // Set by Start().
  std::vector<std::string> device_names_;
  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_WORKER_TRAINING_H_
