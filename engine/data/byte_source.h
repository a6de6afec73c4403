// Bytes read from front to back: a stretch of a file, as it is or inflated.
#ifndef AMPD_ENGINE_DATA_BYTE_SOURCE_H_
#define AMPD_ENGINE_DATA_BYTE_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/data/input_file.h"

namespace ampd::data {

// Not thread-safe. Errors are DATA_LOSS and name the file.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Fills the front of `out` and returns how much; less than asked means that the source ends there.
  virtual absl::StatusOr<size_t> Read(absl::Span<uint8_t> out) = 0;

  // An upper bound of all bytes that the source gives from its start, known before reading.
  virtual uint64_t MaxSize() const = 0;

  // What errors call it.
  virtual const std::string& name() const = 0;
};

// The bytes [offset, offset + size) of `file`; the caller has checked that they lie within it.
std::unique_ptr<ByteSource> MakeFileSource(std::shared_ptr<const InputFile> file, int64_t offset, int64_t size,
                                           std::string name);

enum class Compression {
  // RFC 1952, one or more members; their checksums are verified.
  kGzip,
  // RFC 1951 without a wrapper, as zip stores it.
  kDeflate,
};

// What `compressed` inflates to. Bytes after the end of the compressed data are DATA_LOSS.
std::unique_ptr<ByteSource> MakeInflateSource(std::unique_ptr<ByteSource> compressed, Compression compression);

// The whole of `file`, inflated when its content starts as gzip does.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenMaybeGzip(std::shared_ptr<const InputFile> file);

// Fills `out`; DATA_LOSS when the source ends before, saying how many bytes of `what` there were.
absl::Status ReadExactly(ByteSource& source, absl::Span<uint8_t> out, absl::string_view what);

// DATA_LOSS when the source has more bytes.
absl::Status ExpectEnd(ByteSource& source);

// Passes the next `size` bytes to `consume` in chunks of at most 1 MiB, each a multiple of 64 bytes but the last, then
// expects the end. `consume` returning an error ends the reading with it.
absl::Status ReadToEnd(ByteSource& source, uint64_t size, absl::string_view what,
                       absl::FunctionRef<absl::Status(absl::Span<const uint8_t>)> consume);

// The next `size` bytes, then the end. Call CheckPlausibleSize first.
absl::StatusOr<std::vector<uint8_t>> ReadBytesToEnd(ByteSource& source, uint64_t size, absl::string_view what);

// Bytes of memory that this machine has, or that the process's control group may have where that is less; as they were
// when first asked for.
uint64_t PhysicalMemory();

// Whether a source may hold `encoded` bytes (else DATA_LOSS) and this machine's memory `decoded` bytes (else
// RESOURCE_EXHAUSTED). To be called with what a header claims before anything of that size is allocated.
absl::Status CheckPlausibleSize(const ByteSource& source, uint64_t encoded, uint64_t decoded);

// The product of `factors`, or DATA_LOSS naming `name` when it exceeds 2^62. Factors are >= 0.
absl::StatusOr<uint64_t> CheckedProduct(absl::Span<const int64_t> factors, absl::string_view name);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_BYTE_SOURCE_H_
