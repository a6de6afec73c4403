#include "engine/passes/precision.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "engine/core/half.h"
#include "engine/core/status.h"
#include "engine/ops/compute.h"
#include "engine/ops/op_def.h"
#include "engine/passes/exact_numbers.h"
#include "engine/passes/fp8_scales.h"

namespace ampd::passes {
namespace {

// Copies the graph node by node, casting inputs on the way.
class Rewriter {
 public:
  Rewriter(const ir::Graph& from, const PrecisionPolicy& policy)
      : from_(from), policy_(policy), exact_(FindExactNumbers(from)) {
    to_.parameters = from.parameters;
    to_.states = from.states;
    for (const ir::Value& value : from.values) {
      map_.push_back(value.kind == ir::ValueKind::kActivation ? -1 : static_cast<ir::ValueId>(to_.values.size()));
      if (value.kind != ir::ValueKind::kActivation) to_.values.push_back(value);
    }
  }

  absl::StatusOr<ir::Graph> Run() {
    FindEdges();
    for (const ir::Node& node : from_.nodes) AMPD_RETURN_IF_ERROR(Copy(node));
    for (const auto& [name, v] : from_.outputs) {
      ir::ValueId value = map_[v];
      if (IsHalf(to_.type(value).dtype)) {
        AMPD_ASSIGN_OR_RETURN(value, Cast(value, DType::kF32, "", ir::Stage::kLoss));
      }
      to_.outputs[name] = value;
    }
    return std::move(to_);
  }

 private:
  absl::Status Copy(ir::Node node) {
    const ops::OpDef& def = ops::GetOpDef(node.op);
    const DType target = TargetOf(node, def);
    // Codes of 8 bits are made from the widest numbers there are.
    const bool of_masters = ComputesInFp8(def, node);
    Mark(def, &node);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      ir::ValueId value = map_[node.inputs[i]];
      const ops::Role role = ops::RoleOf(def, i);
      const bool follows = role == ops::Role::kData || (role == ops::Role::kNumber && IsFloat(to_.type(value).dtype));
      if (def.precision != ops::PrecisionClass::kFixed && follows) {
        AMPD_ASSIGN_OR_RETURN(value, Cast(value, target, node.layer, node.stage, of_masters));
      } else if (role == ops::Role::kFloat || role == ops::Role::kWide ||
                 (role == ops::Role::kMask && IsFloat(to_.type(value).dtype))) {
        AMPD_ASSIGN_OR_RETURN(value, Cast(value, DType::kF32, node.layer, node.stage));
      }
      node.inputs[i] = value;
    }
    const std::vector<ir::ValueId> old_outputs = node.outputs;
    AMPD_ASSIGN_OR_RETURN(std::vector<ir::ValueId> outputs, ops::Emit(&to_, std::move(node)));
    for (size_t i = 0; i < outputs.size(); ++i) map_[old_outputs[i]] = outputs[i];
    return absl::OkStatus();
  }

  // Layers at the ends of a network suffer most from 8 bits.
  void FindEdges() {
    std::set<std::string> networks;
    for (const ir::Node& node : from_.nodes) {
      if (IsAllow(node)) networks.insert(NetworkOf(node));
    }
    for (const std::string& network : networks) FindEdgesOf(network);
  }

  void FindEdgesOf(const std::string& network) {
    // By value: whether such an op of the network gave it, or reads it, at any distance.
    std::vector<bool> behind(from_.values.size()), before(from_.values.size());
    const auto any = [](const std::vector<ir::ValueId>& values, const std::vector<bool>& of) {
      return std::any_of(values.begin(), values.end(), [&](ir::ValueId v) { return of[static_cast<size_t>(v)]; });
    };
    const auto pass = [&](const ir::Node& node, const std::vector<ir::ValueId>& from,
                          const std::vector<ir::ValueId>& to, std::vector<bool>* of) {
      const bool reached = any(from, *of);
      const bool counts = IsAllow(node) && NetworkOf(node) == network;
      if (counts && !reached) edges_.insert(LayerOf(node));
      if (!counts && !reached) return;
      for (const ir::ValueId v : to) (*of)[static_cast<size_t>(v)] = true;
    };
    for (const ir::Node& node : from_.nodes) pass(node, node.inputs, node.outputs, &behind);
    for (auto node = from_.nodes.rbegin(); node != from_.nodes.rend(); ++node) {
      pass(*node, node->outputs, node->inputs, &before);
    }
  }

  static bool IsAllow(const ir::Node& node) { return ops::GetOpDef(node.op).precision == ops::PrecisionClass::kAllow; }

  std::string NetworkOf(const ir::Node& node) const {
    const std::string layer = LayerOf(node);
    std::string name = layer.substr(0, layer.find('.'));
    return absl::c_linear_search(policy_.networks, name) ? name : "";
  }

  static std::string LayerOf(const ir::Node& node) { return node.layer.empty() ? node.name : node.layer; }

