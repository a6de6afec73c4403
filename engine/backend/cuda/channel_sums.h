// Sums down the columns of tensors [outer, rows, channels], for statistics and gradients per channel. A block takes a
// tile of neighbouring channels, so that its reads are whole lines, and a part of the rows; if there are several parts,
// a second kernel adds up what they left. What is added in which order depends on the shape alone. For .cu files.
//
// A *body* says what is summed; it derives from WideSums or RunSums and defines
//   template <int kWidth, typename Constants>
//   __device__ void operator()(int64_t row, int64_t channel, const Constants&, Term (&sums)[kSums][kWidth]) const
// which adds row `row` (of outer * rows) at channels channel to channel + kWidth - 1 to `sums`, and perhaps
//   template <int kWidth> __device__ Constants Begin(int64_t outer, int64_t channel) const
// for what is the same in all rows. A *finish* is called once for every channel, with its sums:
//   __device__ void operator()(int64_t outer, int64_t channel, const Total (&sums)[kSums]) const
// MapChannels() goes over a tensor in the same way, to write another: its body has the same Begin, and
//   template <typename Constants> __device__ void operator()(int64_t element, const Constants&) const
// for the kWidth elements from `element` on.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CHANNEL_SUMS_H_
#define AMPD_ENGINE_BACKEND_CUDA_CHANNEL_SUMS_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/vectors.h"
#include "engine/backend/cuda/wide.h"
#include "engine/core/status.h"

namespace ampd::cuda {

inline constexpr int kChannelThreads = 256;

// How a tensor is cut into blocks.
struct ChannelPlan {
  int64_t outer = 1, rows = 1, channels = 1;
  int width = 1;           // channels a thread takes: 16 bytes of them, or one
  int lanes = 1;           // threads side by side, a power of two up to a warp; the others take other rows
  int64_t tiles = 1;       // blocks side by side
  int64_t splits = 1;      // blocks that share the rows
  int64_t split_rows = 1;  // rows each of them takes

  int64_t blocks() const { return outer * tiles * splits; }
  // What the parts leave for the second kernel; 0 if there is none.
  int64_t workspace_bytes(int sums) const { return splits == 1 ? 0 : outer * splits * sums * channels * 8; }
};

// Elements of a dtype in 16 bytes.
inline int PackOf(DType dtype) { return 16 / static_cast<int>(SizeOf(dtype)); }

// `pack` elements are 16 bytes.
inline ChannelPlan PlanChannels(int64_t outer, int64_t rows, int64_t channels, int pack) {
  // Enough to fill any GPU; and rows that a thread should at least take, so that parts are worth adding up.
  constexpr int64_t kBlocks = 1024, kRowsOfThread = 8;
  ChannelPlan plan{.outer = outer, .rows = rows, .channels = channels};
  plan.width = channels % pack == 0 ? pack : 1;
  // A tile has no more channels than the block has threads, each of which finishes one.
  const int most_lanes = std::min(kWarp, kChannelThreads / plan.width);
  while (plan.lanes < most_lanes && plan.lanes * plan.width < channels) plan.lanes *= 2;
  plan.tiles = CeilDiv(channels, int64_t{plan.lanes} * plan.width);
  const int64_t lines = kChannelThreads / plan.lanes;
  const int64_t splits = std::clamp<int64_t>(kBlocks / (outer * plan.tiles), 1, CeilDiv(rows, lines * kRowsOfThread));
  plan.split_rows = CeilDiv(rows, splits);
  plan.splits = CeilDiv(rows, plan.split_rows);
  return plan;
}

// The thread's channels and rows under a plan, for kernels that go over the tensor as the sums do.
struct ChannelThread {
  int64_t outer, split, channel, begin, end;
  int lane, line, lines;

