// How well a detector finds boxes: mean average precision.
#ifndef AMPD_ENGINE_TRAIN_DETECTION_SCORE_H_
#define AMPD_ENGINE_TRAIN_DETECTION_SCORE_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "ampd/v1/model.pb.h"
#include "engine/core/tensor.h"

namespace ampd::train {

// Gathers the detections of a set of images. Predictions become boxes as Liu et al. 2016 (section 3) have it: of each
// class those of a probability of at least 0.01, the 200 most probable of an image, without those that overlap a more
// probable one of their class by more than 0.45. Thread-compatible.
class DetectionScore {
 public:
  // `loss` is resolved.
  explicit DetectionScore(const v1::MultiboxLoss& loss);

  // One image. `predictions`: [priors, outputs], as the network gives them; `targets`: five numbers a box, as the
  // multibox loss reads them. Predictions that are not finite detect nothing.
  void Add(const float* predictions, int64_t outputs, absl::Span<const float> targets);

  // Over the classes of which there are boxes, the mean of the area under precision over recall, precision made
  // monotonous from the right (PASCAL VOC, from 2010 on). A detection is right when it overlaps a box of its class, not
  // found by a more probable one, by at least 0.5. 0 without any boxes.
  double MeanAveragePrecision() const;

 private:
  struct Detection {
    float score;
    bool right;
  };
  struct OfClass {
    int64_t boxes = 0;
    std::vector<Detection> detections;
  };

  const Tensor priors_;
  const double center_variance_;
  const double size_variance_;
  std::map<int64_t, OfClass> classes_;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_DETECTION_SCORE_H_
