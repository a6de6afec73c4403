#include "server/store/store.h"

#include <gmock/gmock.h>
#include <sqlite3.h>

#include <atomic>
#include <fstream>
#include <future>
#include <thread>
#include <vector>

#include "server/store/statement.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::unique_ptr<Store> OpenStore(const TempDir& dir, int64_t max_pages = 0) {
  Store::Options options;
  options.state_dir = dir.path();
  options.max_pages = max_pages;
  auto store = Store::Open(std::move(options));
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

absl::StatusOr<JobRecord> Find(Store& store, const std::string& prefix) {
  return store.Await([&](const Database& database) { return database.FindJob(prefix); });
}

TEST(StoreTest, KeepsEveryFieldOfARecord) {
  TempDir dir;
  JobWrite write = CreateWrite(7);
  JobRecord& record = write.record;
  record.job.set_attempt(3);
  record.job.set_state(v1::Job::RUNNING);
  record.job.add_devices("cpu-0");
  record.worker = {1234, 99887766};
  record.token_hash = std::string("\0token", 6);
  record.session_key_hash = std::string("key\0", 4);
  record.worker_number = 12;
  record.last_reported_step = 500;
  record.run_seconds = 1.5;
  record.run_counted = absl::Nanoseconds(1'700'000'000'123'456'789);
  record.lost_attempts = 2;
  record.cancel_now = true;
  for (const int64_t step : {10, 20}) {
    record.at_checkpoints[step].set_step(step);
    record.at_checkpoints[step].set_accuracy(static_cast<double>(step) / 40);
  }
  record.charged = {12.5, 0, 3.0000000000000004, 0};
  record.charged_at_checkpoints[20] = {10.1, 1e-7, 2, 0.3};
  record.datasets = {{"a.b-c_D", std::string(64, '1')}, {"d", std::string(64, 'f')}};
  {
    auto store = OpenStore(dir);
    ASSERT_TRUE(WriteAndWait(*store, write).ok());
  }
  auto store = OpenStore(dir);
  const auto found = Find(*store, TestId(7));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->job.SerializeAsString(), record.job.SerializeAsString());
  EXPECT_EQ(found->submit_sequence, 7);
  EXPECT_EQ(found->worker, record.worker);
  EXPECT_EQ(found->token_hash, record.token_hash);
  EXPECT_EQ(found->session_key_hash, record.session_key_hash);
  EXPECT_EQ(found->worker_number, 12u);
  EXPECT_EQ(found->last_reported_step, 500);
  EXPECT_EQ(found->run_seconds, 1.5);
  EXPECT_EQ(found->run_counted, record.run_counted);
  EXPECT_EQ(found->lost_attempts, 2);
  EXPECT_TRUE(found->cancel_now);
  ASSERT_EQ(found->at_checkpoints.size(), 2u);
  EXPECT_EQ(found->at_checkpoints.at(20).accuracy(), 0.5);
  EXPECT_EQ(found->charged, record.charged);
  EXPECT_EQ(found->charged_at_checkpoints, record.charged_at_checkpoints);
  EXPECT_EQ(found->datasets, record.datasets);
}

TEST(StoreTest, WhatAJobWasChargedKeepsItNotOutWhenItIsDamaged) {
  for (const std::string charged : {"-1 1 2 3", "-1 1 2 3 nan\n", "-1 1 -2 3 4\n", "x", "-1 1 2 3 4\n20 1 2 3 4 5\n"}) {
    SCOPED_TRACE(charged);
    TempDir dir;
    JobWrite write = CreateWrite(7);
    write.record.charged = {12.5, 0, 3, 0};
    ASSERT_TRUE(WriteAndWait(*OpenStore(dir), write).ok());
    auto store = OpenStore(dir);
    std::promise<absl::Status> done;
    store->Change(
        [&](Database& database) { return Statement(database, "UPDATE jobs SET charged=?1").Text(charged).Run(); },
        [&done](const absl::Status& status) { done.set_value(status); });
    ASSERT_TRUE(done.get_future().get().ok());
    const auto found = Find(*store, TestId(7));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->charged, Charged());
    EXPECT_TRUE(found->charged_at_checkpoints.empty());
  }
}

