// Names of checkpoints, which are parts of paths: what workers and clients call one is hostile.
#ifndef AMPD_SERVER_FILES_CHECKPOINT_NAME_H_
#define AMPD_SERVER_FILES_CHECKPOINT_NAME_H_

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace ampd {

// "step-" and digits, at most 64 bytes.
inline bool IsCheckpointName(absl::string_view name) {
  if (!absl::StartsWith(name, "step-") || name.size() < 6 || name.size() > 64) return false;
  const absl::string_view digits = name.substr(5);
  return std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace ampd

#endif  // AMPD_SERVER_FILES_CHECKPOINT_NAME_H_