  bool ComputesInFp8(const ops::OpDef& def, const ir::Node& node) const {
    if (!def.bilinear || !IsF8(policy_.ForLayer(node.layer).dtype)) return false;
    return edges_.count(LayerOf(node)) == 0 || policy_.HasRule(node.layer);
  }

  void Mark(const ops::OpDef& def, ir::Node* node) {
    if (def.precision != ops::PrecisionClass::kAllow) return;
    if (policy_.ForLayer(node->layer).tf32) {
      node->attributes.Set(ops::kComputeAttribute, std::string(ops::kComputeTf32));
    } else if (ComputesInFp8(def, *node)) {
      node->attributes.Set(ops::kComputeAttribute, std::string(ops::kComputeFp8));
      node->attributes.Set(ops::kScalesAttribute, node->name);
      for (const char* operand : kFp8Operands) AddScale(node->name, operand);
    }
  }

  void AddScale(const std::string& node, const std::string& operand) {
    to_.AddState(
        {.name = Fp8HistoryName(node, operand), .type = {DType::kF32, {kAmaxHistory}}, .in_model_file = false});
    to_.AddState({.name = Fp8CountName(node, operand), .type = {DType::kI64, {}}, .in_model_file = false});
    // At a scale of 1 e5m2 flushes what is below 2^-17, as gradients of a mean over many pixels or tokens are: a
    // layer's is 0 then, and so is all that is behind it, step for step one layer less. Now values above 3.5 are held
    // there in the first step.
    const double exponent = operand == kFp8Gradient ? policy_.first_gradient_exponent : 0;
    to_.AddState({.name = Fp8ScaleName(node, operand),
                  .type = {DType::kF32, {}},
                  .init = {.kind = ir::Initializer::Kind::kOnes, .bound = exponent},
                  .in_model_file = false});
  }

  // Whether a node, with the inputs it has in `from_`, gives numbers that must not be rounded, or compares such.
  bool IsExact(const ir::Node& node) const {
    const auto exact = [&](ir::ValueId v) { return exact_[static_cast<size_t>(v)]; };
    const auto rounded = [&](ir::ValueId v) { return IsFloat(from_.type(v).dtype) && !exact(v); };
    const bool gives_floats = IsFloat(from_.type(node.outputs[0]).dtype);
    if (gives_floats) return std::any_of(node.outputs.begin(), node.outputs.end(), exact);
    return std::none_of(node.inputs.begin(), node.inputs.end(), rounded);
  }

  // Whether a constant beside the node's data would be another number in `dtype`: a mask's -1e9 infinite, an epsilon 0.
  bool LosesConstant(const ir::Node& node, const ops::OpDef& def, DType dtype) const {
    if (!IsHalf(dtype)) return false;
    if (LosesAttribute(node, dtype)) return true;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ir::Value& value = to_.values[ops::MovedFrom(to_, map_[node.inputs[i]])];
      const ops::Role role = ops::RoleOf(def, i);
      if (role != ops::Role::kData && role != ops::Role::kNumber) continue;
      if (value.kind == ir::ValueKind::kConstant && value.type.dtype == DType::kF32 && Loses(value, dtype)) return true;
    }
    return false;
  }

  // Likewise of a number that the node has as an attribute, and gives as its output where data are beyond it or
  // missing.
  static bool LosesAttribute(const ir::Node& node, DType dtype) {
    const auto loses = [&](const char* name) {
      return node.attributes.Has(name) && Loses(static_cast<float>(node.attributes.Double(name)), dtype);
    };
    // An infinite bound on its own side is none, as it was: nothing in 16 bits is beyond it.
    const auto beyond = [&](const char* name, double side) {
      return loses(name) && !(std::isinf(Rounded(static_cast<float>(node.attributes.Double(name)), dtype)) &&
                              node.attributes.Double(name) * side > 0);
    };
    if (node.op == ir::OpKind::kClip) return beyond("min", -1) || beyond("max", 1);
    return node.op == ir::OpKind::kPad && loses("value");
  }

  static float Rounded(float f, DType dtype) {
    return dtype == DType::kF16 ? ToFloat(ToHalf(f)) : ToFloat(ToBFloat16(f));
  }

  static bool Loses(float f, DType dtype) {
    const float rounded = Rounded(f, dtype);
    return std::isinf(rounded) != std::isinf(f) || (rounded == 0 && f != 0);
  }

  static bool Loses(const ir::Value& constant, DType dtype) {
    const auto numbers = constant.data->as<float>();
    return std::any_of(numbers.begin(), numbers.end(), [dtype](float f) { return Loses(f, dtype); });
  }

