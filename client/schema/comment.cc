#include "client/schema/comment.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ampd::client {
namespace {

// Where the sentence that begins at `from` ends, behind its full stop: one before a space or the end. "e.g. 9.0" is
// one, and so are names with a dot.
size_t EndOfSentence(absl::string_view text, size_t from) {
  for (size_t dot = text.find('.', from); dot != absl::string_view::npos; dot = text.find('.', dot + 1)) {
    const bool ends = dot + 1 == text.size() || text[dot + 1] == ' ' || text[dot + 1] == '\n';
    const absl::string_view before = text.substr(from, dot - from);
    if (ends && !absl::EndsWith(before, "e.g") && !absl::EndsWith(before, "i.e")) return dot + 1;
  }
  return text.size();
}

// The sentences with the space in front of each.
std::vector<absl::string_view> Sentences(absl::string_view text) {
  std::vector<absl::string_view> sentences;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find_first_not_of(" \n", at);
    const size_t end = EndOfSentence(text, begin == absl::string_view::npos ? at : begin);
    sentences.push_back(text.substr(at, end - at));
    at = end;
  }
  return sentences;
}

// "Default: none" -> "none"; false where the text does not begin so.
bool ConsumeDefault(absl::string_view* text, bool* several) {
  if (!absl::ConsumePrefix(text, "Default") && !absl::ConsumePrefix(text, "default")) return false;
  *several = absl::ConsumePrefix(text, "s");
  absl::ConsumePrefix(text, ":");
  return absl::ConsumePrefix(text, " ");
}

// "30 and 5", "1, 2 and 3", "0, and all": the one of `index`; all of it where they are not as many as the fields.
std::string OneOf(absl::string_view values, int index, int fields) {
  std::string apart = absl::StrReplaceAll(values, {{", and ", "\n"}, {" and ", "\n"}, {", ", "\n"}});
  const std::vector<std::string> each = absl::StrSplit(apart, '\n');
  return static_cast<int>(each.size()) == fields ? each[index] : std::string(values);
}

}  // namespace

std::string FirstSentence(absl::string_view text) { return std::string(text.substr(0, EndOfSentence(text, 0))); }

FieldComment ReadComment(absl::string_view comment, int index, int fields) {
  FieldComment read;
  for (const absl::string_view sentence : Sentences(comment)) {
    const absl::string_view text = absl::StripAsciiWhitespace(sentence);
    if (text == "Required.") {
      read.required = true;
      continue;
    }
    // "...; default: size", or the whole of the sentence.
    bool several = false, whole = true;
    absl::string_view value = text;
    bool found = ConsumeDefault(&value, &several);
    if (const size_t inner = text.find("; default"); !found && inner != absl::string_view::npos) {
      value = text.substr(inner + 2);
      found = ConsumeDefault(&value, &several);
      whole = false;
    }
    if (!found || !read.default_value.empty()) {
      absl::StrAppend(&read.meaning, sentence);
      continue;
    }
    const size_t semicolon = value.find("; ");
    whole = whole && semicolon == absl::string_view::npos;
    value = absl::StripSuffix(value.substr(0, semicolon), ".");
    read.default_value = several ? OneOf(value, index, fields) : std::string(value);
    if (!whole) absl::StrAppend(&read.meaning, sentence);
  }
  read.meaning = std::string(absl::StripAsciiWhitespace(read.meaning));
  return read;
}

}  // namespace ampd::client
