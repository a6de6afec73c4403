// Attribution under attack: every output of every op is overwritten with infinities and NaN, and must be the one named.
// The walks read the op table and the rows that tests have of each op, so an op that is added is attacked as well; one
// without a row fails here.
#include "engine/train/attribution.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/autodiff/differentiate.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/ops/op_def.h"
#include "engine/passes/fuse.h"
#include "engine/passes/overwrite_gradients.h"
#include "engine/passes/split_norms.h"
#include "engine/passes/widen_gradients.h"
#include "engine/train/step_runner.h"
#include "gtest/gtest.h"
#include "tests/support/forwarding_backend.h"
#include "tests/support/op_rows.h"
#include "tests/support/small_networks.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using ir::OpKind;
using runtime::KernelTable;
using testing::KernelCase;
using Ints = std::vector<int64_t>;

constexpr float kPoisons[] = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()};

// What an event must say of `poison` in a tensor of `dtype`: e4m3fn has no infinity.
v1::OverflowSkip::Kind KindIn(DType dtype, float poison) {
  return KindOf(std::isnan(poison) || dtype == DType::kF8E4M3);
}

v1::OverflowSkip::Stage StageOf(const ir::Node& node) {
  if (node.op == OpKind::kAccumulateGrad) return v1::OverflowSkip::REDUCE;
  static const auto& stages =
      *new std::map<ir::Stage, v1::OverflowSkip::Stage>{{ir::Stage::kInput, v1::OverflowSkip::INPUT},
                                                        {ir::Stage::kForward, v1::OverflowSkip::FORWARD},
                                                        {ir::Stage::kLoss, v1::OverflowSkip::LOSS},
                                                        {ir::Stage::kGradient, v1::OverflowSkip::GRADIENT}};
  return stages.at(node.stage);
}

// One tensor that a node writes: an output, a gradient slot, or a state.
struct Target {
  std::string node;
  int index = 0;  // among the outputs; for `is_state` among the inputs
  bool is_state = false;
  DType dtype = DType::kF32;
  v1::OverflowSkip::Stage stage = v1::OverflowSkip::STAGE_UNSPECIFIED;
  std::string tensor;
};

// The values that someone reads: another result of a node does no harm.
std::set<ir::ValueId> ReadValues(const ir::Graph& graph) {
  std::set<ir::ValueId> read;
  for (const ir::Node& node : graph.nodes) read.insert(node.inputs.begin(), node.inputs.end());
  for (const auto& [name, v] : graph.outputs) read.insert(v);
  return read;
}

ir::ValueId RootOf(const ir::Graph& graph, ir::ValueId v) {
  while (graph.values[v].producer >= 0 && ops::GetOpDef(graph.nodes[graph.values[v].producer].op).is_view) {
    v = graph.nodes[graph.values[v].producer].inputs[0];
  }
  return v;
}

// Whether the gradient is made in its slot, so that nothing runs to put it there.
bool IsInPlace(const ir::Graph& graph, const ir::Node& accumulate) {
  if (!accumulate.attributes.Bool("overwrite")) return false;
  const ir::ValueId root = RootOf(graph, accumulate.inputs[0]);
  int reads = 0;
  for (const ir::Node& node : graph.nodes) {
    if (ops::GetOpDef(node.op).is_view) continue;
    for (ir::ValueId v : node.inputs) reads += RootOf(graph, v) == root ? 1 : 0;
  }
  return graph.values[root].producer >= 0 && graph.type(root).dtype == DType::kF32 && reads == 1;
}

