// ONNX's tensors and element types as the engine's. Internal to the importer.
#ifndef AMPD_ENGINE_MODELS_ONNX_TENSOR_PROTO_H_
#define AMPD_ENGINE_MODELS_ONNX_TENSOR_PROTO_H_

#include <onnx/onnx_pb.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/core/tensor.h"

namespace ampd::models::onnx {

// ONNX's name of an element type, or its number where ONNX 1.12 has none.
std::string ElementTypeName(int element_type);

// UNIMPLEMENTED for a type that the engine has not.
absl::StatusOr<DType> ToDType(int element_type);

// INVALID_ARGUMENT when the data do not fit the extents; UNIMPLEMENTED for external data and unknown types.
absl::StatusOr<std::shared_ptr<const Tensor>> ToTensor(const ::onnx::TensorProto& proto);

}  // namespace ampd::models::onnx

#endif  // AMPD_ENGINE_MODELS_ONNX_TENSOR_PROTO_H_
