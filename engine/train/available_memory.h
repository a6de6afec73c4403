// What is left of a memory, for whoever would rather be refused than ended.
#ifndef AMPD_ENGINE_TRAIN_AVAILABLE_MEMORY_H_
#define AMPD_ENGINE_TRAIN_AVAILABLE_MEMORY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/runtime/memory.h"

namespace ampd::train {

// Of a device its free memory; of the host what can be had without swapping, within the process's control group. Bytes.
int64_t AvailableBytes(const runtime::Memory& memory);

// RESOURCE_EXHAUSTED, with both figures, where `bytes` are more than nine tenths of what is available: an allocation
// that fails, or that the kernel cannot back, ends the process.
absl::Status CheckAvailable(const runtime::Memory& memory, int64_t bytes);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_AVAILABLE_MEMORY_H_
