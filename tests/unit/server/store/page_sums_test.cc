// What damage to the database's file comes to: it is named, whatever byte it hits, and what other programs do to the
// file without knowing of checksums is no damage as long as they do not write.
#include <gmock/gmock.h>
#include <sqlite3.h>

#include <fstream>
#include <random>
#include <set>
#include <vector>

#include "server/store/page_sum.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kPage = 4096;
constexpr int kJobs = 30;

using Bytes = std::vector<unsigned char>;

TEST(PageSumTest, EveryBitCounts) {
  std::mt19937 random(7);
  Bytes page(kPage);
  for (unsigned char& byte : page) byte = static_cast<unsigned char>(random());
  std::set<uint64_t> sums = {PageSum(page.data(), kPage, 2)};
  for (size_t bit = 0; bit < (kPage - kPageSumBytes) * 8; ++bit) {
    page[bit / 8] ^= 1 << bit % 8;
    sums.insert(PageSum(page.data(), kPage, 2));
    page[bit / 8] ^= 1 << bit % 8;
  }
  EXPECT_THAT(sums, SizeIs(1 + (kPage - kPageSumBytes) * 8));
  page[kPage - 1] ^= 1;
  EXPECT_THAT(sums, Contains(PageSum(page.data(), kPage, 2))) << "not of itself";
}

TEST(PageSumTest, APlaceCounts) {
  const Bytes zeros(65536);
  std::set<uint64_t> sums;
  for (const size_t size : {512, 4096, 65536}) {
    for (uint32_t number = 1; number <= 1000; ++number) sums.insert(PageSum(zeros.data(), size, number));
  }
  EXPECT_THAT(sums, SizeIs(3000));
  EXPECT_EQ(sums.count(0), 0u);
  Bytes page(kPage);
  page[8] = 1;
  const uint64_t sum = PageSum(page.data(), kPage, 2);
  std::swap(page[8], page[16]);
  EXPECT_NE(PageSum(page.data(), kPage, 2), sum);
}

// As another implementation of what docs/formats.md says has them; what is stored stays readable.
TEST(PageSumTest, IsWhatIsStored) {
  Bytes page(kPage);
  for (size_t i = 0; i < kPage; ++i) page[i] = static_cast<unsigned char>(i * 7);
  EXPECT_EQ(PageSum(page.data(), kPage, 1), 0xec80421a8093ae71);
  EXPECT_EQ(PageSum(page.data(), kPage, 2), 0x98c7a27b3504b10a);
}

