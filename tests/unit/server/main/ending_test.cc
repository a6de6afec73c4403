#include "server/main/ending.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/jobs/fake_clock.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;

class EndingTest : public testing::Test {
 protected:
  Ending Make(bool detach_on_signal = false) {
    Ending::Options options;
    options.detach_on_signal = detach_on_signal;
    options.timeout = absl::Seconds(60);
    options.detach = [this](absl::Duration timeout) { did_.push_back(absl::StrCat("detach ", Text(timeout))); };
    options.drain = [this](absl::Duration timeout, absl::Duration workers, const std::string& reason) {
      did_.push_back(absl::StrCat("drain ", Text(timeout), " ", Text(workers), " ", reason));
    };
    options.hurry = [this](absl::Duration timeout, absl::Duration workers) {
      did_.push_back(absl::StrCat("hurry ", Text(timeout), " ", Text(workers)));
    };
    return Ending(std::move(options), &clock_);
  }
  static std::string Text(absl::Duration duration) { return absl::FormatDuration(duration); }

  FakeClock clock_;
  std::vector<std::string> did_;
};

TEST_F(EndingTest, GoesOnForEverUntilSomebodyAsks) {
  const Ending ending = Make();
  clock_.Advance(absl::Hours(24 * 365));
  EXPECT_FALSE(ending.begun());
  EXPECT_EQ(ending.Left(), absl::InfiniteDuration());
}

TEST_F(EndingTest, ASignalDrainsAndTheSecondOneCutsShort) {
  Ending ending = Make();
  EXPECT_EQ(ending.OnSignal(), Ending::Answer::kGoOn);
  EXPECT_THAT(did_, ElementsAre("drain 1m 55s "));
  clock_.Advance(absl::Seconds(57));
  EXPECT_GT(ending.Left(), absl::ZeroDuration());
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(ending.Left(), absl::ZeroDuration());
  EXPECT_EQ(ending.OnSignal(), Ending::Answer::kCutShort);
}

TEST_F(EndingTest, TheFirstSignalAfterARequestOnlyShortensTheDrain) {
  Ending ending = Make();
  ending.OnRequest({absl::Seconds(300), "new kernel"});
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(ending.OnSignal(), Ending::Answer::kGoOn);
  EXPECT_THAT(did_, ElementsAre("drain 5m 4m55s new kernel", "hurry 1m 55s"));
  EXPECT_LT(ending.Left(), absl::Seconds(60));
  EXPECT_EQ(ending.OnSignal(), Ending::Answer::kCutShort);
}

TEST_F(EndingTest, WhoComesLaterCanShortenButNotLengthen) {
  Ending ending = Make();
  ending.OnRequest({std::nullopt, "first"});
  clock_.Advance(absl::Seconds(10));
  // 50 s are left of the first.
  ending.OnRequest({absl::Seconds(51), "later"});
  ending.OnRequest({absl::Seconds(3600), "far later"});
  EXPECT_EQ(ending.OnSignal(), Ending::Answer::kGoOn);
  EXPECT_THAT(did_, ElementsAre("drain 1m 55s first"));
  ending.OnRequest({absl::Seconds(8), "notice"});
  EXPECT_THAT(did_, ElementsAre("drain 1m 55s first", "hurry 8s 6s"));
  EXPECT_EQ(ending.Left(), absl::Seconds(7));
}

TEST_F(EndingTest, WithOnStopDetachASignalDetachesAndARequestDrains) {
  Ending detached = Make(/*detach_on_signal=*/true);
  EXPECT_EQ(detached.OnSignal(), Ending::Answer::kGoOn);
  EXPECT_TRUE(detached.detaching());
  detached.OnRequest({absl::Seconds(5), "too late"});
  EXPECT_THAT(did_, ElementsAre("detach 1m"));
  EXPECT_EQ(detached.OnSignal(), Ending::Answer::kCutShort);

  did_.clear();
  Ending drained = Make(/*detach_on_signal=*/true);
  drained.OnRequest({absl::Seconds(300), ""});
  EXPECT_EQ(drained.OnSignal(), Ending::Answer::kGoOn);
  EXPECT_FALSE(drained.detaching());
  EXPECT_THAT(did_, ElementsAre("drain 5m 4m55s ", "hurry 1m 55s"));
}

}  // namespace
}  // namespace ampd
