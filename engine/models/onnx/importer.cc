#include "engine/models/onnx/importer.h"

#include <google/protobuf/unknown_field_set.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "engine/models/onnx/tensor_proto.h"
#include "engine/ops/op_def.h"
#include "engine/passes/dead_nodes.h"

namespace ampd::models::onnx {
namespace {

// Calls of functions may multiply nodes, so nodes are counted as they are translated.
constexpr int64_t kMaxNodes = 1 << 18;
// Of functions and branches within each other, and of nodes between an input and a constant that follows from it.
constexpr int kMaxDepth = 64;
constexpr int kMaxRecipeDepth = 1000;

const std::vector<int64_t> kFilterInMemory = {0, 2, 3, 1};

// Fields that came after ONNX 1.12, by number.
constexpr int kOverloadOfNode = 8;
constexpr int kDefaultsOfFunction = 11;
constexpr int kOverloadOfFunction = 13;

// What of a message is kept of field `number`, of strings or messages.
template <typename Message>
std::vector<std::string> NewerField(const Message& message, int number) {
  std::vector<std::string> values;
  const google::protobuf::UnknownFieldSet& fields = message.unknown_fields();
  for (int i = 0; i < fields.field_count(); ++i) {
    const google::protobuf::UnknownField& field = fields.field(i);
    if (field.number() != number || field.type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) continue;
    values.push_back(field.length_delimited());
  }
  return values;
}

// Of functions of one domain and name; "" where there is none.
template <typename Message>
std::string OverloadOf(const Message& message, int number) {
  const std::vector<std::string> values = NewerField(message, number);
  return values.empty() ? "" : values.back();
}

absl::StatusOr<Function> Read(const ::onnx::FunctionProto& proto) {
  Function function{&proto, {}};
  for (const std::string& bytes : NewerField(proto, kDefaultsOfFunction)) {
    ::onnx::AttributeProto attribute;
    if (!attribute.ParseFromString(bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("[onnx] function ", proto.name(), " has bytes for an attribute"));
    }
    std::string name = attribute.name();
    function.defaults[std::move(name)] = std::move(attribute);
  }
  return function;
}

// "" and "ai.onnx" are one domain.
std::string DomainOf(const std::string& name) { return name == "ai.onnx" ? "" : name; }

template <typename Ids>
std::map<std::string, int64_t> OpsetsOf(const Ids& ids) {
  std::map<std::string, int64_t> opsets;
  for (const ::onnx::OperatorSetIdProto& id : ids) opsets[DomainOf(id.domain())] = id.version();
  return opsets;
}

constexpr char kRunningMean[] = "running_mean";
constexpr char kBatchCount[] = "num_batches_tracked";

}  // namespace

V Scope::Find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer) {
    const auto it = scope->values.find(name);
    if (it != scope->values.end()) return it->second;
  }
  return nullptr;
}

Importer::Importer(const ::onnx::ModelProto& model, const ImportOptions& options)
    : model_(model),
      options_(options),
      emitter_(&result_.graph, options.max_elements, static_cast<int64_t>(model.ByteSizeLong())),
      uses_(UsesOfInitializers(model.graph())),
      // What losses are named.
      layers_({{"loss", 1}}),
      nodes_left_(kMaxNodes) {}

absl::StatusOr<ImportedModel> Importer::Run() {
  for (const ::onnx::FunctionProto& function : model_.functions()) {
    const FunctionName name{DomainOf(function.domain()), function.name(), OverloadOf(function, kOverloadOfFunction)};
    if (functions_.count(name) > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("[onnx] two functions are named ", function.domain(), ".", function.name()));
    }
    AMPD_ASSIGN_OR_RETURN(functions_[name], Read(function));
  }
  const Opsets opsets = OpsetsOf(model_.opset_import());
  const ::onnx::GraphProto& graph = model_.graph();
  // What lies behind the outputs that were not asked for may be what the engine has not, or broken.
  Reach wanted{std::vector<bool>(static_cast<size_t>(graph.node_size()), true), {}};
  const bool all = options_.outputs.empty();
  if (!all) wanted = ReachOutputs(graph, options_.outputs);
  Scope scope;
  AMPD_RETURN_IF_ERROR(AddInitializers(graph, all ? nullptr : &wanted.values, true, &scope));
  for (const ::onnx::ValueInfoProto& info : graph.input()) {
    if (uses_.count(info.name()) > 0) continue;  // an initializer's value may be overridden; it is not, here
    const bool read = all || wanted.values.count(info.name()) > 0 || options_.input_shapes.count(info.name()) > 0;
    if (!read) continue;
    absl::Status status = AddInput(info, &scope);
    if (!status.ok()) return Annotate(status, absl::StrCat("input \"", info.name(), "\""));
  }
  AMPD_RETURN_IF_ERROR(Translate(graph.node(), wanted.nodes, opsets, &scope));
  AMPD_RETURN_IF_ERROR(AddOutputs(scope));
  AMPD_ASSIGN_OR_RETURN(result_.graph, passes::RemoveDeadNodes(std::move(result_.graph)));
  AMPD_RETURN_IF_ERROR(ops::VerifyGraph(result_.graph));
  return std::move(result_);
}

