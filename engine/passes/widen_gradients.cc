#include "engine/passes/widen_gradients.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/passes/readers.h"

namespace ampd::passes {
namespace {

using ir::NodeId;
using ir::OpKind;
using ir::ValueId;

constexpr int64_t kRowBytes = 16;

bool MovesOnly(OpKind op) { return op == OpKind::kReshape || op == OpKind::kSlice || op == OpKind::kTranspose; }

// Whether `slice` keeps what comes first along both axes of a matrix.
bool KeepsFirst(const ir::Node& slice, const Shape& shape) {
  const auto all = [&](const char* name, int64_t value) {
    const std::vector<int64_t> numbers = slice.attributes.Ints(name);
    return numbers.size() == 2 && std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n == value; });
  };
  return slice.op == OpKind::kSlice && shape.size() == 2 && all("starts", 0) && all("steps", 1);
}

class Widener {
 public:
  explicit Widener(ir::Graph graph) : graph_(std::move(graph)), reads_(ReadsOf(graph_)) {}

  ir::Graph Run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].op == OpKind::kAccumulateGrad) Widen(graph_.nodes[n].inputs[0]);
    }
    RemoveNodes(gone_, &graph_);
    return std::move(graph_);
  }

 private:
  ir::Node& Producer(ValueId v) { return graph_.nodes[graph_.values[v].producer]; }

  // Back from `v`, a gradient, to the product.
  void Widen(ValueId v) {
    std::vector<ValueId> way;
    while (IsHalf(graph_.type(v).dtype) && graph_.values[v].kind == ir::ValueKind::kActivation && reads_[v] == 1) {
      way.push_back(v);
      const ir::Node& node = Producer(v);
      if (node.op == OpKind::kMatmul) return LeaveInF32(way);
      if (!MovesOnly(node.op)) return;
      v = node.inputs[0];
    }
  }

  // `way` ends at the product's result.
  void LeaveInF32(const std::vector<ValueId>& way) {
    ir::Node& product = Producer(way.back());
    product.attributes.Set("dtype", std::string(DTypeName(DType::kF32)));
    for (ValueId v : way) graph_.values[v].type.dtype = DType::kF32;
    if (way.size() > 1) Crop(&product, way[way.size() - 2]);
  }

  // `behind` is what the node behind the product makes.
  void Crop(ir::Node* product, ValueId behind) {
    const NodeId slice = graph_.values[behind].producer;
    const Shape& shape = graph_.type(behind).shape;
    const auto is_matrix = [&](int i) { return graph_.type(product->inputs[i]).shape.size() == 2; };
    // Matrix units want a multiple of 16 columns of 8-bit codes.
    if (!KeepsFirst(graph_.nodes[slice], shape) || !is_matrix(0) || !is_matrix(1)) return;
    if (IsF8(graph_.type(product->inputs[0]).dtype)) return;
    if (shape[1] * SizeOf(DType::kF32) % kRowBytes != 0) return;
    product->attributes.Set("crop", std::vector<int64_t>(shape.begin(), shape.end()));
    product->outputs = {behind};
    gone_.insert(slice);
  }

  ir::Graph graph_;
  const std::vector<int> reads_;
  std::set<NodeId> gone_;
};

}  // namespace

absl::StatusOr<ir::Graph> WidenGradients(ir::Graph graph) { return Widener(std::move(graph)).Run(); }

}  // namespace ampd::passes
