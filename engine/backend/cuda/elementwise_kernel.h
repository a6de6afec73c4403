// The one kernel of every elementwise operation, instantiated by op and dtype in elementwise_*.cu. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_ELEMENTWISE_KERNEL_H_
#define AMPD_ENGINE_BACKEND_CUDA_ELEMENTWISE_KERNEL_H_

#include <algorithm>
#include <type_traits>

#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/elementwise_functions.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/operand.h"
#include "engine/core/status.h"

namespace ampd::cuda {

template <int kCount>
struct Operands {
  Operand of[kCount];
};

inline constexpr int kElementwiseThreads = 256;

// Elements that a thread takes at once: 16 bytes, or less where int64 arithmetic would need too many registers.
template <typename T>
inline constexpr int kElementwiseWidth = std::min(kPack<T>, 8);

// A stored element as the functions take it: bools and floats as f32, integers as int64.
template <typename V, typename T>
__device__ __forceinline__ V Widen(T x) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<V>(x);
  } else {
    return Load(x);
  }
}

template <typename T, typename V>
__device__ __forceinline__ T Narrow(V x) {
  if constexpr (std::is_integral_v<V>) {
    return static_cast<T>(x);
  } else if constexpr (std::is_integral_v<T>) {
    return x != 0 ? 1 : 0;
  } else {
    return Store<T>(x);
  }
}

// Elements i..i+N-1 of an operand, beside the output's. Past the first `n` of them, which is N but at the end of a
// tensor, nothing is read.
template <typename T, typename V, int N>
__device__ __forceinline__ void Read(const Operand& operand, int64_t i, int n, V (&x)[N]) {
  const T* data = static_cast<const T*>(operand.data);
  if (operand.reach == Reach::kOne || operand.reach == Reach::kSpread) {
    const V value = Widen<V>(data[operand.reach == Reach::kOne ? 0 : operand.index.At(i)]);
    for (int j = 0; j < N; ++j) x[j] = value;
  } else if (n == N) {
    const int64_t at = operand.reach == Reach::kDense ? i : operand.index.At(i);
    const auto pack = *reinterpret_cast<const Pack<T, N>*>(data + at);
    for (int j = 0; j < N; ++j) x[j] = Widen<V>(pack.values[j]);
  } else {
    // Of all reaches kDense alone leaves a rest, see MakeOperand().
    for (int j = 0; j < N; ++j) x[j] = j < n ? Widen<V>(data[i + j]) : V{0};
  }
}

// `First` is the dtype of the first operand, which may be a condition, T of the others.
template <typename F, int N, typename V, typename First, typename T, typename Out>
__global__ void __launch_bounds__(kElementwiseThreads)
    Elementwise(Operands<F::kInputs> in, ops::ElementwiseConstants constants, int64_t size, Out* __restrict__ y) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kElementwiseThreads * N;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kElementwiseThreads + threadIdx.x) * N; i < size; i += stride) {
    const int n = static_cast<int>(size - i < N ? size - i : N);
    V a[N], b[N], c[N];
    Read<First>(in.of[0], i, n, a);
    if constexpr (F::kInputs > 1) Read<T>(in.of[1], i, n, b);
    if constexpr (F::kInputs > 2) Read<T>(in.of[2], i, n, c);
    Pack<Out, N> out;
    for (int j = 0; j < N; ++j) out.values[j] = Narrow<Out>(Apply<F, V>(constants, a[j], b[j], c[j]));
    if (n == N) {
      *reinterpret_cast<Pack<Out, N>*>(y + i) = out;
    } else {
      for (int j = 0; j < N; ++j) {
        if (j < n) y[i + j] = out.values[j];
      }
    }
  }
}

template <typename F, typename V, typename First, typename T, typename Out>
absl::StatusOr<std::unique_ptr<runtime::Kernel>> PrepareTyped(const Context* context, const runtime::NodeDesc& desc) {
  constexpr int kWidth = kElementwiseWidth<T>;
  Operands<F::kInputs> operands;
  AMPD_ASSIGN_OR_RETURN(const int width, MakeOperands(desc, kWidth, absl::MakeSpan(operands.of)));
  const auto kernel = width == 1 ? Elementwise<F, 1, V, First, T, Out> : Elementwise<F, kWidth, V, First, T, Out>;
  const int64_t size = NumElements(desc.outputs[0].shape);
  const unsigned blocks = BlocksFor(CeilDiv(size, width), kElementwiseThreads, context->properties().sm_count);
  const ops::ElementwiseConstants constants = ops::ConstantsOf(desc.op, desc.attributes);
  return MakeKernel(0, [=, name = desc.name](const runtime::KernelArgs& args) {
    Operands<F::kInputs> in = operands;
    for (int i = 0; i < F::kInputs; ++i) in.of[i].data = args.inputs[i].data;
    return Launch(name, kernel, blocks, kElementwiseThreads, 0, context->stream(), in, constants, size,
                  args.outputs[0].as<Out>());
  });
}

// Which dtypes function `kFunction` is instantiated for: those of ops::ElementwiseSignatures().
template <ops::ElementwiseFunction kFunction>
absl::StatusOr<std::unique_ptr<runtime::Kernel>> PrepareElementwise(const Context* context,
                                                                    const runtime::NodeDesc& desc) {
  using F = Function<kFunction>;
  // The last: a condition comes first.
  const DType dtype = desc.inputs.back().dtype;
  if constexpr (ops::IsLogical(kFunction)) {
    return PrepareTyped<F, float, uint8_t, uint8_t, uint8_t>(context, desc);
  } else {
    const auto prepare = [&](auto value, auto data) {
      using T = typename decltype(data)::type;
      using First = std::conditional_t<ops::Chooses(kFunction), uint8_t, T>;
      using Out = std::conditional_t<ops::IsTest(kFunction), uint8_t, T>;
      return PrepareTyped<F, typename decltype(value)::type, First, T, Out>(context, desc);
    };
    if constexpr (F::kIntegers) {
      if (!IsFloat(dtype)) return VisitInteger(dtype, [&](auto data) { return prepare(TypeTag<int64_t>(), data); });
    }
    if constexpr (ops::IsF32Alone(kFunction)) {
      return prepare(TypeTag<float>(), TypeTag<float>());
    } else {
      return VisitData(dtype, [&](auto data) { return prepare(TypeTag<float>(), data); });
    }
  }
}

// A row for each of the op's signatures.
inline void RegisterSignatures(runtime::KernelTable* table, ir::OpKind op, const runtime::PrepareKernel& prepare) {
  for (auto& [inputs, outputs] : ops::ElementwiseSignatures(op)) table->Add(op, inputs, outputs, prepare);
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_ELEMENTWISE_KERNEL_H_
