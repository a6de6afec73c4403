#include "engine/models/onnx/initializers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "engine/core/tensor.h"
#include "engine/models/onnx/tensor_proto.h"

namespace ampd::models::onnx {
namespace {

constexpr char kTorch[] = "pytorch";

void AddUses(const google::protobuf::RepeatedPtrField<::onnx::NodeProto>& nodes, InitializerUses* uses) {
  for (const ::onnx::NodeProto& node : nodes) {
    for (int i = 0; i < node.input_size(); ++i) {
      const auto it = uses->find(node.input(i));
      if (it != uses->end()) it->second.push_back({&node, i});
    }
    for (const ::onnx::AttributeProto& attribute : node.attribute()) {
      if (attribute.has_g()) AddUses(attribute.g().node(), uses);
      for (const ::onnx::GraphProto& graph : attribute.graphs()) AddUses(graph.node(), uses);
    }
  }
}

bool IsConstant(const ::onnx::NodeProto& node) {
  const bool standard = node.domain().empty() || node.domain() == "ai.onnx";
  return node.op_type() == "Constant" && standard && node.output_size() == 1 && !node.output(0).empty();
}

// Whether a node gives its first input on, in another order or type at most.
bool GivesOn(const ::onnx::NodeProto& node) {
  static const auto* const ops =
      new std::set<std::string>{"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"};
  return ops->count(node.op_type()) > 0 && node.output_size() == 1 && !node.output(0).empty();
}

// Graphs within the node: branches.
template <typename Visit>
void VisitGraphs(const ::onnx::NodeProto& node, const Visit& visit) {
  for (const ::onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.has_g()) visit(attribute.g());
    for (const ::onnx::GraphProto& graph : attribute.graphs()) visit(graph);
  }
}

// Whatever reads an initializer or a constant, by itself or behind nodes that give it on.
class Readers {
 public:
  explicit Readers(const ::onnx::GraphProto& graph) {
    AddValues(graph);
    AddUses(graph.node(), &uses_);
  }

  std::vector<InitializerUse> Of(const std::string& name) const {
    std::vector<InitializerUse> uses;
    std::vector<std::string> values = {name};
    for (size_t i = 0; i < values.size() && i < kMostSteps; ++i) {
      const auto found = uses_.find(values[i]);
      if (found == uses_.end()) continue;
      for (const InitializerUse& use : found->second) {
        const bool on = use.input == 0 && GivesOn(*use.node);
        on ? values.push_back(use.node->output(0)) : uses.push_back(use);
      }
    }
    return uses;
  }

 private:
  void AddValues(const ::onnx::GraphProto& graph) {
    for (const ::onnx::TensorProto& tensor : graph.initializer()) uses_[tensor.name()];
    for (const ::onnx::NodeProto& node : graph.node()) {
      if (GivesOn(node) || IsConstant(node)) uses_[node.output(0)];
      VisitGraphs(node, [&](const ::onnx::GraphProto& inner) { AddValues(inner); });
    }
  }

  // No file needs more; one that is made to could ask for many.
  static constexpr size_t kMostSteps = 64;

