// A product of small matrices by one block, on the matrix units where the operands are 16-bit. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_BLOCK_PRODUCT_H_
#define AMPD_ENGINE_BACKEND_CUDA_BLOCK_PRODUCT_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/launch.h"

namespace ampd::cuda {

// d[r, c] = sum over k of a[r, k] b[k, c], accumulated in fp32 and rounded once. Plain data.
struct BlockProduct {
  const void *a = nullptr, *b = nullptr;  // f32, f16 or bf16, both of `dtype`, aligned to 16 bytes
  void* d = nullptr;
  DType dtype = DType::kF32, d_dtype = DType::kF32;
  int32_t rows = 0, columns = 0, inner = 0;
  // Elements from one r, k or c to the next.
  int32_t a_row = 0, a_inner = 0, b_inner = 0, b_column = 0, d_row = 0;
  // Parts that each sum is cut into, so that few results of long sums are many warps' work.
  int32_t splits = 1;
};

// What a warp computes at a time.
inline constexpr int kTileRows = 16, kTileColumns = 8, kTileInner = 16;
inline constexpr int kTileFloats = kTileRows * kTileColumns;

constexpr int32_t TilesOf(const BlockProduct& p) {
  return (p.rows + kTileRows - 1) / kTileRows * ((p.columns + kTileColumns - 1) / kTileColumns);
}
// As many as keep `warps` warps busy.
constexpr int32_t SplitsFor(const BlockProduct& p, int warps) {
  const int32_t most = (p.inner + kTileInner - 1) / kTileInner, wanted = warps / TilesOf(p);
  return wanted < 1 ? 1 : wanted < most ? wanted : most;
}
constexpr int64_t ScratchOf(const BlockProduct& p) {
  return p.splits == 1 ? 0 : int64_t{p.splits} * TilesOf(p) * kTileFloats * static_cast<int64_t>(sizeof(float));
}

// d += a b of one tile, by a warp. Lane 4 g + t holds, as PTX's mma.m16n8k16 wants it, of a the rows g and g + 8 at the
// places 2 t, 2 t + 1 of either half of the sum, {g lower half, g + 8 lower, g upper, g + 8 upper}; of b column g at
// the same places; of d the columns 2 t, 2 t + 1 of row g, then of row g + 8.
template <typename T>
__device__ __forceinline__ void MultiplyAddTile(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&d)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, Half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  // Without such an instruction every lane asks the others for what it needs.
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row = lane / 4, column = lane % 4 * 2;
#pragma unroll 1
  for (int k = 0; k < kTileInner; ++k) {
    const int half = k / 8, holder = k % 8 / 2;
    const auto element = [&](uint32_t pair, int line) {
      const uint32_t both = __shfl_sync(kAllLanes, pair, 4 * line + holder);
      T value;
      value.bits = static_cast<uint16_t>(both >> (16 * (k % 2)));
      return Load(value);
    };
    const float upper = element(a[half != 0 ? 2 : 0], row), lower = element(a[half != 0 ? 3 : 1], row);
    const float left = element(b[half], column), right = element(b[half], column + 1);
    d[0] = fmaf(upper, left, d[0]);
    d[1] = fmaf(upper, right, d[1]);
    d[2] = fmaf(lower, left, d[2]);
    d[3] = fmaf(lower, right, d[3]);
  }
#endif
}

// Two neighbours of a sum, zero beyond its end: of line `line` (a row of a, a column of b), from the even place `k` on.
template <typename T>
__device__ __forceinline__ uint32_t LoadPair(const T* matrix, int line, int lines, int line_step, int k, int inner,
                                             int inner_step) {
  if (line >= lines || k >= inner) return 0;
  const T* at = matrix + static_cast<int64_t>(line) * line_step + static_cast<int64_t>(k) * inner_step;
  if (inner_step == 1 && line_step % 2 == 0 && k + 1 < inner) return *reinterpret_cast<const uint32_t*>(at);
  const uint32_t low = at[0].bits, high = k + 1 < inner ? at[inner_step].bits : 0;
  return low | high << 16;
}

