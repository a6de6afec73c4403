// The convolutions of the networks that the CUDA backend is measured with.
#ifndef AMPD_TESTS_UNIT_ENGINE_BACKEND_CUDA_CONV_WORKLOADS_H_
#define AMPD_TESTS_UNIT_ENGINE_BACKEND_CUDA_CONV_WORKLOADS_H_

#include <array>
#include <string>
#include <vector>

#include "engine/backend/cuda/conv.h"

namespace ampd::testing {

struct ConvWorkload {
  std::string name;
  // Forward, without a dtype; the convolution that a transposed one is the gradient of.
  cuda::ConvDesc conv;
};

// `same`: padded so that the output is the image by the stride, the odd row and column below and to the right.
inline ConvWorkload SameConv(std::string name, std::array<int64_t, 4> image, int64_t filters,
                             std::array<int64_t, 2> size, std::array<int64_t, 2> strides, int64_t groups = 1) {
  cuda::ConvDesc d{.image = image, .strides = strides, .groups = groups};
  d.filter = {filters, size[0], size[1], image[3] / groups};
  d.output = {image[0], 0, 0, filters};
  for (size_t i = 0; i < 2; ++i) {
    d.output[i + 1] = (image[i + 1] + strides[i] - 1) / strides[i];
    const int64_t padding = (d.output[i + 1] - 1) * strides[i] + size[i] - image[i + 1];
    d.before[i] = padding > 0 ? padding / 2 : 0;
    d.after[i] = padding > 0 ? padding - d.before[i] : 0;
  }
  return {std::move(name), d};
}

// Padded alike on all sides, as PyTorch's ResNet is: by half the filter.
inline ConvWorkload CentredConv(std::string name, std::array<int64_t, 4> image, int64_t filters, int64_t size,
                                int64_t stride) {
  ConvWorkload workload = SameConv(std::move(name), image, filters, {size, size}, {stride, stride});
  workload.conv.before = workload.conv.after = {size / 2, size / 2};
  return workload;
}

// With an image of three channels also as the padding for matrix units leaves it.
inline std::vector<ConvWorkload> ConvWorkloads() {
  std::vector<ConvWorkload> list;
  const auto add = [&](const char* name, std::array<int64_t, 4> image, int64_t filters, int64_t size, int64_t stride,
                       int64_t groups = 1) {
    list.push_back(SameConv(name, image, filters, {size, size}, {stride, stride}, groups));
  };
  for (const int64_t batch : {32, 512}) {
    add("convnet 5x5", {batch, 256, 256, 3}, 32, 5, 2);
    add("convnet 5x5 padded", {batch, 256, 256, 8}, 32, 5, 2);
    add("convnet 7x7", {batch, 128, 128, 32}, 64, 7, 2);
    add("convnet 11x11", {batch, 64, 64, 64}, 128, 11, 2);
  }
  for (const int64_t batch : {64, 2048}) {
    add("AC-GAN 32x32 d1", {batch, 32, 32, 3}, 16, 3, 2);
    add("AC-GAN 32x32 d1 padded", {batch, 32, 32, 8}, 16, 3, 2);
    add("AC-GAN 32x32 d2", {batch, 16, 16, 16}, 32, 3, 1);
    add("AC-GAN 32x32 d3", {batch, 16, 16, 32}, 64, 3, 2);
    add("AC-GAN 32x32 d4", {batch, 8, 8, 64}, 128, 3, 1);
    add("AC-GAN 32x32 d5", {batch, 8, 8, 128}, 256, 3, 2);
    add("AC-GAN 32x32 d6", {batch, 4, 4, 256}, 512, 3, 1);
    add("AC-GAN 32x32 g1, transposed", {batch, 8, 8, 192}, 384, 5, 2);
    add("AC-GAN 32x32 g2, transposed", {batch, 16, 16, 96}, 192, 5, 2);
    add("AC-GAN 32x32 g3, transposed", {batch, 32, 32, 3}, 96, 5, 2);
  }
  constexpr int64_t kBatch = 256;
  const auto centred = [&](const char* name, std::array<int64_t, 4> image, int64_t filters, int64_t size,
                           int64_t stride) { list.push_back(CentredConv(name, image, filters, size, stride)); };
  centred("ResNet-50 stem", {kBatch, 224, 224, 3}, 64, 7, 2);
  centred("ResNet-50 stem padded", {kBatch, 224, 224, 8}, 64, 7, 2);
  centred("ResNet-50 first 1x1", {kBatch, 56, 56, 64}, 64, 1, 1);
  for (int64_t stage = 0, width = 64, size = 56; stage < 4; ++stage, width *= 2, size /= 2) {
    if (stage > 0) {
      centred("ResNet-50 narrow, larger", {kBatch, 2 * size, 2 * size, 2 * width}, width, 1, 1);
      centred("ResNet-50 3x3 down", {kBatch, 2 * size, 2 * size, width}, width, 3, 2);
      centred("ResNet-50 shortcut down", {kBatch, 2 * size, 2 * size, 2 * width}, 4 * width, 1, 2);
    }
    centred("ResNet-50 narrow", {kBatch, size, size, 4 * width}, width, 1, 1);
    centred("ResNet-50 3x3", {kBatch, size, size, width}, width, 3, 1);
    centred("ResNet-50 widen", {kBatch, size, size, width}, 4 * width, 1, 1);
  }
  for (int64_t size = 256, width = 64; width <= 1024; size /= 2, width *= 2) {
    add("UNet down", {16, size, size, width == 64 ? 8 : width / 2}, width, 3, 1);
    add("UNet level", {16, size, size, width}, width, 3, 1);
    if (width > 64) add("UNet up, transposed", {16, 2 * size, 2 * size, width / 2}, width, 2, 2);
  }
  list.push_back(SameConv("speech front end 1", {32, 1000, 161, 1}, 32, {11, 41}, {2, 2}));
  list.push_back(SameConv("speech front end 1 padded", {32, 1000, 161, 8}, 32, {11, 41}, {2, 2}));
  list.push_back(SameConv("speech front end 2", {32, 500, 81, 32}, 32, {11, 21}, {1, 2}));
  return list;
}

}  // namespace ampd::testing

#endif  // AMPD_TESTS_UNIT_ENGINE_BACKEND_CUDA_CONV_WORKLOADS_H_
