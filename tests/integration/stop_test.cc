// Ends that are asked for: CancelJob, SIGTERM to the daemon, SIGTERM to a worker; and taking the checkpoint home.
#include <signal.h>

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "tests/integration/daemon_process.h"

namespace ampd {
namespace {

using ::testing::Contains;
using ::testing::Key;

class StopTest : public IntegrationTest {
 protected:
  std::map<std::string, std::string> Download(const std::string& id) {
    std::map<std::string, std::string> files;
    grpc::ClientContext context;
    v1::DownloadCheckpointRequest request;
    request.set_job_id(id);
    const auto reader = daemon_->stub().DownloadCheckpoint(&context, request);
    v1::FileChunk chunk;
    while (reader->Read(&chunk)) files[chunk.file()] += chunk.data();
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return files;
  }
};

TEST_F(StopTest, CancellingKeepsACheckpoint) {
  const std::string id = Create(Request(1'000'000));
  WatchToStep(id, 20);
  grpc::ClientContext context;
  v1::CancelJobRequest cancel;
  cancel.set_job_id(id);
  v1::Job job;
  ASSERT_TRUE(daemon_->stub().CancelJob(&context, cancel, &job).ok());
  const std::vector<v1::JobEvent> events = Watch(id);
  EXPECT_EQ(events.back().state_change().to(), v1::Job::CANCELLED);
  const auto files = Download(id);
  EXPECT_THAT(files, Contains(Key("model.safetensors")));
  EXPECT_THAT(files, Contains(Key("MANIFEST")));

  // The device is free again, and the worker is gone once another job ran on it.
  EXPECT_EQ(Watch(Create(Request(5))).back().state_change().to(), v1::Job::SUCCEEDED);
  EXPECT_TRUE(WorkersOf(id).empty());
}

TEST_F(StopTest, ADrainedDaemonGoesOnWhereItStopped) {
  constexpr int64_t kSteps = 400;
  const std::string id = Create(Request(kSteps));
  WatchToStep(id, 60);
  daemon_->Signal(SIGTERM);
  EXPECT_EQ(daemon_->Wait().exit_code, 0);
  EXPECT_TRUE(WorkersOf(id).empty());
  daemon_ = std::make_unique<DaemonProcess>(state_dir_);
  const std::vector<v1::JobEvent> events = Watch(id);
  ASSERT_EQ(events.back().state_change().to(), v1::Job::SUCCEEDED);
  for (const v1::JobEvent& event : events) EXPECT_FALSE(event.has_rewound()) << "a step was repeated";
  EXPECT_EQ(Losses(events), Losses(Watch(Create(Request(kSteps)))));
}

TEST_F(StopTest, AWorkerThatIsAskedToStopCheckpointsAndItsJobGoesOn) {
  const std::string id = Create(Request(300));
  WatchToStep(id, 20);
  for (const pid_t pid : WorkersOf(id)) kill(pid, SIGTERM);
  const std::vector<v1::JobEvent> events = Watch(id);
  EXPECT_EQ(events.back().state_change().to(), v1::Job::SUCCEEDED);
  EXPECT_EQ(Losses(events).size(), 300u);
  EXPECT_EQ(Get(id).failures(), 0u);
}

}  // namespace
}  // namespace ampd
