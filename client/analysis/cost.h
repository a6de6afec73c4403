// What a job took, and what of it was wasted. Pure.
#ifndef AMPD_CLIENT_ANALYSIS_COST_H_
#define AMPD_CLIENT_ANALYSIS_COST_H_

#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "ampd/v1/device.pb.h"
#include "ampd/v1/job.pb.h"
#include "client/analysis/events.h"

namespace ampd::client {

// Dollars are the daemon's own figures, at the prices that there were when the time was charged. All else is told by
// the events; how the daemon's waste divides is an estimate.
struct Cost {
  // Job.cost_usd and wasted_usd; absent where the daemon charged nothing.
  absl::optional<double> usd;
  absl::optional<double> wasted_usd;
  // Of wasted_usd, as skipped_seconds and rewound_seconds are to each other; absent where both are 0.
  absl::optional<double> skipped_usd;
  absl::optional<double> rewound_usd;
  // HeldTimeOf, the first times the number of devices that the job holds or asks for; a shared one counts in full.
  double device_seconds = 0;
  double running_seconds = 0;
  int devices = 1;
  // The kind of the device that the job is or was last on; "" where the server does not know it.
  std::string model;
  // What the server says that it costs now.
  absl::optional<double> usd_per_hour;
  // Samples in applied steps that count: neither skipped nor taken back.
  double useful_samples = 0;
  absl::optional<double> usd_per_million_samples;
  // Skipped steps and those taken back; starting up is neither.
  StepCount steps;
};

// `devices`: the server's; the job's own is looked for among them, by the ids that the job holds or held. Of one that
// had none it is the one that its spec asks for, else the only one (or the first of several of one name). `models`:
// ServerInfo.device_models. `now`: Unix seconds.
Cost CostOf(const v1::Job& job, const Events& events, const std::vector<v1::Device>& devices,
            const std::vector<v1::DeviceModel>& models, double now);

std::string CostText(const v1::Job& job, const Cost& cost);
// One JSON object, of the same figures.
std::string CostJson(const v1::Job& job, const Cost& cost);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_ANALYSIS_COST_H_
