// Attention by tiles of queries and keys with a running softmax (Dao et al. 2022): the scores are never all in memory.
#include <omp.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "engine/backend/cpu/attention_tiles.h"
#include "engine/backend/cpu/lane_sums.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/ops/compute.h"
#include "engine/runtime/self_attention.h"

namespace ampd::cpu {
namespace {

using ops::AttentionDims;
using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Below this many multiply-adds and additions a second thread costs more than it saves.
constexpr int64_t kMinFlopsPerThread = 1'000'000;

using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
using LaneFlags = int32_t __attribute__((vector_size(kLanes * sizeof(float))));

// Largest of `start` and the row, or NaN where there is one. By vectors: GCC does not make any of a maximum that keeps
// NaN.
AMPD_CPU_CLONES float MaxOf(float start, const float* x, int64_t n) {
  Lanes lanes = {};
  lanes -= kInfinity;
  LaneFlags nan = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes v;
    std::memcpy(&v, x + i, sizeof(v));
    lanes = v > lanes ? v : lanes;
    nan |= v != v;
  }
  float largest = start;
  const auto add = [&](float v) { largest = (v > largest) | (v != v) ? v : largest; };
  for (; i < n; ++i) add(x[i]);
  for (int lane = 0; lane < kLanes; ++lane) add(nan[lane] != 0 ? std::numeric_limits<float>::quiet_NaN() : lanes[lane]);
  return largest;
}

// x becomes e^(x - shift); their sum.
AMPD_CPU_CLONES double ExpRow(float* x, float shift, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = ExpF(x[i] - shift);
  LaneSum sum;
  ForEachLane(n, [&](int64_t i, int lane) { sum.lanes[lane] += static_cast<double>(x[i]); });
  return sum.Total();
}

AMPD_CPU_CLONES void ScaleRow(float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

AMPD_CPU_CLONES double DotOf(const float* a, const float* b, int64_t n) {
  LaneSum sum;
  ForEachLane(n,
              [&](int64_t i, int lane) { sum.lanes[lane] += static_cast<double>(a[i]) * static_cast<double>(b[i]); });
  return sum.Total();
}

// Gradient of the scores: weight * (gradient of the weight - delta).
AMPD_CPU_CLONES void ScoreGradLoop(const float* __restrict weights, float delta, int64_t n, float* __restrict grads) {
  for (int64_t i = 0; i < n; ++i) grads[i] = weights[i] * (grads[i] - delta);
}

AMPD_CPU_CLONES void MultiplyLoop(const float* __restrict factors, int64_t n, float* __restrict x) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factors[i];
}

// One part's buffers, f32, by name; those of a tensor that products read where it lies are empty.
struct Buffers {
  int64_t k = 0, v = 0, q = 0, dy = 0, y = 0;
  int64_t scores = 0, grads = 0, slope = 0, out = 0, dk = 0, dv = 0;
  int64_t largest = 0, delta = 0, sum = 0;
  int64_t stride = 0;

  // `converts`: of q, k, v and dy to what products read; `widens`: of y, which no product reads, to f32.
  Buffers(const AttentionDims& d, bool converts, bool widens, bool gradient) {
    WorkspaceLayout layout;
    const auto add = [&](bool wanted, int64_t rows, int64_t size) { return wanted ? layout.Add(rows * size * 4) : 0; };
    k = add(converts, d.kv_length, d.head_size);
    v = add(converts, d.kv_length, d.value_size);
    q = add(converts, kTileQueries, d.head_size);
    dy = add(converts && gradient, kTileQueries, d.value_size);
    y = add(widens && gradient, kTileQueries, d.value_size);
    scores = add(true, kTileQueries, kTileKeys);
    grads = add(gradient, kTileQueries, kTileKeys);
    slope = add(gradient && d.softcap > 0, kTileQueries, kTileKeys);
    out = add(true, kTileQueries, gradient ? d.head_size : d.value_size);
    dk = add(gradient, d.kv_length, d.head_size);
    dv = add(gradient, d.kv_length, d.value_size);
    largest = add(true, kTileQueries, 1);
    delta = add(gradient, kTileQueries, 1);
    sum = layout.Add(kTileQueries * 8);
    stride = layout.bytes();
  }
};

// A part's work on one key head and the query heads that read it.
struct Task {
  const AttentionDims& d;
  const ScoreRules& rules;
  const Buffers& at;
  // Products round their operands to 10 fraction bits; sums and functions of the same values don't.
  bool tf32;
  const KernelArgs& args;
  int part;
  int64_t batch, kv_head;
  // Which tiles of queries are this task's: first_tile and every tile_step-th behind it.
  int64_t first_tile = 0, tile_step = 1;

