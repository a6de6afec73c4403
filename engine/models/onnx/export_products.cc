// Matrix products.
#include <utility>

#include "engine/core/status.h"
#include "engine/models/onnx/exporter.h"

namespace ampd::models::onnx {
namespace {

using ir::OpKind;

// The last two axes exchanged.
Arrangement Exchanged(size_t rank) {
  Arrangement at = InOrder(rank);
  std::swap(at.axes[rank - 1], at.axes[rank - 2]);
  return at;
}

// A matrix that is at hand the other way round is read so.
T Matrix(ExportNode& n, size_t i, int64_t* transposed) {
  const Arrangement exchanged = Exchanged(2);
  if (n.e.At(n.in(i)) != exchanged) return n.e.Get(n.in(i));
  *transposed = 1 - *transposed;
  return n.e.Get(n.in(i), exchanged);
}

// Two matrices, and the bias behind them.
absl::Status Gemm(ExportNode& n) {
  int64_t transpose_a = n.a.Bool("transpose_a"), transpose_b = n.a.Bool("transpose_b");
  T a, b;
  // Features of a flattened image are in ONNX's order where the weight's are.
  const Shape image = transpose_b != 0 && transpose_a == 0 ? n.e.At(n.in(1)).flattened : Shape();
  if (!image.empty()) {
    a = n.e.Get(n.in(0), InOrder(2, image));
    b = n.e.Get(n.in(1), InOrder(2, image));
  } else {
    a = Matrix(n, 0, &transpose_a);
    b = Matrix(n, 1, &transpose_b);
  }
  const FollowingBias bias = TakeBias(n);
  std::vector<T> inputs = {a, b};
  T y;
  if (bias.bias == nullptr && transpose_a == 0 && transpose_b == 0) {
    y = n.e.Op("MatMul", inputs, n.out_dims());
  } else {
    if (bias.bias != nullptr) inputs.push_back(bias.bias);
    ir::Attributes attributes;
    if (transpose_a != 0) attributes.Set("transA", transpose_a);
    if (transpose_b != 0) attributes.Set("transB", transpose_b);
    y = n.e.Op("Gemm", inputs, n.out_dims(), attributes);
  }
  n.e.Bind(bias.result, InOrder(2), y);
  return absl::OkStatus();
}

absl::Status Matmul(ExportNode& n) {
  if (n.rank(0) == 2 && n.rank(1) == 2) return Gemm(n);
  const T a = n.e.Get(n.in(0), n.a.Bool("transpose_a") ? Exchanged(n.rank(0)) : InOrder(n.rank(0)));
  const T b = n.e.Get(n.in(1), n.a.Bool("transpose_b") ? Exchanged(n.rank(1)) : InOrder(n.rank(1)));
  n.e.Bind(n.out(), InOrder(n.out_dims().size()), n.e.Op("MatMul", {a, b}, n.out_dims()));
  return absl::OkStatus();
}

}  // namespace

std::vector<Writer> ProductWriters() { return {{OpKind::kMatmul, Matmul}}; }

}  // namespace ampd::models::onnx
