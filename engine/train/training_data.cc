#include "engine/train/training_data.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/data/length_buckets.h"
#include "engine/data/sample_cache.h"
#include "engine/data/transform.h"
#include "engine/train/data_checks.h"
#include "engine/train/failure.h"
#include "engine/train/planned_model.h"
#include "engine/train/stored_samples.h"
#include "proto/spec/names.h"
#include "proto/spec/utf8.h"

namespace ampd::train {

namespace {

absl::string_view KindOfTargets(const data::DatasetInfo& info) {
  return info.target_kind == data::TargetKind::kClass ? "class labels" : "floats";
}

// A label means the same class in both sets, where they name them. An evaluation set may lack the last classes.
absl::Status CheckSameClasses(const data::DatasetInfo& train, const data::DatasetInfo& eval) {
  if (train.class_names.empty() || eval.class_names.empty()) return absl::OkStatus();
  for (size_t i = 0; i < eval.class_names.size(); ++i) {
    if (i < train.class_names.size() && eval.class_names[i] == train.class_names[i]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("data.eval: class ", i, " is '", eval.class_names[i], "' in ", eval.name, " and ",
                     i < train.class_names.size() ? absl::StrCat("'", train.class_names[i], "'") : "none", " in ",
                     train.name, "; both need the same classes, or `classes` names them in one order"));
  }
  return absl::OkStatus();
}

// The columns of a set that are read as the same thing.
struct NamedColumns {
  const data::DatasetInfo& set;
  // As the job writes them, and as the file names them.
  std::vector<std::string> given;
  const std::vector<std::string>& names;

  // Whether the job names them, rather than their places.
  bool are_named() const { return given == names; }
};

NamedColumns InputsOf(const v1::CsvDataset& csv, const data::DatasetInfo& info) {
  return {info, {csv.inputs().begin(), csv.inputs().end()}, info.input_names};
}

NamedColumns TargetsOf(const v1::CsvDataset& csv, const data::DatasetInfo& info) {
  if (!csv.label().empty()) return {info, {csv.label()}, info.target_names};
  return {info, {csv.targets().begin(), csv.targets().end()}, info.target_names};
}

// What is read means the same in both sets, where they name columns and the job does not say which are which. `what`
// they are: "input", "target" or "label", of which there is one; `field` may name them.
absl::Status CheckSame(const NamedColumns& train, const NamedColumns& eval, absl::string_view what,
                       absl::string_view field) {
  if (train.are_named() && eval.are_named()) return absl::OkStatus();
  for (size_t i = 0; i < std::min(train.names.size(), eval.names.size()); ++i) {
    if (train.names[i] == eval.names[i]) continue;
    const bool one = what == "label";
    return absl::InvalidArgumentError(absl::StrCat("data.eval: ", one ? "the label" : absl::StrCat(what, " ", i),
                                                   " is column ", Quoted(eval.names[i]), " of ", eval.set.name,
                                                   ", but ", Quoted(train.names[i]), " of ", train.set.name, "; ",
                                                   field, " of both may name ", one ? "it" : "them in one order"));
  }
  return absl::OkStatus();
}

absl::Status CheckSameColumns(const v1::DataSpec& data, const data::DatasetInfo& train, const data::DatasetInfo& eval) {
  const v1::CsvDataset &of_train = data.train().csv(), &of_eval = data.eval().csv();
  AMPD_RETURN_IF_ERROR(CheckSame(InputsOf(of_train, train), InputsOf(of_eval, eval), "input", "csv.inputs"));
  const bool label = !of_train.label().empty();
  return CheckSame(TargetsOf(of_train, train), TargetsOf(of_eval, eval), label ? "label" : "target",
                   label ? "csv.label" : "csv.targets");
}

// The graphs are made for the samples of the training set.
absl::Status CheckSameTargets(const v1::JobSpec& spec, const data::DatasetInfo& train, const data::DatasetInfo& eval) {
  const auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("data.eval: ", what));
  };
  if (train.target_kind != eval.target_kind) {
    return refuse(absl::StrCat("the targets of ", eval.name, " are ", KindOfTargets(eval), ", those of ", train.name,
                               " ", KindOfTargets(train)));
  }
  // Stored spectrograms have none.
  if (train.sample_rate > 0 && eval.sample_rate > 0 && train.sample_rate != eval.sample_rate) {
    return refuse(absl::StrCat("the sounds of ", eval.name, " are of ", eval.sample_rate, " Hz, those of ", train.name,
                               " of ", train.sample_rate, ": their bands would be of other frequencies"));
  }
  if (train.lengths.empty() != eval.lengths.empty() || train.label_lengths.empty() != eval.label_lengths.empty()) {
    return refuse(absl::StrCat(eval.name, " and ", train.name, " must both have lengths, or neither"));
  }
  if (spec.model().loss().has_multibox() && train.target_features != eval.target_features) {
    return refuse(absl::StrCat("samples of ", eval.name, " have ", eval.target_features, " numbers of boxes, those of ",
                               train.name, " ", train.target_features));
  }
  // Labels at each step are padded as the steps are.
  const bool by_step = !train.lengths.empty() && !spec.model().loss().has_ctc() && eval.label_count > 0 &&
                       eval.label_count == eval.input_shape[0] && train.label_count > 0;
  // Where lengths tell which labels count, the shorter ones are padded.
  const bool counted = spec.model().loss().has_ctc() && !train.label_lengths.empty();
  if (by_step || counted || train.label_count == eval.label_count) return absl::OkStatus();
  return refuse(absl::StrCat("samples of ", eval.name, " have ", eval.label_count, " labels, those of ", train.name,
                             " ", train.label_count));
}