  float* Buffer(int64_t offset) const { return WorkspaceAt<float>(args, part * at.stride + offset); }
  HeadRows Queries(int64_t head) const {
    return HeadOf(d, batch, head, d.heads, d.q_length, d.head_size, d.RowOf(d.heads * d.head_size));
  }
  HeadRows Outputs(int64_t head) const {
    return HeadOf(d, batch, head, d.heads, d.q_length, d.value_size, d.heads * d.value_size);
  }
  // Of keys or values.
  HeadRows Keys(int64_t size) const {
    return HeadOf(d, batch, kv_head, d.kv_heads, d.kv_length, size, d.RowOf(d.kv_heads * size));
  }
  FloatRows Load(int input, const HeadRows& head, int64_t begin, int64_t end, int64_t buffer) const {
    return LoadHead(args.inputs[input], head, begin, end, tf32, Buffer(buffer));
  }
  // A tile [rows, kTileKeys] on its way to a product.
  void RoundTile(float* tile, int64_t rows, int64_t keys) const {
    for (int64_t i = 0; tf32 && i < rows; ++i) RoundToTf32(tile + i * kTileKeys, keys, tile + i * kTileKeys);
  }
  // body(query head, first query, past the last one) for every tile of queries.
  template <typename Body>
  void ForEachTile(const Body& body) const {
    const int64_t group = d.heads / d.kv_heads;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int64_t i = first_tile * kTileQueries; i < d.q_length; i += tile_step * kTileQueries) {
        body(head, i, std::min(i + kTileQueries, d.q_length));
      }
    }
  }
};

// Replaces scores by weights relative to each row's largest so far, and rescales what was summed before.
void SoftmaxStep(const Task& task, int64_t queries, int64_t keys, float* scores, float* out) {
  float* largest = task.Buffer(task.at.largest);
  double* sums = WorkspaceAt<double>(task.args, task.part * task.at.stride + task.at.sum);
  for (int64_t i = 0; i < queries; ++i, scores += kTileKeys, out += task.d.value_size) {
    const float before = largest[i];
    largest[i] = MaxOf(before, scores, keys);
    // Nothing to see yet: any finite shift gives weights of 0.
    const float shift = largest[i] == -kInfinity ? 0.0f : largest[i];
    const float kept = std::exp(before - shift);
    sums[i] = sums[i] * static_cast<double>(kept) + ExpRow(scores, shift, keys);
    if (kept != 1.0f) ScaleRow(out, kept, task.d.value_size);
  }
}

void FinishTile(const Task& task, int64_t head, int64_t begin, int64_t end, float* out) {
  const float* largest = task.Buffer(task.at.largest);
  const double* sums = WorkspaceAt<double>(task.args, task.part * task.at.stride + task.at.sum);
  float* log_sums = task.args.outputs[1].as<float>() + (task.batch * task.d.heads + head) * task.d.q_length;
  for (int64_t i = 0; i < end - begin; ++i) {
    const bool hidden = sums[i] == 0;
    log_sums[begin + i] = hidden ? -kInfinity : static_cast<float>(static_cast<double>(largest[i]) + std::log(sums[i]));
    float* row = out + i * task.d.value_size;
    if (hidden) {
      std::fill(row, row + task.d.value_size, 0.0f);
    } else {
      ScaleRow(row, static_cast<float>(1 / sums[i]), task.d.value_size);
    }
  }
  StoreHead(out, task.args.outputs[0], task.Outputs(head), begin, end);
}

