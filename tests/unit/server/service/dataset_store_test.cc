#include "server/service/dataset_store.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/spec/dataset_path.h"
#include "proto/spec/resolve.h"
#include "server/service/dataset_use.h"
#include "tests/unit/server/service/dataset_store_fixture.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// FIPS 180-4's examples: of "abc", and of nothing.
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kEmpty[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

TEST_F(DatasetStoreTest, IsThereOnceItIsWhole) {
  auto upload = *store_->Begin("mnist", "ann");
  ASSERT_TRUE(Send(*upload, "train/images", "abc").ok());
  ASSERT_TRUE(Send(*upload, "empty", "").ok());
  EXPECT_THAT(Names(), ElementsAre("mnist unfinished"));
  EXPECT_EQ(Content("mnist", "train/images"), "");
  EXPECT_TRUE(absl::IsNotFound(store_->HoldAll({"mnist"}).status()));
  const v1::Dataset dataset = upload->Commit().value();
  EXPECT_EQ(dataset.size_bytes(), 3);
  EXPECT_EQ(dataset.user(), "ann");
  EXPECT_TRUE(dataset.committed());
  EXPECT_EQ(Content("mnist", "train/images"), "abc");
  const auto check = [&] {
    EXPECT_THAT(Names(), ElementsAre("mnist"));
    const v1::Dataset listed = store_->Get("mnist").value();
    ASSERT_EQ(listed.files_size(), 2);
    EXPECT_EQ(listed.files(0).path(), "empty");
    EXPECT_EQ(listed.files(0).sha256(), kEmpty);
    EXPECT_EQ(listed.files(1).path(), "train/images");
    EXPECT_EQ(listed.files(1).sha256(), kAbc);
    EXPECT_EQ(listed.create_time().seconds(), dataset.create_time().seconds());
    EXPECT_EQ(listed.user(), "ann");
    EXPECT_EQ(budget_->used(), 3);
  };
  check();
  Open();
  check();
  EXPECT_TRUE(absl::IsAlreadyExists(store_->Begin("mnist", "ann").status()));
  EXPECT_FALSE(upload->Append(0, "more").ok());
}

TEST_F(DatasetStoreTest, GoesOnWhereADaemonWasKilled) {
  const std::string bytes(100000, 'x');
  {
    auto upload = *store_->Begin("d", "");
    ASSERT_TRUE(Send(*upload, "a", "abc").ok());
    ASSERT_TRUE(upload->BeginFile(FileOf("b", bytes), 0).ok());
    ASSERT_TRUE(upload->Append(0, bytes.substr(0, 60000)).ok());
  }
  Open();
  EXPECT_EQ(Received("d", "a"), 3);
  EXPECT_EQ(Received("d", "b"), 60000);
  EXPECT_EQ(budget_->used(), 60003);
  auto upload = *store_->Begin("d", "");
  EXPECT_TRUE(absl::IsInvalidArgument(upload->Commit().status())) << "bytes are missing";
  EXPECT_TRUE(absl::IsOutOfRange(upload->BeginFile(FileOf("b", bytes), 60001)));
  ASSERT_TRUE(upload->BeginFile(FileOf("b", bytes), 60000).ok());
  ASSERT_TRUE(upload->Append(60000, bytes.substr(60000)).ok());
  ASSERT_TRUE(upload->Commit().ok());
  EXPECT_EQ(Content("d", "b"), bytes);
}

TEST_F(DatasetStoreTest, WhatIsThereNeedNotBeSentAndMayBe) {
  auto upload = *store_->Begin("d", "");
  ASSERT_TRUE(Send(*upload, "a", "abc").ok());
  ASSERT_TRUE(upload->BeginFile(FileOf("a", "abc"), 0).ok()) << "named without bytes, it stays";
  EXPECT_EQ(Received("d", "a"), 3);
  ASSERT_TRUE(upload->BeginFile(FileOf("a", "abc"), 1).ok());
  ASSERT_TRUE(upload->Append(1, "bc").ok());
  EXPECT_EQ(budget_->used(), 3);
  // Another content under the name takes its place.
  ASSERT_TRUE(Send(*upload, "a", "abcd").ok());
  EXPECT_EQ(budget_->used(), 4);
  Open();
  EXPECT_EQ(Received("d", "a"), 4);
  ASSERT_TRUE((*store_->Begin("d", ""))->Commit().ok());
  EXPECT_EQ(Content("d", "a"), "abcd");
}

TEST_F(DatasetStoreTest, OtherBytesThanAnnouncedAreRefusedAndGone) {
  auto upload = *store_->Begin("d", "");
  v1::DatasetFile file = FileOf("a", "abc");
  ASSERT_TRUE(upload->BeginFile(file, 0).ok());
  const absl::Status wrong = upload->Append(0, "abd");
  EXPECT_TRUE(absl::IsInvalidArgument(wrong));
  EXPECT_THAT(std::string(wrong.message()), AllOf(HasSubstr("'a'"), HasSubstr(kAbc), HasSubstr(Sha256Hex("abd"))));
  EXPECT_EQ(Received("d", "a"), 0);
  EXPECT_EQ(budget_->used(), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(upload->Append(3, "x"))) << "no file is begun";
  ASSERT_TRUE(upload->BeginFile(file, 0).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(upload->Append(0, "abcd"))) << "more than announced";
  EXPECT_TRUE(absl::IsInvalidArgument(upload->Append(1, "b"))) << "a gap";
  file.set_sha256(kAbc);
  file.set_size_bytes(0);
  EXPECT_TRUE(absl::IsInvalidArgument(upload->BeginFile(file, 0)));
  file.set_sha256("abc");
  EXPECT_TRUE(absl::IsInvalidArgument(upload->BeginFile(file, 0)));
  file = FileOf("a", "abc");
  file.set_size_bytes(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(upload->BeginFile(file, 0)));
}

TEST_F(DatasetStoreTest, DamageSinceItCameIsFoundAtTheCommit) {
  {
    auto upload = *store_->Begin("d", "");
    ASSERT_TRUE(Send(*upload, "a", "abc").ok());
    ASSERT_TRUE(Send(*upload, "b", "xyz").ok());
  }
  std::ofstream(folder_ + "/.new/d/files/a") << "abX";
  Open();
  auto upload = *store_->Begin("d", "");
  const absl::Status damaged = upload->Commit().status();
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("'a'"));
  EXPECT_EQ(Received("d", "a"), 0);
  ASSERT_TRUE(Send(*upload, "a", "abc").ok());
  EXPECT_TRUE(upload->Commit().ok());
}

