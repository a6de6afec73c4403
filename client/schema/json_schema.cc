#include "client/schema/json_schema.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/schema/descriptors.h"
#include "proto/spec/text.h"
#include "proto/spec/window_fields.h"

namespace ampd::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::OneofDescriptor;

// A JSON value; objects keep their order.
class Json {
 public:
  static Json Text(const std::string& text) { return Json(QuoteJson(text)); }
  static Json Number(int64_t number) { return Json(absl::StrCat(number)); }
  static Json Bool(bool value) { return Json(value ? "true" : "false"); }
  static Json Object() { return Json(Kind::kObject); }
  static Json List() { return Json(Kind::kList); }

  Json& Set(const std::string& name, Json value) {
    values_.emplace_back(name, std::move(value));
    return *this;
  }
  Json& Add(Json value) { return Set("", std::move(value)); }
  bool empty() const { return values_.empty(); }

  void Print(int indent, std::string* out) const {
    if (kind_ == Kind::kScalar) {
      *out += scalar_;
      return;
    }
    const bool object = kind_ == Kind::kObject;
    *out += object ? "{" : "[";
    for (size_t i = 0; i < values_.size(); ++i) {
      absl::StrAppend(out, i == 0 ? "\n" : ",\n", std::string(indent + 2, ' '));
      if (object) absl::StrAppend(out, QuoteJson(values_[i].first), ": ");
      values_[i].second.Print(indent + 2, out);
    }
    if (!values_.empty()) absl::StrAppend(out, "\n", std::string(indent, ' '));
    *out += object ? "}" : "]";
  }

 private:
  enum class Kind { kScalar, kObject, kList };
  explicit Json(Kind kind) : kind_(kind) {}
  explicit Json(std::string scalar) : kind_(Kind::kScalar), scalar_(std::move(scalar)) {}

  Kind kind_;
  std::string scalar_;
  std::vector<std::pair<std::string, Json>> values_;
};

Json Type(const char* type) { return std::move(Json::Object().Set("type", Json::Text(type))); }

Json StringLike(const std::string& pattern) { return std::move(Type("string").Set("pattern", Json::Text(pattern))); }

Json AnyOf(Json a, Json b) {
  Json list = Json::List();
  list.Add(std::move(a)).Add(std::move(b));
  return std::move(Json::Object().Set("anyOf", std::move(list)));
}

Json Integer(Json number) { return AnyOf(std::move(number), StringLike("^[-+]?(0|[1-9][0-9]*)$")); }

Json Real() {
  return AnyOf(Type("number"), StringLike("^([-+]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][-+]?[0-9]+)?|NaN|-?Infinity)$"));
}

// Of types without a name of their own.
Json Scalar(FieldDescriptor::CppType type, bool bytes) {
  switch (type) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return Type("boolean");
    case FieldDescriptor::CPPTYPE_INT32:
      return Integer(
          std::move(Type("integer").Set("minimum", Json::Number(INT32_MIN)).Set("maximum", Json::Number(INT32_MAX))));
    case FieldDescriptor::CPPTYPE_UINT32:
      return Integer(
          std::move(Type("integer").Set("minimum", Json::Number(0)).Set("maximum", Json::Number(UINT32_MAX))));
    case FieldDescriptor::CPPTYPE_UINT64:
      return Integer(std::move(Type("integer").Set("minimum", Json::Number(0))));
    case FieldDescriptor::CPPTYPE_INT64:
      return Integer(Type("integer"));
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Real();
    default:
      return bytes ? std::move(Type("string").Set("contentEncoding", Json::Text("base64"))) : Type("string");
  }
}

// "^[Ff][Pp]32$|...": regular expressions here have no switch for it.
std::string InAnyCase(const EnumDescriptor& type) {
  std::string pattern = "^(";
  for (int i = 0; i < type.value_count(); ++i) {
    if (i > 0) pattern += "|";
    for (const char c : type.value(i)->name()) {
      if (absl::ascii_isalpha(c)) {
        absl::StrAppend(&pattern, "[", std::string(1, absl::ascii_toupper(c)), std::string(1, absl::ascii_tolower(c)),
                        "]");
      } else {
        pattern.push_back(c);
      }
    }
  }
  return pattern + ")$";
}

Json EnumSchema(const EnumDescriptor& type) {
  Json choices = Json::List();
  Json numbers = Json::List();
  for (int i = 0; i < type.value_count(); ++i) {
    const auto& value = *type.value(i);
    numbers.Add(Json::Number(value.number()));
    // The zero value says "not given": nobody means it.
    if (value.number() == 0) continue;
    Json choice = Json::Object();
    choice.Set("const", Json::Text(value.name()));
    if (const std::string comment = CommentOf(value); !comment.empty()) choice.Set("description", Json::Text(comment));
    choices.Add(std::move(choice));
  }
  choices.Add(StringLike(InAnyCase(type)));
  choices.Add(std::move(Json::Object().Set("enum", std::move(numbers))));
  Json schema = Json::Object();
  if (const std::string comment = CommentOf(type); !comment.empty()) schema.Set("description", Json::Text(comment));
  schema.Set("anyOf", std::move(choices));
  return schema;
}

