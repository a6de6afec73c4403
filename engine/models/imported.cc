#include "engine/models/imported.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "engine/core/status.h"
#include "engine/models/build_layers.h"
#include "engine/models/imported_files.h"
#include "engine/models/imported_graph.h"
#include "engine/models/join_graphs.h"
#include "engine/models/layers.h"
#include "engine/models/loss.h"
#include "engine/models/onnx/import.h"
#include "engine/models/sample_axis.h"
#include "engine/ops/compute.h"
#include "engine/ops/op_def.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve.h"

namespace ampd::models {
namespace {

using ir::OpKind;
using ir::ValueId;

// As many as layers may have.
constexpr double kMaxElements = 1e12;
constexpr char kPath[] = "model.onnx.path";
constexpr char kUnread[] = "the file was not read";
constexpr char kOpenBatch[] = "; export it with an open batch";
constexpr char kInput[] = "model.onnx.input";
constexpr char kOutputs[] = "model.onnx.outputs";

// [n, 3, ...], an open extent by its letter.
std::string Written(const Shape& shape) {
  return absl::StrCat("[",
                      absl::StrJoin(shape, ", ",
                                    [](std::string* out, int64_t extent) {
                                      extent < 0 ? out->append("n") : out->append(std::to_string(extent));
                                    }),
                      "]");
}

// Names in a file may be any bytes.
std::string Readable(absl::string_view text) {
  std::string readable(text);
  for (char& c : readable) {
    if (c < ' ' || c > '~') c = '?';
  }
  return readable;
}

bool MatchesAny(const v1::OnnxModel& onnx, absl::string_view name) {
  return std::any_of(onnx.freeze().begin(), onnx.freeze().end(),
                     [&](const std::string& glob) { return GlobMatches(glob, name); });
}

bool Fits(const Shape& written, const Shape& shape) {
  return std::equal(written.begin(), written.end(), shape.begin(), shape.end(),
                    [](int64_t w, int64_t extent) { return w < 0 || w == extent; });
}

// How samples become what the file's input is.
struct Binding {
  std::string name;
  std::string element_type;
  int64_t written_batch = 0;  // 0: open
  Shape shape;                // the input's, in the file's order, without the batch
  bool image = false;         // shape is [c, h, w] for the data's [h, w, c], and the graph takes the data's order
  bool turn = false;          // pixels are put in the file's order before the elements are given `shape`
};

std::string NamesOf(const std::vector<onnx::ModelValue>& values) {
  return absl::StrJoin(values, ", ",
                       [](std::string* out, const onnx::ModelValue& value) { out->append(Quoted(value.name)); });
}

// Of inputs that `output` does not depend on nobody asks.
absl::StatusOr<onnx::ModelValue> FindInput(const v1::OnnxModel& spec, const std::string& output,
                                           const onnx::Model& file) {
  std::vector<onnx::ModelValue> open, read;
  for (onnx::ModelValue& value : file.inputs({output})) {
    if (value.initialized) continue;
    open.push_back(value);
    if (value.read) read.push_back(std::move(value));
  }
  if (open.empty()) return InvalidField(kPath, "the network has no input");
  // What nothing writes the import tells of.
  if (read.empty()) read = open;
  const auto is = [&](const onnx::ModelValue& value) { return value.name == spec.input(); };
  if (!spec.input().empty() && std::none_of(open.begin(), open.end(), is)) {
    return InvalidField(kInput,
                        absl::StrCat("the network has no input ", Quoted(spec.input()), ", but ", NamesOf(open)));
  }
  if (read.size() > 1) {
    return InvalidField(kInput,
                        absl::StrCat("networks of more than one input are not supported yet, has ", NamesOf(read)));
  }
  if (!spec.input().empty() && !is(read[0])) {
    return InvalidField(kInput, absl::StrCat("what is trained does not depend on ", Quoted(spec.input()), ", but on ",
                                             Quoted(read[0].name)));
  }
  return read[0];
}

absl::StatusOr<Binding> Bind(const v1::OnnxModel& spec, const SampleInfo& sample, const std::string& output,
                             const onnx::Model& file) {
  AMPD_ASSIGN_OR_RETURN(const onnx::ModelValue input, FindInput(spec, output, file));
  Binding binding{.name = input.name, .element_type = input.element_type};
  const std::string& type = input.element_type;
  if (type != "FLOAT" && type != "INT32" && type != "INT64") {
    return InvalidField(kInput, absl::StrCat(Quoted(input.name), " is ", type, ", must be FLOAT, INT32 or INT64"));
  }
  const Shape& data = sample.input_shape;
  const bool turned = data.size() == 3 && spec.channels_first();
  const Shape seen = turned ? Shape{data[2], data[0], data[1]} : data;
  binding.shape = seen;
  binding.image = turned;
  if (!input.has_shape) return binding;
  const auto refuse = [&] {
    return InvalidField(kInput,
                        absl::StrCat(Quoted(input.name), " is ", Written(input.shape), ", the data's samples are ",
                                     ShapeString(data), turned ? absl::StrCat(", turned ", ShapeString(seen)) : ""));
  };
  if (input.shape.empty()) return refuse();
  binding.written_batch = std::max<int64_t>(input.shape[0], 0);
  const Shape written(input.shape.begin() + 1, input.shape.end());
  if (Fits(written, seen)) return binding;
  binding.image = false;
  binding.turn = turned;
  const bool flat = written.size() == 1 && Fits(written, {NumElements(data)});
  const bool plain = data.size() == 3 && data[2] == 1 && Fits(written, {data[0], data[1]});
  if (!flat && !plain) return refuse();
  binding.shape = flat ? Shape{NumElements(data)} : Shape{data[0], data[1]};
  return binding;
}

// What of the file are parameters and states.
onnx::ImportOptions PersistentOptions(const v1::OnnxModel& spec, const std::string& output, const onnx::Model& file) {
  onnx::ImportOptions options;
  options.is_parameter = [names = file.Trainable({output})](const std::string& name) { return names.count(name) > 0; };
  options.updates_statistic = [&spec](const std::string& name) { return !MatchesAny(spec, name); };
  return options;
}

class ImportedBuilder {
 public:
  ImportedBuilder(const v1::ModelSpec& model, const SampleInfo& sample, int64_t batch, bool training,
                  const std::set<std::string>* kept)
      : model_(model),
        spec_(model.onnx()),
        file_(FindOnnxFile(spec_.path())),
        sample_(sample),
        batch_(batch),
        training_(training),
        kept_(kept) {}

