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
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"
#include "engine/core/shape.h"
#include "engine/data/damage.h"

namespace ampd::data {

class SampleCache;

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
  // Of [features], by feature, where the source names its columns; else empty.
  std::vector<std::string> input_names;
  // Of the targets: of the label, or by target feature, where the source names its columns; else empty.
  std::vector<std::string> target_names;
  // Of inputs made of sound, Hz; 0: they are not.
  int64_t sample_rate = 0;
  TargetKind target_kind = TargetKind::kClass;
  // kClass: the highest label of the whole source + 1, whatever `limit` says.
  int64_t classes = 0;
  // kClass: the same without that highest label, 0 where there is no other; -1: as many as there may be, classes - 1.
  int64_t other_classes = -1;
  // kClass: by label, where the source names its classes; else empty.
  std::vector<std::string> class_names;
  // kFloat: floats per sample, >= 1.
  int64_t target_features = 0;
  // kClass: labels per sample, where those are sequences; 0: one label. Labels of sequences below 0 are -1 and stand
  // for none; so do those past label_lengths or, without these and with as many labels as steps, past lengths.
  int64_t label_count = 0;
  // Of sequences, [time] or [time, features], the steps of each sample that count, 1 to time. Empty: all.
  std::vector<int32_t> lengths;
  // Of label sequences, the labels of each sample that count, 0 to label_count. Empty: all.
  std::vector<int32_t> label_lengths;
  // Targets tell where in an image something is (a label a pixel, row by row, or boxes), so an image must not be moved,
  // mirrored or resized without them.
  bool targets_in_space = false;
  // Reading a sample takes work, which threads may share.
  bool decodes = false;
  // A training sample shows a part of what is stored that the draw chooses (ReadSample).
  bool windowed = false;
  // How many samples may be damaged, which are then left out, below `size`; -1: damage is an error.
  int64_t max_damaged = -1;
  // What the open set holds of its samples in the host's memory, bytes, at most; 0: it reads or draws them anew.
  int64_t held_bytes = 0;
  // What a SampleCache takes that keeps all of its samples, bytes; 0: none does; -1: only decoding them tells.
  int64_t cache_bytes = 0;

  bool is_image() const { return input_shape.size() == 3; }
  int64_t input_elements() const { return NumElements(input_shape); }
  // kClass: the highest label + 1 that a loss counts which ignores `ignored`.
  int64_t CountedClasses(absl::optional<int64_t> ignored) const {
    if (!ignored.has_value() || *ignored != classes - 1) return classes;
    return other_classes < 0 ? classes - 1 : other_classes;
  }
};

// Names the random draws of one training sample. They follow from these values alone.
struct Draw {
  // The job's.
  uint64_t seed = 0;
  // Attempted step, from 0.
  int64_t step = 0;
  // Place in the step's whole batch, from 0.
  int64_t position = 0;
};

// Immutable once opened, but for the damage that readers note: every method may be called from any thread. Indices are
// 0 <= i < size().
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

  // What readers call. The same as ReadInput after CheckFinite, but for datasets that decode samples as they are read:
  // there it may fail, and `draw`, of a training sample, chooses what of the stored image is given (nullptr: what
  // evaluation sees). With info().max_damaged >= 0 DATA_LOSS means that the sample is damaged, whatever the draw.
  virtual absl::Status ReadSample(int64_t i, const Draw* draw, absl::Span<float> out) const;

  // The file that a sample is in.
  virtual std::string SampleName(int64_t) const { return info_.name; }

  // To be called by readers when ReadSample failed with `status`: OK when the sample is to be left out, and noted as
  // such; `status` when it is no damage, or damage is an error; DATA_LOSS that says how many when there are too many.
  absl::Status NoteDamage(int64_t i, const absl::Status& status) const;

  // The damaged samples that were noted; any thread may take them.
  DamageLog& damage() const { return damage_; }

  // kClass with label_count 0 only.
  virtual int32_t ReadLabel(int64_t i) const = 0;

  // kClass with a label_count only; `out` has as many places.
  virtual void ReadLabels(int64_t i, absl::Span<int32_t> out) const;

  // kFloat only; `out` has info().target_features places.
  virtual void ReadTarget(int64_t i, absl::Span<float> out) const = 0;

  // DATA_LOSS naming file, sample and kind when the source holds a number in this sample that is no finite one in
  // float32: a NaN, an infinity, or a float64 beyond float32's range.
  virtual absl::Status CheckFinite(int64_t i) const = 0;

 private:
  DatasetInfo info_;
  mutable DamageLog damage_;
};

// Opens a dataset and decodes it into memory (wav_folder: when its samples are read, each time). `is_eval` chooses the
// default seed of `glyphs`. Errors: NOT_FOUND and PERMISSION_DENIED for paths (engine/data/path.h); DATA_LOSS for
// content that is wrong, naming file, expected and found; INVALID_ARGUMENT for a spec that makes no sense;
// RESOURCE_EXHAUSTED for data that does not fit the machine's memory; UNIMPLEMENTED for sources that are not supported
// yet. Sources that need more than their own spec (image_folder) are INVALID_ARGUMENT; they are opened as below.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DatasetSpec& spec,
                                                     absl::Span<const std::string> data_roots, bool is_eval);

// What OpenDataset(...)->info() would be, from headers, file sizes and labels alone. The errors are the same, but it
// does not see damage within the inputs.
absl::StatusOr<DatasetInfo> DescribeDataset(const v1::DatasetSpec& spec, absl::Span<const std::string> data_roots,
                                            bool is_eval);

// The training (`is_eval`: the evaluation) samples of a job: what its source holds, decoded and resized as data.image
// and its kin say. What follows there from the draw of a step (random_resized_crop) is part of it, for training; what
// every image gets (normalisation, flip, padded crop) is Transform's. `cache` keeps decoded samples; nullptr: nothing
// does. INVALID_ARGUMENT also where data.image.size does not fit the samples.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DataSpec& data, absl::Span<const std::string> data_roots,
                                                     bool is_eval, std::shared_ptr<SampleCache> cache = nullptr);
absl::StatusOr<DatasetInfo> DescribeDataset(const v1::DataSpec& data, absl::Span<const std::string> data_roots,
                                            bool is_eval);

// INVALID_ARGUMENT when the training set holds fewer samples than a batch.
absl::Status CheckFills(const DatasetInfo& train, int64_t batch_size);

// What the samples of a job's sets may take of the host's memory while it runs, bytes, at most: what the sets hold, and
// what the cache in memory that they share keeps, by today's free memory where data.cache has no bound. `eval` may be
// nullptr; `kernel_root` as in engine/core/host_memory.h.
int64_t HostBytes(const v1::DataSpec& data, const DatasetInfo& train, const DatasetInfo* eval,
                  const std::string& kernel_root = "");

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_DATASET_H_
