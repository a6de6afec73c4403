#include "engine/backend/cuda/sort_keys.h"

#include <algorithm>

#include "engine/backend/cuda/launch.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

// Few keys: one block sorts them in shared memory.
constexpr int kFew = 2048;
constexpr int kFewThreads = 1024;

// Many: by digits of 8 bits, the least first. A block takes kTile neighbours, a warp a part of them.
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kThreads = kDigits;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRounds = 8;
constexpr int kTile = kThreads * kRounds;
constexpr int kScanThreads = 1024;

// Batcher's bitonic sort of (key, position), which makes all of them different, so that the order is the stable one.
__global__ void __launch_bounds__(kFewThreads) SortFew(const uint32_t* __restrict__ keys, int count, int padded,
                                                       uint32_t* __restrict__ sorted, int32_t* __restrict__ positions) {
  __shared__ uint64_t pairs[kFew];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int i = thread; i < padded; i += threads) {
    pairs[i] = i < count ? uint64_t{keys[i]} << 32 | static_cast<uint32_t>(i) : ~uint64_t{0};
  }
  for (int run = 2; run <= padded; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int i = thread; i < padded / 2; i += threads) {
        const int low = i / distance * 2 * distance + i % distance;
        const uint64_t a = pairs[low], b = pairs[low + distance];
        const bool ascending = (low & run) == 0;
        if (ascending ? b < a : a < b) {
          pairs[low] = b;
          pairs[low + distance] = a;
        }
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < count; i += threads) {
    sorted[i] = static_cast<uint32_t>(pairs[i] >> 32);
    positions[i] = static_cast<int32_t>(pairs[i] & 0xffffffffu);
  }
}

// counts[digit][block]: how many keys of the block's tile have the digit.
__global__ void CountDigits(const uint32_t* __restrict__ keys, int count, int shift, int* __restrict__ counts) {
  __shared__ int bins[kDigits];
  bins[threadIdx.x] = 0;
  __syncthreads();
  for (int r = 0; r < kRounds; ++r) {
    const int64_t i = int64_t{blockIdx.x} * kTile + r * kThreads + threadIdx.x;
    if (i < count) atomicAdd(&bins[(keys[i] >> shift) % kDigits], 1);
  }
  __syncthreads();
  counts[threadIdx.x * gridDim.x + blockIdx.x] = bins[threadIdx.x];
}

// The sum of the values of the threads before this one, of a block of kScanThreads.
__device__ int SumBefore(int value) {
  __shared__ int warp_sums[kScanThreads / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int sum = value;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int before = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane >= distance) sum += before;
  }
  if (lane == kWarp - 1) warp_sums[warp] = sum;
  __syncthreads();
  int warps_before = 0;
  for (int w = 0; w < warp; ++w) warps_before += warp_sums[w];
  return warps_before + sum - value;
}

// Each of `size` counts becomes the sum of those before it. One block.
__global__ void __launch_bounds__(kScanThreads) ScanCounts(int* __restrict__ counts, int size) {
  const int share = (size + kScanThreads - 1) / kScanThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * share, size), end = min(begin + share, size);
  int sum = 0;
  for (int i = begin; i < end; ++i) sum += counts[i];
  int before = SumBefore(sum);
  for (int i = begin; i < end; ++i) {
    const int count = counts[i];
    counts[i] = before;
    before += count;
  }
}

// Lanes of the warp whose digit is this lane's, among those in `present`.
__device__ __forceinline__ unsigned LanesWith(unsigned digit, unsigned present) {
  unsigned same = present;
  for (int bit = 0; bit < kDigitBits; ++bit) {
    const bool set = (digit >> bit & 1) != 0;
    const unsigned vote = __ballot_sync(kAllLanes, set);
    same &= set ? vote : ~vote;
  }
  return same;
}

