// ListJobs against a reference that looks at every job, on random jobs, filters and orders.
#include <gmock/gmock.h>
#include <sqlite3.h>

#include <algorithm>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "server/store/job_select.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Field = JobCondition::Field;
using Op = JobCondition::Op;

constexpr int64_t kEpoch = 1'800'000'000;

struct Listed {
  int64_t sequence;
  v1::Job job;
};

// One of a few, so that conditions meet.
std::string Word(std::mt19937& random, const char* stem) { return absl::StrCat(stem, random() % 4); }

Listed RandomJob(int n, std::mt19937& random) {
  Listed listed{n, {}};
  v1::Job& job = listed.job;
  job.set_id(TestId(n));
  job.set_state(static_cast<v1::Job::State>(1 + random() % 11));
  job.set_user(random() % 3 == 0 ? "" : Word(random, "user"));
  job.mutable_spec()->set_name(Word(random, "name"));
  job.mutable_spec()->mutable_resources()->set_priority(static_cast<int>(random() % 5) - 2);
  for (int i = 0; i < 2; ++i) (*job.mutable_spec()->mutable_labels())[Word(random, "key")] = Word(random, "value");
  // Clocks are set: later jobs may be older.
  job.mutable_create_time()->set_seconds(kEpoch + static_cast<int64_t>(random() % 30));
  job.mutable_create_time()->set_nanos(static_cast<int>(random() % 2) * 500'000'000);
  return listed;
}

std::string SweepId(int64_t first) { return absl::StrCat("01s", absl::StrFormat("%023d", first)); }

// The jobs of a sweep are those of ten consecutive sequences.
int64_t SweepOf(int64_t sequence) { return (sequence - 1) / 10 * 10 + 1; }

JobWrite WriteOf(const Listed& listed) {
  JobWrite write;
  write.create = true;
  write.record.submit_sequence = listed.sequence;
  write.record.job = listed.job;
  if (SweepOf(listed.sequence) == listed.sequence) {
    write.sweep_id = SweepId(listed.sequence);
    write.sweep_jobs = 10;
  }
  return write;
}

template <typename T>
bool Compare(Op op, const T& a, const T& b) {
  switch (op) {
    case Op::kEqual:
      return a == b;
    case Op::kNotEqual:
      return a != b;
    case Op::kLess:
      return a < b;
    case Op::kLessOrEqual:
      return a <= b;
    case Op::kGreater:
      return a > b;
    default:
      return a >= b;
  }
}

