#include "engine/data/wav.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd::data {
namespace {

constexpr uint64_t kPcm = 1, kFloat = 3, kExtensible = 0xFFFE;
constexpr int64_t kMaxChannels = 64;
constexpr int64_t kMaxRate = 1 << 20;
constexpr int kMaxChunks = 1000;
constexpr int64_t kBlockBytes = 1 << 20;
// What follows the number of the format in the GUID of an extensible header.
constexpr std::array<uint8_t, 14> kGuidEnd = {0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71};

uint64_t Little(const uint8_t* bytes, int count) {
  uint64_t value = 0;
  for (int i = count - 1; i >= 0; --i) value = value << 8 | bytes[i];
  return value;
}

absl::Status Damaged(const InputFile& file, const std::string& what) {
  return absl::DataLossError(absl::StrCat(file.name(), ": ", what));
}

struct Chunk {
  std::array<uint8_t, 8> header = {};
  int64_t offset = 0;
  int64_t size() const { return static_cast<int64_t>(Little(header.data() + 4, 4)); }
  bool Is(const char* name) const { return std::memcmp(header.data(), name, 4) == 0; }
};

absl::Status CheckRiff(const InputFile& file) {
  std::array<uint8_t, 12> start = {};
  if (file.size() < static_cast<int64_t>(start.size())) {
    return Damaged(file, absl::StrCat("is no WAVE file: it has ", file.size(), " bytes"));
  }
  AMPD_RETURN_IF_ERROR(file.ReadAt(0, absl::MakeSpan(start)));
  if (std::memcmp(start.data(), "RIFF", 4) == 0 && std::memcmp(start.data() + 8, "WAVE", 4) == 0) {
    return absl::OkStatus();
  }
  return Damaged(file, "is no WAVE file: it does not begin with RIFF and WAVE");
}

// The chunk at `offset`; of one that ends behind the file only the header counts.
absl::StatusOr<Chunk> ReadChunk(const InputFile& file, int64_t offset) {
  if (offset > file.size() - 8) return Damaged(file, "ends before its samples begin");
  Chunk chunk{.offset = offset + 8};
  AMPD_RETURN_IF_ERROR(file.ReadAt(offset, absl::MakeSpan(chunk.header)));
  return chunk;
}

absl::Status CheckFormat(const InputFile& file, uint64_t tag, const WavHeader& h, uint64_t block_bytes) {
  if ((tag != kPcm && tag != kFloat) || (tag == kFloat && h.bits != 32) ||
      (tag == kPcm && h.bits != 8 && h.bits != 16 && h.bits != 24 && h.bits != 32)) {
    return absl::UnimplementedError(absl::StrCat(file.name(), ": WAVE format ", tag, " of ", h.bits,
                                                 " bits is not supported: PCM of 8, 16, 24 or 32 bits and floats of "
                                                 "32 are"));
  }
  if (h.channels < 1 || h.channels > kMaxChannels || h.sample_rate < 1 || h.sample_rate > kMaxRate) {
    return Damaged(file, absl::StrCat("has ", h.channels, " channels at ", h.sample_rate, " Hz; channels are 1 to ",
                                      kMaxChannels, ", the rate 1 to ", kMaxRate));
  }
  if (block_bytes == static_cast<uint64_t>(h.block_bytes())) return absl::OkStatus();
  return Damaged(
      file, absl::StrCat("has blocks of ", block_bytes, " bytes for ", h.channels, " channels of ", h.bits, " bits"));
}

absl::StatusOr<WavHeader> ReadFormat(const InputFile& file, const Chunk& chunk) {
  std::array<uint8_t, 40> bytes = {};
  const int64_t size = std::min<int64_t>(chunk.size(), static_cast<int64_t>(bytes.size()));
  if (size < 16 || size > file.size() - chunk.offset) return Damaged(file, "has a format of too few bytes");
  AMPD_RETURN_IF_ERROR(file.ReadAt(chunk.offset, absl::MakeSpan(bytes).subspan(0, static_cast<size_t>(size))));
  uint64_t tag = Little(bytes.data(), 2);
  if (tag == kExtensible) {
    if (size < 40 || std::memcmp(bytes.data() + 26, kGuidEnd.data(), kGuidEnd.size()) != 0) {
      return Damaged(file, "has an extensible format of no known kind");
    }
    tag = Little(bytes.data() + 24, 2);
  }
  WavHeader header;
  header.is_float = tag == kFloat;
  header.channels = static_cast<int64_t>(Little(bytes.data() + 2, 2));
  header.sample_rate = static_cast<int64_t>(Little(bytes.data() + 4, 4));
  header.bits = static_cast<int64_t>(Little(bytes.data() + 14, 2));
  AMPD_RETURN_IF_ERROR(CheckFormat(file, tag, header, Little(bytes.data() + 12, 2)));
  return header;
}

double Value(const uint8_t* bytes, const WavHeader& h) {
  if (h.is_float) {
    const uint32_t word = static_cast<uint32_t>(Little(bytes, 4));
    float value;
    std::memcpy(&value, &word, sizeof(value));
    return static_cast<double>(value);
  }
  if (h.bits == 8) return (static_cast<double>(bytes[0]) - 128) / 128;
  // The sign bit at the top of 32, whatever the width.
  const auto word = static_cast<uint32_t>(Little(bytes, static_cast<int>(h.bits / 8)) << (32 - h.bits));
  return static_cast<double>(static_cast<int32_t>(word)) / 2147483648.0;
}

}  // namespace

