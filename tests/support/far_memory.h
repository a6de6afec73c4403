// The CPU backend as a device would be: its tensors lie in memory that nobody may touch but the backend itself.
#ifndef AMPD_TESTS_SUPPORT_FAR_MEMORY_H_
#define AMPD_TESTS_SUPPORT_FAR_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "engine/passes/pad_for_tensor_cores.h"
#include "engine/runtime/backend.h"

namespace ampd::testing {

struct FarMemoryOptions {
  passes::PaddingPolicy padding = {};
  // What the device says that it has.
  int64_t total_bytes = int64_t{64} << 20;
  // The allocation, counted from 1, that finds no memory; 0: none.
  int fail_allocation = 0;
};

// Computes what MakeCpuBackend(threads, padding) computes, bit for bit. The memory is unreadable (PROT_NONE) outside
// the backend's passes, its kernels, the writing of published copies, and Memory's calls: a host that dereferences it
// dies. Whatever is given to those and does not lie in the memory, or does where it should not, is INTERNAL, naming it.
std::unique_ptr<runtime::Backend> MakeFarMemoryBackend(int threads, FarMemoryOptions options = {});

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_FAR_MEMORY_H_
