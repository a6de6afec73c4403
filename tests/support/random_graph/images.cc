// Convolutions, pools and group norm.
#include <algorithm>

#include "tests/support/random_graph/grower.h"

namespace ampd::testing {

using ir::OpKind;

namespace {

// A divisor of both.
int64_t Groups(Random* random, int64_t a, int64_t b) {
  std::vector<int64_t> divisors;
  for (int64_t g = 1; g <= std::min(a, b); ++g) {
    if (a % g == 0 && b % g == 0) divisors.push_back(g);
  }
  return divisors[random->Below(static_cast<int64_t>(divisors.size()))];
}

}  // namespace

void Grower::Conv() {
  const int64_t filters = Between(1, 9), channels = shape()[3];
  const int64_t groups = OneIn(3) ? Groups(&random_, channels, filters) : 1;
  Ints kernel, strides, dilations, pads(4, 0);
  for (int axis = 0; axis < 2; ++axis) {
    kernel.push_back(Between(1, 3));
    strides.push_back(Between(1, 2));
    dilations.push_back(Between(1, 2));
    pads[axis] = random_.Below(kernel[axis]);
    pads[axis + 2] = random_.Below(kernel[axis]);
    const int64_t spanned = (kernel[axis] - 1) * dilations[axis] + 1;
    pads[axis + 2] += std::max<int64_t>(0, spanned - shape()[1 + axis] - pads[axis] - pads[axis + 2]);
  }
  Set(OpKind::kConv2d, {current_, Parameter({filters, kernel[0], kernel[1], channels / groups})},
      {{"strides", strides}, {"pads", pads}, {"dilations", dilations}, {"groups", groups}});
}

void Grower::ConvTranspose() {
  const int64_t channels = shape()[3], filters = Between(1, 6);
  const int64_t groups = OneIn(3) ? Groups(&random_, channels, filters) : 1;
  Ints kernel, strides, extra, pads(4, 0);
  for (int axis = 0; axis < 2; ++axis) {
    kernel.push_back(Between(1, 3));
    strides.push_back(Between(1, 2));
    extra.push_back(random_.Below(strides[axis]));
    const int64_t unpadded = (shape()[1 + axis] - 1) * strides[axis] + kernel[axis] + extra[axis];
    if (unpadded > 2) pads[axis] = random_.Below(std::min(kernel[axis], unpadded - 1));
  }
  Set(OpKind::kConvTranspose2d, {current_, Parameter({channels, kernel[0], kernel[1], filters / groups})},
      {{"strides", strides}, {"pads", pads}, {"output_padding", extra}, {"groups", groups}});
}

// Less than a window on each side, so that every window has a real cell.
Grower::Ints Grower::WindowPads(const Ints& size) {
  Ints pads;
  for (int side = 0; side < 4; ++side) pads.push_back(random_.Below(size[side % 2]));
  return pads;
}

void Grower::MaxPool() {
  const Ints size = {Between(1, std::min<int64_t>(3, shape()[1])), Between(1, std::min<int64_t>(3, shape()[2]))};
  Set(OpKind::kMaxPool2d, {current_},
      {{"size", size}, {"strides", Ints{Between(1, 2), Between(1, 2)}}, {"pads", WindowPads(size)}});
}

void Grower::AvgPool() {
  const Ints size = {Between(1, std::min<int64_t>(3, shape()[1])), Between(1, std::min<int64_t>(3, shape()[2]))};
  Set(OpKind::kAvgPool2d, {current_},
      {{"size", size},
       {"strides", Ints{Between(1, 2), Between(1, 2)}},
       {"pads", WindowPads(size)},
       {"count_include_pad", random_.Below(2)}});
}

void Grower::GroupNorm() {
  const int64_t channels = shape().back();
  std::vector<ir::ValueId> inputs = {current_};
  if (OneIn(2)) {
    inputs.push_back(Parameter({channels}));
    inputs.push_back(Parameter({channels}));
  }
  Set(OpKind::kGroupNorm, inputs, {{"groups", Groups(&random_, channels, channels)}, {"epsilon", 0.1}});
}

}  // namespace ampd::testing
