#include "server/gpu/gpu_monitor.h"

#include <gmock/gmock.h>

#include <deque>

#include "absl/strings/str_cat.h"
#include "server/events/clock.h"
#include "tests/unit/server/gpu/fake_gpus.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

// Keeps what a monitor publishes and logs.
class Listener {
 public:
  GpuMonitorOptions Options(absl::Duration interval) {
    GpuMonitorOptions options;
    options.interval = interval;
    options.publish = [this](std::vector<v1::Device> devices) {
      const std::lock_guard lock(mutex_);
      devices_ = std::move(devices);
      changed_.notify_all();
    };
    options.log = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      log_.push_back(text);
      changed_.notify_all();
    };
    return options;
  }
  bool WaitForDevice(const std::function<bool(const v1::Device&)>& holds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return !devices_.empty() && holds(devices_[0]); });
  }
  std::string WaitForLog() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return !log_.empty(); });
    return log_.empty() ? "" : log_.front();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::Device> devices_;
  std::vector<std::string> log_;
};

class GpuMonitorTest : public ::testing::Test {
 protected:
  std::unique_ptr<GpuMonitor> Start(const std::string& library, absl::Duration interval) {
    std::unique_ptr<Nvml> nvml = Nvml::Open(FakeLibrary(library)).value();
    std::vector<std::string> problems;
    std::vector<v1::Device> devices = nvml->Identify(&problems);
    return std::make_unique<GpuMonitor>(std::move(nvml), std::move(devices), listener_.Options(interval),
                                        &SystemClock());
  }

  FakeGpus gpus_;
  Listener listener_;
};

TEST_F(GpuMonitorTest, FollowsTheFigures) {
  gpus_.Set("gpu GPU-a\npower 1000\n");
  const auto monitor = Start("fake_nvml", absl::Milliseconds(1));
  EXPECT_TRUE(listener_.WaitForDevice([](const v1::Device& device) { return device.gpu().power_watts() == 1; }));
  gpus_.Set("gpu GPU-a\npower 2000\n");
  EXPECT_TRUE(listener_.WaitForDevice([](const v1::Device& device) { return device.gpu().power_watts() == 2; }));
  gpus_.Set("gpu GPU-a\nfails 15\n");
  EXPECT_TRUE(listener_.WaitForDevice([](const v1::Device& device) { return device.conditions_size() == 1; }));
}

TEST_F(GpuMonitorTest, AnXidIsPublishedAtOnce) {
  gpus_.Set("gpu GPU-a\n");
  // The next reading is an hour away.
  const auto monitor = Start("fake_nvml", absl::Hours(1));
  EXPECT_TRUE(listener_.WaitForDevice([](const v1::Device&) { return true; }));
  gpus_.Set("gpu GPU-a\nxid 1 79\n");
  EXPECT_TRUE(listener_.WaitForDevice([](const v1::Device& device) {
    return device.conditions_size() == 1 && device.conditions(0).kind() == v1::DeviceCondition::HARDWARE_ERROR;
  }));
  EXPECT_THAT(listener_.WaitForLog(), HasSubstr("XID 79"));
}

TEST_F(GpuMonitorTest, SaysThatXidsCannotBeHeard) {
  gpus_.Set("gpu GPU-a\n");
  const auto monitor = Start("fake_nvml_old", absl::Hours(1));
  EXPECT_THAT(listener_.WaitForLog(), HasSubstr("no XIDs: NVML: the driver reports no XIDs"));
}

}  // namespace
}  // namespace ampd
