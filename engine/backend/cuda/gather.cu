#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/pick_rows.h"
#include "engine/backend/cuda/scatter_rows.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;
using StatusOrKernel = absl::StatusOr<std::unique_ptr<runtime::Kernel>>;

// `data` as [outer, rows, inner] around the attribute `axis`.
RowPick PickOf(const NodeDesc& desc, const Shape& data) {
  const int64_t given = desc.attributes.Int("axis");
  const size_t axis = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(data.size()) : given);
  RowPick pick = {.count = NumElements(desc.inputs[1].shape), .rows = data[axis], .wraps = true};
  for (size_t d = 0; d < axis; ++d) pick.outer *= data[d];
  for (size_t d = axis + 1; d < data.size(); ++d) pick.inner *= data[d];
  return pick;
}

StatusOrKernel PrepareGather(Context* context, const NodeDesc& desc) {
  const RowPick pick = PickOf(desc, desc.inputs[0].shape);
  return MakeKernel(0, [context, pick, name = desc.name](const KernelArgs& args) {
    return PickRows(*context, name, pick, args.outputs[0].dtype, args.inputs[0].data, args.inputs[1].as<int32_t>(),
                    args.outputs[0].data);
  });
}

StatusOrKernel PrepareGatherGrad(Context* context, const NodeDesc& desc) {
  const RowPick pick = PickOf(desc, desc.outputs[0].shape);
  WorkspaceLayout workspace;
  AMPD_ASSIGN_OR_RETURN(const RowScatter scatter,
                        RowScatter::Make(desc.name, pick.outer, pick.count, pick.rows, pick.inner, &workspace));
  return MakeKernel(workspace.bytes(), [context, scatter, name = desc.name](const KernelArgs& args) {
    AMPD_RETURN_IF_ERROR(scatter.MakeKeys(*context, name, args, args.inputs[1].as<int32_t>(), true));
    return scatter.Run(*context, name, args, args.inputs[0], args.outputs[0]);
  });
}

}  // namespace

void RegisterGather(runtime::KernelTable* table, Context* context) {
  constexpr DType i32 = DType::kI32;
  for (DType t : kAllDTypes) {
    table->Add(OpKind::kGather, {t, i32}, {t}, [=](const NodeDesc& d) { return PrepareGather(context, d); });
  }
  for (DType t : kDataTypes) {
    table->Add(OpKind::kGatherGrad, {t, i32}, {t}, [=](const NodeDesc& d) { return PrepareGatherGrad(context, d); });
  }
}

}  // namespace ampd::cuda
