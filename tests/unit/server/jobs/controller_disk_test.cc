#include <sqlite3.h>

#include <fstream>

#include "absl/strings/numbers.h"
#include "server/store/checksum_vfs.h"
#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kShortage[] = "7 bytes left";

class ControllerDiskTest : public ControllerTest {
 protected:
  void SetShortage(const std::string& shortage) {
    controller_->SetDiskShortage(shortage);
    Settle();
  }
  // The database, behind the daemon's back.
  void Change(const char* sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open((dir_.path() + "/ampd.db").c_str(), &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    EXPECT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
    sqlite3_close(db);
  }
  // The attempt of launch `n` ends for want of room.
  void FillDisk(const std::shared_ptr<FakeConnection>& worker, size_t n, uint64_t last_number = 0) {
    SendFinished(worker, v1::WorkerFinished::FAILED, last_number, v1::Failure::DISK_FULL);
    EXPECT_TRUE(worker->WaitForGoodbye());
    EndWorker(worker, n);
    Settle();
  }
  void SendCheckpoint(const std::shared_ptr<FakeConnection>& worker, uint64_t number) {
    v1::WorkerMessage message;
    message.mutable_event()->set_number(number);
    message.mutable_event()->mutable_event()->mutable_checkpoint()->set_checkpoint("step-1");
    controller_->WorkerMessage(worker, message);
    EXPECT_TRUE(worker->WaitForAck(number));
  }
};

TEST_F(ControllerDiskTest, WithoutRoomNothingStartsAndTheJobSaysSo) {
  SetShortage(kShortage);
  const std::string id = Submit();
  const v1::Job job = *Get(id);
  EXPECT_EQ(job.state(), v1::Job::QUEUED);
  EXPECT_EQ(job.queue_reason(), v1::Job::RESOURCES);
  EXPECT_EQ(job.queue_message(), kShortage);
  EXPECT_EQ(launcher_.launches(), 0u);
  SetShortage("");
  launcher_.Wait(0);
}

TEST_F(ControllerDiskTest, AJobWithoutRoomIsPausedAndGoesOnByItselfWithoutAFailure) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  SendStep(worker, 1, 1);
  EXPECT_TRUE(worker->WaitForAck(1));
  SetShortage(kShortage);
  EXPECT_EQ(Get(id)->state(), v1::Job::RUNNING) << "what runs may use the room that is left";
  FillDisk(worker, 0, 1);
  v1::Job job = *Get(id);
  EXPECT_EQ(job.state(), v1::Job::PAUSED);
  EXPECT_EQ(job.pause_reason(), v1::Job::NO_DISK_SPACE);
  EXPECT_EQ(job.failures(), 0u);
  EXPECT_THAT(LastEvent(id).state_change().reason(), HasSubstr("as the worker says"));
  Advance(absl::Hours(1));
  EXPECT_EQ(launcher_.launches(), 1u);
  SetShortage("");
  auto second = AttachLaunched(1);
  SendFinished(second, v1::WorkerFinished::SUCCEEDED, 0);
  job = WaitFor(id, v1::Job::SUCCEEDED);
  EXPECT_EQ(job.attempt(), 2u);
  EXPECT_EQ(job.failures(), 0u);
  ExpectGapFree(id);
  EXPECT_THAT(States(id), ElementsAre(v1::Job::QUEUED, v1::Job::STARTING, v1::Job::RUNNING, v1::Job::PAUSED,
                                      v1::Job::QUEUED, v1::Job::STARTING, v1::Job::RUNNING, v1::Job::SUCCEEDED));
}

TEST_F(ControllerDiskTest, AWorkerWhoseFolderFindsNoRoomIsNoFailureEither) {
  launcher_.Refuse(absl::ResourceExhaustedError("cannot make jobs/x"));
  const std::string id = Submit();
  v1::Job job = WaitFor(id, v1::Job::PAUSED);
  EXPECT_EQ(job.pause_reason(), v1::Job::NO_DISK_SPACE);
  EXPECT_EQ(job.failures(), 0u);
  EXPECT_THAT(LastEvent(id).state_change().reason(), HasSubstr("cannot make jobs/x"));
  launcher_.Refuse(absl::OkStatus());
  Advance(absl::Seconds(1));
  SendFinished(AttachLaunched(0), v1::WorkerFinished::SUCCEEDED, 0);
  job = WaitFor(id, v1::Job::SUCCEEDED);
  EXPECT_EQ(job.failures(), 0u);
}

// A quota, or a checkpoint that is larger than what is free.
TEST_F(ControllerDiskTest, WhereTheDaemonSeesRoomItIsTriedAgainEverLaterUntilACheckpointIsWritten) {
  CreateJobParams params = Params();
  params.spec.mutable_retry()->set_max_attempts(1);
  const std::string id = Submit(std::move(params));
  size_t n = 0;
  for (const int64_t seconds : {1, 2, 4}) {
    FillDisk(AttachLaunched(n), n);
    EXPECT_EQ(Get(id)->state(), v1::Job::PAUSED);
    Advance(absl::Seconds(seconds) - absl::Milliseconds(1));
    EXPECT_EQ(launcher_.launches(), n + 1);
    Advance(absl::Milliseconds(1));
    launcher_.Wait(++n);
  }
  auto worker = AttachLaunched(n);
  SendCheckpoint(worker, 1);
  FillDisk(worker, n, 1);
  Advance(absl::Seconds(1));
  launcher_.Wait(n + 1);
}

