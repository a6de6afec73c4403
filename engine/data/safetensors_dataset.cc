#include "engine/data/safetensors_dataset.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/core/safetensors.h"
#include "engine/core/status.h"
#include "engine/data/array_dataset.h"
#include "engine/data/path.h"

namespace ampd::data {
namespace {

// The format's dtypes, and what NumPy calls them.
struct Code {
  absl::string_view code;
  char kind;
  int64_t bytes;
};
constexpr Code kCodes[] = {{"U8", 'u', 1},  {"U16", 'u', 2}, {"U32", 'u', 4}, {"I8", 'i', 1},
                           {"I16", 'i', 2}, {"I32", 'i', 4}, {"I64", 'i', 8}, {"F16", 'f', 2},
                           {"F32", 'f', 4}, {"F64", 'f', 8}, {"BF16", 'u', 2}};

absl::Status SetHeader(const SafetensorsEntry& entry, Array& array) {
  for (const Code& row : kCodes) {
    if (row.code != entry.code) continue;
    array.header = {row.kind, row.bytes, entry.shape};
    array.bfloat16 = entry.code == "BF16";
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrCat(array.source->name(), ": tensors of dtype ", entry.code, " are not supported as data"));
}

// A damaged file is the data's fault, not the spec's.
absl::Status Damaged(const absl::Status& status, const std::string& path) {
  return absl::DataLossError(absl::StrCat(path, ": ", status.message()));
}

absl::StatusOr<std::map<std::string, SafetensorsEntry>> ReadHeader(const InputFile& file) {
  std::string start(static_cast<size_t>(std::min<int64_t>(file.size(), 8)), '\0');
  const auto bytes = [](std::string& s) { return absl::Span<uint8_t>(reinterpret_cast<uint8_t*>(s.data()), s.size()); };
  AMPD_RETURN_IF_ERROR(file.ReadAt(0, bytes(start)));
  const uint64_t file_bytes = static_cast<uint64_t>(file.size());
  const absl::StatusOr<uint64_t> header_bytes = SafetensorsHeaderBytes(start, file_bytes);
  if (!header_bytes.ok()) return Damaged(header_bytes.status(), file.name());
  std::string header(static_cast<size_t>(*header_bytes), '\0');
  AMPD_RETURN_IF_ERROR(file.ReadAt(0, bytes(header)));
  auto entries = ParseSafetensorsHeader(header, file_bytes);
  if (!entries.ok()) return Damaged(entries.status(), file.name());
  return entries;
}

absl::StatusOr<Array> OpenTensor(const std::string& path, const std::string& key, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(auto file, OpenBeneath(path, roots));
  AMPD_ASSIGN_OR_RETURN(const auto entries, ReadHeader(*file));
  const auto found = entries.find(key);
  if (found == entries.end()) {
    std::vector<std::string> names;
    for (auto it = entries.begin(); it != entries.end() && names.size() < 20; ++it) names.push_back(it->first);
    return absl::NotFoundError(absl::StrCat(path, ": no tensor named ", key, "; it holds ",
                                            names.empty() ? "none" : absl::StrJoin(names, ", ")));
  }
  const SafetensorsEntry& entry = found->second;
  Array array;
  array.source = MakeFileSource(std::move(file), static_cast<int64_t>(entry.begin),
                                static_cast<int64_t>(entry.end - entry.begin), absl::StrCat(path, "[", key, "]"));
  AMPD_RETURN_IF_ERROR(SetHeader(entry, array));
  const uint64_t bytes = entry.end - entry.begin;
  if (bytes == 0 || entry.shape.empty()) {
    return absl::DataLossError(
        absl::StrCat(array.source->name(), ": a tensor of shape ", ShapeString(entry.shape), " holds no samples"));
  }
  const uint64_t values = bytes / static_cast<uint64_t>(array.header.element_size);
  AMPD_RETURN_IF_ERROR(CheckPlausibleSize(*array.source, bytes, values * (array.header.is_byte() ? 1 : sizeof(float))));
  return array;
}

absl::StatusOr<ArrayParts> OpenParts(const v1::SafetensorsDataset& spec, absl::Span<const std::string> roots) {
  ArrayParts parts;
  const std::string& targets = spec.targets_path().empty() ? spec.path() : spec.targets_path();
  AMPD_ASSIGN_OR_RETURN(parts.inputs,
                        OpenTensor(spec.path(), spec.inputs_key().empty() ? "x" : spec.inputs_key(), roots));
  AMPD_ASSIGN_OR_RETURN(parts.targets,
                        OpenTensor(targets, spec.targets_key().empty() ? "y" : spec.targets_key(), roots));
  parts.info.name = parts.inputs.source->name();
  AMPD_RETURN_IF_ERROR(DescribeInputs(parts.inputs, parts.info));
  AMPD_RETURN_IF_ERROR(DescribeTargets(parts.targets, parts.info));
  AMPD_RETURN_IF_ERROR(ReadClassLabels(parts));
  return parts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenSafetensors(const v1::SafetensorsDataset& spec,
                                                         absl::Span<const std::string> roots, int64_t limit) {
  AMPD_ASSIGN_OR_RETURN(ArrayParts parts, OpenParts(spec, roots));
  return MakeArrayDataset(std::move(parts), limit);
}

absl::StatusOr<DatasetInfo> DescribeSafetensors(const v1::SafetensorsDataset& spec,
                                                absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(ArrayParts parts, OpenParts(spec, roots));
  return std::move(parts.info);
}

}  // namespace ampd::data
