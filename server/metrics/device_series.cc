#include "server/metrics/device_series.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

using prometheus::Labels;

Labels With(Labels labels, const std::string& name, const std::string& value) {
  labels[name] = value;
  return labels;
}

int ForeignProcesses(const v1::GpuStatus& gpu, const v1::Device& device) {
  for (const v1::DeviceCondition& condition : device.conditions()) {
    if (condition.kind() != v1::DeviceCondition::FOREIGN_PROCESS) continue;
    int foreign = 0;
    for (const v1::GpuProcess& process : gpu.processes()) foreign += process.job_id().empty() ? 1 : 0;
    return foreign;
  }
  return 0;
}

std::string Capability(const v1::GpuStatus& gpu) {
  if (!gpu.has_compute_capability_major()) return "";
  return absl::StrCat(gpu.compute_capability_major(), ".", gpu.compute_capability_minor());
}

}  // namespace

void DeviceSeries::Set(const std::vector<v1::Device>& devices) {
  touched_.clear();
  for (const v1::Device& device : devices) SetDevice(device);
  DropUntouched();
}

void DeviceSeries::SetGauge(const Metric& metric, const Labels& labels, double value) {
  const Key key = {&metric, labels};
  touched_[key] = true;
  prometheus::Gauge*& gauge = gauge_series_[key];
  if (gauge == nullptr) gauge = &gauges_->at(&metric)->Add(labels);
  gauge->Set(value);
}

void DeviceSeries::SetCounter(const Metric& metric, const Labels& labels, double total) {
  const Key key = {&metric, labels};
  touched_[key] = true;
  prometheus::Counter*& counter = counter_series_[key];
  if (counter != nullptr && total < counter->Value()) {
    counters_->at(&metric)->Remove(counter);
    counter = nullptr;
  }
  if (counter == nullptr) counter = &counters_->at(&metric)->Add(labels);
  if (total > counter->Value()) counter->Increment(total - counter->Value());
}

void DeviceSeries::SetDevice(const v1::Device& device) {
  const Labels labels = {{"device", device.id()}};
  if (device.has_utilization()) SetGauge(kDeviceUtilization, labels, device.utilization());
  if (device.has_memory_used_bytes()) {
    SetGauge(kDeviceMemoryUsed, labels, static_cast<double>(device.memory_used_bytes()));
  }
  if (device.has_memory_total_bytes()) {
    SetGauge(kDeviceMemoryTotal, labels, static_cast<double>(device.memory_total_bytes()));
  }
  SetGauge(kDeviceBusy, labels, device.job_id().empty() ? 0 : 1);
  for (const v1::DeviceCondition& condition : device.conditions()) {
    const std::string kind = absl::AsciiStrToLower(v1::DeviceCondition::Kind_Name(condition.kind()));
    const Labels of_kind = With(labels, "condition", kind);
    SetGauge(kDeviceCondition, With(of_kind, "blocks_jobs", condition.blocks_jobs() ? "true" : "false"), 1);
  }
  if (!device.has_gpu()) return;
  const v1::GpuStatus& gpu = device.gpu();
  SetGauge(kGpuInfo,
           {{"device", device.id()},
            {"name", device.name()},
            {"pci_bus_id", gpu.pci_bus_id()},
            {"compute_capability", Capability(gpu)},
            {"driver_version", gpu.driver_version()},
            {"cuda_driver_version", gpu.cuda_driver_version()}},
           1);
  SetGpu(labels, gpu);
  SetGpuErrors(labels, gpu);
  if (gpu.has_process_count()) SetGauge(kGpuForeignProcesses, labels, ForeignProcesses(gpu, device));
}

void DeviceSeries::SetGpu(const Labels& device, const v1::GpuStatus& gpu) {
  if (gpu.has_memory_utilization()) SetGauge(kGpuMemoryUtilization, device, gpu.memory_utilization());
  if (gpu.has_memory_free_bytes()) SetGauge(kGpuMemoryFree, device, static_cast<double>(gpu.memory_free_bytes()));
  if (gpu.has_power_watts()) SetGauge(kGpuPower, device, gpu.power_watts());
  if (gpu.has_power_limit_watts()) SetGauge(kGpuPowerLimit, device, gpu.power_limit_watts());
  if (gpu.has_energy_joules()) SetCounter(kGpuEnergy, device, gpu.energy_joules());
  if (gpu.has_temperature_celsius()) SetGauge(kGpuTemperature, device, gpu.temperature_celsius());
  if (gpu.has_sm_clock_hertz()) SetGauge(kGpuSmClock, device, gpu.sm_clock_hertz());
  if (gpu.has_memory_clock_hertz()) SetGauge(kGpuMemoryClock, device, gpu.memory_clock_hertz());
  if (gpu.has_tensor_active()) SetGauge(kGpuTensorActive, device, gpu.tensor_active());
  if (gpu.has_throttled()) SetGauge(kGpuThrottled, device, gpu.throttled() ? 1 : 0);
  for (const std::string& reason : gpu.throttle_reasons()) {
    SetGauge(kGpuThrottleReason, With(device, "reason", absl::AsciiStrToLower(reason)), 1);
  }
}

void DeviceSeries::SetGpuErrors(const Labels& device, const v1::GpuStatus& gpu) {
  if (gpu.has_ecc_corrected_errors()) {
    SetCounter(kGpuEccErrors, With(device, "type", "corrected"), static_cast<double>(gpu.ecc_corrected_errors()));
  }
  if (gpu.has_ecc_uncorrected_errors()) {
    SetCounter(kGpuEccErrors, With(device, "type", "uncorrected"), static_cast<double>(gpu.ecc_uncorrected_errors()));
  }
  for (const v1::XidError& error : gpu.xid_errors()) {
    const std::string error_class = absl::AsciiStrToLower(v1::XidError::Class_Name(error.class_()));
    SetCounter(kGpuXidErrors, With(With(device, "class", error_class), "xid", absl::StrCat(error.xid())),
               static_cast<double>(error.count()));
  }
}

void DeviceSeries::DropUntouched() {
  for (auto it = gauge_series_.begin(); it != gauge_series_.end();) {
    if (touched_.count(it->first) == 0) {
      gauges_->at(it->first.first)->Remove(it->second);
      it = gauge_series_.erase(it);
    } else {
      ++it;
    }
  }
  for (auto it = counter_series_.begin(); it != counter_series_.end();) {
    if (touched_.count(it->first) == 0) {
      counters_->at(it->first.first)->Remove(it->second);
      it = counter_series_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace ampd
