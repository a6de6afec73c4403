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

bool SaysWhenToComeBack(const absl::Status& status) {
  return status.GetPayload("type.googleapis.com/google.rpc.RetryInfo").has_value();
}

std::vector<std::string> Fields(const absl::Status& status) {
  std::vector<std::string> fields;
  for (const FieldViolation& violation : FieldViolationsOf(status)) fields.push_back(violation.field);
  return fields;
}

v1::DatasetFile FileOf(const std::string& path, const std::string& bytes) {
  v1::DatasetFile file;
  file.set_path(path);
  file.set_size_bytes(static_cast<int64_t>(bytes.size()));
  file.set_sha256(Sha256Hex(bytes));
  return file;
}

class DatasetStoreTest : public testing::Test {
 protected:
  DatasetStoreTest() : folder_(absl::StrCat(testing::TempDir(), "/dataset_store_test_", getpid())) {
    fs::remove_all(folder_);
    Open();
  }
  ~DatasetStoreTest() override { fs::remove_all(folder_); }

  // As a daemon that starts anew, after one that may have been killed: nothing is told to the one before.
  void Open(DatasetLimits limits = {}) {
    limits.all = std::make_shared<ByteBudget>(all_bytes_);
    budget_ = limits.all;
    limits.entry_bytes = entry_bytes_;
    limits.shortage = [this] { return shortage_; };
    DatasetStore::Options options{.folder = folder_, .limits = limits};
    options.bytes_per_user = bytes_per_user_;
    options.log = [this](const std::string& text) { logged_.push_back(text); };
    options.sync_folder = [this](const std::string& path) { return sync_ ? sync_(path) : SyncFolder(path); };
    store_ = DatasetStore::Open(std::move(options)).value();
  }

  static absl::Status Send(DatasetStore::Upload& upload, const std::string& path, const std::string& bytes) {
    if (absl::Status status = upload.BeginFile(FileOf(path, bytes), 0); !status.ok()) return status;
    return upload.Append(0, bytes);
  }
  absl::StatusOr<v1::Dataset> Make(const std::string& name,
                                   const std::vector<std::pair<std::string, std::string>>& files) {
    auto upload = store_->Begin(name, "");
    if (!upload.ok()) return upload.status();
    for (const auto& [path, bytes] : files) {
      if (absl::Status status = Send(**upload, path, bytes); !status.ok()) return status;
    }
    return (*upload)->Commit();
  }
  std::string Content(const std::string& name, const std::string& path) const {
    std::ifstream file(absl::StrCat(DatasetFilesFolder(folder_, name), "/", path), std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  }
  int64_t Received(const std::string& name, const std::string& path) const {
    const v1::Dataset dataset = store_->Get(name).value();
    for (const v1::DatasetFile& file : dataset.files()) {
      if (file.path() == path) return file.received_bytes();
    }
    return -1;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const v1::Dataset& dataset : store_->List()) {
      names.push_back(absl::StrCat(dataset.name(), dataset.committed() ? "" : " unfinished"));
    }
    return names;
  }
  absl::Status Delete(const std::string& name, const std::optional<std::string>& owner = std::nullopt) {
    auto deletion = store_->BeginDeletion(name, owner);
    return deletion.ok() ? (*deletion)->Finish() : deletion.status();
  }

  const std::string folder_;
  int64_t all_bytes_ = 1 << 20;
  int64_t bytes_per_user_ = 0;
  int64_t entry_bytes_ = 0;
  std::shared_ptr<ByteBudget> budget_;
  std::vector<std::string> logged_;
  std::string shortage_;
  // In place of SyncFolder.
  std::function<absl::Status(const std::string&)> sync_;
  std::unique_ptr<DatasetStore> store_;
};

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

TEST_F(DatasetStoreTest, AUserBeginsOnlySoManyUploads) {
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(store_->Begin(absl::StrCat("d", i), "ann").ok());
  const absl::Status status = store_->Begin("one-more", "ann").status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("ann"), HasSubstr("16")));
  EXPECT_TRUE(store_->Begin("d3", "ann").ok()) << "goes on with it";
  EXPECT_TRUE(store_->Begin("one-more", "bob").ok());
  ASSERT_TRUE(Delete("d3").ok());
  EXPECT_TRUE(store_->Begin("d3", "ann").ok());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(store_->Begin(absl::StrCat("e", i), "").ok()) << "where none is told apart";
}

