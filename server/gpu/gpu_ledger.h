// What is known of each GPU: who it is, its newest figures, its errors.
#ifndef AMPD_SERVER_GPU_GPU_LEDGER_H_
#define AMPD_SERVER_GPU_GPU_LEDGER_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "ampd/v1/device.pb.h"
#include "server/gpu/nvml.h"

namespace ampd {

// Not thread-safe.
class GpuLedger {
 public:
  // `identified`: as Nvml::Identify gives them, with the conditions that do not pass (worker_fit.h).
  explicit GpuLedger(std::vector<v1::Device> identified);

  // Takes in Nvml::Read's answer for a GPU, in place of the one before.
  void OnReading(int gpu, v1::Device reading);
  // Takes in an XID. Returns it in words, for a log.
  std::string OnXid(const XidEvent& event, absl::Time now);

  // Everything known, in the order of `identified`. Conditions: those of `identified`, of the newest reading,
  // MIG_ENABLED, and HARDWARE_ERROR for the newest hardware XID (blocking once one needed a reset). since_time is not
  // set.
  std::vector<v1::Device> Devices() const;

 private:
  struct Known {
    v1::Device identity;
    v1::Device reading;
    std::vector<v1::XidError> errors;
    // Newest hardware XID, and whether one needed a reset; 0 without any.
    uint32_t hardware_xid = 0;
    bool needs_reset = false;
  };

  std::vector<Known> known_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_GPU_GPU_LEDGER_H_
