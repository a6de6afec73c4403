// How much each part of a batch counts in the mean loss.
#ifndef AMPD_ENGINE_TRAIN_LABEL_WEIGHTS_H_
#define AMPD_ENGINE_TRAIN_LABEL_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ampd/v1/model.pb.h"

namespace ampd::train {

// What the mean of a softmax cross-entropy divides by, computed from the labels before the network runs: a mean over a
// batch is the micro-batches' means weighted by theirs, and the labels that do not count need not be spread evenly.
// Immutable.
class LabelWeights {
 public:
  // Every sample counts alike.
  LabelWeights() = default;
  // `loss` of a network with `outputs` outputs.
  LabelWeights(const v1::LossSpec& loss, int64_t outputs);

  // Whether micro-batches of equal size can have different weights.
  bool uneven() const { return uneven_; }
  // Sum over the labels of the weight of their class: 0 for those that softmax_cross_entropy leaves out (docs/ops.md).
  double Of(absl::Span<const int32_t> labels) const;

 private:
  bool uneven_ = false;
  bool ignores_ = false;
  int64_t ignored_ = 0;
  int64_t outputs_ = 0;
  std::vector<float> class_weights_;  // empty: all 1
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_LABEL_WEIGHTS_H_
