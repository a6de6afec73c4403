#include "engine/data/transform.h"

#include <algorithm>
#include <cmath>

#include "engine/core/rng.h"
#include "engine/core/status.h"

namespace ampd::data {
namespace {

using Normalization = v1::ImageTransform;

// Of ImageNet's training images scaled to [0, 1], as torchvision publishes them.
constexpr std::array<double, 3> kImageNetMean = {0.485, 0.456, 0.406};
constexpr std::array<double, 3> kImageNetStd = {0.229, 0.224, 0.225};
// Above this many channels a table of all results would fall out of the cache.
constexpr size_t kMaxTables = 16;

v1::ImageTransform::Normalize Resolve(const v1::ImageTransform& spec, const DatasetInfo& info) {
  if (spec.normalize() != Normalization::NORMALIZE_UNSPECIFIED) return spec.normalize();
  return info.byte_inputs ? Normalization::UNIT : Normalization::NONE;
}

absl::Status Refuse(absl::string_view field, absl::string_view why, const DatasetInfo& info) {
  return absl::InvalidArgumentError(absl::StrCat("data.image.", field, ": ", why, "; samples of ", info.name, " are ",
                                                 ShapeString(info.input_shape),
                                                 info.byte_inputs ? " bytes" : " floats"));
}

absl::Status CheckNormalize(const v1::ImageTransform& spec, const DatasetInfo& info) {
  const auto normalize = Resolve(spec, info);
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

}  // namespace

absl::Status CheckTransform(const v1::ImageTransform& spec, const DatasetInfo& info) {
  if (spec.size() != 0) return absl::UnimplementedError("data.image.size: resizing is not supported yet");
  AMPD_RETURN_IF_ERROR(CheckNormalize(spec, info));
  if (!info.lengths.empty() && spec.normalize() == Normalization::STANDARD) {
    return Refuse("normalize", "STANDARD would count steps past the samples' lengths", info);
  }
  if (spec.random_flip() && !info.is_image()) return Refuse("random_flip", "is for images", info);
  if (info.is_image() && info.label_count > 1 && info.label_count == info.input_shape[0] * info.input_shape[1]) {
    constexpr char kMoves[] = "would move pixels away from their labels";
    if (spec.random_flip()) return Refuse("random_flip", kMoves, info);
    if (spec.random_crop_padding() != 0) return Refuse("random_crop_padding", kMoves, info);
  }
  const int64_t padding = spec.random_crop_padding();
  if (padding == 0) return absl::OkStatus();
  if (!info.is_image()) return Refuse("random_crop_padding", "is for images", info);
  if (padding < 0 || padding >= std::min(info.input_shape[0], info.input_shape[1])) {
    return Refuse("random_crop_padding", absl::StrCat(padding, " is not in 0..side-1"), info);
  }
  return absl::OkStatus();
}

absl::StatusOr<Transform> Transform::Create(const v1::ImageTransform& spec, const Dataset& train) {
  AMPD_RETURN_IF_ERROR(CheckTransform(spec, train.info()));
  Transform transform;
  transform.info_ = train.info();
  transform.flip_ = spec.random_flip();
  transform.padding_ = spec.random_crop_padding();
  switch (Resolve(spec, train.info())) {
    case Normalization::STANDARD:
      AMPD_RETURN_IF_ERROR(transform.Measure(train));
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

absl::Status Transform::Measure(const Dataset& train) {
  const size_t channels = static_cast<size_t>(info_.input_shape.back());
  const double count =
      static_cast<double>(info_.size) * static_cast<double>(info_.input_elements()) / static_cast<double>(channels);
  std::vector<float> sample(static_cast<size_t>(info_.input_elements()));
  mean_.assign(channels, 0);
  std_.assign(channels, 0);
  for (int64_t i = 0; i < train.size(); ++i) {
    AMPD_RETURN_IF_ERROR(train.CheckFinite(i));
    train.ReadInput(i, absl::MakeSpan(sample));
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
    train.ReadInput(i, absl::MakeSpan(sample));
    for (size_t e = 0; e < sample.size(); ++e) {
      const double d = sample[e] - mean_[e % channels];
      std_[e % channels] += d * d;
    }
  }
  for (double& s : std_) s = s > 0 ? std::sqrt(s / count) : 1;
  return absl::OkStatus();
}

void Transform::FillTable() {
  if (!info_.byte_inputs || mean_.size() > kMaxTables) return;
  table_.resize(mean_.size());
  for (size_t c = 0; c < mean_.size(); ++c) {
    for (size_t v = 0; v < 256; ++v) {
      table_[c][v] = static_cast<float>((static_cast<double>(v) - mean_[c]) / std_[c]);
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
    v = table_.empty() ? static_cast<float>((v - mean_[c]) / std_[c]) : table_[c][static_cast<uint8_t>(v)];
    if (++c == channels) c = 0;
  }
}

void Transform::ReadPlain(const Dataset& dataset, int64_t i, absl::Span<float> out) const {
  dataset.ReadInput(i, out);
  Normalize(out);
}

void Transform::ReadAugmented(const Dataset& dataset, int64_t i, const Draw& draw, std::vector<float>& scratch,
                              absl::Span<float> out) const {
  if (!flip_ && padding_ == 0) return ReadPlain(dataset, i, out);
  const uint64_t step = static_cast<uint64_t>(draw.step);
  const uint32_t position = static_cast<uint32_t>(draw.position);
  RngSequence crop(draw.seed, "data.random_crop", step, position);
  RngSequence mirror(draw.seed, "data.random_flip", step, position);
  const int64_t places = 2 * padding_ + 1;
  const int64_t top = static_cast<int64_t>(crop.NextBelow(static_cast<uint64_t>(places))) - padding_;
  const int64_t left = static_cast<int64_t>(crop.NextBelow(static_cast<uint64_t>(places))) - padding_;
  const bool flip = flip_ && (mirror.NextWord() >> 31) != 0;

  scratch.resize(static_cast<size_t>(info_.input_elements()));
  dataset.ReadInput(i, absl::MakeSpan(scratch));
  const int64_t height = info_.input_shape[0], width = info_.input_shape[1], channels = info_.input_shape[2];
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const int64_t from_y = y + top, from_x = (flip ? width - 1 - x : x) + left;
      const bool inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
      float* to = out.data() + (y * width + x) * channels;
      if (inside) {
        std::copy_n(scratch.data() + (from_y * width + from_x) * channels, channels, to);
      } else {
        std::fill_n(to, channels, 0.0f);
      }
    }
  }
  Normalize(out);
}

}  // namespace ampd::data
