// What planning, scheduling and warnings say alike of a device's memory.
#ifndef AMPD_PROTO_SPEC_DEVICE_MEMORY_H_
#define AMPD_PROTO_SPEC_DEVICE_MEMORY_H_

#include <cstdint>
#include <string>

namespace ampd {

// What a worker takes on its device, of a GPU of the memory that the driver reports, besides what is planned: the
// process's CUDA context, with its kernels, and its libraries. Up to 0.46 GiB was measured above plans
// (docs/planning.md). Bytes.
inline constexpr int64_t kProcessBytes = int64_t{512} << 20;

// "10 GiB", "79.647 GiB": to the MiB, as what is needed and what there is may differ by little; "1000 bytes" where it
// is less than 1 GiB.
std::string Gibibytes(int64_t bytes);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_DEVICE_MEMORY_H_
