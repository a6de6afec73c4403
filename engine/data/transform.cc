#include "engine/data/transform.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/rng.h"
#include "engine/core/status.h"
#include "engine/core/worker_pool.h"

namespace ampd::data {
namespace {

using Normalization = v1::ImageTransform;

// Of ImageNet's training images scaled to [0, 1], as torchvision publishes them.
constexpr std::array<double, 3> kImageNetMean = {0.485, 0.456, 0.406};
constexpr std::array<double, 3> kImageNetStd = {0.229, 0.224, 0.225};
// Above this many channels a table of all results would fall out of the cache.
constexpr size_t kMaxTables = 16;

absl::Status Refuse(absl::string_view field, absl::string_view why, const DatasetInfo& info) {
  return absl::InvalidArgumentError(absl::StrCat("data.image.", field, ": ", why, "; samples of ", info.name, " are ",
                                                 ShapeString(info.input_shape),
                                                 info.byte_inputs ? " bytes" : " floats"));
}

absl::Status CheckNormalize(const v1::ImageTransform& spec, const DatasetInfo& info) {
  const auto normalize = NormalizationOf(spec, info);
  if (!v1::ImageTransform::Normalize_IsValid(normalize)) {
    return Refuse("normalize", absl::StrCat("no such value: ", static_cast<int>(normalize)), info);
  }
  if ((normalize == Normalization::UNIT || normalize == Normalization::IMAGENET) && !info.byte_inputs) {
    return Refuse("normalize", absl::StrCat(v1::ImageTransform::Normalize_Name(normalize), " is for bytes"), info);
  }
  if (normalize == Normalization::IMAGENET && (!info.is_image() || info.input_shape[2] != 3)) {
    return Refuse("normalize", "IMAGENET is for images of three channels", info);
  }
  return absl::OkStatus();
}

// Samples that are no images are not moved.
ImageAugmentation AugmentationOf(const v1::ImageTransform& spec, const DatasetInfo& info) {
  ImageAugmentation augmentation;
  if (!info.is_image()) return augmentation;
  augmentation.height = info.input_shape[0];
  augmentation.width = info.input_shape[1];
  augmentation.channels = info.input_shape[2];
  augmentation.padding = spec.random_crop_padding();
  augmentation.flip = spec.random_flip();
  augmentation.crop_stream = RngStream("data.random_crop");
  augmentation.flip_stream = RngStream("data.random_flip");
  return augmentation;
}

// Per channel, over the samples that one thread read. Whole numbers, so that no order of adding changes them; the sums
// of 2^47 bytes fit.
struct ByteSums {
  int64_t samples = 0;
  std::vector<uint64_t> sum;
  std::vector<uint64_t> squares;
  std::vector<std::pair<int64_t, absl::Status>> refused;
  std::vector<float> sample;

  void Add(const Dataset& train, int64_t i) {
    const size_t channels = static_cast<size_t>(train.info().input_shape.back());
    sample.resize(static_cast<size_t>(train.info().input_elements()));
    Reserve(channels);
    if (absl::Status status = train.ReadSample(i, nullptr, absl::MakeSpan(sample)); !status.ok()) {
      refused.emplace_back(i, std::move(status));
      return;
    }
    ++samples;
    for (size_t at = 0; at < sample.size(); at += channels) {
      for (size_t c = 0; c < channels; ++c) {
        const uint64_t value = static_cast<uint64_t>(sample[at + c]);
        sum[c] += value;
        squares[c] += value * value;
      }
    }
  }

  void Add(const ByteSums& other) {
    Reserve(other.sum.size());
    samples += other.samples;
    for (size_t c = 0; c < other.sum.size(); ++c) {
      sum[c] += other.sum[c];
      squares[c] += other.squares[c];
    }
    refused.insert(refused.end(), other.refused.begin(), other.refused.end());
  }

