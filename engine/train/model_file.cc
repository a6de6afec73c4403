#include "engine/train/model_file.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "engine/data/path.h"
#include "engine/train/files.h"
#include "engine/train/sha256.h"
#include "proto/spec/names.h"

namespace ampd::train {
namespace {

constexpr size_t kHexDigits = 64;

bool IsChecksum(absl::string_view text) {
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == kHexDigits && std::all_of(text.begin(), text.end(), hex);
}

absl::Status TooLarge(absl::string_view path, int64_t size, int64_t max_bytes) {
  return absl::OutOfRangeError(absl::StrCat(path, ": ", size, " bytes, at most ", max_bytes, " can be read"));
}

absl::StatusOr<std::string> ReadUpload(absl::string_view path, absl::string_view upload_dir, int64_t max_bytes) {
  const absl::string_view checksum = absl::StripPrefix(path, kUploadPrefix);
  if (!IsChecksum(checksum)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(path), ": an upload is named by its SHA-256, ", kHexDigits, " lower-case hex digits"));
  }
  const absl::Status missing = absl::NotFoundError(absl::StrCat(path, ": no such file was uploaded"));
  if (upload_dir.empty()) return missing;
  absl::StatusOr<std::string> bytes = ReadFile(absl::StrCat(upload_dir, "/", checksum), max_bytes);
  if (absl::IsNotFound(bytes.status())) return missing;
  if (!bytes.ok()) return Annotate(bytes.status(), path);
  const std::string found = Sha256Hex(*bytes);
  if (found == checksum) return bytes;
  return absl::DataLossError(
      absl::StrCat(path, ": is damaged, its ", bytes->size(), " bytes have the checksum ", found));
}

}  // namespace

bool IsUpload(absl::string_view path) { return absl::StartsWith(path, kUploadPrefix); }

absl::StatusOr<std::string> ReadModelFile(absl::string_view path, absl::Span<const std::string> data_roots,
                                          absl::string_view upload_dir, int64_t max_bytes) {
  if (IsUpload(path)) return ReadUpload(path, upload_dir, max_bytes);
  AMPD_ASSIGN_OR_RETURN(const auto file, data::OpenBeneath(path, data_roots));
  if (file->size() > max_bytes) return TooLarge(path, file->size(), max_bytes);
  std::string bytes(static_cast<size_t>(file->size()), '\0');
  AMPD_RETURN_IF_ERROR(file->ReadAt(0, {reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()}));
  return bytes;
}

}  // namespace ampd::train
