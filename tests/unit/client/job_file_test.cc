#include "client/job_file.h"

#include "gtest/gtest.h"

namespace ampd::client {
namespace {

constexpr char kText[] = "name: a\ntrain:\n  epochs: 2\n  batch_size: 0\nmodel:\n  layers:\n    - dense: {units: 0}\n";

TEST(JobFileTest, ExplainsViolationsByTheirPlace) {
  const absl::StatusOr<JobFile> file =
      JobFile::Parse(kText, "job.yaml", {"train.epochs=1", "train.epochs=0", "labels.a=b", "seed=3"});
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->spec().seed(), 3);
  EXPECT_EQ(file->Explain({"train.batch_size", "too small"}), "job.yaml:4: train.batch_size: too small");
  EXPECT_EQ(file->Explain({"model.layers[0].dense.units", "required"}),
            "job.yaml:7: model.layers[0].dense.units: required");
  EXPECT_EQ(file->Explain({"train.epochs", "too small"}), "--set train.epochs=0: train.epochs: too small");
  EXPECT_EQ(file->Explain({"train.epochs_more", "x"}), "job.yaml:2: train.epochs_more: x");
  EXPECT_EQ(file->Explain({"data.train", "required"}), "job.yaml: data.train: required");
  EXPECT_EQ(file->Explain({"", "all wrong"}), "job.yaml: all wrong");
}

TEST(JobFileTest, NamesWhatCannotBeRead) {
  EXPECT_EQ(JobFile::Read("/nonexistent/job.yaml", {}).status().message(),
            "/nonexistent/job.yaml: No such file or directory");
  EXPECT_FALSE(JobFile::Read("/", {}).ok());
  EXPECT_EQ(JobFile::Parse("nam: a", "job.yaml", {}).status().message(),
            "job.yaml:1: nam: no such field; did you mean name?");
  EXPECT_EQ(JobFile::Parse("name: a", "job.yaml", {"nam=b"}).status().message(),
            "--set nam: no such field; did you mean name?");
}

}  // namespace
}  // namespace ampd::client
