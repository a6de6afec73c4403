#include "engine/data/idx.h"

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/core/status.h"
#include "engine/data/byte_source.h"
#include "engine/data/memory_dataset.h"
#include "engine/data/path.h"

namespace ampd::data {
namespace {

constexpr uint8_t kUnsignedByte = 8;

// An IDX file read up to its values.
struct IdxFile {
  std::unique_ptr<ByteSource> source;
  Shape shape;
  uint64_t elements = 0;
};

struct Parts {
  IdxFile images;
  DatasetInfo info;
  std::vector<int32_t> labels;
};

uint32_t BigEndian(absl::Span<const uint8_t> b) {
  return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | uint32_t{b[3]};
}

absl::Status CheckMagic(absl::string_view name, absl::Span<const uint8_t> magic, int min_rank, int max_rank,
                        absl::string_view what) {
  if (magic[0] == 0 && magic[1] == 0 && magic[2] == kUnsignedByte && magic[3] >= min_rank && magic[3] <= max_rank) {
    return absl::OkStatus();
  }
  const uint32_t found = BigEndian(magic);
  const char* hint = found == 0x00000801 ? " (a file of labels)" : found == 0x00000803 ? " (a file of images)" : "";
  return absl::DataLossError(absl::StrFormat("%s: not an IDX file of %s: starts with 0x%08x%s where 0x%08x is expected",
                                             name, what, found, hint, 0x800 + min_rank));
}

absl::StatusOr<IdxFile> OpenFile(const std::string& path, absl::Span<const std::string> roots, int min_rank,
                                 int max_rank, absl::string_view what) {
  AMPD_ASSIGN_OR_RETURN(auto file, OpenBeneath(path, roots));
  IdxFile idx;
  AMPD_ASSIGN_OR_RETURN(idx.source, OpenMaybeGzip(std::move(file)));
  std::array<uint8_t, 4> word = {};
  AMPD_RETURN_IF_ERROR(ReadExactly(*idx.source, absl::MakeSpan(word), "the IDX header"));
  AMPD_RETURN_IF_ERROR(CheckMagic(idx.source->name(), word, min_rank, max_rank, what));
  for (int rank = word[3]; rank > 0; --rank) {
    AMPD_RETURN_IF_ERROR(ReadExactly(*idx.source, absl::MakeSpan(word), "the IDX header"));
    idx.shape.push_back(BigEndian(word));
    if (idx.shape.back() == 0) {
      return absl::DataLossError(absl::StrCat(path, ": an IDX extent is 0; it must be >= 1"));
    }
  }
  AMPD_ASSIGN_OR_RETURN(idx.elements, CheckedProduct(idx.shape, path));
  AMPD_RETURN_IF_ERROR(CheckPlausibleSize(*idx.source, idx.elements, idx.elements));
  return idx;
}

absl::StatusOr<std::vector<int32_t>> ReadLabels(IdxFile& idx) {
  AMPD_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, ReadBytesToEnd(*idx.source, idx.elements, "labels"));
  return std::vector<int32_t>(bytes.begin(), bytes.end());
}

absl::StatusOr<Parts> OpenParts(const v1::IdxDataset& spec, absl::Span<const std::string> roots) {
  Parts parts;
  AMPD_ASSIGN_OR_RETURN(parts.images, OpenFile(spec.images(), roots, 3, 4, "images"));
  AMPD_ASSIGN_OR_RETURN(IdxFile labels, OpenFile(spec.labels(), roots, 1, 1, "labels"));
  const Shape& shape = parts.images.shape;
  if (shape[0] != labels.shape[0]) {
    return absl::DataLossError(absl::StrCat(spec.images(), " holds ", shape[0], " images, but ", spec.labels(),
                                            " holds ", labels.shape[0], " labels"));
  }
  parts.info.name = spec.images();
  parts.info.size = shape[0];
  parts.info.byte_inputs = true;
  parts.info.input_shape = {shape[1], shape[2], shape.size() == 4 ? shape[3] : 1};
  AMPD_ASSIGN_OR_RETURN(parts.labels, ReadLabels(labels));
  AMPD_ASSIGN_OR_RETURN(parts.info.classes, CountClasses(parts.labels, spec.labels()));
  parts.info.other_classes = CountOtherClasses(parts.labels, parts.info.classes);
  return parts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenIdx(const v1::IdxDataset& spec, absl::Span<const std::string> roots,
                                                 int64_t limit) {
  AMPD_ASSIGN_OR_RETURN(Parts parts, OpenParts(spec, roots));
  Columns columns;
  columns.info = std::move(parts.info);
  columns.labels = std::move(parts.labels);
  AMPD_ASSIGN_OR_RETURN(columns.bytes, ReadBytesToEnd(*parts.images.source, parts.images.elements, "images"));
  return MakeMemoryDataset(std::move(columns), limit);
}

absl::StatusOr<DatasetInfo> DescribeIdx(const v1::IdxDataset& spec, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(Parts parts, OpenParts(spec, roots));
  return std::move(parts.info);
}

}  // namespace ampd::data
