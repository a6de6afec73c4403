// The series of the devices: what is not known of a device has none.
#ifndef AMPD_SERVER_METRICS_DEVICE_SERIES_H_
#define AMPD_SERVER_METRICS_DEVICE_SERIES_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/labels.h>

#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ampd/v1/device.pb.h"
#include "server/metrics/definitions.h"

namespace ampd {

// Not thread-safe.
class DeviceSeries {
 public:
  using Gauges = std::unordered_map<const Metric*, prometheus::Family<prometheus::Gauge>*>;
  using Counters = std::unordered_map<const Metric*, prometheus::Family<prometheus::Counter>*>;

  // Both hold every metric of their type by the time of Set, and outlive this.
  DeviceSeries(const Gauges* gauges, const Counters* counters) : gauges_(gauges), counters_(counters) {}

  // In place of what was set before: figures that `devices` do not tell any more lose their series.
  void Set(const std::vector<v1::Device>& devices);

 private:
  using Key = std::pair<const Metric*, prometheus::Labels>;

  void SetGauge(const Metric& metric, const prometheus::Labels& labels, double value);
  // A total below the one before (the driver was loaded anew) starts a new series.
  void SetCounter(const Metric& metric, const prometheus::Labels& labels, double total);
  void SetDevice(const v1::Device& device);
  void SetGpu(const prometheus::Labels& device, const v1::GpuStatus& gpu);
  void SetGpuErrors(const prometheus::Labels& device, const v1::GpuStatus& gpu);
  void DropUntouched();

  const Gauges* const gauges_;
  const Counters* const counters_;
  std::map<Key, prometheus::Gauge*> gauge_series_;
  std::map<Key, prometheus::Counter*> counter_series_;
  // Those of this Set.
  std::map<Key, bool> touched_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_METRICS_DEVICE_SERIES_H_
