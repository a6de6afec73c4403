// How well a detector that the multibox loss trains finds the boxes of the evaluation set.
#ifndef AMPD_ENGINE_TRAIN_AVERAGE_PRECISION_H_
#define AMPD_ENGINE_TRAIN_AVERAGE_PRECISION_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ampd/v1/model.pb.h"
#include "engine/core/tensor.h"
#include "engine/ops/multibox_elements.h"

namespace ampd::train {

struct Detection {
  // From 0, without the background.
  int64_t c = 0;
  double probability = 0;
  ops::Corners box = {};
};

// What a prediction says is in an image, most probable first. For each class, of the priors whose softmax gives it more
// than 0.01 the 400 most probable; of those, from the most probable on, the ones that overlap none kept before by more
// than 0.45; of all classes' the 200 most probable (Liu et al. 2016, section 2.2, inference). Equals are in the order
// of their classes, then of their priors. `prediction`: [priors, width] as the loss takes it. A NaN is no detection.
std::vector<Detection> Detections(const v1::MultiboxLoss& loss, const Tensor& priors,
                                  absl::Span<const float> prediction, int64_t width);

// Mean average precision at a Jaccard overlap of 0.5, summed up image by image. A detection is right where it overlaps
// a box of its class by at least that; of an image's detections, from the most probable on, each takes the box that it
// overlaps most of those not taken. Average precision is the area under the precision over the recall, precision being
// the best at that recall or beyond, over every point (as PASCAL VOC since 2010).
class AveragePrecision {
 public:
  explicit AveragePrecision(int64_t classes) : of_class_(static_cast<size_t>(classes)) {}

  // `detections` of one image, most probable first; `targets` of it, five numbers a box (docs/ops.md, multibox_match).
  void Add(absl::Span<const Detection> detections, absl::Span<const float> targets);

  // Mean over the classes that any image had a box of; NaN where none had.
  double Mean() const;

 private:
  struct Found {
    double probability;
    bool right;
  };
  struct OfClass {
    std::vector<Found> found;
    int64_t boxes = 0;
  };
  static double AreaUnder(const OfClass& of_class);

  std::vector<OfClass> of_class_;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_AVERAGE_PRECISION_H_
