#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/index_math.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"

namespace ampd::cuda {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int kThreads = 256;

// Windows along one axis of the image. C: int, where everything stays below 2^30, else int64_t, which is slower.
template <typename C>
struct Axis {
  C extent, out_extent, size, stride, dilation, before;
  C padded_end;  // past the last cell that counts where padding does

  __device__ __forceinline__ C First(C out) const { return out * stride - before; }
  // Real cells of window `out`: Begin, Begin + dilation, ... below End.
  __device__ __forceinline__ C Begin(C out) const {
    const C first = First(out);
    return first >= 0 ? first : first + (-first + dilation - 1) / dilation * dilation;
  }
  __device__ __forceinline__ C End(C out) const { return min(First(out) + (size - 1) * dilation + 1, extent); }
  __device__ __forceinline__ C Count(C out) const {
    return max((End(out) - Begin(out) + dilation - 1) / dilation, C{0});
  }
  __device__ __forceinline__ C CountPadded(C out) const {
    const C end = min(First(out) + (size - 1) * dilation + 1, padded_end);
    return max((end - First(out) + dilation - 1) / dilation, C{0});
  }
  // Windows that hold `cell` are among FirstWindow to LastWindow, all of them where cells are not dilated.
  __device__ __forceinline__ C FirstWindow(C cell) const {
    const C past = cell + before - (size - 1) * dilation;
    return past <= 0 ? 0 : (past + stride - 1) / stride;
  }
  __device__ __forceinline__ C LastWindow(C cell) const { return min((cell + before) / stride, out_extent - 1); }
  __device__ __forceinline__ bool Holds(C out, C cell) const {
    return dilation == 1 || (cell - First(out)) % dilation == 0;
  }
};

// Of packs of channels.
template <typename Index>
struct Pool {
  using Coordinate = std::conditional_t<std::is_same_v<Index, uint32_t>, int, int64_t>;
  Axis<Coordinate> rows, columns;
  int64_t packs;  // in a pixel
  bool count_include_pad;
  IndexDivisor<Index> by_packs, by_width, by_height;  // of the tensor that threads share

  // The pack of pixel (h, w) of image n; of the output's (p, q).
  __device__ __forceinline__ int64_t Cell(int64_t n, int64_t h, int64_t w, int64_t pack) const {
    return ((n * rows.extent + h) * columns.extent + w) * packs + pack;
  }
  __device__ __forceinline__ int64_t Out(int64_t n, int64_t p, int64_t q, int64_t pack) const {
    return ((n * rows.out_extent + p) * columns.out_extent + q) * packs + pack;
  }
  // What the mean of window (p, q) divides by.
  __device__ __forceinline__ float Count(Coordinate p, Coordinate q) const {
    const int64_t high = count_include_pad ? rows.CountPadded(p) : rows.Count(p);
    const int64_t cells = high * (count_include_pad ? columns.CountPadded(q) : columns.Count(q));
    return static_cast<float>(max(cells, int64_t{1}));
  }
};

// Which image, row, column and pack of channels thread `i` computes.
template <typename Index>
struct Place {
  typename Pool<Index>::Coordinate n, row, column;
  Index pack;

