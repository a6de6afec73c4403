// Sweeps of several users.
#include <future>
#include <string>
#include <vector>

#include "server/service/submit.h"
#include "tests/unit/server/service/service_fixture.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;

class SubmitSweepTest : public ServiceFixture {
 protected:
  SubmitSweepTest() {
    Train([](FakeTrainer&) -> absl::StatusOr<train::Outcome> { return absl::InvalidArgumentError("no good"); });
  }

  // Of `points` models, each of which is planned.
  static v1::CreateSweepRequest Sweep(int points) {
    v1::CreateSweepRequest request;
    *request.mutable_spec() = GoodRequest().spec();
    request.set_validate_only(true);
    auto& units = (*request.mutable_spec()->mutable_sweep()->mutable_grid())["model.layers[0].dense.units"];
    for (int i = 0; i < points; ++i) units.add_values()->set_number_value(10 + i);
    return request;
  }
};

TEST_F(SubmitSweepTest, ALargeSweepOfOneUserDoesNotKeepAnothersWaiting) {
  std::promise<void> begun, posted;
  std::shared_future<void> all_posted = posted.get_future().share();
  std::atomic<int> planned = 0;
  std::mutex mutex;
  std::vector<std::string> over;
  {
    Submitter submitter(
        {.devices = CpuDevices(1).value()},
        [&](const v1::PlanRequest& request) {
          if (planned++ == 0) begun.set_value();
          all_posted.wait();
          return Plan(request);
        },
        controller_.get());
    const auto create = [&](const std::string& user, const std::string& name, int points) {
      submitter.CreateSweep(
          Sweep(points), {.user = user, .role = v1::SUBMITTER}, [] { return false; },
          [&, name, points](const absl::StatusOr<v1::JobSweep>& sweep) {
            ASSERT_TRUE(sweep.ok()) << sweep.status();
            EXPECT_EQ(sweep->count(), points);
            const std::lock_guard lock(mutex);
            over.push_back(name);
          });
    };
    create("ann", "ann's first", 60);
    begun.get_future().wait();
    create("ann", "ann's second", 1);
    create("bob", "bob's", 2);
    posted.set_value();
  }
  EXPECT_THAT(over, ElementsAre("bob's", "ann's first", "ann's second"));
}

TEST_F(SubmitSweepTest, WhatNobodyWaitsForIsNotPlannedToItsEnd) {
  std::atomic<int> planned = 0;
  absl::Status status;
  {
    Submitter submitter(
        {.devices = CpuDevices(1).value()},
        [&](const v1::PlanRequest& request) {
          ++planned;
          return Plan(request);
        },
        controller_.get());
    submitter.CreateSweep(
        Sweep(60), {.user = "ann", .role = v1::SUBMITTER}, [&] { return planned >= 3; },
        [&](const absl::StatusOr<v1::JobSweep>& sweep) { status = sweep.status(); });
  }
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(planned, 3);
}

}  // namespace
}  // namespace ampd
