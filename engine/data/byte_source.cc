#include "engine/data/byte_source.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_join.h"
#include "engine/core/host_memory.h"
#include "engine/core/status.h"

namespace ampd::data {
namespace {

constexpr size_t kChunk = size_t{1} << 20;
constexpr size_t kInflateBuffer = size_t{64} << 10;
// Deflate codes at most 258 bytes in 2 bits (zlib's technical notes: a factor of 1032 at most).
constexpr uint64_t kMaxInflation = 1032;
constexpr uint64_t kMaxProduct = uint64_t{1} << 62;

class FileSource : public ByteSource {
 public:
  FileSource(std::shared_ptr<const InputFile> file, int64_t offset, int64_t size, std::string name)
      : file_(std::move(file)), name_(std::move(name)), at_(offset), left_(size), size_(size) {}

  absl::StatusOr<size_t> Read(absl::Span<uint8_t> out) override {
    const size_t n = std::min<uint64_t>(out.size(), static_cast<uint64_t>(left_));
    AMPD_RETURN_IF_ERROR(file_->ReadAt(at_, out.subspan(0, n)));
    at_ += static_cast<int64_t>(n);
    left_ -= static_cast<int64_t>(n);
    return n;
  }
  uint64_t MaxSize() const override { return static_cast<uint64_t>(size_); }
  const std::string& name() const override { return name_; }

 private:
  std::shared_ptr<const InputFile> file_;
  std::string name_;
  int64_t at_;
  int64_t left_;
  int64_t size_;
};

class InflateSource : public ByteSource {
 public:
  InflateSource(std::unique_ptr<ByteSource> compressed, Compression compression)
      : compressed_(std::move(compressed)), compression_(compression), buffer_(kInflateBuffer) {
    const int window_bits = compression == Compression::kGzip ? 15 + 16 : -15;
    ready_ = inflateInit2(&stream_, window_bits) == Z_OK;
  }
  ~InflateSource() override {
    if (ready_) inflateEnd(&stream_);
  }
  InflateSource(const InflateSource&) = delete;
  InflateSource& operator=(const InflateSource&) = delete;

  absl::StatusOr<size_t> Read(absl::Span<uint8_t> out) override {
    if (!ready_) return absl::ResourceExhaustedError(absl::StrCat(name(), ": no memory to inflate"));
    size_t done = 0;
    while (done < out.size() && !ended_) {
      AMPD_RETURN_IF_ERROR(Refill());
      if (!ended_) AMPD_RETURN_IF_ERROR(Inflate(out, done));
    }
    return done;
  }
  uint64_t MaxSize() const override {
    const uint64_t size = compressed_->MaxSize();
    return size > kMaxProduct / kMaxInflation ? kMaxProduct : size * kMaxInflation;
  }
  const std::string& name() const override { return compressed_->name(); }

 private:
  // Has input for the next step, or notes that the data ended between two members.
  absl::Status Refill() {
    if (stream_.avail_in == 0) {
      AMPD_ASSIGN_OR_RETURN(const size_t n, compressed_->Read(absl::MakeSpan(buffer_)));
      stream_.next_in = buffer_.data();
      stream_.avail_in = static_cast<uInt>(n);
    }
    if (!member_done_) {
      if (stream_.avail_in > 0) return absl::OkStatus();
      return absl::DataLossError(absl::StrCat(name(), ": the compressed data is truncated"));
    }
    if (stream_.avail_in == 0) {
      ended_ = true;
      return absl::OkStatus();
    }
    return StartNextMember();
  }

  absl::Status StartNextMember() {
    if (compression_ != Compression::kGzip) {
      return absl::DataLossError(absl::StrCat(name(), ": bytes follow the end of the compressed data"));
    }
    inflateReset(&stream_);
    member_done_ = false;
    return absl::OkStatus();
  }

  absl::Status Inflate(absl::Span<uint8_t> out, size_t& done) {
    const size_t room = std::min(out.size() - done, kChunk);
    stream_.next_out = out.data() + done;
    stream_.avail_out = static_cast<uInt>(room);
    const int code = inflate(&stream_, Z_NO_FLUSH);
    done += room - stream_.avail_out;
    if (code == Z_STREAM_END) member_done_ = true;
    if (code == Z_OK || code == Z_STREAM_END || code == Z_BUF_ERROR) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(
        name(), ": the compressed data is damaged: ", stream_.msg != nullptr ? stream_.msg : "unknown error"));
  }

  std::unique_ptr<ByteSource> compressed_;
  Compression compression_;
  std::vector<uint8_t> buffer_;
  z_stream stream_ = {};
  bool ready_ = false;
  bool member_done_ = false;
  bool ended_ = false;
};

}  // namespace

