#include "engine/passes/exact_numbers.h"

#include <algorithm>

#include "engine/ops/op_def.h"

namespace ampd::passes {
namespace {

using ir::OpKind;
using ir::ValueId;

bool IsProduct(const ir::Node& node) { return ops::GetOpDef(node.op).precision == ops::PrecisionClass::kAllow; }

class Search {
 public:
  explicit Search(const ir::Graph& graph)
      : graph_(graph), given_(graph.values.size(), false), exact_(graph.values.size(), false) {}

  std::vector<bool> Run() {
    for (size_t v = 0; v < given_.size(); ++v) {
      const ir::ValueKind kind = graph_.values[v].kind;
      given_[v] = kind == ir::ValueKind::kInput || kind == ir::ValueKind::kConstant;
    }
    for (const ir::Node& node : graph_.nodes) {
      const bool given = !IsProduct(node) && std::all_of(node.inputs.begin(), node.inputs.end(),
                                                         [&](ValueId v) { return !Float(v) || Is(given_, v); });
      for (ValueId v : node.outputs) given_[static_cast<size_t>(v)] = given;
    }
    for (size_t n = graph_.nodes.size(); n-- > 0;) LookBack(graph_.nodes[n]);
    return std::move(exact_);
  }

 private:
  static bool Is(const std::vector<bool>& flags, ValueId v) { return flags[static_cast<size_t>(v)]; }
  bool Float(ValueId v) const { return IsFloat(graph_.type(v).dtype); }

  void LookBack(const ir::Node& node) {
    if (IsProduct(node)) return;
    const auto exact = [&](ValueId v) { return Is(exact_, v); };
    if (!MakesIntegers(node) && !ComparesWhatIsGiven(node) &&
        std::none_of(node.outputs.begin(), node.outputs.end(), exact)) {
      return;
    }
    for (ValueId v : node.inputs) exact_[static_cast<size_t>(v)] = Float(v);
  }

  bool MakesIntegers(const ir::Node& node) const {
    if (node.op != OpKind::kCast) return false;
    const DType dtype = graph_.type(node.outputs[0]).dtype;
    return !IsFloat(dtype) && dtype != DType::kBool;
  }

  bool ComparesWhatIsGiven(const ir::Node& node) const {
    switch (node.op) {
      case OpKind::kEqual:
      case OpKind::kLess:
      case OpKind::kGreater:
      case OpKind::kLessEqual:
      case OpKind::kGreaterEqual:
      case OpKind::kIsNan:
      case OpKind::kIsInf:
        return Is(given_, node.outputs[0]);
      case OpKind::kCast:
        return graph_.type(node.outputs[0]).dtype == DType::kBool && Is(given_, node.outputs[0]);
      default:
        return false;
    }
  }

  const ir::Graph& graph_;
  // Follows from samples, constants and integers, and from nothing that is trained.
  std::vector<bool> given_;
  std::vector<bool> exact_;
};

}  // namespace

std::vector<bool> FindExactNumbers(const ir::Graph& forward) { return Search(forward).Run(); }

}  // namespace ampd::passes
