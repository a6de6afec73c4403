// What the store takes, of whom, and what it says to the rest.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/unit/server/service/dataset_store_fixture.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DatasetLimitsTest : public DatasetStoreTest {};

TEST_F(DatasetLimitsTest, AUserBeginsOnlySoManyUploads) {
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

TEST_F(DatasetLimitsTest, AUserHasOnlySoManyDatasets) {
  datasets_per_user_ = 3;
  Open();
  const auto make = [this](const std::string& name, const std::string& user) -> absl::Status {
    const auto upload = store_->Begin(name, user);
    if (!upload.ok()) return upload.status();
    if (absl::Status status = Send(**upload, "a", name); !status.ok()) return status;
    return (*upload)->Commit().status();
  };
  for (const char* name : {"one", "two"}) ASSERT_TRUE(make(name, "ann").ok());
  const auto third = store_->Begin("three", "ann");
  ASSERT_TRUE(third.ok());
  for (const bool starts_anew : {false, true}) {
    if (starts_anew) Open();
    const absl::Status status = store_->Begin("four", "ann").status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("user ann has 3 datasets"), HasSubstr("delete one")));
    EXPECT_TRUE(store_->Begin("three", "ann").ok()) << "goes on with it";
  }
  EXPECT_TRUE(make("bobs", "bob").ok());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(make(absl::StrCat("e", i), "").ok()) << "where none is told apart";
  ASSERT_TRUE(Delete("one").ok());
  EXPECT_TRUE(make("four", "ann").ok());
}

TEST_F(DatasetLimitsTest, FilesCountAlsoWhereTheyAreEmpty) {
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

TEST_F(DatasetLimitsTest, FoldersForNothingAreRefused) {
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

TEST_F(DatasetLimitsTest, NoFileIsMadeWhileThereIsNoRoom) {
  auto upload = *store_->Begin("d", "ann");
  shortage_ = "the disk is full";
  EXPECT_TRUE(absl::IsResourceExhausted(upload->BeginFile(FileOf("a", ""), 0))) << "though it is empty";
  shortage_ = "";
  EXPECT_TRUE(upload->BeginFile(FileOf("a", ""), 0).ok());
}

TEST_F(DatasetLimitsTest, AUserTakesOnlySoManyBytes) {
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
TEST_F(DatasetLimitsTest, NothingMoreIsTakenWhileTheDiskIsShortOfRoom) {
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

TEST_F(DatasetLimitsTest, LimitsHoldForAFileAndForAll) {
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

}  // namespace
}  // namespace ampd
