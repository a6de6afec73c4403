#include "engine/train/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "engine/train/checkpoint_mirror.h"
#include "engine/train/checkpoint_weights.h"
#include "engine/train/failure.h"
#include "engine/train/files.h"
#include "engine/train/spec_configs.h"

namespace ampd::train {
namespace {

constexpr char kModel[] = "model.safetensors";
constexpr char kOptimizer[] = "optimizer.safetensors";
constexpr char kEma[] = "ema.safetensors";
constexpr char kState[] = "state.json";
constexpr char kManifest[] = "MANIFEST";
constexpr char kPrefix[] = "step-";
// Of the attempt that left it, and its name.
constexpr char kLeft[] = "LEFT";
constexpr int64_t kMaxLeftBytes = 100;
constexpr char kAside[] = ".writing-";
constexpr int64_t kMaxManifestBytes = 1 << 16;
// For the right to read the mirror, and between two looks.
constexpr std::chrono::seconds kMirrorPatience{10};
constexpr std::chrono::milliseconds kMirrorLook{50};

std::string Line(absl::string_view sha256, int64_t bytes, absl::string_view name) {
  return absl::StrCat(sha256, " ", bytes, " ", name, "\n");
}

// Adds the new file's line to `manifest`.
absl::Status WriteFile(const std::string& folder, const std::string& name,
                       const std::function<absl::Status(FileWriter*)>& write, std::string* manifest, int64_t* bytes) {
  AMPD_ASSIGN_OR_RETURN(FileWriter file, FileWriter::Create(absl::StrCat(folder, "/", name)));
  AMPD_RETURN_IF_ERROR(write(&file));
  AMPD_RETURN_IF_ERROR(file.Close());
  *bytes += file.size();
  absl::StrAppend(manifest, Line(file.Sha256(), file.size(), name));
  return absl::OkStatus();
}

std::function<absl::Status(FileWriter*)> Tensors(const std::vector<TensorSource>& tensors) {
  return [&tensors](FileWriter* file) {
    return WriteSafetensors(tensors, [file](absl::string_view bytes) { return file->Append(bytes); });
  };
}

std::function<absl::Status(FileWriter*)> Text(const std::string& text) {
  return [&text](FileWriter* file) { return file->Append(text); };
}

// Damage, as opposed to a checkpoint that is whole but not for us.
absl::Status Damaged(absl::string_view what) { return absl::DataLossError(what); }

// The same error, with more to say.
absl::Status Append(const absl::Status& error, absl::string_view more) {
  return WithFailureClass(absl::Status(error.code(), absl::StrCat(error.message(), more)), FailureOf(error).class_());
}

// Missing, no file, or of a size that it cannot have.
bool IsLost(const std::string& path, int64_t max_bytes) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
  return !S_ISREG(info.st_mode) || info.st_size > max_bytes;
}

// Too many open files, a disk that does not answer: what could not be read now may be whole.
absl::StatusOr<std::string> ReadWhole(const std::string& path, int64_t max_bytes) {
  absl::StatusOr<std::string> bytes = ReadFile(path, max_bytes);
  if (bytes.ok()) return bytes;
  if (absl::IsDataLoss(bytes.status()) || IsLost(path, max_bytes)) return Damaged(bytes.status().message());
  return WithFailureClass(absl::UnavailableError(bytes.status().message()), v1::Failure::INTERNAL);
}

absl::StatusOr<std::string> ReadListed(const std::string& folder, const std::string& name, const Manifest& manifest) {
  const auto it = manifest.find(name);
  if (it == manifest.end()) return Damaged(absl::StrCat("MANIFEST does not list ", name));
  AMPD_ASSIGN_OR_RETURN(std::string bytes, ReadWhole(absl::StrCat(folder, "/", name), it->second.bytes));
  if (static_cast<int64_t>(bytes.size()) != it->second.bytes) {
    return Damaged(absl::StrCat(name, " has ", bytes.size(), " bytes of ", it->second.bytes));
  }
  if (Sha256Hex(bytes) != it->second.sha256) return Damaged(absl::StrCat(name, " does not match its checksum"));
  return bytes;
}

absl::StatusOr<Safetensors> ReadTensors(const std::string& folder, const std::string& name, const Manifest& manifest) {
  AMPD_ASSIGN_OR_RETURN(std::string bytes, ReadListed(folder, name, manifest));
  absl::StatusOr<Safetensors> tensors = Safetensors::Parse(std::move(bytes));
  if (!tensors.ok()) return Damaged(absl::StrCat(name, ": ", tensors.status().message()));
  return tensors;
}

absl::StatusOr<TrainState> ReadAnyState(const std::string& folder, const Manifest& manifest) {
  AMPD_ASSIGN_OR_RETURN(const std::string json, ReadListed(folder, kState, manifest));
  absl::StatusOr<TrainState> state = TrainStateFromJson(json);
  if (absl::IsInvalidArgument(state.status())) return Damaged(state.status().message());
  if (!state.ok()) return WithFailureClass(state.status(), v1::Failure::INVALID_SPEC);
  return state;
}

absl::StatusOr<TrainState> ReadState(const std::string& folder, const Manifest& manifest,
                                     const std::string& spec_hash) {
  absl::StatusOr<TrainState> state = ReadAnyState(folder, manifest);
  AMPD_RETURN_IF_ERROR(state.status());
  absl::StatusOr<std::string> made_for = state->spec_hash;
  if (!state->spec.empty()) made_for = HashOfHashedSpec(state->spec);
  if (!made_for.ok()) {
    return WithFailureClass(absl::FailedPreconditionError(
                                absl::StrCat("made for a spec that this build refuses: ", made_for.status().message())),
                            v1::Failure::INVALID_SPEC);
  }
  if (*made_for != spec_hash) {
    return WithFailureClass(absl::FailedPreconditionError(absl::StrCat(
                                "made for a spec with hash ", *made_for,
                                ", the job's model, data, precision, optimizer and train have ", spec_hash)),
                            v1::Failure::INVALID_SPEC);
  }
  return state;
}

absl::optional<int64_t> StepOf(absl::string_view name) {
  int64_t step;
  const absl::string_view digits = absl::StripPrefix(name, kPrefix);
  if (!absl::SimpleAtoi(digits, &step) || step < 0 || name != CheckpointName(step)) return absl::nullopt;
  return step;
}

// Of a checkpoint wherever it lies.
absl::StatusOr<Manifest> ReadManifestOf(const std::string& folder) {
  AMPD_RETURN_IF_ERROR(ListFolder(folder).status());
  AMPD_ASSIGN_OR_RETURN(const std::string text, ReadWhole(absl::StrCat(folder, "/", kManifest), kMaxManifestBytes));
  return ParseManifest(text);
}

// For a training that lost its own: a daemon that gives the worker's user the mirror does so beside the worker's start,
// and a while is waited for that.
absl::StatusOr<std::vector<std::string>> ListMirror(const std::string& mirror) {
  const auto deadline = std::chrono::steady_clock::now() + kMirrorPatience;
  absl::StatusOr<std::vector<std::string>> names = ListFolder(mirror);
  while (absl::IsPermissionDenied(names.status()) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kMirrorLook);
    names = ListFolder(mirror);
  }
  return names;
}

