// Walks a fused program: the part of its kernels that runs on the device. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_FUSED_MACHINE_H_
#define AMPD_ENGINE_BACKEND_CUDA_FUSED_MACHINE_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/elementwise_functions.h"
#include "engine/backend/cuda/fused_program.h"

namespace ampd::cuda {

// f32, f16, bf16, the 8-bit floats, bool.
template <typename F>
__device__ __forceinline__ void VisitFused(DType dtype, F&& f) {
  if (dtype == DType::kF32) return f(TypeTag<float>());
  if (dtype == DType::kF16) return f(TypeTag<Half>());
  if (dtype == DType::kBF16) return f(TypeTag<BFloat16>());
  if (dtype == DType::kBool) return f(TypeTag<uint8_t>());
  if (dtype == DType::kF8E4M3) return f(TypeTag<Float8E4M3>());
  f(TypeTag<Float8E5M2>());
}

template <typename T>
__device__ __forceinline__ float Widen(T x) {
  if constexpr (std::is_same_v<T, uint8_t>) {
    return x != 0 ? 1.0f : 0.0f;
  } else {
    return Load(x);
  }
}

template <typename T>
__device__ __forceinline__ T Narrow(float x) {
  if constexpr (std::is_same_v<T, uint8_t>) {
    return x != 0 ? 1 : 0;
  } else {
    return Store<T>(x);
  }
}

// N whole elements of any dtype as they lie in memory; of f32 four at most.
struct alignas(16) Raw {
  uint32_t words[4];
};

template <int kBytes>
__device__ __forceinline__ void Fetch(const void* from, Raw* raw) {
  *reinterpret_cast<Pack<uint32_t, kBytes / 4>*>(raw) = *static_cast<const Pack<uint32_t, kBytes / 4>*>(from);
}

// Addresses that are what they look like.
struct PlainAddresses {
  template <typename T>
  __device__ __forceinline__ T* operator()(T* address) const {
    return address;
  }
};

// A thread's N elements, i..i+n-1, on their way through the steps. Results that are needed again wait in shared memory,
// each thread's beside its neighbours', of which there are kThreads: `slots` holds program.slots * N * kThreads floats.
// `addresses` says what the program's addresses stand for.
template <int N, int kThreads, typename Addresses = PlainAddresses>
struct FusedMachine {
  const FusedProgram& program;
  Addresses addresses;
  float4* slots;
  int64_t i;
  int n;
  int64_t column;  // of element i in its row
  Raw fetched[kFetched];
  float last[N];

  __device__ __forceinline__ float4* Slot(int slot) const {
    return slots + static_cast<int64_t>(slot) * (N / 4) * kThreads + threadIdx.x;
  }

  __device__ __forceinline__ void FetchAhead() {
#pragma unroll
    for (int k = 0; k < kFetched; ++k) {
      if (k >= program.whole_inputs || n < N) continue;
      const FusedInput& input = program.inputs[k];
      const char* from = static_cast<const char*>(addresses(input.data)) + i * input.bytes;
      if (input.bytes == 4) Fetch<std::min(16, 4 * N)>(from, &fetched[k]);
      if (input.bytes == 2) Fetch<2 * N>(from, &fetched[k]);
      if (input.bytes == 1) Fetch<N>(from, &fetched[k]);
    }
  }

  // What FetchAhead() brought.
  __device__ __forceinline__ void ReadFetched(int k, float (&x)[N]) const {
    Raw raw = fetched[0];
#pragma unroll
    for (int other = 1; other < kFetched; ++other) {
      if (k == other) raw = fetched[other];
    }
    VisitFused(program.inputs[k].dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      // N is 4 where an input is f32.
      if constexpr (sizeof(T) * N <= sizeof(Raw)) {
        const auto* pack = reinterpret_cast<const Pack<T, N>*>(&raw);
        for (int j = 0; j < N; ++j) x[j] = Widen(pack->values[j]);
      }
    });
  }

