// A whole worker with a scripted trainer against a scripted daemon over a real unix socket.
#include "server/worker/worker.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ampd/v1/worker_link.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/launch/socket_address.h"
#include "tests/unit/server/worker/fake_trainer.h"

namespace ampd {
namespace {

using Stream = grpc::ServerReaderWriter<v1::DaemonMessage, v1::WorkerMessage>;
using Script = std::function<grpc::Status(Stream&)>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Plays one script a connection, in order; connections beyond are UNAVAILABLE.
class ScriptedDaemon final : public v1::WorkerLink::Service {
 public:
  explicit ScriptedDaemon(std::vector<Script> scripts) : scripts_(std::move(scripts)) {}

  grpc::Status Attach(grpc::ServerContext*, Stream* stream) override {
    Script script;
    {
      const std::lock_guard lock(mutex_);
      if (next_ == scripts_.size()) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "no more scripts");
      script = scripts_[next_++];
    }
    const grpc::Status status = script(*stream);
    const std::lock_guard lock(mutex_);
    ++ended_;
    changed_.notify_all();
    return status;
  }

  // Until every script that began has ended: what they wrote can be read then.
  void AwaitScripts() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_ == next_; });
  }

  size_t played() {
    const std::lock_guard lock(mutex_);
    return next_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Script> scripts_;
  size_t next_ = 0;
  size_t ended_ = 0;
};

v1::WorkerMessage Read(Stream& stream) {
  v1::WorkerMessage message;
  do {
    if (!stream.Read(&message)) return v1::WorkerMessage();
  } while (message.has_heartbeat());
  return message;
}

v1::DaemonMessage Welcome(uint64_t acknowledged = 0) {
  v1::DaemonMessage message;
  v1::DaemonWelcome& welcome = *message.mutable_welcome();
  welcome.set_protocol(1);
  welcome.set_session_key("key");
  welcome.set_reattach_timeout_seconds(600);
  welcome.set_acknowledged_number(acknowledged);
  welcome.set_cpu_threads(3);
  welcome.add_devices("cpu-4");
  welcome.add_devices("cpu-7");
  welcome.set_checkpoint_dir("/checkpoints");
  welcome.set_artifact_dir("/artifacts");
  welcome.set_upload_dir("/uploads");
  welcome.set_last_reported_step(42);
  welcome.set_last_checkpoint("step-000000040");
  v1::JobSpec& spec = *welcome.mutable_spec();
  spec.mutable_model()->add_layers()->mutable_dense()->set_units(10);
  spec.mutable_model()->mutable_loss()->mutable_softmax_cross_entropy();
  spec.mutable_data()->mutable_train()->mutable_glyphs();
  return message;
}

v1::DaemonMessage Goodbye() {
  v1::DaemonMessage message;
  message.mutable_goodbye();
  return message;
}

v1::DaemonMessage Command(v1::DaemonCommand::Kind kind) {
  v1::DaemonMessage message;
  message.mutable_command()->set_kind(kind);
  return message;
}

class WorkerTest : public testing::Test {
 protected:
  WorkerTest() {
    options_.work_dir = testing::TempDir();
    options_.identity = {"job", 1, "token", 99};
    options_.first_backoff = std::chrono::milliseconds(5);
    options_.last_backoff = std::chrono::milliseconds(20);
    options_.heartbeat_period = std::chrono::milliseconds(20);
    address_ = std::make_unique<SocketAddress>(
        SocketAddress::Open(testing::TempDir(), "worker_test_" + std::to_string(getpid()) + ".sock").value());
    options_.daemon_uri = address_->uri();
  }

