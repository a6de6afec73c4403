#include "engine/data/dataset.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "engine/data/cifar10.h"
#include "engine/data/csv.h"
#include "engine/data/glyphs.h"
#include "engine/data/idx.h"
#include "engine/data/image_folder.h"
#include "engine/data/memory_dataset.h"
#include "engine/data/npy_dataset.h"
#include "engine/data/quickdraw.h"
#include "engine/data/resized_dataset.h"
#include "engine/data/safetensors_dataset.h"
#include "engine/data/sample_cache.h"
#include "engine/data/text.h"
#include "engine/data/wav_folder.h"

namespace ampd::data {
namespace {

absl::Status UnsupportedSource(const v1::DatasetSpec& spec) {
  if (spec.has_image_folder()) return absl::InvalidArgumentError("image_folder: its images need the job's data.image");
  const auto* source = v1::DatasetSpec::descriptor()->FindFieldByNumber(spec.source_case());
  if (source != nullptr) {
    return absl::UnimplementedError(absl::StrCat(source->name(), " datasets are not supported yet"));
  }
  return absl::InvalidArgumentError(
      "a dataset needs a source: one of idx, cifar10, npy, glyphs, image_folder, quickdraw, csv, text, tokens, "
      "safetensors, wav_folder");
}

absl::StatusOr<std::unique_ptr<Dataset>> Open(const v1::DatasetSpec& spec, absl::Span<const std::string> roots,
                                              bool is_eval) {
  switch (spec.source_case()) {
    case v1::DatasetSpec::kIdx:
      return OpenIdx(spec.idx(), roots, spec.limit());
    case v1::DatasetSpec::kCifar10:
      return OpenCifar10(spec.cifar10(), roots, spec.limit());
    case v1::DatasetSpec::kNpy:
      return OpenNpy(spec.npy(), roots, spec.limit());
    case v1::DatasetSpec::kGlyphs:
      return OpenGlyphs(spec.glyphs(), is_eval, spec.limit());
    case v1::DatasetSpec::kQuickdraw:
      return OpenQuickDraw(spec.quickdraw(), roots, spec.limit());
    case v1::DatasetSpec::kCsv:
      return OpenCsv(spec.csv(), roots, spec.limit());
    case v1::DatasetSpec::kSafetensors:
      return OpenSafetensors(spec.safetensors(), roots, spec.limit());
    case v1::DatasetSpec::kText:
      return OpenText(spec.text(), roots, spec.limit());
    case v1::DatasetSpec::kWavFolder:
      return OpenWavFolder(spec.wav_folder(), roots, spec.limit(), 0, nullptr);
    case v1::DatasetSpec::kTokens:
      return OpenTokens(spec.tokens(), roots, spec.limit());
    default:
      return UnsupportedSource(spec);
  }
}

absl::StatusOr<DatasetInfo> Describe(const v1::DatasetSpec& spec, absl::Span<const std::string> roots, bool is_eval) {
  switch (spec.source_case()) {
    case v1::DatasetSpec::kIdx:
      return DescribeIdx(spec.idx(), roots);
    case v1::DatasetSpec::kCifar10:
      return DescribeCifar10(spec.cifar10(), roots);
    case v1::DatasetSpec::kNpy:
      return DescribeNpy(spec.npy(), roots);
    case v1::DatasetSpec::kGlyphs:
      return DescribeGlyphs(spec.glyphs(), is_eval, spec.limit());
    case v1::DatasetSpec::kQuickdraw:
      return DescribeQuickDraw(spec.quickdraw(), roots);
    case v1::DatasetSpec::kCsv:
      return DescribeCsv(spec.csv(), roots);
    case v1::DatasetSpec::kSafetensors:
      return DescribeSafetensors(spec.safetensors(), roots);
    case v1::DatasetSpec::kText:
      return DescribeText(spec.text(), roots);
    case v1::DatasetSpec::kWavFolder:
      return DescribeWavFolder(spec.wav_folder(), roots, spec.limit(), 0);
    case v1::DatasetSpec::kTokens:
      return DescribeTokens(spec.tokens(), roots);
    default:
      return UnsupportedSource(spec);
  }
}

// Whether MakeMemoryDataset makes it.
bool IsColumns(const v1::DatasetSpec& spec) {
  return spec.has_idx() || spec.has_cifar10() || spec.has_npy() || spec.has_quickdraw() || spec.has_csv() ||
         spec.has_safetensors();
}

absl::Status CheckLimit(const v1::DatasetSpec& spec) {
  if (spec.limit() >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("limit is ", spec.limit(), "; it must be >= 0"));
}

double MaxCorruptRatio(const v1::DataSpec& data) {
  return data.has_max_corrupt_ratio() ? data.max_corrupt_ratio() : 0.01;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenSounds(const v1::DataSpec& data, const v1::DatasetSpec& spec,
                                                    absl::Span<const std::string> roots,
                                                    std::shared_ptr<SampleCache> cache) {
  AMPD_RETURN_IF_ERROR(CheckLimit(spec));
  try {
    return OpenWavFolder(spec.wav_folder(), roots, spec.limit(), MaxCorruptRatio(data), std::move(cache));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory left while reading sounds");
  }
}

}  // namespace

absl::Status Dataset::ReadSample(int64_t i, const Draw*, absl::Span<float> out) const {
  AMPD_RETURN_IF_ERROR(CheckFinite(i));
  ReadInput(i, out);
  return absl::OkStatus();
}

absl::Status Dataset::NoteDamage(int64_t i, const absl::Status& status) const {
  if (info_.max_damaged < 0 || !absl::IsDataLoss(status)) return status;
  const std::string file = SampleName(i);
  absl::string_view reason = status.message();
  if (absl::ConsumePrefix(&reason, file)) absl::ConsumePrefix(&reason, ": ");
  const int64_t found = damage_.Add({i, file, std::string(reason)});
  if (found <= info_.max_damaged) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(info_.name, ": ", found, " of ", info_.size,
                                          " samples are damaged, of which data.max_corrupt_ratio allows ",
                                          info_.max_damaged, "; the last found is ", status.message()));
}

void Dataset::ReadLabels(int64_t, absl::Span<int32_t> out) const { std::fill(out.begin(), out.end(), -1); }

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DatasetSpec& spec,
                                                     absl::Span<const std::string> data_roots, bool is_eval) {
  AMPD_RETURN_IF_ERROR(CheckLimit(spec));
  // The sizes were checked against the machine's memory, but a process may be allowed less than that.
  try {
    return Open(spec, data_roots, is_eval);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory left while reading a dataset");
  }
}

