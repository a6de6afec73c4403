#include "engine/data/text.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "engine/core/status.h"
#include "engine/data/byte_source.h"
#include "engine/data/path.h"

namespace ampd::data {
namespace {

constexpr int64_t kMaxSequence = int64_t{1} << 20;
constexpr int64_t kMaxVocabulary = int64_t{1} << 16;

// What `text` and `tokens` differ in.
struct Encoding {
  const char* unit;
  int64_t bytes;  // a token
  int64_t vocabulary;
  const char* expected;
};

// Files whose own bytes are no text and no tokens, by how they begin.
struct Container {
  absl::string_view magic;
  const char* what;
};
// gzip's third byte is its method, of which there is one: two bytes alone may be a token.
constexpr Container kContainers[] = {{"\x93NUMPY", "a NumPy file"},
                                     {"PK\x03\x04", "a zip archive, as an .npz is"},
                                     {"\x1f\x8b\x08", "compressed by gzip"}};

// Of tokens, that tell how wide a file's numbers are.
constexpr size_t kMinWidthTokens = 32;
constexpr size_t kMaxWidthTokens = 4096;

// The part of a file that is used, in tokens.
struct Part {
  std::shared_ptr<const InputFile> file;
  int64_t begin = 0;
  int64_t size = 0;
  DatasetInfo info;
};

template <typename Spec>
int64_t StrideOf(const Spec& spec) {
  return spec.has_stride() ? spec.stride() : spec.sequence_length();
}

template <typename Spec>
absl::Status CheckSpec(const Spec& spec, const Encoding& encoding) {
  const double end = spec.has_end() ? spec.end() : 1;
  if (spec.sequence_length() < 1 || spec.sequence_length() > kMaxSequence || StrideOf(spec) < 1) {
    return absl::InvalidArgumentError(absl::StrCat(spec.path(), ": sequence_length is ", spec.sequence_length(),
                                                   " and stride ", StrideOf(spec),
                                                   "; they are >= 1, the former at most ", kMaxSequence));
  }
  if (!(spec.begin() >= 0 && spec.begin() < end && end <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.path(), ": begin and end are ", spec.begin(), " and ", end, "; 0 <= begin < end <= 1"));
  }
  if (encoding.vocabulary >= 1 && encoding.vocabulary <= kMaxVocabulary) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(spec.path(), ": vocabulary is ", encoding.vocabulary, "; it is 1 to ", kMaxVocabulary));
}

// Whether `bytes`, tokens of two bytes, are the halves of wider numbers, of which the upper ones are all 0. Zeros alone
// tell nothing.
bool AreHalves(absl::Span<const uint8_t> bytes) {
  if (bytes.size() < 2 * kMinWidthTokens) return false;
  bool lower = false;
  for (size_t i = 0; i + 3 < bytes.size(); i += 4) {
    if (bytes[i + 2] != 0 || bytes[i + 3] != 0) return false;
    lower = lower || bytes[i] != 0 || bytes[i + 1] != 0;
  }
  return lower;
}

// That the file holds what is read of it, as far as its first bytes tell.
absl::Status CheckContent(const InputFile& file, const Encoding& encoding) {
  std::vector<uint8_t> bytes(static_cast<size_t>(std::min<int64_t>(file.size(), 2 * kMaxWidthTokens)));
  AMPD_RETURN_IF_ERROR(file.ReadAt(0, absl::MakeSpan(bytes)));
  const absl::string_view start(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const Container& container : kContainers) {
    if (!absl::StartsWith(start, container.magic)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file.name(), ": is ", container.what, "; expected ", encoding.expected));
  }
  if (encoding.bytes != 2 || !AreHalves(bytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(file.name(), ": every other one of its first ", bytes.size() / 2,
                                                 " numbers of two bytes is 0, as where numbers have 4 or 8 bytes; "
                                                 "expected ",
                                                 encoding.expected));
}

int64_t ShareOf(double share, int64_t size) {
  if (share >= 1) return size;
  return std::min(size, static_cast<int64_t>(std::floor(share * static_cast<double>(size))));
}

