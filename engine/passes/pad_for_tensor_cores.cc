#include "engine/passes/pad_for_tensor_cores.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/types/optional.h"
#include "engine/core/status.h"
#include "engine/core/tensor.h"
#include "engine/ops/op_def.h"

namespace ampd::passes {
namespace {

using ir::OpKind;
using ir::ValueId;
using Ints = std::vector<int64_t>;

// One extent of a product, shared by its operands and its result.
struct Extent {
  const char* name;
  int64_t size;
  int64_t padded;
};

// A product as its extents, and which of them each axis of inputs 0 and 1 and of the result is.
struct Product {
  std::vector<Extent> extents;
  std::vector<std::pair<size_t, int>> axes[3];  // (axis, extent); axes that are not listed stay

  bool pads() const {
    return std::any_of(extents.begin(), extents.end(), [](const Extent& e) { return e.padded != e.size; });
  }
  Shape Padded(int tensor, Shape shape) const {
    for (const auto& [axis, extent] : axes[tensor]) shape[axis] = extents[extent].padded;
    return shape;
  }
};

Product MatrixProduct(const ir::Graph& g, const ir::Node& node) {
  const Shape &a = g.type(node.inputs[0]).shape, &b = g.type(node.inputs[1]).shape;
  const bool ta = node.attributes.Bool("transpose_a"), tb = node.attributes.Bool("transpose_b");
  const size_t ra = a.size(), rb = b.size(), ry = g.type(node.outputs[0]).shape.size();
  const size_t rows = ra - (ta ? 1 : 2), inner = ra - (ta ? 2 : 1);
  Product p;
  p.extents = {{"rows", a[rows], 0}, {"inner", a[inner], 0}, {"columns", b[rb - (tb ? 2 : 1)], 0}};
  p.axes[0] = {{rows, 0}, {inner, 1}};
  p.axes[1] = {{rb - (tb ? 1 : 2), 1}, {rb - (tb ? 2 : 1), 2}};
  p.axes[2] = {{ry - 2, 0}, {ry - 1, 2}};
  return p;
}

// Which of a convolution's tensors (inputs 0 and 1, the result) is the image, the filters and the convolved image.
Product Convolution(const ir::Graph& g, const ir::Node& node, int image, int filters, int result) {
  const ValueId tensors[] = {node.inputs[0], node.inputs[1], node.outputs[0]};
  const Shape& w = g.type(tensors[filters]).shape;
  Product p;
  p.extents = {{"channels", w[3], 0}, {"filters", w[0], 0}};
  p.axes[image] = {{3, 0}};
  p.axes[filters] = {{0, 1}, {3, 0}};
  p.axes[result] = {{3, 1}};
  return p;
}

absl::optional<Product> AsProduct(const ir::Graph& g, const ir::Node& node) {
  if (node.op == OpKind::kMatmul) return MatrixProduct(g, node);
  if (node.attributes.Int("groups", 1) != 1) return absl::nullopt;
  if (node.op == OpKind::kConv2d) return Convolution(g, node, 0, 1, 2);
  if (node.op == OpKind::kConv2dGradInput || node.op == OpKind::kConvTranspose2d) return Convolution(g, node, 2, 1, 0);
  if (node.op == OpKind::kConv2dGradFilter) return Convolution(g, node, 1, 2, 0);
  return absl::nullopt;
}

// Elementwise operations whose value at zeros is finite, so that nobody meets an infinity that padding made. Not
// dropout, whose random numbers count logical elements.
bool RunsOnPadding(OpKind op) {
  switch (op) {
    case OpKind::kCast:
    case OpKind::kAdd:
    case OpKind::kSub:
    case OpKind::kMul:
    case OpKind::kNeg:
    case OpKind::kAbs:
    case OpKind::kRelu:
    case OpKind::kReluGrad:
    case OpKind::kLeakyRelu:
    case OpKind::kLeakyReluGrad:
    case OpKind::kElu:
    case OpKind::kEluGrad:
    case OpKind::kGelu:
    case OpKind::kGeluGrad:
    case OpKind::kSilu:
    case OpKind::kSiluGrad:
    case OpKind::kSigmoid:
    case OpKind::kSigmoidGrad:
    case OpKind::kTanh:
    case OpKind::kTanhGrad:
    case OpKind::kSoftplus:
    case OpKind::kSoftplusGrad:
    case OpKind::kBiasAdd:
      return true;
    default:
      return false;
  }
}

bool SameButLast(const Shape& a, const Shape& b) {
  return a.size() == b.size() && !a.empty() && std::equal(a.begin(), a.end() - 1, b.begin());
}

class Padder {
 public:
  Padder(ir::Graph graph, const PaddingPolicy& policy, std::vector<PaddedExtent>* report)
      : graph_(std::move(graph)), policy_(policy), report_(report), old_(std::move(graph_.nodes)) {
    graph_.nodes.clear();
    for (const ir::Node& node : old_) names_.insert(node.name);
  }

