// layer_norm and rms_norm. A row is read once, where it fits in registers; in the backward pass the team also keeps the
// sums of dscale and dbias over its rows there, a block adds up its teams', and a second kernel the blocks'.
#include "engine/backend/cuda/channel_sums.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/inverse_deviation.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/rows.h"
#include "engine/backend/cuda/wide.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

// Rows whose share of dscale and dbias a team adds up in fp32; each costs the sums at most one rounding.
constexpr int64_t kMostRowsOfTeam = 32;
constexpr int kGradItems = 1;

struct RowNorm {
  int64_t rows, row;
  bool centred;  // layer_norm; else rms_norm, whose mean is 0
  double epsilon;

  RowNorm(const NodeDesc& desc, const Shape& x, bool c) : centred(c), epsilon(desc.attributes.Double("epsilon")) {
    row = NumElements(absl::MakeConstSpan(x).subspan(static_cast<size_t>(desc.attributes.Int("axis"))));
    rows = NumElements(x) / row;
  }
};

template <typename T>
struct ForwardOperands {
  const T* x;
  const float* scale;  // may be null, as bias
  const float* bias;
  T* y;
  float* mean;  // null: rms_norm
  float* inverse;
};

template <typename Team, typename T>
__device__ __forceinline__ double MeanOf(const Row<T, Team>& x, int64_t n, double inverse_n) {
  Wide sum{};
  Team::ForEach(n, [&](int item, auto column) {
    float v[Team::kWidth];
    x.Get(item, column, v);
#pragma unroll
    for (float value : v) sum += Wide(value);
  });
  return Team::Sum(ToDouble(sum)) * inverse_n;
}

// The mean of (x - centre)^2. Differences from a number near the mean do not cancel when they are added, so fp32 will
// do for those of one pack.
template <typename Team, typename T>
__device__ __forceinline__ double MeanSquareOf(const Row<T, Team>& x, float centre, int64_t n, double inverse_n) {
  Wide sum{};
  Team::ForEach(n, [&](int item, auto column) {
    float v[Team::kWidth];
    x.Get(item, column, v);
#pragma unroll
    for (float& value : v) value = (value - centre) * (value - centre);
    sum += Wide(PairwiseSum(v));
  });
  return Team::Sum(ToDouble(sum)) * inverse_n;
}

template <typename T, typename Team, bool kCentred>
__global__ void __launch_bounds__(Team::kMostThreads)
    Forward(Team, ForwardOperands<T> o, int64_t rows, int64_t n, double epsilon, double inverse_n) {
  for (int64_t row = Team::First(); row < rows; row += Team::Step()) {
    const Row<T, Team> x(o.x + row * n, n);
    const double centre = kCentred ? MeanOf<Team>(x, n, inverse_n) : 0;
    const auto mean = static_cast<float>(centre);
    // What rounding the mean added to the variance.
    const double off = centre - static_cast<double>(mean);
    const double variance = MeanSquareOf<Team>(x, mean, n, inverse_n) - off * off;
    const float inverse = InverseDeviation<float>(variance, epsilon);
    if (Team::rank() == 0) {
      if (kCentred) o.mean[row] = mean;
      o.inverse[row] = inverse;
    }
    Team::ForEach(n, [&](int item, auto column) {
      float v[Team::kWidth], scale[Team::kWidth], bias[Team::kWidth];
      x.Get(item, column, v);
      LoadOr(1.0f, o.scale, column, scale);
      LoadOr(0.0f, o.bias, column, bias);
#pragma unroll
      for (int j = 0; j < Team::kWidth; ++j) v[j] = (v[j] - mean) * inverse * scale[j] + bias[j];
      StoreFloats(v, o.y + row * n + column);
    });
  }
}

