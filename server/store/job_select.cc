#include "server/store/job_select.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace ampd {
namespace {

using Field = JobCondition::Field;
using Op = JobCondition::Op;

constexpr char kOfSweep[] = "FROM sweeps w WHERE w.id = ";

const char* Comparison(Op op) {
  switch (op) {
    case Op::kLess:
      return " < ";
    case Op::kLessOrEqual:
      return " <= ";
    case Op::kGreater:
      return " > ";
    case Op::kGreaterOrEqual:
      return " >= ";
    case Op::kNotEqual:
      return " <> ";
    default:
      return " = ";
  }
}

class Builder {
 public:
  // The parameter that stands for it.
  std::string Bind(SqlValue value) {
    select_.values.push_back(std::move(value));
    return absl::StrCat("?", select_.values.size());
  }

  std::string Condition(const JobCondition& condition) {
    const char* compare = Comparison(condition.op);
    const char* no = condition.op == Op::kNotEqual ? "NOT " : "";
    switch (condition.field) {
      case Field::kState:
        return absl::StrCat("j.state", compare, Bind(condition.number));
      case Field::kPriority:
        return absl::StrCat("i.priority", compare, Bind(condition.number));
      case Field::kCreateTime:
        return absl::StrCat("i.create_time", compare, Bind(condition.number));
      case Field::kUser:
        return absl::StrCat("i.user", compare, Bind(condition.text));
      case Field::kName:
        if (condition.op == Op::kHas) return absl::StrCat("instr(i.name, ", Bind(condition.text), ") > 0");
        return absl::StrCat("i.name", compare, Bind(condition.text));
      case Field::kSweep:
        return absl::StrCat(no, "EXISTS(SELECT 1 ", kOfSweep, Bind(condition.text),
                            " AND i.sequence >= w.first AND i.sequence < w.first + w.jobs)");
      case Field::kLabel:
        break;
    }
    const std::string key = Bind(condition.key);
    const std::string value = condition.op == Op::kHas ? "" : absl::StrCat(" AND l.value = ", Bind(condition.text));
    return absl::StrCat(no, "EXISTS(SELECT 1 FROM job_labels l WHERE l.key = ", key, value, " AND l.job = i.sequence)");
  }

  std::string Filter(const JobFilter& filter) {
    if (filter.kind == JobFilter::Kind::kCondition) return Condition(filter.condition);
    if (filter.kind == JobFilter::Kind::kNot) return absl::StrCat("NOT (", Filter(filter.parts[0]), ")");
    if (filter.parts.empty()) return "1";
    std::vector<std::string> parts;
    for (const JobFilter& part : filter.parts) parts.push_back(absl::StrCat("(", Filter(part), ")"));
    return absl::StrJoin(parts, filter.kind == JobFilter::Kind::kAny ? " OR " : " AND ");
  }

  std::string All(const JobQuery& query) {
    std::string all = Filter(query.filter);
    if (query.owner) all = absl::StrCat("(", all, ") AND i.user = ", Bind(*query.owner));
    if (query.states.empty()) return all;
    std::vector<std::string> states;
    for (const v1::Job::State state : query.states) states.push_back(absl::StrCat(static_cast<int>(state)));
    return absl::StrCat("(", all, ") AND j.state IN (", absl::StrJoin(states, ","), ")");
  }

  JobSelect Done(std::string sql) && {
    select_.sql = std::move(sql);
    return std::move(select_);
  }

