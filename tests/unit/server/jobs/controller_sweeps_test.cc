#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ControllerSweepsTest : public ControllerTest {
 protected:
  std::vector<CreateJobParams> Points(int count, const std::string& request_id = "", const std::string& body = "body") {
    std::vector<CreateJobParams> points;
    for (int i = 0; i < count; ++i) {
      points.push_back(Params());
      points.back().sweep.emplace();
      points.back().sweep->set_index(i + 1);
      points.back().sweep->set_count(count);
      points.back().sweep->set_max_parallel(3);
    }
    points[0].request_id = request_id;
    points[0].body = body;
    return points;
  }
  absl::StatusOr<v1::JobSweep> CreateSweep(std::vector<CreateJobParams> points) {
    return Await<v1::JobSweep>([&](auto done) { controller_->CreateSweep(std::move(points), std::move(done)); });
  }
  absl::StatusOr<v1::JobSweep> GetSweep(const std::string& id) {
    return Await<v1::JobSweep>([&](auto done) { controller_->GetSweep(id, std::move(done)); });
  }
  int64_t JobsInStore() {
    int64_t jobs = 0;
    const auto counts = store_->Await([](const Database& database) { return database.JobCounts(); });
    for (const auto& [state, count] : *counts) jobs += count;
    return jobs;
  }
};

TEST_F(ControllerSweepsTest, PointsWaitForTheSameJobsAndForThoseThatEnded) {
  const auto sweep_after = [this](const std::vector<std::string>& after, const std::vector<std::string>& after_ok) {
    std::vector<CreateJobParams> points = Points(3);
    for (CreateJobParams& point : points) {
      for (const std::string& id : after) point.spec.add_after(id);
      for (const std::string& id : after_ok) point.spec.add_after_ok(id);
    }
    const absl::StatusOr<v1::JobSweep> sweep = CreateSweep(std::move(points));
    EXPECT_TRUE(sweep.ok()) << sweep.status();
    return std::vector<v1::Job>(sweep->jobs().begin(), sweep->jobs().end());
  };
  const std::string ended = Submit(), runs = Submit();
  ASSERT_TRUE(Cancel(ended).ok());
  WaitFor(ended, v1::Job::CANCELLED);
  for (const v1::Job& job : sweep_after({}, {ended})) {
    WaitFor(job.id(), v1::Job::CANCELLED);
    EXPECT_EQ(LastEvent(job.id()).state_change().reason(),
              absl::StrCat("job ", ended, ", which must succeed first (after_ok), ended CANCELLED"));
  }
  const std::vector<v1::Job> waiting = sweep_after({ended, runs}, {});
  Settle();
  for (const v1::Job& job : waiting) {
    EXPECT_EQ(Get(job.id())->queue_reason(), v1::Job::DEPENDENCY);
    EXPECT_THAT(Get(job.id())->queue_message(), HasSubstr(absl::StrCat("waits for ", runs)));
  }
}

