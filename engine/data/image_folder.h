// `image_folder`: one folder a class, holding JPEG and PNG files.
#ifndef AMPD_ENGINE_DATA_IMAGE_FOLDER_H_
#define AMPD_ENGINE_DATA_IMAGE_FOLDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"
#include "engine/data/dataset.h"
#include "engine/data/sample_cache.h"

namespace ampd::data {

// The files of a folder, by class and then by name.
struct ImageFiles {
  struct Entry {
    int32_t label = 0;
    std::string name;
  };
  // Of the class folders, by label.
  std::vector<std::string> classes;
  std::vector<Entry> entries;
};

// Lists the folder; opens no file. Every entry of a class folder counts as a sample, but for those whose names start
// with a dot; what turns out to be no image is a damaged sample. Errors as OpenBeneath; INVALID_ARGUMENT for a class
// that is listed twice; NOT_FOUND when there are no classes, or a class has no files; DATA_LOSS when a class folder
// holds a folder.
absl::StatusOr<ImageFiles> ListImageFolder(const v1::ImageFolderDataset& spec, absl::Span<const std::string> roots);

// Of data.train or data.eval, which is an image_folder. Nothing is decoded before it is read. Samples are by class and
// then by name, with a `limit` the first ones of each class (class_shares.h). INVALID_ARGUMENT without data.image.size.
// `cache` may be nullptr.
absl::StatusOr<std::unique_ptr<Dataset>> OpenImageFolder(const v1::DataSpec& data, bool is_eval,
                                                         absl::Span<const std::string> roots,
                                                         std::shared_ptr<SampleCache> cache);
absl::StatusOr<DatasetInfo> DescribeImageFolder(const v1::DataSpec& data, bool is_eval,
                                                absl::Span<const std::string> roots);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_IMAGE_FOLDER_H_