  InitializerUses uses_;
};

bool AllAre(const std::vector<InitializerUse>& uses, const std::set<std::string>& ops, int input) {
  return std::all_of(uses.begin(), uses.end(), [&](const InitializerUse& use) {
    return use.input == input && ops.count(use.node->op_type()) > 0;
  });
}

// By operation the inputs that are weights.
const std::map<std::string, std::set<int>>& WeightInputs() {
  static const auto* const inputs = new std::map<std::string, std::set<int>>{
      {"BatchNormalization", {1, 2, 3, 4}},
      {"Conv", {1, 2}},
      {"ConvTranspose", {1, 2}},
      {"Einsum", {0, 1}},
      {"GRU", {1, 2, 3, 5}},
      {"Gather", {0}},
      {"Gemm", {0, 1, 2}},
      {"GroupNormalization", {1, 2}},
      {"InstanceNormalization", {1, 2}},
      {"LSTM", {1, 2, 3, 5, 6, 7}},
      {"LayerNormalization", {1, 2}},
      {"MatMul", {0, 1}},
      {"PRelu", {1}},
      {"RMSNormalization", {1}},
      {"RNN", {1, 2, 3, 5}},
  };
  return *inputs;
}

// By operation the inputs that have to be known at import.
const std::map<std::string, std::set<int>>& ConstantInputs() {
  static const auto* const inputs = new std::map<std::string, std::set<int>>{
      {"Dropout", {1, 2}}, {"OneHot", {1}}, {"Range", {0, 1, 2}}, {"Resize", {1, 2}}, {"Upsample", {1}},
  };
  return *inputs;
}

// Addends that keep a divisor or a logarithm's operand from 0 are below the one, fills of masks at or above the other.
constexpr float kMostEps = 1e-3f;
constexpr float kLeastFill = 1e3f;

// What holds an infinity, and what holds nothing but zeros and fills. What cannot be read the import refuses.
bool IsMask(const ::onnx::TensorProto& proto, bool weight) {
  const auto tensor = ToTensor(proto);
  if (!tensor.ok()) return false;
  const absl::Span<const float> values = (*tensor)->as<float>();
  if (std::any_of(values.begin(), values.end(), [](float v) { return std::isinf(v); })) return true;
  // Variances, and tables of numbers, may be large.
  const auto fills = [](float v) { return std::abs(v) >= kLeastFill; };
  return !weight && std::any_of(values.begin(), values.end(), fills) &&
         std::all_of(values.begin(), values.end(), [&](float v) { return v == 0 || fills(v); });
}

bool AnyIsAt(const std::vector<InitializerUse>& uses, const std::map<std::string, std::set<int>>& inputs) {
  return std::any_of(uses.begin(), uses.end(), [&](const InitializerUse& use) {
    const auto known = inputs.find(use.node->op_type());
    return known != inputs.end() && known->second.count(use.input) > 0;
  });
}

// Where an operation's weights stand: a factor of a product, a convolution's filter, what a norm multiplies with, ...
bool AnyIsWeight(const std::vector<InitializerUse>& uses) { return AnyIsAt(uses, WeightInputs()); }

// By operation the inputs that a sequence's state begins with.
const std::map<std::string, std::set<int>>& FirstStates() {
  static const auto* const inputs =
      new std::map<std::string, std::set<int>>{{"GRU", {5}}, {"LSTM", {5, 6}}, {"RNN", {5}}};
  return *inputs;
}

// By operation the inputs that other numbers are compared with, or that stand for those that are masked.
const std::map<std::string, std::set<int>>& ThresholdInputs() {
  static const auto* const inputs = new std::map<std::string, std::set<int>>{
      {"Clip", {1, 2}}, {"Equal", {0, 1}},       {"Greater", {0, 1}}, {"GreaterOrEqual", {0, 1}},
      {"Less", {0, 1}}, {"LessOrEqual", {0, 1}}, {"Where", {1, 2}},
  };
  return *inputs;
}

bool AnyIsOf(const std::vector<InitializerUse>& uses, const std::set<std::string>& ops) {
  return std::any_of(uses.begin(), uses.end(),
                     [&](const InitializerUse& use) { return ops.count(use.node->op_type()) > 0; });
}

bool IsWord(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// Whether PyTorch names what a module holds so: by the modules around it, "blocks.0.gamma", in a list
// "blocks.alphas.0". What the outermost module holds has a bare word for a name, as constants have.
bool IsModuleState(const std::string& name, bool torch) {
  const std::vector<std::string> words = absl::StrSplit(name, '.');
  const auto counted = [](const std::string& word) { return word.front() >= '0' && word.front() <= '9'; };
  if (words.size() < 2 || !std::all_of(words.begin(), words.end(), IsWord)) return false;
  return !counted(words.back()) || (torch && !counted(words.front()));
}

class Numbers {
 public:
  explicit Numbers(const ::onnx::ModelProto& model) : torch_(model.producer_name() == kTorch) {
    for (const ::onnx::StringStringEntryProto& entry : model.metadata_props()) {
      const bool ours = model.producer_name() == kProducer && entry.key() == kTrainedNumbers;
      if (ours) trained_ = absl::StrSplit(entry.value(), '\n');
    }
    for (const ::onnx::NodeProto& node : model.graph().node()) {
      const bool of_product = GivesOn(node) && node.input_size() > 0 && products_.count(node.input(0)) > 0;
      const bool product = of_product || WeightInputs().count(node.op_type()) > 0;
      if (product) products_.insert(node.output().begin(), node.output().end());
    }
  }

  // Whether a training moves a single number: eps, a root's exponent and the like are single numbers too.
  bool IsTrained(const ::onnx::TensorProto& proto, const std::vector<InitializerUse>& uses) const {
    if (trained_.count(proto.name()) > 0) return true;
    // What follows a product is a bias; a number without axes is more likely a constant of the formula.
    const bool axes = proto.dims_size() > 0;
    if (AnyIsWeight(uses) || (axes && AnyIsBias(uses))) return true;
    const auto tensor = ToTensor(proto);
    const float magnitude = tensor.ok() ? std::abs((*tensor)->as<float>()[0]) : 0;
    const bool eps = magnitude > 0 && magnitude < kMostEps && AnyIsOf(uses, {"Add", "Sub"});
    if (eps || magnitude >= kLeastFill || AnyIsAt(uses, ThresholdInputs())) return false;
    // These of a constant would be another constant.
    if (AnyIsOf(uses, {"Exp", "Sigmoid", "Softplus", "Tanh"})) return true;
    // Of a module PyTorch would have named it.
    const bool maybe_bias = axes && !torch_ && AnyIsOf(uses, {"Add"});
    return maybe_bias || IsModuleState(proto.name(), torch_);
  }

  // Whether one adds it to what an operation with weights gives.
  bool AnyIsBias(const std::vector<InitializerUse>& uses) const {
    return std::any_of(uses.begin(), uses.end(), [&](const InitializerUse& use) {
      const ::onnx::NodeProto& node = *use.node;
      return node.op_type() == "Add" && node.input_size() == 2 && products_.count(node.input(1 - use.input)) > 0;
    });
  }

 private:
  const bool torch_;
  // By the exporter's word.
  std::set<std::string> trained_;
  // What operations with weights give, and the same in another order.
  std::set<std::string> products_;
};

// Names of values that `node` may read: more than it does, rather than less.
void AddReads(const ::onnx::NodeProto& node, std::set<std::string>* names) {
  names->insert(node.input().begin(), node.input().end());
  const auto add_graph = [&](const ::onnx::GraphProto& graph) {
    for (const ::onnx::NodeProto& inner : graph.node()) AddReads(inner, names);
    // A branch may give a value that stands around it.
    for (const ::onnx::ValueInfoProto& output : graph.output()) names->insert(output.name());
  };
  for (const ::onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.has_g()) add_graph(attribute.g());
    for (const ::onnx::GraphProto& graph : attribute.graphs()) add_graph(graph);
    // Gradient names in attributes what it differentiates.
    if (attribute.has_s()) names->insert(attribute.s());
    names->insert(attribute.strings().begin(), attribute.strings().end());
  }
  // An input or output that is left out.
  names->erase("");
}

// Longer names would only be seen cut.
constexpr size_t kMaxNameBytes = 200;

constexpr size_t kMaxCopies = size_t{256} << 20;

bool IsIdentity(const ::onnx::NodeProto& node) {
  const bool standard = node.domain().empty() || node.domain() == "ai.onnx";
  return node.op_type() == "Identity" && standard && node.input_size() == 1 && node.output_size() == 1;
}

// Whether a tensor is one number again and again; looked at as it is written, for it may be large.
bool IsOneNumber(const ::onnx::TensorProto& proto) {
  const std::string& raw = proto.raw_data();
  if (raw.size() >= sizeof(float)) {
    return std::memcmp(raw.data(), raw.data() + sizeof(float), raw.size() - sizeof(float)) == 0;
  }
  const auto& values = proto.float_data();
  // Where there are none they lie elsewhere.
  return !values.empty() && std::all_of(values.begin(), values.end(), [&](float value) { return value == values[0]; });
}

// What there is to know of a tensor without looking at its numbers.
struct Described {
  int type = 0;
  std::vector<int64_t> shape;
  // Where it is one of the file's; else a list of floats.
  const ::onnx::TensorProto* tensor = nullptr;
};

Described Describe(const ::onnx::TensorProto& proto) {
  return {proto.data_type(), {proto.dims().begin(), proto.dims().end()}, &proto};
}

// Of a Constant node. nullopt: a number, or what is no dense tensor of numbers.
absl::optional<Described> DescribeConstant(const ::onnx::NodeProto& node) {
  if (!IsConstant(node)) return absl::nullopt;
  for (const ::onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.name() == "value") return Describe(attribute.t());
    if (attribute.name() == "value_floats") return Described{::onnx::TensorProto::FLOAT, {attribute.floats_size()}};
  }
  return absl::nullopt;
}