// `spec_hash` null: of any spec.
absl::StatusOr<LoadedCheckpoint> LoadFolder(const std::string& folder, const std::string& name,
                                            const std::string* spec_hash) {
  AMPD_ASSIGN_OR_RETURN(const std::string text, ReadWhole(absl::StrCat(folder, "/", kManifest), kMaxManifestBytes));
  AMPD_ASSIGN_OR_RETURN(const Manifest manifest, ParseManifest(text));
  AMPD_ASSIGN_OR_RETURN(TrainState state, spec_hash == nullptr ? ReadAnyState(folder, manifest)
                                                               : ReadState(folder, manifest, *spec_hash));
  if (CheckpointName(state.step) != name) return Damaged(absl::StrCat("state.json is of step ", state.step));
  AMPD_ASSIGN_OR_RETURN(Safetensors model, ReadTensors(folder, kModel, manifest));
  AMPD_ASSIGN_OR_RETURN(Safetensors optimizer, ReadTensors(folder, kOptimizer, manifest));
  absl::optional<Safetensors> ema;
  if (manifest.count(kEma) > 0) {
    AMPD_ASSIGN_OR_RETURN(ema, ReadTensors(folder, kEma, manifest));
  }
  int64_t bytes = static_cast<int64_t>(text.size());
  for (const auto& [file, line] : manifest) bytes += line.bytes;
  return LoadedCheckpoint{name, bytes, std::move(state), std::move(model), std::move(optimizer), std::move(ema)};
}

}  // namespace

absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& folder, const std::string& name) {
  return LoadFolder(folder, name, nullptr);
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text) {
  const size_t last = text.substr(0, text.empty() ? 0 : text.size() - 1).rfind('\n');
  if (last == absl::string_view::npos) return Damaged("MANIFEST is cut short");
  const absl::string_view body = text.substr(0, last + 1);
  if (text.substr(last + 1) != Line(Sha256Hex(body), static_cast<int64_t>(body.size()), kManifest)) {
    return Damaged("MANIFEST does not match its own checksum");
  }
  Manifest manifest;
  for (absl::string_view line : absl::StrSplit(body, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(' ', 2));
    ManifestLine entry;
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &entry.bytes) || entry.bytes < 0) {
      return Damaged("MANIFEST has a line that is none");
    }
    entry.sha256 = parts[0];
    manifest[parts[2]] = std::move(entry);
  }
  return manifest;
}

std::string CheckpointName(int64_t step) { return absl::StrFormat("%s%09d", kPrefix, step); }

absl::StatusOr<Safetensors> ReadWeights(const std::string& folder, bool ema) {
  AMPD_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifestOf(folder));
  if (ema && manifest.count(kEma) == 0) {
    return absl::FailedPreconditionError("ema: the checkpoint has no running average, the job keeps none");
  }
  return ReadTensors(folder, ema ? kEma : kModel, manifest);
}

absl::StatusOr<TrainState> ReadTrainState(const std::string& folder) {
  AMPD_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifestOf(folder));
  return ReadAnyState(folder, manifest);
}

absl::StatusOr<absl::optional<TrainState>> FindTrainState(const std::string& folder, const std::string& mirror) {
  for (const bool mirrored : {false, true}) {
    const std::string& of = mirrored ? mirror : folder;
    if (of.empty()) continue;
    const absl::StatusOr<std::vector<std::string>> names = mirrored ? ListMirror(of) : ListFolder(of);
    if (absl::IsNotFound(names.status())) continue;
    if (!names.ok()) {
      return WithFailureClass(absl::UnavailableError(absl::StrCat("checkpoints: ", names.status().message())),
                              v1::Failure::INTERNAL);
    }
    for (const std::string& name : *names) {
      if (!StepOf(name).has_value()) continue;
      absl::StatusOr<TrainState> state = ReadTrainState(absl::StrCat(of, "/", name));
      if (state.ok()) return absl::optional<TrainState>(*std::move(state));
    }
  }
  return absl::optional<TrainState>();
}

std::string CheckpointStore::Path(absl::string_view name) const { return absl::StrCat(folder_, "/", name); }

absl::StatusOr<CheckpointStore> CheckpointStore::Open(const std::string& folder, int64_t keep_last,
                                                      std::string mirror) {
  AMPD_RETURN_IF_ERROR(MakeFolder(folder));
  AMPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(folder));
  CheckpointStore store(folder, keep_last, std::move(mirror));
  for (const std::string& name : names) {
    if (absl::StartsWith(name, kAside)) AMPD_RETURN_IF_ERROR(RemoveTree(store.Path(name)));
  }
  return store;
}

