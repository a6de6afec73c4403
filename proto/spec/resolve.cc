#include "proto/spec/resolve.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/labels.h"
#include "proto/spec/limits.h"
#include "proto/spec/names.h"
#include "proto/spec/presets.h"
#include "proto/spec/resolve_internal.h"

namespace ampd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr int64_t kMaxSeconds = int64_t{1} << 40;
constexpr size_t kMaxNameBytes = 200;
constexpr double kMaxBackoffSeconds = 86400;

// Fields of which nothing is done yet, wherever they stand.
const absl::flat_hash_set<std::string>& UnsupportedFields() {
  // clang-format off
  static const auto* const fields = new absl::flat_hash_set<std::string>{
  };
  // clang-format on
  return *fields;
}

std::string Joined(const std::string& path, absl::string_view field) {
  return path.empty() ? std::string(field) : absl::StrCat(path, ".", field);
}

class WellFormedCheck {
 public:
  explicit WellFormedCheck(Violations* violations) : violations_(violations) {}

  void Check(const Message& message, const std::string& path) {
    const auto* reflection = message.GetReflection();
    const auto& unknown = reflection->GetUnknownFields(message);
    for (int i = 0; i < unknown.field_count(); ++i) {
      violations_->Add(path, absl::StrCat("field number ", unknown.field(i).number(), " is not known to this version"));
    }
    std::vector<const FieldDescriptor*> fields;
    reflection->ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      const std::string inner = Joined(path, field->name());
      if (UnsupportedFields().contains(field->full_name())) {
        violations_->AddUnsupported(inner);
      } else {
        CheckField(message, field, inner);
      }
    }
  }

 private:
  void CheckField(const Message& message, const FieldDescriptor* field, const std::string& path) {
    const auto* reflection = message.GetReflection();
    if (!field->is_repeated()) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) Check(reflection->GetMessage(message, field), path);
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
        CheckEnum(field, reflection->GetEnumValue(message, field), path);
      }
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
        CheckFinite(reflection->GetDouble(message, field), path);
      }
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) CheckFinite(reflection->GetFloat(message, field), path);
    } else if (!field->is_map()) {
      for (int i = 0; i < reflection->FieldSize(message, field); ++i) CheckElement(message, field, i, Indexed(path, i));
    }
  }

  void CheckElement(const Message& message, const FieldDescriptor* field, int i, const std::string& path) {
    const auto* reflection = message.GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Check(reflection->GetRepeatedMessage(message, field, i), path);
      case FieldDescriptor::CPPTYPE_ENUM:
        return CheckEnum(field, reflection->GetRepeatedEnumValue(message, field, i), path);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return CheckFinite(reflection->GetRepeatedDouble(message, field, i), path);
      case FieldDescriptor::CPPTYPE_FLOAT:
        return CheckFinite(reflection->GetRepeatedFloat(message, field, i), path);
      default:
        return;
    }
  }

  void CheckEnum(const FieldDescriptor* field, int value, const std::string& path) {
    if (field->enum_type()->FindValueByNumber(value) == nullptr) {
      violations_->Add(path, absl::StrCat("no such value: ", value));
    }
  }

  void CheckFinite(double value, const std::string& path) {
    if (!std::isfinite(value)) violations_->Add(path, absl::StrCat("must be a finite number, is ", value));
  }

  Violations* violations_;
};

void ResolveName(v1::JobSpec* spec, Violations* violations) {
  if (spec->name().empty()) spec->set_name("job");
  if (spec->name().size() > kMaxNameBytes) {
    violations->Add("name", absl::StrCat("must be at most ", kMaxNameBytes, " bytes, is ", spec->name().size()));
  } else if (!IsMadeOf(spec->name(), "_-. ")) {
    violations->Add("name",
                    absl::StrCat("may hold letters, digits, '_', '-', '.' and spaces only, is ", Quoted(spec->name())));
  }
}

// What Evaluation.metrics may hold; a model has some of them.
constexpr absl::string_view kMetrics[] = {"loss",
                                          "accuracy",
                                          "top5",
                                          "perplexity",
                                          "label_error_rate",
                                          "exact_match",
                                          "beam_exact_match",
                                          "beam_label_error_rate",
                                          "mean_average_precision"};

