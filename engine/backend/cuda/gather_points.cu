#include <algorithm>
#include <functional>
#include <numeric>

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

// Where each pick of gather_elements and gather_nd lies: blocks of `block` elements of the data.
struct Picks {
  int64_t count = 0;
  int64_t block = 1;
  int64_t size = 0;  // elements of the data
  // gather_elements: the data seen in the indices' shape, with no step along the axis.
  StridedView base;
  StridedIndex device_base;
  int64_t extent = 0;
  int64_t stride = 0;
  // gather_nd: extents and strides of the axes that each tuple indexes; none: gather_elements.
  Shape extents, strides;
  int64_t per_batch = 1;  // picks
  int64_t batch_stride = 0;
};

Picks ElementPicks(const NodeDesc& desc, const Shape& data) {
  const Shape& indices = desc.inputs[1].shape;
  const int64_t given = desc.attributes.Int("axis");
  const size_t axis = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(data.size()) : given);
  const Shape dense = DenseStrides(data);
  StridedView base{indices, dense, 0};
  base.strides[axis] = 0;
  return {.count = NumElements(indices),
          .size = NumElements(data),
          .base = Collapsed(base),
          .extent = data[axis],
          .stride = dense[axis]};
}

Picks TuplePicks(const NodeDesc& desc, const Shape& data) {
  const Shape& indices = desc.inputs[1].shape;
  const int64_t batch = desc.attributes.Int("batch_dims"), axes = indices.back();
  const Shape dense = DenseStrides(data);
  const int64_t count = NumElements(indices) / axes, size = NumElements(data);
  const int64_t batches = std::accumulate(data.begin(), data.begin() + batch, int64_t{1}, std::multiplies<int64_t>());
  return {.count = count,
          .block = dense[batch + axes - 1],
          .size = size,
          .extents = Shape(data.begin() + batch, data.begin() + batch + axes),
          .strides = Shape(dense.begin() + batch, dense.begin() + batch + axes),
          .per_batch = count / batches,
          .batch_stride = size / batches};
}

absl::StatusOr<Picks> MakePicks(const NodeDesc& desc, const Shape& data) {
  const bool tuples = desc.op == OpKind::kGatherNd || desc.op == OpKind::kGatherNdGrad;
  Picks picks = tuples ? TuplePicks(desc, data) : ElementPicks(desc, data);
  AMPD_RETURN_IF_ERROR(CheckAxes(desc.name, picks.extents.size()));
  AMPD_ASSIGN_OR_RETURN(picks.device_base, MakeStridedIndex(desc.name, picks.base));
  return picks;
}

template <typename Index>
struct DevicePicks {
  StridedIndex base;
  int64_t extent, stride;
  int axes = 0;
  int64_t extents[kMaxAxes] = {}, strides[kMaxAxes] = {};
  IndexDivisor<Index> per_batch;
  int64_t batch_stride;

  // Counts in units of `unit` elements, of which a block is a multiple.
  DevicePicks(const Picks& picks, int64_t unit)
      : base(picks.device_base),
        extent(picks.extent),
        stride(picks.stride),
        axes(static_cast<int>(picks.extents.size())),
        per_batch(picks.per_batch),
        batch_stride(picks.batch_stride / unit) {
    for (int k = 0; k < axes; ++k) {
      extents[k] = picks.extents[k];
      strides[k] = picks.strides[k] / unit;
    }
  }

  // The unit that pick `i` begins at, or -1.
  __device__ __forceinline__ int64_t Source(const int32_t* indices, Index i) const {
    if (axes == 0) {
      const int64_t index = WrappedIndex(indices[i], extent);
      return index < 0 ? -1 : base.At(i) + index * stride;
    }
    int64_t at = static_cast<int64_t>(per_batch.Divide(i)) * batch_stride;
    for (int k = 0; k < axes; ++k) {
      const int64_t index = WrappedIndex(indices[static_cast<int64_t>(i) * axes + k], extents[k]);
      if (index < 0) return -1;
      at += index * strides[k];
    }
    return at;
  }
};