absl::Status Importer::AddInitializers(const ::onnx::GraphProto& graph, const std::set<std::string>* wanted, bool main,
                                       Scope* scope) {
  const auto passed_over = [&](const std::string& name) { return wanted != nullptr && wanted->count(name) == 0; };
  for (const ::onnx::SparseTensorProto& proto : graph.sparse_initializer()) {
    if (!passed_over(proto.values().name())) return absl::UnimplementedError("[onnx] sparse initializers");
  }
  for (const ::onnx::TensorProto& proto : graph.initializer()) {
    if (passed_over(proto.name())) continue;
    if (scope->values.count(proto.name()) > 0) {
      return absl::InvalidArgumentError(absl::StrCat("[onnx] two initializers are named \"", proto.name(), "\""));
    }
    if (main && options_.is_parameter != nullptr && options_.is_parameter(proto.name())) {
      AMPD_ASSIGN_OR_RETURN(scope->values[proto.name()], AddParameter(proto));
      continue;
    }
    AMPD_ASSIGN_OR_RETURN(TensorPtr tensor, ToTensor(proto));
    scope->values[proto.name()] = emitter_.Known(std::move(tensor));
  }
  return absl::OkStatus();
}

// A filter that only convolutions read is kept as they read it; on disk it stays what it is in the model.
absl::StatusOr<V> Importer::AddParameter(const ::onnx::TensorProto& proto) {
  AMPD_ASSIGN_OR_RETURN(TensorPtr tensor, ToTensor(proto));
  if (tensor->dtype() != DType::kF32 || tensor->size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("[onnx] parameter \"", proto.name(), "\" is ",
                                                   DTypeName(tensor->dtype()), ShapeString(tensor->shape()),
                                                   ", only f32 is trained"));
  }
  const std::string name = tensor_names_.Take(proto.name());
  const auto found = uses_.find(proto.name());
  const std::vector<InitializerUse>& uses = found == uses_.end() ? std::vector<InitializerUse>{} : found->second;
  if (options_.updates_statistic != nullptr && AreStatistics(uses)) {
    return AddStatistic(name, std::move(tensor), uses[0].input == kMeanInput);
  }
  const bool filter = tensor->shape().size() == 4 && AreFilters(uses);
  const V permuted = filter ? emitter_.Transpose(emitter_.Known(tensor), kFilterInMemory) : emitter_.Known(tensor);
  const ir::ValueId id = result_.graph.AddParameter(
      {.name = name, .type = permuted->type, .layout = filter ? ir::DiskLayout::kConvFilter : ir::DiskLayout::kSame});
  result_.parameter_values.push_back(permuted->host);
  V parameter = filter ? emitter_.FromImage(id) : emitter_.FromGraph(id);
  // Whoever needs a constant takes it as it is in the file.
  parameter->specialised = std::move(tensor);
  return parameter;
}

// The count of batches is named as PyTorch names it beside a running mean.
V Importer::AddStatistic(const std::string& name, TensorPtr tensor, bool mean) {
  const ir::ValueId id = result_.graph.AddState({.name = name, .type = {tensor->dtype(), tensor->shape()}});
  result_.state_values.push_back(std::move(tensor));
  if (mean) {
    const bool torch = absl::EndsWith(name, kRunningMean);
    const std::string count = absl::StrCat(absl::StripSuffix(name, kRunningMean), torch ? "" : ".", kBatchCount);
    batches_[id] =
        emitter_.FromGraph(result_.graph.AddState({.name = tensor_names_.Take(count), .type = {DType::kI64, {}}}));
    result_.state_values.push_back(nullptr);
  }
  return emitter_.FromGraph(id);
}

