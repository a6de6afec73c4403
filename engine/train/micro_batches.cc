#include "engine/train/micro_batches.h"

#include <algorithm>
#include <functional>

#include "engine/core/status.h"

namespace ampd::train {
namespace {

// The rows of `tensor` from `row` on.
const void* Rows(const Tensor& tensor, int64_t row) {
  const TensorView view = tensor.view();
  return static_cast<const char*>(view.data) + view.bytes() / view.shape[0] * row;
}

}  // namespace

const Tensor& TensorOf(const data::Batch& batch, absl::string_view input) {
  if (input == "x") return batch.inputs;
  if (input == "labels") return batch.labels;
  if (input == "lengths") return batch.lengths;
  return input == "label_lengths" ? batch.label_lengths : batch.targets;
}

absl::Status CheckRead(const data::Batch& batch) {
  if (batch.read) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the batch of step ", batch.step, " was not read"));
}

MicroBatches::MicroBatches(const PlannedModel* plan, LoadedModel* model, int64_t batch_size, int64_t micro_batch,
                           int phase, Replica replica)
    : model_plan_(plan),
      model_(model),
      phase_(static_cast<size_t>(phase)),
      label_weights_(&plan->phases[phase_].label_weights),
      micro_batch_(micro_batch),
      count_(batch_size / micro_batch),
      first_(count_ / replica.count * replica.rank),
      last_(count_ / replica.count * (replica.rank + 1)),
      shares_(plan->phases[phase_].label_shares.size(), 1.0f) {}

absl::Status MicroBatches::Bind(const data::Batch& batch, int64_t first_sample) const {
  for (const runtime::PlannedTensor& input : model_plan_->phases[phase_].plans[batch.bucket].inputs) {
    if (input.type.shape.empty()) continue;  // a share
    const Tensor& source = TensorOf(batch, input.name);
    // With one-hot targets nothing in the training plan reads the labels, and the loader gives none.
    if (source.shape().empty()) continue;
    AMPD_RETURN_IF_ERROR(executor(batch).BindInput(input.name, Rows(source, first_sample)));
  }
  return BindShares(batch, first_sample);
}

absl::Status MicroBatches::BindShares(const data::Batch& batch, int64_t first_sample) const {
  const auto& inputs = model_plan_->phases[phase_].label_shares;
  for (size_t i = 0; i < inputs.size(); ++i) {
    shares_[i] = Share(inputs[i].second, batch, first_sample);
    AMPD_RETURN_IF_ERROR(executor(batch).BindInput(inputs[i].first, &shares_[i]));
  }
  return absl::OkStatus();
}

float MicroBatches::Share(const LabelWeights& weights, const data::Batch& batch, int64_t first_sample) const {
  const double all = LabelWeight(weights, batch, 0, count_ * micro_batch_);
  const double own = LabelWeight(weights, batch, first_sample, micro_batch_);
  // Where no label counts there is no loss to share.
  return all > 0 ? static_cast<float>(own / all * static_cast<double>(count_)) : 1.0f;
}

double MicroBatches::LabelWeight(const LabelWeights& weights, const data::Batch& batch, int64_t first_sample,
                                 int64_t samples) const {
  const int64_t labels = NumElements(batch.labels.shape()) / batch.labels.shape()[0];
  return weights.Of(
      {static_cast<const int32_t*>(Rows(batch.labels, first_sample)), static_cast<size_t>(samples * labels)});
}

double MicroBatches::AllWeight(const data::Batch& batch) const {
  // Against distributions there are no labels, and every sample counts alike.
  const bool uneven = count_ > 1 && label_weights_->uneven() && !batch.labels.shape().empty();
  return uneven ? LabelWeight(*label_weights_, batch, 0, count_ * micro_batch_) : 0;
}

runtime::MicroBatchWeight MicroBatches::WeightOf(const data::Batch& batch, int64_t index, double all) const {
  // Where no label counts there is no loss to share.
  if (all <= 0) return {1, static_cast<double>(count_)};
  return {LabelWeight(*label_weights_, batch, index * micro_batch_, micro_batch_), all};
}

void MicroBatches::Describe(const data::Batch& batch, std::vector<runtime::FedInput>* inputs,
                            std::vector<runtime::MicroBatchWeight>* weights,
                            std::vector<std::vector<float>>* shares) const {
  for (const runtime::PlannedTensor& input : model_plan_->phases[phase_].plans[batch.bucket].inputs) {
    const Tensor& source = TensorOf(batch, input.name);
    const bool known = std::any_of(inputs->begin(), inputs->end(),
                                   [&](const auto& fed) { return fed.name == absl::string_view(input.name); });
    if (known || input.type.shape.empty() || source.shape().empty()) continue;
    inputs->push_back({input.name, source.view().data, source.view().bytes()});
  }
  for (const auto& [input, of_loss] : model_plan_->phases[phase_].label_shares) {
    shares->emplace_back();
    for (int64_t m = 0; m < count_; ++m) shares->back().push_back(Share(of_loss, batch, m * micro_batch_));
    inputs->push_back({input, shares->back().data(), count_ * static_cast<int64_t>(sizeof(float))});
  }
  AppendWeights(batch, weights);
}

void MicroBatches::AppendWeights(const data::Batch& batch, std::vector<runtime::MicroBatchWeight>* weights) const {
  const double all = AllWeight(batch);
  for (int64_t m = 0; m < count_; ++m) weights->push_back(WeightOf(batch, m, all));
}

absl::Status MicroBatches::RunOne(const data::Batch& batch, const runtime::StepState& step,
                                  const runtime::Executor::Hook& hook, runtime::GradientReducer* reducer) const {
  AMPD_RETURN_IF_ERROR(Bind(batch, step.first_sample));
  if (profiler_ == nullptr) return Execute(batch, step, hook, reducer);
  Profile(StepPart::kInputs);
  const auto timed = [&](const runtime::PlanStep& planned, absl::Span<const TensorView> outputs) -> absl::Status {
    profiler_->After(planned);
    return hook ? hook(planned, outputs) : absl::OkStatus();
  };
  AMPD_RETURN_IF_ERROR(Execute(batch, step, std::cref(timed), reducer));
  if (reducer != nullptr) Profile(StepPart::kReduce);
  return absl::OkStatus();
}

absl::Status MicroBatches::Execute(const data::Batch& batch, const runtime::StepState& step,
                                   const runtime::Executor::Hook& hook, runtime::GradientReducer* reducer) const {
  if (reducer == nullptr) return executor(batch).Run(step, hook);
  reducer->Begin();
  const auto after = [&](const runtime::PlanStep& planned, absl::Span<const TensorView> outputs) -> absl::Status {
    if (hook) AMPD_RETURN_IF_ERROR(hook(planned, outputs));
    AMPD_RETURN_IF_ERROR(reducer->After(planned));
    if (profiler_ != nullptr) profiler_->AfterPiece(phase_, StepPart::kReduce);
    return absl::OkStatus();
  };
  // By reference: that allocates nothing.
  AMPD_RETURN_IF_ERROR(executor(batch).Run(step, std::cref(after)));
  return reducer->Finish();
}

absl::StatusOr<double> MicroBatches::Run(const data::Batch& batch, runtime::StepState step, float loss_scale,
                                         const runtime::Executor::Hook& hook,
                                         absl::Span<runtime::GradientReducer> reducers) const {
  AMPD_RETURN_IF_ERROR(CheckRead(batch));
  const bool overwrites = executor(batch).plan().overwrites_gradients;
  if (overwrites && last_ - first_ != 1) {
    return absl::InternalError(
        absl::StrCat("[micro-batches] a plan that overwrites gradients, for ", last_ - first_, " micro-batches"));
  }
  AMPD_RETURN_IF_ERROR(model_->memory.BeginUpdate(overwrites));
  Profile(StepPart::kZero);
  const double all = AllWeight(batch);
  AMPD_ASSIGN_OR_RETURN(const TensorView output, executor(batch).Output("loss"));
  double loss = 0;
  for (int64_t m = first_; m < last_; ++m) {
    const runtime::MicroBatchWeight w = WeightOf(batch, m, all);
    step.loss_seed = static_cast<float>(static_cast<double>(loss_scale) * w.weight / w.total);
    step.first_sample = static_cast<uint32_t>(m * micro_batch_);
    const bool completes = m + 1 == last_ && !reducers.empty();
    AMPD_RETURN_IF_ERROR(RunOne(batch, step, hook, completes ? &reducers[batch.bucket] : nullptr));
    float mean = 0;
    AMPD_RETURN_IF_ERROR(model_->memory.memory()->Download(output.data, sizeof(mean), &mean));
    Profile(StepPart::kLoss);
    loss += static_cast<double>(mean) * w.weight / w.total;
  }
  return loss;
}

}  // namespace ampd::train
