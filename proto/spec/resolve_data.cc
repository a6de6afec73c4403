#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/resolve_internal.h"

namespace ampd {
namespace {

constexpr size_t kMaxPathBytes = 4096;
constexpr size_t kMaxKeyBytes = 200;
constexpr int kMaxFiles = 10000;
constexpr int64_t kMaxSamples = int64_t{1} << 31;
constexpr int64_t kMaxCropPadding = 1024;
const char kSources[] = "one of idx, cifar10, npy, glyphs";

void CheckIdx(const std::string& path, const v1::IdxDataset& idx, Violations* violations) {
  violations->CheckText(absl::StrCat(path, ".images"), idx.images(), kMaxPathBytes);
  violations->CheckText(absl::StrCat(path, ".labels"), idx.labels(), kMaxPathBytes);
}

void CheckCifar10(const std::string& path, const v1::Cifar10Dataset& cifar, Violations* violations) {
  const std::string field = absl::StrCat(path, ".paths");
  if (cifar.paths().empty()) violations->Add(field, "required, at least one file");
  if (cifar.paths_size() > kMaxFiles) {
    return violations->Add(field, absl::StrCat("must be at most ", kMaxFiles, ", are ", cifar.paths_size()));
  }
  for (int i = 0; i < cifar.paths_size(); ++i) {
    violations->CheckText(Indexed(field, i), cifar.paths(i), kMaxPathBytes);
  }
}

void ResolveNpy(const std::string& path, v1::NpyDataset* npy, Violations* violations) {
  violations->CheckText(absl::StrCat(path, ".inputs"), npy->inputs(), kMaxPathBytes);
  if (npy->targets().empty()) {
    if (absl::EndsWithIgnoreCase(npy->inputs(), ".npz")) {
      npy->set_targets(npy->inputs());
    } else {
      violations->Add(absl::StrCat(path, ".targets"), "required unless inputs is an .npz");
    }
  } else {
    violations->CheckText(absl::StrCat(path, ".targets"), npy->targets(), kMaxPathBytes);
  }
  if (npy->inputs_key().empty()) npy->set_inputs_key("x");
  if (npy->targets_key().empty()) npy->set_targets_key("y");
  violations->CheckText(absl::StrCat(path, ".inputs_key"), npy->inputs_key(), kMaxKeyBytes);
  violations->CheckText(absl::StrCat(path, ".targets_key"), npy->targets_key(), kMaxKeyBytes);
}

void ResolveGlyphs(const std::string& path, uint64_t seed, v1::GlyphsDataset* glyphs, Violations* violations) {
  if (!glyphs->has_samples()) glyphs->set_samples(10000);
  if (!glyphs->has_seed()) glyphs->set_seed(seed);
  violations->CheckInteger(absl::StrCat(path, ".samples"), glyphs->samples(), 1, kMaxSamples);
}

void ResolveDataset(const std::string& path, uint64_t glyphs_seed, v1::DatasetSpec* dataset, Violations* violations) {
  violations->CheckInteger(absl::StrCat(path, ".limit"), dataset->limit(), 0, kMaxSamples);
  switch (dataset->source_case()) {
    case v1::DatasetSpec::kIdx:
      return CheckIdx(absl::StrCat(path, ".idx"), dataset->idx(), violations);
    case v1::DatasetSpec::kCifar10:
      return CheckCifar10(absl::StrCat(path, ".cifar10"), dataset->cifar10(), violations);
    case v1::DatasetSpec::kNpy:
      return ResolveNpy(absl::StrCat(path, ".npy"), dataset->mutable_npy(), violations);
    case v1::DatasetSpec::kGlyphs:
      return ResolveGlyphs(absl::StrCat(path, ".glyphs"), glyphs_seed, dataset->mutable_glyphs(), violations);
    case v1::DatasetSpec::kImageFolder:
      return violations->AddUnsupported(absl::StrCat(path, ".image_folder"));
    case v1::DatasetSpec::SOURCE_NOT_SET:
      return violations->Add(path, absl::StrCat("needs a source, ", kSources));
  }
}

}  // namespace

void ResolveData(v1::DataSpec* data, Violations* violations) {
  if (data->has_train()) {
    ResolveDataset("data.train", 1, data->mutable_train(), violations);
  } else {
    violations->Add("data.train", absl::StrCat("required, ", kSources));
  }
  if (data->has_eval()) ResolveDataset("data.eval", 2, data->mutable_eval(), violations);
  if (!data->has_shuffle()) data->set_shuffle(true);
  // `normalize` stays as it is: its default depends on the type of the samples, which is known once they are read.
  v1::ImageTransform* image = data->mutable_image();
  if (image->size() != 0) violations->AddUnsupported("data.image.size");
  violations->CheckInteger("data.image.random_crop_padding", image->random_crop_padding(), 0, kMaxCropPadding);
}

}  // namespace ampd
