#include "proto/spec/token_ids.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/spec/names.h"

namespace ampd {

absl::StatusOr<std::vector<int32_t>> ParseTokenIds(absl::string_view text, int64_t vocabulary) {
  std::vector<int32_t> ids;
  for (const absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty())) {
    int32_t id = 0;
    if (!std::all_of(word.begin(), word.end(), absl::ascii_isdigit)) {
      return absl::InvalidArgumentError(
          absl::StrCat("has ", Quoted(word), ", which is no token's id: ids are whole numbers separated by spaces"));
    }
    if (!absl::SimpleAtoi(word, &id) || id >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("has ", Quoted(word), ", but ids are 0 to ", vocabulary - 1, ", the tokens' vocabulary"));
    }
    ids.push_back(id);
  }
  return ids;
}

}  // namespace ampd
