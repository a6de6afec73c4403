#include "server/tensorboard/event_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd {
namespace {

constexpr char kFileVersion[] = "brain.Event:2";
constexpr size_t kHeaderBytes = 12;
constexpr size_t kFooterBytes = 4;
// Of one record; pictures are the largest.
constexpr uint64_t kMaxRecordBytes = uint64_t{64} << 20;

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78u : 0);
    table[i] = value;
  }
  return table;
}

uint32_t Masked(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <typename T>
std::string LittleEndian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
  return bytes;
}

template <typename T>
T FromLittleEndian(absl::string_view bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  return value;
}

std::string Record(const tensorboard::Event& event) {
  const std::string body = event.SerializeAsString();
  const std::string length = LittleEndian<uint64_t>(body.size());
  return absl::StrCat(length, LittleEndian<uint32_t>(Masked(length)), body, LittleEndian<uint32_t>(Masked(body)));
}

absl::Status FileError(const std::string& path, absl::string_view what, int error) {
  const absl::StatusCode code = error == ENOSPC || error == EDQUOT || error == EFBIG
                                    ? absl::StatusCode::kResourceExhausted
                                    : absl::ErrnoToStatusCode(error);
  return absl::Status(code, absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error)));
}

// Up to `size` bytes at `offset`; fewer at the file's end.
absl::StatusOr<std::string> ReadAt(int fd, const std::string& path, int64_t offset, size_t size) {
  std::string bytes(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = pread(fd, bytes.data() + done, size - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(path, "read", errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace

uint32_t Crc32c(absl::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = MakeTable();
  uint32_t crc = 0xffffffffu;
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~crc;
}

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::Open(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return FileError(path, "make the folder of", error.value());
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid()) return FileError(path, "open", errno);
  std::unique_ptr<EventFile> file(new EventFile(path, std::move(fd)));
  AMPD_RETURN_IF_ERROR(file->Recover());
  return file;
}

absl::Status EventFile::Reopen() {
  UniqueFd fd(open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return FileError(path_, "open", errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return FileError(path_, "look at", errno);
  if (info.st_size != size_) {
    return absl::DataLossError(
        absl::StrCat("cannot go on with ", path_, ": it has ", info.st_size, " bytes, not the ", size_, " written"));
  }
  fd_ = std::move(fd);
  return absl::OkStatus();
}

absl::Status EventFile::Recover() {
  int64_t offset = 0;
  for (;;) {
    AMPD_ASSIGN_OR_RETURN(const std::string header, ReadAt(fd_.get(), path_, offset, kHeaderBytes));
    if (header.size() < kHeaderBytes) break;
    const absl::string_view length_bytes = absl::string_view(header).substr(0, 8);
    const uint64_t length = FromLittleEndian<uint64_t>(length_bytes);
    if (FromLittleEndian<uint32_t>(absl::string_view(header).substr(8)) != Masked(length_bytes)) break;
    if (length > kMaxRecordBytes) break;
    AMPD_ASSIGN_OR_RETURN(const std::string body,
                          ReadAt(fd_.get(), path_, offset + kHeaderBytes, static_cast<size_t>(length) + kFooterBytes));
    if (body.size() < length + kFooterBytes) break;
    const absl::string_view bytes = absl::string_view(body).substr(0, length);
    if (FromLittleEndian<uint32_t>(absl::string_view(body).substr(length)) != Masked(bytes)) break;
    tensorboard::Event event;
    if (!event.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) break;
    offset += static_cast<int64_t>(kHeaderBytes + length + kFooterBytes);
    if (event.ampd_sequence() == 0 && !event.has_file_version()) continue;
    sequence_ = event.ampd_sequence();
    size_ = offset;
  }
  if (ftruncate(fd_.get(), size_) != 0) return FileError(path_, "cut", errno);
  if (size_ > 0) return absl::OkStatus();
  tensorboard::Event version;
  version.set_file_version(kFileVersion);
  return Write(Record(version));
}

absl::Status EventFile::Append(std::vector<tensorboard::Event> events, uint64_t sequence) {
  sequence_ = sequence;
  if (events.empty()) return absl::OkStatus();
  events.back().set_ampd_sequence(sequence);
  std::string bytes;
  for (const tensorboard::Event& event : events) bytes += Record(event);
  return Write(bytes);
}

absl::Status EventFile::Write(const std::string& bytes) {
  if (!fd_.valid()) AMPD_RETURN_IF_ERROR(Reopen());
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pwrite(fd_.get(), bytes.data() + done, bytes.size() - done, size_ + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      // Half a record would end every reader's way through the file.
      if (ftruncate(fd_.get(), size_) != 0) return FileError(path_, "write and then cut", errno);
      return FileError(path_, "write", error);
    }
    done += static_cast<size_t>(n);
  }
  size_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

}  // namespace ampd
