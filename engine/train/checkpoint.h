// Checkpoints of one job: folders "step-%09d" of model.safetensors, optimizer.safetensors, state.json, MANIFEST and,
// where a running average is kept, ema.safetensors.
//
// MANIFEST is text, one line a file: "<sha256, 64 hex digits> <bytes> <name>\n". Its last line is about itself: sha256
// and length of all the lines before, and the name "MANIFEST".
#ifndef AMPD_ENGINE_TRAIN_CHECKPOINT_H_
#define AMPD_ENGINE_TRAIN_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "engine/core/safetensors.h"
#include "engine/train/train_state.h"

namespace ampd::train {

// What MANIFEST says of one file.
struct ManifestLine {
  std::string sha256;
  int64_t bytes = 0;
};
// By name.
using Manifest = std::map<std::string, ManifestLine>;

// DATA_LOSS for text that does not match its own last line, or holds a line that is none.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text);

struct SavedCheckpoint {
  std::string name;
  // All files.
  int64_t size_bytes = 0;
  // Why the mirror has no copy of it; empty: it has, or there is no mirror.
  std::string mirror_error;
};

struct LoadedCheckpoint {
  std::string name;
  int64_t size_bytes = 0;
  TrainState state;
  Safetensors model;
  Safetensors optimizer;
  // Where the checkpoint has one.
  absl::optional<Safetensors> ema;
  // Phases have changed their mode since: `optimizer` may hold scales that the model no longer has.
  bool of_other_mode = false;
  // Its folder was lost, damaged or could not be read; the copy in the mirror took its place.
  bool from_mirror = false;
};

// The checkpoint called `name` in `folder`, which is its own, wherever that lies, and of whatever spec: its state tells
// of which. Changes nothing there. DATA_LOSS naming what is damaged or missing, UNAVAILABLE naming what cannot be read;
// FAILED_PRECONDITION, marked INVALID_SPEC, for one written in another format.
absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& folder, const std::string& name);

// The state of any checkpoint of a job that can be read, in `folder` or, else, in `mirror` (empty: none), for what is
// the same in all of them; nullopt: there is none. UNAVAILABLE, marked INTERNAL, where there is none in `folder` and
// the mirror cannot be read.
absl::StatusOr<absl::optional<TrainState>> FindTrainState(const std::string& folder, const std::string& mirror);

// Not thread-safe; one store owns its folder.
class CheckpointStore {
 public:
  // Makes `folder` when it is missing and removes what a save that was cut short has left. keep_last >= 1. `mirror`: a
  // folder, on another disk perhaps, that gets a copy of each checkpoint, and loses what `folder` loses but for what is
  // damaged or missing there: its copy stays until one of a later step is copied. Empty: none.
  static absl::StatusOr<CheckpointStore> Open(const std::string& folder, int64_t keep_last, std::string mirror = "");

  // Writes the checkpoint of `state.step` aside, forces it to disk and gives it its name, all or nothing: after an
  // error the folder holds what it held before. An empty `ema` makes no file. Then removes all but the keep_last
  // newest, that of state.best and the one held, those refused by LoadNewest, and any of a later step (training went
  // back behind them) but for the newest of those that the attempt began before: hours of training perhaps, which a
  // database that was restored from an older copy does not know. It goes once training has come past it. Last it brings
  // the mirror up to that; what goes wrong there is in the result. A full disk is RESOURCE_EXHAUSTED marked DISK_FULL.
  // A list's sources are let go once they are written, and the memory they hold with them.
  absl::StatusOr<SavedCheckpoint> Save(const TrainState& state, std::vector<TensorSource> model,
                                       std::vector<TensorSource> optimizer, std::vector<TensorSource> ema = {});

  // Keeps the checkpoint of this name beyond keep_last, while there is one, until another is held or training goes back
  // behind it: whoever starts the next attempt knows of none newer. Empty: none.
  void Hold(std::string name) { held_ = std::move(name); }
  bool holds() const { return !held_.empty(); }

  // There will be no next attempt: removes the one held where it is none of the keep_last newest and not that of
  // newest.best, and its copy. `newest` is the state of the last checkpoint saved.
  absl::Status DropHeld(const TrainState& newest);

  // Writes down that `attempt`, of which nobody hears any more, left the checkpoint of this name to the attempt after
  // it.
  absl::Status Leave(int64_t attempt, const std::string& name) const;

