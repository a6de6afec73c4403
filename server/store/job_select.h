// The SQL for a page of jobs. Values are bound, never part of the text.
#ifndef AMPD_SERVER_STORE_JOB_SELECT_H_
#define AMPD_SERVER_STORE_JOB_SELECT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/store/records.h"

namespace ampd {

using SqlValue = std::variant<int64_t, std::string>;

// Its rows are (sequence, key, whether the filter holds): candidates in the query's order, by key and then by sequence,
// both falling or both rising. An index gives that order, so that no row is looked at that is not asked for.
struct JobSelect {
  std::string sql;
  // For ?1, ?2, ... in order.
  std::vector<SqlValue> values;
};

// A job's place in the order.
struct JobPlace {
  // What it is ordered by: an integer or, for names and users, a text. 0 in the order of submission, where the sequence
  // says it.
  SqlValue key = int64_t{0};
  int64_t sequence = 0;
};

// Whether `a` comes before `b`.
bool ComesBefore(const JobPlace& a, const JobPlace& b, bool descending);

// One or more, whose rows together are the candidates behind `after`; to be merged by ComesBefore. A job is in one
// only.
std::vector<JobSelect> SelectJobs(const JobQuery& query, const std::optional<JobPlace>& after);

// Of jobs of this very query.
std::string PageToken(const JobQuery& query, const JobPlace& last);
// INVALID_ARGUMENT where the query did not give it.
absl::StatusOr<JobPlace> PlaceOf(const JobQuery& query, absl::string_view token);

}  // namespace ampd

#endif  // AMPD_SERVER_STORE_JOB_SELECT_H_
