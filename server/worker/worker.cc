#include "server/worker/worker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

v1::WorkerHeartbeat Heartbeat(const Training& training) {
  v1::WorkerHeartbeat heartbeat;
  heartbeat.set_step(training.step());
  heartbeat.set_evaluated_samples(training.evaluated_samples());
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  heartbeat.set_cpu_seconds(static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                            1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec));
  int64_t size_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> size_pages >> resident_pages;
  heartbeat.set_resident_bytes(resident_pages * sysconf(_SC_PAGESIZE));
  return heartbeat;
}

// The log is opened for appending, so what follows starts at its beginning.
void BoundLog(int fd, int64_t bytes) {
  struct stat info {};
  if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= bytes) return;
  if (ftruncate(fd, 0) == 0) dprintf(fd, "[the log was emptied at %lld bytes]\n", static_cast<long long>(info.st_size));
}

void Log(absl::string_view text) {
  fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
  fflush(stderr);
}

// These say that the daemon is there and will not have this attempt; anything else may pass.
bool IsRefusal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
      return true;
    default:
      return false;
  }
}

}  // namespace

Worker::Worker(WorkerOptions options, TrainerFactory factory)
    : options_(std::move(options)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      outbox_(options_.outbox, absl::StrCat(options_.work_dir, "/spool-", options_.identity.attempt),
              [this] { Wake(); }),
      protocol_(options_.identity, &outbox_),
      training_(std::move(factory), options_.work_dir, options_.engine_version, &outbox_, [this] { Wake(); }),
      backoff_(options_.first_backoff),
      next_dial_(Clock::now()),
      last_contact_(next_dial_),
      next_heartbeat_(next_dial_) {}

Worker::~Worker() {
  stream_.reset();
  outbox_.Close(absl::CancelledError("the worker ends"));
  training_.Request(train::Command::kCheckpointAndStop);
}

void Worker::Wake() { eventfd_write(wake_fd_.get(), 1); }

WorkerExitCode Worker::Run() {
  while (true) {
    DialWhenDue();
    HeartbeatWhenDue();
    if (const auto code = Exchange()) return *code;
    StartWhenAssigned();
    ObeyCommands();
    StopWhenForgotten();
    if (const auto code = GiveUpWhenOrphaned()) return *code;
    WaitForWork();
  }
}

void Worker::DialWhenDue() {
  const auto now = Clock::now();
  if (orphaned_ || stream_ != nullptr || now < next_dial_) return;
  dialled_at_ = now;
  stream_ = std::make_unique<LinkStream>(options_.daemon_uri, [this] { Wake(); });
  protocol_.Connected();
}

std::optional<WorkerExitCode> Worker::Exchange() {
  TellFinished();
  if (stream_ == nullptr) return std::nullopt;
  // Asked before the inbox is read: what arrived before the end is then in it.
  const std::optional<absl::Status> ended = stream_->ended();
  if (const auto code = Receive()) return code;
  if (protocol_.goodbye()) return Depart();
  if (ended) return OnStreamEnd(*ended);
  // The welcome may have changed what is to be said.
  TellFinished();
  if (const auto code = Send()) return code;
  const bool overdue = !protocol_.welcomed() && Clock::now() - dialled_at_ > options_.welcome_timeout;
  if (overdue) Disconnect();
  return std::nullopt;
}

void Worker::TellFinished() {
  std::optional<v1::WorkerFinished> finished = training_.finished();
  if (!finished) return;
  // What the daemon has forgotten it has from the attempt that goes on from here, also where nothing is left to train.
  // That one may begin as soon as this is said.
  if (protocol_.forgotten() && finished->outcome() != v1::WorkerFinished::FAILED) {
    if (!std::exchange(left_, true)) LeaveCheckpoint();
    finished->set_outcome(v1::WorkerFinished::STOPPED);
  }
  protocol_.SetFinished(*finished);
}

void Worker::LeaveCheckpoint() {
  if (const absl::Status left = training_.LeaveCheckpoint(); !left.ok()) Log(left.message());
}

WorkerExitCode Worker::Depart() {
  // Some daemon said it before the training was over, which will not have what comes of it; or the next attempt goes on
  // from it.
  if (!training_.finished() || protocol_.forgotten()) return kWorkerReported;
  if (const absl::Status dropped = training_.DropHeldCheckpoint(); !dropped.ok()) Log(dropped.message());
  return kWorkerReported;
}

std::optional<WorkerExitCode> Worker::Receive() {
  for (const v1::DaemonMessage& message : stream_->TakeMessages()) {
    if (const absl::Status status = protocol_.OnMessage(message); !status.ok()) {
      Log(status.message());
      return kWorkerProtocol;
    }
  }
  if (protocol_.welcomed()) {
    last_contact_ = Clock::now();
    backoff_ = options_.first_backoff;
  }
  return std::nullopt;
}

std::optional<WorkerExitCode> Worker::Send() {
  if (!stream_->writable()) return std::nullopt;
  absl::StatusOr<std::optional<v1::WorkerMessage>> message = protocol_.NextMessage();
  if (!message.ok()) {
    // Events were lost on disk. The next attempt starts from a checkpoint, which repairs the record.
    Log(message.status().message());
    return kWorkerProtocol;
  }
  if (*message) stream_->Write(**std::move(message));
  return std::nullopt;
}

std::optional<WorkerExitCode> Worker::OnStreamEnd(const absl::Status& status) {
  Disconnect();
  if (status.code() == absl::StatusCode::kUnimplemented) {
    Log(absl::StrCat("the daemon has no worker link: ", status.message()));
    return kWorkerProtocol;
  }
  if (!IsRefusal(status)) return std::nullopt;
  Log(absl::StrCat("the daemon refused this attempt: ", status.ToString()));
  return kWorkerStale;
}

void Worker::Disconnect() {
  stream_.reset();
  next_dial_ = Clock::now() + backoff_;
  backoff_ = std::min(2 * backoff_, options_.last_backoff);
}

void Worker::StartWhenAssigned() {
  if (started_ || !protocol_.assignment()) return;
  started_ = true;
  training_.Start(*protocol_.assignment(), options_.identity.attempt);
}

void Worker::ObeyCommands() {
  for (const v1::DaemonCommand& command : protocol_.TakeCommands()) {
    const v1::DaemonCommand::Kind kind = command.kind();
    if (kind == v1::DaemonCommand::CHECKPOINT) training_.Request(train::Command::kCheckpoint);
    if (kind == v1::DaemonCommand::CHECKPOINT_AND_STOP) training_.Request(train::Command::kCheckpointAndStop);
    if (kind != v1::DaemonCommand::PROFILE) continue;
    training_.Profile({std::max<int64_t>(1, command.profile_steps()), command.profile_kernels()});
  }
  pollfd stop{options_.stop_fd, POLLIN, 0};
  if (stop_requested_ || options_.stop_fd < 0 || poll(&stop, 1, 0) != 1) return;
  stop_requested_ = true;
  training_.Request(train::Command::kCheckpointAndStop);
}

void Worker::HeartbeatWhenDue() {
  const auto now = Clock::now();
  if (now < next_heartbeat_) return;
  next_heartbeat_ = now + options_.heartbeat_period;
  protocol_.SetHeartbeat(Heartbeat(training_));
  BoundLog(options_.log_fd, options_.log_bytes);
}

std::chrono::milliseconds Worker::OrphanTimeout() const {
  if (!protocol_.assignment()) return options_.first_attach_timeout;
  return std::chrono::seconds(std::clamp<int64_t>(protocol_.assignment()->reattach_timeout_seconds(), 1, 1 << 30));
}

void Worker::StopWhenForgotten() {
  if (forgotten_ || !protocol_.forgotten()) return;
  forgotten_ = true;
  StopForGood("the daemon has an older database, which lacks events that it had acknowledged");
}

void Worker::StopForGood(absl::string_view why) {
  Log(absl::StrCat(why, ": stopping after a checkpoint"));
  // Nobody will take them, and a trainer that waits for room must reach its checkpoint.
  outbox_.Close(absl::OkStatus());
  training_.Request(train::Command::kCheckpointAndStop);
}

std::optional<WorkerExitCode> Worker::GiveUpWhenOrphaned() {
  const bool connected = stream_ != nullptr && protocol_.welcomed();
  if (!orphaned_ && !connected && Clock::now() - last_contact_ > OrphanTimeout()) {
    orphaned_ = true;
    stream_.reset();
    StopForGood("no daemon within the reattach timeout");
  }
  if (!orphaned_ || (started_ && !training_.finished())) return std::nullopt;
  LeaveCheckpoint();
  return kWorkerOrphaned;
}

void Worker::WaitForWork() {
  auto until = next_heartbeat_;
  if (stream_ == nullptr && !orphaned_) until = std::min(until, next_dial_);
  const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count() + 1;
  std::array<pollfd, 2> fds = {pollfd{wake_fd_.get(), POLLIN, 0},
                               pollfd{stop_requested_ ? -1 : options_.stop_fd, POLLIN, 0}};
  poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(wait, 0)));
  eventfd_t count;
  eventfd_read(wake_fd_.get(), &count);
}

}  // namespace ampd