// `block` is of T, of which several elements may be one.
template <typename T, typename Index>
__global__ void GatherBlocks(const T* __restrict__ x, const int32_t* __restrict__ indices,
                             const DevicePicks<Index> picks, const IndexDivisor<Index> block, T missing, Index size,
                             T* __restrict__ y) {
  for (Index i = ThreadInGrid<Index>(); i < size; i += ThreadsInGrid<Index>()) {
    Index within;
    const Index pick = Divide(block, i, &within);
    const int64_t from = picks.Source(indices, pick);
    y[i] = from < 0 ? missing : x[from + within];
  }
}

template <typename Index>
__global__ void KeysOfPicks(const int32_t* __restrict__ indices, const DevicePicks<Index> picks, uint32_t rows,
                            Index count, uint32_t* __restrict__ keys) {
  for (Index i = ThreadInGrid<Index>(); i < count; i += ThreadsInGrid<Index>()) {
    const int64_t row = picks.Source(indices, i);
    keys[i] = row < 0 ? rows : static_cast<uint32_t>(row);
  }
}

StatusOrKernel PrepareGather(Context* context, const NodeDesc& desc) {
  AMPD_ASSIGN_OR_RETURN(const Picks picks, MakePicks(desc, desc.inputs[0].shape));
  return MakeKernel(0, [context, picks, name = desc.name](const KernelArgs& args) {
    const DType dtype = args.outputs[0].dtype;
    const int64_t bytes = SizeOf(dtype), together = ElementsTogether(bytes, {picks.block});
    const int64_t size = picks.count * (picks.block / together);
    const unsigned blocks = BlocksFor(size, kThreads, context->properties().sm_count);
    return VisitIndex(size, [&](auto index) {
      using Index = decltype(index);
      return VisitMove(bytes * together, [&](auto element) {
        using T = decltype(element);
        return Launch(name, GatherBlocks<T, Index>, blocks, kThreads, 0, context->stream(), args.inputs[0].as<T>(),
                      args.inputs[1].as<int32_t>(), DevicePicks<Index>(picks, together),
                      IndexDivisor<Index>(picks.block / together), Repeated<T>(MissingBits(dtype), bytes),
                      static_cast<Index>(size), args.outputs[0].as<T>());
      });
    });
  });
}

// Blocks begin at multiples of their size, so that the data are rows of one block each.
StatusOrKernel PrepareGrad(Context* context, const NodeDesc& desc) {
  AMPD_ASSIGN_OR_RETURN(const Picks picks, MakePicks(desc, desc.outputs[0].shape));
  const int64_t rows = picks.size / picks.block;
  WorkspaceLayout workspace;
  AMPD_ASSIGN_OR_RETURN(const RowScatter scatter,
                        RowScatter::Make(desc.name, 1, picks.count, rows, picks.block, &workspace));
  return MakeKernel(workspace.bytes(), [=, name = desc.name](const KernelArgs& args) {
    const unsigned blocks = BlocksFor(picks.count, kThreads, context->properties().sm_count);
    AMPD_RETURN_IF_ERROR(Launch(name, KeysOfPicks<uint32_t>, blocks, kThreads, 0, context->stream(),
                                args.inputs[1].as<int32_t>(), DevicePicks<uint32_t>(picks, picks.block),
                                static_cast<uint32_t>(rows), static_cast<uint32_t>(picks.count), scatter.keys(args)));
    return scatter.Run(*context, name, args, args.inputs[0], args.outputs[0]);
  });
}

}  // namespace

void RegisterGatherPoints(runtime::KernelTable* table, Context* context) {
  constexpr DType i32 = DType::kI32;
  const auto gather = [=](const NodeDesc& desc) { return PrepareGather(context, desc); };
  const auto grad = [=](const NodeDesc& desc) { return PrepareGrad(context, desc); };
  for (DType t : kAllDTypes) {
    table->Add(OpKind::kGatherElements, {t, i32}, {t}, gather);
    table->Add(OpKind::kGatherNd, {t, i32}, {t}, gather);
  }
  for (DType t : kDataTypes) {
    table->Add(OpKind::kGatherElementsGrad, {t, i32}, {t}, grad);
    table->Add(OpKind::kGatherNdGrad, {t, i32}, {t}, grad);
  }
}

}  // namespace ampd::cuda
