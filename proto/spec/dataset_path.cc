#include "proto/spec/dataset_path.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/spec/names.h"
#include "proto/spec/utf8.h"

namespace ampd {
namespace {

constexpr size_t kMaxNameBytes = 100;
constexpr size_t kMaxPathBytes = 1000;
constexpr size_t kMaxPartBytes = 255;
constexpr size_t kMaxParts = 16;

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

}  // namespace

std::string WrongDatasetName(absl::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > kMaxNameBytes) return absl::StrCat("has ", name.size(), " characters, at most ", kMaxNameBytes);
  if (name.front() == '.') return "begins with '.'";
  if (!IsMadeOf(name, "_-.")) return "may have letters, digits, '_', '-' and '.' only";
  return "";
}

std::string WrongDatasetFile(absl::string_view path) {
  if (path.empty()) return "is empty";
  if (path.size() > kMaxPathBytes) return absl::StrCat("has ", path.size(), " bytes, at most ", kMaxPathBytes);
  if (std::any_of(path.begin(), path.end(), IsControl)) return "has a control character";
  if (ValidUtf8(path) != path) return "is no UTF-8";
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  if (parts.size() > kMaxParts) return absl::StrCat("has ", parts.size(), " parts, at most ", kMaxParts);
  for (const absl::string_view part : parts) {
    if (part.empty()) return "has an empty part: it must be relative, with single '/' between its parts";
    if (part == "." || part == "..") return absl::StrCat("has a part \"", part, "\"");
    if (part.size() > kMaxPartBytes)
      return absl::StrCat("has a part of ", part.size(), " bytes, at most ", kMaxPartBytes);
  }
  return "";
}

bool NamesDataset(absl::string_view path) { return absl::StartsWith(path, kDatasetScheme); }

absl::StatusOr<DatasetPath> ParseDatasetPath(absl::string_view path) {
  const std::string quoted = Quoted(path);
  if (!absl::ConsumePrefix(&path, kDatasetScheme)) {
    return absl::InvalidArgumentError(absl::StrCat(quoted, ": does not begin with ", kDatasetScheme));
  }
  const size_t slash = std::min(path.find('/'), path.size());
  DatasetPath parsed{std::string(path.substr(0, slash)), std::string(absl::StripPrefix(path.substr(slash), "/"))};
  if (const std::string wrong = WrongDatasetName(parsed.name); !wrong.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(quoted, ": the dataset's name ", wrong));
  }
  if (parsed.path.empty()) return parsed;
  if (const std::string wrong = WrongDatasetFile(parsed.path); !wrong.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(quoted, ": the path ", wrong));
  }
  return parsed;
}

std::string DatasetRoot(absl::string_view folder) { return absl::StrCat(kDatasetScheme, folder); }

std::optional<std::string> FolderOfDatasetRoot(absl::string_view root) {
  if (!absl::ConsumePrefix(&root, kDatasetScheme)) return std::nullopt;
  return std::string(root);
}

std::string DatasetFilesFolder(absl::string_view folder, absl::string_view name) {
  return absl::StrCat(folder, "/", name, "/files");
}

}  // namespace ampd
