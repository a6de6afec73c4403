#include "proto/spec/upload_path.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace ampd {
namespace {

constexpr size_t kHexDigits = 64;

}  // namespace

bool NamesUpload(absl::string_view path) { return absl::StartsWith(path, kUploadScheme); }

bool IsUploadChecksum(absl::string_view text) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == kHexDigits && std::all_of(text.begin(), text.end(), is_hex);
}

std::string UploadChecksum(absl::string_view path) {
  if (!absl::ConsumePrefix(&path, kUploadScheme) || !IsUploadChecksum(path)) return "";
  return std::string(path);
}

}  // namespace ampd