  void Serve(std::vector<Script> scripts) {
    daemon_ = std::make_unique<ScriptedDaemon>(std::move(scripts));
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_->uri(), grpc::InsecureServerCredentials());
    builder.RegisterService(daemon_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  WorkerExitCode Run(FakeTrainer::Body body) {
    Worker worker(options_,
                  [&](const ResolvedJobSpec& spec, const train::TrainerOptions& options,
                      train::TrainerObserver* observer) -> absl::StatusOr<std::unique_ptr<train::Trainer>> {
                    spec_ = spec.proto();
                    trainer_options_ = options;
                    return std::make_unique<FakeTrainer>(body, observer);
                  });
    const WorkerExitCode code = worker.Run();
    if (daemon_ != nullptr) daemon_->AwaitScripts();
    return code;
  }

  WorkerOptions options_;
  std::unique_ptr<SocketAddress> address_;
  std::unique_ptr<ScriptedDaemon> daemon_;
  std::unique_ptr<grpc::Server> server_;
  v1::JobSpec spec_;
  train::TrainerOptions trainer_options_;
};

TEST_F(WorkerTest, TrainsWhatItIsAssignedAndReports) {
  std::vector<std::string> seen;
  v1::WorkerFinished finished;
  Serve({[&](Stream& stream) {
    EXPECT_EQ(Read(stream).hello().credential(), "token");
    stream.Write(Welcome());
    for (int i = 0; i < 2; ++i) seen.push_back(Read(stream).event().event().log().text());
    finished = Read(stream).finished();
    stream.Write(Goodbye());
    return grpc::Status::OK;
  }});
  EXPECT_EQ(Run([](FakeTrainer& trainer) {
              EXPECT_TRUE(trainer.Emit("a").ok());
              EXPECT_TRUE(trainer.Emit("b").ok());
              return train::Outcome::kCompleted;
            }),
            kWorkerReported);
  EXPECT_THAT(seen, ElementsAre("a", "b"));
  EXPECT_EQ(finished.outcome(), v1::WorkerFinished::SUCCEEDED);
  EXPECT_EQ(finished.last_event_number(), 2u);
  EXPECT_TRUE(spec_.model().layers(0).has_dense());
  EXPECT_EQ(trainer_options_.threads, 3);
  EXPECT_THAT(trainer_options_.devices, ElementsAre("cpu-4", "cpu-7"));
  EXPECT_EQ(trainer_options_.checkpoint_dir, "/checkpoints");
  EXPECT_EQ(trainer_options_.artifact_dir, "/artifacts");
  EXPECT_EQ(trainer_options_.autotune_dir, options_.work_dir);
  EXPECT_EQ(trainer_options_.upload_dir, "/uploads");
  EXPECT_EQ(trainer_options_.last_reported_step, 42);
  EXPECT_EQ(trainer_options_.last_checkpoint, "step-000000040");
}

TEST_F(WorkerTest, HoldsNoCheckpointOnceTheDaemonKnowsOfTheSuccess) {
  for (const auto outcome : {train::Outcome::kCompleted, train::Outcome::kStopped}) {
    std::atomic<bool> dropped = false;
    bool before = true;
    Serve({[&](Stream& stream) {
      Read(stream);
      stream.Write(Welcome());
      EXPECT_TRUE(Read(stream).has_finished());
      before = dropped;
      stream.Write(Goodbye());
      return grpc::Status::OK;
    }});
    EXPECT_EQ(Run([&](FakeTrainer& trainer) {
                trainer.on_drop = [&dropped] { dropped = true; };
                return outcome;
              }),
              kWorkerReported);
    EXPECT_FALSE(before);
    EXPECT_EQ(dropped, outcome == train::Outcome::kCompleted);
    server_->Shutdown();
  }
}

TEST_F(WorkerTest, TellsFirstWhatItComputesWith) {
  options_.engine_version = "0.1.0+g1a2b3c4";
  v1::WorkerEvent first;
  Serve({[&](Stream& stream) {
    Read(stream);
    v1::DaemonMessage welcome = Welcome();
    for (const char* name : {"One", "Another"}) welcome.mutable_welcome()->add_device_names(name);
    stream.Write(welcome);
    first = Read(stream).event();
    EXPECT_EQ(Read(stream).event().event().log().text(), "training");
    EXPECT_EQ(Read(stream).finished().last_event_number(), 2u);
    stream.Write(Goodbye());
    return grpc::Status::OK;
  }});
  EXPECT_EQ(Run([](FakeTrainer& trainer) {
              EXPECT_TRUE(trainer.Emit("training").ok());
              return train::Outcome::kCompleted;
            }),
            kWorkerReported);
  EXPECT_EQ(first.number(), 1u);
  EXPECT_GT(first.event().time().seconds(), 0);
  const v1::AttemptEnvironment& environment = first.event().environment();
  EXPECT_EQ(environment.engine_version(), "0.1.0+g1a2b3c4");
  EXPECT_THAT(environment.devices(), ElementsAre("One", "Another"));
  EXPECT_EQ(environment.cpu_threads(), 3);
  EXPECT_EQ(environment.libraries().count("onednn"), 1u);
  EXPECT_NE(environment.instruction_set(), "");
}

TEST_F(WorkerTest, TellsWhyItEndedEarly) {
  for (const auto outcome : {train::Outcome::kCompleted, train::Outcome::kStopped}) {
    v1::WorkerFinished finished;
    Serve({[&](Stream& stream) {
      Read(stream);
      stream.Write(Welcome());
      finished = Read(stream).finished();
      stream.Write(Goodbye());
      return grpc::Status::OK;
    }});
    EXPECT_EQ(Run([&](FakeTrainer& trainer) {
                trainer.reason = "it learns no more";
                return outcome;
              }),
              kWorkerReported);
    const bool completed = outcome == train::Outcome::kCompleted;
    EXPECT_EQ(finished.outcome(), completed ? v1::WorkerFinished::SUCCEEDED : v1::WorkerFinished::STOPPED);
    EXPECT_EQ(finished.reason(), completed ? "it learns no more" : "");
    server_->Shutdown();
  }
}

TEST_F(WorkerTest, ReconnectsWithItsSessionKeyAndResends) {
  std::vector<uint64_t> numbers;
  Serve({[&](Stream& stream) {
           Read(stream);
           stream.Write(Welcome());
           numbers.push_back(Read(stream).event().number());
           return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the daemon restarts");
         },
         [&](Stream& stream) {
           EXPECT_EQ(Read(stream).hello().credential(), "key");
           stream.Write(Welcome());
           numbers.push_back(Read(stream).event().number());
           EXPECT_TRUE(Read(stream).has_finished());
           return grpc::Status(grpc::StatusCode::UNAVAILABLE, "and again, before goodbye");
         },
         [&](Stream& stream) {
           Read(stream);
           stream.Write(Welcome(1));
           EXPECT_TRUE(Read(stream).has_finished());
           stream.Write(Goodbye());
           return grpc::Status::OK;
         }});
  int runs = 0;
  EXPECT_EQ(Run([&](FakeTrainer& trainer) {
              ++runs;
              EXPECT_TRUE(trainer.Emit("once").ok());
              return train::Outcome::kCompleted;
            }),
            kWorkerReported);
  EXPECT_THAT(numbers, ElementsAre(1, 1));
  EXPECT_EQ(runs, 1);
}

v1::JobEvent Saved(const std::string& name) {
  v1::JobEvent event;
  event.mutable_checkpoint()->set_checkpoint(name);
  return event;
}

TEST_F(WorkerTest, ACheckpointIsPublishedOnceItsEventIsAcknowledged) {
  Serve({[&](Stream& stream) {
    Read(stream);
    stream.Write(Welcome());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Read(stream).event().number(), i + 1u);
    v1::DaemonMessage acknowledgement;
    acknowledgement.set_acknowledged_number(2);
    stream.Write(acknowledgement);
    stream.Write(Command(v1::DaemonCommand::CHECKPOINT));
    EXPECT_TRUE(Read(stream).has_finished());
    stream.Write(Goodbye());
    return grpc::Status::OK;
  }});
  EXPECT_EQ(Run([&](FakeTrainer& trainer) {
              EXPECT_TRUE(trainer.Emit(Saved("a")).ok());
              EXPECT_EQ(trainer_options_.published_checkpoint(), "");
              EXPECT_TRUE(trainer.Emit("between").ok());
              EXPECT_TRUE(trainer.Emit(Saved("b")).ok());
              trainer.AwaitCommands(1);
              EXPECT_EQ(trainer_options_.published_checkpoint(), "a");
              return train::Outcome::kCompleted;
            }),
            kWorkerReported);
}

