// The target of an HTTP request, "/api/v1/jobs/01hq?view=FULL", taken apart. What is read is hostile.
#ifndef AMPD_SERVER_HTTP_TARGET_H_
#define AMPD_SERVER_HTTP_TARGET_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd {

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
