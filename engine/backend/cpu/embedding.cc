#include <algorithm>
#include <cstring>

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/missing.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/scatter_rows.h"

namespace ampd::cpu {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;

std::unique_ptr<runtime::Kernel> PrepareEmbedding(const NodeDesc& desc) {
  const int64_t rows = desc.inputs[0].shape[0], width = desc.inputs[0].shape[1];
  const int64_t count = NumElements(desc.inputs[1].shape);
  const int parts =
      static_cast<int>(std::min<int64_t>(PartsFor(desc.threads, count * width, kMinElementsPerThread), count));
  return MakeKernel(0, [=](const KernelArgs& args) {
    const DType dtype = args.outputs[0].dtype;
    const int64_t bytes = width * SizeOf(dtype);
    ParallelRange(parts, count, 1, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t id = args.inputs[1].as<int32_t>()[i];
        char* to = args.outputs[0].as<char>() + i * bytes;
        if (id < 0 || id >= rows) {
          FillMissing(dtype, width, to);
        } else {
          std::memcpy(to, args.inputs[0].as<char>() + id * bytes, bytes);
        }
      }
    });
  });
}

std::unique_ptr<runtime::Kernel> PrepareEmbeddingGrad(const NodeDesc& desc) {
  const Shape& table = desc.outputs[0].shape;
  WorkspaceLayout workspace;
  const RowScatter scatter(1, NumElements(desc.inputs[1].shape), table[0], table[1], false, desc.threads, &workspace);
  return MakeKernel(workspace.bytes(), [scatter](const KernelArgs& args) {
    scatter.Run(args, args.inputs[0], args.inputs[1].as<int32_t>(), args.outputs[0]);
  });
}

std::unique_ptr<runtime::Kernel> PrepareOneHot(const NodeDesc& desc) {
  const Shape& y = desc.outputs[0].shape;
  const int64_t given = desc.attributes.Int("axis", -1);
  const size_t axis = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(y.size()) : given);
  int64_t outer = 1, inner = 1;
  for (size_t d = 0; d < axis; ++d) outer *= y[d];
  for (size_t d = axis + 1; d < y.size(); ++d) inner *= y[d];
  const int64_t depth = y[axis];
  const int parts =
      static_cast<int>(std::min<int64_t>(PartsFor(desc.threads, outer * depth * inner, kMinElementsPerThread), outer));
  return MakeKernel(0, [=](const KernelArgs& args) {
    ParallelRange(parts, outer, 1, [&](int, int64_t begin, int64_t end) {
      float* to = args.outputs[0].as<float>();
      std::fill(to + begin * depth * inner, to + end * depth * inner, 0.0f);
      for (int64_t i = begin * inner; i < end * inner; ++i) {
        const int64_t hot = WrappedIndex(args.inputs[0].as<int32_t>()[i], depth);
        if (hot >= 0) to[(i / inner * depth + hot) * inner + i % inner] = 1;
      }
    });
  });
}

}  // namespace

void RegisterEmbedding(runtime::KernelTable* table) {
  constexpr DType i32 = DType::kI32, f32 = DType::kF32;
  for (DType t : kDataTypes) {
    table->Add(OpKind::kEmbedding, {t, i32}, {t}, PrepareEmbedding);
    table->Add(OpKind::kEmbeddingGrad, {t, i32}, {t}, PrepareEmbeddingGrad);
    table->Add(OpKind::kEmbeddingGrad, {t, i32}, {f32}, PrepareEmbeddingGrad);
  }
  table->Add(OpKind::kOneHot, {i32}, {f32}, PrepareOneHot);
}

}  // namespace ampd::cpu
