#include "engine/models/onnx/tensor_proto.h"

#include <cstring>
#include <limits>
#include <utility>

#include "engine/core/status.h"
#include "proto/spec/names.h"

namespace ampd::models::onnx {
namespace {

using Proto = ::onnx::TensorProto;

// Numbers that came after ONNX 1.12.
constexpr int kFloat8E4M3Fn = 17;
constexpr int kFloat8E5M2 = 19;
constexpr int kMaxAxes = 32;

struct ElementType {
  int number;
  DType dtype;
};
constexpr ElementType kElementTypes[] = {
    {Proto::FLOAT, DType::kF32},     {Proto::FLOAT16, DType::kF16}, {Proto::BFLOAT16, DType::kBF16},
    {kFloat8E4M3Fn, DType::kF8E4M3}, {kFloat8E5M2, DType::kF8E5M2}, {Proto::INT32, DType::kI32},
    {Proto::INT64, DType::kI64},     {Proto::UINT8, DType::kU8},    {Proto::BOOL, DType::kBool},
};

absl::Status Bad(const Proto& proto, const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat("[onnx] tensor \"", proto.name(), "\" ", message));
}

// Extents and their product, none of which overflows.
absl::StatusOr<Shape> ShapeOf(const Proto& proto) {
  if (proto.dims_size() > kMaxAxes) return Bad(proto, absl::StrCat("has ", proto.dims_size(), " axes"));
  Shape shape(proto.dims().begin(), proto.dims().end());
  double elements = 1;
  for (int64_t extent : shape) {
    if (extent < 0) return Bad(proto, absl::StrCat("has extents ", ShapeString(shape)));
    elements *= static_cast<double>(std::max<int64_t>(extent, 1));
  }
  if (elements > 1e15) return Bad(proto, absl::StrCat("has extents ", ShapeString(shape)));
  return shape;
}

template <typename T, typename Field>
absl::Status Copy(const Proto& proto, const Field& field, const Shape& shape, DType dtype,
                  std::shared_ptr<Tensor>* tensor) {
  if (field.size() != NumElements(shape)) {
    return Bad(proto, absl::StrCat("has ", field.size(), " numbers for extents ", ShapeString(shape)));
  }
  *tensor = std::make_shared<Tensor>(dtype, shape);
  T* to = (*tensor)->as<T>().data();
  for (int64_t i = 0; i < field.size(); ++i) to[i] = static_cast<T>(field[static_cast<int>(i)]);
  return absl::OkStatus();
}

absl::Status CopyRaw(const Proto& proto, const Shape& shape, DType dtype, std::shared_ptr<Tensor>* tensor) {
  const std::string& raw = proto.raw_data();
  if (static_cast<int64_t>(raw.size()) != NumElements(shape) * SizeOf(dtype)) {
    return Bad(proto,
               absl::StrCat("has ", raw.size(), " bytes for extents ", ShapeString(shape), " of ", DTypeName(dtype)));
  }
  *tensor = std::make_shared<Tensor>(dtype, shape);
  if (!raw.empty()) std::memcpy((*tensor)->view().data, raw.data(), raw.size());
  return absl::OkStatus();
}

absl::Status CopyTyped(const Proto& proto, const Shape& shape, DType dtype, std::shared_ptr<Tensor>* tensor) {
  switch (dtype) {
    case DType::kF32:
      return Copy<float>(proto, proto.float_data(), shape, dtype, tensor);
    case DType::kI64:
      return Copy<int64_t>(proto, proto.int64_data(), shape, dtype, tensor);
    case DType::kI32:
      return Copy<int32_t>(proto, proto.int32_data(), shape, dtype, tensor);
    case DType::kF16:
    case DType::kBF16:
      return Copy<uint16_t>(proto, proto.int32_data(), shape, dtype, tensor);
    default:
      return Copy<uint8_t>(proto, proto.int32_data(), shape, dtype, tensor);
  }
}

// ", in FILE".
std::string LocationOf(const ::onnx::TensorProto& proto) {
  for (const ::onnx::StringStringEntryProto& entry : proto.external_data()) {
    if (entry.key() == "location") return absl::StrCat(", in ", Quoted(entry.value()));
  }
  return "";
}

}  // namespace

std::string ElementTypeName(int element_type) {
  if (element_type == kFloat8E4M3Fn) return "FLOAT8E4M3FN";
  if (element_type == kFloat8E5M2) return "FLOAT8E5M2";
  if (!::onnx::TensorProto_DataType_IsValid(element_type)) return absl::StrCat("type ", element_type);
  return ::onnx::TensorProto_DataType_Name(static_cast<Proto::DataType>(element_type));
}

absl::StatusOr<DType> ToDType(int element_type) {
  for (const ElementType& type : kElementTypes) {
    if (type.number == element_type) return type.dtype;
  }
  return absl::UnimplementedError(absl::StrCat("[onnx] element type ", ElementTypeName(element_type)));
}

absl::StatusOr<std::shared_ptr<const Tensor>> ToTensor(const ::onnx::TensorProto& proto) {
  if (proto.data_location() == Proto::EXTERNAL) {
    return absl::InvalidArgumentError(absl::StrCat(
        "[onnx] tensor ", Quoted(proto.name()), " lies outside the model's file", LocationOf(proto), ", which ",
        "is not there: it belongs beside that file, where `ampctl submit` finds it too; or export with ",
        "external_data=False, or have onnx.save_model(onnx.load(path), path) put it into the file"));
  }
  if (proto.has_segment()) return Bad(proto, "is one segment of several");
  AMPD_ASSIGN_OR_RETURN(const DType dtype, ToDType(proto.data_type()));
  AMPD_ASSIGN_OR_RETURN(const Shape shape, ShapeOf(proto));
  std::shared_ptr<Tensor> tensor;
  AMPD_RETURN_IF_ERROR(proto.has_raw_data() ? CopyRaw(proto, shape, dtype, &tensor)
                                            : CopyTyped(proto, shape, dtype, &tensor));
  if (dtype == DType::kBool) {
    for (uint8_t& b : tensor->as<uint8_t>()) b = b != 0;
  }
  return std::shared_ptr<const Tensor>(std::move(tensor));
}

}  // namespace ampd::models::onnx
