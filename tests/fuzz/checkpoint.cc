// A checkpoint: the body of its MANIFEST (empty: the right one), state.json, the weights and the optimizer's file. The
// MANIFEST is sealed with its checksum, else nothing behind it is read. Read as the worker resumes from it, as another
// job starts from it, and as the daemon sends it.
#include "engine/train/checkpoint.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "engine/train/checkpoint_weights.h"
#include "engine/train/sha256.h"
#include "server/service/checkpoint_files.h"
#include "tests/fuzz/input.h"

namespace ampd::fuzz {
namespace {

std::string Line(const std::string& bytes, const std::string& name) {
  return absl::StrCat(train::Sha256Hex(bytes), " ", bytes.size(), " ", name, "\n");
}

void CheckState(const std::string& json) {
  const auto state = train::TrainStateFromJson(json);
  CheckError(state.status());
  if (!state.ok()) return;
  const auto again = train::TrainStateFromJson(train::ToJson(*state));
  // Version 2 knew no spec; what this build writes has one.
  Check(again.ok() ? *again == *state : state->spec.empty(), "written, not read back: " + again.status().ToString());
}

void CheckFiles(const std::string& folder) {
  for (const v1::Checkpoint& one : DescribeCheckpoints(folder)) {
    Check(one.best() || !one.has_best_metric(), "a metric of one that is not the best: " + one.name());
  }
  const auto opened = OpenCheckpointFiles(folder, "");
  CheckError(opened.status());
  if (!opened.ok()) return;
  for (const CheckpointFile& file : opened->files) {
    Check(file.name.find('/') == std::string::npos, "a file elsewhere: " + file.name);
    Check(ReadChunk(file, 0, file.size).ok(), "opened, not read: " + file.name);
  }
}

}  // namespace
}  // namespace ampd::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  const auto parts = fuzz::Parts(data, size, 4);
  fuzz::CheckState(parts[1]);
  const auto state = train::TrainStateFromJson(parts[1]);
  const std::string name = train::CheckpointName(state.ok() ? state->step : 1);
  const std::string folder = fuzz::Folder() + "/checkpoints";
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  std::filesystem::create_directories(absl::StrCat(folder, "/", name));
  const auto write = [&](const std::string& file, const std::string& bytes) {
    fuzz::Write(absl::StrCat("checkpoints/", name, "/", file), bytes);
    return fuzz::Line(bytes, file);
  };
  std::string manifest = write("model.safetensors", parts[2]);
  manifest += write("optimizer.safetensors", parts[3]);
  manifest += write("state.json", parts[1]);
  if (!parts[0].empty()) manifest = parts[0];
  manifest += fuzz::Line(manifest, "MANIFEST");
  fuzz::CheckError(train::ParseManifest(manifest).status());
  fuzz::CheckError(train::ParseManifest(parts[0]).status());
  write("MANIFEST", manifest);

  fuzz::CheckError(train::ReadWeights(absl::StrCat(folder, "/", name), /*ema=*/false).status());
  auto store = train::CheckpointStore::Open(folder, 2);
  fuzz::CheckError(store.status());
  std::vector<std::string> refused;
  if (store.ok()) {
    fuzz::CheckError(store->LoadNewest(state.ok() ? state->spec_hash : "", absl::nullopt, &refused).status());
  }
  fuzz::CheckFiles(folder);
  return 0;
}
