#include "client/output/progress.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

constexpr absl::Duration kWindow = absl::Seconds(30);

absl::Time TimeOf(const v1::JobEvent& event) {
  return absl::FromUnixSeconds(event.time().seconds()) + absl::Nanoseconds(event.time().nanos());
}

struct Field {
  std::string text;
  // The highest gives way first.
  int rank;
};
using Fields = std::vector<Field>;

// As many of them, in their order, as `line` has room for as a whole.
void AppendFitting(Fields fields, int columns, std::string* line) {
  const auto size = [&] {
    return std::accumulate(fields.begin(), fields.end(), line->size(),
                           [](size_t sum, const Field& field) { return sum + 2 + field.text.size(); });
  };
  while (!fields.empty() && size() > static_cast<size_t>(std::max(columns, 0))) {
    fields.erase(
        std::max_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) { return a.rank < b.rank; }));
  }
  for (const Field& field : fields) absl::StrAppend(line, "  ", field.text);
}

}  // namespace

void Progress::Observe(const v1::JobEvent& event) {
  idle_.Observe(event);
  switch (event.payload_case()) {
    case v1::JobEvent::kStateChange:
      state_ = event.state_change().to();
      // The pace of another attempt says nothing.
      if (state_ != v1::Job::RUNNING) marks_.clear();
      if (event.state_change().has_summary()) summary_ = event.state_change().summary();
      break;
    case v1::JobEvent::kStep:
      ObserveStep(TimeOf(event), event.step());
      break;
    case v1::JobEvent::kOverflowSkip:
      summary_.set_loss_scale(event.overflow_skip().scale_after());
      break;
    case v1::JobEvent::kLossScaleChange:
      summary_.set_loss_scale(event.loss_scale_change().scale_after());
      break;
    case v1::JobEvent::kEvaluation:
      evaluated_step_ = event.evaluation().step();
      summary_.set_eval_loss(event.evaluation().loss());
      if (event.evaluation().has_accuracy()) summary_.set_accuracy(event.evaluation().accuracy());
      break;
    case v1::JobEvent::kBenchCell:
      summary_.set_step(event.bench_cell().index());
      summary_.set_total_steps(event.bench_cell().total());
      break;
    case v1::JobEvent::kRewound:
      summary_.set_step(event.rewound().to_step());
      summary_.clear_loss();
      if (evaluated_step_ > event.rewound().to_step()) {
        summary_.clear_eval_loss();
        summary_.clear_accuracy();
      }
      marks_.clear();
      break;
    default:
      break;
  }
}

void Progress::ObserveStep(absl::Time time, const v1::StepReport& step) {
  summary_.set_step(step.last_step());
  summary_.set_total_steps(step.total_steps());
  summary_.set_epoch(step.epoch());
  summary_.set_samples_per_second(step.samples_per_second());
  summary_.clear_model_flops_utilization();
  if (step.has_model_flops_utilization()) summary_.set_model_flops_utilization(step.model_flops_utilization());
  summary_.set_steps_applied(0);
  summary_.set_steps_skipped(0);
  for (const v1::PhaseReport& phase : step.phases()) {
    summary_.set_steps_applied(summary_.steps_applied() + phase.steps_applied());
    summary_.set_steps_skipped(summary_.steps_skipped() + phase.steps_skipped());
  }
  if (!step.phases().empty()) {
    if (!idle_.Has(step.phases(0).name())) summary_.set_loss(step.phases(0).loss());
    summary_.set_loss_scale(step.phases(0).loss_scale());
  }
  marks_.push_back({time, step.last_step()});
  while (marks_.size() > 2 && time - marks_.front().time > kWindow) marks_.pop_front();
}

double Progress::EtaSeconds() const {
  if (marks_.size() < 2 || summary_.total_steps() <= 0) return -1;
  const double seconds = absl::ToDoubleSeconds(marks_.back().time - marks_.front().time);
  const int64_t steps = marks_.back().step - marks_.front().step;
  if (seconds <= 0 || steps <= 0) return -1;
  const int64_t left = std::max<int64_t>(summary_.total_steps() - summary_.step(), 0);
  return static_cast<double>(left) * seconds / static_cast<double>(steps);
}

std::string Progress::Line(int columns) const {
  std::string line;
  if (state_ != v1::Job::RUNNING && state_ != v1::Job::STATE_UNSPECIFIED) {
    line = v1::Job::State_Name(state_);
  }
  if (summary_.step() > 0 || summary_.total_steps() > 0) {
    const v1::JobSummary& s = summary_;
    absl::StrAppend(&line, line.empty() ? "" : "  ", "step ", s.step());
    if (s.total_steps() > 0) absl::StrAppend(&line, "/", s.total_steps(), " ", 100 * s.step() / s.total_steps(), "%");
    const double eta = EtaSeconds();
    Fields fields;
    if (s.has_loss()) fields.push_back({absl::StrCat("loss ", Figure(s.loss())), 1});
    fields.push_back({absl::StrCat("scale ", Figure(s.loss_scale())), 4});
    fields.push_back({absl::StrCat("skips ", s.steps_skipped()), 3});
    fields.push_back({absl::StrCat(Count(s.samples_per_second()), " samples/s"), 2});
    if (s.has_model_flops_utilization())
      fields.push_back({absl::StrCat("MFU ", Percent(s.model_flops_utilization())), 5});
    fields.push_back({absl::StrCat("ETA ", eta < 0 ? "-" : Duration(eta)), 0});
    AppendFitting(std::move(fields), columns, &line);
  } else if (state_ == v1::Job::RUNNING) {
    absl::StrAppend(&line, "RUNNING, before the first report");
  }
  return Truncate(line, columns);
}

std::string ClosingLine(const v1::StateChange& end, const v1::JobSummary& seen) {
  std::string line = v1::Job::State_Name(end.to());
  if (end.has_failure()) return absl::StrCat(line, " ", FailureText(end.failure()));
  if (end.to() == v1::Job::SUCCEEDED) {
    const v1::JobSummary& summary = end.has_summary() ? end.summary() : seen;
    if (summary.has_accuracy()) {
      absl::StrAppend(&line, " accuracy=", Figure(summary.accuracy()));
    } else if (summary.has_eval_loss()) {
      absl::StrAppend(&line, " eval_loss=", Figure(summary.eval_loss()));
    } else if (summary.has_loss()) {
      absl::StrAppend(&line, " loss=", Figure(summary.loss()));
    }
    absl::StrAppend(&line, " applied=", summary.steps_applied(), " skipped=", summary.steps_skipped());
  }
  if (!end.reason().empty()) absl::StrAppend(&line, ": ", Clean(end.reason()));
  return line;
}

}  // namespace ampd::client
