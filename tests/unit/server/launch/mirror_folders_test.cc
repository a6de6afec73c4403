#include "server/launch/mirror_folders.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What was asked of a mirror, and what it answers. Outlives the threads that ask.
class Mirror {
 public:
  absl::Status Give(const std::string& job_id, std::vector<std::string>* notes) {
    const MutexLock lock(&mutex_);
    ++calls_[job_id];
    changed_.NotifyAll();
    while (hangs_) changed_.Wait(&mutex_);
    if (!note_.empty()) notes->push_back(note_);
    ++answers_;
    changed_.NotifyAll();
    return fails_ ? absl::InternalError(absl::StrCat("/mirror/", job_id, ": Stale file handle")) : absl::OkStatus();
  }
  void Log(const std::string& text) {
    const MutexLock lock(&mutex_);
    log_.push_back(text);
    changed_.NotifyAll();
  }

  void Set(bool fails, bool hangs, const std::string& note = "") {
    const MutexLock lock(&mutex_);
    fails_ = fails;
    hangs_ = hangs;
    note_ = note;
    changed_.NotifyAll();
  }
  int Calls(const std::string& job_id) {
    const MutexLock lock(&mutex_);
    return calls_[job_id];
  }
  void AwaitCalls(const std::string& job_id, int calls) {
    const MutexLock lock(&mutex_);
    while (calls_[job_id] < calls) changed_.Wait(&mutex_);
  }
  void AwaitAnswers(int answers) {
    const MutexLock lock(&mutex_);
    while (answers_ < answers) changed_.Wait(&mutex_);
  }
  std::vector<std::string> AwaitLog(size_t lines) {
    const MutexLock lock(&mutex_);
    while (log_.size() < lines) changed_.Wait(&mutex_);
    return log_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mutex_);
  int answers_ ABSL_GUARDED_BY(mutex_) = 0;
  bool fails_ ABSL_GUARDED_BY(mutex_) = false;
  bool hangs_ ABSL_GUARDED_BY(mutex_) = false;
  std::string note_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> log_ ABSL_GUARDED_BY(mutex_);
};

class MirrorFoldersTest : public testing::Test {
 protected:
  std::unique_ptr<MirrorFolders> Make(absl::Duration period, absl::Duration patience = absl::Hours(24)) {
    MirrorFolders::Options options;
    options.give = [mirror = mirror_](const std::string& job_id, std::vector<std::string>* notes) {
      return mirror->Give(job_id, notes);
    };
    options.log = [mirror = mirror_](const std::string& text) { mirror->Log(text); };
    options.period = period;
    options.patience = patience;
    return std::make_unique<MirrorFolders>(std::move(options));
  }

  const std::shared_ptr<Mirror> mirror_ = std::make_shared<Mirror>();
};

TEST_F(MirrorFoldersTest, WhatFailsIsToldOncePerCauseAndTriedAgain) {
  mirror_->Set(/*fails=*/true, /*hangs=*/false);
  auto folders = Make(absl::Milliseconds(1));
  mirror_->AwaitCalls("", 1);
  folders->Ask("job", 1);
  folders->Ask("other", 1);
  // Each has failed twice by then.
  mirror_->AwaitCalls("other", 3);
  mirror_->Set(/*fails=*/false, /*hangs=*/false);
  EXPECT_THAT(mirror_->AwaitLog(3),
              ElementsAre(HasSubstr("/mirror/: Stale file handle"),
                          testing::AnyOf(HasSubstr("/mirror/job: "), HasSubstr("/mirror/other: ")),
                          HasSubstr("are the workers' now")));
}

TEST_F(MirrorFoldersTest, ALaunchHasWhatFailedTriedAgain) {
  mirror_->Set(/*fails=*/true, /*hangs=*/false);
  auto folders = Make(absl::Hours(24));
  folders->Ask("job", 1);
  mirror_->AwaitLog(2);
  const int calls = mirror_->Calls("job");
  mirror_->Set(/*fails=*/false, /*hangs=*/false);
  folders->Ask("other", 1);
  mirror_->AwaitCalls("job", calls + 1);
  EXPECT_THAT(mirror_->AwaitLog(3)[2], HasSubstr("are the workers' now"));
}

