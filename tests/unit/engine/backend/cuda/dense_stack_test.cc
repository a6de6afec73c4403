// Dense layers by one block of threads, forward and backward, at sizes that fill no fragment, against float64; and what
// is not finite stays in its row, and in the columns of gradients that it meets.
#include "engine/backend/cuda/dense_stack.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/backend/cuda/narrow_stack.h"

namespace ampd::cuda {
namespace {

using F = ops::ElementwiseFunction;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

struct PlainAddresses {
  template <typename T>
  __device__ __forceinline__ T* operator()(T* address) const {
    return address;
  }
  template <typename T>
  __device__ __forceinline__ T* Shared(T* address) const {
    return address;
  }
};

template <typename T>
void StackKernel(DenseStack stack) {
  char* const shared = DynamicShared<char>();
  const PlainAddresses at;
  const auto take = [&](const auto& machine) {
    machine.Forward();
    __syncthreads();
    machine.BackwardRows();
    __syncthreads();
    machine.WeightGradients(reinterpret_cast<float*>(shared + int64_t{stack.fragments} * kFragmentBytes));
  };
  if (stack.narrow) return take(NarrowStackMachine<T, kThreads, PlainAddresses>(stack, at, shared));
  take(DenseStackMachine<T, kThreads, PlainAddresses>(stack, at, shared));
}

struct Layer {
  int32_t out;
  F activation = F::kNone, gradient = F::kNone;
  bool from_sums = false;  // whether the gradient is a function of what the activation is applied to
  bool bias = true;
  bool rounds_product = true, rounds_sum = false;
  int32_t padding = 0;  // of the outputs: their weights and biases are zeros, their gradients are nobody's
};

struct Case {
  std::string name;
  int32_t rows, in;
  std::vector<Layer> layers;
  int32_t splits = 1;
  bool wide_output = true, wide_gradient = true;  // f32
};

double Draw(int64_t i, int64_t salt) { return static_cast<double>((i * 37 + salt * 101 + 11) % 33 - 16) / 32; }

constexpr double kSlope = 0.25;

double Activate(F f, double x) {
  if (f == F::kRelu) return x > 0 ? x : 0;
  if (f == F::kLeakyRelu) return x > 0 ? x : kSlope * x;
  if (f == F::kSilu) return x / (1 + std::exp(-x));
  if (f == F::kGeluTanh) return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
  if (f == F::kTanh) return std::tanh(x);
  if (f == F::kSigmoid) return 1 / (1 + std::exp(-x));
  if (f == F::kGelu) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  return x;
}
double Derivative(F f, double x) {
  if (f == F::kRelu) return x > 0 ? 1 : 0;
  if (f == F::kLeakyRelu) return x > 0 ? 1 : kSlope;
  // By the difference of neighbours: exact enough for 16 bits.
  if (f == F::kSilu || f == F::kGeluTanh) return (Activate(f, x + 1e-5) - Activate(f, x - 1e-5)) / 2e-5;
  if (f == F::kTanh) return 1 - std::tanh(x) * std::tanh(x);
  if (f == F::kSigmoid) return Activate(f, x) * (1 - Activate(f, x));
  if (f == F::kGelu) {
    return 0.5 * (1 + std::erf(x / std::sqrt(2.0))) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
  }
  return 1;
}

using Matrix = std::vector<double>;

// A stack with its memory; x, weights and biases as Draw() gives them.
template <typename T>
class StackOf {
 public:
  explicit StackOf(const Case& c) : case_(c) {
    stack_.dtype = std::is_same_v<T, Half> ? DType::kF16 : DType::kBF16;
    stack_.rows = c.rows, stack_.row_blocks = (c.rows + 15) / 16, stack_.splits = c.splits;
    stack_.layer_count = static_cast<int32_t>(c.layers.size());
    stack_.input_columns = c.in;
    for (int i = 0; i < c.rows * c.in; ++i) x_.push_back(static_cast<float>(Draw(i, 1)));
    const auto place = [&](int32_t across) {
      const int32_t at = stack_.fragments;
      stack_.fragments += stack_.row_blocks * across;
      return at;
    };
    weights_.resize(c.layers.size()), biases_.resize(c.layers.size());
    weight_grads_.resize(c.layers.size()), bias_grads_.resize(c.layers.size());
    int32_t in = c.in, own_in = c.in;
    for (size_t l = 0; l < c.layers.size(); ++l) {
      DenseLayer& layer = stack_.layers[l];
      const int32_t own_out = c.layers[l].out, out = own_out + c.layers[l].padding;
      for (int o = 0; o < out; ++o) {
        for (int i = 0; i < in; ++i) {
          const bool own = o < own_out && i < own_in;
          weights_[l].push_back(
              Store<T>(own ? static_cast<float>(Draw(o * in + i, 2 + static_cast<int64_t>(l))) : 0.0f));
        }
        biases_[l].push_back(Store<T>(o < own_out ? static_cast<float>(Draw(o, 20 + static_cast<int64_t>(l))) : 0.0f));
      }
      weight_grads_[l].assign(static_cast<size_t>(own_out) * own_in, -1e30f), bias_grads_[l].assign(own_out, -1e30f);
      layer.weight = weights_[l].data(), layer.weight_grad = weight_grads_[l].data();
      if (c.layers[l].bias) layer.bias = biases_[l].data(), layer.bias_grad = bias_grads_[l].data();
      layer.in = in, layer.grad_in = own_in, layer.out = out, layer.grad_out = own_out;
      layer.rounds_product = c.layers[l].rounds_product, layer.rounds_sum = c.layers[l].rounds_sum;
      layer.constants.alpha = static_cast<float>(kSlope);
      layer.in_blocks = (in + 15) / 16, layer.out_blocks = (out + 15) / 16;
      layer.x_at = place(layer.in_blocks), layer.gradient_at = place(layer.out_blocks);
      layer.activation = c.layers[l].activation, layer.activation_grad = c.layers[l].gradient;
      if (c.layers[l].from_sums) layer.sums_at = place(layer.out_blocks);
      stack_.weight_blocks += layer.in_blocks * layer.out_blocks;
      in = out, own_in = own_out;
    }
    // Of what pads the last layer nothing is shown.
    in = own_in;
    stack_.output_columns = stack_.output_grad_columns = in;
    stack_.input = x_.data();
    stack_.output_dtype = c.wide_output ? DType::kF32 : stack_.dtype;
    y_.assign(static_cast<size_t>(c.rows) * in, -1e30f), narrow_y_.resize(y_.size());
    stack_.output = c.wide_output ? static_cast<void*>(y_.data()) : narrow_y_.data();
    for (size_t i = 0; i < y_.size(); ++i) y_grad_.push_back(static_cast<float>(Draw(static_cast<int64_t>(i), 40)));
    for (const float dy : y_grad_) narrow_y_grad_.push_back(Store<T>(dy));
    stack_.output_grad = c.wide_gradient ? static_cast<const void*>(y_grad_.data()) : narrow_y_grad_.data();
    stack_.output_grad_dtype = c.wide_gradient ? DType::kF32 : stack_.dtype;
    stack_.narrow = IsNarrow(stack_);
  }

