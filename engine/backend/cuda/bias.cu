// The gradient of a bias: the sums of a matrix's columns. bias_add itself is elementwise_binary.cu's.
#include <algorithm>

#include "engine/backend/cuda/block_sum.h"
#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;
// Rows that a thread has on their way at once, and adds in fp32; more are added in double.
constexpr int kRowsAtOnce = 4;

// How a matrix is cut: a block takes `threads_across` * N columns of one chunk of the rows.
struct ColumnTiles {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t rows_per_chunk = 0;
  int64_t chunks = 0;
  int32_t threads_across = 0;  // a power of two
};

// Sums of N columns over every `step`th row from `row` on.
template <typename T, int N>
__device__ void SumRows(const T* __restrict__ x, int64_t columns, int64_t row, int64_t end, int64_t step,
                        double (&sums)[N]) {
  for (; row < end; row += kRowsAtOnce * step) {
    Pack<T, N> packs[kRowsAtOnce];
#pragma unroll
    for (int k = 0; k < kRowsAtOnce; ++k) {
      if (row + k * step < end) packs[k] = *reinterpret_cast<const Pack<T, N>*>(x + (row + k * step) * columns);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float sum = 0;
#pragma unroll
      for (int k = 0; k < kRowsAtOnce; ++k) {
        if (row + k * step < end) sum += Load(packs[k].values[j]);
      }
      sums[j] += static_cast<double>(sum);
    }
  }
}

// Column c of chunk k to partial[k * columns + c], or, where there is one chunk, to y[c].
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    SumColumns(const T* __restrict__ x, ColumnTiles tiles, double* __restrict__ partial, float* __restrict__ y) {
  constexpr int kWarps = kThreads / kWarp;
  // With as much behind each line as lets 16 columns side by side lie in as many banks.
  __shared__ double shared[kWarps][N][kWarp + 16 / N];
  const int across = static_cast<int>(threadIdx.x) % tiles.threads_across;
  const int down = static_cast<int>(threadIdx.x) / tiles.threads_across;
  const int threads_down = kThreads / tiles.threads_across;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * tiles.threads_across + across) * N;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * tiles.rows_per_chunk;
  const int64_t end = min(tiles.rows, first + tiles.rows_per_chunk);
  double sums[N] = {};
  if (column < tiles.columns) SumRows(x + column, tiles.columns, first + down, end, threads_down, sums);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    for (int distance = kWarp / 2; distance >= tiles.threads_across; distance /= 2) {
      sums[j] += __shfl_xor_sync(kAllLanes, sums[j], distance);
    }
    if (lane < tiles.threads_across) shared[warp][j][lane] = sums[j];
  }
  __syncthreads();
  const int own = static_cast<int>(threadIdx.x);
  const int64_t own_column = column - across * N + own;
  if (own >= tiles.threads_across * N || own_column >= tiles.columns) return;
  double sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += shared[w][own % N][own / N];
  if (tiles.chunks == 1) {
    y[own_column] = static_cast<float>(sum);
  } else {
    partial[static_cast<int64_t>(blockIdx.y) * tiles.columns + own_column] = sum;
  }
}

// A block adds up the chunks of 32 columns: each of as many warps takes every 32nd chunk, then one of the columns.
__global__ void __launch_bounds__(kWarp* kWarp)
    SumChunks(const double* __restrict__ partial, int64_t columns, int64_t chunks, float* __restrict__ y) {
  __shared__ double shared[kWarp][kWarp + 1];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kWarp;
  double sum = 0;
  if (first + lane < columns) {
#pragma unroll 4
    for (int64_t k = warp; k < chunks; k += kWarp) sum += partial[k * columns + first + lane];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  sum = WarpReduce(shared[lane][warp], SumOf());
  if (lane == 0 && first + warp < columns) y[first + warp] = static_cast<float>(sum);
}

// As many chunks as fill the device, of rows enough for every thread to have kRowsAtOnce.
ColumnTiles MakeTiles(const Shape& shape, int width, int sm_count) {
  ColumnTiles tiles;
  tiles.columns = shape.empty() ? 1 : shape.back();
  tiles.rows = NumElements(shape) / std::max<int64_t>(tiles.columns, 1);
  tiles.threads_across = 1;
  while (tiles.threads_across < kWarp && tiles.threads_across * width < tiles.columns) tiles.threads_across *= 2;
  const int64_t across = std::max<int64_t>(1, CeilDiv(tiles.columns, int64_t{tiles.threads_across} * width));
  const int64_t least = int64_t{kThreads / tiles.threads_across} * kRowsAtOnce;
  const int64_t wanted = CeilDiv(int64_t{4} * sm_count, across);
  tiles.rows_per_chunk = std::max(least, CeilDiv(tiles.rows, wanted));
  tiles.chunks = std::max<int64_t>(1, CeilDiv(tiles.rows, tiles.rows_per_chunk));
  return tiles;
}

template <typename T, int N>
std::unique_ptr<runtime::Kernel> Prepare(const Context* context, const runtime::NodeDesc& desc) {
  const ColumnTiles tiles = MakeTiles(desc.inputs[0].shape, N, context->properties().sm_count);
  const dim3 grid(static_cast<unsigned>(std::max<int64_t>(1, CeilDiv(tiles.columns, tiles.threads_across * N))),
                  static_cast<unsigned>(tiles.chunks));
  WorkspaceLayout workspace;
  const int64_t partial_at =
      workspace.Add(tiles.chunks == 1 ? 0 : tiles.chunks * tiles.columns * static_cast<int64_t>(sizeof(double)));
  return MakeKernel(workspace.bytes(), [=, name = desc.name](const runtime::KernelArgs& args) {
    double* partial = WorkspaceAt<double>(args, partial_at);
    float* y = args.outputs[0].as<float>();
    const absl::Status status =
        Launch(name, SumColumns<T, N>, grid, kThreads, 0, context->stream(), args.inputs[0].as<T>(), tiles, partial, y);
    if (!status.ok() || tiles.chunks == 1) return status;
    return Launch(name, SumChunks, static_cast<unsigned>(CeilDiv(tiles.columns, kWarp)), kWarp * kWarp, 0,
                  context->stream(), partial, tiles.columns, tiles.chunks, y);
  });
}

}  // namespace

void RegisterBias(runtime::KernelTable* table, Context* context) {
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kBiasAddGrad, {t}, {DType::kF32}, [context](const runtime::NodeDesc& desc) {
      return VisitData(desc.inputs[0].dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const bool whole = !desc.inputs[0].shape.empty() && desc.inputs[0].shape.back() % kPack<T> == 0;
        return whole ? Prepare<T, kPack<T>>(context, desc) : Prepare<T, 1>(context, desc);
      });
    });
  }
}

}  // namespace ampd::cuda