  __device__ __forceinline__ explicit ChannelThread(const ChannelPlan& plan) {
    lane = static_cast<int>(threadIdx.x) % plan.lanes;
    line = static_cast<int>(threadIdx.x) / plan.lanes;
    lines = kChannelThreads / plan.lanes;
    const int64_t tile = blockIdx.x % plan.tiles, part = blockIdx.x / plan.tiles;
    split = part % plan.splits;
    outer = part / plan.splits;
    channel = (tile * plan.lanes + lane) * plan.width;
    begin = split * plan.split_rows + line;
    end = min((split + 1) * plan.split_rows, plan.rows);
  }
};

// A body without constants of its channels.
struct NoConstants {
  template <int kWidth>
  __device__ NoConstants Begin(int64_t, int64_t) const {
    return {};
  }
};

// Every term is added exactly or nearly so.
template <int kSums_>
struct WideSums : NoConstants {
  static constexpr int kSums = kSums_;
  static constexpr int kRun = 1;
  using Term = Wide;
  using Sum = Wide;
  using Total = double;
  __device__ static Sum Identity() { return Sum(); }
  __device__ static void Add(Sum* sum, Term term) { *sum += term; }
  __device__ static Total Finish(Sum sum) { return ToDouble(sum); }
  __device__ static Total Join(Total a, Total b) { return a + b; }
};

// Runs of kRun terms are added in fp32, the runs' sums nearly exactly: enough where terms carry fp32's roundings
// anyway.
template <int kSums_>
struct RunSums : WideSums<kSums_> {
  static constexpr int kRun = 4;
  using Term = float;
  __device__ static void Add(Wide* sum, float run) { *sum += Wide(run); }
};

namespace channel_sums {

// Parts of a channel that a thread of FinishKernel reads at once: reads under way together take as long as one.
inline constexpr int kPartsAtOnce = 8;
// Rows likewise, of a thread of SumKernel.
inline constexpr int kRowsAtOnce = 4;

// The thread's rows.
template <int kWidth, typename Body>
__device__ __forceinline__ void SumRows(const Body& body, const ChannelPlan& plan, const ChannelThread& at,
                                        typename Body::Sum (&sums)[Body::kSums][kWidth]) {
  constexpr int kRun = Body::kRun;
  const int64_t first = at.outer * plan.rows, lines = at.lines;
  const auto constants = body.template Begin<kWidth>(at.outer, at.channel);
  int64_t row = at.begin;
  // Reads of several rows are under way at once only where nothing asks between them whether there is a row.
  if constexpr (kRun == 1) {
    for (; row + (kRowsAtOnce - 1) * lines < at.end; row += kRowsAtOnce * lines) {
#pragma unroll
      for (int k = 0; k < kRowsAtOnce; ++k) body(first + row + k * lines, at.channel, constants, sums);
    }
#pragma unroll 1
    for (; row < at.end; row += lines) body(first + row, at.channel, constants, sums);
  } else {
    const auto add = [&](const typename Body::Term(&run)[Body::kSums][kWidth]) {
#pragma unroll
      for (int s = 0; s < Body::kSums; ++s) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) Body::Add(&sums[s][j], run[s][j]);
      }
    };
    for (; row + (kRun - 1) * lines < at.end; row += kRun * lines) {
      typename Body::Term run[Body::kSums][kWidth] = {};
#pragma unroll
      for (int k = 0; k < kRun; ++k) body(first + row + k * lines, at.channel, constants, run);
      add(run);
    }
    if (row >= at.end) return;
    typename Body::Term run[Body::kSums][kWidth] = {};
#pragma unroll 1
    for (; row < at.end; row += lines) body(first + row, at.channel, constants, run);
    add(run);
  }
}