// Newest first.
absl::StatusOr<std::vector<int64_t>> CheckpointStore::Steps() const {
  AMPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(folder_));
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    if (const absl::optional<int64_t> step = StepOf(name)) steps.push_back(*step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

bool CheckpointStore::Has(int64_t step) const {
  struct stat info {};
  return damaged_.count(step) == 0 && lstat(Path(CheckpointName(step)).c_str(), &info) == 0;
}

bool CheckpointStore::HasOrBringsBack(int64_t step, std::vector<std::string>* notes) {
  if (Has(step)) return true;
  if (mirror_.empty()) return false;
  const std::string name = CheckpointName(step);
  const absl::Status copied = BringBack(name);
  if (copied.ok()) {
    damaged_.erase(step);
  } else if (!absl::IsNotFound(copied)) {
    notes->push_back(absl::StrCat("the mirror's copy of the best checkpoint, ", name, ": ", copied.message()));
  }
  return copied.ok();
}

absl::StatusOr<int64_t> CheckpointStore::WriteFolder(const std::string& path, const TrainState& state,
                                                     std::vector<TensorSource> model,
                                                     std::vector<TensorSource> optimizer,
                                                     std::vector<TensorSource> ema) const {
  std::string manifest;
  int64_t bytes = 0;
  AMPD_RETURN_IF_ERROR(MakeFolder(path));
  AMPD_RETURN_IF_ERROR(WriteFile(path, kModel, Tensors(model), &manifest, &bytes));
  model.clear();
  AMPD_RETURN_IF_ERROR(WriteFile(path, kOptimizer, Tensors(optimizer), &manifest, &bytes));
  optimizer.clear();
  if (!ema.empty()) AMPD_RETURN_IF_ERROR(WriteFile(path, kEma, Tensors(ema), &manifest, &bytes));
  AMPD_RETURN_IF_ERROR(WriteFile(path, kState, Text(ToJson(state)), &manifest, &bytes));
  const std::string sealed =
      absl::StrCat(manifest, Line(Sha256Hex(manifest), static_cast<int64_t>(manifest.size()), kManifest));
  AMPD_RETURN_IF_ERROR(WriteFile(path, kManifest, Text(sealed), &manifest, &bytes));
  AMPD_RETURN_IF_ERROR(SyncFolder(path));
  return bytes;
}

absl::Status CheckpointStore::Publish(const std::string& aside, const std::string& name) const {
  AMPD_RETURN_IF_ERROR(RenameOrSwap(aside, Path(name)));
  return SyncFolder(folder_);
}

absl::StatusOr<SavedCheckpoint> CheckpointStore::Save(const TrainState& state, std::vector<TensorSource> model,
                                                      std::vector<TensorSource> optimizer,
                                                      std::vector<TensorSource> ema) {
  const std::string name = CheckpointName(state.step);
  const std::string aside = Path(absl::StrCat(kAside, name));
  absl::StatusOr<int64_t> bytes = WriteFolder(aside, state, std::move(model), std::move(optimizer), std::move(ema));
  const absl::Status status = bytes.ok() ? Publish(aside, name) : bytes.status();
  // What a failure left half-written, or the checkpoint that the new one replaced.
  const absl::Status removed = RemoveTree(aside);
  AMPD_RETURN_IF_ERROR(Annotate(status, absl::StrCat("checkpoint ", name)));
  AMPD_RETURN_IF_ERROR(removed);
  damaged_.erase(state.step);
  undone_.erase(state.step);
  began_ = true;
  AMPD_RETURN_IF_ERROR(Prune(state));
  return SavedCheckpoint{name, *bytes, std::string(Mirror(state.step).message())};
}

absl::Status CheckpointStore::Mirror(int64_t newest) {
  if (mirror_.empty()) return absl::OkStatus();
  // Who is cut short while the new one is copied must not find there what training went back behind.
  for (const int64_t step : MirroredSteps()) {
    if (undone_.count(step) > 0) AMPD_RETURN_IF_ERROR(RemoveMirrored(mirror_, CheckpointName(step)));
  }
  AMPD_RETURN_IF_ERROR(MirrorCheckpoint(folder_, CheckpointName(newest), mirror_));
  return TrimMirror(newest);
}

absl::Status CheckpointStore::TrimMirror(int64_t newest) {
  AMPD_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, Steps());
  const std::set<int64_t> kept(steps.begin(), steps.end());
  const std::vector<int64_t> copies = MirroredSteps();
  // Its copy failed: older ones are what the mirror has.
  if (std::count(copies.begin(), copies.end(), newest) == 0) return absl::OkStatus();
  for (const int64_t step : copies) {
    // The only whole one perhaps, of a training that lost its own.
    const bool ahead = step > newest && undone_.count(step) == 0;
    if (kept.count(step) == 0 && !ahead) AMPD_RETURN_IF_ERROR(RemoveMirrored(mirror_, CheckpointName(step)));
  }
  undone_.clear();
  return absl::OkStatus();
}

std::vector<int64_t> CheckpointStore::MirroredSteps() const {
  std::vector<int64_t> steps;
  if (mirror_.empty()) return steps;
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(mirror_);
  if (!names.ok()) return steps;
  for (const std::string& name : *names) {
    if (const absl::optional<int64_t> step = StepOf(name)) steps.push_back(*step);
  }
  return steps;
}

std::vector<int64_t> CheckpointStore::CopiesToReturnTo(std::vector<std::string>* notes) const {
  if (mirror_.empty()) return {};
  const absl::Status readable = ListMirror(mirror_).status();
  if (!readable.ok() && !absl::IsNotFound(readable)) {
    notes->push_back(absl::StrCat("the mirror's copies cannot be read: ", readable.message()));
  }
  return MirroredSteps();
}

