// Log-mel spectrograms: what a network hears of a sound.
#ifndef AMPD_ENGINE_DATA_LOG_MEL_H_
#define AMPD_ENGINE_DATA_LOG_MEL_H_

#include <complex>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"

namespace ampd::data {

// Frames of `window` samples, `hop` apart, that lie within the sound; a sound shorter than a window is one frame,
// filled up with zeros. Of each frame, times a periodic Hann window and filled up with zeros to the next power of two:
// the power spectrum |DFT|^2, its sums over bands, and their natural logarithm (of no less than 1e-10). Bands are
// triangles over frequency in mel, m(f) = 2595 log10(1 + f / 700): `mels` + 2 points lie at equal distances in mel from
// low_hz to high_hz, and band b rises from 0 at point b to 1 at b + 1 and falls to 0 at b + 2 (Young et al., The HTK
// Book, 5.4). Then, over the frames of a sound, every band is brought to mean 0 and (population) standard deviation 1;
// a deviation below 1e-6 counts as 1. In float64, rounded once.
//
// Immutable; may be used from any thread.
class LogMel {
 public:
  // Of sounds of `sample_rate` Hz, 1 to 2^20; fields that are not given have the defaults in data.proto.
  // INVALID_ARGUMENT for numbers out of range, and for more bands than the window tells apart.
  static absl::StatusOr<LogMel> Create(const v1::LogMel& spec, int64_t sample_rate);

  int64_t mels() const { return static_cast<int64_t>(bands_.size()); }
  // Frames of a sound of `samples` >= 1, >= 1.
  int64_t Frames(int64_t samples) const;
  // `out`: [Frames(samples.size()), mels()].
  void Compute(absl::Span<const float> samples, absl::Span<float> out) const;

 private:
  // The bins from `first` on that a band has a part in, and how much of each it takes.
  struct Band {
    size_t first = 0;
    std::vector<double> weights;
  };

  LogMel() = default;
  absl::Status MakeBands(int64_t mels, double low_hz, double high_hz, int64_t sample_rate);
  void Transform(std::vector<std::complex<double>>& values) const;

  std::vector<double> window_;
  int64_t hop_ = 1;
  // e^(-2 pi i k / size) for k < size / 2.
  std::vector<std::complex<double>> roots_;
  std::vector<Band> bands_;
};

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_LOG_MEL_H_
