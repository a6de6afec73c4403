#include "engine/core/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "engine/core/json.h"
#include "engine/core/status.h"

namespace ampd {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written as they lie in memory");

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr char kMetadata[] = "__metadata__";

struct DTypeCode {
  absl::string_view code;
  DType dtype;
};
constexpr DTypeCode kDTypes[] = {{"F32", DType::kF32},        {"F16", DType::kF16},        {"BF16", DType::kBF16},
                                 {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2}, {"I32", DType::kI32},
                                 {"I64", DType::kI64},        {"U8", DType::kU8},          {"BOOL", DType::kBool}};

// Every dtype of the format, and the bytes of a value.
struct CodeSize {
  absl::string_view code;
  uint64_t bytes;
};
constexpr CodeSize kCodes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
                               {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},
                               {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8},     {"F64", 8}};

absl::StatusOr<uint64_t> BytesOf(absl::string_view code) {
  for (const CodeSize& row : kCodes) {
    if (row.code == code) return row.bytes;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown dtype '", code.substr(0, 20), "'"));
}

absl::string_view CodeOf(DType dtype) {
  for (const DTypeCode& row : kDTypes) {
    if (row.dtype == dtype) return row.code;
  }
  return "";
}

absl::optional<DType> DTypeOf(absl::string_view code) {
  for (const DTypeCode& row : kDTypes) {
    if (row.code == code) return row.dtype;
  }
  return absl::nullopt;
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("safetensors: ", what));
}

const Json* Member(const Json& object, absl::string_view key, Json::Kind kind) {
  const Json* member = object.Find(key);
  return member != nullptr && member->kind() == kind ? member : nullptr;
}

absl::Status ParseShape(const Json& list, Shape* shape, uint64_t* elements) {
  *elements = 1;
  for (const Json& item : list.items()) {
    AMPD_ASSIGN_OR_RETURN(const int64_t extent, item.AsInt64());
    if (extent < 0) return absl::InvalidArgumentError(absl::StrCat("extent ", extent));
    if (__builtin_mul_overflow(*elements, static_cast<uint64_t>(extent), elements)) {
      return absl::InvalidArgumentError("a shape that overflows");
    }
    shape->push_back(extent);
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const Json& json, uint64_t data_begin, uint64_t file_bytes) {
  const Json* dtype = Member(json, "dtype", Json::Kind::kString);
  const Json* shape = Member(json, "shape", Json::Kind::kArray);
  const Json* offsets = Member(json, "data_offsets", Json::Kind::kArray);
  if (dtype == nullptr || shape == nullptr || offsets == nullptr || json.members().size() != 3) {
    return absl::InvalidArgumentError("needs exactly dtype, shape and data_offsets");
  }
  SafetensorsEntry entry;
  entry.code = *dtype->AsString();
  AMPD_ASSIGN_OR_RETURN(const uint64_t value_bytes, BytesOf(entry.code));
  uint64_t bytes;
  AMPD_RETURN_IF_ERROR(ParseShape(*shape, &entry.shape, &bytes));
  if (__builtin_mul_overflow(bytes, value_bytes, &bytes)) {
    return absl::InvalidArgumentError("a shape that overflows");
  }
  if (offsets->items().size() != 2) return absl::InvalidArgumentError("data_offsets are not two");
  AMPD_ASSIGN_OR_RETURN(const uint64_t begin, offsets->items()[0].AsUint64());
  AMPD_ASSIGN_OR_RETURN(const uint64_t end, offsets->items()[1].AsUint64());
  if (begin > end || end > file_bytes - data_begin) {
    return absl::InvalidArgumentError(
        absl::StrCat("data_offsets [", begin, ", ", end, "] beyond the ", file_bytes - data_begin, " bytes of data"));
  }
  if (end - begin != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(end - begin, " bytes for ", ShapeString(entry.shape), " of ", entry.code));
  }
  entry.begin = data_begin + begin;
  entry.end = data_begin + end;
  return entry;
}

absl::Status CheckCoverage(const std::map<std::string, SafetensorsEntry>& entries, uint64_t begin, uint64_t end) {
  std::vector<std::pair<uint64_t, uint64_t>> spans;
  for (const auto& [name, entry] : entries) spans.emplace_back(entry.begin, entry.end);
  std::sort(spans.begin(), spans.end());
  uint64_t covered = begin;
  for (const auto& [from, to] : spans) {
    if (from < covered) return Malformed(absl::StrCat("tensors overlap at byte ", from));
    if (from > covered) return Malformed(absl::StrCat("bytes from ", covered, " to ", from, " belong to no tensor"));
    covered = to;
  }
  if (covered != end) return Malformed(absl::StrCat("bytes from ", covered, " to ", end, " belong to no tensor"));
  return absl::OkStatus();
}

