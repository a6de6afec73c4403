// The life of a worker: dial the daemon, train what it assigns, keep it informed, come back when it was away.
#ifndef AMPD_SERVER_WORKER_WORKER_H_
#define AMPD_SERVER_WORKER_WORKER_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/files/unique_fd.h"
#include "server/launch/worker_contract.h"
#include "server/worker/event_outbox.h"
#include "server/worker/link_protocol.h"
#include "server/worker/link_stream.h"
#include "server/worker/training.h"

namespace ampd {

struct WorkerOptions {
  // gRPC address of the daemon's worker link.
  std::string daemon_uri;
  // Of the job: spooled events go to work_dir/spool-<attempt>, what its attempts share lies there too.
  std::string work_dir;
  WorkerIdentity identity;
  // What the attempt's environment event says; empty: there is no such event.
  std::string engine_version;
  OutboxLimits outbox;
  // Readable when the worker shall checkpoint and stop; -1 is none.
  int stop_fd = -1;
  // A log file emptied when it grows beyond log_bytes; -1 is none.
  int log_fd = -1;
  int64_t log_bytes = 8 << 20;
  std::chrono::milliseconds heartbeat_period{2000};
  std::chrono::milliseconds first_backoff{100};
  std::chrono::milliseconds last_backoff{5000};
  // A stream that is not welcomed within this is given up.
  std::chrono::milliseconds welcome_timeout{15000};
  // Time without a daemon before the first welcome; later the assignment's reattach_timeout holds.
  std::chrono::milliseconds first_attach_timeout{60000};
};

class Worker {
 public:
  Worker(WorkerOptions options, TrainerFactory factory);
  // Waits for the training thread, after asking it to stop.
  ~Worker();

  // Runs to the end of the attempt. Call once. On kWorkerStale and kWorkerProtocol the training may still run: exit at
  // once, so that no checkpoint is touched.
  WorkerExitCode Run();

 private:
  using Clock = std::chrono::steady_clock;

  void Wake();
  void DialWhenDue();
  // What arrived and what can be sent; an exit code when the attempt is over.
  std::optional<WorkerExitCode> Exchange();
  // Has the daemon hear of the end of the training.
  void TellFinished();
  void LeaveCheckpoint();
  WorkerExitCode Depart();
  std::optional<WorkerExitCode> Receive();
  std::optional<WorkerExitCode> Send();
  std::optional<WorkerExitCode> OnStreamEnd(const absl::Status& status);
  void Disconnect();
  void StartWhenAssigned();
  void ObeyCommands();
  void HeartbeatWhenDue();
  void StopWhenForgotten();
  // After a checkpoint; events are no longer kept.
  void StopForGood(absl::string_view why);
  std::optional<WorkerExitCode> GiveUpWhenOrphaned();
  std::chrono::milliseconds OrphanTimeout() const;
  void WaitForWork();

  const WorkerOptions options_;
  UniqueFd wake_fd_;
  EventOutbox outbox_;
  LinkProtocol protocol_;
  std::unique_ptr<LinkStream> stream_;
  Training training_;
  bool started_ = false;
  bool orphaned_ = false;
  bool forgotten_ = false;
  bool left_ = false;
  bool stop_requested_ = false;
  std::chrono::milliseconds backoff_;
  Clock::time_point next_dial_;
  Clock::time_point dialled_at_;
  Clock::time_point last_contact_;
  Clock::time_point next_heartbeat_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_WORKER_WORKER_H_