absl::StatusOr<WavHeader> ReadWavHeader(const InputFile& file) {
  AMPD_RETURN_IF_ERROR(CheckRiff(file));
  WavHeader header;
  bool known = false;
  int64_t offset = 12;
  for (int i = 0; i < kMaxChunks; ++i) {
    AMPD_ASSIGN_OR_RETURN(const Chunk chunk, ReadChunk(file, offset));
    if (chunk.Is("fmt ")) {
      AMPD_ASSIGN_OR_RETURN(header, ReadFormat(file, chunk));
      known = true;
    }
    if (chunk.Is("data")) {
      if (!known) return Damaged(file, "has samples before their format");
      if (chunk.size() > file.size() - chunk.offset) {
        return Damaged(file, absl::StrCat("is cut short: ", chunk.size(), " bytes of samples are to follow, ",
                                          file.size() - chunk.offset, " do"));
      }
      header.data_offset = chunk.offset;
      header.samples = chunk.size() / header.block_bytes();
      if (header.samples == 0) return Damaged(file, "holds no samples");
      return header;
    }
    // Chunks begin at even places.
    offset = chunk.offset + chunk.size() + chunk.size() % 2;
  }
  return Damaged(file, absl::StrCat("has no samples among its first ", kMaxChunks, " chunks"));
}

absl::StatusOr<std::vector<float>> ReadWavSamples(const InputFile& file, const WavHeader& header) {
  const int64_t at_once = std::max<int64_t>(kBlockBytes / header.block_bytes(), 1);
  std::vector<uint8_t> bytes(static_cast<size_t>(std::min(at_once, header.samples) * header.block_bytes()));
  std::vector<float> samples;
  samples.reserve(static_cast<size_t>(header.samples));
  for (int64_t first = 0; first < header.samples; first += at_once) {
    const int64_t count = std::min(at_once, header.samples - first);
    const auto part = absl::MakeSpan(bytes).subspan(0, static_cast<size_t>(count * header.block_bytes()));
    AMPD_RETURN_IF_ERROR(file.ReadAt(header.data_offset + first * header.block_bytes(), part));
    const uint8_t* at = bytes.data();
    for (int64_t i = 0; i < count; ++i) {
      double sum = 0;
      for (int64_t c = 0; c < header.channels; ++c, at += header.bits / 8) sum += Value(at, header);
      const double mean = sum / static_cast<double>(header.channels);
      if (!std::isfinite(mean)) return Damaged(file, absl::StrCat("sample ", first + i, " is not finite"));
      samples.push_back(static_cast<float>(mean));
    }
  }
  return samples;
}

}  // namespace ampd::data
