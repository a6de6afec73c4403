#include "engine/models/onnx/exporter.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "engine/core/status.h"
#include "engine/models/onnx/initializers.h"

namespace ampd::models::onnx {
namespace {

using ir::OpKind;
using ir::ValueId;
using ir::ValueKind;

// The newest operator set that ONNX 1.12 knows, and the format that goes with it.
constexpr int64_t kOpset = 17;
constexpr int64_t kIrVersion = 8;

constexpr char kBatch[] = "batch";

}  // namespace

Exporter::Exporter(const ir::Graph& graph, const ir::Graph& twin, const ExportOptions& options)
    : graph_(graph), twin_(twin), options_(options) {}

absl::StatusOr<std::string> Exporter::Run() {
  AMPD_RETURN_IF_ERROR(CheckTwin());
  CountUses();
  AMPD_RETURN_IF_ERROR(AddInputs());
  for (const ir::Node& node : graph_.nodes) {
    if (written_.count(&node) > 0) continue;
    AMPD_RETURN_IF_ERROR(WriteNode(node));
  }
  AMPD_RETURN_IF_ERROR(AddOutputs());
  return Finish();
}

absl::Status Exporter::CheckTwin() {
  const auto differ = [](absl::string_view what) {
    return absl::InternalError(absl::StrCat("[export] a graph and its twin differ in their ", what));
  };
  if (graph_.values.size() != twin_.values.size() || graph_.nodes.size() != twin_.nodes.size()) return differ("sizes");
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    const ir::Value &a = graph_.values[v], &b = twin_.values[v];
    if (a.kind != b.kind || a.slot != b.slot || a.type.dtype != b.type.dtype ||
        a.type.shape.size() != b.type.shape.size()) {
      return differ(absl::StrCat("values: ", a.name, " and ", b.name));
    }
  }
  if (!options_.inputs.empty()) {
    const ValueId first = graph_.FindInput(options_.inputs[0].value);
    if (first < 0) return differ("inputs");
    const Shape &ours = graph_.type(first).shape, &theirs = twin_.type(first).shape;
    batch_ = ours.empty() ? 0 : ours[0];
    twin_batch_ = theirs.empty() ? 0 : theirs[0];
  }
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    AMPD_RETURN_IF_ERROR(CheckNodes(graph_.nodes[i], twin_.nodes[i]));
  }
  return absl::OkStatus();
}

// Shapes and ends follow from extents; no other attribute may follow the batch.
absl::Status Exporter::CheckNodes(const ir::Node& a, const ir::Node& b) {
  ir::Attributes ours = a.attributes, theirs = b.attributes;
  for (const char* name : {"shape", "ends"}) {
    ours.Set(name, int64_t{0});
    theirs.Set(name, int64_t{0});
  }
  if (a.op != b.op || a.inputs != b.inputs || a.outputs != b.outputs || !a.steps.empty()) {
    return absl::InternalError(absl::StrCat("[export] a graph and its twin differ in node ", a.name));
  }
  if (ours == theirs) return absl::OkStatus();
  return ExportNode(this, a, nullptr).Refuse("depends on the size of the batch");
}

void Exporter::CountUses() {
  uses_.assign(graph_.values.size(), 0);
  reader_.assign(graph_.values.size(), nullptr);
  for (const ir::Node& node : graph_.nodes) {
    for (ValueId v : node.inputs) {
      ++uses_[static_cast<size_t>(v)];
      reader_[static_cast<size_t>(v)] = &node;
    }
  }
  for (const ExportedValue& output : options_.outputs) {
    const auto it = graph_.outputs.find(output.value);
    if (it != graph_.outputs.end()) uses_[static_cast<size_t>(it->second)] += 2;
  }
  for (const ExportedValue& input : options_.inputs) names_.insert(input.name);
  for (const ExportedValue& output : options_.outputs) names_.insert(output.name);
  for (const auto* list : {&graph_.parameters, &graph_.states}) {
    for (const ir::Persistent& tensor : *list) names_.insert(tensor.name);
  }
}

bool Exporter::IsInputOrOutput(const std::string& name) const {
  const auto is = [&](const ExportedValue& value) { return value.name == name; };
  return std::any_of(options_.inputs.begin(), options_.inputs.end(), is) ||
         std::any_of(options_.outputs.begin(), options_.outputs.end(), is);
}

const ir::Node* Exporter::OnlyReader(ValueId v) const {
  return uses_[static_cast<size_t>(v)] == 1 ? reader_[static_cast<size_t>(v)] : nullptr;
}

