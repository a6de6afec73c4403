// A dataset decoded into memory: what every file reader produces.
#ifndef AMPD_ENGINE_DATA_MEMORY_DATASET_H_
#define AMPD_ENGINE_DATA_MEMORY_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/dataset.h"

namespace ampd::data {

// A number that a source holds and that is no finite one in float32.
struct NonFinite {
  int64_t sample = 0;
  // As the source has it: NaN, an infinity, or beyond float32's range.
  double value = 0;
  // The file, with the member's name for an archive.
  std::string file;
};

// A dataset's columns, one entry per sample, samples in order.
struct Columns {
  // `size`, `input_shape` and the kinds say how the vectors are laid out.
  DatasetInfo info;
  // Inputs: `bytes` when info.byte_inputs, else `floats`.
  std::vector<uint8_t> bytes;
  std::vector<float> floats;
  // Targets: `labels` for kClass, info.label_count a sample where that is not 0, else `targets`.
  std::vector<int32_t> labels;
  std::vector<float> targets;
  // In any order; several entries of a sample count once.
  std::vector<NonFinite> non_finite;
};

// Keeps the first `size` of what may be empty.
template <typename T>
void Shorten(std::vector<T>& values, int64_t size) {
  if (values.empty()) return;
  values.resize(static_cast<size_t>(size));
  values.shrink_to_fit();
}

// What the columns take of which `info` tells the size, shapes and kinds; bytes.
int64_t ColumnBytes(const DatasetInfo& info);

// Keeps the first `limit` samples (0: all) and hands the columns over. INTERNAL when the vectors do not fit info.
absl::StatusOr<std::unique_ptr<Dataset>> MakeMemoryDataset(Columns columns, int64_t limit);

// The highest label below `classes` - 1, + 1: DatasetInfo::other_classes. 0 where there is none.
int64_t CountOtherClasses(absl::Span<const int32_t> labels, int64_t classes);

// Labels as class numbers: DATA_LOSS naming `name` and the sample when one is negative or >= kMaxClasses.
absl::StatusOr<int64_t> CountClasses(absl::Span<const int32_t> labels, absl::string_view name);

// The same for info.label_count labels a sample, after marking those that stand for none with -1, as DatasetInfo says.
absl::StatusOr<int64_t> MarkAndCountClasses(const DatasetInfo& info, absl::string_view name,
                                            std::vector<int32_t>& labels);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_MEMORY_DATASET_H_
