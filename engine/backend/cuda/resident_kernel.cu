#include "engine/backend/cuda/resident_kernel.h"

#include "engine/backend/cuda/block_product.h"
#include "engine/backend/cuda/block_sum.h"
#include "engine/backend/cuda/dense_stack.h"
#include "engine/backend/cuda/fused_machine.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/narrow_stack.h"
#include "engine/backend/cuda/normalized_sum.h"
#include "engine/backend/cuda/resident_operands.h"
#include "engine/backend/cuda/step_decisions.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = kResidentThreads;
constexpr int kWarps = kThreads / kWarp;
// From tagged addresses to real ones.
struct Addresses {
  char* shared;
  const char* slot;

  template <typename T>
  __device__ __forceinline__ T* operator()(T* address) const {
    const auto bits = reinterpret_cast<uint64_t>(address);
    const uint64_t offset = bits & ~(kSharedTag | kSlotTag);
    if ((bits & kSharedTag) != 0) return reinterpret_cast<T*>(shared + offset);
    if ((bits & kSlotTag) != 0) return reinterpret_cast<T*>(const_cast<char*>(slot) + offset);
    return address;
  }
  // Of what is in shared memory, whose accesses are then that memory's own.
  template <typename T>
  __device__ __forceinline__ T* Shared(T* address) const {
    return reinterpret_cast<T*>(shared + (reinterpret_cast<uint64_t>(address) & ~kSharedTag));
  }
};

// Where one of the lists is: the kernel that interprets may have had no room for them in shared memory.
template <bool kInterprets, typename T>
__device__ __forceinline__ const T* ListAt(const Addresses& at, const T* list) {
  if constexpr (kInterprets) return at(list);
  return at.Shared(list);
}

__device__ __forceinline__ void Copy(void* to, const void* from, int64_t bytes) {
  for (int64_t i = threadIdx.x; i < bytes / 16; i += kThreads) {
    static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
  }
}

// A thread takes a row.
struct ThreadTeam {
  __device__ __forceinline__ static int rank() { return 0; }
  __device__ __forceinline__ static int64_t First() { return threadIdx.x; }
  __device__ __forceinline__ static int64_t Step() { return kThreads; }
  template <typename Body>
  __device__ __forceinline__ static void ForEach(int64_t n, const Body& body) {
    for (int64_t column = 0; column < n; ++column) body(0, column);
  }
  template <typename T>
  __device__ __forceinline__ static T Sum(T value) {
    return value;
  }
};

// What every instruction gets.
struct Room {
  Addresses at;
  char *scratch, *fragments;
  const runtime::StepState* state;
};

__device__ inline void RunProduct(const BlockProduct& p, const Room& room) {
  WithData(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    MultiplyByBlock<T, kThreads>(p, static_cast<const T*>(room.at(p.a)), static_cast<const T*>(room.at(p.b)),
                                 room.at(p.d), reinterpret_cast<float4*>(room.scratch));
  });
}

__device__ inline void RunFused(const FusedProgram& program, const Room& room) {
  Interpret<4, kThreads>(program, room.at, reinterpret_cast<float4*>(room.scratch));
}

__device__ inline void RunDropout(const ResidentDropout& d, const Room& room) {
  WithData(d.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    DropoutOfRuns<T, 4, false>(static_cast<const T*>(room.at(d.from)), d.runs, d.config, *room.state,
                               static_cast<T*>(room.at(d.to)));
  });
}

template <typename T>
__device__ __forceinline__ void CopyBox(const ResidentBox& box, const T* from, T* to) {
  for (int i = static_cast<int>(threadIdx.x); i < box.rows * box.columns; i += kThreads) {
    const int row = i / box.columns, column = i % box.columns;
    to[i] = row < box.from_rows && column < box.from_columns ? from[row * box.from_columns + column] : T{0};
  }
}

__device__ inline void RunBox(const ResidentBox& box, const Room& room) {
  const void* from = room.at(box.from);
  void* to = room.at(box.to);
  if (box.bytes == 4) return CopyBox(box, static_cast<const uint32_t*>(from), static_cast<uint32_t*>(to));
  if (box.bytes == 2) return CopyBox(box, static_cast<const uint16_t*>(from), static_cast<uint16_t*>(to));
  CopyBox(box, static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to));
}

