// IDX files, as MNIST and Fashion-MNIST ship (the format is described at the end of yann.lecun.com/exdb/mnist): two
// zero bytes, a type byte (8: unsigned bytes), the number of dimensions, each extent as a big-endian 32-bit number,
// values.
#ifndef AMPD_ENGINE_DATA_IDX_H_
#define AMPD_ENGINE_DATA_IDX_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"
#include "engine/data/dataset.h"

namespace ampd::data {

// Errors as OpenDataset; `limit` 0 is all.
absl::StatusOr<std::unique_ptr<Dataset>> OpenIdx(const v1::IdxDataset& spec, absl::Span<const std::string> roots,
                                                 int64_t limit);

// Reads the header of the images and all labels.
absl::StatusOr<DatasetInfo> DescribeIdx(const v1::IdxDataset& spec, absl::Span<const std::string> roots);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_IDX_H_
