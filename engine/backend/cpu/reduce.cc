// Reductions over any axes. Sums and products accumulate in double (floats) or modulo 2^64 (integers), maxima and
// minima keep NaN. The split over threads is fixed by shapes and thread count.
#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/strided.h"

namespace ampd::cpu {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int64_t kChunk = 512;  // accumulators at a time
constexpr int64_t kLanes = 32;   // partial results of one row

// x into n accumulators, one each.
using FoldFloats = void (*)(const float* x, int64_t n, double* acc);
using FoldIntegers = void (*)(const int64_t* x, int64_t n, int64_t* acc);

AMPD_CPU_CLONES void SumFold(const float* __restrict x, int64_t n, double* __restrict acc) {
  for (int64_t i = 0; i < n; ++i) acc[i] += static_cast<double>(x[i]);
}
AMPD_CPU_CLONES void ProdFold(const float* __restrict x, int64_t n, double* __restrict acc) {
  for (int64_t i = 0; i < n; ++i) acc[i] *= static_cast<double>(x[i]);
}
AMPD_CPU_CLONES void MaxFold(const float* __restrict x, int64_t n, double* __restrict acc) {
  for (int64_t i = 0; i < n; ++i) {
    const double v = static_cast<double>(x[i]);
    acc[i] = v > acc[i] || v != v ? v : acc[i];
  }
}
AMPD_CPU_CLONES void MinFold(const float* __restrict x, int64_t n, double* __restrict acc) {
  for (int64_t i = 0; i < n; ++i) {
    const double v = static_cast<double>(x[i]);
    acc[i] = v < acc[i] || v != v ? v : acc[i];
  }
}

uint64_t Bits(int64_t x) { return static_cast<uint64_t>(x); }
void IntSumFold(const int64_t* x, int64_t n, int64_t* acc) {
  for (int64_t i = 0; i < n; ++i) acc[i] = static_cast<int64_t>(Bits(acc[i]) + Bits(x[i]));
}
void IntProdFold(const int64_t* x, int64_t n, int64_t* acc) {
  for (int64_t i = 0; i < n; ++i) acc[i] = static_cast<int64_t>(Bits(acc[i]) * Bits(x[i]));
}
void IntMaxFold(const int64_t* x, int64_t n, int64_t* acc) {
  for (int64_t i = 0; i < n; ++i) acc[i] = std::max(acc[i], x[i]);
}
void IntMinFold(const int64_t* x, int64_t n, int64_t* acc) {
  for (int64_t i = 0; i < n; ++i) acc[i] = std::min(acc[i], x[i]);
}

// Accumulators of rows' lanes and of threads, into one.
template <typename Acc>
Acc Join(OpKind op, Acc a, Acc b) {
  switch (op) {
    case OpKind::kReduceProd:
      if constexpr (std::is_same_v<Acc, int64_t>) return static_cast<int64_t>(Bits(a) * Bits(b));
      return a * b;
    case OpKind::kReduceMax:
      return b > a || b != b ? b : a;
    case OpKind::kReduceMin:
      return b < a || b != b ? b : a;
    default:
      if constexpr (std::is_same_v<Acc, int64_t>) return static_cast<int64_t>(Bits(a) + Bits(b));
      return a + b;
  }
}

template <typename Acc>
Acc Identity(OpKind op) {
  using Limits = std::numeric_limits<Acc>;
  switch (op) {
    case OpKind::kReduceProd:
      return 1;
    case OpKind::kReduceMax:
      return Limits::has_infinity ? -Limits::infinity() : Limits::min();
    case OpKind::kReduceMin:
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
    default:
      return 0;
  }
}

FoldFloats FoldOf(OpKind op, double) {
  if (op == OpKind::kReduceProd) return ProdFold;
  if (op == OpKind::kReduceMax) return MaxFold;
  return op == OpKind::kReduceMin ? MinFold : SumFold;
}
FoldIntegers FoldOf(OpKind op, int64_t) {
  if (op == OpKind::kReduceProd) return IntProdFold;
  if (op == OpKind::kReduceMax) return IntMaxFold;
  return op == OpKind::kReduceMin ? IntMinFold : IntSumFold;
}

const float* LoadElements(const TensorView& x, int64_t first, int64_t n, float* buffer) {
  return Load(x, first, n, buffer);
}
const int64_t* LoadElements(const TensorView& x, int64_t first, int64_t n, int64_t* buffer) {
  if (x.dtype == DType::kI64) return x.as<int64_t>() + first;
  for (int64_t i = 0; i < n; ++i) {
    buffer[i] = x.dtype == DType::kI32 ? x.as<int32_t>()[first + i] : x.as<uint8_t>()[first + i];
  }
  return buffer;
}

void StoreResults(const double* acc, double divisor, int64_t first, int64_t n, const TensorView& y) {
  float results[kChunk];
  for (int64_t i = 0; i < n; ++i) results[i] = static_cast<float>(acc[i] / divisor);
  FromF32(results, n, y.dtype, y.as<char>() + first * SizeOf(y.dtype));
}
void StoreResults(const int64_t* acc, double, int64_t first, int64_t n, const TensorView& y) {
  for (int64_t i = 0; i < n; ++i) {
    if (y.dtype == DType::kI64) y.as<int64_t>()[first + i] = acc[i];
    if (y.dtype == DType::kI32) y.as<int32_t>()[first + i] = static_cast<int32_t>(acc[i]);
    if (y.dtype == DType::kU8) y.as<uint8_t>()[first + i] = static_cast<uint8_t>(acc[i]);
  }
}

struct ReduceKernel {
  OpKind op;
  double divisor = 1;   // mean
  bool rows = false;    // the innermost axes are reduced
  int64_t inner = 1;    // extent of the innermost run, kept or reduced
  StridedView kept;     // the outputs, or runs of `inner` outputs
  StridedView reduced;  // what one output sums: elements, or rows of `inner`
  int64_t outputs = 1;
  int parts = 1;
  bool split = false;  // threads share each output's sum, not the outputs
  int64_t partial_at = 0;

