// CreateJob against the real daemon, planner and worker.
#include <string>

#include "gmock/gmock.h"
#include "tests/integration/daemon_process.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

class CreateJobTest : public IntegrationTest {};

TEST_F(CreateJobTest, TrainsToTheEnd) {
  const std::string id = Create(Request(120));
  EXPECT_EQ(Get(id).plan().parameters(), 784 * 32 + 32 + 32 * 10 + 10);
  const std::vector<v1::JobEvent> events = Watch(id);
  ASSERT_FALSE(events.empty());
  ASSERT_EQ(events.back().state_change().to(), v1::Job::SUCCEEDED) << events.back().DebugString();
  const std::vector<double> losses = Losses(events);
  ASSERT_EQ(losses.size(), 120u);
  EXPECT_LT(losses.back(), losses.front());
  const v1::Job job = Get(id);
  EXPECT_EQ(job.summary().step(), 120);
  EXPECT_EQ(job.summary().checkpoint(), "step-000000120");
}

TEST_F(CreateJobTest, ShapesThatDoNotFitAreRefusedAtSubmit) {
  v1::CreateJobRequest request = Request(10);
  request.mutable_spec()->mutable_model()->mutable_layers(1)->mutable_conv2d()->set_filters(4);
  request.mutable_spec()->mutable_model()->mutable_layers(1)->mutable_conv2d()->add_kernel(3);
  grpc::ClientContext context;
  v1::Job job;
  const grpc::Status status = daemon_->stub().CreateJob(&context, request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("model.layers[1]"));
}

TEST_F(CreateJobTest, DataThatIsMissingFailsTheJobWithItsClass) {
  daemon_.reset();
  daemon_ = std::make_unique<DaemonProcess>(state_dir_, std::vector<std::string>{"--data-root", testing::TempDir()});
  v1::CreateJobRequest request = Request(10);
  request.mutable_spec()->mutable_data()->mutable_train()->mutable_npy()->set_inputs("no_such_file.npz");
  const std::vector<v1::JobEvent> events = Watch(Create(request));
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().state_change().to(), v1::Job::FAILED);
  EXPECT_EQ(events.back().state_change().failure().class_(), v1::Failure::DATA);
  EXPECT_THAT(events.back().state_change().failure().message(), HasSubstr("no_such_file.npz"));
}

}  // namespace
}  // namespace ampd
