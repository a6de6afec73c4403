// What a user's jobs may ask for at most, whichever call asks.
#include "server/service/user_limits.h"

#include <functional>
#include <string>
#include <vector>

#include "proto/spec/resolve.h"
#include "tests/unit/server/service/service_fixture.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::JobSpec SpecOf(int gpus, int priority) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_gpus(gpus);
  spec.mutable_resources()->set_priority(priority);
  return spec;
}

TEST(CheckUserLimitsTest, EveryFieldBeyondThemIsNamed) {
  const Caller ann{.user = "ann", .role = v1::SUBMITTER}, root{.user = "root", .role = v1::ADMIN};
  const UserLimits limits{.max_running_devices = 2, .max_priority = 5};
  EXPECT_TRUE(CheckUserLimits(SpecOf(2, 5), ann, limits).ok());
  EXPECT_TRUE(CheckUserLimits(SpecOf(1, -1000), ann, limits).ok());
  const auto violations = FieldViolationsOf(CheckUserLimits(SpecOf(3, 6), ann, limits));
  ASSERT_EQ(violations.size(), 2u);
  EXPECT_EQ(violations[0].field, "resources.gpus");
  EXPECT_EQ(violations[1].field, "resources.priority");
  EXPECT_EQ(violations[1].description, "is 6; only administrators give jobs more than 5 (auth.max_priority)");
  EXPECT_TRUE(CheckUserLimits(SpecOf(2, 1000), root, limits).ok());
  // Its devices are everybody's.
  EXPECT_FALSE(CheckUserLimits(SpecOf(3, 0), root, limits).ok());
}

class UserLimitsTest : public ServiceFixture {
 protected:
  UserLimitsTest() {
    asks_for_tokens_ = true;
    user_limits_ = {.max_running_devices = 2, .max_priority = 0};
    devices_ = CpuDevices(4).value();
    Train([](FakeTrainer&) -> absl::StatusOr<train::Outcome> { return absl::InvalidArgumentError("no good"); });
    ann_ = TokenOf("ann", v1::SUBMITTER);
    root_ = TokenOf("root", v1::ADMIN);
  }

  std::string TokenOf(const std::string& user, v1::Role role) {
    v1::CreateTokenRequest request;
    request.set_user(user);
    request.set_role(role);
    std::promise<std::string> secret;
    tokens_->Create(request, [&](absl::StatusOr<v1::CreateTokenResponse> made) { secret.set_value(made->secret()); });
    return secret.get_future().get();
  }
  template <typename Request, typename Response>
  grpc::Status CallAs(const std::string& secret,
                      grpc::Status (v1::TrainingService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                        Response*),
                      const Request& request, Response* response) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + secret);
    return ((*stub_).*method)(&context, request, response);
  }

  // Every call by which a job gets its spec.
  std::vector<grpc::Status> AskedFor(const std::string& secret, const v1::JobSpec& spec) {
    v1::CreateJobRequest create;
    *create.mutable_spec() = spec;
    v1::CreateJobRequest validate = create;
    validate.set_validate_only(true);
    v1::CreateSweepRequest sweep;
    *sweep.mutable_spec() = spec;
    (*sweep.mutable_spec()->mutable_sweep()->mutable_grid())["seed"].add_values()->set_number_value(1);
    v1::PlanJobRequest plan;
    *plan.mutable_spec() = spec;
    v1::Job job;
    v1::JobSweep jobs;
    v1::PlanReport report;
    using Stub = v1::TrainingService::Stub;
    return {CallAs(secret, &Stub::CreateJob, create, &job), CallAs(secret, &Stub::CreateJob, validate, &job),
            CallAs(secret, &Stub::CreateSweep, sweep, &jobs), CallAs(secret, &Stub::PlanJob, plan, &report)};
  }

  std::string ann_, root_;
};

TEST_F(UserLimitsTest, EveryCallThatGetsASpecKeepsThem) {
  v1::JobSpec urgent = GoodRequest().spec();
  urgent.mutable_resources()->set_priority(1000);
  for (const grpc::Status& status : AskedFor(ann_, urgent)) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("resources.priority: is 1000; only administrators give jobs more "
                                                  "than 0 (auth.max_priority)"));
  }
  v1::JobSpec wide = GoodRequest().spec();
  wide.mutable_resources()->set_gpus(3);
  wide.mutable_train()->set_batch_size(12);
  for (const grpc::Status& status : AskedFor(ann_, wide)) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("resources.gpus: is 3; a user's jobs may hold at most 2"));
  }
  v1::CreateJobRequest by_root;
  *by_root.mutable_spec() = urgent;
  v1::Job job;
  EXPECT_TRUE(CallAs(root_, &v1::TrainingService::Stub::CreateJob, by_root, &job).ok());
}

TEST_F(UserLimitsTest, ChangesAndRetriesKeepThemToo) {
  v1::CreateJobRequest create = GoodRequest();
  create.mutable_spec()->mutable_not_before()->set_seconds(absl::ToUnixSeconds(absl::Now() + absl::Hours(1)));
  create.mutable_spec()->mutable_resources()->set_priority(-5);
  v1::Job job;
  ASSERT_TRUE(CallAs(ann_, &v1::TrainingService::Stub::CreateJob, create, &job).ok());
  v1::UpdateJobRequest update;
  update.set_job_id(job.id());
  update.set_priority(1);
  const grpc::Status refused = CallAs(ann_, &v1::TrainingService::Stub::UpdateJob, update, &job);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.error_message(), "priority: is 1; only administrators give jobs more than 0 (auth.max_priority)");
  update.set_priority(0);
  EXPECT_TRUE(CallAs(ann_, &v1::TrainingService::Stub::UpdateJob, update, &job).ok());
  update.set_priority(7);
  EXPECT_TRUE(CallAs(root_, &v1::TrainingService::Stub::UpdateJob, update, &job).ok());
  // What an administrator gave it it keeps, whatever else its user changes.
  update.clear_priority();
  (*update.mutable_set_labels())["team"] = "vision";
  EXPECT_TRUE(CallAs(ann_, &v1::TrainingService::Stub::UpdateJob, update, &job).ok());
  EXPECT_EQ(job.spec().resources().priority(), 7);
  v1::CancelJobRequest cancel;
  cancel.set_job_id(job.id());
  ASSERT_TRUE(CallAs(ann_, &v1::TrainingService::Stub::CancelJob, cancel, &job).ok());
  v1::RetryJobRequest retry;
  retry.set_job_id(job.id());
  const grpc::Status kept = CallAs(ann_, &v1::TrainingService::Stub::RetryJob, retry, &job);
  EXPECT_EQ(kept.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(kept.error_message(), HasSubstr("resources.priority: is 7; only administrators"));
  EXPECT_TRUE(CallAs(root_, &v1::TrainingService::Stub::RetryJob, retry, &job).ok());
}

}  // namespace
}  // namespace ampd
