// A strict JSON reader (RFC 8259) for what checkpoints and safetensors files hold: hostile bytes give an error, never a
// crash.
#ifndef AMPD_ENGINE_CORE_JSON_H_
#define AMPD_ENGINE_CORE_JSON_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd {

// A value. Numbers keep their text, so that 64-bit integers and floats are read exactly.
class Json {
 public:
  enum class Kind : uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };

  Kind kind() const { return kind_; }
  // kArray; empty for other kinds.
  const std::vector<Json>& items() const { return items_; }
  // kObject: in the order of the text; empty for other kinds.
  const std::vector<std::pair<std::string, Json>>& members() const { return members_; }
  // The member, or nullptr.
  const Json* Find(absl::string_view key) const;

  // INVALID_ARGUMENT for another kind, a fraction, or a number out of range.
  absl::StatusOr<int64_t> AsInt64() const;
  absl::StatusOr<uint64_t> AsUint64() const;
  // The nearest one; INVALID_ARGUMENT for another kind or one that overflows.
  absl::StatusOr<float> AsFloat() const;
  absl::StatusOr<double> AsDouble() const;
  absl::StatusOr<std::string> AsString() const;
  absl::StatusOr<bool> AsBool() const;

 private:
  friend class JsonParser;
  Kind kind_ = Kind::kNull;
  std::string text_;  // kNumber: as written; kString: its UTF-8; kBool: "true" or "false"
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> members_;
};

// The one value that `text` holds, spaces around it allowed. INVALID_ARGUMENT with the byte offset for anything else,
// for a key used twice in an object, and for nesting deeper than 16.
absl::StatusOr<Json> ParseJson(absl::string_view text);

// `text` (UTF-8) as a JSON string, quotes included.
std::string JsonQuoted(absl::string_view text);

}  // namespace ampd

#endif  // AMPD_ENGINE_CORE_JSON_H_
