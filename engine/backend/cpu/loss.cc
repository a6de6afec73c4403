// Softmax cross-entropy against labels or distributions, and the mean of losses.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/row_kernel.h"
#include "engine/backend/cpu/vector_math.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Partial results side by side, so that loops vectorise without changing the order of a sum.
constexpr int64_t kLanes = 16;
constexpr int64_t kSumBlock = 1024;

// Largest of a row, or NaN where any element is not finite.
AMPD_CPU_CLONES float FiniteMax(const float* row, int64_t n) {
  float largest[kLanes];
  int32_t bad[kLanes] = {};
  std::fill_n(largest, kLanes, -kInfinity);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const float x = row[i + j];
      largest[j] = x > largest[j] ? x : largest[j];
      bad[j] |= !(std::fabs(x) < kInfinity);
    }
  }
  float result = -kInfinity;
  bool finite = true;
  for (; i < n; ++i) result = std::max(result, row[i]), finite &= std::isfinite(row[i]);
  for (int64_t j = 0; j < kLanes; ++j) result = std::max(result, largest[j]), finite &= bad[j] == 0;
  return finite ? result : kNaN;
}

// e[i] = exp(z[i] - largest) for at most kSumBlock elements, perhaps in place; their sum, in f32 along the lanes.
AMPD_CPU_CLONES float ExpBlock(const float* z, int64_t n, float largest, float* e) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) e[i] = ExpF(z[i] - largest);
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) sums[j] += e[i + j];
  }
  float sum = 0;
  for (; i < n; ++i) sum += e[i];
  for (int64_t j = 0; j < kLanes; ++j) sum += sums[j];
  return sum;
}

// Sum of exp(z - largest); the terms go to `e` unless that is null.
double ExpSum(const float* z, int64_t n, float largest, float* e) {
  alignas(64) float buffer[kSumBlock];
  double sum = 0;
  for (int64_t i = 0; i < n; i += kSumBlock) {
    sum += static_cast<double>(ExpBlock(z + i, std::min(kSumBlock, n - i), largest, e == nullptr ? buffer : e + i));
  }
  return sum;
}