class PageDamageTest : public testing::Test {
 protected:
  // Rows over several pages, pages of indices, and pages in no use.
  PageDamageTest() {
    auto store = OpenAt(dir_.path());
    for (int n = 1; n <= kJobs; ++n) {
      EXPECT_TRUE(WriteAndWait(*store, CreateWrite(n)).ok());
      EXPECT_TRUE(WriteAndWait(*store, EventWrite(n, 2, std::string(20'000, 'e'))).ok());
    }
    store.reset();
    sqlite3* db = OpenRaw(dir_.path());
    Execute(db, absl::StrCat("DELETE FROM events WHERE job <= 2"));
    sqlite3_close(db);
    original_ = Contents();
  }

  std::unique_ptr<Store> OpenAt(const std::string& state_dir) {
    auto store =
        Store::Open({.state_dir = state_dir, .log = [this](const std::string& text) { log_.push_back(text); }});
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  static void Execute(sqlite3* db, const std::string& sql) {
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
  }

  std::string path() const { return dir_.path() + "/ampd.db"; }
  Bytes Contents() const {
    std::ifstream file(path(), std::ios::binary);
    return Bytes(std::istreambuf_iterator<char>(file), {});
  }
  void SetContents(const Bytes& bytes) const {
    std::ofstream(path(), std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  int64_t PageCount() const { return static_cast<int64_t>(original_.size() / kPage); }

  // By what SQLite says of a whole file.
  std::map<int64_t, std::string> Users() const {
    std::map<int64_t, std::string> users;
    sqlite3* db = OpenRaw(dir_.path());
    sqlite3_stmt* query = nullptr;
    EXPECT_EQ(sqlite3_prepare_v2(db, "SELECT pageno, name || ' ' || pagetype FROM dbstat", -1, &query, nullptr),
              SQLITE_OK)
        << sqlite3_errmsg(db);
    while (sqlite3_step(query) == SQLITE_ROW) {
      users[sqlite3_column_int64(query, 0)] = reinterpret_cast<const char*>(sqlite3_column_text(query, 1));
    }
    sqlite3_finalize(query);
    sqlite3_close(db);
    return users;
  }

  absl::Status Opened(const Bytes& bytes) {
    SetContents(bytes);
    log_.clear();
    const auto store =
        Store::Open({.state_dir = dir_.path(), .log = [this](const std::string& text) { log_.push_back(text); }});
    return store.status();
  }
  void ExpectNamed(const Bytes& bytes, int64_t page, const std::string& what, const std::string& where = "") {
    const absl::Status status = Opened(bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << "page " << page << ": " << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path()), HasSubstr(absl::StrCat("page ", page, " ")),
                                                     HasSubstr(what), HasSubstr(where)));
    EXPECT_EQ(Contents(), bytes) << "what is damaged is left as it is";
  }

  TempDir dir_;
  std::vector<std::string> log_;
  Bytes original_;
};

TEST_F(PageDamageTest, AFlippedBitOfAnyPageIsNamed) {
  EXPECT_TRUE(Opened(original_).ok());
  EXPECT_THAT(log_, IsEmpty());
  std::mt19937 random(3);
  const auto users = Users();
  std::set<std::string> kinds;
  for (int64_t page = 1; page <= PageCount(); ++page) {
    const auto user = users.find(page);
    const std::string name = user == users.end() ? "" : user->second;
    kinds.insert(name.empty() ? "unused" : name.substr(name.find(' ') + 1));
    for (int i = 0; i < 2; ++i) {
      Bytes bytes = original_;
      // Of the first page, behind what SQLite itself looks at first.
      const size_t at = page == 1 ? 100 + random() % (kPage - 100) : random() % kPage;
      bytes[(page - 1) * kPage + at] ^= 1 << random() % 8;
      ExpectNamed(bytes, page, "checksum",
                  name.starts_with("sqlite_schema") ? ""
                  : name.empty()                    ? "in no table"
                                                    : "in tables");
    }
  }
  EXPECT_THAT(kinds, testing::IsSupersetOf({"unused", "leaf", "internal", "overflow"}));
}

TEST_F(PageDamageTest, TheTableIsNamed) {
  for (const auto& [page, user] : Users()) {
    if (user != "events leaf") continue;
    Bytes bytes = original_;
    bytes[page * kPage - 100] ^= 1;
    ExpectNamed(bytes, page, "checksum", "in tables events: ");
    return;
  }
  FAIL() << "no page of events";
}

TEST_F(PageDamageTest, PagesInEachOthersPlaceAreNamed) {
  Bytes bytes = original_;
  std::swap_ranges(bytes.begin() + 40 * kPage, bytes.begin() + 41 * kPage, bytes.begin() + 50 * kPage);
  ExpectNamed(bytes, 41, "checksum");
  ExpectNamed(bytes, 51, "checksum");
}

TEST_F(PageDamageTest, ZerosAreNamed) {
  for (int64_t page = 2; page <= PageCount(); ++page) {
    Bytes bytes = original_;
    std::fill_n(bytes.begin() + (page - 1) * kPage, kPage, 0);
    ExpectNamed(bytes, page, "is all zeros");
    // The last sector alone, with the checksum.
    bytes = original_;
    std::fill_n(bytes.begin() + page * kPage - 512, 512, 0);
    const bool all_zeros = std::count(bytes.begin() + (page - 1) * kPage, bytes.begin() + page * kPage, 0) == kPage;
    ExpectNamed(bytes, page, all_zeros ? "is all zeros" : "checksum 0000000000000000");
  }
}

TEST_F(PageDamageTest, AShorterFileIsNamed) {
  for (const size_t bytes : {original_.size() - kPage, original_.size() - 1, 3 * kPage}) {
    const absl::Status status =
        Opened(Bytes(original_.begin(), original_.begin() + static_cast<std::ptrdiff_t>(bytes)));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("ends with page ", bytes / kPage, " of ", PageCount())));
  }
}

// Byte 20 says whether there are checksums at all.
TEST_F(PageDamageTest, ADamagedHeaderIsNamed) {
  for (size_t at = 0; at < 100; ++at) {
    Bytes bytes = original_;
    bytes[at] ^= 0x10;
    const absl::Status status = Opened(bytes);
    // What SQLite changes in copies does not count, and 72 to 91 are of no use but count.
    const bool counts = at < 24 || (at >= 28 && at < 40) || (at >= 44 && at < 92);
    if (!counts && status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << "byte " << at << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path()));
  }
  Bytes bytes = original_;
  bytes[20] = 0;
  ExpectNamed(bytes, 1, "byte 20 is 0, not 8");
}

// Neither a call about other pages nor a change of other jobs is harmed.
TEST_F(PageDamageTest, ARunningStoreNamesThePageToWhoeverNeedsIt) {
  auto store = OpenAt(dir_.path());
  // As a disk may do it: beneath whoever has the file open.
  int64_t damaged = 0;
  for (const auto& [page, user] : Users()) {
    if (user == "events overflow") damaged = page;
  }
  ASSERT_GT(damaged, 0);
  std::fstream(path(), std::ios::in | std::ios::out | std::ios::binary).seekp(damaged * kPage - 100) << "damage";
  int failed = 0;
  for (int n = 3; n <= kJobs; ++n) {
    const auto page = store->Await([&](const Database& database) { return database.ReadEvents(TestId(n), 0, 100); });
    EXPECT_TRUE(store->Await([&](const Database& database) { return database.FindJob(TestId(n)); }).ok());
    EXPECT_TRUE(WriteAndWait(*store, EventWrite(n, 3)).ok());
    if (page.ok()) continue;
    ++failed;
    EXPECT_EQ(page.status().code(), absl::StatusCode::kDataLoss) << page.status();
    EXPECT_THAT(std::string(page.status().message()),
                AllOf(HasSubstr(TestId(n)), HasSubstr(absl::StrCat("ampd.db: page ", damaged, " is damaged"))));
    EXPECT_FALSE(store->Await([&](const Database& database) { return database.ReadEvents(TestId(n), 0, 100); }).ok());
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(store->DamagedPages(), 1);
  ASSERT_THAT(log_, SizeIs(1)) << "once";
  EXPECT_THAT(log_[0], HasSubstr(absl::StrCat("page ", damaged, " is damaged: it has checksum")));
}

// A daemon that was killed leaves a log, and whoever looks into its database then copies the log into the file.
TEST_F(PageDamageTest, ACopyOfTheLogByAnotherProgramIsNoDamage) {
  auto store = OpenAt(dir_.path());
  for (int n = 3; n <= kJobs; ++n) ASSERT_TRUE(WriteAndWait(*store, EventWrite(n, 3, std::string(9000, 'f'))).ok());
  TempDir killed;
  for (const char* name : {"ampd.db", "ampd.db-wal"}) {
    std::filesystem::copy(dir_.path() + "/" + name, killed.path() + "/" + name);
  }
  const std::string file = killed.path() + "/ampd.db";
  const auto before = std::filesystem::last_write_time(file);
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(file.c_str(), &other), SQLITE_OK);
  Execute(other, "SELECT count(*) FROM jobs");
  sqlite3_close(other);
  ASSERT_FALSE(std::filesystem::exists(file + "-wal"));
  ASSERT_NE(std::filesystem::last_write_time(file), before);
  ASSERT_THAT(log_, IsEmpty());
  // Where there is no room to rewrite it, page 1 gets a sum and the others are good all the same.
  for (int open = 0; open < 2; ++open) {
    sqlite3* raw = OpenRaw(killed.path());
    EXPECT_EQ(PageSumsOf(raw), PageSums::kSome);
    Execute(raw, absl::StrCat("CREATE TABLE other", open, "(x)"));
    Execute(raw, "SELECT sum(length(event)) FROM events; SELECT count(*) FROM jobs");
    sqlite3_close(raw);
  }
  for (int open = 0; open < 2; ++open) {
    const auto again = OpenAt(killed.path());
    ASSERT_NE(again, nullptr);
    for (int n = 3; n <= kJobs; ++n) {
      EXPECT_EQ(again->Await([&](const Database& db) { return db.ReadEvents(TestId(n), 0, 100); })->events.size(), 3u);
    }
    EXPECT_EQ(again->Await([](const Database& db) { return db.Sums(); }), PageSums::kAll);
  }
  ASSERT_THAT(log_, SizeIs(1)) << "rewritten once";
  EXPECT_THAT(log_[0], HasSubstr("another program copied pages without checksums into it: rewriting it"));
}

// As `sqlite3 ampd.db "PRAGMA wal_checkpoint(...)"` and programs that copy databases elsewhere do it.
TEST_F(PageDamageTest, ACopyOfTheLogByAnotherProgramBesideAStoreIsNoDamage) {
  uint64_t sequence = 2;
  for (const int mode : {SQLITE_CHECKPOINT_PASSIVE, SQLITE_CHECKPOINT_TRUNCATE}) {
    auto store = OpenAt(dir_.path());
    ++sequence;
    for (int n = 3; n <= kJobs; ++n) {
      ASSERT_TRUE(WriteAndWait(*store, EventWrite(n, sequence, std::string(9000, 'f'))).ok());
    }
    sqlite3* other = nullptr;
    ASSERT_EQ(sqlite3_open(path().c_str(), &other), SQLITE_OK);
    int pages = 0;
    int copied = 0;
    Execute(other, "SELECT count(*) FROM jobs");
    ASSERT_EQ(sqlite3_wal_checkpoint_v2(other, nullptr, mode, &pages, &copied), SQLITE_OK) << sqlite3_errmsg(other);
    ASSERT_EQ(copied, pages);
    ASSERT_NE(copied, mode == SQLITE_CHECKPOINT_PASSIVE ? 0 : -1);
    sqlite3_close(other);
    ++sequence;
    for (int n = 3; n <= kJobs; ++n) {
      const auto page = store->Await([&](const Database& db) { return db.ReadEvents(TestId(n), 0, 100); });
      ASSERT_TRUE(page.ok()) << page.status();
      EXPECT_EQ(page->events.size(), sequence - 1);
      ASSERT_TRUE(WriteAndWait(*store, EventWrite(n, sequence)).ok());
    }
    EXPECT_EQ(store->DamagedPages(), 0);
    store.reset();
    ASSERT_THAT(log_, IsEmpty());
    store = OpenAt(dir_.path());
    ASSERT_NE(store, nullptr);
    for (int n = 3; n <= kJobs; ++n) {
      EXPECT_EQ(store->Await([&](const Database& db) { return db.ReadEvents(TestId(n), 0, 100); })->events.size(),
                sequence);
    }
    EXPECT_EQ(store->Await([](const Database& db) { return db.Sums(); }), PageSums::kAll);
    ASSERT_THAT(log_, SizeIs(1));
    EXPECT_THAT(log_[0], HasSubstr("another program copied pages without checksums into it: rewriting it"));
    log_.clear();
  }
}

// As `sqlite3 ampd.db ".backup ..."` does it, of a store at work.
TEST_F(PageDamageTest, ACopyMadeByAnotherProgramIsWhole) {
  auto store = OpenAt(dir_.path());
  for (int round = 0; round < 2; ++round) {
    // First with everything in the file, then with pages in the log.
    if (round > 0) {
      ASSERT_TRUE(WriteAndWait(*store, EventWrite(5, 3, std::string(9000, 'f'))).ok());
    }
    TempDir copy;
    sqlite3* from = nullptr;
    sqlite3* to = nullptr;
    ASSERT_EQ(sqlite3_open_v2(path().c_str(), &from, SQLITE_OPEN_READONLY, nullptr), SQLITE_OK);
    ASSERT_EQ(sqlite3_open((copy.path() + "/ampd.db").c_str(), &to), SQLITE_OK);
    sqlite3_backup* backup = sqlite3_backup_init(to, "main", from, "main");
    ASSERT_EQ(sqlite3_backup_step(backup, -1), SQLITE_DONE);
    ASSERT_EQ(sqlite3_backup_finish(backup), SQLITE_OK);
    sqlite3_close(from);
    sqlite3_close(to);
    const auto restored = OpenAt(copy.path());
    ASSERT_NE(restored, nullptr) << round;
    EXPECT_EQ(restored->Await([&](const Database& db) { return db.ReadEvents(TestId(5), 0, 100); })->events.size(),
              static_cast<size_t>(2 + round));
    EXPECT_EQ(restored->Await([](const Database& db) { return db.Sums(); }), PageSums::kAll);
  }
}

// What a program wrote that knows of no checksums cannot be told from damage.
TEST_F(PageDamageTest, WhatAnotherProgramChangedIsRefusedUntilItIsRewritten) {
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(path().c_str(), &other), SQLITE_OK);
  Execute(other, "UPDATE jobs SET attempt = 7 WHERE sequence = 5");
  sqlite3_close(other);
  EXPECT_EQ(Opened(Contents()).code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(sqlite3_open(path().c_str(), &other), SQLITE_OK);
  Execute(other, "VACUUM");
  sqlite3_close(other);
  EXPECT_TRUE(Opened(Contents()).ok());
  EXPECT_EQ(OpenAt(dir_.path())->Await([](const Database& db) { return db.Sums(); }), PageSums::kAll);
}

}  // namespace
}  // namespace ampd