  absl::StatusOr<ir::Graph> Run() {
    for (const ir::Node& node : old_) AMPD_RETURN_IF_ERROR(Copy(node));
    for (const auto& [name, v] : graph_.outputs) AMPD_RETURN_IF_ERROR(NeedLogical(v));
    graph_.RefreshProducers();
    return std::move(graph_);
  }

 private:
  // The padded form of a logical value, from which it is cut when someone wants it.
  struct Twin {
    ValueId padded = -1;
    bool zeroed = false;  // its padding is zeros
    bool cut = false;     // the logical value exists as well
    const ir::Node* node = nullptr;
  };

  absl::Status Copy(const ir::Node& node) {
    if (const auto product = PlanProduct(node)) return AddProduct(node, *product);
    if (const int64_t last = PaddedLast(node); last > 0) return AddElementwise(node, last);
    if (node.op == OpKind::kBiasAddGrad && LastTwin(node.inputs[0]) != nullptr) return AddOnTwin(node, {});
    if (node.op == OpKind::kReshape && KeepsLast(node)) return AddReshape(node);
    if (const int logits = LogitsOf(node.op); logits >= 0 && LastTwin(node.inputs[logits]) != nullptr) {
      return AddLoss(node, logits);
    }
    for (ValueId v : node.inputs) AMPD_RETURN_IF_ERROR(NeedLogical(v));
    graph_.nodes.push_back(node);
    return absl::OkStatus();
  }

  // The product with its padded extents; nullopt where nothing is to be padded.
  absl::optional<Product> PlanProduct(const ir::Node& node) const {
    absl::optional<Product> product = AsProduct(graph_, node);
    if (!product) return absl::nullopt;
    const DType a = graph_.type(node.inputs[0]).dtype, b = graph_.type(node.inputs[1]).dtype;
    if (SizeOf(a) > 2 || SizeOf(b) > 2) return absl::nullopt;
    const int64_t multiple = IsF8(a) || IsF8(b) ? policy_.multiple_8bit : policy_.multiple_16bit;
    for (Extent& e : product->extents) e.padded = e.size;
    const ValueId tensors[] = {node.inputs[0], node.inputs[1], node.outputs[0]};
    for (int t = 0; t < 3; ++t) {
      const size_t last = graph_.type(tensors[t]).shape.size() - 1;
      for (const auto& [axis, extent] : product->axes[t]) {
        Extent& e = product->extents[extent];
        if (axis == last) e.padded = AlignUp(e.size, multiple);
      }
    }
    double growth = 1;
    for (const Extent& e : product->extents) growth *= static_cast<double>(e.padded) / static_cast<double>(e.size);
    if (!product->pads() || growth > static_cast<double>(kLargestPaddedGrowth)) return absl::nullopt;
    return product;
  }

  absl::Status AddProduct(const ir::Node& node, const Product& product) {
    ir::Node padded = node;
    for (int i : {0, 1}) {
      const Shape shape = product.Padded(i, graph_.type(node.inputs[i]).shape);
      AMPD_ASSIGN_OR_RETURN(padded.inputs[i], Padded(node.inputs[i], shape, node));
    }
    const Shape result = product.Padded(2, graph_.type(node.outputs[0]).shape);
    const Ints extents(result.begin(), result.end());
    if (node.op == OpKind::kConv2dGradInput) padded.attributes.Set("input_shape", extents);
    if (node.op == OpKind::kConv2dGradFilter) padded.attributes.Set("filter_shape", extents);
    for (const Extent& e : product.extents) {
      if (report_ != nullptr && e.padded != e.size) {
        report_->push_back({node.name, node.layer, node.stage, e.name, e.size, e.padded});
      }
    }
    if (result == graph_.type(node.outputs[0]).shape) {
      graph_.nodes.push_back(std::move(padded));
      return absl::OkStatus();
    }
    return PushTwin(node, std::move(padded), result, true);
  }

  // Adds `padded`, whose result is the padded form of that of `node`.
  absl::Status PushTwin(const ir::Node& node, ir::Node padded, const Shape& shape, bool zeroed) {
    const ValueId logical = node.outputs[0];
    // The padded value takes the name: it is what this node writes, and what an overflow event is to name.
    const std::string name = graph_.values[logical].name;
    padded.outputs[0] = graph_.AddValue(name, {graph_.type(logical).dtype, shape});
    graph_.values[logical].name = absl::StrCat(name, ".logical");
    twins_[logical] = {padded.outputs[0], zeroed, false, &node};
    graph_.nodes.push_back(std::move(padded));
    return absl::OkStatus();
  }

