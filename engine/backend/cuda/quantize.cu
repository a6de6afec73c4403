#include "engine/backend/cuda/quantize.h"

#include <algorithm>
#include <cmath>

#include "engine/backend/cuda/block_sum.h"
#include "engine/backend/cuda/byte_tiles.h"
#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/index_math.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/vectors.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int kThreads = 256;
// Elements of one thread at a time: 16 bytes of 16-bit values.
constexpr int kN = 8;
// Codes in a word.
constexpr int kWord = 4;
static_assert(kThreads == kByteTileThreads);
// Parts of a tensor whose largest magnitudes are found on their own, at most; the second launch combines them.
constexpr int kMostParts = 1024;
// Scales stay where both they and their reciprocals are normal floats.
constexpr float kLargestScale = 0x1p126f;

// y = f(x), element by element, in f32.
template <typename T, typename Y, typename F>
__device__ __forceinline__ void ForEach(const T* x, int64_t size, Y* y, const F& f) {
  const int64_t first = ThreadInGrid<int64_t>();
  for (int64_t i = first; i < size / kN; i += ThreadsInGrid<int64_t>()) {
    float values[kN];
    LoadFloats<kN>(x + i * kN, values);
#pragma unroll
    for (int j = 0; j < kN; ++j) values[j] = f(values[j]);
    StoreFloats<kN>(values, y + i * kN);
  }
  const int64_t rest = size / kN * kN + first;
  if (rest < size) y[rest] = Store<Y>(f(Load(x[rest])));
}

// The bits of magnitudes order as the magnitudes do, with NaN above infinity.
__device__ __forceinline__ uint32_t MagnitudeBits(float x) { return FloatBits(x) & 0x7fffffffu; }

// Finite values saturate; infinities and NaN stay, so that the step's check still sees an overflow.
template <typename Code>
struct Quantizer {
  static constexpr float kLimit = std::is_same_v<Code, Float8E4M3> ? 448.0f : 57344.0f;
  float factor;
  uint32_t largest = 0;  // magnitude of all values

  __device__ __forceinline__ Code operator()(float value) {
    const uint32_t magnitude = MagnitudeBits(value);
    largest = max(largest, magnitude);
    return Store<Code>(magnitude < 0x7f800000u ? min(max(value * factor, -kLimit), kLimit) : value);
  }

  // Four codes, the first in the lowest byte.
  __device__ __forceinline__ uint32_t FourOf(const float (&values)[kWord]) {
#if defined(AMPD_CONVERTS_FLOAT8)
    uint32_t magnitude = MagnitudeBits(values[0]);
#pragma unroll
    for (int j = 1; j < kWord; ++j) magnitude = max(magnitude, MagnitudeBits(values[j]));
    if (magnitude < 0x7f800000u) {
      largest = max(largest, magnitude);
      return SaturatedPair<Code>(values[0] * factor, values[1] * factor) |
             SaturatedPair<Code>(values[2] * factor, values[3] * factor) << 16;
    }
#endif
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < kWord; ++j) word |= static_cast<uint32_t>((*this)(values[j]).bits) << (8 * j);
    return word;
  }
};

__device__ __forceinline__ void KeepLargest(uint32_t largest, uint32_t* by_part) {
  largest = BlockReduce(largest, 0u, MaxOf());
  if (threadIdx.x == 0) by_part[blockIdx.x] = largest;
}

// kTracks: also the largest magnitude of each block's part.
template <bool kTracks, typename T, typename Code>
__global__ void Quantize(const T* __restrict__ x, const float* __restrict__ scale, int64_t size, Code* __restrict__ y,
                         uint32_t* __restrict__ by_part) {
  Quantizer<Code> quantize{*scale};
  const int64_t first = ThreadInGrid<int64_t>();
  for (int64_t i = first; i < size / kN; i += ThreadsInGrid<int64_t>()) {
    float values[kN];
    LoadFloats<kN>(x + i * kN, values);
    Pack<uint32_t, kN / kWord> words;
#pragma unroll
    for (int w = 0; w < kN / kWord; ++w) {
      const float four[kWord] = {values[4 * w], values[4 * w + 1], values[4 * w + 2], values[4 * w + 3]};
      words.values[w] = quantize.FourOf(four);
    }
    *reinterpret_cast<Pack<uint32_t, kN / kWord>*>(y + i * kN) = words;
  }
  const int64_t rest = size / kN * kN + first;
  if (rest < size) y[rest] = quantize(Load(x[rest]));
  if constexpr (kTracks) KeepLargest(quantize.largest, by_part);
}

