// Internal: what stand-ins of CUDA's libraries ask of the workspace they are given.
#ifndef AMPD_TESTS_SUPPORT_CUDA_ON_HOST_WORKSPACE_H_
#define AMPD_TESTS_SUPPORT_CUDA_ON_HOST_WORKSPACE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cuda_on_host {

// As cuBLASLt has it; cuDNN is content with less.
inline constexpr uintptr_t kWorkspaceAlignment = 256;

// OK, or INTERNAL, naming `what` and the address, for memory that is missing or begins elsewhere.
inline absl::Status CheckWorkspace(absl::string_view what, const void* workspace) {
  const auto address = reinterpret_cast<uintptr_t>(workspace);
  if (workspace != nullptr && address % kWorkspaceAlignment == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": the workspace at 0x", absl::Hex(address), " is no multiple of ", kWorkspaceAlignment));
}

}  // namespace cuda_on_host

#endif  // AMPD_TESTS_SUPPORT_CUDA_ON_HOST_WORKSPACE_H_
