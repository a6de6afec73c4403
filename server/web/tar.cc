#include "server/web/tar.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ampd {
namespace {

constexpr size_t kNameBytes = 100;
constexpr size_t kFolderBytes = 155;
// Eleven octal digits.
constexpr int64_t kMostBytes = (int64_t{1} << 33) - 1;

void Put(std::string* block, size_t offset, absl::string_view text) {
  block->replace(offset, text.size(), text.data(), text.size());
}

// The sum of all bytes, with blanks where it stands itself.
uint32_t Checksum(const std::string& block) {
  return std::accumulate(block.begin(), block.end(), uint32_t{0},
                         [](uint32_t sum, char c) { return sum + static_cast<unsigned char>(c); });
}

}  // namespace

absl::StatusOr<TarEntry> MakeTarEntry(absl::string_view folder, absl::string_view name, int64_t size, absl::Time time) {
  if (name.size() > kNameBytes || folder.size() > kFolderBytes || size > kMostBytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a tar archive cannot hold ", folder, "/", name, " of ", size, " bytes: at most ", kNameBytes,
        " bytes of name, ", kFolderBytes, " of folder, and ", kMostBytes, " of file; fetch the files one by one"));
  }
  std::string block(kTarBlock, '\0');
  const int64_t seconds = std::clamp(absl::ToUnixSeconds(time), int64_t{0}, kMostBytes);
  Put(&block, 0, name);
  Put(&block, 100, "0000644");
  Put(&block, 108, "0000000");
  Put(&block, 116, "0000000");
  Put(&block, 124, absl::StrFormat("%011o", size));
  Put(&block, 136, absl::StrFormat("%011o", seconds));
  Put(&block, 148, "        ");
  // A regular file; the kind of header and its version.
  Put(&block, 156, "0");
  Put(&block, 257, absl::string_view("ustar\00000", 8));
  Put(&block, 345, folder);
  Put(&block, 148, absl::StrFormat("%06o", Checksum(block)));
  block[154] = '\0';
  return TarEntry{std::move(block), size};
}

std::string TarPadding(int64_t size) { return std::string((kTarBlock - size % kTarBlock) % kTarBlock, '\0'); }

std::string TarEnd() { return std::string(2 * kTarBlock, '\0'); }

int64_t TarBytes(const std::vector<TarEntry>& entries) {
  int64_t bytes = 2 * kTarBlock;
  for (const TarEntry& entry : entries)
    bytes += kTarBlock + entry.size + static_cast<int64_t>(TarPadding(entry.size).size());
  return bytes;
}

}  // namespace ampd