// Adds the sums' places from `k` to `end` of the tile at (row, column), by a warp; `k` is a multiple of kTileInner.
template <typename T>
__device__ __forceinline__ void AddTile(const BlockProduct& p, const T* a, const T* b, int row, int column, int k,
                                        int end, float (&sums)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4 * 2;
  if constexpr (std::is_same_v<T, float>) {
    // One by one: there is no unit that multiplies f32 exactly.
    const bool upper = row + g < p.rows, lower = row + g + 8 < p.rows;
    const bool left = column + t < p.columns, right = column + t + 1 < p.columns;
    const T* from_a = a + static_cast<int64_t>(row + g) * p.a_row + static_cast<int64_t>(k) * p.a_inner;
    const T* from_b = b + static_cast<int64_t>(column + t) * p.b_column + static_cast<int64_t>(k) * p.b_inner;
#pragma unroll 4
    for (; k < end; ++k, from_a += p.a_inner, from_b += p.b_inner) {
      const float a0 = upper ? from_a[0] : 0, a1 = lower ? from_a[8 * static_cast<int64_t>(p.a_row)] : 0;
      const float b0 = left ? from_b[0] : 0, b1 = right ? from_b[p.b_column] : 0;
      sums[0] = fmaf(a0, b0, sums[0]);
      sums[1] = fmaf(a0, b1, sums[1]);
      sums[2] = fmaf(a1, b0, sums[2]);
      sums[3] = fmaf(a1, b1, sums[3]);
    }
  } else {
    for (; k < end; k += kTileInner) {
      const auto of_a = [&](int line, int at) { return LoadPair(a, line, p.rows, p.a_row, at, p.inner, p.a_inner); };
      const auto of_b = [&](int at) { return LoadPair(b, column + g, p.columns, p.b_column, at, p.inner, p.b_inner); };
      const uint32_t left[4] = {of_a(row + g, k + t), of_a(row + g + 8, k + t), of_a(row + g, k + t + 8),
                                of_a(row + g + 8, k + t + 8)};
      const uint32_t right[2] = {of_b(k + t), of_b(k + t + 8)};
      MultiplyAddTile<T>(left, right, sums);
    }
  }
}

// What lane `lane` holds of a tile, to d.
__device__ __forceinline__ void StoreTile(const BlockProduct& p, void* d, int row, int column, int lane,
                                          const float (&sums)[4]) {
  WithData(p.d_dtype, [&](auto tag) {
    using D = typename decltype(tag)::type;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int r = row + lane / 4 + (j / 2) * 8, c = column + lane % 4 * 2 + j % 2;
      if (r < p.rows && c < p.columns) {
        static_cast<D*>(d)[static_cast<int64_t>(r) * p.d_row + c] = Store<D>(sums[j]);
      }
    }
  });
}

// The whole product, by a block of kThreads; `scratch` is shared memory of ScratchOf(p) bytes. The bits depend on
// nothing but `p`.
template <typename T, int kThreads>
__device__ __forceinline__ void MultiplyByBlock(const BlockProduct& p, const T* a, const T* b, void* d,
                                                float4* scratch) {
  constexpr int kWarps = kThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int across = (p.columns + kTileColumns - 1) / kTileColumns, tiles = TilesOf(p);
  const int steps = (p.inner + kTileInner - 1) / kTileInner;
  const int part = (steps + p.splits - 1) / p.splits * kTileInner;
  for (int item = static_cast<int>(threadIdx.x) / kWarp; item < tiles * p.splits; item += kWarps) {
    const int tile = item % tiles, split = item / tiles;
    const int row = tile / across * kTileRows, column = tile % across * kTileColumns;
    float sums[4] = {};
    AddTile(p, a, b, row, column, split * part, min(p.inner, (split + 1) * part), sums);
    if (p.splits == 1) {
      StoreTile(p, d, row, column, lane, sums);
    } else {
      scratch[item * kWarp + lane] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
  }
  if (p.splits == 1) return;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < tiles * kWarp; i += kThreads) {
    float sums[4] = {};
    for (int split = 0; split < p.splits; ++split) {
      const float4 four = scratch[split * tiles * kWarp + i];
      sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
    }
    const int tile = i / kWarp;
    StoreTile(p, d, tile / across * kTileRows, tile % across * kTileColumns, i % kWarp, sums);
  }
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_BLOCK_PRODUCT_H_