// Joins the lines of a block; thread i < lanes * kWidth gets the totals of the tile's channel i.
template <int kWidth, typename Body>
__device__ __forceinline__ void JoinLines(const ChannelPlan& plan, const ChannelThread& at,
                                          const typename Body::Sum (&sums)[Body::kSums][kWidth],
                                          typename Body::Total (&totals)[Body::kSums]) {
  using Total = typename Body::Total;
  constexpr int kWarps = kChannelThreads / kWarp;
  __shared__ Total shared[Body::kSums][kWarps][kWarp * kWidth];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int s = 0; s < Body::kSums; ++s) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      Total total = Body::Finish(sums[s][j]);
      for (int distance = kWarp / 2; distance >= plan.lanes; distance /= 2) {
        total = Body::Join(total, __shfl_xor_sync(kAllLanes, total, distance));
      }
      if (static_cast<int>(threadIdx.x) % kWarp < plan.lanes) shared[s][warp][at.lane * kWidth + j] = total;
    }
  }
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i >= plan.lanes * kWidth) return;
#pragma unroll
  for (int s = 0; s < Body::kSums; ++s) {
    totals[s] = shared[s][0][i];
    for (int w = 1; w < kWarps; ++w) totals[s] = Body::Join(totals[s], shared[s][w][i]);
  }
}

// A grid has fewer than 2^31 blocks.
template <typename... Parameters, typename... Arguments>
absl::Status LaunchBlocks(absl::string_view what, void (*kernel)(Parameters...), int64_t blocks, cudaStream_t stream,
                          Arguments&&... arguments) {
  if (blocks > std::numeric_limits<int32_t>::max()) {
    return absl::UnimplementedError(absl::StrCat("[cuda] ", what, ": too many short columns: ", blocks, " blocks"));
  }
  return Launch(what, kernel, static_cast<unsigned>(blocks), kChannelThreads, 0, stream,
                std::forward<Arguments>(arguments)...);
}

template <int kWidth, bool kSplit, typename Body, typename Finish>
__global__ void __launch_bounds__(kChannelThreads, 2)
    SumKernel(Body body, Finish finish, ChannelPlan plan, typename Body::Total* __restrict__ partial) {
  const ChannelThread at(plan);
  typename Body::Sum sums[Body::kSums][kWidth];
#pragma unroll
  for (int s = 0; s < Body::kSums; ++s) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sums[s][j] = Body::Identity();
  }
  if (at.channel < plan.channels) SumRows<kWidth>(body, plan, at, sums);
  typename Body::Total totals[Body::kSums];
  JoinLines<kWidth, Body>(plan, at, sums, totals);
  const int i = static_cast<int>(threadIdx.x);
  const int64_t channel = at.channel - at.lane * kWidth + i;
  if (i >= plan.lanes * kWidth || channel >= plan.channels) return;
  if constexpr (kSplit) {
    for (int s = 0; s < Body::kSums; ++s) {
      partial[((at.outer * plan.splits + at.split) * Body::kSums + s) * plan.channels + channel] = totals[s];
    }
  } else {
    finish(at.outer, channel, totals);
  }
}

// A block adds up the parts of 1 to 32 channels, a power of two, as the grid has it: outer * CeilDiv(channels, as many)
// blocks. The block's threads share the parts, which they wait for together.
template <typename Body, typename Finish>
__global__ void __launch_bounds__(kChannelThreads, 2)
    FinishKernel(Finish finish, ChannelPlan plan, const typename Body::Total* __restrict__ partial) {
  using Total = typename Body::Total;
  constexpr int kSums = Body::kSums, kWarps = kChannelThreads / kWarp;
  __shared__ Total shared[kSums][kWarps][kWarp];
  int log_width = 0;
  const auto tiles_of = [&](int log) { return (plan.channels + (int64_t{1} << log) - 1) >> log; };
  while (plan.outer * tiles_of(log_width) > int64_t{gridDim.x}) ++log_width;
  const int width = 1 << log_width, thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp, warp = thread / kWarp;
  const auto tiles = static_cast<unsigned>(tiles_of(log_width));
  const int64_t outer = blockIdx.x / tiles;
  const int64_t channel = int64_t{blockIdx.x % tiles} * width + (thread & (width - 1));
  Total totals[kSums];
#pragma unroll
  for (int s = 0; s < kSums; ++s) totals[s] = Body::Finish(Body::Identity());
  if (channel < plan.channels) {
    const int lines = kChannelThreads >> log_width;
    int64_t split = thread >> log_width;
    const int64_t step = lines * kSums * plan.channels;
    const Total* at = partial + (outer * plan.splits + split) * kSums * plan.channels + channel;
    while (split < plan.splits) {
      Total parts[kPartsAtOnce][kSums];
#pragma unroll
      for (int k = 0; k < kPartsAtOnce; ++k, split += lines, at += step) {
#pragma unroll
        for (int s = 0; s < kSums; ++s) {
          parts[k][s] = split < plan.splits ? at[s * plan.channels] : Body::Finish(Body::Identity());
        }
      }
#pragma unroll
      for (int k = 0; k < kPartsAtOnce; ++k) {
#pragma unroll
        for (int s = 0; s < kSums; ++s) totals[s] = Body::Join(totals[s], parts[k][s]);
      }
    }
  }
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    for (int distance = kWarp / 2; distance >= width; distance /= 2) {
      totals[s] = Body::Join(totals[s], __shfl_xor_sync(kAllLanes, totals[s], distance));
    }
    if (lane < width) shared[s][warp][lane] = totals[s];
  }
  __syncthreads();
  if (thread >= width || channel >= plan.channels) return;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    for (int w = 1; w < kWarps; ++w) totals[s] = Body::Join(totals[s], shared[s][w][lane]);
  }
  finish(outer, channel, totals);
}

