// The real ampd as a process, its API, and what the kernel tells of it.
#ifndef AMPD_TESTS_BENCH_SERVICE_LOAD_LOAD_DAEMON_H_
#define AMPD_TESTS_BENCH_SERVICE_LOAD_LOAD_DAEMON_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ampd/v1/training_service.grpc.pb.h"
#include "server/launch/process.h"

namespace ampd::load {

struct DaemonOptions {
  std::string state_dir;
  // The program that runs jobs.
  std::string worker;
};

// Killed with the object if it still runs, and the workers of its jobs with it.
class LoadDaemon {
 public:
  // Waits for the ready line, at most a minute.
  static absl::StatusOr<std::unique_ptr<LoadDaemon>> Start(const DaemonOptions& options);
  ~LoadDaemon();

  v1::TrainingService::Stub* stub() const { return stub_.get(); }
  // A connection of its own. `window`: bytes that the daemon may send ahead of who reads a stream; 0: gRPC's own bound.
  std::shared_ptr<grpc::Channel> NewChannel(int window = 0) const;

  // Kills it, without a word to anybody.
  void Kill();

  // From the start to the ready line.
  absl::Duration start_time() const { return start_time_; }
  // Of its resident memory: now, and at most so far, bytes.
  int64_t ResidentBytes() const { return StatusBytes("VmRSS:"); }
  int64_t PeakResidentBytes() const { return StatusBytes("VmHWM:"); }
  // Processor time it has used, of all cores.
  absl::Duration CpuTime() const;

 private:
  LoadDaemon() = default;
  int64_t StatusBytes(const std::string& field) const;

  std::string state_dir_;
  std::optional<ProcessHandle> process_;
  std::string address_;
  std::unique_ptr<v1::TrainingService::Stub> stub_;
  absl::Duration start_time_;
};

// The folder of this program, where ampd and ampd-worker are too.
std::string ProgramFolder();

// A job on drawn characters; its name tells this program, when it is the job's worker, what to do.
v1::JobSpec JobNamed(const std::string& name);

}  // namespace ampd::load

#endif  // AMPD_TESTS_BENCH_SERVICE_LOAD_LOAD_DAEMON_H_
