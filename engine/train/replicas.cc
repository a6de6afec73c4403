#include "engine/train/replicas.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/nccl_collective.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "engine/runtime/thread_collective.h"

namespace ampd::train {
namespace {

// Of whole words of 4 bytes; unlike words give unlike sums but for one in 2^64 or so.
absl::StatusOr<uint64_t> Checksum(LoadedModel* model) {
  const int64_t elements = model->memory.layout().arena_elements();
  AlignedBuffer staging;
  AMPD_ASSIGN_OR_RETURN(
      const TensorView masters,
      runtime::OnHost(model->memory.memory(), {model->memory.masters(), DType::kF32, {elements}}, &staging));
  uint64_t sum = 0xcbf29ce484222325u;
  for (int64_t i = 0; i < elements; ++i) {
    uint32_t word = 0;
    std::memcpy(&word, masters.as<float>() + i, sizeof(word));
    sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
    sum ^= sum >> 29;
  }
  return sum;
}

}  // namespace

absl::Status CheckShares(const v1::TrainSpec& train, int64_t replicas) {
  if (train.batch_size() % replicas != 0) {
    return InvalidFields({{"train.batch_size", absl::StrCat(train.batch_size(), " samples cannot be shared evenly by ",
                                                            replicas, " devices")}});
  }
  const int64_t share = train.batch_size() / replicas;
  if (share % train.micro_batch_size() != 0) {
    return InvalidFields({{"train.micro_batch_size",
                           absl::StrCat("each of ", replicas, " devices takes ", share,
                                        " samples of a batch, which is no multiple of ", train.micro_batch_size())}});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::unique_ptr<runtime::Collective>>> MakeCollectives(
    absl::Span<runtime::Backend* const> backends) {
  const bool on_host = std::all_of(backends.begin(), backends.end(),
                                   [](runtime::Backend* backend) { return backend->memory()->on_host(); });
  if (on_host) return runtime::MakeThreadCollectives(static_cast<int>(backends.size()));
  return MakeNcclCollectives(backends);
}

// A thread that runs one task after the other.
class Replicas::Worker {
 public:
  Worker() : thread_([this] { Loop(); }) {}
  ~Worker() {
    Post(nullptr);
    thread_.join();
  }

  // Not before the task before it is done.
  void Start(std::function<absl::Status()> task) { Post(std::move(task)); }
  // The result of the task last started.
  absl::Status Wait() {
    const MutexLock lock(&mutex_);
    while (busy_) changed_.Wait(&mutex_);
    return result_;
  }

 private:
  void Post(std::function<absl::Status()> task) {
    const MutexLock lock(&mutex_);
    task_ = std::move(task);
    busy_ = true;
    changed_.NotifyAll();
  }

  void Loop() {
    MutexLock lock(&mutex_);
    while (true) {
      while (!busy_) changed_.Wait(&mutex_);
      if (!task_) return;
      const std::function<absl::Status()> task = std::exchange(task_, nullptr);
      lock.Unlock();
      absl::Status result = task();
      lock.Lock();
      result_ = std::move(result);
      busy_ = false;
      changed_.NotifyAll();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::function<absl::Status()> task_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status result_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

struct Replicas::Replica {
  int rank = 0;
  std::unique_ptr<PlannedModel> plan;
  std::unique_ptr<LoadedModel> model;
  std::vector<std::unique_ptr<StepRunner>> runners;
  // Last: it ends before what it uses.
  Worker worker;
};

Replicas::Replicas(std::vector<std::string> devices) : devices_(std::move(devices)) {
  for (size_t rank = 1; rank < devices_.size(); ++rank) {
    others_.push_back(std::make_unique<Replica>());
    others_.back()->rank = static_cast<int>(rank);
  }
}

Replicas::~Replicas() {
  ForEach([](Replica* replica) {
    replica->runners.clear();
    return absl::OkStatus();
  }).IgnoreError();
  collectives_.clear();
  // On the thread that made them: a device's memory is freed where the device is the current one.
  ForEach([](Replica* replica) {
    replica->model.reset();
    replica->plan.reset();
    return absl::OkStatus();
  }).IgnoreError();
}

absl::StatusOr<std::unique_ptr<Replicas>> Replicas::Create(const ReplicaOptions& options, runtime::Backend* first) {
  std::unique_ptr<Replicas> replicas(new Replicas(options.devices));
  AMPD_RETURN_IF_ERROR(replicas->Make(options));
  AMPD_RETURN_IF_ERROR(replicas->Connect(options, first));
  return replicas;
}

// One after the other: whoever makes backends need not be thread-safe, and devices are given out in order.
absl::Status Replicas::Make(const ReplicaOptions& options) {
  for (const std::unique_ptr<Replica>& other : others_) {
    other->worker.Start([this, &options, replica = other.get()]() -> absl::Status {
      AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Backend> backend, options.make_backend(replica->rank));
      AMPD_ASSIGN_OR_RETURN(
          replica->plan, PlanModel(*options.spec, *options.sample, std::move(backend), options.threads, kReplicaFusion,
                                   options.fell_back, static_cast<int64_t>(devices_.size())));
      AMPD_ASSIGN_OR_RETURN(replica->model, LoadedModel::Create(*replica->plan));
      return absl::OkStatus();
    });
    AMPD_RETURN_IF_ERROR(
        Annotate(other->worker.Wait(), absl::StrCat("device ", devices_[static_cast<size_t>(other->rank)])));
  }
  return absl::OkStatus();
}

absl::Status Replicas::Connect(const ReplicaOptions& options, runtime::Backend* first) {
  std::vector<runtime::Backend*> backends = {first};
  for (const std::unique_ptr<Replica>& other : others_) backends.push_back(other->plan->backend.get());
  AMPD_ASSIGN_OR_RETURN(collectives_,
                        options.make_collectives ? options.make_collectives(backends) : MakeCollectives(backends));
  return ForEach([&](Replica* replica) {
    for (size_t i = 0; i < replica->plan->phases.size(); ++i) {
      replica->runners.push_back(std::make_unique<StepRunner>(
          options.total_steps, replica->plan.get(), replica->model.get(), static_cast<int>(i),
          collectives_[static_cast<size_t>(replica->rank)].get(), options.bucket_bytes));
    }
    return absl::OkStatus();
  });
}

absl::Status Replicas::ForEach(const std::function<absl::Status(Replica*)>& task) {
  for (const std::unique_ptr<Replica>& other : others_) {
    other->worker.Start([&task, replica = other.get()] { return task(replica); });
  }
  absl::Status first;
  for (const std::unique_ptr<Replica>& other : others_) {
    const absl::Status status = other->worker.Wait();
    if (first.ok()) first = Annotate(status, absl::StrCat("device ", devices_[static_cast<size_t>(other->rank)]));
  }
  return first;
}

absl::Status Replicas::TakeOver(LoadedModel* first) {
  const auto copy = [&](char* from, int64_t bytes, const std::function<char*(LoadedModel*)>& to) -> absl::Status {
    AlignedBuffer staging;
    const Shape words = {bytes / SizeOf(DType::kF32)};
    AMPD_ASSIGN_OR_RETURN(const TensorView host,
                          runtime::OnHost(first->memory.memory(), {from, DType::kF32, words}, &staging));
    return ForEach([&](Replica* replica) {
      return replica->model->memory.memory()->Upload(host.data, bytes, to(replica->model.get()));
    });
  };
  const runtime::ModelLayout& layout = first->memory.layout();
  const int64_t arena = layout.arena_elements() * SizeOf(DType::kF32);
  const auto bytes_of = [](float* p) { return reinterpret_cast<char*>(p); };
  AMPD_RETURN_IF_ERROR(
      copy(bytes_of(first->memory.masters()), arena, [&](LoadedModel* to) { return bytes_of(to->memory.masters()); }));
  for (int i = 0; i < first->moments.count(); ++i) {
    AMPD_RETURN_IF_ERROR(copy(bytes_of(first->moments.arena(i)), arena,
                              [&](LoadedModel* to) { return bytes_of(to->moments.arena(i)); }));
  }
  if (first->average.count() > 0) {
    AMPD_RETURN_IF_ERROR(copy(bytes_of(first->average.arena(0)), arena,
                              [&](LoadedModel* to) { return bytes_of(to->average.arena(0)); }));
  }
  // Every state is aligned, so they fill whole words.
  AMPD_RETURN_IF_ERROR(
      copy(first->memory.state(), layout.state_bytes(), [](LoadedModel* to) { return to->memory.state(); }));
  return ForEach([](Replica* replica) { return replica->model->memory.PublishAll(); });
}

absl::Status Replicas::WarmUp() {
  return ForEach([](Replica* replica) -> absl::Status {
    for (const std::unique_ptr<StepRunner>& runner : replica->runners) AMPD_RETURN_IF_ERROR(runner->WarmUp());
    return absl::OkStatus();
  });
}

void Replicas::Abort(int rank, const absl::Status& why) {
  collective()->group()->Abort(
      Annotate(why, absl::StrCat("replica ", rank, " on device ", devices_[static_cast<size_t>(rank)])));
}

absl::Status Replicas::RunOther(Replica* replica, size_t phase, const data::Batch& batch,
                                optim::LossScalerState scaler) {
  const absl::Status status = replica->runners[phase]->Run(batch, &scaler).status();
  if (!status.ok()) Abort(replica->rank, status);
  return status;
}

absl::StatusOr<StepResult> Replicas::Run(size_t phase, const data::Batch& batch, optim::LossScalerState* scaler,
                                         StepRunner* first) {
  const optim::LossScalerState before = *scaler;
  for (const std::unique_ptr<Replica>& other : others_) {
    other->worker.Start([&, replica = other.get()] { return RunOther(replica, phase, batch, before); });
  }
  absl::StatusOr<StepResult> result = first->Run(batch, scaler);
  if (!result.ok()) Abort(0, result.status());
  // Whatever became of it: they read the batch.
  for (const std::unique_ptr<Replica>& other : others_) other->worker.Wait().IgnoreError();
  AMPD_RETURN_IF_ERROR(collective()->group()->status());
  return result;
}

absl::Status Replicas::CheckEqual(LoadedModel* first) {
  std::vector<uint64_t> sums(devices_.size(), 0);
  AMPD_RETURN_IF_ERROR(ForEach([&sums](Replica* replica) -> absl::Status {
    AMPD_ASSIGN_OR_RETURN(sums[static_cast<size_t>(replica->rank)], Checksum(replica->model.get()));
    return absl::OkStatus();
  }));
  AMPD_ASSIGN_OR_RETURN(sums[0], Checksum(first));
  const auto other = std::find_if(sums.begin(), sums.end(), [&](uint64_t sum) { return sum != sums[0]; });
  if (other == sums.end()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("[replicas] the parameters on device ", devices_[other - sums.begin()],
                                          " are no longer those on device ", devices_[0]));
}

}  // namespace ampd::train
