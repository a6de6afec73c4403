// How fast devices could be at best: what the use of their arithmetic is measured against.
#ifndef AMPD_SERVER_SCHEDULING_PEAK_H_
#define AMPD_SERVER_SCHEDULING_PEAK_H_

#include <optional>
#include <vector>

#include "ampd/v1/device.pb.h"
#include "ampd/v1/precision.pb.h"

namespace ampd {

// Floating-point operations a second that the device's kind among `models` (proto/spec/device_models.h) has for dense
// products with operands of `mode`. nullopt: for a device of no kind that is known, and a mode that its kind has no
// peak for, as the built-in CPU has none.
std::optional<double> PeakFlops(const std::vector<v1::DeviceModel>& models, const v1::Device& device,
                                v1::PrecisionSpec::Mode mode);

}  // namespace ampd

#endif  // AMPD_SERVER_SCHEDULING_PEAK_H_