// Of [rows, columns], also as [columns, rows]: a block does tiles, one after another. Both are multiples of 4.
template <typename T, typename Code>
__global__ void __launch_bounds__(kByteTileThreads)
    QuantizeAndTurn(const T* __restrict__ x, const float* __restrict__ scale, int64_t rows, int64_t columns,
                    Code* __restrict__ y, Code* __restrict__ turned, uint32_t* __restrict__ by_part) {
  // Squares whose values are on their way at once.
  constexpr int kAhead = sizeof(T) == 4 ? 2 : ByteTile::kSquares;
  __shared__ ByteTile tile;
  Quantizer<Code> quantize{*scale};
  const int64_t tiles = ByteTiles(rows, columns, kByteTileSide);
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const TilePlace place(rows, columns, kByteTileSide, t);
#pragma unroll 1
    for (int first = 0; first < ByteTile::kSquares; first += kAhead) {
      Pack<T, kWord> packs[kAhead][kByteSquare];
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        const int64_t row = place.row + ByteTile::Row(first + s), column = place.column + ByteTile::Column(first + s);
        if (row >= rows || column >= columns) continue;
#pragma unroll
        for (int r = 0; r < kByteSquare; ++r) {
          packs[s][r] = *reinterpret_cast<const Pack<T, kWord>*>(x + (row + r) * columns + column);
        }
      }
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        const int64_t row = place.row + ByteTile::Row(first + s), column = place.column + ByteTile::Column(first + s);
        if (row >= rows || column >= columns) continue;
        uint32_t words[kByteSquare];
#pragma unroll
        for (int r = 0; r < kByteSquare; ++r) {
          float values[kWord];
#pragma unroll
          for (int j = 0; j < kWord; ++j) values[j] = Load(packs[s][r].values[j]);
          words[r] = quantize.FourOf(values);
          *reinterpret_cast<uint32_t*>(y + (row + r) * columns + column) = words[r];
        }
        tile.Put(first + s, words);
      }
    }
    __syncthreads();
    tile.Write(place, rows, columns, reinterpret_cast<uint8_t*>(turned));
    __syncthreads();
  }
  KeepLargest(quantize.largest, by_part);
}

// The same where they are not.
template <typename T, typename Code>
__global__ void QuantizeAndScatter(const T* __restrict__ x, const float* __restrict__ scale, int64_t rows,
                                   int64_t columns, Code* __restrict__ y, Code* __restrict__ turned,
                                   uint32_t* __restrict__ by_part) {
  Quantizer<Code> quantize{*scale};
  for (int64_t i = ThreadInGrid<int64_t>(); i < rows * columns; i += ThreadsInGrid<int64_t>()) {
    const Code code = quantize(Load(x[i]));
    y[i] = code;
    turned[i % columns * rows + i / columns] = code;
  }
  KeepLargest(quantize.largest, by_part);
}

// One block.
__global__ void LargestPart(const uint32_t* __restrict__ by_part, int parts, float* __restrict__ amax) {
  uint32_t bits = 0;
  for (int i = static_cast<int>(threadIdx.x); i < parts; i += kThreads) bits = max(bits, by_part[i]);
  bits = BlockReduce(bits, 0u, MaxOf());
  if (threadIdx.x == 0) *amax = FloatFromBits(bits);
}

// No __restrict__: `y` may be `x`.
template <typename T>
__global__ void Dequantize(const float* x, const float* __restrict__ scale_a, const float* __restrict__ scale_b,
                           int64_t size, T* y) {
  const float a = 1.0f / *scale_a, b = 1.0f / *scale_b;
  ForEach(x, size, y, [=](float value) { return value * a * b; });
}

__global__ void Reciprocals(const float* __restrict__ scale_a, const float* __restrict__ scale_b,
                            float* __restrict__ to) {
  if (threadIdx.x < 2) to[threadIdx.x * kFactorStride] = 1.0f / *(threadIdx.x == 0 ? scale_a : scale_b);
}