  void Run() {
    const int64_t bytes = int64_t{stack_.fragments} * kFragmentBytes + StackScratch(stack_);
    ASSERT_TRUE(AllowSharedMemory("stack", StackKernel<T>, bytes).ok());
    ASSERT_TRUE(Launch("stack", StackKernel<T>, 1, kThreads, bytes, nullptr, stack_).ok());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    if (case_.wide_output) return;
    for (size_t i = 0; i < y_.size(); ++i) y_[i] = Load(narrow_y_[i]);
  }

  bool narrow() const { return stack_.narrow; }
  void Widen() { stack_.narrow = false; }
  std::vector<float>& x() { return x_; }
  std::vector<T>& weights(size_t l) { return weights_[l]; }
  std::vector<T>& biases(size_t l) { return biases_[l]; }
  const std::vector<float>& y() const { return y_; }
  const std::vector<float>& weight_grad(size_t l) const { return weight_grads_[l]; }
  const std::vector<float>& bias_grad(size_t l) const { return bias_grads_[l]; }

  static double Round(double value) { return static_cast<double>(RoundTo<T>(static_cast<float>(value))); }

  // What it should be, in float64 but for the roundings that are stated.
  struct Expected {
    Matrix y;
    std::vector<Matrix> weight_grads, bias_grads;
  };
  Expected Reference() const {
    Expected e;
    std::vector<Matrix> inputs, sums;
    Matrix h;
    for (const float x : x_) h.push_back(Round(x));
    int32_t in = case_.in;
    const auto rows = static_cast<size_t>(case_.rows);
    std::vector<size_t> leading;  // of weights: with padding
    for (size_t l = 0; l < case_.layers.size(); ++l) {
      const auto out = static_cast<size_t>(case_.layers[l].out), k_end = static_cast<size_t>(in);
      leading.push_back(l == 0 ? k_end : k_end + static_cast<size_t>(case_.layers[l - 1].padding));
      inputs.push_back(h);
      Matrix z(rows * out), next(rows * out);
      for (size_t r = 0; r < rows; ++r) {
        for (size_t o = 0; o < out; ++o) {
          double sum = 0;
          for (size_t k = 0; k < k_end; ++k) sum += h[r * k_end + k] * Load(weights_[l][o * leading[l] + k]);
          if (case_.layers[l].rounds_product) sum = Round(sum);
          z[r * out + o] = sum + (case_.layers[l].bias ? Load(biases_[l][o]) : 0.0f);
          if (case_.layers[l].rounds_sum) z[r * out + o] = Round(z[r * out + o]);
          const bool last = l + 1 == case_.layers.size();
          next[r * out + o] =
              last && case_.wide_output ? z[r * out + o] : Round(Activate(case_.layers[l].activation, z[r * out + o]));
        }
      }
      sums.push_back(z);
      h = next;
      in = case_.layers[l].out;
    }
    e.y = h;
    Matrix g;
    for (const float dy : y_grad_) g.push_back(Round(dy));
    e.weight_grads.resize(case_.layers.size()), e.bias_grads.resize(case_.layers.size());
    for (size_t l = case_.layers.size(); l-- > 0;) {
      const auto out = static_cast<size_t>(case_.layers[l].out);
      const size_t k_end = inputs[l].size() / rows;
      e.weight_grads[l].assign(out * k_end, 0), e.bias_grads[l].assign(out, 0);
      Matrix below(rows * k_end);
      for (size_t r = 0; r < rows; ++r) {
        for (size_t k = 0; k < k_end; ++k) {
          double sum = 0;
          for (size_t o = 0; o < out; ++o) {
            sum += g[r * out + o] * Load(weights_[l][o * leading[l] + k]);
            e.weight_grads[l][o * k_end + k] += g[r * out + o] * inputs[l][r * k_end + k];
          }
          if (l > 0)
            below[r * k_end + k] =
                Round(Round(sum) * Derivative(case_.layers[l - 1].activation, sums[l - 1][r * k_end + k]));
        }
        for (size_t o = 0; o < out; ++o) e.bias_grads[l][o] += g[r * out + o];
      }
      g = below;
    }
    return e;
  }

