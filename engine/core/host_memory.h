// What this process may have of the machine's memory: the machine's own figures and those of the process's control
// groups (version 2), which in a container or a systemd unit may be less.
// https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
#ifndef AMPD_ENGINE_CORE_HOST_MEMORY_H_
#define AMPD_ENGINE_CORE_HOST_MEMORY_H_

#include <cstdint>
#include <string>

namespace ampd {

// Bytes that can be had at present without swapping: MemAvailable, and no more than each group's limit leaves beside
// what it uses and the kernel cannot take back. Where the kernel does not tell MemAvailable, `fallback` takes its
// place. `root` stands before /proc and /sys, for tests.
int64_t AvailableHostMemory(int64_t fallback, const std::string& root = "");

// The least limit of the process's groups, bytes; the largest int64_t where there is none.
int64_t HostMemoryLimit(const std::string& root = "");

}  // namespace ampd

#endif  // AMPD_ENGINE_CORE_HOST_MEMORY_H_
