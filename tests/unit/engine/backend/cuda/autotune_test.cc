#include "engine/backend/cuda/autotune.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/autotune_cache.h"
#include "engine/backend/cuda/status.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"
#include "tests/support/ref_tensor.h"

namespace ampd::cuda {
namespace {

class AutotuneFile : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/ampd_autotune_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    directory_ = pattern;
    path_ = absl::StrCat(directory_, "/", AutotuneCache::kFileName);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Read() const {
    std::ostringstream text;
    text << std::ifstream(path_, std::ios::binary).rdbuf();
    return text.str();
  }
  void Write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }

  std::string directory_, path_;
};

TEST_F(AutotuneFile, LaterProcessesFindAnyBytes) {
  const std::string key("key\t|\n\\\0\xff end", 14), value("\0\1\n\t\\\"\x80", 7);
  {
    AutotuneCache cache(directory_);
    cache.Put(key, "old");
    cache.Put(key, value);
    cache.Put("empty", "");
    EXPECT_TRUE(cache.status().ok()) << cache.status();
    EXPECT_EQ(cache.Find(key), value);
    EXPECT_EQ(cache.Find("other"), absl::nullopt);
  }
  const AutotuneCache cache(directory_);
  EXPECT_EQ(cache.size(), 2);
  EXPECT_EQ(cache.Find(key), value);
  EXPECT_EQ(cache.Find("empty"), "");
}

TEST_F(AutotuneFile, WithoutADirectoryNothingIsWritten) {
  AutotuneCache cache("");
  cache.Put("key", "value");
  EXPECT_EQ(cache.Find("key"), "value");
  EXPECT_TRUE(cache.status().ok());
}

TEST_F(AutotuneFile, ADirectoryThatCannotBeWrittenIsNamedAndHarmless) {
  AutotuneCache cache("/nonexistent/autotune");
  cache.Put("key", "value");
  EXPECT_EQ(cache.Find("key"), "value");
  EXPECT_TRUE(absl::IsUnavailable(cache.status()));
  EXPECT_NE(cache.status().message().find("/nonexistent/autotune"), absl::string_view::npos) << cache.status();
}

TEST_F(AutotuneFile, DropsTheOldestAndWhatIsTooLong) {
  {
    AutotuneCache cache;
    for (int i = 0; i < AutotuneCache::kMaxEntries + 3; ++i) cache.Put(absl::StrCat("key", i), "value");
    EXPECT_EQ(cache.size(), AutotuneCache::kMaxEntries);
    EXPECT_EQ(cache.Find("key2"), absl::nullopt);
    EXPECT_EQ(cache.Find("key3"), "value");
  }
  AutotuneCache cache(directory_);
  cache.Put(std::string(AutotuneCache::kMaxKeyBytes + 1, 'k'), "value");
  cache.Put("key", std::string(AutotuneCache::kMaxValueBytes + 1, 'v'));
  EXPECT_EQ(cache.size(), 0);
}

// Two caches opened before either wrote, as two workers are.
TEST_F(AutotuneFile, KeepsWhatOthersWrote) {
  AutotuneCache one(directory_), two(directory_);
  one.Put("a", "1");
  two.Put("b", "2");
  one.Put("c", "3");
  two.Put("a", "4");
  const AutotuneCache cache(directory_);
  EXPECT_EQ(cache.size(), 3);
  EXPECT_EQ(cache.Find("a"), "4");
  EXPECT_EQ(cache.Find("b"), "2");
  EXPECT_EQ(cache.Find("c"), "3");
}

// What was read is not newer than what another process wrote since.
TEST_F(AutotuneFile, WhatWasReadIsNotWrittenBack) {
  AutotuneCache(directory_).Put("a", "old");
  AutotuneCache one(directory_), two(directory_);
  one.Put("a", "new");
  two.Put("b", "2");
  EXPECT_EQ(two.Find("a"), "new");
  const AutotuneCache cache(directory_);
  EXPECT_EQ(cache.Find("a"), "new");
  EXPECT_EQ(cache.Find("b"), "2");
  // Without the file, what is known stays so.
  std::filesystem::remove(path_);
  one.Put("c", "3");
  EXPECT_EQ(one.Find("a"), "new");
}

