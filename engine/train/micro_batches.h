// One step's passes over the network: a batch cut into micro-batches whose gradients add up.
#ifndef AMPD_ENGINE_TRAIN_MICRO_BATCHES_H_
#define AMPD_ENGINE_TRAIN_MICRO_BATCHES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/loader.h"
#include "engine/runtime/gradient_reducer.h"
#include "engine/runtime/step_loop.h"
#include "engine/train/planned_model.h"
#include "engine/train/step_profiler.h"

namespace ampd::train {

// What the plans' input of this name reads; empty where the loader was not asked for it.
const Tensor& TensorOf(const data::Batch& batch, absl::string_view input);

// INTERNAL unless the batch was read: its tensors would be taken for another's.
absl::Status CheckRead(const data::Batch& batch);

// Which replica of a data-parallel training, 0..count-1.
struct Replica {
  int rank = 0;
  int count = 1;
};

// Thread-compatible; allocates nothing while it runs.
class MicroBatches {
 public:
  // Of phase `phase`. Borrows both. `batch_size` is a multiple of `micro_batch` times replica.count; of its samples a
  // replica takes the rank-th part.
  MicroBatches(const PlannedModel* plan, LoadedModel* model, int64_t batch_size, int64_t micro_batch, int phase = 0,
               Replica replica = {});

  // Starts a new update, then runs forward and backward for every micro-batch: gradients hold, scaled by `loss_scale`,
  // the gradient of the mean loss over the whole batch, whatever share of each micro-batch's labels counts; one whose
  // labels weigh nothing adds nothing. The pending state is written. `step` gives seed and attempted step. Returns that
  // mean, unscaled. `hook` as in Executor.
  // Of several replicas the samples of others are left out of both: what each one gets adds up to the whole. With
  // `reducers`, one for each of the phase's plans, the gradients are that sum.
  absl::StatusOr<double> Run(const data::Batch& batch, runtime::StepState step, float loss_scale,
                             const runtime::Executor::Hook& hook = nullptr,
                             absl::Span<runtime::GradientReducer> reducers = {}) const;

  // Times what Run() does from here on, besides what is asked for; nullptr: nothing does. Borrowed.
  void set_profiler(StepProfiler* profiler) { profiler_ = profiler; }

  // What a step loop is fed for `batch`: appends the inputs that are not there yet, which point into the batch and into
  // `shares`, and the weights of this phase's micro-batches.
  void Describe(const data::Batch& batch, std::vector<runtime::FedInput>* inputs,
                std::vector<runtime::MicroBatchWeight>* weights, std::vector<std::vector<float>>* shares) const;

  // The weights alone; of the batch the labels are looked at, where weighs_labels().
  void AppendWeights(const data::Batch& batch, std::vector<runtime::MicroBatchWeight>* weights) const;
  bool weighs_labels() const { return count_ > 1 && label_weights_->uneven(); }

  int64_t count() const { return count_; }
  const PlannedModel& model_plan() const { return *model_plan_; }
  // The first bucket's; all have the same inputs and the same parameters in the same order.
  const runtime::Plan& plan() const { return model_plan_->phases[phase_].plans[0]; }
  LoadedModel* model() const { return model_; }

 private:
  runtime::Executor& executor(const data::Batch& batch) const { return *model_->train[phase_][batch.bucket]; }
  absl::Status Bind(const data::Batch& batch, int64_t first_sample) const;
  // By `weights` of a micro-batch's labels, or of all of them.
  double LabelWeight(const LabelWeights& weights, const data::Batch& batch, int64_t first_sample,
                     int64_t samples) const;
  absl::Status BindShares(const data::Batch& batch, int64_t first_sample) const;
  // `reducer` may be null.
  absl::Status RunOne(const data::Batch& batch, const runtime::StepState& step, const runtime::Executor::Hook& hook,
                      runtime::GradientReducer* reducer) const;
  absl::Status Execute(const data::Batch& batch, const runtime::StepState& step, const runtime::Executor::Hook& hook,
                       runtime::GradientReducer* reducer) const;
  // Nothing without a profiler.
  void Profile(StepPart part) const {
    if (profiler_ != nullptr) profiler_->After(phase_, part);
  }
  float Share(const LabelWeights& weights, const data::Batch& batch, int64_t first_sample) const;
  // Of micro-batch `index`; `all` is the weight of all labels, 0 where samples count alike.
  runtime::MicroBatchWeight WeightOf(const data::Batch& batch, int64_t index, double all) const;
  double AllWeight(const data::Batch& batch) const;

  const PlannedModel* model_plan_;
  LoadedModel* model_;
  size_t phase_;
  const LabelWeights* label_weights_;
  int64_t micro_batch_;
  // Of the whole batch, and which of them are this replica's: [first_, last_).
  int64_t count_;
  int64_t first_;
  int64_t last_;
  StepProfiler* profiler_ = nullptr;
  // What the plans' inputs of PlannedPhase::label_shares read.
  mutable std::vector<float> shares_;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_MICRO_BATCHES_H_
