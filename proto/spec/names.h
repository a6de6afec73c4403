// Names that people type: what may be in them, which one they may have meant, which a glob takes in.
#ifndef AMPD_PROTO_SPEC_NAMES_H_
#define AMPD_PROTO_SPEC_NAMES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ampd {

// Whether `text` matches `pattern` as a whole: '*' stands for any run of characters, '?' for one. Linear space, time at
// most the product of the lengths.
bool GlobMatches(absl::string_view pattern, absl::string_view text);

// Edits (insert, delete, replace, swap neighbours) that turn `a` into `b`; letters compare without case.
int EditDistance(absl::string_view a, absl::string_view b);

// The candidate closest to `name` when it is close enough to be a slip of the pen (at most a third of its length, and
// at least one edit), else "". The first of equally close ones. Only the first 1,000 candidates are looked at.
std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates);

// "; did you mean X?", or "" where no candidate is near.
std::string DidYouMean(absl::string_view name, const std::vector<std::string>& candidates);

// What a message quotes of `text`: all of it, or its first `most` bytes - fewer than that where it would be half a
// UTF-8 character - and how much that leaves out: "aaa... (97 more bytes)".
std::string Cut(absl::string_view text, size_t most);

// `text` in single quotes for a message: control and non-ASCII bytes escaped, the first 60 bytes as Cut() does.
std::string Quoted(absl::string_view text);

// Whether all of `text` is letters, digits or characters of `more`.
bool IsMadeOf(absl::string_view text, absl::string_view more);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_NAMES_H_
