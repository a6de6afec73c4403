#include "engine/backend/cuda/conv_direct.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

// A block computes kTile x kTile results of the product, kDepth terms at a time; a thread kEach x kEach of them.
constexpr int kTile = 64, kDepth = 16, kEach = 4, kThreads = 256;
constexpr int64_t kMaxGridY = 65535;
// Sums of a filter's gradient are cut up until there is work for this many blocks a multiprocessor.
constexpr int kBlocksPerSm = 4;
constexpr int kReduceThreads = 256;

// As ConvDesc, with what the kernels compute from it. Channels and filters of one group.
struct Geometry {
  int h, w, c, k, r, s, p, q, groups;
  int stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;
  bool tf32;
  // The product of one group: rows x inner by inner x columns. A part has `part` of the inner terms.
  int64_t rows, columns, inner, part;
  int parts;
};

struct Pixel {
  int64_t image;
  int y, x;
};

__device__ __forceinline__ Pixel PixelOf(int64_t i, int height, int width) {
  const int64_t row = i / width;
  return {row / height, static_cast<int>(row % height), static_cast<int>(i % width)};
}

struct Cell {
  int r, s, c;
};

// Of filters [.., r, s, c] with `c` channels.
__device__ __forceinline__ Cell CellOf(int64_t i, int s, int c) {
  const auto pixel = static_cast<int>(i / c);
  return {pixel / s, pixel % s, static_cast<int>(i % c)};
}

// The image's element under `cell` of a filter that stands at an output pixel; 0 in the padding.
template <typename T>
__device__ __forceinline__ float UnderFilter(const Geometry& g, const T* x, int group, const Pixel& at,
                                             const Cell& cell) {
  const int64_t y = static_cast<int64_t>(at.y) * g.stride_h - g.pad_h + static_cast<int64_t>(cell.r) * g.dilation_h;
  const int64_t z = static_cast<int64_t>(at.x) * g.stride_w - g.pad_w + static_cast<int64_t>(cell.s) * g.dilation_w;
  if (y < 0 || y >= g.h || z < 0 || z >= g.w) return 0;
  const int64_t channels = static_cast<int64_t>(g.c) * g.groups;
  return Load(x[((at.image * g.h + y) * g.w + z) * channels + static_cast<int64_t>(group) * g.c + cell.c]);
}

// output[pixel][k] = sum over cells of image[pixel, cell] filter[k][cell].
struct Forward {
  static constexpr bool kInnerFirstA = true, kInnerFirstB = true;
  template <typename T>
  __device__ static float A(const Geometry& g, const T* x, int group, int64_t row, int64_t inner) {
    return UnderFilter(g, x, group, PixelOf(row, g.p, g.q), CellOf(inner, g.s, g.c));
  }
  template <typename T>
  __device__ static float B(const Geometry& g, const T* w, int group, int64_t inner, int64_t column) {
    return Load(w[(static_cast<int64_t>(group) * g.k + column) * g.inner + inner]);
  }
  __device__ static int64_t Result(const Geometry& g, int group, int64_t row, int64_t column) {
    return (row * g.groups + group) * g.k + column;
  }
};

// image[pixel][c] = sum over r, s, k of output[the pixel where cell (r, s) stands on this one][k] filter[k][r, s][c].
struct GradInput {
  static constexpr bool kInnerFirstA = true, kInnerFirstB = false;
  template <typename T>
  __device__ static float A(const Geometry& g, const T* dy, int group, int64_t row, int64_t inner) {
    const Pixel at = PixelOf(row, g.h, g.w);
    const Cell cell = CellOf(inner, g.s, g.k);
    const int64_t y = static_cast<int64_t>(at.y) + g.pad_h - static_cast<int64_t>(cell.r) * g.dilation_h;
    const int64_t x = static_cast<int64_t>(at.x) + g.pad_w - static_cast<int64_t>(cell.s) * g.dilation_w;
    if (y < 0 || x < 0 || y % g.stride_h != 0 || x % g.stride_w != 0) return 0;
    const int64_t p = y / g.stride_h, q = x / g.stride_w;
    if (p >= g.p || q >= g.q) return 0;
    const int64_t channels = static_cast<int64_t>(g.k) * g.groups;
    return Load(dy[((at.image * g.p + p) * g.q + q) * channels + static_cast<int64_t>(group) * g.k + cell.c]);
  }
  template <typename T>
  __device__ static float B(const Geometry& g, const T* w, int group, int64_t inner, int64_t column) {
    const int64_t filter = static_cast<int64_t>(group) * g.k + inner % g.k, cell = inner / g.k;
    return Load(w[(filter * g.r * g.s + cell) * g.c + column]);
  }
  __device__ static int64_t Result(const Geometry& g, int group, int64_t row, int64_t column) {
    return (row * g.groups + group) * g.c + column;
  }
};