TEST_F(ControllerSweepsTest, AllJobsAreThereInOrder) {
  const std::string before = Submit();
  const absl::StatusOr<v1::JobSweep> sweep = CreateSweep(Points(5));
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  EXPECT_EQ(sweep->id().size(), 26u);
  EXPECT_EQ(sweep->count(), 5);
  ASSERT_EQ(sweep->jobs_size(), 5);
  const std::string after = Submit();
  for (int i = 0; i < 5; ++i) {
    const v1::Job& job = sweep->jobs(i);
    EXPECT_EQ(job.sweep().sweep_id(), sweep->id());
    EXPECT_EQ(job.sweep().index(), i + 1);
    EXPECT_EQ(job.sweep().max_parallel(), 3);
    EXPECT_FALSE(job.has_spec());
    EXPECT_GT(job.id(), i == 0 ? before : sweep->jobs(i - 1).id());
    EXPECT_LT(job.id(), after);
    EXPECT_EQ(Get(job.id())->spec().train().batch_size(), 32);
    ExpectGapFree(job.id());
  }
  // The only device is taken.
  EXPECT_EQ(sweep->jobs(4).state(), v1::Job::QUEUED);
  EXPECT_EQ(sweep->jobs(4).queue_position(), 5);
  EXPECT_EQ(GetSweep(sweep->id().substr(0, 20))->jobs_size(), 5);
  RestartDaemon();
  EXPECT_EQ(GetSweep(sweep->id())->jobs_size(), 5);
  EXPECT_EQ(Get(sweep->jobs(2).id())->sweep().index(), 3);
  EXPECT_EQ(GetSweep("zzzz").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetSweep(before).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetSweep("0").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ControllerSweepsTest, TheSameRequestGivesTheSameSweep) {
  const absl::StatusOr<v1::JobSweep> sweep = CreateSweep(Points(3, "r1", "a"));
  ASSERT_TRUE(sweep.ok());
  EXPECT_EQ(CreateSweep(Points(3, "r1", "a"))->id(), sweep->id());
  EXPECT_EQ(CreateSweep(Points(3, "r1", "b")).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Create(Params("r1", "b")).status().code(), absl::StatusCode::kAlreadyExists);
  RestartDaemon();
  EXPECT_EQ(CreateSweep(Points(3, "r1", "a"))->id(), sweep->id());
  EXPECT_EQ(JobsInStore(), 3);
}

TEST_F(ControllerSweepsTest, TheSameRequestAtTheSameTimeGivesOneSweep) {
  std::vector<std::future<absl::StatusOr<v1::JobSweep>>> answers;
  for (int i = 0; i < 10; ++i) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<v1::JobSweep>>>();
    answers.push_back(promise->get_future());
    controller_->CreateSweep(Points(4, "r1", "a"),
                             [promise](absl::StatusOr<v1::JobSweep> sweep) { promise->set_value(std::move(sweep)); });
  }
  const std::string id = answers[0].get()->id();
  for (int i = 1; i < 10; ++i) EXPECT_EQ(answers[i].get()->id(), id);
  EXPECT_EQ(JobsInStore(), 4);
}

TEST_F(ControllerSweepsTest, SweepsAreListedForWhoMaySeeThem) {
  Submit();
  const auto list = [&](v1::ListSweepsRequest request, Owner owner = std::nullopt) {
    return Await<v1::ListSweepsResponse>(
        [&](auto done) { controller_->ListSweeps(request, std::move(done), std::move(owner)); });
  };
  EXPECT_EQ(list({})->sweeps_size(), 0);
  std::vector<std::string> ids;
  for (const char* user : {"ann", "bob", "ann"}) {
    std::vector<CreateJobParams> points = Points(2);
    for (CreateJobParams& point : points) point.user = user;
    ids.push_back(CreateSweep(std::move(points))->id());
  }
  const auto ids_of = [](const absl::StatusOr<v1::ListSweepsResponse>& response) {
    std::vector<std::string> found;
    for (const v1::SweepSummary& sweep : response->sweeps()) found.push_back(sweep.id());
    return found;
  };
  v1::ListSweepsRequest of_ann;
  of_ann.set_user("ann");
  EXPECT_THAT(ids_of(list({})), ElementsAre(ids[2], ids[1], ids[0]));
  EXPECT_THAT(ids_of(list(of_ann)), ElementsAre(ids[2], ids[0]));
  EXPECT_THAT(ids_of(list({}, "bob")), ElementsAre(ids[1]));
  EXPECT_THAT(ids_of(list(of_ann, "ann")), ElementsAre(ids[2], ids[0]));
  EXPECT_THAT(ids_of(list(of_ann, "bob")), ElementsAre());
  const v1::SweepSummary newest = list({})->sweeps(0);
  EXPECT_EQ(newest.user(), "ann");
  EXPECT_EQ(newest.count(), 2);
  ASSERT_EQ(newest.states_size(), 1);
  EXPECT_EQ(newest.states(0).state(), v1::Job::QUEUED);
  EXPECT_EQ(newest.states(0).jobs(), 2);
  EXPECT_EQ(newest.create_time().seconds(), GetSweep(ids[2])->jobs(0).create_time().seconds());
  v1::ListSweepsRequest page;
  page.set_page_size(2);
  const auto first = list(page);
  page.set_page_token(first->next_page_token());
  EXPECT_THAT(ids_of(list(page)), ElementsAre(ids[0]));
  EXPECT_THAT(list(page, "ann").status().message(), HasSubstr("page_token"));
  page.set_page_size(1001);
  EXPECT_THAT(list(page).status().message(), HasSubstr("page_size"));
}

