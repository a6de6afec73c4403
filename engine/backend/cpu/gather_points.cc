#include <algorithm>
#include <cstring>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/missing.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/scatter_rows.h"
#include "engine/backend/cpu/strided.h"

namespace ampd::cpu {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;

// Where each pick of gather_elements and gather_nd lies: blocks of `block` elements of the data.
struct Picks {
  int64_t count = 0;
  int64_t block = 1;
  int64_t size = 0;  // elements of the data
  // Picks that may share data follow each other, `together` at a time; other threads may take the rest.
  int64_t together = 1;
  // gather_elements: the data seen in the indices' shape, with no step along the axis.
  StridedView base;
  int64_t extent = 0;
  int64_t stride = 0;
  // gather_nd: extents and strides of the axes that each tuple indexes; none: gather_elements.
  Shape extents, strides;
  int64_t batch_stride = 0;

  // The data's element that pick `i` begins at, or -1.
  int64_t Source(const int32_t* indices, int64_t i) const {
    if (extents.empty()) {
      const int64_t index = WrappedIndex(indices[i], extent);
      return index < 0 ? -1 : At(base, i) + index * stride;
    }
    const auto axes = static_cast<int64_t>(extents.size());
    int64_t at = i / together * batch_stride;
    for (int64_t k = 0; k < axes; ++k) {
      const int64_t index = WrappedIndex(indices[i * axes + k], extents[k]);
      if (index < 0) return -1;
      at += index * strides[k];
    }
    return at;
  }
};

Picks ElementPicks(const NodeDesc& desc, const Shape& data) {
  const Shape& indices = desc.inputs[1].shape;
  const int64_t given = desc.attributes.Int("axis");
  const size_t axis = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(data.size()) : given);
  Picks picks;
  picks.count = NumElements(indices);
  picks.size = NumElements(data);
  const Shape dense = DenseStrides(data);
  picks.extent = data[axis];
  picks.stride = dense[axis];
  StridedView base{indices, dense, 0};
  base.strides[axis] = 0;
  picks.base = Collapsed(base);
  picks.together = axis == 0 ? picks.count : picks.count / indices[0];
  return picks;
}

Picks TuplePicks(const NodeDesc& desc, const Shape& data) {
  const Shape& indices = desc.inputs[1].shape;
  const int64_t batch = desc.attributes.Int("batch_dims"), axes = indices.back();
  const Shape dense = DenseStrides(data);
  Picks picks;
  picks.count = NumElements(indices) / axes;
  picks.size = NumElements(data);
  picks.extents.assign(data.begin() + batch, data.begin() + batch + axes);
  picks.strides.assign(dense.begin() + batch, dense.begin() + batch + axes);
  picks.block = dense[batch + axes - 1];
  int64_t batches = 1;
  for (int64_t d = 0; d < batch; ++d) batches *= data[d];
  picks.batch_stride = picks.size / batches;
  picks.together = picks.count / batches;
  return picks;
}

Picks MakePicks(const NodeDesc& desc, const Shape& data) {
  const bool tuples = desc.op == OpKind::kGatherNd || desc.op == OpKind::kGatherNdGrad;
  return tuples ? TuplePicks(desc, data) : ElementPicks(desc, data);
}

int PartsOf(const NodeDesc& desc, const Picks& picks, int64_t units) {
  return static_cast<int>(
      std::min<int64_t>(PartsFor(desc.threads, picks.count * picks.block * 4, kMinElementsPerThread), units));
}

std::unique_ptr<runtime::Kernel> PrepareGather(const NodeDesc& desc) {
  const Picks picks = MakePicks(desc, desc.inputs[0].shape);
  const int parts = PartsOf(desc, picks, picks.count);
  return MakeKernel(0, [picks, parts](const KernelArgs& args) {
    const DType dtype = args.outputs[0].dtype;
    const int64_t element = SizeOf(dtype), bytes = picks.block * element;
    ParallelRange(parts, picks.count, 1, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t from = picks.Source(args.inputs[1].as<int32_t>(), i);
        char* to = args.outputs[0].as<char>() + i * bytes;
        if (from < 0) {
          FillMissing(dtype, picks.block, to);
        } else {
          std::memcpy(to, args.inputs[0].as<char>() + from * element, bytes);
        }
      }
    });
  });
}

// Adds in the order of the picks, in fp32.
void Scatter(const Picks& picks, int parts, const KernelArgs& args, float* sums) {
  const TensorView& dy = args.inputs[0];
  ParallelRange(parts, picks.count, picks.together, [&](int, int64_t begin, int64_t end) {
    alignas(64) float buffer[kBlock];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t to = picks.Source(args.inputs[1].as<int32_t>(), i);
      if (to < 0) continue;
      for (int64_t k = 0; k < picks.block; k += kBlock) {
        const int64_t m = std::min(kBlock, picks.block - k);
        const float* values = Load(dy, i * picks.block + k, m, buffer);
        for (int64_t j = 0; j < m; ++j) sums[to + k + j] += values[j];
      }
    }
  });
}

std::unique_ptr<runtime::Kernel> PrepareGrad(const NodeDesc& desc) {
  const Picks picks = MakePicks(desc, desc.outputs[0].shape);
  const int parts = PartsOf(desc, picks, picks.count / picks.together);
  WorkspaceLayout workspace;
  const bool in_place = desc.outputs[0].dtype == DType::kF32;
  const int64_t sums_at = in_place ? 0 : workspace.Add(picks.size * sizeof(float));
  return MakeKernel(workspace.bytes(), [=, threads = desc.threads](const KernelArgs& args) {
    const TensorView& dx = args.outputs[0];
    float* sums = in_place ? dx.as<float>() : WorkspaceAt<float>(args, sums_at);
    std::fill(sums, sums + picks.size, 0.0f);
    Scatter(picks, parts, args, sums);
    if (!in_place) ParallelFromF32(threads, sums, picks.size, dx.dtype, dx.data);
  });
}

}  // namespace

void RegisterGatherPoints(runtime::KernelTable* table) {
  constexpr DType i32 = DType::kI32;
  for (DType t : kAllDTypes) {
    table->Add(OpKind::kGatherElements, {t, i32}, {t}, PrepareGather);
    table->Add(OpKind::kGatherNd, {t, i32}, {t}, PrepareGather);
  }
  for (DType t : kDataTypes) {
    table->Add(OpKind::kGatherElementsGrad, {t, i32}, {t}, PrepareGrad);
    table->Add(OpKind::kGatherNdGrad, {t, i32}, {t}, PrepareGrad);
  }
}

}  // namespace ampd::cpu