void ForwardTask(const Task& task) {
  const AttentionDims& d = task.d;
  const FloatRows k = task.Load(1, task.Keys(d.head_size), 0, d.kv_length, task.at.k);
  const FloatRows v = task.Load(2, task.Keys(d.value_size), 0, d.kv_length, task.at.v);
  float* scores = task.Buffer(task.at.scores);
  float* out = task.Buffer(task.at.out);
  task.ForEachTile([&](int64_t head, int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    const FloatRows q = task.Load(0, task.Queries(head), begin, end, task.at.q);
    std::fill_n(task.Buffer(task.at.largest), n, -kInfinity);
    std::fill_n(WorkspaceAt<double>(task.args, task.part * task.at.stride + task.at.sum), n, 0.0);
    std::fill_n(out, n * d.value_size, 0.0f);
    const int64_t keys_end = task.rules.KeysEnd(end);
    for (int64_t key = 0; key < keys_end; key += kTileKeys) {
      const int64_t m = std::min(kTileKeys, keys_end - key);
      TileProduct(false, true, n, m, d.head_size, static_cast<float>(d.scale), q, k.From(key), 0, scores, kTileKeys);
      task.rules.Apply(task.batch, head, begin, n, key, m, scores, nullptr);
      SoftmaxStep(task, n, m, scores, out);
      task.RoundTile(scores, n, m);
      TileProduct(false, false, n, d.value_size, m, 1, {scores, kTileKeys}, v.From(key), 1, out, d.value_size);
    }
    FinishTile(task, head, begin, end, out);
  });
}

// Inputs of attention_grad.
enum GradInput { kDy, kQ, kK, kV, kY, kLogSum, kMask };

// The operands of one tile of queries.
struct TileOperands {
  int64_t head, begin, rows;
  FloatRows q, dy;
};

TileOperands LoadTile(const Task& task, int64_t head, int64_t begin, int64_t end) {
  const AttentionDims& d = task.d;
  const HeadRows values = task.Outputs(head);
  TileOperands t{.head = head, .begin = begin, .rows = end - begin};
  const FloatRows dy = LoadHead(task.args.inputs[kDy], values, begin, end, false, task.Buffer(task.at.dy));
  const FloatRows y = LoadHead(task.args.inputs[kY], values, begin, end, false, task.Buffer(task.at.y));
  float* delta = task.Buffer(task.at.delta);
  for (int64_t i = 0; i < t.rows; ++i) {
    delta[i] = static_cast<float>(DotOf(dy.From(i).data, y.From(i).data, d.value_size));
  }
  t.q = task.Load(kQ, task.Queries(head), begin, end, task.at.q);
  t.dy = task.tf32 ? task.Load(kDy, values, begin, end, task.at.dy) : dy;
  return t;
}

// Scores of a tile of keys, then the weights in their place.
void RecomputeWeights(const Task& task, const TileOperands& t, FloatRows k, int64_t key, int64_t m, float* weights) {
  const AttentionDims& d = task.d;
  TileProduct(false, true, t.rows, m, d.head_size, static_cast<float>(d.scale), t.q, k.From(key), 0, weights,
              kTileKeys);
  float* slope = task.rules.has_softcap() ? task.Buffer(task.at.slope) : nullptr;
  task.rules.Apply(task.batch, t.head, t.begin, t.rows, key, m, weights, slope);
  const float* log_sums =
      task.args.inputs[kLogSum].as<float>() + (task.batch * d.heads + t.head) * d.q_length + t.begin;
  for (int64_t i = 0; i < t.rows; ++i) {
    // A row that sees nothing: every weight is 0.
    ExpRow(weights + i * kTileKeys, log_sums[i] == -kInfinity ? kInfinity : log_sums[i], m);
  }
}