// Neighbouring lanes take neighbouring columns, and lanes that are left other rows.
template <typename T>
__device__ __forceinline__ void SumColumns(const ResidentVector& v, const T* from, double* partial, float* to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int across = 1;
  while (across < kWarp && across < v.columns) across *= 2;
  for (int first = 0; first < v.columns; first += across) {
    const int column = first + lane % across;
    double sum = 0;
    if (column < v.columns) {
      for (int row = warp * (kWarp / across) + lane / across; row < v.rows; row += kWarps * (kWarp / across)) {
        sum += static_cast<double>(Load(from[static_cast<int64_t>(row) * v.columns + column]));
      }
    }
    for (int distance = across; distance < kWarp; distance *= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    if (lane < across) partial[warp * across + lane] = sum;
    __syncthreads();
    const int own = static_cast<int>(threadIdx.x);
    if (own < across && first + own < v.columns) {
      double total = 0;
      for (int w = 0; w < kWarps; ++w) total += partial[w * across + own];
      to[first + own] = static_cast<float>(total);
    }
    __syncthreads();
  }
}

// Of `size` values that the threads have the sums of. In SumByBlock()'s order, where only one thread needs it.
__device__ __forceinline__ void WriteMean(double sum, int64_t size, float* to) {
  __shared__ double partial[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  sum = WarpReduce(sum, SumOf());
  if (lane == 0) partial[warp] = sum;
  __syncthreads();
  if (warp != 0) return;
  sum = WarpReduce(lane < kWarps ? partial[lane] : 0.0, SumOf());
  if (lane == 0) *to = static_cast<float>(sum / static_cast<double>(size));
}

__device__ inline void RunMean(ResidentOp op, const ResidentVector& v, const Room& room) {
  const float* from = static_cast<const float*>(room.at(v.from));
  float* to = room.at(v.to);
  if (op == ResidentOp::kMean) {
    double sum = 0;
    const int size = static_cast<int>(v.size);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) sum += static_cast<double>(from[i]);
    WriteMean(sum, v.size, to);
  } else {
    const float each = *from / static_cast<float>(v.size);
    for (int64_t i = threadIdx.x; i < v.size; i += kThreads) to[i] = each;
  }
}

__device__ inline void RunSums(ResidentOp op, const ResidentVector& v, const Room& room) {
  float* to = room.at(v.to);
  WithData(v.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = static_cast<const T*>(room.at(v.from));
    if (op == ResidentOp::kColumnSums) {
      SumColumns(v, from, reinterpret_cast<double*>(room.scratch), to);
    } else {
      for (int64_t i = threadIdx.x; i < v.size; i += kThreads) to[i] += Load(from[i]);
    }
  });
}

__device__ inline void RunWeighted(ResidentOp op, const ResidentWeighted& w, const Room& room) {
  const float *from = room.at(w.from), *weights = room.at(w.weights);
  float* to = room.at(w.to);
  if (op == ResidentOp::kNormalizedSum) return NormalizeSum(from, weights, w.size, to);
  const float share = ShareOfSum(*from, weights, w.size);
  for (int64_t i = threadIdx.x; i < w.size; i += kThreads) to[i] = share;
}

template <ops::LossFunction kLossFunction, ops::LossFunction kGradientFunction>
struct LossPair {
  static constexpr ops::LossFunction kLoss = kLossFunction, kGradient = kGradientFunction;
};

// Calls body(pair) with that of the loss or gradient `kind`.
template <typename Body>
__device__ __forceinline__ void WithLoss(ir::OpKind kind, const Body& body) {
  switch (kind) {
    case ir::OpKind::kSquaredError:
    case ir::OpKind::kSquaredErrorGrad:
      return body(LossPair<ops::SquaredError, ops::SquaredErrorGrad>());
    case ir::OpKind::kL1Loss:
    case ir::OpKind::kL1LossGrad:
      return body(LossPair<ops::L1Loss, ops::L1LossGrad>());
    case ir::OpKind::kSmoothL1Loss:
    case ir::OpKind::kSmoothL1LossGrad:
      return body(LossPair<ops::SmoothL1Loss, ops::SmoothL1LossGrad>());
    case ir::OpKind::kHingeLoss:
    case ir::OpKind::kHingeLossGrad:
      return body(LossPair<ops::HingeLoss, ops::HingeLossGrad>());
    default:
      return body(LossPair<ops::SigmoidCrossEntropy, ops::SigmoidCrossEntropyGrad>());
  }
}

__device__ __forceinline__ LossOperands OperandsAt(const LossOperands& operands, const Room& room) {
  return {room.at(operands.prediction), room.at(operands.target), room.at(operands.weights)};
}

