#include "engine/backend/cpu/tile_sums.h"

#include <algorithm>

#include "engine/backend/cpu/parallel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <oneapi/dnnl/dnnl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ampd::cpu {
namespace {

// Tiles of results, and of either operand, that are in registers at a time: 4 results of 2 and 2 are all 8.
constexpr int64_t kEdgeTiles = 2;
constexpr int64_t kSumElements = kTileEdge * kTileEdge;

}  // namespace

#if defined(__x86_64__)
#define AMPD_WITH_AVX512 __attribute__((target("avx512f,avx512bw")))
#define AMPD_WITH_TILES __attribute__((target("avx512f,avx512bw,amx-tile,amx-bf16")))

namespace {

bool AskForTiles() {
  // What oneDNN was told to use holds here too, and it knows the processors.
  if ((dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) != dnnl_cpu_isa_avx512_core_amx) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_a_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The first `n` of up to 32 elements at `from`; the others are zero.
AMPD_WITH_AVX512 inline __m512i LoadRow(const uint16_t* from, int64_t n) {
  if (n >= kTileDepth) return _mm512_loadu_si512(from);
  if (n <= 0) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint32_t{1} << n) - 1), from);
}

// to[i][j] = from[j][i], of 16 x 16 elements of 32 bits.
AMPD_WITH_AVX512 inline void Transpose(const __m512i (&from)[16], uint16_t* to) {
  __m512i a[16], b[16];
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_epi32(from[2 * i], from[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(from[2 * i], from[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  // b[4 i + j] holds, in its 128-bit lane l, column 4 l + j of rows 4 i to 4 i + 3.
  for (int j = 0; j < 4; ++j) {
    const __m512i low01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xee);
    _mm512_storeu_si512(to + 32 * j, _mm512_shuffle_i32x4(low01, low23, 0x88));
    _mm512_storeu_si512(to + 32 * (4 + j), _mm512_shuffle_i32x4(low01, low23, 0xdd));
    _mm512_storeu_si512(to + 32 * (8 + j), _mm512_shuffle_i32x4(high01, high23, 0x88));
    _mm512_storeu_si512(to + 32 * (12 + j), _mm512_shuffle_i32x4(high01, high23, 0xdd));
  }
}

// A tensor [rows, places, columns] of which `place` is packed.
struct Slice {
  const uint16_t* tensor;
  int64_t rows, places, columns, place;

  const uint16_t* at(int64_t row, int64_t column) const { return tensor + (row * places + place) * columns + column; }
};

// Where the tiles of an operand lie: [edge / 2 tiles][places][2 tiles][depth tiles], one tile in the last if they are
// odd. What one block of results reads of all places lies close together: blocks apart, it would share few sets of the
// caches.
struct Packed {
  uint16_t* to;
  int64_t tiles, places, depth_tiles;

  // The first of the tiles of `place`.
  uint16_t* at(int64_t place, int64_t tile) const {
    const int64_t first = tile / kEdgeTiles * kEdgeTiles, here = std::min(kEdgeTiles, tiles - first);
    return to + (first * places + place * here + tile - first) * depth_tiles * kTileElements;
  }
};

Packed PackedA(const TileSum& sum, uint16_t* a) {
  return {a, TilesOf(sum.m, kTileEdge), sum.a_places(), TilesOf(sum.depth, kTileDepth)};
}

Packed PackedB(const TileSum& sum, uint16_t* b) {
  return {b, TilesOf(sum.n, kTileEdge), sum.b_places(), TilesOf(sum.depth, kTileDepth)};
}

// Calls body(place) for all places, over up to `threads` threads.
template <typename Body>
void ForPlaces(int threads, const Packed& packed, const Body& body) {
  const int64_t elements = packed.places * packed.tiles * packed.depth_tiles * kTileElements;
  ParallelRange(PartsFor(threads, elements, kMinElementsPerThread), packed.places, 1,
                [&](int, int64_t begin, int64_t end) {
                  for (int64_t place = begin; place < end; ++place) body(place);
                });
}

// Tiles [16][32] of rows by columns.
AMPD_WITH_AVX512 void PackPlaceRows(const Slice& slice, const Packed& packed) {
  for (int64_t row = 0; row < slice.rows; row += kTileEdge) {
    uint16_t* to = packed.at(slice.place, row / kTileEdge);
    for (int64_t column = 0; column < slice.columns; column += kTileDepth, to += kTileElements) {
      for (int64_t i = 0; i < kTileEdge; ++i) {
        const bool missing = row + i >= slice.rows;
        const __m512i line =
            LoadRow(missing ? nullptr : slice.at(row + i, column), missing ? 0 : slice.columns - column);
        _mm512_storeu_si512(to + i * kTileDepth, line);
      }
    }
  }
}

// Tiles [16][16][2] of columns / 2 by rows.
AMPD_WITH_AVX512 void PackPlaceTransposed(const Slice& slice, const Packed& packed) {
  for (int64_t row = 0; row < slice.rows; row += kTileEdge) {
    uint16_t* to = packed.at(slice.place, row / kTileEdge);
    for (int64_t column = 0; column < slice.columns; column += kTileDepth, to += kTileElements) {
      __m512i lines[16];
      for (int64_t i = 0; i < kTileEdge; ++i) {
        const bool missing = row + i >= slice.rows;
        lines[i] = LoadRow(missing ? nullptr : slice.at(row + i, column), missing ? 0 : slice.columns - column);
      }
      Transpose(lines, to);
    }
  }
}

// Tiles [16][16][2] of rows / 2 by columns, or [16][32] of columns by rows.
template <bool kTransposes>
AMPD_WITH_AVX512 void PackPlacePairs(const Slice& slice, const Packed& packed) {
  // Elements 0..15 of two lines by turns, and elements 16..31.
  alignas(64) uint16_t low[32], high[32];
  for (uint16_t i = 0; i < 32; ++i) {
    low[i] = static_cast<uint16_t>(i / 2 + 32 * (i % 2));
    high[i] = static_cast<uint16_t>(low[i] + 16);
  }
  const __m512i first_half = _mm512_load_si512(low), second_half = _mm512_load_si512(high);
  for (int64_t row = 0; row < slice.rows; row += kTileDepth) {
    for (int64_t column = 0; column < slice.columns; column += kTileDepth) {
      const bool both = column + kTileEdge < slice.columns;
      const int64_t tile = column / kTileEdge, depth = row / kTileDepth * kTileElements;
      uint16_t* first = packed.at(slice.place, tile) + depth;
      uint16_t* second = both ? packed.at(slice.place, tile + 1) + depth : nullptr;
      __m512i a[16], b[16];
      for (int64_t i = 0; i < kTileEdge; ++i) {
        const auto load = [&](int64_t at) AMPD_WITH_AVX512 {
          const bool missing = at >= slice.rows;
          return LoadRow(missing ? nullptr : slice.at(at, column), missing ? 0 : slice.columns - column);
        };
        const __m512i even = load(row + 2 * i), odd = load(row + 2 * i + 1);
        a[i] = _mm512_permutex2var_epi16(even, first_half, odd);
        b[i] = _mm512_permutex2var_epi16(even, second_half, odd);
      }
      if (kTransposes) {
        Transpose(a, first);
        if (both) Transpose(b, second);
        continue;
      }
      for (int64_t i = 0; i < kTileEdge; ++i) {
        _mm512_storeu_si512(first + i * kTileDepth, a[i]);
        if (both) _mm512_storeu_si512(second + i * kTileDepth, b[i]);
      }
    }
  }
}

// 16 floats as ToBFloat16 rounds them.
AMPD_WITH_AVX512 inline __m256i Round(const float* from) {
  const __m512i bits = _mm512_loadu_si512(from);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  const __mmask16 nan = _mm512_cmp_epu32_mask(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)),
                                              _mm512_set1_epi32(0x7f800000), _MM_CMPINT_NLE);
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet));
}

