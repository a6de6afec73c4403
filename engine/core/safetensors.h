// The safetensors format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then
// the tensors' bytes, little-endian. https://huggingface.co/docs/safetensors
#ifndef AMPD_ENGINE_CORE_SAFETENSORS_H_
#define AMPD_ENGINE_CORE_SAFETENSORS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/core/dtype.h"
#include "engine/core/shape.h"

namespace ampd {

// One tensor to write.
struct TensorSource {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  // Gives the tensor's bytes, NumElements(shape) * SizeOf(dtype) of them, dense and row-major. Called once; the bytes
  // are read before the next call of any source. An error ends the writing.
  std::function<absl::StatusOr<absl::string_view>()> bytes;
};

// Writes a whole file through `append`, whose errors end the writing. Names are unique and none is "__metadata__".
absl::Status WriteSafetensors(const std::vector<TensorSource>& tensors,
                              const std::function<absl::Status(absl::string_view)>& append);

// A tensor as a file's header describes it.
struct SafetensorsEntry {
  std::string code;  // of the dtype: "F32", "BF16", ...
  Shape shape;
  // From the start of the file; end - begin is what code and shape need.
  uint64_t begin = 0;
  uint64_t end = 0;
};

// How many bytes the header takes, its length included, of a file of `file_bytes` that begins with `start`, its first 8
// bytes (or all, if it has fewer). INVALID_ARGUMENT for a header beyond the file or over 100 MB.
absl::StatusOr<uint64_t> SafetensorsHeaderBytes(absl::string_view start, uint64_t file_bytes);

// The tensors by name, from the SafetensorsHeaderBytes() first bytes of the file; "__metadata__" is left out. The
// errors are Safetensors::Parse's, but that every dtype of the format is known.
absl::StatusOr<std::map<std::string, SafetensorsEntry>> ParseSafetensorsHeader(absl::string_view header,
                                                                               uint64_t file_bytes);

// A file that was read and found well-formed. Immutable.
class Safetensors {
 public:
  struct Entry {
    DType dtype = DType::kF32;
    Shape shape;
    size_t begin = 0;  // bytes from the start of the file
    size_t end = 0;
  };

  // `file` is the whole file. INVALID_ARGUMENT naming the tensor for anything that is not well-formed: a header length
  // beyond the file or over 100 MB, JSON that is wrong, a key twice, a dtype this build does not know, a size that does
  // not agree with dtype and shape, offsets out of range, tensors that overlap, or bytes that belong to none.
  static absl::StatusOr<Safetensors> Parse(std::string file);

  // By name; "__metadata__" is left out.
  const std::map<std::string, Entry>& entries() const { return entries_; }
  absl::string_view Bytes(const Entry& entry) const {
    return absl::string_view(file_).substr(entry.begin, entry.end - entry.begin);
  }

 private:
  Safetensors(std::string file, std::map<std::string, Entry> entries)
      : file_(std::move(file)), entries_(std::move(entries)) {}
  std::string file_;
  std::map<std::string, Entry> entries_;
};

}  // namespace ampd

#endif  // AMPD_ENGINE_CORE_SAFETENSORS_H_