  // Steps [begin, end) of the sums of outputs [first, first + n), added to acc. One step is one row or one run.
  template <typename T, typename Acc>
  void Accumulate(const TensorView& x, int64_t first, int64_t n, int64_t begin, int64_t end, Acc* acc) const {
    const auto fold = FoldOf(op, Acc{});
    alignas(64) T buffer[kBlock];
    if (!rows) {
      // At most kChunk outputs of one run.
      const int64_t base = At(kept, first / inner) + first % inner;
      for (int64_t r = begin; r < end; ++r) fold(LoadElements(x, base + At(reduced, r), n, buffer), n, acc);
      return;
    }
    for (int64_t o = 0; o < n; ++o) {
      alignas(64) Acc lanes[kLanes];
      std::fill(lanes, lanes + kLanes, Identity<Acc>(op));
      const int64_t base = At(kept, first + o);
      for (int64_t r = begin; r < end; ++r) {
        const int64_t row = base + At(reduced, r);
        for (int64_t i = 0; i < inner; i += kBlock) {
          const int64_t m = std::min(kBlock, inner - i);
          const T* values = LoadElements(x, row + i, m, buffer);
          for (int64_t j = 0; j < m; j += kLanes) fold(values + j, std::min(kLanes, m - j), lanes);
        }
      }
      for (Acc lane : lanes) acc[o] = Join(op, acc[o], lane);
    }
  }

  // body(first, n) over outputs [begin, end), in pieces that Accumulate() takes.
  template <typename Body>
  void ForEachChunk(int64_t begin, int64_t end, const Body& body) const {
    for (int64_t first = begin; first < end;) {
      int64_t n = std::min(kChunk, end - first);
      if (!rows) n = std::min(n, inner - first % inner);
      body(first, n);
      first += n;
    }
  }

