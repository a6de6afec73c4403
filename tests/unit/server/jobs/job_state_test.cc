#include "server/jobs/job_state.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace ampd {
namespace {

// Row: from; one letter a target, in the order QUEUED STARTING RUNNING PREEMPTING pAUSED rETRYING rECOVERING CANCELLING
// SUCCEEDED FAILED CANCELLED; 'x' is legal. Written from the lifecycle, not from the table under test.
const std::map<v1::Job::State, std::string> kExpected = {
    //                    Q S R P A T C L U F X
    {v1::Job::QUEUED, /**/ ".x..x.....x"}, {v1::Job::STARTING, "x.x.xxxx.x."},   {v1::Job::RUNNING, "x..xxxxxxx."},
    {v1::Job::PREEMPTING, "x.x.xxxxxx."},  {v1::Job::PAUSED, "x.........x"},     {v1::Job::RETRYING, "x...x.....x"},
    {v1::Job::RECOVERING, "x.x.xx.x.x."},  {v1::Job::CANCELLING, "..........x"}, {v1::Job::SUCCEEDED, "..........."},
    {v1::Job::FAILED, "x.........."},      {v1::Job::CANCELLED, "x.........."},
};

TEST(JobStateTest, EveryPair) {
  for (int from = v1::Job::QUEUED; from <= v1::Job::CANCELLED; ++from) {
    for (int to = v1::Job::QUEUED; to <= v1::Job::CANCELLED; ++to) {
      const auto f = static_cast<v1::Job::State>(from);
      const auto t = static_cast<v1::Job::State>(to);
      EXPECT_EQ(IsLegalTransition(f, t), kExpected.at(f)[to - 1] == 'x')
          << v1::Job::State_Name(f) << " -> " << v1::Job::State_Name(t);
    }
    EXPECT_FALSE(IsLegalTransition(static_cast<v1::Job::State>(from), v1::Job::STATE_UNSPECIFIED));
    EXPECT_FALSE(IsLegalTransition(v1::Job::STATE_UNSPECIFIED, static_cast<v1::Job::State>(from)));
  }
}

TEST(JobStateTest, TerminalStatesHoldNothing) {
  for (int s = v1::Job::QUEUED; s <= v1::Job::CANCELLED; ++s) {
    const auto state = static_cast<v1::Job::State>(s);
    EXPECT_EQ(IsTerminal(state), s >= v1::Job::SUCCEEDED);
    EXPECT_FALSE(IsTerminal(state) && HoldsDevice(state));
  }
  EXPECT_TRUE(HoldsDevice(v1::Job::STARTING));
  EXPECT_TRUE(HoldsDevice(v1::Job::CANCELLING));
  EXPECT_FALSE(HoldsDevice(v1::Job::QUEUED));
  EXPECT_FALSE(HoldsDevice(v1::Job::RETRYING));
}

}  // namespace
}  // namespace ampd
