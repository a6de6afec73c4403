// Dense layers of at most a fragment's width, of whole fragments of rows (dense_stack.h): a layer's result goes to the
// next one in registers, and nothing asks where rows and columns end. The bits are DenseStackMachine's. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_NARROW_STACK_H_
#define AMPD_ENGINE_BACKEND_CUDA_NARROW_STACK_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "engine/backend/cuda/dense_stack.h"

namespace ampd::cuda {

// Of a stack with its addresses, tagged or not. Inputs are whole squares, so that rows of weights are read at once;
// activations are what two numbers can take at once.
inline bool IsNarrow(const DenseStack& stack) {
  using F = ops::ElementwiseFunction;
  const auto aligned = [](const void* at) { return reinterpret_cast<uint64_t>(at) % 16 == 0; };
  for (int32_t l = 0; l < stack.layer_count; ++l) {
    const DenseLayer& layer = stack.layers[l];
    if (layer.in > kFragmentSide || layer.in % 8 != 0 || layer.out > kFragmentSide || !aligned(layer.weight))
      return false;
    if (layer.activation != F::kNone && (layer.activation != F::kRelu || !layer.rounds_product)) return false;
  }
  return stack.rows % kFragmentSide == 0;
}

template <typename T, int kThreads, typename Addresses>
class NarrowStackMachine : public DenseStackMachine<T, kThreads, Addresses> {
  using Base = DenseStackMachine<T, kThreads, Addresses>;
  using F = ops::ElementwiseFunction;

 public:
  using Base::Base;

  __device__ __forceinline__ void Forward() const {
#pragma unroll 1
    for (int first = Warp(); first < stack_.row_blocks; first += kPasses * kWarps) {
      const Rows rows = RowsFrom(first);
      Words words;
      ReadRows(at_(stack_.input), stack_.input_dtype, stack_.input_columns, rows, stack_.layers[0].x_at, &words);
      const int last = stack_.layer_count - 1;
#pragma unroll 1
      for (int l = 0; l < last; ++l) ForwardLayer(stack_.layers[l], stack_.layers[l + 1].x_at, rows, &words);
      LastLayer(stack_.layers[last], rows, words);
    }
  }

  __device__ __forceinline__ void BackwardRows() const {
#pragma unroll 1
    for (int first = Warp(); first < stack_.row_blocks; first += kPasses * kWarps) {
      const Rows rows = RowsFrom(first);
      Words words;
      ReadRows(at_.Shared(stack_.output_grad), stack_.output_grad_dtype, stack_.output_grad_columns, rows,
               stack_.layers[stack_.layer_count - 1].gradient_at, &words);
#pragma unroll 1
      for (int l = stack_.layer_count - 1; l > 0; --l) {
        BackwardLayer(stack_.layers[l], stack_.layers[l - 1], rows, &words);
      }
    }
  }

  __device__ __forceinline__ void WeightGradients(float* scratch) const {
    const int layers = stack_.layer_count, splits = stack_.splits;
    const int part = (stack_.row_blocks + splits - 1) / splits;
    int l = Warp(), split = 0;
#pragma unroll 1
    for (int item = Warp(); item < layers * splits; item += kWarps, l += kWarps) {
      while (l >= layers) l -= layers, ++split;
      const int begin = split * part;
      float sums[kSums] = {};
      this->SumRows({l, 0, 0}, begin, min(begin + part, stack_.row_blocks), &sums);
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        if (splits == 1) {
          this->WriteGradient({l, 0, 0}, Lane(), i, sums[i]);
        } else {
          scratch[(item * kSums + i) * kWarp + Lane()] = sums[i];
        }
      }
    }
    if (splits == 1) return;
    __syncthreads();
    // A warp's lanes add up the same of their sums.
#pragma unroll 1
    for (int of = Warp(); of < layers * kSums; of += kWarps) {
      const float* from = scratch + of * kWarp + Lane();
      float sum = 0;
#pragma unroll 4
      for (int s = 0; s < splits; ++s, from += layers * kSums * kWarp) sum += *from;
      this->WriteGradient({of / kSums, 0, 0}, Lane(), of % kSums, sum);
    }
  }

