#include "engine/backend/cuda/resident_kernel.h"

#include "engine/backend/cuda/block_product.h"
#include "engine/backend/cuda/block_sum.h"
#include "engine/backend/cuda/fused_machine.h"
#include "engine/backend/cuda/launch.h"
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
};

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
  char* scratch;
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

__device__ inline void RunVector(ResidentOp op, const ResidentVector& v, const Room& room) {
  float* to = room.at(v.to);
  if (op == ResidentOp::kMean) {
    const double mean = SumByBlock(static_cast<const float*>(room.at(v.from)), v.size) / static_cast<double>(v.size);
    if (threadIdx.x == 0) *to = static_cast<float>(mean);
  } else if (op == ResidentOp::kMeanGrad) {
    const float each = *static_cast<const float*>(room.at(v.from)) / static_cast<float>(v.size);
    for (int64_t i = threadIdx.x; i < v.size; i += kThreads) to[i] = each;
  } else {
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
}

__device__ inline void RunWeighted(ResidentOp op, const ResidentWeighted& w, const Room& room) {
  const float *from = room.at(w.from), *weights = room.at(w.weights);
  float* to = room.at(w.to);
  if (op == ResidentOp::kNormalizedSum) return NormalizeSum(from, weights, w.size, to);
  const float share = ShareOfSum(*from, weights, w.size);
  for (int64_t i = threadIdx.x; i < w.size; i += kThreads) to[i] = share;
}

template <ops::LossFunction kLoss, ops::LossFunction kGradient>
__device__ __forceinline__ void LossOrGrad(bool gradient, const LossSamples& samples, const float* dlosses, float* to) {
  if (gradient) return LossesGradOfSamples<kGradient>(samples, dlosses, to);
  // A warp for a row of few features would idle.
  if (samples.features < kWarp) return LossesOfSamples<kLoss, ThreadTeam>(samples, to);
  LossesOfSamples<kLoss, RowTeam<1, kReadAgain, true>>(samples, to);
}

__device__ inline void RunLoss(const ResidentInstruction& instruction, const ResidentLoss& loss, const Room& room) {
  LossSamples samples = loss.samples;
  samples.prediction = room.at(samples.prediction);
  samples.target = room.at(samples.target);
  samples.weights = room.at(samples.weights);
  const bool gradient = instruction.op == ResidentOp::kLossGrad;
  const float* dlosses = room.at(loss.dlosses);
  float* to = room.at(loss.to);
  switch (instruction.kind) {
    case ir::OpKind::kSquaredError:
    case ir::OpKind::kSquaredErrorGrad:
      return LossOrGrad<ops::SquaredError, ops::SquaredErrorGrad>(gradient, samples, dlosses, to);
    case ir::OpKind::kL1Loss:
    case ir::OpKind::kL1LossGrad:
      return LossOrGrad<ops::L1Loss, ops::L1LossGrad>(gradient, samples, dlosses, to);
    case ir::OpKind::kSmoothL1Loss:
    case ir::OpKind::kSmoothL1LossGrad:
      return LossOrGrad<ops::SmoothL1Loss, ops::SmoothL1LossGrad>(gradient, samples, dlosses, to);
    case ir::OpKind::kHingeLoss:
    case ir::OpKind::kHingeLossGrad:
      return LossOrGrad<ops::HingeLoss, ops::HingeLossGrad>(gradient, samples, dlosses, to);
    default:
      return LossOrGrad<ops::SigmoidCrossEntropy, ops::SigmoidCrossEntropyGrad>(gradient, samples, dlosses, to);
  }
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

__device__ __forceinline__ void Run(const ResidentInstruction& instruction, const char* operands, const Room& room) {
  switch (instruction.op) {
    case ResidentOp::kProduct:
      return RunProduct(*reinterpret_cast<const BlockProduct*>(operands), room);
    case ResidentOp::kFused:
      return RunFused(*reinterpret_cast<const FusedProgram*>(operands), room);
    case ResidentOp::kDropout:
      return RunDropout(*reinterpret_cast<const ResidentDropout*>(operands), room);
    case ResidentOp::kBox:
      return RunBox(*reinterpret_cast<const ResidentBox*>(operands), room);
    case ResidentOp::kColumnSums:
    case ResidentOp::kAccumulate:
    case ResidentOp::kMean:
    case ResidentOp::kMeanGrad:
      return RunVector(instruction.op, *reinterpret_cast<const ResidentVector*>(operands), room);
    case ResidentOp::kNormalizedSum:
    case ResidentOp::kNormalizedSumGrad:
      return RunWeighted(instruction.op, *reinterpret_cast<const ResidentWeighted*>(operands), room);
    case ResidentOp::kLoss:
    case ResidentOp::kLossGrad:
      return RunLoss(instruction, *reinterpret_cast<const ResidentLoss*>(operands), room);
    case ResidentOp::kCrossEntropy:
    case ResidentOp::kCrossEntropyGrad:
      return RunCrossEntropy(*reinterpret_cast<const ResidentCrossEntropy*>(operands), room);
  }
}

struct LeastOf {
  __device__ __forceinline__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; }
};

// As GradientCheckPass, in one go: the place of a value is its slot's, and its own in the slot.
__device__ inline void Check(const ResidentSteps& s, const float* gradients, PhaseControl* phase) {
  constexpr int64_t kNone = int64_t{1} << 62;
  const double scale = static_cast<double>(phase->unscale);
  double sum = 0;
  int64_t zeros = 0, first = kNone;
  for (int slot = 0; slot < s.slot_count; ++slot) {
    const ResidentGradient own = s.slots[slot];
    for (int i = static_cast<int>(threadIdx.x); i < own.size; i += kThreads) {
      const float value = gradients[own.offset + i];
      const double scaled = static_cast<double>(value) * scale;
      sum += scaled * scaled;
      zeros += value == 0 ? 1 : 0;
      const int64_t place = (static_cast<int64_t>(slot) << 32) + i;
      if (!isfinite(value) && place < first) first = place;
    }
  }
  sum = BlockSum(sum);
  zeros = BlockSum(zeros);
  first = BlockReduce(first, kNone, LeastOf());
  if (threadIdx.x != 0) return;
  CheckResult result;
  result.gradients.finite = first == kNone;
  if (first != kNone) {
    const auto slot = static_cast<int32_t>(first >> 32);
    result.gradients.first_bad_slot = slot;
    result.gradients.first_bad_is_nan = isnan(gradients[s.slots[slot].offset + (first & 0xffffffff)]);
  }
  result.gradients.sum_of_squares = sum;
  result.gradients.zeros = zeros;
  phase->check = result;
}

__device__ inline void Update(const ResidentSteps& s, const UpdateArenas& arenas, const UpdateControl& control,
                              const Addresses& at) {
  if (control.apply == 0) return;
  const int moments = s.optimizer.moments();
  for (int e = 0; e < s.entry_count; ++e) {
    UpdateEntry entry = s.entries[e];
    entry.copy = at(entry.copy);
    const RangeRule rule = s.rules[entry.range];
    const optim::UpdateScalars scalars = ScalarsOf(control, rule);
    optim::OptimizerConfig config = s.optimizer;
    config.weight_decay = rule.weight_decay;
    for (int i = static_cast<int>(threadIdx.x); i < entry.size; i += kThreads) {
      UpdateAt(config, scalars, moments, arenas, entry, i);
    }
  }
}

__global__ void __launch_bounds__(kThreads) TakeSteps(const ResidentSteps s, int64_t steps) {
  char* shared = DynamicShared<char>();
  auto* header = reinterpret_cast<ResidentHeader*>(shared);
  for (int i = 0; i < s.arena_count; ++i) {
    Copy(shared + s.arenas[i].offset, s.arenas[i].global, s.arenas[i].bytes);
  }
  if (threadIdx.x == 0) {
    header->control = *s.control;
    header->phase = *s.phase;
  }
  __syncthreads();
  Room room = {{shared, nullptr}, shared + s.scratch, &header->state};
  float* gradients = room.at(s.gradients);
  UpdateArenas arenas = s.update;
  arenas.masters = room.at(arenas.masters);
  arenas.gradients = gradients;
  arenas.moment1 = room.at(arenas.moment1);
  arenas.moment2 = room.at(arenas.moment2);
  arenas.moment3 = room.at(arenas.moment3);
  arenas.average = room.at(arenas.average);
#pragma unroll 1
  for (int64_t n = 0; n < steps && (header->control.halt == 0 || s.runs_halted); ++n) {
    room.at.slot = SlotOf(&header->control, s.ring);
    for (int i = static_cast<int>(threadIdx.x); i < s.gradient_floats; i += kThreads) gradients[i] = 0;
    if (threadIdx.x == 0) {
      BeginPhase(&header->phase);
      BeginMicroBatch(&header->control, &header->phase, s.ring, 0, s.seed, 0, &header->state);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < s.instruction_count; ++i) {
      const ResidentInstruction instruction = s.instructions[i];
      Run(instruction, s.operands + instruction.operands, room);
      __syncthreads();
    }
    Check(s, gradients, &header->phase);
    if (threadIdx.x == 0) {
      AddLoss(&header->control, s.ring, 0, room.at(s.loss), &header->phase);
      // What was written a step ago has long arrived, so that nobody waits for it.
      PublishRecords(header->control, s.records);
      Decide(&header->control, &header->phase, s.decision, s.records);
      EndStep(&header->control);
    }
    __syncthreads();
    Update(s, arenas, header->phase.update, room.at);
    __syncthreads();
  }
  for (int i = 0; i < s.arena_count; ++i) {
    Copy(s.arenas[i].global, shared + s.arenas[i].offset, s.arenas[i].bytes);
  }
  // The last record says that the model is in its place.
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  *s.control = header->control;
  *s.phase = header->phase;
  PublishRecords(header->control, s.records);
}

}  // namespace

absl::Status AllowResidentSteps(int64_t shared_bytes) {
  return AllowSharedMemory("resident steps", TakeSteps, shared_bytes);
}

absl::Status EnqueueResidentSteps(cudaStream_t stream, const ResidentSteps& what, int64_t steps, int64_t shared_bytes) {
  return Launch("resident steps", TakeSteps, 1, kThreads, shared_bytes, stream, what, steps);
}

}  // namespace ampd::cuda
