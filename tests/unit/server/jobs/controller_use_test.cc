// Device time and dollars by use and user, as Prometheus sees them.
#include <chrono>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd {
namespace {

class ControllerUseTest : public ControllerTest {
 protected:
  // 36 dollars an hour: a cent a second.
  ControllerUseTest() {
    for (v1::DeviceModel& model : device_models_) model.set_usd_per_hour(36);
    RestartDaemon(2);
  }

  // 0 where there is no such series.
  double Value(const std::string& series) {
    for (const absl::string_view line : absl::StrSplit(metrics_->Serialize(), '\n')) {
      absl::string_view value = line;
      double number = 0;
      if (absl::ConsumePrefix(&value, series + " ") && absl::SimpleAtod(value, &number)) return number;
    }
    return 0;
  }
  // The metrics are told of what is durable on a thread of their own.
  void ExpectSeconds(const std::string& use, const std::string& user, double expected) {
    Expect(absl::StrCat("ampd_device_seconds_total{use=\"", use, "\",user=\"", user, "\"}"), expected);
  }
  void ExpectUsd(const std::string& use, const std::string& user, double expected) {
    Expect(absl::StrCat("ampd_cost_usd_total{use=\"", use, "\",user=\"", user, "\"}"), expected);
  }
  void Expect(const std::string& series, double expected) {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (std::abs(Value(series) - expected) > 1e-6 && std::chrono::steady_clock::now() < deadline) Sync();
    EXPECT_NEAR(Value(series), expected, 1e-6) << series;
  }
  std::string SubmitOf(const std::string& user) {
    CreateJobParams params = Params();
    params.user = user;
    return Submit(std::move(params));
  }
  void Run(const std::shared_ptr<FakeConnection>& worker, absl::Duration time) {
    for (absl::Duration done; done < time; done += absl::Seconds(20)) {
      Advance(absl::Seconds(20));
      SendHeartbeat(worker);
    }
  }
  // Steps of two seconds.
  void SendSteps(const std::shared_ptr<FakeConnection>& worker, uint64_t number, int64_t last, int64_t skipped) {
    v1::WorkerMessage message;
    message.mutable_event()->set_number(number);
    v1::StepReport& report = *message.mutable_event()->mutable_event()->mutable_step();
    report.set_first_step(1);
    report.set_last_step(last);
    report.set_step_seconds(2);
    report.add_phases()->set_steps_applied(last - skipped);
    report.mutable_phases(0)->set_steps_skipped(skipped);
    controller_->WorkerMessage(worker, message);
    EXPECT_TRUE(worker->WaitForAck(number));
  }
};

TEST_F(ControllerUseTest, AllTimeOfAllDevicesIsOfOneUse) {
  SubmitOf("ann");
  auto worker = AttachLaunched(0);
  Run(worker, absl::Seconds(40));
  // What was wasted is known now, and counted out of what follows.
  SendSteps(worker, 1, 20, 3);
  ExpectSeconds("useful", "ann", 40);
  ExpectSeconds("wasted", "ann", 0);
  Run(worker, absl::Seconds(20));
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 1);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EndWorker(worker, 0);
  Settle();
  Advance(absl::Minutes(2));
  ExpectSeconds("useful", "ann", 54);
  ExpectSeconds("wasted", "ann", 6);
  ExpectUsd("useful", "ann", 0.54);
  ExpectUsd("wasted", "ann", 0.06);
  // The other device all the time, this one since: together two devices for 180 seconds.
  ExpectSeconds("idle", "", 180 + 120);
  ExpectUsd("idle", "", 3);
}

