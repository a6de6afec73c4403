// A worker that says what it likes to the controller, and a daemon that does to a worker. The input is a row of
// records: what to do, the length of what follows (2 bytes, least significant first), and a message in protobuf's wire
// form.
//
// Whatever was said, the daemon answers, the job ends when it is cancelled and its process is gone, and its events are
// numbered without gaps.
#include <filesystem>
#include <future>
#include <optional>

#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "server/worker/link_protocol.h"
#include "tests/fuzz/input.h"
#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd::fuzz {
namespace {

// Jobs of one daemon before it starts over with an empty store.
constexpr int kJobs = 200;
constexpr int kMaxRecords = 40;

template <typename T, typename Call>
absl::StatusOr<T> Await(Call call) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<T>>>();
  auto future = promise->get_future();
  call([promise](absl::StatusOr<T> result) { promise->set_value(std::move(result)); });
  Check(future.wait_for(kDeadline) == std::future_status::ready, "the controller does not answer");
  return future.get();
}

// One daemon without gRPC and processes.
class TestDaemon {
 public:
  TestDaemon() : directory_(Folder() + "/state") {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    Store::Options options;
    options.state_dir = directory_;
    auto store = Store::Open(std::move(options));
    Check(store.ok(), store.status().ToString());
    store_ = *std::move(store);
    log_ = std::make_unique<EventLog>(store_.get());
    log_->SetListener([this](const JobWrite& write) { metrics_.OnWrite(write); });
    ControllerOptions controller;
    controller.checkpoint_root = "/checkpoints";
    controller.artifact_root = "/artifacts";
    controller.devices.emplace_back().set_id("cpu-0");
    controller.devices.back().set_kind(v1::Device::CPU);
    auto started = Controller::Start(std::move(controller), store_.get(), log_.get(), &launcher_, &metrics_, &clock_);
    Check(started.ok(), started.status().ToString());
    controller_ = *std::move(started);
    launcher_.Report([this](WorkerProcess process, WorkerExit exit) { controller_->WorkerExited(process, exit); });
  }
  ~TestDaemon() {
    launcher_.Report(nullptr);
    controller_.reset();
    log_.reset();
    store_.reset();
  }

  Controller& controller() { return *controller_; }
  void Advance(int64_t seconds) { clock_.Advance(absl::Seconds(seconds)); }

  std::string Submit() {
    CreateJobParams params;
    params.spec.set_name("fuzzed");
    params.spec.mutable_train()->set_batch_size(32);
    params.spec.mutable_retry()->set_max_attempts(2);
    const auto job = Await<v1::Job>([&](auto done) { controller_->CreateJob(std::move(params), std::move(done)); });
    Check(job.ok(), job.status().ToString());
    ++jobs_;
    return job->id();
  }

  v1::Job Get(const std::string& id) {
    const auto job = Await<v1::Job>([&](auto done) { controller_->GetJob(id, std::move(done)); });
    Check(job.ok(), job.status().ToString());
    return *job;
  }

  // The hello that the newest process was told to say.
  v1::WorkerHello Hello() {
    const FakeLauncher::Process process = launcher_.Wait(launcher_.launches() == 0 ? 0 : launcher_.launches() - 1);
    v1::WorkerHello hello;
    hello.set_min_protocol(kMinProtocol);
    hello.set_max_protocol(kMaxProtocol);
    hello.set_job_id(process.request.job_id);
    hello.set_attempt(process.request.attempt);
    hello.set_credential(process.request.one_time_token);
    hello.set_pid(static_cast<int32_t>(process.id.pid));
    return hello;
  }
  void WaitForLaunch() { launcher_.Wait(ended_); }

  // Cancels the job and ends every process, until it has ended.
  void End(const std::string& id) {
    (void)Await<v1::Job>([&](auto done) { controller_->CancelJob(id, false, std::move(done)); });
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (!IsTerminal(Get(id).state())) {
      for (; ended_ < launcher_.launches(); ++ended_) launcher_.End(launcher_.Wait(ended_).id, WorkerExit{0, 0});
      Advance(1);
      Check(std::chrono::steady_clock::now() < deadline, "the job does not end: " + Get(id).ShortDebugString());
    }
    for (; ended_ < launcher_.launches(); ++ended_) launcher_.End(launcher_.Wait(ended_).id, WorkerExit{0, 0});
    CheckEvents(id);
  }

  int jobs() const { return jobs_; }

