// Which of a library's plans runs a convolution, on the emulated device: the fastest, but for one that is wrong.
#include "engine/backend/cuda/conv_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "engine/backend/cuda/autotune_cache.h"
#include "engine/backend/cuda/status.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"

namespace ampd::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Of the stand-in for the library, one after the other.
enum class Flaw {
  kNone,
  kSkipsLast,       // leaves the last of the result as it found it
  kReadsWorkspace,  // before it has written there
  kFails,
};

struct Engine {
  const char* name;
  double milliseconds;
  Flaw flaw = Flaw::kNone;
};

class ConvChoice : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda_on_host::Reset();
    auto context = Context::Open("");
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
    conv_ = Conv::Create("conv", desc_, context_.get()).value();
    args_ = {.a = image_.data(), .b = filter_.data(), .result = result_.data(), .workspace = workspace_};
  }
  void TearDown() override {
    context_.reset();
    cuda_on_host::Reset();
  }

  ConvPlan PlanOf(const Engine& engine) {
    const auto run = [this, engine](const ConvArgs& args) -> absl::Status {
      runs_.push_back(engine.name);
      if (engine.flaw == Flaw::kFails) return absl::InternalError("it does not run here");
      const auto last_found = std::make_shared<float>(), space_found = std::make_shared<float>();
      float* const last = result_.data() + result_.size() - 1;
      const auto* const space = static_cast<const float*>(args.workspace);
      auto status = Enqueue([=] { *last_found = *last, *space_found = *space; });
      if (status.ok()) status = conv_->Run(args);
      if (!status.ok()) return status;
      return Enqueue([=] {
        cuda_on_host::Delay(engine.milliseconds);
        if (engine.flaw == Flaw::kSkipsLast) *last = *last_found;
        if (engine.flaw == Flaw::kReadsWorkspace) *last += *space_found;
      });
    };
    return {engine.name, conv_->workspace_bytes(), run};
  }
  absl::Status Enqueue(std::function<void()> work) {
    return ToStatus(cuda_on_host::Enqueue(context_->stream(), "work", std::move(work)), "work");
  }

  // The chosen one's name, or the error's message.
  std::string Choose(const std::vector<Engine>& engines) {
    runs_.clear();
    const auto list = [&](const std::string& only, size_t most) -> absl::StatusOr<std::vector<ConvPlan>> {
      std::vector<ConvPlan> plans;
      for (const Engine& engine : engines) {
        if (plans.size() < most && (only.empty() || only == engine.name)) plans.push_back(PlanOf(engine));
      }
      return plans;
    };
    const auto plan = ChooseConvPlan(context_.get(), "key", desc_, args_, list);
    EXPECT_TRUE(context_->Wait().ok());
    return plan.ok() ? plan->name : std::string(plan.status().message());
  }
  std::string Remembered() const { return context_->autotune()->Find("key").value_or("nothing"); }

  const ConvDesc desc_{.image = {1, 4, 4, 2}, .filter = {3, 1, 1, 2}, .output = {1, 4, 4, 3}};
  alignas(256) char workspace_[1024] = {};
  alignas(256) std::array<float, 32> image_ = {1, -2, 3};
  alignas(256) std::array<float, 6> filter_ = {1, 1, -1, 2, 0, 1};
  alignas(256) std::array<float, 48> result_ = {};
  ConvArgs args_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Conv> conv_;
  std::vector<std::string> runs_;
};

TEST_F(ConvChoice, TakesTheFastestSoundOneAndRemembersIt) {
  const std::vector<Engine> engines = {
      {"slow", 90}, {"skips", 10, Flaw::kSkipsLast}, {"reads", 20, Flaw::kReadsWorkspace}, {"fails", 1, Flaw::kFails}};
  EXPECT_EQ(Choose(engines), "slow");
  EXPECT_EQ(Remembered(), "slow");
  // Tried once more, and measured no more.
  EXPECT_EQ(Choose(engines), "slow");
  EXPECT_EQ(runs_, std::vector<std::string>{"slow"});
  EXPECT_EQ(Choose({{"slow", 90}, {"quick", 10}}), "slow");
  context_->set_autotune(std::make_unique<AutotuneCache>());
  EXPECT_EQ(Choose({{"slow", 90}, {"quick", 10}}), "quick");
  EXPECT_EQ(Remembered(), "quick");
}

TEST_F(ConvChoice, WhatIsRememberedGivesWayWhereItIsWrong) {
  context_->autotune()->Put("key", "skips");
  EXPECT_EQ(Choose({{"skips", 10, Flaw::kSkipsLast}, {"slow", 90}}), "slow");
  EXPECT_EQ(Remembered(), "slow");
}

// A NaN that was there says nothing of an engine.
TEST_F(ConvChoice, JudgesNothingByOperandsThatAreNotFinite) {
  const std::vector<Engine> engines = {{"quick", 10}, {"slow", 90}};
  for (float* const spoilt : {&image_[5], &filter_[2]}) {
    const float before = std::exchange(*spoilt, kNan);
    context_->set_autotune(std::make_unique<AutotuneCache>());
    EXPECT_EQ(Choose(engines), "quick");
    EXPECT_EQ(Remembered(), "nothing");
    context_->autotune()->Put("key", "slow");
    EXPECT_EQ(Choose(engines), "slow");
    EXPECT_TRUE(runs_.empty());
    EXPECT_EQ(Remembered(), "slow");
    *spoilt = before;
  }
}

// Nor does a result that overflows.
TEST_F(ConvChoice, JudgesNothingByAResultThatIsNotFinite) {
  image_[0] = filter_[0] = 1e30f;
  const std::vector<Engine> engines = {{"skips", 50, Flaw::kSkipsLast}, {"quick", 10}, {"slow", 90}};
  EXPECT_EQ(Choose(engines), "quick");
  EXPECT_EQ(Remembered(), "nothing");
  context_->autotune()->Put("key", "slow");
  EXPECT_EQ(Choose(engines), "slow");
  EXPECT_EQ(Remembered(), "slow");
}

TEST_F(ConvChoice, MeasuresNothingWithoutACache) {
  context_->set_autotune(nullptr);
  EXPECT_EQ(Choose({{"first", 90}, {"quick", 10}}), "first");
  EXPECT_TRUE(runs_.empty());
  const std::string none = Choose({});
  EXPECT_NE(none.find("no plan"), std::string::npos) << none;
}

}  // namespace
}  // namespace ampd::cuda
