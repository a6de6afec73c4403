#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ControllerRequestsTest = ControllerTest;

TEST_F(ControllerRequestsTest, TheSameRequestGivesTheSameJob) {
  const std::string id = Submit(Params("r1", "a"));
  EXPECT_EQ(Create(Params("r1", "a"))->id(), id);
  EXPECT_EQ(Create(Params("r1", "b")).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(Create(Params("r2", "a"))->id(), id);
  RestartDaemon();
  EXPECT_EQ(Create(Params("r1", "a"))->id(), id);
  EXPECT_EQ(Create(Params("r1", "b")).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(ControllerRequestsTest, TheSameRequestAtTheSameTimeGivesOneJob) {
  std::vector<std::future<absl::StatusOr<v1::Job>>> answers;
  for (int i = 0; i < 20; ++i) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<v1::Job>>>();
    answers.push_back(promise->get_future());
    controller_->CreateJob(Params("r1", i == 13 ? "other" : "a"),
                           [promise](absl::StatusOr<v1::Job> job) { promise->set_value(std::move(job)); });
  }
  const std::string id = answers[0].get()->id();
  for (int i = 1; i < 20; ++i) {
    const auto job = answers[i].get();
    if (i == 13) {
      EXPECT_EQ(job.status().code(), absl::StatusCode::kAlreadyExists);
    } else {
      EXPECT_EQ(job->id(), id);
    }
  }
}

TEST_F(ControllerRequestsTest, FindRequestTellsWhatWasMade) {
  const auto find = [&](const std::string& body) {
    return Await<std::optional<v1::Job>>([&](auto done) { controller_->FindRequest("", "r1", body, std::move(done)); });
  };
  EXPECT_FALSE(find("a")->has_value());
  const std::string id = Submit(Params("r1", "a"));
  EXPECT_EQ((*find("a"))->id(), id);
  EXPECT_EQ(find("b").status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(ControllerRequestsTest, ALongRequestIdIsRefused) {
  EXPECT_EQ(Create(Params(std::string(201, 'r'))).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Create(Params(std::string(200, 'r'))).ok());
}

TEST_F(ControllerRequestsTest, JobsAreFoundByPrefixAndListed) {
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(Submit());
    // So that ids differ in their first 10 letters, the time.
    clock_.Advance(absl::Milliseconds(1));
  }
  EXPECT_EQ(Get(ids[2].substr(0, 10))->id(), ids[2]);
  EXPECT_EQ(Get("01z").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Get("zzzz").status().code(), absl::StatusCode::kNotFound);
  v1::ListJobsRequest request;
  request.set_page_size(3);
  const auto list = [&] {
    return Await<v1::ListJobsResponse>([&](auto done) { controller_->ListJobs(request, std::move(done)); });
  };
  const auto first = list();
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(first->jobs_size(), 3);
  EXPECT_EQ(first->jobs(0).id(), ids[4]);
  EXPECT_EQ(first->jobs(0).queue_position(), 4);
  request.set_page_token(first->next_page_token());
  const auto second = list();
  ASSERT_EQ(second->jobs_size(), 2);
  EXPECT_EQ(second->jobs(1).id(), ids[0]);
  EXPECT_EQ(second->next_page_token(), "");
  request.set_page_size(1001);
  EXPECT_EQ(list().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ControllerRequestsTest, AUserPagesThroughTheirOwnJobs) {
  for (int i = 0; i < 6; ++i) {
    CreateJobParams params = Params();
    params.user = i % 2 == 0 ? "ann" : "bob";
    Submit(std::move(params));
  }
  v1::ListJobsRequest request;
  request.set_page_size(2);
  const auto list = [&](const Owner& owner) {
    return Await<v1::ListJobsResponse>([&](auto done) { controller_->ListJobs(request, std::move(done), owner); });
  };
  const auto first = list("ann");
  ASSERT_TRUE(first.ok()) << first.status();
  request.set_page_token(first->next_page_token());
  const auto second = list("ann");
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_EQ(second->jobs_size(), 1);
  EXPECT_EQ(second->jobs(0).user(), "ann");
  EXPECT_THAT(list("bob").status().message(), HasSubstr("page_token"));
  EXPECT_THAT(list(std::nullopt).status().message(), HasSubstr("page_token"));
}

TEST_F(ControllerRequestsTest, ALargeJobIsReadInItsTurn) {
  Submit();
  CreateJobParams params = Params();
  params.user = "ann";
  for (int i = 0; i < 3000; ++i)
    params.spec.mutable_model()->add_layers()->set_name(absl::StrCat("layer-", i, "-of-many"));
  const std::string id = Submit(params);
  std::vector<std::future<absl::StatusOr<v1::Job>>> answers;
  for (int i = 0; i < 20; ++i) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<v1::Job>>>();
    answers.push_back(promise->get_future());
    controller_->GetJob(
        id, [promise](absl::StatusOr<v1::Job> job) { promise->set_value(std::move(job)); },
        i % 2 == 0 ? Owner("ann") : std::nullopt);
  }
  for (auto& answer : answers) {
    const absl::StatusOr<v1::Job> job = answer.get();
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->spec().model().layers_size(), params.spec.model().layers_size());
    EXPECT_EQ(job->queue_position(), 1);
  }
  EXPECT_EQ(Await<v1::Job>([&](auto done) { controller_->GetJob(id, std::move(done), "bob"); }).status().code(),
            absl::StatusCode::kNotFound);
  // Those that wait when the daemon ends are told.
  answers.clear();
  for (int i = 0; i < 20; ++i) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<v1::Job>>>();
    answers.push_back(promise->get_future());
    controller_->GetJob(id, [promise](absl::StatusOr<v1::Job> job) { promise->set_value(std::move(job)); });
  }
  StopDaemon();
  for (auto& answer : answers) {
    const absl::StatusOr<v1::Job> job = answer.get();
    EXPECT_TRUE(job.ok() || absl::IsCancelled(job.status())) << job.status();
  }
}

TEST_F(ControllerRequestsTest, AJobThatStartsAtOnceHasNoReasonToWait) {
  const absl::StatusOr<v1::Job> job = Create(Params());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->queue_reason(), v1::Job::QUEUE_REASON_UNSPECIFIED);
  EXPECT_EQ(job->queue_message(), "");
}

