// A plan's steps as one block of threads can run them, one after the other, with the tensors that it makes and changes
// in its shared memory: what resident_kernel.cu interprets. Plain data, made on the host.
#ifndef AMPD_ENGINE_BACKEND_CUDA_RESIDENT_PROGRAM_H_
#define AMPD_ENGINE_BACKEND_CUDA_RESIDENT_PROGRAM_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/ir/op_kind.h"
#include "engine/runtime/plan.h"

namespace ampd::cuda {

// Threads of the one block.
inline constexpr int kResidentThreads = 512;

// An operand's address is one in global memory or, tagged, an offset: into the block's dynamic shared memory, or into
// the slot of the feed ring that the step reads. No address of either has the tags' bits.
inline constexpr uint64_t kSharedTag = uint64_t{1} << 63, kSlotTag = uint64_t{1} << 62;

template <typename T = void>
T* InShared(int64_t offset) {
  return reinterpret_cast<T*>(kSharedTag | static_cast<uint64_t>(offset));
}
template <typename T = void>
T* InSlot(int64_t offset) {
  return reinterpret_cast<T*>(kSlotTag | static_cast<uint64_t>(offset));
}

enum class ResidentOp : int32_t {
  kProduct,     // BlockProduct (block_product.h)
  kFused,       // FusedProgram (fused_program.h)
  kDropout,     // ResidentDropout
  kBox,         // ResidentBox
  kColumnSums,  // ResidentVector, of [rows, columns]
  kAccumulate,  // ResidentVector
  kMean,        // ResidentVector
  kMeanGrad,    // ResidentVector
  kNormalizedSum,
  kNormalizedSumGrad,  // ResidentWeighted
  kLoss,               // ResidentLoss
  kLossGrad,
  kMeanLoss,      // ResidentMeanLoss: the four steps of a loss's mean and its gradient at once
  kCrossEntropy,  // ResidentCrossEntropy
  kCrossEntropyGrad,
  kStackForward,  // DenseStack (dense_stack.h)
  kStackBackward,
};

struct ResidentInstruction {
  ResidentOp op = ResidentOp::kFused;
  // Which of several that one instruction does.
  ir::OpKind kind = ir::OpKind::kAdd;
  // Where the operands begin in ResidentProgram::operands; a multiple of 16.
  int64_t operands = 0;
};

struct ResidentProgram {
  std::vector<ResidentInstruction> instructions;
  std::vector<char> operands;
  // Shared memory that instructions use while they run.
  int64_t scratch_bytes = 0;
  // Whether a step has products, elementwise nodes or others that take operands of many kinds, which a kernel has to
  // interpret: one without them needs fewer registers.
  bool interprets = false;
};

// Where a tensor of the plan lies while the block runs; an error says why it can lie nowhere.
using AddressOf = std::function<absl::StatusOr<void*>(const runtime::PlannedTensor& tensor)>;

struct ResidentStack;

// Whether a slice cuts only the end off a vector's or matrix's axes, or a pad puts only zeros behind, and neither
// rounds.
bool KeepsBeginning(const runtime::PlanStep& step);

// UNIMPLEMENTED, naming the node, for a plan with a step that has no such form, or with more work than is one
// multiprocessor's. `stack`, of that plan, takes the place of the steps that it holds; null: every step is its own.
absl::StatusOr<ResidentProgram> CompileResident(const runtime::Plan& plan, const ResidentStack* stack,
                                                const AddressOf& address);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_RESIDENT_PROGRAM_H_
