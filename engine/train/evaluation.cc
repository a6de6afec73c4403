#include "engine/train/evaluation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
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
      : dataset_(dataset), plan_(plan), model_(model) {}

  absl::Status Add(const data::Batch& batch) {
    AMPD_RETURN_IF_ERROR(Bind(batch));
    AMPD_RETURN_IF_ERROR(model_->eval.Run(runtime::StepState()));
    for (auto& [output, sum] : sums_) {
      if (plan_.eval.outputs.count(output) > 0) AMPD_RETURN_IF_ERROR(Sum(output, batch.valid, &sum));
    }
    samples_ += batch.valid;
    return absl::OkStatus();
  }

  v1::Evaluation Result() const {
    v1::Evaluation result;
    result.set_samples(samples_);
    auto& metrics = *result.mutable_metrics();
    result.set_loss(Share("losses", Has("loss_weights") ? sums_.at("loss_weights") : static_cast<double>(samples_)));
    metrics["loss"] = result.loss();
    if (!Has("counted")) return result;
    const double counted = sums_.at("counted");
    result.set_accuracy(Share("correct", counted));
    metrics["accuracy"] = result.accuracy();
    if (Has("top5")) metrics["top5"] = Share("top5", counted);
    if (Has("surprises")) metrics["perplexity"] = Perplexity(Share("surprises", counted));
    return result;
  }

 private:
  bool Has(const std::string& output) const { return plan_.eval.outputs.count(output) > 0; }

  // 0 of a set in which no label counts.
  double Share(const std::string& output, double of) const { return of == 0 ? 0 : sums_.at(output) / of; }

  // The largest double stands for what is larger.
  static double Perplexity(double mean_surprise) {
    return std::isnan(mean_surprise) ? mean_surprise
                                     : std::min(std::exp(mean_surprise), std::numeric_limits<double>::max());
  }

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
    const int64_t rows = plan_.eval.outputs.at(std::string(output)).type.shape[0];
    const int64_t counted = values.size() / rows * valid;
    for (int64_t i = 0; i < counted; ++i) *sum += static_cast<double>(values.as<float>()[i]);
    return absl::OkStatus();
  }

  const data::Dataset& dataset_;
  const PlannedModel& plan_;
  LoadedModel* model_;
  std::vector<int32_t> labels_;
  // By output, over the samples that do not pad a batch.
  std::map<std::string, double> sums_ = {{"losses", 0},  {"loss_weights", 0}, {"surprises", 0},
                                         {"correct", 0}, {"top5", 0},         {"counted", 0}};
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