  // The twin of `v` if it has one that differs from it in the last axis alone.
  Twin* LastTwin(ValueId v) {
    auto it = twins_.find(v);
    if (it == twins_.end()) return nullptr;
    return SameButLast(graph_.type(v).shape, graph_.type(it->second.padded).shape) ? &it->second : nullptr;
  }

  // The last extent on which an elementwise `node` can run, where all its inputs of full shape have it; else 0.
  int64_t PaddedLast(const ir::Node& node) {
    if (!RunsOnPadding(node.op) || node.outputs.size() != 1) return 0;
    const Shape& shape = graph_.type(node.outputs[0]).shape;
    if (shape.empty()) return 0;
    int64_t last = 0;
    for (ValueId v : node.inputs) {
      if (graph_.type(v).shape != shape) continue;
      const Twin* twin = LastTwin(v);
      const int64_t extent = twin == nullptr ? 0 : graph_.type(twin->padded).shape.back();
      if (extent == 0 || (last != 0 && last != extent)) return 0;
      last = extent;
    }
    return last;
  }

  absl::Status AddElementwise(const ir::Node& node, int64_t last) {
    std::map<ValueId, ValueId> inputs;
    for (ValueId v : node.inputs) {
      Shape shape = graph_.type(v).shape;
      if (shape == graph_.type(node.outputs[0]).shape) continue;
      if (shape.empty() || shape.back() == 1) {
        AMPD_RETURN_IF_ERROR(NeedLogical(v));
        inputs[v] = v;
        continue;
      }
      shape.back() = last;
      AMPD_ASSIGN_OR_RETURN(inputs[v], Padded(v, shape, node));
    }
    return AddOnTwin(node, inputs);
  }

  // `node` on `inputs`, or on the twins of those that are not listed.
  absl::Status AddOnTwin(const ir::Node& node, const std::map<ValueId, ValueId>& inputs) {
    ir::Node padded = node;
    int64_t last = 0;
    for (ValueId& v : padded.inputs) {
      const auto it = inputs.find(v);
      if (it == inputs.end()) last = graph_.type(twins_[v].padded).shape.back();
      v = it == inputs.end() ? twins_[v].padded : it->second;
    }
    Shape shape = graph_.type(node.outputs[0]).shape;
    shape.back() = last;
    const bool zeroed = node.op == OpKind::kCast && twins_[node.inputs[0]].zeroed;
    return PushTwin(node, std::move(padded), shape, zeroed);
  }

  // Which input of a loss may have columns behind its classes; -1 of other ops.
  static int LogitsOf(OpKind op) {
    switch (op) {
      case OpKind::kSoftmaxCrossEntropy:
      case OpKind::kSoftCrossEntropy:
        return 0;
      case OpKind::kSoftmaxCrossEntropyGrad:
      case OpKind::kSoftCrossEntropyGrad:
        return 1;
      default:
        return -1;
    }
  }

  absl::Status AddLoss(const ir::Node& node, int logits) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (static_cast<int>(i) != logits) AMPD_RETURN_IF_ERROR(NeedLogical(node.inputs[i]));
    }
    const ir::TensorType logical = graph_.type(node.inputs[logits]);
    ir::Node padded = node;
    padded.inputs[logits] = twins_[node.inputs[logits]].padded;
    padded.attributes.Set("classes", logical.shape.back());
    if (graph_.type(node.outputs[0]).shape == logical.shape) {
      const Shape shape = graph_.type(padded.inputs[logits]).shape;
      return PushTwin(node, std::move(padded), shape, true);
    }
    graph_.nodes.push_back(std::move(padded));
    return absl::OkStatus();
  }

  bool KeepsLast(const ir::Node& node) {
    const Shape &from = graph_.type(node.inputs[0]).shape, &to = graph_.type(node.outputs[0]).shape;
    const Twin* twin = LastTwin(node.inputs[0]);
    return twin != nullptr && !twin->cut && !to.empty() && to.back() == from.back();
  }

  absl::Status AddReshape(const ir::Node& node) {
    const Twin from = twins_[node.inputs[0]];
    ir::Node padded = node;
    padded.inputs[0] = from.padded;
    Shape shape = graph_.type(node.outputs[0]).shape;
    shape.back() = graph_.type(from.padded).shape.back();
    padded.attributes.Set("shape", Ints(shape.begin(), shape.end()));
    return PushTwin(node, std::move(padded), shape, from.zeroed);
  }

