#include "engine/models/onnx/import.h"

#include <google/protobuf/io/coded_stream.h>
#include <onnx/onnx_pb.h>

#include <limits>
#include <utility>

#include "engine/core/status.h"
#include "engine/models/onnx/importer.h"
#include "engine/models/onnx/initializers.h"
#include "engine/models/onnx/tensor_proto.h"

namespace ampd::models::onnx {
namespace {

template <typename Proto>
absl::Status ParseProto(absl::string_view bytes, absl::string_view what, Proto* proto) {
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("[onnx] ", what, " of ", bytes.size(), " bytes"));
  }
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const uint8_t*>(bytes.data()),
                                                static_cast<int>(bytes.size()));
  if (proto->ParseFromCodedStream(&stream) && stream.ConsumedEntireMessage()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("[onnx] ", bytes.size(), " bytes that are no ", what));
}

ModelValue Describe(const ::onnx::ValueInfoProto& info) {
  ModelValue value{.name = info.name()};
  const ::onnx::TypeProto& type = info.type();
  if (!type.has_tensor_type()) {
    value.element_type = type.has_sequence_type() ? "SEQUENCE" : type.has_optional_type() ? "OPTIONAL" : "MAP";
    return value;
  }
  value.element_type = ElementTypeName(type.tensor_type().elem_type());
  value.has_shape = type.tensor_type().has_shape();
  for (const auto& dim : type.tensor_type().shape().dim()) {
    value.shape.push_back(dim.has_dim_value() ? dim.dim_value() : -1);
  }
  return value;
}

}  // namespace

struct Model::Impl {
  ::onnx::ModelProto proto;
  // Initializers that were Constant nodes.
  std::set<std::string> lifted;
};

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

absl::StatusOr<NamedTensor> ParseTensor(absl::string_view bytes) {
  ::onnx::TensorProto proto;
  AMPD_RETURN_IF_ERROR(ParseProto(bytes, "tensor", &proto));
  AMPD_ASSIGN_OR_RETURN(std::shared_ptr<const Tensor> tensor, ToTensor(proto));
  return NamedTensor{proto.name(), std::move(tensor)};
}

absl::StatusOr<Model> Model::Parse(absl::string_view bytes, const ReadPart& read,
                                   const std::vector<std::string>& outputs) {
  auto impl = std::make_unique<Impl>();
  AMPD_RETURN_IF_ERROR(ParseProto(bytes, "model", &impl->proto));
  if (!impl->proto.has_graph()) return absl::InvalidArgumentError("[onnx] the model has no graph");
  if (read != nullptr) {
    const Reach reach = ReachOutputs(impl->proto.graph(), outputs);
    const auto needed = [&](const std::string& name) { return outputs.empty() || reach.values.count(name) > 0; };
    AMPD_RETURN_IF_ERROR(TakeExternalData(static_cast<int64_t>(bytes.size()), needed, read, &impl->proto).status());
  }
  impl->lifted = LiftConstantWeights(&impl->proto);
  AMPD_RETURN_IF_ERROR(GiveIdentitiesTheirOwn(impl->proto.mutable_graph()));
  return Model(std::move(impl));
}

std::vector<ModelValue> Model::inputs(const std::vector<std::string>& outputs) const {
  std::set<std::string> initialized;
  const Reach reach = ReachOutputs(impl_->proto.graph(), outputs);
  for (const ::onnx::TensorProto& tensor : impl_->proto.graph().initializer()) initialized.insert(tensor.name());
  std::vector<ModelValue> values;
  for (const ::onnx::ValueInfoProto& info : impl_->proto.graph().input()) {
    values.push_back(Describe(info));
    values.back().initialized = initialized.count(info.name()) > 0;
    values.back().read = outputs.empty() || reach.values.count(info.name()) > 0;
  }
  return values;
}

std::vector<ModelValue> Model::outputs() const {
  std::vector<ModelValue> values;
  for (const ::onnx::ValueInfoProto& info : impl_->proto.graph().output()) values.push_back(Describe(info));
  return values;
}

std::vector<FloatInitializer> Model::FloatInitializers(const std::vector<std::string>& outputs) const {
  std::vector<FloatInitializer> list = FloatInitializersOf(impl_->proto, outputs);
  for (FloatInitializer& f : list) f.constant_node = impl_->lifted.count(f.name) > 0;
  return list;
}

std::vector<FloatInitializer> Model::FrozenWeights(const std::vector<std::string>& outputs) const {
  return FrozenWeightsOf(impl_->proto, outputs);
}

std::string Model::LastOperation(const std::string& output) const {
  return LastOperationOf(impl_->proto.graph(), output);
}

std::set<std::string> Model::Trainable(const std::vector<std::string>& outputs) const {
  std::set<std::string> names;
  for (FloatInitializer& f : FloatInitializers(outputs)) {
    if (f.parameter) names.insert(std::move(f.name));
  }
  return names;
}

absl::StatusOr<ImportedModel> Model::Import(const ImportOptions& options) const {
  return Importer(impl_->proto, options).Run();
}

}  // namespace ampd::models::onnx
