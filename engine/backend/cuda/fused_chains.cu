#include "engine/backend/cuda/fused_chains.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>

#include "engine/backend/cuda/channel_sums.h"
#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/elementwise_functions.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/vectors.h"

namespace ampd::cuda {
namespace {

using ops::ElementwiseFunction;

constexpr auto kAdd = ElementwiseFunction::kAdd;
constexpr auto kMul = ElementwiseFunction::kMul;
constexpr auto kSub = ElementwiseFunction::kSub;
constexpr auto kRelu = ElementwiseFunction::kRelu;
constexpr auto kLeakyRelu = ElementwiseFunction::kLeakyRelu;
constexpr auto kReluGrad = ElementwiseFunction::kReluGrad;
constexpr auto kGelu = ElementwiseFunction::kGelu;
constexpr auto kGeluTanh = ElementwiseFunction::kGeluTanh;
// To the tensors' dtype.
constexpr auto kRound = ElementwiseFunction::kNone;

// Elements that a thread takes of a row: 16 bytes.
constexpr int kWidth = 8;

// As in FusedStepCode.
struct ChainStep {
  ElementwiseFunction function;
  int count;
  uint8_t operands[2];
  int8_t slot = -1;
  int8_t output = -1;
};

// A chain: steps whose operands are kWholes inputs of the node's shape, then kRows of one value for each column, f32
// where kWideRows is set, else of the tensors' dtype.
template <int kWholes_, int kRows_, bool kWideRows_, int kOutputs_ = 1, int kSlots_ = 0>
struct Chain {
  static constexpr int kWholes = kWholes_, kRows = kRows_, kOutputs = kOutputs_, kSlotCount = kSlots_;
  static constexpr bool kWideRows = kWideRows_;
};

// Batch norm: mean, factor, bias (passes/split_norms).
struct Norm : Chain<1, 3, true> {
  static constexpr ChainStep kSteps[] = {
      {kSub, 2, {0, 1}}, {kMul, 2, {kLast, 2}}, {kAdd, 2, {kLast, 3}}, {kRound, 1, {kLast}, -1, 0}};
};
struct NormRelu : Chain<1, 3, true> {
  static constexpr ChainStep kSteps[] = {{kSub, 2, {0, 1}},
                                         {kMul, 2, {kLast, 2}},
                                         {kAdd, 2, {kLast, 3}},
                                         {kRound, 1, {kLast}},
                                         {kRelu, 1, {kLast}, -1, 0}};
};
struct NormAndLeakyRelu : Chain<1, 3, true, 2> {
  static constexpr ChainStep kSteps[] = {{kSub, 2, {0, 1}},
                                         {kMul, 2, {kLast, 2}},
                                         {kAdd, 2, {kLast, 3}},
                                         {kRound, 1, {kLast}, -1, 0},
                                         {kLeakyRelu, 1, {kLast}, -1, 1}};
};
// The end of a residual block; the second has a norm on its shortcut.
struct NormAddRelu : Chain<2, 3, true> {
  static constexpr ChainStep kSteps[] = {{kSub, 2, {0, 2}},    {kMul, 2, {kLast, 3}}, {kAdd, 2, {kLast, 4}},
                                         {kRound, 1, {kLast}}, {kAdd, 2, {kLast, 1}}, {kRelu, 1, {kLast}, -1, 0}};
};
struct NormNormAddRelu : Chain<2, 6, true, 1, 1> {
  static constexpr ChainStep kSteps[] = {{kSub, 2, {0, 2}},         {kMul, 2, {kLast, 3}}, {kAdd, 2, {kLast, 4}},
                                         {kRound, 1, {kLast}, 0},   {kSub, 2, {1, 5}},     {kMul, 2, {kLast, 6}},
                                         {kAdd, 2, {kLast, 7}},     {kRound, 1, {kLast}},  {kAdd, 2, {kSlots, kLast}},
                                         {kRelu, 1, {kLast}, -1, 0}};
};
struct AddRelu : Chain<2, 0, false> {
  static constexpr ChainStep kSteps[] = {{kAdd, 2, {0, 1}}, {kRelu, 1, {kLast}, -1, 0}};
};
struct AddReluGrad : Chain<3, 0, false> {
  static constexpr ChainStep kSteps[] = {{kAdd, 2, {0, 1}}, {kReluGrad, 2, {kLast, 2}, -1, 0}};
};
template <ElementwiseFunction kActivation>
struct Bias : Chain<1, 1, false> {
  static constexpr ChainStep kSteps[] = {{kAdd, 2, {0, 1}}, {kActivation, 1, {kLast}, -1, 0}};
};
// The sum is a result, too.
template <ElementwiseFunction kActivation>
struct BiasAnd : Chain<1, 1, false, 2> {
  static constexpr ChainStep kSteps[] = {{kAdd, 2, {0, 1}, -1, 0}, {kActivation, 1, {kLast}, -1, 1}};
};
struct BiasAdd : Chain<2, 1, false> {
  static constexpr ChainStep kSteps[] = {{kAdd, 2, {0, 2}}, {kAdd, 2, {kLast, 1}, -1, 0}};
};

template <typename Chain>
constexpr int kStepsOf = static_cast<int>(std::size(Chain::kSteps));

template <typename Chain>
struct ChainArgs {
  const void* wholes[Chain::kWholes];
  const void* rows[std::max(Chain::kRows, 1)];
  void* outputs[Chain::kOutputs];
  ops::ElementwiseConstants constants[kStepsOf<Chain>];
};

template <typename Chain>
using Rows = float[std::max(Chain::kRows, 1)][kWidth];

// A thread's elements on their way through the steps.
template <typename Chain>
struct Values {
  const Rows<Chain>& rows;
  float wholes[Chain::kWholes][kWidth];
  float slots[std::max(Chain::kSlotCount, 1)][kWidth];
  float last[kWidth];

