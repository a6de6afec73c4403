// Matrix products.
#include "engine/core/status.h"
#include "engine/models/onnx/node.h"

namespace ampd::models::onnx {
namespace {

// As numpy.matmul: a vector is a row on the left and a column on the right, and its axis is gone from the result.
absl::Status MatMul(Node& n) {
  if (n.rank(0) == 0 || n.rank(1) == 0) return n.Bad("a scalar operand");
  V a = n[0], b = n[1];
  if (n.rank(0) == 1) a = n.e.Reshape(a, {1, n.shape(0)[0]});
  if (n.rank(1) == 1) b = n.e.Reshape(b, {n.shape(1)[0], 1});
  if (Emitter::Extent(a, Emitter::Rank(a) - 1) != Emitter::Extent(b, Emitter::Rank(b) - 2)) {
    return n.Bad(
        absl::StrCat("inner extents of ", ShapeString(n.shape(0)), " and ", ShapeString(n.shape(1)), " differ"));
  }
  V y = n.e.Matmul(a, b);
  if (!n.e.ok()) return absl::OkStatus();
  Shape shape = y->type.shape;
  if (n.rank(1) == 1) shape.pop_back();
  if (n.rank(0) == 1) shape.erase(shape.end() - (n.rank(1) == 1 ? 1 : 2));
  return n.Out(n.e.Reshape(y, shape));
}

// alpha op(A) op(B) + beta C.
absl::Status Gemm(Node& n) {
  if (n.rank(0) != 2 || n.rank(1) != 2) return n.Bad("operands have to be matrices");
  V y = n.e.Matmul(n[0], n[1], n.Int("transA", 0) != 0, n.Int("transB", 0) != 0);
  y = n.e.MulScalar(y, n.Float("alpha", 1));
  const double beta = n.Float("beta", 1);
  if (n.Has(2) && beta != 0) y = n.e.Add(y, n.e.MulScalar(n[2], beta));
  return n.Out(y);
}

}  // namespace

std::vector<Rule> ProductRules() { return NeverEmpty({{"MatMul", MatMul, 2}, {"Gemm", Gemm, 2}}); }

}  // namespace ampd::models::onnx
