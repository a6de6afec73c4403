#include "engine/train/disk_layout.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace ampd::train {
namespace {

std::vector<float> Count(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

void ExpectRoundTrip(const ir::Persistent& tensor, const std::vector<float>& memory, const std::vector<float>& disk) {
  std::vector<float> back(memory.size());
  FromDisk(tensor, disk.data(), back.data());
  EXPECT_EQ(back, memory);
}

TEST(DiskLayout, ConvolutionFiltersBecomeOihw) {
  const int64_t o = 2, h = 3, w = 4, i = 5;
  const ir::Persistent tensor{"w", {DType::kF32, {o, h, w, i}}, {}, ir::DiskLayout::kConvFilter, {}};
  EXPECT_EQ(DiskShape(tensor), (Shape{o, i, h, w}));
  const std::vector<float> memory = Count(o * h * w * i);
  std::vector<float> disk(memory.size());
  ToDisk(tensor, memory.data(), disk.data());
  for (int64_t a = 0; a < o; ++a)
    for (int64_t b = 0; b < i; ++b)
      for (int64_t y = 0; y < h; ++y)
        for (int64_t x = 0; x < w; ++x)
          ASSERT_EQ(disk[((a * i + b) * h + y) * w + x], memory[((a * h + y) * w + x) * i + b]);
  ExpectRoundTrip(tensor, memory, disk);
}

TEST(DiskLayout, WeightsAfterAFlattenAreInChannelOrder) {
  const int64_t out = 3, h = 2, w = 4, c = 5;
  const ir::Persistent tensor{"w", {DType::kF32, {out, h * w * c}}, {}, ir::DiskLayout::kChannelsLast, {h, w, c}};
  EXPECT_EQ(DiskShape(tensor), tensor.type.shape);
  const std::vector<float> memory = Count(out * h * w * c);
  std::vector<float> disk(memory.size());
  ToDisk(tensor, memory.data(), disk.data());
  for (int64_t a = 0; a < out; ++a)
    for (int64_t y = 0; y < h; ++y)
      for (int64_t x = 0; x < w; ++x)
        for (int64_t b = 0; b < c; ++b)
          ASSERT_EQ(disk[((a * c + b) * h + y) * w + x], memory[((a * h + y) * w + x) * c + b]);
  ExpectRoundTrip(tensor, memory, disk);
}

TEST(DiskLayout, OtherTensorsAreCopied) {
  const ir::Persistent tensor{"n", {DType::kI64, {}}, {}, ir::DiskLayout::kSame, {}};
  const int64_t memory = 77;
  int64_t disk = 0;
  ToDisk(tensor, &memory, &disk);
  EXPECT_EQ(disk, 77);
}

}  // namespace
}  // namespace ampd::train