TEST_F(WorkerTest, ObeysCommands) {
  v1::WorkerFinished finished;
  Serve({[&](Stream& stream) {
    Read(stream);
    stream.Write(Welcome());
    v1::DaemonMessage profile = Command(v1::DaemonCommand::PROFILE);
    profile.mutable_command()->set_profile_steps(30);
    profile.mutable_command()->set_profile_kernels(true);
    stream.Write(profile);
    stream.Write(Command(v1::DaemonCommand::CHECKPOINT));
    stream.Write(Command(v1::DaemonCommand::CHECKPOINT_AND_STOP));
    finished = Read(stream).finished();
    stream.Write(Goodbye());
    return grpc::Status::OK;
  }});
  std::vector<train::Command> commands;
  EXPECT_EQ(Run([&](FakeTrainer& trainer) {
              commands = trainer.AwaitCommands(2);
              const train::ProfileRequest profile = trainer.AwaitProfiles(1)[0];
              EXPECT_EQ(profile.steps, 30);
              EXPECT_TRUE(profile.kernels);
              return train::Outcome::kStopped;
            }),
            kWorkerReported);
  EXPECT_THAT(commands, ElementsAre(train::Command::kCheckpoint, train::Command::kCheckpointAndStop));
  EXPECT_EQ(finished.outcome(), v1::WorkerFinished::STOPPED);
}

