// Convolutions drawn at random, and the nodes that compute them and their gradients.
#ifndef AMPD_TESTS_UNIT_ENGINE_BACKEND_CPU_RANDOM_CONVOLUTIONS_H_
#define AMPD_TESTS_UNIT_ENGINE_BACKEND_CPU_RANDOM_CONVOLUTIONS_H_

#include <string>

#include "engine/runtime/kernel_table.h"
#include "tests/support/reference.h"

namespace ampd::testing {

struct Convolution {
  Shape image, filter, output;
  ir::Attributes attributes;
};

// A third are pointwise. Else kernels may be larger than the image, and whole rows and columns of them may see nothing
// but padding.
Convolution RandomConvolution(Random* random);

// The node of `op`: kConv2d, kConv2dGradInput or kConv2dGradFilter.
runtime::NodeDesc ConvolutionNode(ir::OpKind op, const Convolution& convolution, DType dtype);

// Shapes, strides, pads, dilations and groups.
std::string DescribeWindows(const runtime::NodeDesc& desc);

}  // namespace ampd::testing

#endif  // AMPD_TESTS_UNIT_ENGINE_BACKEND_CPU_RANDOM_CONVOLUTIONS_H_
