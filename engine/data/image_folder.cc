#include "engine/data/image_folder.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "engine/data/class_shares.h"
#include "engine/data/image_file.h"
#include "engine/data/path.h"
#include "engine/data/resize.h"
#include "proto/spec/names.h"
#include "proto/spec/utf8.h"

namespace ampd::data {
namespace {

// Larger ones are refused; the largest photograph in compressed form is far below it.
constexpr int64_t kMaxFileBytes = int64_t{256} << 20;
constexpr double kMaxCorruptRatio = 0.01;

const v1::DatasetSpec& SourceOf(const v1::DataSpec& data, bool is_eval) { return is_eval ? data.eval() : data.train(); }

absl::StatusOr<std::vector<std::string>> ClassNames(const v1::ImageFolderDataset& spec,
                                                    absl::Span<const std::string> roots) {
  std::vector<std::string> names(spec.classes().begin(), spec.classes().end());
  const std::set<std::string> distinct(names.begin(), names.end());
  for (const std::string& name : names) {
    if (name.empty() || name == "." || absl::StrContains(name, '/')) {
      return absl::InvalidArgumentError(absl::StrCat("image_folder.classes: '", name, "' is no folder's name"));
    }
  }
  if (distinct.size() != names.size()) return absl::InvalidArgumentError("image_folder.classes: a class stands twice");
  if (!names.empty()) return names;
  AMPD_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, ListBeneath(spec.path(), roots));
  for (const FolderEntry& entry : entries) {
    if (!entry.is_folder) continue;
    if (ValidUtf8(entry.name) != entry.name) {
      return absl::DataLossError(absl::StrCat(spec.path(), ": the name of class folder ", Quoted(entry.name),
                                              " is no UTF-8, as a class's name must be: rename it"));
    }
    names.push_back(entry.name);
  }
  if (names.empty())
    return absl::NotFoundError(absl::StrCat(spec.path(), ": holds no folders, so there are no classes"));
  return names;
}

absl::Status AddClass(const std::string& folder, absl::Span<const std::string> roots, int32_t label,
                      ImageFiles& files) {
  AMPD_ASSIGN_OR_RETURN(std::vector<FolderEntry> entries, ListBeneath(folder, roots));
  if (entries.empty()) return absl::NotFoundError(absl::StrCat(folder, ": holds no files"));
  for (FolderEntry& entry : entries) {
    if (entry.is_folder) {
      return absl::DataLossError(
          absl::StrCat(folder, ": holds a folder, ", entry.name, "; a class folder holds image files alone"));
    }
    files.entries.push_back({label, std::move(entry.name)});
  }
  return absl::OkStatus();
}

absl::StatusOr<DatasetInfo> InfoOf(const v1::DataSpec& data, bool is_eval, const ImageFiles& files) {
  const v1::DatasetSpec& source = SourceOf(data, is_eval);
  if (data.image().size() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(source.image_folder().path(), ": images of a folder are resized; data.image.size is required"));
  }
  DatasetInfo info;
  info.name = source.image_folder().path();
  info.size = static_cast<int64_t>(files.entries.size());
  if (source.limit() > 0) info.size = std::min(info.size, source.limit());
  const int64_t channels = data.image().has_channels() ? data.image().channels() : 3;
  info.input_shape = {data.image().size(), data.image().size(), channels};
  info.byte_inputs = true;
  info.classes = static_cast<int64_t>(files.classes.size());
  info.class_names = files.classes;
  info.decodes = true;
  const double ratio = data.has_max_corrupt_ratio() ? data.max_corrupt_ratio() : kMaxCorruptRatio;
  const double allowed = std::min(1.0, std::max(0.0, ratio)) * static_cast<double>(info.size);
  // A set of damaged samples alone is of no use.
  info.max_damaged = std::min(static_cast<int64_t>(std::floor(allowed)), info.size - 1);
  info.windowed = !is_eval && data.image().has_random_resized_crop();
  // Of windowed ones whole images are kept, whose extents are in the files.
  info.cache_bytes = info.windowed ? -1 : info.size * (info.input_elements() + SampleCache::kOverhead);
  return info;
}

void Limit(int64_t limit, ImageFiles& files) {
  const auto class_of = [](const ImageFiles::Entry& entry) { return entry.label; };
  std::vector<int64_t> sizes(files.classes.size(), 0);
  for (const ImageFiles::Entry& entry : files.entries) ++sizes[static_cast<size_t>(class_of(entry))];
  KeepShares(SharesInTurn(sizes, limit), class_of, files.entries);
}

class ImageFolder : public Dataset {
 public:
  ImageFolder(DatasetInfo info, const v1::ImageTransform& spec, bool random_window, ImageFiles files,
              absl::Span<const std::string> roots, std::shared_ptr<SampleCache> cache)
      : Dataset(std::move(info)),
        spec_(spec),
        random_window_(random_window),
        files_(std::move(files)),
        roots_(roots.begin(), roots.end()),
        cache_(std::move(cache)),
        first_place_(cache_ == nullptr ? 0 : cache_->AddPlaces(size())) {}

  void ReadInput(int64_t i, absl::Span<float> out) const override {
    if (!ReadSample(i, nullptr, out).ok()) std::fill(out.begin(), out.end(), 0.0f);
  }

  absl::Status ReadSample(int64_t i, const Draw* draw, absl::Span<float> out) const override {
    const absl::Status status = random_window_ ? ReadWindow(i, draw, out) : ReadResized(i, out);
    return status.ok() ? status : Annotate(status, SampleName(i));
  }