// As an initializer; takes it away from the node.
void TakeConstant(::onnx::NodeProto* node, ::onnx::TensorProto* tensor) {
  for (::onnx::AttributeProto& attribute : *node->mutable_attribute()) {
    if (attribute.name() == "value") {
      tensor->Swap(attribute.mutable_t());
      break;
    }
    if (attribute.name() != "value_floats") continue;
    tensor->set_data_type(::onnx::TensorProto::FLOAT);
    tensor->add_dims(attribute.floats_size());
    tensor->mutable_float_data()->Swap(attribute.mutable_floats());
    break;
  }
  tensor->set_name(node->output(0));
}

bool IsFloatType(int type) {
  // FLOAT8E4M3FN to FLOAT8E5M2FNUZ came after ONNX 1.12.
  return type == ::onnx::TensorProto::FLOAT || type == ::onnx::TensorProto::FLOAT16 ||
         type == ::onnx::TensorProto::BFLOAT16 || type == ::onnx::TensorProto::DOUBLE || (type >= 17 && type <= 20);
}

bool IsNumber(absl::Span<const int64_t> shape) {
  return std::all_of(shape.begin(), shape.end(), [](int64_t extent) { return extent == 1; });
}

// A mask that is added to the scores of attention stands where a bias does, and has two.
bool HasOneLongAxis(absl::Span<const int64_t> shape) {
  return std::count_if(shape.begin(), shape.end(), [](int64_t extent) { return extent > 1; }) <= 1;
}