uint64_t PhysicalMemory() {
  // Asking the system reads a file.
  static const uint64_t bytes = [] {
    const int64_t pages = ::sysconf(_SC_PHYS_PAGES);
    const int64_t page = ::sysconf(_SC_PAGESIZE);
    const uint64_t machine =
        pages > 0 && page > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page) : kMaxProduct;
    return std::min(machine, static_cast<uint64_t>(HostMemoryLimit()));
  }();
  return bytes;
}

std::unique_ptr<ByteSource> MakeFileSource(std::shared_ptr<const InputFile> file, int64_t offset, int64_t size,
                                           std::string name) {
  return std::make_unique<FileSource>(std::move(file), offset, size, std::move(name));
}

std::unique_ptr<ByteSource> MakeInflateSource(std::unique_ptr<ByteSource> compressed, Compression compression) {
  return std::make_unique<InflateSource>(std::move(compressed), compression);
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenMaybeGzip(std::shared_ptr<const InputFile> file) {
  std::array<uint8_t, 2> start = {};
  if (file->size() >= 2) AMPD_RETURN_IF_ERROR(file->ReadAt(0, absl::MakeSpan(start)));
  const int64_t size = file->size();
  std::string name = file->name();
  std::unique_ptr<ByteSource> plain = MakeFileSource(std::move(file), 0, size, std::move(name));
  if (start[0] == 0x1f && start[1] == 0x8b) return MakeInflateSource(std::move(plain), Compression::kGzip);
  return plain;
}

absl::Status ReadExactly(ByteSource& source, absl::Span<uint8_t> out, absl::string_view what) {
  AMPD_ASSIGN_OR_RETURN(const size_t n, source.Read(out));
  if (n == out.size()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(source.name(), ": truncated: ", n, " of ", out.size(), " bytes of ", what, " found"));
}

absl::Status ExpectEnd(ByteSource& source) {
  std::array<uint8_t, 1> byte = {};
  AMPD_ASSIGN_OR_RETURN(const size_t n, source.Read(absl::MakeSpan(byte)));
  if (n == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(source.name(), ": has more bytes than its header says"));
}

absl::Status ReadToEnd(ByteSource& source, uint64_t size, absl::string_view what,
                       absl::FunctionRef<absl::Status(absl::Span<const uint8_t>)> consume) {
  std::vector<uint8_t> chunk(std::min<uint64_t>(size, kChunk));
  for (uint64_t done = 0; done < size;) {
    const absl::Span<uint8_t> part = absl::MakeSpan(chunk).subspan(0, std::min<uint64_t>(size - done, kChunk));
    AMPD_ASSIGN_OR_RETURN(const size_t n, source.Read(part));
    if (n < part.size()) {
      return absl::DataLossError(
          absl::StrCat(source.name(), ": truncated: ", done + n, " of ", size, " bytes of ", what, " found"));
    }
    AMPD_RETURN_IF_ERROR(consume(part));
    done += n;
  }
  return ExpectEnd(source);
}

absl::StatusOr<std::vector<uint8_t>> ReadBytesToEnd(ByteSource& source, uint64_t size, absl::string_view what) {
  // Reserved but not touched: a source that ends early costs no more memory than it had bytes.
  std::vector<uint8_t> bytes;
  bytes.reserve(size);
  AMPD_RETURN_IF_ERROR(ReadToEnd(source, size, what, [&](absl::Span<const uint8_t> part) {
    bytes.insert(bytes.end(), part.begin(), part.end());
    return absl::OkStatus();
  }));
  return bytes;
}

absl::Status CheckPlausibleSize(const ByteSource& source, uint64_t encoded, uint64_t decoded) {
  if (encoded > source.MaxSize()) {
    return absl::DataLossError(absl::StrCat(source.name(), ": truncated or damaged: its header says ", encoded,
                                            " bytes follow, which is more than the file can hold (", source.MaxSize(),
                                            ")"));
  }
  if (decoded > PhysicalMemory()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(source.name(), ": needs ", decoded, " bytes in memory; this process may have ", PhysicalMemory()));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> CheckedProduct(absl::Span<const int64_t> factors, absl::string_view name) {
  uint64_t product = 1;
  for (int64_t factor : factors) {
    uint64_t next = 0;
    if (factor < 0 || __builtin_mul_overflow(product, static_cast<uint64_t>(factor), &next) || next > kMaxProduct) {
      return absl::DataLossError(
          absl::StrCat(name, ": damaged: no array can have the shape [", absl::StrJoin(factors, ", "), "]"));
    }
    product = next;
  }
  return product;
}

}  // namespace ampd::data
