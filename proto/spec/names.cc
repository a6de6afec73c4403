#include "proto/spec/names.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

// Of `text`, at most `most`, and no part of a UTF-8 character.
size_t ShownBytes(absl::string_view text, size_t most) {
  if (text.size() <= most) return text.size();
  constexpr size_t kLongestCharacter = 4;
  size_t end = most;
  while (end > 0 && most - end < kLongestCharacter && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  // No UTF-8.
  return (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80 ? most : end;
}

std::string LeftOut(size_t bytes) {
  return bytes == 0 ? "" : absl::StrCat(" (", bytes, bytes == 1 ? " more byte)" : " more bytes)");
}

}  // namespace

bool GlobMatches(absl::string_view pattern, absl::string_view text) {
  constexpr size_t kNone = absl::string_view::npos;
  size_t p = 0, t = 0, star = kNone, star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != kNone) {
      // Only the newest star can need to take one more character: an earlier one already left the shortest match.
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

int EditDistance(absl::string_view a, absl::string_view b) {
  const auto lower = [](char c) { return absl::ascii_tolower(static_cast<unsigned char>(c)); };
  const size_t width = b.size() + 1;
  std::vector<int> before(width), last(width), row(width);
  for (size_t j = 0; j < width; ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j < width; ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1])) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates) {
  constexpr size_t kLongest = 64;  // Longer ones are no slip of the pen, and the search is quadratic in the length.
  if (name.size() > kLongest) return "";
  std::string best;
  int best_distance = std::max<int>(1, static_cast<int>(name.size()) / 3) + 1;
  for (size_t i = 0; i < std::min<size_t>(candidates.size(), 1000); ++i) {
    const std::string& candidate = candidates[i];
    if (candidate.size() > kLongest) continue;
    const int distance = EditDistance(name, candidate);
    if (distance < best_distance && distance < static_cast<int>(std::max(name.size(), candidate.size()))) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string DidYouMean(absl::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = NearestName(name, candidates);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

std::string Cut(absl::string_view text, size_t most) {
  const size_t shown = ShownBytes(text, most);
  return absl::StrCat(text.substr(0, shown), shown < text.size() ? "..." : "", LeftOut(text.size() - shown));
}

std::string Quoted(absl::string_view text) {
  constexpr size_t kShown = 60;
  const size_t shown = ShownBytes(text, kShown);
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, shown)), shown < text.size() ? "...'" : "'",
                      LeftOut(text.size() - shown));
}

bool IsMadeOf(absl::string_view text, absl::string_view more) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || more.find(c) != absl::string_view::npos;
  });
}

}  // namespace ampd
