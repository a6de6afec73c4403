#include "server/store/job_filter.h"

#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "ampd/v1/job.pb.h"
#include "engine/core/status.h"

namespace ampd {
namespace {

using Field = JobCondition::Field;
using Op = JobCondition::Op;

constexpr char kLabels[] = "labels.";
// As users of label selectors may write it.
constexpr char kLabel[] = "label.";

constexpr std::pair<const char*, Field> kFields[] = {
    {"state", Field::kState}, {"user", Field::kUser},         {"sweep", Field::kSweep},
    {"name", Field::kName},   {"priority", Field::kPriority}, {"create_time", Field::kCreateTime},
};

// Longer ones first.
constexpr std::pair<const char*, Op> kOps[] = {
    {"!=", Op::kNotEqual}, {"<=", Op::kLessOrEqual}, {">=", Op::kGreaterOrEqual}, {"=", Op::kEqual}, {"<", Op::kLess},
    {">", Op::kGreater},   {":", Op::kHas},
};

constexpr std::pair<const char*, JobOrder::Field> kOrders[] = {
    {"create_time", JobOrder::Field::kCreateTime},
    {"priority", JobOrder::Field::kPriority},
    {"state", JobOrder::Field::kState},
    {"name", JobOrder::Field::kName},
    {"user", JobOrder::Field::kUser},
};

bool IsWordByte(char c) { return absl::ascii_isalnum(c) || absl::StrContains("_.-+/*", absl::string_view(&c, 1)); }

bool IsNumber(Field field) { return field == Field::kPriority || field == Field::kCreateTime; }

std::string Shown(absl::string_view text) { return absl::StrCat("\"", absl::CHexEscape(text.substr(0, 40)), "\""); }

const char* NameOf(Op op) {
  for (const auto& [name, known] : kOps) {
    if (known == op) return name;
  }
  return "";
}

std::string NameOf(const JobCondition& condition) {
  for (const auto& [name, field] : kFields) {
    if (field == condition.field) return name;
  }
  return kLabels;
}

struct Token {
  enum class Kind { kEnd, kOpen, kClose, kOp, kWord, kText };
  Kind kind = Kind::kEnd;
  size_t at = 0;
  // Of a text without its quotes and backslashes.
  std::string text;
  Op op = Op::kEqual;
};

absl::Status Wrong(size_t at, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("at byte ", at, ": ", what));
}

class Lexer {
 public:
  explicit Lexer(absl::string_view input) : input_(input) {}

  absl::StatusOr<Token> Next() {
    while (at_ < input_.size() && absl::ascii_isspace(input_[at_])) ++at_;
    Token token;
    token.at = at_;
    if (at_ == input_.size()) return token;
    const char c = input_[at_];
    if (c == '(' || c == ')') {
      ++at_;
      token.kind = c == '(' ? Token::Kind::kOpen : Token::Kind::kClose;
      return token;
    }
    if (c == '"' || c == '\'') return Text(std::move(token), c);
    for (const auto& [name, op] : kOps) {
      if (!absl::StartsWith(input_.substr(at_), name)) continue;
      at_ += absl::string_view(name).size();
      token.kind = Token::Kind::kOp;
      token.op = op;
      return token;
    }
    return Word(std::move(token));
  }
  // Whether the next token follows without a space.
  bool IsAt(char c) const { return at_ < input_.size() && input_[at_] == c; }

 private:
  absl::StatusOr<Token> Text(Token token, char quote) {
    token.kind = Token::Kind::kText;
    for (++at_; at_ < input_.size(); ++at_) {
      char c = input_[at_];
      if (c == quote) {
        ++at_;
        return token;
      }
      if (c == '\\') {
        c = ++at_ < input_.size() ? input_[at_] : '\0';
        if (c != '\\' && c != '"' && c != '\'') return Wrong(at_ - 1, "a \\ stands before a quote or another \\");
      }
      token.text += c;
    }
    return Wrong(token.at, "a quote without its end");
  }

  absl::StatusOr<Token> Word(Token token) {
    token.kind = Token::Kind::kWord;
    while (at_ < input_.size() && IsWordByte(input_[at_])) token.text += input_[at_++];
    if (!token.text.empty()) return token;
    return Wrong(at_, absl::StrCat("unexpected ", Shown(input_.substr(at_, 1)), "; values like this are quoted"));
  }

  const absl::string_view input_;
  size_t at_ = 0;
};

class Parser {
 public:
  explicit Parser(absl::string_view input) : lexer_(input) {}

  absl::StatusOr<JobFilter> Run() {
    AMPD_RETURN_IF_ERROR(Advance());
    if (token_.kind == Token::Kind::kEnd) return JobFilter();
    AMPD_ASSIGN_OR_RETURN(JobFilter filter, Terms());
    if (token_.kind == Token::Kind::kEnd) return filter;
    return Wrong(token_.at, token_.kind == Token::Kind::kClose ? "a ) without its (" : "expected AND or OR");
  }

