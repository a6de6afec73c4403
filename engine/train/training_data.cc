#include "engine/train/training_data.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/failure.h"
#include "engine/train/planned_model.h"

namespace ampd::train {

models::SampleInfo SampleInfoOf(const data::DatasetInfo& info) {
  models::SampleInfo sample;
  sample.input_shape = info.input_shape;
  if (info.target_kind == data::TargetKind::kClass) {
    sample.classes = info.classes;
  } else {
    sample.target_features = info.target_features;
  }
  return sample;
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

namespace {

absl::string_view KindOfTargets(const data::DatasetInfo& info) {
  return info.target_kind == data::TargetKind::kClass ? "class labels" : "floats";
}

// The evaluation graph is made for the targets of the training set.
absl::Status CheckSameTargets(const data::DatasetInfo& train, const data::DatasetInfo& eval) {
  if (train.target_kind == eval.target_kind) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the targets of ", eval.name, " are ", KindOfTargets(eval),
                                                 ", those of ", train.name, " ", KindOfTargets(train)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingData>> TrainingData::Open(const ResolvedJobSpec& spec,
                                                                 const std::vector<std::string>& data_roots) {
  const v1::DataSpec& data = spec.proto().data();
  std::unique_ptr<TrainingData> opened(new TrainingData(spec));
  auto train = data::OpenDataset(data.train(), data_roots, /*is_eval=*/false);
  if (!train.ok()) return DataError(train.status(), "data.train");
  opened->train_ = *std::move(train);
  auto transform = data::Transform::Create(data.image(), *opened->train_);
  if (!transform.ok()) return DataError(transform.status(), "data.image");
  opened->transform_ = std::make_unique<data::Transform>(*std::move(transform));
  if (data.has_eval()) {
    auto eval = data::OpenDataset(data.eval(), data_roots, /*is_eval=*/true);
    if (!eval.ok()) return DataError(eval.status(), "data.eval");
    opened->eval_ = *std::move(eval);
    AMPD_RETURN_IF_ERROR(DataError(CheckSameTargets(opened->train_->info(), opened->eval_->info()), "data.eval"));
  }
  return opened;
}

data::LoaderOptions TrainingData::Options(int64_t batch_size, int64_t outputs) const {
  data::LoaderOptions options;
  options.batch_size = batch_size;
  options.targets = spec_.proto().model().loss().has_softmax_cross_entropy() ? data::TargetFormat::kLabels
                                                                             : data::TargetFormat::kFloats;
  options.target_width = outputs;
  return options;
}

absl::StatusOr<std::unique_ptr<data::Loader>> TrainingData::TrainLoader(int64_t outputs, int64_t first_step) const {
  data::LoaderOptions options = Options(spec_.proto().train().batch_size(), outputs);
  options.seed = spec_.proto().seed();
  options.shuffle = spec_.proto().data().shuffle();
  options.first_step = first_step;
  auto loader = data::Loader::CreateTraining(*train_, *transform_, options);
  if (!loader.ok()) return DataError(loader.status(), "data.train");
  return loader;
}

absl::StatusOr<std::unique_ptr<data::Loader>> TrainingData::EvalLoader(int64_t outputs) const {
  auto loader =
      data::Loader::CreateEvaluation(*eval_, *transform_, Options(EvaluationBatch(spec_.proto().train()), outputs));
  if (!loader.ok()) return DataError(loader.status(), "data.eval");
  return loader;
}

}  // namespace ampd::train
