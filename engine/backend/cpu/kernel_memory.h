// What kernels take of the process besides a backend's memory: oneDNN describes and compiles each of its own.
#ifndef AMPD_ENGINE_BACKEND_CPU_KERNEL_MEMORY_H_
#define AMPD_ENGINE_BACKEND_CPU_KERNEL_MEMORY_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace ampd {

// Runs `make`, which may make kernels and whatever else it likes, in a thread of its own, and tells by how many bytes
// the heap and generated code have grown when it is done, in whole 64 KiB, so that equal plans are told alike. The
// library forgets the kernels that it keeps to use again: one of them would take nothing. What other threads do
// meanwhile is in it. 0 where malloc() is not the C library's, as under a sanitizer.
int64_t BytesKeptBy(absl::FunctionRef<void()> make);

}  // namespace ampd

#endif  // AMPD_ENGINE_BACKEND_CPU_KERNEL_MEMORY_H_
