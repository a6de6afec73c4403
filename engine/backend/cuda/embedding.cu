#include "engine/backend/cuda/index_math.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/pick_rows.h"
#include "engine/backend/cuda/scatter_rows.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;
using StatusOrKernel = absl::StatusOr<std::unique_ptr<runtime::Kernel>>;

constexpr int kThreads = 256;

StatusOrKernel PrepareEmbedding(Context* context, const NodeDesc& desc) {
  const Shape& table = desc.inputs[0].shape;
  const RowPick pick = {.count = NumElements(desc.inputs[1].shape), .rows = table[0], .inner = table[1]};
  return MakeKernel(0, [context, pick, name = desc.name](const KernelArgs& args) {
    return PickRows(*context, name, pick, args.outputs[0].dtype, args.inputs[0].data, args.inputs[1].as<int32_t>(),
                    args.outputs[0].data);
  });
}

StatusOrKernel PrepareEmbeddingGrad(Context* context, const NodeDesc& desc) {
  const Shape& table = desc.outputs[0].shape;
  WorkspaceLayout workspace;
  AMPD_ASSIGN_OR_RETURN(const RowScatter scatter, RowScatter::Make(desc.name, 1, NumElements(desc.inputs[1].shape),
                                                                   table[0], table[1], &workspace));
  return MakeKernel(workspace.bytes(), [context, scatter, name = desc.name](const KernelArgs& args) {
    AMPD_RETURN_IF_ERROR(scatter.MakeKeys(*context, name, args, args.inputs[1].as<int32_t>(), false));
    return scatter.Run(*context, name, args, args.inputs[0], args.outputs[0]);
  });
}

// y is [outer, depth, inner], ids [outer, inner].
template <typename Index>
__global__ void OneHot(const int32_t* __restrict__ ids, const IndexDivisor<Index> depth,
                       const IndexDivisor<Index> inner, Index size, float* __restrict__ y) {
  for (Index i = ThreadInGrid<Index>(); i < size; i += ThreadsInGrid<Index>()) {
    Index column, at;
    const Index outer = Divide(depth, Divide(inner, i, &column), &at);
    const int64_t hot = WrappedIndex(ids[static_cast<int64_t>(outer) * inner.divisor + column], depth.divisor);
    y[i] = hot == static_cast<int64_t>(at) ? 1.0f : 0.0f;
  }
}

StatusOrKernel PrepareOneHot(Context* context, const NodeDesc& desc) {
  const Shape& y = desc.outputs[0].shape;
  const int64_t given = desc.attributes.Int("axis", -1);
  const size_t axis = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(y.size()) : given);
  int64_t inner = 1;
  for (size_t d = axis + 1; d < y.size(); ++d) inner *= y[d];
  return MakeKernel(0, [context, inner, depth = y[axis], name = desc.name](const KernelArgs& args) {
    const int64_t size = args.outputs[0].size();
    const unsigned blocks = BlocksFor(size, kThreads, context->properties().sm_count);
    return VisitIndex(size, [&](auto index) {
      using Index = decltype(index);
      return Launch(name, OneHot<Index>, blocks, kThreads, 0, context->stream(), args.inputs[0].as<int32_t>(),
                    IndexDivisor<Index>(depth), IndexDivisor<Index>(inner), static_cast<Index>(size),
                    args.outputs[0].as<float>());
    });
  });
}

}  // namespace

void RegisterEmbedding(runtime::KernelTable* table, Context* context) {
  constexpr DType i32 = DType::kI32, f32 = DType::kF32;
  for (DType t : kDataTypes) {
    table->Add(OpKind::kEmbedding, {t, i32}, {t}, [=](const NodeDesc& d) { return PrepareEmbedding(context, d); });
    for (DType y : {t, f32}) {
      table->Add(OpKind::kEmbeddingGrad, {t, i32}, {y},
                 [=](const NodeDesc& d) { return PrepareEmbeddingGrad(context, d); });
    }
  }
  table->Add(OpKind::kOneHot, {i32}, {f32}, [=](const NodeDesc& d) { return PrepareOneHot(context, d); });
}

}  // namespace ampd::cuda