absl::Status Importer::AddInput(const ::onnx::ValueInfoProto& info, Scope* scope) {
  if (!info.type().has_tensor_type()) return absl::UnimplementedError("[onnx] an input that is no tensor");
  const ::onnx::TypeProto::Tensor& type = info.type().tensor_type();
  AMPD_ASSIGN_OR_RETURN(const DType dtype, ToDType(type.elem_type()));
  Shape shape;
  const auto given = options_.input_shapes.find(info.name());
  if (given != options_.input_shapes.end()) {
    shape = given->second;
  } else {
    if (!type.has_shape()) return absl::FailedPreconditionError("[onnx] its shape has to be given");
    for (const auto& dim : type.shape().dim()) {
      if (!dim.has_dim_value()) return absl::FailedPreconditionError("[onnx] its shape is open and has to be given");
      shape.push_back(dim.dim_value());
    }
  }
  double elements = 1;
  bool empty = false;
  for (int64_t extent : shape) {
    if (extent < 0) return absl::InvalidArgumentError(absl::StrCat("[onnx] has the shape ", ShapeString(shape)));
    empty = empty || extent == 0;
    elements *= static_cast<double>(std::max<int64_t>(extent, 1));
  }
  if (elements > options_.max_elements) {
    return absl::ResourceExhaustedError(absl::StrCat("[onnx] has the shape ", ShapeString(shape)));
  }
  if (empty) {
    scope->values[info.name()] = emitter_.Known(std::make_shared<Tensor>(dtype, shape));
    return absl::OkStatus();
  }
  AMPD_ASSIGN_OR_RETURN(V v, MakeInput(info.name(), {dtype, shape}));
  const auto value = options_.input_values.find(info.name());
  if (value != options_.input_values.end()) {
    if (value->second->dtype() != dtype || value->second->shape() != shape) {
      return absl::InvalidArgumentError("[onnx] the value given is of another type");
    }
    v->specialised = value->second;
  }
  scope->values[info.name()] = v;
  return absl::OkStatus();
}

absl::StatusOr<V> Importer::MakeInput(const std::string& name, ir::TensorType type) {
  if (options_.image_inputs.count(name) == 0) return emitter_.FromGraph(result_.graph.AddInput(name, std::move(type)));
  const Shape& s = type.shape;
  if (s.size() != 4) return absl::InvalidArgumentError(absl::StrCat("[onnx] ", ShapeString(s), " is no image"));
  return emitter_.FromImage(result_.graph.AddInput(name, {type.dtype, {s[0], s[2], s[3], s[1]}}));
}

absl::Status Importer::Translate(const google::protobuf::RepeatedPtrField<::onnx::NodeProto>& nodes,
                                 const std::vector<bool>& wanted, const Opsets& opsets, Scope* scope) {
  for (int i = 0; i < nodes.size(); ++i) {
    if (!wanted[static_cast<size_t>(i)]) continue;
    const ::onnx::NodeProto& proto = nodes[i];
    absl::Status status = TranslateNode(proto, opsets, scope);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat(proto.op_type(), proto.name().empty() ? "" : " ", proto.name()));
    }
  }
  return absl::OkStatus();
}

absl::Status Importer::TranslateNode(const ::onnx::NodeProto& proto, const Opsets& opsets, Scope* scope) {
  if (--nodes_left_ < 0) return absl::ResourceExhaustedError("[onnx] the model has too many nodes");
  std::vector<V> inputs;
  for (const std::string& name : proto.input()) {
    V v = name.empty() ? nullptr : scope->Find(name);
    if (!name.empty() && v == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("[onnx] reads \"", name, "\", which nothing before it writes"));
    }
    inputs.push_back(v);
  }
  const auto function =
      functions_.find({DomainOf(proto.domain()), proto.op_type(), OverloadOf(proto, kOverloadOfNode)});
  if (function != functions_.end()) return CallFunction(proto, function->second, inputs, scope);
  return CallRule(proto, opsets, std::move(inputs), scope);
}

Node::Services Importer::ServicesFor(const Opsets& opsets, const Scope* scope) {
  Node::Services services;
  services.options = &options_;
  services.torch = model_.producer_name() == "pytorch";
  services.in_function = calls_ > 0;
  services.specialise = [this](V v) { return Specialise(v, 0); };
  services.batches = [this](V mean) -> V {
    const auto known = batches_.find(mean->ir);
    return known == batches_.end() ? nullptr : known->second;
  };
  services.find = [scope](const std::string& name) { return scope == nullptr ? nullptr : scope->Find(name); };
  services.inline_graph = [this, opsets, scope](const ::onnx::GraphProto& graph) -> absl::StatusOr<std::vector<V>> {
    if (scope == nullptr) return absl::FailedPreconditionError("[onnx] branches are translated once");
    return InlineGraph(graph, opsets, *scope);
  };
  return services;
}

