// "Quick, Draw!" bitmaps: one .npy file a class.
#ifndef AMPD_ENGINE_DATA_QUICKDRAW_H_
#define AMPD_ENGINE_DATA_QUICKDRAW_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"
#include "engine/data/dataset.h"

namespace ampd::data {

// Samples are 28x28x1 bytes, by class and then as in the file. Errors as OpenDataset; INVALID_ARGUMENT also when a file
// has fewer rows than skip_per_class and samples_per_class ask for, or none are left. `limit` leaves the first ones of
// what these take of each class (class_shares.h); 0 is all.
absl::StatusOr<std::unique_ptr<Dataset>> OpenQuickDraw(const v1::QuickDrawDataset& spec,
                                                       absl::Span<const std::string> roots, int64_t limit);
absl::StatusOr<DatasetInfo> DescribeQuickDraw(const v1::QuickDrawDataset& spec, absl::Span<const std::string> roots);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_QUICKDRAW_H_
