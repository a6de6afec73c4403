// The devices of this machine.
#ifndef AMPD_SERVER_SCHEDULING_DEVICES_H_
#define AMPD_SERVER_SCHEDULING_DEVICES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ampd/v1/device.pb.h"

namespace ampd {

// `count` virtual CPU devices "cpu-0", "cpu-1", ...: named by the processor's model, with the machine's memory, and
// with max(1, cores / count) threads each, where cores are those this process may run on. INVALID_ARGUMENT unless 1 <=
// count <= 1024.
absl::StatusOr<std::vector<v1::Device>> CpuDevices(int count);

// Cores that this process may run on, >= 1.
int UsableCores();

// Bytes of memory in use on the machine: MemTotal - MemAvailable of /proc/meminfo; 0 when it cannot be read.
int64_t MemoryUsedBytes();

}  // namespace ampd

#endif  // AMPD_SERVER_SCHEDULING_DEVICES_H_