// Those of them that evaluations with this loss can have; what the data decides is left open.
std::vector<absl::string_view> MetricsOf(const v1::LossSpec& loss) {
  if (loss.has_multibox()) return {"loss", "mean_average_precision"};
  if (loss.has_ctc()) {
    std::vector<absl::string_view> metrics = {"loss", "label_error_rate", "exact_match"};
    if (loss.ctc().beam_width() > 0) metrics.insert(metrics.end(), {"beam_exact_match", "beam_label_error_rate"});
    return metrics;
  }
  if (loss.has_softmax_cross_entropy()) return {"loss", "accuracy", "top5", "perplexity"};
  return {"loss", "accuracy", "top5"};
}

void CheckMetricOfLoss(const v1::JobSpec& spec, const std::string& field, const std::string& metric,
                       Violations* violations) {
  const v1::LossSpec& loss = spec.model().loss();
  // Of networks the phases have losses; of a loss that is wrong that is told.
  if (loss.kind_case() == v1::LossSpec::KIND_NOT_SET) return;
  const std::vector<absl::string_view> metrics = MetricsOf(loss);
  if (std::find(metrics.begin(), metrics.end(), metric) != metrics.end()) return;
  violations->Add(field, absl::StrCat("with this loss evaluations have no metric ", Quoted(metric), ", but ",
                                      absl::StrJoin(metrics, ", ")));
}

// `field` names a metric of the evaluations.
void CheckMetric(const v1::JobSpec& spec, const std::string& field, const std::string& metric, Violations* violations) {
  if (std::find(std::begin(kMetrics), std::end(kMetrics), metric) == std::end(kMetrics)) {
    violations->Add(field,
                    absl::StrCat("no metric is named ", Quoted(metric), ", but ", absl::StrJoin(kMetrics, ", ")));
  } else {
    CheckMetricOfLoss(spec, field, metric, violations);
  }
}

void CheckKeepBest(const v1::JobSpec& spec, Violations* violations) {
  const std::string& metric = spec.checkpoint().keep_best();
  if (metric.empty()) return;
  CheckMetric(spec, "checkpoint.keep_best", metric, violations);
  if (!spec.data().has_eval()) violations->Add("checkpoint.keep_best", "needs data.eval");
}

// What keep_best names is checked.
void ResolveEarlyStopping(v1::JobSpec* spec, Violations* violations) {
  if (!spec->train().has_early_stopping()) return;
  v1::EarlyStoppingSpec* stopping = spec->mutable_train()->mutable_early_stopping();
  if (!stopping->metric().empty()) {
    CheckMetric(*spec, "train.early_stopping.metric", stopping->metric(), violations);
  } else {
    const std::string& best = spec->checkpoint().keep_best();
    stopping->set_metric(best.empty() ? "loss" : best);
  }
  if (!stopping->has_patience()) stopping->set_patience(3);
  violations->CheckInteger("train.early_stopping.patience", stopping->patience(), 1, kMaxSteps);
  if (!stopping->has_min_delta()) stopping->set_min_delta(0);
  violations->CheckReal("train.early_stopping.min_delta", stopping->min_delta(), {.low = 0});
  if (!spec->data().has_eval()) violations->Add("train.early_stopping", "needs data.eval");
}

void ResolveCheckpoint(v1::CheckpointSpec* checkpoint, Violations* violations) {
  if (!checkpoint->has_every_seconds()) checkpoint->set_every_seconds(300);
  if (!checkpoint->has_every_steps()) checkpoint->set_every_steps(0);
  if (!checkpoint->has_keep_last()) checkpoint->set_keep_last(2);
  violations->CheckInteger("checkpoint.every_seconds", checkpoint->every_seconds(), 0, kMaxSeconds);
  violations->CheckInteger("checkpoint.every_steps", checkpoint->every_steps(), 0, kMaxSteps);
  violations->CheckInteger("checkpoint.keep_last", checkpoint->keep_last(), 1, 10000);
}

void ResolveRetry(v1::RetrySpec* retry, Violations* violations) {
  if (!retry->has_max_attempts()) retry->set_max_attempts(3);
  violations->CheckInteger("retry.max_attempts", retry->max_attempts(), 1, 1000);
  if (!retry->has_backoff_seconds()) retry->set_backoff_seconds(1);
  // One that only asks for a long first pause means at least that.
  if (!retry->has_max_backoff_seconds()) retry->set_max_backoff_seconds(std::max(60.0, retry->backoff_seconds()));
  violations->CheckReal("retry.backoff_seconds", retry->backoff_seconds(), {.low = 0, .high = kMaxBackoffSeconds});
  violations->CheckReal("retry.max_backoff_seconds", retry->max_backoff_seconds(),
                        {.low = 0, .high = kMaxBackoffSeconds});
  if (retry->max_backoff_seconds() < retry->backoff_seconds()) {
    violations->Add("retry.max_backoff_seconds",
                    absl::StrCat("must be at least retry.backoff_seconds, ", retry->backoff_seconds(), ", is ",
                                 retry->max_backoff_seconds()));
  }
}