  void Reserve(size_t channels) {
    sum.resize(std::max(sum.size(), channels));
    squares.resize(sum.size());
  }
};

}  // namespace

v1::ImageTransform::Normalize NormalizationOf(const v1::ImageTransform& spec, const DatasetInfo& info) {
  if (spec.normalize() != Normalization::NORMALIZE_UNSPECIFIED) return spec.normalize();
  return info.byte_inputs ? Normalization::UNIT : Normalization::NONE;
}

absl::Status CheckTransform(const v1::ImageTransform& spec, const DatasetInfo& info) {
  const bool resized = info.is_image() && info.input_shape[0] == spec.size() && info.input_shape[1] == spec.size();
  if (spec.size() != 0 && !resized) return Refuse("size", absl::StrCat(spec.size(), " is another size"), info);
  AMPD_RETURN_IF_ERROR(CheckNormalize(spec, info));
  if (!info.lengths.empty() && spec.normalize() == Normalization::STANDARD) {
    return Refuse("normalize", "STANDARD would count steps past the samples' lengths", info);
  }
  if (spec.random_flip() && !info.is_image()) return Refuse("random_flip", "is for images", info);
  if (spec.random_flip() && info.targets_in_space) {
    return Refuse("random_flip", "the targets would not be mirrored with the images", info);
  }
  const int64_t padding = spec.random_crop_padding();
  if (padding == 0) return absl::OkStatus();
  if (!info.is_image()) return Refuse("random_crop_padding", "is for images", info);
  if (info.targets_in_space) {
    return Refuse("random_crop_padding", "the targets would not be moved with the images", info);
  }
  if (padding < 0 || padding >= std::min(info.input_shape[0], info.input_shape[1])) {
    return Refuse("random_crop_padding", absl::StrCat(padding, " is not in 0..side-1"), info);
  }
  return absl::OkStatus();
}

absl::StatusOr<Transform> Transform::Create(const v1::ImageTransform& spec, const Dataset& train, int threads) {
  AMPD_RETURN_IF_ERROR(CheckTransform(spec, train.info()));
  Transform transform;
  transform.info_ = train.info();
  transform.augmentation_ = AugmentationOf(spec, train.info());
  switch (NormalizationOf(spec, train.info())) {
    case Normalization::STANDARD:
      AMPD_RETURN_IF_ERROR(transform.Measure(train, threads));
      break;
    case Normalization::IMAGENET:
      for (size_t c = 0; c < 3; ++c) {
        transform.mean_.push_back(255 * kImageNetMean[c]);
        transform.std_.push_back(255 * kImageNetStd[c]);
      }
      break;
    case Normalization::UNIT:
      transform.SetUniform(255);
      break;
    default:
      transform.SetUniform(1);
  }
  transform.FillTable();
  return transform;
}

void Transform::SetUniform(double scale) {
  mean_ = {0};
  std_ = {scale};
}

absl::Status Transform::Measure(const Dataset& train, int threads) {
  const size_t channels = static_cast<size_t>(info_.input_shape.back());
  mean_.assign(channels, 0);
  std_.assign(channels, 0);
  AMPD_RETURN_IF_ERROR(info_.byte_inputs ? MeasureBytes(train, threads) : MeasureFloats(train));
  for (double& s : std_) s = s > 0 ? std::sqrt(s) : 1;
  return absl::OkStatus();
}

absl::Status Transform::MeasureBytes(const Dataset& train, int threads) {
  WorkerPool pool(train.info().decodes ? threads : 1);
  std::vector<ByteSums> sums(static_cast<size_t>(pool.threads()));
  pool.ForEach(train.size(), [&](int64_t i, int worker) { sums[static_cast<size_t>(worker)].Add(train, i); });
  for (size_t w = 1; w < sums.size(); ++w) sums[0].Add(sums[w]);
  std::sort(sums[0].refused.begin(), sums[0].refused.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [sample, status] : sums[0].refused) AMPD_RETURN_IF_ERROR(train.NoteDamage(sample, status));
  const double pixels = static_cast<double>(info_.input_elements()) / static_cast<double>(mean_.size());
  const double count = static_cast<double>(sums[0].samples) * pixels;
  for (size_t c = 0; c < mean_.size(); ++c) {
    mean_[c] = static_cast<double>(sums[0].sum[c]) / count;
    std_[c] = std::max(0.0, static_cast<double>(sums[0].squares[c]) / count - mean_[c] * mean_[c]);
  }
  return absl::OkStatus();
}

absl::Status Transform::MeasureFloats(const Dataset& train) {
  const size_t channels = mean_.size();
  const double count =
      static_cast<double>(info_.size) * static_cast<double>(info_.input_elements()) / static_cast<double>(channels);
  std::vector<float> sample(static_cast<size_t>(info_.input_elements()));
  for (int64_t i = 0; i < train.size(); ++i) {
    AMPD_RETURN_IF_ERROR(train.ReadSample(i, nullptr, absl::MakeSpan(sample)));
    for (size_t e = 0; e < sample.size(); ++e) {
      if (!std::isfinite(sample[e])) {
        return absl::DataLossError(
            absl::StrCat(info_.name, ": sample ", i, " holds a value beyond float32's range, so STANDARD has no mean"));
      }
      mean_[e % channels] += sample[e];
    }
  }
  for (double& m : mean_) m /= count;
  for (int64_t i = 0; i < train.size(); ++i) {
    AMPD_RETURN_IF_ERROR(train.ReadSample(i, nullptr, absl::MakeSpan(sample)));
    for (size_t e = 0; e < sample.size(); ++e) {
      const double d = sample[e] - mean_[e % channels];
      std_[e % channels] += d * d;
    }
  }
  for (double& s : std_) s /= count;
  return absl::OkStatus();
}

void Transform::FillTable() {
  if (!info_.byte_inputs || mean_.size() > kMaxTables) return;
  table_.resize(mean_.size());
  for (size_t c = 0; c < mean_.size(); ++c) {
    for (size_t v = 0; v < 256; ++v) {
      table_[c][v] = Normalized(static_cast<float>(v), mean_[c], std_[c]);
    }
  }
}

absl::Status Transform::CheckApplies(const DatasetInfo& info) const {
  Shape shape = info.input_shape;
  // Sequences need not be stored with the same padding.
  if (!info.lengths.empty() && !info_.lengths.empty()) shape[0] = info_.input_shape[0];
  if (shape == info_.input_shape && info.byte_inputs == info_.byte_inputs) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("samples of ", info.name, " are ", ShapeString(info.input_shape),
                   info.byte_inputs ? " bytes" : " floats", ", but the training samples of ", info_.name, " are ",
                   ShapeString(info_.input_shape), info_.byte_inputs ? " bytes" : " floats"));
}

