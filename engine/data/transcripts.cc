#include "engine/data/transcripts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "engine/data/path.h"
#include "proto/spec/names.h"

namespace ampd::data {
namespace {

constexpr char kDefaultAlphabet[] = " 'abcdefghijklmnopqrstuvwxyz";
constexpr size_t kMaxAlphabetBytes = 1 << 16;
constexpr int64_t kMaxTranscriptBytes = int64_t{1} << 28;

// The bytes of each character of UTF-8 text; bytes that belong to none are characters of their own.
std::vector<absl::string_view> Characters(absl::string_view text) {
  std::vector<absl::string_view> characters;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = begin + 1;
    while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) ++end;
    characters.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return characters;
}

// Whether `c` is one of the set that begins behind the '[' at `p`; `end` becomes the place behind its ']', or stays
// where there is none.
bool InSet(absl::string_view pattern, size_t p, char c, size_t* end) {
  size_t at = p + 1;
  const bool negated = at < pattern.size() && pattern[at] == '!';
  if (negated) ++at;
  bool found = false;
  // A ']' that comes first is one of the set.
  for (bool first = true; at < pattern.size() && (first || pattern[at] != ']'); first = false) {
    const auto low = static_cast<uint8_t>(pattern[at]), byte = static_cast<uint8_t>(c);
    if (at + 2 < pattern.size() && pattern[at + 1] == '-' && pattern[at + 2] != ']') {
      found = found || (low <= byte && byte <= static_cast<uint8_t>(pattern[at + 2]));
      at += 3;
    } else {
      found = found || low == byte;
      ++at;
    }
  }
  if (at >= pattern.size()) return false;
  *end = at + 1;
  return found != negated;
}

// Whether the item of the pattern at `p`, no '*', matches `c`; `next` becomes the place of the item behind it.
bool ItemMatches(absl::string_view pattern, size_t p, char c, size_t* next) {
  *next = p + 1;
  if (pattern[p] == '?') return true;
  if (pattern[p] == '[') {
    size_t end = 0;
    const bool in = InSet(pattern, p, c, &end);
    if (end > 0) {
      *next = end;
      return in;
    }
  }
  return pattern[p] == c;
}

absl::StatusOr<std::string> ReadText(const std::string& path, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(const auto file, OpenBeneath(path, roots));
  if (file->size() > kMaxTranscriptBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": transcripts of ", file->size(), " bytes; at most ", kMaxTranscriptBytes, " are read"));
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  AMPD_RETURN_IF_ERROR(file->ReadAt(0, {reinterpret_cast<uint8_t*>(&text[0]), text.size()}));
  if (absl::StartsWith(text, "\xff\xfe") || absl::StartsWith(text, "\xfe\xff")) {
    return absl::DataLossError(absl::StrCat(path, ": is UTF-16 text; save it as UTF-8"));
  }
  // A byte order mark is none of the first name.
  if (absl::StartsWith(text, "\xef\xbb\xbf")) text.erase(0, 3);
  return text;
}

}  // namespace

bool GlobMatchesName(absl::string_view pattern, absl::string_view name) {
  constexpr size_t kNone = absl::string_view::npos;
  size_t p = 0, n = 0, star = kNone, star_name = 0, next = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_name = n;
    } else if (p < pattern.size() && ItemMatches(pattern, p, name[n], &next)) {
      p = next;
      ++n;
    } else if (star != kNone) {
      // Only the newest star can need to take one more byte.
      p = star + 1;
      n = ++star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool Takes(const v1::WavFolderDataset& spec, absl::string_view name) {
  const auto matches = [&](const std::string& pattern) { return GlobMatchesName(pattern, name); };
  const bool included = spec.include().empty() ? GlobMatchesName("*.wav", name)
                                               : std::any_of(spec.include().begin(), spec.include().end(), matches);
  return included && std::none_of(spec.exclude().begin(), spec.exclude().end(), matches);
}

absl::StatusOr<Alphabet> Alphabet::Create(const v1::WavFolderDataset& spec) {
  const std::string text = spec.has_alphabet() ? spec.alphabet() : kDefaultAlphabet;
  if (text.empty() || text.size() > kMaxAlphabetBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("alphabet: must be 1 to ", kMaxAlphabetBytes, " bytes, is ", text.size()));
  }
  Alphabet alphabet;
  for (const absl::string_view character : Characters(text)) {
    const auto label = static_cast<int32_t>(alphabet.labels_.size()) + 1;
    if (alphabet.labels_.emplace(std::string(character), label).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("alphabet: has '", absl::Utf8SafeCEscape(character), "' twice"));
  }
  return alphabet;
}

absl::StatusOr<std::vector<int32_t>> Alphabet::Spell(absl::string_view transcript) const {
  const std::string lower = absl::AsciiStrToLower(transcript);
  std::vector<int32_t> labels;
  for (const absl::string_view character : Characters(lower)) {
    const auto at = labels_.find(std::string(character));
    if (at == labels_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the transcript \"", absl::Utf8SafeCEscape(Cut(transcript, 100)),
                                                     "\" has '", absl::Utf8SafeCEscape(character),
                                                     "', which the alphabet has not"));
    }
    labels.push_back(at->second);
  }
  return labels;
}

absl::StatusOr<Transcripts> Transcripts::Open(const v1::WavFolderDataset& spec, absl::Span<const std::string> roots) {
  Transcripts result;
  result.by_prefix_ = spec.transcripts().empty();
  result.source_ = result.by_prefix_ ? "transcript_by_prefix" : spec.transcripts();
  if (result.by_prefix_) {
    for (const auto& [prefix, text] : spec.transcript_by_prefix()) result.texts_[prefix] = text;
    return result;
  }
  AMPD_ASSIGN_OR_RETURN(const std::string text, ReadText(spec.transcripts(), roots));
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    absl::ConsumeSuffix(&line, "\r");
    if (line.empty()) continue;
    const size_t tab = line.find('\t');
    const auto wrong = [&](const char* what) {
      return absl::DataLossError(absl::StrCat(result.source_, ": line ", number, " ", what));
    };
    if (tab == absl::string_view::npos) return wrong("has no tab between a name and a transcript");
    const std::string name(line.substr(0, tab)), said(line.substr(tab + 1));
    if (!result.texts_.emplace(name, said).second) return wrong("names a file a second time");
  }
  return result;
}

absl::StatusOr<std::string> Transcripts::Of(const std::string& name) const {
  auto found = by_prefix_ ? texts_.find(name.substr(0, name.find('_'))) : texts_.find(name);
  if (!by_prefix_ && found == texts_.end()) found = texts_.find(name.substr(0, name.rfind('.')));
  if (found != texts_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat(name, ": has no transcript in ", source_));
}

}  // namespace ampd::data
