// JPEG and PNG files made by libjpeg and libpng themselves.
#ifndef AMPD_TESTS_UNIT_ENGINE_DATA_IMAGE_FILES_H_
#define AMPD_TESTS_UNIT_ENGINE_DATA_IMAGE_FILES_H_

// clang-format off: jpeglib.h wants stdio.h before it.
#include <jpeglib.h>
#include <cstdio>
// clang-format on
#include <png.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "engine/data/image.h"

namespace ampd::data {

// An image whose neighbouring pixels differ little, so that JPEG keeps it well.
inline Image SmoothImage(int64_t height, int64_t width, int64_t channels, int seed = 0) {
  Image image = {height, width, channels, {}};
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        image.pixels.push_back(static_cast<uint8_t>((20 + 13 * seed + 3 * y + (2 + c) * x + 40 * c) % 200));
      }
    }
  }
  return image;
}

struct JpegOptions {
  int quality = 100;
  bool progressive = false;
  // Of an image of four channels.
  J_COLOR_SPACE four = JCS_CMYK;
};

inline std::string JpegFileBytes(const Image& image, JpegOptions options = {}) {
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors = {};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_height = static_cast<JDIMENSION>(image.height);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.input_components = static_cast<int>(image.channels);
  info.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : image.channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&info);
  if (image.channels == 4) jpeg_set_colorspace(&info, options.four);
  jpeg_set_quality(&info, options.quality, TRUE);
  for (int i = 0; i < info.num_components; ++i) info.comp_info[i].h_samp_factor = info.comp_info[i].v_samp_factor = 1;
  if (options.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  for (int64_t y = 0; y < image.height; ++y) {
    JSAMPROW row = const_cast<uint8_t*>(image.pixels.data()) + y * image.width * image.channels;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string file(reinterpret_cast<char*>(bytes), size);
  jpeg_destroy_compress(&info);
  std::free(bytes);
  return file;
}

struct PngOptions {
  int color_type = PNG_COLOR_TYPE_RGB;
  int bit_depth = 8;
  int interlace = PNG_INTERLACE_NONE;
  // Called before the header is written, e.g. with a palette.
  std::function<void(png_structp, png_infop)> prepare;
};

// `rows` are as PNG stores them.
inline std::string PngFileBytes(int64_t height, int64_t width, const std::vector<std::vector<uint8_t>>& rows,
                                const PngOptions& options = {}) {
  std::string file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &file,
      [](png_structp writer, png_bytep bytes, size_t size) {
        static_cast<std::string*>(png_get_io_ptr(writer))->append(reinterpret_cast<char*>(bytes), size);
      },
      [](png_structp) {});
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), options.bit_depth,
               options.color_type, options.interlace, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (options.prepare) options.prepare(png, info);
  std::vector<png_bytep> pointers;
  for (const auto& row : rows) pointers.push_back(const_cast<png_bytep>(row.data()));
  png_set_rows(png, info, pointers.data());
  png_write_png(png, info, PNG_TRANSFORM_IDENTITY, nullptr);
  png_destroy_write_struct(&png, &info);
  return file;
}

inline std::string PngFileBytes(const Image& image) {
  std::vector<std::vector<uint8_t>> rows;
  const int64_t stride = image.width * image.channels;
  for (int64_t y = 0; y < image.height; ++y) {
    rows.emplace_back(image.pixels.begin() + y * stride, image.pixels.begin() + (y + 1) * stride);
  }
  PngOptions options;
  options.color_type = image.channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB;
  return PngFileBytes(image.height, image.width, rows, options);
}

}  // namespace ampd::data

#endif  // AMPD_TESTS_UNIT_ENGINE_DATA_IMAGE_FILES_H_
