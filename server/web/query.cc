#include "server/web/query.h"

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/core/status.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve.h"
#include "server/http/target.h"

namespace ampd {
namespace {

// Of a value in a message.
constexpr size_t kShown = 100;

}  // namespace

absl::StatusOr<Query> Query::Parse(absl::string_view text, const std::vector<std::string>& names) {
  AMPD_ASSIGN_OR_RETURN(const auto parameters, SplitQuery(text));
  Query query;
  for (const auto& [name, value] : parameters) {
    if (!absl::c_linear_search(names, name)) {
      const std::string known = names.empty() ? "this path takes none" : absl::StrJoin(names, ", ");
      return InvalidFields({{name, absl::StrCat("no such parameter; known: ", known)}});
    }
    if (!query.values_.emplace(name, value).second) return InvalidFields({{name, "given twice"}});
  }
  return query;
}

std::string Query::Text(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? "" : found->second;
}

absl::StatusOr<int64_t> Query::Integer(const std::string& name, int64_t low, int64_t high, int64_t fallback) const {
  if (!Has(name)) return fallback;
  int64_t value = 0;
  if (absl::SimpleAtoi(Text(name), &value) && value >= low && value <= high) return value;
  return InvalidFields(
      {{name, absl::StrCat("must be an integer from ", low, " to ", high, ", is \"", Cut(Text(name), kShown), "\"")}});
}

absl::StatusOr<bool> Query::Flag(const std::string& name) const {
  const std::string text = Text(name);
  if (!Has(name) || text == "false") return false;
  if (text == "true") return true;
  return InvalidFields({{name, absl::StrCat("must be true or false, is \"", Cut(text, kShown), "\"")}});
}

std::vector<std::string> Query::List(const std::string& name) const {
  return absl::StrSplit(Text(name), ',', absl::SkipEmpty());
}

}  // namespace ampd
