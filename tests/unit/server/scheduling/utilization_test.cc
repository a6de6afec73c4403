#include "server/scheduling/utilization.h"

#include <gtest/gtest.h>

namespace ampd {
namespace {

TEST(UtilizationMeterTest, IsTheShareOfTheThreadsBetweenHeartbeats) {
  UtilizationMeter meter(4);
  EXPECT_EQ(meter.value(), 0);
  meter.Heartbeat(absl::Seconds(100), 7);
  EXPECT_EQ(meter.value(), 0);
  // 6 CPU seconds of 4 threads x 2 s.
  meter.Heartbeat(absl::Seconds(102), 13);
  EXPECT_DOUBLE_EQ(meter.value(), 0.75);
  meter.Heartbeat(absl::Seconds(104), 13);
  EXPECT_DOUBLE_EQ(meter.value(), 0);
}

TEST(UtilizationMeterTest, IsClampedAndSurvivesOddInput) {
  UtilizationMeter meter(1);
  meter.Heartbeat(absl::Seconds(1), 0);
  meter.Heartbeat(absl::Seconds(2), 50);
  EXPECT_EQ(meter.value(), 1);
  meter.Heartbeat(absl::Seconds(2), 60);
  EXPECT_EQ(meter.value(), 1);
  meter.Heartbeat(absl::Seconds(3), 10);
  EXPECT_EQ(meter.value(), 0);
}

}  // namespace
}  // namespace ampd