__device__ inline void RunLoss(const ResidentInstruction& instruction, const ResidentLoss& loss, const Room& room) {
  // Not copied: a thread's copy would lie in its local memory.
  const LossSamples& samples = loss.samples;
  const LossOperands operands = OperandsAt(loss.operands, room);
  const bool gradient = instruction.op == ResidentOp::kLossGrad;
  const float* dlosses = room.at(loss.dlosses);
  float* to = room.at(loss.to);
  WithLoss(instruction.kind, [&](auto pair) {
    using Pair = decltype(pair);
    if (gradient) return LossesGradOfSamples<Pair::kGradient>(samples, operands, dlosses, to);
    // A warp for a row of few features would idle.
    if (samples.features < kWarp) return LossesOfSamples<Pair::kLoss, ThreadTeam>(samples, operands, to);
    LossesOfSamples<Pair::kLoss, RowTeam<1, kReadAgain, true>>(samples, operands, to);
  });
}

// The bits of the four steps that it takes the place of: a thread takes a row, and adds up the losses of its rows.
__device__ inline void RunMeanLoss(const ResidentInstruction& instruction, const ResidentMeanLoss& loss,
                                   const Room& room) {
  const LossSamples& samples = loss.samples;
  const LossOperands operands = OperandsAt(loss.operands, room);
  float* const dprediction = room.at(loss.dprediction);
  const float dloss = *room.at(loss.dmean) / static_cast<float>(samples.samples);
  double sum = 0;
  WithLoss(instruction.kind, [&](auto pair) {
    using Pair = decltype(pair);
#pragma unroll 1
    for (int64_t row = ThreadTeam::First(); row < samples.samples; row += ThreadTeam::Step()) {
      sum += static_cast<double>(LossOfSample<Pair::kLoss, ThreadTeam>(samples, operands, row));
#pragma unroll 1
      for (int64_t i = row * samples.features; i < (row + 1) * samples.features; ++i) {
        dprediction[i] = LossGradOfElement<Pair::kGradient>(samples, operands, dloss, i);
      }
    }
  });
  WriteMean(sum, samples.samples, room.at(loss.mean));
}

template <GoalKind kKind>
__device__ __forceinline__ void CrossEntropyOrGrad(const ResidentCrossEntropy& c, const Goal& goal, const Room& room) {
  const float* logits = room.at(c.logits);
  float* to = room.at(c.to);
  if (c.dlosses != nullptr) {
    CrossEntropyGradOfRows<ResidentRowTeam, kKind>(room.at(c.dlosses), logits, goal, c.rows, to);
  } else {
    CrossEntropyOfRows<ResidentRowTeam, kKind>(logits, goal, c.rows, to, room.at(c.weights));
  }
}

__device__ inline void RunCrossEntropy(const ResidentCrossEntropy& c, const Room& room) {
  Goal goal = c.goal;
  goal.labels = room.at(goal.labels);
  goal.class_weights = room.at(goal.class_weights);
  if (goal.even != 0) return CrossEntropyOrGrad<GoalKind::kSmoothedLabel>(c, goal, room);
  CrossEntropyOrGrad<GoalKind::kLabel>(c, goal, room);
}

// The interpreting kernel has no registers left for the narrow machine.
template <bool kInterprets>
__device__ inline void RunStack(ResidentOp op, const DenseStack& stack, const Room& room) {
  const auto take = [&](const auto& machine) {
    if (op == ResidentOp::kStackForward) return machine.Forward();
    machine.BackwardRows();
    __syncthreads();
    machine.WeightGradients(reinterpret_cast<float*>(room.scratch));
  };
  const auto run = [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!kInterprets) {
      if (stack.narrow) return take(NarrowStackMachine<T, kThreads, Addresses>(stack, room.at, room.fragments));
    }
    take(DenseStackMachine<T, kThreads, Addresses>(stack, room.at, room.fragments));
  };
  if (stack.dtype == DType::kF16) return run(TypeTag<Half>());
  run(TypeTag<BFloat16>());
}

// What a kernel has to interpret, for it takes operands of many kinds.
__device__ inline void Interpret(const ResidentInstruction& instruction, const char* operands, const Room& room) {
  switch (instruction.op) {
    case ResidentOp::kProduct:
      return RunProduct(*reinterpret_cast<const BlockProduct*>(operands), room);
    case ResidentOp::kFused:
      return RunFused(*reinterpret_cast<const FusedProgram*>(operands), room);
    case ResidentOp::kDropout:
      return RunDropout(*reinterpret_cast<const ResidentDropout*>(operands), room);
    case ResidentOp::kBox:
      return RunBox(*reinterpret_cast<const ResidentBox*>(operands), room);
    default:
      return RunSums(instruction.op, *reinterpret_cast<const ResidentVector*>(operands), room);
  }
}