TEST_F(AutotuneFile, ManyProcessesLoseNothing) {
  constexpr int kProcesses = 4, kEntries = 20;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    AutotuneCache cache(directory_);
    for (int i = 0; i < kEntries; ++i) cache.Put(absl::StrCat("key ", p, " ", i), "value");
    _exit(cache.status().ok() ? 0 : 1);
  }
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(AutotuneCache(directory_).size(), kProcesses * kEntries);
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(name == AutotuneCache::kFileName || name == absl::StrCat(AutotuneCache::kFileName, ".lock")) << name;
  }
}

// Of a damaged file the whole lines count, and no damage makes a line that was never written.
TEST_F(AutotuneFile, HostileBytes) {
  {
    AutotuneCache cache(directory_);
    for (int i = 0; i < 8; ++i) cache.Put(absl::StrCat("key", i), absl::StrCat("value\n", i));
  }
  const std::string whole = Read();
  ampd::testing::Random random(3);
  for (int round = 0; round < 500; ++round) {
    std::string text = whole;
    for (int64_t n = 1 + random.Below(4); n > 0; --n) {
      const auto at = static_cast<size_t>(random.Below(static_cast<int64_t>(text.size())));
      if (random.Below(3) == 0) text.resize(at + 1);
      text[at] = static_cast<char>(random.Below(256));
    }
    Write(text);
    const AutotuneCache cache(directory_);
    EXPECT_LE(cache.size(), 8);
    int found = 0;
    for (int i = 0; i < 8; ++i) {
      const auto value = cache.Find(absl::StrCat("key", i));
      EXPECT_EQ(value.value_or(absl::StrCat("value\n", i)), absl::StrCat("value\n", i));
      found += value ? 1 : 0;
    }
    EXPECT_EQ(found, cache.size());
  }
}

TEST_F(AutotuneFile, WhatIsNoCacheIsAnEmptyOne) {
  for (const std::string& text : {std::string(), std::string("\n\n"), std::string("ampd autotune 2\n"),
                                  std::string("ampd autotune 1"), std::string(1 << 16, '\t')}) {
    Write(text);
    EXPECT_EQ(AutotuneCache(directory_).size(), 0);
  }
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(AutotuneCache(directory_).size(), 0);
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  AutotuneCache cache(directory_);
  cache.Put("key", "value");
  EXPECT_FALSE(cache.status().ok());
}

class Fastest : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda_on_host::Reset();
    auto context = Context::Open("");
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
  }
  void TearDown() override {
    context_.reset();
    cuda_on_host::Reset();
  }
  std::unique_ptr<Context> context_;
};

