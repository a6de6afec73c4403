#include "client/job_file.h"

#include <string>

#include "absl/strings/str_cat.h"
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

TEST(JobFileTest, ExplainsViolationsByTheOptionThatWasGiven) {
  absl::StatusOr<JobFile> file = JobFile::Parse(kText, "job.yaml", {"resources.gpus=2"});
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->SetByOption("--gpus 4", "resources.gpus=4"), absl::OkStatus());
  EXPECT_EQ(file->spec().resources().gpus(), 4);
  EXPECT_EQ(file->Explain({"resources.gpus", "too many"}), "--gpus 4: resources.gpus: too many");
  file->NoteOption("--label team=b", "labels.team");
  EXPECT_EQ(file->Explain({"labels.team", "too long"}), "--label team=b: labels.team: too long");
  EXPECT_EQ(file->Explain({"labels.other", "too long"}), "job.yaml: labels.other: too long");
  EXPECT_EQ(file->FolderOf("resources.gpus"), ".");
  const absl::Status bad = file->SetByOption("--gpus x", "resources.gpus=x");
  EXPECT_EQ(bad.message().substr(0, 26), "--gpus x: resources.gpus: ");
}

TEST(JobFileTest, PointsOfASweepHaveTheOptionsUnlessTheyGiveTheFieldThemselves) {
  const std::string text =
      "name: a\nsweep:\n  list:\n    - {seed: 1}\n    - {resources.gpus: 2}\n    - {resources: {}}\n";
  absl::StatusOr<JobFile> file = JobFile::Parse(text, "job.yaml", {"train.epochs=0"});
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->SetByOption("--gpus 4", "resources.gpus=4").ok());
  EXPECT_EQ(file->Explain({"sweep.list[0].resources.gpus", "no"}), "--gpus 4: sweep.list[0].resources.gpus: no");
  EXPECT_EQ(file->Explain({"sweep.list[1].train.epochs", "no"}),
            "--set train.epochs=0: sweep.list[1].train.epochs: no");
  EXPECT_EQ(file->Explain({"sweep.list[1].resources.gpus", "no"}), "job.yaml:5: sweep.list[1].resources.gpus: no");
  EXPECT_EQ(file->Explain({"sweep.list[2].resources.gpus", "no"}), "job.yaml:6: sweep.list[2].resources.gpus: no");
  EXPECT_EQ(file->Explain({"sweep.list[9].seed", "no"}), "job.yaml:3: sweep.list[9].seed: no");
  absl::StatusOr<JobFile> grid =
      JobFile::Parse("name: a\nsweep:\n  grid:\n    resources.gpus: [1, 2]\n", "job.yaml", {"train.epochs=0"});
  ASSERT_TRUE(grid.ok()) << grid.status();
  ASSERT_TRUE(grid->SetByOption("--gpus 4", "resources.gpus=4").ok());
  EXPECT_EQ(grid->Explain({"sweep.grid[1].train.epochs", "no"}),
            "--set train.epochs=0: sweep.grid[1].train.epochs: no");
  EXPECT_EQ(grid->Explain({"sweep.grid[1].resources.gpus", "no"}), "job.yaml:3: sweep.grid[1].resources.gpus: no");
}

TEST(JobFileTest, AFolderIsNoJobFile) {
  const absl::StatusOr<JobFile> folder = JobFile::Read(testing::TempDir(), {});
  EXPECT_EQ(folder.status().message(), testing::TempDir() + ": is a directory");
}

// Of the resolved spec, as `get -o yaml` gives it, one of each pair is set.
TEST(JobFileTest, WhatIsSetTakesThePlaceOfWhatExcludesItInTheFile) {
  const std::string text =
      "train: {epochs: 2, eval_every_epochs: 1}\noptimizer: {clip_global_norm: 1}\n"
      "phases: [{optimizer: {clip_value: 2}}, {optimizer: {clip_value: 3}}]\n"
      "data: {train: {csv: {path: a, label: y}}, eval: {wav_folder: {transcript_by_prefix: {a: b}}}}\n";
  const auto read = [&](const std::vector<std::string>& sets) {
    const absl::StatusOr<JobFile> file = JobFile::Parse(text, "job.yaml", sets);
    EXPECT_TRUE(file.ok()) << file.status();
    return file->spec();
  };
  const v1::JobSpec steps = read({"train.eval_every_steps=5", "train.steps=70"});
  EXPECT_EQ(steps.train().ShortDebugString(), "steps: 70 eval_every_steps: 5");
  EXPECT_EQ(steps.optimizer().clip_global_norm(), 1);
  EXPECT_FALSE(read({"optimizer.clip_value=5"}).optimizer().has_clip_global_norm());
  const v1::JobSpec phase = read({"phases[1].optimizer.clip_global_norm=5"});
  EXPECT_TRUE(phase.phases(0).optimizer().has_clip_value());
  EXPECT_EQ(phase.phases(1).optimizer().ShortDebugString(), "clip_global_norm: 5");
  EXPECT_EQ(read({"data.train.csv.targets[0]=z"}).data().train().csv().label(), "");
  EXPECT_TRUE(read({"data.eval.wav_folder.transcripts=t"}).data().eval().wav_folder().transcript_by_prefix().empty());
  EXPECT_EQ(read({"train.steps=null", "train.batch_size=3"}).train().epochs(), 2) << "nothing is in its place";

  // Neither goes before the other.
  EXPECT_EQ(read({"train.steps=70", "train.epochs=3"}).train().ShortDebugString(),
            "epochs: 3 steps: 70 eval_every_epochs: 1");
  EXPECT_EQ(read({"train={epochs: 3}", "train.steps=70"}).train().ShortDebugString(), "epochs: 3 steps: 70");
  EXPECT_EQ(read({"train.epochs=3", "train={steps: 70}"}).train().ShortDebugString(), "steps: 70");
  EXPECT_EQ(read({"train.epochs=null", "train.steps=70"}).train().ShortDebugString(), "steps: 70 eval_every_epochs: 1");
}

// A point would take its place in turn, without a word.
TEST(JobFileTest, WhatASweepExcludesIsNotSet) {
  for (const char* const sweep : {"grid: {train.epochs: [1, 2]}", "list: [{seed: 1}, {train.epochs: 2}]"}) {
    const std::string text = absl::StrCat("train: {steps: 3}\nsweep: {", sweep, "}\n");
    EXPECT_EQ(JobFile::Parse(text, "job.yaml", {"seed=1", "train.steps=70"}).status().message(),
              "--set train.steps=70: the sweep gives train.epochs, which excludes it");
    EXPECT_TRUE(JobFile::Parse(text, "job.yaml", {"train.steps=null"}).ok());
    EXPECT_TRUE(JobFile::Parse(text, "job.yaml", {"train.epochs=4"}).ok());
  }
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
