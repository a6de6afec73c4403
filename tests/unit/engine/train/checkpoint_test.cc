#include "engine/train/checkpoint.h"
#include "engine/train/spec_configs.h"
#include "google/protobuf/text_format.h"

#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/train/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

const std::string kSpec = std::string(64, '1');

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/ampd_checkpoint_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  CheckpointStore Open(int64_t keep_last = 2, const std::string& mirror = "") {
    auto store = CheckpointStore::Open(folder_, keep_last, mirror);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  // A checkpoint of `step` whose one weight is the step.
  absl::StatusOr<SavedCheckpoint> Save(CheckpointStore& store, int64_t step, size_t floats = 1, bool ema = false) {
    std::vector<float> values(floats, static_cast<float>(step));
    const std::string bytes(reinterpret_cast<const char*>(values.data()), 4 * floats);
    const auto source = [&bytes]() -> absl::string_view { return bytes; };
    const Shape shape = {static_cast<int64_t>(floats)};
    TrainState state;
    state.step = step;
    state.spec_hash = kSpec;
    state.spec = spec_json_;
    state.phases = {PhaseState{"main", {}, {}}};
    state.best = best_;
    const std::vector<TensorSource> model = {{"w", DType::kF32, shape, source}};
    return store.Save(state, model, {{"w.m1", DType::kF32, shape, source}}, ema ? model : std::vector<TensorSource>());
  }

  std::vector<std::string> Names() const { return NamesIn(folder_); }
  static std::vector<std::string> NamesIn(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  // The step of the newest checkpoint that loads; -1 when there is none.
  int64_t Newest(CheckpointStore& store) {
    refused_.clear();
    auto loaded = store.LoadNewest(kSpec, absl::nullopt, &refused_);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok() || !loaded->has_value()) return -1;
    float weight;
    const Safetensors& model = (*loaded)->model;
    std::memcpy(&weight, model.Bytes(model.entries().at("w")).data(), sizeof(weight));
    EXPECT_EQ(weight, static_cast<float>((*loaded)->state.step));
    return (*loaded)->state.step;
  }

  std::string Path(int64_t step, const std::string& file) const {
    return absl::StrCat(folder_, "/", CheckpointName(step), "/", file);
  }

  std::string folder_;
  std::vector<std::string> refused_;
  std::string spec_json_;
  std::optional<BestEvaluation> best_;
};

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST_F(CheckpointTest, TheBestStaysUntilABetterOneComes) {
  CheckpointStore store = Open(2);
  for (const int64_t step : {10, 20, 30, 40}) {
    if (step == 10 || step == 40) best_ = BestEvaluation{step, 0.5};
    ASSERT_TRUE(Save(store, step).ok());
  }
  EXPECT_THAT(Names(), ElementsAre("step-000000030", "step-000000040"));
  for (const int64_t step : {50, 60, 70}) ASSERT_TRUE(Save(store, step).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000040", "step-000000060", "step-000000070"));
  CheckpointStore next = Open(2);
  auto loaded = next.LoadNewest(kSpec, absl::nullopt, &refused_);
  ASSERT_TRUE(loaded.ok() && loaded->has_value());
  EXPECT_EQ((*loaded)->state.best, (BestEvaluation{40, 0.5}));
  // Training goes back behind it.
  best_.reset();
  ASSERT_TRUE(Save(store, 35).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000035"));
}

TEST_F(CheckpointTest, TheHeldOneStaysUntilAnotherIsHeld) {
  CheckpointStore store = Open(1);
  ASSERT_TRUE(Save(store, 10).ok());
  store.Hold("step-000000010");
  for (const int64_t step : {20, 30}) ASSERT_TRUE(Save(store, step).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000010", "step-000000030"));
  auto loaded = store.LoadNewest(kSpec, "step-000000010", &refused_);
  ASSERT_TRUE(loaded.ok() && loaded->has_value());
  EXPECT_EQ((*loaded)->name, "step-000000010");
  store.Hold("step-000000030");
  ASSERT_TRUE(Save(store, 40).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000030", "step-000000040"));
  // Training goes back behind it.
  ASSERT_TRUE(Save(store, 25).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000025"));
}

TEST_F(CheckpointTest, NothingIsHeldAfterTheEnd) {
  const std::string mirror = folder_ + "/copies";
  folder_ += "/originals";
  CheckpointStore store = Open(1, mirror);
  best_ = BestEvaluation{10, 0.5};
  TrainState last;
  last.best = best_;
  for (const int64_t step : {10, 20, 30}) {
    ASSERT_TRUE(Save(store, step).ok());
    store.Hold(CheckpointName(20));
    last.step = step;
  }
  EXPECT_THAT(Names(), ElementsAre("step-000000010", "step-000000020", "step-000000030"));
  ASSERT_TRUE(store.DropHeld(last).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000010", "step-000000030"));
  EXPECT_EQ(NamesIn(mirror), Names());
  // Unless they are all that the mirror has.
  store.Hold(CheckpointName(30));
  last.step = 40;
  ASSERT_TRUE(Save(store, 40).ok());
  fs::remove_all(mirror + "/" + CheckpointName(40));
  ASSERT_TRUE(store.DropHeld(last).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000010", "step-000000040"));
  EXPECT_THAT(NamesIn(mirror), ElementsAre("step-000000010", "step-000000030"));
  folder_ = fs::path(folder_).parent_path();
}

TEST_F(CheckpointTest, AMirrorHoldsTheSameFiles) {
  const std::string mirror = folder_ + "/elsewhere/copies", originals = folder_ + "/originals";
  folder_ = originals;
  CheckpointStore store = Open(2, mirror);
  for (const int64_t step : {10, 20, 30, 30}) {
    const auto saved = Save(store, step, 100'000, /*ema=*/true);
    ASSERT_TRUE(saved.ok()) << saved.status();
    EXPECT_EQ(saved->mirror_error, "");
    EXPECT_EQ(NamesIn(mirror), Names());
  }
  for (const std::string& name : Names()) {
    const std::vector<std::string> files = NamesIn(originals + "/" + name);
    EXPECT_EQ(NamesIn(mirror + "/" + name), files);
    EXPECT_THAT(files, SizeIs(5));
    for (const std::string& file : files) {
      EXPECT_EQ(Contents(originals + "/" + name + "/" + file), Contents(mirror + "/" + name + "/" + file)) << file;
    }
  }
  // Training resumes from the copies alone.
  CheckpointStore copies = *CheckpointStore::Open(mirror, 2);
  EXPECT_EQ(Newest(copies), 30);
  folder_ = fs::path(originals).parent_path();
}

TEST_F(CheckpointTest, AMirrorThatCannotBeWrittenStopsNothingAndSaysWhy) {
  const std::string blocked = folder_ + "/file";
  std::ofstream(blocked) << "in the way";
  CheckpointStore store = Open(2, blocked + "/copies");
  const auto saved = Save(store, 10);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_THAT(saved->mirror_error, HasSubstr(blocked));
  EXPECT_EQ(Newest(store), 10);
  // It comes back: the next checkpoint is copied, and what a copy that was cut short has left goes.
  fs::remove(blocked);
  fs::create_directories(blocked + "/copies/.copying-step-000000010");
  const auto next = Save(store, 20);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->mirror_error, "");
  EXPECT_THAT(NamesIn(blocked + "/copies"), ElementsAre("step-000000020"));
}

class CheckpointMirrorTest : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    root_ = folder_;
    folder_ = root_ + "/originals";
    mirror_ = root_ + "/copies";
  }
  void TearDown() override { fs::remove_all(root_); }

  // Steps 10, 20 and 30, of which the last two are kept, or the best too.
  CheckpointStore Train() {
    CheckpointStore store = Open(2, mirror_);
    for (const int64_t step : {10, 20, 30}) {
      const auto saved = Save(store, step);
      EXPECT_TRUE(saved.ok() && saved->mirror_error.empty()) << saved.status();
    }
    return store;
  }
  static void Damage(const std::string& root, int64_t step) {
    std::ofstream(absl::StrCat(root, "/", CheckpointName(step), "/model.safetensors")) << "damage";
  }

  std::string root_;
  std::string mirror_;
};

TEST_F(CheckpointMirrorTest, TheCopyTakesThePlaceOfADamagedOneBeforeAnOlderOneIsUsed) {
  Train();
  Damage(folder_, 20);
  Damage(folder_, 30);
  CheckpointStore store = Open(2, mirror_);
  auto loaded = store.LoadNewest(kSpec, "step-000000030", &refused_);
  ASSERT_TRUE(loaded.ok() && loaded->has_value()) << loaded.status();
  EXPECT_EQ((*loaded)->state.step, 30);
  EXPECT_TRUE((*loaded)->from_mirror);
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("step-000000030 is not whole; the mirror's copy took its place")));
  EXPECT_EQ(Newest(store), 30);
  EXPECT_THAT(refused_, SizeIs(0)) << "it is whole again";
  ASSERT_TRUE(Save(store, 40).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000030", "step-000000040"));
  EXPECT_EQ(NamesIn(mirror_), Names());
}

TEST_F(CheckpointMirrorTest, WhatIsLostAltogetherComesBackWithTheBest) {
  best_ = BestEvaluation{10, 0.5};
  Train();
  fs::remove_all(folder_);
  CheckpointStore store = Open(2, mirror_);
  auto loaded = store.LoadNewest(kSpec, "step-000000030", &refused_);
  ASSERT_TRUE(loaded.ok() && loaded->has_value()) << loaded.status();
  EXPECT_EQ((*loaded)->state.step, 30);
  EXPECT_TRUE(store.Has(10));
  ASSERT_TRUE(Save(store, 40).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000010", "step-000000030", "step-000000040"));
}

TEST_F(CheckpointMirrorTest, TheBestComesBackWhereItAloneIsLost) {
  best_ = BestEvaluation{10, 0.5};
  Train();
  fs::remove_all(absl::StrCat(folder_, "/", CheckpointName(10)));
  CheckpointStore store = Open(2, mirror_);
  auto loaded = store.LoadNewest(kSpec, "step-000000030", &refused_);
  ASSERT_TRUE(loaded.ok() && loaded->has_value()) << loaded.status();
  EXPECT_FALSE(store.Has(10));
  EXPECT_TRUE(store.HasOrBringsBack(10, &refused_));
  EXPECT_TRUE(store.Has(10));
  EXPECT_FALSE(store.HasOrBringsBack(11, &refused_));
  EXPECT_THAT(refused_, SizeIs(0));
  Damage(mirror_, 10);
  fs::remove_all(absl::StrCat(folder_, "/", CheckpointName(10)));
  EXPECT_FALSE(store.HasOrBringsBack(10, &refused_));
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("the mirror's copy of the best checkpoint, step-000000010: ")));
}

TEST_F(CheckpointMirrorTest, ADamagedCopyMeansTheCheckpointBefore) {
  Train();
  Damage(folder_, 30);
  Damage(mirror_, 30);
  CheckpointStore store = Open(2, mirror_);
  EXPECT_EQ(Newest(store), 20);
  EXPECT_THAT(refused_, ElementsAre(AllOf(HasSubstr("step-000000030 is damaged and not used"), HasSubstr(mirror_))));
}

TEST_F(CheckpointMirrorTest, ACopyWhoseOriginalIsDamagedStaysUntilANewerOneIsMirrored) {
  Train();
  Damage(folder_, 20);
  Damage(folder_, 30);
  fs::rename(mirror_, root_ + "/away");
  CheckpointStore store = Open(2, mirror_);
  EXPECT_EQ(Newest(store), -1) << "and no error";
  EXPECT_THAT(refused_, SizeIs(2));
  fs::rename(root_ + "/away", mirror_);
  ASSERT_TRUE(Save(store, 5).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000005"));
  EXPECT_THAT(NamesIn(mirror_), ElementsAre("step-000000005", "step-000000020", "step-000000030"));
  ASSERT_TRUE(Save(store, 25).ok());
  EXPECT_THAT(NamesIn(mirror_), ElementsAre("step-000000005", "step-000000025", "step-000000030"));
  for (const int64_t step : {30, 35}) ASSERT_TRUE(Save(store, step).ok());
  EXPECT_THAT(NamesIn(mirror_), ElementsAre("step-000000030", "step-000000035"));
}

TEST_F(CheckpointMirrorTest, CopiesThatTrainingWentBackBehindGo) {
  CheckpointStore store = Train();
  ASSERT_TRUE(Save(store, 15).ok());
  EXPECT_THAT(NamesIn(mirror_), ElementsAre("step-000000015"));
}

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

void Spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST_F(CheckpointTest, TheNewestComesBack) {
  CheckpointStore store = Open();
  EXPECT_EQ(Newest(store), -1);
  for (int64_t step : {5, 9, 11}) {
    const auto saved = Save(store, step);
    ASSERT_TRUE(saved.ok()) << saved.status();
    int64_t bytes = 0;
    for (const auto& file : fs::directory_iterator(folder_ + "/" + saved->name)) bytes += file.file_size();
    EXPECT_EQ(saved->size_bytes, bytes);
  }
  CheckpointStore again = Open();
  EXPECT_EQ(Newest(again), 11);
  EXPECT_TRUE(refused_.empty());
  EXPECT_THAT(Names(), ElementsAre("step-000000009", "step-000000011"));
}

TEST_F(CheckpointTest, AnAverageIsAFileOfItsOwn) {
  CheckpointStore store = Open();
  ASSERT_TRUE(Save(store, 5).ok());
  EXPECT_FALSE((*store.LoadNewest(kSpec, absl::nullopt, &refused_))->ema.has_value());
  ASSERT_TRUE(Save(store, 6, 3, true).ok());
  const auto loaded = *store.LoadNewest(kSpec, absl::nullopt, &refused_);
  ASSERT_TRUE(loaded->ema.has_value());
  EXPECT_EQ(loaded->ema->Bytes(loaded->ema->entries().at("w")), loaded->model.Bytes(loaded->model.entries().at("w")));
}

TEST_F(CheckpointTest, TheManifestIsWhatSha256sumSays) {
  CheckpointStore store = Open();
  ASSERT_TRUE(Save(store, 3).ok());
  const std::string command =
      absl::StrCat("cd ", folder_, "/step-000000003 && head -n 3 MANIFEST | sed -E 's/^([0-9a-f]+) [0-9]+ /\\1  /' | ",
                   "sha256sum --check --strict --quiet && test \"$(head -n 3 MANIFEST | sha256sum | cut -c1-64) ",
                   "$(head -n 3 MANIFEST | wc -c) MANIFEST\" = \"$(tail -n 1 MANIFEST)\"");
  EXPECT_EQ(std::system(command.c_str()), 0) << Slurp(Path(3, "MANIFEST"));
}

TEST_F(CheckpointTest, ADamagedFileMeansTheCheckpointBefore) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json", "MANIFEST"}) {
    for (const char* damage : {"missing", "empty", "short", "long", "flipped", "folder"}) {
      SCOPED_TRACE(absl::StrCat(file, " ", damage));
      fs::remove_all(folder_);
      CheckpointStore store = Open();
      ASSERT_TRUE(Save(store, 10).ok());
      ASSERT_TRUE(Save(store, 20, 1, true).ok());
      std::string bytes = Slurp(Path(20, file));
      fs::remove(Path(20, file));
      if (std::string(damage) == "empty") bytes.clear();
      if (std::string(damage) == "short") bytes.pop_back();
      if (std::string(damage) == "long") bytes += "x";
      if (std::string(damage) == "flipped") bytes[bytes.size() / 2] ^= 1;
      if (std::string(damage) == "folder") fs::create_directory(Path(20, file));
      if (std::string(damage) != "missing" && std::string(damage) != "folder") Spill(Path(20, file), bytes);
      CheckpointStore reopened = Open();
      EXPECT_EQ(Newest(reopened), 10);
      ASSERT_THAT(refused_, SizeIs(1));
      EXPECT_THAT(refused_[0], HasSubstr("step-000000020"));
      EXPECT_THAT(refused_[0], HasSubstr(file));
    }
  }
}

TEST_F(CheckpointTest, AnyFlippedBitIsSeen) {
  CheckpointStore store = Open();
  ASSERT_TRUE(Save(store, 10).ok());
  ASSERT_TRUE(Save(store, 20).ok());
  std::mt19937 random(2);
  const std::vector<std::string> files = {"model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST"};
  for (int round = 0; round < 300; ++round) {
    const std::string path = Path(20, files[random() % files.size()]);
    const std::string good = Slurp(path);
    std::string bad = good;
    bad[random() % bad.size()] ^= static_cast<char>(1 << (random() % 8));
    Spill(path, bad);
    ASSERT_EQ(Newest(store), 10) << path;
    Spill(path, good);
  }
  EXPECT_EQ(Newest(store), 20);
}

TEST_F(CheckpointTest, EveryCheckpointDamagedIsNone) {
  CheckpointStore store = Open();
  ASSERT_TRUE(Save(store, 10).ok());
  Spill(Path(10, "MANIFEST"), "");
  EXPECT_EQ(Newest(store), -1);
  EXPECT_THAT(refused_, SizeIs(1));
}

TEST_F(CheckpointTest, ADamagedOneIsPrunedBeforeAGoodOne) {
  {
    CheckpointStore store = Open();
    ASSERT_TRUE(Save(store, 10).ok());
    ASSERT_TRUE(Save(store, 20).ok());
    Spill(Path(20, "state.json"), "{}");
  }
  CheckpointStore store = Open();
  EXPECT_EQ(Newest(store), 10);
  ASSERT_TRUE(Save(store, 30).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000010", "step-000000030"));
}

TEST_F(CheckpointTest, ADamagedOneOfTheSameStepIsReplaced) {
  CheckpointStore store = Open();
  ASSERT_TRUE(Save(store, 10).ok());
  ASSERT_TRUE(Save(store, 20).ok());
  Spill(Path(20, "model.safetensors"), "");
  EXPECT_EQ(Newest(store), 10);
  ASSERT_TRUE(Save(store, 20).ok());
  EXPECT_EQ(Newest(store), 20);
  EXPECT_THAT(Names(), ElementsAre("step-000000010", "step-000000020"));
}

TEST_F(CheckpointTest, LaterStepsThatTrainingWentBackBehindAreRemoved) {
  CheckpointStore store = Open();
  ASSERT_TRUE(Save(store, 40).ok());
  ASSERT_TRUE(Save(store, 20).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000020"));
}

class CheckpointLeftTest : public CheckpointTest {
 protected:
  // The step of what attempt `attempt` resumes from; -1: none that was left to it.
  int64_t Left(CheckpointStore& store, int64_t attempt, const std::string& told) {
    const auto loaded = store.LoadLeft(attempt, kSpec, told, &refused_);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() && loaded->has_value() ? (*loaded)->state.step : -1;
  }
};

TEST_F(CheckpointLeftTest, ItIsTheNextAttemptsUntilOneIsToldOf) {
  CheckpointStore store = Open();
  ASSERT_TRUE(Save(store, 10).ok());
  ASSERT_TRUE(Save(store, 20).ok());
  EXPECT_EQ(Left(store, 2, ""), -1) << "nothing was left";
  ASSERT_TRUE(store.Leave(1, CheckpointName(20)).ok());
  EXPECT_EQ(Left(store, 2, CheckpointName(10)), 20);
  // Attempt 2 ended before its daemon heard of it; attempt 3 follows it.
  CheckpointStore again = Open();
  EXPECT_EQ(Left(again, 3, CheckpointName(10)), 20);
  EXPECT_EQ(Left(again, 4, ""), 20);
  again.ForgetLeft();
  EXPECT_EQ(Left(again, 5, ""), -1);
}

TEST_F(CheckpointLeftTest, AttemptsThatNeverLookedPassItOn) {
  CheckpointStore store = Open();
  ASSERT_TRUE(Save(store, 20).ok());
  ASSERT_TRUE(store.Leave(1, CheckpointName(20)).ok());
  EXPECT_EQ(Left(store, 4, ""), 20);
}

TEST_F(CheckpointLeftTest, OneThatWasNotFollowedIsNobodys) {
  CheckpointStore store = Open();
  ASSERT_TRUE(Save(store, 20).ok());
  ASSERT_TRUE(store.Leave(1, CheckpointName(20)).ok());
  EXPECT_EQ(Left(store, 2, CheckpointName(20)), -1) << "the daemon knows it";
  EXPECT_EQ(Left(store, 3, ""), -1);
  ASSERT_TRUE(store.Leave(3, CheckpointName(20)).ok());
  EXPECT_EQ(Left(store, 3, ""), -1);
  for (const std::string text : {"", "1", "1 step-20", "1 step-000000020 ", "1 ../step-000000020"}) {
    Spill(folder_ + "/LEFT", text);
    EXPECT_EQ(Left(store, 2, ""), -1) << text;
  }
}

TEST_F(CheckpointLeftTest, ADamagedOneIsNamedAndPassedOver) {
  CheckpointStore store = Open();
  ASSERT_TRUE(Save(store, 10).ok());
  ASSERT_TRUE(Save(store, 20).ok());
  ASSERT_TRUE(store.Leave(1, CheckpointName(20)).ok());
  Spill(Path(20, "model.safetensors"), "");
  EXPECT_EQ(Left(store, 2, CheckpointName(10)), -1);
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("checkpoint step-000000020 is damaged and not used")));
  EXPECT_EQ((*store.LoadNewest(kSpec, CheckpointName(10), &refused_))->state.step, 10);
}

TEST_F(CheckpointLeftTest, AnOperatorMayNameWhereToGoOn) {
  CheckpointStore store = Open(3);
  for (const int64_t step : {10, 20, 30}) ASSERT_TRUE(Save(store, step).ok());
  Spill(folder_ + "/LEFT", "0 step-000000030");
  EXPECT_EQ(Left(store, 1, ""), 30) << "also the first attempt";
  Spill(folder_ + "/LEFT", "0 step-000000020\n");
  CheckpointStore again = Open(3);
  EXPECT_EQ(Left(again, 7, CheckpointName(10)), 20);
  EXPECT_EQ(Slurp(folder_ + "/LEFT"), "7 step-000000020\n");
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("step-000000030 is of a later step")));
  ASSERT_TRUE(Save(again, 25).ok());
  EXPECT_THAT(Names(), ElementsAre("LEFT", "step-000000010", "step-000000020", "step-000000025", "step-000000030"));
}