 private:
  using Base::at_;
  using Base::Column;
  using Base::fragments_;
  using Base::kPasses;
  using Base::kSums;
  using Base::kWarps;
  using Base::Lane;
  using Base::Row;
  using Base::stack_;
  using Base::Warp;

  // A lane's words of a fragment of each of the warp's blocks of rows.
  using Words = uint32_t[kPasses][4];
  using Sums = float[kPasses][8];
  // Those blocks; the last one again where there are no more, which changes nothing.
  struct Rows {
    int blocks[kPasses];
  };
  __device__ __forceinline__ Rows RowsFrom(int first) const {
    Rows rows;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int block = first + pass * kWarps;
      rows.blocks[pass] = pass == 0 || block < stack_.row_blocks ? block : rows.blocks[pass - 1];
    }
    return rows;
  }

  __device__ __forceinline__ uint32_t* Own(int at, const Rows& rows, int pass) const {
    return fragments_ + (at + rows.blocks[pass]) * (kFragmentBytes / 4) + Lane();
  }
  __device__ __forceinline__ void Keep(int at, const Rows& rows, const Words& words) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      uint32_t* to = Own(at, rows, pass);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i * kWarp] = words[pass][i];
    }
  }
  __device__ __forceinline__ void Recall(int at, const Rows& rows, Words* words) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const uint32_t* from = Own(at, rows, pass);
#pragma unroll
      for (int i = 0; i < 4; ++i) (*words)[pass][i] = from[i * kWarp];
    }
  }

  // Fragments of a matrix [rows, columns], which are kept.
  __device__ __forceinline__ void ReadRows(const void* matrix, DType dtype, int columns, const Rows& rows, int to,
                                           Words* words) const {
    const float* from = static_cast<const float*>(matrix);
    if (dtype == DType::kF32 && columns == 1) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const int row = rows.blocks[pass] * kFragmentSide + Row();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          (*words)[pass][i] = Column() == 0 ? PairOf<T>(from[row + i * 8], 0) : 0;
          (*words)[pass][2 + i] = 0;
        }
      }
      return Keep(to, rows, *words);
    }
    if (dtype == DType::kF32 && columns % 2 == 0 && reinterpret_cast<uint64_t>(matrix) % sizeof(float2) == 0) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const float* own = from + (rows.blocks[pass] * kFragmentSide + Row()) * columns + Column();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float2 pair = {0, 0};
          if (Column() + i / 2 * 8 < columns) {
            pair = *reinterpret_cast<const float2*>(own + i % 2 * 8 * columns + i / 2 * 8);
          }
          (*words)[pass][i] = PairOf<T>(pair.x, pair.y);
        }
      }
      return Keep(to, rows, *words);
    }
    Base::ReadRows(matrix, dtype, columns, rows.blocks[0], 1, to);
    Recall(to, rows, words);
  }

  // A weight [out, in] as the right sides of two products, {left tile: lower half of the sum, upper half, right tile:
  // lower, upper}: of a product over its inputs, or, turned, over its outputs.
  template <bool kTurned>
  __device__ __forceinline__ void ReadWeight(const T* weight, int in, int out, uint32_t (&words)[4]) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
    // Lanes 8 i to 8 i + 7 say where the rows of square i begin.
    const int upper = Lane() / 16 * 8, odd = Lane() / 8 % 2 * 8;
    const int line = (kTurned ? odd : upper) + Lane() % 8, column = kTurned ? upper : odd;
    const void* from = stack_.zeros;
    if (line < out && column < in) from = weight + line * in + column;
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(from));
    if constexpr (kTurned) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "r"(address)
                   : "memory");
    } else {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "r"(address)
                   : "memory");
    }
#else
    for (int i = 0; i < 4; ++i) {
      const int line = i / 2 * 8 + Row(), at = Column() + i % 2 * 8;
      words[i] = kTurned ? LoadPair(weight, line, in, 1, at, out, in) : LoadPair(weight, line, out, in, at, in, 1);
    }