 private:
  const Case case_;
  DenseStack stack_;
  std::vector<float> x_, y_, y_grad_;
  std::vector<T> narrow_y_, narrow_y_grad_;
  std::vector<std::vector<T>> weights_, biases_;
  std::vector<std::vector<float>> weight_grads_, bias_grads_;
};

// Relative to the largest of them.
void ExpectNear(const std::vector<float>& values, const Matrix& expected, double bound, const std::string& what) {
  ASSERT_EQ(values.size(), expected.size()) << what;
  double largest = 0;
  for (const double e : expected) largest = std::max(largest, std::abs(e));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], bound * largest) << what << " at " << i;
  }
}

std::vector<Case> Cases() {
  const auto relu = [](int32_t out) { return Layer{out, F::kRelu, F::kReluGrad}; };
  return {
      {"Small", 512, 8, {relu(16), relu(16), {1}}, 3},
      {"OneLayer", 21, 5, {{3}}},
      {"NoBias", 16, 16, {{16, F::kRelu, F::kReluGrad, false, false}, {16, F::kNone, F::kNone, false, false}}},
      {"Odd", 37, 19, {relu(33), relu(7), relu(50), {10}}, 2},
      {"Narrow", 1, 1, {relu(1), {1}}, 1, false},
      {"Deep", 70, 16, {relu(16), relu(16), relu(16), relu(16), relu(16), relu(16), relu(16), {4}}, 2},
      {"Linear", 48, 12, {{20}, {12}}, 3},
      {"Tanh", 40, 24, {{24, F::kTanh, F::kTanhGrad}, {9}}},
      {"Sigmoid", 40, 24, {{24, F::kSigmoid, F::kSigmoidGrad}, {9}}, 2},
      {"LeakyRelu", 33, 24, {{24, F::kLeakyRelu, F::kLeakyReluGrad, true}, {9}}},
      {"Silu", 40, 24, {{24, F::kSilu, F::kSiluGrad, true}, {9}}, 2, true, false},
      {"GeluTanh", 40, 24, {{24, F::kGeluTanh, F::kGeluTanhGrad, true}, {9}}, 1, false, false},
      {"RoundedSums",
       20,
       24,
       {{24, F::kTanh, F::kTanhGrad, false, true, true, true}, {9, F::kNone, F::kNone, false, true, true, true}}},
      {"WideProduct", 20, 24, {{9, F::kNone, F::kNone, false, false, false}}},
      {"Padded",
       20,
       24,
       {{13, F::kSigmoid, F::kSigmoidGrad, false, true, true, false, 3},
        {21, F::kGelu, F::kGeluGrad, true, true, true, false, 3},
        {10, F::kNone, F::kNone, false, true, true, false, 6}},
       3},
      {"Gelu", 40, 24, {{24, F::kGelu, F::kGeluGrad, true}, {18, F::kGelu, F::kGeluGrad, true}, {9}}, 2, false},
  };
}

