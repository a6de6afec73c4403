// What the comment of a field says, apart: its default, whether it must be given, and the rest.
#ifndef AMPD_CLIENT_SCHEMA_COMMENT_H_
#define AMPD_CLIENT_SCHEMA_COMMENT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace ampd::client {

struct FieldComment {
  // The comment without the sentences that the others hold.
  std::string meaning;
  // As it is written behind "Default" or "Defaults", without the full stop: "0.1", "none". Empty: none is named.
  std::string default_value;
  // It has the sentence "Required.".
  bool required = false;
};

// Of a comment as CommentOf gives it. A comment may be shared by `fields` fields that follow each other, of which this
// is number `index`, from 0: of "Defaults 30 and 5." each has its own. A default that is but a part of a sentence
// stands in the meaning, too.
FieldComment ReadComment(absl::string_view comment, int index = 0, int fields = 1);

// "Of one sample. Required." -> "Of one sample.": up to the first full stop that ends a sentence.
std::string FirstSentence(absl::string_view text);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_SCHEMA_COMMENT_H_
