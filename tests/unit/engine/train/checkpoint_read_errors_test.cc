// A checkpoint that cannot be read for now is not a damaged one: calls of open and read fail here as the test says.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/train/checkpoint.h"
#include "engine/train/checkpoint_weights.h"
#include "engine/train/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

struct Failing {
  // What ends in this cannot be opened; with `reads`, opened but not read.
  std::string path;
  int error = 0;
  bool reads = false;
  bool once = false;
  int fd = -1;
};
Failing& TheFailing() {
  static Failing& failing = *new Failing;
  return failing;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  // The mode, where there is none, is not looked at.
  __builtin_va_list arguments;
  __builtin_va_start(arguments, flags);
  const mode_t mode = __builtin_va_arg(arguments, mode_t);
  __builtin_va_end(arguments);
  static auto* const next = reinterpret_cast<int (*)(const char*, int, ...)>(dlsym(RTLD_NEXT, "open"));
  Failing& failing = TheFailing();
  const bool fails = !failing.path.empty() && absl::EndsWith(path, failing.path);
  if (fails && !failing.reads) {
    errno = failing.error;
    return -1;
  }
  const int fd = next(path, flags, mode);
  if (fails) failing.fd = fd;
  return fd;
}

ssize_t read(int fd, void* bytes, size_t size) {
  static auto* const next = reinterpret_cast<ssize_t (*)(int, void*, size_t)>(dlsym(RTLD_NEXT, "read"));
  Failing& failing = TheFailing();
  if (failing.fd < 0 || fd != failing.fd) return next(fd, bytes, size);
  failing.fd = -1;
  if (failing.once) failing.path.clear();
  errno = failing.error;
  return -1;
}

}  // extern "C"

namespace ampd::train {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kSpec = std::string(64, '1');

class CheckpointReadErrorsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/ampd_read_errors_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    TheFailing() = Failing();
    fs::remove_all(folder_);
  }

  CheckpointStore Open() {
    auto store = CheckpointStore::Open(folder_, 2);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  void Save(CheckpointStore& store, int64_t step) {
    const auto source = []() -> absl::string_view { return "0123"; };
    TrainState state;
    state.step = step;
    state.spec_hash = kSpec;
    state.phases = {PhaseState{"main", {}, {}}};
    const auto saved = store.Save(state, {{"w", DType::kF32, {1}, source}}, {{"w.m1", DType::kF32, {1}, source}}, {});
    ASSERT_TRUE(saved.ok()) << saved.status();
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string folder_;
  std::vector<std::string> refused_;
};

TEST_F(CheckpointReadErrorsTest, WhatCannotBeReadNowIsNotDamaged) {
  CheckpointStore store = Open();
  Save(store, 10);
  Save(store, 20);
  for (const bool reads : {false, true}) {
    for (const int error : {EMFILE, EIO, EACCES, ENOMEM, ESTALE, ENOTCONN}) {
      for (const std::string file : {"model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST"}) {
        const std::string cause = std::generic_category().message(error), path = CheckpointName(20) + "/" + file;
        SCOPED_TRACE(absl::StrCat(reads ? "read " : "open ", path, ": ", cause));
        TheFailing() = {path, error, reads};
        const auto loaded = store.LoadNewest(kSpec, absl::nullopt, &refused_);
        const absl::Status weights = ReadWeights(folder_ + "/" + CheckpointName(20), /*ema=*/false).status();
        TheFailing() = Failing();
        ASSERT_FALSE(loaded.ok());
        EXPECT_EQ(FailureOf(loaded.status()).class_(), v1::Failure::INTERNAL) << "the attempt is tried again";
        EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(path));
        EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(cause));
        EXPECT_THAT(refused_, IsEmpty());
        EXPECT_FALSE(absl::IsDataLoss(weights)) << weights;
      }
    }
  }
  // Nothing became of it.
  const auto loaded = store.LoadNewest(kSpec, absl::nullopt, &refused_);
  ASSERT_TRUE(loaded.ok() && loaded->has_value());
  EXPECT_EQ((*loaded)->state.step, 20);
  Save(store, 30);
  EXPECT_THAT(Names(), ElementsAre(CheckpointName(20), CheckpointName(30)));
}

TEST_F(CheckpointReadErrorsTest, TheMirrorHasWhatADiskDoesNotGive) {
  CheckpointStore store = *CheckpointStore::Open(folder_ + "/originals", 2, folder_ + "/copies");
  Save(store, 10);
  Save(store, 20);
  TheFailing() = {"/originals/" + CheckpointName(20) + "/model.safetensors", EIO, /*reads=*/true, /*once=*/true};
  auto loaded = store.LoadNewest(kSpec, CheckpointName(20), &refused_);
  ASSERT_TRUE(loaded.ok() && loaded->has_value()) << loaded.status();
  EXPECT_EQ((*loaded)->state.step, 20);
  EXPECT_TRUE((*loaded)->from_mirror);
  // Neither gives it.
  TheFailing() = {CheckpointName(20) + "/MANIFEST", EIO};
  loaded = store.LoadNewest(kSpec, CheckpointName(20), &refused_);
  EXPECT_EQ(FailureOf(loaded.status()).class_(), v1::Failure::INTERNAL) << loaded.status();
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(folder_ + "/copies"));
}

TEST_F(CheckpointReadErrorsTest, WhatIsNotThereIsDamaged) {
  for (const int kind : {0, 1, 2}) {
    SCOPED_TRACE(kind);
    CheckpointStore store = Open();
    Save(store, 10);
    Save(store, 20);
    const std::string path = folder_ + "/" + CheckpointName(20) + "/state.json";
    fs::remove(path);
    if (kind == 1) fs::create_symlink("state.json", path);
    if (kind == 2) fs::remove_all(folder_ + "/" + CheckpointName(20));
    if (kind == 2) std::ofstream(folder_ + "/" + CheckpointName(20)) << "a file";
    refused_.clear();
    const auto loaded = store.LoadNewest(kSpec, absl::nullopt, &refused_);
    ASSERT_TRUE(loaded.ok() && loaded->has_value()) << loaded.status();
    EXPECT_EQ((*loaded)->state.step, 10);
    EXPECT_THAT(refused_, ElementsAre(HasSubstr("step-000000020 is damaged")));
    fs::remove_all(folder_);
  }
}

}  // namespace
}  // namespace ampd::train
