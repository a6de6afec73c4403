// When a job is evaluated, and what is judged by it: the best checkpoint, and whether it ends early.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/spec/resolve.h"
#include "tests/unit/proto/spec/resolve_test_util.h"

namespace ampd {
namespace {

const std::string kEval = "data.eval={glyphs: {samples: 8}}";

v1::TrainSpec ResolvedTrain(const std::vector<std::string>& sets) {
  const auto resolved = ResolveJobSpec(Minimal(sets));
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.ok() ? resolved->proto().train() : v1::TrainSpec();
}

TEST(ResolveJobSpecTest, KeepsTheBestCheckpointOfWhatIsEvaluated) {
  ExpectViolations({
      {"checkpoint={keep_best: accuracy}", "checkpoint.keep_best: needs data.eval"},
      {"checkpoint={keep_best: elegance}",
       "checkpoint.keep_best: no metric is named 'elegance', but loss, accuracy, top5, perplexity, label_error_rate, "
       "exact_match, beam_exact_match, beam_label_error_rate, mean_average_precision\n"
       "checkpoint.keep_best: needs data.eval"},
  });
  EXPECT_EQ(Violated(Minimal({kEval, "checkpoint={keep_best: perplexity}"})), "");
  EXPECT_EQ(Violated(Minimal({kEval, "checkpoint={keep_best: mean_average_precision}"})),
            "checkpoint.keep_best: with this loss evaluations have no metric 'mean_average_precision', but loss, "
            "accuracy, top5, "
            "perplexity");
  EXPECT_EQ(Violated(Minimal({kEval, "model.loss={mean_squared_error: {}}", "checkpoint={keep_best: perplexity}"})),
            "checkpoint.keep_best: with this loss evaluations have no metric 'perplexity', but loss, accuracy, top5");
  EXPECT_EQ(Violated(Minimal({kEval, "model.loss={ctc: {}}", "checkpoint={keep_best: exact_match}"})), "");
  EXPECT_EQ(
      Violated(Minimal({kEval, "model.loss={ctc: {}}", "checkpoint={keep_best: beam_exact_match}"})),
      "checkpoint.keep_best: with this loss evaluations have no metric 'beam_exact_match', but loss, label_error_rate, "
      "exact_match");
  EXPECT_EQ(Violated(Minimal({kEval, "bench={}", "checkpoint={keep_best: loss}"})), "")
      << "a job that trains can be measured as it is";
}

TEST(ResolveJobSpecTest, EvaluatesByEpochsOrBySteps) {
  EXPECT_EQ(ResolvedTrain({kEval}).eval_every_epochs(), 1);
  const v1::TrainSpec by_step = ResolvedTrain({kEval, "train.eval_every_steps=50"});
  EXPECT_EQ(by_step.eval_every_steps(), 50);
  EXPECT_FALSE(by_step.has_eval_every_epochs());
  EXPECT_FALSE(ResolvedTrain({}).has_eval_every_steps());
  EXPECT_EQ(Violated(Minimal({"train.eval_every_steps=50"})), "train.eval_every_steps: needs data.eval");
  EXPECT_EQ(Violated(Minimal({kEval, "train.eval_every_steps=0"})), "train.eval_every_steps: must be at least 1, is 0");
  EXPECT_EQ(Violated(Minimal({kEval, "train.eval_every_steps=50", "train.eval_every_epochs=2"})),
            "train.eval_every_steps: goes instead of train.eval_every_epochs: remove that one");
}

TEST(ResolveJobSpecTest, EarlyStoppingHasDefaults) {
  const auto resolved = [](std::vector<std::string> more) {
    more.push_back(kEval);
    return ResolvedTrain(more).early_stopping();
  };
  EXPECT_FALSE(ResolvedTrain({kEval}).has_early_stopping());
  const v1::EarlyStoppingSpec plain = resolved({"train.early_stopping={}"});
  EXPECT_EQ(plain.metric(), "loss");
  EXPECT_EQ(plain.patience(), 3);
  EXPECT_EQ(plain.min_delta(), 0);
  EXPECT_TRUE(plain.has_min_delta());
  EXPECT_EQ(resolved({"train.early_stopping={}", "checkpoint.keep_best=accuracy"}).metric(), "accuracy");
  const v1::EarlyStoppingSpec own =
      resolved({"train.early_stopping={metric: loss, patience: 5, min_delta: 0.01}", "checkpoint.keep_best=accuracy"});
  EXPECT_EQ(own.metric(), "loss");
  EXPECT_EQ(own.patience(), 5);
  EXPECT_EQ(own.min_delta(), 0.01);
}

TEST(ResolveJobSpecTest, EarlyStoppingNeedsEvaluationsWithItsMetric) {
  ExpectViolations({
      {"train.early_stopping={}", "train.early_stopping: needs data.eval"},
      {"train.early_stopping={patience: 0, min_delta: -1}",
       "train.early_stopping.patience: must be at least 1, is 0\n"
       "train.early_stopping.min_delta: must be >= 0, is -1\n"
       "train.early_stopping: needs data.eval"},
  });
  EXPECT_EQ(
      Violated(Minimal({kEval, "train.early_stopping.metric=mean_average_precision"})),
      "train.early_stopping.metric: with this loss evaluations have no metric 'mean_average_precision', but loss, "
      "accuracy, top5, perplexity");
  EXPECT_EQ(Violated(Minimal({kEval, "train.early_stopping={}", "checkpoint.keep_best=mean_average_precision"})),
            "checkpoint.keep_best: with this loss evaluations have no metric 'mean_average_precision', but loss, "
            "accuracy, top5, perplexity")
      << "told once";
  EXPECT_EQ(Violated(Minimal({kEval, "bench={}", "train.early_stopping={}"})), "") << "as with checkpoint.keep_best";
}

}  // namespace
}  // namespace ampd
