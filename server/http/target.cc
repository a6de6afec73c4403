#include "server/http/target.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/core/status.h"
#include "proto/spec/utf8.h"

namespace ampd {
namespace {

constexpr size_t kMaxParameters = 64;

int HexDigit(char c) {
  if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return -1;
  return absl::ascii_isdigit(static_cast<unsigned char>(c)) ? c - '0' : absl::ascii_tolower(c) - 'a' + 10;
}

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::string> DecodePercent(absl::string_view text, bool plus_is_space) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
      if (high < 0 || low < 0) return absl::InvalidArgumentError("a '%' without two hexadecimal digits in the target");
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (c == '+' && plus_is_space) {
      c = ' ';
    }
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      return absl::InvalidArgumentError("a control character in the target");
    }
    decoded.push_back(c);
  }
  if (!IsUtf8(decoded)) return absl::InvalidArgumentError("the target is no UTF-8");
  return decoded;
}

absl::StatusOr<std::vector<std::string>> SplitPath(absl::string_view path) {
  if (!absl::StartsWith(path, "/")) return absl::InvalidArgumentError("the target's path does not begin with '/'");
  std::vector<std::string> parts;
  for (const absl::string_view part : absl::StrSplit(path.substr(1), '/')) {
    AMPD_ASSIGN_OR_RETURN(std::string decoded, DecodePercent(part, false));
    if (decoded == "." || decoded == ".." || absl::StrContains(decoded, '/')) {
      return absl::InvalidArgumentError("\".\", \"..\" or a '/' within a part of the target's path");
    }
    parts.push_back(std::move(decoded));
  }
  return parts;
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> SplitQuery(absl::string_view query) {
  std::vector<std::pair<std::string, std::string>> parameters;
  for (const absl::string_view parameter : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    if (parameters.size() == kMaxParameters) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxParameters, " parameters"));
    }
    const size_t equals = parameter.find('=');
    AMPD_ASSIGN_OR_RETURN(std::string name, DecodePercent(parameter.substr(0, equals), true));
    std::string value;
    if (equals != absl::string_view::npos) {
      AMPD_ASSIGN_OR_RETURN(value, DecodePercent(parameter.substr(equals + 1), true));
    }
    parameters.emplace_back(std::move(name), std::move(value));
  }
  return parameters;
}

}  // namespace ampd