// Weights of a tile of keys, and the gradients of its masked scores.
void ScoreGrads(const Task& task, const TileOperands& t, FloatRows k, FloatRows v, int64_t key, int64_t m,
                float* weights, float* grads) {
  RecomputeWeights(task, t, k, key, m, weights);
  TileProduct(false, true, t.rows, m, task.d.value_size, 1, t.dy, v.From(key), 0, grads, kTileKeys);
  const float* delta = task.Buffer(task.at.delta);
  for (int64_t i = 0; i < t.rows; ++i) ScoreGradLoop(weights + i * kTileKeys, delta[i], m, grads + i * kTileKeys);
}

void GradTile(const Task& task, const TileOperands& t, FloatRows k, FloatRows v) {
  const AttentionDims& d = task.d;
  float *weights = task.Buffer(task.at.scores), *grads = task.Buffer(task.at.grads), *dq = task.Buffer(task.at.out);
  const auto scale = static_cast<float>(d.scale);
  std::fill_n(dq, t.rows * d.head_size, 0.0f);
  const int64_t keys_end = task.rules.KeysEnd(t.begin + t.rows);
  for (int64_t key = 0; key < keys_end; key += kTileKeys) {
    const int64_t m = std::min(kTileKeys, keys_end - key);
    ScoreGrads(task, t, k, v, key, m, weights, grads);
    task.RoundTile(weights, t.rows, m);
    TileProduct(true, false, m, d.value_size, t.rows, 1, {weights, kTileKeys}, t.dy, 1,
                task.Buffer(task.at.dv) + key * d.value_size, d.value_size);
    if (task.rules.has_softcap()) {
      for (int64_t i = 0; i < t.rows; ++i) {
        MultiplyLoop(task.Buffer(task.at.slope) + i * kTileKeys, m, grads + i * kTileKeys);
      }
    }
    task.RoundTile(grads, t.rows, m);
    TileProduct(false, false, t.rows, d.head_size, m, scale, {grads, kTileKeys}, k.From(key), 1, dq, d.head_size);
    TileProduct(true, false, m, d.head_size, t.rows, scale, {grads, kTileKeys}, t.q, 1,
                task.Buffer(task.at.dk) + key * d.head_size, d.head_size);
  }
  StoreHead(dq, task.args.outputs[0], task.Queries(t.head), t.begin, t.begin + t.rows);
}

void GradTask(const Task& task) {
  const AttentionDims& d = task.d;
  const HeadRows keys = task.Keys(d.head_size), values = task.Keys(d.value_size);
  const FloatRows k = task.Load(kK, keys, 0, d.kv_length, task.at.k);
  const FloatRows v = task.Load(kV, values, 0, d.kv_length, task.at.v);
  float *dk = task.Buffer(task.at.dk), *dv = task.Buffer(task.at.dv);
  std::fill_n(dk, d.kv_length * d.head_size, 0.0f);
  std::fill_n(dv, d.kv_length * d.value_size, 0.0f);
  task.ForEachTile(
      [&](int64_t head, int64_t begin, int64_t end) { GradTile(task, LoadTile(task, head, begin, end), k, v); });
  StoreHead(dk, task.args.outputs[1], keys, 0, d.kv_length);
  StoreHead(dv, task.args.outputs[2], values, 0, d.kv_length);
}

void MaskGradTask(const Task& task) {
  const AttentionDims& d = task.d;
  const FloatRows k = task.Load(kK, task.Keys(d.head_size), 0, d.kv_length, task.at.k);
  const FloatRows v = task.Load(kV, task.Keys(d.value_size), 0, d.kv_length, task.at.v);
  float *weights = task.Buffer(task.at.scores), *grads = task.Buffer(task.at.grads);
  task.ForEachTile([&](int64_t head, int64_t begin, int64_t end) {
    const TileOperands t = LoadTile(task, head, begin, end);
    const int64_t keys_end = task.rules.KeysEnd(end);
    for (int64_t key = 0; key < keys_end; key += kTileKeys) {
      const int64_t m = std::min(kTileKeys, keys_end - key);
      ScoreGrads(task, t, k, v, key, m, weights, grads);
      task.rules.AddMaskGrad(task.batch, head, begin, t.rows, key, m, grads, task.args.outputs[0].as<float>());
    }
  });
}

struct Work {
  AttentionDims dims;
  bool tf32;
  Buffers at;
  int64_t tasks, flops;