// Every float tensor that `graph` writes and reads, named and staged by the graph itself.
std::vector<Target> TargetsOf(const ir::Graph& graph) {
  std::vector<Target> targets;
  const std::set<ir::ValueId> read = ReadValues(graph);
  for (const ir::Node& node : graph.nodes) {
    const ops::OpDef& def = ops::GetOpDef(node.op);
    if (def.is_view) continue;
    const auto add = [&](int index, bool is_state, ir::ValueId v, const std::string& name) {
      const DType dtype = graph.type(v).dtype;
      // States are looked at together, when the passes are over.
      const v1::OverflowSkip::Stage stage = is_state ? v1::OverflowSkip::FORWARD : StageOf(node);
      if (IsFloat(dtype)) targets.push_back({node.name, index, is_state, dtype, stage, name});
    };
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (read.count(node.outputs[i]) == 0) continue;
      add(static_cast<int>(i), false, node.outputs[i], graph.values[node.outputs[i]].name);
    }
    if (node.op == OpKind::kAccumulateGrad && !IsInPlace(graph, node)) add(0, false, node.inputs[1], node.name);
    for (size_t i = 0; def.has_effects && i < node.inputs.size(); ++i) {
      const ir::Value& value = graph.values[node.inputs[i]];
      if (value.kind == ir::ValueKind::kState) add(static_cast<int>(i), true, node.inputs[i], value.name);
    }
  }
  return targets;
}

void Fill(const TensorView& tensor, float poison) {
  testing::CopyTo(testing::Filled(tensor.shape, static_cast<double>(poison)), tensor);
}

void Expect(const absl::optional<NonFinite>& found, const Target& target, float poison) {
  ASSERT_TRUE(found.has_value()) << target.tensor << " = " << poison << " was not found";
  EXPECT_EQ(found->stage, target.stage) << target.tensor << ", found " << found->tensor;
  EXPECT_EQ(found->tensor, target.tensor);
  EXPECT_EQ(found->kind, KindIn(target.dtype, poison)) << target.tensor;
}

// A graph on the CPU backend, with its inputs, parameters and states.
class Machine {
 public:
  Machine(ir::Graph graph, const testing::GraphInputs& in)
      : graph_(std::move(graph)),
        backend_(MakeCpuBackend(1)),
        layout_(graph_),
        plan_(runtime::MakePlan(graph_, *backend_, 1, &layout_).value()),
        memory_(runtime::ModelMemory::Create(&layout_, backend_->memory()).value()),
        arena_(runtime::Buffer::Allocate(backend_->memory(), plan_.arena_bytes, "arena").value()),
        executor_(runtime::Executor::Create(&plan_, &memory_, &arena_).value()),
        step_(in.step) {
    for (const runtime::PlannedTensor& input : plan_.inputs) {
      inputs_.push_back(testing::ToTensor(in.inputs.at(input.name), input.type.dtype));
      EXPECT_TRUE(executor_->BindInput(input.name, inputs_.back().view().data).ok());
    }
    for (size_t i = 0; i < in.parameters.size(); ++i) {
      testing::CopyTo(in.parameters[i], memory_.Master(static_cast<int32_t>(i)));
    }
    for (size_t i = 0; i < in.states.size(); ++i) {
      testing::CopyTo(in.states[i], memory_.State(static_cast<int32_t>(i)));
    }
    EXPECT_TRUE(memory_.PublishAll().ok());
  }

  // What is found in a run in which `target`, if there is one, is overwritten as soon as it is written.
  absl::optional<NonFinite> Run(const Target* target, float poison) {
    EXPECT_TRUE(memory_.BeginUpdate().ok());
    NonFiniteSearch search(backend_.get());
    const absl::Status status =
        executor_->Run(step_, [&](const runtime::PlanStep& step, absl::Span<const TensorView> outputs) {
          if (target != nullptr && step.name == target->node) {
            Fill(target->is_state ? Pending(step.inputs[static_cast<size_t>(target->index)])
                                  : outputs[static_cast<size_t>(target->index)],
                 poison);
          }
          return search.After(step, outputs);
        });
    EXPECT_TRUE(status.ok() || search.find().has_value()) << status;
    if (search.find().has_value()) return search.find();
    const auto state = FindNonFiniteState(backend_.get(), &memory_);
    EXPECT_TRUE(state.ok()) << state.status();
    return *state;
  }

  const ir::Graph& graph() const { return graph_; }

 private:
  TensorView Pending(const runtime::PlannedTensor& state) {
    EXPECT_EQ(state.space, runtime::Space::kPendingState);
    return {memory_.pending_state() + state.offset, state.type.dtype, state.type.shape};
  }