// Another job of the group is not hurt by it.
TEST_F(ControllerSweepsTest, AllOrNothingIsWritten) {
  Submit();
  StopDaemon();
  // Room for a few pages only.
  StartDaemon(1, 40);
  std::vector<CreateJobParams> points = Points(50);
  for (CreateJobParams& point : points) (*point.spec.mutable_labels())["long"] = std::string(4000, 'x');
  const absl::StatusOr<v1::JobSweep> sweep = CreateSweep(std::move(points));
  EXPECT_EQ(sweep.status().code(), absl::StatusCode::kResourceExhausted) << sweep.status();
  EXPECT_EQ(JobsInStore(), 1);
  RestartDaemon();
  EXPECT_EQ(JobsInStore(), 1);
  EXPECT_TRUE(CreateSweep(Points(50)).ok());
  EXPECT_EQ(JobsInStore(), 51);
}

TEST_F(ControllerSweepsTest, CancellingEndsWhatHasNotEnded) {
  const absl::StatusOr<v1::JobSweep> sweep = CreateSweep(Points(4));
  ASSERT_TRUE(sweep.ok());
  const std::string other = Submit();
  const auto connection = AttachLaunched(0);
  WaitFor(sweep->jobs(0).id(), v1::Job::RUNNING);
  Cancel(sweep->jobs(2).id()).IgnoreError();
  const absl::StatusOr<v1::JobSweep> cancelled = Await<v1::JobSweep>(
      [&](auto done) { controller_->CancelSweep(sweep->id().substr(0, 22), false, std::move(done)); });
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  std::vector<v1::Job::State> states;
  for (const v1::Job& job : cancelled->jobs()) states.push_back(job.state());
  EXPECT_THAT(states, ElementsAre(v1::Job::CANCELLING, v1::Job::CANCELLED, v1::Job::CANCELLED, v1::Job::CANCELLED));
  EXPECT_TRUE(connection->WaitForStop());
  SendFinished(connection, v1::WorkerFinished::STOPPED, 0);
  EXPECT_TRUE(connection->WaitForGoodbye());
  EndWorker(connection, 0);
  WaitFor(sweep->jobs(0).id(), v1::Job::CANCELLED);
  // What is no part of it goes on.
  EXPECT_EQ(launcher_.Wait(1).request.job_id, other);
  // Nothing is left to be cancelled.
  EXPECT_TRUE(
      Await<v1::JobSweep>([&](auto done) { controller_->CancelSweep(sweep->id(), false, std::move(done)); }).ok());
}

TEST_F(ControllerSweepsTest, CancellingAtOnceKillsTheWorkers) {
  const absl::StatusOr<v1::JobSweep> sweep = CreateSweep(Points(2));
  ASSERT_TRUE(sweep.ok());
  const auto connection = AttachLaunched(0);
  WaitFor(sweep->jobs(0).id(), v1::Job::RUNNING);
  const auto cancelled =
      Await<v1::JobSweep>([&](auto done) { controller_->CancelSweep(sweep->id(), true, std::move(done)); });
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  EXPECT_TRUE(launcher_.WasKilled(0));
  controller_->WorkerDisconnected(connection);
  for (const v1::Job& job : sweep->jobs()) WaitFor(job.id(), v1::Job::CANCELLED);
  EXPECT_EQ(launcher_.launches(), 1u);
}

TEST_F(ControllerSweepsTest, ADrainingDaemonTakesNone) {
  controller_->Drain(absl::Seconds(1), [](const absl::Status&) {});
  EXPECT_EQ(CreateSweep(Points(2)).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ampd