absl::StatusOr<std::shared_ptr<data::SampleCache>> MakeCache(const v1::DataSpec& data, const std::string& folder) {
  if (!data.has_cache()) return std::shared_ptr<data::SampleCache>();
  auto cache = data::SampleCache::Create(data.cache(), folder);
  // What cannot be written here may be elsewhere, or later; it is no fault of a device.
  if (!cache.ok()) return WithFailureClass(cache.status(), v1::Failure::INTERNAL);
  return cache;
}

void AddCorrupt(const data::Dataset& dataset, std::vector<v1::CorruptSample>* corrupt) {
  for (const data::DamagedSample& damaged : dataset.damage().Take()) {
    v1::CorruptSample& sample = corrupt->emplace_back();
    // A file may have any bytes for its name.
    sample.set_file(ValidUtf8(damaged.file));
    sample.set_reason(ValidUtf8(damaged.reason));
    sample.set_corrupt(damaged.found);
    sample.set_samples(dataset.size());
  }
}

}  // namespace

models::SampleInfo SampleInfoOf(const data::DatasetInfo& info) {
  models::SampleInfo sample;
  sample.input_shape = info.input_shape;
  if (info.target_kind == data::TargetKind::kClass) {
    sample.classes = info.classes;
    sample.other_classes = info.CountedClasses(info.classes - 1);
    if (info.label_count > 0) sample.label_shape = {info.label_count};
    sample.label_lengths = !info.label_lengths.empty();
  } else {
    sample.target_features = info.target_features;
  }
  return sample;
}

absl::StatusOr<models::SampleInfo> SampleInfoOf(const v1::JobSpec& spec, const data::DatasetInfo& train,
                                                const data::DatasetInfo* eval) {
  models::SampleInfo sample = SampleInfoOf(train);
  const auto normalize = data::NormalizationOf(spec.data().image(), train);
  if (normalize != v1::ImageTransform::NONE) sample.normalized = v1::ImageTransform::Normalize_Name(normalize);
  if (eval != nullptr) {
    AMPD_RETURN_IF_ERROR(CheckSameTargets(spec, train, *eval));
    AMPD_RETURN_IF_ERROR(CheckSameClasses(train, *eval));
    AMPD_RETURN_IF_ERROR(CheckSameColumns(spec.data(), train, *eval));
    if (sample.label_lengths) sample.label_shape[0] = std::max(sample.label_shape[0], eval->label_count);
  }
  if (train.lengths.empty()) return sample;
  if (!spec.model().networks().empty()) {
    return absl::InvalidArgumentError("datasets with lengths are not supported with model.networks yet");
  }
  const bool labels_by_step = !sample.label_shape.empty() && !spec.model().loss().has_ctc();
  if (labels_by_step && train.label_count != train.input_shape[0]) {
    return absl::InvalidArgumentError(absl::StrCat(train.name, " has ", train.label_count, " labels a sample of ",
                                                   train.input_shape[0], " steps; the loss needs one for each"));
  }
  const absl::Span<const int64_t> given = spec.data().length_buckets();
  AMPD_ASSIGN_OR_RETURN(
      sample.buckets,
      data::LengthBuckets(train.lengths, eval == nullptr ? absl::Span<const int32_t>() : eval->lengths, given));
  sample.lengths = true;
  sample.input_shape[0] = sample.buckets.back();
  if (labels_by_step) sample.label_shape = {sample.buckets.back()};
  return sample;
}

absl::optional<int64_t> IgnoredLabel(const v1::LossSpec& loss) {
  if (!loss.softmax_cross_entropy().has_ignore_index()) return absl::nullopt;
  return loss.softmax_cross_entropy().ignore_index();
}

absl::Status DataError(const absl::Status& status, absl::string_view field) {
  const absl::Status annotated = Annotate(status, field);
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kResourceExhausted:
      return annotated;
    default:
      return WithFailureClass(annotated, v1::Failure::DATA);
  }
}

