// Tensors whose values are known at import, and arithmetic on them: shapes, axes, indices and small constants.
// Floats are computed in double and rounded once; integers wrap around. Internal to the importer.
#ifndef AMPD_ENGINE_MODELS_ONNX_HOST_H_
#define AMPD_ENGINE_MODELS_ONNX_HOST_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "engine/core/tensor.h"

namespace ampd::models::onnx {

using TensorPtr = std::shared_ptr<const Tensor>;

TensorPtr HostInts(absl::Span<const int64_t> values);  // i64 [n]
TensorPtr HostFilled(DType dtype, const Shape& shape, double value);

double DoubleAt(const TensorView& tensor, int64_t i);
int64_t IntAt(const TensorView& tensor, int64_t i);  // floats are truncated; NaN and what does not fit gives 0
std::vector<int64_t> ToInts(const Tensor& tensor);
std::vector<double> ToDoubles(const Tensor& tensor);

// The same bytes under `shape`, which has as many elements.
TensorPtr HostReshape(const TensorPtr& x, const Shape& shape);
// Element (i, j, ...) of the result is x's element offset + i * strides[0] + j * strides[1] + ...
TensorPtr HostStrided(const Tensor& x, const Shape& shape, absl::Span<const int64_t> strides, int64_t offset);
// As numpy.concatenate; extents other than `axis` are equal.
TensorPtr HostConcat(const std::vector<TensorPtr>& parts, int axis);
// As numpy.take along `axis`; every index is in range.
TensorPtr HostGather(const Tensor& x, absl::Span<const int64_t> indices, const Shape& index_shape, int axis);
// `saturate`: to 8-bit floats, see engine/core/float8.h.
TensorPtr HostCast(const TensorPtr& x, DType dtype, bool saturate);

// Row-major strides in elements; 0 along extents of 1 when `broadcast` is the shape to be broadcast to, to the right.
std::vector<int64_t> StridesOf(const Shape& shape);
std::vector<int64_t> BroadcastStrides(const Shape& shape, const Shape& to);
// numpy's rule; nullopt where extents do not fit.
absl::optional<Shape> BroadcastShape(const Shape& a, const Shape& b);

// Elementwise with the engine's names of operations; null for one that is not known here. Operands have one dtype and
// shapes that broadcast. Integer division by zero gives null.
TensorPtr HostUnary(absl::string_view op, const Tensor& x);
TensorPtr HostBinary(absl::string_view op, const Tensor& a, const Tensor& b);
TensorPtr HostWhere(const Tensor& condition, const Tensor& a, const Tensor& b);
// "reduce_sum", "reduce_mean", "reduce_max", "reduce_min" or "reduce_prod" over `axes` (true: reduced); extents become
// 1. Nothing to reduce gives 0, NaN, -infinity, infinity, 1 (integers: the type's least and greatest).
TensorPtr HostReduce(absl::string_view op, const Tensor& x, const std::vector<bool>& axes);

}  // namespace ampd::models::onnx

#endif  // AMPD_ENGINE_MODELS_ONNX_HOST_H_