TEST_F(WorkerTest, ReportsAFailureWithItsClass) {
  v1::Failure failure;
  Serve({[&](Stream& stream) {
    Read(stream);
    stream.Write(Welcome());
    failure = Read(stream).finished().failure();
    stream.Write(Goodbye());
    return grpc::Status::OK;
  }});
  EXPECT_EQ(Run([](FakeTrainer&) { return absl::DataLossError("sample 7 holds NaN"); }), kWorkerReported);
  EXPECT_EQ(failure.class_(), v1::Failure::DATA);
  EXPECT_EQ(failure.message(), "sample 7 holds NaN");
}

TEST_F(WorkerTest, ASpecThatDoesNotResolveNeverReachesTheTrainer) {
  v1::WorkerFinished finished;
  Serve({[&](Stream& stream) {
    Read(stream);
    v1::DaemonMessage welcome = Welcome();
    welcome.mutable_welcome()->mutable_spec()->mutable_train()->set_batch_size(0);
    stream.Write(welcome);
    finished = Read(stream).finished();
    stream.Write(Goodbye());
    return grpc::Status::OK;
  }});
  EXPECT_EQ(Run([](FakeTrainer&) {
              ADD_FAILURE() << "trained";
              return train::Outcome::kCompleted;
            }),
            kWorkerReported);
  EXPECT_EQ(finished.failure().class_(), v1::Failure::INVALID_SPEC);
  EXPECT_THAT(finished.failure().message(), HasSubstr("batch_size"));
}

TEST_F(WorkerTest, StopsAtOnceWhenTheAttemptIsStale) {
  for (const auto code : {grpc::StatusCode::UNAUTHENTICATED, grpc::StatusCode::FAILED_PRECONDITION,
                          grpc::StatusCode::PERMISSION_DENIED, grpc::StatusCode::NOT_FOUND}) {
    Serve({[&](Stream& stream) {
             Read(stream);
             stream.Write(Welcome());
             return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restart");
           },
           [&](Stream& stream) {
             Read(stream);
             return grpc::Status(code, "another attempt owns the job");
           }});
    // Training goes on until the worker's end asks it to stop, which main() does not wait for.
    EXPECT_EQ(Run([](FakeTrainer& trainer) {
                trainer.AwaitCommands(1);
                return train::Outcome::kStopped;
              }),
              kWorkerStale);
    server_->Shutdown();
  }
}

TEST_F(WorkerTest, CheckpointsAndExitsWhenNoDaemonComesBack) {
  Serve({[&](Stream& stream) {
    Read(stream);
    v1::DaemonMessage welcome = Welcome();
    welcome.mutable_welcome()->set_reattach_timeout_seconds(1);
    stream.Write(welcome);
    EXPECT_EQ(Read(stream).event().number(), 1u);
    v1::DaemonMessage acknowledgement;
    acknowledgement.set_acknowledged_number(1);
    stream.Write(acknowledgement);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restart");
  }});
  std::vector<train::Command> commands;
  std::atomic<bool> left = false;
  EXPECT_EQ(Run([&](FakeTrainer& trainer) {
              trainer.on_leave = [&left] { left = true; };
              EXPECT_EQ(trainer_options_.attempt, 1);
              EXPECT_TRUE(trainer.Emit(Saved("told")).ok());
              commands = trainer.AwaitCommands(1);
              // Nor will a daemon ever know of it.
              EXPECT_TRUE(trainer.Emit(Saved("alone")).ok());
              EXPECT_EQ(trainer_options_.published_checkpoint(), "told");
              return train::Outcome::kStopped;
            }),
            kWorkerOrphaned);
  EXPECT_THAT(commands, ElementsAre(train::Command::kCheckpointAndStop));
  EXPECT_TRUE(left) << "to the next attempt";
}

