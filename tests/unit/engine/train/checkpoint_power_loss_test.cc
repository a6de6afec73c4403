// A checkpoint is whole or absent after a power loss at any moment, and one that was told of is there:
// tests/support/power_loss.h says what a disk keeps.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/train/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/power_loss.h"

namespace ampd::train {
namespace {

namespace fs = std::filesystem;

const std::string kSpec = std::string(64, '1');

struct Told {
  size_t position;
  int64_t step;
};

class CheckpointPowerLossTest : public testing::Test {
 protected:
  void SetUp() override {
    // Disks that lose power are many here, and how fast one syncs is not what is tested.
    const std::string root = fs::is_directory("/dev/shm") ? "/dev/shm" : testing::TempDir();
    std::string pattern = root + "/ampd_power_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    scratch_ = pattern;
    folder_ = scratch_ + "/recorded";
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(scratch_); }

  void Save(CheckpointStore& store, int64_t step) {
    const std::vector<float> values(3000, static_cast<float>(step));
    const absl::string_view bytes(reinterpret_cast<const char*>(values.data()), 4 * values.size());
    const auto source = [bytes]() -> absl::string_view { return bytes; };
    TrainState state;
    state.step = step;
    state.spec_hash = kSpec;
    state.phases = {PhaseState{"main", {}, {}}};
    const std::vector<TensorSource> model = {{"w", DType::kF32, {3000}, source}};
    const auto saved = store.Save(state, model, {{"w.m1", DType::kF32, {3000}, source}});
    ASSERT_TRUE(saved.ok()) << saved.status();
    ASSERT_EQ(saved->mirror_error, "");
    told_.push_back({loss_->position(), step});
  }

  // Training goes on to 60, back to 35 as from the floor of a loss scale, and over step 40 anew.
  void Train() {
    for (const std::vector<int64_t>& attempt : {std::vector<int64_t>{10, 20, 30}, {40, 50, 60, 35}, {40, 45}}) {
      auto store = CheckpointStore::Open(folder_ + "/checkpoints/job", 2, folder_ + "/mirror/job");
      ASSERT_TRUE(store.ok()) << store.status();
      for (const int64_t step : attempt) Save(*store, step);
    }
  }

  // What is wrong with the checkpoints in `folder`, of which the one of `told` must be there; empty: nothing.
  std::string Wrong(const std::string& folder, int64_t told) {
    std::error_code error;
    int whole = 0;
    bool found = told < 0;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename();
      if (!absl::StartsWith(name, "step-")) continue;
      auto store = CheckpointStore::Open(folder, 2);
      std::vector<std::string> refused;
      auto loaded = store->LoadNewest(kSpec, name, &refused);
      if (!loaded.ok()) return std::string(loaded.status().message());
      for (const std::string& note : refused) {
        if (!absl::StrContains(note, "is of a later step")) return note;
      }
      if (!loaded->has_value() || (*loaded)->name != name) return absl::StrCat(name, " is not loaded");
      float weight;
      const Safetensors& model = (*loaded)->model;
      std::memcpy(&weight, model.Bytes(model.entries().at("w")).data(), sizeof(weight));
      if (weight != static_cast<float>((*loaded)->state.step)) return absl::StrCat(name, " holds ", weight);
      ++whole;
      found = found || (*loaded)->state.step == told;
    }
    if (whole > 4) return absl::StrCat(whole, " checkpoints where two are kept");
    return found ? "" : absl::StrCat("the checkpoint of step ", told, " is gone");
  }

  std::string WrongAfter(size_t position, bool syncs_nothing = false) {
    const std::string disk = scratch_ + "/disk";
    fs::remove_all(disk);
    loss_->Restore(position, random_, disk, syncs_nothing);
    int64_t told = -1;
    for (const Told& t : told_) {
      if (t.position <= position) told = t.step;
    }
    // While the next is written the one before may already be gone behind it.
    int64_t next = -1;
    for (const Told& t : told_) {
      if (t.position > position && next < 0) next = t.step;
    }
    std::string wrong = Wrong(disk + "/checkpoints/job", told);
    if (absl::StrContains(wrong, "is gone") && next >= 0) wrong = Wrong(disk + "/checkpoints/job", next);
    return wrong;
  }

  std::string scratch_, folder_;
  std::unique_ptr<PowerLoss> loss_;
  std::vector<Told> told_;
  std::mt19937 random_{17};
};

TEST_F(CheckpointPowerLossTest, ACheckpointIsWholeOrAbsent) {
  loss_ = std::make_unique<PowerLoss>(folder_);
  ASSERT_NO_FATAL_FAILURE(Train());
  const size_t end = loss_->position();
  ASSERT_GT(end, 300u);
  for (size_t position = 0; position <= end; ++position) {
    ASSERT_EQ(WrongAfter(position), "") << "after call " << position << " of " << end;
    ASSERT_EQ(Wrong(scratch_ + "/disk/mirror/job", -1), "") << "mirror, after call " << position << " of " << end;
  }
}

TEST_F(CheckpointPowerLossTest, WithoutSyncsTheyAreDamaged) {
  loss_ = std::make_unique<PowerLoss>(folder_);
  ASSERT_NO_FATAL_FAILURE(Train());
  ASSERT_GT(loss_->position(), 300u);
  int wrong = 0;
  for (const Told& told : told_) wrong += WrongAfter(told.position, /*syncs_nothing=*/true).empty() ? 0 : 1;
  EXPECT_GT(wrong, 4);
}

}  // namespace
}  // namespace ampd::train