// The job itself has no time left of which it could be counted.
TEST_F(ControllerUseTest, WhatAJobWastedIsCountedOutOfItsUsersNext) {
  SubmitOf("ann");
  auto worker = AttachLaunched(0);
  Run(worker, absl::Seconds(40));
  SendSteps(worker, 1, 20, 3);
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 1);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EndWorker(worker, 0);
  Settle();
  StopDaemon();
  StartDaemon(2);
  const auto counters = store_->Await([](const Database& database) { return database.Counters(); });
  ASSERT_TRUE(counters.ok()) << counters.status();
  metrics_->Restore(*counters, {});
  ExpectSeconds("wasted", "ann", 0);
  SubmitOf("bob");
  SubmitOf("ann");
  auto of_bob = AttachLaunched(1), of_ann = AttachLaunched(2);
  Advance(absl::Seconds(20));
  SendSteps(of_bob, 1, 1, 0);
  SendSteps(of_ann, 1, 1, 0);
  Settle();
  ExpectSeconds("useful", "bob", 20);
  ExpectSeconds("useful", "ann", 40 + 14);
  ExpectSeconds("wasted", "ann", 6);
  ExpectUsd("wasted", "ann", 0.06);
  Advance(absl::Seconds(20));
  SendSteps(of_ann, 2, 2, 0);
  Settle();
  ExpectSeconds("wasted", "ann", 6);
}

TEST_F(ControllerUseTest, ItSurvivesARestart) {
  SubmitOf("ann");
  auto worker = AttachLaunched(0);
  Run(worker, absl::Seconds(60));
  SendSteps(worker, 1, 20, 0);
  Settle();
  ExpectSeconds("useful", "ann", 60);
  ExpectSeconds("idle", "", 60);
  StopDaemon();
  StartDaemon(2);
  const auto counters = store_->Await([](const Database& database) { return database.Counters(); });
  ASSERT_TRUE(counters.ok()) << counters.status();
  metrics_->Restore(*counters, {});
  ExpectSeconds("useful", "ann", 60);
  ExpectSeconds("idle", "", 60);
}

TEST_F(ControllerUseTest, TimeWithoutADaemonIsPaidForAlsoWhenTheNextEndsSoon) {
  CreateJobParams params = Params();
  params.user = "ann";
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  SendSteps(worker, 1, 20, 0);
  Settle();
  StopDaemon();
  clock_.Advance(absl::Seconds(100));
  StartDaemon(2);
  WaitFor(id, v1::Job::RECOVERING);
  StopDaemon();
  launcher_.End(launcher_.Wait(0).id, {-1, 9});
  StartDaemon(2);
  Settle();
  EXPECT_NEAR(Get(id)->cost_usd(), 1, 1e-6);
  const auto counters = store_->Await([](const Database& database) { return database.Counters(); });
  ASSERT_TRUE(counters.ok()) << counters.status();
  metrics_->Restore(*counters, {});
  ExpectSeconds("useful", "ann", 100);
}

TEST_F(ControllerUseTest, OfASharedDeviceAPartIsPaidForAlsoWithoutADaemon) {
  StopDaemon();
  v1::Device cpu;
  cpu.set_id("cpu-0");
  cpu.set_kind(v1::Device::CPU);
  cpu.set_threads(2);
  cpu.set_memory_total_bytes(int64_t{8} << 30);
  StartDaemonOn({cpu});
  CreateJobParams params = Params();
  params.user = "ann";
  params.spec.mutable_resources()->set_share(true);
  params.plan.set_parameter_bytes(int64_t{1} << 30);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  Run(worker, absl::Seconds(100));
  SendSteps(worker, 1, 20, 0);
  Settle();
  const auto counted = [&](const char* counter) {
    const auto counters = store_->Await([](const Database& database) { return database.Counters(); });
    EXPECT_TRUE(counters.ok()) << counters.status();
    return counters->at(UseCounter(counter, kUseful, "ann"));
  };
  // What it plans and half a GiB for its process, of 8 GiB.
  EXPECT_NEAR(counted(kDeviceSecondsCounter), 100 * 1.5 / 8, 1e-6);
  EXPECT_NEAR(Get(id)->cost_usd(), 1.5 / 8, 1e-6);
  StopDaemon();
  clock_.Advance(absl::Seconds(100));
  StartDaemonOn({cpu});
  WaitFor(id, v1::Job::RECOVERING);
  EXPECT_NEAR(counted(kDeviceSecondsCounter), 200 * 1.5 / 8, 1e-6);
  EXPECT_NEAR(counted(kCostCounter), 2 * 1.5 / 8, 1e-6);
  EXPECT_NEAR(Get(id)->cost_usd(), 2 * 1.5 / 8, 1e-6);
}