template <typename T>
absl::Status LaunchForward(const Context& context, const std::string& name, const RowNorm& norm,
                           const KernelArgs& args) {
  const size_t inputs = args.inputs.size();
  const ForwardOperands<T> operands{.x = args.inputs[0].as<T>(),
                                    .scale = inputs > 1 ? args.inputs[1].as<float>() : nullptr,
                                    .bias = inputs > 2 ? args.inputs[2].as<float>() : nullptr,
                                    .y = args.outputs[0].as<T>(),
                                    .mean = norm.centred ? args.outputs[1].as<float>() : nullptr,
                                    .inverse = args.outputs[norm.centred ? 2 : 1].as<float>()};
  const RowPlan plan = PlanRows(norm.rows, norm.row, kPack<T>);
  const double inverse_n = 1.0 / static_cast<double>(norm.row);
  return VisitRowPlan<kPack<T>>(plan, [&](auto team) {
    using Team = decltype(team);
    return LaunchTeams(name, norm.centred ? Forward<T, Team, true> : Forward<T, Team, false>, plan, context.stream(),
                       team, operands, norm.rows, norm.row, norm.epsilon, inverse_n);
  });
}

std::unique_ptr<runtime::Kernel> PrepareForward(Context* context, const NodeDesc& desc, bool centred) {
  const RowNorm norm(desc, desc.inputs[0].shape, centred);
  return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
    return VisitData(args.inputs[0].dtype,
                     [&](auto tag) { return LaunchForward<typename decltype(tag)::type>(*context, name, norm, args); });
  });
}

template <typename T>
struct GradOperands {
  const T* dy;
  const T* x;
  const float* mean;  // null: rms_norm
  const float* inverse;
  const float* scale;  // may be null, as the next
  const T* added;      // to dx
  T* dx;
  // [block][2][n]: the blocks' sums for dscale and dbias; null where nobody wants them or rows are too long for it.
  float* sums;
};

// A team's sums over its rows, for the columns of its threads.
template <typename Team>
struct VectorSums {
  float scale[Team::kKept][Team::kWidth] = {};
  float bias[Team::kKept][Team::kWidth] = {};

  // Those of the block; all its threads call it.
  __device__ __forceinline__ void Write(float* sums, int64_t n) const {
    float* at = sums + static_cast<int64_t>(blockIdx.x) * 2 * n;
    WriteVector(scale, at, n);
    WriteVector(bias, at + n, n);
  }

 private:
  __device__ __forceinline__ static void WriteVector(const float (&own)[Team::kKept][Team::kWidth], float* to,
                                                     int64_t n) {
    if constexpr (Team::kIsWarp) {
      constexpr int kWarps = Team::kMostThreads / kWarp;
      alignas(16) __shared__ float shared[kWarps][kWarp * Team::kKept * Team::kWidth];
      // The vector before may still be read.
      __syncthreads();
      Team::ForEach(n, [&](int item, auto column) {
        StoreFloats(own[item], &shared[static_cast<int>(threadIdx.x) / kWarp][column]);
      });
      __syncthreads();
      for (int column = static_cast<int>(threadIdx.x); column < static_cast<int>(n); column += kWarps * kWarp) {
        float sum = shared[0][column];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) sum += shared[w][column];
        to[column] = sum;
      }
    } else {
      Team::ForEach(n, [&](int item, auto column) { StoreFloats(own[item], to + column); });
    }
  }
};

// A row of what is added to dx, if anything is. What is kept of it is read before anything is written, so that nobody
// waits for it then.
template <typename T, typename Team>
class AddedRow {
 public:
  __device__ __forceinline__ AddedRow(const T* added, int64_t first, int64_t n) : row_(added) {
    if (added == nullptr) return;
    row_ += first;
    if constexpr (Team::kItems > 0) {
      Team::ForEach(n, [&](int item, int column) { kept_[item] = *reinterpret_cast<const Packed*>(row_ + column); });
    }
  }

