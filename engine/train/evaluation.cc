#include "engine/train/evaluation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "engine/core/status.h"
#include "engine/models/prior_boxes.h"
#include "engine/train/average_precision.h"
#include "engine/train/beam_search.h"
#include "engine/train/failure.h"
#include "engine/train/label_errors.h"
#include "engine/train/micro_batches.h"

namespace ampd::train {
namespace {

// The sums over the batches so far.
class EvaluationRun {
 public:
  EvaluationRun(const data::Dataset* dataset, const v1::LossSpec& loss, const PlannedModel& plan, LoadedModel* model)
      : dataset_(dataset), plan_(plan), model_(model), spelled_(loss.has_ctc()), ctc_(loss.ctc()) {
    if (loss.has_multibox()) detector_.emplace(loss.multibox(), plan.outputs);
  }

  absl::Status Add(const data::Batch& batch) {
    AMPD_RETURN_IF_ERROR(Bind(batch));
    AMPD_RETURN_IF_ERROR(model_->eval->Run(runtime::StepState()));
    for (auto& [output, sum] : sums_) {
      if (plan_.eval.outputs.count(output) > 0) AMPD_RETURN_IF_ERROR(Sum(output, batch.valid, &sum));
    }
    samples_ += batch.valid;
    if (detector_.has_value()) return AddDetections(batch);
    return spelled_ ? AddLabelErrors(batch) : absl::OkStatus();
  }

  v1::Evaluation Result() const {
    v1::Evaluation result;
    result.set_samples(samples_);
    auto& metrics = *result.mutable_metrics();
    result.set_loss(Share("losses", Has("loss_weights") ? sums_.at("loss_weights") : static_cast<double>(samples_)));
    metrics["loss"] = result.loss();
    if (detector_.has_value()) metrics["mean_average_precision"] = detector_->precision.Mean();
    if (spelled_) AddSpelling("", best_path_, &metrics);
    if (ctc_.beam_width() > 0) AddSpelling("beam_", beam_, &metrics);
    if (!Has("counted")) return result;
    const double counted = sums_.at("counted");
    result.set_accuracy(Share("correct", counted));
    metrics["accuracy"] = result.accuracy();
    if (Has("top5")) metrics["top5"] = Share("top5", counted);
    if (Has("surprises")) metrics["perplexity"] = Perplexity(Share("surprises", counted));
    return result;
  }

 private:
  // Of multibox.
  struct Detector {
    const v1::MultiboxLoss& loss;
    const Tensor priors;
    AveragePrecision precision;

    // `outputs` of a prior: offsets, the background's logit and the classes'.
    Detector(const v1::MultiboxLoss& multibox, int64_t outputs)
        : loss(multibox), priors(models::PriorBoxes(multibox)), precision(outputs - ops::kOffsets - 1) {}
  };

  static void AddSpelling(const std::string& prefix, const SpellingErrors& errors,
                          google::protobuf::Map<std::string, double>* metrics) {
    (*metrics)[prefix + "label_error_rate"] = errors.LabelErrorRate();
    (*metrics)[prefix + "exact_match"] = errors.ExactMatch();
  }

  bool Has(const std::string& output) const { return plan_.eval.outputs.count(output) > 0; }

  // NaN of a set in which no label counts: nothing was seen of the model, least of all that it is perfect.
  double Share(const std::string& output, double of) const {
    return of == 0 ? std::numeric_limits<double>::quiet_NaN() : sums_.at(output) / of;
  }

  // The largest double stands for what is larger.
  static double Perplexity(double mean_surprise) {
    return std::isnan(mean_surprise) ? mean_surprise
                                     : std::min(std::exp(mean_surprise), std::numeric_limits<double>::max());
  }

  absl::Status Bind(const data::Batch& batch) {
    for (const runtime::PlannedTensor& input : plan_.eval.inputs) {
      const void* bytes = input.name == "labels" ? Labels(batch) : TensorOf(batch, input.name).view().data;
      AMPD_RETURN_IF_ERROR(model_->eval->BindInput(input.name, bytes));
    }
    return absl::OkStatus();
  }

  // With one-hot targets the loader gives no labels, but the accuracy needs them.
  const void* Labels(const data::Batch& batch) {
    if (!batch.labels.shape().empty()) return batch.labels.view().data;
    labels_.assign(static_cast<size_t>(batch.inputs.shape()[0]), 0);
    for (int64_t i = 0; i < batch.valid; ++i) labels_[i] = dataset_->ReadLabel(batch.samples[i]);
    return labels_.data();
  }

  // A result of the last run, for the host to read until the next is asked for.
  absl::StatusOr<TensorView> Output(absl::string_view name) {
    AMPD_ASSIGN_OR_RETURN(const TensorView values, model_->eval->Output(name));
    return runtime::OnHost(model_->memory.memory(), values, &staging_);
  }

