#include "engine/data/log_mel.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd::data {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr int64_t kMaxMels = 512;
constexpr int64_t kMaxWindow = 1 << 16;
constexpr double kLeastEnergy = 1e-10;
constexpr double kLeastDeviation = 1e-6;

double MelOf(double hz) { return 2595 * std::log10(1 + hz / 700); }

absl::Status Refuse(const std::string& what) { return absl::InvalidArgumentError("log_mel." + what); }

// Mean 0 and deviation 1 of each column of [frames, bands], which becomes floats.
void Normalize(const std::vector<double>& values, size_t bands, absl::Span<float> out) {
  const double frames = static_cast<double>(values.size() / bands);
  for (size_t b = 0; b < bands; ++b) {
    double mean = 0, variance = 0;
    for (size_t i = b; i < values.size(); i += bands) mean += values[i] / frames;
    for (size_t i = b; i < values.size(); i += bands) variance += (values[i] - mean) * (values[i] - mean) / frames;
    const double deviation = std::sqrt(variance);
    const double scale = deviation < kLeastDeviation ? 1 : deviation;
    for (size_t i = b; i < values.size(); i += bands) out[i] = static_cast<float>((values[i] - mean) / scale);
  }
}

}  // namespace

absl::StatusOr<LogMel> LogMel::Create(const v1::LogMel& spec, int64_t sample_rate) {
  const double rate = static_cast<double>(sample_rate);
  const double window = std::round((spec.has_window_seconds() ? spec.window_seconds() : 0.025) * rate);
  const double hop = std::round((spec.has_hop_seconds() ? spec.hop_seconds() : 0.01) * rate);
  const int64_t mels = spec.has_mels() ? spec.mels() : 40;
  const double low = spec.has_low_hz() ? spec.low_hz() : 20;
  const double high = spec.has_high_hz() ? spec.high_hz() : rate / 2;
  if (!(window >= 2 && window <= kMaxWindow)) {
    return Refuse(absl::StrCat("window_seconds: makes windows of ", window, " samples at ", sample_rate,
                               " Hz; they are 2 to ", kMaxWindow));
  }
  if (!(hop >= 1 && hop <= kMaxWindow)) {
    return Refuse(absl::StrCat("hop_seconds: makes steps of ", hop, " samples at ", sample_rate, " Hz; they are 1 to ",
                               kMaxWindow));
  }
  if (mels < 1 || mels > kMaxMels) return Refuse(absl::StrCat("mels: must be 1 to ", kMaxMels, ", is ", mels));
  if (!(low >= 0 && low < high && high <= rate / 2)) {
    return Refuse(absl::StrCat("high_hz: bands from ", low, " to ", high, " Hz at a sample rate of ", sample_rate,
                               "; 0 <= low_hz < high_hz <= half of the rate"));
  }
  LogMel result;
  result.hop_ = static_cast<int64_t>(hop);
  result.window_.resize(static_cast<size_t>(window));
  for (size_t i = 0; i < result.window_.size(); ++i) {
    result.window_[i] = 0.5 - 0.5 * std::cos(2 * kPi * static_cast<double>(i) / window);
  }
  size_t size = 2;
  while (size < result.window_.size()) size *= 2;
  for (size_t k = 0; k < size / 2; ++k) {
    result.roots_.push_back(std::polar(1.0, -2 * kPi * static_cast<double>(k) / static_cast<double>(size)));
  }
  AMPD_RETURN_IF_ERROR(result.MakeBands(mels, low, high, sample_rate));
  return result;
}

absl::Status LogMel::MakeBands(int64_t mels, double low_hz, double high_hz, int64_t sample_rate) {
  const double low = MelOf(low_hz), width = (MelOf(high_hz) - low) / static_cast<double>(mels + 1);
  const size_t bins = roots_.size() + 1;
  const double bin_hz = static_cast<double>(sample_rate) / static_cast<double>(2 * roots_.size());
  for (int64_t b = 0; b < mels; ++b) {
    Band band;
    for (size_t k = 0; k < bins; ++k) {
      const double place = (MelOf(static_cast<double>(k) * bin_hz) - low) / width - static_cast<double>(b);
      const double weight = place <= 1 ? place : 2 - place;
      if (weight <= 0) continue;
      if (band.weights.empty()) band.first = k;
      band.weights.push_back(weight);
    }
    if (band.weights.empty()) {
      return Refuse(absl::StrCat("mels: band ", b, " of ", mels, " lies between two frequencies of the transform, ",
                                 bin_hz, " Hz apart; take fewer bands or longer windows"));
    }
    bands_.push_back(std::move(band));
  }
  return absl::OkStatus();
}

int64_t LogMel::Frames(int64_t samples) const {
  const int64_t window = static_cast<int64_t>(window_.size());
  return samples <= window ? 1 : 1 + (samples - window) / hop_;
}

// Cooley and Tukey 1965, by halves, in place.
void LogMel::Transform(std::vector<std::complex<double>>& values) const {
  const size_t size = values.size();
  for (size_t i = 1, reversed = 0; i < size; ++i) {
    size_t bit = size / 2;
    for (; reversed & bit; bit /= 2) reversed ^= bit;
    reversed ^= bit;
    if (i < reversed) std::swap(values[i], values[reversed]);
  }
  for (size_t half = 1; half < size; half *= 2) {
    const size_t stride = size / (2 * half);
    for (size_t begin = 0; begin < size; begin += 2 * half) {
      for (size_t k = 0; k < half; ++k) {
        const std::complex<double> root = roots_[k * stride], odd = values[begin + half + k];
        // Spelled out: the operator's care for infinities takes most of its time.
        const std::complex<double> turned(odd.real() * root.real() - odd.imag() * root.imag(),
                                          odd.real() * root.imag() + odd.imag() * root.real());
        values[begin + half + k] = values[begin + k] - turned;
        values[begin + k] += turned;
      }
    }
  }
}

void LogMel::Compute(absl::Span<const float> samples, absl::Span<float> out) const {
  const size_t frames = static_cast<size_t>(Frames(static_cast<int64_t>(samples.size())));
  std::vector<std::complex<double>> spectrum(2 * roots_.size());
  std::vector<double> power(roots_.size() + 1), energies;
  energies.reserve(frames * bands_.size());
  for (size_t f = 0; f < frames; ++f) {
    const size_t begin = f * static_cast<size_t>(hop_);
    const size_t count = std::min(window_.size(), samples.size() - begin);
    std::fill(spectrum.begin(), spectrum.end(), 0.0);
    for (size_t i = 0; i < count; ++i) spectrum[i] = static_cast<double>(samples[begin + i]) * window_[i];
    Transform(spectrum);
    for (size_t k = 0; k < power.size(); ++k) power[k] = std::norm(spectrum[k]);
    for (const Band& band : bands_) {
      double energy = 0;
      for (size_t k = 0; k < band.weights.size(); ++k) energy += band.weights[k] * power[band.first + k];
      energies.push_back(std::log(std::max(energy, kLeastEnergy)));
    }
  }
  Normalize(energies, bands_.size(), out);
}

}  // namespace ampd::data