  __device__ __forceinline__ Place(const Pool<Index>& pool, Index i) {
    Index across, down;
    n = Divide(pool.by_height, Divide(pool.by_width, Divide(pool.by_packs, i, &pack), &across), &down);
    row = down;
    column = across;
  }
};

// visit(pack of the cell, pixel of the image) over the real cells of window (at.row, at.column), row by row, until it
// returns false.
template <typename Index, typename Visit>
__device__ __forceinline__ void ForEachCell(const Pool<Index>& pool, const Place<Index>& at, const Visit& visit) {
  using C = typename Pool<Index>::Coordinate;
  const C bottom = pool.rows.End(at.row), left = pool.columns.Begin(at.column), right = pool.columns.End(at.column);
  for (C h = pool.rows.Begin(at.row); h < bottom; h += pool.rows.dilation) {
    for (C w = left; w < right; w += pool.columns.dilation) {
      if (!visit(pool.Cell(at.n, h, w, at.pack), int64_t{h} * pool.columns.extent + w)) return;
    }
  }
}

// visit(pack of the output, its row and column) over the windows that hold the cell `at`, in their order.
template <typename Index, typename Visit>
__device__ __forceinline__ void ForEachWindow(const Pool<Index>& pool, const Place<Index>& at, const Visit& visit) {
  using C = typename Pool<Index>::Coordinate;
  const C top = pool.rows.FirstWindow(at.row), bottom = pool.rows.LastWindow(at.row);
  const C left = pool.columns.FirstWindow(at.column), right = pool.columns.LastWindow(at.column);
  for (C p = top; p <= bottom; ++p) {
    if (!pool.rows.Holds(p, at.row)) continue;
    for (C q = left; q <= right; ++q) {
      if (pool.columns.Holds(q, at.column)) visit(pool.Out(at.n, p, q, at.pack), p, q);
    }
  }
}

__device__ __forceinline__ float Load(uint8_t x) { return static_cast<float>(x); }
using cuda::Load;

// A value as it was stored, so that a maximum is copied and never rounded.
template <typename T>
__device__ __forceinline__ T LeastOf() {
  if constexpr (std::is_same_v<T, uint8_t>) {
    return 0;
  } else {
    return Store<T>(-std::numeric_limits<float>::infinity());
  }
}

// NaN is kept: once in, no comparison removes it.
template <typename T, int kN, typename Index>
__global__ void MaxPool(const Pool<Index> pool, Index size, const T* __restrict__ x, T* __restrict__ y) {
  for (Index i = ThreadInGrid<Index>(); i < size; i += ThreadsInGrid<Index>()) {
    Pack<T, kN> largest;
    for (int c = 0; c < kN; ++c) largest.values[c] = LeastOf<T>();
    ForEachCell(pool, Place<Index>(pool, i), [&](int64_t cell, int64_t) {
      const auto in = reinterpret_cast<const Pack<T, kN>*>(x)[cell];
      for (int c = 0; c < kN; ++c) {
        const float value = Load(in.values[c]);
        if (value > Load(largest.values[c]) || value != value) largest.values[c] = in.values[c];
      }
      return true;
    });
    reinterpret_cast<Pack<T, kN>*>(y)[i] = largest;
  }
}

template <typename T, int kN, typename Index>
__global__ void AvgPool(const Pool<Index> pool, Index size, const T* __restrict__ x, T* __restrict__ y) {
  for (Index i = ThreadInGrid<Index>(); i < size; i += ThreadsInGrid<Index>()) {
    const Place<Index> at(pool, i);
    float sums[kN] = {};
    ForEachCell(pool, at, [&](int64_t cell, int64_t) {
      const auto in = reinterpret_cast<const Pack<T, kN>*>(x)[cell];
      for (int c = 0; c < kN; ++c) sums[c] += Load(in.values[c]);
      return true;
    });
    const float count = pool.Count(at.row, at.column);
    Pack<T, kN> out;
    for (int c = 0; c < kN; ++c) out.values[c] = Store<T>(sums[c] / count);
    reinterpret_cast<Pack<T, kN>*>(y)[i] = out;
  }
}

// Where NaN stands for the maximum, NaN is what to look for.
__device__ __forceinline__ bool IsMaximum(float x, float y) { return x == y || (x != x && y != y); }

template <typename T, int kN, typename Index>
__global__ void MaxPoolIndex(const Pool<Index> pool, Index size, const T* __restrict__ x, const T* __restrict__ y,
                             int32_t* __restrict__ index) {
  for (Index i = ThreadInGrid<Index>(); i < size; i += ThreadsInGrid<Index>()) {
    const auto maximum = reinterpret_cast<const Pack<T, kN>*>(y)[i];
    int32_t found[kN];
    for (int c = 0; c < kN; ++c) found[c] = -1;
    int missing = kN;
    ForEachCell(pool, Place<Index>(pool, i), [&](int64_t cell, int64_t pixel) {
      const auto in = reinterpret_cast<const Pack<T, kN>*>(x)[cell];
      for (int c = 0; c < kN; ++c) {
        const bool here = found[c] < 0 && IsMaximum(Load(in.values[c]), Load(maximum.values[c]));
        found[c] = here ? static_cast<int32_t>(pixel) : found[c];
        missing -= here;
      }
      return missing > 0;
    });
    constexpr int kM = std::min(kN, 4);
    for (int c = 0; c < kN / kM; ++c) {
      Pack<int32_t, kM> out;
      for (int j = 0; j < kM; ++j) out.values[j] = found[c * kM + j];
      reinterpret_cast<Pack<int32_t, kM>*>(index)[static_cast<int64_t>(i) * (kN / kM) + c] = out;
    }
  }
}

// A bit for each of the channels whose value is the window's maximum.
template <typename T, int kN>
__device__ __forceinline__ unsigned MaximaOf(const Pack<T, kN>& x, const Pack<T, kN>& y) {
  unsigned maxima = 0;
  for (int c = 0; c < kN; ++c) maxima |= IsMaximum(Load(x.values[c]), Load(y.values[c])) ? 1u << c : 0u;
  return maxima;
}

// Each cell gathers, window by window in their order: dy of those of which it is the first cell that equals y. Only
// where it equals y at all are the cells before it looked at.
template <typename T, int kN, typename Index>
__global__ void MaxPoolGrad(const Pool<Index> pool, Index size, const T* __restrict__ dy, const T* __restrict__ x,
                            const T* __restrict__ y, T* __restrict__ dx) {
  using Channels = Pack<T, kN>;
  for (Index i = ThreadInGrid<Index>(); i < size; i += ThreadsInGrid<Index>()) {
    const Place<Index> at(pool, i);
    const Channels own = reinterpret_cast<const Channels*>(x)[i];
    float sums[kN] = {};
    ForEachWindow(pool, at, [&](int64_t out, auto p, auto q) {
      const Channels maximum = reinterpret_cast<const Channels*>(y)[out];
      unsigned first = MaximaOf(own, maximum);
      if (first == 0) return;
      Place<Index> window = at;
      window.row = p;
      window.column = q;
      ForEachCell(pool, window, [&](int64_t cell, int64_t) {
        if (cell == static_cast<int64_t>(i)) return false;
        first &= ~MaximaOf(reinterpret_cast<const Channels*>(x)[cell], maximum);
        return first != 0;
      });
      if (first == 0) return;
      const Channels gradient = reinterpret_cast<const Channels*>(dy)[out];
      for (int c = 0; c < kN; ++c) sums[c] = (first >> c & 1) != 0 ? sums[c] + Load(gradient.values[c]) : sums[c];
    });
    Channels result;
    for (int c = 0; c < kN; ++c) result.values[c] = Store<T>(sums[c]);
    reinterpret_cast<Channels*>(dx)[i] = result;
  }
}

// How MaxPoolGradTiles shares an image: blocks of kThreads take tiles of cells, of some packs of channels, and look at
// every window that holds one of them once. Cells are not dilated.
struct GradTiles {
  int rows, columns;                // cells
  int window_rows, window_columns;  // at most, in a tile
  int packs;
  int chunks, across, down;  // blocks that share a pixel's packs, a row, an image
  int window_packs;          // of all windows, at most
  int64_t blocks = 0;
};

// 0xffff in each half of the result whose T of `y`, a maximum, equals that of `x`.
template <typename T>
__device__ __forceinline__ uint32_t MaximaOfPair(uint32_t x, uint32_t y) {
#if defined(__CUDA_ARCH__)
  using Raw = std::conditional_t<std::is_same_v<T, Half>, __half2_raw, __nv_bfloat162_raw>;
  using Pair = std::conditional_t<std::is_same_v<T, Half>, __half2, __nv_bfloat162>;
  const Pair a(std::bit_cast<Raw>(x)), b(std::bit_cast<Raw>(y));
  return __heq2_mask(a, b) | (__hneu2_mask(a, a) & __hneu2_mask(b, b));
#else
  const auto as = std::bit_cast<Pack<T, 2>>(x), bs = std::bit_cast<Pack<T, 2>>(y);
  uint32_t maxima = 0;
  for (int c = 0; c < 2; ++c) maxima |= IsMaximum(Load(as.values[c]), Load(bs.values[c])) ? 0xffffu << 16 * c : 0u;
  return maxima;
#endif
}

// Sets `first` to `cell` in those channels where x is the window's maximum.
template <typename T, int kN>
__device__ __forceinline__ void MarkMaxima(const Pack<T, kN>& x, const Pack<T, kN>& y, int cell,
                                           Pack<uint16_t, kN>* first) {
  if constexpr (sizeof(T) == 2 && kN % 2 == 0) {
    using Pairs = Pack<uint32_t, kN / 2>;
    const auto xs = std::bit_cast<Pairs>(x), ys = std::bit_cast<Pairs>(y);
    auto firsts = std::bit_cast<Pairs>(*first);
    const uint32_t cells = static_cast<uint32_t>(cell) * 0x10001u;
#pragma unroll
    for (int c = 0; c < kN / 2; ++c) {
      const uint32_t maxima = MaximaOfPair<T>(xs.values[c], ys.values[c]);
      firsts.values[c] = (maxima & cells) | (~maxima & firsts.values[c]);
    }
    *first = std::bit_cast<Pack<uint16_t, kN>>(firsts);
  } else {
#pragma unroll
    for (int c = 0; c < kN; ++c) {
      const bool here = IsMaximum(Load(x.values[c]), Load(y.values[c]));
      first->values[c] = here ? static_cast<uint16_t>(cell) : first->values[c];
    }
  }
}

// The first cell of window (p, q) that is its maximum, counted row by row, in each channel; 0xffff where none is.
// `image`: the pack of x in the image's first pixel. kSize: the window's extents where both are the same and known,
// else 0.
template <typename T, int kN, int kSize>
__device__ __forceinline__ Pack<uint16_t, kN> FirstMaxima(const Pool<uint32_t>& pool, const Pack<T, kN>* x,
                                                          unsigned image, int p, int q, const Pack<T, kN>& maximum) {
  using Channels = Pack<T, kN>;
  const int top = pool.rows.First(p), left = pool.columns.First(q);
  // Where the window begins outside the image, what wraps in `at` wraps back for the cells that are inside.
  const auto packs = static_cast<unsigned>(pool.packs), row_packs = pool.columns.extent * packs;
  const unsigned at = image + top * row_packs + left * packs;
  const auto in_rows = [&](int r) { return static_cast<unsigned>(top + r) < static_cast<unsigned>(pool.rows.extent); };
  const auto in_columns = [&](int c) {
    return static_cast<unsigned>(left + c) < static_cast<unsigned>(pool.columns.extent);
  };
  Pack<uint16_t, kN> first;
#pragma unroll
  for (auto& cell : first.values) cell = 0xffff;
  // Backwards, so that the first comes last.
  if constexpr (kSize > 0) {
    // Bits of those that are in the image.
    unsigned across = 0, real = 0;
#pragma unroll
    for (int c = 0; c < kSize; ++c) across |= in_columns(c) ? 1u << c : 0u;
#pragma unroll
    for (int r = 0; r < kSize; ++r) real |= in_rows(r) ? across << r * kSize : 0u;
    // All are on their way before one is needed.
    Channels in[kSize * kSize];
#pragma unroll
    for (int k = 0; k < kSize * kSize; ++k) {
      if ((real >> k & 1) != 0) in[k] = x[at + k / kSize * row_packs + k % kSize * packs];
    }
#pragma unroll
    for (int k = kSize * kSize - 1; k >= 0; --k) {
      if ((real >> k & 1) != 0) MarkMaxima(in[k], maximum, k, &first);
    }
  } else {
    for (int r = pool.rows.size - 1; r >= 0; --r) {
#pragma unroll 4
      for (int c = pool.columns.size - 1; c >= 0; --c) {
        if (!in_rows(r) || !in_columns(c)) continue;
        MarkMaxima(x[at + r * row_packs + c * packs], maximum, r * pool.columns.size + c, &first);
      }
    }
  }
  return first;
}

// As MaxPoolGrad. First each window of a tile finds its first cells that equal y, then each cell gathers. The windows'
// gradients and first cells are in shared memory.
template <typename T, int kN, int kSize>
__global__ void __launch_bounds__(kThreads, 3)
    MaxPoolGradTiles(const Pool<uint32_t> pool, const GradTiles tiles, const Divisor row_stride,
                     const Divisor column_stride, const T* __restrict__ dy, const T* __restrict__ x,
                     const T* __restrict__ y, T* __restrict__ dx) {
  using Channels = Pack<T, kN>;
  using Firsts = Pack<uint16_t, kN>;
  auto* const gradients = DynamicShared<Channels>();
  auto* const firsts = reinterpret_cast<Firsts*>(gradients + tiles.window_packs);

  unsigned block = blockIdx.x;
  const int chunk = static_cast<int>(block % tiles.chunks);
  block /= tiles.chunks;
  const int left = static_cast<int>(block % tiles.across) * tiles.columns;
  block /= tiles.across;
  const int top = static_cast<int>(block % tiles.down) * tiles.rows;
  const int64_t n = block / tiles.down;
  const int bottom = min(top + tiles.rows, pool.rows.extent), right = min(left + tiles.columns, pool.columns.extent);

  // As Axis has them, without divisions.
  const auto first_window = [](const auto& axis, const Divisor& stride, int cell) {
    const int past = cell + axis.before - (axis.size - 1);
    return past <= 0 ? 0 : static_cast<int>(stride.Divide(past + axis.stride - 1));
  };
  const auto last_window = [](const auto& axis, const Divisor& stride, int cell) {
    return min(static_cast<int>(stride.Divide(cell + axis.before)), axis.out_extent - 1);
  };
  const int first_p = first_window(pool.rows, row_stride, top), last_p = last_window(pool.rows, row_stride, bottom - 1);
  const int first_q = first_window(pool.columns, column_stride, left);
  const int last_q = last_window(pool.columns, column_stride, right - 1);

  const int pack = static_cast<int>(threadIdx.x) % tiles.packs, line = static_cast<int>(threadIdx.x) / tiles.packs;
  const int lines = kThreads / tiles.packs, packs = static_cast<int>(pool.packs);
  const int64_t channel_pack = int64_t{chunk} * tiles.packs + pack;
  const bool works = line < lines && channel_pack < pool.packs;
  if (works) {
    const auto image = static_cast<unsigned>(pool.Cell(n, 0, 0, channel_pack));
    const auto out_image = static_cast<unsigned>(pool.Out(n, 0, 0, channel_pack));
    const int step = lines / tiles.window_columns, q = first_q + line % tiles.window_columns;
    const int row = line / tiles.window_columns;
    for (int p = first_p + row; row < step && q <= last_q && p <= last_p; p += step) {
      const unsigned out = out_image + (p * pool.columns.out_extent + q) * packs;
      const int at = ((p - first_p) * tiles.window_columns + q - first_q) * tiles.packs + pack;
      const Channels gradient = reinterpret_cast<const Channels*>(dy)[out];
      const Channels maximum = reinterpret_cast<const Channels*>(y)[out];
      firsts[at] = FirstMaxima<T, kN, kSize>(pool, reinterpret_cast<const Channels*>(x), image, p, q, maximum);
      gradients[at] = gradient;
    }
  }
  __syncthreads();
  const int step = lines / tiles.columns, row = line / tiles.columns, w = left + line % tiles.columns;
  if (!works || row >= step || w >= right) return;
  const int begin_q = first_window(pool.columns, column_stride, w);
  const int end_q = last_window(pool.columns, column_stride, w);
  auto* const image = reinterpret_cast<Channels*>(dx) + pool.Cell(n, 0, w, channel_pack);
  const int row_packs = pool.columns.extent * packs;
  for (int h = top + row; h < bottom; h += step) {
    const int end_p = last_window(pool.rows, row_stride, h);
    float sums[kN] = {};
#pragma unroll 1
    for (int p = first_window(pool.rows, row_stride, h); p <= end_p; ++p) {
      int at = ((p - first_p) * tiles.window_columns + begin_q - first_q) * tiles.packs + pack;
      int cell = (h - pool.rows.First(p)) * pool.columns.size + w - pool.columns.First(begin_q);
#pragma unroll 1
      for (int q = begin_q; q <= end_q; ++q, at += tiles.packs, cell -= pool.columns.stride) {
        const Firsts first = firsts[at];
        const Channels gradient = gradients[at];
#pragma unroll
        for (int j = 0; j < kN; ++j) sums[j] = first.values[j] == cell ? sums[j] + Load(gradient.values[j]) : sums[j];
      }
    }
    Channels result;
#pragma unroll
    for (int j = 0; j < kN; ++j) result.values[j] = Store<T>(sums[j]);
    image[h * row_packs] = result;
  }
}

template <typename T, int kN, typename Index>
__global__ void AvgPoolGrad(const Pool<Index> pool, Index size, const T* __restrict__ dy, T* __restrict__ dx) {
  for (Index i = ThreadInGrid<Index>(); i < size; i += ThreadsInGrid<Index>()) {
    float sums[kN] = {};
    ForEachWindow(pool, Place<Index>(pool, i), [&](int64_t out, auto p, auto q) {
      const auto gradient = reinterpret_cast<const Pack<T, kN>*>(dy)[out];
      const float count = pool.Count(p, q);
      for (int c = 0; c < kN; ++c) sums[c] += Load(gradient.values[c]) / count;
    });
    Pack<T, kN> result;
    for (int c = 0; c < kN; ++c) result.values[c] = Store<T>(sums[c]);
    reinterpret_cast<Pack<T, kN>*>(dx)[i] = result;
  }
}

// What is prepared for a node; a launch makes a Pool of it.
struct Windows {
  std::string name;
  Axis<int64_t> rows, columns;
  int64_t batch, channels;
  bool count_include_pad;
  bool over_image;  // threads share the image, else the output