absl::Status CheckpointStore::BringBack(const std::string& name) const {
  const std::string aside = Path(absl::StrCat(kAside, name));
  AMPD_RETURN_IF_ERROR(RemoveTree(aside));
  absl::Status status = CopyCheckpoint(absl::StrCat(mirror_, "/", name), aside);
  if (status.ok()) status = Publish(aside, name);
  // What a failure left half-written, or what the copy replaced.
  const absl::Status removed = RemoveTree(aside);
  return status.ok() ? removed : status;
}

absl::Status CheckpointStore::Prune(const TrainState& newest) {
  AMPD_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, Steps());
  // It was replaced.
  if (ahead_ == newest.step) ahead_ = -1;
  int64_t kept = 0;
  for (int64_t step : steps) {
    const bool ahead = step == ahead_ && damaged_.count(step) == 0;
    if (ahead && step > newest.step) continue;
    const bool whole = step <= newest.step && damaged_.count(step) == 0 && !ahead;
    const std::string name = CheckpointName(step);
    const bool best = newest.best && newest.best->step == step;
    if (whole && (++kept <= keep_last_ || best || name == held_)) continue;
    AMPD_RETURN_IF_ERROR(Remove(name));
    if (step > newest.step && damaged_.count(step) == 0) undone_.insert(step);
    damaged_.erase(step);
  }
  return absl::OkStatus();
}

// Of one whose removal is cut short nothing is left under its name; Open() takes away the rest.
absl::Status CheckpointStore::Remove(const std::string& name) const {
  const std::string aside = Path(absl::StrCat(kAside, name));
  AMPD_RETURN_IF_ERROR(RemoveTree(aside));
  AMPD_RETURN_IF_ERROR(RenameOrSwap(Path(name), aside));
  AMPD_RETURN_IF_ERROR(SyncFolder(folder_));
  return RemoveTree(aside);
}

absl::StatusOr<LoadedCheckpoint> CheckpointStore::Load(const std::string& name, const std::string& spec_hash) const {
  return LoadFolder(Path(name), name, &spec_hash);
}

absl::StatusOr<LoadedCheckpoint> CheckpointStore::LoadAnyCopy(int64_t step, const std::string& spec_hash,
                                                              std::vector<std::string>* notes) {
  const std::string name = CheckpointName(step);
  absl::StatusOr<LoadedCheckpoint> loaded = Load(name, spec_hash);
  const absl::Status wrong = loaded.status();
  if (mirror_.empty() || (!absl::IsDataLoss(wrong) && !absl::IsUnavailable(wrong))) return loaded;
  const absl::Status copied = BringBack(name);
  if (!copied.ok()) return Append(wrong, absl::StrCat("; the mirror's copy: ", copied.message()));
  notes->push_back(
      absl::StrCat("checkpoint ", name, " is not whole; the mirror's copy took its place: ", wrong.message()));
  damaged_.erase(step);
  loaded = Load(name, spec_hash);
  if (!loaded.ok()) return loaded;
  loaded->from_mirror = true;
  const auto& best = loaded->state.best;
  // It was lost with this one; where the mirror does not have it either there is none.
  if (best.has_value()) HasOrBringsBack(best->step, notes);
  return loaded;
}

absl::Status CheckpointStore::DropHeld(const TrainState& newest) {
  held_.clear();
  AMPD_RETURN_IF_ERROR(Prune(newest));
  return TrimMirror(newest.step);
}

absl::Status CheckpointStore::Leave(int64_t attempt, const std::string& name) const {
  const std::string aside = Path(absl::StrCat(kAside, kLeft));
  AMPD_RETURN_IF_ERROR(RemoveTree(aside));
  AMPD_ASSIGN_OR_RETURN(FileWriter file, FileWriter::Create(aside));
  AMPD_RETURN_IF_ERROR(file.Append(absl::StrCat(attempt, " ", name, "\n")));
  AMPD_RETURN_IF_ERROR(file.Close());
  AMPD_RETURN_IF_ERROR(Publish(aside, kLeft));
  return RemoveTree(aside);
}

