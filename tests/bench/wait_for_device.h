// Waits for a CUDA device, also for copies that no stream of a backend waits for.
#ifndef AMPD_TESTS_BENCH_WAIT_FOR_DEVICE_H_
#define AMPD_TESTS_BENCH_WAIT_FOR_DEVICE_H_

#include "absl/status/status.h"

namespace ampd::bench {

// Returns when all that was enqueued on the thread's device, on any stream, is done. Errors are the device's;
// UNIMPLEMENTED where there is no CUDA.
absl::Status WaitForDevice();

}  // namespace ampd::bench

#endif  // AMPD_TESTS_BENCH_WAIT_FOR_DEVICE_H_
