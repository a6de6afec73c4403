// What the kernels of lstm and gru share: the way through time, the products, and the states that each step read. For
// .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_RECURRENT_H_
#define AMPD_ENGINE_BACKEND_CUDA_RECURRENT_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <string>

#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/gemm.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/core/status.h"
#include "engine/ops/compute.h"

namespace ampd::cuda::recurrent {

inline constexpr int kThreads = 256;

// Extents and the way through time of one node.
struct Sequence {
  int64_t batch = 0, time = 0, hidden = 0;
  bool reverse = false;

  // Time of the `step`th step.
  int64_t At(int64_t step) const { return reverse ? time - 1 - step : step; }
  // Time before `t` in the order of steps.
  __device__ int64_t Before(int64_t t) const { return reverse ? t + 1 : t - 1; }
  // The first time of a sample, which starts from the initial state.
  __device__ bool IsFirst(int64_t t, int64_t length) const { return reverse ? t == length - 1 : t == 0; }
  // Whether a sample takes part in time `t`; `lengths` may be null. A length outside 0..time counts as the nearer end.
  __device__ int64_t LengthOf(const int32_t* lengths, int64_t sample) const {
    if (lengths == nullptr) return time;
    const int64_t length = lengths[sample];
    return length < 0 ? 0 : length < time ? length : time;
  }
  __host__ __device__ int64_t states() const { return batch * hidden; }
};

inline Sequence SequenceOf(const runtime::NodeDesc& desc, const Shape& steps, int64_t hidden) {
  return {steps[0], steps[1], hidden, desc.attributes.String("direction") == "reverse"};
}

// The node's device, stream and name, for launches of one thread an element.
struct Launcher {
  Context* context;
  std::string name;

  template <typename... Parameters, typename... Arguments>
  absl::Status operator()(void (*kernel)(Parameters...), int64_t elements, Arguments&&... arguments) const {
    const unsigned blocks = BlocksFor(elements, kThreads, context->properties().sm_count);
    return Launch(name, kernel, blocks, kThreads, 0, context->stream(), std::forward<Arguments>(arguments)...);
  }
};

// This thread's elements of `n`, in a grid of any size.
template <typename Body>
__device__ __forceinline__ void ForEach(int64_t n, const Body& body) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) body(i);
}

// The address of an optional input.
template <typename T>
const T* InputOrNull(const runtime::KernelArgs& args, size_t input) {
  return args.inputs.size() > input ? args.inputs[input].as<T>() : nullptr;
}

// [rows, inner] in the node's dtype, its rows `stride` elements apart, times weights, in f32. Weights are
// [columns, inner], or [inner, columns].
class Product {
 public:
  struct Extents {
    int64_t rows, columns, inner, stride;
    bool weights_transposed;
  };
  static absl::StatusOr<Product> Create(const runtime::NodeDesc& desc, const Extents& e, Context* context) {
    const DType dtype = desc.inputs[0].dtype;
    GemmDesc gemm;
    gemm.rows = e.rows, gemm.columns = e.columns, gemm.inner = e.inner;
    gemm.a = {.dtype = dtype, .leading = e.stride};
    gemm.b = {
        .dtype = dtype, .transposed = e.weights_transposed, .leading = e.weights_transposed ? e.inner : e.columns};
    gemm.d = {.dtype = DType::kF32, .leading = e.columns};
    gemm.tf32 =
        dtype == DType::kF32 && desc.attributes.String(ops::kComputeAttribute) == std::string(ops::kComputeTf32);
    // Operands start at a multiple of the hidden size in tensors.
    while (e.inner * SizeOf(dtype) % gemm.alignment_bytes != 0 ||
           e.columns * SizeOf(dtype) % gemm.alignment_bytes != 0) {
      gemm.alignment_bytes /= 2;
    }
    Product product;
    AMPD_ASSIGN_OR_RETURN(product.gemm_, Gemm::Create(desc.name, gemm, context));
    return product;
  }
  int64_t workspace_bytes() const { return gemm_->workspace_bytes(); }
  // `workspace`: of workspace_bytes().
  absl::Status Run(const void* rows, const void* weights, float* to, void* workspace) const {
    GemmArgs args;
    args.a = rows, args.b = weights, args.d = to, args.workspace = workspace;
    return gemm_->Run(args);
  }

 private:
  std::unique_ptr<Gemm> gemm_;
};

// The running states start from the given ones or from 0.
template <typename T>
__global__ void __launch_bounds__(kThreads) StartStates(const T* given, int64_t n, T* state) {
  ForEach(n, [&](int64_t i) { state[i] = given == nullptr ? T{} : given[i]; });
}

// The states that each step read, 0 where a sample takes no part; `h0` may be null.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    StatesBefore(Sequence s, const int32_t* lengths, const T* y, const T* h0, T* before) {
  ForEach(s.batch * s.time * s.hidden, [&](int64_t i) {
    const int64_t j = i % s.hidden, t = i / s.hidden % s.time, b = i / s.hidden / s.time;
    const int64_t length = s.LengthOf(lengths, b);
    T value = T{};
    if (t < length && !s.IsFirst(t, length)) {
      value = y[(b * s.time + s.Before(t)) * s.hidden + j];
    } else if (t < length && h0 != nullptr) {
      value = h0[b * s.hidden + j];
    }
    before[i] = value;
  });
}

// The gradient of a state on its way back through time. A step leaves in `kept` what did not go through its product,
// and the product's share in `back` (and, where a second product stands in a step, in `through`; else null); samples
// that took no part keep all of it.
struct StateGrads {
  float *kept, *back;
  const float* through;

  // What came from time `later`, element `i` of sample `b`'s states.
  __device__ float From(const Sequence& s, const int32_t* lengths, int64_t later, int64_t b, int64_t i) const {
    if (later >= s.LengthOf(lengths, b)) return kept[i];
    const float sum = kept[i] + back[i];
    return through == nullptr ? sum : sum + through[i];
  }
};

// The initial state's gradient: what came from time `first`.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    FinishStates(Sequence s, const int32_t* lengths, StateGrads grads, int64_t first, T* dh0) {
  ForEach(s.states(), [&](int64_t i) { dh0[i] = Store<T>(grads.From(s, lengths, first, i / s.hidden, i)); });
}

}  // namespace ampd::cuda::recurrent

#endif  // AMPD_ENGINE_BACKEND_CUDA_RECURRENT_H_