  int32_t ReadLabel(int64_t i) const override { return files_.entries[static_cast<size_t>(i)].label; }
  void ReadTarget(int64_t, absl::Span<float> out) const override { std::fill(out.begin(), out.end(), 0.0f); }
  absl::Status CheckFinite(int64_t) const override { return absl::OkStatus(); }

  std::string SampleName(int64_t i) const override {
    const ImageFiles::Entry& entry = files_.entries[static_cast<size_t>(i)];
    return absl::StrCat(info().name, "/", files_.classes[static_cast<size_t>(entry.label)], "/", entry.name);
  }

 private:
  // A whole image is kept, of which each step takes another part.
  absl::Status ReadWindow(int64_t i, const Draw* draw, absl::Span<float> out) const {
    std::shared_ptr<const Image> image = Kept(i);
    if (image == nullptr) {
      AMPD_ASSIGN_OR_RETURN(Image decoded, Decode(i));
      image = std::make_shared<const Image>(decoded);
      Keep(i, std::move(decoded));
    }
    ResizeTo(*image,
             draw == nullptr ? PlainWindow(spec_, image->height, image->width)
                             : RandomWindow(spec_, image->height, image->width, *draw),
             out);
    return absl::OkStatus();
  }

  absl::Status ReadResized(int64_t i, absl::Span<float> out) const {
    if (const std::shared_ptr<const Image> image = Kept(i); image != nullptr) {
      std::copy(image->pixels.begin(), image->pixels.end(), out.begin());
      return absl::OkStatus();
    }
    AMPD_ASSIGN_OR_RETURN(const Image image, Decode(i));
    ResizeTo(image, PlainWindow(spec_, image.height, image.width), out);
    if (cache_ == nullptr) return absl::OkStatus();
    Image resized = {spec_.size(), spec_.size(), image.channels, std::vector<uint8_t>(out.size())};
    std::transform(out.begin(), out.end(), resized.pixels.begin(), [](float v) { return static_cast<uint8_t>(v); });
    Keep(i, std::move(resized));
    return absl::OkStatus();
  }

  void ResizeTo(const Image& image, const ResizeWindow& window, absl::Span<float> out) const {
    Resize(absl::MakeConstSpan(image.pixels), image.width, image.channels, window, spec_.size(), out);
  }

  // Whatever is wrong with a file is damage, but not a lack of memory.
  absl::StatusOr<Image> Decode(int64_t i) const {
    try {
      absl::StatusOr<Image> image = DecodeFile(i);
      if (image.ok()) return WithChannels(*std::move(image), info().input_shape[2]);
      if (absl::IsResourceExhausted(image.status())) return image;
      absl::string_view reason = image.status().message();
      absl::ConsumePrefix(&reason, absl::StrCat(SampleName(i), ": "));
      return absl::DataLossError(reason);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("no memory left to decode it");
    }
  }

  absl::StatusOr<Image> DecodeFile(int64_t i) const {
    AMPD_ASSIGN_OR_RETURN(const std::shared_ptr<const InputFile> file, OpenBeneath(SampleName(i), roots_));
    if (file->size() > kMaxFileBytes) {
      return absl::DataLossError(
          absl::StrCat("a file of ", file->size(), " bytes; at most ", kMaxFileBytes, " are read"));
    }
    std::vector<uint8_t> bytes(static_cast<size_t>(file->size()));
    AMPD_RETURN_IF_ERROR(file->ReadAt(0, absl::MakeSpan(bytes)));
    return DecodeImage(bytes);
  }

  std::shared_ptr<const Image> Kept(int64_t i) const {
    return cache_ == nullptr ? nullptr : cache_->Get(first_place_ + i);
  }
  void Keep(int64_t i, Image image) const {
    if (cache_ != nullptr) cache_->Put(first_place_ + i, std::move(image));
  }

  const v1::ImageTransform spec_;
  const bool random_window_;
  const ImageFiles files_;
  const std::vector<std::string> roots_;
  const std::shared_ptr<SampleCache> cache_;
  const int64_t first_place_;
};

}  // namespace

absl::StatusOr<ImageFiles> ListImageFolder(const v1::ImageFolderDataset& spec, absl::Span<const std::string> roots) {
  ImageFiles files;
  AMPD_ASSIGN_OR_RETURN(files.classes, ClassNames(spec, roots));
  if (static_cast<int64_t>(files.classes.size()) > kMaxClasses) {
    return absl::DataLossError(
        absl::StrCat(spec.path(), ": ", files.classes.size(), " classes; at most ", kMaxClasses, " can be"));
  }
  for (size_t c = 0; c < files.classes.size(); ++c) {
    AMPD_RETURN_IF_ERROR(
        AddClass(absl::StrCat(spec.path(), "/", files.classes[c]), roots, static_cast<int32_t>(c), files));
  }
  return files;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenImageFolder(const v1::DataSpec& data, bool is_eval,
                                                         absl::Span<const std::string> roots,
                                                         std::shared_ptr<SampleCache> cache) {
  AMPD_ASSIGN_OR_RETURN(ImageFiles files, ListImageFolder(SourceOf(data, is_eval).image_folder(), roots));
  AMPD_ASSIGN_OR_RETURN(DatasetInfo info, InfoOf(data, is_eval, files));
  Limit(SourceOf(data, is_eval).limit(), files);
  const bool random_window = info.windowed;
  return std::make_unique<ImageFolder>(std::move(info), data.image(), random_window, std::move(files), roots,
                                       std::move(cache));
}

absl::StatusOr<DatasetInfo> DescribeImageFolder(const v1::DataSpec& data, bool is_eval,
                                                absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(const ImageFiles files, ListImageFolder(SourceOf(data, is_eval).image_folder(), roots));
  return InfoOf(data, is_eval, files);
}

}  // namespace ampd::data
