// NVIDIA's error numbers (XIDs): whose fault each is, and whether a GPU can go on after it. By NVIDIA's catalogue of
// XID errors.
#ifndef AMPD_SERVER_GPU_XID_H_
#define AMPD_SERVER_GPU_XID_H_

#include <cstdint>

#include "ampd/v1/device.pb.h"

namespace ampd {

struct XidMeaning {
  v1::XidError::Class error_class = v1::XidError::HARDWARE;
  // The GPU should be reset or replaced before it runs anything else.
  bool needs_reset = true;
  // What it stands for; "" where this table has no words.
  const char* words = "";
};

// A number that the table does not hold is a hardware error that needs a reset.
XidMeaning MeaningOfXid(uint32_t xid);

}  // namespace ampd

#endif  // AMPD_SERVER_GPU_XID_H_
