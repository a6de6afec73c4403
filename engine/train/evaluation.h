// Loss and accuracy over the whole evaluation set.
#ifndef AMPD_ENGINE_TRAIN_EVALUATION_H_
#define AMPD_ENGINE_TRAIN_EVALUATION_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/event.pb.h"
#include "engine/train/planned_model.h"
#include "engine/train/training_data.h"

namespace ampd::train {

// metrics: "loss"; where the data has classes "accuracy", "top5" (above 5 outputs) and, of softmax cross-entropy,
// "perplexity" (e to the mean of -log of the labels' probabilities), over the labels that are not ignored; of ctc
// "label_error_rate": edit distances between the best paths' labels and the targets, over the number of labels; of
// multibox "mean_average_precision" (average_precision.h). A mean over labels, or boxes, of which none counts is NaN.
//
// Runs the evaluation graph on every sample of data.eval() once; places that pad the last batch do not count. `step`
// and `epoch` of the result are not set. `on_batch`: told after each batch how many samples it took; may be empty.
absl::StatusOr<v1::Evaluation> Evaluate(const TrainingData& data, const PlannedModel& plan, LoadedModel* model,
                                        const std::function<void(int64_t samples)>& on_batch = {});

// INVALID_ARGUMENT, with those that there are, where Evaluate() of this model gives no metric of that name.
absl::Status CheckMetric(const std::string& metric, const PlannedModel& plan);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_EVALUATION_H_
