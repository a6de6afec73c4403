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

struct Cost {
  // Times the number of devices that the job holds or asks for.
  double device_seconds = 0;
  double running_seconds = 0;
  int devices = 1;
  // Of its device; "" where it is of no kind that the server knows.
  std::string model;
  absl::optional<double> usd_per_hour;
  absl::optional<double> usd;
  // Samples in applied steps that count: neither skipped nor taken back.
  double useful_samples = 0;
  absl::optional<double> usd_per_million_samples;
  StepCount steps;
  // Skipped steps and those taken back, at the mean time of a step; starting up is neither.
  double skipped_seconds = 0;
  double rewound_seconds = 0;
};

// `devices`: the server's; the job's own is looked for among them, by the ids that the job holds or its spec asks for,
// else the only one (or the first of several of one name) is taken. `models`: ServerInfo.device_models. `now`: Unix
// seconds.
Cost CostOf(const v1::Job& job, const Events& events, const std::vector<v1::Device>& devices,
            const std::vector<v1::DeviceModel>& models, double now);

std::string CostText(const v1::Job& job, const Cost& cost);
// One JSON object, of the same figures.
std::string CostJson(const v1::Job& job, const Cost& cost);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_ANALYSIS_COST_H_