// filter[k][cell] = sum over pixels of output[pixel][k] image[pixel, cell].
struct GradFilter {
  static constexpr bool kInnerFirstA = false, kInnerFirstB = false;
  template <typename T>
  __device__ static float A(const Geometry& g, const T* dy, int group, int64_t row, int64_t inner) {
    return Load(dy[(inner * g.groups + group) * g.k + row]);
  }
  template <typename T>
  __device__ static float B(const Geometry& g, const T* x, int group, int64_t inner, int64_t column) {
    return UnderFilter(g, x, group, PixelOf(inner, g.p, g.q), CellOf(column, g.s, g.c));
  }
  __device__ static int64_t Result(const Geometry& g, int group, int64_t row, int64_t column) {
    return (static_cast<int64_t>(group) * g.k + row) * g.columns + column;
  }
};

// Where in a tile the i-th element that this thread fetches lies: neighbouring threads take neighbours in memory.
struct TilePlace {
  int depth, side;
};
template <bool kInnerFirst>
__device__ __forceinline__ TilePlace PlaceOf(int i) {
  const int at = i * kThreads + static_cast<int>(threadIdx.x);
  if constexpr (kInnerFirst) return {at % kDepth, at / kDepth};
  return {at / kTile, at % kTile};
}

// Blocks: columns' tiles, rows' tiles (several where they pass the grid's limit), groups x parts. With several parts
// each leaves its sums at `result` + part * `size`.
template <typename Product, typename T, typename Out>
__global__ __launch_bounds__(kThreads) void Convolve(Geometry g, const T* __restrict__ a, const T* __restrict__ b,
                                                     int64_t size, Out* __restrict__ result) {
  __shared__ float tile_a[kDepth][kTile + 1], tile_b[kDepth][kTile + 1];
  const int group = static_cast<int>(blockIdx.z) / g.parts, part = static_cast<int>(blockIdx.z) % g.parts;
  const int64_t begin = part * g.part, end = min(begin + g.part, g.inner);
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kTile;
  const int thread_row = static_cast<int>(threadIdx.x) / (kTile / kEach);
  const int thread_column = static_cast<int>(threadIdx.x) % (kTile / kEach);
  for (int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTile; first_row < g.rows;
       first_row += static_cast<int64_t>(gridDim.y) * kTile) {
    float sums[kEach][kEach] = {};
    for (int64_t k = begin; k < end; k += kDepth) {
      for (int i = 0; i < kTile * kDepth / kThreads; ++i) {
        const TilePlace at = PlaceOf<Product::kInnerFirstA>(i);
        const int64_t row = first_row + at.side, inner = k + at.depth;
        const float value = row < g.rows && inner < end ? Product::A(g, a, group, row, inner) : 0.0f;
        tile_a[at.depth][at.side] = g.tf32 ? RoundToTf32(value) : value;
      }
      for (int i = 0; i < kTile * kDepth / kThreads; ++i) {
        const TilePlace at = PlaceOf<Product::kInnerFirstB>(i);
        const int64_t column = first_column + at.side, inner = k + at.depth;
        const float value = column < g.columns && inner < end ? Product::B(g, b, group, inner, column) : 0.0f;
        tile_b[at.depth][at.side] = g.tf32 ? RoundToTf32(value) : value;
      }
      __syncthreads();
      for (int depth = 0; depth < kDepth; ++depth) {
        float x[kEach], y[kEach];
        for (int i = 0; i < kEach; ++i) x[i] = tile_a[depth][thread_row + i * (kTile / kEach)];
        for (int j = 0; j < kEach; ++j) y[j] = tile_b[depth][thread_column + j * (kTile / kEach)];
        for (int i = 0; i < kEach; ++i) {
          for (int j = 0; j < kEach; ++j) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
        }
      }
      __syncthreads();
    }
    for (int i = 0; i < kEach; ++i) {
      const int64_t row = first_row + thread_row + i * (kTile / kEach);
      for (int j = 0; j < kEach; ++j) {
        const int64_t column = first_column + thread_column + j * (kTile / kEach);
        if (row >= g.rows || column >= g.columns) continue;
        result[part * size + Product::Result(g, group, row, column)] = Store<Out>(sums[i][j]);
      }
    }
  }
}