absl::Status Importer::CallRule(const ::onnx::NodeProto& proto, const Opsets& opsets, std::vector<V> inputs,
                                Scope* scope) {
  const Rule* rule = FindRule(proto.domain(), proto.op_type());
  if (rule == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("[onnx] operation ", proto.domain(), proto.domain().empty() ? "" : ".", proto.op_type()));
  }
  const auto opset = opsets.find(DomainOf(proto.domain()));
  if (opset == opsets.end())
    return absl::InvalidArgumentError("[onnx] the model imports no operator set of its domain");
  Recipe recipe{&proto, rule, opset->second, inputs};
  Node::Services services = ServicesFor(opsets, scope);
  services.layer = LayerOf(proto);
  emitter_.SetLayer(services.layer);
  Node node(proto, opset->second, std::move(inputs), &emitter_, std::move(services));
  for (int i = 0; i < rule->least_inputs; ++i) {
    if (!node.Has(i)) return node.Bad(absl::StrCat("input ", i, " is missing"));
  }
  for (int i = 0; i < node.inputs() && !rule->takes_empty; ++i) {
    const auto empty = [&] { return std::count(node.shape(i).begin(), node.shape(i).end(), 0) > 0; };
    if (node.Has(i) && empty()) return node.Unsupported(absl::StrCat("input ", i, " without elements"));
  }
  absl::Status status = rule->translate(node);
  status.Update(emitter_.TakeStatus());
  AMPD_RETURN_IF_ERROR(status);
  bool of_shape = proto.op_type() == "Shape" || proto.op_type() == "Size";
  for (V input : recipe.inputs) of_shape = of_shape || (input != nullptr && input->of_shape);
  for (int i = 0; i < node.outputs(); ++i) {
    if (!node.Wants(i)) continue;
    V v = node.results()[i];
    if (v == nullptr) return node.Unsupported(absl::StrCat("output ", i));
    v->of_shape = v->of_shape || (of_shape && v->host != nullptr);
    if (v->host == nullptr && v->recipe == nullptr && v->specialised == nullptr) {
      recipe.output = i;
      recipes_.push_back(recipe);
      v->recipe = &recipes_.back();
    }
    scope->values[proto.output(i)] = v;
  }
  return absl::OkStatus();
}