AMPD_WITH_AVX512 inline void WriteRow(const float* from, int64_t n, uint16_t* to) {
  const __mmask16 mask = n >= kTileEdge ? __mmask16{0xffff} : static_cast<__mmask16>((1u << n) - 1);
  _mm512_mask_cvtepi32_storeu_epi16(to, mask, _mm512_cvtepu16_epi32(Round(from)));
}

// What a run has once.
struct Walk {
  const TileSum& sum;
  const TileRun& run;
  int64_t depth_tiles, a_tiles, b_tiles;  // of a place
  int64_t m_blocks, n_blocks;
  int64_t strip;  // columns of places
};

// Adds up kM x kN tiles of a place, from a tile of either axis on.
template <int kM, int kN>
AMPD_WITH_TILES void AddUp(const Walk& walk, const TileAxis::Pairs& ys, const TileAxis::Pairs& xs, int64_t m_tile,
                           int64_t n_tile, float* sums) {
  constexpr int64_t kLine = 64;
  const int64_t depth = walk.depth_tiles, tiles = depth * kTileElements;  // of one edge tile of a place
  const int64_t a_places = walk.sum.a_places(), b_places = walk.sum.b_places();
  // The compiler does not know that tiles are loaded from memory.
  asm volatile("" ::: "memory");
  if (walk.run.first) {
    _tile_zero(0);
    if (kN > 1) _tile_zero(1);
    if (kM > 1) _tile_zero(2);
    if (kM > 1 && kN > 1) _tile_zero(3);
  } else {
    _tile_loadd(0, sums, kLine);
    if (kN > 1) _tile_loadd(1, sums + kSumElements, kLine);
    if (kM > 1) _tile_loadd(2, sums + 2 * kSumElements, kLine);
    if (kM > 1 && kN > 1) _tile_loadd(3, sums + 3 * kSumElements, kLine);
  }
  for (const auto& [a_y, b_y] : ys) {
    if (a_y < walk.run.y_begin || a_y >= walk.run.y_end) continue;
    const uint16_t* a_row = walk.run.a + (m_tile * a_places + a_y * walk.sum.x.a_places * kM) * tiles;
    const uint16_t* b_row = walk.run.b + (n_tile * b_places + b_y * walk.sum.x.b_places * kN) * tiles;
    for (const auto& [a_x, b_x] : xs) {
      const uint16_t* a = a_row + a_x * kM * tiles;
      const uint16_t* b = b_row + b_x * kN * tiles;
      for (int64_t d = 0; d < depth; ++d, a += kTileElements, b += kTileElements) {
        _tile_loadd(4, a, kLine);
        _tile_loadd(6, b, kLine);
        _tile_dpbf16ps(0, 4, 6);
        if (kN > 1) {
          _tile_loadd(7, b + tiles, kLine);
          _tile_dpbf16ps(1, 4, 7);
        }
        if (kM > 1) {
          _tile_loadd(5, a + tiles, kLine);
          _tile_dpbf16ps(2, 5, 6);
          if (kN > 1) _tile_dpbf16ps(3, 5, 7);
        }
      }
    }
  }
  _tile_stored(0, sums, kLine);
  if (kN > 1) _tile_stored(1, sums + kSumElements, kLine);
  if (kM > 1) _tile_stored(2, sums + 2 * kSumElements, kLine);
  if (kM > 1 && kN > 1) _tile_stored(3, sums + 3 * kSumElements, kLine);
}

