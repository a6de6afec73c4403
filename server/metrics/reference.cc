#include "server/metrics/reference.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/metrics/definitions.h"

namespace ampd {
namespace {

constexpr char kIntroduction[] =
    "# Metrics\n"
    "\n"
    "<!-- Made from server/metrics/definitions.h by `ninja ampd_references`; changes belong there. -->\n"
    "\n"
    "What `ampd` serves at `/metrics` of its HTTP port for Prometheus; [monitoring](monitoring.md) says what to do "
    "with it. Units are in the\n"
    "names. Counters begin at 0 with the daemon unless told otherwise. A histogram `x` has the series `x_bucket`, by "
    "the further label `le`,\n"
    "`x_sum` and `x_count`. A metric without a series yet is not shown.\n";

const char* TypeName(Metric::Type type) {
  switch (type) {
    case Metric::kGauge:
      return "gauge";
    case Metric::kCounter:
      return "counter";
    default:
      return "histogram";
  }
}

std::string Labels(const Metric& metric) {
  if (*metric.labels == '\0') return "";
  return absl::StrCat("`", absl::StrReplaceAll(metric.labels, {{", ", "`, `"}}), "`");
}

}  // namespace

std::string UnitOfMetric(absl::string_view name) {
  static constexpr std::pair<const char*, const char*> kUnits[] = {
      {"_timestamp_seconds", "seconds since 1970"},
      {"_per_second", "per second"},
      {"_seconds", "seconds"},
      {"_bytes", "bytes"},
      {"_ratio", "0 to 1"},
      {"_usd", "US dollars"},
      {"_joules", "joules"},
      {"_watts", "watts"},
      {"_celsius", "degrees Celsius"},
      {"_hertz", "hertz"},
  };
  absl::ConsumeSuffix(&name, "_total");
  for (const auto& [suffix, unit] : kUnits) {
    if (absl::ConsumeSuffix(&name, suffix)) return unit;
  }
  return "";
}

std::string MetricsReference() {
  std::string text = kIntroduction;
  for (const MetricGroup& group : MetricGroups()) {
    absl::StrAppend(&text, "\n## ", group.title, "\n\n", group.about, *group.about == '\0' ? "" : "\n\n");
    text += "| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n";
    for (const Metric* metric : group.metrics) {
      absl::StrAppend(&text, "| `", metric->name, "` | ", TypeName(metric->type), " | ", UnitOfMetric(metric->name),
                      " | ", Labels(*metric), " | ", metric->help, " |\n");
    }
  }
  return text;
}

}  // namespace ampd
