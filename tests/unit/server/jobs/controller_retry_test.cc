// RetryJob: what is queued again, and with what.
#include <filesystem>
#include <fstream>

#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ControllerRetryTest : public ControllerTest {
 protected:
  absl::StatusOr<v1::Job> Retry(const std::string& id, std::shared_ptr<HeldWeights> start = nullptr) {
    RetryJobParams params{.job_id = id, .start = std::move(start)};
    return Retry(std::move(params));
  }
  absl::StatusOr<v1::Job> Retry(RetryJobParams params) {
    return Await<v1::Job>([&](auto done) { controller_->RetryJob(std::move(params), std::move(done)); });
  }
  void FailForGood(size_t n, v1::Failure::Class failure_class = v1::Failure::DATA) {
    auto worker = AttachLaunched(n);
    SendFinished(worker, v1::WorkerFinished::FAILED, 0, failure_class);
    EXPECT_TRUE(worker->WaitForGoodbye());
    EndWorker(worker, n);
    Settle();
  }
  // Weights of another job, as the service holds them.
  std::shared_ptr<HeldWeights> Hold() {
    const std::string source = dir_.path() + "/checkpoints/other";
    fs::create_directories(source + "/step-7");
    for (const char* name : {"model.safetensors", "MANIFEST"}) std::ofstream(source + "/step-7/" + name) << name;
    const auto held = StartFolders(Root()).Hold(source, "step-7");
    EXPECT_TRUE(held.ok()) << held.status();
    return held.value_or(nullptr);
  }
  CreateJobParams FromJob() {
    CreateJobParams params = Params();
    params.spec.mutable_start_from()->set_job_id(std::string(26, '0'));
    params.spec.mutable_start_from()->set_checkpoint("step-7");
    return params;
  }
  std::string Root() const { return dir_.path() + "/starts"; }
  bool HasWeights(const std::string& id) const { return fs::exists(Root() + "/" + id + "/step-7/model.safetensors"); }
};

TEST_F(ControllerRetryTest, AnEndedJobIsQueuedAgainWithItsFailuresForgotten) {
  const std::string id = Submit();
  FailForGood(0);
  EXPECT_EQ(Get(id)->state(), v1::Job::FAILED);
  const auto retried = Retry(id);
  ASSERT_TRUE(retried.ok()) << retried.status();
  EXPECT_EQ(retried->failures(), 0u);
  EXPECT_FALSE(retried->has_end_time());
  EXPECT_FALSE(retried->has_failure());
  auto worker = AttachLaunched(1);
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 0);
  EXPECT_EQ(WaitFor(id, v1::Job::SUCCEEDED).attempt(), 2u);
  ExpectGapFree(id);
  EXPECT_EQ(Retry(id).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Retry(std::string(26, '0')).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ControllerRetryTest, AJobThatStartsFromAnotherIsGivenTheWeightsAnew) {
  CreateJobParams params = FromJob();
  params.start = Hold();
  const std::string id = Submit(std::move(params));
  EXPECT_TRUE(HasWeights(id));
  FailForGood(0);
  EXPECT_FALSE(HasWeights(id)) << "let go of when it ended";
  ASSERT_TRUE(Retry(id, Hold()).ok());
  EXPECT_TRUE(HasWeights(id));
  const v1::DaemonWelcome welcome = AttachLaunched(1)->WaitForWelcome();
  EXPECT_EQ(welcome.start_checkpoint_dir(), Root() + "/" + id + "/step-7");
  EXPECT_TRUE(fs::exists(welcome.start_checkpoint_dir() + "/MANIFEST"));
}

TEST_F(ControllerRetryTest, AlsoByTheNextDaemonWhichKeepsThem) {
  CreateJobParams params = FromJob();
  params.start = Hold();
  const std::string id = Submit(std::move(params));
  FailForGood(0);
  RestartDaemon();
  ASSERT_TRUE(Retry(id, Hold()).ok());
  launcher_.Wait(1);
  Settle();
  StopDaemon();
  launcher_.End(launcher_.Wait(1).id, {-1, 9});
  StartDaemon();
  EXPECT_TRUE(HasWeights(id));
  EXPECT_EQ(AttachLaunched(2)->WaitForWelcome().start_checkpoint_dir(), Root() + "/" + id + "/step-7");
}

TEST_F(ControllerRetryTest, WhatIsRefusedTakesNoWeights) {
  CreateJobParams params = FromJob();
  params.start = Hold();
  const std::string id = Submit(std::move(params));
  const std::shared_ptr<HeldWeights> start = Hold();
  const std::string folder = start->folder();
  const absl::Status status = Retry(id, start).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("only FAILED and CANCELLED ones are retried"));
  EXPECT_TRUE(fs::exists(folder)) << "still the caller's";
  EXPECT_TRUE(HasWeights(id));
}

