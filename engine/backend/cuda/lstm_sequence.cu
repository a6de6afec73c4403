// LSTM over all time steps by one launch. Steps have to wait for each other, so what counts is how soon a step's states
// are known to all who need them: a block takes 4 samples (8 of large batches) through all steps by itself, and waits
// once a step, for its own warps.
//
// A warp owns 16 hidden units. The matrix units multiply 16 rows by 8 columns; rows are the weights', so that a few
// samples fill the columns, and the weights stay in registers, 32 a lane for each 32 of the inner sum. Lane 4 g + t
// owns the units 2 g and 2 g + 1 of its warp's and the samples of the columns 2 t and 2 t + 1, or one sample that both
// columns hold: it finds all four gates of its units in its own part of the products, keeps their cells in fp32, and
// reads and writes two neighbours at once. Only what a product's columns are made of (states; in the gradient the
// gates' gradients) goes through shared memory, and is kept twice, so that a step's is written while the last one's is
// read.
//
// A sum may run over its terms in any order: that of the matrix units' places 2 t, 2 t + 1 of either half of two tiles
// is such that lane t reads 8 neighbours at once, of columns and of weights.
#include "engine/backend/cuda/lstm_sequence.h"

#include <limits>
#include <type_traits>

#include "engine/backend/cuda/block_product.h"
#include "engine/backend/cuda/dynamic_shared.h"

