#include "server/store/retention.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/store/statement.h"

namespace ampd {
namespace {

double Steps(const v1::StepReport& report) { return static_cast<double>(report.last_step() - report.first_step() + 1); }

// Of two figures the mean; of one that is none the other.
double Mean(double a, double weight_a, double b, double weight_b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return weight_a + weight_b > 0 ? (a * weight_a + b * weight_b) / (weight_a + weight_b) : b;
}

// Time that the steps took; where nobody told, their number stands for it.
std::pair<double, double> Times(const v1::StepReport& first, const v1::StepReport& second) {
  if (!first.has_step_seconds() || !second.has_step_seconds()) return {Steps(first), Steps(second)};
  return {Steps(first) * first.step_seconds(), Steps(second) * second.step_seconds()};
}

const v1::PhaseReport* FindPhase(const v1::StepReport& report, absl::string_view name) {
  for (const v1::PhaseReport& phase : report.phases()) {
    if (phase.name() == name) return &phase;
  }
  return nullptr;
}

void MergePhases(const v1::StepReport& first, const v1::StepReport& second, v1::StepReport* merged) {
  for (v1::PhaseReport& phase : *merged->mutable_phases()) {
    const v1::PhaseReport* before = FindPhase(first, phase.name());
    if (before != nullptr) phase.set_loss(Mean(before->loss(), Steps(first), phase.loss(), Steps(second)));
  }
  // A phase that took no step lately.
  for (const v1::PhaseReport& phase : first.phases()) {
    if (FindPhase(second, phase.name()) == nullptr) *merged->add_phases() = phase;
  }
}

absl::StatusOr<int64_t> NumberOf(const Database& database, absl::string_view job_id) {
  Statement query(database, "SELECT sequence FROM jobs WHERE id=?1");
  AMPD_ASSIGN_OR_RETURN(const bool found, query.Text(job_id).Step());
  if (!found) return absl::NotFoundError(absl::StrCat("no job ", job_id));
  return query.IntAt(0);
}

// The newest event that may be merged; 0: none.
absl::StatusOr<int64_t> LastOld(const Database& database, int64_t job, int64_t keep) {
  Statement query(database, "SELECT sequence FROM events WHERE job=?1 ORDER BY sequence DESC LIMIT 1 OFFSET ?2");
  AMPD_ASSIGN_OR_RETURN(const bool found, query.Int(job).Int(keep).Step());
  return found ? query.IntAt(0) : 0;
}

absl::Status Replace(const Database& database, int64_t job, const v1::JobEvent& first, const v1::JobEvent& merged) {
  AMPD_RETURN_IF_ERROR(Statement(database, "DELETE FROM events WHERE job=?1 AND sequence=?2")
                           .Int(job)
                           .Int(static_cast<int64_t>(first.sequence()))
                           .Run());
  return Statement(database, "UPDATE events SET first_sequence=?3, event=?4 WHERE job=?1 AND sequence=?2")
      .Int(job)
      .Int(static_cast<int64_t>(merged.sequence()))
      .Int(static_cast<int64_t>(merged.first_sequence()))
      .Blob(merged.SerializeAsString())
      .Run();
}

absl::StatusOr<std::vector<v1::JobEvent>> OldEvents(const Database& database, int64_t job, uint64_t after, int64_t last,
                                                    int limit) {
  Statement query(database,
                  "SELECT event FROM events WHERE job=?1 AND sequence>?2 AND sequence<=?3 ORDER BY sequence LIMIT ?4");
  query.Int(job).Int(static_cast<int64_t>(after)).Int(last).Int(limit);
  std::vector<v1::JobEvent> events;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return events;
    AMPD_RETURN_IF_ERROR(query.ParseAt(0, &events.emplace_back()));
  }
}

// Of each pair of neighbours that becomes one the place of the first.
std::vector<size_t> PairsOf(const std::vector<v1::JobEvent>& events) {
  std::vector<size_t> pairs;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    if (CanMerge(events[i], events[i + 1])) pairs.push_back(i++);
  }
  return pairs;
}

// What one pass over a job's events merges.
struct OldReports {
  int64_t job = 0;
  std::vector<v1::JobEvent> events;
  std::vector<size_t> pairs;
  MergePass pass;
};

absl::StatusOr<OldReports> FindOldReports(const Database& database, absl::string_view job_id, uint64_t after_sequence,
                                          int64_t keep, int limit) {
  OldReports old;
  AMPD_ASSIGN_OR_RETURN(old.job, NumberOf(database, job_id));
  AMPD_ASSIGN_OR_RETURN(const int64_t last, LastOld(database, old.job, keep));
  AMPD_ASSIGN_OR_RETURN(old.events, OldEvents(database, old.job, after_sequence, last, limit));
  old.pairs = PairsOf(old.events);
  old.pass.merged = static_cast<int64_t>(old.pairs.size());
  if (static_cast<int>(old.events.size()) == limit) old.pass.after_sequence = old.events.back().sequence();
  return old;
}

}  // namespace

bool CanMerge(const v1::JobEvent& first, const v1::JobEvent& second) {
  return first.has_step() && second.has_step() && first.attempt() == second.attempt() &&
         first.sequence() + 1 == second.first_sequence() && first.step().last_step() + 1 == second.step().first_step();
}

v1::JobEvent MergeStepReports(const v1::JobEvent& first, const v1::JobEvent& second) {
  v1::JobEvent merged = second;
  merged.set_first_sequence(first.first_sequence());
  const v1::StepReport& a = first.step();
  const v1::StepReport& b = second.step();
  v1::StepReport& step = *merged.mutable_step();
  const auto [time_a, time_b] = Times(a, b);
  step.set_first_step(a.first_step());
  step.set_samples_per_second(Mean(a.samples_per_second(), time_a, b.samples_per_second(), time_b));
  step.set_input_wait_seconds(a.input_wait_seconds() + b.input_wait_seconds());
  if (a.has_step_seconds() && b.has_step_seconds()) {
    step.set_step_seconds(Mean(a.step_seconds(), Steps(a), b.step_seconds(), Steps(b)));
  }
  if (a.has_model_flops_utilization() && b.has_model_flops_utilization()) {
    step.set_model_flops_utilization(Mean(a.model_flops_utilization(), time_a, b.model_flops_utilization(), time_b));
  }
  MergePhases(a, b, &step);
  return merged;
}

absl::StatusOr<MergePass> MergeOldReports(Database& database, absl::string_view job_id, uint64_t after_sequence,
                                          int64_t keep, int limit) {
  AMPD_ASSIGN_OR_RETURN(const OldReports old, FindOldReports(database, job_id, after_sequence, keep, limit));
  for (const size_t i : old.pairs) {
    const v1::JobEvent &first = old.events[i], &second = old.events[i + 1];
    AMPD_RETURN_IF_ERROR(Replace(database, old.job, first, MergeStepReports(first, second)));
  }
  return old.pass;
}

absl::StatusOr<MergePass> LookForOldReports(const Database& database, absl::string_view job_id, uint64_t after_sequence,
                                            int64_t keep, int limit) {
  AMPD_ASSIGN_OR_RETURN(const OldReports old, FindOldReports(database, job_id, after_sequence, keep, limit));
  return old.pass;
}

absl::StatusOr<int64_t> CountEvents(const Database& database, absl::string_view job_id) {
  AMPD_ASSIGN_OR_RETURN(const int64_t job, NumberOf(database, job_id));
  Statement query(database, "SELECT count(*) FROM events WHERE job=?1");
  AMPD_RETURN_IF_ERROR(query.Int(job).Step().status());
  return query.IntAt(0);
}

}  // namespace ampd
