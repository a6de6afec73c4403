// What happens to a sample between the dataset and the network: normalisation, and for training random crop and flip.
#ifndef AMPD_ENGINE_DATA_TRANSFORM_H_
#define AMPD_ENGINE_DATA_TRANSFORM_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"
#include "engine/data/dataset.h"

namespace ampd::data {

// Whether the transform makes sense for such samples; INVALID_ARGUMENT naming field, values and dataset otherwise:
// crop and flip need images, not such with a label a pixel, UNIT and IMAGENET bytes, IMAGENET three channels, the
// padding must be smaller than the image; samples with lengths cannot be measured for STANDARD. UNIMPLEMENTED for
// `size`.
absl::Status CheckTransform(const v1::ImageTransform& spec, const DatasetInfo& info);

// Names the random draws of one training sample. They follow from these values alone.
struct Draw {
  // The job's.
  uint64_t seed = 0;
  // Attempted step, from 0.
  int64_t step = 0;
  // Place in the step's whole batch, from 0.
  int64_t position = 0;
};

// Immutable; may be used from any thread.
//
// In torchvision's usual order: the stored image is padded with zeros and cropped, then mirrored, then normalised, so
// the border of a cropped image is the normalised zero. A value x of channel c (the last dimension; for [features]
// every feature is one) becomes (x - mean[c]) / std[c], computed in float64 and rounded once. The statistics of
// STANDARD are the mean and the population standard deviation over the training set; where the latter is 0 it counts
// as 1.
class Transform {
 public:
  // Reads the whole of `train` for STANDARD. Errors: CheckTransform's; DATA_LOSS naming the sample when STANDARD meets
  // a value that is not finite.
  static absl::StatusOr<Transform> Create(const v1::ImageTransform& spec, const Dataset& train);

  // INVALID_ARGUMENT when samples of `info` differ in shape (sequences with lengths: but for time) or kind from those
  // it was created for.
  absl::Status CheckApplies(const DatasetInfo& info) const;

  // Sample `i` without randomness, for evaluation. `out` has info().input_elements() places, also below.
  void ReadPlain(const Dataset& dataset, int64_t i, absl::Span<float> out) const;

  // Sample `i` cropped and mirrored as `draw` says. `scratch` is memory to reuse.
  void ReadAugmented(const Dataset& dataset, int64_t i, const Draw& draw, std::vector<float>& scratch,
                     absl::Span<float> out) const;

  // Per channel, or one for all channels.
  const std::vector<double>& mean() const { return mean_; }
  const std::vector<double>& std() const { return std_; }

 private:
  Transform() = default;
  void SetUniform(double scale);
  absl::Status Measure(const Dataset& train);
  void FillTable();
  void Normalize(absl::Span<float> values) const;

  DatasetInfo info_;
  std::vector<double> mean_;
  std::vector<double> std_;
  // For bytes of few channels: every result, [channel][value].
  std::vector<std::array<float, 256>> table_;
  bool flip_ = false;
  int64_t padding_ = 0;
};

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_TRANSFORM_H_