AMPD_WITH_AVX512 void WriteResult(const Walk& walk, int64_t place, int64_t m_tile, int64_t n_tile, const float* sums) {
  const TileSum& sum = walk.sum;
  const int64_t m = std::min(sum.m, (m_tile + kEdgeTiles) * kTileEdge),
                n = std::min(sum.n, (n_tile + kEdgeTiles) * kTileEdge);
  for (int64_t row = m_tile * kTileEdge; row < m; ++row) {
    const int64_t i = row - m_tile * kTileEdge;
    const float* from = sums + i / kTileEdge * kEdgeTiles * kSumElements + i % kTileEdge * kTileEdge;
    uint16_t* to = walk.run.result + (row * sum.places() + place) * sum.n;
    for (int64_t column = n_tile * kTileEdge; column < n; column += kTileEdge, from += kSumElements) {
      WriteRow(from, n - column, to + column);
    }
  }
}

// How many places of the x axis to go down the rows with, so that what a row's windows share with the next row's stays
// in the cache.
int64_t ColumnsAtATime(const Walk& walk) {
  const TileSum& sum = walk.sum;
  size_t rows = 1;
  for (const TileAxis::Pairs& ys : sum.y.places) rows = std::max(rows, ys.size());
  const int64_t pixel = std::min(walk.a_tiles, kEdgeTiles) * walk.depth_tiles * kTileElements * 2;
  const auto bytes = [&](int64_t columns) {
    int64_t most = 0;
    for (int64_t first = 0; first < sum.columns(); first += columns) {
      int64_t low = INT64_MAX, high = 0;
      for (int64_t column = first; column < std::min(first + columns, sum.columns()); ++column) {
        for (const auto& [a, b] : sum.x.places[column]) low = std::min(low, a), high = std::max(high, a + 1);
      }
      most = std::max(most, high - low);
    }
    return most * static_cast<int64_t>(rows) * pixel;
  };
  int64_t columns = sum.columns(), now = bytes(columns);
  while (columns > 4 && now > walk.run.window_bytes) {
    const int64_t half = (columns + 1) / 2, then = bytes(half);
    // Where every place meets all of a row, as in a filter's gradient, strips save nothing.
    if (then > now * 9 / 10) break;
    columns = half, now = then;
  }
  return columns;
}