// Event `sequence` of job `n`, at `seconds`.
JobWrite QueuedWrite(int n, uint64_t sequence, int64_t seconds) {
  JobWrite write = EventWrite(n, sequence);
  write.events[0].mutable_state_change()->set_to(v1::Job::QUEUED);
  write.events[0].mutable_time()->set_seconds(seconds);
  write.events[0].mutable_time()->set_nanos(500'000'000);
  return write;
}

TEST(StoreTest, TellsSinceWhenJobsWaitAndWhyTheyArePaused) {
  TempDir dir;
  auto store = OpenStore(dir);
  for (int n = 1; n <= 6; ++n) ASSERT_TRUE(WriteAndWait(*store, CreateWrite(n)).ok());
  // Queued twice, with an event behind that; paused; one of which nothing is known; running.
  ASSERT_TRUE(WriteAndWait(*store, QueuedWrite(1, 2, 1000)).ok());
  ASSERT_TRUE(WriteAndWait(*store, QueuedWrite(1, 3, 2000)).ok());
  ASSERT_TRUE(WriteAndWait(*store, EventWrite(1, 4)).ok());
  for (const auto& [n, reason] : {std::pair(2, v1::Job::REQUESTED), std::pair(3, v1::Job::NO_DISK_SPACE)}) {
    JobWrite paused = EventWrite(n, 2);
    paused.record.job.set_state(v1::Job::PAUSED);
    paused.record.job.set_pause_reason(reason);
    ASSERT_TRUE(WriteAndWait(*store, paused).ok());
  }
  JobWrite running = QueuedWrite(5, 2, 1000);
  running.record.job.set_state(v1::Job::RUNNING);
  ASSERT_TRUE(WriteAndWait(*store, running).ok());
  // Much was said since.
  ASSERT_TRUE(WriteAndWait(*store, QueuedWrite(6, 2, 1000)).ok());
  ASSERT_TRUE(WriteAndWait(*store, QueuedWrite(6, 3, 3000)).ok());
  for (uint64_t sequence = 4; sequence <= 40; ++sequence) {
    ASSERT_TRUE(WriteAndWait(*store, EventWrite(6, sequence)).ok());
  }
  const auto since = store->Await([](const Database& database) { return database.QueuedSince(); });
  ASSERT_TRUE(since.ok()) << since.status();
  EXPECT_THAT(*since, ElementsAre(Pair(TestId(1), absl::FromUnixMillis(2'000'500)),
                                  Pair(TestId(6), absl::FromUnixMillis(3'000'500))));
  const auto paused = store->Await([](const Database& database) { return database.PauseReasons(); });
  ASSERT_TRUE(paused.ok()) << paused.status();
  EXPECT_THAT(*paused, ElementsAre(Pair(TestId(2), v1::Job::REQUESTED), Pair(TestId(3), v1::Job::NO_DISK_SPACE)));
}

// Event `sequence` of job `n`, in an attempt: a report.
JobWrite StepsWrite(int n, uint64_t sequence, int64_t applied, int64_t skipped) {
  JobWrite write = EventWrite(n, sequence);
  write.record.job.set_state(v1::Job::RUNNING);
  write.record.job.set_attempt(1);
  write.events[0].set_attempt(1);
  v1::PhaseReport& phase = *write.events[0].mutable_step()->add_phases();
  phase.set_name("main");
  phase.set_steps_applied(applied);
  phase.set_steps_skipped(skipped);
  return write;
}