TEST_F(DatasetStoreTest, FilesCountAlsoWhereTheyAreEmpty) {
  entry_bytes_ = 100;
  bytes_per_user_ = 350;
  Open();
  auto upload = *store_->Begin("many", "ann");
  ASSERT_TRUE(upload->BeginFile(FileOf("a", ""), 0).ok());
  ASSERT_TRUE(upload->BeginFile(FileOf("a", ""), 0).ok()) << "said again";
  ASSERT_TRUE(Send(*upload, "b", "1234").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(upload->BeginFile(FileOf("a/b", ""), 0))) << "a file and a folder at once";
  EXPECT_EQ(budget_->used(), 204);
  Open();
  EXPECT_EQ(budget_->used(), 204);
  upload = *store_->Begin("many", "ann");
  ASSERT_TRUE(upload->BeginFile(FileOf("c", ""), 0).ok());
  const absl::Status fourth = upload->BeginFile(FileOf("d", ""), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(fourth)) << fourth;
  EXPECT_THAT(std::string(fourth.message()), HasSubstr("304 of 350 bytes (max_dataset_bytes_per_user)"));
  ASSERT_TRUE(upload->Commit().ok());
  upload.reset();
  for (int run = 0; run < 2; ++run, Open()) {
    EXPECT_EQ(budget_->used(), 304) << "also once it is whole";
    EXPECT_TRUE(absl::IsResourceExhausted((*store_->Begin("more", "ann"))->BeginFile(FileOf("a", ""), 0)));
  }
  fs::remove(folder_ + "/many/MANIFEST");
  Open();
  EXPECT_EQ(budget_->used(), 304) << "damaged, it takes as much";
  ASSERT_TRUE(Delete("many").ok());
  EXPECT_EQ(budget_->used(), 0);
  ASSERT_TRUE((*store_->Begin("more", "ann"))->BeginFile(FileOf("a", ""), 0).ok());
  ASSERT_TRUE(Delete("more").ok());
  EXPECT_EQ(budget_->used(), 0);
}

TEST_F(DatasetStoreTest, FoldersForNothingAreRefused) {
  Open();
  auto upload = *store_->Begin("deep", "ann");
  const auto path = [](int i) { return absl::StrCat(i, "/a/b/c/d/e/f/g/h/i/j/k/l/m/file"); };
  for (int i = 0; i < 83; ++i) ASSERT_TRUE(upload->BeginFile(FileOf(path(i), ""), 0).ok()) << i;
  const absl::Status refused = upload->BeginFile(FileOf(path(83), ""), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("84 files in 1176 folders: at most 2 a file and 1000 more"));
  // Also of a daemon that begins, and not where others lie there already.
  upload.reset();
  Open();
  upload = *store_->Begin("deep", "ann");
  EXPECT_TRUE(absl::IsResourceExhausted(upload->BeginFile(FileOf(path(83), ""), 0)));
  for (const char* beside : {"0/a/file", "5/a/b/c/d/e/f/g/h/i/j/k/l/m/a", "82/a/b/z"}) {
    EXPECT_TRUE(upload->BeginFile(FileOf(beside, ""), 0).ok()) << beside;
  }
}

TEST_F(DatasetStoreTest, NoFileIsMadeWhileThereIsNoRoom) {
  auto upload = *store_->Begin("d", "ann");
  shortage_ = "the disk is full";
  EXPECT_TRUE(absl::IsResourceExhausted(upload->BeginFile(FileOf("a", ""), 0))) << "though it is empty";
  shortage_ = "";
  EXPECT_TRUE(upload->BeginFile(FileOf("a", ""), 0).ok());
}

