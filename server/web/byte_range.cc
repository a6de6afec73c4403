#include "server/web/byte_range.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

constexpr absl::string_view kUnit = "bytes=";

bool IsDigits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c); });
}

// As much as fits: beyond any file it makes no difference.
int64_t NumberOf(absl::string_view digits) {
  int64_t number = 0;
  return absl::SimpleAtoi(digits, &number) ? number : std::numeric_limits<int64_t>::max();
}

// "0-99", "100-", "-100": from where to where, both included, of a file without an end; negative `last`: the last so
// many. nullopt: none of these.
std::optional<std::pair<int64_t, int64_t>> BoundsOf(absl::string_view text) {
  const size_t dash = text.find('-');
  if (dash == absl::string_view::npos) return std::nullopt;
  const absl::string_view first = text.substr(0, dash);
  const absl::string_view last = text.substr(dash + 1);
  if (first.empty() && IsDigits(last)) return std::pair(int64_t{0}, -NumberOf(last));
  if (!IsDigits(first) || (!last.empty() && !IsDigits(last))) return std::nullopt;
  const int64_t from = NumberOf(first);
  const int64_t to = last.empty() ? std::numeric_limits<int64_t>::max() : NumberOf(last);
  return from <= to ? std::optional(std::pair(from, to)) : std::nullopt;
}

}  // namespace

absl::StatusOr<std::optional<ByteRange>> RangeOf(const HttpRequest& request, int64_t size, absl::string_view tag) {
  const std::optional<std::string> header = request.Header("Range");
  const std::optional<std::string> kept = request.Header("If-Range");
  if (!header || request.method != "GET" || (kept && *kept != tag)) return std::optional<ByteRange>();
  if (!absl::StartsWithIgnoreCase(*header, kUnit)) return std::optional<ByteRange>();
  const absl::string_view text = absl::StripAsciiWhitespace(absl::string_view(*header).substr(kUnit.size()));
  const bool is_suffix = absl::StartsWith(text, "-");
  const auto bounds = BoundsOf(text);
  if (!bounds) return std::optional<ByteRange>();
  const auto [first, last] = *bounds;
  ByteRange range;
  range.offset = is_suffix ? std::max<int64_t>(0, size + last) : first;
  range.length = is_suffix ? size - range.offset : std::min(last, size - 1) - first + 1;
  if (range.length > 0) return std::optional(range);
  return absl::OutOfRangeError(absl::StrCat("no byte of the file, which has ", size, ", is in ", *header));
}

}  // namespace ampd