bool Exporter::IsAtHand(ValueId v) const {
  return graph_.values[static_cast<size_t>(v)].kind != ValueKind::kActivation || held_.count(v) > 0;
}

bool Exporter::IsReadAsIntegers(ValueId v) const {
  const DType type = graph_.type(v).dtype;
  if ((type != DType::kF32 && type != DType::kI32) || uses_[static_cast<size_t>(v)] == 0) return false;
  for (const ir::Node& node : graph_.nodes) {
    if (std::find(node.inputs.begin(), node.inputs.end(), v) == node.inputs.end()) continue;
    const std::string dtype = node.attributes.String("dtype");
    const bool cast = type == DType::kF32 && node.op == OpKind::kCast && (dtype == "i32" || dtype == "i64");
    const bool rows = type == DType::kI32 && node.op == OpKind::kEmbedding;
    if (!cast && !rows) return false;
  }
  return std::none_of(options_.outputs.begin(), options_.outputs.end(), [&](const ExportedValue& output) {
    const auto it = graph_.outputs.find(output.value);
    return it != graph_.outputs.end() && it->second == v;
  });
}

int Exporter::CheckedType(ValueId v) {
  const DType dtype = graph_.type(v).dtype;
  const int type = ElementTypeOf(dtype);
  if (type != 0) return type;
  Fail(absl::FailedPreconditionError(absl::StrCat("[export] ", graph_.values[static_cast<size_t>(v)].name, " is ",
                                                  DTypeName(dtype), ", which this version of ONNX has not")));
  return type;
}

absl::Status Exporter::AddInputs() {
  for (const ExportedValue& input : options_.inputs) {
    const ValueId v = graph_.FindInput(input.value);
    if (v < 0) return absl::InternalError(absl::StrCat("[export] the graph has no input ", input.value));
    Arrangement arrangement = InOrder(graph_.type(v).shape.size());
    if (!input.axes.empty()) arrangement.axes = input.axes;
    Dims dims;
    for (int64_t axis : arrangement.axes) dims.push_back(DimsOf(v)[static_cast<size_t>(axis)]);
    ::onnx::ValueInfoProto* info = model_.mutable_graph()->add_input();
    info->set_name(input.name);
    if (!input.description.empty()) info->set_doc_string(input.description);
    ::onnx::TypeProto::Tensor* type = info->mutable_type()->mutable_tensor_type();
    type->set_elem_type(!input.of_its_type && IsReadAsIntegers(v) ? ::onnx::TensorProto::INT64 : CheckedType(v));
    for (const Dim& dim : dims) {
      auto* extent = type->mutable_shape()->add_dim();
      dim.per_sample ? extent->set_dim_param(kBatch) : extent->set_dim_value(dim.count);
    }
    Bind(v, arrangement, NewTensor(input.name, dims));
  }
  return status_;
}

absl::Status Exporter::WriteNode(const ir::Node& node) {
  const Writer* writer = FindWriter(node.op);
  ExportNode n(this, node, writer == nullptr ? nullptr : writer->onnx);
  if (writer == nullptr) return n.Refuse("has no form in ONNX");
  prefix_ = node.name;
  AMPD_RETURN_IF_ERROR(writer->write(n));
  return status_;
}

absl::Status Exporter::AddOutputs() {
  for (const ExportedValue& output : options_.outputs) {
    const auto it = graph_.outputs.find(output.value);
    if (it == graph_.outputs.end()) return absl::InternalError("[export] the graph has no output " + output.value);
    const ValueId v = it->second;
    prefix_ = graph_.values[static_cast<size_t>(v)].name;
    Arrangement arrangement = InOrder(graph_.type(v).shape.size());
    if (!output.axes.empty()) arrangement.axes = output.axes;
    const T tensor = Get(v, arrangement);
    AMPD_RETURN_IF_ERROR(status_);
    ::onnx::NodeProto& copy = nodes_.emplace_back();
    copy.set_op_type("Identity");
    copy.set_name(output.name);
    copy.add_input(tensor->name);
    copy.add_output(output.name);
    ::onnx::ValueInfoProto* info = model_.mutable_graph()->add_output();
    info->set_name(output.name);
    ::onnx::TypeProto::Tensor* type = info->mutable_type()->mutable_tensor_type();
    type->set_elem_type(CheckedType(v));
    type->mutable_shape();
    for (const Dim& dim : tensor->dims) {
      auto* extent = type->mutable_shape()->add_dim();
      if (!dim.per_sample) extent->set_dim_value(dim.count);
      if (dim.per_sample && dim.count == 1) extent->set_dim_param(kBatch);
    }
  }
  return status_;
}