TEST(StoreTest, TellsTheMostStepsOfJobsThatGoOn) {
  TempDir dir;
  auto store = OpenStore(dir);
  for (int n = 1; n <= 4; ++n) ASSERT_TRUE(WriteAndWait(*store, CreateWrite(n)).ok());
  // Training went back, and told of a checkpoint before it did.
  ASSERT_TRUE(WriteAndWait(*store, StepsWrite(1, 2, 90, 10)).ok());
  JobWrite checkpoint = EventWrite(1, 3);
  checkpoint.record.job.set_state(v1::Job::RUNNING);
  checkpoint.record.job.set_attempt(1);
  checkpoint.events[0].set_attempt(1);
  for (const auto& [name, applied] : {std::pair("main", 95), std::pair("other", 5)}) {
    v1::CheckpointSaved::Phase& phase = *checkpoint.events[0].mutable_checkpoint()->add_phases();
    phase.set_name(name);
    phase.set_steps_applied(applied);
  }
  ASSERT_TRUE(WriteAndWait(*store, checkpoint).ok());
  ASSERT_TRUE(WriteAndWait(*store, StepsWrite(1, 4, 50, 4)).ok());
  // Of long ago; of a job that has ended.
  ASSERT_TRUE(WriteAndWait(*store, StepsWrite(2, 2, 1000, 0)).ok());
  for (uint64_t sequence = 3; sequence <= 202; ++sequence) {
    ASSERT_TRUE(WriteAndWait(*store, StepsWrite(2, sequence, 7, 0)).ok());
  }
  JobWrite ended = StepsWrite(3, 2, 8, 0);
  ended.record.job.set_state(v1::Job::SUCCEEDED);
  ASSERT_TRUE(WriteAndWait(*store, ended).ok());
  const auto steps = store->Await([](const Database& database) { return database.LastSteps(); });
  ASSERT_TRUE(steps.ok()) << steps.status();
  const StepsOfJobs expected = {{TestId(1), {{"main", {95, 10}}, {"other", {5, 0}}}}, {TestId(2), {{"main", {7, 0}}}}};
  EXPECT_EQ(*steps, expected);
}

// Reports of job `n`, from event `sequence` on: after each of these steps.
JobWrite ReportsWrite(int n, uint64_t sequence, int attempt, int64_t first_step, int64_t last_step, int64_t skipped) {
  JobWrite all = StepsWrite(n, sequence + static_cast<uint64_t>(last_step - first_step), 0, 0);
  all.record.job.set_attempt(static_cast<uint32_t>(attempt));
  all.events.clear();
  for (int64_t step = first_step; step <= last_step; ++step) {
    v1::JobEvent event = StepsWrite(n, sequence++, step, skipped).events[0];
    event.set_attempt(static_cast<uint32_t>(attempt));
    all.events.push_back(std::move(event));
  }
  return all;
}

// Counters must not go back with a daemon that begins long after training did.
TEST(StoreTest, TellsTheMostStepsHoweverLongAgoTrainingWentBack) {
  TempDir dir;
  auto store = OpenStore(dir);
  for (int n = 1; n <= 3; ++n) ASSERT_TRUE(WriteAndWait(*store, CreateWrite(n)).ok());
  // In attempts, one of which told of a single step.
  ASSERT_TRUE(WriteAndWait(*store, ReportsWrite(1, 2, 1, 401, 900, 3)).ok());
  ASSERT_TRUE(WriteAndWait(*store, ReportsWrite(1, 502, 2, 101, 700, 2)).ok());
  ASSERT_TRUE(WriteAndWait(*store, ReportsWrite(1, 1102, 3, 50, 50, 1)).ok());
  ASSERT_TRUE(WriteAndWait(*store, ReportsWrite(1, 1103, 4, 51, 300, 1)).ok());
  // Within one, where a job may.
  for (const int n : {2, 3}) {
    ASSERT_TRUE(WriteAndWait(*store, ReportsWrite(n, 2, 1, 600, 600, 8)).ok());
    JobWrite behind = ReportsWrite(n, 3, 1, 101, 550, 7);
    behind.new_spec = true;
    v1::PrecisionSpec& precision = *behind.record.job.mutable_spec()->mutable_precision();
    precision.mutable_loss_scale()->set_on_floor(n == 2 ? v1::LossScaleSpec::ROLLBACK : v1::LossScaleSpec::FAIL);
    ASSERT_TRUE(WriteAndWait(*store, behind).ok());
  }
  const auto steps = store->Await([](const Database& database) { return database.LastSteps(); });
  ASSERT_TRUE(steps.ok()) << steps.status();
  const StepsOfJobs expected = {
      {TestId(1), {{"main", {900, 3}}}}, {TestId(2), {{"main", {600, 8}}}}, {TestId(3), {{"main", {550, 7}}}}};
  EXPECT_EQ(*steps, expected);
}

