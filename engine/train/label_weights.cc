#include "engine/train/label_weights.h"

namespace ampd::train {

LabelWeights::LabelWeights(const v1::LossSpec& loss, int64_t outputs)
    : uneven_(loss.has_softmax_cross_entropy()),
      ignores_(loss.softmax_cross_entropy().has_ignore_index()),
      ignored_(loss.softmax_cross_entropy().ignore_index()),
      outputs_(outputs),
      class_weights_(loss.softmax_cross_entropy().class_weights().begin(),
                     loss.softmax_cross_entropy().class_weights().end()) {}

double LabelWeights::Of(absl::Span<const int32_t> labels) const {
  double sum = 0;
  for (const int32_t label : labels) {
    if (label < 0 || label >= outputs_ || (ignores_ && label == ignored_)) continue;
    sum += class_weights_.empty() ? 1 : static_cast<double>(class_weights_[static_cast<size_t>(label)]);
  }
  return sum;
}

}  // namespace ampd::train
