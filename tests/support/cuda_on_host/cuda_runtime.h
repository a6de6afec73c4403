// What a .cu file needs to be compiled as C++ and run on the host: CUDA's keywords, the variables and functions of
// device code, and kernel launches. The threads of a block are fibers, run one at a time until each comes to a barrier
// or a warp's exchange; blocks run one after the other. Misuse that a GPU answers with undefined behaviour (threads at
// different barriers, a lane missing from a warp's exchange) ends the process with a message.
#ifndef AMPD_TESTS_SUPPORT_CUDA_ON_HOST_CUDA_RUNTIME_H_
#define AMPD_TESTS_SUPPORT_CUDA_ON_HOST_CUDA_RUNTIME_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/support/cuda_on_host/cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
// Alignment that every function has anyway: what is wanted is that the bounds are looked at.
#define __launch_bounds__(...) __attribute__((aligned(::cuda_on_host::AlignmentWithin(__VA_ARGS__))))
#define __align__(n) alignas(n)
// One block runs at a time.
#define __shared__ static

// Of the running fiber.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

namespace cuda_on_host {

// Compiles only for bounds that the smallest multiprocessor of those we build for can hold, compute capability 7.5's
// with 1024 threads: nvcc refuses larger ones when it comes to that architecture, which only the image's build does. As
// __CUDA_ARCH__ is not defined here, bounds that depend on it are the smallest.
template <typename... Rest>
constexpr int AlignmentWithin(int threads, int blocks = 1, Rest...) {
  if (threads < 1 || threads > 1024 || blocks < 1 || threads * blocks > 1024) throw "launch bounds of no T4's";
  return 16;
}

extern char* dynamic_shared;

void SyncThreads(const char* file, int line);
// Gives `bytes` (at most 8) of every lane in `mask` to all of them; returns the lane's entries, 8 bytes each, which
// stay until the lane's next exchange but one.
const char* WarpExchange(unsigned mask, const void* value, size_t bytes);
int Lane();
unsigned LanesOfWarp();

// Lets launches of a kernel ask for so many bytes of dynamic shared memory.
cudaError_t AllowShared(const void* kernel, int bytes);

// Runs `body` for every thread of every block when the stream comes to it.
cudaError_t EnqueueKernel(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                          std::function<void()> body);

template <typename T>
T Shuffle(unsigned mask, T value, int from) {
  static_assert(sizeof(T) <= 8);
  const char* entries = WarpExchange(mask, &value, sizeof(T));
  const bool there = from >= 0 && from < 32 && (mask & LanesOfWarp() & (1u << from)) != 0;
  std::memcpy(&value, entries + 8 * (there ? from : Lane()), sizeof(T));
  return value;
}

inline unsigned Ballot(unsigned mask, bool predicate) {
  const char* entries = WarpExchange(mask, &predicate, sizeof(predicate));
  unsigned votes = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask & LanesOfWarp() & (1u << lane)) != 0 && entries[8 * lane] != 0) votes |= 1u << lane;
  }
  return votes;
}

}  // namespace cuda_on_host

#define __syncthreads() ::cuda_on_host::SyncThreads(__FILE__, __LINE__)

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  const char nothing = 0;
  cuda_on_host::WarpExchange(mask, &nothing, 1);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return cuda_on_host::Shuffle(mask, value, (cuda_on_host::Lane() & ~(width - 1)) | (lane & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  const int lane = cuda_on_host::Lane(), other = lane ^ lane_mask;
  return cuda_on_host::Shuffle(mask, value, other / width > lane / width ? lane : other);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = cuda_on_host::Lane(), other = lane + static_cast<int>(delta);
  return cuda_on_host::Shuffle(mask, value, other / width == lane / width ? other : lane);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = cuda_on_host::Lane(), other = lane - static_cast<int>(delta);
  return cuda_on_host::Shuffle(mask, value, other >= 0 && other / width == lane / width ? other : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return cuda_on_host::Ballot(mask, predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return cuda_on_host::Ballot(mask, predicate != 0) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return cuda_on_host::Ballot(mask, predicate == 0) == 0; }

// Fibers do not run at once, so plain updates are atomic among them; the host may look at pinned memory meanwhile.
template <typename T, typename V>
T atomicAdd(T* at, V value) {
  const T old = *at;
  *at = static_cast<T>(old + static_cast<T>(value));
  return old;
}
template <typename T, typename V>
T atomicSub(T* at, V value) {
  const T old = *at;
  *at = static_cast<T>(old - static_cast<T>(value));
  return old;
}
template <typename T, typename V>
T atomicMax(T* at, V value) {
  const T old = *at;
  *at = std::max(old, static_cast<T>(value));
  return old;
}
template <typename T, typename V>
T atomicMin(T* at, V value) {
  const T old = *at;
  *at = std::min(old, static_cast<T>(value));
  return old;
}
template <typename T, typename V>
T atomicOr(T* at, V value) {
  const T old = *at;
  *at = static_cast<T>(old | static_cast<T>(value));
  return old;
}
template <typename T, typename V>
T atomicExch(T* at, V value) {
  const T old = *at;
  *at = static_cast<T>(value);
  return old;
}
template <typename T, typename V, typename W>
T atomicCAS(T* at, V expected, W value) {
  const T old = *at;
  if (old == static_cast<T>(expected)) *at = static_cast<T>(value);
  return old;
}
// An atomic that changes nothing orders as a fence does, and the thread sanitizer, which knows no fences, sees it.
inline void __threadfence_system() {
  static std::atomic<int> order;
  order.fetch_add(0, std::memory_order_seq_cst);
}
inline void __threadfence() { __threadfence_system(); }
inline void __threadfence_block() { __threadfence_system(); }

template <typename T>
T __ldg(const T* at) {
  return *at;
}
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((uint64_t{a} * b) >> 32); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float normcdff(float x) { return 0.5f * std::erfc(-x * 0.70710678f); }
inline void sincosf(float x, float* s, float* c) {
  *s = std::sin(x);
  *c = std::cos(x);
}

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct cudaLaunchAttribute {
  int id;
};
struct cudaLaunchConfig_t {
  dim3 gridDim{};
  dim3 blockDim{};
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  std::tuple<std::decay_t<Parameters>...> copies(std::forward<Arguments>(arguments)...);
  return cuda_on_host::EnqueueKernel(reinterpret_cast<const void*>(kernel), config->gridDim, config->blockDim,
                                     config->dynamicSmemBytes, config->stream,
                                     [kernel, copies] { std::apply(kernel, copies); });
}
template <typename F>
cudaError_t cudaFuncSetAttribute(F* kernel, cudaFuncAttribute, int bytes) {
  return cuda_on_host::AllowShared(reinterpret_cast<const void*>(kernel), bytes);
}
template <typename F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F*, int threads, size_t) {
  *blocks = std::max(1, 2048 / threads);
  return cudaSuccess;
}

using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;
using std::signbit;

#include "tests/support/cuda_on_host/dynamic_shared.h"

#endif  // AMPD_TESTS_SUPPORT_CUDA_ON_HOST_CUDA_RUNTIME_H_
