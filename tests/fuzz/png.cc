// A PNG file, as it is and with the checksums of its chunks mended, else no mutation gets behind them.
#include <zlib.h>

#include <cstring>

#include "tests/fuzz/image.h"

namespace {

uint32_t BigEndian(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

std::string WithChecksums(std::string bytes) {
  for (size_t at = 8; at + 12 <= bytes.size();) {
    const uint32_t length = BigEndian(bytes, at);
    if (length > bytes.size() - at - 12) break;
    const size_t end = at + 8 + length;
    auto crc = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(bytes.data()) + at + 4, length + 4));
    for (size_t i = 4; i > 0; --i, crc >>= 8) bytes[end + i - 1] = static_cast<char>(crc);
    at = end + 4;
  }
  return bytes;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  ampd::fuzz::Decode(bytes);
  const std::string mended = WithChecksums(bytes);
  if (mended != bytes) ampd::fuzz::Decode(mended);
  return 0;
}
