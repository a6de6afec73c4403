#include "engine/models/onnx/node.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/core/status.h"

namespace ampd::models::onnx {
namespace {

constexpr char kTraining[] = "ai.onnx.preview.training";

using Table = std::map<std::pair<std::string, std::string>, Rule>;

const Table& Rules() {
  static const Table* const table = [] {
    auto* rules = new Table;
    for (const auto& family : {ElementwiseRules(), MovementRules(), ShapeRules(), ReductionRules(), ProductRules(),
                               EinsumRules(), WindowRules(), ResizeRules(), SelectionRules(), NormRules(),
                               AttentionRules(), RecurrentRules(), LossRules(), DropoutRules()}) {
      for (const Rule& rule : family) (*rules)[{"", rule.op}] = rule;
    }
    for (const Rule& rule : TrainingRules()) (*rules)[{kTraining, rule.op}] = rule;
    return rules;
  }();
  return *table;
}

}  // namespace

std::vector<Rule> NeverEmpty(std::vector<Rule> rules) {
  for (Rule& rule : rules) rule.takes_empty = false;
  return rules;
}

const Rule* FindRule(const std::string& domain, const std::string& op) {
  const auto it = Rules().find({domain == "ai.onnx" ? "" : domain, op});
  return it == Rules().end() ? nullptr : &it->second;
}

absl::Status Node::Bad(const std::string& message) const {
  return absl::InvalidArgumentError(absl::StrCat("[", op(), "] ", message));
}

absl::Status Node::Unsupported(const std::string& message) const {
  return absl::UnimplementedError(absl::StrCat("[", op(), "] ", message));
}

absl::StatusOr<TensorPtr> Node::Known(int i) const {
  if (!Has(i)) return Bad(absl::StrCat("input ", i, " is missing"));
  if (TensorPtr tensor = services_.specialise(inputs_[i])) return tensor;
  return absl::FailedPreconditionError(
      absl::StrCat("[", op(), "] input ", i, " \"", proto_.input(i), "\" has to be known at import"));
}

absl::StatusOr<std::vector<int64_t>> Node::KnownInts(int i) const {
  AMPD_ASSIGN_OR_RETURN(const TensorPtr tensor, Known(i));
  return ToInts(*tensor);
}

const ::onnx::AttributeProto* Node::Attribute(const std::string& name) const {
  for (const ::onnx::AttributeProto& attribute : proto_.attribute()) {
    if (attribute.name() == name) return &attribute;
  }
  return nullptr;
}

int64_t Node::Int(const std::string& name, int64_t fallback) const {
  const ::onnx::AttributeProto* a = Attribute(name);
  return a != nullptr ? a->i() : fallback;
}

double Node::Float(const std::string& name, double fallback) const {
  const ::onnx::AttributeProto* a = Attribute(name);
  return a != nullptr ? static_cast<double>(a->f()) : fallback;
}

std::string Node::String(const std::string& name, const std::string& fallback) const {
  const ::onnx::AttributeProto* a = Attribute(name);
  return a != nullptr ? a->s() : fallback;
}

std::vector<int64_t> Node::Ints(const std::string& name) const {
  const ::onnx::AttributeProto* a = Attribute(name);
  if (a == nullptr) return {};
  return {a->ints().begin(), a->ints().end()};
}

std::vector<double> Node::Floats(const std::string& name) const {
  const ::onnx::AttributeProto* a = Attribute(name);
  if (a == nullptr) return {};
  return {a->floats().begin(), a->floats().end()};
}

std::vector<std::string> Node::Strings(const std::string& name) const {
  const ::onnx::AttributeProto* a = Attribute(name);
  if (a == nullptr) return {};
  return {a->strings().begin(), a->strings().end()};
}

absl::StatusOr<int> Node::Axis(int64_t axis, int rank) const {
  if (axis < -rank || axis >= rank) return Bad(absl::StrCat("axis is ", axis, ", the operand has ", rank, " axes"));
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

absl::StatusOr<std::vector<int64_t>> Node::Axes(const std::vector<int64_t>& axes, int rank) const {
  std::vector<int64_t> result;
  for (int64_t axis : axes) {
    AMPD_ASSIGN_OR_RETURN(const int a, Axis(axis, rank));
    if (std::find(result.begin(), result.end(), a) != result.end()) {
      return Bad(absl::StrCat("axes are ", ShapeString(axes), ", one of them twice"));
    }
    result.push_back(a);
  }
  return result;
}

absl::Status Node::Out(int i, V v) {
  if (i < outputs()) outputs_[i] = v;
  return absl::OkStatus();
}

}  // namespace ampd::models::onnx
