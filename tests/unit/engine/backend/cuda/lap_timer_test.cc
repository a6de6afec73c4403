// Laps of a device: by its events, and by the records of a CUPTI that stands in for NVIDIA's.
#include "engine/backend/cuda/lap_timer.h"

#include <dlfcn.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "engine/backend/cuda/device_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd::cuda {
namespace {

using testing::HasSubstr;

// Beside the tests' programs.
std::string Library(const std::string& name) {
  std::string path(4096, '\0');
  path.resize(static_cast<size_t>(readlink("/proc/self/exe", path.data(), path.size())));
  return path.substr(0, path.rfind('/')) + "/lib" + name + ".so";
}

class Laps : public testing::Test {
 protected:
  std::unique_ptr<Context> context_ = *Context::Open("");
};

TEST_F(Laps, ByEventsHoldWhatRanBetweenThem) {
  const auto timer = MakeEventLapTimer(context_.get());
  DeviceArray array = *DeviceArray::Allocate(1 << 20, "test");
  for (int round = 0; round < 3; ++round) {
    std::vector<double> seconds(2, 0);
    ASSERT_TRUE(timer->Start().ok());
    ASSERT_EQ(cudaMemsetAsync(array.as<void>(), round, 1 << 20, context_->stream()), cudaSuccess);
    ASSERT_TRUE(timer->Lap(1).ok());
    ASSERT_TRUE(timer->Start().ok());
    ASSERT_TRUE(timer->Wait().ok());
    ASSERT_TRUE(timer->Collect(absl::MakeSpan(seconds)).ok());
    EXPECT_EQ(seconds[0], 0) << "no lap was of it, nor is what lies before a start";
    EXPECT_GT(seconds[1], 0);
  }
}

class ActivityLaps : public Laps {
 protected:
  void SetUp() override {
    auto activity = KernelActivity::Start({Library("fake_cupti")});
    ASSERT_TRUE(activity.ok()) << activity.status();
    timer_ = MakeActivityLapTimer(context_.get(), *std::move(activity));
    void* const handle = dlopen(Library("fake_cupti").c_str(), RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(handle, nullptr);
    launch_ = reinterpret_cast<void (*)(int32_t, const char*, uint64_t, uint32_t)>(dlsym(handle, "FakeCuptiLaunch"));
    ASSERT_NE(launch_, nullptr);
  }
  void Kernel(const char* name, uint64_t ns, uint32_t device = 0) {
    launch_(cupti::kConcurrentKernel, name, ns, device);
  }

  std::unique_ptr<runtime::LapTimer> timer_;
  void (*launch_)(int32_t, const char*, uint64_t, uint32_t) = nullptr;
};

TEST_F(ActivityLaps, GiveEachKernelToThePartThatLaunchedIt) {
  const char* const relu = "_ZN4ampd4cuda4ReluEPfi";
  std::vector<double> seconds(3, 0);
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(timer_->Start().ok());
    Kernel(relu, 1000);
    Kernel("gemm", 3000);
    Kernel("of another device", 5000, 1);
    ASSERT_TRUE(timer_->Lap(2).ok());
    Kernel(relu, 500);
    ASSERT_TRUE(timer_->Lap(0).ok());
    Kernel("replay", 70000);
    ASSERT_TRUE(timer_->Start().ok());
    launch_(cupti::kMemcpy, nullptr, 200, 0);
    launch_(cupti::kMemset, nullptr, 30, 0);
    ASSERT_TRUE(timer_->Lap(1).ok());
    Kernel("behind the last lap", 9);
    ASSERT_TRUE(timer_->Wait().ok());
    ASSERT_TRUE(timer_->Collect(absl::MakeSpan(seconds)).ok());
    Kernel("launched by nobody's step", 11);
  }
  EXPECT_NEAR(seconds[0], 2 * 500e-9, 1e-12);
  EXPECT_NEAR(seconds[1], 2 * 230e-9, 1e-12);
  EXPECT_NEAR(seconds[2], 2 * 4000e-9, 1e-12);
  std::map<std::pair<std::string, size_t>, std::pair<int64_t, double>> kernels;
  for (const runtime::KernelTime& kernel : timer_->Kernels()) {
    kernels[{kernel.name, kernel.part}] = {kernel.calls, kernel.seconds * 1e9};
  }
  const auto expect = [&](const char* name, size_t part, int64_t calls, double ns) {
    const auto& [found_calls, found_ns] = kernels[{name, part}];
    EXPECT_EQ(found_calls, calls) << name;
    EXPECT_NEAR(found_ns, ns, 1e-3) << name;
  };
  expect("ampd::cuda::Relu(float*, int)", 2, 2, 2000);
  expect("ampd::cuda::Relu(float*, int)", 0, 2, 1000);
  expect("gemm", 2, 2, 6000);
  expect("copy", 1, 2, 400);
  expect("fill", 1, 2, 60);
  EXPECT_EQ(kernels.size(), 5u) << "what is in no lap, or ran elsewhere, is not told";
}

TEST_F(ActivityLaps, AreOneAtATimeAndEndWithTheTimer) {
  EXPECT_THAT(KernelActivity::Start({Library("fake_cupti")}).status().message(), HasSubstr("under way"));
  timer_ = nullptr;
  auto next = KernelActivity::Start({Library("fake_cupti")});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE((*next)->Take()->empty());
}

TEST_F(Laps, FallBackToEventsWhereThereIsNoCupti) {
  EXPECT_TRUE(absl::IsUnavailable(KernelActivity::Start({"libno_such_cupti.so"}).status()));
  // Refusing once must not stand in the way of another try.
  for (int i = 0; i < 2; ++i) {
    const absl::Status refused = KernelActivity::Start({Library("fake_cupti_refusing")}).status();
    EXPECT_TRUE(absl::IsUnavailable(refused));
    EXPECT_THAT(refused.message(), HasSubstr("39"));
  }
  // One that is no CUPTI.
  EXPECT_THAT(KernelActivity::Start({"libc.so.6"}).status().message(), HasSubstr("has no cuptiActivity"));
  EXPECT_TRUE(KernelActivity::Start({"libno_such_cupti.so", "libc.so.6", Library("fake_cupti")}).ok());
  EXPECT_EQ(MakeLapTimer(context_.get(), false)->note(), "");
}

}  // namespace
}  // namespace ampd::cuda
