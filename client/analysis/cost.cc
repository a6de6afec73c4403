#include "client/analysis/cost.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/output/text.h"
#include "proto/spec/device_models.h"
#include "proto/spec/start_step.h"

namespace ampd::client {
namespace {

const v1::Device* DeviceOf(const v1::Job& job, const Events& events, const std::vector<v1::Device>& devices) {
  const auto named = [&](const std::string& id) {
    const auto found = std::find_if(devices.begin(), devices.end(), [&](const auto& d) { return d.id() == id; });
    return found == devices.end() ? nullptr : &*found;
  };
  const std::vector<std::string> ids = DevicesOf(job, events);
  for (const std::string& id : ids) {
    if (const v1::Device* device = named(id)) return device;
  }
  // What is there now may be of another kind.
  if (!ids.empty()) return nullptr;
  if (const v1::Device* device = named(job.spec().resources().device())) return device;
  const bool one_kind = !devices.empty() && std::all_of(devices.begin(), devices.end(), [&](const auto& d) {
    return d.kind() == devices[0].kind() && d.name() == devices[0].name();
  });
  return one_kind ? &devices[0] : nullptr;
}

void AddPrice(const v1::DeviceModel& model, Cost* cost) {
  cost->model = model.name();
  if (model.usd_per_hour() > 0) cost->usd_per_hour = model.usd_per_hour();
}

void AddDollars(const v1::Job& job, Cost* cost) {
  if (!job.has_cost_usd()) return;
  cost->usd = job.cost_usd();
  cost->wasted_usd = job.wasted_usd();
  if (cost->useful_samples > 0) cost->usd_per_million_samples = *cost->usd / cost->useful_samples * 1e6;
  const double seconds = cost->steps.skipped_seconds + cost->steps.rewound_seconds;
  if (!(seconds > 0)) return;
  cost->skipped_usd = *cost->wasted_usd * cost->steps.skipped_seconds / seconds;
  cost->rewound_usd = *cost->wasted_usd * cost->steps.rewound_seconds / seconds;
}

void Line(const std::string& name, const std::string& value, std::string* text) {
  absl::StrAppend(text, name, ":", std::string(name.size() < 14 ? 14 - name.size() : 1, ' '), value, "\n");
}

std::string Wasted(const std::string& steps, double seconds, const absl::optional<double>& usd, const Cost& cost) {
  std::string text = absl::StrCat(steps, " steps, ", StepTime(seconds));
  if (cost.device_seconds > 0) absl::StrAppend(&text, ", ", Percent(seconds * cost.devices / cost.device_seconds));
  if (usd) absl::StrAppend(&text, ", ", Dollars(*usd));
  return text;
}

std::string DollarsText(const Cost& cost) {
  std::string text = absl::StrCat(Dollars(*cost.usd), ", of which ", Dollars(*cost.wasted_usd));
  if (*cost.usd > 0) absl::StrAppend(&text, " (", Percent(*cost.wasted_usd / *cost.usd), ")");
  return text + " for steps lost or skipped";
}

// What dollars there are not, and why, or what those that there are rest on.
std::string RemarkText(const v1::Job& job, const Cost& cost) {
  if (cost.usd) {
    return absl::StrCat(
        "Dollars are what the daemon charged, at the prices of the time. Device time and how the waste\n"
        "divides are estimates from the job's events",
        job.spec().resources().share() ? "; a shared device counts in full there, in dollars by its part" : "", ".\n");
  }
  if (!(cost.device_seconds > 0)) return "It has held no device yet, so nothing was charged.\n";
  if (cost.usd_per_hour) {
    return absl::StrCat("The daemon knew no price when the job ran; an hour of ", Clean(cost.model), " is ",
                        Dollars(*cost.usd_per_hour), " now.\n");
  }
  const std::string model = Clean(cost.model);
  return absl::StrCat("No price is known for ", model.empty() ? "its device" : model,
                      ". Give one in the daemon's configuration:\n  device_models: [{name: ",
                      model.empty() ? "NAME" : model, ", usd_per_hour: 1.20}]\n");
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
  // Those before it were another job's.
  cost.steps.attempted = std::max<int64_t>(0, cost.steps.attempted - StepsBefore(job.spec()));
  cost.useful_samples = cost.steps.useful * static_cast<double>(job.spec().train().batch_size());
  const v1::Device* device = DeviceOf(job, events, devices);
  const v1::DeviceModel* model = device == nullptr ? nullptr : ModelOfDevice(models, *device);
  if (model != nullptr) AddPrice(*model, &cost);
  AddDollars(job, &cost);
  return cost;
}

std::string CostText(const v1::Job& job, const Cost& cost) {
  std::string text;
  Line("job", absl::StrCat(job.id(), " ", Clean(job.spec().name()), " ", v1::Job::State_Name(job.state())), &text);
  if (cost.usd) Line("cost", DollarsText(cost), &text);
  Line("device time",
       absl::StrCat(Duration(cost.device_seconds), " on ", cost.devices, cost.devices == 1 ? " device" : " devices",
                    ", of which the job ran ", Duration(cost.running_seconds)),
       &text);
  if (cost.usd && cost.usd_per_hour) {
    Line("price now", absl::StrCat(Dollars(*cost.usd_per_hour), " an hour of ", Clean(cost.model)), &text);
  }
  Line("samples", absl::StrCat(Count(cost.useful_samples), " in steps that count"), &text);
  if (cost.usd_per_million_samples) {
    Line("a million", Dollars(*cost.usd_per_million_samples), &text);
  } else if (cost.useful_samples > 0) {
    Line("a million", absl::StrCat(Duration(cost.device_seconds / cost.useful_samples * 1e6), " of device time"),
         &text);
  }
  Line("skipped", Wasted(Figure(cost.steps.skipped), cost.steps.skipped_seconds, cost.skipped_usd, cost), &text);
  Line("done again", Wasted(absl::StrCat(cost.steps.rewound), cost.steps.rewound_seconds, cost.rewound_usd, cost),
       &text);
  return text + RemarkText(job, cost);
}

std::string CostJson(const v1::Job& job, const Cost& cost) {
  std::string text = absl::StrFormat(
      "{\"job_id\": \"%s\", \"devices\": %d, \"device_seconds\": %.17g, \"running_seconds\": %.17g, "
      "\"useful_samples\": %.17g, \"steps_attempted\": %d, \"steps_skipped\": %.17g, \"steps_rewound\": %d, "
      "\"skipped_seconds\": %.17g, \"rewound_seconds\": %.17g",
      job.id(), cost.devices, cost.device_seconds, cost.running_seconds, cost.useful_samples, cost.steps.attempted,
      cost.steps.skipped, cost.steps.rewound, cost.steps.skipped_seconds, cost.steps.rewound_seconds);
  const std::pair<const char*, const absl::optional<double>&> dollars[] = {
      {"usd", cost.usd},
      {"wasted_usd", cost.wasted_usd},
      {"skipped_usd", cost.skipped_usd},
      {"rewound_usd", cost.rewound_usd},
      {"usd_per_million_samples", cost.usd_per_million_samples},
      {"usd_per_hour_now", cost.usd_per_hour}};
  for (const auto& [name, value] : dollars) {
    if (value) absl::StrAppendFormat(&text, ", \"%s\": %.17g", name, *value);
  }
  return text + "}\n";
}

}  // namespace ampd::client
