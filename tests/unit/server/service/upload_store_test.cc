#include "server/service/upload_store.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// FIPS 180-4's examples: of "abc", and of nothing.
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kEmpty[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

class UploadStoreTest : public testing::Test {
 protected:
  UploadStoreTest() : folder_(absl::StrCat(testing::TempDir(), "/upload_store_test_", getpid())) {
    fs::remove_all(folder_);
  }
  ~UploadStoreTest() override { fs::remove_all(folder_); }

  void Open(const UploadStore::Limits& limits = {}) { store_ = UploadStore::Open(folder_, limits).value(); }

  absl::StatusOr<int64_t> Send(const std::string& checksum, const std::vector<std::string>& pieces,
                               const std::string& user = "") {
    auto upload = store_->Begin(checksum, user);
    if (!upload.ok()) return upload.status();
    for (const std::string& piece : pieces) {
      if (absl::Status status = (*upload)->Append(piece); !status.ok()) return status;
    }
    return (*upload)->Finish();
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  const std::string folder_;
  std::unique_ptr<UploadStore> store_;
};

TEST_F(UploadStoreTest, KeepsAFileByItsChecksum) {
  Open();
  EXPECT_FALSE(store_->Size(kAbc).has_value());
  EXPECT_EQ(Send(kAbc, {"a", "", "bc"}).value(), 3);
  EXPECT_EQ(store_->Size(kAbc).value(), 3);
  EXPECT_THAT(Names(), ElementsAre(kAbc));
  std::string content;
  std::ifstream(absl::StrCat(folder_, "/", kAbc)) >> content;
  EXPECT_EQ(content, "abc");
  EXPECT_EQ(Send(kAbc, {"abc"}).value(), 3) << "again is harmless";
  EXPECT_EQ(Send(kEmpty, {}).value(), 0);
  EXPECT_THAT(Names(), ElementsAre(kAbc, kEmpty));
}

TEST_F(UploadStoreTest, OtherBytesAreRefusedAndGone) {
  Open();
  for (const std::string piece : {"abd", "ab", "abcd", ""}) {
    const absl::Status status = Send(kAbc, {piece}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("sha256: ", kAbc, " was announced")));
  }
  EXPECT_THAT(Names(), IsEmpty());
  for (const std::string& name : {std::string(), std::string("../x"), std::string(64, 'G'), std::string(64, 'A'),
                                  std::string(63, 'a'), std::string(65, 'a')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(store_->Begin(name, "").status())) << name;
    EXPECT_FALSE(store_->Size(name).has_value()) << name;
  }
}

TEST_F(UploadStoreTest, LimitsHoldForOneFileAndForAll) {
  Open({.file_bytes = 3, .all = std::make_shared<ByteBudget>(5), .entry_bytes = 0});
  const absl::Status one = Send(kAbc, {"ab", "cd"}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(one));
  EXPECT_THAT(std::string(one.message()), HasSubstr("max_upload_bytes"));
  ASSERT_TRUE(Send(kAbc, {"abc"}).ok()) << "what failed takes no room";
  const absl::Status all = Send(kEmpty, {"xyz"}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(all));
  EXPECT_THAT(std::string(all.message()), HasSubstr("max_uploads_bytes"));
  EXPECT_EQ(Send(kAbc, {"ab"}).status().code(), absl::StatusCode::kInvalidArgument) << "5 bytes in all are allowed";
  // Those under way count.
  auto held = store_->Begin(kEmpty, "");
  ASSERT_TRUE((*held)->Append("xy").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Send(kEmpty, {"z"}).status()));
  held->reset();
  EXPECT_EQ(Send(kEmpty, {"z"}).status().code(), absl::StatusCode::kInvalidArgument);
  // A daemon that starts anew knows what is there.
  store_.reset();
  Open({.file_bytes = 3, .all = std::make_shared<ByteBudget>(5), .entry_bytes = 0});
  EXPECT_TRUE(absl::IsResourceExhausted(Send(kEmpty, {"xyz"}).status()));
  EXPECT_THAT(Names(), ElementsAre(kAbc));
}

