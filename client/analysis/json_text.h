// Text and numbers as JSON.
#ifndef AMPD_CLIENT_ANALYSIS_JSON_TEXT_H_
#define AMPD_CLIENT_ANALYSIS_JSON_TEXT_H_

#include <cmath>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace ampd::client {

// With its quotes. `text` is UTF-8.
inline std::string JsonText(absl::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      json += absl::StrFormat("\\u%04x", static_cast<int>(c));
    } else {
      json += c;
    }
  }
  return json + "\"";
}

// Exact; null where it is not finite.
inline std::string JsonNumber(double value) { return std::isfinite(value) ? absl::StrFormat("%.17g", value) : "null"; }

}  // namespace ampd::client

#endif  // AMPD_CLIENT_ANALYSIS_JSON_TEXT_H_