  // `first`: the input that is q.
  Work(const NodeDesc& desc, size_t first, bool gradient)
      : dims(ops::AttentionDimsOf(desc.attributes, desc.inputs[first].shape, desc.inputs[first + 1].shape,
                                  desc.inputs[first + 2].shape)),
        tf32(desc.attributes.String(ops::kComputeAttribute) == ops::kComputeTf32),
        at(dims, tf32 || desc.inputs[first].dtype != DType::kF32, desc.inputs[first].dtype != DType::kF32, gradient),
        tasks(dims.batch * dims.kv_heads),
        flops(2 * dims.batch * dims.heads * dims.q_length * dims.kv_length * (dims.head_size + dims.value_size)) {}

  // Of at most `most` pieces.
  int Parts(int threads, int64_t most) const {
    return static_cast<int>(std::min<int64_t>(PartsFor(threads, flops, kMinFlopsPerThread), most));
  }
};

std::unique_ptr<runtime::Kernel> Prepare(const NodeDesc& desc, bool gradient, void (*run)(const Task&)) {
  const Work work(desc, gradient ? kQ : 0, gradient);
  const size_t mask = gradient ? kMask : 3;
  const int parts = work.Parts(desc.threads, work.tasks);
  return MakeKernel(parts * work.at.stride, [=](const KernelArgs& args) {
    // The products inside run on the thread that calls them.
    omp_set_num_threads(1);
    const AttentionDims& d = work.dims;
    const ScoreRules rules(d, args.inputs.size() > mask ? &args.inputs[mask] : nullptr);
    ParallelRange(parts, work.tasks, 1, [&](int part, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        run({d, rules, work.at, work.tf32, args, part, i / d.kv_heads, i % d.kv_heads});
    });
  });
}

// A mask's gradient is summed over heads and batch, in one order whatever the threads: they share out the tiles of
// queries, whose rows of the mask differ unless it has but one.
std::unique_ptr<runtime::Kernel> PrepareMaskGrad(const NodeDesc& desc) {
  const Work work(desc, kQ, true);
  const Shape& mask = desc.inputs[kMask].shape;
  const bool has_rows = mask.size() > 1 && mask[mask.size() - 2] > 1;
  const int64_t tiles = (work.dims.q_length + kTileQueries - 1) / kTileQueries;
  const int parts = work.Parts(desc.threads, has_rows ? tiles : 1);
  return MakeKernel(parts * work.at.stride, [=](const KernelArgs& args) {
    omp_set_num_threads(1);
    const AttentionDims& d = work.dims;
    const ScoreRules rules(d, &args.inputs[kMask]);
    std::fill_n(args.outputs[0].as<float>(), args.outputs[0].size(), 0.0f);
    ParallelParts(parts, [&](int part) {
      for (int64_t i = 0; i < work.tasks; ++i) {
        MaskGradTask({d, rules, work.at, work.tf32, args, part, i / d.kv_heads, i % d.kv_heads, part, parts});
      }
    });
  });
}

}  // namespace

void RegisterAttention(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32;
  const auto forward = [](const NodeDesc& desc) { return Prepare(desc, false, ForwardTask); };
  const auto gradient = [](const NodeDesc& desc) { return Prepare(desc, true, GradTask); };
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kAttention, {t, t, t}, {t, f}, forward);
    table->Add(ir::OpKind::kAttentionGrad, {t, t, t, t, t, f}, {t, t, t}, gradient);
    for (DType mask : {DType::kBool, f}) {
      table->Add(ir::OpKind::kAttention, {t, t, t, mask}, {t, f}, forward);
      table->Add(ir::OpKind::kAttentionGrad, {t, t, t, t, t, f, mask}, {t, t, t}, gradient);
    }
    table->Add(ir::OpKind::kAttentionMaskGrad, {t, t, t, t, t, f, f}, {f}, PrepareMaskGrad);
    runtime::AddSelfAttention(table, t, forward);
    runtime::AddSelfAttentionGrad(table, t, gradient);
  }
}

}  // namespace ampd::cpu