  template <int kSource>
  __device__ __forceinline__ float Get(int j) const {
    if constexpr (kSource == kLast)
      return last[j];
    else if constexpr (kSource >= kSlots)
      return slots[kSource - kSlots][j];
    else if constexpr (kSource >= Chain::kWholes)
      return rows[kSource - Chain::kWholes][j];
    else
      return wholes[kSource][j];
  }
};

template <typename T, typename Chain, int kStep>
__device__ __forceinline__ void RunStep(const ChainArgs<Chain>& args, int64_t at, Values<Chain>* v) {
  constexpr ChainStep step = Chain::kSteps[kStep];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const float a = v->template Get<step.operands[0]>(j);
    if constexpr (step.function == kRound) {
      v->last[j] = RoundTo<T>(a);
    } else {
      const float b = v->template Get<step.operands[step.count - 1]>(j);
      v->last[j] = Apply<Function<step.function>, float>(args.constants[kStep], a, b, 0.0f);
    }
    if constexpr (step.slot >= 0) v->slots[step.slot][j] = v->last[j];
  }
  if constexpr (step.output >= 0) StoreFloats(v->last, static_cast<T*>(args.outputs[step.output]) + at);
}

template <typename T, typename Chain, int... kIndices>
__device__ __forceinline__ void RunSteps(const ChainArgs<Chain>& args, int64_t at, Values<Chain>* v,
                                         std::integer_sequence<int, kIndices...>) {
  (RunStep<T, Chain, kIndices>(args, at, v), ...);
}

// A thread keeps to its columns, so that it reads their rows once, and has several places on their way at a time.
template <typename T, typename Chain>
__global__ void __launch_bounds__(kChannelThreads) RunChain(const ChainArgs<Chain> args, const ChannelPlan plan) {
  constexpr int kAtOnce = Chain::kWholes > 1 ? 2 : 4;
  using Row = std::conditional_t<Chain::kWideRows, float, T>;
  const ChannelThread thread(plan);
  if (thread.channel >= plan.channels) return;
  Rows<Chain> rows;
#pragma unroll
  for (int r = 0; r < Chain::kRows; ++r) LoadFloats(static_cast<const Row*>(args.rows[r]) + thread.channel, rows[r]);
  for (int64_t row = thread.begin; row < thread.end; row += int64_t{kAtOnce} * thread.lines) {
    Pack<T, kWidth> packs[kAtOnce][Chain::kWholes];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t place = row + k * thread.lines;
      if (place >= thread.end) continue;
      for (int w = 0; w < Chain::kWholes; ++w) {
        packs[k][w] = *reinterpret_cast<const Pack<T, kWidth>*>(static_cast<const T*>(args.wholes[w]) +
                                                                place * plan.channels + thread.channel);
      }
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t place = row + k * thread.lines;
      if (place >= thread.end) continue;
      Values<Chain> values{rows};
#pragma unroll
      for (int w = 0; w < Chain::kWholes; ++w) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) values.wholes[w][j] = Load(packs[k][w].values[j]);
      }
      RunSteps<T>(args, place * plan.channels + thread.channel, &values,
                  std::make_integer_sequence<int, kStepsOf<Chain>>());
    }
  }
}

