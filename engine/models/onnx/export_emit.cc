// Nodes, initializers and names of the model that is being written.
#include <cstring>
#include <utility>

#include "engine/core/half.h"
#include "engine/core/status.h"
#include "engine/models/onnx/exporter.h"

namespace ampd::models::onnx {
namespace {

void SetAttribute(const std::string& name, const ir::Attribute& value, ::onnx::NodeProto* node) {
  ::onnx::AttributeProto* attribute = node->add_attribute();
  attribute->set_name(name);
  if (const auto* i = std::get_if<int64_t>(&value)) {
    attribute->set_type(::onnx::AttributeProto::INT);
    attribute->set_i(*i);
  } else if (const auto* f = std::get_if<double>(&value)) {
    attribute->set_type(::onnx::AttributeProto::FLOAT);
    attribute->set_f(static_cast<float>(*f));
  } else if (const auto* s = std::get_if<std::string>(&value)) {
    attribute->set_type(::onnx::AttributeProto::STRING);
    attribute->set_s(*s);
  } else {
    attribute->set_type(::onnx::AttributeProto::INTS);
    for (int64_t element : std::get<std::vector<int64_t>>(value)) attribute->add_ints(element);
  }
}

// One number, [1].
Tensor OneNumber(DType dtype, double value) {
  Tensor tensor(dtype, {1});
  switch (dtype) {
    case DType::kF16:
      tensor.as<Half>()[0] = ToHalf(static_cast<float>(value));
      break;
    case DType::kBF16:
      tensor.as<BFloat16>()[0] = ToBFloat16(static_cast<float>(value));
      break;
    case DType::kI32:
      tensor.as<int32_t>()[0] = static_cast<int32_t>(value);
      break;
    case DType::kI64:
      tensor.as<int64_t>()[0] = static_cast<int64_t>(value);
      break;
    case DType::kU8:
    case DType::kBool:
      tensor.as<uint8_t>()[0] = static_cast<uint8_t>(value);
      break;
    default:
      tensor.as<float>()[0] = static_cast<float>(value);
  }
  return tensor;
}

absl::string_view BytesOf(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.view().data), static_cast<size_t>(tensor.view().bytes())};
}

}  // namespace

T Exporter::Fail(absl::Status status) {
  status_.Update(status);
  return NewTensor("", {});
}

T Exporter::NewTensor(std::string name, Dims dims, T source) {
  tensors_.push_back({std::move(name), std::move(dims), source});
  return &tensors_.back();
}

std::string Exporter::UniqueName(const std::string& name) {
  if (names_.insert(name).second) return name;
  int& next = repeats_[name];
  std::string unique;
  do {
    unique = absl::StrCat(name, "_", ++next + 1);
  } while (!names_.insert(unique).second);
  return unique;
}

T Exporter::Op(const std::string& op, const std::vector<T>& inputs, Dims dims, const ir::Attributes& attributes) {
  return Ops(op, inputs, {std::move(dims)}, {true}, attributes)[0];
}

std::vector<T> Exporter::Ops(const std::string& op, const std::vector<T>& inputs, const std::vector<Dims>& dims,
                             const std::vector<bool>& wanted, const ir::Attributes& attributes) {
  ::onnx::NodeProto& node = nodes_.emplace_back();
  node.set_op_type(op);
  for (T input : inputs) node.add_input(input == nullptr ? "" : input->name);
  std::vector<T> outputs;
  for (size_t i = 0; i < dims.size(); ++i) {
    outputs.push_back(wanted[i] ? NewTensor(UniqueName(prefix_), dims[i]) : nullptr);
    node.add_output(wanted[i] ? outputs.back()->name : "");
    if (wanted[i] && node.name().empty()) node.set_name(outputs.back()->name);
  }
  while (node.output(node.output_size() - 1).empty()) node.mutable_output()->RemoveLast();
  for (const auto& [name, value] : attributes.items()) SetAttribute(name, value, &node);
  return outputs;
}

bool Exporter::Fill(const std::string& name, DType dtype, const Shape& shape, absl::string_view bytes,
                    ::onnx::TensorProto* proto) {
  const int type = ElementTypeOf(dtype);
  if (type == 0) {
    Fail(absl::FailedPreconditionError(
        absl::StrCat("[export] ", name, " is ", DTypeName(dtype), ", which this version of ONNX has not")));
    return false;
  }
  proto->set_name(name);
  proto->set_data_type(type);
  for (int64_t extent : shape) proto->add_dims(extent);
  proto->set_raw_data(bytes.data(), bytes.size());
  return true;
}

T Exporter::Initializer(const std::string& name, DType dtype, const Shape& shape, absl::string_view bytes) {
  ::onnx::TensorProto proto;
  if (Fill(name, dtype, shape, bytes, &proto)) initializers_.push_back(std::move(proto));
  return NewTensor(name, FixedDims(shape));
}

T Exporter::ConstantNode(const std::string& name, const Tensor& tensor, const Shape& shape) {
  const std::string unique = UniqueName(name);
  ::onnx::NodeProto node;
  node.set_op_type("Constant");
  node.set_name(unique);
  node.add_output(unique);
  ::onnx::AttributeProto* value = node.add_attribute();
  value->set_name("value");
  value->set_type(::onnx::AttributeProto::TENSOR);
  if (Fill(unique, tensor.dtype(), shape, BytesOf(tensor), value->mutable_t())) nodes_.push_back(std::move(node));
  return NewTensor(unique, FixedDims(shape));
}

T Exporter::Constant(const std::string& name, const Tensor& tensor) {
  return ConstantNode(name, tensor, tensor.shape());
}

T Exporter::Ints(const std::vector<int64_t>& values, const std::string& hint) {
  Tensor tensor(DType::kI64, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.as<int64_t>().begin());
  T& known = shared_[absl::StrCat("ints:", BytesOf(tensor))];
  return known != nullptr ? known : known = Constant(hint, tensor);
}

T Exporter::Scalar(DType dtype, double value) {
  const Tensor tensor = OneNumber(dtype, value);
  T& known = shared_[absl::StrCat(DTypeName(dtype), ":", BytesOf(tensor))];
  return known != nullptr ? known : known = ConstantNode("constant", tensor, Shape());
}

}  // namespace ampd::models::onnx
