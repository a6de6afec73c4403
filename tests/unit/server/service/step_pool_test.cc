#include "server/service/step_pool.h"

#include <future>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StepPoolTest : public testing::Test {
 protected:
  explicit StepPoolTest(const StepPool::Options& options = {}) : pool_(std::in_place, options) {}

  // Notes each of its steps.
  StepPool::Task Steps(const std::string& name, int steps) {
    return [this, name, steps]() mutable {
      done_.push_back(name);
      return --steps > 0;
    };
  }
  // Nothing else is done until Go().
  void Hold() {
    ASSERT_TRUE(pool_->Post("0", [this] {
      holds_.set_value();
      go_.get_future().wait();
      return false;
    }));
    holds_.get_future().wait();
  }
  // All that was posted.
  std::vector<std::string> Go() {
    go_.set_value();
    pool_.reset();
    return done_;
  }

  std::promise<void> holds_, go_;
  std::vector<std::string> done_;
  std::optional<StepPool> pool_;
};

TEST_F(StepPoolTest, UsersTakeTurnsAndEachHasOneTaskAtATime) {
  Hold();
  for (const auto& [user, name, steps] :
       {std::tuple("ann", "a", 4), std::tuple("ann", "b", 2), std::tuple("bob", "c", 2), std::tuple("cy", "d", 1),
        std::tuple("bob", "e", 1)}) {
    ASSERT_TRUE(pool_->Post(user, Steps(name, steps)));
  }
  EXPECT_THAT(Go(), ElementsAre("a", "c", "d", "a", "c", "a", "e", "a", "b", "b"));
}

TEST_F(StepPoolTest, WhoComesLaterHasATurnNext) {
  std::promise<void> posted;
  int steps = 0;
  ASSERT_TRUE(pool_->Post("ann", [&] {
    if (steps == 0) posted.get_future().wait();
    done_.push_back("a");
    return ++steps < 100;
  }));
  ASSERT_TRUE(pool_->Post("bob", Steps("b", 2)));
  posted.set_value();
  pool_.reset();
  ASSERT_EQ(done_.size(), 102u);
  done_.resize(5);
  EXPECT_THAT(done_, ElementsAre("a", "b", "a", "b", "a"));
}

class SmallStepPoolTest : public StepPoolTest {
 protected:
  SmallStepPoolTest() : StepPoolTest({.per_user = 2, .all = 6, .begun = 2}) {}
};

TEST_F(SmallStepPoolTest, TooManyAreNotTaken) {
  Hold();
  EXPECT_TRUE(pool_->Post("ann", Steps("a", 1)));
  EXPECT_TRUE(pool_->Post("ann", Steps("a", 1)));
  EXPECT_FALSE(pool_->Post("ann", Steps("too many", 1)));
  EXPECT_TRUE(pool_->Post("bob", Steps("b", 1)));
  EXPECT_TRUE(pool_->Post("cy", Steps("c", 1)));
  EXPECT_TRUE(pool_->Post("di", Steps("d", 1)));
  EXPECT_FALSE(pool_->Post("ed", Steps("too many", 1)));
  EXPECT_THAT(Go(), ElementsAre("a", "b", "c", "d", "a"));
}

TEST_F(SmallStepPoolTest, OnlySoManyAreBegun) {
  Hold();
  for (const char* user : {"a", "b", "c"}) ASSERT_TRUE(pool_->Post(user, Steps(user, 3)));
  EXPECT_THAT(Go(), ElementsAre("a", "b", "a", "b", "a", "b", "c", "c", "c"));
}

TEST_F(StepPoolTest, AnIdleOneEnds) {
  pool_.reset();
  EXPECT_THAT(done_, IsEmpty());
}

}  // namespace
}  // namespace ampd