bool HasElements(absl::Span<const int64_t> shape) {
  return std::none_of(shape.begin(), shape.end(), [](int64_t extent) { return extent == 0; });
}

// Whether it does nothing where it stands: scales of 1, biases and states of 0, which exporters write for norms and
// recurrences that have none.
bool IsNeutral(const Described& tensor, const std::vector<InitializerUse>& uses) {
  if (tensor.tensor == nullptr || tensor.type != ::onnx::TensorProto::FLOAT || !IsOneNumber(*tensor.tensor)) {
    return false;
  }
  const std::string& raw = tensor.tensor->raw_data();
  float number;
  if (raw.size() < sizeof(number)) {
    number = tensor.tensor->float_data(0);
  } else {
    std::memcpy(&number, raw.data(), sizeof(number));
  }
  const std::set<std::string> norms = {"BatchNormalization", "GroupNormalization", "InstanceNormalization",
                                       "LayerNormalization", "RMSNormalization"};
  return std::all_of(uses.begin(), uses.end(), [&](const InitializerUse& use) {
    if (AnyIsAt({use}, FirstStates())) return number == 0;
    return norms.count(use.node->op_type()) > 0 && number == (use.input == 1 ? 1.0f : 0.0f) && use.input <= 2;
  });
}

}  // namespace

std::string Printable(absl::string_view name) {
  std::string safe(name.substr(0, kMaxNameBytes));
  for (char& c : safe) {
    if (c <= ' ' || c > '~' || c == '"' || c == '\'' || c == '\\') c = '_';
  }
  return safe;
}

std::string TensorNames::Take(const std::string& name) {
  const std::string safe = name.empty() ? "unnamed" : Printable(name);
  std::string unique = safe;
  for (int repeat = 1; !taken_.insert(unique).second; ++repeat) unique = absl::StrCat(safe, "_", repeat);
  return unique;
}

InitializerUses UsesOfInitializers(const ::onnx::GraphProto& graph) {
  InitializerUses uses;
  for (const ::onnx::TensorProto& tensor : graph.initializer()) uses[tensor.name()];
  AddUses(graph.node(), &uses);
  return uses;
}

Reach ReachOutputs(const ::onnx::GraphProto& graph, const std::vector<std::string>& outputs) {
  const auto& nodes = graph.node();
  Reach reach{std::vector<bool>(static_cast<size_t>(nodes.size())), {outputs.begin(), outputs.end()}};
  for (int i = nodes.size(); i-- > 0;) {
    const auto& written = nodes[i].output();
    const bool needed = std::any_of(written.begin(), written.end(),
                                    [&](const std::string& name) { return reach.values.count(name) > 0; });
    if (needed) AddReads(nodes[i], &reach.values);
    reach.nodes[static_cast<size_t>(i)] = needed;
  }
  return reach;
}

