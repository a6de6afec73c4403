// Sound in RIFF WAVE files (Microsoft and IBM 1991; WAVE_FORMAT_EXTENSIBLE: Microsoft 2001).
#ifndef AMPD_ENGINE_DATA_WAV_H_
#define AMPD_ENGINE_DATA_WAV_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/input_file.h"

namespace ampd::data {

struct WavHeader {
  // Samples are floats rather than integers.
  bool is_float = false;
  // Bits a sample and channel: 8 (unsigned), 16, 24 or 32; floats 32.
  int64_t bits = 16;
  // 1 to 64.
  int64_t channels = 1;
  // Hz, 1 to 2^20.
  int64_t sample_rate = 8000;
  // Where the samples begin in the file, and how many there are of each channel, >= 1.
  int64_t data_offset = 0;
  int64_t samples = 0;

  int64_t block_bytes() const { return channels * bits / 8; }
  bool operator==(const WavHeader&) const = default;
};

// Finds the format and the samples in a file's chunks; chunks of other kinds are passed over. DATA_LOSS naming the file
// for what is no such file, is cut short, or holds no sample; UNIMPLEMENTED for other encodings.
absl::StatusOr<WavHeader> ReadWavHeader(const InputFile& file);

// The samples, -1 to 1 (floats: as stored), the mean of all channels. DATA_LOSS naming the file when it cannot be read
// or holds an Inf or a NaN.
absl::StatusOr<std::vector<float>> ReadWavSamples(const InputFile& file, const WavHeader& header);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_WAV_H_