TEST(StoreTest, WhatIsNoIdIsQuotedInWholeCharacters) {
  TempDir dir;
  auto store = OpenStore(dir);
  const std::string name = std::string(39, 'a') + "\u00e9";
  const std::string quoted = "\"" + std::string(39, 'a') + "... (2 more bytes)\"";
  const absl::Status job = Find(*store, name).status();
  const absl::Status sweep = store->Await([&](const Database& database) { return database.FindSweep(name); }).status();
  for (const absl::Status& status : {job, sweep}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(quoted));
  }
}

TEST(StoreTest, AnUpdateLeavesSpecAndPlanAlone) {
  TempDir dir;
  auto store = OpenStore(dir);
  ASSERT_TRUE(WriteAndWait(*store, CreateWrite(1)).ok());
  ASSERT_TRUE(WriteAndWait(*store, EventWrite(1, 2)).ok());
  const auto found = Find(*store, TestId(1));
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->job.spec().name(), "job 1");
  EXPECT_EQ(found->job.plan().parameters(), 1);
}

TEST(StoreTest, RefusesEventsThatDoNotFollow) {
  TempDir dir;
  auto store = OpenStore(dir);
  ASSERT_TRUE(WriteAndWait(*store, CreateWrite(1)).ok());
  EXPECT_EQ(WriteAndWait(*store, EventWrite(1, 3)).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(WriteAndWait(*store, EventWrite(1, 1)).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(WriteAndWait(*store, EventWrite(2, 1)).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(WriteAndWait(*store, EventWrite(1, 2)).ok());
}

TEST(StoreTest, AFailedWriteLeavesTheOthersOfItsGroup) {
  TempDir dir;
  auto store = OpenStore(dir);
  // A read that waits holds the thread, so that the writes behind it form one group.
  std::promise<void> go;
  store->ReadInOrder([waiting = go.get_future().share()](const Database&) { waiting.wait(); });
  std::vector<absl::Status> results(4);
  const auto keep = [&](int i) { return [&results, i](const absl::Status& status) { results[i] = status; }; };
  store->Write(CreateWrite(1), keep(0));
  store->Write(CreateWrite(1), keep(1));
  store->Write(EventWrite(1, 9), keep(2));
  store->Write(CreateWrite(2), keep(3));
  go.set_value();
  store->Flush();
  EXPECT_TRUE(results[0].ok()) << results[0];
  EXPECT_EQ(results[1].code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(results[2].code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(results[3].ok()) << results[3];
  EXPECT_EQ(Find(*store, TestId(1))->job.last_sequence(), 1u);
}

TEST(StoreTest, CommitsQueuedWritesTogether) {
  TempDir dir;
  std::vector<size_t> groups;
  Store::Options options;
  options.state_dir = dir.path();
  options.on_commit = [&](double, size_t writes) { groups.push_back(writes); };
  auto store = *Store::Open(std::move(options));
  std::promise<void> go;
  store->ReadInOrder([waiting = go.get_future().share()](const Database&) { waiting.wait(); });
  for (int n = 1; n <= 100; ++n) store->Write(CreateWrite(n), nullptr);
  go.set_value();
  store->Flush();
  EXPECT_THAT(groups, ElementsAre(100u));
}

TEST(StoreTest, ReadsDoNotWaitForWrites) {
  TempDir dir;
  auto store = OpenStore(dir);
  ASSERT_TRUE(WriteAndWait(*store, CreateWrite(1)).ok());
  std::promise<void> go;
  store->ReadInOrder([waiting = go.get_future().share()](const Database&) { waiting.wait(); });
  store->Write(CreateWrite(2), nullptr);
  EXPECT_TRUE(Find(*store, TestId(1)).ok());
  EXPECT_EQ(Find(*store, TestId(2)).status().code(), absl::StatusCode::kNotFound);
  go.set_value();
  store->Flush();
  EXPECT_TRUE(Find(*store, TestId(2)).ok());
}

TEST(StoreTest, WhatWasAcknowledgedIsReadByWhoeverAsksNext) {
  TempDir dir;
  auto store = OpenStore(dir);
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      for (int n = writer; n < 200; n += 4) {
        ASSERT_TRUE(WriteAndWait(*store, CreateWrite(n + 1)).ok());
        EXPECT_TRUE(Find(*store, TestId(n + 1)).ok()) << n + 1;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
}

TEST(StoreTest, NobodyReadsAWriteBeforeItsWriterIsTold) {
  TempDir dir;
  auto store = OpenStore(dir);
  for (int n = 1; n <= 50; ++n) {
    std::promise<void> durable, go;
    std::atomic<bool> told{false};
    store->Write(CreateWrite(n), [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      durable.set_value();
      go.get_future().wait();
      told = true;
    });
    durable.get_future().wait();
    // Of both readers: the file has the write, its writer does not know yet.
    std::atomic<int> early{0};
    for (int reader = 0; reader < 2; ++reader) {
      store->Read([&](const Database& database) {
        if (database.FindJob(TestId(n)).ok() && !told) ++early;
      });
    }
    std::this_thread::yield();
    go.set_value();
    store->Flush();
    EXPECT_EQ(early, 0) << n;
  }
}

TEST(StoreTest, AReadIsOfOneMoment) {
  TempDir dir;
  auto store = OpenStore(dir);
  ASSERT_TRUE(WriteAndWait(*store, CreateWrite(1)).ok());
  store->Await([&](const Database& database) {
    EXPECT_EQ(database.ReadEvents(TestId(1), 0, 10)->last_sequence, 1u);
    EXPECT_TRUE(WriteAndWait(*store, EventWrite(1, 2)).ok());
    EXPECT_EQ(database.ReadEvents(TestId(1), 0, 10)->last_sequence, 1u);
    return 0;
  });
  EXPECT_EQ(Find(*store, TestId(1))->job.last_sequence(), 2u);
}

TEST(StoreTest, AReadCannotWrite) {
  TempDir dir;
  auto store = OpenStore(dir);
  const absl::Status status =
      store->Await([](const Database& database) { return const_cast<Database&>(database).Apply(CreateWrite(1)); });
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(Find(*store, TestId(1)).status().code(), absl::StatusCode::kNotFound);
}

// Reads follow one another without a gap in which SQLite by itself could begin the log anew.
TEST(StoreTest, TheLogStaysSmallBesideReaders) {
  TempDir dir;
  auto store = OpenStore(dir);
  ASSERT_TRUE(WriteAndWait(*store, CreateWrite(1)).ok());
  std::atomic<bool> stop{false};
  std::atomic<int> missed{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        store->Await([&](const Database& database) {
          for (int n = 0; n < 50; ++n) missed += database.FindJob(TestId(1)).ok() ? 0 : 1;
          return 0;
        });
      }
    });
  }
  for (uint64_t sequence = 2; sequence <= 4000; ++sequence) {
    ASSERT_TRUE(WriteAndWait(*store, EventWrite(1, sequence, std::string(5000, 'e'))).ok());
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(missed, 0);
  // All that was written is several times as much.
  EXPECT_LT(std::filesystem::file_size(dir.path() + "/ampd.db-wal"), 24u << 20);
}

// Whoever looks into the database with another program holds the log, and nobody else.
TEST(StoreTest, AnotherProgramsReadHoldsUpNobody) {
  TempDir dir;
  auto store = OpenStore(dir);
  ASSERT_TRUE(WriteAndWait(*store, CreateWrite(1)).ok());
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open((dir.path() + "/ampd.db").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN; SELECT count(*) FROM jobs", nullptr, nullptr, nullptr), SQLITE_OK);
  uint64_t sequence = 2;
  const auto write_and_read = [&] {
    for (const uint64_t end = sequence + 200; sequence < end; ++sequence) {
      ASSERT_TRUE(WriteAndWait(*store, EventWrite(1, sequence, std::string(100'000, 'e'))).ok());
      ASSERT_TRUE(Find(*store, TestId(1)).ok());
    }
  };
  write_and_read();
  const uintmax_t held = std::filesystem::file_size(dir.path() + "/ampd.db-wal");
  EXPECT_GT(held, 19u << 20);
  ASSERT_EQ(sqlite3_exec(other, "COMMIT", nullptr, nullptr, nullptr), SQLITE_OK);
  write_and_read();
  EXPECT_LT(std::filesystem::file_size(dir.path() + "/ampd.db-wal"), held + (16u << 20));
  sqlite3_close(other);
}

TEST(StoreTest, FindsByUniquePrefix) {
  TempDir dir;
  auto store = OpenStore(dir);
  ASSERT_TRUE(WriteAndWait(*store, CreateWrite(1)).ok());
  ASSERT_TRUE(WriteAndWait(*store, CreateWrite(20)).ok());
  EXPECT_EQ(Find(*store, TestId(20).substr(0, 25))->job.id(), TestId(20));
  EXPECT_EQ(Find(*store, TestId(1).substr(0, 10)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Find(*store, "01h").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Find(*store, "01h%").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Find(*store, std::string(4000, '0')).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Find(*store, "zzzz").status().code(), absl::StatusCode::kNotFound);
}

TEST(StoreTest, ListsPagesNewestFirstAndFilters) {
  TempDir dir;
  auto store = OpenStore(dir);
  for (int n = 1; n <= 5; ++n) {
    JobWrite write = CreateWrite(n);
    if (n % 2 == 0) write.record.job.set_state(v1::Job::FAILED);
    ASSERT_TRUE(WriteAndWait(*store, write).ok());
  }
  const auto list = [&](int size, const std::string& token, std::vector<v1::Job::State> states) {
    return store->Await([&](const Database& database) {
      return database.ListJobs({.page_size = size, .page_token = token, .states = states});
    });
  };
  std::vector<std::string> seen;
  std::string token;
  int pages = 0;
  do {
    const auto page = list(2, token, {});
    ASSERT_TRUE(page.ok());
    for (const auto& job : page->jobs) seen.push_back(job.id());
    token = page->next_page_token;
    ++pages;
  } while (!token.empty());
  EXPECT_EQ(pages, 3);
  EXPECT_THAT(seen, ElementsAre(TestId(5), TestId(4), TestId(3), TestId(2), TestId(1)));
  const auto failed = list(2, "", {v1::Job::FAILED});
  ASSERT_EQ(failed->jobs.size(), 2u);
  EXPECT_EQ(failed->jobs[0].id(), TestId(4));
  EXPECT_TRUE(failed->next_page_token.empty());
  EXPECT_EQ(list(2, "nonsense", {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(StoreTest, RemembersRequestsCountersAndCheckpoints) {
  TempDir dir;
  {
    auto store = OpenStore(dir);
    JobWrite write = CreateWrite(1);
    write.request_id = "r1";
    write.body_hash = std::string("\0h", 2);
    write.counter_deltas = {{"a", 1.5}, {"b", 2}};
    ASSERT_TRUE(WriteAndWait(*store, write).ok());
    JobWrite more = EventWrite(1, 2);
    more.counter_deltas = {{"a", 2}};
    ASSERT_TRUE(WriteAndWait(*store, more).ok());
    JobWrite same_request = CreateWrite(2);
    same_request.request_id = "r1";
    EXPECT_EQ(WriteAndWait(*store, same_request).code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(Find(*store, TestId(2)).status().code(), absl::StatusCode::kNotFound);
  }
  auto store = OpenStore(dir);
  const auto request = store->Await([](const Database& database) { return database.FindRequest("r1"); });
  ASSERT_TRUE(request.ok() && request->has_value());
  EXPECT_EQ((*request)->body_hash, std::string("\0h", 2));
  EXPECT_EQ((*request)->job_id, TestId(1));
  EXPECT_FALSE(store->Await([](const Database& database) { return database.FindRequest("r2"); })->has_value());
  const auto counters = store->Await([](const Database& database) { return database.Counters(); });
  EXPECT_EQ(counters->at("a"), 3.5);
  EXPECT_EQ(counters->at("b"), 2);
}

TEST(StoreTest, ReadsEventsInPages) {
  TempDir dir;
  auto store = OpenStore(dir);
  ASSERT_TRUE(WriteAndWait(*store, CreateWrite(1)).ok());
  for (int sequence = 2; sequence <= 10; ++sequence) {
    ASSERT_TRUE(WriteAndWait(*store, EventWrite(1, sequence, absl::StrCat("event ", sequence))).ok());
  }
  const auto page = store->Await([](const Database& database) { return database.ReadEvents(TestId(1), 3, 4); });
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->last_sequence, 10u);
  ASSERT_EQ(page->events.size(), 4u);
  EXPECT_EQ(page->events[0].sequence(), 4u);
  EXPECT_EQ(page->events[3].log().text(), "event 7");
  const auto none =
      store->Await([](const Database& database) { return database.ReadEvents(TestId(1), UINT64_MAX, 4); });
  EXPECT_TRUE(none.ok() && none->events.empty());
}

TEST(StoreTest, TwoDaemonsCannotShareAStateDirectory) {
  TempDir dir;
  auto store = OpenStore(dir);
  Store::Options options;
  options.state_dir = dir.path();
  const auto second = Store::Open(options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(dir.path()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(absl::StrCat("pid ", getpid())));
  store.reset();
  EXPECT_TRUE(Store::Open(options).ok());
}

TEST(StoreTest, ADatabaseOfANewerProgramIsRefused) {
  TempDir dir;
  OpenStore(dir).reset();
  sqlite3* db = OpenRaw(dir.path());
  ASSERT_EQ(sqlite3_exec(db, "INSERT INTO migrations VALUES(1000, 'x')", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  Store::Options options;
  options.state_dir = dir.path();
  const auto store = Store::Open(options);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("1000"));
}

TEST(StoreTest, ADamagedDatabaseIsNamed) {
  TempDir dir;
  std::ofstream(dir.path() + "/ampd.db") << std::string(8192, 'x');
  Store::Options options;
  options.state_dir = dir.path();
  const auto store = Store::Open(options);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr(dir.path() + "/ampd.db"));
}

TEST(StoreTest, ADamagedRowIsDataLoss) {
  TempDir dir;
  {
    auto store = OpenStore(dir);
    ASSERT_TRUE(WriteAndWait(*store, CreateWrite(1)).ok());
  }
  sqlite3* db = OpenRaw(dir.path());
  ASSERT_EQ(sqlite3_exec(db, "UPDATE jobs SET job = x'ffffff'", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  auto store = OpenStore(dir);
  EXPECT_EQ(Find(*store, TestId(1)).status().code(), absl::StatusCode::kDataLoss);
}

TEST(StoreTest, AFullStoreRefusesWritesWholeAndKeepsWhatItHas) {
  TempDir dir;
  int accepted = 1;
  {
    auto store = OpenStore(dir, /*max_pages=*/64);
    ASSERT_TRUE(WriteAndWait(*store, CreateWrite(1)).ok());
    absl::Status status;
    while (status.ok()) {
      status = WriteAndWait(*store, EventWrite(1, accepted + 1, std::string(20000, 'e')));
      if (status.ok()) ++accepted;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("ampd.db"));
    EXPECT_EQ(Find(*store, TestId(1))->job.last_sequence(), static_cast<uint64_t>(accepted));
    const auto page = store->Await([](const Database& database) { return database.ReadEvents(TestId(1), 0, 1000); });
    EXPECT_EQ(page->events.size(), static_cast<size_t>(accepted));
  }
  auto store = OpenStore(dir);
  EXPECT_TRUE(WriteAndWait(*store, EventWrite(1, accepted + 1)).ok());
}

// Every insertion pays for an index.
TEST(StoreTest, TheIndicesOfJobsAreThoseThatQueriesUse) {
  TempDir dir;
  OpenStore(dir);
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((dir.path() + "/ampd.db").c_str(), &db), SQLITE_OK);
  const auto lines = [&](const std::string& sql, int column) {
    std::pair<std::string, int> found{"", column};
    const auto add = [](void* out, int, char** values, char**) {
      auto& [text, column] = *static_cast<std::pair<std::string, int>*>(out);
      absl::StrAppend(&text, values[column], "\n");
      return 0;
    };
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), add, &found, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
    return found.first;
  };
  EXPECT_EQ(lines("SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'jobs' AND sql IS NOT NULL "
                  "ORDER BY name",
                  0),
            "jobs_by_state\njobs_by_user_id\njobs_by_user_state\n");
  // As FindJob asks.
  EXPECT_THAT(lines("EXPLAIN QUERY PLAN SELECT job FROM jobs WHERE id >= 'a' AND id < 'b' AND user = 'ann' "
                    "ORDER BY id LIMIT 2",
                    3),
              HasSubstr("jobs_by_user_id"));
  sqlite3_close(db);
}

}  // namespace
}  // namespace ampd