  // The file's own input and output, with nothing between data and network, and nothing left out for a loss.
  absl::StatusOr<ir::Graph> BuildWithoutLoss() {
    AMPD_ASSIGN_OR_RETURN(const onnx::ImportedModel imported, ImportNetwork());
    const ir::Graph& network = imported.graph;
    const ValueId read = network.FindInput(binding_.name);
    if (read < 0) return InvalidField(kOutputs, absl::StrCat(Quoted(output_), " does not depend on the input"));
    const ValueId x = forward_.graph.AddInput(binding_.name, network.type(read));
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> map, GraphInliner(&forward_.graph).Inline(network, {x}, "", ""));
    forward_.graph.outputs = {{output_, map[static_cast<size_t>(network.outputs.at(output_))]}};
    AMPD_RETURN_IF_ERROR(ops::VerifyGraph(forward_.graph));
    return std::move(forward_.graph);
  }

  absl::StatusOr<ImportedForward> Build() {
    AMPD_ASSIGN_OR_RETURN(onnx::ImportedModel imported, ImportNetwork());
    ir::Graph& network = imported.graph;
    AMPD_RETURN_IF_ERROR(PlaceDropout(&network));
    const absl::Status stripped = StripLossActivation(model_.loss(), output_, &network);
    if (!stripped.ok()) return InvalidField(kOutputs, stripped.message());
    KeepWhatReaches(output_, &network);
    AMPD_RETURN_IF_ERROR(KeepPersistents(&network));
    if (training_) KeepImportedValues(spec_.path(), spec_.weights() ? ValuesOf(imported) : NotDrawn(imported));
    if (!spec_.weights()) DrawAnew(&network);
    TakeLayers(imported);
    AMPD_RETURN_IF_ERROR(AddNetwork(network));
    return std::move(forward_);
  }