TEST_F(DatasetStoreTest, WhatACrashLeftHalfDoneIsMendedOrRemoved) {
  ASSERT_TRUE(Make("whole", {{"a", "abc"}}).ok());
  {
    auto upload = *store_->Begin("d", "");
    ASSERT_TRUE(Send(*upload, "a", "abc").ok());
  }
  std::ofstream(folder_ + "/.new/d/JOURNAL", std::ios::app) << "7 torn";
  std::ofstream(folder_ + "/.new/d/files/stray") << "not in the journal";
  std::ofstream(folder_ + "/.new/d/files/a", std::ios::app) << "longer";
  fs::create_directories(folder_ + "/.new/.making-x/files");
  fs::create_directories(folder_ + "/.new/bad name");
  fs::create_directories(folder_ + "/.gone-x/old/files");
  fs::create_directories(folder_ + "/odd");
  Open();
  EXPECT_THAT(Names(), ElementsAre("d unfinished", "odd", "whole"));
  EXPECT_THAT(logged_, testing::UnorderedElementsAre(HasSubstr("/odd/MANIFEST"), HasSubstr("'bad name'")));
  EXPECT_FALSE(fs::exists(folder_ + "/.new/.making-x"));
  EXPECT_FALSE(fs::exists(folder_ + "/.gone-x"));
  EXPECT_FALSE(fs::exists(folder_ + "/.new/d/files/stray"));
  EXPECT_EQ(Received("d", "a"), 0);
  auto upload = *store_->Begin("d", "");
  ASSERT_TRUE(Send(*upload, "a", "abc").ok());
  ASSERT_TRUE(upload->Commit().ok());
  EXPECT_EQ(Content("d", "a"), "abc");
}

