// How kernels work on tensors row by row: a team of threads takes a row, keeps its share of it in registers where the
// row is short enough, and adds up across the team. For .cu files.
//
//   template <typename T, typename Team>
//   __global__ void Kernel(const T* x, int64_t rows, int64_t n, float* sums) {
//     for (int64_t row = Team::First(); row < rows; row += Team::Step()) {
//       const Row<T, Team> values(x + row * n, n);     // the one read of memory
//       float sum = 0;
//       Team::ForEach(n, [&](int item, auto column) {
//         float v[Team::kWidth];
//         values.Get(item, column, v);
//         sum += PairwiseSum(v);
//       });
//       sum = Team::Sum(sum);                          // all threads of the team get it
//       if (Team::rank() == 0) sums[row] = sum;
//     }
//   }
#ifndef AMPD_ENGINE_BACKEND_CUDA_ROWS_H_
#define AMPD_ENGINE_BACKEND_CUDA_ROWS_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "engine/backend/cuda/block_sum.h"
#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/device_properties.h"
#include "engine/backend/cuda/dynamic_shared.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/vectors.h"
#include "engine/core/half.h"
#include "engine/core/status.h"

namespace ampd::cuda {

// kItems of teams that keep their row in the block's dynamic shared memory, and of those that do not keep it but read
// it again for each pass over it, most likely from the L2 cache.
inline constexpr int kInSharedMemory = -1, kReadAgain = 0;

// A warp of a block of several, or the whole block. A thread of it reads kWidth neighbouring elements at a time, kItems
// times a row.
template <int kWidth_, int kItems_, bool kIsWarp_>
struct RowTeam {
  static constexpr int kWidth = kWidth_;
  static constexpr int kItems = kItems_;
  static constexpr bool kIsWarp = kIsWarp_;
  // The most threads a block of such teams has.
  static constexpr int kMostThreads = kIsWarp ? 128 : 1024;
  // Items of an array that belongs to a row; at least one, so that it can be declared.
  static constexpr int kKept = kItems > 0 ? kItems : 1;
  // Columns of rows that are kept fit an int.
  using Column = std::conditional_t<kItems == kReadAgain, int64_t, int>;

  __device__ __forceinline__ static int rank() { return static_cast<int>(kIsWarp ? threadIdx.x % kWarp : threadIdx.x); }
  __device__ __forceinline__ static int size() { return kIsWarp ? kWarp : static_cast<int>(blockDim.x); }
  // The team's first row, and the distance to its next.
  __device__ __forceinline__ static int64_t First() {
    return kIsWarp ? static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp : blockIdx.x;
  }
  __device__ __forceinline__ static int64_t Step() {
    return static_cast<int64_t>(gridDim.x) * (kIsWarp ? blockDim.x / kWarp : 1);
  }

  // body(item, column) for every pack of the row that is the thread's.
  template <typename Body>
  __device__ __forceinline__ static void ForEach(int64_t n, const Body& body) {
    if constexpr (kItems > 0) {
#pragma unroll
      for (int item = 0; item < kItems; ++item) {
        const int column = (item * size() + rank()) * kWidth;
        if (column < static_cast<int>(n)) body(item, column);
      }
    } else {
#pragma unroll 4
      for (Column column = rank() * kWidth; column < static_cast<Column>(n); column += kWidth * size()) body(0, column);
    }
  }

  // body(item, column, count) for every pack in front of column `n` that is the thread's: `count` of its elements are
  // in front of `counted`. Where all are, which is what body should be fast for, `count` is a constant; behind
  // `counted` it is not positive.
  template <typename Body>
  __device__ __forceinline__ static void ForEachCounted(int64_t counted, int64_t n, const Body& body) {
    constexpr std::integral_constant<int, kWidth> kAll;
    const int64_t whole = counted / kWidth * kWidth;
    if constexpr (kItems > 0) {
      ForEach(n, [&](int item, int column) {
        if (column < static_cast<int>(whole)) {
          body(item, column, kAll);
        } else {
          body(item, column, static_cast<int>(counted) - column);
        }
      });
    } else {
      const int step = kWidth * size();
      Column column = rank() * kWidth;
#pragma unroll 1
      for (; column < static_cast<Column>(whole); column += step) body(0, column, kAll);
#pragma unroll 1
      for (; column < static_cast<Column>(n); column += step) body(0, column, static_cast<Column>(counted) - column);
    }
  }
  // Whether ForEach gives the thread the pack with the element at `column`. The team's size is a power of two.
  __device__ __forceinline__ static bool Owns(int64_t column) {
    return static_cast<int>(column / kWidth & (size() - 1)) == rank();
  }