 private:
  absl::Status Advance() {
    AMPD_ASSIGN_OR_RETURN(token_, lexer_.Next());
    return absl::OkStatus();
  }
  bool IsWord(absl::string_view word) const { return token_.kind == Token::Kind::kWord && token_.text == word; }

  absl::StatusOr<JobFilter> Terms() {
    AMPD_ASSIGN_OR_RETURN(JobFilter first, Term());
    const bool any = IsWord("OR");
    if (!any && !IsWord("AND")) return first;
    JobFilter filter;
    filter.kind = any ? JobFilter::Kind::kAny : JobFilter::Kind::kAll;
    filter.parts.push_back(std::move(first));
    while (IsWord("AND") || IsWord("OR")) {
      // AIP-160 and programming languages disagree about which one binds.
      if (IsWord("OR") != any) return Wrong(token_.at, "AND and OR side by side: use parentheses");
      AMPD_RETURN_IF_ERROR(Advance());
      AMPD_ASSIGN_OR_RETURN(JobFilter next, Term());
      filter.parts.push_back(std::move(next));
    }
    return filter;
  }

  absl::StatusOr<JobFilter> Term() {
    const bool is_not = IsWord("NOT");
    if (!is_not && token_.kind != Token::Kind::kOpen) return Condition();
    if (++depth_ > kMaxFilterDepth) {
      return Wrong(token_.at, absl::StrCat("more than ", kMaxFilterDepth, " parentheses and NOTs within one another"));
    }
    const size_t open = token_.at;
    AMPD_RETURN_IF_ERROR(Advance());
    JobFilter filter;
    if (is_not) {
      filter.kind = JobFilter::Kind::kNot;
      AMPD_ASSIGN_OR_RETURN(JobFilter part, Term());
      filter.parts.push_back(std::move(part));
    } else {
      AMPD_ASSIGN_OR_RETURN(filter, Terms());
      if (token_.kind != Token::Kind::kClose) return Wrong(token_.at, absl::StrCat("no ) for the ( at byte ", open));
      AMPD_RETURN_IF_ERROR(Advance());
    }
    --depth_;
    return filter;
  }

  absl::StatusOr<JobFilter> Condition() {
    if (++conditions_ > kMaxFilterConditions) {
      return Wrong(token_.at, absl::StrCat("more than ", kMaxFilterConditions, " conditions"));
    }
    JobFilter filter;
    filter.kind = JobFilter::Kind::kCondition;
    AMPD_RETURN_IF_ERROR(FieldOf(&filter.condition));
    const size_t at = token_.at;
    if (token_.kind != Token::Kind::kOp) return Wrong(at, "expected =, !=, <, <=, >, >= or : behind a field");
    filter.condition.op = token_.op;
    AMPD_RETURN_IF_ERROR(CheckOp(filter.condition, at));
    AMPD_RETURN_IF_ERROR(Advance());
    AMPD_RETURN_IF_ERROR(Value(&filter.condition));
    AMPD_RETURN_IF_ERROR(Advance());
    return filter;
  }

  absl::Status FieldOf(JobCondition* condition) {
    const Token token = token_;
    if (token.kind != Token::Kind::kWord) return Wrong(token.at, "expected a condition, like state = RUNNING");
    const bool quoted_key = (token.text == kLabels || token.text == kLabel) && (lexer_.IsAt('"') || lexer_.IsAt('\''));
    AMPD_RETURN_IF_ERROR(Advance());
    absl::string_view key = token.text;
    if (absl::ConsumePrefix(&key, kLabels) || absl::ConsumePrefix(&key, kLabel)) {
      condition->field = Field::kLabel;
      condition->key = std::string(key);
      if (quoted_key) {
        condition->key = token_.text;
        return Advance();
      }
      return key.empty() ? Wrong(token.at, "a label has a name: labels.NAME") : absl::OkStatus();
    }
    for (const auto& [name, field] : kFields) {
      if (token.text != name) continue;
      condition->field = field;
      return absl::OkStatus();
    }
    return Wrong(token.at, absl::StrCat("no field ", Shown(token.text),
                                        "; there are state, user, name, labels.KEY, sweep, priority and create_time"));
  }

  static absl::Status CheckOp(const JobCondition& condition, size_t at) {
    const bool is_equality = condition.op == Op::kEqual || condition.op == Op::kNotEqual;
    if (is_equality) return absl::OkStatus();
    const bool has = condition.field == Field::kName || condition.field == Field::kLabel;
    if (condition.op == Op::kHas ? has : IsNumber(condition.field)) return absl::OkStatus();
    return Wrong(at, absl::StrCat(NameOf(condition), " cannot be asked for by ", NameOf(condition.op)));
  }