// Blocks for FinishKernel: by as many channels each as leave a thread kPartsAtOnce parts, but by whole sectors of
// memory.
inline int64_t FinishBlocks(const ChannelPlan& plan) {
  constexpr int64_t kSector = 4;
  int64_t width = kWarp;
  while (width > kSector && plan.splits * width > kPartsAtOnce * kChannelThreads) width /= 2;
  return plan.outer * CeilDiv(plan.channels, width);
}

template <int kWidth, typename Body>
__global__ void __launch_bounds__(kChannelThreads) MapKernel(Body body, ChannelPlan plan) {
  const ChannelThread at(plan);
  if (at.channel >= plan.channels) return;
  const auto constants = body.template Begin<kWidth>(at.outer, at.channel);
  const int64_t first = at.outer * plan.rows;
#pragma unroll 4
  for (int64_t row = at.begin; row < at.end; row += at.lines) {
    body((first + row) * plan.channels + at.channel, constants);
  }
}

}  // namespace channel_sums

// Calls f(width) with the plan's width as a compile-time constant; `kPacked` is that of 16 bytes.
template <int kPacked, typename F>
auto VisitChannelWidth(const ChannelPlan& plan, F&& f) {
  if (plan.width == kPacked) return f(std::integral_constant<int, kPacked>());
  return f(std::integral_constant<int, 1>());
}

// `workspace` holds plan.workspace_bytes(Body::kSums).
template <int kPacked, typename Body, typename Finish>
absl::Status SumChannels(absl::string_view what, const ChannelPlan& plan, const Body& body, const Finish& finish,
                         void* workspace, cudaStream_t stream) {
  using channel_sums::FinishKernel, channel_sums::LaunchBlocks, channel_sums::SumKernel;
  auto* partial = static_cast<typename Body::Total*>(workspace);
  return VisitChannelWidth<kPacked>(plan, [&](auto width) -> absl::Status {
    if (plan.splits == 1) {
      return LaunchBlocks(what, SumKernel<width.value, false, Body, Finish>, plan.blocks(), stream, body, finish, plan,
                          partial);
    }
    AMPD_RETURN_IF_ERROR(LaunchBlocks(what, SumKernel<width.value, true, Body, Finish>, plan.blocks(), stream, body,
                                      finish, plan, partial));
    return LaunchBlocks(what, FinishKernel<Body, Finish>, channel_sums::FinishBlocks(plan), stream, finish, plan,
                        partial);
  });
}

template <int kPacked, typename Body>
absl::Status MapChannels(absl::string_view what, const ChannelPlan& plan, const Body& body, cudaStream_t stream) {
  return VisitChannelWidth<kPacked>(plan, [&](auto width) {
    return channel_sums::LaunchBlocks(what, channel_sums::MapKernel<width.value, Body>, plan.blocks(), stream, body,
                                      plan);
  });
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_CHANNEL_SUMS_H_
