#include "engine/data/image_file.h"

#include <zlib.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "tests/unit/engine/data/image_files.h"

namespace ampd::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Span<const uint8_t> Bytes(const std::string& file) {
  return {reinterpret_cast<const uint8_t*>(file.data()), file.size()};
}

int LargestDifference(const Image& a, const Image& b) {
  EXPECT_EQ(a.pixels.size(), b.pixels.size());
  int largest = 0;
  for (size_t i = 0; i < std::min(a.pixels.size(), b.pixels.size()); ++i) {
    largest = std::max(largest, std::abs(a.pixels[i] - b.pixels[i]));
  }
  return largest;
}

TEST(JpegTest, DecodesColourAndGray) {
  for (int64_t channels : {1, 3}) {
    for (bool progressive : {false, true}) {
      const Image image = SmoothImage(21, 34, channels);
      const auto decoded = DecodeImage(Bytes(JpegFileBytes(image, {.progressive = progressive})));
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(decoded->height, 21);
      EXPECT_EQ(decoded->width, 34);
      EXPECT_EQ(decoded->channels, channels);
      EXPECT_LE(LargestDifference(*decoded, image), 3);
    }
  }
}

// libjpeg marks CMYK files as Adobe's, whose values are 255 minus the ink: white is 255 everywhere.
TEST(JpegTest, TurnsCmykIntoColours) {
  for (J_COLOR_SPACE space : {JCS_CMYK, JCS_YCCK}) {
    Image image = {8, 8, 4, {}};
    for (int i = 0; i < 64; ++i) image.pixels.insert(image.pixels.end(), {200, 100, 50, 128});
    const auto decoded = DecodeImage(Bytes(JpegFileBytes(image, {.four = space})));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ASSERT_EQ(decoded->channels, 3);
    EXPECT_NEAR(decoded->pixels[0], 200 * 128 / 255.0, 2);
    EXPECT_NEAR(decoded->pixels[1], 100 * 128 / 255.0, 2);
    EXPECT_NEAR(decoded->pixels[2], 50 * 128 / 255.0, 2);
  }
}

TEST(JpegTest, TruncationIsDamageEverywhere) {
  for (bool progressive : {false, true}) {
    const std::string file = JpegFileBytes(SmoothImage(17, 19, 3), {.progressive = progressive});
    // Without the end marker all pixels are there, but the file is not.
    for (size_t n = 0; n < file.size(); ++n) {
      const auto decoded = DecodeImage(Bytes(file.substr(0, n)));
      EXPECT_EQ(decoded.status().code(), absl::StatusCode::kDataLoss) << n << " of " << file.size();
    }
  }
}

TEST(JpegTest, DamageDoesNoHarm) {
  const std::string file = JpegFileBytes(SmoothImage(16, 16, 3), {.quality = 80, .progressive = true});
  for (size_t n = 2; n < file.size(); ++n) {
    for (int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = file;
      damaged[n] = static_cast<char>(damaged[n] ^ flip);
      const auto decoded = DecodeImage(Bytes(damaged));
      if (decoded.ok()) {
        EXPECT_EQ(static_cast<int64_t>(decoded->pixels.size()), decoded->height * decoded->width * decoded->channels);
      }
    }
  }
}

// The frame's header is marker, length, precision, height, width.
TEST(JpegTest, RefusesAbsurdSizesBeforeDecoding) {
  std::string file = JpegFileBytes(SmoothImage(16, 16, 3));
  const size_t frame = file.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  file.replace(frame + 5, 4, "\xff\xdc\xff\xdc");
  const auto decoded = DecodeImage(Bytes(file));
  EXPECT_EQ(decoded.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(decoded.status().message()), HasSubstr("65500x65500"));
}

// Each scan costs a pass over all pixels, and takes a few bytes.
TEST(JpegTest, RefusesEndlessScans) {
  const std::string file = JpegFileBytes(SmoothImage(16, 16, 1), {.progressive = true});
  const size_t last = file.rfind("\xff\xda"), end = file.rfind("\xff\xd9");
  std::string bomb = file.substr(0, end);
  for (int i = 0; i < 400; ++i) bomb += file.substr(last, end - last);
  const auto decoded = DecodeImage(Bytes(bomb + file.substr(end)));
  EXPECT_EQ(decoded.status().code(), absl::StatusCode::kDataLoss);
}

TEST(PngTest, DecodesColourAndGrayExactly) {
  for (int64_t channels : {1, 3}) {
    const Image image = SmoothImage(9, 14, channels);
    const auto decoded = DecodeImage(Bytes(PngFileBytes(image)));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->channels, channels);
    EXPECT_EQ(decoded->pixels, image.pixels);
  }
}

