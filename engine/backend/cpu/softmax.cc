#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/lane_sums.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

// Columns that are walked together where the axis is not the last.
constexpr int64_t kColumns = 64;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// The tensor as [outer, extent, inner]; softmax goes over the middle one.
struct Axis {
  int64_t outer = 1, extent = 1, inner = 1;
  int parts = 1;

  explicit Axis(const NodeDesc& desc) {
    const Shape& x = desc.inputs[0].shape;
    const auto axis = static_cast<size_t>(desc.attributes.Int("axis"));
    for (size_t i = 0; i < x.size(); ++i) (i < axis ? outer : i == axis ? extent : inner) *= x[i];
    parts = static_cast<int>(std::min<int64_t>(PartsFor(desc.threads, NumElements(x), kMinElementsPerThread / 8),
                                               std::max<int64_t>(tasks(), 1)));
  }
  int64_t blocks() const { return (inner + kColumns - 1) / kColumns; }
  int64_t tasks() const { return inner == 1 ? outer : outer * blocks(); }
};

// Largest, or NaN where there is one.
AMPD_CPU_CLONES float MaxOf(const float* x, int64_t n) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, kLowest);
  ForEachLane(n,
              [&](int64_t i, int lane) { lanes[lane] = (x[i] > lanes[lane]) | (x[i] != x[i]) ? x[i] : lanes[lane]; });
  float largest = kLowest;
  for (float v : lanes) largest = (v > largest) | (v != v) ? v : largest;
  return largest;
}

// exps = e^(x - largest), and their sum.
AMPD_CPU_CLONES double ExpRow(const float* __restrict x, float largest, int64_t n, float* __restrict exps) {
  for (int64_t i = 0; i < n; ++i) exps[i] = ExpF(x[i] - largest);
  LaneSum sum;
  ForEachLane(n, [&](int64_t i, int lane) { sum.lanes[lane] += static_cast<double>(exps[i]); });
  return sum.Total();
}

AMPD_CPU_CLONES void ScaleLoop(float* x, double factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(static_cast<double>(x[i]) * factor);
}

AMPD_CPU_CLONES void LogLoop(const float* __restrict x, float largest, double log_sum, int64_t n, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] = static_cast<float>(static_cast<double>(x[i]) - static_cast<double>(largest) - log_sum);
  }
}

void Row(bool log, const float* x, int64_t n, float* y) {
  const float largest = MaxOf(x, n);
  const double sum = ExpRow(x, largest, n, y);
  if (log) {
    LogLoop(x, largest, std::log(sum), n, y);
  } else {
    ScaleLoop(y, 1 / sum, n);
  }
}

// Up to kColumns columns `inner` apart, n long.
AMPD_CPU_CLONES void Columns(bool log, const float* x, int64_t n, int64_t inner, int64_t columns, float* y) {
  float largest[kColumns];
  double sum[kColumns] = {};
  std::fill(largest, largest + kColumns, kLowest);
  for (int64_t r = 0; r < n; ++r) {
    const float* __restrict row = x + r * inner;
    for (int64_t c = 0; c < columns; ++c) {
      largest[c] = (row[c] > largest[c]) | (row[c] != row[c]) ? row[c] : largest[c];
    }
  }
  for (int64_t r = 0; r < n; ++r) {
    const float* __restrict row = x + r * inner;
    float* __restrict out = y + r * inner;
    for (int64_t c = 0; c < columns; ++c) {
      out[c] = ExpF(row[c] - largest[c]);
      sum[c] += static_cast<double>(out[c]);
    }
  }
  for (int64_t c = 0; c < columns; ++c) sum[c] = log ? std::log(sum[c]) : 1 / sum[c];
  for (int64_t r = 0; r < n; ++r) {
    const float* __restrict row = x + r * inner;
    float* __restrict out = y + r * inner;
    for (int64_t c = 0; c < columns; ++c) {
      const double centred = static_cast<double>(row[c]) - static_cast<double>(largest[c]);
      out[c] = static_cast<float>(log ? centred - sum[c] : static_cast<double>(out[c]) * sum[c]);
    }
  }
}

