#include "proto/spec/utf8.h"

#include <utility>
#include <vector>

#include "google/protobuf/message.h"

namespace ampd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr char kReplacement[] = "\xEF\xBF\xBD";

void MakeTextsValid(const FieldDescriptor* field, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  if (!field->is_repeated()) {
    const std::string text = reflection.GetString(*message, field);
    std::string valid = ValidUtf8(text);
    if (valid != text) reflection.SetString(message, field, std::move(valid));
    return;
  }
  for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
    const std::string text = reflection.GetRepeatedString(*message, field, i);
    std::string valid = ValidUtf8(text);
    if (valid != text) reflection.SetRepeatedString(message, field, i, std::move(valid));
  }
}

}  // namespace

size_t Utf8Length(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto follows = [&](size_t i) { return i < text.size() && (byte(i) & 0xC0) == 0x80; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  if (first < 0xE0) return follows(1) ? 2 : 0;
  if (first < 0xF0) {
    if (!follows(1) || !follows(2)) return 0;
    const bool bad = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) > 0x9F);
    return bad ? 0 : 3;
  }
  if (first > 0xF4 || !follows(1) || !follows(2) || !follows(3)) return 0;
  const bool bad = (first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) > 0x8F);
  return bad ? 0 : 4;
}

std::string ValidUtf8(absl::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const size_t length = Utf8Length(bytes);
    if (length == 0) {
      text += kReplacement;
      bytes.remove_prefix(1);
    } else {
      text.append(bytes.data(), length);
      bytes.remove_prefix(length);
    }
  }
  return text;
}

void MakeValidUtf8(Message* message) {
  const Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->type() == FieldDescriptor::TYPE_STRING) {
      MakeTextsValid(field, message);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated()) {
      MakeValidUtf8(reflection.MutableMessage(message, field));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
        MakeValidUtf8(reflection.MutableRepeatedMessage(message, field, i));
      }
    }
  }
}

}  // namespace ampd
