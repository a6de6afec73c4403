#include "proto/spec/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "google/protobuf/util/time_util.h"
#include "proto/spec/names.h"
#include "proto/spec/utf8.h"
#include "proto/spec/yaml_tree.h"

namespace ampd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::ListValue;
using google::protobuf::Message;
using google::protobuf::Struct;
using google::protobuf::Timestamp;
using google::protobuf::Value;

// Without quotes where it reads back as this string in every YAML reader.
std::string QuoteYaml(absl::string_view text) {
  static constexpr absl::string_view kWords[] = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan"};
  const bool is_word = std::any_of(std::begin(kWords), std::end(kWords),
                                   [&](absl::string_view word) { return absl::EqualsIgnoreCase(text, word); });
  const bool starts_well =
      !text.empty() && (absl::ascii_isalpha(static_cast<unsigned char>(text[0])) || text[0] == '/');
  return starts_well && !is_word && IsMadeOf(text, "_-./") ? std::string(text) : QuoteJson(text);
}

// The shortest text that reads back as the same number.
template <typename Real>
std::string RealText(Real value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  char buffer[64];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr);
}

std::string Int64Text(int64_t value) {
  constexpr int64_t kExact = int64_t{1} << 53;
  return value >= -kExact && value <= kExact ? absl::StrCat(value) : absl::StrCat("\"", value, "\"");
}

std::string Uint64Text(uint64_t value) {
  constexpr uint64_t kExact = uint64_t{1} << 53;
  return value <= kExact ? absl::StrCat(value) : absl::StrCat("\"", value, "\"");
}

using Quote = std::string (*)(absl::string_view);

// Reads one value: of a singular field with index -1, else of an element.
class FieldText {
 public:
  FieldText(const Message& message, const FieldDescriptor* field, Quote quote)
      : message_(message), r_(*message.GetReflection()), f_(field), quote_(quote) {}

  std::string At(int i) const {
    const Message& m = message_;
    switch (f_->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return absl::StrCat(i < 0 ? r_.GetInt32(m, f_) : r_.GetRepeatedInt32(m, f_, i));
      case FieldDescriptor::CPPTYPE_INT64:
        return Int64Text(i < 0 ? r_.GetInt64(m, f_) : r_.GetRepeatedInt64(m, f_, i));
      case FieldDescriptor::CPPTYPE_UINT32:
        return absl::StrCat(i < 0 ? r_.GetUInt32(m, f_) : r_.GetRepeatedUInt32(m, f_, i));
      case FieldDescriptor::CPPTYPE_UINT64:
        return Uint64Text(i < 0 ? r_.GetUInt64(m, f_) : r_.GetRepeatedUInt64(m, f_, i));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return RealText(i < 0 ? r_.GetDouble(m, f_) : r_.GetRepeatedDouble(m, f_, i));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return RealText(i < 0 ? r_.GetFloat(m, f_) : r_.GetRepeatedFloat(m, f_, i));
      case FieldDescriptor::CPPTYPE_BOOL:
        return (i < 0 ? r_.GetBool(m, f_) : r_.GetRepeatedBool(m, f_, i)) ? "true" : "false";
      case FieldDescriptor::CPPTYPE_ENUM:
        return EnumText(i < 0 ? r_.GetEnumValue(m, f_) : r_.GetRepeatedEnumValue(m, f_, i));
      case FieldDescriptor::CPPTYPE_STRING:
        return StringText(i < 0 ? r_.GetString(m, f_) : r_.GetRepeatedString(m, f_, i));
      case FieldDescriptor::CPPTYPE_MESSAGE:
        break;
    }
    return "null";
  }

 private:
  std::string EnumText(int number) const {
    const auto* value = f_->enum_type()->FindValueByNumber(number);
    return value == nullptr ? absl::StrCat(number) : quote_(value->name());
  }
  std::string StringText(const std::string& value) const {
    return f_->type() == FieldDescriptor::TYPE_BYTES ? QuoteJson(absl::Base64Escape(value)) : quote_(value);
  }

  const Message& message_;
  const google::protobuf::Reflection& r_;
  const FieldDescriptor* f_;
  Quote quote_;
};

