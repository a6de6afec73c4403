#include "server/scheduling/devices.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

namespace ampd {
namespace {

TEST(CpuDevicesTest, SharesTheCores) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  const auto one = CpuDevices(1);
  ASSERT_TRUE(one.ok());
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ((*one)[0].id(), "cpu-0");
  EXPECT_EQ((*one)[0].kind(), v1::Device::CPU);
  EXPECT_EQ((*one)[0].threads(), CPU_COUNT(&set));
  EXPECT_FALSE((*one)[0].name().empty());
  // sysconf counts the same pages as MemTotal.
  EXPECT_EQ((*one)[0].memory_total_bytes(), int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
  const auto many = CpuDevices(1000);
  ASSERT_TRUE(many.ok());
  EXPECT_EQ((*many)[999].id(), "cpu-999");
  EXPECT_EQ((*many)[999].threads(), 1);
}

TEST(CpuDevicesTest, RefusesOtherCounts) {
  for (const int count : {0, -1, 1025})
    EXPECT_EQ(CpuDevices(count).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CpuDevicesTest, MemoryInUseIsPartOfTheMemory) {
  EXPECT_GT(MemoryUsedBytes(), 0);
  EXPECT_LT(MemoryUsedBytes(), (*CpuDevices(1))[0].memory_total_bytes());
}

}  // namespace
}  // namespace ampd
