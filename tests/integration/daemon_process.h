// The real ampd and ampd-worker, as processes, for tests that talk to them over gRPC.
#ifndef AMPD_TESTS_INTEGRATION_DAEMON_PROCESS_H_
#define AMPD_TESTS_INTEGRATION_DAEMON_PROCESS_H_

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ampd/v1/training_service.grpc.pb.h"
#include "gtest/gtest.h"
#include "server/launch/process.h"

namespace ampd {

// A daemon on free ports. Killed with the object if it still runs.
class DaemonProcess {
 public:
  // Waits for the ready line.
  explicit DaemonProcess(const std::string& state_dir, std::vector<std::string> flags = {});
  ~DaemonProcess();

  v1::TrainingService::Stub& stub() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Does not wait.
  void Signal(int signal);
  // How it ended.
  ProcessExit Wait();

 private:
  std::optional<ProcessHandle> process_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::TrainingService::Stub> stub_;
};

// The living workers of a job.
std::vector<pid_t> WorkersOf(const std::string& job_id);

class IntegrationTest : public testing::Test {
 protected:
  IntegrationTest();
  ~IntegrationTest() override;

  // A small network on drawn characters, a report for every step: the same bits each time.
  static v1::CreateJobRequest Request(int64_t steps);

  std::string Create(const v1::CreateJobRequest& request);
  v1::Job Get(const std::string& id);
  // Every event up to the terminal one, or up to the one for which `until` returns true. Survives restarts of the
  // daemon behind daemon_, and checks that no sequence number is missing or comes twice.
  std::vector<v1::JobEvent> Watch(const std::string& id,
                                  const std::function<bool(const v1::JobEvent&)>& until = nullptr);
  // Until the step report of `step`.
  void WatchToStep(const std::string& id, int64_t step);
  void Restart();

  // Loss of each attempted step; one that was repeated counts once, and must come out the same.
  static std::vector<double> Losses(const std::vector<v1::JobEvent>& events);

  std::string state_dir_;
  std::unique_ptr<DaemonProcess> daemon_;
};

}  // namespace ampd

#endif  // AMPD_TESTS_INTEGRATION_DAEMON_PROCESS_H_
