#include <algorithm>
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
constexpr int kMaxBuckets = 64;
constexpr int64_t kMaxLength = 1 << 20;
constexpr int64_t kMaxStride = int64_t{1} << 40;
constexpr int64_t kMaxVocabulary = 1 << 16;
const char kSources[] =
    "one of idx, cifar10, npy, glyphs, image_folder, quickdraw, csv, text, tokens, safetensors, wav_folder";

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

// `file` and `key` are empty where the dataset has no such lengths.
void ResolveLengths(const std::string& path, const std::string& name, const v1::NpyDataset& npy, std::string* file,
                    std::string* key, Violations* violations) {
  if (file->empty() && key->empty()) return;
  if (file->empty()) {
    if (absl::EndsWithIgnoreCase(npy.inputs(), ".npz")) {
      *file = npy.inputs();
    } else {
      return violations->Add(absl::StrCat(path, ".", name),
                             absl::StrCat("required with ", name, "_key unless inputs is an .npz"));
    }
  }
  if (key->empty()) *key = name;
  violations->CheckText(absl::StrCat(path, ".", name), *file, kMaxPathBytes);
  violations->CheckText(absl::StrCat(path, ".", name, "_key"), *key, kMaxKeyBytes);
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
  ResolveLengths(path, "lengths", *npy, npy->mutable_lengths(), npy->mutable_lengths_key(), violations);
  ResolveLengths(path, "target_lengths", *npy, npy->mutable_target_lengths(), npy->mutable_target_lengths_key(),
                 violations);
}

void CheckNames(const std::string& field, const google::protobuf::RepeatedPtrField<std::string>& names,
                Violations* violations) {
  if (names.size() > kMaxFiles) {
    return violations->Add(field, absl::StrCat("must be at most ", kMaxFiles, ", are ", names.size()));
  }
  for (int i = 0; i < names.size() && !violations->full(); ++i) {
    violations->CheckText(Indexed(field, i), names[i], kMaxKeyBytes);
  }
}

void CheckQuickDraw(const std::string& path, const v1::QuickDrawDataset& quickdraw, Violations* violations) {
  violations->CheckText(absl::StrCat(path, ".path"), quickdraw.path(), kMaxPathBytes);
  CheckNames(absl::StrCat(path, ".classes"), quickdraw.classes(), violations);
  violations->CheckInteger(absl::StrCat(path, ".skip_per_class"), quickdraw.skip_per_class(), 0, kMaxSamples);
  violations->CheckInteger(absl::StrCat(path, ".samples_per_class"), quickdraw.samples_per_class(), 0, kMaxSamples);
}

void ResolveCsv(const std::string& path, v1::CsvDataset* csv, Violations* violations) {
  violations->CheckText(absl::StrCat(path, ".path"), csv->path(), kMaxPathBytes);
  CheckNames(absl::StrCat(path, ".inputs"), csv->inputs(), violations);
  CheckNames(absl::StrCat(path, ".targets"), csv->targets(), violations);
  if (csv->label().empty() == csv->targets().empty()) {
    violations->Add(path, "needs exactly one of label and targets");
  } else if (!csv->label().empty()) {
    violations->CheckText(absl::StrCat(path, ".label"), csv->label(), kMaxKeyBytes);
  }
  if (csv->delimiter().empty()) csv->set_delimiter(",");
  const std::string& delimiter = csv->delimiter();
  if (delimiter.size() != 1 || delimiter == "\"" || delimiter == "\n" || delimiter == "\r") {
    violations->Add(absl::StrCat(path, ".delimiter"), "must be one character of one byte, no quote and no line end");
  }
}

void ResolveSafetensors(const std::string& path, v1::SafetensorsDataset* tensors, Violations* violations) {
  violations->CheckText(absl::StrCat(path, ".path"), tensors->path(), kMaxPathBytes);
  if (tensors->targets_path().empty()) tensors->set_targets_path(tensors->path());
  if (tensors->inputs_key().empty()) tensors->set_inputs_key("x");
  if (tensors->targets_key().empty()) tensors->set_targets_key("y");
  if (!tensors->path().empty()) {
    violations->CheckText(absl::StrCat(path, ".targets_path"), tensors->targets_path(), kMaxPathBytes);
  }
  violations->CheckText(absl::StrCat(path, ".inputs_key"), tensors->inputs_key(), kMaxKeyBytes);
  violations->CheckText(absl::StrCat(path, ".targets_key"), tensors->targets_key(), kMaxKeyBytes);
}

void ResolveGlyphs(const std::string& path, uint64_t seed, v1::GlyphsDataset* glyphs, Violations* violations) {
  if (!glyphs->has_samples()) glyphs->set_samples(10000);
  if (!glyphs->has_seed()) glyphs->set_seed(seed);
  violations->CheckInteger(absl::StrCat(path, ".samples"), glyphs->samples(), 1, kMaxSamples);
}

