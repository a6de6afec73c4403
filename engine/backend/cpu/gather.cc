#include <algorithm>
#include <cstring>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/missing.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/scatter_rows.h"

namespace ampd::cpu {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;

// `data` as [outer, extent, inner] around an axis.
struct Around {
  int64_t outer = 1, extent = 1, inner = 1;

  Around(const Shape& data, int64_t given) {
    const size_t axis = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(data.size()) : given);
    for (size_t d = 0; d < axis; ++d) outer *= data[d];
    extent = data[axis];
    for (size_t d = axis + 1; d < data.size(); ++d) inner *= data[d];
  }
};

std::unique_ptr<runtime::Kernel> PrepareGather(const NodeDesc& desc) {
  const Around data(desc.inputs[0].shape, desc.attributes.Int("axis"));
  const int64_t count = NumElements(desc.inputs[1].shape);
  const int64_t rows = data.outer * count;
  const int parts =
      static_cast<int>(std::min<int64_t>(PartsFor(desc.threads, rows * data.inner, kMinElementsPerThread), rows));
  return MakeKernel(0, [=](const KernelArgs& args) {
    const DType dtype = args.outputs[0].dtype;
    const int64_t bytes = data.inner * SizeOf(dtype);
    ParallelRange(parts, rows, 1, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = WrappedIndex(args.inputs[1].as<int32_t>()[i % count], data.extent);
        char* to = args.outputs[0].as<char>() + i * bytes;
        if (row < 0) {
          FillMissing(dtype, data.inner, to);
        } else {
          std::memcpy(to, args.inputs[0].as<char>() + (i / count * data.extent + row) * bytes, bytes);
        }
      }
    });
  });
}

std::unique_ptr<runtime::Kernel> PrepareGatherGrad(const NodeDesc& desc) {
  const Around data(desc.outputs[0].shape, desc.attributes.Int("axis"));
  WorkspaceLayout workspace;
  const RowScatter scatter(data.outer, NumElements(desc.inputs[1].shape), data.extent, data.inner, true, desc.threads,
                           &workspace);
  return MakeKernel(workspace.bytes(), [scatter](const KernelArgs& args) {
    scatter.Run(args, args.inputs[0], args.inputs[1].as<int32_t>(), args.outputs[0]);
  });
}

}  // namespace

void RegisterGather(runtime::KernelTable* table) {
  constexpr DType i32 = DType::kI32;
  for (DType t : kAllDTypes) table->Add(OpKind::kGather, {t, i32}, {t}, PrepareGather);
  for (DType t : kDataTypes) table->Add(OpKind::kGatherGrad, {t, i32}, {t}, PrepareGatherGrad);
}

}  // namespace ampd::cpu
