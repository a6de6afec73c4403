// Walks a graph and writes it node by node. Internal to the exporter.
#ifndef AMPD_ENGINE_MODELS_ONNX_EXPORTER_H_
#define AMPD_ENGINE_MODELS_ONNX_EXPORTER_H_

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/core/tensor.h"
#include "engine/models/onnx/export.h"

namespace ampd::models::onnx {

// An extent of a tensor: so many, or so many for each sample of the batch.
struct Dim {
  int64_t count = 1;
  bool per_sample = false;
  bool operator==(const Dim&) const = default;
};
using Dims = std::vector<Dim>;

Dims FixedDims(absl::Span<const int64_t> shape);

// How a tensor of the model lies relative to the value of the graph that it holds.
struct Arrangement {
  // Axis d of the tensor is axis axes[d] of the value.
  std::vector<int64_t> axes;
  // {h, w, c}: the last axis is an image that is flattened, (h, w, c) in the value and (c, h, w) in the tensor; `axes`
  // are in order then.
  Shape flattened;

  bool operator==(const Arrangement&) const = default;
  bool in_order() const;
};

// The same axes in the same order.
Arrangement InOrder(size_t rank, const Shape& flattened = {});
// The last axis behind the first: [N, ..., C] as [N, C, ...].
Arrangement ChannelsFirst(size_t rank);

// A tensor of the model.
struct Written {
  std::string name;
  Dims dims;
  // Of a reshape: what it is a reshape of.
  const Written* source = nullptr;
};
using T = const Written*;  // owned by the exporter; as an input null is one left out

// For one export; graph, twin and options outlive it. The first error sticks: later operations do nothing of use, and
// status() tells. So a writer may write an expression and look at the end.
class Exporter {
 public:
  Exporter(const ir::Graph& graph, const ir::Graph& twin, const ExportOptions& options);
  absl::StatusOr<std::string> Run();

  const ir::Graph& graph() const { return graph_; }
  const ir::Graph& twin() const { return twin_; }
  const absl::Status& status() const { return status_; }
  // Remembers the error, if it is the first.
  T Fail(absl::Status status);

  // Of a value, in the graph's order.
  const Dims& DimsOf(ir::ValueId v);
  // The arrangement in which the value is at hand; that of its first tensor.
  Arrangement At(ir::ValueId v);
  // The value, arranged so; makes it if need be.
  T Get(ir::ValueId v, const Arrangement& arrangement);
  T Get(ir::ValueId v) { return Get(v, InOrder(graph_.type(v).shape.size())); }
  // Says that `tensor` holds the value.
  void Bind(ir::ValueId v, const Arrangement& arrangement, T tensor);
  // y holds in every arrangement what x does under the one that `axes` (of a transposition) makes of it.
  void BindTransposed(ir::ValueId x, ir::ValueId y, const std::vector<int64_t>& axes);

  // In which arrangement to do an elementwise operation on `operands`, and an operand for it: of fewer axes or of
  // extents of 1 where ONNX broadcasts them.
  Arrangement Common(const std::vector<ir::ValueId>& operands, ir::ValueId result);
  T Operand(ir::ValueId v, const Arrangement& arrangement, size_t rank);

  // A node; `dims` are its output's.
  T Op(const std::string& op, const std::vector<T>& inputs, Dims dims, const ir::Attributes& attributes = {});
  // One of several outputs; unnamed where `wanted` is false.
  std::vector<T> Ops(const std::string& op, const std::vector<T>& inputs, const std::vector<Dims>& dims,
                     const std::vector<bool>& wanted, const ir::Attributes& attributes = {});
  T Reshape(T x, const Dims& dims);
  // Output axis d is x's axis axes[d].
  T Transpose(T x, const std::vector<int64_t>& axes);
  // x broadcast to `dims`.
  T Expand(T x, const Dims& dims);

  T Ints(const std::vector<int64_t>& values, const std::string& hint);
  T Scalar(DType dtype, double value);
  // A Constant node: what has an initializer is trained where a training begins with the model.
  T Constant(const std::string& name, const Tensor& tensor);
  // Initializer of raw bytes: of a parameter or state.
  T Initializer(const std::string& name, DType dtype, const Shape& shape, absl::string_view bytes);
  // `name`, or with a number where something has it.
  std::string UniqueName(const std::string& name);
  // As on disk.
  absl::string_view PersistentBytes(ir::ValueId v);

  // How often nodes and outputs read the value.
  int Uses(ir::ValueId v) const { return uses_[static_cast<size_t>(v)]; }
  // The one node that reads the value; null where it is not one.
  const ir::Node* OnlyReader(ir::ValueId v) const;
  // Whether the value can be had before the node that is being written.
  bool IsAtHand(ir::ValueId v) const;
  // The node was written by another.
  void Skip(const ir::Node& node) { written_.insert(&node); }