TEST_F(ControllerUseTest, WhatJobsThatShareCostIsWhatTheFleetDoes) {
  StopDaemon();
  v1::Device cpu;
  cpu.set_id("cpu-0");
  cpu.set_kind(v1::Device::CPU);
  cpu.set_threads(2);
  cpu.set_memory_total_bytes(int64_t{8} << 30);
  StartDaemonOn({cpu});
  CreateJobParams params = Params();
  params.user = "ann";
  params.spec.mutable_resources()->set_share(true);
  params.spec.mutable_limits()->set_max_cost_usd(0.25);
  params.plan.set_parameter_bytes(int64_t{1} << 30);
  const std::string small = Submit(params);
  params.plan.set_parameter_bytes(int64_t{2} << 30);
  const std::string large = Submit(params);
  auto first = AttachLaunched(0), second = AttachLaunched(1);
  for (int i = 0; i < 3; ++i) {
    Advance(absl::Seconds(20));
    SendHeartbeat(first);
    SendHeartbeat(second);
  }
  // Skips of 30 seconds, of which each pays its part.
  SendSteps(first, 1, 30, 15);
  SendSteps(second, 1, 30, 0);
  Advance(absl::Seconds(19));
  EXPECT_FALSE(second->WasToldToStop());
  SendHeartbeat(first);
  SendHeartbeat(second);
  Advance(absl::Seconds(1));
  EXPECT_TRUE(second->WaitForStop()) << "2.5 of 8 GiB for 80 seconds, at a cent for all of it";
  EXPECT_FALSE(first->WasToldToStop());
  for (const auto& [worker, launch] : {std::pair(first, 0), std::pair(second, 1)}) {
    SendFinished(worker, launch == 0 ? v1::WorkerFinished::SUCCEEDED : v1::WorkerFinished::STOPPED, 1);
    EXPECT_TRUE(worker->WaitForGoodbye());
    EndWorker(worker, static_cast<size_t>(launch));
  }
  Settle();
  EXPECT_NEAR(Get(small)->cost_usd(), 0.8 * 1.5 / 8, 1e-6);
  EXPECT_NEAR(Get(large)->cost_usd(), 0.8 * 2.5 / 8, 1e-6);
  EXPECT_NEAR(Get(small)->wasted_usd(), 0.3 * 1.5 / 8, 1e-6);
  const auto counters = store_->Await([](const Database& database) { return database.Counters(); });
  ASSERT_TRUE(counters.ok()) << counters.status();
  double fleet = 0;
  for (const char* use : {kUseful, kWasted}) {
    const auto found = counters->find(UseCounter(kCostCounter, use, "ann"));
    fleet += found == counters->end() ? 0 : found->second;
  }
  EXPECT_NEAR(fleet, Get(small)->cost_usd() + Get(large)->cost_usd(), 1e-6);
  // What no job pays for is there, too: the device costs a cent a second whoever has it.
  Advance(absl::Minutes(1));
  Advance(absl::Minutes(1));
  Settle();
  const auto all = store_->Await([](const Database& database) { return database.Counters(); });
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_NEAR(fleet + all->at(UseCounter(kCostCounter, kIdle, "")), 0.8 + 1.2, 1e-6);
}

TEST(UseMetricsTest, UsersBeyondTheFirstHundredAreOthers) {
  FakeClock clock;
  Metrics metrics("0", &clock);
  for (int user = 0; user < 300; ++user) {
    metrics.AddToCounters({{UseCounter(kDeviceSecondsCounter, kUseful, absl::StrCat("user|", user)), 1}});
  }
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, ::testing::HasSubstr("ampd_device_seconds_total{use=\"useful\",user=\"(other)\"} 200\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("user=\"user|7\"} 1\n"));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("user=\"user|100\"")));
}

}  // namespace
}  // namespace ampd
