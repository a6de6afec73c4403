// ONNX models whose tensors lie in files beside the model's (TensorProto.external_data,
// https://github.com/onnx/onnx/blob/main/docs/ExternalData.md), as PyTorch's exporter writes net.onnx and
// net.onnx.data. Bytes are hostile: a location leads nowhere but to the model's folder and beneath, and sizes are
// checked before memory is taken. A "checksum" there is not looked at, by ONNX's own readers neither.
#ifndef AMPD_PROTO_ONNX_EXTERNAL_DATA_H_
#define AMPD_PROTO_ONNX_EXTERNAL_DATA_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace onnx {
class ModelProto;
}

namespace ampd {

// No model has more bytes, those of its tensors elsewhere among them: what one protobuf message can hold.
inline constexpr int64_t kMostOnnxBytes = (int64_t{1} << 31) - 1;

// The key without which no tensor lies elsewhere: a file that does not hold these bytes needs no other.
inline constexpr char kExternalLocationKey[] = "location";

// What one tensor takes of a file.
struct ExternalPart {
  // Relative to the model's folder: not empty, at most 4,096 bytes, not absolute; no part of it is "..", and it holds
  // no zero byte.
  std::string location;
  int64_t offset = 0;
  // All that follows `offset` where it is not told.
  std::optional<int64_t> length;
  int64_t most_bytes = kMostOnnxBytes;

  // How long the part is in a file of `size` bytes. DATA_LOSS: the file ends before; OUT_OF_RANGE: above `most_bytes`.
  absl::StatusOr<int64_t> LengthWithin(int64_t size) const;
};

// The bytes of a part. NOT_FOUND where there is no such file; other errors name it.
using ReadPart = std::function<absl::StatusOr<std::string>(const ExternalPart& part)>;

// Whether an initializer of the model's own graph is wanted.
using IsNeeded = std::function<bool(const std::string& initializer)>;

// Puts into the tensors of `model`, in its graphs, branches and functions, what they have elsewhere; true where there
// was such a one. Initializers of its own graph that are not `needed` (null: all are) stay as they are, and so do
// tensors whose file is not there, for who reads them to refuse. `model_bytes`: of the file that `model` was read from.
// Errors name the tensor: INVALID_ARGUMENT for a place that may not or cannot be, and `read`'s.
absl::StatusOr<bool> TakeExternalData(int64_t model_bytes, const IsNeeded& needed, const ReadPart& read,
                                      ::onnx::ModelProto* model);

// The model's file as one that needs no other: `bytes`, its own, with what all its tensors have elsewhere; nullopt
// where there is nothing to take, and where the bytes are no model. Errors are TakeExternalData()'s.
absl::StatusOr<std::optional<std::string>> JoinExternalData(std::string bytes, const ReadPart& read);

}  // namespace ampd

#endif  // AMPD_PROTO_ONNX_EXTERNAL_DATA_H_
