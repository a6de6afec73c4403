#include "engine/data/npy_dataset.h"

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "engine/core/status.h"
#include "engine/data/array_dataset.h"
#include "engine/data/byte_source.h"
#include "engine/data/memory_dataset.h"
#include "engine/data/npy.h"
#include "engine/data/path.h"
#include "engine/data/zip.h"

namespace ampd::data {
namespace {

absl::StatusOr<bool> IsZip(const InputFile& file) {
  std::array<uint8_t, 4> start = {};
  if (file.size() < 4) return false;
  AMPD_RETURN_IF_ERROR(file.ReadAt(0, absl::MakeSpan(start)));
  // A member, or the end record of an empty archive.
  return start[0] == 'P' && start[1] == 'K' && (start[2] == 3 || start[2] == 5);
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenMember(std::shared_ptr<const InputFile> file, const std::string& key) {
  AMPD_ASSIGN_OR_RETURN(const std::vector<ZipMember> members, ReadZipDirectory(*file));
  std::vector<std::string> names;
  for (const ZipMember& member : members) {
    if (member.name == absl::StrCat(key, ".npy") || member.name == key) return OpenZipMember(std::move(file), member);
    if (names.size() < 20) names.push_back(member.name);
  }
  return absl::NotFoundError(absl::StrCat(file->name(), ": no array named ", key, "; it holds ",
                                          names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

absl::StatusOr<Array> OpenArray(const std::string& path, const std::string& key, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(auto file, OpenBeneath(path, roots));
  AMPD_ASSIGN_OR_RETURN(const bool is_zip, IsZip(*file));
  Array array;
  if (is_zip) {
    AMPD_ASSIGN_OR_RETURN(array.source, OpenMember(std::move(file), key));
  } else {
    const int64_t size = file->size();
    array.source = MakeFileSource(std::move(file), 0, size, path);
  }
  AMPD_ASSIGN_OR_RETURN(array.header, ReadNpyHeader(*array.source));
  return array;
}

// Without `targets`, both arrays are in the archive of the inputs.
absl::StatusOr<std::string> TargetsPath(const v1::NpyDataset& spec, absl::Span<const std::string> roots) {
  if (!spec.targets().empty()) return spec.targets();
  AMPD_ASSIGN_OR_RETURN(const auto file, OpenBeneath(spec.inputs(), roots));
  AMPD_ASSIGN_OR_RETURN(const bool is_zip, IsZip(*file));
  if (is_zip) return spec.inputs();
  return absl::InvalidArgumentError(
      absl::StrCat("npy.targets is not given, and npy.inputs (", spec.inputs(), ") is no .npz archive"));
}

// How many of the `extent` places of each of the `size` samples count: `low` to `extent`.
absl::StatusOr<std::vector<int32_t>> ReadLengths(const std::string& path, const std::string& key, int64_t size,
                                                 int64_t low, int64_t extent, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(const Array array, OpenArray(path, key, roots));
  const absl::string_view name = array.source->name();
  if (array.header.kind == 'f' || array.header.shape.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": lengths of dtype ", array.header.dtype(), " and shape ",
                                                   ShapeString(array.header.shape), "; expected integers [n]"));
  }
  if (array.header.shape[0] != size) {
    return absl::DataLossError(absl::StrCat(name, " holds ", array.header.shape[0], " lengths of ", size, " samples"));
  }
  AMPD_ASSIGN_OR_RETURN(std::vector<int32_t> lengths, ReadNpyIntegers(*array.source, array.header));
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] >= low && lengths[i] <= extent) continue;
    return absl::DataLossError(
        absl::StrCat(name, ": the length of sample ", i, " is ", lengths[i], "; lengths are ", low, " to ", extent));
  }
  return lengths;
}

absl::Status DescribeLengths(const v1::NpyDataset& spec, absl::Span<const std::string> roots, const Array& inputs,
                             DatasetInfo& info) {
  if (spec.lengths().empty()) return absl::OkStatus();
  if (inputs.header.shape.size() > 3) {
    return absl::InvalidArgumentError(absl::StrCat(info.name, ": inputs of shape ", ShapeString(inputs.header.shape),
                                                   " cannot have lengths; expected [n, time] or [n, time, features]"));
  }
  info.input_shape.assign(inputs.header.shape.begin() + 1, inputs.header.shape.end());
  AMPD_ASSIGN_OR_RETURN(info.lengths,
                        ReadLengths(spec.lengths(), spec.lengths_key(), info.size, 1, info.input_shape[0], roots));
  return absl::OkStatus();
}

absl::Status DescribeLabelLengths(const v1::NpyDataset& spec, absl::Span<const std::string> roots, DatasetInfo& info) {
  if (spec.target_lengths().empty()) return absl::OkStatus();
  if (info.label_count == 0) {
    return absl::InvalidArgumentError("npy.target_lengths are of label sequences, integers [n, labels]");
  }
  AMPD_ASSIGN_OR_RETURN(info.label_lengths, ReadLengths(spec.target_lengths(), spec.target_lengths_key(), info.size, 0,
                                                        info.label_count, roots));
  return absl::OkStatus();
}

absl::StatusOr<ArrayParts> OpenParts(const v1::NpyDataset& spec, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(const std::string targets, TargetsPath(spec, roots));
  ArrayParts parts;
  const std::string inputs_key = spec.inputs_key().empty() ? "x" : spec.inputs_key();
  const std::string targets_key = spec.targets_key().empty() ? "y" : spec.targets_key();
  AMPD_ASSIGN_OR_RETURN(parts.inputs, OpenArray(spec.inputs(), inputs_key, roots));
  AMPD_ASSIGN_OR_RETURN(parts.targets, OpenArray(targets, targets_key, roots));
  parts.info.name = parts.inputs.source->name();
  AMPD_RETURN_IF_ERROR(DescribeInputs(parts.inputs, parts.info));
  AMPD_RETURN_IF_ERROR(DescribeLengths(spec, roots, parts.inputs, parts.info));
  AMPD_RETURN_IF_ERROR(DescribeTargets(parts.targets, parts.info));
  AMPD_RETURN_IF_ERROR(DescribeLabelLengths(spec, roots, parts.info));
  AMPD_RETURN_IF_ERROR(ReadClassLabels(parts));
  return parts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenNpy(const v1::NpyDataset& spec, absl::Span<const std::string> roots,
                                                 int64_t limit) {
  AMPD_ASSIGN_OR_RETURN(ArrayParts parts, OpenParts(spec, roots));
  return MakeArrayDataset(std::move(parts), limit);
}

absl::StatusOr<DatasetInfo> DescribeNpy(const v1::NpyDataset& spec, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(ArrayParts parts, OpenParts(spec, roots));
  return std::move(parts.info);
}

}  // namespace ampd::data