TEST_F(ControllerRequestsTest, ARepeatedRequestIsAnsweredWhateverWouldKeepItOut) {
  max_queued_jobs_per_user_ = 1;
  RestartDaemon();
  Submit();
  const std::string id = Submit(Params("r1"));
  EXPECT_EQ(Create(Params("r2")).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Create(Params("r1"))->id(), id);
}

TEST_F(ControllerRequestsTest, JobsAreListedByFilterAndOrder) {
  std::vector<std::string> ids;
  for (const int priority : {3, -1, 7}) {
    CreateJobParams params = Params();
    params.user = priority < 0 ? "ann" : "bob";
    params.spec.mutable_resources()->set_priority(priority);
    ids.push_back(Submit(std::move(params)));
  }
  v1::ListJobsRequest request;
  const auto list = [&] {
    return Await<v1::ListJobsResponse>([&](auto done) { controller_->ListJobs(request, std::move(done)); });
  };
  request.set_filter("priority >= 3 AND user = bob");
  request.set_order_by("priority");
  request.set_page_size(1);
  const auto first = list();
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ(first->jobs_size(), 1);
  EXPECT_EQ(first->jobs(0).id(), ids[0]);
  EXPECT_EQ(first->jobs(0).spec().resources().priority(), 3) << "whole jobs";
  request.set_page_token(first->next_page_token());
  ASSERT_EQ(list()->jobs_size(), 1);
  EXPECT_EQ(list()->jobs(0).id(), ids[2]);
  request.set_filter("priority >= 4");
  EXPECT_THAT(list().status().message(), HasSubstr("page_token"));
  request.clear_page_token();
  request.add_states(v1::Job::QUEUED);
  request.add_states(static_cast<v1::Job::State>(-7));
  EXPECT_THAT(list().status().message(), HasSubstr("states[1]: there is no state -7"));
  request.clear_states();
  request.set_filter("priority >= ");
  EXPECT_EQ(list().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(list().status().message(), HasSubstr("filter: at byte 12: expected a value"));
  request.clear_filter();
  request.set_order_by("loss");
  EXPECT_THAT(list().status().message(), HasSubstr("order_by: \"loss\" is not one of"));
}

TEST_F(ControllerRequestsTest, WhatIsPendingWhenTheControllerEndsIsCancelled) {
  std::vector<std::future<absl::StatusOr<v1::Job>>> answers;
  for (int i = 0; i < 50; ++i) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<v1::Job>>>();
    answers.push_back(promise->get_future());
    controller_->CreateJob(Params(i % 2 == 0 ? "" : absl::StrCat("r", i)),
                           [promise](absl::StatusOr<v1::Job> job) { promise->set_value(std::move(job)); });
  }
  StopDaemon();
  for (auto& answer : answers) {
    ASSERT_EQ(answer.wait_for(kDeadline), std::future_status::ready);
    const auto job = answer.get();
    EXPECT_TRUE(job.ok() || job.status().code() == absl::StatusCode::kCancelled) << job.status();
  }
}

TEST_F(ControllerRequestsTest, NeedsADevice) {
  StopDaemon();
  Store::Options options;
  options.state_dir = dir_.path();
  auto store = *Store::Open(options);
  EventLog log(store.get());
  EXPECT_EQ(Controller::Start(ControllerOptions(), store.get(), &log, &launcher_, nullptr, &clock_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ControllerRequestsTest, FleetTotalsSurviveRestarts) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  for (uint64_t number = 1; number <= 5; ++number) SendStep(worker, number, static_cast<int64_t>(number));
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 5);
  EXPECT_TRUE(worker->WaitForGoodbye());
  log_->Flush();
  EXPECT_THAT(metrics_->Serialize(), ::testing::HasSubstr("ampd_steps_applied_total 5\n"));
  RestartDaemon();
  const auto counters = store_->Await([](const Database& database) { return database.Counters(); });
  const auto counts = store_->Await([](const Database& database) { return database.JobCounts(); });
  Metrics restored("0", &clock_);
  restored.Restore(*counters, *counts);
  const std::string text = restored.Serialize();
  EXPECT_THAT(text, ::testing::HasSubstr("ampd_steps_applied_total 5\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("ampd_samples_total 160\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("ampd_jobs_succeeded_total 1\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("ampd_jobs{state=\"succeeded\"} 1\n"));
}

}  // namespace
}  // namespace ampd