  DType TargetOf(const ir::Node& node, const ops::OpDef& def) const {
    const DType dtype = policy_.ForLayer(node.layer).dtype;
    if (def.precision == ops::PrecisionClass::kAllow) return IsF8(dtype) ? DType::kBF16 : dtype;
    if (def.precision != ops::PrecisionClass::kInfer || IsExact(node)) return DType::kF32;
    const DType inferred = InferredOf(node, def, dtype);
    return LosesConstant(node, def, inferred) ? DType::kF32 : inferred;
  }

  // `dtype`: what the policy says of the node's layer.
  DType InferredOf(const ir::Node& node, const ops::OpDef& def, DType dtype) const {
    // The loss is no layer, whatever '*' matches.
    if (node.stage != ir::Stage::kLoss && policy_.HasRule(node.layer)) return IsF8(dtype) ? DType::kBF16 : dtype;
    bool any = false;
    DType widest = DType::kF32;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ir::Value& value = to_.values[map_[node.inputs[i]]];
      const ops::Role role = ops::RoleOf(def, i);
      if ((role != ops::Role::kData && role != ops::Role::kNumber) || !IsFloat(value.type.dtype)) continue;
      // Nor do parts of parameters say what the data are.
      const ir::Value& whole = to_.values[ops::MovedFrom(to_, map_[node.inputs[i]])];
      if (whole.kind == ir::ValueKind::kParameter) continue;
      if (whole.kind == ir::ValueKind::kConstant && IsFloat(whole.type.dtype)) continue;
      widest = any && value.type.dtype != widest ? DType::kF32 : value.type.dtype;
      any = true;
    }
    return any ? widest : DType::kF32;
  }

  // `last`: parts of parameters, too, are cast where they are read.
  absl::StatusOr<ir::ValueId> Cast(ir::ValueId v, DType to, const std::string& layer, ir::Stage stage,
                                   bool last = false) {
    if (to_.type(v).dtype == to) return v;
    const auto [it, inserted] = casts_.insert({{v, to}, -1});
    if (!inserted) return it->second;
    if (!last && IsPartOfParameter(v)) {
      AMPD_ASSIGN_OR_RETURN(it->second, CastBefore(v, to, layer, stage));
      return it->second;
    }
    const ir::Value& value = to_.values[v];
    if (value.kind == ir::ValueKind::kInput) stage = ir::Stage::kInput;
    ir::Node node{.op = ir::OpKind::kCast,
                  .name = absl::StrCat(value.name, ":", DTypeName(to)),
                  .layer = layer,
                  .inputs = {v},
                  .attributes = {{"dtype", std::string(DTypeName(to))}},
                  .stage = stage};
    AMPD_ASSIGN_OR_RETURN(std::vector<ir::ValueId> outputs, ops::Emit(&to_, std::move(node)));
    it->second = outputs[0];
    return outputs[0];
  }

  bool IsPartOfParameter(ir::ValueId v) const {
    return to_.values[v].kind == ir::ValueKind::kActivation &&
           to_.nodes[to_.values[v].producer].op != ir::OpKind::kCast &&
           to_.values[ops::MovedFrom(to_, v)].kind == ir::ValueKind::kParameter;
  }

  // What moves a parameter's numbers moves them cast: the cast is made once a step then.
  absl::StatusOr<ir::ValueId> CastBefore(ir::ValueId v, DType to, const std::string& layer, ir::Stage stage) {
    ir::Node node = to_.nodes[to_.values[v].producer];
    AMPD_ASSIGN_OR_RETURN(node.inputs[0], Cast(node.inputs[0], to, layer, stage));
    node.name = absl::StrCat(to_.values[v].name, ":", DTypeName(to));
    node.outputs.clear();
    AMPD_ASSIGN_OR_RETURN(const std::vector<ir::ValueId> outputs, ops::Emit(&to_, std::move(node)));
    return outputs[0];
  }

  const ir::Graph& from_;
  const PrecisionPolicy& policy_;
  const std::vector<bool> exact_;  // by value of `from_`
  ir::Graph to_;
  std::vector<ir::ValueId> map_;
  std::map<std::pair<ir::ValueId, DType>, ir::ValueId> casts_;
  std::set<std::string> edges_;  // layers
};

}  // namespace

bool GlobMatch(absl::string_view pattern, absl::string_view text) {
  size_t p = 0, t = 0, star = absl::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || (pattern[p] != '*' && pattern[p] == text[t]))) {
      ++p, ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

ComputeType PrecisionPolicy::ForLayer(absl::string_view layer) const {
  ComputeType type = compute;
  for (const PrecisionRule& rule : rules) {
    if (GlobMatch(rule.match, layer)) type = rule.compute;
  }
  return type;
}

bool PrecisionPolicy::HasRule(absl::string_view layer) const {
  for (const PrecisionRule& rule : rules) {
    if (GlobMatch(rule.match, layer)) return true;
  }
  return false;
}

absl::StatusOr<ir::Graph> ApplyPrecision(const ir::Graph& forward, const PrecisionPolicy& policy) {
  return Rewriter(forward, policy).Run();
}

}  // namespace ampd::passes