  // `v` with zeros up to `shape`, for `reader`.
  absl::StatusOr<ValueId> Padded(ValueId v, const Shape& shape, const ir::Node& reader) {
    const Shape& logical = graph_.type(v).shape;
    auto twin = twins_.find(v);
    if (twin != twins_.end() && graph_.type(twin->second.padded).shape == shape) {
      if (!twin->second.zeroed) AMPD_RETURN_IF_ERROR(Zero(v, &twin->second));
      return twin->second.padded;
    }
    AMPD_RETURN_IF_ERROR(NeedLogical(v));
    if (logical == shape) return v;
    const auto [it, inserted] = pads_.insert({{v, shape}, -1});
    if (!inserted) return it->second;
    Ints pads(2 * shape.size(), 0);
    for (size_t d = 0; d < shape.size(); ++d) pads[shape.size() + d] = shape[d] - logical[d];
    ir::Node pad{.op = OpKind::kPad,
                 .name = Unique(absl::StrCat(graph_.values[v].name, ".padded")),
                 .layer = reader.layer,
                 .inputs = {v},
                 .attributes = {{"pads", pads}},
                 .stage = reader.stage};
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> outputs, ops::Emit(&graph_, std::move(pad)));
    it->second = outputs[0];
    return outputs[0];
  }

  // Selects by a row of bools, which passes/fuse joins with what made the value: 0 times it would keep NaN.
  absl::Status Zero(ValueId v, Twin* twin) {
    const ir::TensorType type = graph_.type(twin->padded);
    ir::Node zero{.op = OpKind::kWhere,
                  .name = Unique(absl::StrCat(twin->node->name, ".zeroed")),
                  .layer = twin->node->layer,
                  .inputs = {Mask(graph_.type(v).shape.back(), type.shape.back()), twin->padded, ZeroOf(type.dtype)},
                  .stage = twin->node->stage};
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> outputs, ops::Emit(&graph_, std::move(zero)));
    twin->padded = outputs[0];
    twin->zeroed = true;
    return absl::OkStatus();
  }

  ValueId Mask(int64_t logical, int64_t padded) {
    const auto [it, inserted] = masks_.insert({{logical, padded}, -1});
    if (!inserted) return it->second;
    auto mask = std::make_shared<Tensor>(DType::kBool, Shape{padded});
    for (int64_t i = 0; i < logical; ++i) mask->as<uint8_t>()[i] = 1;
    return it->second = graph_.AddConstant(absl::StrCat("padding:", logical, "/", padded), std::move(mask));
  }

  ValueId ZeroOf(DType dtype) {
    const auto [it, inserted] = zeros_.insert({dtype, -1});
    if (!inserted) return it->second;
    return it->second = graph_.AddConstant(absl::StrCat("padding_zero:", DTypeName(dtype)),
                                           std::make_shared<Tensor>(dtype, Shape{}));
  }

  // Cuts `v` out of its padded form, unless it is there already.
  absl::Status NeedLogical(ValueId v) {
    auto twin = twins_.find(v);
    if (twin == twins_.end() || twin->second.cut) return absl::OkStatus();
    twin->second.cut = true;
    const Shape& shape = graph_.type(v).shape;
    ir::Node slice{.op = OpKind::kSlice,
                   .name = Unique(graph_.values[v].name),
                   .layer = twin->second.node->layer,
                   .inputs = {twin->second.padded},
                   .outputs = {v},
                   .attributes = {{"starts", Ints(shape.size(), 0)},
                                  {"ends", Ints(shape.begin(), shape.end())},
                                  {"steps", Ints(shape.size(), 1)}},
                   .stage = twin->second.node->stage};
    graph_.nodes.push_back(std::move(slice));
    return absl::OkStatus();
  }

  std::string Unique(const std::string& name) {
    std::string unique = name;
    for (int i = 1; !names_.insert(unique).second; ++i) unique = absl::StrCat(name, "_", i);
    return unique;
  }

  ir::Graph graph_;
  const PaddingPolicy policy_;
  std::vector<PaddedExtent>* report_;
  const std::vector<ir::Node> old_;
  std::map<ValueId, Twin> twins_;
  std::map<std::pair<ValueId, Shape>, ValueId> pads_;
  std::map<std::pair<int64_t, int64_t>, ValueId> masks_;
  std::map<DType, ValueId> zeros_;
  std::set<std::string> names_;
};

}  // namespace

absl::StatusOr<ir::Graph> PadForTensorCores(ir::Graph graph, const PaddingPolicy& policy,
                                            std::vector<PaddedExtent>* padded) {
  if (policy.multiple_16bit < 1 || policy.multiple_8bit < 1) {
    return absl::InvalidArgumentError(absl::StrCat("[pad_for_tensor_cores] multiples are ", policy.multiple_16bit,
                                                   " and ", policy.multiple_8bit, ", each must be 1 or more"));
  }
  if (!policy.enabled()) return graph;
  return Padder(std::move(graph), policy, padded).Run();
}

}  // namespace ampd::passes