  ir::Graph graph_;
  std::unique_ptr<runtime::Backend> backend_;
  runtime::ModelLayout layout_;
  runtime::Plan plan_;
  runtime::ModelMemory memory_;
  runtime::Buffer arena_;
  std::unique_ptr<runtime::Executor> executor_;
  runtime::StepState step_;
  std::vector<Tensor> inputs_;
};

// Attacks every tensor that the graph writes; false when the graph is not finite even without an attack.
bool Attack(Machine* machine, const std::string& what) {
  SCOPED_TRACE(what);
  if (machine->Run(nullptr, 0).has_value()) return false;
  for (const Target& target : TargetsOf(machine->graph())) {
    for (float poison : kPoisons) Expect(machine->Run(&target, poison), target, poison);
  }
  return true;
}

// `kernel_case` as a graph: states where the op reads them, parameters where `trained` (f32 only) or a gradient is
// accumulated, inputs elsewhere.
struct CaseGraph {
  ir::Graph graph;
  testing::GraphInputs in;
  std::vector<ir::ValueId> outputs;
};

// Whether the op has no gradient of input `i`.
bool IsConstant(OpKind op, size_t i) {
  const testing::OpRow* row = testing::FindOpRow(op);
  return row != nullptr &&
         std::count(row->constant_inputs.begin(), row->constant_inputs.end(), static_cast<int>(i)) > 0;
}

CaseGraph GraphOf(const KernelCase& kernel_case, ir::Stage stage, bool trained) {
  const runtime::NodeDesc& desc = kernel_case.desc;
  const ops::OpDef& def = ops::GetOpDef(desc.op);
  CaseGraph built;
  built.in.step = kernel_case.step;
  std::vector<ir::ValueId> operands;
  for (size_t i = 0; i < desc.inputs.size(); ++i) {
    const ir::TensorType& type = desc.inputs[i];
    const std::string name = absl::StrCat("in", i);
    const bool slot = desc.op == OpKind::kAccumulateGrad && i == 1;
    if (ops::RoleOf(def, i) == ops::Role::kState) {
      operands.push_back(built.graph.AddState({.name = name, .type = type}));
      built.in.states.push_back(kernel_case.inputs[i]);
    } else if (slot || (trained && type.dtype == DType::kF32 && !IsConstant(desc.op, i))) {
      operands.push_back(built.graph.AddParameter({.name = name, .type = type}));
      built.in.parameters.push_back(kernel_case.inputs[i]);
    } else {
      operands.push_back(built.graph.AddInput(name, type));
      built.in.inputs[name] = kernel_case.inputs[i];
    }
  }
  auto outputs = ops::Emit(&built.graph, {.op = desc.op,
                                          .name = "attacked",
                                          .inputs = std::move(operands),
                                          .attributes = desc.attributes,
                                          .stage = stage});
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  built.outputs = outputs.value_or(std::vector<ir::ValueId>());
  for (ir::ValueId v : built.outputs) built.graph.outputs[built.graph.values[v].name] = v;
  return built;
}

int64_t Elements(const KernelCase& kernel_case) {
  int64_t elements = 0;
  for (const testing::RefTensor& input : kernel_case.inputs) elements += input.size();
  return elements;
}

// Cases small enough to be run by the dozen first, the largest of them at the front: the smallest hold one element,
// which tells little.
std::vector<KernelCase> SmallCases(OpKind op, const KernelTable::Signature& signature) {
  constexpr int64_t kSmall = 3000;
  std::vector<KernelCase> cases = testing::KernelCases(op, signature);
  std::stable_sort(cases.begin(), cases.end(), [](const KernelCase& a, const KernelCase& b) {
    const int64_t x = Elements(a), y = Elements(b);
    return (x <= kSmall) != (y <= kSmall) ? x <= kSmall : x <= kSmall ? x > y : x < y;
  });
  return cases;
}

bool WritesFloats(const KernelTable::Signature& signature, OpKind op) {
  for (DType dtype : signature.second) {
    if (IsFloat(dtype)) return true;
  }
  return ops::GetOpDef(op).has_effects;
}

