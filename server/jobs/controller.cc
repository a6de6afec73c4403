#include "server/jobs/controller.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/core/status.h"
#include "server/jobs/core.h"

namespace ampd {
namespace {

// The longest sleep: bounds what a jump of an injected clock can cost.
constexpr absl::Duration kMaxSleep = absl::Seconds(10);

// `done`, before which what is `held` goes: who has the answer finds nothing held.
template <typename T>
Controller::Done<T> Holding(std::vector<std::shared_ptr<const void>> held, Controller::Done<T> done) {
  return [held = std::move(held), done = std::move(done)](absl::StatusOr<T> answer) mutable {
    held.clear();
    done(std::move(answer));
  };
}

}  // namespace

Controller::Controller() = default;

absl::StatusOr<std::unique_ptr<Controller>> Controller::Start(ControllerOptions options, Store* store, EventLog* log,
                                                              Launcher* launcher, Metrics* metrics,
                                                              const Clock* clock) {
  if (options.devices.empty()) return absl::InvalidArgumentError("the controller needs at least one device");
  std::unique_ptr<Controller> controller(new Controller());
  Controller* self = controller.get();
  self->store_ = store;
  self->clock_ = clock;
  self->core_ = std::make_unique<ControllerCore>(
      std::move(options), store, log, launcher, metrics, clock,
      [self](std::function<void()> task) { self->Post(std::move(task)); },
      [self](std::function<void()> task) { self->PostAnswer(std::move(task)); }, &self->draining_);
  AMPD_RETURN_IF_ERROR(self->core_->Recover());
  self->thread_ = std::thread([self] { self->Run(); });
  return controller;
}

Controller::~Controller() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.NotifyOne();
  if (thread_.joinable()) thread_.join();
  core_->StopReads();
  // What the store still does for this controller ends with a post; after this nothing refers to it any more.
  if (store_ != nullptr) store_->Flush();
  // Tasks and callbacks that never ran answer CANCELLED as they go, while the members they refer to still exist.
  std::deque<std::function<void()>> dropped;
  {
    const MutexLock lock(&mutex_);
    dropped.swap(queue_);
    std::move(answers_.begin(), answers_.end(), std::back_inserter(dropped));
    answers_.clear();
  }
  dropped.clear();
}

void Controller::Post(std::function<void()> task) {
  {
    const MutexLock lock(&mutex_);
    queue_.push_back(std::move(task));
  }
  wake_.NotifyOne();
}

void Controller::PostAnswer(std::function<void()> task) {
  {
    const MutexLock lock(&mutex_);
    answers_.push_back(std::move(task));
  }
  wake_.NotifyOne();
}

// Runs what needs only a look at the queue, so that it does not wait for all that was asked for before.
void Controller::Answer() {
  std::deque<std::function<void()>> answers;
  {
    const MutexLock lock(&mutex_);
    answers.swap(answers_);
  }
  for (auto& answer : answers) answer();
}

// Waits until there is a task, a timer is due or the controller stops.
std::deque<std::function<void()>> Controller::Take() {
  const auto deadline = core_->timers().NextDeadline();
  absl::Duration sleep = kMaxSleep;
  if (deadline) sleep = std::clamp(*deadline - clock_->Monotonic(), absl::ZeroDuration(), kMaxSleep);
  MutexLock lock(&mutex_);
  const auto wake_at =
      std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(sleep) + std::chrono::microseconds(1);
  while (!stopping_ && queue_.empty() && answers_.empty() && wake_.WaitUntil(&mutex_, wake_at)) {
  }
  return std::exchange(queue_, {});
}

void Controller::Run() {
  core_->Settle();
  while (true) {
    std::deque<std::function<void()>> tasks = Take();
    {
      const MutexLock lock(&mutex_);
      if (stopping_) {
        // Put back, to be dropped by the destructor.
        std::move(tasks.rbegin(), tasks.rend(), std::front_inserter(queue_));
        return;
      }
    }
    // Tasks first: what a worker said before a deadline must not lose against it because this thread was late.
    for (auto& task : tasks) {
      Answer();
      task();
    }
    Answer();
    tasks.clear();
    core_->timers().RunDue(clock_->Monotonic());
    core_->Settle();
  }
}

void Controller::CreateJob(CreateJobParams params, Done<v1::Job> done) {
  auto reply = std::make_shared<Reply<v1::Job>>(Holding({std::move(params.held)}, std::move(done)));
  Post([this, params = std::move(params), reply]() mutable { core_->CreateJob(std::move(params), std::move(reply)); });
}