  __device__ __forceinline__ void AddTo(int item, typename Team::Column column, float (&values)[Team::kWidth]) const {
    if (row_ == nullptr) return;
    const Packed pack = Team::kItems > 0 ? kept_[item] : *reinterpret_cast<const Packed*>(row_ + column);
#pragma unroll
    for (int j = 0; j < Team::kWidth; ++j) values[j] += Load(pack.values[j]);
  }

 private:
  using Packed = Pack<T, Team::kWidth>;
  const T* row_;
  Packed kept_[Team::kKept];
};

// The means of g = dy scale, and of g (x - mean) inverse^2.
struct GradMeans {
  float g, slope;
};

template <typename Team, typename T, bool kCentred>
__device__ __forceinline__ GradMeans MeansOf(const GradOperands<T>& o, const Row<T, Team>& dy, const Row<T, Team>& x,
                                             float mean, float inverse, int64_t n, double inverse_n) {
  Wide sum{}, product{};
  Team::ForEach(n, [&](int item, auto column) {
    float g[Team::kWidth], v[Team::kWidth], scale[Team::kWidth];
    dy.Get(item, column, g);
    x.Get(item, column, v);
    LoadOr(1.0f, o.scale, column, scale);
#pragma unroll
    for (int j = 0; j < Team::kWidth; ++j) {
      g[j] *= scale[j];
      v[j] = g[j] * (v[j] - mean);
    }
    if (kCentred) sum += Wide(PairwiseSum(g));
    product += Wide(PairwiseSum(v));
  });
  const double slope = Team::Sum(ToDouble(product)) * inverse_n;
  const double squared = static_cast<double>(inverse) * static_cast<double>(inverse);
  return {kCentred ? static_cast<float>(Team::Sum(ToDouble(sum)) * inverse_n) : 0.0f,
          static_cast<float>(slope * squared)};
}

template <typename T, typename Team, bool kCentred, bool kSums>
__global__ void __launch_bounds__(Team::kMostThreads)
    Backward(Team, GradOperands<T> o, int64_t rows, int64_t n, double inverse_n) {
  VectorSums<Team> sums;
  for (int64_t row = Team::First(); row < rows; row += Team::Step()) {
    const Row<T, Team> dy(o.dy + row * n, n), x(o.x + row * n, n);
    const AddedRow<T, Team> added(o.added, row * n, n);
    const float mean = kCentred ? o.mean[row] : 0.0f, inverse = o.inverse[row];
    const GradMeans means = MeansOf<Team, T, kCentred>(o, dy, x, mean, inverse, n, inverse_n);
    Team::ForEach(n, [&](int item, auto column) {
      float g[Team::kWidth], v[Team::kWidth], scale[Team::kWidth];
      dy.Get(item, column, g);
      x.Get(item, column, v);
      LoadOr(1.0f, o.scale, column, scale);
#pragma unroll
      for (int j = 0; j < Team::kWidth; ++j) {
        const float centred = v[j] - mean;
        if constexpr (kSums) {
          sums.scale[item][j] += g[j] * (centred * inverse);
          sums.bias[item][j] += g[j];
        }
        v[j] = inverse * (g[j] * scale[j] - means.g - centred * means.slope);
      }
      added.AddTo(item, column, v);
      StoreFloats(v, o.dx + row * n + column);
    });
  }
  if constexpr (kSums) sums.Write(o.sums, n);
}

// Sums of the blocks' sums.
struct BlockSums : RunSums<1> {
  const float* sums;
  int64_t columns;

  template <int kWidth>
  __device__ void operator()(int64_t row, int64_t column, NoConstants, float (&total)[1][kWidth]) const {
    float v[kWidth];
    LoadFloats(sums + row * columns + column, v);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) total[0][j] += v[j];
  }
};

// Of dy (x - mean) inverse and of dy, for rows too long to be kept.
template <typename T>
struct ColumnSums : RunSums<2> {
  GradOperands<T> o;
  int64_t columns;

