// Internal to the CPU backend: sums of products of bf16 matrices on a processor's matrix tiles (Intel AMX), in fp32.
// Convolutions are such sums: engine/backend/cpu/conv2d_tiles.h.
#ifndef AMPD_ENGINE_BACKEND_CPU_TILE_SUMS_H_
#define AMPD_ENGINE_BACKEND_CPU_TILE_SUMS_H_

#include <cstdint>
#include <utility>
#include <vector>

namespace ampd::cpu {

// Whether this processor has tiles, oneDNN may use them (DNNL_MAX_CPU_ISA), and the system lets this process: the first
// call asks it to, and without one nothing else here may be called.
bool HasTiles();

// Rows and columns of a result's tile; terms that one instruction sums over.
inline constexpr int64_t kTileEdge = 16, kTileDepth = 32;
// Elements of an operand's tile: 1 KiB.
inline constexpr int64_t kTileElements = kTileEdge * kTileDepth;

inline int64_t TilesOf(int64_t n, int64_t edge) { return (n + edge - 1) / edge; }

// One axis of the places of a result, and for each which places of both operands are multiplied.
struct TileAxis {
  using Pairs = std::vector<std::pair<int64_t, int64_t>>;  // (of a, of b)
  std::vector<Pairs> places;
  // Which of the result's places each of `places` is; empty: in order. Of the x axis only. What neighbours
  // in `places` meet should be the same places of one operand.
  std::vector<int64_t> order;
  int64_t a_places = 0, b_places = 0;
};

// result[m][place][n] = sum over the pairs (a, b) of `place`, and over d, of a[a][m][d] * b[b][d][n].
// A place is a pair (y, x) of one of either axis, y before x; its pairs are all pairs of y's with all of x's.
struct TileSum {
  TileAxis y, x;
  int64_t m = 0, n = 0, depth = 0;

  int64_t columns() const { return static_cast<int64_t>(x.places.size()); }
  int64_t places() const { return static_cast<int64_t>(y.places.size() * x.places.size()); }
  int64_t a_places() const { return y.a_places * x.a_places; }
  int64_t b_places() const { return y.b_places * x.b_places; }
  int64_t a_bytes() const {
    return a_places() * TilesOf(m, kTileEdge) * TilesOf(depth, kTileDepth) * 2 * kTileElements;
  }
  int64_t b_bytes() const {
    return b_places() * TilesOf(n, kTileEdge) * TilesOf(depth, kTileDepth) * 2 * kTileElements;
  }
  // What is kept between RunTileSum's calls that add to each other.
  int64_t sum_bytes() const;
  // What packing needs: extents and counts of places.
  TileSum WithoutPairs() const;
};

// Operands are packed from tensors [rows, places, columns] of 16 bits into tiles; what is missing in the last of an
// axis is zero. `sum` need not have its pairs.

// a: m = rows, depth = columns.
void PackRows(int threads, const TileSum& sum, const uint16_t* tensor, uint16_t* a);
// a: m = columns, depth = rows.
void PackColumns(int threads, const TileSum& sum, const uint16_t* tensor, uint16_t* a);
// b: depth = rows, n = columns.
void PackDepthByColumns(int threads, const TileSum& sum, const uint16_t* tensor, uint16_t* b);
// b: n = rows, depth = columns.
void PackColumnsByDepth(int threads, const TileSum& sum, const uint16_t* tensor, uint16_t* b);

// Computes the pairs of which a's place on the y axis lies in y_begin..y_end-1. `sums` (sum_bytes) takes what calls add
// up: the first of them sets it, the last writes `result`, rounded to bf16 as ToBFloat16 does; null when one call is
// all.
struct TileRun {
  const uint16_t* a = nullptr;
  const uint16_t* b = nullptr;
  int64_t y_begin = 0, y_end = INT64_MAX;
  bool first = true, last = true;
  float* sums = nullptr;
  uint16_t* result = nullptr;  // [m, places, n]
  // Of a's windows, what should stay in a second-level cache while results are made row by row.
  int64_t window_bytes = int64_t{1} << 20;
};
void RunTileSum(int threads, const TileSum& sum, const TileRun& run);

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_TILE_SUMS_H_