 private:
  absl::StatusOr<onnx::ImportedModel> ImportNetwork() {
    if (file_ == nullptr) return InvalidField(kPath, kUnread);
    if (sample_.lengths) {
      return InvalidField("model.onnx", "samples differ in length, of which a network in ONNX form does not know");
    }
    AMPD_RETURN_IF_ERROR(FindOutput());
    AMPD_ASSIGN_OR_RETURN(binding_, Bind(spec_, sample_, output_, *file_));
    AMPD_ASSIGN_OR_RETURN(onnx::ImportedModel imported, Import(batch_));
    const ir::Graph& network = imported.graph;
    if (binding_.written_batch > 0 && binding_.written_batch != batch_) {
      AMPD_ASSIGN_OR_RETURN(const onnx::ImportedModel telling, Import(kTellingBatch));
      const absl::Status apart = CheckSamplesStayApart(telling.graph, network, batch_);
      if (!apart.ok()) return InvalidField(kPath, apart.message());
    }
    AMPD_RETURN_IF_ERROR(CheckTypes(network));
    return imported;
  }

  absl::Status FindOutput() {
    if (!spec_.outputs().empty()) {
      output_ = spec_.outputs(0);
      return absl::OkStatus();
    }
    const std::vector<onnx::ModelValue> outputs = file_->outputs();
    if (outputs.empty()) return InvalidField(kPath, "the network has no output");
    output_ = outputs[0].name;
    return absl::OkStatus();
  }

  absl::StatusOr<onnx::ImportedModel> Import(int64_t batch) const {
    onnx::ImportOptions options = PersistentOptions(spec_, output_, *file_);
    Shape shape{batch};
    shape.insert(shape.end(), binding_.shape.begin(), binding_.shape.end());
    options.input_shapes[binding_.name] = shape;
    if (binding_.image) options.image_inputs = {binding_.name};
    if (spec_.channels_first()) options.image_outputs = {output_};
    options.outputs = {output_};
    options.training = training_;
    options.max_elements = kMaxElements;
    options.written_batch = binding_.written_batch;
    options.batch = batch;
    absl::StatusOr<onnx::ImportedModel> imported = file_->Import(options);
    if (!imported.ok()) {
      // What a file writes down for its own batch does not fit another.
      const bool another = binding_.written_batch > 0 && binding_.written_batch != batch;
      const bool unfit = another && absl::IsInvalidArgument(imported.status());
      return InvalidField(kPath, absl::StrCat(Readable(imported.status().message()), unfit ? kOpenBatch : ""));
    }
    KeepWhatReaches(output_, &imported->graph);
    return imported;
  }

  // Modes are chosen by the job; a file's own casts would undo them.
  absl::Status CheckTypes(const ir::Graph& network) const {
    for (const ir::Node& node : network.nodes) {
      for (ValueId v : node.outputs) {
        const DType dtype = network.type(v).dtype;
        if (!IsFloat(dtype) || dtype == DType::kF32) continue;
        return InvalidField(kPath, absl::StrCat("the network computes in ", DTypeName(dtype), " at node ", node.name,
                                                "; export it in FLOAT, precision.mode says what it trains in"));
      }
    }
    const ir::TensorType& type = network.type(network.outputs.at(output_));
    if (type.dtype != DType::kF32 || type.shape.empty() || type.shape[0] != batch_) {
      return InvalidField(kOutputs,
                          absl::StrCat(Quoted(output_), " is ", DTypeName(type.dtype), ShapeString(type.shape),
                                       ", must be f32 with the batch of ", batch_, " first"));
    }
    return CheckSamplesComeFirst(type.shape);
  }

