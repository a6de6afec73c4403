// ListSweeps against a reference that looks at every job.
#include <gmock/gmock.h>
#include <sqlite3.h>

#include <algorithm>
#include <map>
#include <random>

#include "absl/strings/str_format.h"
#include "server/store/sweep_select.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kEpoch = 1'800'000'000;

std::string SweepId(int number) { return absl::StrCat("01s", absl::StrFormat("%023d", number)); }

std::string Shown(const v1::SweepSummary& sweep) {
  std::string shown = absl::StrCat(sweep.id(), " ", sweep.name(), " of ", sweep.user(), " at ",
                                   sweep.create_time().seconds(), ".", sweep.create_time().nanos(), ":", sweep.count());
  for (const auto& count : sweep.states()) absl::StrAppend(&shown, " ", count.jobs(), "x", count.state());
  return shown;
}

class SweepListTest : public ::testing::Test {
 protected:
  void SetUp() override { database_ = *Database::Open(dir_.path()); }

  // A job whose state is the number of `state`, or one that follows from its place.
  void AddJob(const std::string& user, const std::string& sweep_id, int64_t sweep_jobs, v1::Job::State state) {
    JobWrite write;
    write.create = true;
    write.record.submit_sequence = ++sequence_;
    v1::Job& job = write.record.job;
    job.set_id(TestId(static_cast<int>(sequence_)));
    job.set_user(user);
    job.set_state(state);
    job.mutable_spec()->set_name(absl::StrCat("name", sequence_));
    job.mutable_create_time()->set_seconds(kEpoch + sequence_);
    job.mutable_create_time()->set_nanos(500'000'000);
    write.sweep_id = sweep_id;
    write.sweep_jobs = sweep_jobs;
    ASSERT_EQ(database_->Apply(write), absl::OkStatus());
  }

  // The newest one; what it is to be listed as goes to expected_.
  void AddSweep(const std::string& user, int jobs) {
    const std::string id = SweepId(++sweeps_);
    std::string shown =
        absl::StrCat(id, " name", sequence_ + 1, " of ", user, " at ", kEpoch + sequence_ + 1, ".500000000:", jobs);
    std::map<int, int> counts;
    for (int i = 0; i < jobs; ++i) {
      const auto state = static_cast<v1::Job::State>(1 + random_() % 11);
      ++counts[state];
      AddJob(user, i == 0 ? id : "", i == 0 ? jobs : 0, state);
    }
    for (const auto& [state, count] : counts) absl::StrAppend(&shown, " ", count, "x", state);
    expected_.insert(expected_.begin(), shown);
  }

  std::vector<std::string> All(SweepQuery query) {
    std::vector<std::string> shown;
    do {
      const auto page = database_->ListSweeps(query);
      EXPECT_TRUE(page.ok()) << page.status();
      if (!page.ok()) break;
      EXPECT_LE(static_cast<int>(page->sweeps.size()), query.page_size);
      for (const v1::SweepSummary& sweep : page->sweeps) shown.push_back(Shown(sweep));
      query.page_token = page->next_page_token;
    } while (!query.page_token.empty());
    return shown;
  }

  std::vector<std::string> ExpectedOf(const std::string& user) {
    std::vector<std::string> expected;
    for (const std::string& shown : expected_) {
      if (shown.find(absl::StrCat(" of ", user, " at")) != std::string::npos) expected.push_back(shown);
    }
    return expected;
  }

  TempDir dir_;
  std::unique_ptr<Database> database_;
  std::mt19937 random_{5};
  int64_t sequence_ = 0;
  int sweeps_ = 0;
  std::vector<std::string> expected_;
};

TEST_F(SweepListTest, NothingIsAnEmptyPage) {
  AddJob("ann", "", 0, v1::Job::QUEUED);
  const auto page = database_->ListSweeps({});
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(page->sweeps, IsEmpty());
  EXPECT_EQ(page->next_page_token, "");
}