namespace ampd::cuda {
namespace {

using recurrent::Launcher;
using recurrent::Sequence;

constexpr int kUnitsPerWarp = 16;
// Places of an inner sum that a lane reads at once, and all four that make up a column.
constexpr int kRun = 8, kSpan = 4 * kRun;
constexpr int kMostSpans = 4;  // in the hidden size: more weights do not fit in the registers
constexpr int kGates = 4;
// What is not finite comes through as it does where peepholes are zeros.
constexpr float kNoPeephole = 0;

// 1 / x and 2^x, off by at most 2 units in the last place; what is below 2^-126 counts, and comes, as 0.
__device__ __forceinline__ float Reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}
__device__ __forceinline__ float PowerOfTwo(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// DeviceMath's take most of a step's time. These are off by some (4 + |x|) 2^-24 and 6 2^-24 of the result, and all
// but the carried cell is then rounded to 16 bits. A NaN stays one; sigmoids below 2^-126 are 0.
__device__ __forceinline__ float QuickSigmoid(float x) { return Reciprocal(1.0f + PowerOfTwo(-1.44269504f * x)); }
__device__ __forceinline__ float QuickTanh(float x) {
  const float magnitude = fabsf(x), square = x * x;
  const float large = fmaf(-2.0f, Reciprocal(1.0f + PowerOfTwo(2.88539008f * magnitude)), 1.0f);
  // Fitted to (tanh x / x - 1) / x^2 up to 0.6, where the difference above would cancel.
  float small = fmaf(-0.005895158275961876f, square, 0.020795971155166626f);
  small = fmaf(small, square, -0.053783830255270004f);
  small = fmaf(small, square, 0.13331924378871918f);
  small = fmaf(small, square, -0.33333298563957214f);
  small = fmaf(small * square, magnitude, magnitude);
  return copysignf(magnitude < 0.6f ? small : large, x);
}

template <typename T>
__device__ __forceinline__ uint32_t ReadPair(const T* at) {
  return *reinterpret_cast<const uint32_t*>(at);
}
template <typename T>
__device__ __forceinline__ void WritePair(T* at, uint32_t pair) {
  *reinterpret_cast<uint32_t*>(at) = pair;
}
__device__ __forceinline__ float2 ReadFloats(const float* at) { return *reinterpret_cast<const float2*>(at); }

// Which units and samples a lane owns. kSamples: 1 or 2 a lane, 4 times as many a block.
template <int kSamples>
class Owned {
 public:
  static constexpr int kRows = 4 * kSamples;  // samples of a block

  __device__ __forceinline__ Owned(const Sequence& s, const int32_t* lengths)
      : n_(static_cast<int>(s.hidden)),
        time_(static_cast<int>(s.time)),
        reverse_(s.reverse),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        unit_(static_cast<int>(threadIdx.x) / kWarp * kUnitsPerWarp + 2 * (lane_ / 4)) {
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
      const int64_t sample = static_cast<int64_t>(blockIdx.x) * kRows + row(q);
      exists_[q] = has_units() && sample < s.batch;
      sample_[q] = exists_[q] ? sample : 0;
      first_[q] = sample_[q] * s.time * s.hidden;
      // Samples that are none take part in no step.
      length_[q] = exists_[q] ? static_cast<int>(s.LengthOf(lengths, sample)) : 0;
    }
  }

  __device__ __forceinline__ int unit() const { return unit_; }
  // The last warp may own more than there are.
  __device__ __forceinline__ bool has_units() const { return unit_ < n_; }
  __device__ __forceinline__ int turn() const { return lane_ % 4; }
  // The row of a tile in shared memory that holds this lane's column of a product, and that of its own sample.
  __device__ __forceinline__ int column_row() const { return lane_ / 4 * kSamples / 2; }
  __device__ __forceinline__ int row(int q) const { return lane_ % 4 * kSamples + q; }
  __device__ __forceinline__ bool exists(int q) const { return exists_[q]; }
  __device__ __forceinline__ bool TakesPart(int q, int t) const { return t < length_[q]; }
  __device__ __forceinline__ bool IsFirst(int q, int t) const { return reverse_ ? t == length_[q] - 1 : t == 0; }
  // Time of the `step`th step, and the time before `t` in that order.
  __device__ __forceinline__ int At(int step) const { return reverse_ ? time_ - 1 - step : step; }
  __device__ __forceinline__ int Before(int t) const { return reverse_ ? t + 1 : t - 1; }
  // The first of the lane's two elements in [batch, hidden] and [batch, time, hidden], and in [batch, time, 4 hidden]
  // of its first gate.
  __device__ __forceinline__ int64_t StateAt(int q) const { return sample_[q] * n_ + unit_; }
  __device__ __forceinline__ int64_t StepAt(int q, int t) const { return first_[q] + (t * n_ + unit_); }
  __device__ __forceinline__ int64_t GatesAt(int q, int t) const {
    return kGates * first_[q] + (t * kGates * n_ + unit_);
  }

 private:
  const int n_, time_;
  const bool reverse_;
  const int lane_, unit_;
  bool exists_[kSamples];
  int64_t sample_[kSamples], first_[kSamples];
  int length_[kSamples];
};

// Words of a row of a tile of columns, `spans` long. Rows that are read at once begin half of all banks apart.
__host__ __device__ constexpr int RowWords(int spans) { return (spans | 1) * kSpan / 2; }

// Two places of either half of tile `half` of a span, as MultiplyAddTile() takes a column.
__device__ __forceinline__ void ReadColumn(const uint32_t* run, uint32_t (&words)[4]) {
  const uint4 read = *reinterpret_cast<const uint4*>(run);
  words[0] = read.x, words[1] = read.y, words[2] = read.z, words[3] = read.w;
}

// What pads a span has to be zero: no multiple of what lies there by chance need be.
__device__ __forceinline__ void ClearTiles(uint32_t* tiles, int words) {
  for (int i = static_cast<int>(threadIdx.x); i < words; i += static_cast<int>(blockDim.x)) tiles[i] = 0;
}

template <typename T, int kSpans, int kSamples>
__global__ void __launch_bounds__(kSpans* kSpan / kUnitsPerWarp * kWarp, 1)
    LstmSequence(Sequence s, LstmSequenceTensors<T> v) {
  constexpr int kTileWords = Owned<kSamples>::kRows * RowWords(kSpans);
  const Owned<kSamples> own(s, v.lengths);
  const int n = static_cast<int>(s.hidden), time = static_cast<int>(s.time), unit = own.unit();
  uint32_t* const tiles = DynamicShared<uint32_t>();

  // Of unit e and a gate, the lane's run of each span; zeros beyond the last unit.
  uint32_t weights[2][kGates][kSpans][4];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
#pragma unroll
      for (int span = 0; span < kSpans; ++span) {
        const int k = span * kSpan + own.turn() * kRun;
        uint4 run = make_uint4(0, 0, 0, 0);
        if (own.has_units() && k < n) {
          run = *reinterpret_cast<const uint4*>(v.weights + (gate * n + unit + e) * n + k);
        }
        weights[e][gate][span][0] = run.x, weights[e][gate][span][1] = run.y;
        weights[e][gate][span][2] = run.z, weights[e][gate][span][3] = run.w;
      }
    }
  }
  float bias[2][kGates];
