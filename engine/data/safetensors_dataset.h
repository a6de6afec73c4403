// Datasets from tensors of .safetensors files.
#ifndef AMPD_ENGINE_DATA_SAFETENSORS_DATASET_H_
#define AMPD_ENGINE_DATA_SAFETENSORS_DATASET_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"
#include "engine/data/dataset.h"

namespace ampd::data {

// Shapes and dtypes as of npy, and BF16; U64, BOOL and the 8-bit floats are UNIMPLEMENTED. Errors as OpenDataset;
// NOT_FOUND for a tensor that is not there. `limit` 0 is all.
absl::StatusOr<std::unique_ptr<Dataset>> OpenSafetensors(const v1::SafetensorsDataset& spec,
                                                         absl::Span<const std::string> roots, int64_t limit);

// Reads the headers, and the targets when they are class labels.
absl::StatusOr<DatasetInfo> DescribeSafetensors(const v1::SafetensorsDataset& spec,
                                                absl::Span<const std::string> roots);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_SAFETENSORS_DATASET_H_