std::string TimeText(const Timestamp& time) { return QuoteJson(google::protobuf::util::TimeUtil::ToString(time)); }

std::string ValueText(const Value& value);

std::string ListText(const ListValue& list) {
  return absl::StrCat(
      "[", absl::StrJoin(list.values(), ", ", [](std::string* out, const Value& v) { *out += ValueText(v); }), "]");
}

std::string StructText(const Struct& fields) {
  const std::map<std::string, const Value*> sorted = [&] {
    std::map<std::string, const Value*> entries;
    for (const auto& [name, value] : fields.fields()) entries[name] = &value;
    return entries;
  }();
  return absl::StrCat("{",
                      absl::StrJoin(sorted, ", ",
                                    [](std::string* out, const auto& entry) {
                                      absl::StrAppend(out, QuoteJson(entry.first), ": ", ValueText(*entry.second));
                                    }),
                      "}");
}

// JSON, which is YAML too, on one line.
std::string ValueText(const Value& value) {
  switch (value.kind_case()) {
    case Value::kNumberValue:
      return RealText(value.number_value());
    case Value::kStringValue:
      return QuoteJson(value.string_value());
    case Value::kBoolValue:
      return value.bool_value() ? "true" : "false";
    case Value::kListValue:
      return ListText(value.list_value());
    case Value::kStructValue:
      return StructText(value.struct_value());
    default:
      return "null";
  }
}

// What is written in one piece; nullopt: field by field.
std::optional<std::string> PieceText(const Message& message) {
  if (const auto* time = dynamic_cast<const Timestamp*>(&message)) return TimeText(*time);
  if (const auto* value = dynamic_cast<const Value*>(&message)) return ValueText(*value);
  if (const auto* list = dynamic_cast<const ListValue*>(&message)) return ListText(*list);
  if (const auto* fields = dynamic_cast<const Struct*>(&message)) return StructText(*fields);
  return std::nullopt;
}

bool IsMessage(const FieldDescriptor* field) { return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE; }

const Message& MessageAt(const Message& message, const FieldDescriptor* field, int index) {
  const auto* reflection = message.GetReflection();
  return index < 0 ? reflection->GetMessage(message, field) : reflection->GetRepeatedMessage(message, field, index);
}

// A map's entries in the order of their keys' text.
std::vector<std::pair<std::string, const Message*>> SortedEntries(const Message& message, const FieldDescriptor* field,
                                                                  Quote quote) {
  std::vector<std::pair<std::string, const Message*>> entries;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
    const Message& entry = MessageAt(message, field, i);
    entries.push_back({FieldText(entry, field->message_type()->map_key(), quote).At(-1), &entry});
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

class JsonWriter {
 public:
  explicit JsonWriter(bool pretty) : pretty_(pretty) {}

  void Write(const Message& message) {
    if (const std::optional<std::string> piece = PieceText(message)) {
      out_ += *piece;
      return;
    }
    Open('{');
    const auto* type = message.GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      if (field->has_presence() && !message.GetReflection()->HasField(message, field)) continue;
      Key(QuoteJson(field->name()));
      WriteField(message, field);
    }
    Close('}');
  }

  std::string Take() && { return std::move(out_); }

 private:
  void WriteField(const Message& message, const FieldDescriptor* field) {
    if (field->is_map()) return WriteMap(message, field);
    if (!field->is_repeated()) return WriteValue(message, field, -1);
    Open('[');
    for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
      Next();
      WriteValue(message, field, i);
    }
    Close(']');
  }

  void WriteMap(const Message& message, const FieldDescriptor* field) {
    Open('{');
    for (const auto& [key, entry] : SortedEntries(message, field, QuoteJson)) {
      Key(key[0] == '"' ? key : absl::StrCat("\"", key, "\""));
      WriteValue(*entry, field->message_type()->map_value(), -1);
    }
    Close('}');
  }

  void WriteValue(const Message& message, const FieldDescriptor* field, int index) {
    if (IsMessage(field)) return Write(MessageAt(message, field, index));
    out_ += FieldText(message, field, QuoteJson).At(index);
  }

  void Open(char bracket) {
    out_.push_back(bracket);
    ++depth_;
    first_ = true;
  }
  void Close(char bracket) {
    --depth_;
    if (!first_) NewLine();
    first_ = false;
    out_.push_back(bracket);
  }
  void Next() {
    if (!first_) out_.push_back(',');
    first_ = false;
    NewLine();
  }
  void Key(const std::string& key) {
    Next();
    absl::StrAppend(&out_, key, pretty_ ? ": " : ":");
  }
  void NewLine() {
    if (pretty_) absl::StrAppend(&out_, "\n", std::string(2 * depth_, ' '));
  }

  bool pretty_;
  int depth_ = 0;
  bool first_ = true;
  std::string out_;
};