template <typename Out>
__global__ void AddParts(const float* __restrict__ sums, int parts, int64_t size, Out* __restrict__ result) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kReduceThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kReduceThreads + threadIdx.x; i < size; i += stride) {
    float sum = 0;
    for (int part = 0; part < parts; ++part) sum += sums[part * size + i];
    result[i] = Store<Out>(sum);
  }
}

int64_t Product4(const std::array<int64_t, 4>& d) { return d[0] * d[1] * d[2] * d[3]; }

absl::StatusOr<Geometry> MakeGeometry(const std::string& name, const ConvDesc& d) {
  for (const auto& extents : {d.image, d.filter, d.output}) {
    for (int64_t extent : extents) {
      if (extent >= 1 && extent <= std::numeric_limits<int>::max()) continue;
      return absl::InvalidArgumentError(absl::StrCat("[conv] ", name, ": an extent is out of range: ", ConvKey(d)));
    }
  }
  for (const auto& pair : {d.strides, d.dilations, d.before}) {
    for (int64_t value : pair) {
      if (value >= 0 && value <= std::numeric_limits<int>::max()) continue;
      return absl::InvalidArgumentError(absl::StrCat("[conv] ", name, ": the window is out of range: ", ConvKey(d)));
    }
  }
  const auto n = [](int64_t value) { return static_cast<int>(value); };
  Geometry g = {};
  g.h = n(d.image[1]), g.w = n(d.image[2]), g.c = n(d.filter[3]), g.k = n(d.filter[0] / d.groups);
  g.r = n(d.filter[1]), g.s = n(d.filter[2]), g.p = n(d.output[1]), g.q = n(d.output[2]), g.groups = n(d.groups);
  g.stride_h = n(d.strides[0]), g.stride_w = n(d.strides[1]);
  g.dilation_h = n(d.dilations[0]), g.dilation_w = n(d.dilations[1]);
  g.pad_h = n(d.before[0]), g.pad_w = n(d.before[1]);
  g.tf32 = d.tf32;
  const int64_t cells = d.filter[1] * d.filter[2], pixels = d.output[0] * d.output[1] * d.output[2];
  if (d.kind == ConvKind::kForward) g.rows = pixels, g.columns = g.k, g.inner = cells * g.c;
  if (d.kind == ConvKind::kGradInput) {
    g.rows = d.image[0] * d.image[1] * d.image[2], g.columns = g.c, g.inner = cells * g.k;
  }
  if (d.kind == ConvKind::kGradFilter) g.rows = g.k, g.columns = cells * g.c, g.inner = pixels;
  g.part = g.inner;
  g.parts = 1;
  return g;
}

class DirectConv : public Conv {
 public:
  DirectConv(std::string name, const ConvDesc& desc, const Geometry& geometry, Context* context)
      : name_(std::move(name)), desc_(desc), geometry_(geometry), context_(context) {
    if (desc_.kind == ConvKind::kGradFilter) CutUp();
  }

  int64_t workspace_bytes() const override {
    return geometry_.parts == 1 ? 0 : geometry_.parts * ResultSize() * static_cast<int64_t>(sizeof(float));
  }
  std::string algorithm() const override { return "direct"; }

