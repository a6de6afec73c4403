#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/onednn_kernel.h"

namespace ampd::cpu {
namespace {

using dnnl::memory;
using runtime::NodeDesc;

// A stored [rows, columns] matrix, seen as [columns, rows] if transposed.
memory::desc Matrix(const Shape& stored, bool transposed, memory::data_type type) {
  if (transposed) return DenseDesc({stored[1], stored[0]}, type, {1, stored[1]});
  return DenseDesc({stored[0], stored[1]}, type, {stored[1], 1});
}

PrimitiveSpec MakeMatmul(const OneDnn& onednn, const NodeDesc& desc, memory::data_type compute) {
  const bool transpose_a = desc.attributes.Bool("transpose_a");
  const bool transpose_b = desc.attributes.Bool("transpose_b");
  const DType dtype = desc.inputs[0].dtype;
  const memory::desc a = Matrix(desc.inputs[0].shape, transpose_a, compute);
  const memory::desc b = Matrix(desc.inputs[1].shape, transpose_b, compute);
  const memory::desc y = Matrix(desc.outputs[0].shape, false, compute);
  const dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(a, desc.IsParameter(1) ? AnyLayout(b) : b, y),
                                        UserScratchpad(), onednn.engine);
  PrimitiveSpec spec;
  spec.primitive = dnnl::matmul(pd);
  spec.scratchpad = pd.scratchpad_desc();
  spec.inputs[0] = {DNNL_ARG_SRC, dtype, a, pd.src_desc()};
  spec.inputs[1] = {DNNL_ARG_WEIGHTS, dtype, b, pd.weights_desc()};
  spec.output = {DNNL_ARG_DST, dtype, y, pd.dst_desc()};
  spec.axes = transpose_b ? "matrix transposed" : "matrix";
  return spec;
}

}  // namespace

void RegisterMatmul(runtime::KernelTable* table) {
  auto onednn = std::make_shared<OneDnn>();
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kMatmul, {t, t}, {t}, [onednn](const NodeDesc& desc) {
      const Shape& a = desc.inputs[0].shape;
      const Shape& y = desc.outputs[0].shape;
      const int64_t inner = a[desc.attributes.Bool("transpose_a") ? 0 : 1];
      const double flops = 2.0 * static_cast<double>(NumElements(y)) * static_cast<double>(inner);
      return PrepareOneDnn(onednn, desc, flops, MakeMatmul);
    });
  }
}

}  // namespace ampd::cpu
