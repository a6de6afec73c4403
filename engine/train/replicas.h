// A data-parallel training: its model on several devices, each of which takes its share of every batch.
#ifndef AMPD_ENGINE_TRAIN_REPLICAS_H_
#define AMPD_ENGINE_TRAIN_REPLICAS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/models/model.h"
#include "engine/runtime/collective.h"
#include "engine/train/planned_model.h"
#include "engine/train/step_runner.h"
#include "engine/train/trainer.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

// INVALID_ARGUMENT, with the field, unless `replicas` >= 1 of them can share a batch evenly, in whole micro-batches.
absl::Status CheckShares(const v1::TrainSpec& train, int64_t replicas);

// What adds up the gradients of replicas, by rank, whose backends these are. The host adds where all have its memory,
// and NCCL where all are CUDA's. UNIMPLEMENTED for others; else errors as MakeNcclCollectives'.
absl::StatusOr<std::vector<std::unique_ptr<runtime::Collective>>> MakeCollectives(
    absl::Span<runtime::Backend* const> backends);

// What replicas are made of. Everything is borrowed until Create() returns, but `make_backend` is only called in it.
struct ReplicaOptions {
  const ResolvedJobSpec* spec = nullptr;
  const models::SampleInfo* sample = nullptr;
  std::vector<bool> fell_back;  // as PlanModel's
  int64_t total_steps = 1;
  // For messages, by rank; the first is the trainer's own.
  std::vector<std::string> devices;
  // Threads of computation of one replica.
  int threads = 1;
  int64_t bucket_bytes = runtime::kGradientBucketBytes;
  // Of replica `rank`, 1 and up, in that order, each on the thread that will use it.
  std::function<absl::StatusOr<std::unique_ptr<runtime::Backend>>(int rank)> make_backend;
  // In place of MakeCollectives; empty: that.
  MakeCollectivesFunction make_collectives;
};

// The replicas but the first, which is the trainer's own model and runs on its thread: it evaluates, it is what
// checkpoints hold, and its running statistics (of batch norm, which are each replica's own) are those that are kept.
// The others have a thread, a backend and a model each. Used from the trainer's thread.
class Replicas {
 public:
  // `first`: the backend of the trainer's model, which outlives it. Errors as MakeBackend's, PlanModel's
  // and LoadedModel::Create's, with the device's name, and as MakeCollectives'.
  static absl::StatusOr<std::unique_ptr<Replicas>> Create(const ReplicaOptions& options, runtime::Backend* first);
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  // For the runners of the trainer's own model.
  runtime::Collective* collective() const { return collectives_[0].get(); }

  // Gives all what `first`, of the same plan, holds: masters, moments, average and state; published.
  absl::Status TakeOver(LoadedModel* first);

  // StepRunner::WarmUp() of all but the trainer's own, once it is through with its.
  absl::Status WarmUp();

  // One phase's step of every replica, as StepRunner::Run; `first` is the trainer's runner of that phase. The error is
  // that of the replica that failed first, and names it; then no other step can be run.
  absl::StatusOr<StepResult> Run(size_t phase, const data::Batch& batch, optim::LossScalerState* scaler,
                                 StepRunner* first);

  // INTERNAL, naming the device, where the bits of a replica's masters are not those of `first`.
  absl::Status CheckEqual(LoadedModel* first);

 private:
  class Worker;
  struct Replica;

  explicit Replicas(std::vector<std::string> devices);
  absl::Status Make(const ReplicaOptions& options);
  absl::Status Connect(const ReplicaOptions& options, runtime::Backend* first);
  // Runs `task` for every replica on its thread, all at once, and waits; the error of the lowest rank.
  absl::Status ForEach(const std::function<absl::Status(Replica*)>& task);
  absl::Status RunOther(Replica* replica, size_t phase, const data::Batch& batch, optim::LossScalerState scaler);
  // Marks the group as failed; the others end.
  void Abort(int rank, const absl::Status& why);

  const std::vector<std::string> devices_;
  std::vector<std::unique_ptr<Replica>> others_;
  // By rank. They go before the arenas that they write to.
  std::vector<std::unique_ptr<runtime::Collective>> collectives_;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_REPLICAS_H_
