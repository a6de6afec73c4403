#include <algorithm>

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/onednn_kernel.h"

namespace ampd::cpu {
namespace {

using dnnl::memory;
using runtime::NodeDesc;

// The product as oneDNN sees it: [batch..., rows, columns], with as few batch axes as the broadcasting leaves.
struct Product {
  memory::dims batch_a, batch_b;
  int64_t rows, inner, columns;
  bool transpose_a, transpose_b;
};

// Extents of the batch axes, of `rank` axes when padded with ones.
memory::dims BatchOf(const Shape& shape, size_t rank) {
  memory::dims batch(rank - (shape.size() - 2), 1);
  batch.insert(batch.end(), shape.begin(), shape.end() - 2);
  return batch;
}

// Axes next to each other over which the operands move alike are one axis.
void MergeBatch(const Shape& a, const Shape& b, Product* product) {
  const size_t rank = std::max(a.size(), b.size()) - 2;
  const memory::dims from_a = BatchOf(a, rank), from_b = BatchOf(b, rank);
  memory::dims& to_a = product->batch_a;
  memory::dims& to_b = product->batch_b;
  for (size_t i = 0; i < rank; ++i) {
    if (from_a[i] == 1 && from_b[i] == 1) continue;
    const bool merges =
        !to_a.empty() && (from_a[i] == 1) == (to_a.back() == 1) && (from_b[i] == 1) == (to_b.back() == 1);
    if (merges) {
      to_a.back() *= from_a[i];
      to_b.back() *= from_b[i];
    } else {
      to_a.push_back(from_a[i]);
      to_b.push_back(from_b[i]);
    }
  }
}

Product MakeProduct(const NodeDesc& desc) {
  const Shape& a = desc.inputs[0].shape;
  const Shape& b = desc.inputs[1].shape;
  const Shape& y = desc.outputs[0].shape;
  Product p{.transpose_a = desc.attributes.Bool("transpose_a"), .transpose_b = desc.attributes.Bool("transpose_b")};
  p.rows = y[y.size() - 2];
  p.columns = y.back();
  p.inner = a[a.size() - (p.transpose_a ? 2 : 1)];
  MergeBatch(a, b, &p);
  // One right operand for every left one: their rows are the rows of one matrix.
  if (!p.transpose_a && p.batch_a.size() == 1 && p.batch_b[0] == 1) {
    p.rows *= p.batch_a[0];
    p.batch_a.clear();
    p.batch_b.clear();
  }
  return p;
}

// Matrices [rows, columns] one behind the other, stored [columns, rows] if transposed.
memory::desc Matrices(memory::dims batch, int64_t rows, int64_t columns, bool transposed, memory::data_type type) {
  memory::dims strides(batch.size());
  int64_t stride = rows * columns;
  for (size_t i = batch.size(); i-- > 0; stride *= batch[i]) strides[i] = stride;
  strides.push_back(transposed ? 1 : columns);
  strides.push_back(transposed ? rows : 1);
  batch.push_back(rows);
  batch.push_back(columns);
  return DenseDesc(batch, type, strides);
}

PrimitiveSpec MakeMatmul(const OneDnn& onednn, const NodeDesc& desc, memory::data_type compute) {
  const DType dtype = desc.inputs[0].dtype;
  const Product p = MakeProduct(desc);
  memory::dims batch;
  for (size_t i = 0; i < p.batch_a.size(); ++i) batch.push_back(std::max(p.batch_a[i], p.batch_b[i]));
  const memory::desc a = Matrices(p.batch_a, p.rows, p.inner, p.transpose_a, compute);
  const memory::desc b = Matrices(p.batch_b, p.inner, p.columns, p.transpose_b, compute);
  // Of what is computed in f32 the kernel rounds the result; bf16 products can leave it as it is.
  const DType result = desc.outputs[0].dtype;
  const memory::desc y =
      Matrices(batch, p.rows, p.columns, false, result == DType::kF32 ? memory::data_type::f32 : compute);
  const dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(a, desc.IsParameter(1) ? AnyLayout(b) : b, y),
                                        UserScratchpad(), onednn.engine);
  PrimitiveSpec spec;
  spec.primitive = dnnl::matmul(pd);
  spec.scratchpad = pd.scratchpad_desc();
  spec.inputs[0] = {DNNL_ARG_SRC, dtype, a, pd.src_desc()};
  spec.inputs[1] = {DNNL_ARG_WEIGHTS, dtype, b, pd.weights_desc()};
  spec.output = {DNNL_ARG_DST, result, y, pd.dst_desc()};
  spec.axes = p.transpose_b ? "matrix transposed" : "matrix";
  return spec;
}

}  // namespace

void RegisterMatmul(runtime::KernelTable* table) {
  auto onednn = std::make_shared<OneDnn>();
  const runtime::PrepareKernel prepare = [onednn](const NodeDesc& desc) {
    const double outputs = static_cast<double>(NumElements(desc.outputs[0].shape));
    const double flops = 2.0 * outputs * static_cast<double>(MakeProduct(desc).inner);
    return PrepareOneDnn(onednn, desc, flops, MakeMatmul);
  };
  for (DType t : kDataTypes) table->Add(ir::OpKind::kMatmul, {t, t}, {t}, prepare);
  for (DType t : {DType::kF16, DType::kBF16}) table->Add(ir::OpKind::kMatmul, {t, t}, {DType::kF32}, prepare);
}

}  // namespace ampd::cpu