TEST_F(DatasetStoreTest, ADamagedManifestIsNamed) {
  ASSERT_TRUE(Make("d", {{"a", "abc"}, {"b", "xyz"}}).ok());
  const std::string path = folder_ + "/d/MANIFEST";
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  text[text.find(kAbc)] = 'c';
  std::ofstream(path) << text;
  const absl::Status status = store_->Get("d").status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("MANIFEST of dataset d"));
}

TEST_F(DatasetStoreTest, OneWithADamagedFirstLineKeepsItsNameUntilItIsDeleted) {
  ASSERT_TRUE(Make("d", {{"a", "abc"}, {"b", "xyz"}}).ok());
  std::ofstream(folder_ + "/d/MANIFEST") << "ampd-dataset 7\n";
  Open();
  EXPECT_THAT(Names(), ElementsAre("d"));
  EXPECT_THAT(logged_, ElementsAre(HasSubstr("/d/MANIFEST")));
  EXPECT_THAT(store_->List()[0].damage(), HasSubstr("MANIFEST"));
  EXPECT_EQ(budget_->used(), 6 + 15) << "as the disk has it";
  for (const absl::Status& status : {store_->Get("d").status(), store_->HoldAll({"d"}).status()}) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("dataset d is damaged"));
  }
  v1::JobSpec spec;
  spec.mutable_data()->mutable_train()->mutable_csv()->set_path("dataset:d/a");
  EXPECT_TRUE(absl::IsInvalidArgument(HoldDatasets(spec, store_.get()).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(store_->Begin("d", "").status())) << "it could not be committed";
  EXPECT_TRUE(absl::IsPermissionDenied(Delete("d", "ann"))) << "whose it was is lost with the line";
  ASSERT_TRUE(Delete("d").ok());
  EXPECT_EQ(budget_->used(), 0);
  EXPECT_TRUE(Make("d", {{"a", "abc"}}).ok());
}

// As an earlier daemon let it come to.
TEST_F(DatasetStoreTest, ADamagedOneGoesWithTheUploadOfItsName) {
  ASSERT_TRUE((*store_->Begin("d", ""))->BeginFile(FileOf("a", "abc"), 0).ok());
  fs::create_directories(folder_ + "/d");
  Open();
  ASSERT_TRUE(Delete("d").ok());
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_TRUE(Make("d", {{"a", "abc"}}).ok());
}

TEST_F(DatasetStoreTest, NobodyWaitsForTheDiskWhoOnlyAsksOrHolds) {
  ASSERT_TRUE(Make("other", {{"a", "abc"}}).ok());
  for (const bool commits : {true, false}) {
    auto hold = store_->HoldAll({"other"}).value();
    std::promise<void> reached, go_on;
    sync_ = [&](const std::string&) {
      reached.set_value();
      go_on.get_future().wait();
      return absl::OkStatus();
    };
    auto slow = std::async(std::launch::async, [&] {
      return commits ? Make("slow", {{"a", "abc"}}).status() : Delete("slow");
    });
    reached.get_future().wait();
    auto quick = std::async(std::launch::async, [&] {
      hold.reset();
      EXPECT_TRUE(store_->HoldAll({"other"}).ok());
      EXPECT_TRUE(store_->BeginDeletion("other", std::nullopt).ok());
      EXPECT_THAT(store_->List(), testing::Not(IsEmpty()));
    });
    const bool waits = quick.wait_for(std::chrono::seconds(30)) != std::future_status::ready;
    go_on.set_value();
    quick.wait();
    EXPECT_FALSE(waits) << (commits ? "for a commit" : "for a deletion");
    EXPECT_TRUE(slow.get().ok());
    sync_ = nullptr;
  }
}

TEST_F(DatasetStoreTest, OneWhoseNameMayNotBeOnDiskIsWholeAllTheSame) {
  auto upload = *store_->Begin("d", "");
  ASSERT_TRUE(Send(*upload, "a", "abc").ok());
  sync_ = [&](const std::string&) { return absl::DataLossError("the disk is broken"); };
  const absl::Status status = upload->Commit().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("whole"));
  sync_ = nullptr;
  EXPECT_THAT(Names(), ElementsAre("d"));
  EXPECT_TRUE(absl::IsAborted(upload->BeginFile(FileOf("b", "xyz"), 0))) << "that would make a stray folder";
  EXPECT_FALSE(fs::exists(folder_ + "/.new/d"));
  upload.reset();
  EXPECT_EQ(budget_->used(), 3) << "what is there counts";
  ASSERT_TRUE(Delete("d").ok());
  EXPECT_EQ(budget_->used(), 0);
}

