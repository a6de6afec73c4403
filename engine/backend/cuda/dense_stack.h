// Dense layers one after another by one block: forward, backward, and the gradients of their weights. For .cu files.
//
// A warp keeps to its rows of the batch through all layers, so that nothing waits between layers; only what sums over
// the batch, the gradients of weights and biases, waits for all rows. What is kept in between lies in shared memory as
// the matrix units take it: a fragment is 16 rows by 16 columns of 16-bit numbers, as four squares of 8 by 8 {upper
// left, lower left, upper right, lower right}, each by rows. Rows beyond the last are zeros. Columns beyond the last
// are zeros, or, of activations, what those make of zeros, which meets zeros in every product and is finite, unless a
// value of the row's overflowed before: then they may make the row NaN where a step kernel by kernel has an infinity.
#ifndef AMPD_ENGINE_BACKEND_CUDA_DENSE_STACK_H_
#define AMPD_ENGINE_BACKEND_CUDA_DENSE_STACK_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "engine/backend/cuda/block_product.h"
#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/elementwise_functions.h"
#include "engine/backend/cuda/launch.h"

namespace ampd::cuda {

inline constexpr int kFragmentSide = 16;
inline constexpr int kFragmentBytes = kFragmentSide * kFragmentSide * 2;
inline constexpr int kMostDenseLayers = 8;
// What a lane sums of a block of a weight's gradient: two tiles, and two places of the bias's.
inline constexpr int kStackSums = 10;

constexpr int32_t FragmentsAcross(int32_t extent) { return (extent + kFragmentSide - 1) / kFragmentSide; }

// x [rows, in] -> activation(x weight^T + bias) [rows, out]. The product is rounded to the stack's dtype, and so is the
// result. Addresses are what the kernel makes of them (resident_program.h).
struct DenseLayer {
  const void* weight = nullptr;  // [out, in]
  const void* bias = nullptr;    // [out]; null: none
  float* weight_grad = nullptr;  // [grad_out, grad_in]: out and in without what pads them
  float* bias_grad = nullptr;    // [grad_out], where there is a bias
  int32_t in = 0, out = 0, grad_in = 0, grad_out = 0;
  // Fragments across.
  int32_t in_blocks = 0, out_blocks = 0;
  // Where they begin: of x, of the gradient before the activation, and, where the activation's gradient is a function
  // of that, of what the activation is applied to (else -1).
  int32_t x_at = 0, gradient_at = 0, sums_at = -1;
  // kNone: none, as of the last layer.
  ops::ElementwiseFunction activation = ops::ElementwiseFunction::kNone;
  ops::ElementwiseFunction activation_grad = ops::ElementwiseFunction::kNone;
  ops::ElementwiseConstants constants;
  // Whether the product is rounded, and whether what has its bias is, before what follows.
  bool rounds_product = true, rounds_sum = false;
};

// Plain data.
struct DenseStack {
  DenseLayer layers[kMostDenseLayers];
  int32_t layer_count = 0;
  DType dtype = DType::kF16;  // of the operands: f16 or bf16
  int32_t rows = 0, row_blocks = 0;
  // [rows, input_columns]: its other columns, up to the first layer's, are zeros.
  const void* input = nullptr;
  DType input_dtype = DType::kF32;
  int32_t input_columns = 0;
  // [rows, output_columns], the last layer's first ones; and the gradient of that, whose other columns are zeros.
  void* output = nullptr;
  const void* output_grad = nullptr;
  DType output_dtype = DType::kF32, output_grad_dtype = DType::kF32;
  int32_t output_columns = 0, output_grad_columns = 0;
  // Of all layers: fragments of gradients of weights, and parts that each one's sum over the rows is cut into.
  int32_t weight_blocks = 0, splits = 1;
  int32_t fragments = 0;
  // Whether a narrow stack's machine (narrow_stack.h) takes it.
  bool narrow = false;
  // What rows of weights are that are beyond the last.
  alignas(16) uint32_t zeros[4] = {};
};

// f(c, a) of an activation, or f(c, a, b) of an activation's gradient.
template <bool kGradient, int kCount>
__device__ __forceinline__ void Activate(ops::ElementwiseFunction function, const ops::ElementwiseConstants& c,
                                         float (&a)[kCount], const float (&b)[kCount]) {
  using F = ops::ElementwiseFunction;
  const auto apply = [&](auto of) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) a[i] = Apply<Function<decltype(of)::value>, float>(c, a[i], b[i], b[i]);
  };
  switch (function) {
#define AMPD_CASE(name)                                                                         \
  case kGradient ? F::k##name##Grad:                                                            \
    F::k##name : apply(std::integral_constant<F, kGradient ? F::k##name##Grad : F::k##name>()); \
    break
    AMPD_CASE(Relu);
    AMPD_CASE(LeakyRelu);
    AMPD_CASE(Gelu);
    AMPD_CASE(GeluTanh);
    AMPD_CASE(Silu);
    AMPD_CASE(Sigmoid);
    AMPD_CASE(Tanh);
#undef AMPD_CASE
    default:
      break;
  }
}
inline bool IsStackActivation(ops::ElementwiseFunction function) {
  using F = ops::ElementwiseFunction;
  return function == F::kRelu || function == F::kLeakyRelu || function == F::kGelu || function == F::kGeluTanh ||
         function == F::kSilu || function == F::kSigmoid || function == F::kTanh;
}