TEST(Attribution, NamesWhateverAnyOpWritesAtEveryDtypeAndStage) {
  std::map<OpKind, int> attacked;
  for (const auto& [op, signature] : testing::RequiredKernels()) {
    attacked[op] += WritesFloats(signature, op) ? 0 : 1;
    if (!WritesFloats(signature, op)) continue;
    for (const KernelCase& kernel_case : SmallCases(op, signature)) {
      bool finite = true;
      for (ir::Stage stage : {ir::Stage::kInput, ir::Stage::kForward, ir::Stage::kLoss, ir::Stage::kGradient}) {
        CaseGraph built = GraphOf(kernel_case, stage, false);
        Machine machine(std::move(built.graph), built.in);
        finite = finite && Attack(&machine, testing::Describe(kernel_case.desc));
      }
      if (!finite) continue;
      ++attacked[op];
      break;
    }
  }
  for (OpKind op : ir::kAllOpKinds) {
    // A fused node or region stands for what it is made of, and is named by its output as any node is.
    if (ops::GetOpDef(op).is_view || op == OpKind::kFused || op == OpKind::kRegion) continue;
    EXPECT_GT(attacked[op], 0) << ir::OpName(op) << ": RequiredKernels() and KernelCases() give no graph of it";
  }
}

// The mean squared distance of the op's differentiable outputs from zero, and its gradient behind it.
absl::StatusOr<ir::Graph> WithBackward(CaseGraph* built, OpKind op) {
  const testing::OpRow* row = testing::FindOpRow(op);
  const int count = row == nullptr ? 1 : row->differentiable_outputs;
  ir::Graph* g = &built->graph;
  ir::ValueId total = -1;
  absl::Status status;
  const auto emit = [&](OpKind kind, const std::string& name, std::vector<ir::ValueId> inputs, ir::Attributes a) {
    auto values = ops::Emit(
        g,
        {.op = kind, .name = name, .inputs = std::move(inputs), .attributes = std::move(a), .stage = ir::Stage::kLoss});
    status.Update(values.status());
    return values.ok() ? (*values)[0] : built->outputs[0];
  };
  for (int i = 0; i < count; ++i) {
    const int64_t size = NumElements(g->type(built->outputs[i]).shape);
    const ir::ValueId flat =
        emit(OpKind::kReshape, absl::StrCat("flat", i), {built->outputs[i]}, {{"shape", Ints{1, size}}});
    const std::string target = absl::StrCat("target", i);
    built->in.inputs[target] = testing::Filled({1, size}, 0.5);
    const ir::ValueId target_value = g->AddInput(target, {DType::kF32, {1, size}});
    const ir::ValueId losses = emit(OpKind::kSquaredError, absl::StrCat("losses", i), {flat, target_value}, {});
    const ir::ValueId mean = emit(OpKind::kReduceMean, absl::StrCat("mean", i), {losses}, {});
    total = total < 0 ? mean : emit(OpKind::kAdd, absl::StrCat("total", i), {total, mean}, {});
  }
  if (!status.ok()) return status;
  g->outputs = {{"loss", total}};
  return autodiff::Differentiate(*g, total);
}

// The op's own backward pass: what autodiff emits must be staged as gradients, and the first one blamed.
TEST(Attribution, NamesWhateverTheGradientOfAnyOpWrites) {
  std::map<OpKind, int> attacked;
  for (const auto& [op, signature] : testing::RequiredKernels()) {
    const bool f32 = std::all_of(signature.first.begin(), signature.first.end(),
                                 [](DType dtype) { return !IsFloat(dtype) || dtype == DType::kF32; });
    const bool cast_away = op == OpKind::kCast && signature.second[0] != DType::kF32;
    if (ops::GetOpDef(op).gradient == nullptr || !f32 || cast_away || attacked[op] > 0) continue;
    if (signature.second.empty() || signature.second[0] != DType::kF32) continue;
    for (const KernelCase& kernel_case : SmallCases(op, signature)) {
      const std::string what = testing::Describe(kernel_case.desc);
      CaseGraph built = GraphOf(kernel_case, ir::Stage::kForward, true);
      auto graph = WithBackward(&built, op);
      ASSERT_TRUE(graph.ok()) << what << graph.status();
      Machine machine(*std::move(graph), built.in);
      if (!Attack(&machine, what)) continue;
      ++attacked[op];
      break;
    }
  }
  for (OpKind op : ir::kAllOpKinds) {
    const ops::OpDef& def = ops::GetOpDef(op);
    if (def.gradient == nullptr || def.is_view) continue;
    EXPECT_GT(attacked[op], 0) << ir::OpName(op) << ": no f32 case of it has a finite gradient";
  }
}