#pragma unroll
  for (int i = 0; i < 2 * kGates; ++i) {
    const int at = i % kGates * n + unit + i / kGates;
    bias[i / kGates][i % kGates] = v.b_ih == nullptr || !own.has_units() ? 0.0f : v.b_ih[at] + v.b_hh[at];
  }

  uint32_t h[kSamples];
  float c[kSamples][2];
#pragma unroll
  for (int q = 0; q < kSamples; ++q) {
    h[q] = v.h0 != nullptr && own.exists(q) ? ReadPair(v.h0 + own.StateAt(q)) : 0;
    const float2 cells = v.c0 != nullptr && own.exists(q) ? ReadFloats(v.c0 + own.StateAt(q)) : make_float2(0, 0);
    c[q][0] = cells.x, c[q][1] = cells.y;
  }
  ClearTiles(tiles, 2 * kTileWords);
  __syncthreads();
  const auto share_states = [&](uint32_t* tile) {
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
      if (own.has_units()) tile[own.row(q) * RowWords(kSpans) + unit / 2] = h[q];
    }
  };
  share_states(tiles);

  float2 projected[kSamples][kGates] = {};
  const auto read_projected = [&](int step, float2(&to)[kSamples][kGates]) {
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        if (own.exists(q)) to[q][gate] = ReadFloats(v.projected + own.GatesAt(q, own.At(step)) + gate * n);
      }
    }
  };
  read_projected(0, projected);
  __syncthreads();

#pragma unroll 1
  for (int step = 0; step < time; ++step) {
    const uint32_t* column = tiles + step % 2 * kTileWords + own.column_row() * RowWords(kSpans) + own.turn() * 4;
    float2 next[kSamples][kGates] = {};
    if (step + 1 < time) read_projected(step + 1, next);
    // Of unit e: input and forget gates, then fresh and output ones.
    float sums[2][2][4] = {};
#pragma unroll
    for (int span = 0; span < kSpans; ++span) {
      uint32_t words[4];
      ReadColumn(column + span * kSpan / 2, words);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t right[2] = {words[2 * half], words[2 * half + 1]};
#pragma unroll
        for (int tile = 0; tile < 4; ++tile) {
          const auto& upper = weights[tile / 2][tile % 2 * 2][span];
          const auto& lower = weights[tile / 2][tile % 2 * 2 + 1][span];
          const uint32_t left[4] = {upper[2 * half], lower[2 * half], upper[2 * half + 1], lower[2 * half + 1]};
          MultiplyAddTile<T>(left, right, sums[tile / 2][tile % 2]);
        }
      }
    }

    const int t = own.At(step);
    uint32_t gates[kSamples][kGates], cells[kSamples];
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
      float values[kGates][2], states[2], next_c[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float a[kGates];
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          const float input = e == 0 ? projected[q][gate].x : projected[q][gate].y;
          const float add = gate < 2 ? fmaf(kNoPeephole, c[q][e], bias[e][gate]) : bias[e][gate];
          a[gate] = input + sums[e][gate / 2][gate % 2 * 2 + q] + add;
        }
        const float in = QuickSigmoid(a[0]), forget = QuickSigmoid(a[1]), fresh = QuickTanh(a[2]);
        next_c[e] = forget * c[q][e] + in * fresh;
        const float out = QuickSigmoid(fmaf(kNoPeephole, next_c[e], a[3]));
        states[e] = out * QuickTanh(next_c[e]);
        values[0][e] = in, values[1][e] = forget, values[2][e] = fresh, values[3][e] = out;
      }
      const bool takes_part = own.TakesPart(q, t);
      if (takes_part) h[q] = PairOf<T>(states[0], states[1]), c[q][0] = next_c[0], c[q][1] = next_c[1];
      cells[q] = takes_part ? PairOf<T>(next_c[0], next_c[1]) : 0;
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        gates[q][gate] = takes_part ? PairOf<T>(values[gate][0], values[gate][1]) : 0;
        projected[q][gate] = next[q][gate];
      }
    }
    share_states(tiles + (step + 1) % 2 * kTileWords);
    __syncthreads();
    // Behind the barrier, so that nobody waits for them.
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
      if (!own.exists(q)) continue;
      WritePair(v.y + own.StepAt(q, t), own.TakesPart(q, t) ? h[q] : 0);
      WritePair(v.cells + own.StepAt(q, t), cells[q]);
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) WritePair(v.gates + own.GatesAt(q, t) + gate * n, gates[q][gate]);
    }
  }