  // Over the team, all of whose threads call it and get it.
  template <typename T, typename Combine>
  __device__ __forceinline__ static T Reduce(T value, T identity, Combine combine) {
    if constexpr (kIsWarp) return WarpReduce(value, combine);
    return BlockReduce(value, identity, combine);
  }
  template <typename T>
  __device__ __forceinline__ static T Sum(T value) {
    return Reduce(value, T{0}, SumOf());
  }
};

// A team's row of T in memory, aligned for reads of Team::kWidth elements. In shared memory there is room for one.
template <typename T, typename Team>
class Row {
 public:
  __device__ __forceinline__ Row(const T* row, int64_t n) : row_(row) {
    if constexpr (Team::kItems > 0) {
      Team::ForEach(n, [&](int item, int column) { kept_[item] = *reinterpret_cast<const Packed*>(row + column); });
    } else if constexpr (Team::kItems == kInSharedMemory) {
      // A thread reads what it wrote itself, so nobody has to wait.
      row_ = DynamicShared<T>();
      Team::ForEach(n, [&](int, int column) { Copy(row + column, DynamicShared<T>() + column); });
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
      asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    }
  }

  // The elements from `column` on, as ForEach gave it with `item`.
  __device__ __forceinline__ void Get(int item, typename Team::Column column, float (&values)[Team::kWidth]) const {
    if constexpr (Team::kItems > 0) {
#pragma unroll
      for (int j = 0; j < Team::kWidth; ++j) values[j] = Load(kept_[item].values[j]);
    } else {
      LoadFloats<Team::kWidth>(row_ + column, values);
    }
  }

 private:
  using Packed = Pack<T, Team::kWidth>;

  // A pack into shared memory. Where the GPU can, it comes without passing through registers, so that all of a thread's
  // are on their way at once.
  __device__ __forceinline__ static void Copy(const T* from, T* to) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (sizeof(Packed) == 16) {
      const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    } else {
      *reinterpret_cast<Packed*>(to) = *reinterpret_cast<const Packed*>(from);
    }
#else
    *reinterpret_cast<Packed*>(to) = *reinterpret_cast<const Packed*>(from);
#endif
  }

  const T* row_;
  Packed kept_[Team::kKept];
};

#if defined(__CUDA_ARCH__)
// Two neighbours as their bits.
template <typename T>
__device__ __forceinline__ uint32_t StorePair(float low, float high) {
  static_assert(std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>);
  if constexpr (std::is_same_v<T, Half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}
#endif

// StoreFloats() to global memory. 16 bytes are one access also where the compiler would write a Pack element by
// element, which it does in some loops.
template <int kWidth, typename T>
__device__ __forceinline__ void StorePack(const float (&v)[kWidth], T* at) {
#if defined(__CUDA_ARCH__)
  if constexpr (kWidth * sizeof(T) == 16) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 2) {
        words[i] = StorePair<T>(v[2 * i], v[2 * i + 1]);
      } else {
        words[i] = __float_as_uint(v[i]);
      }
    }
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
  } else {
    StoreFloats(v, at);
  }
#else
  StoreFloats(v, at);
#endif
}

// How many threads, and which team, a tensor of rows is worked on by.
struct RowPlan {
  bool packed = false;  // 16 bytes at a time; else single elements
  bool warp = true;
  bool one_item = true;      // of a warp's
  bool kept = true;          // of a block's
  int threads = 128;         // of a block
  int64_t shared_bytes = 0;  // > 0: of a block that keeps its row there
  int64_t shared_limit = 0;  // with them: what the kernel is allowed, whatever the row
  unsigned blocks = 1;
};

inline constexpr int kWarpItems = 4;
// Items of a block that keeps its row, when it reads single elements: `packed` being those of 16 bytes.
constexpr int ScalarItems(int packed) { return 2 * packed; }