  int64_t height() const { return over_image ? rows.extent : rows.out_extent; }
  int64_t width() const { return over_image ? columns.extent : columns.out_extent; }
};

Axis<int64_t> MakeAxis(const NodeDesc& desc, int axis, int64_t extent, int64_t out_extent) {
  const auto number = [&](const char* name, int i, int64_t absent) {
    const std::vector<int64_t> numbers = desc.attributes.Ints(name);
    return numbers.empty() ? absent : numbers[i];
  };
  Axis<int64_t> a = {.extent = extent,
                     .out_extent = out_extent,
                     .size = number("size", axis, 1),
                     .stride = number("strides", axis, 1),
                     .dilation = number("dilations", axis, 1),
                     .before = number("pads", axis, 0),
                     .padded_end = extent + number("pads", axis + 2, 0) - number("ceil_pads", axis, 0)};
  // Steps that are never taken may be of any size.
  if (a.out_extent == 1) a.stride = 1;
  if (a.size == 1) a.dilation = 1;
  return a;
}

Windows MakeWindows(const NodeDesc& desc, bool over_image) {
  const Shape& in = over_image ? desc.outputs[0].shape : desc.inputs[0].shape;
  const Shape& out = over_image ? desc.inputs[0].shape : desc.outputs[0].shape;
  return {.name = desc.name,
          .rows = MakeAxis(desc, 0, in[1], out[1]),
          .columns = MakeAxis(desc, 1, in[2], out[2]),
          .batch = in[0],
          .channels = in[3],
          .count_include_pad = desc.attributes.Bool("count_include_pad"),
          .over_image = over_image};
}

template <typename C>
Axis<C> AxisOf(const Axis<int64_t>& a) {
  return {.extent = static_cast<C>(a.extent),
          .out_extent = static_cast<C>(a.out_extent),
          .size = static_cast<C>(a.size),
          .stride = static_cast<C>(a.stride),
          .dilation = static_cast<C>(a.dilation),
          .before = static_cast<C>(a.before),
          .padded_end = static_cast<C>(a.padded_end)};
}

// Bounds what is computed along an axis: a window's begin and end, and twice that.
int64_t LargestOf(const Axis<int64_t>& a) {
  return 2 * (std::max(a.extent, a.padded_end) + a.before + a.stride + (a.size - 1) * a.dilation);
}

// Calls launch(Pool, threads, blocks) for packs of `pack` channels.
template <typename F>
absl::Status WithPool(const Context& context, const Windows& windows, int64_t pack, const F& launch) {
  const int64_t packs = windows.channels / pack;
  const int64_t size = windows.batch * windows.height() * windows.width() * packs;
  const int64_t largest = std::max({size, LargestOf(windows.rows), LargestOf(windows.columns)});
  return VisitIndex(largest, [&](auto index) {
    using Index = decltype(index);
    using C = typename Pool<Index>::Coordinate;
    const Pool<Index> pool = {.rows = AxisOf<C>(windows.rows),
                              .columns = AxisOf<C>(windows.columns),
                              .packs = packs,
                              .count_include_pad = windows.count_include_pad,
                              .by_packs = IndexDivisor<Index>(packs),
                              .by_width = IndexDivisor<Index>(windows.width()),
                              .by_height = IndexDivisor<Index>(windows.height())};
    return launch(pool, static_cast<Index>(size), BlocksFor(size, kThreads, context.properties().sm_count));
  });
}

// Nothing where windows are dilated or too large for tiles. The image and coordinates fit Pool<uint32_t>.
std::optional<GradTiles> PlanGradTiles(const Windows& windows, int64_t pack, int64_t element_bytes, int sms) {
  // Past so many cells windows would be looked at longer than they are worth, being shared by many tiles.
  constexpr int64_t kMostCells = 256, kSharedBytes = 48 << 10, kSide = 16, kLeastSide = 4;
  const Axis<int64_t>&rows = windows.rows, &columns = windows.columns;
  const int64_t packs = windows.channels / pack;
  const int64_t outputs = windows.batch * rows.out_extent * columns.out_extent * packs;
  if (outputs == 0 || outputs >= int64_t{1} << 31 || rows.size * columns.size > kMostCells) return std::nullopt;
  if (rows.dilation != 1 || columns.dilation != 1) return std::nullopt;
  const auto windows_over = [](const Axis<int64_t>& axis, int64_t cells) {
    return std::min(axis.out_extent, (cells - 1 + axis.size - 1) / axis.stride + 1);
  };
  GradTiles tiles;
  for (int64_t side = kSide; side >= kLeastSide; side /= 2) {
    const int64_t window_rows = windows_over(rows, side), window_columns = windows_over(columns, side);
    const int64_t bytes = window_rows * window_columns * pack * (2 + element_bytes);
    // A line of memory, as far as a block's threads and shared memory go.
    const int64_t most = std::min(
        {pack == 1 ? int64_t{16} : int64_t{8}, packs, kThreads / std::max(side, window_columns), kSharedBytes / bytes});
    if (most == 0) continue;
    const int64_t chunks = CeilDiv(packs, most), of_block = CeilDiv(packs, chunks);
    const int64_t across = CeilDiv(columns.extent, side), down = CeilDiv(rows.extent, side);
    tiles = {.rows = static_cast<int>(side),
             .columns = static_cast<int>(side),
             .window_rows = static_cast<int>(window_rows),
             .window_columns = static_cast<int>(window_columns),
             .packs = static_cast<int>(of_block),
             .chunks = static_cast<int>(chunks),
             .across = static_cast<int>(across),
             .down = static_cast<int>(down),
             .window_packs = static_cast<int>(window_rows * window_columns * of_block),
             .blocks = windows.batch * chunks * across * down};
    if (tiles.blocks >= 4 * sms) break;
  }
  if (tiles.blocks == 0) return std::nullopt;
  return tiles;
}

// Calls f(TypeTag, std::integral_constant of the channels that move at once).
template <bool kBytesToo, typename F>
absl::Status VisitChannels(DType dtype, int64_t channels, const F& f) {
  const auto visit = [&](auto tag) {
    constexpr int kMost = kPack<typename decltype(tag)::type>;
    if (channels % kMost == 0) return f(tag, std::integral_constant<int, kMost>());
    return f(tag, std::integral_constant<int, 1>());
  };
  if constexpr (kBytesToo) {
    if (dtype == DType::kU8) return visit(TypeTag<uint8_t>());
  }
  return VisitData(dtype, visit);
}

// A kernel over windows. launch(start, args, TypeTag, channels that move at once, an Index) calls start(kernel,
// tensors).
template <bool kBytesToo, typename F>
runtime::PrepareKernel Prepare(Context* context, bool over_image, const F& launch) {
  return [=](const NodeDesc& desc) {
    return MakeKernel(0, [=, windows = MakeWindows(desc, over_image)](const KernelArgs& args) {
      return VisitChannels<kBytesToo>(args.inputs[0].dtype, windows.channels, [&](auto tag, auto channels) {
        return WithPool(*context, windows, channels, [&](const auto& pool, auto size, unsigned blocks) {
          const auto start = [&](auto kernel, auto*... tensors) {
            return Launch(windows.name, kernel, blocks, kThreads, 0, context->stream(), pool, size, tensors...);
          };
          return launch(start, args, tag, channels, size);
        });
      });
    });
  };
}

template <typename Tag>
using TypeOf = typename Tag::type;

runtime::PrepareKernel PrepareMaxPool(Context* context) {
  return Prepare<true>(context, false, [](auto start, const KernelArgs& args, auto tag, auto channels, auto index) {
    using T = TypeOf<decltype(tag)>;
    return start(MaxPool<T, decltype(channels)::value, decltype(index)>, args.inputs[0].as<T>(),
                 args.outputs[0].as<T>());
  });
}

runtime::PrepareKernel PrepareMaxPoolIndex(Context* context) {
  return Prepare<true>(context, false, [](auto start, const KernelArgs& args, auto tag, auto channels, auto index) {
    using T = TypeOf<decltype(tag)>;
    return start(MaxPoolIndex<T, decltype(channels)::value, decltype(index)>, args.inputs[0].as<T>(),
                 args.inputs[1].as<T>(), args.outputs[0].as<int32_t>());
  });
}

template <typename T, int kN>
absl::Status LaunchGradTiles(const Context& context, const Windows& windows, const GradTiles& tiles,
                             const Pool<uint32_t>& pool, const KernelArgs& args) {
  const auto start = [&](auto kernel) {
    return Launch(windows.name, kernel, static_cast<unsigned>(tiles.blocks), kThreads,
                  int64_t{tiles.window_packs} * kN * static_cast<int64_t>(sizeof(T) + sizeof(uint16_t)),
                  context.stream(), pool, tiles, Divisor(windows.rows.stride), Divisor(windows.columns.stride),
                  args.inputs[0].as<T>(), args.inputs[1].as<T>(), args.inputs[2].as<T>(), args.outputs[0].as<T>());
  };
  const bool square = windows.rows.size == windows.columns.size;
  if constexpr (kN > 1) {
    if (square && windows.rows.size == 2) return start(MaxPoolGradTiles<T, kN, 2>);
    if (square && windows.rows.size == 3) return start(MaxPoolGradTiles<T, kN, 3>);
  }
  return start(MaxPoolGradTiles<T, kN, 0>);
}

runtime::PrepareKernel PrepareMaxPoolGrad(Context* context) {
  return [=](const NodeDesc& desc) {
    return MakeKernel(0, [=, windows = MakeWindows(desc, true)](const KernelArgs& args) {
      return VisitChannels<false>(args.inputs[0].dtype, windows.channels, [&](auto tag, auto channels) {
        using T = TypeOf<decltype(tag)>;
        constexpr int kN = decltype(channels)::value;
        return WithPool(*context, windows, kN, [&](const auto& pool, auto size, unsigned blocks) -> absl::Status {
          using Index = decltype(size);
          if constexpr (std::is_same_v<Index, uint32_t>) {
            const auto tiles = PlanGradTiles(windows, kN, sizeof(T), context->properties().sm_count);
            if (tiles) return LaunchGradTiles<T, kN>(*context, windows, *tiles, pool, args);
          }
          return Launch(windows.name, MaxPoolGrad<T, kN, Index>, blocks, kThreads, 0, context->stream(), pool, size,
                        args.inputs[0].as<T>(), args.inputs[1].as<T>(), args.inputs[2].as<T>(),
                        args.outputs[0].as<T>());
        });
      });
    });
  };
}

runtime::PrepareKernel PrepareAvgPool(Context* context) {
  return Prepare<false>(context, false, [](auto start, const KernelArgs& args, auto tag, auto channels, auto index) {
    using T = TypeOf<decltype(tag)>;
    return start(AvgPool<T, decltype(channels)::value, decltype(index)>, args.inputs[0].as<T>(),
                 args.outputs[0].as<T>());
  });
}

runtime::PrepareKernel PrepareAvgPoolGrad(Context* context) {
  return Prepare<false>(context, true, [](auto start, const KernelArgs& args, auto tag, auto channels, auto index) {
    using T = TypeOf<decltype(tag)>;
    return start(AvgPoolGrad<T, decltype(channels)::value, decltype(index)>, args.inputs[0].as<T>(),
                 args.outputs[0].as<T>());
  });
}

}  // namespace

void RegisterPool2d(runtime::KernelTable* table, Context* context) {
  constexpr DType kBytes = DType::kU8, kIndex = DType::kI32;
  for (DType t : kDataTypes) {
    table->Add(OpKind::kMaxPool2d, {t}, {t}, PrepareMaxPool(context));
    table->Add(OpKind::kMaxPool2dIndex, {t, t}, {kIndex}, PrepareMaxPoolIndex(context));
    table->Add(OpKind::kMaxPool2dGrad, {t, t, t}, {t}, PrepareMaxPoolGrad(context));
    table->Add(OpKind::kAvgPool2d, {t}, {t}, PrepareAvgPool(context));
    table->Add(OpKind::kAvgPool2dGrad, {t}, {t}, PrepareAvgPoolGrad(context));
  }
  table->Add(OpKind::kMaxPool2d, {kBytes}, {kBytes}, PrepareMaxPool(context));
  table->Add(OpKind::kMaxPool2dIndex, {kBytes, kBytes}, {kIndex}, PrepareMaxPoolIndex(context));
}

}  // namespace ampd::cuda
