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
};

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
    const auto buffers = static_cast<int64_t>(desc.inputs.size() + desc.steps.size());
    part_bytes_ = AlignUp(buffers * (kBlock * sizeof(float) + sizeof(float*)));
    parts_at_ = layout_.Add(part_bytes_ * loop_.parts);
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

  void RunPiece(const KernelArgs& args, char* memory, int64_t first, int64_t n, int64_t offset) const {
    const size_t inputs = reach_.size();
    auto* buffer = reinterpret_cast<float*>(memory);
    auto** values = reinterpret_cast<const float**>(buffer + (inputs + steps_.size()) * kBlock);
    for (size_t i = 0; i < inputs; ++i, buffer += kBlock) values[i] = InputPiece(args, i, first, n, offset, buffer);
    for (size_t s = 0; s < steps_.size(); ++s, buffer += kBlock) {
      values[inputs + s] = RunStep(steps_[s], values, args, first, n, buffer);
    }
  }

  const float* RunStep(const Step& step, const float* const* values, const KernelArgs& args, int64_t first, int64_t n,
                       float* buffer) const {
    const TensorView* output = step.output < 0 ? nullptr : &args.outputs[step.output];
    const bool direct = output != nullptr && output->dtype == DType::kF32;
    if (!step.function && step.dtype == DType::kF32 && output == nullptr) return values[step.operands[0]];
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
  WorkspaceLayout layout_;
  int64_t dense_at_ = 0;
  int64_t part_bytes_ = 0;
  int64_t parts_at_ = 0;
};

}  // namespace

void RegisterFused(runtime::KernelTable* table) { table->AddForAnyDTypes(ir::OpKind::kFused, FusedKernel::Prepare); }

}  // namespace ampd::cpu
