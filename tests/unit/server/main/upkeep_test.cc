#include "server/main/upkeep.h"

#include <gmock/gmock.h>
#include <sqlite3.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <string>
#include <vector>

#include "tests/unit/server/jobs/fake_clock.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::string Checksum(char digit) { return std::string(64, digit); }

class UpkeepTest : public testing::Test {
 protected:
  UpkeepTest() {
    Store::Options options;
    options.state_dir = dir_.path() + "/state";
    store_ = Store::Open(std::move(options)).value();
    uploads_ = UploadStore::Open(uploads_folder(), {}).value();
    retention_.set_step_reports(0);
  }

  std::string uploads_folder() const { return dir_.path() + "/uploads"; }
  std::string checkpoints() const { return dir_.path() + "/checkpoints"; }

  // A file, last used `days` before the clock's time.
  void AddUpload(char digit, int days) {
    const std::string path = absl::StrCat(uploads_folder(), "/", Checksum(digit));
    std::ofstream(path) << digit;
    const auto used = absl::ToChronoTime(clock_.Now() - absl::Hours(24 * days));
    fs::last_write_time(path, std::chrono::file_clock::from_sys(used));
  }

  void AddJob(int n, v1::Job::State state, const std::string& onnx, const std::string& start = "") {
    JobWrite write = CreateWrite(n);
    write.record.job.set_state(state);
    write.record.job.mutable_spec()->set_name("a job");
    if (!onnx.empty()) write.record.job.mutable_spec()->mutable_model()->mutable_onnx()->set_path("upload:" + onnx);
    if (!start.empty()) write.record.job.mutable_spec()->mutable_start_from()->set_path("upload:" + start);
    ASSERT_TRUE(WriteAndWait(*store_, write).ok());
  }

  void AddEndedJob(int n, v1::Job::State state, int days_ago) {
    JobWrite write = CreateWrite(n);
    write.record.job.set_state(state);
    write.record.job.mutable_spec()->set_name("a job");
    write.record.job.mutable_end_time()->set_seconds(absl::ToUnixSeconds(clock_.Now() - absl::Hours(24 * days_ago)));
    ASSERT_TRUE(WriteAndWait(*store_, write).ok());
  }

  // One that still runs.
  void AddLongJob(int n, int created_days_ago, int last_event_days_ago) {
    const auto ago = [this](int days) { return absl::ToUnixSeconds(clock_.Now() - absl::Hours(24 * days)); };
    JobWrite write = CreateWrite(n);
    write.record.job.set_state(v1::Job::RUNNING);
    write.record.job.mutable_create_time()->set_seconds(ago(created_days_ago));
    write.events[0].mutable_time()->set_seconds(ago(last_event_days_ago));
    ASSERT_TRUE(WriteAndWait(*store_, write).ok());
  }

  // One that is retried.
  void StartAgain(int n) {
    JobWrite write;
    write.record = store_->Await([&](const Database& database) { return database.FindJob(TestId(n)); }).value();
    write.record.job.set_state(v1::Job::RUNNING);
    write.record.job.clear_end_time();
    ASSERT_TRUE(WriteAndWait(*store_, write).ok());
  }

