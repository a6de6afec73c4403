#include "server/tensorboard/exporter.h"

#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <mutex>

#include "absl/strings/match.h"
#include "tests/unit/server/jobs/fake_clock.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

JobWrite StepWrite(uint64_t sequence, int64_t step, int job = 1) {
  JobWrite write = EventWrite(job, sequence);
  v1::JobEvent& event = write.events[0];
  event.mutable_time()->set_seconds(1000 + step);
  event.mutable_step()->set_last_step(step);
  event.mutable_step()->add_phases()->set_loss(1);
  return write;
}

class ExporterTest : public ::testing::Test {
 protected:
  ExporterTest() {
    Store::Options options;
    options.state_dir = dir_.path();
    store_ = *Store::Open(std::move(options));
  }
  ~ExporterTest() override { Stop(); }

  void Start(absl::Duration retry = absl::Hours(1)) {
    TensorBoardExporter::Options options;
    options.directory = dir_.path() + "/tensorboard";
    options.artifact_root = dir_.path() + "/artifacts";
    options.retry = retry;
    options.find_job = [this](const std::string& id) -> absl::StatusOr<v1::Job> {
      const auto record = store_->Await([&](const Database& db) { return db.FindJob(id); });
      if (!record.ok()) return record.status();
      return record->job;
    };
    options.log = [this](const std::string& text, const LogSubject& about) {
      const std::lock_guard<std::mutex> lock(mutex_);
      logged_.push_back(absl::StrCat(about.job_id, " ", text));
    };
    exporter_ = std::make_unique<TensorBoardExporter>(std::move(options), clock_);
    log_ = std::make_unique<EventLog>(store_.get());
    log_->SetListener([this](const JobWrite& write) { exporter_->OnWrite(write); });
    exporter_->Start(log_.get());
  }

  void Stop() {
    if (exporter_ != nullptr) exporter_->Stop();
    log_.reset();
    exporter_.reset();
  }

  void Append(JobWrite write) {
    std::promise<absl::Status> done;
    log_->Append(std::move(write), [&](const absl::Status& status) { done.set_value(status); });
    ASSERT_TRUE(done.get_future().get().ok());
    log_->Flush();
    exporter_->Flush();
  }

  std::string Path(int job = 1) const {
    return absl::StrCat(dir_.path(), "/tensorboard/job_", job, "-", TestId(job), "/events.out.tfevents.0.ampd");
  }
  int OpenFiles() const {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      files += absl::StartsWith(std::filesystem::read_symlink(entry, gone).string(), dir_.path() + "/tensorboard/");
    }
    return files;
  }
  // What a job's file says, whichever events went into it together.
  std::vector<std::string> Records(int job) const {
    std::ifstream file(Path(job), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    std::vector<std::string> records;
    for (size_t at = 0; at + 12 <= bytes.size();) {
      uint64_t length = 0;
      memcpy(&length, bytes.data() + at, sizeof(length));
      tensorboard::Event event;
      EXPECT_TRUE(event.ParseFromString(bytes.substr(at + 12, length)));
      event.clear_ampd_sequence();
      records.push_back(event.ShortDebugString());
      at += 12 + length + 4;
    }
    return records;
  }
  uint64_t Written() const { return (*EventFile::Open(Path()))->sequence(); }
  std::vector<std::string> logged() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return logged_;
  }

  TempDir dir_;
  // Outlives the exporter's thread.
  FakeClock fake_clock_;
  const Clock* clock_ = &SystemClock();
  std::unique_ptr<Store> store_;
  std::unique_ptr<EventLog> log_;
  std::unique_ptr<TensorBoardExporter> exporter_;
  std::mutex mutex_;
  std::vector<std::string> logged_;
};

TEST_F(ExporterTest, FollowsAJobAndGoesOnAfterARestart) {
  Start();
  Append(CreateWrite(1));
  Append(StepWrite(2, 10));
  EXPECT_EQ(Written(), 2u);
  const auto size = std::filesystem::file_size(Path());
  Stop();
  Start();
  Append(StepWrite(3, 20));
  EXPECT_EQ(Written(), 3u);
  EXPECT_GT(std::filesystem::file_size(Path()), size);
  EXPECT_LT(std::filesystem::file_size(Path()), 2 * size);
  EXPECT_THAT(logged(), IsEmpty());
}

TEST_F(ExporterTest, FilesOfFewJobsAreOpenAndNoneLosesOrRepeatsAnEvent) {
  constexpr int kJobs = 70;
  Start();
  for (int job = 1; job <= kJobs; ++job) Append(CreateWrite(job));
  for (uint64_t sequence = 2; sequence <= 4; ++sequence) {
    for (int job = 1; job <= kJobs; ++job) {
      // What a job logs becomes nothing in the file.
      Append(sequence == 3 ? EventWrite(job, sequence) : StepWrite(sequence, static_cast<int64_t>(sequence), job));
    }
    EXPECT_LE(OpenFiles(), 64);
  }
  std::vector<std::vector<std::string>> written;
  for (int job = 1; job <= kJobs; ++job) written.push_back(Records(job));
  Stop();
  std::filesystem::remove_all(dir_.path() + "/tensorboard");
  Start();
  for (int job = 1; job <= kJobs; ++job) {
    Append(EventWrite(job, 5));
    EXPECT_THAT(Records(job), SizeIs(Ge(3u)));
    EXPECT_EQ(Records(job), written[static_cast<size_t>(job - 1)]) << "as of a file that is written in one go";
  }
  EXPECT_THAT(logged(), IsEmpty());
}

TEST_F(ExporterTest, WhatCannotBeWrittenIsToldOnceAndTriedAgain) {
  // A file stands where the folder shall be.
  std::filesystem::create_directories(dir_.path() + "/tensorboard");
  const std::string folder = dir_.path() + "/tensorboard/job_1-" + TestId(1);
  fclose(fopen(folder.c_str(), "w"));
  Start(absl::ZeroDuration());
  Append(CreateWrite(1));
  Append(StepWrite(2, 10));
  Append(StepWrite(3, 20));
  ASSERT_THAT(logged(), SizeIs(1));
  EXPECT_THAT(logged()[0], StartsWith(TestId(1) + " TensorBoard file: "));
  EXPECT_THAT(logged()[0], HasSubstr(folder));
  std::filesystem::remove(folder);
  Append(StepWrite(4, 30));
  EXPECT_EQ(Written(), 4u);
}

TEST_F(ExporterTest, WhatCouldNotBeWrittenIsTriedAgainAlsoWhileOthersReport) {
  clock_ = &fake_clock_;
  std::filesystem::create_directories(dir_.path() + "/tensorboard");
  const std::string folder = dir_.path() + "/tensorboard/job_1-" + TestId(1);
  fclose(fopen(folder.c_str(), "w"));
  Start(absl::Minutes(1));
  Append(CreateWrite(1));
  ASSERT_THAT(logged(), SizeIs(1));
  std::filesystem::remove(folder);
  Append(CreateWrite(2));
  EXPECT_FALSE(std::filesystem::exists(folder)) << "not due yet";
  fake_clock_.Advance(absl::Minutes(1));
  Append(StepWrite(2, 10, 2));
  EXPECT_EQ(Written(), 1u);
}

}  // namespace
}  // namespace ampd
