#include "engine/data/zip.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/types/span.h"
#include "engine/core/status.h"

namespace ampd::data {
namespace {

constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEntrySignature = 0x02014b50;
constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr int64_t kEndSize = 22;
constexpr int64_t kEntrySize = 46;
constexpr int64_t kLocalSize = 30;
constexpr int64_t kMaxComment = 65535;
constexpr int64_t kMaxDirectory = int64_t{16} << 20;
// In place of a number: the number is in a zip64 record.
constexpr uint32_t kInZip64 = 0xffffffff;
constexpr uint16_t kEncrypted = 1;
constexpr uint16_t kStored = 0;
constexpr uint16_t kDeflated = 8;

uint16_t U16(absl::Span<const uint8_t> b, size_t at) { return static_cast<uint16_t>(b[at] | b[at + 1] << 8); }
uint32_t U32(absl::Span<const uint8_t> b, size_t at) { return U16(b, at) | uint32_t{U16(b, at + 2)} << 16; }

absl::Status Damaged(absl::string_view name, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(name, ": damaged zip archive: ", why));
}

struct Directory {
  int64_t offset = 0;
  int64_t size = 0;
  int64_t entries = 0;
};

// `end` is the end-of-central-directory record, `end_offset` its place in the file.
absl::StatusOr<Directory> ParseEnd(absl::Span<const uint8_t> end, int64_t end_offset, const std::string& name) {
  if (U16(end, 4) != 0 || U16(end, 6) != 0 || U16(end, 8) != U16(end, 10)) {
    return absl::UnimplementedError(absl::StrCat(name, ": zip archives split over several files are not supported"));
  }
  if (U16(end, 10) == 0xffff || U32(end, 12) == kInZip64 || U32(end, 16) == kInZip64) {
    return absl::UnimplementedError(absl::StrCat(name, ": zip64 archives (4 GiB and more) are not supported"));
  }
  const Directory directory = {U32(end, 16), U32(end, 12), U16(end, 10)};
  if (directory.offset + directory.size > end_offset) return Damaged(name, "its directory does not fit the file");
  if (directory.size > kMaxDirectory) return Damaged(name, "its directory is absurdly large");
  return directory;
}

// Searches backwards, since the record is at the end, before a comment of unknown length.
absl::StatusOr<Directory> FindDirectory(const InputFile& file) {
  const int64_t tail_size = std::min(file.size(), kEndSize + kMaxComment);
  std::vector<uint8_t> tail(static_cast<size_t>(tail_size));
  AMPD_RETURN_IF_ERROR(file.ReadAt(file.size() - tail_size, absl::MakeSpan(tail)));
  for (int64_t at = tail_size - kEndSize; at >= 0; --at) {
    const absl::Span<const uint8_t> end = absl::MakeConstSpan(tail).subspan(static_cast<size_t>(at));
    if (U32(end, 0) != kEndSignature || at + kEndSize + U16(end, 20) != tail_size) continue;
    return ParseEnd(end, file.size() - tail_size + at, file.name());
  }
  return Damaged(file.name(), "it has no directory at its end (truncated?)");
}

ZipMember ParseEntry(absl::Span<const uint8_t> entry) {
  ZipMember member;
  member.flags = U16(entry, 8);
  member.method = U16(entry, 10);
  member.crc32 = U32(entry, 16);
  member.compressed_size = U32(entry, 20);
  member.size = U32(entry, 24);
  member.header_offset = U32(entry, 42);
  return member;
}

// Reading to the end compares size and CRC-32 with the directory's.
class VerifiedSource : public ByteSource {
 public:
  VerifiedSource(std::unique_ptr<ByteSource> source, const ZipMember& member)
      : source_(std::move(source)), size_(static_cast<uint64_t>(member.size)), crc_(member.crc32) {}

  absl::StatusOr<size_t> Read(absl::Span<uint8_t> out) override {
    AMPD_ASSIGN_OR_RETURN(const size_t n, source_->Read(out));
    seen_crc_ = static_cast<uint32_t>(crc32_z(seen_crc_, out.data(), n));
    seen_size_ += n;
    if (seen_size_ > size_ || (n < out.size() && seen_size_ != size_)) {
      return Damaged(name(), absl::StrCat("the directory says ", size_, " bytes, found ", seen_size_));
    }
    if (n < out.size() && seen_crc_ != crc_) return Damaged(name(), "the checksum differs");
    return n;
  }
  uint64_t MaxSize() const override { return std::min(size_, source_->MaxSize()); }
  const std::string& name() const override { return source_->name(); }

 private:
  std::unique_ptr<ByteSource> source_;
  uint64_t size_;
  uint32_t crc_;
  uint64_t seen_size_ = 0;
  uint32_t seen_crc_ = 0;
};

absl::Status CheckReadable(const ZipMember& member, const std::string& name) {
  if (member.flags & kEncrypted) return absl::UnimplementedError(absl::StrCat(name, ": encrypted"));
  if (member.method != kStored && member.method != kDeflated) {
    return absl::UnimplementedError(
        absl::StrCat(name, ": zip compression method ", member.method, "; supported are stored (0), deflated (8)"));
  }
  if (member.size == kInZip64 || member.compressed_size == kInZip64 || member.header_offset == kInZip64) {
    return absl::UnimplementedError(absl::StrCat(name, ": zip64 members (4 GiB and more) are not supported"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ZipMember>> ReadZipDirectory(const InputFile& file) {
  AMPD_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(file));
  std::vector<uint8_t> bytes(static_cast<size_t>(directory.size));
  AMPD_RETURN_IF_ERROR(file.ReadAt(directory.offset, absl::MakeSpan(bytes)));
  std::vector<ZipMember> members;
  absl::Span<const uint8_t> rest = bytes;
  for (int64_t i = 0; i < directory.entries; ++i) {
    if (rest.size() < kEntrySize || U32(rest, 0) != kEntrySignature) {
      return Damaged(file.name(), absl::StrCat("entry ", i, " of its directory"));
    }
    const size_t name_size = U16(rest, 28);
    const size_t entry_size = kEntrySize + name_size + U16(rest, 30) + U16(rest, 32);
    if (rest.size() < entry_size) return Damaged(file.name(), absl::StrCat("entry ", i, " of its directory"));
    members.push_back(ParseEntry(rest));
    members.back().name.assign(reinterpret_cast<const char*>(rest.data()) + kEntrySize, name_size);
    rest.remove_prefix(entry_size);
  }
  return members;
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenZipMember(std::shared_ptr<const InputFile> file,
                                                          const ZipMember& member) {
  std::string name = absl::StrCat(file->name(), "[", member.name, "]");
  AMPD_RETURN_IF_ERROR(CheckReadable(member, name));
  std::array<uint8_t, kLocalSize> local = {};
  if (member.header_offset + kLocalSize > file->size()) return Damaged(name, "it lies beyond the archive's end");
  AMPD_RETURN_IF_ERROR(file->ReadAt(member.header_offset, absl::MakeSpan(local)));
  if (U32(local, 0) != kLocalSignature) return Damaged(name, "it has no header where the directory says");
  const int64_t offset = member.header_offset + kLocalSize + U16(local, 26) + U16(local, 28);
  if (offset + member.compressed_size > file->size()) return Damaged(name, "it lies beyond the archive's end");
  auto source = MakeFileSource(std::move(file), offset, member.compressed_size, std::move(name));
  if (member.method == kDeflated) source = MakeInflateSource(std::move(source), Compression::kDeflate);
  return std::make_unique<VerifiedSource>(std::move(source), member);
}

}  // namespace ampd::data
