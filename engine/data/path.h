// Dataset paths, confined to the data roots.
#ifndef AMPD_ENGINE_DATA_PATH_H_
#define AMPD_ENGINE_DATA_PATH_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/data/input_file.h"

namespace ampd::data {

// Opens the regular file that `path` names beneath one of `roots`. A relative path is looked up in each root in order,
// and the first root that has it decides; an absolute path must lie beneath a root. Symbolic links are followed, but
// the file they lead to must lie beneath a root too, at the time when it is opened: the kernel resolves the path within
// the root (openat2), or where it cannot, the file that was opened is looked at, so that nothing exchanged in between
// slips through. The file's name in errors is `path` as given.
//
// "dataset:NAME/PATH" is looked up in the roots of uploaded datasets (proto/spec/dataset_path.h) and nowhere else; in
// them no link is followed.
//
// Errors name the path and the roots: NOT_FOUND when no root has it; PERMISSION_DENIED when it has a ".." component,
// lies or leads outside the roots, is not a regular file, or may not be read; INVALID_ARGUMENT when it is empty,
// contains a zero byte, or names no dataset as it must.
absl::StatusOr<std::shared_ptr<const InputFile>> OpenBeneath(absl::string_view path,
                                                             absl::Span<const std::string> roots);

struct FolderEntry {
  std::string name;
  // A folder, or a link to one.
  bool is_folder = false;
};

// What the folder that `path` names beneath one of `roots` holds, in the order of the names' bytes; names that start
// with a dot are left out. Which root, and the errors, as of OpenBeneath, but for PERMISSION_DENIED when it is no
// folder. What an entry leads to is not looked at: that is left to who opens it.
absl::StatusOr<std::vector<FolderEntry>> ListBeneath(absl::string_view path, absl::Span<const std::string> roots);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_PATH_H_
