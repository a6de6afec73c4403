#include "engine/data/resize.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "gmock/gmock.h"

namespace ampd::data {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;

// Value k of pixel (y, x).
int ValueAt(int64_t y, int64_t x, int64_t k) {
  return static_cast<int>((37 * y * y + 11 * x * x + 5 * x * y + 60 * k) % 256);
}

template <typename T>
std::vector<T> Picture(int64_t height, int64_t width, int64_t channels) {
  std::vector<T> values;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t k = 0; k < channels; ++k) values.push_back(static_cast<T>(ValueAt(y, x, k)));
    }
  }
  return values;
}

v1::ImageTransform Spec(int64_t size, bool stretch = false) {
  v1::ImageTransform spec;
  spec.set_size(size);
  if (stretch) spec.set_resize(v1::ImageTransform::STRETCH);
  return spec;
}

std::vector<float> Resized(const v1::ImageTransform& spec, int64_t height, int64_t width) {
  std::vector<float> out(static_cast<size_t>(spec.size() * spec.size()));
  const std::vector<float> picture = Picture<float>(height, width, 1);
  Resize(absl::MakeConstSpan(picture), width, 1, PlainWindow(spec, height, width), spec.size(), absl::MakeSpan(out));
  return out;
}

// torch.nn.functional.interpolate(mode='bilinear', antialias=True) in float64, of the last one the middle columns.
TEST(ResizeTest, EqualsTorch) {
  const auto equals = [](std::vector<double> expected) {
    return Pointwise(FloatNear(2e-4f), std::vector<float>(expected.begin(), expected.end()));
  };
  EXPECT_THAT(Resized(Spec(3, true), 5, 7), equals({31.83673, 116.57983, 122.73469, 130.26984, 126.43791, 141.06349,
                                                    108.16327, 166.34454, 120.12245}));
  EXPECT_THAT(Resized(Spec(7, true), 4, 3),
              equals({0.0,       1.57143,   6.28571,   11.0,      25.14286,  39.28571,  44.0,      13.21429,  15.04082,
                      20.52041,  26.0,      40.90816,  55.81633,  60.78571,  34.35714,  36.59184,  43.29592,  50.0,
                      66.13265,  82.26531,  87.64286,  92.5,      95.14286,  103.07143, 111.0,     128.35714, 145.71429,
                      151.5,     142.92857, 145.97959, 155.13265, 164.28571, 182.86735, 201.44898, 207.64286, 102.35714,
                      105.81633, 116.19388, 126.57143, 146.37755, 166.18367, 172.78571, 77.0,      80.71429,  91.85714,
                      103.0,     123.57143, 144.14286, 151.0}));
  EXPECT_THAT(Resized(Spec(2, true), 9, 4), equals({98.07847, 133.09256, 104.97183, 163.90141}));
  EXPECT_THAT(Resized(Spec(4), 6, 11),
              equals({149.45312, 100.77632, 107.04688, 121.08333, 116.58333, 153.22222, 158.08333, 130.91358, 143.29167,
                      136.18129, 151.375, 148.5679, 143.42188, 120.85526, 150.07812, 132.13889}));
}

// The definition in the header, two-dimensional and in float64.
double Reference(const std::vector<double>& weights_y, const std::vector<double>& weights_x, int64_t k) {
  double sum = 0, total = 0;
  for (size_t y = 0; y < weights_y.size(); ++y) {
    for (size_t x = 0; x < weights_x.size(); ++x) {
      const double w = weights_y[y] * weights_x[x];
      sum += w * ValueAt(static_cast<int64_t>(y), static_cast<int64_t>(x), k);
      total += w;
    }
  }
  return sum / total;
}

std::vector<double> Weights(const ResizedSide& side, int64_t i, int64_t places) {
  const double scale = static_cast<double>(side.extent) / static_cast<double>(side.resized);
  const double at = (static_cast<double>(side.first + i) + 0.5) * scale;
  std::vector<double> weights(static_cast<size_t>(places), 0.0);
  for (int64_t j = 0; j < side.extent; ++j) {
    weights[static_cast<size_t>(side.begin + j)] =
        std::max(0.0, 1 - std::abs(static_cast<double>(j) + 0.5 - at) / std::max(1.0, scale));
  }
  return weights;
}