#endif
  }

  __device__ __forceinline__ static void Multiply(const Words& left, const uint32_t (&right)[4], Sums* sums) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t tile_right[2] = {right[half * 2], right[half * 2 + 1]};
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        float tile[4] = {};
        MultiplyAddTile<T>(left[pass], tile_right, tile);
#pragma unroll
        for (int i = 0; i < 4; ++i) (*sums)[pass][half * 4 + i] = tile[i];
      }
    }
  }
  __device__ __forceinline__ static void Pack(const Sums& sums, Words* words) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
      for (int i = 0; i < 4; ++i) (*words)[pass][i] = PairOf<T>(sums[pass][2 * i], sums[pass][2 * i + 1]);
    }
  }
  __device__ __forceinline__ static void Unpack(const Words& words, Sums* sums) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        (*sums)[pass][2 * i] = ElementOfPair<T>(words[pass][i], 0),
                          (*sums)[pass][2 * i + 1] = ElementOfPair<T>(words[pass][i], 1);
      }
    }
  }
  // --- two numbers at once. A sum of two 16-bit numbers is rounded once by way of fp32, too.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  using Pair = std::conditional_t<std::is_same_v<T, Half>, __half2, __nv_bfloat162>;
  __device__ __forceinline__ static Pair AsPair(uint32_t bits) { return *reinterpret_cast<const Pair*>(&bits); }
  __device__ __forceinline__ static uint32_t AsBits(Pair pair) { return *reinterpret_cast<const uint32_t*>(&pair); }
  __device__ __forceinline__ static uint32_t AddPairs(uint32_t a, uint32_t b) {
    return AsBits(__hadd2(AsPair(a), AsPair(b)));
  }
  __device__ __forceinline__ static uint32_t ReluOfPair(uint32_t x) {
    return AsBits(__hmax2_nan(AsPair(x), AsPair(0)));
  }
  __device__ __forceinline__ static uint32_t ReluGradOfPair(uint32_t dy, uint32_t y) {
    return dy & __hgtu2_mask(AsPair(y), AsPair(0));
  }
#else
  __device__ __forceinline__ static uint32_t AddPairs(uint32_t a, uint32_t b) {
    return PairOf<T>(ElementOfPair<T>(a, 0) + ElementOfPair<T>(b, 0), ElementOfPair<T>(a, 1) + ElementOfPair<T>(b, 1));
  }
  __device__ __forceinline__ static uint32_t ReluOfPair(uint32_t x) {
    return PairOf<T>(ElementOfPair<T>(x, 0) <= 0 ? 0 : ElementOfPair<T>(x, 0),
                     ElementOfPair<T>(x, 1) <= 0 ? 0 : ElementOfPair<T>(x, 1));
  }
  __device__ __forceinline__ static uint32_t ReluGradOfPair(uint32_t dy, uint32_t y) {
    return (ElementOfPair<T>(y, 0) <= 0 ? 0 : dy & 0xffffu) | (ElementOfPair<T>(y, 1) <= 0 ? 0 : dy & 0xffff0000u);
  }
