// What a network asks of the samples that it reads.
#ifndef AMPD_ENGINE_TRAIN_DATA_CHECKS_H_
#define AMPD_ENGINE_TRAIN_DATA_CHECKS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ampd/v1/job.pb.h"
#include "engine/data/dataset.h"

namespace ampd::train {

// INVALID_ARGUMENT where images are read whose channels come first (data::LooksChannelsFirst): where data.image moves
// their pixels, and where a convolution or pooling whose window is higher than a row reads them, also behind layers
// that leave every number in its place. `spec` is resolved. For planning alone: jobs from before go on.
absl::Status CheckImages(const v1::JobSpec& spec, const data::DatasetInfo& train);

// INVALID_ARGUMENT with a violation of the preset's size or channels where preset acgan draws images of another shape
// than the samples, which its discriminator looks at beside them. For a spec that cannot be planned, to say why: of one
// whose layers were changed since the preset made them it may not be true.
absl::Status CheckDrawnImages(const v1::JobSpec& spec, const data::DatasetInfo& train);

// INVALID_ARGUMENT with a violation of its vocabulary where an embedding reads the batch itself, of `text` or `tokens`,
// and has no row for each id that these may have. `eval` may be nullptr.
absl::Status CheckVocabularies(const v1::JobSpec& spec, const data::DatasetInfo& train, const data::DatasetInfo* eval);

// Reads all numbers of a set that holds them as they are (csv, npy, safetensors). DATA_LOSS naming the sample for what
// is not finite, and for an id that an embedding which reads the batch itself has no row of; ids of steps past a
// sample's length are padding.
absl::Status CheckNumbers(const v1::JobSpec& spec, const v1::DatasetSpec& source, const data::Dataset& dataset);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_DATA_CHECKS_H_