void Controller::CreateSweep(std::vector<CreateJobParams> params, Done<v1::JobSweep> done) {
  std::vector<std::shared_ptr<const void>> held;
  for (CreateJobParams& one : params) held.push_back(std::move(one.held));
  auto reply = std::make_shared<Reply<v1::JobSweep>>(Holding(std::move(held), std::move(done)));
  Post([this, params = std::move(params), reply]() mutable { core_->CreateSweep(std::move(params), reply); });
}

void Controller::GetSweep(std::string id, Done<v1::JobSweep> done, Owner owner) {
  core_->GetSweep(id, std::make_shared<Reply<v1::JobSweep>>(std::move(done)), owner);
}

void Controller::ListSweeps(v1::ListSweepsRequest request, Done<v1::ListSweepsResponse> done, Owner owner) {
  auto reply = std::make_shared<Reply<v1::ListSweepsResponse>>(std::move(done));
  Post([this, request = std::move(request), owner = std::move(owner), reply] {
    core_->ListSweeps(request, reply, owner);
  });
}

void Controller::CancelSweep(std::string id, bool now, Done<v1::JobSweep> done) {
  auto reply = std::make_shared<Reply<v1::JobSweep>>(std::move(done));
  Post([this, id = std::move(id), now, reply] { core_->CancelSweep(id, now, reply); });
}

void Controller::FindRequest(std::string user, std::string request_id, std::string body,
                             Done<std::optional<v1::Job>> done) {
  auto reply = std::make_shared<Reply<std::optional<v1::Job>>>(std::move(done));
  core_->FindRequest(user, request_id, body, std::move(reply));
}

void Controller::FindJobId(std::string id, Done<std::string> done, Owner owner) {
  store_->Read([id = std::move(id), owner = std::move(owner),
                reply = std::make_shared<Reply<std::string>>(std::move(done))](const Database& database) {
    absl::StatusOr<JobLocation> job = database.LocateJob(id, owner);
    if (!job.ok()) return reply->Send(job.status());
    reply->Send(std::move(job->id));
  });
}

void Controller::FindSweepId(std::string id, Done<std::string> done, Owner owner) {
  store_->Read([id = std::move(id), owner = std::move(owner),
                reply = std::make_shared<Reply<std::string>>(std::move(done))](const Database& database) {
    absl::StatusOr<SweepRecord> sweep = database.FindSweep(id, owner);
    if (!sweep.ok()) return reply->Send(sweep.status());
    reply->Send(std::move(sweep->id));
  });
}

void Controller::GetJob(std::string id, Done<v1::Job> done, Owner owner) {
  auto reply = std::make_shared<Reply<v1::Job>>(std::move(done));
  core_->GetJob(id, std::move(reply), owner);
}

void Controller::ListJobs(v1::ListJobsRequest request, Done<v1::ListJobsResponse> done, Owner owner) {
  core_->ListJobs(request, std::make_shared<Reply<v1::ListJobsResponse>>(std::move(done)), owner);
}

void Controller::CancelJob(std::string id, bool now, Done<v1::Job> done) {
  auto reply = std::make_shared<Reply<v1::Job>>(std::move(done));
  Post([this, id = std::move(id), now, reply] { core_->CancelJob(id, now, reply); });
}

void Controller::PauseJob(std::string id, Done<v1::Job> done) {
  auto reply = std::make_shared<Reply<v1::Job>>(std::move(done));
  Post([this, id = std::move(id), reply] { core_->PauseJob(id, reply); });
}

void Controller::ResumeJob(std::string id, Done<v1::Job> done) {
  auto reply = std::make_shared<Reply<v1::Job>>(std::move(done));
  Post([this, id = std::move(id), reply] { core_->ResumeJob(id, reply); });
}

std::function<void()> Controller::CheckpointJob(std::string id, Done<v1::Checkpoint> done) {
  auto reply = std::make_shared<Reply<v1::Checkpoint>>(std::move(done));
  Post([this, id = std::move(id), reply] { core_->CheckpointJob(id, reply); });
  // Nobody but the controller keeps the call waiting.
  return [this, waiting = std::weak_ptr(reply)] {
    Post([this, waiting] {
      if (const ReplyPtr<v1::Checkpoint> left = waiting.lock()) core_->LeaveCheckpoint(left);
    });
  };
}

