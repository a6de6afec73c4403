// Builds graphs out of values that are either known at import or computed by nodes. Internal to the importer.
#ifndef AMPD_ENGINE_MODELS_ONNX_EMITTER_H_
#define AMPD_ENGINE_MODELS_ONNX_EMITTER_H_

#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/ir/graph.h"
#include "engine/models/onnx/host.h"

namespace ampd::models::onnx {

struct Recipe;

// A tensor of the model, in ONNX's layout. Images, [N, C, H, W] there, may exist as [N, H, W, C] alone: then whoever
// needs the other order makes it, and chains of image operations move no data.
struct Value {
  ir::TensorType type;
  TensorPtr host;          // known at import; always so for tensors without elements
  ir::ValueId ir = -1;     // in the graph, laid out as ONNX does
  ir::ValueId image = -1;  // in the graph, as [N, H, W, C]
  bool of_shape = false;   // known, and computed from the shape of something
  const Recipe* recipe = nullptr;
  TensorPtr specialised;  // what it is for the input values given at import, once someone asked
};
using V = Value*;  // owned by the emitter

// Every operation takes known values as well as computed ones, and gives a known one where its operands are known and
// small. The first error sticks: later operations do nothing and give a scalar, and status() tells. So a caller may
// write an expression and look at the end; it may index the shape of such a result only through Extent().
class Emitter {
 public:
  // `file_bytes`: of the model, whose own tensors are known values too.
  Emitter(ir::Graph* graph, double max_elements, int64_t file_bytes = 0);

  const absl::Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  // Remembers the error, if it is the first. Gives a scalar.
  V Fail(absl::Status status);
  absl::Status TakeStatus() { return std::exchange(status_, absl::OkStatus()); }
  // Nodes that follow belong to layer `name`.
  void SetLayer(std::string name) { layer_ = std::move(name); }
  ir::Graph* graph() { return graph_; }

  // False, and an error, where a constant of so many elements would be too large.
  bool AllowConstant(double elements);
  // The same for a tensor of more elements than an i32 counts, which is to be indexed.
  bool AllowIndices(V x);
  // RESOURCE_EXHAUSTED when known values, which stay until the import ends, take too much memory: it is the first one
  // too many, for one alone cannot be large (AllowConstant) unless the file has it so.
  V Known(TensorPtr tensor);
  V Ints(absl::Span<const int64_t> values) { return Known(HostInts(values)); }
  V Scalar(DType dtype, double value) { return Known(HostFilled(dtype, {}, value)); }
  V FromGraph(ir::ValueId id);
  // [N, H, W, C] in the graph, [N, C, H, W] as a value.
  V FromImage(ir::ValueId id);
  V Placeholder();

  // The value in the graph, in ONNX's layout or as an image (4 axes); makes it if need be.
  ir::ValueId Id(V v);
  ir::ValueId ImageId(V v);

  // Whether it is computed from the graph's input; what is known, and what follows from parameters alone, is not.
  bool FollowsInput(V v);

  static int64_t Extent(V v, int64_t axis);
  static int Rank(V v) { return static_cast<int>(v->type.shape.size()); }
  static int64_t Size(V v) { return NumElements(v->type.shape); }

  // One node. 16-bit operands of an operation that computes in fp32 only are cast, and its float results back.
  std::vector<V> Op(absl::string_view op, const std::vector<V>& inputs, ir::Attributes attributes = {});
  V Op1(absl::string_view op, const std::vector<V>& inputs, ir::Attributes attributes = {});
  // As Op, on images: operands of 4 axes that `images` marks are read as such, results of 4 axes are images.
  std::vector<V> ImageOp(absl::string_view op, const std::vector<V>& inputs, const std::vector<bool>& images,
                         ir::Attributes attributes);