TEST_F(DatasetStoreTest, TheNameIsFreeOnceItsDeletionIsFinished) {
  ASSERT_TRUE(Make("d", {{"a", "abc"}}).ok());
  auto deletion = store_->BeginDeletion("d", std::nullopt).value();
  sync_ = [&](const std::string& path) {
    EXPECT_TRUE(absl::IsAborted(store_->Begin("d", "").status())) << "a power cut would bring the old one back";
    return SyncFolder(path);
  };
  ASSERT_TRUE(deletion->Finish().ok());
  sync_ = nullptr;
  ASSERT_TRUE(Make("d", {{"a", "new"}}).ok());
  auto next = store_->BeginDeletion("d", std::nullopt).value();
  deletion.reset();
  EXPECT_TRUE(absl::IsAborted(store_->HoldAll({"d"}).status())) << "the deletion before takes nothing of this one";
}

TEST_F(DatasetStoreTest, ACommitEndsWhenAnotherTakesOver) {
  constexpr int64_t kBytes = int64_t{16} << 30;
  all_bytes_ = int64_t{1} << 40;
  v1::DatasetFile file = FileOf("a", "abc");
  file.set_size_bytes(kBytes);
  Open({.file_bytes = kBytes});
  {
    auto upload = *store_->Begin("d", "");
    ASSERT_TRUE(upload->BeginFile(file, 0).ok());
  }
  // Sparse: it takes no room, but a while to read.
  fs::resize_file(folder_ + "/.new/d/files/a", kBytes);
  Open({.file_bytes = kBytes});
  std::promise<void> begins;
  auto commit = std::async(std::launch::async, [&] {
    auto upload = *store_->Begin("d", "");
    begins.set_value();
    return upload->Commit().status();
  });
  begins.get_future().wait();
  auto next = *store_->Begin("d", "");
  EXPECT_TRUE(absl::IsAborted(commit.get()));
  EXPECT_EQ(Received("d", "a"), kBytes) << "nothing of it is lost";
}

TEST_F(DatasetStoreTest, WhatIsWrongIsToldByField) {
  EXPECT_THAT(Fields(store_->Begin("../x", "").status()), ElementsAre("name"));
  EXPECT_THAT(Fields(store_->BeginDeletion("", std::nullopt).status()), ElementsAre("name"));
  auto upload = *store_->Begin("d", "");
  EXPECT_THAT(Fields(upload->Append(0, "abc")), ElementsAre("file"));
  EXPECT_THAT(Fields(upload->BeginFile(FileOf("../x", ""), 0)), ElementsAre("file"));
  v1::DatasetFile file = FileOf("a", "abc");
  file.set_size_bytes(-1);
  EXPECT_THAT(Fields(upload->BeginFile(file, 0)), ElementsAre("file_size"));
  file = FileOf("a", "abc");
  file.set_sha256("x");
  EXPECT_THAT(Fields(upload->BeginFile(file, 0)), ElementsAre("file_sha256"));
  ASSERT_TRUE(upload->BeginFile(FileOf("a", "abc"), 0).ok());
  EXPECT_THAT(Fields(upload->Append(1, "b")), ElementsAre("offset"));
  EXPECT_THAT(Fields(upload->Append(0, "abcd")), ElementsAre("data"));
  EXPECT_THAT(Fields(upload->Commit().status()), ElementsAre("commit"));
  ASSERT_TRUE(upload->BeginFile(FileOf("a", "abc"), 0).ok());
  EXPECT_THAT(Fields(upload->Append(0, "xyz")), ElementsAre("file_sha256"));
}

// What a job keeps to know its data by.
TEST_F(DatasetStoreTest, AHoldTellsWhatIsInADataset) {
  const auto content = [&](const std::string& name) { return store_->HoldAll({name}).value()->contents().at(name); };
  ASSERT_TRUE(Make("d", {{"a", "abc"}, {"b", ""}}).ok());
  const std::string before = content("d");
  EXPECT_EQ(before, Sha256Hex(absl::StrCat("3 ", kAbc, " a\n0 ", kEmpty, " b\n")));
  Open();
  EXPECT_EQ(content("d"), before);
  ASSERT_TRUE(Make("same", {{"b", ""}, {"a", "abc"}}).ok());
  EXPECT_EQ(content("same"), before) << "whoever sent it, and when";
  ASSERT_TRUE(Make("other", {{"a", "abd"}, {"b", ""}}).ok());
  EXPECT_NE(content("other"), before);
}

