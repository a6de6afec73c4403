#include "server/jobs/turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ampd {
namespace {

using ::testing::ElementsAre;

class TurnsTest : public ::testing::Test {
 protected:
  // Keeps its turn until End().
  void Take(const std::string& user, const std::string& name) {
    turns_.Take(user, [this, name](const Turns::Turn& turn) {
      begun_.push_back(name);
      turn_ = turn;
    });
  }
  // The end of a turn begins the next, which sets turn_ anew.
  void End() { const Turns::Turn ended = std::exchange(turn_, nullptr); }

  std::vector<std::string> begun_;
  Turns::Turn turn_;
  Turns turns_;
};

TEST_F(TurnsTest, OneAtATimeAndUsersInTurn) {
  Take("ann", "a1");
  Take("ann", "a2");
  Take("ann", "a3");
  Take("bob", "b1");
  Take("bob", "b2");
  Take("", "n1");
  EXPECT_THAT(begun_, ElementsAre("a1"));
  for (int i = 0; i < 5; ++i) End();
  EXPECT_THAT(begun_, ElementsAre("a1", "b1", "n1", "a2", "b2", "a3"));
  End();
  Take("ann", "a4");
  EXPECT_EQ(begun_.back(), "a4");
}

TEST_F(TurnsTest, ATurnLastsAsLongAsItsLastCopy) {
  Take("ann", "a1");
  Take("ann", "a2");
  Turns::Turn copy = turn_;
  turn_ = nullptr;
  EXPECT_THAT(begun_, ElementsAre("a1"));
  copy = nullptr;
  EXPECT_THAT(begun_, ElementsAre("a1", "a2"));
}

TEST_F(TurnsTest, WhatWaitsGoesWithoutATurnWhenTheyClose) {
  Take("ann", "a1");
  const auto held = std::make_shared<int>(1);
  turns_.Take("ann", [held](const Turns::Turn&) { FAIL() << "has a turn"; });
  EXPECT_EQ(held.use_count(), 2);
  turns_.Close();
  EXPECT_EQ(held.use_count(), 1);
  End();
  Take("ann", "a2");
  EXPECT_THAT(begun_, ElementsAre("a1"));
}

TEST(TurnsLifeTest, ATurnMayOutliveThem) {
  Turns::Turn turn;
  {
    Turns turns;
    turns.Take("", [&](const Turns::Turn& first) { turn = first; });
    turns.Take("", [](const Turns::Turn&) { FAIL() << "has a turn"; });
  }
  turn = nullptr;
}

}  // namespace
}  // namespace ampd