  template <int kWidth>
  __device__ void operator()(int64_t row, int64_t column, NoConstants, float (&total)[2][kWidth]) const {
    float g[kWidth], v[kWidth];
    LoadFloats(o.dy + row * columns + column, g);
    LoadFloats(o.x + row * columns + column, v);
    const float mean = o.mean != nullptr ? o.mean[row] : 0.0f, inverse = o.inverse[row];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      total[0][j] += g[j] * ((v[j] - mean) * inverse);
      total[1][j] += g[j];
    }
  }
};

struct VectorGrads {
  float* dscale;
  float* dbias;  // null: rms_norm
  int64_t n;

  // Columns are those of dscale, then those of dbias.
  __device__ void operator()(int64_t, int64_t column, const double (&total)[1]) const {
    if (column < n) dscale[column] = static_cast<float>(total[0]);
    if (column >= n && dbias != nullptr) dbias[column - n] = static_cast<float>(total[0]);
  }
  __device__ void operator()(int64_t, int64_t column, const double (&totals)[2]) const {
    dscale[column] = static_cast<float>(totals[0]);
    if (dbias != nullptr) dbias[column] = static_cast<float>(totals[1]);
  }
};

// How the backward pass runs, and its workspace.
struct GradPlan {
  RowNorm norm;
  RowPlan rows;
  bool has_scale;
  bool in_teams;  // dscale and dbias begin in the teams
  ChannelPlan columns;
  int64_t sums_at = 0, partial_at = 0, workspace_bytes = 0;

  GradPlan(const RowNorm& n, bool scale, int pack) : norm(n), has_scale(scale) {
    // Blocks that fill any GPU a few times over, but leave few sums: one of warps adds up theirs.
    const int64_t teams = PlanRows(norm.rows, norm.row, pack, kGradItems).warp ? 2048 : 512;
    const int64_t of_team = std::clamp<int64_t>(norm.rows / teams, 1, kMostRowsOfTeam);
    rows = PlanRows(norm.rows, norm.row, pack, kGradItems, CeilDiv(norm.rows, of_team));
    in_teams = has_scale && (rows.warp || rows.kept);
    if (!has_scale) return;
    columns = in_teams ? PlanChannels(1, rows.blocks, 2 * norm.row, kPack<float>)
                       : PlanChannels(1, norm.rows, norm.row, pack);
    WorkspaceLayout layout;
    sums_at = layout.Add(in_teams ? int64_t{rows.blocks} * 2 * norm.row * 4 : 0);
    partial_at = layout.Add(columns.workspace_bytes(in_teams ? 1 : 2));
    workspace_bytes = layout.bytes();
  }
};

template <typename T, typename Team>
auto BackwardKernel(bool centred, bool sums) {
  if constexpr (Team::kItems > 0) {
    if (sums) return centred ? Backward<T, Team, true, true> : Backward<T, Team, false, true>;
  }
  return centred ? Backward<T, Team, true, false> : Backward<T, Team, false, false>;
}

// As VisitRowPlan, with teams besides for rows that need no more than three quarters of the registers: 768 elements of
// 16 bits.
template <typename T, typename F>
auto VisitGradPlan(const GradPlan& plan, F&& f) {
  constexpr int kItems = kWarpItems - 1;
  const RowPlan& rows = plan.rows;
  if (rows.packed && rows.warp && !rows.one_item && plan.norm.row <= int64_t{kItems} * kWarp * kPack<T>) {
    return f(RowTeam<kPack<T>, kItems, true>());
  }
  return VisitRowPlan<kPack<T>, kGradItems>(rows, f);
}

