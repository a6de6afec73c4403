#include "engine/data/npy_dataset.h"

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "engine/core/status.h"
#include "engine/data/byte_source.h"
#include "engine/data/memory_dataset.h"
#include "engine/data/npy.h"
#include "engine/data/path.h"
#include "engine/data/zip.h"

namespace ampd::data {
namespace {

// An array read up to its values.
struct Array {
  std::unique_ptr<ByteSource> source;
  NpyHeader header;
};

struct Parts {
  Array inputs;
  Array targets;
  DatasetInfo info;
  // Read already when the targets are class labels.
  std::vector<int32_t> labels;
};

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

absl::Status DescribeInputs(const Array& array, DatasetInfo& info) {
  const NpyHeader& header = array.header;
  if (!header.is_byte() && header.kind != 'f') {
    return absl::InvalidArgumentError(absl::StrCat(array.source->name(), ": inputs of dtype ", header.dtype(),
                                                   "; supported are u1 (uint8), f2, f4, f8"));
  }
  if (header.shape.size() < 2 || header.shape.size() > 4) {
    return absl::InvalidArgumentError(absl::StrCat(array.source->name(), ": inputs of shape ",
                                                   ShapeString(header.shape),
                                                   "; expected [n, features], [n, h, w] or [n, h, w, c]"));
  }
  info.size = header.shape[0];
  info.byte_inputs = header.is_byte();
  info.input_shape.assign(header.shape.begin() + 1, header.shape.end());
  if (header.shape.size() == 3) info.input_shape.push_back(1);
  return absl::OkStatus();
}

absl::Status DescribeTargets(const Array& array, DatasetInfo& info) {
  const NpyHeader& header = array.header;
  info.target_kind = header.kind == 'f' ? TargetKind::kFloat : TargetKind::kClass;
  const size_t max_rank = info.target_kind == TargetKind::kFloat ? 2 : 1;
  if (header.shape.empty() || header.shape.size() > max_rank) {
    return absl::InvalidArgumentError(absl::StrCat(array.source->name(), ": targets of dtype ", header.dtype(),
                                                   " and shape ", ShapeString(header.shape),
                                                   "; expected integers [n], or floats [n] or [n, features]"));
  }
  if (info.target_kind == TargetKind::kFloat) info.target_features = header.shape.size() == 2 ? header.shape[1] : 1;
  if (header.shape[0] == info.size) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(info.name, " holds ", info.size, " inputs, but ", array.source->name(),
                                          " holds ", header.shape[0], " targets"));
}

absl::StatusOr<Parts> OpenParts(const v1::NpyDataset& spec, absl::Span<const std::string> roots) {
  if (!spec.lengths().empty() || !spec.target_lengths().empty()) {
    return absl::UnimplementedError("npy.lengths and npy.target_lengths are not supported yet");
  }
  AMPD_ASSIGN_OR_RETURN(const std::string targets, TargetsPath(spec, roots));
  Parts parts;
  const std::string inputs_key = spec.inputs_key().empty() ? "x" : spec.inputs_key();
  const std::string targets_key = spec.targets_key().empty() ? "y" : spec.targets_key();
  AMPD_ASSIGN_OR_RETURN(parts.inputs, OpenArray(spec.inputs(), inputs_key, roots));
  AMPD_ASSIGN_OR_RETURN(parts.targets, OpenArray(targets, targets_key, roots));
  parts.info.name = parts.inputs.source->name();
  AMPD_RETURN_IF_ERROR(DescribeInputs(parts.inputs, parts.info));
  AMPD_RETURN_IF_ERROR(DescribeTargets(parts.targets, parts.info));
  if (parts.info.target_kind == TargetKind::kClass) {
    AMPD_ASSIGN_OR_RETURN(parts.labels, ReadNpyIntegers(*parts.targets.source, parts.targets.header));
    AMPD_ASSIGN_OR_RETURN(parts.info.classes, CountClasses(parts.labels, parts.targets.source->name()));
  }
  return parts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenNpy(const v1::NpyDataset& spec, absl::Span<const std::string> roots,
                                                 int64_t limit) {
  AMPD_ASSIGN_OR_RETURN(Parts parts, OpenParts(spec, roots));
  Columns columns;
  columns.info = std::move(parts.info);
  columns.labels = std::move(parts.labels);
  if (columns.info.byte_inputs) {
    AMPD_ASSIGN_OR_RETURN(columns.bytes, ReadNpyBytes(*parts.inputs.source, parts.inputs.header));
  } else {
    AMPD_ASSIGN_OR_RETURN(columns.floats, ReadNpyFloats(*parts.inputs.source, parts.inputs.header, columns.non_finite));
  }
  if (columns.info.target_kind == TargetKind::kFloat) {
    AMPD_ASSIGN_OR_RETURN(columns.targets,
                          ReadNpyFloats(*parts.targets.source, parts.targets.header, columns.non_finite));
  }
  return MakeMemoryDataset(std::move(columns), limit);
}

absl::StatusOr<DatasetInfo> DescribeNpy(const v1::NpyDataset& spec, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(Parts parts, OpenParts(spec, roots));
  return std::move(parts.info);
}

}  // namespace ampd::data
