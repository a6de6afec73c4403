#include "proto/spec/first_of.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ampd {

std::string FirstOf(const std::vector<std::string>& names, size_t most) {
  const size_t told = std::min(names.size(), most);
  std::string text = absl::StrJoin(names.begin(), names.begin() + static_cast<int64_t>(told), ", ");
  if (told < names.size()) absl::StrAppend(&text, " and ", names.size() - told, " more");
  return text;
}

}  // namespace ampd
