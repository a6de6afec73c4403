// The reference of the metrics, for people.
#ifndef AMPD_SERVER_METRICS_REFERENCE_H_
#define AMPD_SERVER_METRICS_REFERENCE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace ampd {

// What a value of the metric is counted in, as its name says: "seconds". Empty: a number of things, or without a unit.
std::string UnitOfMetric(absl::string_view name);

// Every metric of definitions.h, as Markdown (GitHub's): docs/metrics.md.
std::string MetricsReference();

}  // namespace ampd

#endif  // AMPD_SERVER_METRICS_REFERENCE_H_