void ResolveLimits(v1::LimitSpec* limits, Violations* violations) {
  if (limits->has_max_cost_usd()) {
    violations->CheckReal("limits.max_cost_usd", limits->max_cost_usd(), {.low = 0, .low_open = true});
  }
  if (limits->has_max_run_seconds()) {
    violations->CheckInteger("limits.max_run_seconds", limits->max_run_seconds(), 1, kMaxSeconds);
  }
  if (limits->has_max_skip_ratio()) {
    violations->CheckReal("limits.max_skip_ratio", limits->max_skip_ratio(), {.low = 0, .high = 1, .low_open = true});
  }
  if (!limits->has_skip_window_steps()) limits->set_skip_window_steps(500);
  // The steps skipped within the window are kept in memory.
  violations->CheckInteger("limits.skip_window_steps", limits->skip_window_steps(), 1, 1 << 24);
}

void ResolveReport(v1::JobSpec* spec, Violations* violations) {
  v1::ReportSpec* report = spec->mutable_report();
  if (report->has_every_steps()) violations->CheckInteger("report.every_steps", report->every_steps(), 1, kMaxSteps);
  if (!report->has_max_per_second() && !report->has_every_steps()) report->set_max_per_second(10);
  if (report->has_max_per_second()) {
    violations->CheckReal("report.max_per_second", report->max_per_second(),
                          {.low = 0, .high = 1000, .low_open = true});
  }
  if (!report->has_diagnostics_every_steps()) report->set_diagnostics_every_steps(0);
  violations->CheckInteger("report.diagnostics_every_steps", report->diagnostics_every_steps(), 0, kMaxSteps);
  if (report->has_samples()) ResolveSamples(*spec, report->mutable_samples(), violations);
}

}  // namespace

void CheckWellFormed(const Message& message, Violations* violations) { WellFormedCheck(violations).Check(message, ""); }

absl::StatusOr<ResolvedJobSpec> ResolveJobSpec(v1::JobSpec spec) {
  Violations violations;
  CheckWellFormed(spec, &violations);
  ExpandPreset(&spec, &violations);
  // What a preset that could not be expanded stands for is not known.
  if (spec.model().has_preset()) return InvalidFields(violations.list());
  ResolveName(&spec, &violations);
  if (!spec.has_seed()) spec.set_seed(0);
  // One that multiplies matrices has neither model nor data.
  const bool of_model = !spec.bench().has_sweep();
  if (of_model) {
    ResolveModel(spec.mutable_model(), &violations);
    ResolveData(spec.mutable_data(), &violations);
    CheckBoxesStay(spec, &violations);
  }
  ResolvePrecision(spec.model(), spec.mutable_precision(), &violations);
  ResolveOptimizer(spec.data().has_eval(), spec.report().has_samples(), spec.mutable_optimizer(), &violations);
  ShareMicroBatches(&spec);
  ResolveTrain(spec.data().has_eval(), spec.mutable_train(), &violations);
  ResolveCheckpoint(spec.mutable_checkpoint(), &violations);
  CheckKeepBest(spec, &violations);
  ResolveEarlyStopping(&spec, &violations);
  ResolveResources(&spec, &violations);
  CheckTurn(spec, &violations);
  ResolveRetry(spec.mutable_retry(), &violations);
  ResolveLimits(spec.mutable_limits(), &violations);
  ResolveReport(&spec, &violations);
  if (of_model) ResolvePhases(&spec, &violations);
  if (of_model) CheckLossesOfParts(spec, &violations);
  if (spec.has_bench()) ResolveBench(&spec, &violations);
  if (spec.has_start_from()) ResolveStartFrom(spec, &violations);
  ResolveAuto(&spec, &violations);
  if (spec.has_sweep()) violations.Add("sweep", "a job has none; CreateSweep makes the jobs of one (ampctl submit)");
  for (const FieldViolation& violation : LabelViolations(spec)) violations.Add(violation.field, violation.description);
  if (!violations.empty()) return InvalidFields(violations.list());
  return ResolvedJobSpec(std::move(spec));
}

}  // namespace ampd
