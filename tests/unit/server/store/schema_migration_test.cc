// Databases of every earlier schema, fixtures/schema_vN.sql as fixtures/make.py wrote them, are brought up to this one.
#include <gmock/gmock.h>
#include <sqlite3.h>

#include <fstream>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "server/files/files.h"
#include "server/store/page_sum.h"
#include "server/store/schema.h"
#include "tests/support/power_loss.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

// From the source tree's root, where tests run.
std::string FixturePath(int version) {
  return absl::StrCat("tests/unit/server/store/fixtures/schema_v", version, ".sql");
}

int Newest() { return static_cast<int>(SchemaMigrations().size()); }

std::vector<int> Fixtures() {
  std::vector<int> versions;
  for (int version = 1; version <= Newest(); ++version) {
    if (std::filesystem::exists(FixturePath(version))) versions.push_back(version);
  }
  return versions;
}

// A connection of the test's own.
class Raw {
 public:
  explicit Raw(const std::string& path, const char* vfs = ChecksumVfs()) {
    EXPECT_EQ(sqlite3_open_v2(path.c_str(), &db_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, vfs), SQLITE_OK);
  }
  ~Raw() { sqlite3_close(db_); }

  void Execute(const std::string& sql) {
    char* error = nullptr;
    EXPECT_EQ(sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, &error), SQLITE_OK) << error;
    sqlite3_free(error);
  }

  std::vector<std::string> Rows(const std::string& sql) {
    std::vector<std::string> rows;
    const auto add = [](void* out, int columns, char** values, char**) {
      std::string row;
      for (int i = 0; i < columns; ++i) absl::StrAppend(&row, i > 0 ? "|" : "", values[i] == nullptr ? "" : values[i]);
      static_cast<std::vector<std::string>*>(out)->push_back(row);
      return 0;
    };
    EXPECT_EQ(sqlite3_exec(db_, sql.c_str(), add, &rows, nullptr), SQLITE_OK) << sql;
    return rows;
  }

  std::set<std::string> Tables() {
    const auto rows = Rows("SELECT name FROM sqlite_schema WHERE type = 'table'");
    return {rows.begin(), rows.end()};
  }

  // Tables and indices with their columns, whatever their text says.
  std::map<std::string, std::vector<std::string>> Schema() {
    std::map<std::string, std::vector<std::string>> schema;
    for (const std::string& name : Rows("SELECT name FROM sqlite_schema WHERE type = 'table'")) {
      schema[name] = Rows(absl::StrCat("SELECT name, type, \"notnull\", pk FROM pragma_table_info('", name, "')"));
    }
    for (const std::string& name : Rows("SELECT name FROM sqlite_schema WHERE type = 'index'")) {
      schema[name] = Rows(absl::StrCat("SELECT name FROM pragma_index_info('", name, "')"));
    }
    return schema;
  }

 private:
  sqlite3* db_ = nullptr;
};

void MakeDatabase(int version, const std::string& state_dir) {
  std::filesystem::create_directories(state_dir);
  std::ifstream file(FixturePath(version));
  Raw(state_dir + "/ampd.db").Execute(std::string(std::istreambuf_iterator<char>(file), {}));
}

