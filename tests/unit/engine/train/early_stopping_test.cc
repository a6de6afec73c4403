// train.early_stopping and train.eval_every_steps.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/train/evaluation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Ten steps an epoch; a learning rate at which the accuracy goes up and down.
const std::string kRun =
    "train { batch_size: 32 epochs: 12 } optimizer { adamw { learning_rate: 0.03 } } report { every_steps: 1 } ";

std::vector<int64_t> StepsOf(const std::vector<v1::Evaluation>& evaluations) {
  std::vector<int64_t> steps;
  for (const v1::Evaluation& evaluation : evaluations) steps.push_back(evaluation.step());
  return steps;
}

struct Ended {
  Outcome outcome;
  std::string reason;
};

Ended RunToEnd(const ResolvedJobSpec& spec, const TrainerOptions& options, Recorder* recorder, int64_t stop_at = 0) {
  auto trainer = Trainer::Create(spec, options, recorder);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  if (!trainer.ok()) return {};
  recorder->on_event = [&](const v1::JobEvent& event) {
    if (event.has_step() && event.step().last_step() == stop_at) (*trainer)->Request(Command::kCheckpointAndStop);
    return absl::OkStatus();
  };
  const auto outcome = (*trainer)->Run();
  recorder->on_event = nullptr;
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  return {outcome.value_or(Outcome::kStopped), (*trainer)->end_reason()};
}

// By Keras' rule, of the metrics of a training that went to its end: after which evaluation, from 1, it would have
// ended.
std::optional<size_t> Expected(const std::vector<double>& metrics, int sign, double min_delta, int patience) {
  double best = -INFINITY;
  int wait = 0;
  for (size_t i = 0; i < metrics.size(); ++i) {
    ++wait;
    if (sign * metrics[i] - min_delta > best) {
      best = sign * metrics[i];
      wait = 0;
    }
    if (wait >= patience && i > 0) return i + 1;
  }
  return std::nullopt;
}

TEST(EarlyStopping, EndsWhereEvaluationsGetNoBetter) {
  const ScratchFolder folder;
  Recorder whole;
  ASSERT_TRUE(Train(Spec({kConvNet, kGlyphs, kRun}), Options(folder.path() + "/whole"), &whole).ok());
  ASSERT_EQ(whole.evaluations().size(), 12u);
  int stopped = 0, run = 0;
  for (const std::string metric : {"loss", "accuracy"}) {
    for (const double min_delta : {0.0, 0.05}) {
      for (const int patience : {1, 2, 4}) {
        const std::string rule = absl::StrCat("train { early_stopping { metric: '", metric, "' patience: ", patience,
                                              " min_delta: ", min_delta, " } }");
        std::vector<double> metrics;
        for (const v1::Evaluation& evaluation : whole.evaluations()) {
          metrics.push_back(evaluation.metrics().at(metric));
        }
        const auto expected = Expected(metrics, metric == "loss" ? -1 : 1, min_delta, patience);
        Recorder recorder;
        const Ended ended = RunToEnd(Spec({kConvNet, kGlyphs, kRun, rule}),
                                     Options(absl::StrCat(folder.path(), "/", ++run)), &recorder);
        EXPECT_EQ(ended.outcome, Outcome::kCompleted);
        EXPECT_EQ(recorder.evaluations().size(), expected.value_or(12)) << rule;
        const int64_t last = 10 * static_cast<int64_t>(expected.value_or(12));
        EXPECT_EQ(recorder.steps().back().last_step(), last) << rule;
        EXPECT_EQ(recorder.checkpoints().back().step(), last) << rule;
        const std::vector<double> losses = whole.losses();
        EXPECT_EQ(recorder.losses(), std::vector<double>(losses.begin(), losses.begin() + last)) << rule;
        if (last < 120) {
          ++stopped;
          EXPECT_THAT(ended.reason, HasSubstr(absl::StrCat("stopped early, after step ", last, " of 120: in ", patience,
                                                           patience == 1 ? " evaluation " : " evaluations ", metric,
                                                           " got no better than ")));
        } else {
          EXPECT_EQ(ended.reason, "") << rule;
        }
      }
    }
  }
  EXPECT_GT(stopped, 3) << "of 12 rules";
}

// Wherever it was stopped between, and after the end too.
TEST(EarlyStopping, CountsAcrossAttempts) {
  const ScratchFolder folder;
  const auto spec =
      Spec({kConvNet, kGlyphs, kRun, "train { early_stopping { metric: 'loss' patience: 2 min_delta: 100 } }"});
  for (const int64_t stop_at : {5, 10, 13, 20, 29}) {
    TrainerOptions options = Options(absl::StrCat(folder.path(), "/", stop_at));
    Recorder first, second, third;
    EXPECT_EQ(RunToEnd(spec, options, &first, stop_at).outcome, Outcome::kStopped);
    options.last_reported_step = stop_at;
    const Ended ended = RunToEnd(spec, options, &second);
    EXPECT_EQ(ended.outcome, Outcome::kCompleted);
    EXPECT_EQ(second.checkpoints().back().step(), 30) << stop_at;
    EXPECT_THAT(ended.reason, HasSubstr("after step 30 of 120: in 2 evaluations loss got no better than ")) << stop_at;
    EXPECT_THAT(ended.reason, HasSubstr(", its value after step 10 (min_delta 100)")) << stop_at;
    options.last_reported_step = 30;
    const Ended again = RunToEnd(spec, options, &third);
    EXPECT_EQ(again.outcome, Outcome::kCompleted);
    EXPECT_EQ(again.reason, ended.reason) << "as its daemon asks for where it never heard of the end";
    EXPECT_TRUE(third.steps().empty());
    EXPECT_EQ(third.checkpoints().back().step(), 30);
  }
}