// Of those that a narrow stack's machine takes.
std::vector<Case> NarrowCases() {
  const auto relu = [](int32_t out) { return Layer{out, F::kRelu, F::kReluGrad}; };
  const Layer one = {1, F::kNone, F::kNone, false, true, true, false, 7};
  return {
      {"Usual", 512, 8, {relu(16), relu(16), one}, 3},
      {"OneBlock", 16, 16, {relu(8), {16}}},
      {"ThreeBlocks", 48, 16, {relu(16), {10, F::kNone, F::kNone, false, true, true, false, 6}}, 2, false, false},
      {"NineBlocks",
       144,
       8,
       {{16, F::kRelu, F::kReluGrad, true, false},
        {16, F::kNone, F::kNone, false, true, false},
        {8, F::kNone, F::kNone, false, false, false}},
       1},
      {"ManyParts", 80, 8, {relu(16), relu(16), relu(16), one}, 5},
      {"Linear", 32, 16, {{16}, {8}}, 2},
      {"Unpadded", 512, 8, {relu(16), relu(16), {1}}, 3},
      {"Eleven", 32, 8, {relu(16), {11}}, 2},
      {"Rounded",
       32,
       8,
       {{16, F::kRelu, F::kReluGrad, true, true, true, true},
        {16, F::kNone, F::kNone, false, true, true, true},
        {16, F::kRelu, F::kReluGrad, false, false, true, true},
        {8, F::kNone, F::kNone, false, true, true, true}}},
  };
}

template <typename T>
class DenseStackOf : public ::testing::Test {};
using Types = ::testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(DenseStackOf, Types);

TYPED_TEST(DenseStackOf, IsThatOfFloat64) {
  // A rounding that falls the other way moves what comes behind it by a unit in the last place.
  const double unit = std::is_same_v<TypeParam, Half> ? 1.0 / 1024 : 1.0 / 128;
  std::vector<Case> cases = Cases();
  for (const Case& c : NarrowCases()) cases.push_back(c);
  for (const Case& c : cases) {
    StackOf<TypeParam> stack(c);
    stack.Run();
    const auto expected = stack.Reference();
    ExpectNear(stack.y(), expected.y, 2 * unit, c.name + ": result");
    for (size_t l = 0; l < c.layers.size(); ++l) {
      ExpectNear(stack.weight_grad(l), expected.weight_grads[l], 2 * unit,
                 c.name + ": weight's gradient " + std::to_string(l));
      if (c.layers[l].bias) {
        ExpectNear(stack.bias_grad(l), expected.bias_grads[l], 2 * unit,
                   c.name + ": bias's gradient " + std::to_string(l));
      } else {
        EXPECT_EQ(stack.bias_grad(l)[0], -1e30f) << c.name;
      }
    }
  }
}

