#include "proto/spec/yaml_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/yaml_reader.h"
#include "proto/spec/yaml_scalar.h"

namespace ampd {
namespace {

using google::protobuf::ListValue;
using google::protobuf::Struct;
using google::protobuf::Value;

constexpr double kExact = 9007199254740992.0;  // 2^53
// A level is three messages on the wire, of which protobuf reads 100 within each other.
constexpr int kMostFreeDepth = 24;

// Whole numbers as people write them, others in the fewest digits that read back as the same.
std::string NumberText(double number) {
  if (std::floor(number) == number && std::fabs(number) <= kExact) return absl::StrCat(static_cast<int64_t>(number));
  char buffer[64];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof(buffer), number).ptr);
}

// Of a number's text; one with a point or an exponent is meant as a real number.
bool IsKeptExactly(absl::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (text.find_first_not_of("0123456789") != absl::string_view::npos) return true;
  uint64_t value;
  return absl::SimpleAtoi(text, &value) && value <= static_cast<uint64_t>(kExact);
}

YamlNode Scalar(std::string text, bool plain) {
  YamlNode node;
  node.kind = YamlNode::Kind::kScalar;
  node.plain = plain;
  node.scalar = std::move(text);
  return node;
}

absl::StatusOr<YamlNode> ListToNode(const ListValue& list) {
  YamlNode node;
  node.kind = YamlNode::Kind::kSequence;
  for (const Value& value : list.values()) {
    absl::StatusOr<YamlNode> element = ValueToNode(value);
    if (!element.ok()) return element.status();
    node.values.push_back(*std::move(element));
  }
  return node;
}

absl::StatusOr<YamlNode> StructToNode(const Struct& fields) {
  YamlNode node;
  node.kind = YamlNode::Kind::kMap;
  const std::map<std::string, Value> sorted(fields.fields().begin(), fields.fields().end());
  for (const auto& [name, value] : sorted) {
    absl::StatusOr<YamlNode> entry = ValueToNode(value);
    if (!entry.ok()) return entry.status();
    node.keys.push_back(Scalar(name, true));
    node.values.push_back(*std::move(entry));
  }
  return node;
}

}  // namespace

absl::StatusOr<Value> ScalarToValue(const YamlNode& node) {
  Value value;
  const bool is_bool = absl::EqualsIgnoreCase(node.scalar, "true") || absl::EqualsIgnoreCase(node.scalar, "false");
  if (node.plain && is_bool) {
    value.set_bool_value(absl::EqualsIgnoreCase(node.scalar, "true"));
  } else if (node.plain && LooksLikeNumber(node.scalar)) {
    const absl::StatusOr<double> number = ScalarToDouble(node);
    if (!number.ok()) return number.status();
    if (!IsKeptExactly(node.scalar)) {
      return absl::InvalidArgumentError(
          absl::StrCat(Describe(node), " is not kept exactly beyond 2^53; write \"", node.scalar, "\" in quotes"));
    }
    value.set_number_value(*number);
  } else {
    value.set_string_value(node.scalar);
  }
  return value;
}

absl::StatusOr<YamlNode> ValueToNode(const Value& value) {
  switch (value.kind_case()) {
    case Value::kNullValue:
      return YamlNode();
    case Value::kBoolValue:
      return Scalar(value.bool_value() ? "true" : "false", true);
    case Value::kStringValue:
      return Scalar(value.string_value(), false);
    case Value::kListValue:
      return ListToNode(value.list_value());
    case Value::kStructValue:
      return StructToNode(value.struct_value());
    case Value::kNumberValue:
      if (std::isfinite(value.number_value())) return Scalar(NumberText(value.number_value()), true);
      return absl::InvalidArgumentError(absl::StrCat("must be a finite number, is ", value.number_value()));
    case Value::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("has no value");
}

void YamlReader::ReadFreeValue(const YamlNode& node, const std::string& path, Value* value) {
  if (free_depth_ == kMostFreeDepth) {
    return Fail(node.line, path, absl::StrCat("values nest more than ", kMostFreeDepth, " deep"));
  }
  ++free_depth_;
  ReadFreeValueAt(node, path, value);
  --free_depth_;
}

void YamlReader::ReadFreeValueAt(const YamlNode& node, const std::string& path, Value* value) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      value->set_null_value(google::protobuf::NULL_VALUE);
      return;
    case YamlNode::Kind::kSequence:
      return ReadFreeList(node, path, value->mutable_list_value());
    case YamlNode::Kind::kMap:
      return ReadFreeMap(node, path, value->mutable_struct_value());
    case YamlNode::Kind::kScalar:
      break;
  }
  absl::StatusOr<Value> scalar = ScalarToValue(node);
  if (!scalar.ok()) return Fail(node.line, path, std::string(scalar.status().message()));
  *value = *std::move(scalar);
}

void YamlReader::ReadFreeList(const YamlNode& node, const std::string& path, ListValue* list) {
  if (node.kind != YamlNode::Kind::kSequence) {
    return Fail(node.line, path, absl::StrCat("expected a list, got ", Describe(node)));
  }
  for (size_t i = 0; i < node.values.size(); ++i) {
    ReadFreeValue(node.values[i], absl::StrCat(path, "[", i, "]"), list->add_values());
  }
}

void YamlReader::ReadFreeMap(const YamlNode& node, const std::string& path, Struct* fields) {
  if (node.kind != YamlNode::Kind::kMap) {
    return Fail(node.line, path, absl::StrCat("expected a map, got ", Describe(node)));
  }
  std::unordered_map<std::string, int> seen;
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const YamlNode& key = node.keys[i];
    const std::string entry_path = JoinPath(path, key.scalar);
    const auto [first, is_new] = seen.emplace(key.scalar, key.line);
    if (!is_new) {
      Fail(key.line, entry_path, absl::StrCat("duplicate key, first on line ", first->second));
      continue;
    }
    NoteLine(entry_path, key.line);
    ReadFreeValue(node.values[i], entry_path, &(*fields->mutable_fields())[key.scalar]);
  }
}

}  // namespace ampd