AMPD_WITH_TILES void RunUnits(const Walk& walk, int64_t begin, int64_t end) {
  // Not on the stack: the compiler may think that the instruction reads no more than its first bytes.
  alignas(64) static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
  constexpr int64_t kEach = kEdgeTiles * kEdgeTiles * kSumElements;
  alignas(64) float here[kEach];
  const int64_t rows = static_cast<int64_t>(walk.sum.y.places.size()), columns = walk.sum.columns();
  const bool kept = !(walk.run.first && walk.run.last);
  for (int64_t unit = begin; unit < end; ++unit) {
    // Of a block, strips of columns; of a strip, its rows.
    const int64_t block = unit / (rows * columns), in_block = unit % (rows * columns);
    const int64_t strip = in_block / (rows * walk.strip), left = strip * walk.strip;
    const int64_t wide = std::min(walk.strip, columns - left), in_strip = in_block - left * rows;
    const int64_t row = in_strip / wide, column = left + in_strip % wide;
    const int64_t m_tile = block % walk.m_blocks * kEdgeTiles, n_tile = block / walk.m_blocks * kEdgeTiles;
    // By place, since strips are not the same for every depth.
    float* sums = kept ? walk.run.sums + (block * rows * columns + row * columns + column) * kEach : here;
    const bool two_m = m_tile + 1 < walk.a_tiles, two_n = n_tile + 1 < walk.b_tiles;
    const auto add_up = two_m ? (two_n ? AddUp<2, 2> : AddUp<2, 1>) : (two_n ? AddUp<1, 2> : AddUp<1, 1>);
    add_up(walk, walk.sum.y.places[row], walk.sum.x.places[column], m_tile, n_tile, sums);
    if (!walk.run.last) continue;
    const int64_t at = walk.sum.x.order.empty() ? column : walk.sum.x.order[column];
    WriteResult(walk, row * columns + at, m_tile, n_tile, sums);
  }
  _tile_release();
}

}  // namespace

bool HasTiles() {
  static const bool has = AskForTiles();
  return has;
}

void PackRows(int threads, const TileSum& sum, const uint16_t* tensor, uint16_t* a) {
  const Packed packed = PackedA(sum, a);
  ForPlaces(threads, packed, [&](int64_t place) {
    PackPlaceRows({tensor, sum.m, packed.places, sum.depth, place}, packed);
  });
}

void PackColumns(int threads, const TileSum& sum, const uint16_t* tensor, uint16_t* a) {
  const Packed packed = PackedA(sum, a);
  ForPlaces(threads, packed, [&](int64_t place) {
    PackPlacePairs<true>({tensor, sum.depth, packed.places, sum.m, place}, packed);
  });
}

void PackDepthByColumns(int threads, const TileSum& sum, const uint16_t* tensor, uint16_t* b) {
  const Packed packed = PackedB(sum, b);
  ForPlaces(threads, packed, [&](int64_t place) {
    PackPlacePairs<false>({tensor, sum.depth, packed.places, sum.n, place}, packed);
  });
}

void PackColumnsByDepth(int threads, const TileSum& sum, const uint16_t* tensor, uint16_t* b) {
  const Packed packed = PackedB(sum, b);
  ForPlaces(threads, packed, [&](int64_t place) {
    PackPlaceTransposed({tensor, sum.n, packed.places, sum.depth, place}, packed);
  });
}

void RunTileSum(int threads, const TileSum& sum, const TileRun& run) {
  Walk walk{sum, run, TilesOf(sum.depth, kTileDepth), TilesOf(sum.m, kTileEdge), TilesOf(sum.n, kTileEdge)};
  walk.m_blocks = TilesOf(walk.a_tiles, kEdgeTiles);
  walk.n_blocks = TilesOf(walk.b_tiles, kEdgeTiles);
  walk.strip = ColumnsAtATime(walk);
  const int64_t units = sum.places() * walk.m_blocks * walk.n_blocks;
  ParallelRange(PartsFor(threads, units, 1), units, 1,
                [&](int, int64_t begin, int64_t end) { RunUnits(walk, begin, end); });
}

#else

bool HasTiles() { return false; }
void PackRows(int, const TileSum&, const uint16_t*, uint16_t*) {}
void PackColumns(int, const TileSum&, const uint16_t*, uint16_t*) {}
void PackDepthByColumns(int, const TileSum&, const uint16_t*, uint16_t*) {}
void PackColumnsByDepth(int, const TileSum&, const uint16_t*, uint16_t*) {}
void RunTileSum(int, const TileSum&, const TileRun&) {}

#endif

int64_t TileSum::sum_bytes() const {
  const int64_t m_blocks = TilesOf(TilesOf(m, kTileEdge), kEdgeTiles);
  const int64_t n_blocks = TilesOf(TilesOf(n, kTileEdge), kEdgeTiles);
  return places() * m_blocks * n_blocks * kEdgeTiles * kEdgeTiles * kSumElements * static_cast<int64_t>(sizeof(float));
}

TileSum TileSum::WithoutPairs() const {
  TileSum sum;
  sum.y.a_places = y.a_places, sum.y.b_places = y.b_places;
  sum.x.a_places = x.a_places, sum.x.b_places = x.b_places;
  sum.m = m, sum.n = n, sum.depth = depth;
  return sum;
}

}  // namespace ampd::cpu