int64_t Created(const v1::Job& job) { return job.create_time().seconds() * 1'000'000'000 + job.create_time().nanos(); }

bool Holds(const JobCondition& condition, const Listed& listed) {
  const v1::Job& job = listed.job;
  switch (condition.field) {
    case Field::kState:
      return Compare<int64_t>(condition.op, job.state(), condition.number);
    case Field::kPriority:
      return Compare<int64_t>(condition.op, job.spec().resources().priority(), condition.number);
    case Field::kCreateTime:
      return Compare(condition.op, Created(job), condition.number);
    case Field::kUser:
      return Compare(condition.op, job.user(), condition.text);
    case Field::kSweep:
      return Compare(condition.op, SweepId(SweepOf(listed.sequence)), condition.text);
    case Field::kName:
      if (condition.op == Op::kHas) return absl::StrContains(job.spec().name(), condition.text);
      return Compare(condition.op, job.spec().name(), condition.text);
    case Field::kLabel:
      break;
  }
  const auto label = job.spec().labels().find(condition.key);
  const bool has = label != job.spec().labels().end();
  if (condition.op == Op::kHas) return has;
  return (has && label->second == condition.text) == (condition.op == Op::kEqual);
}

bool Holds(const JobFilter& filter, const Listed& listed) {
  const auto holds = [&](const JobFilter& part) { return Holds(part, listed); };
  switch (filter.kind) {
    case JobFilter::Kind::kCondition:
      return Holds(filter.condition, listed);
    case JobFilter::Kind::kNot:
      return !Holds(filter.parts[0], listed);
    case JobFilter::Kind::kAny:
      return std::any_of(filter.parts.begin(), filter.parts.end(), holds);
    default:
      return std::all_of(filter.parts.begin(), filter.parts.end(), holds);
  }
}

std::string RandomCondition(std::mt19937& random) {
  const char* equality = random() % 3 == 0 ? "!=" : "=";
  const char* comparisons[] = {"=", "!=", "<", "<=", ">", ">="};
  const char* comparison = comparisons[random() % 6];
  switch (random() % 8) {
    case 0:
      return absl::StrCat("state ", equality, " ", v1::Job::State_Name(static_cast<v1::Job::State>(1 + random() % 11)));
    case 1:
      return absl::StrCat("user ", equality, " '", random() % 3 == 0 ? "" : Word(random, "user"), "'");
    case 2:
      return absl::StrCat("name ", equality, " ", Word(random, "name"));
    case 3:
      return absl::StrCat("name:", random() % 4);
    case 4:
      return absl::StrCat("labels.", Word(random, "key"), equality, Word(random, "value"));
    case 5:
      return absl::StrCat("priority ", comparison, static_cast<int>(random() % 5) - 2);
    case 6:
      return absl::StrCat(
          "create_time ", comparison, " \"",
          absl::FormatTime(absl::RFC3339_full, absl::FromUnixSeconds(kEpoch + random() % 30), absl::UTCTimeZone()),
          "\"");
    default:
      return random() % 2 == 0 ? absl::StrCat("labels.", Word(random, "key"), ":*")
                               : absl::StrCat("sweep ", equality, " ", SweepId(1 + 10 * (random() % 6)));
  }
}

std::string RandomFilter(std::mt19937& random, int depth) {
  if (depth == 0 || random() % 4 == 0) return RandomCondition(random);
  if (random() % 5 == 0) return absl::StrCat("NOT (", RandomFilter(random, depth - 1), ")");
  const char* between = random() % 3 == 0 ? " OR " : " AND ";
  std::string text;
  for (unsigned i = 0, parts = 2 + random() % 2; i < parts; ++i) {
    const std::string part = RandomFilter(random, depth - 1);
    const bool bare = !absl::StrContains(part, " AND ") && !absl::StrContains(part, " OR ");
    absl::StrAppend(&text, i == 0 ? "" : between, bare ? "" : "(", part, bare ? "" : ")");
  }
  return text;
}

using Key = std::pair<SqlValue, int64_t>;

SqlValue KeyOf(const JobQuery& query, const Listed& listed) {
  switch (query.order.field) {
    case JobOrder::Field::kPriority:
      return int64_t{listed.job.spec().resources().priority()};
    case JobOrder::Field::kState:
      return int64_t{listed.job.state()};
    case JobOrder::Field::kName:
      return listed.job.spec().name();
    case JobOrder::Field::kUser:
      return listed.job.user();
    default:
      return Created(listed.job);
  }
}

class JobListTest : public ::testing::Test {
 protected:
  JobListTest() : database_(*Database::Open(dir_.path())) {
    for (int n = 1; n <= 60; ++n) Add(RandomJob(n, random_));
  }

  void Add(const Listed& listed) {
    const absl::Status status = database_->Apply(WriteOf(listed));
    ASSERT_TRUE(status.ok()) << status;
    jobs_.push_back(listed);
  }

  bool Asked(const JobQuery& query, const Listed& listed) const {
    const bool state = query.states.empty() ||
                       std::find(query.states.begin(), query.states.end(), listed.job.state()) != query.states.end();
    return state && (!query.owner || listed.job.user() == *query.owner) && Holds(query.filter, listed);
  }

  // Ids, by looking at every job.
  std::vector<std::string> Expected(const JobQuery& query) const {
    std::vector<std::pair<Key, std::string>> found;
    for (const Listed& listed : jobs_) {
      if (Asked(query, listed)) found.push_back({{KeyOf(query, listed), listed.sequence}, listed.job.id()});
    }
    std::sort(found.begin(), found.end());
    if (query.order.descending) std::reverse(found.begin(), found.end());
    std::vector<std::string> ids;
    for (const auto& [key, id] : found) ids.push_back(id);
    return ids;
  }

  std::vector<std::string> All(JobQuery query, const std::function<void()>& between_pages = nullptr) {
    std::vector<std::string> ids;
    for (int pages = 0; pages < 2000; ++pages) {
      const auto page = database_->ListJobs(query);
      EXPECT_TRUE(page.ok()) << page.status();
      if (!page.ok()) return ids;
      EXPECT_LE(static_cast<int>(page->jobs.size()), query.page_size);
      for (const v1::Job& job : page->jobs) ids.push_back(job.id());
      query.page_token = page->next_page_token;
      if (query.page_token.empty()) return ids;
      if (between_pages) between_pages();
    }
    ADD_FAILURE() << "pages without end";
    return ids;
  }

  JobQuery RandomQuery() {
    JobQuery query;
    query.page_size = 1 + static_cast<int>(random_() % 20);
    const std::string text = random_() % 5 == 0 ? "" : RandomFilter(random_, 2);
    const absl::StatusOr<JobFilter> filter = ParseJobFilter(text);
    EXPECT_TRUE(filter.ok()) << text << ": " << filter.status();
    query.filter = *filter;
    if (random_() % 4 == 0) {
      for (unsigned i = 0, states = 1 + random_() % 4; i < states; ++i) {
        query.states.push_back(static_cast<v1::Job::State>(1 + random_() % 11));
      }
    }
    if (random_() % 6 == 0) query.owner = Word(random_, "user");
    query.order.field = static_cast<JobOrder::Field>(random_() % 5);
    query.order.descending = random_() % 2 == 0;
    return query;
  }

  TempDir dir_;
  std::mt19937 random_{17};
  std::vector<Listed> jobs_;
  std::unique_ptr<Database> database_;
};

TEST_F(JobListTest, AgreesWithAReferenceOnRandomQueries) {
  int found = 0;
  for (int n = 0; n < 1000; ++n) {
    JobQuery query = RandomQuery();
    // By the time alone where nothing bounds it: the reference knows no order of submission.
    const bool by_submission = query.order.field == JobOrder::Field::kCreateTime && query.order.descending;
    std::vector<std::string> got = All(query), expected = Expected(query);
    if (by_submission) {
      std::sort(got.begin(), got.end());
      std::sort(expected.begin(), expected.end());
    }
    ASSERT_EQ(got, expected) << ToString(query.filter);
    found += static_cast<int>(got.size());
  }
  EXPECT_GT(found, 1000) << "filters that find nothing prove nothing";
}

TEST_F(JobListTest, TheNewestComeFirstAsTheyWereSubmitted) {
  const std::vector<std::string> ids = All({.page_size = 7});
  ASSERT_EQ(ids.size(), 60u);
  EXPECT_TRUE(std::is_sorted(ids.rbegin(), ids.rend()));
}

TEST_F(JobListTest, PagesStayRightWhileJobsAreAdded) {
  int next = 61;
  for (int n = 0; n < 40; ++n) {
    JobQuery query = RandomQuery();
    query.page_size = 1 + static_cast<int>(random_() % 5);
    const std::vector<std::string> before = Expected(query);
    const std::vector<std::string> got = All(query, [&] {
      if (next <= 400) Add(RandomJob(next++, random_));
    });
    const std::set<std::string> once(got.begin(), got.end());
    EXPECT_EQ(once.size(), got.size()) << "a job came twice: " << ToString(query.filter);
    for (const std::string& id : before)
      EXPECT_TRUE(once.contains(id)) << id << " is missed: " << ToString(query.filter);
  }
}

TEST_F(JobListTest, ATokenIsForItsOwnQueryAlone) {
  JobQuery query{.page_size = 2, .filter = *ParseJobFilter("priority >= -5")};
  const auto page = database_->ListJobs(query);
  ASSERT_TRUE(page.ok() && !page->next_page_token.empty());
  query.page_token = page->next_page_token;
  EXPECT_TRUE(database_->ListJobs(query).ok());
  const auto expect_foreign = [&](const JobQuery& other) {
    const absl::Status status = database_->ListJobs(other).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(CheckPageToken(other), status);
  };
  JobQuery other = query;
  other.filter = *ParseJobFilter("priority >= -6");
  expect_foreign(other);
  other = query;
  other.order.descending = false;
  expect_foreign(other);
  other = query;
  other.states = {v1::Job::QUEUED};
  expect_foreign(other);
  other = query;
  other.owner = "user1";
  expect_foreign(other);
  for (const std::string& wrong : {std::string("nonsense"), std::string("5"), std::string(5000, 'a'),
                                   query.page_token + "x", query.page_token.substr(1)}) {
    other = query;
    other.page_token = wrong;
    expect_foreign(other);
  }
  query.page_size = 3;
  EXPECT_TRUE(database_->ListJobs(query).ok()) << "the size of a page may change";
}

TEST_F(JobListTest, NoTokenTellsOfOthersJobs) {
  ASSERT_TRUE(database_->Begin().ok());
  for (int n = 61; n <= 300; ++n) {
    Listed other = RandomJob(n, random_);
    other.job.set_user("eve");
    other.job.mutable_spec()->set_name(absl::StrCat("secret-", n));
    other.job.mutable_spec()->mutable_resources()->set_priority(1000 + n);
    Add(other);
  }
  ASSERT_TRUE(database_->Commit().ok());
  for (int field = 0; field < 5; ++field) {
    for (const bool descending : {false, true}) {
      JobQuery query{.page_size = 1, .owner = "user1"};
      query.order = {static_cast<JobOrder::Field>(field), descending};
      int pages = 0;
      for (; pages < 100; ++pages) {
        const auto page = database_->ListJobs(query);
        ASSERT_TRUE(page.ok()) << page.status();
        if (page->next_page_token.empty()) break;
        ASSERT_EQ(page->jobs.size(), 1u);
        query.page_token = page->next_page_token;
        // A place is that of the page's own job.
        EXPECT_EQ(TestId(static_cast<int>(PlaceOf(query, query.page_token)->sequence)), page->jobs[0].id());
      }
      EXPECT_GT(pages, 3);
    }
  }
}

TEST_F(JobListTest, NoTokenTellsThatOthersJobsHaveANameOrALabel) {
  ASSERT_TRUE(database_->Begin().ok());
  for (int n = 61; n <= Database::kMaxListed + 70; ++n) {
    JobWrite write;
    write.create = true;
    write.record.submit_sequence = n;
    write.record.job.set_id(TestId(n));
    write.record.job.set_state(v1::Job::QUEUED);
    write.record.job.set_user("eve");
    write.record.job.mutable_spec()->set_name("secret");
    (*write.record.job.mutable_spec()->mutable_labels())["team"] = "secret";
    if (n == 61) {
      write.sweep_id = SweepId(n);
      write.sweep_jobs = Database::kMaxListed + 10;
    }
    ASSERT_TRUE(database_->Apply(write).ok());
  }
  ASSERT_TRUE(database_->Commit().ok());
  const std::string sweep = absl::StrCat("sweep = \"", SweepId(61), "\"");
  for (const std::string& filter : {std::string("name = secret"), std::string("labels.team = secret"), sweep}) {
    JobQuery query{.page_size = 100, .filter = *ParseJobFilter(filter)};
    EXPECT_EQ(database_->ListJobs(query)->jobs.size(), 100u) << filter;
    query.owner = "user1";
    for (const bool by_state : {false, true}) {
      if (by_state) query.states = {v1::Job::QUEUED};
      const auto page = database_->ListJobs(query);
      ASSERT_TRUE(page.ok()) << page.status();
      EXPECT_TRUE(page->jobs.empty()) << filter;
      EXPECT_EQ(page->next_page_token, "") << filter;
    }
  }
}

TEST_F(JobListTest, LabelsThatAJobNoLongerHasDoNotFindIt) {
  Listed& changed = jobs_[7];
  (*changed.job.mutable_spec()->mutable_labels())["team"] = "a";
  const auto update = [&] {
    JobWrite write;
    write.record.submit_sequence = changed.sequence;
    write.record.job = changed.job;
    write.new_spec = true;
    ASSERT_TRUE(database_->Apply(write).ok());
  };
  const auto found = [&](const std::string& filter) {
    return All({.page_size = 100, .filter = *ParseJobFilter(filter)});
  };
  update();
  EXPECT_EQ(found("labels.team = \"a\"").size(), 1u);
  (*changed.job.mutable_spec()->mutable_labels())["team"] = "b";
  update();
  EXPECT_TRUE(found("labels.team = \"a\"").empty());
  EXPECT_EQ(found("labels.team = \"b\"").size(), 1u);
  changed.job.mutable_spec()->mutable_labels()->erase("team");
  update();
  EXPECT_TRUE(found("labels.team:*").empty());
  EXPECT_EQ(found("NOT labels.team:*").size(), jobs_.size());
}

TEST_F(JobListTest, APageOfLargeJobsIsShort) {
  for (int n = 61; n <= 80; ++n) {
    Listed large = RandomJob(n, random_);
    large.job.mutable_spec()->mutable_labels()->insert({"large", std::string(500'000, 'x')});
    Add(large);
  }
  const auto page = database_->ListJobs({.page_size = 1000});
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->jobs.size(), Database::kMaxListBytes / 500'000 + 1);
  EXPECT_EQ(All({.page_size = 1000}).size(), 80u);
}

TEST_F(JobListTest, APageEndsAfterItsShareOfLooking) {
  ASSERT_TRUE(database_->Begin().ok());
  for (int n = 61; n <= 2 * Database::kMaxListed; ++n) {
    JobWrite write;
    write.create = true;
    write.record.submit_sequence = n;
    write.record.job.set_id(TestId(n));
    write.record.job.set_state(v1::Job::QUEUED);
    write.record.job.mutable_spec()->set_name("x");
    ASSERT_TRUE(database_->Apply(write).ok());
  }
  ASSERT_TRUE(database_->Commit().ok());
  JobQuery query{.page_size = 100, .filter = *ParseJobFilter("name:name")};
  const auto page = database_->ListJobs(query);
  ASSERT_TRUE(page.ok());
  EXPECT_TRUE(page->jobs.empty());
  EXPECT_FALSE(page->next_page_token.empty());
  EXPECT_EQ(All(query).size(), 60u);
  // An index leads there at once.
  query.filter = *ParseJobFilter("name = name1 AND priority > -5");
  EXPECT_EQ(All(query), [&] {
    auto expected = Expected(query);
    std::sort(expected.rbegin(), expected.rend());
    return expected;
  }());
  EXPECT_TRUE(database_->ListJobs(query)->next_page_token.empty());
}

TEST_F(JobListTest, NoQuerySortsOrScansWhatItDoesNotPage) {
  database_.reset();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((dir_.path() + "/ampd.db").c_str(), &db), SQLITE_OK);
  for (int n = 0; n < 500; ++n) {
    const JobQuery query = RandomQuery();
    std::optional<JobPlace> after;
    if (n % 2 == 0) after = JobPlace{KeyOf(query, jobs_[0]), 30};
    for (const JobSelect& select : SelectJobs(query, after)) {
      std::string plan;
      const auto add = [](void* out, int, char** values, char**) {
        absl::StrAppend(static_cast<std::string*>(out), values[3], "\n");
        return 0;
      };
      char* error = nullptr;
      ASSERT_EQ(sqlite3_exec(db, ("EXPLAIN QUERY PLAN " + select.sql).c_str(), add, &plan, &error), SQLITE_OK)
          << error << ": " << select.sql;
      EXPECT_THAT(plan, Not(HasSubstr("TEMP B-TREE"))) << select.sql;
      // Behind a place every index is entered at it.
      if (after) {
        EXPECT_THAT(plan, Not(HasSubstr("SCAN"))) << select.sql;
      }
    }
  }
  sqlite3_close(db);
}

TEST_F(JobListTest, AChangedPriorityIsFound) {
  JobWrite write = WriteOf(jobs_[4]);
  write.create = false;
  write.new_spec = true;
  write.sweep_id.clear();
  write.record.job.mutable_spec()->mutable_resources()->set_priority(77);
  ASSERT_TRUE(database_->Apply(write).ok());
  const JobQuery query{.filter = *ParseJobFilter("priority = 77")};
  EXPECT_EQ(All(query), std::vector<std::string>{TestId(5)});
}

}  // namespace
}  // namespace ampd
