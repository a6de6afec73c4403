#include "client/analysis/cost.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/output/text.h"
#include "proto/spec/device_models.h"

namespace ampd::client {
namespace {

// A job that has ended holds no device any more, and its events do not name one.
const v1::Device* DeviceOf(const v1::Job& job, const std::vector<v1::Device>& devices) {
  const auto named = [&](const std::string& id) {
    const auto found = std::find_if(devices.begin(), devices.end(), [&](const auto& d) { return d.id() == id; });
    return found == devices.end() ? nullptr : &*found;
  };
  for (const std::string& id : job.devices()) {
    if (const v1::Device* device = named(id)) return device;
  }
  if (const v1::Device* device = named(job.spec().resources().device())) return device;
  const bool one_kind = !devices.empty() && std::all_of(devices.begin(), devices.end(), [&](const auto& d) {
    return d.kind() == devices[0].kind() && d.name() == devices[0].name();
  });
  return one_kind ? &devices[0] : nullptr;
}

std::string Dollars(double usd) { return absl::StrFormat(usd < 1 ? "$%.3g" : "$%.2f", usd); }

void Line(const std::string& name, const std::string& value, std::string* text) {
  absl::StrAppend(text, name, ":", std::string(name.size() < 14 ? 14 - name.size() : 1, ' '), value, "\n");
}

std::string Wasted(double seconds, int64_t steps, const Cost& cost) {
  std::string text = absl::StrCat(steps, " steps, ", StepTime(seconds));
  if (cost.device_seconds > 0) absl::StrAppend(&text, ", ", Percent(seconds * cost.devices / cost.device_seconds));
  if (cost.usd_per_hour) absl::StrAppend(&text, ", ", Dollars(seconds * cost.devices * *cost.usd_per_hour / 3600));
  return text;
}

}  // namespace

Cost CostOf(const v1::Job& job, const Events& events, const std::vector<v1::Device>& devices,
            const std::vector<v1::DeviceModel>& models, double now) {
  Cost cost;
  cost.devices = std::max({1, job.devices_size(), static_cast<int>(job.spec().resources().gpus())});
  const HeldTime held = HeldTimeOf(events, now);
  cost.device_seconds = held.held_seconds * cost.devices;
  cost.running_seconds = held.running_seconds;
  cost.steps = StepsOf(events);
  cost.skipped_seconds = static_cast<double>(cost.steps.skipped) * cost.steps.step_seconds;
  cost.rewound_seconds = static_cast<double>(cost.steps.rewound) * cost.steps.step_seconds;
  const int64_t useful = cost.steps.attempted - cost.steps.rewound - job.summary().steps_skipped();
  cost.useful_samples =
      static_cast<double>(std::max<int64_t>(0, useful)) * static_cast<double>(job.spec().train().batch_size());
  const v1::Device* device = DeviceOf(job, devices);
  const v1::DeviceModel* model = device == nullptr ? nullptr : ModelOfDevice(models, *device);
  if (model == nullptr) return cost;
  cost.model = model->name();
  if (!(model->usd_per_hour() > 0)) return cost;
  cost.usd_per_hour = model->usd_per_hour();
  cost.usd = cost.device_seconds / 3600 * *cost.usd_per_hour;
  if (cost.useful_samples > 0) cost.usd_per_million_samples = *cost.usd / cost.useful_samples * 1e6;
  return cost;
}

std::string CostText(const v1::Job& job, const Cost& cost) {
  std::string text;
  Line("job", absl::StrCat(job.id(), " ", Clean(job.spec().name()), " ", v1::Job::State_Name(job.state())), &text);
  Line("device time",
       absl::StrCat(Duration(cost.device_seconds), " on ", cost.devices, cost.devices == 1 ? " device" : " devices",
                    ", of which the job ran ", Duration(cost.running_seconds)),
       &text);
  if (cost.usd) {
    Line("cost",
         absl::StrCat(Dollars(*cost.usd), " at ", Dollars(*cost.usd_per_hour), " an hour of ", Clean(cost.model)),
         &text);
  }
  Line("samples", absl::StrCat(Count(cost.useful_samples), " in steps that count"), &text);
  if (cost.usd_per_million_samples) {
    Line("a million", Dollars(*cost.usd_per_million_samples), &text);
  } else if (cost.useful_samples > 0) {
    Line("a million", absl::StrCat(Duration(cost.device_seconds / cost.useful_samples * 1e6), " of device time"),
         &text);
  }
  Line("skipped", Wasted(cost.skipped_seconds, cost.steps.skipped, cost), &text);
  Line("done again", Wasted(cost.rewound_seconds, cost.steps.rewound, cost), &text);
  if (cost.usd) return text;
  absl::StrAppend(&text, "No price is known for ", cost.model.empty() ? "this device" : Clean(cost.model),
                  ". Give one in the daemon's configuration:\n  device_models: [{name: ",
                  cost.model.empty() ? "NAME" : cost.model, ", usd_per_hour: 1.20}]\n");
  return text;
}

std::string CostJson(const v1::Job& job, const Cost& cost) {
  std::string text = absl::StrFormat(
      "{\"job_id\": \"%s\", \"devices\": %d, \"device_seconds\": %.17g, \"running_seconds\": %.17g, "
      "\"useful_samples\": %.17g, \"steps_attempted\": %d, \"steps_skipped\": %d, \"steps_rewound\": %d, "
      "\"skipped_seconds\": %.17g, \"rewound_seconds\": %.17g",
      job.id(), cost.devices, cost.device_seconds, cost.running_seconds, cost.useful_samples, cost.steps.attempted,
      cost.steps.skipped, cost.steps.rewound, cost.skipped_seconds, cost.rewound_seconds);
  if (cost.usd)
    absl::StrAppendFormat(&text, ", \"usd_per_hour\": %.17g, \"usd\": %.17g", *cost.usd_per_hour, *cost.usd);
  if (cost.usd_per_million_samples) {
    absl::StrAppendFormat(&text, ", \"usd_per_million_samples\": %.17g", *cost.usd_per_million_samples);
  }
  return text + "}\n";
}

}  // namespace ampd::client