// Of text and tokens.
template <typename Windows>
void ResolveWindows(const std::string& path, Windows* windows, Violations* violations) {
  violations->CheckText(absl::StrCat(path, ".path"), windows->path(), kMaxPathBytes);
  if (windows->sequence_length() == 0) {
    violations->Add(absl::StrCat(path, ".sequence_length"), "required, at least 1");
  } else {
    violations->CheckInteger(absl::StrCat(path, ".sequence_length"), windows->sequence_length(), 1, kMaxLength);
  }
  if (!windows->has_stride()) windows->set_stride(std::max<int64_t>(windows->sequence_length(), 1));
  violations->CheckInteger(absl::StrCat(path, ".stride"), windows->stride(), 1, kMaxStride);
  if (!windows->has_end()) windows->set_end(1);
  violations->CheckReal(absl::StrCat(path, ".begin"), windows->begin(), {.low = 0, .high = 1, .high_open = true});
  violations->CheckReal(absl::StrCat(path, ".end"), windows->end(), {.low = 0, .high = 1, .low_open = true});
  if (windows->begin() >= windows->end()) {
    violations->Add(absl::StrCat(path, ".end"),
                    absl::StrCat("must be above begin ", windows->begin(), ", is ", windows->end()));
  }
}

void ResolveTokens(const std::string& path, v1::TokensDataset* tokens, Violations* violations) {
  ResolveWindows(path, tokens, violations);
  if (tokens->vocabulary() == 0) return violations->Add(absl::StrCat(path, ".vocabulary"), "required, at least 1");
  violations->CheckInteger(absl::StrCat(path, ".vocabulary"), tokens->vocabulary(), 1, kMaxVocabulary);
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
      return CheckImageFolder(absl::StrCat(path, ".image_folder"), dataset->image_folder(), violations);
    case v1::DatasetSpec::kQuickdraw:
      return CheckQuickDraw(absl::StrCat(path, ".quickdraw"), dataset->quickdraw(), violations);
    case v1::DatasetSpec::kCsv:
      return ResolveCsv(absl::StrCat(path, ".csv"), dataset->mutable_csv(), violations);
    case v1::DatasetSpec::kSafetensors:
      return ResolveSafetensors(absl::StrCat(path, ".safetensors"), dataset->mutable_safetensors(), violations);
    case v1::DatasetSpec::kText:
      return ResolveWindows(absl::StrCat(path, ".text"), dataset->mutable_text(), violations);
    case v1::DatasetSpec::kTokens:
      return ResolveTokens(absl::StrCat(path, ".tokens"), dataset->mutable_tokens(), violations);
    case v1::DatasetSpec::kWavFolder:
      return ResolveWavFolder(absl::StrCat(path, ".wav_folder"), dataset->mutable_wav_folder(), violations);
    case v1::DatasetSpec::SOURCE_NOT_SET:
      return violations->Add(path, absl::StrCat("needs a source, ", kSources));
    default:
      return;
  }
}

bool HasLengths(const v1::DatasetSpec& dataset) {
  return dataset.has_wav_folder() || (dataset.has_npy() && !dataset.npy().lengths().empty());
}

// Batches of either set are padded to the same lengths.
void CheckLengths(const v1::DataSpec& data, Violations* violations) {
  const bool lengths = HasLengths(data.train());
  if (data.has_eval() && HasLengths(data.eval()) != lengths) {
    violations->Add("data.eval",
                    lengths ? "needs lengths, as data.train has them" : "has lengths, data.train has none");
  }
  if (data.length_buckets().empty()) return;
  const char field[] = "data.length_buckets";
  if (!lengths) violations->Add(field, "needs a dataset with lengths");
  if (data.length_buckets_size() > kMaxBuckets) {
    return violations->Add(field, absl::StrCat("must be at most ", kMaxBuckets, ", are ", data.length_buckets_size()));
  }
  int64_t before = 0;
  for (int i = 0; i < data.length_buckets_size(); ++i) {
    const int64_t length = data.length_buckets(i);
    violations->CheckInteger(Indexed(field, i), length, 8, kMaxLength);
    if (length % 8 != 0) violations->Add(Indexed(field, i), absl::StrCat("must be a multiple of 8, is ", length));
    if (length <= before) violations->Add(Indexed(field, i), "must be above the one before");
    before = length;
  }
}

bool IsText(const v1::DatasetSpec& dataset) { return dataset.has_text() || dataset.has_tokens(); }

}  // namespace

void ResolveData(v1::DataSpec* data, Violations* violations) {
  if (data->has_train()) {
    ResolveDataset("data.train", 1, data->mutable_train(), violations);
  } else {
    violations->Add("data.train", absl::StrCat("required, ", kSources));
  }
  if (data->has_eval()) ResolveDataset("data.eval", 2, data->mutable_eval(), violations);
  CheckLengths(*data, violations);
  CheckSameSpeech(*data, violations);
  if (!data->has_shuffle()) data->set_shuffle(true);
  ResolveImages(data, violations);
  ResolveDecoding(data, violations);
  if (data->image().normalize() > v1::ImageTransform::NONE && (IsText(data->train()) || IsText(data->eval()))) {
    violations->Add("data.image.normalize", "is for images and features; the numbers of text are names");
  }
}

}  // namespace ampd