 private:
  void CheckEvents(const std::string& id) {
    const auto page = log_->Read(id, 0, 100000);
    Check(page.ok(), page.status().ToString());
    uint64_t last = 0;
    for (const v1::JobEvent& event : page->events) {
      Check(event.first_sequence() == last + 1 && event.sequence() > last, absl::StrCat("a gap after event ", last));
      last = event.sequence();
    }
    Check(Get(id).last_sequence() == last, "events that the job does not count");
  }

  const std::string directory_;
  FakeClock clock_;
  FakeLauncher launcher_;
  std::unique_ptr<Store> store_;
  Metrics metrics_{"0", &clock_};
  std::unique_ptr<EventLog> log_;
  std::unique_ptr<Controller> controller_;
  size_t ended_ = 0;
  int jobs_ = 0;
};

TestDaemon& Daemon() {
  static std::optional<TestDaemon> daemon;
  if (!daemon || daemon->jobs() >= kJobs) {
    daemon.reset();
    daemon.emplace();
  }
  return *daemon;
}

// One input's job, its connection and the worker's own side of a link.
class Session {
 public:
  explicit Session(TestDaemon& daemon)
      : daemon_(daemon),
        id_(daemon.Submit()),
        outbox_(OutboxLimits(), Folder() + "/spool", [] {}),
        link_({}, &outbox_) {
    daemon_.WaitForLaunch();
    Attach(daemon_.Hello());
    link_.Connected();
  }

  void Do(uint8_t what, const std::string& bytes) {
    if (what % 8 == 0) Advance(bytes);
    if (what % 8 == 1) Attach(Parsed<v1::WorkerHello>(bytes, daemon_.Hello()));
    if (what % 8 == 2) Disconnect();
    if (what % 8 == 3) ToWorker(Parsed<v1::DaemonMessage>(bytes, {}));
    if (what % 8 == 4) Ask(bytes);
    if (what % 8 >= 5) daemon_.controller().WorkerMessage(connection_, Parsed<v1::WorkerMessage>(bytes, {}));
  }

  void End() {
    Disconnect();
    daemon_.End(id_);
  }

 private:
  // `bytes` merged into `message`, as far as they can be read.
  template <typename Message>
  static Message Parsed(const std::string& bytes, Message message) {
    Message read;
    if (read.ParseFromString(bytes)) message.MergeFrom(read);
    return message;
  }

  void Attach(const v1::WorkerHello& hello) {
    Disconnect();
    connection_ = std::make_shared<FakeConnection>();
    daemon_.controller().WorkerAttached(hello, connection_);
  }
  void Disconnect() {
    if (connection_ != nullptr) daemon_.controller().WorkerDisconnected(connection_);
    connection_ = std::make_shared<FakeConnection>();
  }
  void Advance(const std::string& bytes) {
    daemon_.Advance(bytes.empty() ? 1 : static_cast<uint8_t>(bytes[0]));
    daemon_.Get(id_);
  }
  void Ask(const std::string& bytes) {
    const auto list = Parsed<v1::ListJobsRequest>(bytes, {});
    CheckError(Await<v1::ListJobsResponse>([&](auto done) { daemon_.controller().ListJobs(list, done); }).status());
    CheckError(Await<v1::Job>([&](auto done) { daemon_.controller().GetJob(bytes, done); }).status());
  }
  void ToWorker(const v1::DaemonMessage& message) {
    v1::JobEvent event;
    event.mutable_log()->set_text("x");
    CheckError(outbox_.Append(event));
    CheckError(link_.NextMessage().status());
    if (!link_.OnMessage(message).ok()) link_.Connected();
    link_.TakeCommands();
  }

  TestDaemon& daemon_;
  const std::string id_;
  EventOutbox outbox_;
  LinkProtocol link_;
  std::shared_ptr<FakeConnection> connection_;
};

}  // namespace
}  // namespace ampd::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd::fuzz;
  static const auto silent = google::protobuf::SetLogHandler(nullptr);
  (void)silent;
  Session session(Daemon());
  for (int records = 0; size >= 3 && records < kMaxRecords; ++records) {
    const size_t length = std::min<size_t>(data[1] | data[2] << 8, size - 3);
    session.Do(data[0], std::string(reinterpret_cast<const char*>(data) + 3, length));
    data += 3 + length;
    size -= 3 + length;
  }
  session.End();
  return 0;
}
