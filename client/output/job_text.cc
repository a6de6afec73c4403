#include "client/output/job_text.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/output/event_line.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "proto/spec/text.h"

namespace ampd::client {
namespace {

class Lines {
 public:
  void Add(const std::string& name, const std::string& value) {
    if (value.empty()) return;
    absl::StrAppend(&text_, name, ":", std::string(name.size() < 11 ? 11 - name.size() : 1, ' '), Clean(value), "\n");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string ProgressText(const v1::Job& job) {
  const v1::JobSummary& summary = job.summary();
  if (summary.total_steps() == 0 && summary.step() == 0) return "";
  if (job.spec().has_bench()) return absl::StrCat("cell ", summary.step(), "/", summary.total_steps());
  return absl::StrCat("step ", summary.step(), "/", summary.total_steps(), ", epoch ", summary.epoch(), ", ",
                      summary.steps_applied(), " applied, ", summary.steps_skipped(), " skipped");
}

std::string CostText(const v1::Job& job) {
  return absl::StrCat(Dollars(job.cost_usd()), ", of which ", Dollars(job.wasted_usd()), " for steps lost or skipped");
}

std::string AttemptText(const v1::Job& job) {
  if (job.attempt() == 0) return "";
  return absl::StrCat(job.attempt(), ", ", job.failures(), job.failures() == 1 ? " failure" : " failures",
                      " of at most ", job.spec().retry().max_attempts());
}

using TimeFormat = std::string(const google::protobuf::Timestamp&);

std::string TextOf(const v1::Job& job, TimeFormat* time) {
  const v1::JobSummary& summary = job.summary();
  Lines lines;
  lines.Add("id", job.id());
  lines.Add("name", job.spec().name());
  lines.Add("user", job.user());
  // What was validated alone has none.
  if (job.state() != v1::Job::STATE_UNSPECIFIED) lines.Add("state", StateText(job));
  if (job.state() == v1::Job::QUEUED) {
    lines.Add("waits", job.queue_message());
    if (job.has_estimated_start_time()) lines.Add("starts by", time(job.estimated_start_time()));
  }
  if (job.has_failure()) lines.Add("failure", FailureText(job.failure()));
  lines.Add("mode", ModeText(job));
  const int priority = job.spec().resources().priority();
  if (priority != 0) lines.Add("priority", absl::StrCat(priority));
  lines.Add("labels", LabelsText(job));
  lines.Add("created", time(job.create_time()));
  if (job.has_start_time()) lines.Add("started", time(job.start_time()));
  if (job.has_end_time()) lines.Add("ended", time(job.end_time()));
  lines.Add("attempt", AttemptText(job));
  if (job.has_cost_usd()) lines.Add("cost", CostText(job));
  if (job.preemptions() > 0) lines.Add("preempted", absl::StrCat(job.preemptions(), " times"));
  lines.Add("devices", absl::StrJoin(job.devices(), ", "));
  lines.Add("progress", ProgressText(job));
  if (summary.has_loss()) lines.Add("loss", Figure(summary.loss()));
  if (summary.loss_scale() != 0) lines.Add("loss scale", Figure(summary.loss_scale()));
  if (summary.has_eval_loss()) lines.Add("eval loss", Figure(summary.eval_loss()));
  if (summary.has_accuracy()) lines.Add("accuracy", Figure(summary.accuracy()));
  if (summary.samples_per_second() > 0) {
    lines.Add("speed", Count(summary.samples_per_second()) + " samples/s (last report)");
  }
  if (summary.has_step_seconds()) lines.Add("step time", StepTime(summary.step_seconds()) + " (last report)");
  if (summary.has_model_flops_utilization()) lines.Add("MFU", Percent(summary.model_flops_utilization()));
  lines.Add("checkpoint", summary.checkpoint());
  if (IsPlanned(job)) lines.Add("parameters", absl::StrCat(job.plan().parameters()));
  for (const std::string& warning : job.plan().warnings()) lines.Add("warning", warning);
  return lines.text();
}

}  // namespace

v1::PrecisionSpec::Mode ModeOf(const v1::Job& job) {
  const v1::PrecisionSpec::Mode asked = job.spec().precision().mode();
  const bool took = asked == v1::PrecisionSpec::AUTO && job.summary().mode() != v1::PrecisionSpec::MODE_UNSPECIFIED;
  return took ? job.summary().mode() : asked;
}

std::string ModeText(const v1::Job& job) {
  if (job.spec().has_bench()) return "bench";
  const v1::PrecisionSpec::Mode mode = ModeOf(job);
  return absl::StrCat(v1::PrecisionSpec::Mode_Name(mode), mode == job.spec().precision().mode() ? "" : " (AUTO)");
}

std::string LabelsText(const v1::Job& job) {
  const auto& labels = job.spec().labels();
  const std::map<std::string, std::string> sorted(labels.begin(), labels.end());
  return absl::StrJoin(sorted, ", ", absl::PairFormatter("="));
}

bool IsPlanned(const v1::Job& job) { return job.plan().layers_size() > 0 || job.plan().parameters() > 0; }

std::string StateText(const v1::Job& job) {
  std::string text = v1::Job::State_Name(job.state());
  const bool pauses = job.pause_reason() != v1::Job::PAUSE_REASON_UNSPECIFIED;
  if (pauses && job.state() != v1::Job::PAUSED) return absl::StrCat(text, " (to be paused)");
  if (pauses) return absl::StrCat(text, " (", v1::Job::PauseReason_Name(job.pause_reason()), ")");
  if (job.state() != v1::Job::QUEUED) return text;
  std::string reason;
  if (job.queue_reason() != v1::Job::QUEUE_REASON_UNSPECIFIED) reason = v1::Job::QueueReason_Name(job.queue_reason());
  if (job.queue_position() > 0) absl::StrAppend(&reason, reason.empty() ? "" : ", ", job.queue_position(), " in line");
  return reason.empty() ? text : absl::StrCat(text, " (", reason, ")");
}

std::string JobText(const v1::Job& job) { return TextOf(job, DateAndTime); }

std::string PlanText(const v1::ModelPlan& plan) {
  Table table({"LAYER", "KIND", "DTYPE", "OUTPUT", ">PARAMETERS"});
  table.Add({"input", "", "", absl::StrJoin(plan.input_shape(), "x"), ""});
  for (const v1::LayerPlan& layer : plan.layers()) {
    table.Add({layer.name(), layer.kind(), layer.dtype(), absl::StrJoin(layer.output_shape(), "x"),
               absl::StrCat(layer.parameters())});
  }
  std::string phases;
  for (const v1::PhasePlan& phase : plan.phases()) {
    if (plan.phases_size() == 1) break;
    absl::StrAppend(&phases, "phase ", Clean(phase.name()), " trains ", phase.parameters(), " parameters, with ",
                    Bytes(phase.activation_bytes()), " of activations\n");
  }
  return absl::StrCat(table.ToString(), phases, plan.parameters(),
                      " parameters; memory: ", Bytes(plan.parameter_bytes()), " for them, ",
                      Bytes(plan.activation_bytes()), " for activations\n");
}

std::string ResubmittableYaml(const v1::Job& job) {
  std::string head;
  const std::string text = TextOf(job, UtcTime);
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin)) {
    absl::StrAppend(&head, "# ", text.substr(begin, end - begin), "\n");
  }
  return absl::StrCat(head, ToYaml(job.spec()));
}

v1::StateChange EndOf(const v1::Job& job) {
  v1::StateChange end;
  end.set_to(job.state());
  if (job.has_failure()) *end.mutable_failure() = job.failure();
  *end.mutable_summary() = job.summary();
  return end;
}

}  // namespace ampd::client