#pragma unroll
  for (int q = 0; q < kSamples; ++q) {
    if (!own.exists(q)) continue;
    WritePair(v.h_n + own.StateAt(q), h[q]);
    *reinterpret_cast<float2*>(v.c_n + own.StateAt(q)) = make_float2(c[q][0], c[q][1]);
  }
}

// `condition ? yes : no`, of which the compiler makes no branch, across which it would move nothing.
__device__ __forceinline__ float Choose(bool condition, float yes, float no) {
  const uint32_t mask = condition ? 0xffffffffu : 0;
  return __uint_as_float((__float_as_uint(yes) & mask) | (__float_as_uint(no) & ~mask));
}

// What multiplies a unit's gradients in a step; known before those are.
struct Slopes {
  float dy, out, cell, in, forget, fresh, keep;
};

// The matrix units' rows are a warp's 16 units here, the inner sum all gates.
template <typename T, int kSpans, int kSamples>
__global__ void __launch_bounds__(kSpans* kSpan / kUnitsPerWarp * kWarp, 1)
    LstmSequenceGrad(Sequence s, LstmSequenceGradTensors<T> v) {
  constexpr int kGateSpans = kGates * kSpans, kTileWords = Owned<kSamples>::kRows * RowWords(kGateSpans);
  const Owned<kSamples> own(s, v.lengths);
  const int n = static_cast<int>(s.hidden), time = static_cast<int>(s.time), unit = own.unit();
  uint32_t* const tiles = DynamicShared<uint32_t>();

  // Of the two tiles of each span, as the matrix units take them: both units in either half.
  uint32_t weights[kGateSpans][2][4];
#pragma unroll
  for (int span = 0; span < kGateSpans; ++span) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = span * kSpan + own.turn() * kRun + 2 * i;
      uint32_t first = 0, second = 0;  // both units at place k, and at the next one
      if (own.has_units() && k < kGates * n) {
        first = ReadPair(v.weights + k * n + unit), second = ReadPair(v.weights + (k + 1) * n + unit);
      }
      weights[span][i / 2][i % 2 * 2] = (first & 0xffff) | second << 16;
      weights[span][i / 2][i % 2 * 2 + 1] = first >> 16 | (second & 0xffff0000);
    }
  }

  // Of the time that is next: gates, cells before it, and the output's gradient. `cell` are its own cells.
  uint32_t gates[kSamples][kGates] = {}, before[kSamples] = {}, dy[kSamples] = {}, cell[kSamples] = {};
  const auto read_time = [&](int step) {
    const int t = own.At(step);
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
      if (!own.exists(q)) continue;
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) gates[q][gate] = ReadPair(v.gates + own.GatesAt(q, t) + gate * n);
      dy[q] = ReadPair(v.dy + own.StepAt(q, t));
      if (step > 0) before[q] = ReadPair(v.cells + own.StepAt(q, own.Before(t)));
    }
  };
  float dh[kSamples][2] = {}, dc[kSamples][2] = {}, c0[kSamples][2] = {};