  absl::Status Value(JobCondition* condition) {
    const size_t at = token_.at;
    if (token_.kind != Token::Kind::kWord && token_.kind != Token::Kind::kText) return Wrong(at, "expected a value");
    const std::string& text = token_.text;
    if (condition->field == Field::kState) return State(text, at, &condition->number);
    if (condition->field == Field::kPriority) {
      int32_t priority = 0;
      if (!absl::SimpleAtoi(text, &priority)) return Wrong(at, absl::StrCat(Shown(text), " is not a whole number"));
      condition->number = priority;
      return absl::OkStatus();
    }
    if (condition->field == Field::kCreateTime) return Time(text, at, &condition->number);
    if (condition->field == Field::kLabel && condition->op == Op::kHas) {
      return text == "*" ? absl::OkStatus() : Wrong(at, "behind labels.KEY: only * can stand; = compares values");
    }
    condition->text = text;
    return absl::OkStatus();
  }

  static absl::Status State(const std::string& text, size_t at, int64_t* number) {
    v1::Job::State state;
    if (!v1::Job::State_Parse(absl::AsciiStrToUpper(text), &state) || state == v1::Job::STATE_UNSPECIFIED) {
      return Wrong(at, absl::StrCat("no state ", Shown(text)));
    }
    *number = state;
    return absl::OkStatus();
  }

  static absl::Status Time(const std::string& text, size_t at, int64_t* number) {
    absl::Time time;
    std::string error;
    // What a clock of 64-bit nanoseconds can tell.
    if (!absl::ParseTime(absl::RFC3339_full, text, &time, &error) || time < absl::UnixEpoch() ||
        time >= absl::FromUnixNanos(std::numeric_limits<int64_t>::max())) {
      return Wrong(at, absl::StrCat(Shown(text), " is no time like \"2026-01-31T12:00:00Z\""));
    }
    *number = absl::ToUnixNanos(time);
    return absl::OkStatus();
  }

  Lexer lexer_;
  Token token_;
  int depth_ = 0;
  int conditions_ = 0;
};

std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) absl::StrAppend(&quoted, c == '"' || c == '\\' ? "\\" : "", absl::string_view(&c, 1));
  return quoted + "\"";
}

std::string ValueOf(const JobCondition& condition) {
  switch (condition.field) {
    case Field::kState:
      return v1::Job::State_Name(static_cast<v1::Job::State>(condition.number));
    case Field::kPriority:
      return absl::StrCat(condition.number);
    case Field::kCreateTime:
      return Quoted(absl::FormatTime(absl::RFC3339_full, absl::FromUnixNanos(condition.number), absl::UTCTimeZone()));
    case Field::kLabel:
      return condition.op == Op::kHas ? "*" : Quoted(condition.text);
    default:
      return Quoted(condition.text);
  }
}

}  // namespace

absl::StatusOr<JobFilter> ParseJobFilter(absl::string_view text) {
  if (text.size() > kMaxFilterBytes) {
    return absl::InvalidArgumentError(absl::StrCat("has ", text.size(), " bytes, at most ", kMaxFilterBytes));
  }
  return Parser(text).Run();
}

std::string ToString(const JobFilter& filter) {
  if (filter.kind == JobFilter::Kind::kCondition) {
    const JobCondition& condition = filter.condition;
    const std::string key = condition.field == Field::kLabel ? Quoted(condition.key) : "";
    return absl::StrCat(NameOf(condition), key, " ", NameOf(condition.op), " ", ValueOf(condition));
  }
  const auto part = [](std::string* out, const JobFilter& each) {
    const bool nested = each.kind == JobFilter::Kind::kAll || each.kind == JobFilter::Kind::kAny;
    absl::StrAppend(out, nested ? "(" : "", ToString(each), nested ? ")" : "");
  };
  if (filter.kind == JobFilter::Kind::kNot) {
    std::string text = "NOT ";
    part(&text, filter.parts[0]);
    return text;
  }
  return absl::StrJoin(filter.parts, filter.kind == JobFilter::Kind::kAny ? " OR " : " AND ", part);
}

absl::StatusOr<JobOrder> ParseJobOrder(absl::string_view text) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(text.substr(0, 200), absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.empty()) return JobOrder();
  JobOrder order;
  order.descending = words.size() == 2 && words[1] == "desc";
  const bool known = words.size() == 1 || (words.size() == 2 && (order.descending || words[1] == "asc"));
  bool found = false;
  for (const auto& [name, field] : kOrders) {
    if (words[0] != name) continue;
    found = true;
    order.field = field;
  }
  if (known && found) return order;
  return absl::InvalidArgumentError(absl::StrCat(Shown(text), " is not one of create_time, priority, state, name and ",
                                                 "user, with asc (default) or desc behind it"));
}

}  // namespace ampd
