// Datasets from two arrays, whatever kind of file they are in: inputs and targets.
#ifndef AMPD_ENGINE_DATA_ARRAY_DATASET_H_
#define AMPD_ENGINE_DATA_ARRAY_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/byte_source.h"
#include "engine/data/dataset.h"
#include "engine/data/npy.h"

namespace ampd::data {

// An array read up to its values.
struct Array {
  std::unique_ptr<ByteSource> source;
  NpyHeader header;
  // The header says u2, but the values are bfloat16.
  bool bfloat16 = false;

  bool is_float() const { return bfloat16 || header.kind == 'f'; }
  std::string dtype() const { return bfloat16 ? "bf16" : header.dtype(); }
};

struct ArrayParts {
  Array inputs;
  Array targets;
  DatasetInfo info;
  // Read already when the targets are class labels.
  std::vector<int32_t> labels;
};

// Each fills its part of `info`: size, kind and shape of the inputs, [n, features], [n, h, w] or [n, h, w, c]; and kind
// and places of the targets, for which the inputs are described. INVALID_ARGUMENT for other shapes, DATA_LOSS when
// there are not as many targets as inputs.
absl::Status DescribeInputs(const Array& array, DatasetInfo& info);
absl::Status DescribeTargets(const Array& array, DatasetInfo& info);

// Reads the targets if they are class labels, and counts the classes. `parts` is described.
absl::Status ReadClassLabels(ArrayParts& parts);

// Reads what is left. `limit` 0 is all.
absl::StatusOr<std::unique_ptr<Dataset>> MakeArrayDataset(ArrayParts parts, int64_t limit);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_ARRAY_DATASET_H_