// What a thread of the block does of a stack. T: Half or BFloat16. The results' bits depend on nothing but the stack.
template <typename T, int kThreads, typename Addresses>
class DenseStackMachine {
 public:
  // `fragments`: the stack's, shared memory that holds what forward leaves for backward; aligned to 16 bytes.
  __device__ __forceinline__ DenseStackMachine(const DenseStack& stack, const Addresses& at, char* fragments)
      : stack_(stack), at_(at), fragments_(reinterpret_cast<uint32_t*>(fragments)) {}

  __device__ __forceinline__ void Forward() const {
#pragma unroll 1
    for (int first = Warp(); first < stack_.row_blocks; first += kPasses * kWarps) {
      ReadRows(at_(stack_.input), stack_.input_dtype, stack_.input_columns, first, stack_.layers[0].in_blocks,
               stack_.layers[0].x_at);
#pragma unroll 1
      for (int l = 0; l < stack_.layer_count; ++l) ForwardLayer(l, first);
    }
  }

  // Behind a barrier behind Forward(), with the output's gradient there; behind another one the weights' gradients.
  __device__ __forceinline__ void BackwardRows() const {
    const DenseLayer& last = stack_.layers[stack_.layer_count - 1];
#pragma unroll 1
    for (int first = Warp(); first < stack_.row_blocks; first += kPasses * kWarps) {
      ReadRows(at_.Shared(stack_.output_grad), stack_.output_grad_dtype, stack_.output_grad_columns, first,
               last.out_blocks, last.gradient_at);
#pragma unroll 1
      for (int l = stack_.layer_count - 1; l > 0; --l) BackwardLayer(l, first);
    }
  }