void Transform::Normalize(absl::Span<float> values) const {
  const size_t channels = mean_.size();
  if (channels == 1 && mean_[0] == 0 && std_[0] == 1) return;
  size_t c = 0;
  for (float& v : values) {
    v = table_.empty() ? Normalized(v, mean_[c], std_[c]) : table_[c][static_cast<uint8_t>(v)];
    if (++c == channels) c = 0;
  }
}

absl::Status Transform::ReadPlain(const Dataset& dataset, int64_t i, absl::Span<float> out) const {
  AMPD_RETURN_IF_ERROR(dataset.ReadSample(i, nullptr, out));
  Normalize(out);
  return absl::OkStatus();
}

absl::Status Transform::ReadAugmented(const Dataset& dataset, int64_t i, const Draw& draw, std::vector<float>& scratch,
                                      absl::Span<float> out) const {
  if (!augmentation_.draws()) {
    AMPD_RETURN_IF_ERROR(dataset.ReadSample(i, &draw, out));
    Normalize(out);
    return absl::OkStatus();
  }
  const ImageView view =
      augmentation_.ViewOf(draw.seed, static_cast<uint64_t>(draw.step), static_cast<uint32_t>(draw.position));
  scratch.resize(static_cast<size_t>(info_.input_elements()));
  AMPD_RETURN_IF_ERROR(dataset.ReadSample(i, &draw, absl::MakeSpan(scratch)));
  const int64_t channels = augmentation_.channels;
  float* to = out.data();
  for (int64_t y = 0; y < augmentation_.height; ++y) {
    for (int64_t x = 0; x < augmentation_.width; ++x, to += channels) {
      const int64_t from = augmentation_.StoredPixel(view, y, x);
      if (from >= 0) {
        std::copy_n(scratch.data() + from, channels, to);
      } else {
        std::fill_n(to, channels, 0.0f);
      }
    }
  }
  Normalize(out);
  return absl::OkStatus();
}

}  // namespace ampd::data