// --- Whole steps: a backend whose kernels overwrite one tensor of one node.

struct Poison {
  std::string node;  // empty: none
  int index = 0;
  bool is_state = false;
  float value = 0;
};

class PoisonedKernel : public runtime::Kernel {
 public:
  PoisonedKernel(std::unique_ptr<runtime::Kernel> kernel, std::string node, const Poison* poison)
      : kernel_(std::move(kernel)), node_(std::move(node)), poison_(poison) {}
  int64_t workspace_bytes() const override { return kernel_->workspace_bytes(); }
  absl::optional<runtime::PublishedLayout> published_layout(int input) const override {
    return kernel_->published_layout(input);
  }
  absl::Status Launch(const runtime::KernelArgs& args) override {
    absl::Status status = kernel_->Launch(args);
    if (node_ == poison_->node) {
      Fill((poison_->is_state ? args.inputs : args.outputs)[static_cast<size_t>(poison_->index)], poison_->value);
    }
    return status;
  }

 private:
  std::unique_ptr<runtime::Kernel> kernel_;
  std::string node_;
  const Poison* poison_;
};

class PoisonedBackend : public testing::ForwardingBackend {
 public:
  PoisonedBackend(const Poison* poison, bool fuse) : ForwardingBackend(MakeCpuBackend(1)), fuse_(fuse) {
    const auto prepare = [this,
                          poison](const runtime::NodeDesc& desc) -> absl::StatusOr<std::unique_ptr<runtime::Kernel>> {
      auto kernel = to()->kernels().Prepare(desc);
      if (!kernel.ok()) return kernel.status();
      return std::make_unique<PoisonedKernel>(*std::move(kernel), desc.name, poison);
    };
    for (OpKind op : ir::kAllOpKinds) table_.AddForAnyDTypes(op, prepare);
  }
  const runtime::KernelTable& kernels() const override { return table_; }
  bool CanFuse(OpKind op) const override { return fuse_ && to()->CanFuse(op); }

 private:
  const bool fuse_;
  runtime::KernelTable table_;
};

constexpr int64_t kBatch = 4;

// As PlanModel prepares small networks.
ir::Graph Prepared(ir::Graph graph, const runtime::Backend& backend) {
  const auto can_fuse = [&](OpKind op) { return backend.CanFuse(op); };
  graph = passes::SplitNorms(passes::WidenGradients(std::move(graph)).value(), can_fuse).value();
  return passes::OverwriteGradients(passes::Fuse(std::move(graph), can_fuse).value()).value();
}

// A network past calibration whose next steps can be attacked.
class Victim {
 public:
  Victim(const testing::SmallNetwork& network, const std::string& mode, bool fuse)
      : spec_(Spec({"data { train { glyphs {} } } train { batch_size: 4 }", "model { " + network.model + " }",
                    "precision { mode: " + mode + " }"})),
        plan_(PlanModel(spec_, network.sample, std::make_unique<PoisonedBackend>(&poison_, fuse), 1).value()),
        graph_(Prepared(models::BuildModel(spec_, network.sample, kBatch, kBatch)->phases[0].train, *plan_->backend)),
        loaded_(LoadedModel::Create(*plan_).value()),
        model_(*loaded_),
        runner_(1000, plan_.get(), &model_),
        scaler_(optim::InitialScalerState(runner_.loss_scale())) {
    const testing::GraphInputs in = testing::RandomInputs(network, graph_);
    batch_.inputs = testing::ToTensor(in.inputs.at("x"), DType::kF32);
    if (in.inputs.count("labels") > 0) batch_.labels = testing::ToTensor(in.inputs.at("labels"), DType::kI32);
    if (in.inputs.count("targets") > 0) batch_.targets = testing::ToTensor(in.inputs.at("targets"), DType::kF32);
    batch_.valid = kBatch;
    EXPECT_TRUE(model_.memory.Initialize(3).ok());
    EXPECT_TRUE(runner_.Prepare().ok());
    for (int i = 0; i < 20 && !Step().applied(); ++i) continue;
    EXPECT_EQ(scaler_.steps_applied, 1);
  }

