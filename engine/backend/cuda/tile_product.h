// Products of matrices by tiles of 64 x 64 in shared memory, for kernels that cannot leave them to a library: a block
// holds a tile in registers, 4 x 4 a thread. Operands go by in chunks and are f32 once loaded. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_TILE_PRODUCT_H_
#define AMPD_ENGINE_BACKEND_CUDA_TILE_PRODUCT_H_

#include <cuda_runtime.h>

#include <cmath>

#include "engine/backend/cuda/convert.h"
#include "engine/core/float8.h"

namespace ampd::cuda::tiles {

// Rows and columns of a tile, and the threads that share one: 16 rows of 16, each with 4 x 4 of it.
inline constexpr int kTile = 64;
inline constexpr int kThreads = 256;
inline constexpr int kMicro = 4;
// How much of the axis that is summed over is in shared memory at once.
inline constexpr int kChunk = 32;
// Distance of rows in shared memory: 16-byte accesses stay aligned, and columns spread over the banks.
inline constexpr int kPitch = kTile + 4;

// A matrix in device memory, in elements. Its first element, and its stride where `size` is a multiple of 4, are
// multiples of 4 elements, too.
struct Rows {
  int64_t stride = 0;
  int64_t length = 0, size = 0;  // rows, elements of each
};

// A thread's place among the 16 x 16 of its block; its part of a tile begins at row 4 y and column 4 x.
__device__ __forceinline__ int ThreadX() { return static_cast<int>(threadIdx.x) % 16; }
__device__ __forceinline__ int ThreadY() { return static_cast<int>(threadIdx.x) / 16; }

using Micro = float[kMicro][kMicro];

__device__ __forceinline__ void Clear(Micro& c) {
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
#pragma unroll
    for (int j = 0; j < kMicro; ++j) c[i][j] = 0;
  }
}

// What a product reads: rounded to 10 fraction bits in TF32.
__device__ __forceinline__ float Operand(float x, bool tf32) { return tf32 ? RoundToTf32(x) : x; }

// Four elements of a row; zero where the row or the column lies outside.
template <typename T>
__device__ __forceinline__ Pack<float, 4> LoadFour(const T* rows, const Rows& h, int64_t row, int64_t column,
                                                   bool tf32) {
  Pack<float, 4> out = {};
  if (row >= h.length) return out;
  const T* from = rows + row * h.stride + column;
  if (h.size % 4 == 0) {
    if (column >= h.size) return out;
    const auto in = *reinterpret_cast<const Pack<T, 4>*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) out.values[i] = Operand(Load(in.values[i]), tf32);
    return out;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (column + i < h.size) out.values[i] = Operand(Load(from[i]), tf32);
  }
  return out;
}

// Columns column .. column + kChunk - 1 of kTile rows, turned: to[column][row].
template <typename T>
__device__ __forceinline__ void LoadTurned(const T* rows, const Rows& h, int64_t row, int64_t column, bool tf32,
                                           float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kChunk / 4; i += kThreads) {
    const int r = i / (kChunk / 4), c = i % (kChunk / 4) * 4;
    const Pack<float, 4> values = LoadFour(rows, h, row + r, column + c, tf32);
#pragma unroll
    for (int j = 0; j < 4; ++j) to[(c + j) * kPitch + r] = values.values[j];
  }
}

// kColumns columns of kChunk rows, as they are: to[row][column].
template <int kColumns, typename T>
__device__ __forceinline__ void LoadRows(const T* rows, const Rows& h, int64_t row, int64_t column, bool tf32,
                                         float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kColumns / 4; i += kThreads) {
    const int r = i / (kColumns / 4), c = i % (kColumns / 4) * 4;
    reinterpret_cast<Pack<float, 4>*>(to)[i] = LoadFour(rows, h, row + r, column + c, tf32);
  }
}

// c[i][j] += sum over k of a[k][4 y + i] b[k][4 x + j].
__device__ __forceinline__ void AddProduct(const float* a, int a_pitch, const float* b, int b_pitch, int n, Micro& c) {
  a += kMicro * ThreadY();
  b += kMicro * ThreadX();
#pragma unroll 8
  for (int k = 0; k < n; ++k) {
    const auto x = *reinterpret_cast<const Pack<float, 4>*>(a + k * a_pitch);
    const auto y = *reinterpret_cast<const Pack<float, 4>*>(b + k * b_pitch);
#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
#pragma unroll
      for (int j = 0; j < kMicro; ++j) c[i][j] = fmaf(x.values[i], y.values[j], c[i][j]);
    }
  }
}

// Floats that the operands of a product take: two turned chunks, or a chunk of rows of at most 128 columns.
inline constexpr int kOperandFloats = 2 * kChunk * kPitch;
static_assert(kOperandFloats >= kChunk * 128);

// A tile of a b^T, rows of a by rows of b: over all their columns, by way of `operands` in shared memory. The whole
// block calls it.
template <typename T>
__device__ __forceinline__ void RowProducts(const T* a, const Rows& a_rows, int64_t a_row, const T* b,
                                            const Rows& b_rows, int64_t b_row, bool tf32, float* operands, Micro& c) {
  Clear(c);
  float* other = operands + kChunk * kPitch;
  for (int64_t column = 0; column < a_rows.size; column += kChunk) {
    __syncthreads();
    LoadTurned(a, a_rows, a_row, column, tf32, operands);
    LoadTurned(b, b_rows, b_row, column, tf32, other);
    __syncthreads();
    AddProduct(operands, kPitch, other, kPitch, kChunk, c);
  }
}

// sums[m] += tile^T x for the output's columns m * kTile + ..., where tile[k][row] lies in shared memory, x's rows
// `row` to row + kTile - 1 in device memory. The whole block calls it.
template <int kColumns, typename T>
__device__ __forceinline__ void AddTileTimesRows(const float* tile, const T* x, const Rows& rows, int64_t row,
                                                 int64_t column, bool tf32, float* operands,
                                                 Micro (&sums)[kColumns / kTile]) {
  for (int half = 0; half < kTile; half += kChunk) {
    __syncthreads();
    LoadRows<kColumns>(x, rows, row + half, column, tf32, operands);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kColumns / kTile; ++m) {
      AddProduct(tile + half * kPitch, kPitch, operands + m * kTile, kColumns, kChunk, sums[m]);
    }
  }
}

// Writes a thread's part of a tile of kColumns columns; factors[i] multiplies row i.
template <int kColumns, typename T>
__device__ __forceinline__ void StoreRows(const Micro (&sums)[kColumns / kTile], const float (&factors)[kMicro], T* to,
                                          const Rows& h, int64_t row, int64_t column) {
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
    const int64_t r = row + kMicro * ThreadY() + i;
    if (r >= h.length) continue;
#pragma unroll
    for (int m = 0; m < kColumns / kTile; ++m) {
      const int64_t first = column + m * kTile + kMicro * ThreadX();
      T* at = to + r * h.stride + first;
      Pack<T, 4> out;
#pragma unroll
      for (int j = 0; j < kMicro; ++j) out.values[j] = Store<T>(sums[m][i][j] * factors[i]);
      if (h.size % 4 == 0) {
        if (first < h.size) *reinterpret_cast<Pack<T, 4>*>(at) = out;
        continue;
      }
#pragma unroll
      for (int j = 0; j < kMicro; ++j) {
        if (first + j < h.size) at[j] = out.values[j];
      }
    }
  }
}

}  // namespace ampd::cuda::tiles

#endif  // AMPD_ENGINE_BACKEND_CUDA_TILE_PRODUCT_H_
