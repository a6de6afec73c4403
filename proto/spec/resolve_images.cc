#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/spec/resolve_internal.h"

namespace ampd {
namespace {

constexpr size_t kMaxPathBytes = 4096;
constexpr size_t kMaxNameBytes = 255;
constexpr int kMaxClasses = 1 << 20;
constexpr int64_t kMaxCropPadding = 1024;
constexpr int64_t kMaxSide = 8192;
constexpr double kMaxRatio = 100;

bool HasImageFolder(const v1::DataSpec& data) {
  return data.train().has_image_folder() || data.eval().has_image_folder();
}

void ResolveRandomResizedCrop(v1::RandomResizedCrop* crop, Violations* violations) {
  if (!crop->has_min_area()) crop->set_min_area(0.08);
  if (!crop->has_max_area()) crop->set_max_area(1);
  if (!crop->has_min_ratio()) crop->set_min_ratio(3.0 / 4);
  if (!crop->has_max_ratio()) crop->set_max_ratio(4.0 / 3);
  const std::string field = "data.image.random_resized_crop.";
  violations->CheckReal(field + "min_area", crop->min_area(), {.low = 0, .high = 1, .low_open = true});
  violations->CheckReal(field + "max_area", crop->max_area(), {.low = crop->min_area(), .high = 1});
  violations->CheckReal(field + "min_ratio", crop->min_ratio(), {.low = 1 / kMaxRatio, .high = kMaxRatio});
  violations->CheckReal(field + "max_ratio", crop->max_ratio(), {.low = crop->min_ratio(), .high = kMaxRatio});
}

}  // namespace

void CheckImageFolder(const std::string& path, const v1::ImageFolderDataset& folder, Violations* violations) {
  violations->CheckText(absl::StrCat(path, ".path"), folder.path(), kMaxPathBytes);
  const std::string field = absl::StrCat(path, ".classes");
  if (folder.classes_size() > kMaxClasses) {
    return violations->Add(field, absl::StrCat("must be at most ", kMaxClasses, ", are ", folder.classes_size()));
  }
  for (int i = 0; i < folder.classes_size() && !violations->full(); ++i) {
    violations->CheckText(Indexed(field, i), folder.classes(i), kMaxNameBytes);
  }
}

void ResolveImages(v1::DataSpec* data, Violations* violations) {
  // `normalize` stays as it is: its default depends on the type of the samples, which is known once they are read.
  v1::ImageTransform* image = data->mutable_image();
  violations->CheckInteger("data.image.random_crop_padding", image->random_crop_padding(), 0, kMaxCropPadding);
  violations->CheckInteger("data.image.size", image->size(), 0, kMaxSide);
  const bool folder = HasImageFolder(*data);
  if (image->size() == 0) {
    if (folder) violations->Add("data.image.size", "required for image_folder");
    if (image->resize() != v1::ImageTransform::RESIZE_UNSPECIFIED) violations->Add("data.image.resize", "needs size");
    if (image->has_random_resized_crop()) violations->Add("data.image.random_resized_crop", "needs size");
  } else if (image->resize() == v1::ImageTransform::RESIZE_UNSPECIFIED) {
    image->set_resize(v1::ImageTransform::CENTER_CROP);
  }
  if (image->has_random_resized_crop()) ResolveRandomResizedCrop(image->mutable_random_resized_crop(), violations);
  if (folder && !image->has_channels()) image->set_channels(3);
  if (!image->has_channels()) return;
  if (!folder) violations->Add("data.image.channels", "is for image_folder");
  if (image->channels() != 1 && image->channels() != 3) {
    violations->Add("data.image.channels", absl::StrCat("must be 1 or 3, is ", image->channels()));
  }
}

void ResolveDecoding(v1::DataSpec* data, Violations* violations) {
  const bool decoded = HasImageFolder(*data) || data->train().has_wav_folder() || data->eval().has_wav_folder();
  if (decoded && !data->has_max_corrupt_ratio()) data->set_max_corrupt_ratio(0.01);
  if (decoded && data->cache().kind() == v1::CacheSpec::KIND_UNSPECIFIED) {
    data->mutable_cache()->set_kind(v1::CacheSpec::MEMORY);
  }
  violations->CheckReal("data.max_corrupt_ratio", data->max_corrupt_ratio(), {.low = 0, .high = 1});
  if (data->has_decode_threads()) violations->CheckInteger("data.decode_threads", data->decode_threads(), 1, 256);
  violations->CheckInteger("data.cache.max_bytes", data->cache().max_bytes(), 0, INT64_MAX);
  violations->CheckInteger("data.device_cache.max_bytes", data->device_cache().max_bytes(), 0, int64_t{1} << 50);
  const char why[] = "is for sources whose samples are decoded one by one: image_folder, wav_folder";
  if (!decoded && data->has_cache()) violations->Add("data.cache", why);
  if (!decoded && data->has_max_corrupt_ratio()) violations->Add("data.max_corrupt_ratio", why);
}

}  // namespace ampd
