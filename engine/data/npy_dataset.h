// Datasets from NumPy arrays: two .npy files, or members of .npz archives. What a file is, its content says.
#ifndef AMPD_ENGINE_DATA_NPY_DATASET_H_
#define AMPD_ENGINE_DATA_NPY_DATASET_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"
#include "engine/data/dataset.h"

namespace ampd::data {

// Inputs: u1 (bytes) or f2, f4, f8 (floats) of [n, features], [n, h, w] or [n, h, w, c]. Targets: integers [n] (class
// labels) or floats [n] or [n, features]. Errors as OpenDataset; `limit` 0 is all.
absl::StatusOr<std::unique_ptr<Dataset>> OpenNpy(const v1::NpyDataset& spec, absl::Span<const std::string> roots,
                                                 int64_t limit);

// Reads both headers, and the targets when they are class labels.
absl::StatusOr<DatasetInfo> DescribeNpy(const v1::NpyDataset& spec, absl::Span<const std::string> roots);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_NPY_DATASET_H_
