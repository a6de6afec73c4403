// A fused node as its kernel reads it: a list of steps for an interpreter, and where each value lives meanwhile.
#ifndef AMPD_ENGINE_BACKEND_CUDA_FUSED_PROGRAM_H_
#define AMPD_ENGINE_BACKEND_CUDA_FUSED_PROGRAM_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/cuda/strided_index.h"
#include "engine/core/dtype.h"
#include "engine/ops/elementwise_functions.h"
#include "engine/passes/fuse.h"
#include "engine/runtime/kernel_table.h"

namespace ampd::cuda {

inline constexpr int kMaxFusedInputs = 2 * passes::kMaxFusedSteps + 1;
// Inputs of the node's own shape, the first so many of which are on their way before the first step.
inline constexpr int kFetched = 4;

// What a step reads: an input (its place in FusedProgram::inputs), a slot (kSlots + its number), or the result of the
// step before.
inline constexpr uint8_t kSlots = 64;
inline constexpr uint8_t kLast = 255;
static_assert(kMaxFusedInputs <= kSlots);

struct FusedInput {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  uint8_t bytes = 4;  // of an element
  enum Extent : uint8_t { kWhole, kRow, kOne } extent = kWhole;
};

struct FusedOutput {
  void* data = nullptr;
  DType dtype = DType::kF32;
};

struct FusedStepCode {
  ops::ElementwiseConstants constants;
  ops::ElementwiseFunction function = ops::ElementwiseFunction::kNone;  // kNone: a cast to `dtype`
  DType dtype = DType::kF32;
  uint8_t operands[3] = {};
  uint8_t count = 0;   // of operands
  int8_t slot = -1;    // where later steps than the next find the result
  int8_t output = -1;  // of the node
};

// Plain data, passed to the kernel by value.
struct FusedProgram {
  int64_t size = 0;
  int64_t columns = 1;  // the last axis: elements of a row
  Divisor divisor;      // by `columns`, of sizes below 2^31
  int32_t steps = 0;
  int32_t slots = 0;
  int32_t whole_inputs = 0;  // these come first
  bool has_rows = false;
  FusedInput inputs[kMaxFusedInputs];
  FusedOutput outputs[passes::kMaxFusedSteps];
  FusedStepCode code[passes::kMaxFusedSteps];
};
// The most that a kernel's parameters may take.
static_assert(sizeof(FusedProgram) <= 4096);

struct CompiledFused {
  FusedProgram program;     // without addresses
  std::vector<int> inputs;  // by place in program.inputs: which input of the node
};

// UNIMPLEMENTED, naming what, for a node that passes::Fuse() would not make.
absl::StatusOr<CompiledFused> CompileFused(const runtime::NodeDesc& desc);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_FUSED_PROGRAM_H_
