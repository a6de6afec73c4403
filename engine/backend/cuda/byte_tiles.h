// Matrices of bytes turned around, a tile of 128 by 128 at a time. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_BYTE_TILES_H_
#define AMPD_ENGINE_BACKEND_CUDA_BYTE_TILES_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "engine/backend/cuda/launch.h"

namespace ampd::cuda {

inline constexpr int kByteTileSide = 128;
inline constexpr int kByteTileThreads = 256;
// Bytes of a square's row.
inline constexpr int kByteSquare = 4;

// Tiles of `side` by `side` in a matrix.
__host__ __device__ constexpr int64_t ByteTiles(int64_t rows, int64_t columns, int side) {
  return ((columns + side - 1) / side) * ((rows + side - 1) / side);
}

// Where tile `number` of several matrices is: how far into the tensor its matrix begins, and where it begins there.
struct TilePlace {
  int64_t matrix, row, column;

  __device__ __forceinline__ TilePlace(int64_t rows, int64_t columns, int side, int64_t number) {
    const int64_t across = (columns + side - 1) / side, tiles = ByteTiles(rows, columns, side);
    const int64_t tile = number % tiles;
    matrix = number / tiles * rows * columns;
    row = tile / across * side;
    column = tile % across * side;
  }
};

// As __byte_perm: byte i of the result is the one that nibble i of `selector` names, 0 to 3 of a, 4 to 7 of b.
__device__ __forceinline__ uint32_t PickBytes(uint32_t a, uint32_t b, uint32_t selector) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, selector);
#else
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  uint32_t picked = 0;
  for (int i = 0; i < 4; ++i) picked |= static_cast<uint32_t>(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return picked;
#endif
}

// A tile on its way through shared memory, for kByteTileThreads threads, of which each turns four squares of 4 by 4 in
// registers. A warp has 8 squares side by side and 4 below each other: sectors are read whole, and the words that it
// leaves in shared memory, rows of which are one longer than the tile's, lie in 32 banks. Extents of the matrix are
// multiples of 4.
class ByteTile {
 public:
  static constexpr int kSquares = 4;

  // Of this thread's square `i`: the first column and row.
  __device__ __forceinline__ static int Column(int i) { return (Part(i) % kParts * kAcross + Lane() % kAcross) * 4; }
  __device__ __forceinline__ static int Row(int i) { return (Part(i) / kParts * kDown + Lane() / kAcross) * 4; }

  // `rows`: of the square at Column(i), Row(i), the first column in the lowest byte.
  __device__ __forceinline__ void Put(int i, const uint32_t (&rows)[kByteSquare]) {
    const uint32_t upper01 = PickBytes(rows[0], rows[1], 0x5140), upper23 = PickBytes(rows[0], rows[1], 0x7362);
    const uint32_t lower01 = PickBytes(rows[2], rows[3], 0x5140), lower23 = PickBytes(rows[2], rows[3], 0x7362);
    uint32_t* at = words_ + Column(i) * kPitch + Row(i) / 4;
    at[0] = PickBytes(upper01, lower01, 0x5410);
    at[kPitch] = PickBytes(upper01, lower01, 0x7632);
    at[2 * kPitch] = PickBytes(upper23, lower23, 0x5410);
    at[3 * kPitch] = PickBytes(upper23, lower23, 0x7632);
  }

  // Behind a barrier behind every Put(): the tile of [rows, columns] at `place`, in `to` [columns, rows].
  __device__ __forceinline__ void Write(const TilePlace& place, int64_t rows, int64_t columns, uint8_t* to) const {
    const int64_t row = place.row + 4 * Lane();
    if (row >= rows) return;
#pragma unroll 4
    for (int c = Warp(); c < kByteTileSide; c += kWarps) {
      if (place.column + c >= columns) continue;
      *reinterpret_cast<uint32_t*>(to + place.matrix + (place.column + c) * rows + row) = words_[c * kPitch + Lane()];
    }
  }

 private:
  static constexpr int kAcross = 8, kDown = kWarp / kAcross, kWarps = kByteTileThreads / kWarp;
  static constexpr int kWords = kByteTileSide / 4, kPitch = kWords + 1, kParts = kWords / kAcross;
  static_assert(kWords * kWords == kSquares * kByteTileThreads);

  __device__ __forceinline__ static int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ __forceinline__ static int Warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ __forceinline__ static int Part(int i) { return i * kWarps + Warp(); }

  uint32_t words_[kByteTileSide * kPitch];
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_BYTE_TILES_H_
