#include "engine/train/evaluation.h"

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "engine/core/status.h"
#include "engine/train/failure.h"

namespace ampd::train {
namespace {

// The sums over the batches so far.
class EvaluationRun {
 public:
  EvaluationRun(const data::Dataset& dataset, const PlannedModel& plan, LoadedModel* model)
      : dataset_(dataset), plan_(plan), model_(model), classes_(plan.eval.outputs.count("correct") > 0) {}

  absl::Status Add(const data::Batch& batch) {
    AMPD_RETURN_IF_ERROR(Bind(batch));
    AMPD_RETURN_IF_ERROR(model_->eval.Run(runtime::StepState()));
    AMPD_RETURN_IF_ERROR(Sum("losses", batch.valid, &loss_));
    if (classes_) AMPD_RETURN_IF_ERROR(Sum("correct", batch.valid, &correct_));
    samples_ += batch.valid;
    return absl::OkStatus();
  }

  v1::Evaluation Result() const {
    v1::Evaluation result;
    result.set_samples(samples_);
    result.set_loss(loss_ / static_cast<double>(samples_));
    (*result.mutable_metrics())["loss"] = result.loss();
    if (classes_) {
      result.set_accuracy(correct_ / static_cast<double>(samples_));
      (*result.mutable_metrics())["accuracy"] = result.accuracy();
    }
    return result;
  }

 private:
  absl::Status Bind(const data::Batch& batch) {
    for (const runtime::PlannedTensor& input : plan_.eval.inputs) {
      const void* bytes = input.name == "x"        ? batch.inputs.view().data
                          : input.name == "labels" ? Labels(batch)
                                                   : batch.targets.view().data;
      AMPD_RETURN_IF_ERROR(model_->eval.BindInput(input.name, bytes));
    }
    return absl::OkStatus();
  }

  // With one-hot targets the loader gives no labels, but the accuracy needs them.
  const void* Labels(const data::Batch& batch) {
    if (!batch.labels.shape().empty()) return batch.labels.view().data;
    labels_.assign(static_cast<size_t>(batch.inputs.shape()[0]), 0);
    for (int64_t i = 0; i < batch.valid; ++i) labels_[i] = dataset_.ReadLabel(batch.samples[i]);
    return labels_.data();
  }

  absl::Status Sum(absl::string_view output, int64_t valid, double* sum) const {
    AMPD_ASSIGN_OR_RETURN(const TensorView values, model_->eval.Output(output));
    for (int64_t i = 0; i < valid; ++i) *sum += static_cast<double>(values.as<float>()[i]);
    return absl::OkStatus();
  }

  const data::Dataset& dataset_;
  const PlannedModel& plan_;
  LoadedModel* model_;
  const bool classes_;
  std::vector<int32_t> labels_;
  double loss_ = 0;
  double correct_ = 0;
  int64_t samples_ = 0;
};

}  // namespace

absl::StatusOr<v1::Evaluation> Evaluate(const TrainingData& data, const PlannedModel& plan, LoadedModel* model) {
  AMPD_ASSIGN_OR_RETURN(const std::unique_ptr<data::Loader> loader, data.EvalLoader(plan.outputs));
  EvaluationRun run(*data.eval(), plan, model);
  while (true) {
    absl::StatusOr<data::Batch*> batch = loader->Next();
    if (!batch.ok()) return DataError(batch.status(), "data.eval");
    if (*batch == nullptr) return run.Result();
    AMPD_RETURN_IF_ERROR(run.Add(**batch));
    loader->Release(*batch);
  }
}

}  // namespace ampd::train
