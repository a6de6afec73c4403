// jpeglib.h wants stdio.h before it and jerror.h behind.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <csetjmp>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/data/image_file.h"

namespace ampd::data {
namespace {

// A progressive file may have any number of scans, each of which costs a pass over all pixels.
constexpr int kMaxScans = 200;

// What libjpeg's callbacks get at: the fields that it knows of come first.
struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

extern "C" {

[[noreturn]] void OnJpegError(j_common_ptr info) {
  auto* errors = reinterpret_cast<ErrorManager*>(info->err);
  (*info->err->format_message)(info, errors->message);
  std::longjmp(errors->jump, 1);
}

// Warnings have level -1. Those after which the pixels are whole are let pass.
void OnJpegMessage(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR:
    case JWRN_TOO_MUCH_DATA:
      return;
    default:
      OnJpegError(info);
  }
}

void OnJpegProgress(j_common_ptr info) {
  auto* decoder = reinterpret_cast<j_decompress_ptr>(info);
  if (decoder->input_scan_number <= kMaxScans) return;
  auto* errors = reinterpret_cast<ErrorManager*>(info->err);
  std::snprintf(errors->message, sizeof(errors->message), "more than %d scans", kMaxScans);
  std::longjmp(errors->jump, 1);
}

}  // extern "C"

// libjpeg reports errors by longjmp. Each method that calls it sets the place to jump to anew and holds nothing that
// has a destructor, so no jump passes over one.
class JpegDecoder {
 public:
  JpegDecoder() {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = OnJpegError;
    errors_.base.emit_message = OnJpegMessage;
    progress_.progress_monitor = OnJpegProgress;
  }
  // Destroying never fails, and what was never created is all zeros.
  ~JpegDecoder() { jpeg_destroy_decompress(&info_); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  bool ReadHeader(absl::Span<const uint8_t> file) {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, file.data(), file.size());
    jpeg_read_header(&info_, TRUE);
    return true;
  }

  bool Start() {
    if (setjmp(errors_.jump) != 0) return false;
    switch (info_.jpeg_color_space) {
      case JCS_GRAYSCALE:
        info_.out_color_space = JCS_GRAYSCALE;
        break;
      case JCS_CMYK:
      case JCS_YCCK:
        info_.out_color_space = JCS_CMYK;
        break;
      default:
        info_.out_color_space = JCS_RGB;
    }
    jpeg_start_decompress(&info_);
    return true;
  }

  // `row` holds a row of components() bytes a pixel. Not called more often than there are rows.
  bool ReadRow(uint8_t* row) {
    if (setjmp(errors_.jump) != 0) return false;
    JSAMPROW rows[1] = {row};
    if (jpeg_read_scanlines(&info_, rows, 1) == 1) return true;
    std::snprintf(errors_.message, sizeof(errors_.message), "a row is missing");
    return false;
  }

  bool Finish() {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_finish_decompress(&info_);
    return true;
  }

  int64_t height() const { return info_.image_height; }
  int64_t width() const { return info_.image_width; }
  int64_t components() const { return info_.output_components; }
  // Adobe's files hold CMYK as 255 minus the ink.
  bool inverted() const { return info_.saw_Adobe_marker != FALSE; }
  absl::Status Damaged() const {
    if (errors_.base.msg_code == JERR_OUT_OF_MEMORY) return absl::ResourceExhaustedError("no memory to decode a JPEG");
    return absl::DataLossError(absl::StrCat("damaged JPEG: ", static_cast<const char*>(errors_.message)));
  }

 private:
  jpeg_decompress_struct info_ = {};
  jpeg_progress_mgr progress_ = {};
  ErrorManager errors_ = {};
};

// Black takes its share of each colour's light.
void CmykToRgb(const uint8_t* cmyk, int64_t pixels, bool inverted, uint8_t* rgb) {
  for (int64_t p = 0; p < pixels; ++p) {
    const int black = inverted ? cmyk[4 * p + 3] : 255 - cmyk[4 * p + 3];
    for (int64_t c = 0; c < 3; ++c) {
      const int light = inverted ? cmyk[4 * p + c] : 255 - cmyk[4 * p + c];
      rgb[3 * p + c] = static_cast<uint8_t>((light * black + 127) / 255);
    }
  }
}

absl::Status ReadRows(JpegDecoder& decoder, Image& image) {
  const bool cmyk = decoder.components() == 4;
  std::vector<uint8_t> row(cmyk ? static_cast<size_t>(4 * image.width) : 0);
  const int64_t stride = image.width * image.channels;
  for (int64_t y = 0; y < image.height; ++y) {
    uint8_t* to = image.pixels.data() + y * stride;
    if (!decoder.ReadRow(cmyk ? row.data() : to)) return decoder.Damaged();
    if (cmyk) CmykToRgb(row.data(), image.width, decoder.inverted(), to);
  }
  return decoder.Finish() ? absl::OkStatus() : decoder.Damaged();
}

}  // namespace

absl::StatusOr<Image> DecodeJpeg(absl::Span<const uint8_t> file) {
  JpegDecoder decoder;
  if (!decoder.ReadHeader(file)) return decoder.Damaged();
  AMPD_RETURN_IF_ERROR(CheckImageSize(decoder.height(), decoder.width()));
  if (!decoder.Start()) return decoder.Damaged();
  Image image = {decoder.height(), decoder.width(), decoder.components() == 1 ? 1 : 3, {}};
  image.pixels.resize(static_cast<size_t>(image.height * image.width * image.channels));
  AMPD_RETURN_IF_ERROR(ReadRows(decoder, image));
  return image;
}

}  // namespace ampd::data