TEST(PngTest, DecodesEveryKind) {
  const auto pixels = [](const std::string& file) {
    const auto decoded = DecodeImage(Bytes(file));
    EXPECT_TRUE(decoded.ok()) << decoded.status();
    return decoded.ok() ? decoded->pixels : std::vector<uint8_t>();
  };
  // Eight pixels of one bit: 1, 0, 1, 1, 0, 0, 0, 1.
  EXPECT_THAT(pixels(PngFileBytes(1, 8, {{0xb1}}, {.color_type = PNG_COLOR_TYPE_GRAY, .bit_depth = 1})),
              ElementsAre(255, 0, 255, 255, 0, 0, 0, 255));
  // 16 bits: 0x8000 and 0xffff.
  EXPECT_THAT(pixels(PngFileBytes(1, 2, {{0x80, 0, 0xff, 0xff}}, {.color_type = PNG_COLOR_TYPE_GRAY, .bit_depth = 16})),
              ElementsAre(128, 255));
  EXPECT_THAT(pixels(PngFileBytes(1, 2, {{1, 2, 3, 0, 4, 5, 6, 255}}, {.color_type = PNG_COLOR_TYPE_RGB_ALPHA})),
              ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(pixels(PngFileBytes(1, 2, {{7, 0, 8, 255}}, {.color_type = PNG_COLOR_TYPE_GRAY_ALPHA})),
              ElementsAre(7, 8));
  const auto palette = [](png_structp png, png_infop info) {
    const png_color colors[] = {{10, 20, 30}, {40, 50, 60}};
    png_set_PLTE(png, info, colors, 2);
    const png_byte opacity[] = {0};
    png_set_tRNS(png, info, opacity, 1, nullptr);
  };
  EXPECT_THAT(pixels(PngFileBytes(1, 3, {{1, 0, 1}}, {.color_type = PNG_COLOR_TYPE_PALETTE, .prepare = palette})),
              ElementsAre(40, 50, 60, 10, 20, 30, 40, 50, 60));
}

TEST(PngTest, DecodesInterlacedImages) {
  const Image image = SmoothImage(13, 11, 1);
  std::vector<std::vector<uint8_t>> rows;
  for (int64_t y = 0; y < 13; ++y) rows.emplace_back(image.pixels.begin() + y * 11, image.pixels.begin() + y * 11 + 11);
  const auto decoded = DecodeImage(
      Bytes(PngFileBytes(13, 11, rows, {.color_type = PNG_COLOR_TYPE_GRAY, .interlace = PNG_INTERLACE_ADAM7})));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->pixels, image.pixels);
}

TEST(PngTest, TruncationAndDamageAreRefused) {
  const std::string file = PngFileBytes(SmoothImage(9, 9, 3));
  for (size_t n = 0; n < file.size(); ++n) {
    EXPECT_EQ(DecodeImage(Bytes(file.substr(0, n))).status().code(), absl::StatusCode::kDataLoss) << n;
    for (int flip : {0x01, 0xff}) {
      std::string damaged = file;
      damaged[n] = static_cast<char>(damaged[n] ^ flip);
      (void)DecodeImage(Bytes(damaged));
    }
  }
}

TEST(PngTest, RefusesAbsurdSizesBeforeDecoding) {
  for (const char* sides : {"\x7f\xff\xff\xff\0\0\0\1", "\0\0\xff\xff\0\0\xff\xff", "\0\0\0\0\0\0\0\1"}) {
    std::string file = PngFileBytes(SmoothImage(9, 9, 3));
    file.replace(16, 8, absl::string_view(sides, 8).data(), 8);
    const uint32_t crc = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(file.data()) + 12, 17));
    for (int i = 0; i < 4; ++i) file[29 + static_cast<size_t>(i)] = static_cast<char>(crc >> (24 - 8 * i));
    EXPECT_EQ(DecodeImage(Bytes(file)).status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(ImageFileTest, NamesWhatIsNoImage) {
  EXPECT_THAT(std::string(DecodeImage({}).status().message()), HasSubstr("empty"));
  EXPECT_THAT(std::string(DecodeImage(Bytes("GIF89a")).status().message()), HasSubstr("neither"));
}

TEST(ImageFileTest, ChangesChannels) {
  EXPECT_THAT(WithChannels({1, 2, 1, {7, 200}}, 3).pixels, ElementsAre(7, 7, 7, 200, 200, 200));
  // 0.299, 0.587 and 0.114 of 255; white; 0.299 * 10 + 0.587 * 20 + 0.114 * 30 = 18.15.
  EXPECT_THAT(WithChannels({1, 5, 3, {255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255, 10, 20, 30}}, 1).pixels,
              ElementsAre(76, 150, 29, 255, 18));
}

}  // namespace
}  // namespace ampd::data