  absl::Status Run(const ConvArgs& args) override {
    return VisitData(desc_.operands, [&](auto from) {
      using T = typename decltype(from)::type;
      if (desc_.result != DType::kF32) return RunParts<T, T>(args);
      return RunParts<T, float>(args);
    });
  }

 private:
  int64_t ResultSize() const {
    if (desc_.kind == ConvKind::kForward) return Product4(desc_.output);
    return Product4(desc_.kind == ConvKind::kGradInput ? desc_.image : desc_.filter);
  }

  // A filter has few elements and its gradient long sums: cut up, they keep the device busy.
  void CutUp() {
    const int64_t tiles = CeilDiv(geometry_.rows, kTile) * CeilDiv(geometry_.columns, kTile) * geometry_.groups;
    const int64_t wanted = CeilDiv(int64_t{context_->properties().sm_count} * kBlocksPerSm, tiles);
    const int64_t room = kMaxConvWorkspace / (ResultSize() * static_cast<int64_t>(sizeof(float)));
    const int64_t grid = 65535 / geometry_.groups;
    const int64_t parts = std::min({wanted, CeilDiv(geometry_.inner, 8 * kDepth), room, grid});
    if (parts < 2) return;
    geometry_.part = CeilDiv(CeilDiv(geometry_.inner, parts), kDepth) * kDepth;
    geometry_.parts = static_cast<int>(CeilDiv(geometry_.inner, geometry_.part));
  }

  template <typename T, typename Out>
  absl::Status RunParts(const ConvArgs& args) {
    if (geometry_.parts == 1) return RunKind<T>(args, static_cast<Out*>(args.result));
    auto* sums = static_cast<float*>(args.workspace);
    AMPD_RETURN_IF_ERROR(RunKind<T>(args, sums));
    const unsigned blocks = BlocksFor(ResultSize(), kReduceThreads, context_->properties().sm_count);
    return Launch(name_, AddParts<Out>, blocks, kReduceThreads, 0, context_->stream(), sums, geometry_.parts,
                  ResultSize(), static_cast<Out*>(args.result));
  }

  template <typename T, typename Out>
  absl::Status RunKind(const ConvArgs& args, Out* result) {
    if (desc_.kind == ConvKind::kForward) return Run<Forward, T>(args, result);
    if (desc_.kind == ConvKind::kGradInput) return Run<GradInput, T>(args, result);
    return Run<GradFilter, T>(args, result);
  }

  template <typename Product, typename T, typename Out>
  absl::Status Run(const ConvArgs& args, Out* result) {
    const dim3 grid(static_cast<unsigned>(CeilDiv(geometry_.columns, kTile)),
                    static_cast<unsigned>(std::min(CeilDiv(geometry_.rows, kTile), kMaxGridY)),
                    static_cast<unsigned>(geometry_.groups * geometry_.parts));
    return Launch(name_, Convolve<Product, T, Out>, grid, kThreads, 0, context_->stream(), geometry_,
                  static_cast<const T*>(args.a), static_cast<const T*>(args.b), ResultSize(), result);
  }

  const std::string name_;
  const ConvDesc desc_;
  Geometry geometry_;
  Context* const context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Conv>> MakeDirectConv(std::string name, const ConvDesc& desc, Context* context) {
  if (desc.fusion != ConvFusion::kNone) {
    return absl::InvalidArgumentError(absl::StrCat("[conv] ", name, ": nothing is fused into ", ConvKey(desc)));
  }
  if (desc.groups > kMaxGridY) {
    return absl::UnimplementedError(
        absl::StrCat("[conv] ", name, ": ", desc.groups, " groups, at most ", kMaxGridY, " are supported"));
  }
  AMPD_ASSIGN_OR_RETURN(const Geometry geometry, MakeGeometry(name, desc));
  return std::unique_ptr<Conv>(std::make_unique<DirectConv>(std::move(name), desc, geometry, context));
}

}  // namespace ampd::cuda
