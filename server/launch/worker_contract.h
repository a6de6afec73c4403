// What ampd and ampd-worker agree on besides worker_link.proto: the command line, the environment and the exit codes.
//
//   ampd-worker --socket-dir DIR --work-dir DIR --job ID --attempt N
//       trains; dials <socket-dir>/worker.sock with the token in AMPD_WORKER_TOKEN; spools events beneath the work dir.
//       CUDA_VISIBLE_DEVICES is the UUIDs of its GPUs with ',' between, or empty
//   ampd-worker --plan
//       PlanRequest on stdin, PlanResponse on stdout
//   ampd-worker --export FILE
//       ExportRequest on stdin, ExportResponse on stdout; FILE is new, and in a folder of its own
//   each with --run-as UID:GID:GROUP,GROUP --limits cpu=SECONDS,nofile=N...
//       starts as root, limits itself and becomes that user before it does anything else
#ifndef AMPD_SERVER_LAUNCH_WORKER_CONTRACT_H_
#define AMPD_SERVER_LAUNCH_WORKER_CONTRACT_H_

namespace ampd {

// The longest message of worker_link.proto that either side takes, bytes. A longer one ends the stream, and would again
// on the next: neither side may send one. Of a worker, its events are bounded far below (OutboxLimits::event_bytes).
inline constexpr int kMaxLinkMessageBytes = 64 << 20;

inline constexpr char kWorkerTokenVariable[] = "AMPD_WORKER_TOKEN";
// Within the state directory.
inline constexpr char kWorkerSocketName[] = "worker.sock";

enum WorkerExitCode : int {
  // The daemon knows how the attempt ended and said goodbye.
  kWorkerReported = 0,
  // Bad command line, environment, plan or export request.
  kWorkerUsage = 2,
  // The daemon refused the credential or the attempt: another attempt owns the job by now.
  kWorkerStale = 3,
  // No daemon within reattach_timeout; stopped after a checkpoint.
  kWorkerOrphaned = 4,
  // The daemon speaks no version of the protocol that this worker does, or broke it.
  kWorkerProtocol = 5,
  // An allocation failed.
  kWorkerOutOfMemory = 12,
};

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_WORKER_CONTRACT_H_