template <typename T>
__global__ void MaxMagnitude(const T* __restrict__ x, int64_t size, uint32_t* __restrict__ by_part) {
  uint32_t largest = 0;
  const int64_t first = ThreadInGrid<int64_t>();
  for (int64_t i = first; i < size / kN; i += ThreadsInGrid<int64_t>()) {
    float values[kN];
    LoadFloats<kN>(x + i * kN, values);
#pragma unroll
    for (int j = 0; j < kN; ++j) largest = max(largest, MagnitudeBits(values[j]));
  }
  const int64_t rest = size / kN * kN + first;
  if (rest < size) largest = max(largest, MagnitudeBits(Load(x[rest])));
  largest = BlockReduce(largest, 0u, MaxOf());
  if (threadIdx.x == 0) by_part[blockIdx.x] = largest;
}

// Transformer Engine's delayed scaling, "max" of the history: scale = largest value of the format / amax / 2^margin.
// One block.
__global__ void RecordMax(const uint32_t* __restrict__ by_part, int parts, float largest_over_margin,
                          float* __restrict__ history, int64_t entries, int64_t* __restrict__ count,
                          float* __restrict__ scale) {
  uint32_t bits = 0;
  for (int i = static_cast<int>(threadIdx.x); i < parts; i += kThreads) {
    bits = max(bits, MagnitudeBits(FloatFromBits(by_part[i])));
  }
  bits = BlockReduce(bits, 0u, MaxOf());
  // Not finite: nothing changes.
  if (bits >= 0x7f800000u) return;
  const float amax = FloatFromBits(bits);
  const auto slot = static_cast<int64_t>(static_cast<uint64_t>(*count) % static_cast<uint64_t>(entries));
  float largest = 0;
  for (int64_t i = threadIdx.x; i < entries; i += kThreads) largest = MaxOf()(largest, i == slot ? amax : history[i]);
  // By now every thread has read the count and the history.
  largest = BlockReduce(largest, 0.0f, MaxOf());
  if (threadIdx.x != 0) return;
  history[slot] = amax;
  *count += 1;
  if (largest > 0) *scale = min(max(largest_over_margin / largest, 1.0f / kLargestScale), kLargestScale);
}

unsigned BlocksOf(const Context& context, int64_t size) {
  return BlocksFor(CeilDiv(size, kN), kThreads, context.properties().sm_count);
}

// Blocks that leave a part each.
unsigned PartsOf(const Context& context, int64_t size) {
  return std::min<unsigned>(BlocksOf(context, size), kMostParts);
}

template <typename Code>
absl::Status LaunchQuantizeAs(const Context& context, const std::string& name, const KernelArgs& args, unsigned blocks,
                              uint32_t* by_part) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const float* const scale = args.inputs[1].as<float>();
  return VisitData(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (args.outputs.size() == 3) {
      const TensorView& turned = args.outputs[2];
      const int64_t columns = turned.shape[0], rows = turned.shape[1];
      const bool squares = rows % kByteSquare == 0 && columns % kByteSquare == 0;
      return Launch(name, squares ? QuantizeAndTurn<T, Code> : QuantizeAndScatter<T, Code>, blocks, kThreads, 0,
                    context.stream(), x.as<T>(), scale, rows, columns, y.as<Code>(), turned.as<Code>(), by_part);
    }
    return Launch(name, by_part != nullptr ? Quantize<true, T, Code> : Quantize<false, T, Code>, blocks, kThreads, 0,
                  context.stream(), x.as<T>(), scale, x.size(), y.as<Code>(), by_part);
  });
}

absl::Status LaunchQuantize(const Context& context, const std::string& name, const KernelArgs& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const bool tracks = args.outputs.size() > 1;
  const unsigned blocks = tracks ? PartsOf(context, x.size()) : BlocksOf(context, x.size());
  auto* by_part = tracks ? WorkspaceAt<uint32_t>(args, 0) : nullptr;
  AMPD_RETURN_IF_ERROR(y.dtype == DType::kF8E4M3 ? LaunchQuantizeAs<Float8E4M3>(context, name, args, blocks, by_part)
                                                 : LaunchQuantizeAs<Float8E5M2>(context, name, args, blocks, by_part));
  if (!tracks) return absl::OkStatus();
  return Launch(name, LargestPart, 1, kThreads, 0, context.stream(), by_part, static_cast<int>(blocks),
                args.outputs[1].as<float>());
}

