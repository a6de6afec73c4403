#include "server/scheduling/peak.h"

#include "proto/spec/device_models.h"

namespace ampd {

std::optional<double> PeakFlops(const std::vector<v1::DeviceModel>& models, const v1::Device& device,
                                v1::PrecisionSpec::Mode mode) {
  const v1::DeviceModel* model = ModelOfDevice(models, device);
  if (model == nullptr) return std::nullopt;
  const double peak = PeakFlops(*model, mode);
  return peak > 0 ? std::optional(peak) : std::nullopt;
}

}  // namespace ampd
