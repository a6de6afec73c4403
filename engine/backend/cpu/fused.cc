#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/block_functions.h"
#include "engine/backend/cpu/channels.h"
#include "engine/backend/cpu/kernels.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

// How an input reaches its block.
enum class Reach : uint8_t { kWhole, kRow, kScalar };

struct Step {
  BlockFunction function;  // null: a cast
  std::vector<int32_t> operands;
  DType dtype = DType::kF32;
  int32_t output = -1;  // of the node
  int32_t slot = -1;    // of the buffers: where it is computed; -1 where that is the node's output
};

// Buffers this far apart do not fall into the same sets of the first-level cache, as they would at a power of two.
constexpr int64_t kSlotBytes = kBlock * static_cast<int64_t>(sizeof(float)) + 3 * kTensorAlignment;

void LoadBlock(const TensorView& tensor, int64_t first, int64_t n, float* buffer) {
  if (tensor.dtype == DType::kBool) {
    const uint8_t* bools = tensor.as<uint8_t>() + first;
    for (int64_t i = 0; i < n; ++i) buffer[i] = bools[i] != 0 ? 1.0f : 0.0f;
  } else {
    ToF32(tensor.dtype, tensor.as<char>() + first * SizeOf(tensor.dtype), n, buffer);
  }
}

void StoreBlock(const float* computed, int64_t first, int64_t n, const TensorView& tensor) {
  if (tensor.dtype == DType::kBool) {
    uint8_t* bools = tensor.as<uint8_t>() + first;
    for (int64_t i = 0; i < n; ++i) bools[i] = computed[i] != 0 ? 1 : 0;
  } else {
    FromF32(computed, n, tensor.dtype, tensor.as<char>() + first * SizeOf(tensor.dtype));
  }
}

class FusedKernel : public runtime::Kernel {
 public:
  static absl::StatusOr<std::unique_ptr<runtime::Kernel>> Prepare(const NodeDesc& desc) {
    auto kernel = std::make_unique<FusedKernel>(desc);
    for (const ir::FusedStep& step : desc.steps) {
      const bool rounds = step.op == ir::OpKind::kCast;
      Step prepared{.function = rounds ? nullptr : MakeBlockFunction(step.op, step.attributes),
                    .operands = step.operands,
                    .dtype = step.dtype};
      if (!rounds && !prepared.function) {
        return absl::UnimplementedError(
            absl::StrCat("[fused] no block function for ", ir::OpName(step.op), ", node ", desc.name));
      }
      kernel->steps_.push_back(std::move(prepared));
    }
    for (size_t i = 0; i < desc.results.size(); ++i) kernel->steps_[desc.results[i]].output = static_cast<int32_t>(i);
    kernel->AssignSlots(desc);
    return std::unique_ptr<runtime::Kernel>(std::move(kernel));
  }

