// What ListJobs is asked for: conditions on jobs, and their order. A subset of the filters of AIP-160
// (google.aip.dev/160).
//
//   filter    := "" | all | any           all := term { "AND" term }       any := term { "OR" term }
//   term      := "NOT" term | "(" filter ")" | condition
//   condition := ("state" | "user" | "sweep") ("=" | "!=") value
//              | "name" ("=" | "!=" | ":") value                            ":": has it within
//              | "labels." key ("=" | "!=" | ":") value                     ":" only with *: has the label
//              | ("priority" | "create_time") ("=" | "!=" | "<" | "<=" | ">" | ">=") value
//
// AND and OR side by side need parentheses. A value is a word of letters, digits and _ . - + / *, or a text in ' or ",
// in which \ stands before a quote or another \. States come in any case, times as "2026-01-31T12:00:00Z" (RFC 3339). A
// job without the label differs from every value of it.
#ifndef AMPD_SERVER_STORE_JOB_FILTER_H_
#define AMPD_SERVER_STORE_JOB_FILTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd {

struct JobCondition {
  enum class Field { kState, kUser, kSweep, kName, kLabel, kPriority, kCreateTime };
  enum class Op { kEqual, kNotEqual, kLess, kLessOrEqual, kGreater, kGreaterOrEqual, kHas };

  Field field = Field::kState;
  Op op = Op::kEqual;
  // Of a label.
  std::string key;
  // Of a user, sweep, name or label.
  std::string text;
  // A v1::Job::State; a priority; nanoseconds since 1970.
  int64_t number = 0;
};

struct JobFilter {
  enum class Kind { kAll, kAny, kNot, kCondition };

  // kAll and kAny have any number of parts, kNot one. kAll without one holds always.
  Kind kind = Kind::kAll;
  std::vector<JobFilter> parts;
  // With kCondition.
  JobCondition condition;
};

inline constexpr size_t kMaxFilterBytes = 4096;
// Parentheses and NOTs within one another; conditions.
inline constexpr int kMaxFilterDepth = 20;
inline constexpr int kMaxFilterConditions = 100;

// INVALID_ARGUMENT tells where, in bytes from 0, and what is wrong.
absl::StatusOr<JobFilter> ParseJobFilter(absl::string_view text);

// Parses to an equal filter, with the parentheses that it needs, and all values quoted.
std::string ToString(const JobFilter& filter);

struct JobOrder {
  enum class Field { kCreateTime, kPriority, kState, kName, kUser };

  Field field = Field::kCreateTime;
  bool descending = true;
};

// "FIELD", "FIELD asc" or "FIELD desc"; empty: "create_time desc". INVALID_ARGUMENT names the fields there are.
absl::StatusOr<JobOrder> ParseJobOrder(absl::string_view text);

}  // namespace ampd

#endif  // AMPD_SERVER_STORE_JOB_FILTER_H_
