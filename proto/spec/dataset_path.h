// Names of uploaded datasets in specs, "dataset:NAME/PATH", and of the folder that holds them in lists of data roots.
#ifndef AMPD_PROTO_SPEC_DATASET_PATH_H_
#define AMPD_PROTO_SPEC_DATASET_PATH_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd {

inline constexpr char kDatasetScheme[] = "dataset:";

// What is wrong with a dataset's name, as "is empty"; empty for a good one: letters, digits, '_', '-' and '.', at most
// 100, not beginning with '.'.
std::string WrongDatasetName(absl::string_view name);

// Likewise of a path within one: UTF-8, parts with '/' between, none of them empty, "." or ".."; no control characters;
// at most 1,000 bytes, 255 a part and 16 parts.
std::string WrongDatasetFile(absl::string_view path);

// Whether `path` names something in an uploaded dataset, rightly or not.
bool NamesDataset(absl::string_view path);

struct DatasetPath {
  std::string name;
  // Within the dataset; empty: the dataset itself, a folder.
  std::string path;
};

// Of "dataset:NAME", "dataset:NAME/" or "dataset:NAME/PATH"; INVALID_ARGUMENT, saying what is wrong, for anything else.
absl::StatusOr<DatasetPath> ParseDatasetPath(absl::string_view path);

// How a list of data roots names `folder`, which holds uploaded datasets.
std::string DatasetRoot(absl::string_view folder);
// The folder of such a root; nullopt for any other root.
std::optional<std::string> FolderOfDatasetRoot(absl::string_view root);

// Where the files of a dataset lie in the folder that holds it.
std::string DatasetFilesFolder(absl::string_view folder, absl::string_view name);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_DATASET_PATH_H_
