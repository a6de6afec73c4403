// Artifacts are whole or not there, and a grid of pictures reads back as what was drawn.
#include "engine/train/artifacts.h"

#include <png.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "engine/train/failure.h"
#include "engine/train/files.h"
#include "engine/train/image_grid.h"
#include "engine/train/png.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

std::vector<std::string> Names(const std::string& folder) { return ListFolder(folder).value(); }

TEST(ArtifactsTest, ReplaceWhatHadTheName) {
  const ScratchFolder scratch;
  const std::string folder = scratch.path() + "/made/as/needed";
  const ArtifactStore store(folder);
  for (const std::string bytes : {"one", "", "another"}) {
    const auto saved = store.Save({"a-1.txt", "text/plain", bytes});
    ASSERT_TRUE(saved.ok()) << saved.status();
    EXPECT_EQ(saved->name(), "a-1.txt");
    EXPECT_EQ(saved->content_type(), "text/plain");
    EXPECT_EQ(saved->size_bytes(), static_cast<int64_t>(bytes.size()));
    EXPECT_EQ(ReadFile(folder + "/a-1.txt", 100).value(), bytes);
    EXPECT_EQ(Names(folder), std::vector<std::string>{"a-1.txt"});
  }
}

TEST(ArtifactsTest, AreNamesOfFilesAlone) {
  const ScratchFolder scratch;
  const ArtifactStore store(scratch.path() + "/artifacts");
  for (const std::string name : {"", ".", "..", ".hidden", "a/b", "../a", "a\nb", "\xff"}) {
    EXPECT_EQ(store.Save({name, "", "x"}).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(store.Save({std::string(201, 'a'), "", "x"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(scratch.path() + "/artifacts"));
  EXPECT_EQ(ArtifactStore("").Save({"a", "", "x"}).status().code(), absl::StatusCode::kFailedPrecondition);
}

// While it lives no file may grow beyond `bytes`, as if the disk were full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

TEST(ArtifactsTest, LeaveTheOldOneWhereTheNewDoesNotFit) {
  const ScratchFolder scratch;
  const ArtifactStore store(scratch.path());
  std::ofstream(scratch.path() + "/.writing-a") << "left by a killed worker";
  ASSERT_TRUE(store.Save({"a", "", "first"}).ok());
  {
    const FileSizeLimit limit(1000);
    const auto saved = store.Save({"a", "", std::string(5000, 'x')});
    EXPECT_EQ(saved.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(FailureOf(saved.status()).class_(), v1::Failure::DISK_FULL);
  }
  EXPECT_EQ(ReadFile(scratch.path() + "/a", 100).value(), "first");
  EXPECT_EQ(Names(scratch.path()), std::vector<std::string>{"a"});
}

// By libpng's own reader.
Image Decode(const std::string& bytes) {
  png_image png;
  std::memset(&png, 0, sizeof png);
  png.version = PNG_IMAGE_VERSION;
  EXPECT_NE(png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()), 0) << png.message;
  EXPECT_EQ(png.format & ~static_cast<png_uint_32>(PNG_FORMAT_FLAG_COLOR), 0u) << "8 bits, no alpha, no palette";
  Image image{png.width, png.height, (png.format & PNG_FORMAT_FLAG_COLOR) != 0 ? 3 : 1, {}};
  image.pixels.resize(PNG_IMAGE_SIZE(png));
  EXPECT_NE(png_image_finish_read(&png, nullptr, image.pixels.data(), 0, nullptr), 0) << png.message;
  return image;
}

TEST(PngTest, ReadsBackAsItWas) {
  for (int64_t channels : {1, 3}) {
    Image image{37, 21, channels, {}};
    for (int64_t i = 0; i < 37 * 21 * channels; ++i) image.pixels += static_cast<char>(i * i * 31 >> 3);
    const auto bytes = EncodePng(image);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    const Image back = Decode(*bytes);
    EXPECT_EQ(back.width, 37);
    EXPECT_EQ(back.height, 21);
    EXPECT_EQ(back.channels, channels);
    EXPECT_TRUE(back.pixels == image.pixels);
    EXPECT_EQ(EncodePng(image).value(), *bytes);
  }
}

TEST(PngTest, RefusesWhatIsNoPicture) {
  for (const Image& image : {Image{0, 1, 1, ""}, Image{1, 1, 2, "ab"}, Image{2, 2, 1, "abc"}, Image{-1, -1, 1, "a"},
                             Image{int64_t{1} << 40, int64_t{1} << 40, 1, ""}}) {
    EXPECT_EQ(EncodePng(image).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ImageGridTest, RowsColumnsAndShades) {
  // 2 x 3 pictures of 1 x 2 pixels.
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  Tensor images(DType::kF32, {6, 1, 2, 1});
  const std::vector<float> values = {-1, 1, 0, -2, 2, kNan, kInf, -kInf, 0.5f, -0.5f, 0.25f, 1};
  std::copy(values.begin(), values.end(), images.as<float>().begin());
  const Image grid = ImageGrid(images.view(), {.rows = 2, .columns = 3, .low = -1, .high = 1});
  ASSERT_EQ(grid.width, 3 * 4 + 2);
  ASSERT_EQ(grid.height, 2 * 3 + 2);
  const auto row = [&](int64_t y) {
    std::vector<int> shades;
    for (int64_t x = 0; x < grid.width; ++x) {
      shades.push_back(static_cast<unsigned char>(grid.pixels[static_cast<size_t>(y * grid.width + x)]));
    }
    return shades;
  };
  constexpr int g = 128;
  EXPECT_EQ(row(0), std::vector<int>(14, g));
  EXPECT_EQ(row(2), (std::vector<int>{g, g, 0, 255, g, g, 128, 0, g, g, 255, 0, g, g}));
  EXPECT_EQ(row(5), (std::vector<int>{g, g, 255, 0, g, g, 191, 64, g, g, 159, 255, g, g}));
  EXPECT_EQ(row(7), std::vector<int>(14, g));
}

TEST(ImageGridTest, ColoursStayTogether) {
  Tensor images(DType::kF32, {1, 1, 2, 3});
  const std::vector<float> values = {1, 0, 0, 0, 0, 1};
  std::copy(values.begin(), values.end(), images.as<float>().begin());
  const Image grid = ImageGrid(images.view(), {.rows = 1, .columns = 1, .low = 0, .high = 1});
  ASSERT_EQ(grid.width, 6);
  EXPECT_EQ(grid.pixels.substr((2 * 6 + 2) * 3, 6), std::string("\xff\0\0\0\0\xff", 6));
}

}  // namespace
}  // namespace ampd::train