runtime::PrepareKernel PrepareQuantize(Context* context) {
  return [context](const NodeDesc& desc) {
    const bool tracks = desc.outputs.size() > 1;
    const int64_t parts = tracks ? PartsOf(*context, NumElements(desc.inputs[0].shape)) : 0;
    return MakeKernel(
        parts * static_cast<int64_t>(sizeof(uint32_t)),
        [context, name = desc.name](const KernelArgs& args) { return LaunchQuantize(*context, name, args); });
  };
}

runtime::PrepareKernel PrepareDequantize(Context* context) {
  return [context](const NodeDesc& desc) {
    return MakeKernel(0, [context, name = desc.name](const KernelArgs& args) {
      return LaunchDequantize(*context, name, args.inputs[0].as<float>(), args.inputs[1].as<float>(),
                              args.inputs[2].as<float>(), args.outputs[0]);
    });
  };
}

// Of the attributes.
float LargestOverMargin(const NodeDesc& desc) {
  const bool e4m3 = absl::string_view(desc.attributes.String("dtype")) == DTypeName(DType::kF8E4M3);
  const double largest = MaxFinite(e4m3 ? DType::kF8E4M3 : DType::kF8E5M2);
  return static_cast<float>(std::ldexp(largest, -static_cast<int>(desc.attributes.Int("margin"))));
}

runtime::PrepareKernel PrepareAmaxUpdate(Context* context) {
  return [context](const NodeDesc& desc) {
    const unsigned parts = PartsOf(*context, NumElements(desc.inputs[0].shape));
    const auto workspace = static_cast<int64_t>(parts * sizeof(uint32_t));
    return MakeKernel(workspace, [=, name = desc.name, over_margin = LargestOverMargin(desc)](const KernelArgs& args) {
      const TensorView& x = args.inputs[0];
      auto* by_part = WorkspaceAt<uint32_t>(args, 0);
      if (x.size() == 1 && x.dtype == DType::kF32) {
        by_part = x.as<uint32_t>();
      } else {
        AMPD_RETURN_IF_ERROR(VisitData(x.dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          return Launch(name, MaxMagnitude<T>, parts, kThreads, 0, context->stream(), x.as<T>(), x.size(), by_part);
        }));
      }
      return Launch(name, RecordMax, 1, kThreads, 0, context->stream(), by_part, static_cast<int>(parts), over_margin,
                    args.inputs[1].as<float>(), args.inputs[1].size(), args.inputs[2].as<int64_t>(),
                    args.inputs[3].as<float>());
    });
  };
}

}  // namespace

absl::Status LaunchDequantize(const Context& context, const std::string& name, const float* x, const float* scale_a,
                              const float* scale_b, const TensorView& y) {
  return VisitData(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Launch(name, Dequantize<T>, BlocksOf(context, y.size()), kThreads, 0, context.stream(), x, scale_a, scale_b,
                  y.size(), y.as<T>());
  });
}

absl::Status LaunchReciprocals(const Context& context, const std::string& name, const float* scale_a,
                               const float* scale_b, float* to) {
  return Launch(name, Reciprocals, 1, kWarp, 0, context.stream(), scale_a, scale_b, to);
}

void RegisterQuantize(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32;
  for (DType t : kDataTypes) {
    for (DType f8 : {DType::kF8E4M3, DType::kF8E5M2}) {
      table->Add(OpKind::kQuantize, {t, f}, {f8}, PrepareQuantize(context));
      table->Add(OpKind::kQuantize, {t, f}, {f8, f}, PrepareQuantize(context));
      table->Add(OpKind::kQuantize, {t, f}, {f8, f, f8}, PrepareQuantize(context));
    }
    table->Add(OpKind::kAmaxUpdate, {t, f, DType::kI64, f}, {}, PrepareAmaxUpdate(context));
    table->Add(OpKind::kDequantize, {f, f, f}, {t}, PrepareDequantize(context));
  }
}

}  // namespace ampd::cuda