absl::StatusOr<absl::optional<LoadedCheckpoint>> CheckpointStore::LoadLeft(int64_t attempt,
                                                                           const std::string& spec_hash,
                                                                           const std::string& told,
                                                                           std::vector<std::string>* notes) {
  const absl::StatusOr<std::string> text = ReadWhole(Path(kLeft), kMaxLeftBytes);
  if (absl::IsDataLoss(text.status())) return absl::optional<LoadedCheckpoint>();
  AMPD_RETURN_IF_ERROR(text.status());
  const std::pair<std::string, std::string> words =
      absl::StrSplit(absl::StripSuffix(*text, "\n"), absl::MaxSplits(' ', 1));
  const absl::optional<int64_t> step = StepOf(words.second);
  // Attempts between that one and this ended before they came here: they would have taken it over, or removed it.
  int64_t by = 0;
  const bool before = absl::SimpleAtoi(words.first, &by) && by >= 0 && by < attempt;
  if (!before || !step.has_value() || *step <= StepOf(told).value_or(-1)) {
    ForgetLeft();
    return absl::optional<LoadedCheckpoint>();
  }
  AMPD_RETURN_IF_ERROR(Leave(attempt, words.second));
  absl::StatusOr<LoadedCheckpoint> loaded = LoadAnyCopy(*step, spec_hash, notes);
  if (loaded.ok()) {
    AMPD_RETURN_IF_ERROR(BeginAt(*step, notes));
    return absl::optional<LoadedCheckpoint>(*std::move(loaded));
  }
  if (!absl::IsDataLoss(loaded.status())) return Annotate(loaded.status(), absl::StrCat("checkpoint ", words.second));
  damaged_.insert(*step);
  notes->push_back(absl::StrCat("checkpoint ", words.second, " is damaged and not used: ", loaded.status().message()));
  return absl::optional<LoadedCheckpoint>();
}

// One that stays is of an attempt that nobody follows.
void CheckpointStore::ForgetLeft() const { RemoveTree(Path(kLeft)).IgnoreError(); }

absl::Status CheckpointStore::BeginAt(int64_t step, std::vector<std::string>* notes) {
  if (std::exchange(began_, true)) return absl::OkStatus();
  AMPD_ASSIGN_OR_RETURN(std::vector<int64_t> steps, Steps());
  const auto whole = std::find_if(steps.begin(), steps.end(), [&](int64_t s) { return damaged_.count(s) == 0; });
  if (whole == steps.end() || *whole <= step) return absl::OkStatus();
  ahead_ = *whole;
  const std::string name = CheckpointName(ahead_);
  notes->push_back(
      absl::StrCat("checkpoint ", name,
                   " is of a later step than where this attempt begins: the daemon's "
                   "database does not know it. It is kept until training has come past it. To go on from it "
                   "pause the job, write \"0 ",
                   name, "\" to ", Path(kLeft), " and resume the job"));
  return absl::OkStatus();
}

absl::StatusOr<absl::optional<LoadedCheckpoint>> CheckpointStore::LoadNewest(const std::string& spec_hash,
                                                                             const absl::optional<std::string>& told,
                                                                             std::vector<std::string>* notes) {
  AMPD_ASSIGN_OR_RETURN(absl::optional<LoadedCheckpoint> loaded, FindNewest(spec_hash, told, notes));
  AMPD_RETURN_IF_ERROR(BeginAt(loaded.has_value() ? loaded->state.step : -1, notes));
  return loaded;
}

absl::StatusOr<absl::optional<LoadedCheckpoint>> CheckpointStore::FindNewest(const std::string& spec_hash,
                                                                             const absl::optional<std::string>& told,
                                                                             std::vector<std::string>* notes) {
  if (told.has_value() && told->empty()) return absl::optional<LoadedCheckpoint>();
  AMPD_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, Steps());
  const int64_t last = told.has_value() ? StepOf(*told).value_or(0) : std::numeric_limits<int64_t>::max();
  // Those up to the one told of first; within either part newest first.
  std::set<std::pair<bool, int64_t>> order;
  const auto add = [&](const std::vector<int64_t>& more) {
    for (const int64_t step : more) order.emplace(step > last, -step);
  };
  add(steps);
  const bool lost = told.has_value() ? std::count(steps.begin(), steps.end(), last) == 0 : steps.empty();
  if (lost) add(CopiesToReturnTo(notes));
  for (auto next = order.begin(); next != order.end(); ++next) {
    const std::string name = CheckpointName(-next->second);
    absl::StatusOr<LoadedCheckpoint> loaded = LoadAnyCopy(-next->second, spec_hash, notes);
    if (loaded.ok()) return absl::optional<LoadedCheckpoint>(*std::move(loaded));
    if (!absl::IsDataLoss(loaded.status())) return Annotate(loaded.status(), absl::StrCat("checkpoint ", name));
    damaged_.insert(-next->second);
    notes->push_back(absl::StrCat("checkpoint ", name, " is damaged and not used: ", loaded.status().message()));
    add(MirroredSteps());
  }
  return absl::optional<LoadedCheckpoint>();
}

}  // namespace ampd::train
