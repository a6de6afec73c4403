#include "engine/train/checkpoint_mirror.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/checkpoint.h"
#include "engine/train/files.h"

namespace ampd::train {
namespace {

namespace fs = std::filesystem;

constexpr char kAside[] = ".copying-";
constexpr char kManifest[] = "MANIFEST";
constexpr int64_t kMaxManifestBytes = 1 << 16;
constexpr size_t kChunkBytes = 1 << 20;

// Of the copy; empty of the MANIFEST, which is its own proof.
absl::Status CopyFile(const std::string& from, const std::string& to, const std::string& sha256) {
  std::ifstream source(from, std::ios::binary);
  if (!source) return absl::NotFoundError(absl::StrCat("open ", from));
  AMPD_ASSIGN_OR_RETURN(FileWriter copy, FileWriter::Create(to));
  std::vector<char> chunk(kChunkBytes);
  while (source) {
    source.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    AMPD_RETURN_IF_ERROR(copy.Append({chunk.data(), static_cast<size_t>(source.gcount())}));
  }
  if (source.bad()) return absl::DataLossError(absl::StrCat("read ", from));
  AMPD_RETURN_IF_ERROR(copy.Close());
  if (sha256.empty() || copy.Sha256() == sha256) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(from, " does not match its checksum"));
}

std::string AsidePath(const std::string& mirror, const std::string& name) {
  return absl::StrCat(mirror, "/", kAside, name);
}

// Network file systems know no other renames.
absl::Status PlainRename(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (!error) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("rename ", from, " to ", to, ": ", error.message()));
}

}  // namespace

absl::Status CopyCheckpoint(const std::string& from, const std::string& to) {
  AMPD_ASSIGN_OR_RETURN(const std::string text, ReadFile(absl::StrCat(from, "/", kManifest), kMaxManifestBytes));
  AMPD_ASSIGN_OR_RETURN(const Manifest manifest, ParseManifest(text));
  AMPD_RETURN_IF_ERROR(MakeFolder(to));
  for (const auto& [file, line] : manifest) {
    if (absl::StrContains(file, '/'))
      return absl::DataLossError(absl::StrCat(from, ": MANIFEST names a file elsewhere"));
    AMPD_RETURN_IF_ERROR(CopyFile(absl::StrCat(from, "/", file), absl::StrCat(to, "/", file), line.sha256));
  }
  AMPD_RETURN_IF_ERROR(CopyFile(absl::StrCat(from, "/", kManifest), absl::StrCat(to, "/", kManifest), ""));
  return SyncFolder(to);
}

absl::Status MirrorCheckpoint(const std::string& folder, const std::string& name, const std::string& mirror) {
  AMPD_RETURN_IF_ERROR(MakeFolder(mirror));
  AMPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(mirror));
  for (const std::string& left : names) {
    if (absl::StartsWith(left, kAside)) AMPD_RETURN_IF_ERROR(RemoveTree(absl::StrCat(mirror, "/", left)));
  }
  const std::string path = absl::StrCat(mirror, "/", name), aside = AsidePath(mirror, name);
  absl::Status status = CopyCheckpoint(absl::StrCat(folder, "/", name), aside);
  std::error_code error;
  // Training came by this step before.
  if (status.ok() && fs::exists(path, error)) status = RemoveMirrored(mirror, name);
  if (status.ok()) status = PlainRename(aside, path);
  if (status.ok()) status = SyncFolder(mirror);
  if (!status.ok()) RemoveTree(aside).IgnoreError();
  return status;
}

absl::Status RemoveMirrored(const std::string& mirror, const std::string& name) {
  const std::string aside = absl::StrCat(AsidePath(mirror, name), ".removed");
  AMPD_RETURN_IF_ERROR(RemoveTree(aside));
  AMPD_RETURN_IF_ERROR(PlainRename(absl::StrCat(mirror, "/", name), aside));
  AMPD_RETURN_IF_ERROR(SyncFolder(mirror));
  return RemoveTree(aside);
}

}  // namespace ampd::train