  __device__ __forceinline__ void ReadMemory(const FusedInput& input, float (&x)[N]) const {
    const bool is_row = input.extent == FusedInput::kRow, is_one = input.extent == FusedInput::kOne;
    const bool packed = n == N && !is_one && (!is_row || program.columns % N == 0);
    const int64_t first = is_row ? column : is_one ? 0 : i;
    VisitFused(input.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* data = static_cast<const T*>(addresses(input.data)) + first;
      if (packed) {
        constexpr int kM = std::min(N, kPack<T>);
#pragma unroll
        for (int j = 0; j < N; j += kM) {
          const auto pack = *reinterpret_cast<const Pack<T, kM>*>(data + j);
          for (int m = 0; m < kM; ++m) x[j + m] = Widen(pack.values[m]);
        }
        return;
      }
      // One by one: the tensor's last elements, and rows that do not start at packs.
      int64_t at = 0;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        x[j] = j < n ? Widen(data[at]) : 0.0f;
        at += is_one ? 0 : 1;
        if (is_row && first + at == program.columns) at = -first;
      }
    });
  }

  __device__ __forceinline__ void Read(uint8_t source, float (&x)[N]) const {
    if (source == kLast) {
      for (int j = 0; j < N; ++j) x[j] = last[j];
    } else if (source >= kSlots) {
#pragma unroll
      for (int q = 0; q < N / 4; ++q) {
        const float4 four = Slot(source - kSlots)[q * kThreads];
        x[4 * q] = four.x, x[4 * q + 1] = four.y, x[4 * q + 2] = four.z, x[4 * q + 3] = four.w;
      }
    } else if (source < kFetched && source < program.whole_inputs && n == N) {
      ReadFetched(source, x);
    } else {
      ReadMemory(program.inputs[source], x);
    }
  }

  __device__ __forceinline__ void Compute(const FusedStepCode& code, const float (&a)[N], const float (&b)[N],
                                          const float (&d)[N]) {
    switch (code.function) {
#define X(op, function, inputs)                                                                                  \
  case ops::ElementwiseFunction::k##function:                                                                    \
    for (int j = 0; j < N; ++j) {                                                                                \
      last[j] = Apply<Function<ops::ElementwiseFunction::k##function>, float>(code.constants, a[j], b[j], d[j]); \
    }                                                                                                            \
    break;
      AMPD_ELEMENTWISE_FUNCTIONS(X, X)
#undef X
      case ops::ElementwiseFunction::kNone:
        for (int j = 0; j < N; ++j) {
          last[j] = code.dtype == DType::kF16    ? RoundTo<Half>(a[j])
                    : code.dtype == DType::kBF16 ? RoundTo<BFloat16>(a[j])
                                                 : a[j];
        }
    }
  }

  __device__ __forceinline__ void Keep(const FusedStepCode& code) const {
    if (code.slot >= 0) {
#pragma unroll
      for (int q = 0; q < N / 4; ++q) {
        Slot(code.slot)[q * kThreads] = make_float4(last[4 * q], last[4 * q + 1], last[4 * q + 2], last[4 * q + 3]);
      }
    }
    if (code.output < 0) return;
    const FusedOutput& output = program.outputs[code.output];
    VisitFused(output.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* target = static_cast<T*>(addresses(output.data)) + i;
      if constexpr (sizeof(T) * N <= sizeof(Raw)) {
        Pack<T, N> pack;
        for (int j = 0; j < N; ++j) pack.values[j] = Narrow<T>(last[j]);
        if (n == N) {
          *reinterpret_cast<Pack<T, N>*>(target) = pack;
          return;
        }
        for (int j = 0; j < N; ++j) {
          if (j < n) target[j] = pack.values[j];
        }
      }
    });
  }

  __device__ __forceinline__ void Run() {
    FetchAhead();
#pragma unroll 1
    for (int s = 0; s < program.steps; ++s) {
      const FusedStepCode& code = program.code[s];
      float a[N], b[N], d[N];
      Read(code.operands[0], a);
      if (code.count > 1) Read(code.operands[1], b);
      if (code.count > 2) Read(code.operands[2], d);
      Compute(code, a, b, d);
      Keep(code);
    }
  }
};

// The whole program, by as many blocks of kThreads as there are. Every thread takes the same path through the steps, so
// that switching costs a jump a step and no divergence.
template <int N, int kThreads, typename Addresses>
__device__ __forceinline__ void Interpret(const FusedProgram& program, const Addresses& addresses, float4* slots) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * N;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N; i < program.size; i += stride) {
    int64_t column = 0;
    if (program.has_rows) {
      column = program.size <= int64_t{1} << 31
                   ? i - static_cast<int64_t>(program.divisor.Divide(static_cast<uint32_t>(i))) * program.columns
                   : i % program.columns;
    }
    FusedMachine<N, kThreads, Addresses> machine = {
        program, addresses, slots, i, static_cast<int>(program.size - i < N ? program.size - i : N), column, {}, {}};
    machine.Run();
  }
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_FUSED_MACHINE_H_