  template <typename T, typename Acc>
  void Run(const KernelArgs& args) const {
    const int64_t steps = reduced.size();
    if (!split) {
      ParallelRange(parts, outputs, rows ? 1 : std::min(inner, kChunk), [&](int, int64_t begin, int64_t end) {
        ForEachChunk(begin, end, [&](int64_t first, int64_t n) {
          Acc acc[kChunk];
          std::fill(acc, acc + n, Identity<Acc>(op));
          Accumulate<T>(args.inputs[0], first, n, 0, steps, acc);
          StoreResults(acc, divisor, first, n, args.outputs[0]);
        });
      });
      return;
    }
    Acc* partial = WorkspaceAt<Acc>(args, partial_at);
    std::fill(partial, partial + parts * outputs, Identity<Acc>(op));
    ParallelParts(parts, [&](int part) {
      const int64_t begin = PartBegin(steps, 1, part, parts), end = PartBegin(steps, 1, part + 1, parts);
      ForEachChunk(0, outputs, [&](int64_t first, int64_t n) {
        Accumulate<T>(args.inputs[0], first, n, begin, end, partial + part * outputs + first);
      });
    });
    for (int part = 1; part < parts; ++part) {
      for (int64_t o = 0; o < outputs; ++o) partial[o] = Join(op, partial[o], partial[part * outputs + o]);
    }
    ForEachChunk(0, outputs,
                 [&](int64_t first, int64_t n) { StoreResults(partial + first, divisor, first, n, args.outputs[0]); });
  }
};

// Which axes of the input are reduced.
std::vector<bool> ReducedAxes(const NodeDesc& desc) {
  const Shape& x = desc.inputs[0].shape;
  const int64_t rank = static_cast<int64_t>(x.size());
  std::vector<bool> reduced(x.size(), false);
  if (desc.op == OpKind::kSumTo) {
    const Shape& y = desc.outputs[0].shape;
    for (size_t d = 0; d < x.size(); ++d) {
      const size_t missing = x.size() - y.size();
      reduced[d] = d < missing || y[d - missing] != x[d];
    }
    return reduced;
  }
  for (int64_t axis : desc.attributes.Ints("axes")) reduced[axis < 0 ? axis + rank : axis] = true;
  if (!desc.attributes.Has("axes")) reduced.assign(x.size(), true);
  return reduced;
}

// Cuts a long run into steps of a view that threads can share.
void CutRow(int64_t* inner, StridedView* reduced) {
  const int64_t piece = 16 * kBlock;
  if (reduced->size() != 1 || *inner % piece != 0 || *inner / piece < 2) return;
  *reduced = {{*inner / piece}, {piece}, 0};
  *inner = piece;
}

ReduceKernel MakeReduce(const NodeDesc& desc, WorkspaceLayout* workspace) {
  const Shape& x = desc.inputs[0].shape;
  const std::vector<bool> reduced = ReducedAxes(desc);
  const Shape strides = DenseStrides(x);
  StridedView views[2];  // kept, reduced
  int last = 1;
  for (size_t d = 0; d < x.size(); ++d) {
    views[reduced[d]].extents.push_back(x[d]);
    views[reduced[d]].strides.push_back(strides[d]);
    if (x[d] != 1) last = reduced[d];
  }
  for (StridedView& view : views) view = Collapsed(view);
  ReduceKernel k{.op = desc.op == OpKind::kReduceMean || desc.op == OpKind::kSumTo ? OpKind::kReduceSum : desc.op};
  k.rows = last == 1;
  k.outputs = views[0].size();
  if (desc.op == OpKind::kReduceMean) k.divisor = static_cast<double>(views[1].size());
  StridedView& innermost = views[last];
  if (!innermost.extents.empty()) {
    k.inner = innermost.extents.back();
    innermost.extents.pop_back();
    innermost.strides.pop_back();
  }
  k.kept = views[0];
  k.reduced = views[1];
  if (k.rows && k.outputs < desc.threads) CutRow(&k.inner, &k.reduced);
  k.parts = PartsFor(desc.threads, NumElements(x), kMinElementsPerThread);
  const int64_t units = k.rows ? k.outputs : k.outputs / std::min(k.inner, kChunk);
  k.split = units < k.parts && k.reduced.size() >= k.parts;
  if (k.split) k.partial_at = workspace->Add(k.parts * k.outputs * sizeof(double));
  return k;
}

std::unique_ptr<runtime::Kernel> PrepareReduce(const NodeDesc& desc) {
  WorkspaceLayout workspace;
  ReduceKernel kernel = MakeReduce(desc, &workspace);
  const bool floats = IsFloat(desc.inputs[0].dtype);
  return MakeKernel(workspace.bytes(), [kernel = std::move(kernel), floats](const KernelArgs& args) {
    floats ? kernel.Run<float, double>(args) : kernel.Run<int64_t, int64_t>(args);
  });
}

std::unique_ptr<runtime::Kernel> PrepareMeanGrad(const NodeDesc& desc) {
  const Shape& to = desc.outputs[0].shape;
  const StridedView view = BroadcastView(desc.inputs[0].shape, to);
  const float count = static_cast<float>(NumElements(to) / NumElements(desc.inputs[0].shape));
  return MakeKernel(0, [view, count, threads = desc.threads](const KernelArgs& args) {
    const int64_t n = args.outputs[0].size();
    float* dx = args.outputs[0].as<float>();
    ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock, [&](int, int64_t begin, int64_t end) {
      ReadStrided(view, sizeof(float), args.inputs[0].data, begin, end - begin, dx + begin);
      for (int64_t i = begin; i < end; ++i) dx[i] /= count;
    });
  });
}