std::string Header(const std::vector<TensorSource>& tensors) {
  std::string header = "{";
  int64_t offset = 0;
  for (const TensorSource& tensor : tensors) {
    const int64_t end = offset + NumElements(tensor.shape) * SizeOf(tensor.dtype);
    absl::StrAppend(&header, offset == 0 && header.size() == 1 ? "" : ",", JsonQuoted(tensor.name), ":{\"dtype\":\"",
                    CodeOf(tensor.dtype), "\",\"shape\":[", absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[",
                    offset, ",", end, "]}");
    offset = end;
  }
  header += "}";
  // Readers map the data in place: it starts at a multiple of 8.
  header.append((kLengthBytes - header.size() % kLengthBytes) % kLengthBytes, ' ');
  return header;
}

}  // namespace

absl::Status WriteSafetensors(const std::vector<TensorSource>& tensors,
                              const std::function<absl::Status(absl::string_view)>& append) {
  const std::string header = Header(tensors);
  const uint64_t length = header.size();
  AMPD_RETURN_IF_ERROR(append({reinterpret_cast<const char*>(&length), sizeof(length)}));
  AMPD_RETURN_IF_ERROR(append(header));
  for (const TensorSource& tensor : tensors) {
    AMPD_ASSIGN_OR_RETURN(const absl::string_view bytes, tensor.bytes());
    if (static_cast<int64_t>(bytes.size()) != NumElements(tensor.shape) * SizeOf(tensor.dtype)) {
      return absl::InternalError(
          absl::StrCat("safetensors: ", tensor.name, " ", ShapeString(tensor.shape), " gave ", bytes.size(), " bytes"));
    }
    AMPD_RETURN_IF_ERROR(append(bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SafetensorsHeaderBytes(absl::string_view start, uint64_t file_bytes) {
  uint64_t length;
  if (start.size() < kLengthBytes || file_bytes < kLengthBytes) {
    return Malformed(absl::StrCat("only ", file_bytes, " bytes"));
  }
  std::memcpy(&length, start.data(), sizeof(length));
  if (length > kMaxHeaderBytes || length > file_bytes - kLengthBytes) {
    return Malformed(absl::StrCat("a header of ", length, " bytes in a file of ", file_bytes));
  }
  return kLengthBytes + length;
}

absl::StatusOr<std::map<std::string, SafetensorsEntry>> ParseSafetensorsHeader(absl::string_view header,
                                                                               uint64_t file_bytes) {
  absl::StatusOr<Json> json = ParseJson(header.substr(kLengthBytes));
  if (!json.ok()) return Malformed(json.status().message());
  if (json->kind() != Json::Kind::kObject) return Malformed("the header is no object");
  std::map<std::string, SafetensorsEntry> entries;
  for (const auto& [name, member] : json->members()) {
    if (name == kMetadata) continue;
    absl::StatusOr<SafetensorsEntry> entry = ParseEntry(member, header.size(), file_bytes);
    if (!entry.ok()) return Malformed(absl::StrCat("'", name.substr(0, 100), "': ", entry.status().message()));
    entries.emplace(name, *std::move(entry));
  }
  AMPD_RETURN_IF_ERROR(CheckCoverage(entries, header.size(), file_bytes));
  return entries;
}

absl::StatusOr<Safetensors> Safetensors::Parse(std::string file) {
  AMPD_ASSIGN_OR_RETURN(const uint64_t header_bytes, SafetensorsHeaderBytes(file, file.size()));
  AMPD_ASSIGN_OR_RETURN(const auto parsed,
                        ParseSafetensorsHeader(absl::string_view(file).substr(0, header_bytes), file.size()));
  std::map<std::string, Entry> entries;
  for (const auto& [name, entry] : parsed) {
    const absl::optional<DType> dtype = DTypeOf(entry.code);
    if (!dtype.has_value()) {
      return Malformed(absl::StrCat("'", name.substr(0, 100), "': unknown dtype '", entry.code, "'"));
    }
    entries.emplace(name, Entry{*dtype, entry.shape, entry.begin, entry.end});
  }
  return Safetensors(std::move(file), std::move(entries));
}

}  // namespace ampd