std::set<std::string> LiftConstantWeights(::onnx::ModelProto* model) {
  std::set<std::string> lifted;
  if (model->producer_name() == kTorch || model->producer_name() == kProducer) return lifted;
  ::onnx::GraphProto* graph = model->mutable_graph();
  const Numbers numbers(*model);
  std::set<std::string> taken;
  for (const ::onnx::TensorProto& tensor : graph->initializer()) taken.insert(tensor.name());
  for (const ::onnx::ValueInfoProto& input : graph->input()) taken.insert(input.name());
  const Readers readers(*graph);
  std::vector<bool> lifts;
  for (const ::onnx::NodeProto& node : graph->node()) {
    const absl::optional<Described> tensor = DescribeConstant(node);
    // A number without axes is more likely a constant of the formula.
    const bool first = tensor.has_value() && taken.insert(node.output(0)).second;
    bool weight = first && tensor->type == ::onnx::TensorProto::FLOAT && !tensor->shape.empty();
    if (weight) {
      const std::vector<InitializerUse> uses = readers.Of(node.output(0));
      weight = (AnyIsWeight(uses) && !AnyIsAt(uses, FirstStates())) ||
               (HasOneLongAxis(tensor->shape) && numbers.AnyIsBias(uses));
    }
    lifts.push_back(weight);
  }
  google::protobuf::RepeatedPtrField<::onnx::NodeProto> nodes;
  for (int i = 0; i < graph->node_size(); ++i) {
    ::onnx::NodeProto* node = graph->mutable_node(i);
    if (!lifts[static_cast<size_t>(i)]) {
      nodes.Add()->Swap(node);
      continue;
    }
    lifted.insert(node->output(0));
    TakeConstant(node, graph->add_initializer());
  }
  graph->mutable_node()->Swap(&nodes);
  return lifted;
}

absl::Status GiveIdentitiesTheirOwn(::onnx::GraphProto* graph) {
  struct Original {
    const ::onnx::TensorProto* tensor;
    // Whether it is one number; looked at once, whoever reads it.
    absl::optional<bool> constant;

    bool IsConstant() {
      if (!constant.has_value()) constant = IsOneNumber(*tensor);
      return *constant;
    }
  };
  std::map<std::string, Original> originals;
  for (const ::onnx::TensorProto& tensor : graph->initializer()) {
    if (tensor.data_type() == ::onnx::TensorProto::FLOAT) originals[tensor.name()] = {&tensor};
  }
  std::set<std::string> outputs;
  for (const ::onnx::ValueInfoProto& output : graph->output()) outputs.insert(output.name());
  InitializerUses uses;
  for (const ::onnx::NodeProto& node : graph->node()) {
    if (IsIdentity(node) && outputs.count(node.output(0)) == 0) uses[node.output(0)];
  }
  AddUses(graph->node(), &uses);
  google::protobuf::RepeatedPtrField<::onnx::NodeProto> nodes;
  size_t bytes = 0;
  for (::onnx::NodeProto& node : *graph->mutable_node()) {
    const auto read = IsIdentity(node) ? uses.find(node.output(0)) : uses.end();
    const auto original = read == uses.end() ? originals.end() : originals.find(node.input(0));
    if (original == originals.end() || !(AreStatistics(read->second) || original->second.IsConstant())) {
      nodes.Add()->Swap(&node);
      continue;
    }
    bytes += original->second.tensor->ByteSizeLong();
    if (bytes > kMaxCopies) return absl::InvalidArgumentError("[onnx] copies of initializers are above 256 MiB");
    ::onnx::TensorProto* own = graph->add_initializer();
    *own = *original->second.tensor;
    own->set_name(node.output(0));
    // An Identity of the copy, further on, may need one as well.
    originals[own->name()] = {own, original->second.constant};
  }
  graph->mutable_node()->Swap(&nodes);
  return absl::OkStatus();
}

std::string LastOperationOf(const ::onnx::GraphProto& graph, const std::string& output) {
  std::string name = output;
  // From the end on: nodes stand behind those that they read.
  for (auto node = graph.node().rbegin(); node != graph.node().rend(); ++node) {
    if (std::find(node->output().begin(), node->output().end(), name) == node->output().end()) continue;
    if (!GivesOn(*node) || node->input_size() == 0) return node->op_type();
    name = node->input(0);
  }
  return "";
}