TYPED_TEST(DenseStackOf, HasTheSameBitsWhereItIsNarrow) {
  for (const Case& c : NarrowCases()) {
    for (const float far : {0.0f, std::numeric_limits<float>::infinity()}) {
      StackOf<TypeParam> narrow(c), wide(c);
      ASSERT_TRUE(narrow.narrow()) << c.name;
      wide.Widen();
      for (StackOf<TypeParam>* stack : {&narrow, &wide}) {
        if (far != 0) stack->x()[3] = far, stack->weights(0)[5] = Store<TypeParam>(-far);
        stack->Run();
      }
      const auto expect_same = [&](const std::vector<float>& a, const std::vector<float>& b) {
        ASSERT_EQ(a.size(), b.size());
        for (size_t i = 0; i < a.size(); ++i) {
          if (std::isnan(a[i]) && std::isnan(b[i])) continue;
          ASSERT_EQ(a[i], b[i]) << c.name << " at " << i;
          ASSERT_EQ(std::signbit(a[i]), std::signbit(b[i])) << c.name << " at " << i;
        }
      };
      expect_same(narrow.y(), wide.y());
      for (size_t l = 0; l < c.layers.size(); ++l) {
        expect_same(narrow.weight_grad(l), wide.weight_grad(l));
        if (c.layers[l].bias) expect_same(narrow.bias_grad(l), wide.bias_grad(l));
      }
    }
  }
}

TYPED_TEST(DenseStackOf, KeepsWhatIsNotFiniteInItsRow) {
  const Case c{"Bad", 37, 20, {{24}, {10}}, 2};
  StackOf<TypeParam> stack(c);
  stack.x()[33 * 20 + 19] = std::numeric_limits<float>::infinity();
  stack.Run();
  for (int r = 0; r < c.rows; ++r) {
    for (int o = 0; o < 10; ++o) EXPECT_EQ(std::isfinite(stack.y()[static_cast<size_t>(r * 10 + o)]), r != 33) << r;
  }
  // Weights of the first layer that meet other features have finite gradients.
  for (int o = 0; o < 24; ++o) {
    for (int k = 0; k < 20; ++k) {
      EXPECT_EQ(std::isfinite(stack.weight_grad(0)[static_cast<size_t>(o * 20 + k)]), k != 19) << o << ", " << k;
    }
  }
}

// Of a batch that fills no fragment the other rows are no samples, whatever the network makes of zeros.
TYPED_TEST(DenseStackOf, MakesNothingOfRowsBeyondTheLast) {
  Case c{"Far", 37, 1, {{1, F::kRelu, F::kReluGrad}, {1, F::kRelu, F::kReluGrad}, {1}}};
  for (const int32_t rows : {32, 37}) {
    c.rows = rows;
    StackOf<TypeParam> stack(c);
    std::fill(stack.x().begin(), stack.x().end(), 1.0f);
    // 0 of a sample, infinite of a row of zeros.
    stack.weights(0)[0] = Store<TypeParam>(-30000.0f), stack.biases(0)[0] = Store<TypeParam>(30000.0f);
    stack.weights(1)[0] = Store<TypeParam>(1e4f);
    stack.Run();
    for (size_t l = 0; l < c.layers.size(); ++l) {
      EXPECT_TRUE(std::isfinite(stack.weight_grad(l)[0])) << rows << " rows, layer " << l;
      EXPECT_TRUE(std::isfinite(stack.bias_grad(l)[0])) << rows << " rows, layer " << l;
    }
  }
}

TYPED_TEST(DenseStackOf, HasTheSameBitsHoweverOftenItRuns) {
  const Case c = Cases()[3];
  StackOf<TypeParam> first(c), second(c);
  first.Run();
  second.Run();
  for (size_t l = 0; l < c.layers.size(); ++l) EXPECT_EQ(first.weight_grad(l), second.weight_grad(l));
}

}  // namespace
}  // namespace ampd::cuda
