#include "engine/core/json.h"

#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/core/status.h"

namespace ampd {

constexpr int kMaxDepth = 16;

class JsonParser {
 public:
  explicit JsonParser(absl::string_view text) : text_(text) {}

  absl::StatusOr<Json> ParseDocument() {
    Json value;
    AMPD_RETURN_IF_ERROR(ParseValue(0, &value));
    SkipSpace();
    if (at_ != text_.size()) return Error("text after the value");
    return value;
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("JSON: ", what, " at byte ", at_));
  }

  void SkipSpace() {
    constexpr absl::string_view kSpace = " \t\r\n";
    while (at_ < text_.size() && kSpace.find(text_[at_]) != absl::string_view::npos) ++at_;
  }

  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  absl::Status ParseValue(int depth, Json* value) {
    if (depth > kMaxDepth) return Error("nesting deeper than 16");
    SkipSpace();
    if (at_ >= text_.size()) return Error("the text ends where a value is due");
    switch (text_[at_]) {
      case '{':
        return ParseObject(depth, value);
      case '[':
        return ParseArray(depth, value);
      case '"':
        value->kind_ = Json::Kind::kString;
        return ParseString(&value->text_);
      case 't':
        return ParseWord("true", Json::Kind::kBool, value);
      case 'f':
        return ParseWord("false", Json::Kind::kBool, value);
      case 'n':
        return ParseWord("null", Json::Kind::kNull, value);
      default:
        return ParseNumber(value);
    }
  }

  absl::Status ParseWord(absl::string_view word, Json::Kind kind, Json* value) {
    if (text_.substr(at_, word.size()) != word) return Error("no value");
    at_ += word.size();
    value->kind_ = kind;
    value->text_ = std::string(word);
    return absl::OkStatus();
  }

  absl::Status ParseArray(int depth, Json* value) {
    value->kind_ = Json::Kind::kArray;
    ++at_;
    SkipSpace();
    if (Take(']')) return absl::OkStatus();
    while (true) {
      value->items_.emplace_back();
      AMPD_RETURN_IF_ERROR(ParseValue(depth + 1, &value->items_.back()));
      SkipSpace();
      if (Take(']')) return absl::OkStatus();
      if (!Take(',')) return Error("neither ',' nor ']'");
    }
  }

  absl::Status ParseObject(int depth, Json* value) {
    value->kind_ = Json::Kind::kObject;
    absl::flat_hash_set<std::string> keys;
    ++at_;
    SkipSpace();
    if (Take('}')) return absl::OkStatus();
    while (true) {
      SkipSpace();
      std::string key;
      AMPD_RETURN_IF_ERROR(ParseString(&key));
      if (!keys.insert(key).second) return Error("a key used twice");
      SkipSpace();
      if (!Take(':')) return Error("no ':' after a key");
      value->members_.emplace_back(std::move(key), Json());
      AMPD_RETURN_IF_ERROR(ParseValue(depth + 1, &value->members_.back().second));
      SkipSpace();
      if (Take('}')) return absl::OkStatus();
      if (!Take(',')) return Error("neither ',' nor '}'");
    }
  }

  size_t TakeDigits() {
    const size_t from = at_;
    while (at_ < text_.size() && absl::ascii_isdigit(text_[at_])) ++at_;
    return at_ - from;
  }

  absl::Status ParseNumber(Json* value) {
    const size_t from = at_;
    Take('-');
    const bool zero = at_ < text_.size() && text_[at_] == '0';
    const size_t whole = TakeDigits();
    if (whole == 0 || (zero && whole > 1)) return Error("no value");
    if (Take('.') && TakeDigits() == 0) return Error("no digit after the point");
    if (Take('e') || Take('E')) {
      if (!Take('+')) Take('-');
      if (TakeDigits() == 0) return Error("no digit in the exponent");
    }
    value->kind_ = Json::Kind::kNumber;
    value->text_ = std::string(text_.substr(from, at_ - from));
    return absl::OkStatus();
  }