bool AreFilters(const std::vector<InitializerUse>& uses) { return AllAre(uses, {"Conv", "ConvTranspose"}, 1); }

bool AreStatistics(const std::vector<InitializerUse>& uses) {
  if (uses.empty()) return false;
  return AllAre(uses, {"BatchNormalization"}, kMeanInput) || AllAre(uses, {"BatchNormalization"}, kVarianceInput);
}

std::vector<FloatInitializer> FloatInitializersOf(const ::onnx::ModelProto& model,
                                                  const std::vector<std::string>& outputs) {
  const ::onnx::GraphProto& graph = model.graph();
  const Readers readers(graph);
  const Numbers numbers(model);
  const bool all = outputs.empty();
  const Reach reach = ReachOutputs(graph, outputs);
  std::vector<FloatInitializer> list;
  TensorNames names;
  for (const ::onnx::TensorProto& proto : graph.initializer()) {
    if (proto.data_type() != ::onnx::TensorProto::FLOAT || !(all || reach.values.count(proto.name()) > 0)) continue;
    const std::vector<InitializerUse> read = readers.Of(proto.name());
    const auto is_constant = [](const InitializerUse& use) { return AnyIsAt({use}, ConstantInputs()); };
    if (!read.empty() && std::all_of(read.begin(), read.end(), is_constant)) continue;
    FloatInitializer f{.name = proto.name(), .shape = {proto.dims().begin(), proto.dims().end()}};
    f.number = IsNumber(f.shape);
    if (!HasElements(f.shape)) continue;
    f.weight = AnyIsWeight(read) || (f.shape.size() == 1 && AnyIsOf(read, {"Add"}));
    f.drawn = !f.number || AnyIsWeight(read);
    f.parameter = !f.number || numbers.IsTrained(proto, read);
    f.parameter = f.parameter && !IsMask(proto, f.number || AnyIsWeight(read));
    if (f.parameter) f.tensor = names.Take(f.name);
    list.push_back(std::move(f));
  }
  return list;
}

namespace {

class FrozenWeights {
 public:
  FrozenWeights(const ::onnx::ModelProto& model, const std::vector<std::string>& outputs)
      : readers_(model.graph()), numbers_(model), all_(outputs.empty()), reach_(ReachOutputs(model.graph(), outputs)) {
    AddOf(model.graph(), /*main=*/true);
  }

  std::vector<FloatInitializer> Take() && { return std::move(list_); }

 private:
  void AddOf(const ::onnx::GraphProto& graph, bool main) {
    for (const ::onnx::TensorProto& proto : graph.initializer()) {
      if (!main || proto.data_type() != ::onnx::TensorProto::FLOAT) Add(proto.name(), Describe(proto));
    }
    for (const ::onnx::NodeProto& node : graph.node()) {
      const absl::optional<Described> tensor = DescribeConstant(node);
      if (tensor.has_value()) Add(node.output(0), *tensor);
      VisitGraphs(node, [&](const ::onnx::GraphProto& inner) { AddOf(inner, /*main=*/false); });
    }
  }

  void Add(const std::string& name, const Described& tensor) {
    if (!IsFloatType(tensor.type) || tensor.shape.empty() || !HasElements(tensor.shape)) return;
    if ((!all_ && reach_.values.count(name) == 0) || !seen_.insert(name).second) return;
    const std::vector<InitializerUse> uses = readers_.Of(name);
    const bool bias = HasOneLongAxis(tensor.shape) && numbers_.AnyIsBias(uses);
    if (!(AnyIsWeight(uses) || bias) || IsNeutral(tensor, uses)) return;
    list_.push_back({.name = name, .shape = {tensor.shape.begin(), tensor.shape.end()}, .weight = true});
    list_.back().number = IsNumber(tensor.shape);
  }

  const Readers readers_;
  const Numbers numbers_;
  const bool all_;
  const Reach reach_;
  std::set<std::string> seen_;
  std::vector<FloatInitializer> list_;
};

}  // namespace

std::vector<FloatInitializer> FrozenWeightsOf(const ::onnx::ModelProto& model,
                                              const std::vector<std::string>& outputs) {
  return FrozenWeights(model, outputs).Take();
}

}  // namespace ampd::models::onnx