  // An axis as long as the batch need not be the samples': of another batch it would be as long as before.
  absl::Status CheckSamplesComeFirst(const Shape& shape) const {
    // Of one sample all orders are one.
    const bool other_axis =
        batch_ > 1 && std::any_of(shape.begin() + 1, shape.end(), [&](int64_t extent) { return extent % batch_ == 0; });
    if (!other_axis) return absl::OkStatus();
    const int64_t batch = 2 * batch_;
    const absl::StatusOr<onnx::ImportedModel> other = Import(batch);
    if (!other.ok()) {
      // A row of numbers a sample has no other axis for them.
      if (shape.size() == 2) return absl::OkStatus();
      return InvalidField(kOutputs, absl::StrCat(Quoted(output_), " is f32", ShapeString(shape), ", of whose axes ",
                                                 "several may be that of a batch of ", batch_, kOpenBatch));
    }
    const Shape& there = other->graph.type(other->graph.outputs.at(output_)).shape;
    if (!there.empty() && there[0] == batch) return absl::OkStatus();
    return InvalidField(kOutputs, absl::StrCat(Quoted(output_), " is f32", ShapeString(there), " for a batch of ",
                                               batch, ", must have the batch first"));
  }

  // Where samples lie is told by another batch; of one sample all draws are its own.
  absl::Status PlaceDropout(ir::Graph* network) const {
    const auto draws = [](const ir::Node& node) { return node.op == OpKind::kDropout; };
    if (std::none_of(network->nodes.begin(), network->nodes.end(), draws)) return absl::OkStatus();
    std::vector<int64_t> axes(network->values.size(), kNoSampleAxis);
    if (batch_ > 1) {
      const absl::StatusOr<onnx::ImportedModel> other = Import(batch_ + 1);
      if (other.ok()) axes = FindSampleAxes(*network, batch_, other->graph, batch_ + 1);
    }
    return DrawBySample(axes, batch_, network);
  }

  absl::Status KeepPersistents(ir::Graph* network) const {
    if (kept_ == nullptr) return absl::OkStatus();
    for (const ir::Value& value : network->values) {
      if (value.kind != ir::ValueKind::kParameter && value.kind != ir::ValueKind::kState) continue;
      if (kept_->count(value.name) > 0) continue;
      return InvalidField(kPath, absl::StrCat("evaluation reads ", Quoted(value.name), ", which training does not"));
    }
    // What only training reads is there all the same: the graphs share their memory.
    Restore(network->parameters, ir::ValueKind::kParameter, network);
    Restore(network->states, ir::ValueKind::kState, network);
    return absl::OkStatus();
  }

  void Restore(const std::vector<ir::Persistent>& list, ir::ValueKind kind, ir::Graph* network) const {
    std::map<std::string, int32_t> slots;
    for (size_t i = 0; i < list.size(); ++i) slots[list[i].name] = static_cast<int32_t>(i);
    for (ir::Value& value : network->values) {
      const auto slot = slots.find(value.name);
      const bool dropped = value.kind == ir::ValueKind::kActivation && value.producer < 0;
      if (!dropped || slot == slots.end() || slot->second != value.slot || kept_->count(value.name) == 0) continue;
      if (value.type == list[static_cast<size_t>(slot->second)].type) value.kind = kind;
    }
  }

  static ImportedValues ValuesOf(const onnx::ImportedModel& imported) {
    ImportedValues values;
    for (const ir::Value& value : imported.graph.values) {
      const auto slot = static_cast<size_t>(value.slot);
      if (value.kind == ir::ValueKind::kParameter) values[value.name] = imported.parameter_values[slot];
      if (value.kind != ir::ValueKind::kState || imported.state_values[slot] == nullptr) continue;
      values[value.name] = imported.state_values[slot];
    }
    return values;
  }