// Of a daemon whose database was restored from an older copy.
TEST_F(WorkerTest, LeavesItsCheckpointWhenTheDaemonForgotEvents) {
  for (const train::Outcome outcome : {train::Outcome::kStopped, train::Outcome::kCompleted}) {
    std::atomic<bool> left = false;
    bool dropped = false;
    v1::WorkerFinished finished;
    Serve({[&](Stream& stream) {
             Read(stream);
             stream.Write(Welcome());
             EXPECT_EQ(Read(stream).event().number(), 1u);
             EXPECT_EQ(Read(stream).event().number(), 2u);
             v1::DaemonMessage acknowledgement;
             acknowledgement.set_acknowledged_number(2);
             stream.Write(acknowledgement);
             stream.Write(Command(v1::DaemonCommand::CHECKPOINT));
             return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restart");
           },
           [&](Stream& stream) {
             Read(stream);
             stream.Write(Welcome(1));
             finished = Read(stream).finished();
             EXPECT_TRUE(left) << "before the next attempt can begin";
             stream.Write(Goodbye());
             return grpc::Status::OK;
           }});
    EXPECT_EQ(Run([&](FakeTrainer& trainer) {
                trainer.on_leave = [&left] { left = true; };
                trainer.on_drop = [&dropped] { dropped = true; };
                EXPECT_TRUE(trainer.Emit(Saved("told")).ok());
                EXPECT_TRUE(trainer.Emit("more").ok());
                trainer.AwaitCommands(1);
                EXPECT_TRUE(trainer.Emit("and more").ok());
                // It completes of itself, or stops when it is told to.
                if (outcome == train::Outcome::kStopped) trainer.AwaitCommands(2);
                return outcome;
              }),
              kWorkerReported);
    EXPECT_EQ(finished.outcome(), v1::WorkerFinished::STOPPED);
    EXPECT_EQ(finished.last_event_number(), 1u);
    EXPECT_FALSE(dropped);
    server_->Shutdown();
  }
}

TEST_F(WorkerTest, GivesUpWhenThereNeverWasADaemon) {
  options_.first_attach_timeout = std::chrono::milliseconds(50);
  EXPECT_EQ(Run([](FakeTrainer&) { return train::Outcome::kCompleted; }), kWorkerOrphaned);
}

TEST_F(WorkerTest, TheStopSignalStopsAfterACheckpoint) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  options_.stop_fd = fds[0];
  v1::WorkerFinished finished;
  Serve({[&](Stream& stream) {
    Read(stream);
    stream.Write(Welcome());
    EXPECT_EQ(write(fds[1], "x", 1), 1);
    finished = Read(stream).finished();
    stream.Write(Goodbye());
    return grpc::Status::OK;
  }});
  EXPECT_EQ(Run([](FakeTrainer& trainer) {
              EXPECT_THAT(trainer.AwaitCommands(1), ElementsAre(train::Command::kCheckpointAndStop));
              return train::Outcome::kStopped;
            }),
            kWorkerReported);
  EXPECT_EQ(finished.outcome(), v1::WorkerFinished::STOPPED);
  close(fds[0]);
  close(fds[1]);
}

TEST_F(WorkerTest, HeartbeatsTellStepEvaluationsAndUse) {
  v1::WorkerHeartbeat heartbeat;
  std::promise<void> beaten;
  Serve({[&](Stream& stream) {
    Read(stream);
    stream.Write(Welcome());
    v1::WorkerMessage message;
    while (heartbeat.step() != 5 && stream.Read(&message)) {
      if (message.has_heartbeat()) heartbeat = message.heartbeat();
    }
    beaten.set_value();
    EXPECT_TRUE(Read(stream).has_finished());
    stream.Write(Goodbye());
    return grpc::Status::OK;
  }});
  EXPECT_EQ(Run([&](FakeTrainer&) {
              beaten.get_future().wait();
              return train::Outcome::kCompleted;
            }),
            kWorkerReported);
  EXPECT_EQ(heartbeat.evaluated_samples(), 640);
  EXPECT_GT(heartbeat.resident_bytes(), 1 << 20);
  EXPECT_GT(heartbeat.cpu_seconds(), 0);
}

}  // namespace
}  // namespace ampd
