// A second copy of checkpoints in another folder, such as a disk of another machine.
#ifndef AMPD_ENGINE_TRAIN_CHECKPOINT_MIRROR_H_
#define AMPD_ENGINE_TRAIN_CHECKPOINT_MIRROR_H_

#include <string>

#include "absl/status/status.h"

namespace ampd::train {

// Copies the checkpoint `folder`/`name` to `mirror`/`name`, and makes `mirror` when it is missing. The copy is written
// aside, compared with its MANIFEST, forced to disk and renamed; a copy of that name that is there already is replaced.
// What copies that were cut short have left is removed. DATA_LOSS when what was read does not match; else the file
// system's error with the path.
absl::Status MirrorCheckpoint(const std::string& folder, const std::string& name, const std::string& mirror);

// Copies the checkpoint in folder `from` to the new folder `to`, compares it with its MANIFEST and forces it to disk.
// After an error `to` may be there in part; the errors are MirrorCheckpoint's, and NOT_FOUND when `from` is no
// checkpoint.
absl::Status CopyCheckpoint(const std::string& from, const std::string& to);

// Takes the copy away; it is there whole or not at all, whenever the power goes.
absl::Status RemoveMirrored(const std::string& mirror, const std::string& name);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_CHECKPOINT_MIRROR_H_
