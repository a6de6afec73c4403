// softmax and log_softmax with their gradients. Over the last axis a team of threads takes a row; over another axis a
// thread takes a column, so that neighbours read neighbouring elements.
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/exp_sum.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/rows.h"
#include "engine/backend/cuda/wide.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int kThreads = 256;

// The tensor as [outer, extent, inner]; softmax goes over the middle one.
struct Axis {
  int64_t outer = 1, extent = 1, inner = 1;

  explicit Axis(const NodeDesc& desc) {
    const Shape& x = desc.inputs[0].shape;
    const auto axis = static_cast<size_t>(desc.attributes.Int("axis"));
    for (size_t i = 0; i < x.size(); ++i) (i < axis ? outer : i == axis ? extent : inner) *= x[i];
  }
};

// What turns an element x into a result: softmax e^(x - largest) * factor, log_softmax (x - largest) - log_sum. There
// nothing cancels, since log_sum is not below 0.
struct Normalizer {
  float largest, factor, log_sum;

  template <bool kLog>
  __device__ __forceinline__ static Normalizer Of(float largest, double sum) {
    if constexpr (!kLog) return {largest, static_cast<float>(1.0 / sum), 0};
    return {largest, 0, static_cast<float>(log(sum))};
  }
  template <bool kLog>
  __device__ __forceinline__ float operator()(float x) const {
    return kLog ? (x - largest) - log_sum : expf(x - largest) * factor;
  }
};

template <typename Team, bool kLog>
__global__ void __launch_bounds__(Team::kMostThreads, 1)
    ForwardRows(Team, const float* __restrict__ x, int64_t rows, int64_t n, float* __restrict__ y) {
  for (int64_t row = Team::First(); row < rows; row += Team::Step()) {
    const Row<float, Team> values(x + row * n, n);
    const ExpSum sum = ExpSumOf<Team, false>(values, n, NoVisit());
    const Normalizer normalize = Normalizer::Of<kLog>(sum.largest, sum.sum);
    Team::ForEach(n, [&](int item, auto column) {
      float v[Team::kWidth];
      values.Get(item, column, v);
#pragma unroll
      for (float& value : v) value = normalize.template operator()<kLog>(value);
      StoreFloats(v, y + row * n + column);
    });
  }
}

template <bool kLog>
__global__ void __launch_bounds__(kThreads)
    ForwardColumns(const float* __restrict__ x, int64_t columns, int64_t extent, int64_t inner, float* __restrict__ y) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < columns; i += stride) {
    const int64_t first = i / inner * extent * inner + i % inner;
    RunningExpSum<false> running;
#pragma unroll 4
    for (int64_t k = 0; k < extent; ++k) {
      const float v[1][1] = {{x[first + k * inner]}};
      running.Add(v, std::integral_constant<int, 1>());
    }
    const Normalizer normalize = Normalizer::Of<kLog>(running.largest, ToDouble(running.sum));
#pragma unroll 4
    for (int64_t k = 0; k < extent; ++k) {
      y[first + k * inner] = normalize.template operator()<kLog>(x[first + k * inner]);
    }
  }
}

// The sum that a line's gradient subtracts: of dy y, or of dy.
template <bool kLog>
__device__ __forceinline__ float GradTerm(float dy, float y) {
  return kLog ? dy : dy * y;
}
template <bool kLog>
__device__ __forceinline__ float GradOf(float dy, float y, float sum) {
  return kLog ? dy - expf(y) * sum : y * (dy - sum);
}

template <typename Team, bool kLog>
__global__ void __launch_bounds__(Team::kMostThreads, 1)
    BackwardRows(Team, const float* __restrict__ dy, const float* __restrict__ y, int64_t rows, int64_t n,
                 float* __restrict__ dx) {
  for (int64_t row = Team::First(); row < rows; row += Team::Step()) {
    const Row<float, Team> gradients(dy + row * n, n), values(y + row * n, n);
    Wide terms{};
    Team::ForEach(n, [&](int item, auto column) {
      float g[Team::kWidth], v[Team::kWidth];
      gradients.Get(item, column, g);
      values.Get(item, column, v);
#pragma unroll
      for (int j = 0; j < Team::kWidth; ++j) g[j] = GradTerm<kLog>(g[j], v[j]);
      terms += Wide(PairwiseSum(g));
    });
    const auto sum = static_cast<float>(Team::Sum(ToDouble(terms)));
    Team::ForEach(n, [&](int item, auto column) {
      float g[Team::kWidth], v[Team::kWidth];
      gradients.Get(item, column, g);
      values.Get(item, column, v);
#pragma unroll
      for (int j = 0; j < Team::kWidth; ++j) g[j] = GradOf<kLog>(g[j], v[j], sum);
      StoreFloats(g, dx + row * n + column);
    });
  }
}

