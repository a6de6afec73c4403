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

// Inputs: u1 (bytes), other integers (read as floats, up to 2^24 in size) or f2, f4, f8 (floats) of [n, features], [n,
// h, w] or [n, h, w, c]; with lengths [n, time] or [n, time, features], which are no images then. Targets: integers [n]
// (class labels), [n, labels] (label sequences) or, for images, [n, h, w] (h * w labels, row by row), or floats [n],
// [n, features] or [n, boxes, 5] (boxes * 5 features). Errors as OpenDataset; `limit` 0 is all.
absl::StatusOr<std::unique_ptr<Dataset>> OpenNpy(const v1::NpyDataset& spec, absl::Span<const std::string> roots,
                                                 int64_t limit);

// Reads the headers, all lengths, and the targets when they are class labels.
absl::StatusOr<DatasetInfo> DescribeNpy(const v1::NpyDataset& spec, absl::Span<const std::string> roots);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_NPY_DATASET_H_