// A stop that is asked for in the step that ends it anyway.
TEST(EarlyStopping, AStopAtItsEndFindsItDone) {
  const ScratchFolder folder;
  const auto spec =
      Spec({kConvNet, kGlyphs, kRun, "train { early_stopping { metric: 'loss' patience: 1 min_delta: 100 } }"});
  Recorder recorder;
  EXPECT_EQ(RunToEnd(spec, Options(folder.path()), &recorder, 20).outcome, Outcome::kCompleted);
}

// The first scale is far too large: no step is applied before it came down, and the evaluations meanwhile are equal.
TEST(EarlyStopping, EvaluationsOfSkippedStepsDoNotCount) {
  const ScratchFolder folder;
  const std::string run =
      "train { batch_size: 32 steps: 60 eval_every_steps: 1 early_stopping { metric: 'loss' patience: 2 min_delta: 100 "
      "} }"
      "optimizer { sgd { learning_rate: 0.01 } } report { every_steps: 1 }"
      "precision { mode: FP16 loss_scale { init: 1e9 } }";
  Recorder recorder;
  const Ended ended = RunToEnd(Spec({kConvNet, kGlyphs, run}), Options(folder.path()), &recorder);
  EXPECT_EQ(ended.outcome, Outcome::kCompleted);
  const auto skipped = static_cast<int64_t>(recorder.skips().size());
  EXPECT_GT(skipped, 4);
  EXPECT_EQ(recorder.steps().back().phases(0).steps_applied(), 3);
  EXPECT_THAT(ended.reason,
              HasSubstr(absl::StrCat("stopped early, after step ", skipped + 3, " of 60: in 2 evaluations")));
}

// The data has no label that counts.
TEST(EarlyStopping, NoNumberIsNotBetter) {
  const ScratchFolder folder;
  WriteNpy<float>(folder.path() + "/x.npy", "<f4", {8, 1}, std::vector<float>(8, 1));
  WriteNpy<int32_t>(folder.path() + "/y.npy", "<i4", {8}, {0, 1, 2, 3, 0, 2, 3, 3});
  WriteNpy<int32_t>(folder.path() + "/e.npy", "<i4", {8}, std::vector<int32_t>(8, 1));
  const auto spec = Spec(
      {"model { layers { name: 'head' dense { units: 4 } } loss { softmax_cross_entropy { ignore_index: 1 } } }"
       "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } eval { npy { inputs: 'x.npy' targets: 'e.npy' } } }"
       "train { batch_size: 8 epochs: 9 early_stopping { patience: 2 } }"});
  Recorder recorder;
  const Ended ended = RunToEnd(spec, Options(folder.path()), &recorder);
  EXPECT_EQ(ended.outcome, Outcome::kCompleted);
  EXPECT_EQ(ended.reason, "stopped early, after step 2 of 9: in 2 evaluations loss was no number");
}

// Of four classes each is among the best five.
TEST(EarlyStopping, AMetricThatThereIsNotIsRefused) {
  const ScratchFolder folder;
  WriteNpy<float>(folder.path() + "/x.npy", "<f4", {8, 1}, std::vector<float>(8, 1));
  WriteNpy<int32_t>(folder.path() + "/y.npy", "<i4", {8}, {0, 1, 2, 3, 0, 2, 3, 3});
  const auto spec = Spec(
      {"model { layers { name: 'head' dense { units: 4 } } loss { softmax_cross_entropy {} } } train { batch_size: 8 }"
       "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } eval { npy { inputs: 'x.npy' targets: 'y.npy' } } }"
       "train { early_stopping { metric: 'top5' } }"});
  const v1::PlanResponse response = PlanJob(spec, {folder.path()});
  ASSERT_EQ(response.errors_size(), 1);
  EXPECT_EQ(response.errors(0).field(), "train.early_stopping.metric");
  EXPECT_EQ(response.errors(0).description(), "the evaluations have no metric top5, but accuracy, loss, perplexity");
  Recorder recorder;
  EXPECT_THAT(std::string(Trainer::Create(spec, Options(folder.path()), &recorder).status().message()),
              HasSubstr("train.early_stopping.metric: the evaluations have no metric top5"));
}

TEST(EvalEverySteps, EvaluatesBetweenEpochsAndAtTheEnd) {
  const ScratchFolder folder;
  Recorder recorder, plain;
  const std::string run = "train { batch_size: 32 steps: 25 } report { every_steps: 1 } ";
  const auto outcome =
      Train(Spec({kConvNet, kGlyphs, run, "train { eval_every_steps: 7 }"}), Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(StepsOf(recorder.evaluations()), ElementsAre(7, 14, 21, 25));
  ASSERT_TRUE(Train(Spec({kConvNet, kGlyphs, run}), Options(folder.path() + "/plain"), &plain).ok());
  EXPECT_THAT(StepsOf(plain.evaluations()), ElementsAre(10, 20, 25));
  EXPECT_EQ(recorder.losses(), plain.losses()) << "looking changes nothing";
}

}  // namespace
}  // namespace ampd::train
