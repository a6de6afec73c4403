// Short ways to write ONNX models down.
#ifndef AMPD_TESTS_UNIT_ENGINE_MODELS_ONNX_BUILD_MODEL_H_
#define AMPD_TESTS_UNIT_ENGINE_MODELS_ONNX_BUILD_MODEL_H_

#include <onnx/onnx_pb.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/models/onnx/import.h"

namespace ampd::models::onnx {

using Proto = ::onnx::TensorProto;

inline ::onnx::ModelProto EmptyModel(int64_t opset = 17) {
  ::onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(opset);
  model.mutable_graph()->set_name("g");
  return model;
}

inline void AddValue(::onnx::ValueInfoProto* info, const std::string& name, int type, std::vector<int64_t> shape) {
  info->set_name(name);
  info->mutable_type()->mutable_tensor_type()->set_elem_type(type);
  for (int64_t extent : shape) {
    auto* dim = info->mutable_type()->mutable_tensor_type()->mutable_shape()->add_dim();
    extent < 0 ? dim->set_dim_param("n") : dim->set_dim_value(extent);
  }
}

inline void AddInput(::onnx::ModelProto* model, const std::string& name, std::vector<int64_t> shape,
                     int type = Proto::FLOAT) {
  AddValue(model->mutable_graph()->add_input(), name, type, std::move(shape));
}

inline void AddOutput(::onnx::ModelProto* model, const std::string& name) {
  AddValue(model->mutable_graph()->add_output(), name, Proto::FLOAT, {});
}

inline ::onnx::NodeProto* AddNode(google::protobuf::RepeatedPtrField<::onnx::NodeProto>* nodes, const std::string& op,
                                  const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
  ::onnx::NodeProto* node = nodes->Add();
  node->set_op_type(op);
  for (const std::string& name : inputs) node->add_input(name);
  for (const std::string& name : outputs) node->add_output(name);
  return node;
}

inline ::onnx::NodeProto* AddNode(::onnx::ModelProto* model, const std::string& op,
                                  const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
  return AddNode(model->mutable_graph()->mutable_node(), op, inputs, outputs);
}

inline void SetInts(::onnx::NodeProto* node, const std::string& name, const std::vector<int64_t>& values) {
  auto* attribute = node->add_attribute();
  attribute->set_name(name);
  attribute->set_type(::onnx::AttributeProto::INTS);
  for (int64_t v : values) attribute->add_ints(v);
}

inline void SetInt(::onnx::NodeProto* node, const std::string& name, int64_t value) {
  auto* attribute = node->add_attribute();
  attribute->set_name(name);
  attribute->set_type(::onnx::AttributeProto::INT);
  attribute->set_i(value);
}

inline Proto Ints(const std::string& name, const std::vector<int64_t>& values) {
  Proto proto;
  proto.set_name(name);
  proto.set_data_type(Proto::INT64);
  proto.add_dims(static_cast<int64_t>(values.size()));
  for (int64_t v : values) proto.add_int64_data(v);
  return proto;
}

// 0, 1, 2, ...
inline Proto Floats(const std::string& name, const std::vector<int64_t>& shape) {
  Proto proto;
  proto.set_name(name);
  proto.set_data_type(Proto::FLOAT);
  int64_t size = 1;
  for (int64_t extent : shape) {
    proto.add_dims(extent);
    size *= extent;
  }
  for (int64_t i = 0; i < size; ++i) proto.add_float_data(static_cast<float>(i));
  return proto;
}

inline absl::StatusOr<ImportedModel> Import(const ::onnx::ModelProto& proto, const ImportOptions& options = {}) {
  absl::StatusOr<Model> model = Model::Parse(proto.SerializeAsString());
  if (!model.ok()) return model.status();
  return model->Import(options);
}

}  // namespace ampd::models::onnx

#endif  // AMPD_TESTS_UNIT_ENGINE_MODELS_ONNX_BUILD_MODEL_H_