template <bool kInterprets>
__device__ __forceinline__ void Run(const ResidentInstruction& instruction, const char* operands, const Room& room) {
  switch (instruction.op) {
    case ResidentOp::kStackForward:
    case ResidentOp::kStackBackward:
      return RunStack<kInterprets>(instruction.op, *reinterpret_cast<const DenseStack*>(operands), room);
    case ResidentOp::kMean:
    case ResidentOp::kMeanGrad:
      return RunMean(instruction.op, *reinterpret_cast<const ResidentVector*>(operands), room);
    case ResidentOp::kNormalizedSum:
    case ResidentOp::kNormalizedSumGrad:
      return RunWeighted(instruction.op, *reinterpret_cast<const ResidentWeighted*>(operands), room);
    case ResidentOp::kLoss:
    case ResidentOp::kLossGrad:
      return RunLoss(instruction, *reinterpret_cast<const ResidentLoss*>(operands), room);
    case ResidentOp::kMeanLoss:
      return RunMeanLoss(instruction, *reinterpret_cast<const ResidentMeanLoss*>(operands), room);
    case ResidentOp::kCrossEntropy:
    case ResidentOp::kCrossEntropyGrad:
      return RunCrossEntropy(*reinterpret_cast<const ResidentCrossEntropy*>(operands), room);
    default:
      if constexpr (kInterprets) Interpret(instruction, operands, room);
  }
}

struct LeastOf {
  __device__ __forceinline__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; }
};

__device__ __forceinline__ int32_t SumOfWarp(int32_t value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kAllLanes, value);
#else
  return WarpReduce(value, SumOf());
#endif
}

// As GradientCheckPass, in one go. Of what is not finite the first counts: by slot, by place in it.
struct GradientSums {
  static constexpr int64_t kNone = int64_t{1} << 62;
  // Without initial values, for they are shared.
  double squares;
  int64_t first;
  int32_t zeros;

  __device__ __forceinline__ static GradientSums None() { return {0, kNone, 0}; }

  __device__ __forceinline__ void Add(float value, double scale, const ResidentGradient& piece, int i) {
    const double scaled = static_cast<double>(value) * scale;
    squares += scaled * scaled;
    zeros += value == 0 ? 1 : 0;
    if (isfinite(value)) return;
    const int64_t place = (static_cast<int64_t>(piece.slot) << 33) + (static_cast<int64_t>(piece.first + i) << 1);
    first = LeastOf()(first, place + (isnan(value) ? 1 : 0));
  }
  __device__ __forceinline__ void ReduceByWarp() {
    squares = WarpReduce(squares, SumOf());
    zeros = SumOfWarp(zeros);
    if (__any_sync(kAllLanes, first != kNone)) first = WarpReduce(first, LeastOf());
  }
  __device__ __forceinline__ CheckResult Result() const {
    CheckResult result;
    result.gradients.finite = first == kNone;
    if (first != kNone) {
      result.gradients.first_bad_slot = static_cast<int32_t>(first >> 33);
      result.gradients.first_bad_is_nan = (first & 1) != 0;
    }
    result.gradients.sum_of_squares = squares;
    result.gradients.zeros = zeros;
    return result;
  }
};