std::unique_ptr<Store> OpenAt(const std::string& state_dir) {
  auto store = Store::Open({.state_dir = state_dir});
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

// What of the fixtures' jobs must be there in any schema.
void ExpectEverything(Store& store, const std::string& what) {
  const auto page = store.Await([](const Database& database) { return database.ListJobs({}); });
  ASSERT_TRUE(page.ok()) << what << page.status();
  std::map<std::string, v1::Job> jobs;
  for (const v1::Job& job : page->jobs) jobs[job.spec().name()] = job;
  ASSERT_EQ(jobs.size(), 4u) << what;
  EXPECT_EQ(jobs["finished"].state(), v1::Job::SUCCEEDED) << what;
  EXPECT_EQ(jobs["finished"].summary().checkpoint(), "step-000000006") << what;
  EXPECT_EQ(jobs["failed"].failure().class_(), v1::Failure::LIMIT) << what;
  EXPECT_EQ(jobs["running"].state(), v1::Job::RUNNING) << what;
  EXPECT_EQ(jobs["queued"].state(), v1::Job::QUEUED) << what;
  for (const auto& [name, job] : jobs) {
    EXPECT_GT(job.plan().parameters(), 0) << what << name;
    const auto events = store.Await([&](const Database& db) { return db.ReadEvents(job.id(), 0, 100'000); });
    ASSERT_TRUE(events.ok()) << what << events.status();
    uint64_t following = 1;
    for (const v1::JobEvent& event : events->events) {
      ASSERT_EQ(event.first_sequence(), following) << what << name;
      following = event.sequence() + 1;
    }
    EXPECT_EQ(following, job.last_sequence() + 1) << what << name;
  }
  for (const std::string id : {"running", "queued"}) {
    const auto request = store.Await([&](const Database& database) { return database.FindRequest(id); });
    ASSERT_TRUE(request.ok() && request->has_value()) << what << id;
    EXPECT_EQ((*request)->job_id, jobs[id].id()) << what;
  }
  const auto active = store.Await([](const Database& database) { return database.ActiveJobs(); });
  ASSERT_TRUE(active.ok()) << what << active.status();
  ASSERT_EQ(active->size(), 2u) << what;
  EXPECT_GT((*active)[0].worker.pid, 0) << what;
  EXPECT_GE((*active)[0].last_reported_step, 4000) << what;
  const auto counters = store.Await([](const Database& database) { return database.Counters(); });
  EXPECT_EQ(counters->at("ampd_jobs_failed_total"), 1) << what;
}

// Of each page of a closed database.
void ExpectSums(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  const auto* pages = reinterpret_cast<const unsigned char*>(bytes.data());
  ASSERT_GT(bytes.size(), 8 * 4096u);
  for (size_t at = 0; at < bytes.size(); at += 4096) {
    const auto number = static_cast<uint32_t>(at / 4096 + 1);
    EXPECT_EQ(StoredSum(pages + at, 4096), PageSum(pages + at, 4096, number)) << "page " << number;
  }
}

TEST(SchemaMigrationTest, EveryEarlierSchemaHasAFixture) {
  for (int version = 1; version < Newest(); ++version) {
    EXPECT_TRUE(std::filesystem::exists(FixturePath(version))) << "fixtures/make.py of the build before tells how";
  }
  EXPECT_FALSE(Fixtures().empty());
}

TEST(SchemaMigrationTest, EveryEarlierSchemaBecomesThisOne) {
  TempDir fresh;
  OpenAt(fresh.path());
  const auto wanted = Raw(fresh.path() + "/ampd.db").Schema();
  for (const int version : Fixtures()) {
    TempDir dir;
    MakeDatabase(version, dir.path());
    const std::string what = absl::StrCat("version ", version, ": ");
    for (int open = 0; open < 2; ++open) {
      const auto store = OpenAt(dir.path());
      ASSERT_NE(store, nullptr);
      ExpectEverything(*store, what);
      EXPECT_EQ(store->Await([](const Database& database) { return database.Sums(); }), PageSums::kAll) << what;
    }
    ExpectSums(dir.path() + "/ampd.db");
    Raw raw(dir.path() + "/ampd.db");
    EXPECT_EQ(raw.Schema(), wanted) << what;
    EXPECT_EQ(raw.Rows("SELECT max(version) FROM migrations"), std::vector<std::string>{absl::StrCat(Newest())});
  }
}

TEST(SchemaMigrationTest, AMigrationThatThePowerCutsShortIsMadeAgain) {
  std::mt19937 random(5);
  for (const int version : Fixtures()) {
    TempDir dir;
    const PowerLoss loss(dir.path());
    MakeDatabase(version, dir.path() + "/state");
    // Who made the fixture synced it.
    ASSERT_TRUE(SyncFolder(dir.path() + "/state").ok() && SyncFolder(dir.path()).ok());
    const size_t made = loss.position();
    OpenAt(dir.path() + "/state");
    for (size_t position = made; position <= loss.position(); ++position) {
      TempDir scratch;
      loss.Restore(position, random, scratch.path() + "/disk");
      const auto store = OpenAt(scratch.path() + "/disk/state");
      ASSERT_NE(store, nullptr) << position;
      ExpectEverything(*store, absl::StrCat("version ", version, ", after call ", position, ": "));
      EXPECT_EQ(store->Await([](const Database& database) { return database.Sums(); }), PageSums::kAll) << position;
    }
  }
}

TEST(SchemaMigrationTest, ANewerSchemaIsRefusedAndLeftAlone) {
  TempDir dir;
  OpenAt(dir.path());
  Raw(dir.path() + "/ampd.db").Execute(absl::StrCat("INSERT INTO migrations VALUES(", Newest() + 3, ", 'later')"));
  const auto store = Store::Open({.state_dir = dir.path()});
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(store.status().message()),
              HasSubstr(absl::StrCat("schema version ", Newest() + 3, " was written by a newer ampd")));
  EXPECT_EQ(Raw(dir.path() + "/ampd.db").Rows("SELECT count(*) FROM migrations WHERE time != 'later'"),
            std::vector<std::string>{absl::StrCat(Newest())});
}

TEST(SchemaMigrationTest, RewritingIsSaid) {
  TempDir dir;
  MakeDatabase(Fixtures().front(), dir.path());
  std::vector<std::string> log;
  const auto store =
      Store::Open({.state_dir = dir.path(), .log = [&](const std::string& text) { log.push_back(text); }});
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_EQ(log.size(), 1u);
  EXPECT_THAT(log[0], HasSubstr("its pages have no checksums: rewriting it"));
}

// Whichever page is damaged, the start says so and names the table, or everything is there all the same.
TEST(DamageTest, ADamagedPageIsNamed) {
  TempDir whole;
  MakeDatabase(Fixtures().front(), whole.path());
  OpenAt(whole.path());
  const std::string path = whole.path() + "/ampd.db";
  const auto pages = static_cast<int>(std::filesystem::file_size(path) / 4096);
  ASSERT_GT(pages, 8);
  const std::set<std::string> tables = Raw(path).Tables();
  int named = 0;
  for (int page = 1; page < pages; ++page) {
    TempDir dir;
    std::filesystem::copy(path, dir.path() + "/ampd.db");
    std::fstream file(dir.path() + "/ampd.db", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(page * 4096);
    file << std::string(64, '\x5a');
    file.close();
    const auto store = Store::Open({.state_dir = dir.path()});
    ASSERT_FALSE(store.ok()) << "page " << page;
    EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
    const std::string message(store.status().message());
    EXPECT_THAT(message, HasSubstr(dir.path() + "/ampd.db"));
    if (absl::StrContains(message, "is damaged, in tables ")) {
      ++named;
      const std::string rest = message.substr(message.find(", in tables ") + 12);
      const std::string first = rest.substr(0, rest.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"));
      EXPECT_EQ(tables.count(first), 1u) << message;
    }
  }
  EXPECT_EQ(named, pages - 1);
}

}  // namespace
}  // namespace ampd