TEST_F(DatasetStoreTest, AUserTakesOnlySoManyBytes) {
  all_bytes_ = 10;
  bytes_per_user_ = 6;
  Open();
  auto whole = *store_->Begin("whole", "ann");
  ASSERT_TRUE(Send(*whole, "a", "abc").ok());
  ASSERT_TRUE(whole->Commit().ok());
  ASSERT_TRUE(Send(**store_->Begin("begun", "ann"), "a", "xy").ok());
  for (int run = 0; run < 2; ++run, Open()) {
    EXPECT_EQ(budget_->used(), 5);
    const absl::Status announced = (*store_->Begin("begun", "ann"))->BeginFile(FileOf("b", "de"), 0);
    EXPECT_TRUE(absl::IsResourceExhausted(announced)) << announced;
    EXPECT_THAT(std::string(announced.message()), HasSubstr("5 of 6 bytes (max_dataset_bytes_per_user)"));
  }
  ASSERT_TRUE(Send(**store_->Begin("bobs", "bob"), "a", "1234").ok()) << "there is room for others";
  const absl::Status all = Send(**store_->Begin("bobs", "bob"), "b", "56");
  EXPECT_THAT(std::string(all.message()), HasSubstr("9 of 10 bytes (max_uploads_bytes)"));
  // Two announced before, of which the second is too much, take nothing of what all have.
  ASSERT_TRUE(Send(**store_->Begin("begun", "ann"), "b", "z").ok());
  EXPECT_EQ(budget_->used(), 10);
  ASSERT_TRUE(Delete("whole").ok());
  ASSERT_TRUE(Delete("bobs").ok());
  EXPECT_EQ(budget_->used(), 3);
  EXPECT_TRUE(Send(**store_->Begin("begun", "ann"), "c", "123").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Send(**store_->Begin("begun", "ann"), "d", "4")));
}

// Nobody who comes next, nor a deletion, waits until gigabytes are checked.
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

TEST_F(DatasetStoreTest, NothingMoreIsTakenWhileTheDiskIsShortOfRoom) {
  auto upload = *store_->Begin("d", "");
  ASSERT_TRUE(upload->BeginFile(FileOf("a", "abcdef"), 0).ok());
  ASSERT_TRUE(upload->Append(0, "abc").ok());
  shortage_ = "7 bytes of room, less than 9 (min_free_bytes)";
  for (const absl::Status& status : {upload->Append(3, "def"), upload->BeginFile(FileOf("b", "xyz"), 0)}) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("min_free_bytes"));
    EXPECT_FALSE(SaysWhenToComeBack(status)) << "nobody knows";
  }
  EXPECT_EQ(Received("d", "a"), 3);
  EXPECT_EQ(budget_->used(), 3);
  shortage_.clear();
  ASSERT_TRUE(upload->BeginFile(FileOf("a", "abcdef"), 3).ok());
  ASSERT_TRUE(upload->Append(3, "def").ok());
  shortage_ = "none";
  EXPECT_TRUE(upload->Commit().ok()) << "that takes no more";
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

TEST_F(DatasetStoreTest, LimitsHoldForAFileAndForAll) {
  all_bytes_ = 10;
  Open({.file_bytes = 6, .files = 2});
  auto upload = *store_->Begin("d", "");
  const absl::Status file = upload->BeginFile(FileOf("a", "1234567"), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(file));
  EXPECT_THAT(std::string(file.message()), HasSubstr("max_upload_bytes"));
  ASSERT_TRUE(Send(*upload, "a", "123456").ok());
  const absl::Status all = upload->BeginFile(FileOf("b", "12345"), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(all)) << "told before the bytes are sent";
  EXPECT_THAT(std::string(all.message()), HasSubstr("max_uploads_bytes"));
  // Two that together are too much, both announced before.
  auto other = *store_->Begin("e", "");
  ASSERT_TRUE(upload->BeginFile(FileOf("b", "1234"), 0).ok());
  ASSERT_TRUE(other->BeginFile(FileOf("b", "1234"), 0).ok());
  ASSERT_TRUE(upload->Append(0, "1234").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(other->Append(0, "1234")));
  EXPECT_TRUE(absl::IsResourceExhausted(upload->BeginFile(FileOf("c", ""), 0))) << "a third file";
  ASSERT_TRUE(upload->Commit().ok());
  EXPECT_EQ(budget_->used(), 10);
  Open({.file_bytes = 6, .files = 2});
  EXPECT_EQ(budget_->used(), 10);
  ASSERT_TRUE(Delete("d").ok());
  EXPECT_EQ(budget_->used(), 0);
  EXPECT_TRUE(Make("f", {{"a", "123456"}}).ok());
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