absl::StatusOr<std::unique_ptr<TrainingData>> TrainingData::Open(const ResolvedJobSpec& spec,
                                                                 const std::vector<std::string>& data_roots,
                                                                 const std::string& folder, int threads) {
  const v1::DataSpec& data = spec.proto().data();
  if (data.has_decode_threads()) threads = data.decode_threads();
  std::unique_ptr<TrainingData> opened(new TrainingData(spec, threads));
  AMPD_ASSIGN_OR_RETURN(const std::shared_ptr<data::SampleCache> cache, MakeCache(data, folder));
  auto train = data::OpenDataset(data, data_roots, /*is_eval=*/false, cache);
  if (!train.ok()) return DataError(train.status(), "data.train");
  opened->train_ = *std::move(train);
  // Before a step is made, rather than when the sample's turn comes.
  const absl::Status numbers = CheckNumbers(spec.proto(), data.train(), *opened->train_);
  if (!numbers.ok()) return DataError(numbers, "data.train");
  auto transform = data::Transform::Create(data.image(), *opened->train_, threads);
  if (!transform.ok()) return DataError(transform.status(), "data.image");
  opened->transform_ = std::make_unique<data::Transform>(*std::move(transform));
  if (data.has_eval()) {
    auto eval = data::OpenDataset(data, data_roots, /*is_eval=*/true, cache);
    if (!eval.ok()) return DataError(eval.status(), "data.eval");
    opened->eval_ = *std::move(eval);
    const absl::Status evaluated = CheckNumbers(spec.proto(), data.eval(), *opened->eval_);
    if (!evaluated.ok()) return DataError(evaluated, "data.eval");
  }
  const data::DatasetInfo* eval = opened->eval_ == nullptr ? nullptr : &opened->eval_->info();
  auto sample = SampleInfoOf(spec.proto(), opened->train_->info(), eval);
  if (!sample.ok()) return DataError(sample.status(), "data");
  opened->sample_ = *std::move(sample);
  return opened;
}

data::LoaderOptions TrainingData::Options(int64_t batch_size, int64_t outputs) const {
  data::LoaderOptions options;
  options.batch_size = batch_size;
  // Networks take what the data has.
  const v1::LossSpec& loss = spec_.proto().model().loss();
  const bool networks = !spec_.proto().model().networks().empty();
  const bool labels = train_->info().target_kind == data::TargetKind::kClass &&
                      (networks || loss.has_softmax_cross_entropy() || loss.has_ctc());
  options.targets = labels ? data::TargetFormat::kLabels : data::TargetFormat::kFloats;
  options.target_width = loss.has_multibox() ? sample_.target_features : outputs;
  options.ignored = IgnoredLabel(loss);
  options.buckets = sample_.buckets;
  options.spelled_labels = loss.has_ctc();
  options.blank = loss.ctc().blank();
  options.threads = threads_;
  if (sample_.label_lengths) options.label_places = sample_.label_shape[0];
  return options;
}

InputNotes TrainingData::Notes() const {
  return {transform_->mean(), transform_->std(), train_->info().class_names, train_->size(),
          data::UsedBuckets(train_->info().lengths, sample_.buckets)};
}

std::vector<v1::CorruptSample> TrainingData::TakeCorrupt() const {
  std::vector<v1::CorruptSample> corrupt;
  AddCorrupt(*train_, &corrupt);
  if (eval_ != nullptr) AddCorrupt(*eval_, &corrupt);
  return corrupt;
}

data::LoaderOptions TrainingData::TrainOptions(int64_t batch_size, int64_t outputs) const {
  data::LoaderOptions options = Options(batch_size > 0 ? batch_size : spec_.proto().train().batch_size(), outputs);
  options.seed = spec_.proto().seed();
  options.shuffle = spec_.proto().data().shuffle();
  return options;
}

absl::StatusOr<std::unique_ptr<data::Loader>> TrainingData::TrainLoader(int64_t outputs, int64_t first_step,
                                                                        int64_t batches, int64_t batch_size,
                                                                        data::ReadAhead read_ahead) const {
  data::LoaderOptions options = TrainOptions(batch_size, outputs);
  options.first_step = first_step;
  options.depth = std::max(options.depth, static_cast<int>(batches));
  options.read_ahead = read_ahead;
  auto loader = data::Loader::CreateTraining(*train_, *transform_, options);
  if (!loader.ok()) return DataError(loader.status(), "data.train");
  return loader;
}

absl::StatusOr<runtime::StoredSamples> TrainingData::Stored(int64_t outputs) const {
  AMPD_ASSIGN_OR_RETURN(runtime::StoredSamples samples,
                        StoredSamplesOf(*train_, *transform_, TrainOptions(0, outputs)));
  const v1::DeviceCacheSpec& cache = spec_.proto().data().device_cache();
  // Whoever shares a device keeps to what was planned.
  samples.max_bytes = cache.has_max_bytes() ? cache.max_bytes() : spec_.proto().resources().share() ? 0 : -1;
  return samples;
}

absl::StatusOr<std::unique_ptr<data::Loader>> TrainingData::EvalLoader(int64_t outputs) const {
  data::LoaderOptions options = Options(EvaluationBatch(spec_.proto().train()), outputs);
  // The evaluation has one plan.
  if (!options.buckets.empty()) options.buckets = {options.buckets.back()};
  auto loader = data::Loader::CreateEvaluation(*eval_, *transform_, options);
  if (!loader.ok()) return DataError(loader.status(), "data.eval");
  return loader;
}

}  // namespace ampd::train
