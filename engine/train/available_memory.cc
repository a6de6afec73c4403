#include "engine/train/available_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/core/host_memory.h"

namespace ampd::train {
namespace {

// Left to the rest of the machine.
constexpr double kUsableShare = 0.9;

}  // namespace

int64_t AvailableBytes(const runtime::Memory& memory) {
  if (!memory.on_host()) return memory.free_bytes();
  return std::min(AvailableHostMemory(memory.total_bytes()), memory.total_bytes());
}

absl::Status CheckAvailable(const runtime::Memory& memory, int64_t bytes) {
  const int64_t available = AvailableBytes(memory);
  if (static_cast<double>(bytes) <= kUsableShare * static_cast<double>(available)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("it takes ", bytes, " bytes of memory, of ", available, " that are available"));
}

}  // namespace ampd::train