  absl::Status ParseString(std::string* out) {
    if (!Take('"')) return Error("no string");
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < 0x20) return Error("a control character in a string");
      ++at_;
      if (c == '"') return absl::OkStatus();
      if (c == '\\') {
        AMPD_RETURN_IF_ERROR(ParseEscape(out));
      } else {
        out->push_back(c);
      }
    }
    return Error("a string without end");
  }

  absl::Status ParseEscape(std::string* out) {
    constexpr absl::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    if (at_ >= text_.size()) return Error("a string without end");
    if (text_[at_] == 'u') {
      ++at_;
      return ParseCodePoint(out);
    }
    const size_t index = kFrom.find(text_[at_]);
    if (index == absl::string_view::npos) return Error("an unknown escape");
    out->push_back(kTo[index]);
    ++at_;
    return absl::OkStatus();
  }

  absl::Status ParseHex4(uint32_t* unit) {
    const absl::string_view digits = text_.substr(at_, 4);
    *unit = 0;
    for (char c : digits) {
      if (!absl::ascii_isxdigit(c)) return Error("no hex digit in an escape");
      *unit = *unit * 16 + (absl::ascii_isdigit(c) ? c - '0' : absl::ascii_tolower(c) - 'a' + 10);
    }
    if (digits.size() < 4) return Error("a string without end");
    at_ += 4;
    return absl::OkStatus();
  }

  absl::Status ParseCodePoint(std::string* out) {
    uint32_t code;
    AMPD_RETURN_IF_ERROR(ParseHex4(&code));
    if (code >= 0xdc00 && code < 0xe000) return Error("half of a surrogate pair");
    if (code >= 0xd800 && code < 0xdc00) {
      uint32_t low = 0;
      if (!Take('\\') || !Take('u')) return Error("half of a surrogate pair");
      AMPD_RETURN_IF_ERROR(ParseHex4(&low));
      if (low < 0xdc00 || low >= 0xe000) return Error("half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    AppendUtf8(code, out);
    return absl::OkStatus();
  }

  static void AppendUtf8(uint32_t code, std::string* out) {
    if (code < 0x80) return out->push_back(static_cast<char>(code));
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr uint32_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
    out->push_back(static_cast<char>(kLead[more] | (code >> (6 * more))));
    for (int i = more - 1; i >= 0; --i) out->push_back(static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3f)));
  }

  absl::string_view text_;
  size_t at_ = 0;
};

const Json* Json::Find(absl::string_view key) const {
  for (const auto& [name, value] : members_) {
    if (name == key) return &value;
  }
  return nullptr;
}

absl::StatusOr<int64_t> Json::AsInt64() const {
  int64_t value;
  if (kind_ != Kind::kNumber || !absl::SimpleAtoi(text_, &value)) {
    return absl::InvalidArgumentError(absl::StrCat("no 64-bit integer: '", text_.substr(0, 40), "'"));
  }
  return value;
}

absl::StatusOr<uint64_t> Json::AsUint64() const {
  uint64_t value;
  if (kind_ != Kind::kNumber || !absl::SimpleAtoi(text_, &value)) {
    return absl::InvalidArgumentError(absl::StrCat("no unsigned 64-bit integer: '", text_.substr(0, 40), "'"));
  }
  return value;
}

absl::StatusOr<float> Json::AsFloat() const {
  float value;
  if (kind_ != Kind::kNumber || !absl::SimpleAtof(text_, &value) || !std::isfinite(value)) {
    return absl::InvalidArgumentError(absl::StrCat("no float: '", text_.substr(0, 40), "'"));
  }
  return value;
}

absl::StatusOr<double> Json::AsDouble() const {
  double value;
  if (kind_ != Kind::kNumber || !absl::SimpleAtod(text_, &value) || !std::isfinite(value)) {
    return absl::InvalidArgumentError(absl::StrCat("no number: '", text_.substr(0, 40), "'"));
  }
  return value;
}

absl::StatusOr<std::string> Json::AsString() const {
  if (kind_ != Kind::kString) return absl::InvalidArgumentError("no string");
  return text_;
}

absl::StatusOr<bool> Json::AsBool() const {
  if (kind_ != Kind::kBool) return absl::InvalidArgumentError("neither true nor false");
  return text_ == "true";
}

absl::StatusOr<Json> ParseJson(absl::string_view text) { return JsonParser(text).ParseDocument(); }

std::string JsonQuoted(absl::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      quoted.push_back('\\');
      quoted.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<unsigned>(c));
    } else {
      quoted.push_back(c);
    }
  }
  return quoted + "\"";
}

}  // namespace ampd