// Rows of `n` elements of which `pack` are 16 bytes, or 0 to read single ones; `block_items` as given to VisitRowPlan.
// `most_teams` bounds the grid; teams then take several rows each.
inline RowPlan PlanRows(int64_t rows, int64_t n, int pack, int block_items = 4, int64_t most_teams = int64_t{1} << 30) {
  RowPlan plan;
  plan.packed = pack > 0 && n % pack == 0;
  const int64_t packs = plan.packed ? n / pack : n;
  plan.one_item = packs <= kWarp;
  plan.warp = packs <= kWarp * kWarpItems;
  const int items = plan.packed ? block_items : ScalarItems(block_items);
  while (!plan.warp && plan.threads < 1024 && packs > plan.threads * items) plan.threads *= 2;
  plan.kept = packs <= plan.threads * items;
  const int64_t teams = std::clamp<int64_t>(rows, 1, most_teams);
  plan.blocks = static_cast<unsigned>(plan.warp ? CeilDiv(teams, plan.threads / kWarp) : teams);
  return plan;
}

// Calls f(team) with a RowTeam value of the plan's type; `kPacked` is the width where plan.packed. Kernels for more
// than a warp's rows get blocks of up to 1024 threads, so of at most 64 registers each: kBlockItems is chosen for that.
template <int kPacked, int kBlockItems = 4, typename F>
auto VisitRowPlan(const RowPlan& plan, F&& f) {
  const auto visit = [&](auto width, auto items) {
    constexpr int kWidth = decltype(width)::value, kItems = decltype(items)::value;
    if (plan.warp) return plan.one_item ? f(RowTeam<kWidth, 1, true>()) : f(RowTeam<kWidth, kWarpItems, true>());
    return plan.kept ? f(RowTeam<kWidth, kItems, false>()) : f(RowTeam<kWidth, kReadAgain, false>());
  };
  if (plan.packed) return visit(std::integral_constant<int, kPacked>(), std::integral_constant<int, kBlockItems>());
  return visit(std::integral_constant<int, 1>(), std::integral_constant<int, ScalarItems(kBlockItems)>());
}

// Lets blocks that would read their row of `bytes` again keep it in shared memory, where that holds it. Of smaller
// blocks two are on a multiprocessor, if their rows both fit: one then computes while the other waits for memory.
inline void KeepInSharedMemory(int64_t bytes, const DeviceProperties& device, RowPlan* plan) {
  constexpr int64_t kForReductions = 1024, kForSystem = 1024;
  const int64_t limit = device.shared_bytes_per_block - kForReductions;
  if (plan->warp || plan->kept || bytes > limit) return;
  plan->shared_bytes = bytes;
  plan->shared_limit = limit;
  if (2 * (bytes + kForReductions + kForSystem) <= device.shared_bytes_per_sm) plan->threads = 512;
}

// As VisitRowPlan, for plans that KeepInSharedMemory() has seen.
template <int kPacked, int kBlockItems = 4, typename F>
auto VisitSharedRowPlan(const RowPlan& plan, F&& f) {
  if (plan.shared_bytes == 0) return VisitRowPlan<kPacked, kBlockItems>(plan, f);
  return plan.packed ? f(RowTeam<kPacked, kInSharedMemory, false>()) : f(RowTeam<1, kInSharedMemory, false>());
}

// Launch() with the plan's blocks, threads and shared memory.
template <typename... Parameters, typename... Arguments>
absl::Status LaunchTeams(absl::string_view what, void (*kernel)(Parameters...), const RowPlan& plan,
                         cudaStream_t stream, Arguments&&... arguments) {
  // The leave is the kernel's, of all its launches in a captured step, so it never depends on the row; and of the 48
  // KiB that need none the kernel's static arrays take some.
  if (plan.shared_bytes > 0) AMPD_RETURN_IF_ERROR(AllowSharedMemory(what, kernel, plan.shared_limit));
  return Launch(what, kernel, plan.blocks, plan.threads, plan.shared_bytes, stream,
                std::forward<Arguments>(arguments)...);
}

// The same for kernels that go over a row once, for which nothing is kept.
template <int kPacked, typename F>
auto VisitOnePass(const RowPlan& plan, F&& f) {
  if (plan.packed)
    return plan.warp ? f(RowTeam<kPacked, kReadAgain, true>()) : f(RowTeam<kPacked, kReadAgain, false>());
  return plan.warp ? f(RowTeam<1, kReadAgain, true>()) : f(RowTeam<1, kReadAgain, false>());
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_ROWS_H_
