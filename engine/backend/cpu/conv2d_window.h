// Internal to the CPU backend: the window of a convolution's node.
#ifndef AMPD_ENGINE_BACKEND_CPU_CONV2D_WINDOW_H_
#define AMPD_ENGINE_BACKEND_CPU_CONV2D_WINDOW_H_

#include <cstdint>
#include <vector>

#include "engine/runtime/kernel_table.h"

namespace ampd::cpu {

// Of height and width each. A dilation of 0 has the cells next to each other, as oneDNN counts.
struct Window {
  std::vector<int64_t> strides, dilations, before, after;
  int64_t groups;
};

inline Window MakeWindow(const runtime::NodeDesc& desc) {
  const std::vector<int64_t> strides = desc.attributes.Ints("strides");
  const std::vector<int64_t> pads = desc.attributes.Ints("pads");
  std::vector<int64_t> dilations = desc.attributes.Ints("dilations");
  if (dilations.empty()) dilations = {1, 1};
  return {{strides[0], strides[1]},
          {dilations[0] - 1, dilations[1] - 1},
          {pads[0], pads[1]},
          {pads[2], pads[3]},
          desc.attributes.Int("groups", 1)};
}

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_CONV2D_WINDOW_H_
