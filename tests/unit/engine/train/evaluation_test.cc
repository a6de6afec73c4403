// What evaluations tell, and what keep_best makes of it.
#include "engine/train/evaluation.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/train/planned_model.h"
#include "engine/train/training_data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

constexpr int64_t kSamples = 8, kFeatures = 3;

const std::string kNet =
    "model { layers { name: 'head' dense { units: 4 } } loss { softmax_cross_entropy { ignore_index: 1 } } }"
    "optimizer { sgd { learning_rate: 0.1 } } ";
const std::string kData =
    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } eval { npy { inputs: 'xe.npy' targets: 'e.npy' } } } ";
const std::string kRun =
    "train { batch_size: 8 epochs: 3 } checkpoint { every_steps: 1 keep_last: 9 keep_best: 'loss' } ";

void WriteInputs(const std::string& path, int64_t samples) {
  std::vector<float> x;
  for (int64_t i = 0; i < samples * kFeatures; ++i) x.push_back(static_cast<float>(std::sin(static_cast<double>(i))));
  WriteNpy<float>(path, "<f4", {samples, kFeatures}, x);
}

void WriteData(const std::string& folder, const std::vector<int32_t>& eval_labels) {
  const auto evaluated = static_cast<int64_t>(eval_labels.size());
  WriteInputs(folder + "/x.npy", kSamples);
  WriteInputs(folder + "/xe.npy", evaluated);
  WriteNpy<int32_t>(folder + "/y.npy", "<i4", {kSamples}, {0, 1, 2, 3, 0, 2, 3, 3});
  WriteNpy<int32_t>(folder + "/e.npy", "<i4", {evaluated}, eval_labels);
}

// Of five classes each is among the best five, so that there is no such metric: known from the model, at submit.
TEST(Evaluation, AMetricThatThereIsNotIsRefusedByThePlan) {
  const ScratchFolder folder;
  WriteData(folder.path(), std::vector<int32_t>(kSamples, 1));
  const auto errors = [&](int units, const std::string& metric, const std::string& rest = "") {
    const std::string model = absl::StrCat("model { layers { name: 'head' dense { units: ", units,
                                           " } } loss { softmax_cross_entropy {} } } train { batch_size: 8 }");
    const std::string best = "checkpoint { keep_best: '" + metric + "' } ";
    const v1::PlanResponse response = PlanJob(Spec({model, kData, best + rest}), {folder.path()});
    std::string text;
    for (const v1::FieldError& error : response.errors()) {
      absl::StrAppend(&text, error.field(), ": ", error.description());
    }
    return text;
  };
  EXPECT_EQ(errors(5, "top5"),
            "checkpoint.keep_best: the evaluations have no metric top5, but accuracy, loss, perplexity");
  EXPECT_EQ(errors(6, "top5"), "");
  EXPECT_EQ(errors(5, "accuracy"), "");
  EXPECT_EQ(errors(5, "top5", "bench {}"), "") << "a measurement evaluates nothing";
}

