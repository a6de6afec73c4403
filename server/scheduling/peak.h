// How fast devices could be at best: what the use of their arithmetic is measured against.
#ifndef AMPD_SERVER_SCHEDULING_PEAK_H_
#define AMPD_SERVER_SCHEDULING_PEAK_H_

#include <optional>

#include "ampd/v1/device.pb.h"
#include "ampd/v1/precision.pb.h"

namespace ampd {

// Floating-point operations a second at which NVIDIA's data sheet of the GPU puts dense products (without sparsity)
// with operands of `mode`, on tensor cores where the mode uses them, at boost clocks. nullopt: for a CPU, a GPU that is
// not in the table (it goes by the name that the driver tells), and a mode that the GPU cannot do.
std::optional<double> PeakFlops(const v1::Device& device, v1::PrecisionSpec::Mode mode);

}  // namespace ampd

#endif  // AMPD_SERVER_SCHEDULING_PEAK_H_