 private:
  JobSelect select_;
};

// Conditions that hold of every job of the query.
std::vector<const JobCondition*> Required(const JobQuery& query) {
  std::vector<const JobCondition*> required;
  const JobFilter& filter = query.filter;
  if (filter.kind == JobFilter::Kind::kCondition) required.push_back(&filter.condition);
  if (filter.kind != JobFilter::Kind::kAll) return required;
  for (const JobFilter& part : filter.parts) {
    if (part.kind == JobFilter::Kind::kCondition) required.push_back(&part.condition);
  }
  return required;
}

const JobCondition* Equality(const JobQuery& query, Field field) {
  for (const JobCondition* condition : Required(query)) {
    if (condition->field == field && condition->op == Op::kEqual) return condition;
  }
  return nullptr;
}

bool HasTimeBound(const JobQuery& query) {
  const std::vector<const JobCondition*> required = Required(query);
  return std::any_of(required.begin(), required.end(), [](const JobCondition* condition) {
    return condition->field == Field::kCreateTime && condition->op != Op::kNotEqual;
  });
}

// The newest first: as they were submitted. By the clock, which may have been set, where that says which can be left
// out.
bool IsBySubmission(const JobQuery& query) {
  return query.order.field == JobOrder::Field::kCreateTime && query.order.descending && !HasTimeBound(query);
}

// States of which alone jobs can be; empty: any.
std::vector<v1::Job::State> StatesOf(const JobQuery& query) {
  const JobCondition* state = Equality(query, Field::kState);
  if (state != nullptr) return {static_cast<v1::Job::State>(state->number)};
  std::vector<v1::Job::State> states = query.states;
  std::sort(states.begin(), states.end());
  states.erase(std::unique(states.begin(), states.end()), states.end());
  return states;
}

// `from` tells the rows; `sequence` is that of a row, by which they come.
JobSelect BySubmission(Builder builder, const JobQuery& query, const std::optional<JobPlace>& after,
                       const std::string& from, const std::string& where, const std::string& sequence) {
  const std::string behind =
      after ? absl::StrCat(" AND ", sequence, " < ", builder.Bind(after->sequence)) : std::string();
  const std::string filter = builder.All(query);
  return std::move(builder).Done(absl::StrCat("SELECT ", sequence, ", 0, (", filter, ") FROM ", from, " WHERE ", where,
                                              behind, " ORDER BY ", sequence, " DESC"));
}

constexpr char kJoined[] = " CROSS JOIN jobs j ON j.sequence = i.sequence";

JobSelect ByState(const JobQuery& query, const std::optional<JobPlace>& after, v1::Job::State state) {
  Builder builder;
  const std::string user = query.owner ? absl::StrCat("j.user = ", builder.Bind(*query.owner), " AND ") : "";
  const std::string where = absl::StrCat(user, "j.state = ", builder.Bind(int64_t{state}));
  return BySubmission(std::move(builder), query, after,
                      absl::StrCat("jobs j INDEXED BY ", query.owner ? "jobs_by_user_state" : "jobs_by_state",
                                   " CROSS JOIN job_index i ON i.sequence = j.sequence"),
                      where, "j.sequence");
}

bool AnyTerminal(const std::vector<v1::Job::State>& states) {
  return std::any_of(states.begin(), states.end(), [](v1::Job::State state) { return state >= v1::Job::SUCCEEDED; });
}

// The fewest rows that an index can tell; of an owner's query, as in OrderingOf, the owner's alone.
std::vector<JobSelect> SelectNewest(const JobQuery& query, const std::optional<JobPlace>& after) {
  const auto one = [&](Builder builder, const std::string& from, const std::string& where,
                       const std::string& sequence) -> std::vector<JobSelect> {
    return {BySubmission(std::move(builder), query, after, from, where, sequence)};
  };
  const auto of_owner = [&](Builder& builder) {
    return query.owner ? absl::StrCat("i.user = ", builder.Bind(*query.owner), " AND ") : std::string();
  };
  Builder builder;
  if (const JobCondition* sweep = Equality(query, Field::kSweep); sweep != nullptr) {
    const std::string id = builder.Bind(sweep->text);
    const std::string where = absl::StrCat(of_owner(builder), "i.sequence >= (SELECT w.first ", kOfSweep, id,
                                           ") AND i.sequence < (SELECT w.first + w.jobs ", kOfSweep, id, ")");
    return one(std::move(builder), absl::StrCat("job_index i", kJoined), where, "i.sequence");
  }
  if (const JobCondition* label = Equality(query, Field::kLabel); label != nullptr && !query.owner) {
    const std::string key = builder.Bind(label->key);
    const std::string where = absl::StrCat("k.key = ", key, " AND k.value = ", builder.Bind(label->text));
    return one(std::move(builder), absl::StrCat("job_labels k CROSS JOIN job_index i ON i.sequence = k.job", kJoined),
               where, "k.job");
  }
  if (const JobCondition* name = Equality(query, Field::kName); name != nullptr) {
    const std::string where = absl::StrCat(of_owner(builder), "i.name = ", builder.Bind(name->text));
    const char* index = query.owner ? "job_index_by_user_name" : "job_index_by_name";
    return one(std::move(builder), absl::StrCat("job_index i INDEXED BY ", index, kJoined), where, "i.sequence");
  }
  const std::vector<v1::Job::State> states = StatesOf(query);
  const JobCondition* user = Equality(query, Field::kUser);
  const bool by_user = query.owner ? states.empty() : user != nullptr && (states.empty() || AnyTerminal(states));
  if (by_user) {
    const std::string where = absl::StrCat("i.user = ", builder.Bind(query.owner ? *query.owner : user->text));
    return one(std::move(builder), absl::StrCat("job_index i INDEXED BY job_index_by_user", kJoined), where,
               "i.sequence");
  }
  if (states.empty()) return one(std::move(builder), absl::StrCat("job_index i", kJoined), "1", "i.sequence");
  std::vector<JobSelect> selects;
  for (const v1::Job::State state : states) selects.push_back(ByState(query, after, state));
  return selects;
}

struct Ordering {
  const char* key;
  const char* sequence;
  const char* user;
  std::string from;
};

// Of an owner's query no other user's row is looked at: where a page ended tells of the owner's jobs alone.
Ordering OrderingOf(const JobQuery& query) {
  const char* of_user = query.owner ? "user_" : "";
  if (query.order.field == JobOrder::Field::kState) {
    return {
        "j.state", "j.sequence", "j.user",
        absl::StrCat("jobs j INDEXED BY jobs_by_", of_user, "state CROSS JOIN job_index i ON i.sequence = j.sequence")};
  }
  const auto by = [&](const char* key, const char* column) -> Ordering {
    return {key, "i.sequence", "i.user",
            absl::StrCat("job_index i INDEXED BY job_index_by_", of_user, column, kJoined)};
  };
  switch (query.order.field) {
    case JobOrder::Field::kPriority:
      return by("i.priority", "priority");
    case JobOrder::Field::kName:
      return by("i.name", "name");
    case JobOrder::Field::kUser:
      return {"i.user", "i.sequence", "i.user", absl::StrCat("job_index i INDEXED BY job_index_by_user", kJoined)};
    default:
      return by("i.create_time", "create_time");
  }
}

bool IsUpperBound(Op op) { return op == Op::kLess || op == Op::kLessOrEqual; }
bool IsLowerBound(Op op) { return op == Op::kGreater || op == Op::kGreaterOrEqual; }

// A bound on the time of creation that tells which end of the index to leave out. What the place before bounds as well
// is left to the filter: of two bounds SQLite looks rows up by one.
bool NarrowsIndex(const JobQuery& query, const JobCondition& condition, bool has_place) {
  if (query.order.field != JobOrder::Field::kCreateTime || condition.field != Field::kCreateTime) return false;
  if (condition.op == Op::kNotEqual) return false;
  return !has_place || !(query.order.descending ? IsUpperBound(condition.op) : IsLowerBound(condition.op));
}

// `where`: of the key and the sequence, behind the place before; the conditions on the time of creation are added.
JobSelect Ordered(Builder builder, const JobQuery& query, std::vector<std::string> where) {
  const bool has_place = !where.empty();
  const Ordering ordering = OrderingOf(query);
  const char* direction = query.order.descending ? " DESC" : " ASC";
  for (const JobCondition* condition : Required(query)) {
    if (NarrowsIndex(query, *condition, has_place)) where.push_back(builder.Condition(*condition));
  }
  if (query.owner) where.push_back(absl::StrCat(ordering.user, " = ", builder.Bind(*query.owner)));
  const std::string filter = builder.All(query);
  return std::move(builder).Done(absl::StrCat("SELECT ", ordering.sequence, ", ", ordering.key, ", (", filter,
                                              ") FROM ", ordering.from, where.empty() ? "" : " WHERE ",
                                              absl::StrJoin(where, " AND "), " ORDER BY ", ordering.key, direction,
                                              ", ", ordering.sequence, direction));
}

// Of those behind a place first the ones of its key: SQLite looks up (key, sequence) > (?, ?) by the key alone.
std::vector<JobSelect> SelectOrdered(const JobQuery& query, const std::optional<JobPlace>& after) {
  if (!after) return {Ordered(Builder(), query, {})};
  const Ordering ordering = OrderingOf(query);
  const char* behind = query.order.descending ? " < " : " > ";
  Builder equal, other;
  std::vector<std::string> is_equal = {absl::StrCat(ordering.key, " = ", equal.Bind(after->key))};
  is_equal.push_back(absl::StrCat(ordering.sequence, behind, equal.Bind(after->sequence)));
  const std::string is_behind = absl::StrCat(ordering.key, behind, other.Bind(after->key));
  return {Ordered(std::move(equal), query, std::move(is_equal)), Ordered(std::move(other), query, {is_behind})};
}

// What tells this query's tokens from others'.
std::string Fingerprint(const JobQuery& query) {
  std::vector<int> states(query.states.begin(), query.states.end());
  std::sort(states.begin(), states.end());
  const std::string text =
      absl::StrCat(ToString(query.filter), "\n", static_cast<int>(query.order.field), query.order.descending, "\n",
                   absl::StrJoin(states, ","), "\n", query.owner ? absl::StrCat("of ", *query.owner) : "of all");
  // FNV-1a: against mistakes. Of what a caller may see, no token decides.
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

bool IsTextKey(const JobQuery& query) {
  return query.order.field == JobOrder::Field::kName || query.order.field == JobOrder::Field::kUser;
}

}  // namespace

bool ComesBefore(const JobPlace& a, const JobPlace& b, bool descending) {
  if (a.key != b.key) return descending ? a.key > b.key : a.key < b.key;
  return descending ? a.sequence > b.sequence : a.sequence < b.sequence;
}

std::vector<JobSelect> SelectJobs(const JobQuery& query, const std::optional<JobPlace>& after) {
  if (IsBySubmission(query)) return SelectNewest(query, after);
  return SelectOrdered(query, after);
}

std::string PageToken(const JobQuery& query, const JobPlace& last) {
  const int64_t* number = std::get_if<int64_t>(&last.key);
  const std::string key = number != nullptr ? absl::StrCat(*number) : std::get<std::string>(last.key);
  return absl::WebSafeBase64Escape(absl::StrCat(Fingerprint(query), ":", last.sequence, ":", key));
}

absl::Status CheckPageToken(const JobQuery& query) {
  return query.page_token.empty() ? absl::OkStatus() : PlaceOf(query, query.page_token).status();
}

absl::StatusOr<JobPlace> PlaceOf(const JobQuery& query, absl::string_view token) {
  const absl::Status foreign = absl::InvalidArgumentError(
      "is not one that ListJobs gave for this filter, these states and this order_by: the pages of a list are asked "
      "for alike");
  std::string bytes;
  if (token.size() > 2000 || !absl::WebSafeBase64Unescape(token, &bytes)) return foreign;
  const std::vector<std::string> parts = absl::StrSplit(bytes, absl::MaxSplits(':', 2));
  JobPlace place;
  if (parts.size() != 3 || parts[0] != Fingerprint(query) || !absl::SimpleAtoi(parts[1], &place.sequence)) {
    return foreign;
  }
  if (IsTextKey(query)) {
    place.key = parts[2];
    return place;
  }
  int64_t number = 0;
  if (!absl::SimpleAtoi(parts[2], &number)) return foreign;
  place.key = number;
  return place;
}

}  // namespace ampd