// Protobuf's own messages that are no objects in JSON.
const std::map<std::string, Json>& KnownTypes() {
  static const auto& known = *new std::map<std::string, Json>{
      {"google.protobuf.Timestamp", std::move(Type("string").Set("format", Json::Text("date-time")))},
      {"google.protobuf.Value", Json::Object()},
      {"google.protobuf.ListValue", Type("array")},
      {"google.protobuf.Struct", Type("object")},
  };
  return known;
}

class SchemaWriter {
 public:
  std::string Write(const Descriptor& root, const std::string& title) {
    Json schema = Json::Object();
    schema.Set("$schema", Json::Text("https://json-schema.org/draft/2020-12/schema"));
    schema.Set("$id", Json::Text(absl::StrCat("urn:", absl::AsciiStrToLower(root.full_name()))));
    schema.Set("title", Json::Text(title));
    schema.Set("$ref", Reference(root));
    // Definitions ask for more of them.
    Json definitions = Json::Object();
    for (size_t i = 0; i < messages_.size(); ++i) definitions.Set(Name(*messages_[i]), MessageSchema(*messages_[i]));
    for (const EnumDescriptor* type : enums_) definitions.Set(Name(*type), EnumSchema(*type));
    schema.Set("$defs", std::move(definitions));
    std::string text;
    schema.Print(0, &text);
    return text + "\n";
  }

 private:
  template <typename Named>
  static std::string Name(const Named& type) {
    return type.full_name().substr(type.file()->package().size() + 1);
  }

  template <typename Named>
  Json Reference(const Named& type) {
    Remember(&type);
    return Json::Text("#/$defs/" + Name(type));
  }
  void Remember(const Descriptor* type) {
    if (seen_.emplace(type->full_name(), true).second) messages_.push_back(type);
  }
  void Remember(const EnumDescriptor* type) {
    if (seen_.emplace(type->full_name(), true).second) enums_.push_back(type);
  }

  // Of one value, whether or not there is a list of them.
  Json ValueSchema(const FieldDescriptor& field) {
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      return std::move(Json::Object().Set("$ref", Reference(*field.enum_type())));
    }
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      return Scalar(field.cpp_type(), field.type() == FieldDescriptor::TYPE_BYTES);
    }
    const auto known = KnownTypes().find(field.message_type()->full_name());
    if (known != KnownTypes().end()) return known->second;
    return std::move(Json::Object().Set("$ref", Reference(*field.message_type())));
  }

  Json FieldSchema(const FieldDescriptor& field, const std::string& description) {
    Json schema = Json::Object();
    if (field.is_map()) {
      schema = Type("object");
      schema.Set("additionalProperties", ValueSchema(*field.message_type()->map_value()));
    } else if (field.is_repeated()) {
      schema = Type("array");
      schema.Set("items", ValueSchema(field));
      if (IsWindowField(field)) schema = AnyOf(ValueSchema(field), std::move(schema));
    } else {
      schema = ValueSchema(field);
    }
    if (!description.empty()) schema.Set("description", Json::Text(description));
    return schema;
  }

  static Json Required(const FieldDescriptor& field) {
    Json names = Json::List();
    names.Add(Json::Text(field.name()));
    return std::move(Json::Object().Set("required", std::move(names)));
  }

  // One of the members, or none.
  static Json OneofSchema(const OneofDescriptor& oneof) {
    Json members = Json::List();
    Json choices = Json::List();
    for (int i = 0; i < oneof.field_count(); ++i) {
      members.Add(Required(*oneof.field(i)));
      choices.Add(Required(*oneof.field(i)));
    }
    choices.Add(std::move(Json::Object().Set("not", std::move(Json::Object().Set("anyOf", std::move(members))))));
    return std::move(Json::Object().Set("oneOf", std::move(choices)));
  }

  Json MessageSchema(const Descriptor& message) {
    Json schema = Json::Object();
    std::string description = CommentOf(message);
    Json oneofs = Json::List();
    for (int i = 0; i < message.real_oneof_decl_count(); ++i) {
      const std::string comment = CommentOf(*message.oneof_decl(i));
      if (!comment.empty()) {
        absl::StrAppend(&description, description.empty() ? "" : "\n\n", message.oneof_decl(i)->name(), ": ", comment);
      }
      oneofs.Add(OneofSchema(*message.oneof_decl(i)));
    }
    if (!description.empty()) schema.Set("description", Json::Text(description));
    schema.Set("type", Json::Text("object"));
    Json properties = Json::Object();
    std::string above;
    for (int i = 0; i < message.field_count(); ++i) {
      const FieldDescriptor& field = *message.field(i);
      std::string comment = CommentOf(field);
      // A message or an enum tells what it is itself; other fields without a comment share the one above them.
      const bool tells =
          field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE || field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM;
      if (comment.empty() && !tells) comment = above;
      properties.Set(field.name(), FieldSchema(field, comment));
      above = comment;
    }
    schema.Set("properties", std::move(properties));
    schema.Set("additionalProperties", Json::Bool(false));
    if (!oneofs.empty()) schema.Set("allOf", std::move(oneofs));
    return schema;
  }

  std::vector<const Descriptor*> messages_;
  std::vector<const EnumDescriptor*> enums_;
  std::map<std::string, bool> seen_;
};

}  // namespace

std::string JsonSchemaOf(const Descriptor& message, const std::string& title) {
  return SchemaWriter().Write(message, title);
}

}  // namespace ampd::client
