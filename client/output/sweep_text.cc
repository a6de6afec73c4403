#include "client/output/sweep_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/output/color.h"
#include "client/output/job_text.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "proto/spec/text.h"

namespace ampd::client {
namespace {

constexpr int kValueColumns = 30;

std::string LastName(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? path : path.substr(dot + 1);
}

// Header of each path's column.
std::map<std::string, std::string> Headers(const v1::JobSweep& sweep) {
  std::set<std::string> paths;
  for (const v1::Job& job : sweep.jobs()) {
    for (const auto& [path, value] : job.sweep().values().fields()) paths.insert(path);
  }
  std::map<std::string, int> uses;
  for (const std::string& path : paths) ++uses[LastName(path)];
  std::map<std::string, std::string> headers;
  for (const std::string& path : paths) {
    headers[path] = Clean(absl::AsciiStrToUpper(uses[LastName(path)] == 1 ? LastName(path) : path));
  }
  return headers;
}

std::string ValueText(const v1::Job& job, const std::string& path, int columns) {
  const auto& fields = job.sweep().values().fields();
  const auto found = fields.find(path);
  if (found == fields.end()) return "-";
  const google::protobuf::Value& value = found->second;
  const bool is_text = value.kind_case() == google::protobuf::Value::kStringValue;
  return Truncate(is_text ? value.string_value() : ToJson(value, JsonStyle::kCompact), columns);
}

// What the best has least of; NaN: not known.
double Rank(SweepOrder order, const v1::Job& job) {
  const v1::JobSummary& summary = job.summary();
  switch (order) {
    case SweepOrder::kIndex:
      return job.sweep().index();
    case SweepOrder::kStep:
      return -static_cast<double>(summary.step());
    case SweepOrder::kLoss:
      return summary.has_loss() ? summary.loss() : NAN;
    case SweepOrder::kEvalLoss:
      return summary.has_eval_loss() ? summary.eval_loss() : NAN;
    case SweepOrder::kAccuracy:
      return summary.has_accuracy() ? -summary.accuracy() : NAN;
  }
  return NAN;
}

}  // namespace

void SortSweep(SweepOrder order, v1::JobSweep* sweep) {
  std::stable_sort(sweep->mutable_jobs()->pointer_begin(), sweep->mutable_jobs()->pointer_end(),
                   [order](const v1::Job* a, const v1::Job* b) {
                     const double first = Rank(order, *a), second = Rank(order, *b);
                     return std::isnan(second) ? !std::isnan(first) : first < second;
                   });
}

std::string SweepText(const v1::JobSweep& sweep, const SweepStyle& style) {
  const std::map<std::string, std::string> headers = Headers(sweep);
  std::vector<std::string> titles = {">#"};
  for (const auto& [path, header] : headers) titles.push_back(header);
  for (const char* title : {"STATE", ">STEP", ">LOSS", ">EVAL LOSS", ">ACCURACY", "JOB"}) titles.push_back(title);
  Table table(titles);
  // Behind the number and the values.
  if (style.color) table.Paint(1 + headers.size(), ColorOfState);
  const int columns = style.cuts ? kValueColumns : std::numeric_limits<int>::max();
  for (const v1::Job& job : sweep.jobs()) {
    const v1::JobSummary& summary = job.summary();
    std::vector<std::string> cells = {absl::StrCat(job.sweep().index())};
    for (const auto& [path, header] : headers) cells.push_back(ValueText(job, path, columns));
    cells.push_back(StateText(job));
    cells.push_back(summary.total_steps() > 0 ? absl::StrCat(summary.step(), "/", summary.total_steps()) : "-");
    cells.push_back(summary.has_loss() ? Figure(summary.loss()) : "-");
    cells.push_back(summary.has_eval_loss() ? Figure(summary.eval_loss()) : "-");
    cells.push_back(summary.has_accuracy() ? Figure(summary.accuracy()) : "-");
    cells.push_back(job.id());
    table.Add(cells);
  }
  return table.ToString();
}

std::string SweepCounts(const v1::JobSweep& sweep) {
  std::map<v1::Job::State, int> counts;
  for (const v1::Job& job : sweep.jobs()) ++counts[job.state()];
  const std::string states = absl::StrJoin(counts, ", ", [](std::string* out, const auto& count) {
    absl::StrAppend(out, count.second, " ", v1::Job::State_Name(count.first));
  });
  return absl::StrCat(sweep.count(), sweep.count() == 1 ? " job" : " jobs", states.empty() ? "" : ": ", states);
}

std::string SweepStates(const v1::SweepSummary& sweep) {
  return absl::StrJoin(sweep.states(), ", ", [](std::string* out, const v1::SweepSummary::StateCount& count) {
    absl::StrAppend(out, count.jobs(), " ", v1::Job::State_Name(count.state()));
  });
}

}  // namespace ampd::client
