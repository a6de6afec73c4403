#include "proto/spec/yaml_reader.h"

#include <deque>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/timestamp.pb.h"
#include "google/protobuf/util/time_util.h"
#include "proto/spec/names.h"
#include "proto/spec/violations.h"
#include "proto/spec/window_fields.h"
#include "proto/spec/yaml_scalar.h"

namespace ampd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::Timestamp;

constexpr size_t kMaxErrors = 20;
// Of paths that are kept with their lines.
constexpr size_t kMostLineBytes = size_t{1} << 20;

template <typename T, typename Setter>
absl::Status Store(absl::StatusOr<T> value, Message* message, const FieldDescriptor* field, Setter setter) {
  if (!value.ok()) return value.status();
  (message->GetReflection()->*setter)(message, field, *std::move(value));
  return absl::OkStatus();
}

absl::Status StoreScalar(const YamlNode& node, const FieldDescriptor* field, bool add, Message* m) {
  using R = Reflection;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return Store(ScalarToInt32(node), m, field, add ? &R::AddInt32 : &R::SetInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return Store(ScalarToInt64(node), m, field, add ? &R::AddInt64 : &R::SetInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return Store(ScalarToUint32(node), m, field, add ? &R::AddUInt32 : &R::SetUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return Store(ScalarToUint64(node), m, field, add ? &R::AddUInt64 : &R::SetUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Store(ScalarToDouble(node), m, field, add ? &R::AddDouble : &R::SetDouble);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Store(ScalarToFloat(node), m, field, add ? &R::AddFloat : &R::SetFloat);
    case FieldDescriptor::CPPTYPE_BOOL:
      return Store(ScalarToBool(node), m, field, add ? &R::AddBool : &R::SetBool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return Store(ScalarToEnum(node, *field->enum_type()), m, field, add ? &R::AddEnumValue : &R::SetEnumValue);
    case FieldDescriptor::CPPTYPE_STRING: {
      const bool is_bytes = field->type() == FieldDescriptor::TYPE_BYTES;
      return Store(is_bytes ? ScalarToBytes(node) : ScalarToString(node), m, field,
                   add ? &R::AddString : &R::SetString);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return absl::InternalError("not a scalar field");
}

std::vector<std::string> FieldNames(const Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  return names;
}

// The shortest path to a field called `name` beneath `type`, through singular messages; "" when there is none.
std::string FindBeneath(const std::string& name, const Descriptor& type) {
  std::deque<std::pair<const Descriptor*, std::string>> queue = {{&type, ""}};
  std::set<const Descriptor*> seen = {&type};
  while (!queue.empty()) {
    const auto [here, path] = queue.front();
    queue.pop_front();
    if (here->FindFieldByName(name) != nullptr) return path + name;
    for (int i = 0; i < here->field_count(); ++i) {
      const FieldDescriptor* field = here->field(i);
      const bool descend = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated();
      if (descend && seen.insert(field->message_type()).second) {
        queue.push_back({field->message_type(), absl::StrCat(path, field->name(), ".")});
      }
    }
  }
  return "";
}

// As FindBeneath, but where several kinds of a thing have the field, "<kind>" for the one in the path:
// "optimizer.<kind>.learning_rate".
std::string FindInAnyKind(const std::string& name, const Descriptor& root) {
  const std::vector<std::string> path = absl::StrSplit(FindBeneath(name, root), '.', absl::SkipEmpty());
  std::vector<std::string> shown;
  const Descriptor* type = &root;
  for (const std::string& step : path) {
    const FieldDescriptor* field = type->FindFieldByName(step);
    const auto* oneof = field->real_containing_oneof();
    int kinds = 0;
    for (int i = 0; oneof != nullptr && i < oneof->field_count(); ++i) {
      const Descriptor* kind = oneof->field(i)->message_type();
      if (shown.size() + 2 == path.size() && kind != nullptr && kind->FindFieldByName(name) != nullptr) ++kinds;
    }
    shown.push_back(kinds > 1 ? absl::StrCat("<", oneof->name(), ">") : step);
    type = field->message_type();
  }
  return absl::StrJoin(shown, ".");
}

// What job files call what other programs call `name`; else `name`, with underscores.
std::string OwnName(const std::string& name) {
  static const auto& names = *new std::unordered_map<std::string, std::string>{
      {"lr", "learning_rate"}, {"wd", "weight_decay"}, {"betas", "beta1"}};
  const auto own = names.find(absl::AsciiStrToLower(name));
  return own == names.end() ? absl::StrReplaceAll(name, {{"-", "_"}}) : own->second;
}

const char* ExpectedKind(const FieldDescriptor* field) {
  if (field->is_map()) return "a map";
  if (IsWindowField(*field)) return "a number or a list of numbers";
  if (field->is_repeated()) return "a list";
  return "a map of fields";
}

}  // namespace

std::string NoSuchField(const std::string& name, const Descriptor& type, const Descriptor* root) {
  const std::string own = OwnName(name);
  std::string near = type.FindFieldByName(own) != nullptr ? own : NearestName(name, FieldNames(type));
  if (near.empty()) near = FindBeneath(own, type);
  if (near.empty() && root != nullptr && root != &type) near = FindInAnyKind(own, *root);
  if (name == "betas" && absl::EndsWith(near, "beta1")) near += " and beta2";
  return near.empty() ? "no such field" : absl::StrCat("no such field; did you mean ", near, "?");
}

std::string JoinPath(const std::string& path, absl::string_view name) {
  constexpr size_t kShown = 100;
  const std::string shown = absl::CHexEscape(Cut(name, kShown));
  return path.empty() ? shown : absl::StrCat(path, ".", shown);
}

void YamlReader::Fail(int line, const std::string& path, std::string what) {
  if (errors_.size() < kMaxErrors) {
    errors_.push_back({line, Cut(path, kMostFieldBytes), std::move(what)});
  } else {
    ++errors_left_out_;
  }
}

void YamlReader::NoteLine(const std::string& path, int line) {
  if (lines_ == nullptr || line_bytes_ + path.size() > kMostLineBytes) return;
  line_bytes_ += path.size();
  lines_->Set(path, line);
}

void YamlReader::ReadMessage(const YamlNode& node, const std::string& path, Message* message) {
  if (node.kind != YamlNode::Kind::kMap) {
    return Fail(node.line, path, absl::StrCat("expected a map of fields, got ", Describe(node)));
  }
  if (path.empty()) root_ = message->GetDescriptor();
  std::unordered_map<std::string, int> seen;
  std::unordered_map<const google::protobuf::OneofDescriptor*, const YamlNode*> members;
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const YamlNode& key = node.keys[i];
    const auto [first, is_new] = seen.emplace(key.scalar, key.line);
    if (!is_new) {
      Fail(key.line, JoinPath(path, key.scalar), absl::StrCat("duplicate key, first on line ", first->second));
      continue;
    }
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(key.scalar);
    if (field != nullptr && field->real_containing_oneof() != nullptr) {
      const auto [member, is_first] = members.emplace(field->real_containing_oneof(), &key);
      if (!is_first) {
        Fail(key.line, JoinPath(path, key.scalar),
             absl::StrCat("only one of its kind may be set, and ", member->second->scalar, " is, on line ",
                          member->second->line));
        continue;
      }
    }
    ReadNamedField(key, node.values[i], path, message);
  }
}

void YamlReader::ReadNamedField(const YamlNode& key, const YamlNode& value, const std::string& path, Message* message) {
  const std::string field_path = JoinPath(path, key.scalar);
  const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(key.scalar);
  if (field == nullptr) return Fail(key.line, field_path, NoSuchField(key.scalar, *message->GetDescriptor(), root_));
  NoteLine(field_path, key.line);
  ReadField(value, key.line, field_path, field, message);
}

bool YamlReader::RefusedAsNull(const YamlNode& node, int line, const std::string& path, const FieldDescriptor* field) {
  if (node.kind != YamlNode::Kind::kNull) return false;
  const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated();
  Fail(line, path,
       is_message ? "null is no value; write {} for an empty one, or leave the field out"
                  : "null is no value; leave the field out for its default");
  return true;
}

void YamlReader::ReadField(const YamlNode& node, int line, const std::string& path, const FieldDescriptor* field,
                           Message* message) {
  if (RefusedAsNull(node, line, path, field)) return;
  if (!field->is_repeated()) return ReadValue(node, path, field, false, message);
  const auto wanted = field->is_map() ? YamlNode::Kind::kMap : YamlNode::Kind::kSequence;
  if (node.kind != wanted) {
    const bool is_scalar = node.kind == YamlNode::Kind::kScalar, is_window = IsWindowField(*field);
    if (is_scalar && is_window && LooksLikeNumber(node.scalar)) return ReadValue(node, path, field, true, message);
    const bool wrap = is_scalar && !is_window && !field->is_map();
    return Fail(
        node.line, path,
        absl::StrCat("expected ", ExpectedKind(field), ", got ", Describe(node), wrap ? "; write it in [ ]" : ""));
  }
  std::unordered_map<std::string, int> seen;
  for (size_t i = 0; i < node.values.size(); ++i) {
    if (!field->is_map()) {
      AddElement(node.values[i], absl::StrCat(path, "[", i, "]"), field, message);
      continue;
    }
    const YamlNode& key = node.keys[i];
    const auto [first, is_new] = seen.emplace(key.scalar, key.line);
    if (is_new) {
      AddEntry(key, node.values[i], path, field, message);
    } else {
      Fail(key.line, JoinPath(path, key.scalar), absl::StrCat("duplicate key, first on line ", first->second));
    }
  }
}

void YamlReader::AddElement(const YamlNode& node, const std::string& path, const FieldDescriptor* field,
                            Message* message) {
  NoteLine(path, node.line);
  if (node.kind == YamlNode::Kind::kNull) return Fail(node.line, path, "null is no value");
  ReadValue(node, path, field, true, message);
}

void YamlReader::AddEntry(const YamlNode& key, const YamlNode& value, const std::string& path,
                          const FieldDescriptor* field, Message* message) {
  const std::string entry_path = JoinPath(path, key.scalar);
  NoteLine(entry_path, key.line);
  if (value.kind == YamlNode::Kind::kNull) return Fail(key.line, entry_path, "null is no value");
  const FieldDescriptor* key_field = field->message_type()->map_key();
  YamlNode name = key;
  // A key needs no quotes to be a string.
  if (key_field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) name.plain = false;
  Message* entry = message->GetReflection()->AddMessage(message, field);
  ReadScalar(name, entry_path, key_field, false, entry);
  ReadValue(value, entry_path, field->message_type()->map_value(), false, entry);
}

void YamlReader::ReadScalar(const YamlNode& node, const std::string& path, const FieldDescriptor* field, bool add,
                            Message* message) {
  const absl::Status status = StoreScalar(node, field, add, message);
  if (!status.ok()) Fail(node.line, path, std::string(status.message()));
}

void YamlReader::ReadValue(const YamlNode& node, const std::string& path, const FieldDescriptor* field, bool add,
                           Message* message) {
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return ReadScalar(node, path, field, add, message);
  const auto* reflection = message->GetReflection();
  Message* child = add ? reflection->AddMessage(message, field) : reflection->MutableMessage(message, field);
  if (auto* value = dynamic_cast<google::protobuf::Value*>(child)) return ReadFreeValue(node, path, value);
  if (auto* list = dynamic_cast<google::protobuf::ListValue*>(child)) return ReadFreeList(node, path, list);
  if (auto* fields = dynamic_cast<google::protobuf::Struct*>(child)) return ReadFreeMap(node, path, fields);
  auto* time = dynamic_cast<Timestamp*>(child);
  if (time == nullptr) return ReadMessage(node, path, child);
  if (node.kind != YamlNode::Kind::kScalar || !google::protobuf::util::TimeUtil::FromString(node.scalar, time)) {
    Fail(node.line, path, absl::StrCat("expected a time such as 2026-01-31T12:00:00Z, got ", Describe(node)));
  }
}

}  // namespace ampd