// Thread 0 has the result in `phase`. Meanwhile the last warp does what `besides` says.
template <typename Besides>
__device__ __forceinline__ void Check(const ResidentSteps& s, const ResidentGradient* pieces, const float* gradients,
                                      PhaseControl* phase, const Besides& besides) {
  __shared__ GradientSums sums[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const double scale = static_cast<double>(phase->unscale);
  GradientSums own = GradientSums::None();
#pragma unroll 1
  for (int p = warp; p < s.gradient_piece_count; p += kWarps) {
    const ResidentGradient piece = pieces[p];
    const float* const from = gradients + piece.offset;
#pragma unroll 1
    for (int i = lane; i < piece.size; i += kWarp) own.Add(from[i], scale, piece, i);
  }
  own.ReduceByWarp();
  if (lane == 0) sums[warp] = own;
  if (warp == kWarps - 1) besides();
  __syncthreads();
  if (warp != 0) return;
  GradientSums all = GradientSums::None();
  if (lane < kWarps) all = sums[lane];
  all.ReduceByWarp();
  if (lane == 0) phase->check = all.Result();
}

template <bool kInterprets>
__device__ inline void Update(const ResidentSteps& s, const UpdateControl& control, const Addresses& at) {
  if (control.apply == 0) return;
  const int moments = s.optimizer.moments();
  UpdateArenas arenas = s.update;
  arenas.masters = at.Shared(arenas.masters);
  arenas.gradients = at.Shared(arenas.gradients);
  // Nobody looks at moments that are not kept.
  arenas.moment1 = at.Shared(arenas.moment1);
  arenas.moment2 = at.Shared(arenas.moment2);
  arenas.moment3 = at.Shared(arenas.moment3);
  if (arenas.average != nullptr) arenas.average = at.Shared(arenas.average);
  const UpdateEntry* const entries = ListAt<kInterprets>(at, s.entries);
  const RangeRule* const rules = ListAt<kInterprets>(at, s.rules);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int e = warp; e < s.entry_count; e += kWarps) {
    UpdateEntry entry = entries[e];
    if (entry.copy != nullptr) entry.copy = at.Shared(entry.copy);
    const RangeRule rule = rules[entry.range];
    const optim::UpdateScalars scalars = ScalarsOf(control, rule);
    optim::OptimizerConfig config = s.optimizer;
    config.weight_decay = rule.weight_decay;
    for (int i = lane; i < entry.size; i += kWarp) {
      UpdateAt(config, scalars, moments, arenas, entry, i);
    }
  }
}

__device__ __forceinline__ void Prefetch([[maybe_unused]] const char* line) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
#endif
}

// The batch that the step behind this one reads is on its way while this one is computed.
__device__ __forceinline__ void FetchAhead(const char* slot, const FeedRing& ring) {
  constexpr int64_t kLine = 128;
#pragma unroll 1
  for (int64_t at = threadIdx.x * kLine; at < ring.bytes_per_slot; at += kThreads * kLine) Prefetch(slot + at);
}

// From global to shared memory, aligned to 16 bytes, by the whole block; what comes next does not wait for it before
// AwaitWords().
__device__ __forceinline__ void FetchBatch(const char* from, char* to, int64_t bytes) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * 16; i < bytes; i += kThreads * 16) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to + i));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from + i) : "memory");
#else
    *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
#endif
  }
}

// A word of 4 bytes likewise.
__device__ __forceinline__ void FetchWord(const uint32_t* from, uint32_t* to) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
#else
  *to = *from;
#endif
}
__device__ __forceinline__ void AwaitWords() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
// By the lanes of one warp.
template <typename T>
__device__ __forceinline__ void Fetch(const T* from, T* to) {
  static_assert(sizeof(T) % 4 == 0 && sizeof(T) / 4 <= kWarp);
  const int word = static_cast<int>(threadIdx.x) % kWarp;
  if (word >= static_cast<int>(sizeof(T) / 4)) return;
  FetchWord(reinterpret_cast<const uint32_t*>(from) + word, reinterpret_cast<uint32_t*>(to) + word);
}
__device__ __forceinline__ void FetchWeight(const char* slot, runtime::MicroBatchWeight* to) {
  Fetch(reinterpret_cast<const runtime::MicroBatchWeight*>(slot), to);
}

// Steps between two times that records are shown to the host: to wait until they have arrived takes longer than a small
// network's step.
constexpr int64_t kStepsToShow = 16;

// By thread 0. Most steps begin with what the one before began with.
__device__ __forceinline__ void Begin(const runtime::MicroBatchWeight& weight, uint64_t seed, bool first,
                                      ResidentHeader* header) {
  header->phase.loss = 0;
  header->state.attempted_step = header->control.attempted_step;
  const float scale = header->phase.scaler.scale;
  if (!first && scale == header->begun_scale && weight.weight == header->begun_weight.weight &&
      weight.total == header->begun_weight.total) {
    return;
  }
  header->begun_scale = scale, header->begun_weight = weight;
  BeginPhase(&header->phase);
  BeginMicroBatch(&header->control, &header->phase, weight, seed, 0, &header->state);
}

