#include "engine/core/host_memory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

class HostMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/ampd_host_memory_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  // A group that uses `used` bytes, of which the kernel can take back `cached`.
  void Group(const std::string& path, const std::string& limit, int64_t used, int64_t cached) {
    Write("/sys/fs/cgroup" + path + "/memory.max", limit + "\n");
    Write("/sys/fs/cgroup" + path + "/memory.current", std::to_string(used) + "\n");
    Write("/sys/fs/cgroup" + path + "/memory.stat", "anon 1\ninactive_file " + std::to_string(cached) + "\n");
  }

  std::string root_;
};

TEST_F(HostMemoryTest, WithoutGroupsItIsTheMachines) {
  EXPECT_EQ(AvailableHostMemory(4096, root_), 4096);
  Write("/proc/meminfo", "MemTotal:       9000 kB\nMemAvailable:   7000 kB\n");
  EXPECT_EQ(AvailableHostMemory(4096, root_), 7000 * 1024);
  EXPECT_EQ(HostMemoryLimit(root_), kNone);
  Group("", "max", 100, 0);
  EXPECT_EQ(AvailableHostMemory(4096, root_), 7000 * 1024);
  EXPECT_EQ(HostMemoryLimit(root_), kNone);
}

TEST_F(HostMemoryTest, AContainersLimitCountsLessWhatItUses) {
  Write("/proc/meminfo", "MemAvailable:   7000 kB\n");
  Write("/proc/self/cgroup", "0::/\n");
  Group("", "1000000", 300000, 100000);
  EXPECT_EQ(AvailableHostMemory(0, root_), 800000);
  EXPECT_EQ(HostMemoryLimit(root_), 1000000);
  Group("", "1000000", 1300000, 0);
  EXPECT_EQ(AvailableHostMemory(0, root_), 0);
}

TEST_F(HostMemoryTest, TheTightestGroupAroundTheProcessCounts) {
  Write("/proc/meminfo", "MemAvailable:   7000 kB\n");
  Write("/proc/self/cgroup", "1:name=systemd:/elsewhere\n0::/system.slice/ampd.service\n");
  Group("/system.slice", "2000000", 1900000, 0);
  Group("/system.slice/ampd.service", "1000000", 300000, 0);
  Group("/elsewhere", "10", 0, 0);
  EXPECT_EQ(AvailableHostMemory(0, root_), 100000);
  EXPECT_EQ(HostMemoryLimit(root_), 1000000);
}

}  // namespace
}  // namespace ampd
