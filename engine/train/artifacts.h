// Files that a training makes to look at: pictures, tables, logs.
#ifndef AMPD_ENGINE_TRAIN_ARTIFACTS_H_
#define AMPD_ENGINE_TRAIN_ARTIFACTS_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "ampd/v1/event.pb.h"

namespace ampd::train {

struct Artifact {
  // A file's name of letters, digits, '_', '-' and '.', no '.' in front, at most 200 bytes: "samples-000000500.png".
  std::string name;
  // E.g. "image/png".
  std::string content_type;
  std::string bytes;
};

// A folder of artifacts. Not thread-safe.
class ArtifactStore {
 public:
  // `folder` is made with the first artifact; empty: nothing is kept.
  explicit ArtifactStore(std::string folder) : folder_(std::move(folder)) {}

  bool keeps() const { return !folder_.empty(); }

  // Writes the artifact aside, forces it to disk and gives it its name, in place of what had it before: whoever reads
  // sees the one or the other, whole. The event's step is not set. INVALID_ARGUMENT for a name that is none, else as
  // engine/train/files.h; the folder is left without the half of a file.
  absl::StatusOr<v1::ArtifactSaved> Save(const Artifact& artifact) const;

 private:
  std::string folder_;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_ARTIFACTS_H_
