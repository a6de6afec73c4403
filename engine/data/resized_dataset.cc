#include "engine/data/resized_dataset.h"

#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/data/channels_first.h"
#include "engine/data/resize.h"

namespace ampd::data {
namespace {

class ResizedDataset : public Dataset {
 public:
  ResizedDataset(DatasetInfo info, std::unique_ptr<Dataset> source, const v1::ImageTransform& spec, bool random_window)
      : Dataset(std::move(info)), source_(std::move(source)), spec_(spec), random_window_(random_window) {}

  void ReadInput(int64_t i, absl::Span<float> out) const override { Read(i, nullptr, out); }

  absl::Status ReadSample(int64_t i, const Draw* draw, absl::Span<float> out) const override {
    AMPD_RETURN_IF_ERROR(CheckFinite(i));
    Read(i, draw, out);
    return absl::OkStatus();
  }

  int32_t ReadLabel(int64_t i) const override { return source_->ReadLabel(i); }
  void ReadLabels(int64_t i, absl::Span<int32_t> out) const override { source_->ReadLabels(i, out); }
  void ReadTarget(int64_t i, absl::Span<float> out) const override { source_->ReadTarget(i, out); }
  absl::Status CheckFinite(int64_t i) const override { return source_->CheckFinite(i); }
  std::string SampleName(int64_t i) const override { return source_->SampleName(i); }

 private:
  void Read(int64_t i, const Draw* draw, absl::Span<float> out) const {
    const Shape& shape = source_->info().input_shape;
    std::vector<float> values(static_cast<size_t>(source_->info().input_elements()));
    source_->ReadInput(i, absl::MakeSpan(values));
    const bool random = random_window_ && draw != nullptr;
    const ResizeWindow window =
        random ? RandomWindow(spec_, shape[0], shape[1], *draw) : PlainWindow(spec_, shape[0], shape[1]);
    if (!info().byte_inputs) return Resize(absl::MakeConstSpan(values), shape[1], shape[2], window, spec_.size(), out);
    const std::vector<uint8_t> bytes(values.begin(), values.end());
    Resize(absl::MakeConstSpan(bytes), shape[1], shape[2], window, spec_.size(), out);
  }

  const std::unique_ptr<Dataset> source_;
  const v1::ImageTransform spec_;
  const bool random_window_;
};

absl::Status Refuse(absl::string_view field, absl::string_view why, const DatasetInfo& info) {
  return absl::InvalidArgumentError(absl::StrCat("data.image.", field, ": ", why, "; samples of ", info.name, " are ",
                                                 ShapeString(info.input_shape)));
}

}  // namespace

absl::StatusOr<DatasetInfo> ResizedInfo(const v1::ImageTransform& spec, DatasetInfo info) {
  if (!info.is_image()) return Refuse("size", "is for images", info);
  AMPD_RETURN_IF_ERROR(CheckChannelsLast(info, "data.image.size"));
  if (info.targets_in_space) return Refuse("size", "the targets would not be resized with the images", info);
  if (spec.has_channels() && spec.channels() != info.input_shape[2]) {
    return Refuse("channels", "image_folder alone changes them", info);
  }
  info.input_shape[0] = spec.size();
  info.input_shape[1] = spec.size();
  info.decodes = true;
  return info;
}

absl::StatusOr<std::unique_ptr<Dataset>> MakeResizedDataset(std::unique_ptr<Dataset> dataset,
                                                            const v1::ImageTransform& spec, bool is_eval) {
  AMPD_ASSIGN_OR_RETURN(DatasetInfo info, ResizedInfo(spec, dataset->info()));
  const bool random_window = !is_eval && spec.has_random_resized_crop();
  info.windowed = random_window;
  return std::make_unique<ResizedDataset>(std::move(info), std::move(dataset), spec, random_window);
}

}  // namespace ampd::data