  explicit FusedKernel(const NodeDesc& desc) {
    const Shape& shape = desc.outputs[0].shape;
    loop_ = MakeChannelLoop(shape.empty() ? Shape{1} : shape, desc.threads);
    for (const ir::TensorType& input : desc.inputs) {
      const int64_t n = NumElements(input.shape);
      reach_.push_back(n == loop_.size ? Reach::kWhole : n == 1 ? Reach::kScalar : Reach::kRow);
      row_at_.push_back(reach_.back() == Reach::kWhole ? 0 : layout_.Add(loop_.period * sizeof(float)));
    }
    dense_at_ = layout_.Add(loop_.channels * sizeof(float));
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  absl::Status Launch(const KernelArgs& args) override {
    for (size_t i = 0; i < reach_.size(); ++i) SpreadRow(args, i);
    loop_.ForEachPiece([&](int part, int64_t first, int64_t n, int64_t offset) {
      RunPiece(args, WorkspaceAt<char>(args, parts_at_ + part * part_bytes_), first, n, offset);
    });
    return absl::OkStatus();
  }

 private:
  // Gives inputs that are converted, and steps whose result is not the node's f32 output, a buffer each while they are
  // needed: few buffers stay in the first-level cache.
  void AssignSlots(const NodeDesc& desc) {
    const size_t inputs = desc.inputs.size();
    std::vector<int32_t> slots(inputs + steps_.size(), -1), free;
    const std::vector<size_t> last_use = LastUses(inputs);
    int32_t count = 0;
    for (size_t i = 0; i < inputs; ++i) {
      if (reach_[i] == Reach::kWhole && desc.inputs[i].dtype != DType::kF32) slots[i] = count++;
      input_slots_.push_back(slots[i]);
    }
    for (size_t s = 0; s < steps_.size(); ++s) {
      const int32_t output = steps_[s].output;
      if (!PassesOn(steps_[s]) && (output < 0 || desc.outputs[output].dtype != DType::kF32)) {
        if (free.empty()) free.push_back(count++);
        slots[inputs + s] = steps_[s].slot = free.back();
        free.pop_back();
      }
      // Only now: a result overlaps no operand of its step.
      for (size_t v = 0; v <= inputs + s; ++v) {
        if (slots[v] >= 0 && last_use[v] == s) free.push_back(slots[v]);
      }
    }
    slots_bytes_ = count * kSlotBytes;
    part_bytes_ = AlignUp(slots_bytes_ + static_cast<int64_t>(slots.size() * sizeof(float*)));
    parts_at_ = layout_.Add(part_bytes_ * loop_.parts);
  }

  // By value (inputs, then results): the last step that reads the memory it is in.
  std::vector<size_t> LastUses(size_t inputs) const {
    std::vector<size_t> last_use(inputs + steps_.size(), 0), owner(last_use.size());
    for (size_t v = 0; v < owner.size(); ++v) owner[v] = v;
    for (size_t s = 0; s < steps_.size(); ++s) {
      last_use[inputs + s] = s;
      if (PassesOn(steps_[s])) owner[inputs + s] = owner[steps_[s].operands[0]];
      for (int32_t operand : steps_[s].operands) last_use[owner[operand]] = s;
    }
    return last_use;
  }

  // A cast to f32 that nobody outside reads: its result is its operand.
  static bool PassesOn(const Step& step) { return !step.function && step.dtype == DType::kF32 && step.output < 0; }

  // Repeats a row or a scalar over the period.
  void SpreadRow(const KernelArgs& args, size_t i) const {
    if (reach_[i] == Reach::kWhole) return;
    float* repeated = WorkspaceAt<float>(args, row_at_[i]);
    float* dense = WorkspaceAt<float>(args, dense_at_);
    if (reach_[i] == Reach::kScalar) {
      LoadBlock(args.inputs[i], 0, 1, dense);
      std::fill_n(repeated, loop_.period, dense[0]);
      return;
    }
    LoadBlock(args.inputs[i], 0, loop_.channels, dense);
    loop_.Repeat(dense, repeated);
  }

  const float* InputPiece(const KernelArgs& args, size_t i, int64_t first, int64_t n, int64_t offset,
                          float* buffer) const {
    if (reach_[i] != Reach::kWhole) return WorkspaceAt<float>(args, row_at_[i]) + offset;
    if (args.inputs[i].dtype == DType::kF32) return args.inputs[i].as<float>() + first;
    LoadBlock(args.inputs[i], first, n, buffer);
    return buffer;
  }

  static float* Slot(char* memory, int32_t slot) { return reinterpret_cast<float*>(memory + slot * kSlotBytes); }

  void RunPiece(const KernelArgs& args, char* memory, int64_t first, int64_t n, int64_t offset) const {
    const size_t inputs = reach_.size();
    auto** values = reinterpret_cast<const float**>(memory + slots_bytes_);
    for (size_t i = 0; i < inputs; ++i) {
      values[i] = InputPiece(args, i, first, n, offset, Slot(memory, input_slots_[i]));
    }
    for (size_t s = 0; s < steps_.size(); ++s) {
      values[inputs + s] = RunStep(steps_[s], values, args, first, n, Slot(memory, steps_[s].slot));
    }
  }

  const float* RunStep(const Step& step, const float* const* values, const KernelArgs& args, int64_t first, int64_t n,
                       float* buffer) const {
    const TensorView* output = step.output < 0 ? nullptr : &args.outputs[step.output];
    const bool direct = output != nullptr && output->dtype == DType::kF32;
    if (PassesOn(step)) return values[step.operands[0]];
    float* y = direct ? output->as<float>() + first : buffer;
    if (step.function) {
      const float* operands[3] = {};
      for (size_t i = 0; i < step.operands.size(); ++i) operands[i] = values[step.operands[i]];
      step.function(operands, n, y);
    } else {
      RoundThrough(step.dtype, values[step.operands[0]], n, y);
    }
    if (output != nullptr && !direct) StoreBlock(y, first, n, *output);
    return y;
  }

  ChannelLoop loop_;
  std::vector<Step> steps_;
  std::vector<Reach> reach_;     // by input
  std::vector<int64_t> row_at_;  // by input
  std::vector<int32_t> input_slots_;
  WorkspaceLayout layout_;
  int64_t dense_at_ = 0;
  int64_t slots_bytes_ = 0;
  int64_t part_bytes_ = 0;
  int64_t parts_at_ = 0;
};

}  // namespace

void RegisterFused(runtime::KernelTable* table) { table->AddForAnyDTypes(ir::OpKind::kFused, FusedKernel::Prepare); }

}  // namespace ampd::cpu