  // A file of seven bytes, in a folder of its own.
  void AddFile(const std::string& path) {
    fs::create_directories(fs::path(dir_.path()) / fs::path(path).parent_path());
    std::ofstream(dir_.path() + "/" + path) << "weights";
  }
  void AddFilesOf(int n) {
    AddFile("checkpoints/" + TestId(n) + "/step-1/model.safetensors");
    AddFile("jobs/" + TestId(n) + "/worker-1.log");
    AddFile("artifacts/" + TestId(n) + "/samples.png");
    AddFile("tensorboard/a_job-" + TestId(n) + "/events");
  }
  // Which of these there are.
  std::vector<std::string> FilesOf(int n) const {
    std::vector<std::string> there;
    for (const std::string root : {"checkpoints/", "jobs/", "artifacts/", "tensorboard/a_job-"}) {
      if (fs::exists(dir_.path() + "/" + root + TestId(n))) there.push_back(root.substr(0, root.find('/')));
    }
    return there;
  }
  size_t FilesIn(const std::string& folder) const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(dir_.path() + "/" + folder), {}));
  }

  // One pass over all jobs, to its end.
  void Pass() {
    Passes({[] {}});
  }

  // One after the other by the same upkeep, with what is to happen after each; after the first over all jobs those over
  // jobs told of, where `period` says so.
  void Passes(const std::vector<std::function<void()>>& after, absl::Duration period = absl::Milliseconds(1)) {
    Upkeep::Options options;
    options.retention = retention_;
    options.checkpoint_root = checkpoints();
    options.mirror_root = mirror_;
    options.file_roots = {dir_.path() + "/jobs", dir_.path() + "/artifacts"};
    options.tensorboard_root = dir_.path() + "/tensorboard";
    options.uploads = uploads_.get();
    options.log = [this](const std::string& text, const LogSubject& about) {
      log_.push_back(absl::StrCat(about.job_id, " ", text));
      if (on_log_) on_log_();
    };
    std::promise<void> passed;
    size_t passes = 0;
    options.period = after.size() > 1 ? period : absl::Hours(1);
    options.has_worker = has_worker_;
    options.worker_period = absl::Milliseconds(1);
    options.on_pass = [&] {
      if (passes == after.size()) return;
      after[passes]();
      if (++passes == after.size()) passed.set_value();
    };
    Upkeep upkeep(std::move(options), store_.get(), &clock_);
    upkeep_ = &upkeep;
    if (before_begin_) before_begin_();
    upkeep.Begin();
    passed.get_future().wait();
  }

  std::vector<std::string> Uploads() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(uploads_folder())) {
      names.push_back(entry.path().filename().string().substr(0, 1));
    }
    return names;
  }

  TempDir dir_;
  FakeClock clock_;
  v1::ServerConfig::Retention retention_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<UploadStore> uploads_;
  std::vector<std::string> log_;
  std::function<void()> on_log_;
  std::function<void()> before_begin_;
  std::function<bool(const JobRecord&)> has_worker_;
  // While passes are made.
  Upkeep* upkeep_ = nullptr;
  std::string mirror_;
};

TEST_F(UpkeepTest, RemovesFilesOfJobsThatEndedLongAgo) {
  retention_.set_file_days(30);
  AddEndedJob(1, v1::Job::SUCCEEDED, 31);
  AddEndedJob(2, v1::Job::FAILED, 29);
  AddJob(3, v1::Job::PAUSED, "");
  AddEndedJob(4, v1::Job::CANCELLED, 1000);
  for (const int n : {1, 2, 3, 4}) AddFilesOf(n);
  // Cut off in the middle.
  AddFile("artifacts/.removing~" + TestId(5) + "/samples.png");
  // Of a job with this name.
  AddFile("tensorboard/.removing-" + TestId(3) + "/events");
  Pass();
  EXPECT_THAT(FilesOf(1), ElementsAre("checkpoints"));
  EXPECT_THAT(FilesOf(2), ElementsAre("checkpoints", "jobs", "artifacts", "tensorboard"));
  EXPECT_THAT(FilesOf(3), ElementsAre("checkpoints", "jobs", "artifacts", "tensorboard"));
  EXPECT_THAT(FilesOf(4), ElementsAre("checkpoints"));
  for (const char* folder : {"jobs", "artifacts"}) EXPECT_EQ(FilesIn(folder), 2u) << folder;
  EXPECT_EQ(FilesIn("tensorboard"), 3u);
  EXPECT_THAT(log_, UnorderedElementsAre(HasSubstr(TestId(1)), HasSubstr(TestId(4))));
  EXPECT_THAT(log_[0], HasSubstr("removed its artifacts, logs and TensorBoard file: the job ended more than 30 days"));
  Pass();
  EXPECT_EQ(log_.size(), 2u) << "what is gone was removed again";
}