  StepResult Step() {
    auto result = runner_.Run(batch_, &scaler_);
    EXPECT_TRUE(result.ok()) << result.status();
    ++batch_.step;
    return result.value_or(StepResult());
  }

  void Attack(const Target& target, float value) {
    poison_ = {target.node, target.index, target.is_state, value};
    const std::string before = Snapshot();
    const optim::LossScalerState scaler = scaler_;
    const StepResult result = Step();
    EXPECT_FALSE(result.applied()) << target.tensor << " = " << value << " went into the weights";
    EXPECT_EQ(Snapshot(), before) << target.tensor;
    Expect(result.first_non_finite, target, value);
    // Only what went wrong in the backward pass lowers the scale.
    const bool backward = target.stage == v1::OverflowSkip::GRADIENT || target.stage == v1::OverflowSkip::REDUCE;
    const bool scaled = runner_.loss_scale().kind == optim::LossScaleKind::kDynamic;
    EXPECT_EQ(scaler_.scale, backward && scaled ? scaler.scale / 2 : scaler.scale) << target.tensor;
    scaler_ = scaler;
    poison_ = {};
  }

  void AttackInput(float value) {
    float& x = batch_.inputs.as<float>()[1];
    const float saved = std::exchange(x, value);
    Expect(Step().first_non_finite, {.stage = v1::OverflowSkip::INPUT, .tensor = "x"}, value);
    x = saved;
  }

  const ir::Graph& graph() const { return graph_; }

 private:
  // Everything that an update changes.
  std::string Snapshot() {
    const size_t arena = static_cast<size_t>(plan_->layout.arena_elements()) * 4;
    std::string all(reinterpret_cast<const char*>(model_.memory.masters()), arena);
    for (int i = 0; i < model_.moments.count(); ++i) {
      all.append(reinterpret_cast<const char*>(model_.moments.arena(i)), arena);
    }
    return all.append(model_.memory.state(), static_cast<size_t>(plan_->layout.state_bytes()));
  }

  Poison poison_;
  ResolvedJobSpec spec_;
  std::unique_ptr<PlannedModel> plan_;
  ir::Graph graph_;
  std::unique_ptr<LoadedModel> loaded_;
  LoadedModel& model_;
  StepRunner runner_;
  optim::LossScalerState scaler_;
  data::Batch batch_;
};

// Mode, and whether chains of ops are fused.
class WholeSteps : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(WholeSteps, NothingPoisonedIsAppliedAndTheFirstTensorIsNamed) {
  int64_t fused = 0;
  for (const testing::SmallNetwork& network : testing::SmallNetworks()) {
    SCOPED_TRACE(network.name);
    Victim victim(network, std::get<0>(GetParam()), std::get<1>(GetParam()));
    const std::vector<Target> targets = TargetsOf(victim.graph());
    EXPECT_GT(targets.size(), 5u);
    for (const ir::Node& node : victim.graph().nodes) fused += node.op == OpKind::kFused ? 1 : 0;
    for (const Target& target : targets) {
      for (float poison : {kPoisons[0], kPoisons[2]}) victim.Attack(target, poison);
    }
    for (float poison : kPoisons) victim.AttackInput(poison);
    EXPECT_TRUE(victim.Step().applied()) << "the attacks left something behind";
  }
  EXPECT_EQ(fused > 0, std::get<1>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Modes, WholeSteps,
                         ::testing::Combine(::testing::Values("FP32", "FP16", "BF16"), ::testing::Bool()),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), std::get<1>(info.param) ? "Fused" : "");
                         });

}  // namespace
}  // namespace ampd::train