absl::StatusOr<DatasetInfo> DescribeDataset(const v1::DatasetSpec& spec, absl::Span<const std::string> data_roots,
                                            bool is_eval) {
  AMPD_RETURN_IF_ERROR(CheckLimit(spec));
  try {
    AMPD_ASSIGN_OR_RETURN(DatasetInfo info, Describe(spec, data_roots, is_eval));
    if (spec.limit() > 0 && spec.limit() < info.size) {
      info.size = spec.limit();
      Shorten(info.lengths, info.size);
      Shorten(info.label_lengths, info.size);
    }
    if (IsColumns(spec)) info.held_bytes = ColumnBytes(info);
    return info;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory left while reading a dataset's header");
  }
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::DataSpec& data, absl::Span<const std::string> data_roots,
                                                     bool is_eval, std::shared_ptr<SampleCache> cache) {
  const v1::DatasetSpec& spec = is_eval ? data.eval() : data.train();
  if (spec.has_image_folder()) {
    AMPD_RETURN_IF_ERROR(CheckLimit(spec));
    return OpenImageFolder(data, is_eval, data_roots, std::move(cache));
  }
  if (spec.has_wav_folder()) return OpenSounds(data, spec, data_roots, std::move(cache));
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<Dataset> dataset, OpenDataset(spec, data_roots, is_eval));
  if (data.image().size() == 0) return dataset;
  return MakeResizedDataset(std::move(dataset), data.image(), is_eval);
}

absl::StatusOr<DatasetInfo> DescribeDataset(const v1::DataSpec& data, absl::Span<const std::string> data_roots,
                                            bool is_eval) {
  const v1::DatasetSpec& spec = is_eval ? data.eval() : data.train();
  if (spec.has_image_folder()) {
    AMPD_RETURN_IF_ERROR(CheckLimit(spec));
    return DescribeImageFolder(data, is_eval, data_roots);
  }
  if (spec.has_wav_folder()) {
    AMPD_RETURN_IF_ERROR(CheckLimit(spec));
    return DescribeWavFolder(spec.wav_folder(), data_roots, spec.limit(), MaxCorruptRatio(data));
  }
  AMPD_ASSIGN_OR_RETURN(DatasetInfo info, DescribeDataset(spec, data_roots, is_eval));
  if (data.image().size() == 0) return info;
  return ResizedInfo(data.image(), std::move(info));
}

absl::Status CheckFills(const DatasetInfo& train, int64_t batch_size) {
  if (train.size >= batch_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the training set ", train.name, " holds ", train.size,
                                                 " samples, fewer than the batch size ", batch_size));
}

int64_t HostBytes(const v1::DataSpec& data, const DatasetInfo& train, const DatasetInfo* eval,
                  const std::string& kernel_root) {
  int64_t held = 0, cached = 0;
  bool known = true;
  for (const DatasetInfo* info : {&train, eval}) {
    if (info == nullptr) continue;
    held += info->held_bytes;
    cached += info->cache_bytes;
    known = known && info->cache_bytes >= 0;
  }
  if (!data.has_cache()) return held;
  const int64_t most =
      std::min(SampleCache::MemoryBound(data.cache(), kernel_root), std::numeric_limits<int64_t>::max() - held);
  return held + (known ? std::min(cached, most) : most);
}

}  // namespace ampd::data