absl::Status Importer::CallFunction(const ::onnx::NodeProto& call, const Function& called, const std::vector<V>& inputs,
                                    Scope* scope) {
  const ::onnx::FunctionProto& function = *called.proto;
  if (depth_ >= kMaxDepth) return absl::InvalidArgumentError("[onnx] functions call each other too deeply");
  if (static_cast<int>(inputs.size()) > function.input_size() || call.output_size() > function.output_size()) {
    return absl::InvalidArgumentError("[onnx] the call has more inputs or outputs than the function");
  }
  const Opsets opsets = OpsetsOf(function.opset_import());
  Scope body;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] != nullptr) body.values[function.input(static_cast<int>(i))] = inputs[i];
  }
  ++depth_;
  ++calls_;
  absl::Status status;
  for (const ::onnx::NodeProto& node : function.node()) {
    copies_.push_back(node);
    ::onnx::NodeProto& copy = copies_.back();
    copy.clear_attribute();
    for (const ::onnx::AttributeProto& attribute : node.attribute()) {
      if (attribute.ref_attr_name().empty()) {
        *copy.add_attribute() = attribute;
        continue;
      }
      const auto fill = [&](const ::onnx::AttributeProto& with) {
        ::onnx::AttributeProto* filled = copy.add_attribute();
        *filled = with;
        filled->set_name(attribute.name());
      };
      const std::string& name = attribute.ref_attr_name();
      const auto given = std::find_if(call.attribute().begin(), call.attribute().end(),
                                      [&](const ::onnx::AttributeProto& a) { return a.name() == name; });
      const auto fallback = called.defaults.find(name);
      if (given != call.attribute().end()) {
        fill(*given);
      } else if (fallback != called.defaults.end()) {
        fill(fallback->second);
      }
    }
    for (std::string& name : *copy.mutable_input()) {
      // An input that the call leaves out is left out in the body too.
      const auto is_input = std::find(function.input().begin(), function.input().end(), name);
      if (is_input != function.input().end() && body.Find(name) == nullptr) name.clear();
    }
    status = Annotate(TranslateNode(copy, opsets, &body), absl::StrCat("in ", call.op_type()));
    if (!status.ok()) break;
  }
  --calls_;
  --depth_;
  AMPD_RETURN_IF_ERROR(status);
  for (int i = 0; i < call.output_size(); ++i) {
    V v = body.Find(function.output(i));
    if (!call.output(i).empty() && v == nullptr) return absl::InvalidArgumentError("[onnx] an output is never written");
    if (v != nullptr) scope->values[call.output(i)] = v;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<V>> Importer::InlineGraph(const ::onnx::GraphProto& graph, const Opsets& opsets,
                                                     const Scope& outer) {
  if (depth_ >= kMaxDepth) return absl::InvalidArgumentError("[onnx] branches stand too deep within each other");
  Scope scope{&outer, {}};
  AMPD_RETURN_IF_ERROR(AddInitializers(graph, nullptr, false, &scope));
  ++depth_;
  const std::vector<bool> all(static_cast<size_t>(graph.node_size()), true);
  absl::Status status = Translate(graph.node(), all, opsets, &scope);
  --depth_;
  AMPD_RETURN_IF_ERROR(status);
  std::vector<V> outputs;
  for (const ::onnx::ValueInfoProto& info : graph.output()) {
    V v = scope.Find(info.name());
    if (v == nullptr) return absl::InvalidArgumentError(absl::StrCat("[onnx] nothing writes \"", info.name(), "\""));
    outputs.push_back(v);
  }
  return outputs;
}

// Does what a node does once more, on what its inputs are known to be; the graph's nodes that this may add are dead.
TensorPtr Importer::Specialise(V v, int depth) {
  if (v->host != nullptr) return v->host;
  if (v->specialised != nullptr || v->recipe == nullptr || depth > kMaxRecipeDepth) return v->specialised;
  const Recipe* recipe = v->recipe;
  std::vector<V> inputs;
  for (V input : recipe->inputs) {
    TensorPtr tensor = input == nullptr ? nullptr : Specialise(input, depth + 1);
    if (input != nullptr && tensor == nullptr) return nullptr;
    inputs.push_back(input == nullptr ? nullptr : emitter_.Known(std::move(tensor)));
  }
  Node::Services services = ServicesFor({}, nullptr);
  services.specialise = [](V known) { return known->host; };
  Node node(*recipe->node, recipe->opset, std::move(inputs), &emitter_, std::move(services));
  absl::Status before = emitter_.TakeStatus();
  absl::Status status = recipe->rule->translate(node);
  status.Update(emitter_.TakeStatus());
  emitter_.Fail(before);
  const V result = status.ok() ? node.results()[recipe->output] : nullptr;
  if (result != nullptr) v->specialised = result->host;
  return v->specialised;
}

absl::Status Importer::AddOutputs(const Scope& scope) {
  for (const std::string& name : options_.outputs) AMPD_RETURN_IF_ERROR(AddOutput(scope, name));
  if (!options_.outputs.empty()) return absl::OkStatus();
  for (const ::onnx::ValueInfoProto& info : model_.graph().output()) {
    AMPD_RETURN_IF_ERROR(AddOutput(scope, info.name()));
  }
  return absl::OkStatus();
}

absl::Status Importer::AddOutput(const Scope& scope, const std::string& name) {
  V v = scope.Find(name);
  if (v == nullptr) return absl::InvalidArgumentError(absl::StrCat("[onnx] nothing writes output \"", name, "\""));
  const bool image = options_.image_outputs.count(name) > 0 && Emitter::Rank(v) == 4;
  result_.graph.outputs[name] = image ? emitter_.ImageId(v) : emitter_.Id(v);
  return emitter_.TakeStatus();
}

std::string Importer::LayerOf(const ::onnx::NodeProto& proto) {
  std::string layer = Printable(proto.name());
  for (int i = 0; layer.empty() && i < proto.output_size(); ++i) layer = Printable(proto.output(i));
  if (layer.empty()) layer = Printable(proto.op_type());
  for (int repeat = layers_[layer]++; repeat > 0; repeat = layers_[layer]++) absl::StrAppend(&layer, "#", repeat);
  result_.layers.push_back({layer, Printable(proto.op_type())});
  return layer;
}

}  // namespace ampd::models::onnx
