#include "engine/train/stored_samples.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/worker_pool.h"

namespace ampd::train {
namespace {

absl::Status CheckStored(const data::DatasetInfo& info, const data::LoaderOptions& options) {
  if (!info.lengths.empty() || !options.buckets.empty()) return absl::UnimplementedError("they have lengths");
  if (info.windowed) return absl::UnimplementedError("each step sees another window of them (random_resized_crop)");
  if (info.max_damaged >= 0) return absl::UnimplementedError("some may turn out damaged when they are read");
  const bool counted = !info.label_lengths.empty() || options.spelled_labels || options.label_places > 0;
  if (counted) return absl::UnimplementedError("their labels are of several lengths");
  return absl::OkStatus();
}

// What is stored of a dataset's samples.
class Reader {
 public:
  Reader(const data::Dataset& dataset, bool labels, int64_t words, int threads)
      : dataset_(dataset),
        labels_(labels),
        words_(words),
        pool_(dataset.info().decodes ? threads : 1),
        scratch_(static_cast<size_t>(pool_.threads())) {}

  absl::Status Read(int64_t first, int64_t count, void* values, void* targets) {
    std::vector<absl::Status> statuses(static_cast<size_t>(count));
    pool_.ForEach(count, [&](int64_t i, int worker) {
      statuses[static_cast<size_t>(i)] = ReadValues(first + i, i, scratch_[static_cast<size_t>(worker)], values);
      ReadTarget(first + i, i, targets);
    });
    for (const absl::Status& status : statuses) AMPD_RETURN_IF_ERROR(status);
    return absl::OkStatus();
  }

 private:
  absl::Status ReadValues(int64_t sample, int64_t place, std::vector<float>& scratch, void* values) const {
    const auto elements = static_cast<size_t>(dataset_.info().input_elements());
    const size_t begin = static_cast<size_t>(place) * elements;
    if (!dataset_.info().byte_inputs) {
      return dataset_.ReadSample(sample, nullptr, {static_cast<float*>(values) + begin, elements});
    }
    scratch.resize(elements);
    AMPD_RETURN_IF_ERROR(dataset_.ReadSample(sample, nullptr, absl::MakeSpan(scratch)));
    std::transform(scratch.begin(), scratch.end(), static_cast<uint8_t*>(values) + begin,
                   [](float value) { return static_cast<uint8_t>(value); });
    return absl::OkStatus();
  }

  void ReadTarget(int64_t sample, int64_t place, void* targets) const {
    const auto words = static_cast<size_t>(words_), begin = static_cast<size_t>(place) * words;
    if (!labels_) return dataset_.ReadTarget(sample, {static_cast<float*>(targets) + begin, words});
    const absl::Span<int32_t> labels(static_cast<int32_t*>(targets) + begin, words);
    if (dataset_.info().label_count > 0) return dataset_.ReadLabels(sample, labels);
    labels[0] = dataset_.ReadLabel(sample);
  }

  const data::Dataset& dataset_;
  const bool labels_;
  const int64_t words_;
  WorkerPool pool_;
  // By worker.
  std::vector<std::vector<float>> scratch_;
};

}  // namespace

absl::StatusOr<runtime::StoredSamples> StoredSamplesOf(const data::Dataset& dataset, const data::Transform& transform,
                                                       const data::LoaderOptions& options) {
  const data::DatasetInfo& info = dataset.info();
  AMPD_RETURN_IF_ERROR(CheckStored(info, options));
  const bool labels = info.target_kind == data::TargetKind::kClass;
  runtime::StoredSamples samples;
  samples.size = info.size;
  samples.input = "x";
  samples.values = info.input_elements();
  samples.bytes = info.byte_inputs;
  samples.augmentation = transform.augmentation();
  samples.mean = transform.mean();
  samples.std = transform.std();
  samples.seed = options.seed;
  samples.target = options.targets == data::TargetFormat::kLabels ? "labels" : "targets";
  samples.target_words = labels ? std::max<int64_t>(1, info.label_count) : info.target_features;
  if (labels && options.targets == data::TargetFormat::kFloats)
    samples.one_hot = options.target_width > 0 ? options.target_width : info.classes;
  const auto reader = std::make_shared<Reader>(dataset, labels, samples.target_words, options.threads);
  samples.read = [reader](int64_t first, int64_t count, void* values, void* targets) {
    return reader->Read(first, count, values, targets);
  };
  return samples;
}

}  // namespace ampd::train
