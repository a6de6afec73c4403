// Parameters of a request.
#ifndef AMPD_SERVER_WEB_QUERY_H_
#define AMPD_SERVER_WEB_QUERY_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd {

class Query {
 public:
  // INVALID_ARGUMENT, with the field, for a parameter that is none of `names`, one that is given twice, and for text
  // that is no query.
  static absl::StatusOr<Query> Parse(absl::string_view text, const std::vector<std::string>& names);

  bool Has(const std::string& name) const { return values_.count(name) > 0; }
  // Empty where it is not given.
  std::string Text(const std::string& name) const;
  // INVALID_ARGUMENT, with the field, for what is no integer of [low, high]; `fallback` where it is not given.
  absl::StatusOr<int64_t> Integer(const std::string& name, int64_t low, int64_t high, int64_t fallback) const;
  // false where it is not given; INVALID_ARGUMENT, with the field, for what is neither "true" nor "false".
  absl::StatusOr<bool> Flag(const std::string& name) const;
  // The values between the ','; none where it is not given.
  std::vector<std::string> List(const std::string& name) const;

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_QUERY_H_