  // First values of what DrawAnew's rules do not hold for.
  ImportedValues NotDrawn(const onnx::ImportedModel& imported) const {
    const ImportedValues all = ValuesOf(imported);
    ImportedValues values;
    for (const onnx::FloatInitializer& f : file_->FloatInitializers({output_})) {
      const auto value = f.drawn ? all.end() : all.find(f.tensor);
      if (value != all.end()) values.insert(*value);
    }
    return values;
  }

  void TakeLayers(const onnx::ImportedModel& imported) {
    std::set<std::string> live;
    for (const ir::Node& node : imported.graph.nodes) live.insert(node.layer);
    for (const auto& layer : imported.layers) {
      if (live.count(layer.first) > 0) forward_.layers.push_back(layer);
    }
  }

  // An op between the data and the network, or behind it. No operation of a file is named so.
  absl::StatusOr<ValueId> Emit(OpKind op, const std::string& name, ValueId x, ir::Attributes attributes) {
    AMPD_ASSIGN_OR_RETURN(
        const std::vector<ValueId> y,
        ops::Emit(&forward_.graph, {.op = op, .name = name, .inputs = {x}, .attributes = std::move(attributes)}));
    return y[0];
  }

  absl::StatusOr<ValueId> AddData() {
    Shape data{batch_}, shape{batch_};
    data.insert(data.end(), sample_.input_shape.begin(), sample_.input_shape.end());
    shape.insert(shape.end(), binding_.shape.begin(), binding_.shape.end());
    AMPD_RETURN_IF_ERROR(ElementBudget().Count(data, "data.train"));
    ValueId x = forward_.graph.AddInput("x", {DType::kF32, data});
    if (binding_.turn) {
      AMPD_ASSIGN_OR_RETURN(
          x, Emit(OpKind::kTranspose, "x.channels_first", x, {{"perm", std::vector<int64_t>{0, 3, 1, 2}}}));
    }
    if (!binding_.image && forward_.graph.type(x).shape != shape) {
      AMPD_ASSIGN_OR_RETURN(
          x, Emit(OpKind::kReshape, "x.as_input", x, {{"shape", std::vector<int64_t>(shape.begin(), shape.end())}}));
    }
    if (binding_.element_type == "FLOAT") return x;
    const DType dtype = binding_.element_type == "INT64" ? DType::kI64 : DType::kI32;
    return Emit(OpKind::kCast, "x.as_integers", x, {{"dtype", std::string(DTypeName(dtype))}});
  }

  absl::Status AddNetwork(const ir::Graph& network) {
    AMPD_ASSIGN_OR_RETURN(const ValueId x, AddData());
    GraphInliner inliner(&forward_.graph);
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> map, inliner.Inline(network, {x}, "", ""));
    ValueId prediction = map[static_cast<size_t>(network.outputs.at(output_))];
    const Shape shape = forward_.graph.type(prediction).shape;
    const int64_t each = NumElements(shape) / batch_;
    const bool vector = std::all_of(shape.begin() + 1, shape.end(), [&](int64_t e) { return e == 1 || e == each; });
    if (sample_.label_shape.empty() && shape.size() > 2 && vector) {
      AMPD_ASSIGN_OR_RETURN(prediction, Emit(OpKind::kReshape, "prediction.as_vector", prediction,
                                             {{"shape", std::vector<int64_t>{batch_, each}}}));
    }
    const absl::Status status = AddLoss(model_.loss(), sample_, training_, {prediction, {}}, &forward_.graph);
    return status.ok() ? status : InvalidField("model.loss", status.message());
  }

  const v1::ModelSpec& model_;
  const v1::OnnxModel& spec_;
  const std::shared_ptr<const onnx::Model> file_;
  const SampleInfo& sample_;
  const int64_t batch_;
  const bool training_;
  const std::set<std::string>* kept_;
  Binding binding_;
  std::string output_;
  ImportedForward forward_;
};

std::string ComputeName(const ir::Graph& graph, const ir::Node& node, bool allow) {
  if (node.attributes.String(ops::kComputeAttribute) == ops::kComputeTf32) return ops::kComputeTf32;
  return std::string(DTypeName(graph.type(allow ? node.inputs[0] : node.outputs[0]).dtype));
}

}  // namespace