TEST_F(Fastest, ChoosesTheFastest) {
  const auto run = [&](int candidate) {
    const double minutes[] = {3, 5, 1, 1.5};
    return ToStatus(
        cuda_on_host::Enqueue(context_->stream(), "work", [=] { cuda_on_host::Delay(60'000 * minutes[candidate]); }),
        "work");
  };
  const auto fastest = FastestOf(*context_, 4, run);
  ASSERT_TRUE(fastest.ok()) << fastest.status();
  EXPECT_EQ(*fastest, 2);
}

// Milliseconds of a candidate's first run, which loads its code, and of later ones.
struct Candidate {
  double first, later;
};

TEST_F(Fastest, SlowCandidatesRunSeldom) {
  const Candidate candidates[] = {{4e3, 4e3}, {4e5, 4e5}, {1e3, 1e3}, {8e3, 8e3}, {1500, 1500}, {9e5, 1}, {2e5, 2e5}};
  int runs[std::size(candidates)] = {};
  const auto run = [&](int i) {
    const double time = runs[i]++ == 0 ? candidates[i].first : candidates[i].later;
    return ToStatus(cuda_on_host::Enqueue(context_->stream(), "work", [=] { cuda_on_host::Delay(time); }), "work");
  };
  const auto fastest = FastestOf(*context_, std::size(candidates), run);
  ASSERT_TRUE(fastest.ok()) << fastest.status();
  EXPECT_EQ(*fastest, 5);
  for (int slow : {1, 3, 6}) EXPECT_EQ(runs[slow], 3) << slow;
  for (int near : {0, 2, 4}) {
    EXPECT_GT(runs[near], 3) << near;
    EXPECT_LT(runs[near], runs[5]) << near;
  }
}

// One measurement of few may be far off, the first that counts too.
TEST_F(Fastest, ASlowRunIsNoSlowCandidate) {
  for (const int slow_run : {2, 3}) {
    for (const double scale : {2.0, 1000.0}) {
      int runs = 0;
      const auto run = [&](int candidate) {
        const double time = candidate == 0 ? 2 : ++runs == slow_run ? 3'000 : 1;
        return ToStatus(cuda_on_host::Enqueue(context_->stream(), "work", [=] { cuda_on_host::Delay(time * scale); }),
                        "work");
      };
      const auto fastest = FastestOf(*context_, 2, run);
      ASSERT_TRUE(fastest.ok()) << fastest.status();
      EXPECT_EQ(*fastest, 1) << slow_run << ", " << scale;
    }
  }
}

TEST_F(Fastest, LeavesOutWhatFailsLater) {
  for (int failing_run : {1, 2, 3, 4, 5}) {
    int runs = 0;
    const auto run = [&](int candidate) {
      if (candidate == 0 && ++runs == failing_run) return absl::InternalError("it ran out of workspace");
      return ToStatus(cuda_on_host::Enqueue(context_->stream(), "work", [] { cuda_on_host::Delay(1); }), "work");
    };
    EXPECT_EQ(*FastestOf(*context_, 2, run), 1) << failing_run;
    runs = 0;
    const absl::Status status = FastestOf(*context_, 1, run).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_NE(status.message().find("it ran out of workspace"), absl::string_view::npos) << status;
  }
}

TEST_F(Fastest, LeavesOutWhatDoesNotRun) {
  const auto only_third = [](int i) { return i == 2 ? absl::OkStatus() : absl::UnimplementedError("not this one"); };
  const int64_t handles = cuda_on_host::Handles();
  EXPECT_EQ(*FastestOf(*context_, 4, only_third), 2);
  EXPECT_EQ(FastestOf(*context_, 2, only_third).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FastestOf(*context_, 0, only_third).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(cuda_on_host::Handles(), handles);
}

TEST_F(Fastest, AFailedDeviceIsNoSlowCandidate) {
  const auto fails = [](int) { return absl::UnavailableError("the device is gone"); };
  EXPECT_EQ(FastestOf(*context_, 3, fails).status().code(), absl::StatusCode::kUnavailable);
  cuda_on_host::Fail("cudaEventRecord", cudaErrorIllegalAddress);
  const auto runs = [](int) { return absl::OkStatus(); };
  EXPECT_EQ(FastestOf(*context_, 3, runs).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(Fastest, MeasuresOnlyOutsideOfCaptures) {
  EXPECT_TRUE(*MayMeasure(*context_));
  ASSERT_EQ(cudaStreamBeginCapture(context_->stream(), cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_FALSE(*MayMeasure(*context_));
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(context_->stream(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_TRUE(*MayMeasure(*context_));
  context_->set_autotune(nullptr);
  EXPECT_FALSE(*MayMeasure(*context_));
  EXPECT_FALSE(*MayMeasure(Context(DeviceProperties())));
}

TEST_F(Fastest, KeysTellDevicesAndVersionsApart) {
  const std::string key = AutotuneKey(*context_, "lib 1", "op");
  EXPECT_EQ(AutotuneKey(*context_, "lib 1", "op"), key);
  EXPECT_NE(AutotuneKey(*context_, "lib 2", "op"), key);
  EXPECT_NE(AutotuneKey(*context_, "lib 1", "op2"), key);
  DeviceProperties other = context_->properties();
  other.minor = 3;
  EXPECT_NE(AutotuneKey(Context(other), "lib 1", "op"), key);
}

}  // namespace
}  // namespace ampd::cuda
