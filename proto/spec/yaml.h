// YAML (or JSON, which is a part of it) to any protobuf message by reflection: the schema of a job file or of the
// daemon's configuration is the proto, and nothing maps fields by hand.
//
// The mapping is proto3's JSON mapping, with the proto's own field names:
//   integers    a number or a string of one; 1e3 and 5.0 count as the integers they are
//   doubles     a number, or one of NaN, Infinity, -Infinity (also .nan, .inf, -.inf)
//   bools       true or false
//   strings     a string; a plain scalar that reads as a number, a bool or null must be quoted
//   bytes       base64
//   enums       the value's name in any case, or its number
//   messages    a map; `{}` sets an empty one
//   repeated    a list; nothing else, but a number for a list of one where IsWindowField() (window_fields.h)
//   maps        a map
//   Timestamp   RFC 3339
//   Value       anything: numbers (of which a double holds whole ones up to 2^53; others in quotes), strings, bools,
//   null,
//               lists and maps; ListValue is a list of it, Struct a map
// Refused: unknown fields, a second value of a oneof, duplicate keys, nulls, anchors and aliases, tags, more than one
// document, text that is not UTF-8, text over 4 MiB, nesting deeper than 64.
#ifndef AMPD_PROTO_SPEC_YAML_H_
#define AMPD_PROTO_SPEC_YAML_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "google/protobuf/struct.pb.h"

namespace ampd {

// Where the fields of a parsed text stand.
class FieldLines {
 public:
  void Set(const std::string& path, int line) { lines_.emplace(path, line); }
  // The line, from 1, of the field at `path` ("model.layers[2].dense.units"), else of the nearest field around it that
  // the text has; 0 when there is none.
  int LineOf(absl::string_view path) const;

 private:
  std::map<std::string, int, std::less<>> lines_;
};

// What is wrong with a text.
struct YamlError {
  // From 1; 0: of the text as a whole.
  int line = 0;
  // Of the field; empty: of no field, or of the text as a whole.
  std::string path;
  std::string what;
};

// Parses `text` into `message`, which is cleared first. An empty text gives an empty message. `lines`, when not null,
// receives where each field stands; `errors`, what the status says, error by error.
//
// INVALID_ARGUMENT with one line for each error, at most 20: "FILE:LINE: PATH: what is wrong", e.g.
//   job.yaml:12: train.batch_sise: no such field; did you mean batch_size?
// `message` is then left in an unspecified state.
absl::Status ParseYaml(absl::string_view text, absl::string_view filename, google::protobuf::Message* message,
                       FieldLines* lines = nullptr, std::vector<YamlError>* errors = nullptr);

// Applies "PATH=VALUE", such as "precision.mode=FP16" or "model.layers[2].dense.units=5". VALUE is YAML, and replaces
// what the field held; null clears it. A PATH through a message that is not set makes it; through another member of a
// oneof than the one set is an error, as is a list index beyond the end. An index one past the end of a list appends.
// A key of a map field follows a dot: "labels.team=vision".
// INVALID_ARGUMENT "--set PATH=VALUE: what is wrong"; `message` is then unchanged.
absl::Status ApplySet(google::protobuf::Message* message, absl::string_view assignment);

// As ApplySet, with the value as it is. INVALID_ARGUMENT with a violation of the field (proto/spec/resolve.h);
// `message` is then in an unspecified state.
absl::Status SetField(google::protobuf::Message* message, absl::string_view path, const google::protobuf::Value& value);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_YAML_H_
