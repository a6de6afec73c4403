#include "engine/data/cifar10.h"

#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/data/byte_source.h"
#include "engine/data/memory_dataset.h"
#include "engine/data/path.h"

namespace ampd::data {
namespace {

constexpr int64_t kSide = 32;
constexpr int64_t kChannels = 3;
constexpr int64_t kPixels = kSide * kSide;
constexpr int64_t kRecord = 1 + kChannels * kPixels;
constexpr int64_t kClasses = 10;

struct Parts {
  std::vector<std::shared_ptr<const InputFile>> files;
  DatasetInfo info;
};

absl::StatusOr<Parts> OpenParts(const v1::Cifar10Dataset& spec, absl::Span<const std::string> roots) {
  if (spec.paths().empty()) return absl::InvalidArgumentError("cifar10.paths is empty; name one or more files");
  Parts parts;
  parts.info.name = spec.paths(0);
  parts.info.byte_inputs = true;
  parts.info.classes = kClasses;
  parts.info.input_shape = {kSide, kSide, kChannels};
  for (const std::string& path : spec.paths()) {
    AMPD_ASSIGN_OR_RETURN(auto file, OpenBeneath(path, roots));
    if (file->size() == 0 || file->size() % kRecord != 0) {
      return absl::DataLossError(absl::StrCat(path, ": not a CIFAR-10 binary file, or truncated: ", file->size(),
                                              " bytes, expected a multiple of ", kRecord));
    }
    parts.info.size += file->size() / kRecord;
    parts.files.push_back(std::move(file));
  }
  const uint64_t bytes = static_cast<uint64_t>(parts.info.size) * kRecord;
  const auto first = MakeFileSource(parts.files[0], 0, parts.files[0]->size(), spec.paths(0));
  AMPD_RETURN_IF_ERROR(CheckPlausibleSize(*first, 0, bytes));
  return parts;
}

absl::Status DecodeRecord(absl::Span<const uint8_t> record, const InputFile& file, int64_t index, Columns& columns) {
  if (record[0] >= kClasses) {
    return absl::DataLossError(absl::StrCat(file.name(), ": record ", index, " has label ", record[0],
                                            "; CIFAR-10 labels are 0 to ", kClasses - 1));
  }
  columns.labels.push_back(record[0]);
  const uint8_t* red = record.data() + 1;
  for (int64_t p = 0; p < kPixels; ++p) {
    for (int64_t c = 0; c < kChannels; ++c) columns.bytes.push_back(red[c * kPixels + p]);
  }
  return absl::OkStatus();
}

absl::Status DecodeFile(const InputFile& file, int64_t records, Columns& columns) {
  std::vector<uint8_t> record(kRecord);
  for (int64_t i = 0; i < records; ++i) {
    AMPD_RETURN_IF_ERROR(file.ReadAt(i * kRecord, absl::MakeSpan(record)));
    AMPD_RETURN_IF_ERROR(DecodeRecord(record, file, i, columns));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenCifar10(const v1::Cifar10Dataset& spec,
                                                     absl::Span<const std::string> roots, int64_t limit) {
  AMPD_ASSIGN_OR_RETURN(Parts parts, OpenParts(spec, roots));
  Columns columns;
  columns.info = std::move(parts.info);
  columns.bytes.reserve(static_cast<size_t>(columns.info.size * kChannels * kPixels));
  columns.labels.reserve(static_cast<size_t>(columns.info.size));
  for (const auto& file : parts.files) {
    AMPD_RETURN_IF_ERROR(DecodeFile(*file, file->size() / kRecord, columns));
  }
  return MakeMemoryDataset(std::move(columns), limit);
}

absl::StatusOr<DatasetInfo> DescribeCifar10(const v1::Cifar10Dataset& spec, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(Parts parts, OpenParts(spec, roots));
  return std::move(parts.info);
}

}  // namespace ampd::data
