// Any protobuf message as JSON or YAML, with the proto's own field names.
#ifndef AMPD_PROTO_SPEC_TEXT_H_
#define AMPD_PROTO_SPEC_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace ampd {

enum class JsonStyle {
  kCompact,  // One line, for JSON lines.
  kPretty,   // Indented by two spaces, with a newline at the end.
};

// proto3's JSON mapping. Defaults are printed: every list, map and field without presence, though not an `optional`
// field or a message that is not set. Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity";
// 64-bit integers are numbers up to 2^53, where every JSON reader is exact, and strings beyond; times are RFC 3339;
// Value, ListValue and Struct are what they hold. Maps are sorted by key. Any proto3 JSON parser reads it back.
std::string ToJson(const google::protobuf::Message& message, JsonStyle style);

// A JSON string. Bytes that are no UTF-8 become U+FFFD.
std::string QuoteJson(absl::string_view text);

// YAML that ParseYaml reads back to an equal message. What is not set is left out. "{}\n" for an empty message.
std::string ToYaml(const google::protobuf::Message& message);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_TEXT_H_