template <bool kInterprets>
__global__ void __launch_bounds__(kThreads) TakeSteps(const ResidentSteps s, int64_t steps) {
  char* shared = DynamicShared<char>();
  auto* header = reinterpret_cast<ResidentHeader*>(shared);
  for (int i = 0; i < s.arena_count; ++i) {
    Copy(shared + s.arenas[i].offset, s.arenas[i].global, s.arenas[i].bytes);
  }
  if (threadIdx.x == 0) {
    header->control = *s.control;
    header->phase = *s.phase;
    header->weights[0] = WeightOf(s.control, s.ring, 0);
  }
  __syncthreads();
  Room room = {{shared, SlotOf(&header->control, s.ring)}, shared + s.scratch, shared + s.fragments, &header->state};
  const char* slot = room.at.slot;
  if (s.batches >= 0) {
    FetchBatch(slot, shared + s.batches, s.ring.bytes_per_slot);
    AwaitWords();
    room.at.slot = shared + s.batches;
    __syncthreads();
  }
  const char* const ring_end = s.ring.data + s.ring.slots * s.ring.bytes_per_slot;
  const ResidentInstruction* const instructions = ListAt<kInterprets>(room.at, s.instructions);
  const char* const operands = ListAt<kInterprets>(room.at, s.operands);
  float* gradients = room.at.Shared(s.gradients);
  const bool is_last_warp = threadIdx.x / kWarp == kWarps - 1;
#pragma unroll 1
  for (int64_t n = 0; n < steps && (header->control.halt == 0 || s.runs_halted); ++n) {
    const char* next_slot = slot;
    if (header->control.halt == 0) next_slot += s.ring.bytes_per_slot;
    if (next_slot == ring_end) next_slot = s.ring.data;
    char* const next_batch = shared + s.batches + (n + 1) % 2 * s.ring.bytes_per_slot;
    if (n + 1 < steps && s.batches >= 0) {
      FetchBatch(next_slot, next_batch, s.ring.bytes_per_slot);
    } else if (n + 1 < steps) {
      FetchAhead(next_slot, s.ring);
    }
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < (s.gradient_floats + 3) / 4; i += kThreads) {
      reinterpret_cast<uint4*>(gradients)[i] = {0, 0, 0, 0};
    }
    const runtime::MicroBatchWeight& weight = header->weights[n % 2];
    if (threadIdx.x == 0) Begin(weight, s.seed, n == 0, header);
    if (is_last_warp) {
      Fetch(ScalarsOfNext(s.decision, header->phase), &header->scalars);
      if (n + 1 < steps) FetchWeight(next_slot, &header->weights[(n + 1) % 2]);
    }
    if (s.begins_first) __syncthreads();
#pragma unroll 1
    for (int i = 0; i < s.instruction_count; ++i) {
      const ResidentInstruction instruction = instructions[i];
      Run<kInterprets>(instruction, operands + instruction.operands, room);
      __syncthreads();
    }
    AwaitWords();
    Check(s, ListAt<kInterprets>(room.at, s.gradient_pieces), gradients, &header->phase, [&]() {
      if (threadIdx.x == kThreads - 1) AddLoss(weight, room.at(s.loss), &header->phase);
    });
    if (threadIdx.x == 0) {
      Decide(&header->control, &header->phase, s.decision, &header->scalars, &header->verdict);
      EndStep(&header->control);
    }
    __syncthreads();
    slot = next_slot;
    room.at.slot = s.batches >= 0 ? next_batch : next_slot;
    Update<kInterprets>(s, header->phase.update, room.at);
    if (threadIdx.x == kThreads - 1) {
      // What was written a step ago has long arrived.
      if (n % kStepsToShow == kStepsToShow - 1) PublishRecords(header->control.records, s.records);
      WriteRecord(s.decision, header->verdict, header->phase, s.records, &header->control);
    }
    __syncthreads();
  }
  for (int i = 0; i < s.arena_count; ++i) {
    if (s.arenas[i].changes) Copy(s.arenas[i].global, shared + s.arenas[i].offset, s.arenas[i].bytes);
  }
  // The last record says that the model is in its place.
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  *s.control = header->control;
  *s.phase = header->phase;
  PublishRecords(header->control.records, s.records);
}

}  // namespace

absl::Status AllowResidentSteps(int64_t shared_bytes) {
  AMPD_RETURN_IF_ERROR(AllowSharedMemory("resident steps", TakeSteps<false>, shared_bytes));
  return AllowSharedMemory("resident steps", TakeSteps<true>, shared_bytes);
}

absl::Status EnqueueResidentSteps(cudaStream_t stream, const ResidentSteps& what, int64_t steps, int64_t shared_bytes) {
  const auto take = what.interprets ? TakeSteps<true> : TakeSteps<false>;
  return Launch("resident steps", take, 1, kThreads, shared_bytes, stream, what, steps);
}

}  // namespace ampd::cuda