// As after the database was restored from an older copy.
class CheckpointAheadTest : public CheckpointMirrorTest {
 protected:
  // Of steps 10 to 40, of which three are kept.
  void SetUp() override {
    CheckpointMirrorTest::SetUp();
    CheckpointStore store = Open(3, mirror_);
    for (const int64_t step : {10, 20, 30, 40}) ASSERT_TRUE(Save(store, step).ok());
  }
  // An attempt that begins where `told` says.
  CheckpointStore Begin(const std::string& told) {
    CheckpointStore store = Open(2, mirror_);
    refused_.clear();
    auto loaded = store.LoadNewest(kSpec, told, &refused_);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded.ok() && loaded->has_value() ? (*loaded)->name : "", told);
    return store;
  }
};

TEST_F(CheckpointAheadTest, TheNewestThatTheAttemptBeganBeforeStaysUntilTrainingHasComePastIt) {
  for (const std::string told : {"", "step-000000020"}) {
    CheckpointStore store = Begin(told);
    EXPECT_THAT(refused_, ElementsAre(AllOf(HasSubstr("step-000000040 is of a later step"),
                                            HasSubstr("\"0 step-000000040\" to " + folder_ + "/LEFT"))));
    ASSERT_TRUE(Save(store, 20).ok());
    EXPECT_THAT(Names(), ElementsAre("step-000000020", "step-000000040")) << told;
    EXPECT_EQ(NamesIn(mirror_), Names());
  }
  // Over further attempts; what those wrote and went back behind goes as ever.
  {
    CheckpointStore store = Begin("step-000000020");
    for (const int64_t step : {25, 28, 22}) ASSERT_TRUE(Save(store, step).ok());
    EXPECT_THAT(Names(), ElementsAre("step-000000022", "step-000000040"));
  }
  CheckpointStore store = Begin("step-000000022");
  ASSERT_TRUE(Save(store, 35).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000022", "step-000000035", "step-000000040"));
  ASSERT_TRUE(Save(store, 45).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000035", "step-000000045")) << "it is of another training";
  EXPECT_EQ(NamesIn(mirror_), Names());
}

TEST_F(CheckpointAheadTest, OneWrittenAnewIsOneLikeOthers) {
  CheckpointStore store = Begin("step-000000020");
  for (const int64_t step : {30, 40, 50}) ASSERT_TRUE(Save(store, step).ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000040", "step-000000050"));
}

TEST_F(CheckpointAheadTest, GoingBackWithinAnAttemptKeepsNone) {
  CheckpointStore store = Begin("step-000000040");
  EXPECT_THAT(refused_, SizeIs(0));
  ASSERT_TRUE(store.LoadNewest(kSpec, CheckpointName(20), &refused_)->has_value());
  ASSERT_TRUE(Save(store, 20).ok());
  EXPECT_THAT(refused_, SizeIs(0));
  EXPECT_THAT(Names(), ElementsAre("step-000000020"));
}

TEST_F(CheckpointTest, OneThatNobodyWasToldOfComesLast) {
  CheckpointStore store = Open();
  ASSERT_TRUE(Save(store, 10).ok());
  ASSERT_TRUE(Save(store, 20).ok());
  EXPECT_EQ((*store.LoadNewest(kSpec, "step-000000010", &refused_))->state.step, 10);
  EXPECT_EQ((*store.LoadNewest(kSpec, "step-000000020", &refused_))->state.step, 20);
  // Told of one that is gone.
  EXPECT_EQ((*store.LoadNewest(kSpec, "step-000000005", &refused_))->state.step, 20);
  EXPECT_EQ((*store.LoadNewest(kSpec, absl::nullopt, &refused_))->state.step, 20);
  EXPECT_FALSE(store.LoadNewest(kSpec, "", &refused_)->has_value());
}

TEST_F(CheckpointTest, WhatACutShortSaveLeftIsRemovedAtTheStart) {
  fs::create_directories(folder_ + "/.writing-step-000000007");
  Spill(folder_ + "/.writing-step-000000007/model.safetensors", "half");
  Spill(folder_ + "/notes.txt", "not ours");
  CheckpointStore store = Open();
  EXPECT_EQ(Newest(store), -1);
  EXPECT_THAT(Names(), ElementsAre("notes.txt"));
}

TEST_F(CheckpointTest, AnotherSpecIsRefusedWithBothHashes) {
  CheckpointStore store = Open();
  ASSERT_TRUE(Save(store, 10).ok());
  const std::string other(64, '2');
  const absl::Status status = store.LoadNewest(other, absl::nullopt, &refused_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FailureOf(status).class_(), v1::Failure::INVALID_SPEC);
  EXPECT_THAT(std::string(status.message()), HasSubstr(kSpec));
  EXPECT_THAT(std::string(status.message()), HasSubstr(other));
}

// By a build whose specs had other fields, and so other hashes.
TEST_F(CheckpointTest, TheSpecCountsWhereTheCheckpointHoldsIt) {
  v1::JobSpec text;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "data { train { glyphs {} } } model { layers { dense { units: 3 } } loss { hinge {} } }", &text));
  const ResolvedJobSpec spec = ResolveJobSpec(text).value();
  spec_json_ = HashedSpec(spec);
  CheckpointStore store = Open();
  ASSERT_TRUE(Save(store, 10).ok());
  EXPECT_TRUE(store.LoadNewest(SpecHash(spec), absl::nullopt, &refused_)->has_value());
  absl::Status status = store.LoadNewest(kSpec, absl::nullopt, &refused_).status();
  EXPECT_EQ(FailureOf(status).class_(), v1::Failure::INVALID_SPEC) << status;
  spec_json_ = "{\"model\": {}}";
  ASSERT_TRUE(Save(store, 20).ok());
  status = store.LoadNewest(SpecHash(spec), absl::nullopt, &refused_).status();
  EXPECT_EQ(FailureOf(status).class_(), v1::Failure::INVALID_SPEC) << status;
}

TEST_F(CheckpointTest, AFileSizeLimitLeavesNothingHalfWritten) {
  CheckpointStore store = Open();
  ASSERT_TRUE(Save(store, 10).ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit tight{64 << 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  const absl::Status status = Save(store, 20, 1 << 16).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(FailureOf(status).class_(), v1::Failure::DISK_FULL);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors"));
  EXPECT_THAT(Names(), ElementsAre("step-000000010"));
  EXPECT_EQ(Newest(store), 10);
}

TEST_F(CheckpointTest, AFullDiskLeavesNothingHalfWritten) {
  if (mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "cannot mount a tmpfs: " << std::strerror(errno);
  }
  {
    CheckpointStore store = Open(10);
    int64_t step = 0;
    absl::Status status;
    while (status.ok() && step < 100) status = Save(store, ++step, 5000).status();
    EXPECT_EQ(FailureOf(status).class_(), v1::Failure::DISK_FULL) << status;
    EXPECT_GT(step, 2);
    EXPECT_EQ(Newest(store), step - 1);
    EXPECT_THAT(Names(), SizeIs(step - 1));
  }
  ASSERT_EQ(umount(folder_.c_str()), 0);
}

TEST_F(CheckpointTest, AFolderThatCannotBeMadeIsAnError) {
  Spill(folder_ + "/file", "");
  EXPECT_FALSE(CheckpointStore::Open(folder_ + "/file/below", 2).ok());
}

}  // namespace
}  // namespace ampd::train
