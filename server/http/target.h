// The target of an HTTP request, "/api/v1/jobs/01hq?view=FULL", taken apart (RFC 9112, 3.2). What is read is hostile.
#ifndef AMPD_SERVER_HTTP_TARGET_H_
#define AMPD_SERVER_HTTP_TARGET_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd {

// The parts of a target as sent, none of them decoded.
struct Target {
  // Of the absolute form, "http://HOST[:PORT]/...": HOST[:PORT], which takes the place of the request's Host. Empty:
  // the target has another form.
  std::string authority;
  // Of the absolute form "/" where it has none. Of the forms that are neither, "*" and "HOST:PORT", all of it.
  std::string path;
  // Without the '?'; empty: none.
  std::string query;
};

// INVALID_ARGUMENT for an absolute form whose authority is none: no host, a user's name before it, a port that is no
// number of 1 to 5 digits, other characters than those of host names and addresses.
absl::StatusOr<Target> ParseTarget(absl::string_view text);

// The percent-encoded `text` as it was; with `plus_is_space` as queries have it. INVALID_ARGUMENT for a '%' without two
// hexadecimal digits, for control characters and for what is no UTF-8.
absl::StatusOr<std::string> DecodePercent(absl::string_view text, bool plus_is_space);

// The decoded parts between the '/' of an absolute path; "/" has one, which is empty. INVALID_ARGUMENT as
// DecodePercent(), for "." and "..", and for a part with a '/' in it.
absl::StatusOr<std::vector<std::string>> SplitPath(absl::string_view path);

// Decoded, in order; a name without '=' has an empty value. INVALID_ARGUMENT as DecodePercent(), and for more than 64.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> SplitQuery(absl::string_view query);

}  // namespace ampd

#endif  // AMPD_SERVER_HTTP_TARGET_H_
