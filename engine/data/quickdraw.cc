#include "engine/data/quickdraw.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "engine/data/byte_source.h"
#include "engine/data/class_shares.h"
#include "engine/data/memory_dataset.h"
#include "engine/data/npy.h"
#include "engine/data/path.h"
#include "proto/spec/names.h"
#include "proto/spec/utf8.h"

namespace ampd::data {
namespace {

constexpr int64_t kSide = 28;
constexpr int64_t kPixels = kSide * kSide;
constexpr size_t kChunk = size_t{1} << 20;
// All are open at once.
constexpr size_t kMaxFiles = 400;

// A class's file, read up to its rows, and which of them are taken.
struct ClassFile {
  std::unique_ptr<ByteSource> source;
  int64_t rows = 0;
  int64_t taken = 0;
};

struct Parts {
  std::vector<ClassFile> files;
  DatasetInfo info;
};

absl::StatusOr<std::vector<std::string>> ClassNames(const v1::QuickDrawDataset& spec,
                                                    absl::Span<const std::string> roots) {
  std::vector<std::string> names(spec.classes().begin(), spec.classes().end());
  for (const std::string& name : names) {
    if (name.empty() || absl::StrContains(name, '/')) {
      return absl::InvalidArgumentError(absl::StrCat("quickdraw.classes: '", name, "' is no file's name"));
    }
  }
  if (std::set<std::string>(names.begin(), names.end()).size() != names.size()) {
    return absl::InvalidArgumentError("quickdraw.classes: a class stands twice");
  }
  if (names.empty()) {
    AMPD_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, ListBeneath(spec.path(), roots));
    for (const FolderEntry& entry : entries) {
      absl::string_view name = entry.name;
      if (entry.is_folder || !absl::ConsumeSuffix(&name, ".npy")) continue;
      if (ValidUtf8(name) != name) {
        return absl::DataLossError(absl::StrCat(spec.path(), ": the name of file ", Quoted(entry.name),
                                                " is no UTF-8, as a class's name must be: rename it"));
      }
      names.emplace_back(name);
    }
    if (names.empty()) return absl::NotFoundError(absl::StrCat(spec.path(), ": holds no .npy files"));
  }
  if (names.size() <= kMaxFiles) return names;
  return absl::InvalidArgumentError(
      absl::StrCat(spec.path(), ": ", names.size(), " classes; at most ", kMaxFiles, " can be"));
}

absl::StatusOr<ClassFile> OpenClass(const v1::QuickDrawDataset& spec, const std::string& path,
                                    absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(auto file, OpenBeneath(path, roots));
  const int64_t size = file->size();
  ClassFile opened;
  opened.source = MakeFileSource(std::move(file), 0, size, path);
  AMPD_ASSIGN_OR_RETURN(const NpyHeader header, ReadNpyHeader(*opened.source));
  if (!header.is_byte() || header.shape.size() != 2 || header.shape[1] != kPixels) {
    return absl::DataLossError(absl::StrCat(path, ": dtype ", header.dtype(), " and shape ", ShapeString(header.shape),
                                            "; Quick, Draw! bitmaps are u1 [n, ", kPixels, "]"));
  }
  opened.rows = header.shape[0];
  const int64_t left = opened.rows - spec.skip_per_class();
  opened.taken = spec.samples_per_class() > 0 ? spec.samples_per_class() : left;
  if (spec.skip_per_class() >= 0 && opened.taken >= 1 && opened.taken <= left) return opened;
  return absl::InvalidArgumentError(absl::StrCat(path, ": holds ", opened.rows, " drawings; skip_per_class is ",
                                                 spec.skip_per_class(), ", samples_per_class ",
                                                 spec.samples_per_class()));
}

absl::StatusOr<Parts> OpenParts(const v1::QuickDrawDataset& spec, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ClassNames(spec, roots));
  Parts parts;
  parts.info.name = spec.path();
  parts.info.input_shape = {kSide, kSide, 1};
  parts.info.byte_inputs = true;
  parts.info.classes = static_cast<int64_t>(names.size());
  parts.info.class_names = names;
  for (const std::string& name : names) {
    AMPD_ASSIGN_OR_RETURN(ClassFile file, OpenClass(spec, absl::StrCat(spec.path(), "/", name, ".npy"), roots));
    parts.info.size += file.taken;
    parts.files.push_back(std::move(file));
  }
  // Every file holds what is taken of it, so the sum is far from overflow.
  AMPD_RETURN_IF_ERROR(
      CheckPlausibleSize(*parts.files[0].source, 0, static_cast<uint64_t>(parts.info.size) * uint64_t{kPixels}));
  return parts;
}

void Limit(int64_t limit, Parts& parts) {
  std::vector<int64_t> sizes;
  for (const ClassFile& file : parts.files) sizes.push_back(file.taken);
  const std::vector<int64_t> shares = SharesInTurn(sizes, limit);
  parts.info.size = 0;
  for (size_t c = 0; c < shares.size(); ++c) parts.info.size += parts.files[c].taken = shares[c];
}

absl::Status Skip(ByteSource& source, int64_t bytes) {
  std::vector<uint8_t> chunk(static_cast<size_t>(std::min<int64_t>(bytes, kChunk)));
  while (bytes > 0) {
    const size_t n = std::min(static_cast<size_t>(bytes), chunk.size());
    AMPD_RETURN_IF_ERROR(ReadExactly(source, absl::MakeSpan(chunk).subspan(0, n), "drawings"));
    bytes -= static_cast<int64_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenQuickDraw(const v1::QuickDrawDataset& spec,
                                                       absl::Span<const std::string> roots, int64_t limit) {
  AMPD_ASSIGN_OR_RETURN(Parts parts, OpenParts(spec, roots));
  Limit(limit, parts);
  Columns columns;
  columns.info = std::move(parts.info);
  columns.bytes.resize(static_cast<size_t>(columns.info.size * kPixels));
  size_t at = 0;
  for (size_t c = 0; c < parts.files.size(); ++c) {
    const ClassFile& file = parts.files[c];
    const size_t bytes = static_cast<size_t>(file.taken * kPixels);
    AMPD_RETURN_IF_ERROR(Skip(*file.source, spec.skip_per_class() * kPixels));
    AMPD_RETURN_IF_ERROR(ReadExactly(*file.source, absl::MakeSpan(columns.bytes).subspan(at, bytes), "drawings"));
    // To its end, which may come too late.
    AMPD_RETURN_IF_ERROR(Skip(*file.source, (file.rows - spec.skip_per_class() - file.taken) * kPixels));
    AMPD_RETURN_IF_ERROR(ExpectEnd(*file.source));
    columns.labels.insert(columns.labels.end(), static_cast<size_t>(file.taken), static_cast<int32_t>(c));
    at += bytes;
  }
  return MakeMemoryDataset(std::move(columns), 0);
}

absl::StatusOr<DatasetInfo> DescribeQuickDraw(const v1::QuickDrawDataset& spec, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(Parts parts, OpenParts(spec, roots));
  return std::move(parts.info);
}

}  // namespace ampd::data