 private:
  struct Held {
    Arrangement arrangement;
    T tensor;
  };

  absl::Status CheckTwin();
  absl::Status CheckNodes(const ir::Node& a, const ir::Node& b);
  absl::Status AddInputs();
  absl::Status WriteNode(const ir::Node& node);
  absl::Status AddOutputs();
  absl::StatusOr<std::string> Finish();
  void CountUses();
  bool IsReadAsIntegers(ir::ValueId v) const;
  int CheckedType(ir::ValueId v);
  void Prepare(ir::ValueId v);
  T ConstantValue(ir::ValueId v, const Arrangement& arrangement);
  T Arranged(ir::ValueId v, const Held& from, const Arrangement& to);
  T Flattened(T x, const Shape& image, bool to_tensor);
  T BatchSize();

  bool IsInputOrOutput(const std::string& name) const;
  T NewTensor(std::string name, Dims dims, T source = nullptr);
  T ConstantNode(const std::string& name, const Tensor& tensor, const Shape& shape);
  // False, and a failure, where ONNX has not the type.
  bool Fill(const std::string& name, DType dtype, const Shape& shape, absl::string_view bytes,
            ::onnx::TensorProto* proto);

  const ir::Graph& graph_;
  const ir::Graph& twin_;
  const ExportOptions& options_;
  absl::Status status_;
  int64_t batch_ = 0, twin_batch_ = 0;
  std::vector<int> uses_;
  std::vector<const ir::Node*> reader_;
  std::map<ir::ValueId, Dims> dims_;
  std::map<ir::ValueId, std::vector<Held>> held_;
  std::set<const ir::Node*> written_;
  std::string prefix_;  // of names: the node being written
  std::deque<Written> tensors_;
  std::map<std::string, T> shared_;  // small constants, by what they are
  std::set<std::string> names_;
  std::map<std::string, int> repeats_;
  T batch_size_ = nullptr;
  // In the order of creation; what no output needs is left out at the end.
  std::deque<::onnx::TensorProto> initializers_;
  std::deque<::onnx::NodeProto> nodes_;
  ::onnx::ModelProto model_;
};

// One node of the graph, as its writer sees it.
class ExportNode {
 public:
  ExportNode(Exporter* exporter, const ir::Node& node, const char* onnx)
      : e(*exporter), a(node.attributes), onnx(onnx), node_(node) {}

  Exporter& e;
  const ir::Attributes& a;
  // Of the writer's row.
  const char* const onnx;

  const ir::Node& node() const { return node_; }
  size_t inputs() const { return node_.inputs.size(); }
  bool Has(size_t i) const { return i < node_.inputs.size(); }
  ir::ValueId in(size_t i) const { return node_.inputs[i]; }
  ir::ValueId out(size_t i = 0) const { return node_.outputs[i]; }
  const ir::TensorType& type(size_t i) const { return e.graph().type(in(i)); }
  size_t rank(size_t i) const { return type(i).shape.size(); }
  const Dims& dims(size_t i) const { return e.DimsOf(in(i)); }
  const Dims& out_dims(size_t i = 0) const { return e.DimsOf(out(i)); }
  // FAILED_PRECONDITION unless only the outputs below `count` are read.
  absl::Status OnlyOutputs(size_t count) const;
  // FAILED_PRECONDITION that names layer, operation and node.
  absl::Status Refuse(const std::string& what) const;

 private:
  const ir::Node& node_;
};

// The bias, one number for each place on the last axis, that is all that reads the node's output, and the value that
// adding it gives; it is written with the node then. Else null, and the node's own output.
struct FollowingBias {
  T bias = nullptr;
  ir::ValueId result = -1;
};
FollowingBias TakeBias(ExportNode& n);

// How an operation is written; `onnx` for writers of several.
struct Writer {
  ir::OpKind op;
  absl::Status (*write)(ExportNode& n);
  const char* onnx = nullptr;
};

// One list a family, in the file of its name.
std::vector<Writer> ElementwiseWriters();
std::vector<Writer> MovementWriters();
std::vector<Writer> ReductionWriters();
std::vector<Writer> ProductWriters();
std::vector<Writer> WindowWriters();
std::vector<Writer> NormWriters();
std::vector<Writer> AttentionWriters();
std::vector<Writer> RecurrentWriters();

// Null for an operation that has no form in ONNX.
const Writer* FindWriter(ir::OpKind op);

// ONNX's number of an element type; 0 where ONNX 1.12 has none.
int ElementTypeOf(DType dtype);

}  // namespace ampd::models::onnx

#endif  // AMPD_ENGINE_MODELS_ONNX_EXPORTER_H_