  // `scratch`: StackScratch(stack) bytes of shared memory.
  __device__ __forceinline__ void WeightGradients(float* scratch) const {
    const int items = stack_.weight_blocks * stack_.splits;
    const int part = (stack_.row_blocks + stack_.splits - 1) / stack_.splits;
#pragma unroll 1
    for (int item = Warp(); item < items; item += kWarps) {
      const WeightBlock w = BlockOf(item % stack_.weight_blocks);
      const int begin = item / stack_.weight_blocks * part, end = min(begin + part, stack_.row_blocks);
      float sums[kSums] = {};
      SumRows(w, begin, end, &sums);
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        if (stack_.splits == 1) {
          WriteGradient(w, Lane(), i, sums[i]);
        } else {
          scratch[(item * kSums + i) * kWarp + Lane()] = sums[i];
        }
      }
    }
    if (stack_.splits == 1) return;
    __syncthreads();
    const int values = stack_.weight_blocks * kSums * kWarp;
    for (int i = static_cast<int>(threadIdx.x); i < values; i += kThreads) {
      float sum = 0;
      for (int split = 0; split < stack_.splits; ++split) sum += scratch[split * values + i];
      WriteGradient(BlockOf(i / (kSums * kWarp)), i % kWarp, i / kWarp % kSums, sum);
    }
  }

 protected:
  static constexpr int kWarps = kThreads / kWarp;
  // Blocks of rows that a warp takes at a time: while one waits, the other goes on.
  static constexpr int kPasses = 2;
  static constexpr int kSums = kStackSums;
  static constexpr uint32_t kOnes = std::is_same_v<T, Half> ? 0x3c003c00u : 0x3f803f80u;

  __device__ __forceinline__ static int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ __forceinline__ static int Warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  // Of the tiles' layout (block_product.h): this lane's row, and the first of its two columns.
  __device__ __forceinline__ static int Row() { return Lane() / 4; }
  __device__ __forceinline__ static int Column() { return Lane() % 4 * 2; }

  // The 128 words of a fragment.
  __device__ __forceinline__ uint32_t* Fragment(int at, int row_block, int block, int blocks) const {
    return fragments_ + static_cast<int64_t>(at + row_block * blocks + block) * (kFragmentBytes / 4);
  }
  // What this lane holds of a fragment, as it wrote it.
  __device__ __forceinline__ static void ReadOwn(const uint32_t* fragment, uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = fragment[i * kWarp + Lane()];
  }
  __device__ __forceinline__ static void WriteOwn(uint32_t* fragment, const uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) fragment[i * kWarp + Lane()] = words[i];
  }
  // Each square turned around, whoever wrote it: of square i the rows 2 t and 2 t + 1 of column g.
  __device__ __forceinline__ static void ReadTurned(const uint32_t* fragment, uint32_t (&words)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(fragment + Lane() * 4));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
#else
    const auto* halves = reinterpret_cast<const uint16_t*>(fragment);
    for (int i = 0; i < 4; ++i) {
      const uint16_t* upper = halves + i * 64 + Column() * 8 + Row();
      words[i] = static_cast<uint32_t>(upper[0]) | static_cast<uint32_t>(upper[8]) << 16;
    }
