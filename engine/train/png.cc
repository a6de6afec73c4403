#include "engine/train/png.h"

#include <png.h>

#include <csetjmp>

#include "absl/strings/str_cat.h"

namespace ampd::train {
namespace {

constexpr int64_t kMaxSide = 1 << 20;

// libpng's last words; it must not return to libpng.
[[noreturn]] void OnError(png_structp png, png_const_charp message) {
  *static_cast<std::string*>(png_get_error_ptr(png)) = message;
  png_longjmp(png, 1);
}

void OnWarning(png_structp, png_const_charp) {}

void Append(png_structp png, png_bytep bytes, size_t size) {
  static_cast<std::string*>(png_get_io_ptr(png))->append(reinterpret_cast<const char*>(bytes), size);
}

void Flush(png_structp) {}

// Nothing here has a destructor that a jump out of libpng would pass over. False after an error.
bool Write(const Image& image, png_structp png, png_infop info) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_IHDR(png, info, static_cast<png_uint_32>(image.width), static_cast<png_uint_32>(image.height), 8,
               image.channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  for (int64_t y = 0; y < image.height; ++y) {
    png_write_row(png, reinterpret_cast<png_const_bytep>(image.pixels.data() + y * image.width * image.channels));
  }
  png_write_end(png, nullptr);
  return true;
}

}  // namespace

absl::StatusOr<std::string> EncodePng(const Image& image) {
  const bool fits = image.width > 0 && image.width <= kMaxSide && image.height > 0 && image.height <= kMaxSide &&
                    (image.channels == 1 || image.channels == 3);
  if (!fits || static_cast<int64_t>(image.pixels.size()) != image.width * image.height * image.channels) {
    return absl::InvalidArgumentError(absl::StrCat("[png] no picture: ", image.height, "x", image.width, "x",
                                                   image.channels, " in ", image.pixels.size(), " bytes"));
  }
  std::string error, bytes;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &error, OnError, OnWarning);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  const bool written = info != nullptr && (png_set_write_fn(png, &bytes, Append, Flush), Write(image, png, info));
  png_destroy_write_struct(&png, &info);
  if (!written) return absl::InternalError(absl::StrCat("[png] libpng: ", error.empty() ? "no memory" : error));
  return bytes;
}

}  // namespace ampd::train