template <typename T>
absl::Status LaunchBackward(const Context& context, const std::string& name, const GradPlan& plan,
                            const KernelArgs& args) {
  const RowNorm& norm = plan.norm;
  const size_t inverse = norm.centred ? 3 : 2;
  const GradOperands<T> operands{.dy = args.inputs[0].as<T>(),
                                 .x = args.inputs[1].as<T>(),
                                 .mean = norm.centred ? args.inputs[2].as<float>() : nullptr,
                                 .inverse = args.inputs[inverse].as<float>(),
                                 .scale = plan.has_scale ? args.inputs[inverse + 1].as<float>() : nullptr,
                                 .added = args.inputs.size() > inverse + 2 ? args.inputs[inverse + 2].as<T>() : nullptr,
                                 .dx = args.outputs[0].as<T>(),
                                 .sums = plan.in_teams ? WorkspaceAt<float>(args, plan.sums_at) : nullptr};
  AMPD_RETURN_IF_ERROR((VisitGradPlan<T>(plan, [&](auto team) {
    return LaunchTeams(name, BackwardKernel<T, decltype(team)>(norm.centred, plan.in_teams), plan.rows,
                       context.stream(), team, operands, norm.rows, norm.row, 1.0 / static_cast<double>(norm.row));
  })));
  if (!plan.has_scale) return absl::OkStatus();
  const VectorGrads finish{args.outputs[1].as<float>(), norm.centred ? args.outputs[2].as<float>() : nullptr, norm.row};
  void* partial = WorkspaceAt<void>(args, plan.partial_at);
  if (plan.in_teams) {
    return SumChannels<kPack<float>>(name, plan.columns, BlockSums{{}, operands.sums, 2 * norm.row}, finish, partial,
                                     context.stream());
  }
  return SumChannels<kPack<T>>(name, plan.columns, ColumnSums<T>{{}, operands, norm.row}, finish, partial,
                               context.stream());
}

std::unique_ptr<runtime::Kernel> PrepareBackward(Context* context, const NodeDesc& desc, bool centred) {
  const size_t scale = centred ? 4 : 3;
  const GradPlan plan(RowNorm(desc, desc.inputs[1].shape, centred), desc.inputs.size() > scale,
                      PackOf(desc.inputs[0].dtype));
  // What is added is read by the thread that writes its place next.
  const int overwrites = desc.inputs.size() > scale + 1 ? static_cast<int>(scale) + 1 : -1;
  return MakeKernel(
      plan.workspace_bytes,
      [=, name = desc.name](const KernelArgs& args) {
        return VisitData(args.inputs[0].dtype, [&](auto tag) {
          return LaunchBackward<typename decltype(tag)::type>(*context, name, plan, args);
        });
      },
      overwrites);
}

}  // namespace

void RegisterRowNorm(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32;
  const auto layer = [=](const NodeDesc& d) { return PrepareForward(context, d, true); };
  const auto layer_grad = [=](const NodeDesc& d) { return PrepareBackward(context, d, true); };
  const auto rms = [=](const NodeDesc& d) { return PrepareForward(context, d, false); };
  const auto rms_grad = [=](const NodeDesc& d) { return PrepareBackward(context, d, false); };
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kLayerNorm, {t}, {t, f, f}, layer);
    table->Add(ir::OpKind::kLayerNorm, {t, f}, {t, f, f}, layer);
    table->Add(ir::OpKind::kLayerNorm, {t, f, f}, {t, f, f}, layer);
    table->Add(ir::OpKind::kLayerNormGrad, {t, t, f, f}, {t}, layer_grad);
    table->Add(ir::OpKind::kLayerNormGrad, {t, t, f, f, f}, {t, f, f}, layer_grad);
    table->Add(ir::OpKind::kLayerNormGrad, {t, t, f, f, f, t}, {t, f, f}, layer_grad);
    table->Add(ir::OpKind::kRmsNorm, {t}, {t, f}, rms);
    table->Add(ir::OpKind::kRmsNorm, {t, f}, {t, f}, rms);
    table->Add(ir::OpKind::kRmsNormGrad, {t, t, f}, {t}, rms_grad);
    table->Add(ir::OpKind::kRmsNormGrad, {t, t, f, f}, {t, f}, rms_grad);
    table->Add(ir::OpKind::kRmsNormGrad, {t, t, f, f, t}, {t, f}, rms_grad);
  }
}

}  // namespace ampd::cuda