#endif
  }

  // Fragments of the blocks `first` and kWarps further of a matrix [rows, columns].
  __device__ __forceinline__ void ReadRows(const void* matrix, DType dtype, int columns, int first, int blocks,
                                           int to) const {
    WithData(dtype, [&](auto tag) {
      using From = typename decltype(tag)::type;
      const From* from = static_cast<const From*>(matrix);
#pragma unroll 1
      for (int block = 0; block < blocks; ++block) {
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          const int row_block = first + pass * kWarps;
          if (row_block >= stack_.row_blocks) continue;
          uint32_t words[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int row = row_block * kFragmentSide + Row() + i % 2 * 8;
            const int column = block * kFragmentSide + Column() + i / 2 * 8;
            const From* pair = from + static_cast<int64_t>(row) * columns + column;
            const bool in_row = row < stack_.rows;
            words[i] = PairOf<T>(in_row && column < columns ? Load(pair[0]) : 0.0f,
                                 in_row && column + 1 < columns ? Load(pair[1]) : 0.0f);
          }
          WriteOwn(Fragment(to, row_block, block, blocks), words);
        }
      }
    });
  }

  // Two tiles side by side for each of the warp's blocks of rows: the 16 columns from `block` on of the product of
  // fragments, from `at` on, and what `weight(column's half, block of the inner sum)` gives.
  template <typename Weight>
  __device__ __forceinline__ void Multiply(int at, int first, int inner_blocks, const Weight& weight,
                                           float (&sums)[kPasses][8]) const {
#pragma unroll 1
    for (int k = 0; k < inner_blocks; ++k) {
      uint32_t right[2][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) weight(half, k, right[half]);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const int row_block = first + pass * kWarps;
        if (row_block >= stack_.row_blocks) continue;
        uint32_t left[4];
        ReadOwn(Fragment(at, row_block, k, inner_blocks), left);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float tile[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) tile[i] = sums[pass][half * 4 + i];
          MultiplyAddTile<T>(left, right[half], tile);
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[pass][half * 4 + i] = tile[i];
        }
      }
    }
  }

  __device__ __forceinline__ static void Round(float (&values)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = RoundTo<T>(values[i]);
  }
  // A lane's eight of two tiles as its four words of a fragment. Rows beyond the last are zeros, whatever the network
  // makes of zeros: that may be infinite, and no multiple of an infinity is zero.
  __device__ __forceinline__ void Pack(int row_block, const float (&values)[8], uint32_t (&words)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_row = row_block * kFragmentSide + Row() + i % 2 * 8 < stack_.rows;
      words[i] = is_row ? PairOf<T>(values[2 * i], values[2 * i + 1]) : 0;
    }
  }

  __device__ __forceinline__ void ForwardLayer(int l, int first) const {
    const DenseLayer& layer = stack_.layers[l];
    const bool last = l + 1 == stack_.layer_count;
    const T* weight = static_cast<const T*>(at_.Shared(layer.weight));
    const T* bias = static_cast<const T*>(at_.Shared(layer.bias));
    const int in = layer.in, out = layer.out;
#pragma unroll 1
    for (int block = 0; block < layer.out_blocks; ++block) {
      const int column = block * kFragmentSide;
      float sums[kPasses][8] = {};
      Multiply(
          layer.x_at, first, layer.in_blocks,
          [&](int half, int k, uint32_t(&right)[2]) {
            const int line = column + half * 8 + Row(), at = k * kFragmentSide + Column();
            right[0] = LoadPair(weight, line, out, in, at, in, 1);
            right[1] = LoadPair(weight, line, out, in, at + 8, in, 1);
          },
          sums);
      float add[4] = {};
      if (layer.bias != nullptr) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int place = column + Column() + i / 2 * 8 + i % 2;
          add[i] = place < out ? Load(bias[place]) : 0.0f;
        }
      }
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const int row_block = first + pass * kWarps;
        if (row_block >= stack_.row_blocks) continue;
        float(&values)[8] = sums[pass];
        if (layer.rounds_product) Round(values);
        if (layer.bias != nullptr) {
#pragma unroll
          for (int i = 0; i < 8; ++i) values[i] += add[i / 4 * 2 + i % 2];
        }
        if (layer.rounds_sum) Round(values);
        if (last) {
          WriteRows(row_block, column, values);
          continue;
        }
        uint32_t words[4];
        if (layer.sums_at >= 0) {
          Pack(row_block, values, words);
          WriteOwn(Fragment(layer.sums_at, row_block, block, layer.out_blocks), words);
        }
        Activate<false>(layer.activation, layer.constants, values, values);
        Pack(row_block, values, words);
        WriteOwn(Fragment(stack_.layers[l + 1].x_at, row_block, block, layer.out_blocks), words);
      }
    }
  }

  __device__ __forceinline__ void WriteRows(int row_block, int column, const float (&values)[8]) const {
    WithData(stack_.output_dtype, [&](auto tag) {
      using To = typename decltype(tag)::type;
      To* to = static_cast<To*>(at_.Shared(stack_.output));
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = row_block * kFragmentSide + Row() + i / 2 % 2 * 8, at = column + Column() + i / 4 * 8 + i % 2;
        if (row < stack_.rows && at < stack_.output_columns) {
          to[static_cast<int64_t>(row) * stack_.output_columns + at] = Store<To>(values[i]);
        }
      }
    });
  }

  // From the gradient behind layer l's product to the one behind layer l - 1's.
  __device__ __forceinline__ void BackwardLayer(int l, int first) const {
    const DenseLayer &layer = stack_.layers[l], &below = stack_.layers[l - 1];
    const T* weight = static_cast<const T*>(at_.Shared(layer.weight));
    const int in = layer.in, out = layer.out;
    const int kept = below.sums_at >= 0 ? below.sums_at : layer.x_at;
#pragma unroll 1
    for (int block = 0; block < layer.in_blocks; ++block) {
      float sums[kPasses][8] = {};
      Multiply(
          layer.gradient_at, first, layer.out_blocks,
          [&](int half, int k, uint32_t(&right)[2]) {
            const int line = block * kFragmentSide + half * 8 + Row(), at = k * kFragmentSide + Column();
            right[0] = LoadPair(weight, line, in, 1, at, out, in);
            right[1] = LoadPair(weight, line, in, 1, at + 8, out, in);
          },
          sums);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const int row_block = first + pass * kWarps;
        if (row_block >= stack_.row_blocks) continue;
        float(&values)[8] = sums[pass];
        Round(values);
        uint32_t words[4];
        if (below.activation_grad != ops::ElementwiseFunction::kNone) {
          ReadOwn(Fragment(kept, row_block, block, layer.in_blocks), words);
          float from[8];
#pragma unroll
          for (int i = 0; i < 4; ++i)
            from[2 * i] = ElementOfPair<T>(words[i], 0), from[2 * i + 1] = ElementOfPair<T>(words[i], 1);
          Activate<true>(below.activation_grad, below.constants, values, from);
        }
        Pack(row_block, values, words);
        WriteOwn(Fragment(below.gradient_at, row_block, block, layer.in_blocks), words);
      }
    }
  }

  // 16 outputs by 16 inputs of a layer.
  struct WeightBlock {
    int layer, out, in;
  };
  __device__ __forceinline__ WeightBlock BlockOf(int number) const {
    int l = 0;
    while (number >= stack_.layers[l].in_blocks * stack_.layers[l].out_blocks) {
      number -= stack_.layers[l].in_blocks * stack_.layers[l].out_blocks;
      ++l;
    }
    return {l, number / stack_.layers[l].in_blocks, number % stack_.layers[l].in_blocks};
  }

  // gradient^T x over the blocks of rows from `begin` to `end`, and gradient^T 1.
  __device__ __forceinline__ void SumRows(const WeightBlock& w, int begin, int end, float (*sums)[kSums]) const {
    const DenseLayer& layer = stack_.layers[w.layer];
    const bool with_bias = w.in == 0 && layer.bias_grad != nullptr;
    const uint32_t ones[2] = {kOnes, kOnes};
    float left_tile[4] = {}, right_tile[4] = {}, bias[4] = {};
    const uint32_t* gradient = Fragment(layer.gradient_at, begin, w.out, layer.out_blocks);
    const uint32_t* input = Fragment(layer.x_at, begin, w.in, layer.in_blocks);
    const int gradient_step = layer.out_blocks * (kFragmentBytes / 4),
              input_step = layer.in_blocks * (kFragmentBytes / 4);
#pragma unroll 4
    for (int row_block = begin; row_block < end; ++row_block, gradient += gradient_step, input += input_step) {
      uint32_t g[4], x[4];
      ReadTurned(gradient, g);
      ReadTurned(input, x);
      const uint32_t turned[4] = {g[0], g[2], g[1], g[3]}, left[2] = {x[0], x[1]}, right[2] = {x[2], x[3]};
      MultiplyAddTile<T>(turned, left, left_tile);
      MultiplyAddTile<T>(turned, right, right_tile);
      if (with_bias) MultiplyAddTile<T>(turned, ones, bias);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) (*sums)[i] = left_tile[i], (*sums)[4 + i] = right_tile[i];
    (*sums)[8] = bias[0], (*sums)[9] = bias[2];
  }

  __device__ __forceinline__ void WriteGradient(const WeightBlock& w, int lane, int i, float value) const {
    const DenseLayer& layer = stack_.layers[w.layer];
    if (i >= 8) {
      const int out = w.out * kFragmentSide + lane / 4 + (i - 8) * 8;
      // The lanes of a row hold the same.
      if (lane % 4 == 0 && w.in == 0 && layer.bias_grad != nullptr && out < layer.grad_out)
        at_.Shared(layer.bias_grad)[out] = value;
      return;
    }
    const int out = w.out * kFragmentSide + lane / 4 + i / 2 % 2 * 8;
    const int in = w.in * kFragmentSide + lane % 4 * 2 + i / 4 * 8 + i % 2;
    if (out < layer.grad_out && in < layer.grad_in)
      at_.Shared(layer.weight_grad)[static_cast<int64_t>(out) * layer.grad_in + in] = value;
  }

  const DenseStack& stack_;
  const Addresses& at_;
  uint32_t* const fragments_;
};

// Shared memory that the sums' parts take.
constexpr int64_t StackScratch(const DenseStack& stack) {
  return stack.splits == 1 ? 0
                           : int64_t{stack.weight_blocks} * stack.splits * kStackSums * kWarp * int64_t{sizeof(float)};
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_DENSE_STACK_H_