template <bool kLog>
__global__ void __launch_bounds__(kThreads)
    BackwardColumns(const float* __restrict__ dy, const float* __restrict__ y, int64_t columns, int64_t extent,
                    int64_t inner, float* __restrict__ dx) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < columns; i += stride) {
    const int64_t first = i / inner * extent * inner + i % inner;
    Wide terms{};
#pragma unroll 4
    for (int64_t k = 0; k < extent; ++k) {
      terms += Wide(GradTerm<kLog>(dy[first + k * inner], y[first + k * inner]));
    }
    const auto sum = static_cast<float>(ToDouble(terms));
#pragma unroll 4
    for (int64_t k = 0; k < extent; ++k) {
      const int64_t at = first + k * inner;
      dx[at] = GradOf<kLog>(dy[at], y[at], sum);
    }
  }
}

template <bool kLog>
absl::Status LaunchForward(const Context& context, const std::string& name, const Axis& axis, const KernelArgs& args) {
  const auto* x = args.inputs[0].as<float>();
  auto* y = args.outputs[0].as<float>();
  if (axis.inner > 1) {
    const int64_t columns = axis.outer * axis.inner;
    const unsigned blocks = BlocksFor(columns, kThreads, context.properties().sm_count);
    return Launch(name, ForwardColumns<kLog>, blocks, kThreads, 0, context.stream(), x, columns, axis.extent,
                  axis.inner, y);
  }
  RowPlan plan = PlanRows(axis.outer, axis.extent, kPack<float>);
  KeepInSharedMemory(axis.extent * 4, context.properties(), &plan);
  return VisitSharedRowPlan<kPack<float>>(plan, [&](auto team) {
    return LaunchTeams(name, ForwardRows<decltype(team), kLog>, plan, context.stream(), team, x, axis.outer,
                       axis.extent, y);
  });
}

template <bool kLog>
absl::Status LaunchBackward(const Context& context, const std::string& name, const Axis& axis, const KernelArgs& args) {
  const auto *dy = args.inputs[0].as<float>(), *y = args.inputs[1].as<float>();
  auto* dx = args.outputs[0].as<float>();
  if (axis.inner > 1) {
    const int64_t columns = axis.outer * axis.inner;
    const unsigned blocks = BlocksFor(columns, kThreads, context.properties().sm_count);
    return Launch(name, BackwardColumns<kLog>, blocks, kThreads, 0, context.stream(), dy, y, columns, axis.extent,
                  axis.inner, dx);
  }
  const RowPlan plan = PlanRows(axis.outer, axis.extent, kPack<float>);
  return VisitRowPlan<kPack<float>>(plan, [&](auto team) {
    return LaunchTeams(name, BackwardRows<decltype(team), kLog>, plan, context.stream(), team, dy, y, axis.outer,
                       axis.extent, dx);
  });
}

using LaunchAxis = absl::Status (*)(const Context&, const std::string&, const Axis&, const KernelArgs&);

runtime::PrepareKernel AlongAxis(Context* context, LaunchAxis launch) {
  return [=](const NodeDesc& desc) {
    return MakeKernel(0, [=, axis = Axis(desc), name = desc.name](const KernelArgs& args) {
      return launch(*context, name, axis, args);
    });
  };
}

}  // namespace

void RegisterSoftmax(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32;
  table->Add(ir::OpKind::kSoftmax, {f}, {f}, AlongAxis(context, LaunchForward<false>));
  table->Add(ir::OpKind::kLogSoftmax, {f}, {f}, AlongAxis(context, LaunchForward<true>));
  table->Add(ir::OpKind::kSoftmaxGrad, {f, f}, {f}, AlongAxis(context, LaunchBackward<false>));
  table->Add(ir::OpKind::kLogSoftmaxGrad, {f, f}, {f}, AlongAxis(context, LaunchBackward<true>));
}

}  // namespace ampd::cuda
