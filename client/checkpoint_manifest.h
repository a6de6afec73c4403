// MANIFEST, the list of a downloaded checkpoint's files. What is read is hostile.
#ifndef AMPD_CLIENT_CHECKPOINT_MANIFEST_H_
#define AMPD_CLIENT_CHECKPOINT_MANIFEST_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd::client {

inline constexpr char kManifest[] = "MANIFEST";
inline constexpr size_t kMaxManifestBytes = 1 << 20;

// What a file's bytes are.
struct FileContent {
  std::string sha256;
  int64_t size = 0;

  bool operator==(const FileContent& other) const { return sha256 == other.sha256 && size == other.size; }
};

// By name, the files that lines "<sha256> <size> <name>" list; MANIFEST, whose last line is about those before it, is
// not among them. DATA_LOSS where they do not match that line, or one is none.
absl::StatusOr<std::map<std::string, FileContent>> ParseManifest(absl::string_view text);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_CHECKPOINT_MANIFEST_H_
