// CIFAR-10's binary layout (www.cs.toronto.edu/~kriz/cifar.html): records of one label byte 0..9 and 3,072 bytes of a
// 32x32 image, first all red, then all green, then all blue values.
#ifndef AMPD_ENGINE_DATA_CIFAR10_H_
#define AMPD_ENGINE_DATA_CIFAR10_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"
#include "engine/data/dataset.h"

namespace ampd::data {

// Errors as OpenDataset; `limit` 0 is all. Samples are [32, 32, 3].
absl::StatusOr<std::unique_ptr<Dataset>> OpenCifar10(const v1::Cifar10Dataset& spec,
                                                     absl::Span<const std::string> roots, int64_t limit);

// Reads file sizes only.
absl::StatusOr<DatasetInfo> DescribeCifar10(const v1::Cifar10Dataset& spec, absl::Span<const std::string> roots);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_CIFAR10_H_
