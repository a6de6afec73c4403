// What tests may ask of and do to the emulated devices. Thread-safe.
#ifndef AMPD_TESTS_SUPPORT_CUDA_ON_HOST_CUDA_ON_HOST_H_
#define AMPD_TESTS_SUPPORT_CUDA_ON_HOST_CUDA_ON_HOST_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/cuda_on_host/cuda_runtime_api.h"

namespace cuda_on_host {

// Every device as it is at the program's start: one of compute capability 9.0, memory without limit, no faults, no
// calls. Allocations that are still held stay valid.
void Reset();

void SetDevices(int count);
void SetProperties(const cudaDeviceProp& properties);
// What cudaMalloc gives out at most, all in all.
void SetMemory(int64_t bytes);
// The call of this name (e.g. "cudaGraphLaunch") after `after` more of them fails with `error`. An error that CUDA
// calls sticky is then every later call's too, until Reset(). "kernel" is any kernel: it is not run, and the error
// shows at the next call that waits.
void Fail(const std::string& call, cudaError_t error, int after = 0);

// Also among the calls, behind the one that made it so:
// a copy from or to host memory that cudaHostAlloc did not give, which CUDA may have wait for its stream;
inline constexpr char kPageableCopy[] = "pageable copy";
// a kernel's first launch of all while a graph is captured, when its code may have to be loaded first.
inline constexpr char kKernelMetInCapture[] = "kernel met in a capture";
// Names of calls in order: launches of kernels are "kernel", of a graph's kernels too, at the time they ran.
std::vector<std::string> Calls();
void ClearCalls();
// Bytes that cudaMalloc and cudaHostAlloc have given and not got back.
int64_t DeviceBytes();
int64_t PinnedBytes();
// Streams, events, graphs and executable graphs that are not destroyed.
int64_t Handles();

// A block's threads run in turn, between one barrier or warp's exchange and the next: in the order of their numbers (0,
// as at first), or each time in another that `seed` decides, so that what a kernel leaves to chance shows.
void SetFiberOrder(unsigned seed);

// Makes what events measure across this moment longer by `milliseconds`: from work that stands for slow work.
void Delay(double milliseconds);

// Runs `work` when the stream comes to it: for stand-ins of CUDA's libraries.
cudaError_t Enqueue(cudaStream_t stream, const std::string& name, std::function<void()> work);

}  // namespace cuda_on_host

#endif  // AMPD_TESTS_SUPPORT_CUDA_ON_HOST_CUDA_ON_HOST_H_
