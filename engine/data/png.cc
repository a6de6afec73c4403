#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/data/image_file.h"

namespace ampd::data {
namespace {

// Of chunks that are kept, such as texts, which nothing here reads.
constexpr png_alloc_size_t kMaxChunkBytes = 8 << 20;
constexpr png_uint_32 kMaxChunks = 1000;

// libpng reports errors by longjmp: as for JPEG, each method that calls it sets the place to jump to anew and holds
// nothing that has a destructor.
class PngDecoder {
 public:
  explicit PngDecoder(absl::Span<const uint8_t> file) : file_(file) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, OnError, OnWarning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  bool ready() const { return info_ != nullptr; }

  bool ReadHeader() {
    if (setjmp(jump_) != 0) return false;
    png_set_read_fn(png_, this, OnRead);
    png_set_user_limits(png_, kMaxImageSide, kMaxImageSide);
    png_set_chunk_malloc_max(png_, kMaxChunkBytes);
    png_set_chunk_cache_max(png_, kMaxChunks);
    png_set_crc_action(png_, PNG_CRC_ERROR_QUIT, PNG_CRC_DEFAULT);
    png_read_info(png_, info_);
    return true;
  }

  // Asks for 8-bit gray or colour.
  bool Start() {
    if (setjmp(jump_) != 0) return false;
    png_set_expand(png_);
    png_set_scale_16(png_);
    png_set_strip_alpha(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  // One pointer a row.
  bool ReadRows(uint8_t** rows) {
    if (setjmp(jump_) != 0) return false;
    png_read_image(png_, rows);
    png_read_end(png_, nullptr);
    return true;
  }

  int64_t height() const { return png_get_image_height(png_, info_); }
  int64_t width() const { return png_get_image_width(png_, info_); }
  int64_t channels() const { return png_get_channels(png_, info_); }
  int64_t row_bytes() const { return static_cast<int64_t>(png_get_rowbytes(png_, info_)); }
  absl::Status Damaged() const {
    return absl::DataLossError(absl::StrCat("damaged PNG: ", static_cast<const char*>(message_)));
  }

 private:
  [[noreturn]] static void OnError(png_structp png, png_const_charp message) {
    auto* decoder = static_cast<PngDecoder*>(png_get_error_ptr(png));
    std::snprintf(decoder->message_, sizeof(decoder->message_), "%s", message);
    std::longjmp(decoder->jump_, 1);
  }

  // Of what does not touch the pixels.
  static void OnWarning(png_structp, png_const_charp) {}

  static void OnRead(png_structp png, png_bytep out, size_t size) {
    auto* decoder = static_cast<PngDecoder*>(png_get_io_ptr(png));
    if (size > decoder->file_.size() - decoder->at_) png_error(png, "the file ends early");
    std::memcpy(out, decoder->file_.data() + decoder->at_, size);
    decoder->at_ += size;
  }

  absl::Span<const uint8_t> file_;
  size_t at_ = 0;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_;
  char message_[200] = {};
};

}  // namespace

absl::StatusOr<Image> DecodePng(absl::Span<const uint8_t> file) {
  PngDecoder decoder(file);
  if (!decoder.ready()) return absl::ResourceExhaustedError("no memory to decode a PNG");
  if (!decoder.ReadHeader()) return decoder.Damaged();
  AMPD_RETURN_IF_ERROR(CheckImageSize(decoder.height(), decoder.width()));
  if (!decoder.Start()) return decoder.Damaged();
  Image image = {decoder.height(), decoder.width(), decoder.channels(), {}};
  const int64_t stride = image.width * image.channels;
  if ((image.channels != 1 && image.channels != 3) || decoder.row_bytes() != stride) {
    return absl::DataLossError(absl::StrCat("a PNG of ", image.channels, " channels in rows of ", decoder.row_bytes(),
                                            " bytes for ", image.width, " pixels"));
  }
  image.pixels.resize(static_cast<size_t>(image.height * stride));
  std::vector<uint8_t*> rows(static_cast<size_t>(image.height));
  for (int64_t y = 0; y < image.height; ++y) rows[static_cast<size_t>(y)] = image.pixels.data() + y * stride;
  if (!decoder.ReadRows(rows.data())) return decoder.Damaged();
  return image;
}

}  // namespace ampd::data