#endif

  // --- layers

  // A lane's columns of a bias, in a fragment's order.
  __device__ __forceinline__ void ReadBias(const T* bias, int out, uint32_t (&pairs)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = Column() + half * 8;
      const uint32_t low = at < out ? bias[at].bits : 0, high = at + 1 < out ? bias[at + 1].bits : 0;
      pairs[half] = low | high << 16;
    }
  }

  // What follows the product, rounded where the layer rounds.
  __device__ __forceinline__ static void AddBias(const DenseLayer& layer, const uint32_t (&bias)[2], Sums* sums) {
    Words words;
    if (layer.rounds_product) Pack(*sums, &words), Unpack(words, sums);
    if (layer.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < kPasses * 8; ++i) {
        const uint32_t pair = bias[i % 8 / 4];
        (*sums)[i / 8][i % 8] += i % 2 == 0 ? ElementOfPair<T>(pair, 0) : ElementOfPair<T>(pair, 1);
      }
    }
    if (layer.rounds_sum) Pack(*sums, &words), Unpack(words, sums);
  }

  // From x, whose words are given, to the next layer's.
  __device__ __forceinline__ void ForwardLayer(const DenseLayer& layer, int next_at, const Rows& rows,
                                               Words* words) const {
    const bool has_bias = layer.bias != nullptr;
    const int out = layer.out, sums_at = layer.sums_at;
    uint32_t weight[4], bias[2] = {};
    ReadWeight<false>(static_cast<const T*>(at_.Shared(layer.weight)), layer.in, out, weight);
    if (has_bias) ReadBias(static_cast<const T*>(at_.Shared(layer.bias)), out, bias);
    Sums sums;
    Multiply(*words, weight, &sums);
    if (layer.activation == F::kRelu) {
      // The product is rounded, and it does not matter whether the sum is before or behind.
      Pack(sums, words);
      if (has_bias) {
#pragma unroll
        for (int i = 0; i < kPasses * 4; ++i)
          (*words)[i / 4][i % 4] = AddPairs((*words)[i / 4][i % 4], bias[i % 4 / 2]);
      }
      if (sums_at >= 0) Keep(sums_at, rows, *words);
#pragma unroll
      for (int i = 0; i < kPasses * 4; ++i) (*words)[i / 4][i % 4] = ReluOfPair((*words)[i / 4][i % 4]);
    } else {
      AddBias(layer, bias, &sums);
      Pack(sums, words);
    }
    Keep(next_at, rows, *words);
  }

  __device__ __forceinline__ void LastLayer(const DenseLayer& layer, const Rows& rows, const Words& words) const {
    const bool has_bias = layer.bias != nullptr, rounds_product = layer.rounds_product, rounds_sum = layer.rounds_sum;
    uint32_t weight[4], bias[2] = {};
    ReadWeight<false>(static_cast<const T*>(at_.Shared(layer.weight)), layer.in, layer.out, weight);
    if (has_bias) ReadBias(static_cast<const T*>(at_.Shared(layer.bias)), layer.out, bias);
    Sums sums;
    Multiply(words, weight, &sums);
    if (stack_.output_dtype == DType::kF32 && stack_.output_columns == 1) {
      auto* to = static_cast<float*>(at_.Shared(stack_.output));
#pragma unroll
      for (int i = 0; i < kPasses * 2; ++i) {
        float value = sums[i / 2][i % 2 * 2];
        if (rounds_product) value = RoundTo<T>(value);
        if (has_bias) value += ElementOfPair<T>(bias[0], 0);
        if (rounds_sum) value = RoundTo<T>(value);
        if (Column() == 0) to[rows.blocks[i / 2] * kFragmentSide + Row() + i % 2 * 8] = value;
      }
      return;
    }
    AddBias(layer, bias, &sums);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) this->WriteRows(rows.blocks[pass], 0, sums[pass]);
  }

  // From the gradient behind a layer's product, whose words are given, to the one behind the product below.
  __device__ __forceinline__ void BackwardLayer(const DenseLayer& layer, const DenseLayer& below, const Rows& rows,
                                                Words* words) const {
    const bool relu = below.activation_grad == F::kReluGrad;
    const int to = below.gradient_at, kept_at = below.sums_at >= 0 ? below.sums_at : layer.x_at;
    uint32_t weight[4];
    ReadWeight<true>(static_cast<const T*>(at_.Shared(layer.weight)), layer.in, layer.out, weight);
    Words kept;
    if (relu) Recall(kept_at, rows, &kept);
    Sums sums;
    Multiply(*words, weight, &sums);
    Pack(sums, words);
    if (relu) {
#pragma unroll
      for (int i = 0; i < kPasses * 4; ++i) {
        (*words)[i / 4][i % 4] = ReluGradOfPair((*words)[i / 4][i % 4], kept[i / 4][i % 4]);
      }
    }
    Keep(to, rows, *words);
  }
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_NARROW_STACK_H_