std::function<void()> Controller::ProfileJob(v1::ProfileJobRequest request, Done<v1::StepProfile> done) {
  auto reply = std::make_shared<Reply<v1::StepProfile>>(std::move(done));
  Post([this, request = std::move(request), reply] { core_->ProfileJob(request, reply); });
  // Nobody but the controller keeps the call waiting.
  return [this, waiting = std::weak_ptr(reply)] {
    Post([this, waiting] {
      if (const ReplyPtr<v1::StepProfile> left = waiting.lock()) core_->LeaveProfile(left);
    });
  };
}

void Controller::RetryJob(RetryJobParams params, Done<v1::Job> done) {
  auto reply = std::make_shared<Reply<v1::Job>>(Holding({std::move(params.held)}, std::move(done)));
  Post([this, params = std::move(params), reply]() mutable { core_->RetryJob(std::move(params), reply); });
}

void Controller::UpdateJob(v1::UpdateJobRequest request, Done<v1::Job> done) {
  auto reply = std::make_shared<Reply<v1::Job>>(std::move(done));
  Post([this, request = std::move(request), reply] { core_->UpdateJob(request, reply); });
}

void Controller::PreemptJob(std::string id, std::string for_job, Done<bool> done) {
  auto reply = std::make_shared<Reply<bool>>(std::move(done));
  Post(
      [this, id = std::move(id), for_job = std::move(for_job), reply] { reply->Send(core_->PreemptJob(id, for_job)); });
}

void Controller::ListDevices(Done<std::vector<v1::Device>> done) {
  auto reply = std::make_shared<Reply<std::vector<v1::Device>>>(std::move(done));
  Post([this, reply] { reply->Send(core_->ListDevices()); });
}

void Controller::UpdateDevices(std::vector<v1::Device> devices) {
  Post([this, devices = std::move(devices)]() mutable { core_->UpdateDevices(std::move(devices)); });
}

void Controller::FindDatasetUse(std::string dataset, Owner owner, Done<DatasetUse> done) {
  auto reply = std::make_shared<Reply<DatasetUse>>(std::move(done));
  Post([this, dataset = std::move(dataset), owner = std::move(owner), reply] {
    reply->Send(core_->FindDatasetUse(dataset, owner));
  });
}

void Controller::CountWorkers(Done<int> done) {
  auto reply = std::make_shared<Reply<int>>(std::move(done));
  Post([this, reply] { reply->Send(core_->Workers()); });
}

void Controller::DrainDevice(v1::DrainDeviceRequest request, Done<v1::Device> done) {
  auto reply = std::make_shared<Reply<v1::Device>>(std::move(done));
  Post([this, request = std::move(request), reply] { core_->DrainDevice(request, reply); });
}

void Controller::UndrainDevice(std::string id, Done<v1::Device> done) {
  auto reply = std::make_shared<Reply<v1::Device>>(std::move(done));
  Post([this, id = std::move(id), reply] { core_->UndrainDevice(id, reply); });
}

void Controller::Drain(absl::Duration timeout, std::string reason, std::function<void(absl::Status)> done) {
  Post([this, timeout, reason = std::move(reason), done = std::move(done)]() mutable {
    core_->Drain(timeout, reason, std::move(done));
  });
}

void Controller::SetDiskShortage(std::string shortage) {
  Post([this, shortage = std::move(shortage)]() mutable { core_->SetDiskShortage(std::move(shortage)); });
}

void Controller::Detach(std::function<void()> done) {
  Post([this, done = std::move(done)]() mutable { core_->Detach(std::move(done)); });
}

void Controller::WorkerAttached(v1::WorkerHello hello, std::shared_ptr<WorkerConnection> connection) {
  Post([this, hello = std::move(hello), connection = std::move(connection)] { core_->Attach(hello, connection); });
}

void Controller::WorkerMessage(std::shared_ptr<WorkerConnection> connection, v1::WorkerMessage message) {
  Post([this, connection = std::move(connection), message = std::move(message)]() mutable {
    core_->Message(connection, std::move(message));
  });
}

void Controller::WorkerDisconnected(std::shared_ptr<WorkerConnection> connection) {
  Post([this, connection = std::move(connection)] { core_->Disconnected(connection); });
}

void Controller::WorkerExited(WorkerProcess process, WorkerExit exit) {
  Post([this, process, exit] { core_->Exited(process, exit); });
}

}  // namespace ampd