// softmax: dx = y (dy - sum(dy y)); log_softmax: dx = dy - e^y sum(dy).
AMPD_CPU_CLONES void GradRow(bool log, const float* __restrict dy, const float* __restrict y, int64_t n,
                             float* __restrict dx) {
  LaneSum lanes;
  ForEachLane(n, [&](int64_t i, int lane) {
    const double g = static_cast<double>(dy[i]);
    lanes.lanes[lane] += log ? g : g * static_cast<double>(y[i]);
  });
  const double sum = lanes.Total();
  for (int64_t i = 0; i < n; ++i) {
    const double g = static_cast<double>(dy[i]);
    dx[i] = static_cast<float>(log ? g - static_cast<double>(ExpF(y[i])) * sum : static_cast<double>(y[i]) * (g - sum));
  }
}

AMPD_CPU_CLONES void GradColumns(bool log, const float* dy, const float* y, int64_t n, int64_t inner, int64_t columns,
                                 float* dx) {
  double sum[kColumns] = {};
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const double g = static_cast<double>(dy[r * inner + c]);
      sum[c] += log ? g : g * static_cast<double>(y[r * inner + c]);
    }
  }
  for (int64_t r = 0; r < n; ++r) {
    float* __restrict out = dx + r * inner;
    for (int64_t c = 0; c < columns; ++c) {
      const double g = static_cast<double>(dy[r * inner + c]);
      const float v = y[r * inner + c];
      out[c] =
          static_cast<float>(log ? g - static_cast<double>(ExpF(v)) * sum[c] : static_cast<double>(v) * (g - sum[c]));
    }
  }
}

// body(first element, columns) for every row, or every block of columns.
template <typename Body>
std::unique_ptr<runtime::Kernel> Prepare(const NodeDesc& desc, const Body& body) {
  const Axis axis(desc);
  return MakeKernel(0, [=](const KernelArgs& args) {
    ParallelRange(axis.parts, axis.tasks(), 1, [&](int, int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t outer = axis.inner == 1 ? task : task / axis.blocks();
        const int64_t column = axis.inner == 1 ? 0 : task % axis.blocks() * kColumns;
        body(axis, args, outer * axis.extent * axis.inner + column, std::min(kColumns, axis.inner - column));
      }
    });
  });
}

std::unique_ptr<runtime::Kernel> PrepareForward(const NodeDesc& desc, bool log) {
  return Prepare(desc, [log](const Axis& axis, const KernelArgs& args, int64_t first, int64_t columns) {
    const float* x = args.inputs[0].as<float>() + first;
    float* y = args.outputs[0].as<float>() + first;
    if (axis.inner == 1) return Row(log, x, axis.extent, y);
    Columns(log, x, axis.extent, axis.inner, columns, y);
  });
}

std::unique_ptr<runtime::Kernel> PrepareGrad(const NodeDesc& desc, bool log) {
  return Prepare(desc, [log](const Axis& axis, const KernelArgs& args, int64_t first, int64_t columns) {
    const float* dy = args.inputs[0].as<float>() + first;
    const float* y = args.inputs[1].as<float>() + first;
    float* dx = args.outputs[0].as<float>() + first;
    if (axis.inner == 1) return GradRow(log, dy, y, axis.extent, dx);
    GradColumns(log, dy, y, axis.extent, axis.inner, columns, dx);
  });
}

}  // namespace

void RegisterSoftmax(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32;
  table->Add(ir::OpKind::kSoftmax, {f}, {f}, [](const NodeDesc& d) { return PrepareForward(d, false); });
  table->Add(ir::OpKind::kLogSoftmax, {f}, {f}, [](const NodeDesc& d) { return PrepareForward(d, true); });
  table->Add(ir::OpKind::kSoftmaxGrad, {f, f}, {f}, [](const NodeDesc& d) { return PrepareGrad(d, false); });
  table->Add(ir::OpKind::kLogSoftmaxGrad, {f, f}, {f}, [](const NodeDesc& d) { return PrepareGrad(d, true); });
}

}  // namespace ampd::cpu
