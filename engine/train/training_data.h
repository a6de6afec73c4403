// The datasets of a job, opened and checked against its network.
#ifndef AMPD_ENGINE_TRAIN_TRAINING_DATA_H_
#define AMPD_ENGINE_TRAIN_TRAINING_DATA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "ampd/v1/event.pb.h"
#include "engine/data/dataset.h"
#include "engine/data/loader.h"
#include "engine/data/transform.h"
#include "engine/models/model.h"
#include "engine/runtime/stored_samples.h"
#include "engine/train/train_state.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

// Of a dataset without lengths.
models::SampleInfo SampleInfoOf(const data::DatasetInfo& info);

// What the model of a job is made for. `eval` may be nullptr. Samples with lengths are as long as the longest bucket.
// INVALID_ARGUMENT when buckets do not hold all samples, or the two sets differ in what a sample is.
absl::StatusOr<models::SampleInfo> SampleInfoOf(const v1::JobSpec& spec, const data::DatasetInfo& train,
                                                const data::DatasetInfo* eval);

// The label that counts in no loss, where the job says one.
absl::optional<int64_t> IgnoredLabel(const v1::LossSpec& loss);

// `status` of opening or reading data, annotated with the field and classed: what is missing or unreadable is DATA.
absl::Status DataError(const absl::Status& status, absl::string_view field);

// Immutable. Loaders borrow it.
class TrainingData {
 public:
  // `folder`: where a cache on disk is kept. `threads`: that decode samples, unless the spec says. Errors carry their
  // failure class.
  static absl::StatusOr<std::unique_ptr<TrainingData>> Open(const ResolvedJobSpec& spec,
                                                            const std::vector<std::string>& data_roots,
                                                            const std::string& folder, int threads);

  const data::Dataset& train() const { return *train_; }
  // nullptr when the job has none.
  const data::Dataset* eval() const { return eval_.get(); }

  const models::SampleInfo& sample() const { return sample_; }

  // How the network's inputs came from what is stored.
  InputNotes Notes() const;

  // What became known of damaged samples since the last call.
  std::vector<v1::CorruptSample> TakeCorrupt() const;

  // `outputs`: of the network, per sample. `batches`: buffers, if more than the loader's own default. `batch_size`: in
  // place of the job's. `read_ahead` as in LoaderOptions.
  absl::StatusOr<std::unique_ptr<data::Loader>> TrainLoader(
      int64_t outputs, int64_t first_step, int64_t batches = 0, int64_t batch_size = 0,
      data::ReadAhead read_ahead = data::ReadAhead::kSamples) const;
  // What TrainLoader() reads, for a device to keep, within the bound that the job sets. Borrows. UNIMPLEMENTED as
  // StoredSamplesOf().
  absl::StatusOr<runtime::StoredSamples> Stored(int64_t outputs) const;
  // Needs eval(). Sequences with lengths are all padded to the longest bucket.
  absl::StatusOr<std::unique_ptr<data::Loader>> EvalLoader(int64_t outputs) const;

 private:
  TrainingData(const ResolvedJobSpec& spec, int threads) : spec_(spec), threads_(threads) {}
  data::LoaderOptions Options(int64_t batch_size, int64_t outputs) const;
  data::LoaderOptions TrainOptions(int64_t batch_size, int64_t outputs) const;

  ResolvedJobSpec spec_;
  int threads_;
  std::unique_ptr<data::Dataset> train_;
  std::unique_ptr<data::Dataset> eval_;
  std::unique_ptr<data::Transform> transform_;
  models::SampleInfo sample_;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_TRAINING_DATA_H_