TEST_F(DatasetStoreTest, HostileNamesMakeNothing) {
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../x"), std::string("a/b"),
        std::string(".new"), std::string("a b"), std::string("a\0b", 3), std::string(101, 'a')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(store_->Begin(name, "").status())) << name;
    EXPECT_TRUE(absl::IsInvalidArgument(store_->BeginDeletion(name, std::nullopt).status())) << name;
    EXPECT_TRUE(absl::IsNotFound(store_->Get(name).status())) << name;
  }
  auto upload = *store_->Begin("d", "");
  for (const std::string& path :
       {std::string("../x"), std::string("a/../../x"), std::string("/etc/x"), std::string("a//b"), std::string("a/"),
        std::string("."), std::string("a/./b"), std::string("a\nb"), std::string("a\0b", 3), std::string(256, 'a'),
        absl::StrJoin(std::vector<std::string>(17, "a"), "/"), std::string(2000, '/')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(upload->BeginFile(FileOf(path, "abc"), 0))) << path;
  }
  EXPECT_THAT(store_->Get("d")->files(), IsEmpty());
  ASSERT_TRUE(Send(*upload, "a/b", "abc").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Send(*upload, "a", "abc"))) << "a folder";
  EXPECT_TRUE(absl::IsInvalidArgument(Send(*upload, "a/b/c", "abc"))) << "beneath a file";
  ASSERT_TRUE(upload->Commit().ok()) << "what was refused was not announced";
  EXPECT_EQ(store_->Get("d")->files_size(), 1);
}

TEST_F(DatasetStoreTest, TheNextTakesOver) {
  auto first = *store_->Begin("d", "ann");
  ASSERT_TRUE(first->BeginFile(FileOf("a", "abc"), 0).ok());
  ASSERT_TRUE(first->Append(0, "a").ok());
  auto second = *store_->Begin("d", "ann");
  EXPECT_TRUE(absl::IsAborted(first->Append(1, "bc")));
  EXPECT_TRUE(absl::IsAborted(first->Commit().status()));
  ASSERT_TRUE(second->BeginFile(FileOf("a", "abc"), 1).ok());
  ASSERT_TRUE(second->Append(1, "bc").ok());
  EXPECT_TRUE(absl::IsPermissionDenied(store_->Begin("d", "bob").status()));
  EXPECT_TRUE(second->Commit().ok());
}

TEST_F(DatasetStoreTest, AnotherUsersIsLeftAlone) {
  ASSERT_TRUE((*store_->Begin("begun", "ann"))->BeginFile(FileOf("a", "abc"), 0).ok());
  ASSERT_TRUE(Make("old", {{"a", "abc"}}).ok());
  auto upload = *store_->Begin("d", "ann");
  ASSERT_TRUE(Send(*upload, "a", "abc").ok());
  ASSERT_TRUE(upload->Commit().ok());
  upload.reset();
  // Who owns what outlives the daemon.
  for (int run = 0; run < 2; ++run, Open()) {
    for (const char* name : {"d", "begun"}) {
      const absl::Status status = Delete(name, "bob");
      EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(name), HasSubstr("user ann's")));
    }
    EXPECT_TRUE(absl::IsPermissionDenied(Delete("old", "bob"))) << "of a time without users";
    EXPECT_TRUE(absl::IsPermissionDenied(store_->Begin("begun", "bob").status()));
    EXPECT_TRUE(absl::IsNotFound(Delete("none", "bob")));
    EXPECT_TRUE(store_->HoldAll({"d", "old"}).ok()) << "for everybody's jobs";
  }
  EXPECT_TRUE(store_->Begin("begun", "ann").ok());
  EXPECT_TRUE(store_->Begin("begun", "").ok()) << "users are not told apart any more";
  EXPECT_TRUE(Delete("d", "ann").ok());
  EXPECT_TRUE(Delete("begun", "ann").ok());
  EXPECT_TRUE(Delete("old").ok());
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(DatasetStoreTest, WhatIsHeldStays) {
  ASSERT_TRUE(Make("d", {{"a", "abc"}}).ok());
  auto hold = store_->HoldAll({"d"}).value();
  EXPECT_TRUE(absl::IsFailedPrecondition(Delete("d")));
  hold.reset();
  auto deletion = store_->BeginDeletion("d", std::nullopt).value();
  // It may be given up: whoever comes now is to come again.
  for (const absl::Status& status : {store_->HoldAll({"d"}).status(), store_->Begin("d", "").status(),
                                     store_->BeginDeletion("d", std::nullopt).status()}) {
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_TRUE(SaysWhenToComeBack(status));
  }
  deletion.reset();
  EXPECT_TRUE(store_->HoldAll({"d"}).ok()) << "given up";
  EXPECT_TRUE(Delete("d").ok());
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_FALSE(fs::exists(folder_ + "/d"));
  EXPECT_TRUE(absl::IsNotFound(Delete("d")));
  EXPECT_TRUE(Make("d", {{"other", "xyz"}}).ok());
}