TEST_F(SweepListTest, EachIsListedWithItsJobsNewestFirst) {
  const std::vector<std::string> users = {"", "ann", "bob", "ann%"};
  ASSERT_TRUE(database_->Begin().ok());
  for (int i = 0; i < 40; ++i) {
    AddSweep(users[random_() % users.size()], 1 + static_cast<int>(random_() % 12));
    // Beside jobs of no sweep.
    if (random_() % 2 == 0) AddJob("ann", "", 0, v1::Job::RUNNING);
  }
  ASSERT_TRUE(database_->Commit().ok());
  for (const int page_size : {1, 7, 39, 40, 41}) {
    EXPECT_EQ(All({.page_size = page_size}), expected_) << page_size;
    for (const std::string& user : users) {
      EXPECT_EQ(All({.page_size = page_size, .user = user}), ExpectedOf(user)) << user;
    }
  }
  EXPECT_THAT(All({.user = "nobody"}), IsEmpty());
}

TEST_F(SweepListTest, ASweepThatIsMadeMeanwhileMovesNoPage) {
  for (int i = 0; i < 6; ++i) AddSweep("ann", 1);
  const std::vector<std::string> before = expected_;
  SweepQuery query{.page_size = 3};
  const auto first = database_->ListSweeps(query);
  AddSweep("ann", 1);
  query.page_token = first->next_page_token;
  const auto second = database_->ListSweeps(query);
  EXPECT_THAT(second->sweeps, testing::SizeIs(3));
  EXPECT_EQ(Shown(second->sweeps[0]), before[3]);
  EXPECT_EQ(second->next_page_token, "");
}

TEST_F(SweepListTest, OtherListsTokensAreRefused) {
  for (int i = 0; i < 3; ++i) AddSweep("ann", 1);
  const std::string of_all = database_->ListSweeps({.page_size = 1})->next_page_token;
  const std::string of_ann = database_->ListSweeps({.page_size = 1, .user = "ann"})->next_page_token;
  for (const SweepQuery& query : {SweepQuery{.page_token = of_ann},
                                  {.page_token = of_all, .user = "ann"},
                                  {.page_token = of_ann, .user = "bob"},
                                  {.page_token = of_all, .user = "all"},
                                  {.page_token = "x"},
                                  {.page_token = "AAAA"},
                                  {.page_token = std::string(5000, 'A')}}) {
    EXPECT_EQ(database_->ListSweeps(query).status().code(), absl::StatusCode::kInvalidArgument) << query.page_token;
    EXPECT_EQ(CheckPageToken(query).code(), absl::StatusCode::kInvalidArgument) << query.page_token;
  }
  EXPECT_EQ(CheckPageToken({.page_token = of_ann, .user = "ann"}), absl::OkStatus());
}

TEST_F(SweepListTest, APageEndsAfterItsShareOfJobs) {
  ASSERT_TRUE(database_->Begin().ok());
  for (int i = 0; i < 3; ++i) AddSweep("ann", static_cast<int>(Database::kMaxListed) * 2 / 3);
  ASSERT_TRUE(database_->Commit().ok());
  const auto page = database_->ListSweeps({});
  ASSERT_TRUE(page.ok());
  EXPECT_THAT(page->sweeps, testing::SizeIs(2));
  EXPECT_NE(page->next_page_token, "");
  EXPECT_EQ(All({}), expected_);
}

TEST_F(SweepListTest, NoQueryGoesOverOtherSweepsOrJobs) {
  database_.reset();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((dir_.path() + "/ampd.db").c_str(), &db), SQLITE_OK);
  for (const char* sql : {kSelectSweeps, kSelectUsersSweeps, kSelectStates}) {
    std::string plan;
    const auto add = [](void* out, int, char** values, char**) {
      absl::StrAppend(static_cast<std::string*>(out), values[3], "\n");
      return 0;
    };
    ASSERT_EQ(sqlite3_exec(db, absl::StrCat("EXPLAIN QUERY PLAN ", sql).c_str(), add, &plan, nullptr), SQLITE_OK)
        << sql;
    EXPECT_THAT(plan, Not(HasSubstr("SCAN"))) << plan;
    EXPECT_THAT(plan, Not(HasSubstr("TEMP B-TREE"))) << plan;
    if (sql == kSelectUsersSweeps) {
      EXPECT_THAT(plan, HasSubstr("sweeps_by_user (user=? AND id<?)"));
    }
    if (sql == kSelectStates) {
      EXPECT_THAT(plan, HasSubstr("COVERING INDEX jobs_by_state (state=? AND sequence>?"));
    }
  }
  sqlite3_close(db);
}

}  // namespace
}  // namespace ampd
