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
#include "engine/core/augmentation.h"
#include "engine/data/dataset.h"

namespace ampd::data {

// Whether the transform makes sense for such samples; INVALID_ARGUMENT naming field, values and dataset otherwise:
// crop and flip need images whose targets do not tell where in them something is, UNIT and IMAGENET bytes, IMAGENET
// three channels, the padding must be smaller than the image; samples with lengths cannot be measured for STANDARD.
// With `size` the samples are those of a dataset that resizes them.
absl::Status CheckTransform(const v1::ImageTransform& spec, const DatasetInfo& info);

// How a job's inputs are normalised: as the spec says, else UNIT for bytes and NONE for floats.
v1::ImageTransform::Normalize NormalizationOf(const v1::ImageTransform& spec, const DatasetInfo& info);

// Immutable; may be used from any thread.
//
// In torchvision's usual order: the stored image is padded with zeros and cropped, then mirrored, then normalised, so
// the border of a cropped image is the normalised zero. A value x of channel c (the last dimension; for [features]
// every feature is one) becomes (x - mean[c]) / std[c], computed in float64 and rounded once. The statistics of
// STANDARD are the mean and the population standard deviation over the training set; where the latter is 0 it counts
// as 1.
class Transform {
 public:
  // Reads the whole of `train` for STANDARD, on `threads`, which do not change the result; damaged samples are noted
  // and left out. Errors: CheckTransform's; DATA_LOSS naming the sample when STANDARD meets a value that is not finite,
  // or when too many samples are damaged.
  static absl::StatusOr<Transform> Create(const v1::ImageTransform& spec, const Dataset& train, int threads = 1);

  // INVALID_ARGUMENT when samples of `info` differ in shape (sequences with lengths: but for time) or kind from those
  // it was created for.
  absl::Status CheckApplies(const DatasetInfo& info) const;

  // Sample `i` without randomness, for evaluation. `out` has info().input_elements() places, also below. The errors are
  // those of Dataset::ReadSample.
  absl::Status ReadPlain(const Dataset& dataset, int64_t i, absl::Span<float> out) const;

  // Sample `i` cropped and mirrored as `draw` says. `scratch` is memory to reuse.
  absl::Status ReadAugmented(const Dataset& dataset, int64_t i, const Draw& draw, std::vector<float>& scratch,
                             absl::Span<float> out) const;

  // Per channel, or one for all channels.
  const std::vector<double>& mean() const { return mean_; }
  const std::vector<double>& std() const { return std_; }
  // Of samples that are no images the default, which moves nothing.
  const ImageAugmentation& augmentation() const { return augmentation_; }

 private:
  Transform() = default;
  void SetUniform(double scale);
  // The mean and, as yet, the variance in std_.
  absl::Status MeasureBytes(const Dataset& train, int threads);
  absl::Status MeasureFloats(const Dataset& train);
  absl::Status Measure(const Dataset& train, int threads);
  void FillTable();
  void Normalize(absl::Span<float> values) const;

  DatasetInfo info_;
  std::vector<double> mean_;
  std::vector<double> std_;
  // For bytes of few channels: every result, [channel][value].
  std::vector<std::array<float, 256>> table_;
  ImageAugmentation augmentation_;
};

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_TRANSFORM_H_
