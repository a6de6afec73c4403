// Device time and dollars by use and user, as Prometheus sees them.
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
  double Seconds(const std::string& use, const std::string& user) {
    return Value(absl::StrCat("ampd_device_seconds_total{use=\"", use, "\",user=\"", user, "\"}"));
  }
  double Usd(const std::string& use, const std::string& user) {
    return Value(absl::StrCat("ampd_cost_usd_total{use=\"", use, "\",user=\"", user, "\"}"));
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
  EXPECT_NEAR(Seconds("useful", "ann"), 40, 1e-6);
  EXPECT_EQ(Seconds("wasted", "ann"), 0);
  Run(worker, absl::Seconds(20));
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 1);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EndWorker(worker, 0);
  Advance(absl::Minutes(2));
  EXPECT_NEAR(Seconds("useful", "ann"), 54, 1e-6);
  EXPECT_NEAR(Seconds("wasted", "ann"), 6, 1e-6);
  EXPECT_NEAR(Usd("useful", "ann"), 0.54, 1e-8);
  EXPECT_NEAR(Usd("wasted", "ann"), 0.06, 1e-8);
  // The other device all the time, this one since.
  const double idle = Seconds("idle", "");
  EXPECT_NEAR(idle, 180 + 120, 1e-6);
  EXPECT_NEAR(Usd("idle", ""), 3, 1e-8);
  EXPECT_NEAR(idle + Seconds("useful", "ann") + Seconds("wasted", "ann"), 2 * 180, 1e-6);
}

TEST_F(ControllerUseTest, ItSurvivesARestart) {
  SubmitOf("ann");
  auto worker = AttachLaunched(0);
  Run(worker, absl::Seconds(60));
  SendSteps(worker, 1, 20, 0);
  Settle();
  const double useful = Seconds("useful", "ann"), idle = Seconds("idle", "");
  EXPECT_NEAR(useful, 60, 1e-6);
  EXPECT_NEAR(idle, 60, 1e-6);
  StopDaemon();
  StartDaemon(2);
  const auto counters = store_->Await([](const Database& database) { return database.Counters(); });
  ASSERT_TRUE(counters.ok()) << counters.status();
  metrics_->Restore(*counters, {});
  EXPECT_NEAR(Seconds("useful", "ann"), useful, 1e-6);
  EXPECT_NEAR(Seconds("idle", ""), idle, 1e-6);
}

TEST_F(ControllerUseTest, IdleTimeOfAFullStoreIsCountedLater) {
  StopDaemon();
  StartDaemon(1, /*max_pages=*/1);
  Advance(absl::Minutes(1));
  EXPECT_EQ(Seconds("idle", ""), 0);
  store_->Read(
      [](const Database& database) { EXPECT_TRUE(const_cast<Database&>(database).SetMaxPages(1 << 20).ok()); });
  Advance(absl::Minutes(1));
  EXPECT_NEAR(Seconds("idle", ""), 120, 1e-6);
}

TEST(UseMetricsTest, UsersBeyondTheFirstHundredAreOthers) {
  FakeClock clock;
  Metrics metrics("0", &clock);
  for (int user = 0; user < 300; ++user) {
    metrics.AddToCounters({{UseCounter(kDeviceSecondsCounter, kUseful, absl::StrCat("user|", user)), 1}});
  }
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, ::testing::HasSubstr("ampd_device_seconds_total{use=\"useful\",user=\"other\"} 200\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("user=\"user|7\"} 1\n"));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("user=\"user|100\"")));
}

}  // namespace
}  // namespace ampd
