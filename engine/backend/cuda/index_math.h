// Linear indices of tensors in device code, and how many elements move at once. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_INDEX_MATH_H_
#define AMPD_ENGINE_BACKEND_CUDA_INDEX_MATH_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/strided_index.h"

namespace ampd::cuda {

// Division by a number >= 1 that is fixed at launch. Index: uint32_t for what stays below 2^31, a multiplication; else
// int64_t, which a GPU divides by some 70 instructions.
template <typename Index>
struct IndexDivisor {
  int64_t divisor = 1;

  IndexDivisor() = default;
  explicit IndexDivisor(int64_t d) : divisor(d) {}
  __device__ __forceinline__ int64_t Divide(int64_t n) const { return n / divisor; }
};
template <>
struct IndexDivisor<uint32_t> : Divisor {
  using Divisor::Divisor;
};

// Splits `n` into quotient and remainder.
template <typename Index>
__device__ __forceinline__ Index Divide(const IndexDivisor<Index>& by, Index n, Index* remainder) {
  const Index quotient = by.Divide(n);
  *remainder = n - quotient * by.divisor;
  return quotient;
}

// Calls `f` with a value of the type that indices 0 to size-1, and size, fit.
template <typename F>
auto VisitIndex(int64_t size, F&& f) {
  if (size < int64_t{1} << 31) return f(uint32_t{0});
  return f(int64_t{0});
}

// Where a thread begins and by how much it goes on in a loop that the whole grid shares. Blocks have one axis.
template <typename Index>
__device__ __forceinline__ Index ThreadInGrid() {
  return static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
}
template <typename Index>
__device__ __forceinline__ Index ThreadsInGrid() {
  return static_cast<Index>(gridDim.x) * blockDim.x;
}

// UNIMPLEMENTED, naming the node, for more axes than kernels have room for.
inline absl::Status CheckAxes(absl::string_view node, size_t axes) {
  if (axes <= static_cast<size_t>(kMaxAxes)) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("[cuda] ", node, ": ", axes, " axes move independently, at most ", kMaxAxes, " can"));
}

// The most elements of `bytes` (1, 2, 4, 8) that always move together, in at most 16 bytes, when runs of them begin at
// multiples of each of `multiples`: a power of two.
inline int64_t ElementsTogether(int64_t bytes, absl::Span<const int64_t> multiples) {
  int64_t common = 16 / bytes;
  for (int64_t m : multiples) common = std::gcd(common, m);
  return common;
}

// 16 bytes that move at once.
using Bytes16 = uint4;

// Calls `f` with a value of the type that moves `bytes` (1, 2, 4, 8 or 16) at once.
template <typename F>
auto VisitMove(int64_t bytes, F&& f) {
  if (bytes == 16) return f(Bytes16());
  if (bytes == 8) return f(uint64_t{0});
  if (bytes == 4) return f(uint32_t{0});
  if (bytes == 2) return f(uint16_t{0});
  return f(uint8_t{0});
}

// A T (16 bytes at most) that holds the low `bytes` of `element` over and over.
template <typename T>
T Repeated(uint64_t element, int64_t bytes) {
  T repeated;
  for (size_t at = 0; at < sizeof(T); at += static_cast<size_t>(bytes)) {
    std::memcpy(reinterpret_cast<char*>(&repeated) + at, &element, std::min(sizeof(T), static_cast<size_t>(bytes)));
  }
  return repeated;
}

// `index`, which may count from the end, as one in [0, extent); -1 where it is outside.
__device__ __forceinline__ int64_t WrappedIndex(int64_t index, int64_t extent) {
  if (index < 0) index += extent;
  return index >= 0 && index < extent ? index : -1;
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_INDEX_MATH_H_
