#include "tests/bench/service_load/synthetic_worker.h"

#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "engine/train/trainer.h"
#include "server/launch/socket_address.h"
#include "server/launch/worker_contract.h"
#include "server/worker/worker.h"
#include "tests/bench/service_load/load_daemon.h"

namespace ampd::load {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(100);

class SyntheticTrainer final : public train::Trainer {
 public:
  SyntheticTrainer(bool ticks, train::TrainerObserver* observer) : ticks_(ticks), observer_(observer) {}

  absl::StatusOr<train::Outcome> Run() override {
    absl::Time next = absl::Now();
    std::unique_lock lock(mutex_);
    while (!stopped_) {
      if (!ticks_) {
        changed_.wait(lock, [&] { return stopped_; });
        break;
      }
      next += kPeriod;
      if (changed_.wait_until(lock, absl::ToChronoTime(next), [&] { return stopped_; })) break;
      lock.unlock();
      const absl::Status sent = Tick();
      lock.lock();
      if (!sent.ok()) return sent;
    }
    return train::Outcome::kStopped;
  }
  void Request(train::Command command) override {
    const std::lock_guard lock(mutex_);
    stopped_ = stopped_ || command == train::Command::kCheckpointAndStop;
    changed_.notify_all();
  }
  void Profile(train::ProfileRequest) override {}
  int64_t step() const override { return 1; }

 private:
  absl::Status Tick() {
    v1::JobEvent event;
    const int64_t nanos = absl::ToUnixNanos(absl::Now());
    event.mutable_time()->set_seconds(nanos / 1'000'000'000);
    event.mutable_time()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
    event.mutable_log()->set_severity(v1::LogLine::INFO);
    event.mutable_log()->set_text("tick");
    return observer_->OnEvent(std::move(event));
  }

  const bool ticks_;
  train::TrainerObserver* const observer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
};

std::string ArgumentOf(int argc, char** argv, const std::string& name) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (argv[i] == name) return argv[i + 1];
  }
  return "";
}

}  // namespace

bool IsWorkerCommand(int argc, char** argv) {
  if (argc < 2) return false;
  const std::string first = argv[1];
  return first == "--plan" || first == "--export" || !ArgumentOf(argc, argv, "--socket-dir").empty();
}

int RunSyntheticWorker(int argc, char** argv) {
  const std::string socket_dir = ArgumentOf(argc, argv, "--socket-dir");
  if (socket_dir.empty()) {
    const std::string real = ProgramFolder() + "/ampd-worker";
    argv[0] = const_cast<char*>(real.c_str());
    execv(real.c_str(), argv);
    return kWorkerUsage;
  }
  const absl::StatusOr<SocketAddress> address = SocketAddress::Open(socket_dir, kWorkerSocketName);
  const char* token = getenv(kWorkerTokenVariable);
  if (!address.ok() || token == nullptr) return kWorkerUsage;
  WorkerOptions options;
  options.daemon_uri = address->uri();
  options.work_dir = ArgumentOf(argc, argv, "--work-dir");
  options.identity.job_id = ArgumentOf(argc, argv, "--job");
  options.identity.attempt = static_cast<uint32_t>(std::atoi(ArgumentOf(argc, argv, "--attempt").c_str()));
  options.identity.credential = token;
  options.identity.pid = getpid();
  Worker worker(std::move(options),
                [](const ResolvedJobSpec& spec, const train::TrainerOptions&,
                   train::TrainerObserver* observer) -> absl::StatusOr<std::unique_ptr<train::Trainer>> {
                  return std::make_unique<SyntheticTrainer>(spec.proto().name() == kTickingJob, observer);
                });
  return worker.Run();
}

}  // namespace ampd::load