// Moves each key to its digit's place, behind equal digits that came before: of earlier blocks (begins[digit][block]),
// of earlier warps, of earlier rounds of the warp, of lower lanes. `positions` null: they are 0, 1, ...
__global__ void PlaceByDigit(const uint32_t* __restrict__ keys, const int32_t* __restrict__ positions, int count,
                             int shift, const int* __restrict__ begins, uint32_t* __restrict__ to_keys,
                             int32_t* __restrict__ to_positions) {
  __shared__ int bins[kWarps][kDigits];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int w = 0; w < kWarps; ++w) bins[w][threadIdx.x] = 0;
  __syncthreads();
  const int64_t first = int64_t{blockIdx.x} * kTile + warp * (kRounds * kWarp) + lane;
  uint32_t key[kRounds];
  int rank[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const bool here = first + r * kWarp < count;
    key[r] = here ? keys[first + r * kWarp] : 0;
    const unsigned digit = (key[r] >> shift) % kDigits;
    const unsigned same = LanesWith(digit, __ballot_sync(kAllLanes, here));
    const int lower = __popc(same & ((1u << lane) - 1));
    rank[r] = bins[warp][digit] + lower;
    __syncwarp();
    if (here && lower == 0) bins[warp][digit] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  int begin = begins[threadIdx.x * gridDim.x + blockIdx.x];
  for (int w = 0; w < kWarps; ++w) {
    const int n = bins[w][threadIdx.x];
    bins[w][threadIdx.x] = begin;
    begin += n;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int64_t i = first + r * kWarp;
    if (i >= count) break;
    const int to = bins[warp][(key[r] >> shift) % kDigits] + rank[r];
    to_keys[to] = key[r];
    to_positions[to] = positions == nullptr ? static_cast<int32_t>(i) : positions[i];
  }
}

int PassesFor(int64_t count, uint32_t largest_key) {
  int bits = 1;
  while (bits < 32 && largest_key >> bits != 0) ++bits;
  return count <= kFew ? 1 : static_cast<int>(CeilDiv(bits, kDigitBits));
}

}  // namespace

KeySort::KeySort(int64_t count, uint32_t largest_key, WorkspaceLayout* workspace)
    : count_(static_cast<int>(count)),
      passes_(PassesFor(count, largest_key)),
      blocks_(static_cast<int>(CeilDiv(count, kTile))) {
  for (int buffer : {0, 1}) {
    keys_at_[buffer] = workspace->Add(count * static_cast<int64_t>(sizeof(uint32_t)));
    positions_at_[buffer] = workspace->Add(count * static_cast<int64_t>(sizeof(int32_t)));
  }
  counts_at_ = workspace->Add(int64_t{blocks_} * kDigits * static_cast<int64_t>(sizeof(int)));
}

absl::Status KeySort::Run(const Context& context, absl::string_view what, const runtime::KernelArgs& args) const {
  if (count_ <= kFew) {
    int padded = 2 * kWarp;
    while (padded < count_) padded *= 2;
    return Launch(what, SortFew, 1, static_cast<unsigned>(std::min(padded / 2, kFewThreads)), 0, context.stream(),
                  WorkspaceAt<uint32_t>(args, keys_at_[0]), count_, padded, WorkspaceAt<uint32_t>(args, keys_at_[1]),
                  WorkspaceAt<int32_t>(args, positions_at_[1]));
  }
  for (int pass = 0; pass < passes_; ++pass) AMPD_RETURN_IF_ERROR(RunPass(context, what, args, pass));
  return absl::OkStatus();
}

absl::Status KeySort::RunPass(const Context& context, absl::string_view what, const runtime::KernelArgs& args,
                              int pass) const {
  const int from = pass % 2, to = 1 - from, shift = pass * kDigitBits;
  const auto blocks = static_cast<unsigned>(blocks_);
  const auto* keys = WorkspaceAt<uint32_t>(args, keys_at_[from]);
  const auto* positions = pass == 0 ? nullptr : WorkspaceAt<int32_t>(args, positions_at_[from]);
  auto* counts = WorkspaceAt<int>(args, counts_at_);
  AMPD_RETURN_IF_ERROR(Launch(what, CountDigits, blocks, kThreads, 0, context.stream(), keys, count_, shift, counts));
  AMPD_RETURN_IF_ERROR(Launch(what, ScanCounts, 1, kScanThreads, 0, context.stream(), counts, blocks_ * kDigits));
  return Launch(what, PlaceByDigit, blocks, kThreads, 0, context.stream(), keys, positions, count_, shift, counts,
                WorkspaceAt<uint32_t>(args, keys_at_[to]), WorkspaceAt<int32_t>(args, positions_at_[to]));
}

}  // namespace ampd::cuda