bool IsStep(const ChainStep& step, const FusedStepCode& code, DType dtype) {
  return step.function == code.function && step.count == code.count && step.slot == code.slot &&
         step.output == code.output && std::equal(step.operands, step.operands + step.count, code.operands) &&
         (step.function != kRound || code.dtype == dtype);
}

template <typename Chain>
bool IsChain(const FusedProgram& program, size_t inputs, size_t outputs, DType dtype) {
  if (program.steps != kStepsOf<Chain> || program.whole_inputs != Chain::kWholes || outputs != Chain::kOutputs ||
      inputs != static_cast<size_t>(Chain::kWholes + Chain::kRows)) {
    return false;
  }
  for (int i = 0; i < Chain::kWholes + Chain::kRows; ++i) {
    const bool whole = i < Chain::kWholes;
    const FusedInput& input = program.inputs[i];
    if (input.extent != (whole ? FusedInput::kWhole : FusedInput::kRow)) return false;
    if (input.dtype != (!whole && Chain::kWideRows ? DType::kF32 : dtype)) return false;
  }
  for (int i = 0; i < Chain::kOutputs; ++i) {
    if (program.outputs[i].dtype != dtype) return false;
  }
  for (int s = 0; s < kStepsOf<Chain>; ++s) {
    if (!IsStep(Chain::kSteps[s], program.code[s], dtype)) return false;
  }
  return true;
}

template <typename T, typename Chain>
std::unique_ptr<runtime::Kernel> MakeChain(const Context* context, const std::string& name,
                                           const CompiledFused& compiled) {
  const FusedProgram& program = compiled.program;
  const ChannelPlan plan = PlanChannels(1, program.size / program.columns, program.columns, kWidth);
  ChainArgs<Chain> of_node = {};
  for (int s = 0; s < kStepsOf<Chain>; ++s) of_node.constants[s] = program.code[s].constants;
  return MakeKernel(0, [=, inputs = compiled.inputs](const runtime::KernelArgs& args) {
    ChainArgs<Chain> chain = of_node;
    for (int i = 0; i < Chain::kWholes; ++i) chain.wholes[i] = args.inputs[inputs[i]].data;
    for (int i = 0; i < Chain::kRows; ++i) chain.rows[i] = args.inputs[inputs[Chain::kWholes + i]].data;
    for (int i = 0; i < Chain::kOutputs; ++i) chain.outputs[i] = args.outputs[i].data;
    return channel_sums::LaunchBlocks(name, RunChain<T, Chain>, plan.blocks(), context->stream(), chain, plan);
  });
}

template <typename T, typename... Chains>
std::unique_ptr<runtime::Kernel> MakeFirstOf(const Context* context, const runtime::NodeDesc& desc,
                                             const CompiledFused& compiled) {
  std::unique_ptr<runtime::Kernel> kernel;
  const auto try_chain = [&](auto tag) {
    using Chain = decltype(tag);
    if (!IsChain<Chain>(compiled.program, desc.inputs.size(), desc.outputs.size(), desc.outputs[0].dtype)) return false;
    kernel = MakeChain<T, Chain>(context, desc.name, compiled);
    return true;
  };
  static_cast<void>((try_chain(Chains()) || ...));
  return kernel;
}

template <typename T>
std::unique_ptr<runtime::Kernel> MakeAny(const Context* context, const runtime::NodeDesc& desc,
                                         const CompiledFused& compiled) {
  return MakeFirstOf<T, Norm, NormRelu, NormAndLeakyRelu, NormAddRelu, NormNormAddRelu, AddRelu, AddReluGrad, BiasAdd,
                     Bias<kRelu>, Bias<kGelu>, Bias<kGeluTanh>, BiasAnd<kLeakyRelu>, BiasAnd<kGelu>,
                     BiasAnd<kGeluTanh>>(context, desc, compiled);
}

}  // namespace

std::unique_ptr<runtime::Kernel> PrepareChain(const Context* context, const runtime::NodeDesc& desc,
                                              const CompiledFused& compiled) {
  if (compiled.program.size == 0 || compiled.program.columns % kWidth != 0) return nullptr;
  if (desc.outputs[0].dtype == DType::kF16) return MakeAny<Half>(context, desc, compiled);
  if (desc.outputs[0].dtype == DType::kBF16) return MakeAny<BFloat16>(context, desc, compiled);
  return nullptr;
}

}  // namespace ampd::cuda