AMPD_CPU_CLONES void Scale(float factor, int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// What the loss compares a row's softmax with: weights q, of which the loss is the sum of q[c] (log sum exp z - z[c]).
struct Goal {
  double smoothing = 0;
  bool ignores = false;
  int64_t ignored = 0;
  int64_t classes = 0;
  const float* class_weights = nullptr;

  // `columns`: of the logits.
  Goal(const ir::Attributes& attributes, int64_t columns)
      : smoothing(attributes.Double("smoothing")),
        ignores(attributes.Has("ignore_index")),
        ignored(attributes.Int("ignore_index")),
        classes(attributes.Int("classes", columns)) {}

  Goal With(const KernelArgs& args, size_t weights_input) const {
    Goal goal = *this;
    if (args.inputs.size() > weights_input) goal.class_weights = args.inputs[weights_input].as<float>();
    return goal;
  }
  double weight(int64_t c) const { return class_weights == nullptr ? 1 : static_cast<double>(class_weights[c]); }
  bool counts(int64_t label) const { return label >= 0 && label < classes && !(ignores && label == ignored); }
  // The even share of a class in q.
  double even(int64_t c) const { return smoothing / static_cast<double>(classes) * weight(c); }
  double even_sum() const {
    if (smoothing == 0) return 0;
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += even(c);
    return sum;
  }
  double soft(const float* target, int64_t c) const {
    return (1 - smoothing) * static_cast<double>(target[c]) * weight(c) + even(c);
  }
};

void HardRow(const Goal& goal, const float* z, int64_t label, float* loss, float* weight) {
  *loss = *weight = 0;
  if (!goal.counts(label)) return;
  const float largest = FiniteMax(z, goal.classes);
  const double log_sum = std::log(ExpSum(z, goal.classes, largest, nullptr));
  const auto surprise = [&](int64_t c) { return log_sum - (static_cast<double>(z[c]) - static_cast<double>(largest)); };
  double sum = (1 - goal.smoothing) * goal.weight(label) * surprise(label);
  if (goal.smoothing > 0) {
    for (int64_t c = 0; c < goal.classes; ++c) sum += goal.even(c) * surprise(c);
  }
  *loss = static_cast<float>(sum);
  *weight = static_cast<float>(goal.weight(label));
}

// dz = dloss * (sum(q) softmax - q). May replace z.
void HardGradRow(const Goal& goal, float dloss, const float* z, int64_t label, float* dz) {
  if (!goal.counts(label)) {
    std::fill_n(dz, goal.classes, 0.0f);
    return;
  }
  const double sum = ExpSum(z, goal.classes, FiniteMax(z, goal.classes), dz);
  const double at_label = (1 - goal.smoothing) * goal.weight(label);
  const double factor = static_cast<double>(dloss) * (at_label + goal.even_sum()) / sum;
  const double label_exp = static_cast<double>(dz[label]);
  Scale(static_cast<float>(factor), goal.classes, dz);
  if (goal.smoothing > 0) {
    for (int64_t c = 0; c < goal.classes; ++c) {
      dz[c] = static_cast<float>(static_cast<double>(dz[c]) - static_cast<double>(dloss) * goal.even(c));
    }
  }
  dz[label] = static_cast<float>(factor * label_exp - static_cast<double>(dloss) * (at_label + goal.even(label)));
}

void SoftRow(const Goal& goal, const float* z, const float* target, float* loss) {
  const float largest = FiniteMax(z, goal.classes);
  const double log_sum = std::log(ExpSum(z, goal.classes, largest, nullptr));
  double sum = 0;
  for (int64_t c = 0; c < goal.classes; ++c) {
    sum += goal.soft(target, c) * (log_sum - (static_cast<double>(z[c]) - static_cast<double>(largest)));
  }
  *loss = static_cast<float>(sum);
}

// May replace z.
void SoftGradRow(const Goal& goal, float dloss, const float* z, const float* target, float* dz) {
  const double sum = ExpSum(z, goal.classes, FiniteMax(z, goal.classes), dz);
  double goal_sum = 0;
  for (int64_t c = 0; c < goal.classes; ++c) goal_sum += goal.soft(target, c);
  for (int64_t c = 0; c < goal.classes; ++c) {
    const double softmax = static_cast<double>(dz[c]) / sum;
    dz[c] = static_cast<float>(static_cast<double>(dloss) * (goal_sum * softmax - goal.soft(target, c)));
  }
}

// A row: its logits in f32, and where a gradient goes, which may be the same place.
using RowFunction = void (*)(const Goal& goal, const KernelArgs& args, int64_t row, const float* z, float* dz);

void Hard(const Goal& all, const KernelArgs& args, int64_t row, const float* z, float*) {
  HardRow(all.With(args, 2), z, args.inputs[1].as<int32_t>()[row], args.outputs[0].as<float>() + row,
          args.outputs[1].as<float>() + row);
}

void HardGrad(const Goal& all, const KernelArgs& args, int64_t row, const float* z, float* dz) {
  HardGradRow(all.With(args, 3), args.inputs[0].as<float>()[row], z, args.inputs[2].as<int32_t>()[row], dz);
}

void Soft(const Goal& all, const KernelArgs& args, int64_t row, const float* z, float*) {
  SoftRow(all.With(args, 2), z, args.inputs[1].as<float>() + row * all.classes, args.outputs[0].as<float>() + row);
}

void SoftGrad(const Goal& all, const KernelArgs& args, int64_t row, const float* z, float* dz) {
  SoftGradRow(all.With(args, 3), args.inputs[0].as<float>()[row], z, args.inputs[2].as<float>() + row * all.classes,
              dz);
}

// `logits` is the input that says how large the work is, and in 16 bits is widened row by row; a gradient may be
// written over it.
runtime::PrepareKernel CrossEntropy(RowFunction function, size_t logits, bool gradient = false) {
  return [=](const NodeDesc& desc) {
    const ir::TensorType& z = desc.inputs[logits];
    const int64_t columns = z.shape.back(), rows = NumElements(z.shape) / columns;
    const Goal goal(desc.attributes, columns);
    const int parts = RowParts(desc.threads, rows, columns * 16);
    const int64_t stride = AlignUp(columns * SizeOf(DType::kF32));
    const auto launch = [=](const KernelArgs& args) {
      ParallelRange(parts, rows, 1, [&](int part, int64_t begin, int64_t end) {
        auto* const wide = WorkspaceAt<float>(args, part * stride);
        for (int64_t r = begin; r < end; ++r) {
          const int64_t first = r * columns;
          const float* const row = Load(args.inputs[logits], first, goal.classes, wide);
          float* const to = gradient ? Target(args.outputs[0], first, wide) : nullptr;
          function(goal, args, r, row, to);
          if (!gradient) continue;
          std::fill(to + goal.classes, to + columns, 0.0f);
          Store(args.outputs[0], first, columns, to);
        }
      });
    };
    return MakeKernel(IsHalf(z.dtype) ? parts * stride : 0, launch, gradient ? static_cast<int>(logits) : -1);
  };
}

}  // namespace

void RegisterLosses(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32;
  constexpr DType i = DType::kI32;
  for (const DType z : kDataTypes) {
    table->Add(ir::OpKind::kSoftmaxCrossEntropy, {z, i}, {f, f}, CrossEntropy(Hard, 0));
    table->Add(ir::OpKind::kSoftmaxCrossEntropy, {z, i, f}, {f, f}, CrossEntropy(Hard, 0));
    table->Add(ir::OpKind::kSoftmaxCrossEntropyGrad, {f, z, i}, {z}, CrossEntropy(HardGrad, 1, true));
    table->Add(ir::OpKind::kSoftmaxCrossEntropyGrad, {f, z, i, f}, {z}, CrossEntropy(HardGrad, 1, true));
    table->Add(ir::OpKind::kSoftCrossEntropy, {z, f}, {f}, CrossEntropy(Soft, 0));
    table->Add(ir::OpKind::kSoftCrossEntropy, {z, f, f}, {f}, CrossEntropy(Soft, 0));
    table->Add(ir::OpKind::kSoftCrossEntropyGrad, {f, z, f}, {z}, CrossEntropy(SoftGrad, 1, true));
    table->Add(ir::OpKind::kSoftCrossEntropyGrad, {f, z, f, f}, {z}, CrossEntropy(SoftGrad, 1, true));
  }
}

}  // namespace ampd::cpu