TEST_F(ControllerDiskTest, APauseOfWhoeverAskedIsNotEndedByRoom) {
  const std::string id = Submit();
  FillDisk(AttachLaunched(0), 0);
  const auto paused = Await<v1::Job>([&](auto done) { controller_->PauseJob(id, std::move(done)); });
  ASSERT_TRUE(paused.ok()) << paused.status();
  EXPECT_EQ(paused->pause_reason(), v1::Job::REQUESTED);
  SetShortage(kShortage);
  SetShortage("");
  Advance(absl::Hours(1));
  EXPECT_EQ(Get(id)->state(), v1::Job::PAUSED);
  EXPECT_EQ(launcher_.launches(), 1u);
}

TEST_F(ControllerDiskTest, ItMayBeResumedByHandAndCancelled) {
  const std::string id = Submit();
  FillDisk(AttachLaunched(0), 0);
  const auto resumed = Await<v1::Job>([&](auto done) { controller_->ResumeJob(id, std::move(done)); });
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  FillDisk(AttachLaunched(1), 1);
  EXPECT_EQ(Cancel(id)->state(), v1::Job::CANCELLED);
  Advance(absl::Hours(1));
  EXPECT_EQ(launcher_.launches(), 2u);
}

TEST_F(ControllerDiskTest, TheNextDaemonQueuesItAgain) {
  const std::string id = Submit();
  FillDisk(AttachLaunched(0), 0);
  EXPECT_EQ(Get(id)->state(), v1::Job::PAUSED);
  RestartDaemon();
  launcher_.Wait(1);
}

TEST_F(ControllerDiskTest, AJobOverItsLimitWhoseLastCheckpointDoesNotFitHasFailedOfItsLimit) {
  CreateJobParams params = Params();
  params.spec.mutable_limits()->set_max_run_seconds(10);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  Advance(absl::Seconds(10));
  EXPECT_TRUE(worker->WaitForStop());
  SendFinished(worker, v1::WorkerFinished::FAILED, 0, v1::Failure::DISK_FULL);
  EXPECT_EQ(WaitFor(id, v1::Job::FAILED).failure().class_(), v1::Failure::LIMIT);
}

TEST_F(ControllerDiskTest, AStoreThatTakesNoWritesHoldsJobsBackUntilItTakesSome) {
  StopDaemon();
  StartDaemon(2, /*max_pages=*/64);
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  SetShortage(kShortage);
  const std::string waiting = Submit();
  absl::Status full;
  for (const size_t bytes : {30000, 1000, 100}) {
    CreateJobParams params = Params();
    params.spec.mutable_labels()->insert({"x", std::string(bytes, 'x')});
    full = absl::OkStatus();
    for (int i = 0; i < 400 && full.ok(); ++i) full = Create(params).status();
  }
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(full.message(), HasSubstr("the state directory has no room"));
  for (uint64_t number = 1; number <= 300; ++number) SendStep(worker, number, static_cast<int64_t>(number));
  Settle();
  SetShortage("");
  const v1::Job job = *Get(waiting);
  EXPECT_EQ(job.state(), v1::Job::QUEUED);
  EXPECT_EQ(job.queue_reason(), v1::Job::RESOURCES);
  EXPECT_THAT(job.queue_message(), HasSubstr("takes no writes"));
  // What fails for another reason says nothing of room.
  Change("ALTER TABLE events RENAME TO away");
  Advance(absl::Seconds(1));
  Settle();
  EXPECT_THAT(Get(waiting)->queue_message(), HasSubstr("takes no writes"));
  EXPECT_EQ(launcher_.launches(), 1u);
  Change("ALTER TABLE away RENAME TO events");
  store_->ReadInOrder(
      [](const Database& database) { EXPECT_TRUE(const_cast<Database&>(database).SetMaxPages(1 << 20).ok()); });
  Advance(absl::Seconds(1));
  EXPECT_TRUE(worker->WaitForAck(300));
  launcher_.Wait(1);
}

TEST_F(ControllerDiskTest, AChangeThatADamagedPageKeepsOutIsToldAndTriedAgainLater) {
  SetShortage(kShortage);
  const std::string id = Submit();
  // Nobody has pages in memory after a change by another connection, and none are in the log.
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open_v2((dir_.path() + "/ampd.db").c_str(), &db, SQLITE_OPEN_READWRITE, ChecksumVfs()), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "CREATE TABLE other(x); PRAGMA wal_checkpoint(TRUNCATE)", nullptr, nullptr, nullptr),
            SQLITE_OK);
  int64_t page = 0;
  const auto read = [](void* out, int, char** values, char**) {
    return absl::SimpleAtoi(values[0], static_cast<int64_t*>(out)) ? 0 : 1;
  };
  ASSERT_EQ(sqlite3_exec(db, "SELECT rootpage FROM sqlite_schema WHERE name = 'jobs'", read, &page, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  const auto flip = [&] {
    std::fstream file(dir_.path() + "/ampd.db", std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(page * 4096 - 100);
    const int byte = file.get();
    file.seekp(page * 4096 - 100);
    file.put(static_cast<char>(byte ^ 1));
  };
  flip();
  const absl::Status refused = Cancel(id).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat("page ", page, " is damaged")));
  const size_t logged = Logged().size();
  Advance(absl::Seconds(10));
  EXPECT_EQ(Logged().size(), logged);
  flip();
  Advance(absl::Minutes(5));
  EXPECT_EQ(WaitFor(id, v1::Job::CANCELLED).id(), id);
}

}  // namespace
}  // namespace ampd
