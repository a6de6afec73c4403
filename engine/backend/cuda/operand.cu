#include "engine/backend/cuda/operand.h"

#include <algorithm>

#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

// Whether every run of `width` elements of the output, from a multiple of it on, is one element of the view or a run of
// the tensor from a multiple of it on.
bool HasRuns(const StridedView& view, int width) {
  if (view.extents.back() % width != 0 || view.strides.back() > 1) return false;
  return view.strides.back() == 0 ||
         std::all_of(view.strides.begin(), view.strides.end() - 1, [&](int64_t stride) { return stride % width == 0; });
}

absl::Status MakeOperand(const runtime::NodeDesc& desc, size_t i, int* width, Operand* operand) {
  const StridedView view = BroadcastView(desc.inputs[i].shape, desc.outputs[0].shape);
  if (view.contiguous()) return absl::OkStatus();
  if (NumElements(desc.inputs[i].shape) == 1) {
    operand->reach = Reach::kOne;
    return absl::OkStatus();
  }
  if (!HasRuns(view, *width)) *width = 1;
  operand->reach = view.strides.back() == 0 ? Reach::kSpread : Reach::kPacked;
  AMPD_ASSIGN_OR_RETURN(operand->index, MakeStridedIndex(desc.name, view));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> MakeOperands(const runtime::NodeDesc& desc, int width, absl::Span<Operand> operands) {
  for (size_t i = 0; i < operands.size(); ++i) AMPD_RETURN_IF_ERROR(MakeOperand(desc, i, &width, &operands[i]));
  return width;
}

}  // namespace ampd::cuda