TEST(Evaluation, WhereNoLabelCountsThereIsNoBest) {
  const ScratchFolder folder;
  WriteData(folder.path(), std::vector<int32_t>(kSamples, 1));
  Recorder recorder;
  const auto outcome = Train(Spec({kNet, kData, kRun}), Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_EQ(recorder.evaluations().size(), 3u);
  for (const v1::Evaluation& evaluation : recorder.evaluations()) {
    EXPECT_EQ(evaluation.samples(), kSamples);
    EXPECT_TRUE(std::isnan(evaluation.loss())) << evaluation.loss();
    for (const auto& [name, value] : evaluation.metrics()) EXPECT_TRUE(std::isnan(value)) << name << " " << value;
    EXPECT_EQ(evaluation.metrics().count("accuracy"), 1);
  }
  ASSERT_FALSE(recorder.checkpoints().empty());
  for (const v1::CheckpointSaved& checkpoint : recorder.checkpoints()) EXPECT_FALSE(checkpoint.best());
}

// Seven samples in runs of 8, 4, 2 and 1: the last run is padded, and in some none counts.
TEST(Evaluation, DoesNotDependOnTheSizeOfItsRuns) {
  std::vector<v1::Evaluation> evaluations;
  for (const int64_t micro_batch : {8, 4, 2, 1}) {
    const ScratchFolder folder;
    WriteData(folder.path(), {1, 1, 2, 3, 0, 1, 3});
    Recorder recorder;
    const std::string micro = absl::StrCat("train { micro_batch_size: ", micro_batch, " }");
    const auto outcome = Train(Spec({kNet, kData, kRun, micro}), Options(folder.path()), &recorder);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    ASSERT_EQ(recorder.evaluations().size(), 3u);
    evaluations.push_back(recorder.evaluations().back());
  }
  EXPECT_EQ(evaluations[0].samples(), 7);
  for (const v1::Evaluation& evaluation : evaluations) {
    EXPECT_EQ(evaluation.samples(), 7);
    EXPECT_EQ(evaluation.accuracy(), evaluations[0].accuracy());
    EXPECT_NEAR(evaluation.loss(), evaluations[0].loss(), 1e-6);
  }
}

// While it runs, since one may take hours.
TEST(Evaluation, TellsOfEachBatchWhatItTook) {
  const ScratchFolder folder;
  WriteData(folder.path(), {0, 1, 2, 3, 0, 2, 3});
  const auto spec = Spec({kNet, kData, kRun, "train { micro_batch_size: 4 }"});
  const auto data = TrainingData::Open(spec, {folder.path()}, folder.path(), 1).value();
  const auto plan = PlanModel(spec, data->sample(), MakeBackend("cpu-0", 1).value(), 1).value();
  const std::unique_ptr<LoadedModel> model = LoadedModel::Create(*plan).value();
  ASSERT_TRUE(model->memory.Initialize(1).ok());
  ASSERT_TRUE(model->memory.PublishAll().ok());
  std::vector<int64_t> told;
  const auto evaluation = Evaluate(*data, *plan, model.get(), [&](int64_t samples) { told.push_back(samples); });
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  // Places that pad the last are no samples.
  EXPECT_THAT(told, ::testing::ElementsAre(4, 3));
  EXPECT_EQ(evaluation->samples(), 7);
  EXPECT_EQ(Evaluate(*data, *plan, model.get())->loss(), evaluation->loss());
}

TEST(Evaluation, TheTrainerCountsTheSamplesOfAll) {
  const ScratchFolder folder;
  WriteData(folder.path(), {0, 1, 2, 3, 0, 2, 3});
  Recorder recorder;
  auto trainer = Trainer::Create(Spec({kNet, kData, kRun}), Options(folder.path()), &recorder);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ((*trainer)->evaluated_samples(), 0);
  std::vector<int64_t> counts;
  recorder.on_event = [&](const v1::JobEvent& event) {
    if (event.has_evaluation()) counts.push_back((*trainer)->evaluated_samples());
    return absl::OkStatus();
  };
  const auto outcome = (*trainer)->Run();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(counts, ::testing::ElementsAre(7, 14, 21));
  EXPECT_EQ((*trainer)->evaluated_samples(), 21);
}

// 255 for no class, as data sets of segmentation have it, against the same samples with a label that there is an output
// for: nothing that is computed may differ.
TEST(Evaluation, AnIgnoredLabelNeedsNoOutput) {
  const std::vector<int32_t> labels = {0, 255, 2, 3, 0, 255, 3, 3}, evaluated = {255, 2, 3, 255, 0, 3, 2};
  const auto net = [](int ignored) {
    return absl::StrCat(
        "model { layers { name: 'head' dense { units: 4 } } loss { softmax_cross_entropy { ignore_index: ", ignored,
        " } } } optimizer { sgd { learning_rate: 0.1 } } report { every_steps: 1 } ");
  };
  const auto write = [&](const std::string& folder, int32_t ignored) {
    const auto with = [&](std::vector<int32_t> values) {
      std::replace(values.begin(), values.end(), 255, ignored);
      return values;
    };
    WriteData(folder, with(evaluated));
    WriteNpy<int32_t>(folder + "/y.npy", "<i4", {kSamples}, with(labels));
  };
  std::vector<std::vector<double>> losses;
  std::vector<v1::Evaluation> evaluations;
  for (const int ignored : {255, 1}) {
    const ScratchFolder folder;
    write(folder.path(), ignored);
    const ResolvedJobSpec spec = Spec({net(ignored), kData, kRun, "train { micro_batch_size: 4 }"});
    const v1::PlanResponse plan = PlanJob(spec, {folder.path()});
    EXPECT_TRUE(plan.errors().empty()) << plan.errors(0).description();
    Recorder recorder;
    const auto outcome = Train(spec, Options(folder.path()), &recorder);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    losses.push_back(recorder.losses());
    ASSERT_EQ(recorder.evaluations().size(), 3u);
    evaluations.push_back(recorder.evaluations().back());
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_TRUE(std::isfinite(losses[0].back()));
  EXPECT_EQ(evaluations[0].loss(), evaluations[1].loss());
  EXPECT_EQ(evaluations[0].accuracy(), evaluations[1].accuracy());
  // Other labels need theirs, and so does that one where nothing ignores it.
  const ScratchFolder folder;
  write(folder.path(), 255);
  const auto refused = [&](int ignored) {
    const v1::PlanResponse plan = PlanJob(Spec({net(ignored), kData, kRun}), {folder.path()});
    return plan.errors().empty() ? "" : plan.errors(0).description();
  };
  EXPECT_EQ(refused(255), "");
  EXPECT_THAT(refused(1), ::testing::HasSubstr("4 outputs, the data has 256 classes"));
  WriteNpy<int32_t>(folder.path() + "/y.npy", "<i4", {kSamples}, {0, 255, 2, 4, 0, 255, 3, 3});
  EXPECT_THAT(refused(255), ::testing::HasSubstr("4 outputs, the data has 5 classes"));
  WriteData(folder.path(), {255, 7});
  EXPECT_THAT(refused(255), ::testing::HasSubstr("labels up to 7, but the network has 4 outputs"));
}

}  // namespace
}  // namespace ampd::train