#pragma unroll
  for (int q = 0; q < kSamples; ++q) {
    if (!own.exists(q)) continue;
    const uint32_t given = ReadPair(v.dh_n + own.StateAt(q));
    dh[q][0] = ElementOfPair<T>(given, 0), dh[q][1] = ElementOfPair<T>(given, 1);
    const float2 cells = ReadFloats(v.dc_n + own.StateAt(q));
    dc[q][0] = cells.x, dc[q][1] = cells.y;
    const float2 start = v.c0 != nullptr ? ReadFloats(v.c0 + own.StateAt(q)) : make_float2(0, 0);
    c0[q][0] = start.x, c0[q][1] = start.y;
    cell[q] = ReadPair(v.cells + own.StepAt(q, own.At(time - 1)));
  }

  Slopes slopes[kSamples][2];
  const auto find_slopes = [&](int step) {
    const int t = own.At(step);
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float in = ElementOfPair<T>(gates[q][0], e), forget = ElementOfPair<T>(gates[q][1], e);
        const float fresh = ElementOfPair<T>(gates[q][2], e), out = ElementOfPair<T>(gates[q][3], e);
        const float from = Choose(own.IsFirst(q, t), c0[q][e], ElementOfPair<T>(before[q], e));
        const float squashed = QuickTanh(ElementOfPair<T>(cell[q], e));
        slopes[q][e] = {.dy = ElementOfPair<T>(dy[q], e),
                        .out = squashed * (out * (1.0f - out)),
                        .cell = out * (1.0f - squashed * squashed),
                        .in = fresh * (in * (1.0f - in)),
                        .forget = from * (forget * (1.0f - forget)),
                        .fresh = in * (1.0f - fresh * fresh),
                        .keep = forget};
      }
      cell[q] = before[q];
    }
  };
  read_time(time - 1);
  find_slopes(time - 1);
  ClearTiles(tiles, 2 * kTileWords);
  __syncthreads();
  if (time > 1) read_time(time - 2);

#pragma unroll 1
  for (int step = time - 1; step >= 0; --step) {
    const int t = own.At(step);
    uint32_t* const tile = tiles + step % 2 * kTileWords;
    uint32_t dgates[kSamples][kGates];
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
      float values[kGates][2], next_dc[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const Slopes& slope = slopes[q][e];
        const float d = dh[q][e] + slope.dy, d_out = d * slope.out;
        const float d_cell = dc[q][e] + fmaf(kNoPeephole, d_out, d * slope.cell);
        const float d_in = d_cell * slope.in, d_forget = d_cell * slope.forget;
        next_dc[e] = fmaf(kNoPeephole, d_in + d_forget, d_cell * slope.keep);
        values[0][e] = d_in, values[1][e] = d_forget, values[2][e] = d_cell * slope.fresh, values[3][e] = d_out;
      }
      const bool takes_part = own.TakesPart(q, t);
      if (takes_part) dc[q][0] = next_dc[0], dc[q][1] = next_dc[1];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        dgates[q][gate] = takes_part ? PairOf<T>(values[gate][0], values[gate][1]) : 0;
        if (own.has_units()) tile[own.row(q) * RowWords(kGateSpans) + (gate * n + unit) / 2] = dgates[q][gate];
      }
    }
    __syncthreads();

    // Four sums, so that a product need not wait for the one before it.
    const uint32_t* column = tile + own.column_row() * RowWords(kGateSpans) + own.turn() * 4;
    float sums[4][4] = {};
#pragma unroll
    for (int span = 0; span < kGateSpans; ++span) {
      uint32_t words[4];
      ReadColumn(column + span * kSpan / 2, words);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t right[2] = {words[2 * half], words[2 * half + 1]};
        MultiplyAddTile<T>(weights[span][half], right, sums[span % 2 * 2 + half]);
      }
    }
    // Of the next step, while the matrix units work.
    find_slopes(step - 1);
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
      if (!own.exists(q)) continue;
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) WritePair(v.dgates + own.GatesAt(q, t) + gate * n, dgates[q][gate]);
    }
    if (step > 1) read_time(step - 2);
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
      if (!own.TakesPart(q, t)) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = 2 * e + q;
        dh[q][e] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
      }
    }
  }