TEST_F(ControllerRetryTest, AJobWhoseLastWorkerIsStillThereWaitsForIt) {
  CreateJobParams params = FromJob();
  params.start = Hold();
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  SendFinished(worker, v1::WorkerFinished::FAILED, 0, v1::Failure::DATA);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EXPECT_EQ(Get(id)->state(), v1::Job::FAILED);
  ASSERT_TRUE(Retry(id, Hold()).ok());
  Settle();
  EXPECT_EQ(launcher_.launches(), 1u);
  EndWorker(worker, 0);
  EXPECT_TRUE(HasWeights(id));
  EXPECT_EQ(AttachLaunched(1)->WaitForWelcome().start_checkpoint_dir(), Root() + "/" + id + "/step-7");
}

TEST_F(ControllerRetryTest, AJobThatNeverStartedWaitsAgainForThoseItNames) {
  const std::string first = Submit();
  CreateJobParams params = Params();
  params.spec.add_after_ok(first);
  const std::string second = Submit(params);
  ASSERT_TRUE(Cancel(second).ok());
  ASSERT_TRUE(Retry(second).ok());
  Settle();
  EXPECT_EQ(Get(second)->queue_reason(), v1::Job::DEPENDENCY);
  FailForGood(0);
  EXPECT_EQ(WaitFor(second, v1::Job::CANCELLED).attempt(), 0u) << "as if it had not been retried";

  const absl::Status status = Retry(second).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(status.message(),
            absl::StrCat("job ", second, ": job ", first,
                         ", which must succeed first (after_ok), ended FAILED; retry that one first"));
  EXPECT_EQ(Get(second)->state(), v1::Job::CANCELLED);
  ASSERT_TRUE(Retry(first).ok());
  ASSERT_TRUE(Retry(second).ok()) << "it may succeed this time";
  EXPECT_EQ(Get(second)->queue_reason(), v1::Job::DEPENDENCY);
  auto worker = AttachLaunched(1);
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 0);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EndWorker(worker, 1);
  EXPECT_EQ(launcher_.Wait(2).request.job_id, second);
}

TEST_F(ControllerRetryTest, AJobWhoseDependencyHasEndedWellStartsAtOnce) {
  const std::string first = Submit();
  CreateJobParams params = Params();
  params.spec.add_after_ok(first);
  const std::string second = Submit(params);
  ASSERT_TRUE(Cancel(second).ok());
  auto worker = AttachLaunched(0);
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 0);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EndWorker(worker, 0);
  Settle();
  ASSERT_TRUE(Retry(second).ok());
  EXPECT_EQ(launcher_.Wait(1).request.job_id, second);
}

// Another dataset may have the name by now.
TEST_F(ControllerRetryTest, AJobTrainsOnWhatItWasSubmittedWithOrNotAtAll) {
  CreateJobParams params = Params();
  params.datasets = {{"d", "one"}, {"e", "two"}};
  const std::string id = Submit(std::move(params));
  FailForGood(0);
  const std::vector<std::map<std::string, std::string>> others{{{"d", "other"}, {"e", "two"}}, {{"e", "two"}}, {}};
  for (const auto& datasets : others) {
    const absl::Status status = Retry({.job_id = id, .datasets = datasets}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("dataset d is not the one"));
  }
  RestartDaemon();
  EXPECT_FALSE(Retry({.job_id = id, .datasets = {{"d", "one"}, {"e", "other"}}}).ok()) << "that outlives the daemon";
  EXPECT_EQ(Get(id)->state(), v1::Job::FAILED);
  EXPECT_TRUE(Retry({.job_id = id, .datasets = {{"d", "one"}, {"e", "two"}}}).ok());
}

TEST_F(ControllerRetryTest, ADatasetIsUsedUntilTheLastJobThatNamesItHasEnded) {
  const auto use = [&](const std::string& dataset, const Owner& owner = std::nullopt) {
    Sync();
    return Await<DatasetUse>([&](auto done) { controller_->FindDatasetUse(dataset, owner, std::move(done)); }).value();
  };
  std::string ids[2];
  for (const char* user : {"ann", "bob"}) {
    CreateJobParams params = Params();
    params.user = user;
    params.datasets = {{"d", "one"}};
    ids[user == std::string("bob")] = Submit(std::move(params));
  }
  EXPECT_FALSE(use("e").used);
  const auto check = [&] {
    EXPECT_EQ(use("d", "ann").job_id, ids[0]);
    EXPECT_EQ(use("d", "bob").job_id, ids[1]);
    EXPECT_TRUE(use("d", "eve").used);
    EXPECT_EQ(use("d", "eve").job_id, "");
  };
  check();
  RestartDaemon();
  check();
  ASSERT_TRUE(Cancel(ids[1]).ok());
  EXPECT_EQ(use("d").job_id, ids[0]);
  FailForGood(launcher_.launches() - 1);
  EXPECT_FALSE(use("d").used);
  ASSERT_TRUE(Retry({.job_id = ids[1], .datasets = {{"d", "one"}}}).ok());
  EXPECT_EQ(use("d").job_id, ids[1]) << "it is to run again";
}

}  // namespace
}  // namespace ampd