  // The checkpoint that an attempt before `attempt` left, where it is of a later step than the one named `told`, or
  // `told` is empty; from here on `attempt` is the one that leaves it, should it end before it is heard of. nullopt:
  // there is none; nobody follows one that was left and is older. One left by attempt 0 is whoever comes next's: that
  // is how an operator names the checkpoint to go on from. `notes` and errors as LoadNewest's.
  absl::StatusOr<absl::optional<LoadedCheckpoint>> LoadLeft(int64_t attempt, const std::string& spec_hash,
                                                            const std::string& told, std::vector<std::string>* notes);

  // The daemon knows of a checkpoint of this attempt.
  void ForgetLeft() const;

  // Whether there is one of that step, which LoadNewest did not refuse.
  bool Has(int64_t step) const;
  // Likewise; where there is none, the mirror's copy takes its place if it is whole. `notes`: what is wrong with it.
  bool HasOrBringsBack(int64_t step, std::vector<std::string>* notes);

  // The newest undamaged checkpoint up to the one named `told`; where those are gone or damaged, the newest at all.
  // nullopt when there is none, or when `told` is empty: nobody was told of any. No `told`: the newest.
  // One that is damaged (a file of it is missing, of another size, or does not match its checksum), cannot be read, or
  // is in the mirror alone is replaced by the mirror's copy where that is whole. The mirror is looked at only where one
  // of these is so, or where the one named `told` is missing; a mirror that cannot be read counts as an empty one.
  // Each damaged one that was passed over, and each that was replaced, adds a line that names it and what is wrong to
  // `notes`. The first call, unless LoadLeft found one or one was saved, is where the attempt begins: a checkpoint of a
  // later step that was there by then adds a line, too.
  // UNAVAILABLE, marked INTERNAL, for one of which a file cannot be read (the error names it and the cause) and that
  // the mirror does not have: it may be whole, and is neither passed over nor refused.
  // FAILED_PRECONDITION, marked INVALID_SPEC, for one of another spec (with both hashes) or written in another format.
  absl::StatusOr<absl::optional<LoadedCheckpoint>> LoadNewest(const std::string& spec_hash,
                                                              const absl::optional<std::string>& told,
                                                              std::vector<std::string>* notes);

 private:
  CheckpointStore(std::string folder, int64_t keep_last, std::string mirror)
      : folder_(std::move(folder)), keep_last_(keep_last), mirror_(std::move(mirror)) {}
  std::string Path(absl::string_view name) const;
  absl::StatusOr<std::vector<int64_t>> Steps() const;
  absl::StatusOr<int64_t> WriteFolder(const std::string& path, const TrainState& state, std::vector<TensorSource> model,
                                      std::vector<TensorSource> optimizer, std::vector<TensorSource> ema) const;
  absl::Status Publish(const std::string& aside, const std::string& name) const;
  absl::StatusOr<absl::optional<LoadedCheckpoint>> FindNewest(const std::string& spec_hash,
                                                              const absl::optional<std::string>& told,
                                                              std::vector<std::string>* notes);
  // The attempt begins at `step`, if none is known yet; -1: at the beginning.
  absl::Status BeginAt(int64_t step, std::vector<std::string>* notes);
  absl::Status Prune(const TrainState& newest);
  absl::Status Remove(const std::string& name) const;
  absl::Status Mirror(int64_t newest);
  // Takes copies away whose originals are gone, see Open(), where that of step `newest` was copied.
  absl::Status TrimMirror(int64_t newest);
  // Puts the mirror's copy into the place of the checkpoint of that name.
  absl::Status BringBack(const std::string& name) const;
  // Of what there is in the mirror.
  std::vector<int64_t> MirroredSteps() const;
  // The same for a training that lost its own. Notes what cannot be read.
  std::vector<int64_t> CopiesToReturnTo(std::vector<std::string>* notes) const;
  absl::StatusOr<LoadedCheckpoint> Load(const std::string& name, const std::string& spec_hash) const;
  // The mirror's copy, in its place, where it is not whole.
  absl::StatusOr<LoadedCheckpoint> LoadAnyCopy(int64_t step, const std::string& spec_hash,
                                               std::vector<std::string>* notes);

  std::string folder_;
  int64_t keep_last_;
  std::string mirror_;
  std::string held_;
  // Steps of damaged checkpoints.
  std::set<int64_t> damaged_;
  // Steps that training went back behind: of whole checkpoints that were removed, whose copies go too.
  std::set<int64_t> undone_;
  bool began_ = false;
  // Step of the newest checkpoint that the attempt began before; -1: none.
  int64_t ahead_ = -1;
};

// "step-000000500".
std::string CheckpointName(int64_t step);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_CHECKPOINT_H_