absl::StatusOr<ImportedForward> BuildImportedForward(const v1::ModelSpec& model, const SampleInfo& sample,
                                                     int64_t batch, bool training, const std::set<std::string>* kept) {
  return ImportedBuilder(model, sample, batch, training, kept).Build();
}

absl::StatusOr<ir::Graph> BuildImportedInference(const v1::ModelSpec& model, const SampleInfo& sample, int64_t batch) {
  return ImportedBuilder(model, sample, batch, /*training=*/false, nullptr).BuildWithoutLoss();
}

absl::StatusOr<std::vector<bool>> NotFrozen(const v1::OnnxModel& onnx, const ir::Graph& graph) {
  std::vector<std::string> names;
  for (const ir::Persistent& parameter : graph.parameters) names.push_back(parameter.name);
  for (const ir::Persistent& state : graph.states) names.push_back(state.name);
  for (int i = 0; i < onnx.freeze_size(); ++i) {
    const std::string& glob = onnx.freeze(i);
    const auto matches = [&](const std::string& name) { return GlobMatches(glob, name); };
    if (std::any_of(names.begin(), names.end(), matches)) continue;
    return InvalidField(absl::StrCat("model.onnx.freeze[", i, "]"),
                        absl::StrCat("no initializer that is trained matches ", Quoted(glob), DidYouMean(glob, names)));
  }
  std::vector<bool> trained;
  for (const ir::Persistent& parameter : graph.parameters) trained.push_back(!MatchesAny(onnx, parameter.name));
  return trained;
}

absl::Status CheckRules(const v1::PrecisionSpec& precision, const ImportedForward& forward) {
  std::vector<std::string> names;
  for (const auto& [name, op] : forward.layers) names.push_back(name);
  for (int i = 0; i < precision.rules_size(); ++i) {
    const std::string& glob = precision.rules(i).match();
    const auto matches = [&](const std::string& name) { return GlobMatches(glob, name); };
    if (std::any_of(names.begin(), names.end(), matches)) continue;
    return InvalidField(absl::StrCat("precision.rules[", i, "].match"),
                        absl::StrCat("no layer matches ", Quoted(glob), DidYouMean(glob, names)));
  }
  return absl::OkStatus();
}

std::vector<v1::LayerPlan> DescribeImported(const ImportedForward& forward, const ir::Graph& train) {
  std::vector<v1::LayerPlan> plans(forward.layers.size());
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < plans.size(); ++i) {
    plans[i].set_name(forward.layers[i].first);
    plans[i].set_kind(forward.layers[i].second);
    index[forward.layers[i].first] = i;
  }
  std::vector<bool> computes(plans.size(), false), counted(train.parameters.size(), false);
  for (const ir::Node& node : train.nodes) {
    const auto found = index.find(node.layer);
    if (found == index.end() || node.stage != ir::Stage::kForward) continue;
    v1::LayerPlan& plan = plans[found->second];
    for (ValueId v : node.inputs) {
      const ir::Value& value = train.values[static_cast<size_t>(v)];
      if (value.kind != ir::ValueKind::kParameter || counted[static_cast<size_t>(value.slot)]) continue;
      counted[static_cast<size_t>(value.slot)] = true;
      plan.set_parameters(plan.parameters() + NumElements(value.type.shape));
    }
    if (node.op == OpKind::kCast || node.outputs.empty()) continue;
    const bool allow = ops::GetOpDef(node.op).precision == ops::PrecisionClass::kAllow;
    if (plan.dtype().empty() || (allow && !computes[found->second])) plan.set_dtype(ComputeName(train, node, allow));
    computes[found->second] = computes[found->second] || allow;
    const Shape& shape = train.type(node.outputs[0]).shape;
    plan.clear_output_shape();
    for (size_t i = 1; i < shape.size(); ++i) plan.add_output_shape(shape[i]);
  }
  return plans;
}

}  // namespace ampd::models