namespace {

// An Identity whose input a node writes and nothing else reads takes that node's place.
void MergeIdentities(std::deque<::onnx::NodeProto>* nodes) {
  std::map<std::string, int> readers;
  std::set<std::string> written;
  for (const ::onnx::NodeProto& node : *nodes) {
    for (const std::string& name : node.input()) ++readers[name];
    written.insert(node.output().begin(), node.output().end());
  }
  std::map<std::string, std::string> renamed;
  std::deque<::onnx::NodeProto> kept;
  for (::onnx::NodeProto& node : *nodes) {
    if (node.op_type() == "Identity" && written.count(node.input(0)) > 0 && readers[node.input(0)] == 1) {
      renamed[node.input(0)] = node.output(0);
    } else {
      kept.push_back(std::move(node));
    }
  }
  for (::onnx::NodeProto& node : kept) {
    for (std::string& name : *node.mutable_output()) {
      const auto to = renamed.find(name);
      if (to != renamed.end()) name = to->second;
    }
  }
  *nodes = std::move(kept);
}

}  // namespace

absl::StatusOr<std::string> Exporter::Finish() {
  std::set<std::string> needed;
  for (const auto& output : model_.graph().output()) needed.insert(output.name());
  std::deque<::onnx::NodeProto> kept;
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    const auto wanted = [&](const std::string& name) { return needed.count(name) > 0; };
    if (std::none_of(node->output().begin(), node->output().end(), wanted)) continue;
    needed.insert(node->input().begin(), node->input().end());
    kept.push_front(std::move(*node));
  }
  MergeIdentities(&kept);
  ::onnx::GraphProto* graph = model_.mutable_graph();
  graph->set_name(options_.name);
  if (!options_.description.empty()) graph->set_doc_string(options_.description);
  for (::onnx::NodeProto& node : kept) *graph->add_node() = std::move(node);
  std::string numbers;
  for (::onnx::TensorProto& tensor : initializers_) {
    if (needed.count(tensor.name()) == 0) continue;
    const bool number =
        std::all_of(tensor.dims().begin(), tensor.dims().end(), [](int64_t extent) { return extent == 1; });
    if (number) absl::StrAppend(&numbers, numbers.empty() ? "" : "\n", tensor.name());
    *graph->add_initializer() = std::move(tensor);
  }
  if (!numbers.empty()) {
    ::onnx::StringStringEntryProto* entry = model_.add_metadata_props();
    entry->set_key(kTrainedNumbers);
    entry->set_value(std::move(numbers));
  }
  model_.set_ir_version(kIrVersion);
  model_.set_producer_name(kProducer);
  model_.set_producer_version(options_.producer_version);
  model_.add_opset_import()->set_version(kOpset);
  const size_t bytes = model_.ByteSizeLong();
  if (bytes > static_cast<size_t>(std::numeric_limits<int>::max())) {
    return absl::FailedPreconditionError(
        absl::StrCat("[export] the model takes ", bytes, " bytes; an ONNX file holds less than 2 GiB"));
  }
  std::string result;
  if (!model_.SerializeToString(&result)) return absl::InternalError("[export] the model cannot be serialized");
  return result;
}

absl::Status ExportNode::OnlyOutputs(size_t count) const {
  for (size_t i = count; i < node_.outputs.size(); ++i) {
    if (e.Uses(node_.outputs[i]) > 0) return Refuse(absl::StrCat("gives an output ", i, " that ONNX has not"));
  }
  return absl::OkStatus();
}

absl::Status ExportNode::Refuse(const std::string& what) const {
  const std::string layer = node_.layer.empty() ? "" : absl::StrCat("layer ", node_.layer, ": ");
  return absl::FailedPreconditionError(
      absl::StrCat("[export] ", layer, ir::OpName(node_.op), " ", what, ", node ", node_.name));
}

const Writer* FindWriter(OpKind op) {
  static const auto& table = *[] {
    auto* all = new std::map<OpKind, Writer>();
    for (const auto& family : {ElementwiseWriters(), MovementWriters(), ReductionWriters(), ProductWriters(),
                               WindowWriters(), NormWriters(), AttentionWriters(), RecurrentWriters()}) {
      for (const Writer& writer : family) all->emplace(writer.op, writer);
    }
    return all;
  }();
  const auto it = table.find(op);
  return it == table.end() ? nullptr : &it->second;
}

}  // namespace ampd::models::onnx
