// Samples with targets, read by index; and opening the dataset that a spec describes.
#ifndef AMPD_ENGINE_DATA_DATASET_H_
#define AMPD_ENGINE_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"
#include "engine/core/shape.h"

namespace ampd::data {

// Classes a dataset may have; a label at or above it is refused.
inline constexpr int64_t kMaxClasses = int64_t{1} << 20;

enum class TargetKind {
  // One integer per sample, 0 <= label < classes.
  kClass,
  // target_features floats per sample.
  kFloat,
};

struct DatasetInfo {
  // What errors call it: the file of the inputs, or "glyphs".
  std::string name;
  // Samples, >= 1.
  int64_t size = 0;
  // Of one sample: [features], or [height, width, channels]. Every extent >= 1.
  Shape input_shape;
  // Inputs are bytes 0..255 rather than floats.
  bool byte_inputs = false;
  TargetKind target_kind = TargetKind::kClass;
  // kClass: the highest label of the whole source + 1, whatever `limit` says.
  int64_t classes = 0;
  // kFloat: floats per sample, >= 1.
  int64_t target_features = 0;
  // kClass: labels per sample, where those are sequences; 0: one label. Labels of sequences below 0 are -1 and stand
  // for none; so do those past label_lengths or, without these and with as many labels as steps, past lengths.
  int64_t label_count = 0;
  // Of sequences, [time] or [time, features], the steps of each sample that count, 1 to time. Empty: all.
  std::vector<int32_t> lengths;
  // Of label sequences, the labels of each sample that count, 0 to label_count. Empty: all.
  std::vector<int32_t> label_lengths;

  bool is_image() const { return input_shape.size() == 3; }
  int64_t input_elements() const { return NumElements(input_shape); }
};

// Immutable once opened: every method may be called from any thread. Indices are 0 <= i < size().
class Dataset {
 public:
  explicit Dataset(DatasetInfo info) : info_(std::move(info)) {}
  virtual ~Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  const DatasetInfo& info() const { return info_; }
  int64_t size() const { return info_.size; }

  // The values as stored (bytes as 0..255), channels last; `out` has info().input_elements() places.
  virtual void ReadInput(int64_t i, absl::Span<float> out) const = 0;

  // kClass with label_count 0 only.
  virtual int32_t ReadLabel(int64_t i) const = 0;

  // kClass with a label_count only; `out` has as many places.
  virtual void ReadLabels(int64_t i, absl::Span<int32_t> out) const;

  // kFloat only; `out` has info().target_features places.
  virtual void ReadTarget(int64_t i, absl::Span<float> out) const = 0;

  // DATA_LOSS naming file, sample and kind when the source holds an Inf or a NaN in this sample. A finite source value
  // is never an error, even a float64 beyond float32's range, which reads as Inf.
  virtual absl::Status CheckFinite(int64_t i) const = 0;

 private:
  DatasetInfo info_;
};

// Opens a dataset and decodes it into memory. `is_eval` chooses the default seed of `glyphs`.
// Errors: NOT_FOUND and PERMISSION_DENIED for paths (engine/data/path.h); DATA_LOSS for content that is wrong, naming
// file, expected and found; INVALID_ARGUMENT for a spec that makes no sense; RESOURCE_EXHAUSTED for data that does not
// fit the machine's memory; UNIMPLEMENTED for sources that are not supported yet.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DatasetSpec& spec,
                                                     absl::Span<const std::string> data_roots, bool is_eval);

// What OpenDataset(...)->info() would be, from headers, file sizes and labels alone. The errors are the same, but it
// does not see damage within the inputs.
absl::StatusOr<DatasetInfo> DescribeDataset(const v1::DatasetSpec& spec, absl::Span<const std::string> data_roots,
                                            bool is_eval);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_DATASET_H_