TEST_F(MirrorFoldersTest, AnAttemptThatHasEndedIsTriedNoMore) {
  mirror_->Set(/*fails=*/true, /*hangs=*/false);
  auto folders = Make(absl::Milliseconds(1));
  folders->Ask("ended", 1);
  folders->Ask("retried", 2);
  mirror_->AwaitCalls("ended", 1);
  folders->Forget("ended", 1);
  folders->Forget("retried", 1);
  // The pass that was under way is over by the second.
  mirror_->AwaitCalls("", mirror_->Calls("") + 2);
  const int calls = mirror_->Calls("ended");
  mirror_->AwaitCalls("retried", mirror_->Calls("retried") + 2);
  EXPECT_EQ(mirror_->Calls("ended"), calls);
}

TEST_F(MirrorFoldersTest, AMirrorThatHangsIsToldOfOnceAndOfItsAnswer) {
  mirror_->Set(/*fails=*/false, /*hangs=*/true);
  auto folders = Make(absl::Hours(24), absl::ZeroDuration());
  mirror_->AwaitCalls("", 1);
  for (const char* job : {"job", "other"}) folders->Ask(job, 1);
  EXPECT_THAT(mirror_->AwaitLog(1), ElementsAre(HasSubstr("has not answered")));
  mirror_->Set(/*fails=*/false, /*hangs=*/false);
  mirror_->AwaitCalls("other", 1);
  EXPECT_THAT(mirror_->AwaitLog(2), ElementsAre(HasSubstr("has not answered"), HasSubstr("answers again")));
}

TEST_F(MirrorFoldersTest, ItsEndWaitsForNoMirrorAndNothingIsToldAfterIt) {
  mirror_->Set(/*fails=*/true, /*hangs=*/true);
  auto folders = Make(absl::Hours(24));
  mirror_->AwaitCalls("", 1);
  folders->Ask("job", 1);
  folders.reset();
  mirror_->Set(/*fails=*/true, /*hangs=*/false);
  mirror_->AwaitAnswers(1);
  EXPECT_THAT(mirror_->AwaitLog(0), IsEmpty());
  EXPECT_EQ(mirror_->Calls("job"), 0);
}

TEST_F(MirrorFoldersTest, ANoteIsToldOnce) {
  mirror_->Set(/*fails=*/false, /*hangs=*/false, "its mode keeps it out");
  auto folders = Make(absl::Hours(24));
  folders->Ask("job", 1);
  mirror_->AwaitCalls("job", 1);
  folders->Ask("other", 1);
  mirror_->AwaitCalls("other", 1);
  EXPECT_THAT(mirror_->AwaitLog(1), ElementsAre("its mode keeps it out"));
}

TEST(GiveIn, MakesTheMirrorAndTheFolderAndGivesThem) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give";
  const std::string root = absl::StrCat(testing::TempDir(), "/mirror_folders_test_", getpid());
  const MirrorFolders::Give give = GiveIn(root + "/mirror", WorkerAccount{65534, 65534, {65534}, ""});
  std::vector<std::string> notes;
  fs::create_directory(root);
  chmod(root.c_str(), 0700);
  ASSERT_TRUE(give("", &notes).ok());
  EXPECT_TRUE(fs::is_empty(root + "/mirror"));
  EXPECT_THAT(notes, testing::Contains(HasSubstr(absl::StrCat("the mode of ", root, " keeps it out of "))));
  fs::create_directories(root + "/mirror/job/step-1");
  ASSERT_TRUE(give("job", &notes).ok());
  struct stat info {};
  for (const char* folder : {"/mirror/job", "/mirror/job/step-1"}) {
    ASSERT_EQ(stat((root + folder).c_str(), &info), 0);
    EXPECT_EQ(info.st_uid, 65534u) << folder;
  }
  ASSERT_EQ(stat((root + "/mirror").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 0u);
  EXPECT_NE(info.st_mode & (S_IXGRP | S_IXOTH), 0u);
  fs::remove_all(root);
}

}  // namespace
}  // namespace ampd