TEST_F(UploadStoreTest, AUserHasALimit) {
  const auto limits = [] {
    return UploadStore::Limits{.all = std::make_shared<ByteBudget>(20), .bytes_per_user = 4, .entry_bytes = 0};
  };
  Open(limits());
  ASSERT_TRUE(Send(kAbc, {"abc"}, "ann").ok());
  const auto more = [this](const std::string& user) { return Send(kEmpty, {"xy"}, user).status(); };
  // Which are other bytes than announced, where there is room for them.
  EXPECT_TRUE(absl::IsInvalidArgument(more("bob")));
  EXPECT_TRUE(absl::IsInvalidArgument(more("")));
  EXPECT_TRUE(absl::IsResourceExhausted(more("ann")));
  EXPECT_THAT(std::string(more("ann").message()), HasSubstr("3 of 4 bytes (max_model_bytes_per_user)"));
  // What is there already takes no room of whoever sends it as well.
  ASSERT_TRUE(Send(kAbc, {"abc"}, "bob").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(more("bob")));
  // A daemon that starts anew knows whose it is.
  store_.reset();
  std::ofstream(absl::StrCat(folder_, "/.", kEmpty, ".user")) << "of a file that is not there";
  Open(limits());
  EXPECT_TRUE(absl::IsResourceExhausted(more("ann")));
  EXPECT_TRUE(absl::IsInvalidArgument(more("bob")));
  EXPECT_THAT(Names(), ElementsAre(absl::StrCat(".", kAbc, ".user"), kAbc));
  EXPECT_THAT(store_->RemoveUnused({kAbc}, absl::InfiniteFuture()), ElementsAre(kAbc));
  EXPECT_TRUE(absl::IsInvalidArgument(more("ann")));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(UploadStoreTest, EachFileCountsMoreThanItsBytes) {
  const auto all = std::make_shared<ByteBudget>(1 << 20);
  const UploadStore::Limits limits{.all = all, .bytes_per_user = 25 << 10};
  Open(limits);
  ASSERT_TRUE(Send(kEmpty, {}, "ann").ok());
  EXPECT_EQ(all->used(), 10 << 10);
  ASSERT_TRUE(Send(kAbc, {"abc"}, "ann").ok());
  EXPECT_EQ(all->used(), (20 << 10) + 3);
  const absl::Status third = Send(std::string(64, '0'), {}, "ann").status();
  EXPECT_TRUE(absl::IsResourceExhausted(third)) << third;
  EXPECT_THAT(std::string(third.message()), HasSubstr("20483 of 25600 bytes (max_model_bytes_per_user)"));
  {
    // One that is under way counts, and gives back what it took.
    const auto held = store_->Begin(std::string(64, '0'), "bob");
    EXPECT_EQ(all->used(), (30 << 10) + 3);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Send(std::string(64, '0'), {}, "bob").status())) << "room, but other bytes";
  ASSERT_TRUE(Send(kAbc, {"abc"}, "bob").ok()) << "it is ann's";
  EXPECT_EQ(all->used(), (20 << 10) + 3);
  // A daemon that starts anew counts the same.
  store_.reset();
  const auto again = std::make_shared<ByteBudget>(1 << 20);
  Open({.all = again, .bytes_per_user = 25 << 10});
  EXPECT_EQ(again->used(), (20 << 10) + 3);
  EXPECT_TRUE(absl::IsResourceExhausted(store_->Begin(std::string(64, '0'), "ann").status()));
  store_->RemoveUnused({kAbc, kEmpty}, absl::InfiniteFuture());
  EXPECT_EQ(again->used(), 0);
}

TEST_F(UploadStoreTest, WhatIsNotUsedCanBeRemoved) {
  const auto all = std::make_shared<ByteBudget>(5);
  Open({.all = all, .entry_bytes = 0});
  ASSERT_TRUE(Send(kAbc, {"abc"}).ok());
  ASSERT_TRUE(Send(kEmpty, {}).ok());
  std::ofstream(absl::StrCat(folder_, "/notes")) << "not an upload";
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(48);
  for (const std::string& name : Names()) fs::last_write_time(absl::StrCat(folder_, "/", name), old);
  const absl::Time yesterday = absl::Now() - absl::Hours(24);
  EXPECT_THAT(store_->UnusedSince(yesterday), ElementsAre(kAbc, kEmpty));
  EXPECT_THAT(store_->UnusedSince(yesterday - absl::Hours(48)), IsEmpty());
  // One of them is used after it was looked for.
  const std::set<std::string> unused = store_->UnusedSince(yesterday);
  EXPECT_EQ(store_->Use(kEmpty).value(), 0);
  EXPECT_FALSE(store_->Use(std::string(64, '0')).has_value());
  EXPECT_THAT(store_->RemoveUnused(unused, yesterday), ElementsAre(kAbc));
  EXPECT_THAT(Names(), ElementsAre(kEmpty, "notes"));
  EXPECT_EQ(all->used(), 0);
  ASSERT_TRUE(Send(kAbc, {"abc"}).ok()) << "it can be sent again";
}

TEST_F(UploadStoreTest, NothingMoreIsTakenWhileTheDiskIsShortOfRoom) {
  std::string shortage;
  Open({.shortage = [&] { return shortage; }});
  auto upload = store_->Begin(kAbc, "");
  ASSERT_TRUE((*upload)->Append("ab").ok());
  shortage = "7 bytes of room, less than 9 (min_free_bytes)";
  for (const absl::Status& status : {(*upload)->Append("c"), store_->Begin(kEmpty, "").status()}) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("min_free_bytes"));
  }
  shortage.clear();
  ASSERT_TRUE((*upload)->Append("c").ok());
  EXPECT_EQ((*upload)->Finish().value(), 3);
}

TEST_F(UploadStoreTest, TwoAtOnceAreOneFile) {
  Open({.file_bytes = 3, .all = std::make_shared<ByteBudget>(6), .entry_bytes = 0});
  auto first = store_->Begin(kAbc, ""), second = store_->Begin(kAbc, "");
  ASSERT_TRUE((*first)->Append("abc").ok());
  ASSERT_TRUE((*second)->Append("abc").ok());
  EXPECT_EQ((*first)->Finish().value(), 3);
  EXPECT_EQ((*second)->Finish().value(), 3);
  first->reset();
  second->reset();
  EXPECT_THAT(Names(), ElementsAre(kAbc));
  EXPECT_EQ(Send(kEmpty, {"xyz"}).status().code(), absl::StatusCode::kInvalidArgument) << "counted once";
}

TEST_F(UploadStoreTest, WhatACrashLeftIsRemoved) {
  fs::create_directories(folder_);
  std::ofstream(folder_ + "/.partial-abcdef") << "half";
  std::ofstream(absl::StrCat(folder_, "/", kAbc)) << "abc";
  Open();
  EXPECT_THAT(Names(), ElementsAre(kAbc));
  EXPECT_EQ(store_->Size(kAbc).value(), 3);
}

TEST_F(UploadStoreTest, AFullDiskIsToldAndLeavesNothing) {
  Open();
  const auto old = signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{4096, limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = Send(kAbc, {std::string(8192, 'x')}).status();
  setrlimit(RLIMIT_FSIZE, &limit);
  signal(SIGXFSZ, old);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot keep the file: File too large"));
  EXPECT_THAT(Names(), IsEmpty());
}

}  // namespace
}  // namespace ampd