class YamlWriter {
 public:
  // The fields of `message`, one a line, each after `indent` spaces; the first without, where `first_in_place`.
  void WriteFields(const Message& message, int indent, bool first_in_place) {
    const auto* type = message.GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      const auto* reflection = message.GetReflection();
      const bool is_set =
          field->is_repeated() ? reflection->FieldSize(message, field) > 0 : reflection->HasField(message, field);
      if (!is_set) continue;
      if (!first_in_place) out_.append(indent, ' ');
      first_in_place = false;
      absl::StrAppend(&out_, field->name(), ":");
      WriteField(message, field, indent);
    }
  }

  std::string Take() && { return std::move(out_); }

 private:
  void WriteField(const Message& message, const FieldDescriptor* field, int indent) {
    if (field->is_map()) return WriteMap(message, field, indent + 2);
    if (!field->is_repeated()) return WriteValue(message, field, indent + 2);
    const int size = message.GetReflection()->FieldSize(message, field);
    if (IsMessage(field)) {
      out_ += "\n";
      for (int i = 0; i < size; ++i) WriteItem(MessageAt(message, field, i), indent + 2);
      return;
    }
    const FieldText text(message, field, QuoteYaml);
    for (int i = 0; i < size; ++i) absl::StrAppend(&out_, i == 0 ? " [" : ", ", text.At(i));
    out_ += "]\n";
  }

  void WriteItem(const Message& item, int indent) {
    absl::StrAppend(&out_, std::string(indent, ' '), "- ");
    if (const std::optional<std::string> piece = PieceText(item)) {
      absl::StrAppend(&out_, *piece, "\n");
      return;
    }
    const size_t before = out_.size();
    WriteFields(item, indent + 2, true);
    if (out_.size() == before) out_ += "{}\n";
  }

  void WriteMap(const Message& message, const FieldDescriptor* field, int indent) {
    out_ += "\n";
    for (const auto& [key, entry] : SortedEntries(message, field, QuoteYaml)) {
      absl::StrAppend(&out_, std::string(indent, ' '), key, ":");
      WriteValue(*entry, field->message_type()->map_value(), indent + 2);
    }
  }

  // What follows "key:".
  void WriteValue(const Message& message, const FieldDescriptor* field, int indent) {
    if (!IsMessage(field)) {
      absl::StrAppend(&out_, " ", FieldText(message, field, QuoteYaml).At(-1), "\n");
      return;
    }
    const Message& child = MessageAt(message, field, -1);
    if (const std::optional<std::string> piece = PieceText(child)) {
      absl::StrAppend(&out_, " ", *piece, "\n");
      return;
    }
    YamlWriter below;
    below.WriteFields(child, indent, false);
    absl::StrAppend(&out_, below.out_.empty() ? " {}\n" : "\n", below.out_);
  }

  std::string out_;
};

}  // namespace

std::string QuoteJson(absl::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
    } else if (byte == '"' || byte == '\\') {
      absl::StrAppend(&out, "\\", text.substr(0, 1));
    } else if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppend(&out, "\\u", absl::Hex(byte, absl::kZeroPad4));
    } else {
      absl::StrAppend(&out, text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out + "\"";
}

std::string ToJson(const Message& message, JsonStyle style) {
  JsonWriter writer(style == JsonStyle::kPretty);
  writer.Write(message);
  return std::move(writer).Take() + (style == JsonStyle::kPretty ? "\n" : "");
}

std::string ToYaml(const Message& message) {
  YamlWriter writer;
  writer.WriteFields(message, 0, false);
  std::string out = std::move(writer).Take();
  return out.empty() ? "{}\n" : out;
}

}  // namespace ampd