template <typename Spec>
absl::StatusOr<Part> OpenPart(const Spec& spec, const Encoding& encoding, absl::Span<const std::string> roots) {
  AMPD_RETURN_IF_ERROR(CheckSpec(spec, encoding));
  Part part;
  AMPD_ASSIGN_OR_RETURN(part.file, OpenBeneath(spec.path(), roots));
  AMPD_RETURN_IF_ERROR(CheckContent(*part.file, encoding));
  if (part.file->size() % encoding.bytes != 0) {
    return absl::DataLossError(absl::StrCat(spec.path(), ": ", part.file->size(), " bytes are no whole number of ",
                                            encoding.unit, ", which have ", encoding.bytes, " bytes each"));
  }
  const int64_t size = part.file->size() / encoding.bytes;
  part.begin = ShareOf(spec.begin(), size);
  part.size = ShareOf(spec.has_end() ? spec.end() : 1, size) - part.begin;
  const int64_t length = spec.sequence_length();
  if (part.size <= length) {
    return absl::InvalidArgumentError(absl::StrCat(spec.path(), ": the part from begin to end holds ", part.size,
                                                   " of ", size, " ", encoding.unit,
                                                   "; a sample and its last label need ", length + 1));
  }
  part.info.name = spec.path();
  part.info.size = (part.size - length - 1) / StrideOf(spec) + 1;
  part.info.input_shape = {length};
  part.info.classes = encoding.vocabulary;
  part.info.label_count = length;
  part.info.held_bytes = part.size * encoding.bytes;
  return part;
}

class WindowDataset : public Dataset {
 public:
  WindowDataset(DatasetInfo info, std::vector<uint8_t> bytes, int64_t token_bytes, int64_t stride)
      : Dataset(std::move(info)), bytes_(std::move(bytes)), token_bytes_(token_bytes), stride_(stride) {}

  void ReadInput(int64_t i, absl::Span<float> out) const override { Read(i * stride_, out); }
  int32_t ReadLabel(int64_t) const override { return -1; }
  void ReadLabels(int64_t i, absl::Span<int32_t> out) const override { Read(i * stride_ + 1, out); }
  void ReadTarget(int64_t, absl::Span<float>) const override {}
  absl::Status CheckFinite(int64_t) const override { return absl::OkStatus(); }

 private:
  template <typename T>
  void Read(int64_t place, absl::Span<T> out) const {
    const uint8_t* at = bytes_.data() + place * token_bytes_;
    for (T& value : out) {
      value = static_cast<T>(token_bytes_ == 1 ? at[0] : at[0] | at[1] << 8);
      at += token_bytes_;
    }
  }

  const std::vector<uint8_t> bytes_;
  const int64_t token_bytes_;
  const int64_t stride_;
};

absl::Status CheckVocabulary(const Part& part, const Encoding& encoding, const std::vector<uint8_t>& bytes) {
  if (encoding.bytes == 1) return absl::OkStatus();
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const int64_t token = bytes[i] | bytes[i + 1] << 8;
    if (token < encoding.vocabulary) continue;
    return absl::DataLossError(absl::StrCat(part.info.name, ": token ", part.begin + static_cast<int64_t>(i / 2),
                                            " is ", token, "; vocabulary is ", encoding.vocabulary));
  }
  return absl::OkStatus();
}

template <typename Spec>
absl::StatusOr<std::unique_ptr<Dataset>> Open(const Spec& spec, const Encoding& encoding,
                                              absl::Span<const std::string> roots, int64_t limit) {
  AMPD_ASSIGN_OR_RETURN(Part part, OpenPart(spec, encoding, roots));
  const uint64_t size = static_cast<uint64_t>(part.size * encoding.bytes);
  const int64_t offset = part.begin * encoding.bytes;
  const auto source = MakeFileSource(part.file, offset, static_cast<int64_t>(size), part.info.name);
  // The order of an epoch's samples is kept, too.
  AMPD_RETURN_IF_ERROR(CheckPlausibleSize(*source, size, size + 8 * static_cast<uint64_t>(part.info.size)));
  AMPD_ASSIGN_OR_RETURN(std::vector<uint8_t> bytes, ReadBytesToEnd(*source, size, encoding.unit));
  AMPD_RETURN_IF_ERROR(CheckVocabulary(part, encoding, bytes));
  if (limit > 0 && limit < part.info.size) part.info.size = limit;
  return std::make_unique<WindowDataset>(std::move(part.info), std::move(bytes), encoding.bytes, StrideOf(spec));
}

constexpr Encoding kBytes = {"bytes", 1, 256, "plain text"};

Encoding TokensOf(const v1::TokensDataset& spec) {
  return {"tokens", 2, spec.vocabulary(),
          "nothing but numbers of two bytes, little-endian, as NumPy's tokens.astype('<u2').tofile(path) writes them"};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const v1::TextDataset& spec, absl::Span<const std::string> roots,
                                                  int64_t limit) {
  return Open(spec, kBytes, roots, limit);
}

absl::StatusOr<DatasetInfo> DescribeText(const v1::TextDataset& spec, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(Part part, OpenPart(spec, kBytes, roots));
  return std::move(part.info);
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenTokens(const v1::TokensDataset& spec, absl::Span<const std::string> roots,
                                                    int64_t limit) {
  return Open(spec, TokensOf(spec), roots, limit);
}

absl::StatusOr<DatasetInfo> DescribeTokens(const v1::TokensDataset& spec, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(Part part, OpenPart(spec, TokensOf(spec), roots));
  return std::move(part.info);
}

}  // namespace ampd::data