TEST(ResizeTest, EqualsItsDefinition) {
  v1::ImageTransform spec = Spec(6);
  spec.mutable_random_resized_crop();
  for (const auto& [height, width] : {std::pair{17, 23}, {40, 6}, {5, 31}, {1, 1}, {6, 6}, {3, 2}, {64, 64}}) {
    for (int64_t step = 0; step < 4; ++step) {
      const ResizeWindow window =
          step == 0 ? PlainWindow(spec, height, width) : RandomWindow(spec, height, width, {3, step, 7});
      std::vector<float> floats(6 * 6 * 3), bytes(6 * 6 * 3);
      const std::vector<float> picture = Picture<float>(height, width, 3);
      Resize(absl::MakeConstSpan(picture), width, 3, window, 6, absl::MakeSpan(floats));
      const std::vector<uint8_t> byte_picture = Picture<uint8_t>(height, width, 3);
      Resize(absl::MakeConstSpan(byte_picture), width, 3, window, 6, absl::MakeSpan(bytes));
      for (int64_t y = 0; y < 6; ++y) {
        for (int64_t x = 0; x < 6; ++x) {
          for (int64_t k = 0; k < 3; ++k) {
            const size_t at = static_cast<size_t>((y * 6 + x) * 3 + k);
            const double expected =
                Reference(Weights(window.vertical, y, height), Weights(window.horizontal, x, width), k);
            EXPECT_NEAR(floats[at], expected, 3e-4) << height << "x" << width << " " << y << "," << x << "," << k;
            EXPECT_EQ(bytes[at], std::nearbyint(bytes[at]));
            EXPECT_NEAR(bytes[at], expected, 0.5 + 3e-4);
          }
        }
      }
    }
  }
}

TEST(ResizeTest, TheSameSizeIsTheSameImage) {
  const std::vector<uint8_t> picture = Picture<uint8_t>(8, 8, 3);
  std::vector<float> out(picture.size());
  Resize(absl::MakeConstSpan(picture), 8, 3, PlainWindow(Spec(8), 8, 8), 8, absl::MakeSpan(out));
  EXPECT_EQ(out, std::vector<float>(picture.begin(), picture.end()));
}

TEST(ResizeTest, WindowsOfExtremeShapesStayWithinTheImage) {
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{1, 65535}, {65535, 1}, {1024, 65535}, {2, 3}}) {
    for (int64_t size : {1, 7, 8192}) {
      const ResizeWindow window = PlainWindow(Spec(size), height, width);
      for (const ResizedSide& side : {window.vertical, window.horizontal}) {
        EXPECT_GE(side.first, 0);
        EXPECT_LE(side.first + size, side.resized);
      }
    }
  }
}

TEST(RandomWindowTest, DrawsAreaAndProportionsWithinBounds) {
  v1::ImageTransform spec = Spec(32);
  spec.mutable_random_resized_crop()->set_min_area(0.2);
  spec.mutable_random_resized_crop()->set_max_area(0.6);
  double mean = 0;
  std::set<std::pair<int64_t, int64_t>> places;
  constexpr int kDraws = 2000;
  for (int64_t step = 0; step < kDraws; ++step) {
    const ResizeWindow window = RandomWindow(spec, 200, 300, {1, step, 5});
    const ResizedSide &v = window.vertical, &h = window.horizontal;
    ASSERT_TRUE(v.begin >= 0 && v.begin + v.extent <= 200 && h.begin >= 0 && h.begin + h.extent <= 300);
    EXPECT_EQ(v.resized, 32);
    EXPECT_EQ(h.first, 0);
    const double area = static_cast<double>(v.extent * h.extent) / (200 * 300);
    const double ratio = static_cast<double>(h.extent) / static_cast<double>(v.extent);
    EXPECT_NEAR(area, 0.4, 0.205);
    EXPECT_TRUE(ratio > 0.74 && ratio < 1.35) << ratio;
    mean += area / kDraws;
    places.insert({v.begin, h.begin});
  }
  // The mean of 2,000 uniform draws from [0.2, 0.6], to five standard errors; those too high for the image are drawn
  // anew, which takes a little from the top.
  EXPECT_NEAR(mean, 0.4, 0.025);
  EXPECT_GT(places.size(), 1500u);
}

TEST(RandomWindowTest, FollowsFromTheDrawAlone) {
  v1::ImageTransform spec = Spec(8);
  spec.mutable_random_resized_crop();
  const auto at = [&](Draw draw) {
    const ResizeWindow w = RandomWindow(spec, 90, 70, draw);
    return std::vector<int64_t>{w.vertical.begin, w.vertical.extent, w.horizontal.begin, w.horizontal.extent};
  };
  EXPECT_EQ(at({1, 2, 3}), at({1, 2, 3}));
  EXPECT_NE(at({1, 2, 3}), at({2, 2, 3}));
  EXPECT_NE(at({1, 2, 3}), at({1, 3, 3}));
  EXPECT_NE(at({1, 2, 3}), at({1, 2, 4}));
}

// No window of a tenth of the area has such proportions in a strip.
TEST(RandomWindowTest, FallsBackToTheMiddle) {
  v1::ImageTransform spec = Spec(8);
  spec.mutable_random_resized_crop()->set_min_area(0.5);
  const ResizeWindow window = RandomWindow(spec, 10, 1000, {1, 0, 0});
  EXPECT_EQ(window.vertical.extent, 10);
  EXPECT_EQ(window.horizontal.extent, 13);
  EXPECT_EQ(window.horizontal.begin, (1000 - 13) / 2);
}

}  // namespace
}  // namespace ampd::data