// dy times the product of all other elements: the whole product divided by the element, unless that is zero.
void ProdGradOf(const float* x, const StridedView& group, double dy, float* dx) {
  const int64_t n = group.size();
  double product = 1;  // of all but the first zero
  int64_t zeros = 0, zero_at = -1;
  for (int64_t i = 0; i < n; ++i) {
    const float value = x[At(group, i)];
    if (value == 0 && zeros++ == 0) {
      zero_at = i;
    } else {
      product *= static_cast<double>(value);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = At(group, i);
    if (zeros == 0) dx[at] = static_cast<float>(dy * (product / static_cast<double>(x[at])));
    if (zeros > 0) dx[at] = i == zero_at ? static_cast<float>(dy * product) : 0.0f;
  }
}

std::unique_ptr<runtime::Kernel> PrepareProdGrad(const NodeDesc& desc) {
  const Shape &x = desc.inputs[1].shape, &y = desc.inputs[0].shape, strides = DenseStrides(x);
  StridedView kept, group;
  for (size_t d = 0; d < x.size(); ++d) {
    StridedView& view = y[d] == x[d] ? kept : group;
    view.extents.push_back(x[d]);
    view.strides.push_back(strides[d]);
  }
  kept = Collapsed(kept);
  group = Collapsed(group);
  const int parts =
      static_cast<int>(std::min<int64_t>(PartsFor(desc.threads, NumElements(x), kMinElementsPerThread), kept.size()));
  return MakeKernel(0, [kept, group, parts](const KernelArgs& args) {
    ParallelRange(parts, kept.size(), 1, [&](int, int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        const int64_t base = At(kept, o);
        ProdGradOf(args.inputs[1].as<float>() + base, group, static_cast<double>(args.inputs[0].as<float>()[o]),
                   args.outputs[0].as<float>() + base);
      }
    });
  });
}

}  // namespace

void RegisterReduce(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32;
  for (OpKind op : {OpKind::kReduceSum, OpKind::kReduceProd, OpKind::kReduceMax, OpKind::kReduceMin}) {
    for (DType t : {DType::kF32, DType::kI32, DType::kI64}) table->Add(op, {t}, {t}, PrepareReduce);
  }
  for (OpKind op : {OpKind::kReduceMax, OpKind::kReduceMin}) {
    for (DType t : {DType::kF16, DType::kBF16, DType::kU8}) table->Add(op, {t}, {t}, PrepareReduce);
  }
  table->Add(OpKind::kReduceMean, {f}, {f}, PrepareReduce);
  table->Add(OpKind::kReduceMeanGrad, {f}, {f}, PrepareMeanGrad);
  table->Add(OpKind::kReduceProdGrad, {f, f, f}, {f}, PrepareProdGrad);
  for (DType t : kDataTypes) {
    table->Add(OpKind::kSumTo, {t}, {t}, PrepareReduce);
    table->Add(OpKind::kSumTo, {t}, {f}, PrepareReduce);
  }
}

}  // namespace ampd::cpu
