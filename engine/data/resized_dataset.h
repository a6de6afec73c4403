// A dataset of images in memory, resized as they are read.
#ifndef AMPD_ENGINE_DATA_RESIZED_DATASET_H_
#define AMPD_ENGINE_DATA_RESIZED_DATASET_H_

#include <memory>

#include "absl/status/statusor.h"
#include "ampd/v1/data.pb.h"
#include "engine/data/dataset.h"

namespace ampd::data {

// What `spec`, which has a size, makes of such samples. INVALID_ARGUMENT when they are no images, their targets tell
// where in them something is, or it changes the channels.
absl::StatusOr<DatasetInfo> ResizedInfo(const v1::ImageTransform& spec, DatasetInfo info);

// Bytes stay bytes.
absl::StatusOr<std::unique_ptr<Dataset>> MakeResizedDataset(std::unique_ptr<Dataset> dataset,
                                                            const v1::ImageTransform& spec, bool is_eval);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_RESIZED_DATASET_H_