  // Elementwise, with the engine's names. Operands of Binary and Where broadcast and have one dtype.
  V Unary(absl::string_view op, V x, ir::Attributes attributes = {});
  V Binary(absl::string_view op, V a, V b);
  V Add(V a, V b) { return Binary("add", a, b); }
  V Sub(V a, V b) { return Binary("sub", a, b); }
  V Mul(V a, V b) { return Binary("mul", a, b); }
  V Div(V a, V b) { return Binary("div", a, b); }
  V AddScalar(V a, double b) { return b == 0 ? a : Add(a, Scalar(a->type.dtype, b)); }
  V MulScalar(V a, double b) { return b == 1 ? a : Mul(a, Scalar(a->type.dtype, b)); }
  V Where(V condition, V a, V b);
  // The square root of a sum or mean of squares. Where that is 0 its gradient is 0, as torch.norm's, and not the root's
  // own, which is infinite and NaN once it is masked or multiplied by the 0 that was squared.
  V RootOfSquares(V sum);
  V Cast(V x, DType dtype, bool saturate = false);

  // Moving data. Shapes are checked; axes are in range and not negative.
  V Reshape(V x, const Shape& shape);
  V Transpose(V x, const std::vector<int64_t>& permutation);
  // By axis: from, to (not included; -1 past the first element where step < 0) and step, with from in range.
  V Slice(V x, const std::vector<int64_t>& starts, const std::vector<int64_t>& ends, const std::vector<int64_t>& steps);
  // Elements begin..end-1 of one axis.
  V SliceAxis(V x, int axis, int64_t begin, int64_t end);
  V Expand(V x, const Shape& shape);
  V Concat(const std::vector<V>& parts, int axis);
  // `indices` are integers of any dtype, in -extent..extent-1.
  V Gather(V x, V indices, int axis);
  // Element p of the result is x's element at p with coordinate `axis` replaced by indices[p].
  V GatherElements(V x, V indices, int axis);
  // Adds begins[a] elements before and ends[a] behind those of every axis, all of them `value`.
  V Pad(V x, const std::vector<int64_t>& begins, const std::vector<int64_t>& ends, double value);
  // i32 as the gathering ops take them; known ones are in range of an axis of `extent` and not negative.
  V Positions(V indices, int64_t extent);

  // `op` is "reduce_sum", ...; without axes nothing is reduced.
  V Reduce(absl::string_view op, V x, const std::vector<int64_t>& axes, bool keepdims);
  // Matrix product over the last two axes, broadcasting the others.
  V Matmul(V a, V b, bool transpose_a = false, bool transpose_b = false);

 private:
  bool Foldable(const std::vector<V>& inputs, double elements) const;
  bool Fits(const Shape& shape);
  V NewValue(ir::TensorType type);
  V Empty(DType dtype, const Shape& shape) { return Known(std::make_shared<Tensor>(dtype, shape)); }
  std::vector<ir::ValueId> EmitNode(ir::OpKind op, std::vector<ir::ValueId> inputs, ir::Attributes attributes);
  ir::ValueId CastId(ir::ValueId v, DType dtype);
  ir::ValueId TransposeId(ir::ValueId v, const std::vector<int64_t>& permutation);
  // Whether an elementwise operation on these is done on images, and the image forms.
  bool PrefersImages(const std::vector<V>& inputs) const;
  V AsImageOperand(V v);
  V Elementwise(absl::string_view op, const std::vector<V>& inputs, ir::Attributes attributes);

  ir::Graph* graph_;
  double elements_left_;
  double known_bytes_left_;
  std::set<const Tensor*> known_;  // those that are counted
  absl::Status status_;
  std::string layer_;
  std::map<std::string, int> names_;
  std::deque<Value> values_;
  std::map<const Tensor*, ir::ValueId> constants_;
  // By value of the graph, of the outputs of its first followed_nodes_ nodes and of the values before: FollowsInput().
  std::vector<bool> follows_;
  size_t followed_nodes_ = 0;
  std::map<std::pair<ir::ValueId, DType>, ir::ValueId> casts_;
};

}  // namespace ampd::models::onnx

#endif  // AMPD_ENGINE_MODELS_ONNX_EMITTER_H_