  absl::Status Sum(absl::string_view output, int64_t valid, double* sum) {
    AMPD_ASSIGN_OR_RETURN(const TensorView values, Output(output));
    const int64_t rows = plan_.eval.outputs.at(std::string(output)).type.shape[0];
    const int64_t counted = values.size() / rows * valid;
    for (int64_t i = 0; i < counted; ++i) *sum += static_cast<double>(values.as<float>()[i]);
    return absl::OkStatus();
  }

  // Steps of each sample that count among the last layer's; empty: all.
  absl::StatusOr<std::vector<int32_t>> Times(const data::Batch& batch) {
    if (Has("times")) {
      AMPD_ASSIGN_OR_RETURN(const TensorView times, Output("times"));
      return std::vector<int32_t>(times.as<int32_t>(), times.as<int32_t>() + times.size());
    }
    if (batch.lengths.shape().empty()) return std::vector<int32_t>();
    const auto lengths = batch.lengths.as<int32_t>();
    return std::vector<int32_t>(lengths.begin(), lengths.end());
  }

  absl::Status AddLabelErrors(const data::Batch& batch) {
    AMPD_ASSIGN_OR_RETURN(const std::vector<int32_t> times, Times(batch));
    AMPD_ASSIGN_OR_RETURN(const TensorView logits, Output("logits"));
    const int64_t time = logits.shape[1], classes = logits.shape[2], places = batch.labels.shape()[1];
    for (int64_t i = 0; i < batch.valid; ++i) {
      const size_t at = static_cast<size_t>(i);
      const int64_t steps = times.empty() ? time : times[at];
      const int64_t count = batch.label_lengths.shape().empty() ? places : batch.label_lengths.as<int32_t>()[at];
      const auto labels =
          batch.labels.as<int32_t>().subspan(at * static_cast<size_t>(places), static_cast<size_t>(count));
      const absl::Span<const float> of_sample(logits.as<float>() + i * time * classes,
                                              static_cast<size_t>(steps * classes));
      best_path_.Add(BestPathLabels(of_sample, classes, ctc_.blank()), labels);
      if (ctc_.beam_width() > 0) {
        beam_.Add(BeamSearch(of_sample, classes, ctc_.blank(), ctc_.beam_width()).labels, labels);
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddDetections(const data::Batch& batch) {
    AMPD_ASSIGN_OR_RETURN(const TensorView predictions, Output("logits"));
    const int64_t width = predictions.shape[2], numbers = predictions.shape[1] * width;
    const auto places = static_cast<size_t>(batch.targets.shape()[1]);
    for (int64_t i = 0; i < batch.valid; ++i) {
      const absl::Span<const float> of_sample(predictions.as<float>() + i * numbers, static_cast<size_t>(numbers));
      const auto targets = batch.targets.as<float>().subspan(static_cast<size_t>(i) * places, places);
      detector_->precision.Add(Detections(detector_->loss, detector_->priors, of_sample, width), targets);
    }
    return absl::OkStatus();
  }

  // Null where nothing is added.
  const data::Dataset* dataset_;
  const PlannedModel& plan_;
  LoadedModel* model_;
  std::vector<int32_t> labels_;
  AlignedBuffer staging_;
  // By output, over the samples that do not pad a batch.
  std::map<std::string, double> sums_ = {{"losses", 0},  {"loss_weights", 0}, {"surprises", 0},
                                         {"correct", 0}, {"top5", 0},         {"counted", 0}};
  int64_t samples_ = 0;
  // Of ctc.
  const bool spelled_;
  const v1::CtcLoss& ctc_;
  SpellingErrors best_path_, beam_;
  std::optional<Detector> detector_;
};

}  // namespace

absl::Status CheckMetric(const std::string& metric, const PlannedModel& plan) {
  const EvaluationRun none(nullptr, plan.phases[0].spec.proto().model().loss(), plan, nullptr);
  std::set<std::string> names;
  const v1::Evaluation result = none.Result();
  for (const auto& [name, value] : result.metrics()) names.insert(name);
  if (names.count(metric) > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the evaluations have no metric ", metric, ", but ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<v1::Evaluation> Evaluate(const TrainingData& data, const PlannedModel& plan, LoadedModel* model,
                                        const std::function<void(int64_t samples)>& on_batch) {
  AMPD_ASSIGN_OR_RETURN(const std::unique_ptr<data::Loader> loader, data.EvalLoader(plan.outputs));
  EvaluationRun run(data.eval(), plan.phases[0].spec.proto().model().loss(), plan, model);
  while (true) {
    absl::StatusOr<data::Batch*> batch = loader->Next();
    if (!batch.ok()) return DataError(batch.status(), "data.eval");
    if (*batch == nullptr) return run.Result();
    AMPD_RETURN_IF_ERROR(run.Add(**batch));
    if (on_batch) on_batch((*batch)->valid);
    loader->Release(*batch);
  }
}

}  // namespace ampd::train
