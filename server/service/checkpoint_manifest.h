// MANIFEST, the list of a checkpoint's files. What is read is hostile.
#ifndef AMPD_SERVER_SERVICE_CHECKPOINT_MANIFEST_H_
#define AMPD_SERVER_SERVICE_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd {

inline constexpr char kManifest[] = "MANIFEST";
inline constexpr int64_t kMaxManifestBytes = 1 << 16;

// One line: a file that the checkpoint has.
struct ListedFile {
  // SHA-256 of its bytes, 64 lower-case hex digits.
  std::string checksum;
  int64_t size = 0;
  // IsPlainFileName().
  std::string name;
};

// Whether it names a file within a folder: no path, not empty, at most 255 bytes.
bool IsPlainFileName(absl::string_view name);

// The lines of a whole MANIFEST, "<sha256> <size> <name>", without the last, which is about those before it. DATA_LOSS
// where it does not match that line, or has one that is none.
absl::StatusOr<std::vector<ListedFile>> ParseCheckpointManifest(absl::string_view text);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_CHECKPOINT_MANIFEST_H_