#pragma unroll
  for (int q = 0; q < kSamples; ++q) {
    if (!own.exists(q)) continue;
    WritePair(v.dh0 + own.StateAt(q), PairOf<T>(dh[q][0], dh[q][1]));
    *reinterpret_cast<float2*>(v.dc0 + own.StateAt(q)) = make_float2(dc[q][0], dc[q][1]);
  }
}

// Calls `launch` with the kernel's spans and samples a lane as constants.
template <typename Function>
absl::Status WithShape(const Sequence& s, const Context& context, const Function& launch) {
  // As long as every block has a multiprocessor of its own, the fewer samples it has the faster it is.
  const bool few = CeilDiv(s.batch, Owned<1>::kRows) <= context.properties().sm_count;
  const auto with_samples = [&](auto spans) {
    return few ? launch(spans, std::integral_constant<int, 1>()) : launch(spans, std::integral_constant<int, 2>());
  };
  const int64_t spans = CeilDiv(s.hidden, kSpan);
  if (spans == 1) return with_samples(std::integral_constant<int, 1>());
  if (spans == 2) return with_samples(std::integral_constant<int, 2>());
  if (spans == 3) return with_samples(std::integral_constant<int, 3>());
  return with_samples(std::integral_constant<int, kMostSpans>());
}

template <int kSamples, typename Kernel, typename Tensors>
absl::Status LaunchBlocks(const Launcher& launcher, Kernel kernel, const Sequence& s, int spans,
                          const Tensors& tensors) {
  constexpr int kRows = Owned<kSamples>::kRows;
  const auto blocks = static_cast<unsigned>(CeilDiv(s.batch, kRows));
  const auto threads = static_cast<unsigned>(CeilDiv(s.hidden, kUnitsPerWarp) * kWarp);
  const int64_t shared = int64_t{2} * kRows * RowWords(spans) * 4;
  return Launch(launcher.name, kernel, blocks, threads, shared, launcher.context->stream(), s, tensors);
}

}  // namespace

bool TakesLstmSequence(DType dtype, const Sequence& sequence, const Context& context) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return (dtype == DType::kF16 || dtype == DType::kBF16) && context.properties().major >= 8 &&
         sequence.hidden % kRun == 0 && sequence.hidden <= kMostSpans * kSpan && sequence.batch > 0 &&
         sequence.batch <= kMost && sequence.time > 0 && sequence.time <= kMost / (kGates * sequence.hidden) - 1;
}

template <typename T>
absl::Status RunLstmSequence(const Launcher& launcher, const Sequence& sequence,
                             const LstmSequenceTensors<T>& tensors) {
  return WithShape(sequence, *launcher.context, [&](auto spans, auto samples) {
    return LaunchBlocks<samples()>(launcher, LstmSequence<T, spans(), samples()>, sequence, spans(), tensors);
  });
}

template absl::Status RunLstmSequence(const Launcher&, const Sequence&, const LstmSequenceTensors<Half>&);
template absl::Status RunLstmSequence(const Launcher&, const Sequence&, const LstmSequenceTensors<BFloat16>&);

template <typename T>
absl::Status RunLstmSequenceGrad(const Launcher& launcher, const Sequence& sequence,
                                 const LstmSequenceGradTensors<T>& tensors) {
  return WithShape(sequence, *launcher.context, [&](auto spans, auto samples) {
    return LaunchBlocks<samples()>(launcher, LstmSequenceGrad<T, spans(), samples()>, sequence, kGates * spans(),
                                   tensors);
  });
}

template absl::Status RunLstmSequenceGrad(const Launcher&, const Sequence&, const LstmSequenceGradTensors<Half>&);
template absl::Status RunLstmSequenceGrad(const Launcher&, const Sequence&, const LstmSequenceGradTensors<BFloat16>&);

}  // namespace ampd::cuda