TEST_F(DatasetStoreTest, AnUnfinishedOneIsDeletedToo) {
  auto upload = *store_->Begin("d", "");
  ASSERT_TRUE(Send(*upload, "a", "abc").ok());
  ASSERT_TRUE(Delete("d").ok());
  EXPECT_TRUE(absl::IsAborted(upload->Append(0, "x")));
  EXPECT_TRUE(absl::IsAborted(upload->Commit().status()));
  upload.reset();
  EXPECT_EQ(budget_->used(), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition((*store_->Begin("d", ""))->Commit().status())) << "begun anew, without a file";
}

TEST_F(DatasetStoreTest, AFullDiskIsToldAndTheUploadGoesOnAfter) {
  const auto old = signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{4096, limit.rlim_max};
  auto upload = *store_->Begin("d", "");
  const std::string bytes(8192, 'x');
  ASSERT_TRUE(upload->BeginFile(FileOf("a", bytes), 0).ok());
  ASSERT_TRUE(upload->Append(0, bytes.substr(0, 1000)).ok());
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = upload->Append(1000, bytes.substr(1000));
  setrlimit(RLIMIT_FSIZE, &limit);
  signal(SIGXFSZ, old);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(Received("d", "a"), 1000);
  EXPECT_EQ(budget_->used(), 1000);
  ASSERT_TRUE(upload->Append(1000, bytes.substr(1000)).ok());
  ASSERT_TRUE(upload->Commit().ok());
  EXPECT_EQ(Content("d", "a"), bytes);
}

TEST_F(DatasetStoreTest, AJobNamesWhatIsThere) {
  ASSERT_TRUE(Make("d", {{"train/a.csv", "abc"}}).ok());
  v1::JobSpec spec;
  spec.mutable_data()->mutable_train()->mutable_csv()->set_path("dataset:d/train/a.csv");
  auto hold = HoldDatasets(spec, store_.get()).value();
  EXPECT_TRUE(absl::IsFailedPrecondition(Delete("d")));
  hold.reset();
  EXPECT_THAT(DatasetsOf(spec), ElementsAre("d"));
  auto deletion = store_->BeginDeletion("d", std::nullopt).value();
  const absl::Status going = HoldDatasets(spec, store_.get()).status();
  EXPECT_TRUE(absl::IsAborted(going)) << "the job may be submitted again: " << going;
  EXPECT_TRUE(SaysWhenToComeBack(going));
  deletion.reset();
  for (const auto& [path, said] :
       std::vector<std::pair<std::string, std::string>>{{"dataset:d/b.csv", "dataset d has no 'b.csv'"},
                                                        {"dataset:e/a.csv", "no dataset is called 'e'"},
                                                        {"dataset:d/../../x", "has a part"}}) {
    spec.mutable_data()->mutable_eval()->mutable_csv()->set_path(path);
    const absl::Status status = HoldDatasets(spec, store_.get()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << path;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("data.eval.csv.path"), HasSubstr(said)));
  }
  EXPECT_TRUE(Delete("d").ok()) << "nothing is held by what was refused";
  EXPECT_FALSE(HoldDatasets(spec, nullptr).ok());
}

}  // namespace
}  // namespace ampd