TEST_F(UpkeepTest, FilesStayWhereNothingIsSaidOfThem) {
  AddEndedJob(1, v1::Job::SUCCEEDED, 10'000);
  AddFilesOf(1);
  Pass();
  EXPECT_THAT(FilesOf(1), ElementsAre("checkpoints", "jobs", "artifacts", "tensorboard"));
}

TEST_F(UpkeepTest, CheckpointsGoInTheMirrorToo) {
  retention_.set_checkpoint_days(1);
  mirror_ = dir_.path() + "/mirror";
  AddEndedJob(1, v1::Job::SUCCEEDED, 2);
  AddEndedJob(2, v1::Job::SUCCEEDED, 0);
  for (const int n : {1, 2}) {
    AddFilesOf(n);
    AddFile("mirror/" + TestId(n) + "/step-1/model.safetensors");
  }
  Pass();
  EXPECT_THAT(FilesOf(1), ElementsAre("jobs", "artifacts", "tensorboard"));
  EXPECT_FALSE(fs::exists(mirror_ + "/" + TestId(1)));
  EXPECT_TRUE(fs::exists(mirror_ + "/" + TestId(2)));
  EXPECT_EQ(FilesIn("mirror"), 1u);
}

// As when nothing is mounted there.
TEST_F(UpkeepTest, CopiesGoOnceTheMirrorIsThereAgain) {
  retention_.set_checkpoint_days(1);
  mirror_ = dir_.path() + "/mirror";
  AddEndedJob(1, v1::Job::SUCCEEDED, 2);
  AddEndedJob(2, v1::Job::SUCCEEDED, 0);
  AddJob(3, v1::Job::PAUSED, "");
  AddJob(4, v1::Job::RETRYING, "");
  AddFilesOf(1);
  Pass();
  EXPECT_THAT(FilesOf(1), ElementsAre("jobs", "artifacts", "tensorboard"));
  // The others' checkpoints were lost.
  for (const int n : {1, 2, 3, 4}) AddFile("mirror/" + TestId(n) + "/step-1/model.safetensors");
  Pass();
  EXPECT_FALSE(fs::exists(mirror_ + "/" + TestId(1)));
  for (const int n : {2, 3, 4}) EXPECT_TRUE(fs::exists(mirror_ + "/" + TestId(n))) << n;
  ASSERT_EQ(log_.size(), 2u);
  EXPECT_THAT(log_[1], HasSubstr(TestId(1) + " removed its checkpoints' copies: the job ended more than 1 days ago"));
}

TEST_F(UpkeepTest, CopiesThatAreAloneStayByAClockInDoubt) {
  retention_.set_checkpoint_days(30);
  mirror_ = dir_.path() + "/mirror";
  AddEndedJob(1, v1::Job::SUCCEEDED, 10);
  AddFile("mirror/" + TestId(1) + "/step-1/model.safetensors");
  clock_.Set(absl::Hours(24 * 365));
  Pass();
  EXPECT_EQ(FilesIn("mirror"), 1u);
}

TEST_F(UpkeepTest, CopiesThatAreAloneGoBeforeThoseOfJobsThatEndedLater) {
  retention_.set_checkpoint_bytes(7);
  mirror_ = dir_.path() + "/mirror";
  for (const int n : {1, 2, 3}) {
    AddEndedJob(n, v1::Job::SUCCEEDED, 10 - n);
    AddFile("mirror/" + TestId(n) + "/step-1/model.safetensors");
  }
  // As when a disk was lost: the copies are all there is.
  Pass();
  EXPECT_EQ(FilesIn("mirror"), 3u);
  AddFilesOf(2);
  Pass();
  EXPECT_EQ(FilesIn("mirror"), 3u) << "there is room for all";
  AddFilesOf(3);
  Pass();
  EXPECT_FALSE(fs::exists(mirror_ + "/" + TestId(1)));
  EXPECT_FALSE(fs::exists(mirror_ + "/" + TestId(2)));
  EXPECT_TRUE(fs::exists(mirror_ + "/" + TestId(3)));
  EXPECT_THAT(FilesOf(3), ElementsAre("checkpoints", "jobs", "artifacts", "tensorboard"));
}

TEST_F(UpkeepTest, WithNothingToMergeNothingIsCommitted) {
  retention_.set_event_days(9);
  const auto commits = [this] {
    store_->Flush();
    return store_->Await([](const Database& database) { return database.CommitNumber(); }).value();
  };
  for (const int n : {1, 2, 3}) AddEndedJob(n, v1::Job::SUCCEEDED, 10);
  // The clock is in no doubt.
  AddEndedJob(4, v1::Job::SUCCEEDED, 0);
  for (const uint64_t sequence : {2, 3, 4}) {
    JobWrite write = EventWrite(1, sequence);
    const auto step = static_cast<int64_t>(sequence);
    write.record = store_->Await([](const Database& database) { return database.FindJob(TestId(1)); }).value();
    write.record.job.set_last_sequence(sequence);
    write.events[0].mutable_step()->set_first_step(step);
    write.events[0].mutable_step()->set_last_step(step);
    ASSERT_TRUE(WriteAndWait(*store_, write).ok());
  }
  // That is another one: when the clock was last right.
  uint32_t before = commits();
  Pass();
  EXPECT_EQ(commits(), before + 3) << "three reports became two, then one";
  const auto page =
      store_->Await([](const Database& database) { return database.ReadEvents(TestId(1), 1, 10); }).value();
  ASSERT_EQ(page.events.size(), 1u);
  EXPECT_EQ(page.events[0].step().first_step(), 2);
  before = commits();
  Pass();
  EXPECT_EQ(commits(), before + 1);
}

TEST_F(UpkeepTest, WhatAWorkerLeftHalfWrittenGoesWithWhatWasBegunOfThat) {
  mirror_ = dir_.path() + "/mirror";
  AddEndedJob(1, v1::Job::FAILED, 0);
  AddEndedJob(2, v1::Job::FAILED, 2);
  AddJob(3, v1::Job::PAUSED, "");
  has_worker_ = [](const JobRecord& job) { return job.job.id() == TestId(2); };
  for (const int n : {1, 2, 3}) {
    AddFile("checkpoints/" + TestId(n) + "/step-1/MANIFEST");
    AddFile("checkpoints/" + TestId(n) + "/.writing-step-2/MANIFEST");
    AddFile("checkpoints/" + TestId(n) + "/.removing~.writing-step-1/MANIFEST");
    AddFile("mirror/" + TestId(n) + "/.copying-step-1/MANIFEST");
  }
  Pass();
  EXPECT_EQ(FilesIn("checkpoints/" + TestId(1)), 1u);
  EXPECT_EQ(FilesIn("mirror/" + TestId(1)), 0u);
  EXPECT_EQ(FilesIn("checkpoints/" + TestId(2)), 2u) << "its worker is about";
  EXPECT_EQ(FilesIn("checkpoints/" + TestId(3)), 3u) << "its next worker tidies up";
  for (const int n : {2, 3}) EXPECT_EQ(FilesIn("mirror/" + TestId(n)), 1u);
}

TEST_F(UpkeepTest, WhatAWorkerLeftHalfWrittenGoesOnceThatIsGone) {
  AddEndedJob(1, v1::Job::CANCELLED, 0);
  AddFile("checkpoints/" + TestId(1) + "/.writing-step-2/model.safetensors");
  int asked = 0;
  has_worker_ = [&asked](const JobRecord&) { return ++asked < 3; };
  std::vector<size_t> there;
  const auto look = [&] { there.push_back(FilesIn("checkpoints/" + TestId(1))); };
  Passes({look, look, look}, absl::Hours(1));
  EXPECT_THAT(there, ElementsAre(1, 1, 0));
}

TEST_F(UpkeepTest, WhatAWorkerLeftHalfWrittenGoesWhenItsJobIsToldToBeOver) {
  mirror_ = dir_.path() + "/mirror";
  AddEndedJob(1, v1::Job::SUCCEEDED, 0);
  // Tried again meanwhile.
  AddJob(2, v1::Job::STARTING, "");
  std::vector<size_t> there;
  Passes({[&] {
            for (const int n : {1, 2}) {
              AddFile("checkpoints/" + TestId(n) + "/.writing-step-2/model.safetensors");
              AddFile("mirror/" + TestId(n) + "/.copying-step-2/model.safetensors");
              upkeep_->JobIsOver(TestId(n));
            }
          },
          [&] {
            for (const int n : {1, 2}) {
              there.push_back(FilesIn("checkpoints/" + TestId(n)));
              there.push_back(FilesIn("mirror/" + TestId(n)));
            }
          }},
         absl::Hours(1));
  EXPECT_THAT(there, ElementsAre(0, 0, 1, 1));
}

TEST_F(UpkeepTest, AClockThatRanAheadMakesNothingOldForADay) {
  retention_.set_checkpoint_days(30);
  retention_.set_file_days(30);
  AddEndedJob(1, v1::Job::SUCCEEDED, 10);
  AddFilesOf(1);
  std::vector<size_t> there;
  Passes({[&] {
            there.push_back(FilesOf(1).size());
            clock_.Set(absl::Hours(24 * 365));
          },
          [&] {
            there.push_back(FilesOf(1).size());
            // Somebody saw it.
            clock_.Set(-absl::Hours(24 * 365));
          },
          [&] {
            there.push_back(FilesOf(1).size());
            clock_.Set(absl::Hours(24 * 40));
          },
          [&] {
            there.push_back(FilesOf(1).size());
            clock_.Advance(absl::Hours(25));
          },
          [&] { there.push_back(FilesOf(1).size()); }});
  EXPECT_THAT(there, ElementsAre(4, 4, 4, 4, 0));
  EXPECT_THAT(log_[0], HasSubstr("the clock went ahead by 8760h"));
}

TEST_F(UpkeepTest, AClockThatIsAheadOfAllJobsAtTheStartMakesNothingOldForADay) {
  retention_.set_checkpoint_days(90);
  retention_.set_file_days(30);
  retention_.set_upload_days(60);
  AddEndedJob(1, v1::Job::SUCCEEDED, 10);
  AddFilesOf(1);
  AddUpload('a', 10);
  clock_.Set(absl::Hours(24 * 365));
  std::vector<size_t> there;
  const auto look = [&] { there.push_back(FilesOf(1).size() + Uploads().size()); };
  Passes({[&] {
            look();
            clock_.Advance(absl::Hours(23));
          },
          [&] {
            look();
            clock_.Advance(absl::Hours(2));
          },
          look});
  EXPECT_THAT(there, ElementsAre(5, 5, 0));
  EXPECT_THAT(log_[0], HasSubstr("the clock is 9000h ahead of when it was last known to be right; nothing is removed"));
}

TEST_F(UpkeepTest, AClockThatWasAheadAtTheStartIsBelievedOnceItIsPutRight) {
  retention_.set_file_days(30);
  AddEndedJob(1, v1::Job::SUCCEEDED, 31);
  AddEndedJob(2, v1::Job::SUCCEEDED, 10);
  for (const int n : {1, 2}) AddFilesOf(n);
  clock_.Set(absl::Hours(24 * 365));
  std::vector<size_t> there;
  const auto look = [&] {
    for (const int n : {1, 2}) there.push_back(FilesOf(n).size());
  };
  Passes({[&] {
            look();
            clock_.Set(-absl::Hours(24 * 365));
          },
          look});
  EXPECT_THAT(there, ElementsAre(4, 4, 1, 4));
}

TEST_F(UpkeepTest, WhatJobsWriteByAClockThatIsAheadDoesNotTellThatItIsRight) {
  retention_.set_file_days(30);
  AddEndedJob(1, v1::Job::SUCCEEDED, 10);
  AddFilesOf(1);
  clock_.Set(absl::Hours(24 * 365));
  before_begin_ = [this] {
    ASSERT_TRUE(upkeep_->LookAtClock().ok());
    AddLongJob(2, 0, 0);
  };
  Pass();
  EXPECT_EQ(FilesOf(1).size(), 4u);
}

// The daemon is started again, and jobs have written by the clock that it doubted.
TEST_F(UpkeepTest, AnotherStartBelievesAClockNoMoreForWhatWasWrittenByIt) {
  retention_.set_file_days(30);
  AddEndedJob(1, v1::Job::SUCCEEDED, 10);
  AddFilesOf(1);
  Pass();
  clock_.Set(absl::Hours(24 * 365));
  for (int start = 0; start < 2; ++start) {
    Pass();
    EXPECT_EQ(FilesOf(1).size(), 4u) << start;
    AddLongJob(2 + start, 0, 0);
  }
  clock_.Set(-absl::Hours(24 * 365));
  Pass();
  EXPECT_EQ(FilesOf(1).size(), 4u);
}

TEST_F(UpkeepTest, AtTheStartOneOfTheAgesIsEnough) {
  retention_.set_file_days(5);
  retention_.set_event_days(9);
  AddEndedJob(1, v1::Job::SUCCEEDED, 6);
  AddFilesOf(1);
  Pass();
  EXPECT_EQ(FilesOf(1).size(), 4u);
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_THAT(log_[0], HasSubstr("the clock is 144h ahead"));
}

TEST_F(UpkeepTest, AJobThatRunsForLongTellsThatTheClockIsRight) {
  retention_.set_file_days(30);
  AddEndedJob(1, v1::Job::SUCCEEDED, 40);
  AddFilesOf(1);
  AddLongJob(2, 100, 31);
  Pass();
  EXPECT_EQ(FilesOf(1).size(), 4u);
  AddLongJob(3, 100, 29);
  Pass();
  EXPECT_THAT(FilesOf(1), ElementsAre("checkpoints"));
}

TEST_F(UpkeepTest, AMachineThatSleepsEachNightDoubtsNoClock) {
  retention_.set_file_days(10);
  AddEndedJob(1, v1::Job::SUCCEEDED, 9);
  AddFilesOf(1);
  std::vector<size_t> there;
  std::vector<std::function<void()>> nights(5, [&] {
    there.push_back(FilesOf(1).size());
    clock_.Suspend(absl::Hours(10));
  });
  Passes(nights);
  EXPECT_THAT(there, ElementsAre(4, 4, 4, 1, 1));
  for (const std::string& line : log_) EXPECT_THAT(line, Not(HasSubstr("the clock went ahead")));
}

TEST_F(UpkeepTest, CheckpointsOfAJobThatIsTriedAgainMeanwhileStay) {
  retention_.set_checkpoint_bytes(1);
  AddEndedJob(1, v1::Job::FAILED, 3);
  AddEndedJob(2, v1::Job::FAILED, 2);
  AddEndedJob(3, v1::Job::FAILED, 1);
  for (const int n : {1, 2, 3}) AddFilesOf(n);
  // The first one's are gone, the others' are next.
  on_log_ = [this] {
    if (log_.size() == 1) StartAgain(2);
  };
  Pass();
  EXPECT_THAT(FilesOf(1), ElementsAre("jobs", "artifacts", "tensorboard"));
  EXPECT_THAT(FilesOf(2), ElementsAre("checkpoints", "jobs", "artifacts", "tensorboard"));
  EXPECT_THAT(FilesOf(3), ElementsAre("jobs", "artifacts", "tensorboard"));
}

TEST_F(UpkeepTest, RemovesUploadsThatNoJobNeeds) {
  retention_.set_upload_days(7);
  for (const char digit : {'a', 'b', 'c', 'd', 'e', 'f'}) AddUpload(digit, 8);
  AddUpload('1', 6);
  AddJob(1, v1::Job::QUEUED, Checksum('a'), Checksum('b'));
  AddJob(2, v1::Job::PAUSED, Checksum('c'));
  // Its checkpoint can be exported, and trained on.
  AddJob(3, v1::Job::SUCCEEDED, Checksum('d'));
  fs::create_directories(absl::StrCat(checkpoints(), "/", TestId(3), "/step-1"));
  std::ofstream(absl::StrCat(checkpoints(), "/", TestId(3), "/step-1/model.safetensors")) << "weights";
  AddJob(4, v1::Job::FAILED, Checksum('e'));
  AddJob(5, v1::Job::RUNNING, "");
  Pass();
  EXPECT_THAT(Uploads(), UnorderedElementsAre("a", "b", "c", "d", "1"));
  EXPECT_EQ(log_.size(), 2u);
}

TEST_F(UpkeepTest, UploadsStayWhereNothingIsSaidOfThem) {
  AddUpload('a', 10'000);
  Pass();
  EXPECT_THAT(Uploads(), UnorderedElementsAre("a"));
}

TEST_F(UpkeepTest, RemovesNoUploadWhereAJobCannotBeRead) {
  retention_.set_upload_days(7);
  AddUpload('a', 8);
  AddJob(1, v1::Job::QUEUED, Checksum('a'));
  sqlite3* damaging = nullptr;
  ASSERT_EQ(sqlite3_open((dir_.path() + "/state/ampd.db").c_str(), &damaging), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(damaging, "UPDATE job_specs SET spec = x'ff'", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(damaging);
  Pass();
  EXPECT_THAT(Uploads(), UnorderedElementsAre("a"));
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_THAT(log_[0], HasSubstr("holds no ampd.v1.JobSpec"));
}

}  // namespace
}  // namespace ampd
