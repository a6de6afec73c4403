#include "server/http/target.h"

#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
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

// What follows the scheme of the absolute form; nullopt: it has another form.
std::optional<absl::string_view> BehindScheme(absl::string_view text) {
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (absl::StartsWithIgnoreCase(text, scheme)) return text.substr(scheme.size());
  }
  return std::nullopt;
}

bool IsPort(absl::string_view text) {
  return !text.empty() && text.size() <= 5 &&
         absl::c_all_of(text, [](unsigned char c) { return absl::ascii_isdigit(c); });
}

// A name, an IPv4 address, or an IPv6 address in brackets.
bool IsHost(absl::string_view text) {
  const bool is_ipv6 = absl::ConsumePrefix(&text, "[");
  if (is_ipv6 && !absl::ConsumeSuffix(&text, "]")) return false;
  const absl::string_view others = is_ipv6 ? ".:" : "-._";
  return !text.empty() && absl::c_all_of(text, [&](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains(others, c);
  });
}

bool IsAuthority(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || absl::EndsWith(text, "]")) return IsHost(text);
  return IsPort(text.substr(colon + 1)) && IsHost(text.substr(0, colon));
}

}  // namespace

absl::StatusOr<Target> ParseTarget(absl::string_view text) {
  Target target;
  if (const std::optional<absl::string_view> rest = BehindScheme(text)) {
    target.authority = std::string(rest->substr(0, rest->find_first_of("/?#")));
    if (!IsAuthority(target.authority)) {
      return absl::InvalidArgumentError("the target's authority is not HOST or HOST:PORT");
    }
    text = rest->substr(target.authority.size());
  }
  const size_t mark = text.find('?');
  target.path = std::string(text.substr(0, mark));
  if (target.path.empty() && !target.authority.empty()) target.path.push_back('/');
  if (mark != absl::string_view::npos) target.query = std::string(text.substr(mark + 1));
  return target;
}

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
