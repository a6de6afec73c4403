// Which dense layers a resident step takes together, and when it must not: what is taken together is not written where
// anybody else could read it.
#include "engine/backend/cuda/resident_stack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cuda/resident_program.h"
#include "engine/backend/cuda_backend.h"
#include "engine/train/planned_model.h"
#include "tests/bench/bench_job.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using ops::ElementwiseFunction;

// The plan of a job with such layers, as YAML; batches of 16.
class Stacks : public ::testing::Test {
 protected:
  runtime::Plan* PlanOf(const std::string& layers, const std::string& mode, const std::string& target = "features=1",
                        const std::string& loss = "mean_squared_error", const std::string& input = "24") {
    std::ofstream(folder_.path() + "/job.yaml") << "model:\n  layers:\n"
                                                << layers << "  loss: {" << loss << ": {}}\n"
                                                << "data: {train: {npy: {inputs: x.npy, targets: y.npy}}}\n"
                                                << "optimizer: {adam: {learning_rate: 0.001}}\n"
                                                << "train: {steps: 1, batch_size: 16}\n";
    const auto spec = bench::ReadSpec(folder_.path() + "/job.yaml", mode, {});
    EXPECT_TRUE(spec.ok()) << spec.status();
    if (!spec.ok()) return nullptr;
    const bench::Sample sample = bench::ParseSample(input, target).value();
    auto model = PlanModel(*spec, sample.info, MakeCudaBackend("").value(), 1);
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) return nullptr;
    model_ = *std::move(model);
    return &model_->phases[0].plans[0];
  }

  // Layers that are taken together, 0: none.
  int Found(const std::string& layers, const std::string& mode = "FP16", const std::string& target = "features=1",
            const std::string& loss = "mean_squared_error") {
    const runtime::Plan* plan = PlanOf(layers, mode, target, loss);
    if (plan == nullptr) return -1;
    const auto stack = cuda::FindResidentStack(*plan);
    return stack ? stack->stack.layer_count : 0;
  }

  ScratchFolder folder_;
  std::unique_ptr<PlannedModel> model_;
};

std::string Dense(const std::string& name, int units, const std::string& rest = "") {
  return "    - {name: " + name + ", dense: {units: " + std::to_string(units) + rest + "}}\n";
}
const std::string kRelu = ", activation: RELU";

TEST_F(Stacks, AreOfAllDenseLayers) {
  EXPECT_EQ(Found(Dense("a", 16, kRelu) + Dense("b", 16, kRelu) + Dense("c", 1)), 3);
  EXPECT_EQ(Found(Dense("a", 16, kRelu) + Dense("b", 16, kRelu) + Dense("c", 1), "BF16"), 3);
  EXPECT_EQ(Found(Dense("a", 1)), 1);
  EXPECT_EQ(Found(Dense("a", 20, ", bias: false") + Dense("b", 1, ", bias: false")), 2);
  for (const char* activation : {"RELU", "GELU", "GELU_TANH", "SILU", "SIGMOID", "TANH"}) {
    const std::string then = std::string(", activation: ") + activation;
    // 13 units are padded to 16.
    for (const int units : {13, 16}) {
      EXPECT_EQ(Found(Dense("a", units, then) + Dense("b", units, then) + Dense("c", 1)), 3)
          << activation << " " << units;
    }
  }
  EXPECT_EQ(Found(Dense("a", 13, kRelu) + Dense("b", 10), "FP16", "classes=10", "softmax_cross_entropy"), 2);
}

// Everything between the batch and the loss, and back, is theirs.
TEST_F(Stacks, HoldEverythingButTheLoss) {
  const runtime::Plan* plan = PlanOf(Dense("a", 13, kRelu) + Dense("b", 16, kRelu) + Dense("c", 1), "FP16");
  ASSERT_NE(plan, nullptr);
  const auto stack = cuda::FindResidentStack(*plan);
  ASSERT_TRUE(stack);
  std::vector<std::string> others;
  for (size_t s = 0; s < plan->steps.size(); ++s) {
    if (!stack->holds[s]) others.emplace_back(ir::OpName(plan->steps[s].op));
  }
  EXPECT_EQ(others,
            (std::vector<std::string>{"squared_error", "reduce_mean", "reduce_mean_grad", "squared_error_grad"}));
  EXPECT_EQ(stack->input->space, runtime::Space::kInput);
  EXPECT_EQ(stack->stack.layers[0].out, 16);
  EXPECT_EQ(stack->stack.layers[0].grad_out, 13);
  EXPECT_EQ(stack->stack.layers[1].grad_in, 13);
}

TEST_F(Stacks, AreNarrowWhereEveryLayerIs) {
  const auto narrow = [&](const std::string& layers, const std::string& input = "8") {
    const runtime::Plan* plan = PlanOf(layers, "FP16", "features=1", "mean_squared_error", input);
    const auto stack = cuda::FindResidentStack(*plan);
    if (!stack) return false;
    // Whatever is shared begins where rows of weights may.
    return stack
        ->WithAddresses([](const runtime::PlannedTensor& tensor) -> absl::StatusOr<void*> {
          return cuda::InShared(tensor.space == runtime::Space::kPublished ? tensor.offset : 0);
        })
        ->narrow;
  };
  EXPECT_TRUE(narrow(Dense("a", 16, kRelu) + Dense("b", 16, kRelu) + Dense("c", 1)));
  EXPECT_TRUE(narrow(Dense("a", 13, kRelu) + Dense("c", 16) + Dense("d", 1)));
  EXPECT_FALSE(narrow(Dense("a", 17, kRelu) + Dense("c", 1)));
  EXPECT_FALSE(narrow(Dense("a", 16, kRelu) + Dense("c", 1), "24"));
  EXPECT_FALSE(narrow(Dense("a", 16, ", activation: TANH") + Dense("c", 1)));
}

// What a resident step does is layers forward, loss, mean and the gradients of both at once, layers backward.
TEST_F(Stacks, LeaveOneInstructionBetweenThem) {
  // `read_again`: what a step of this op reads is read by another behind the loss's gradient.
  const auto ops = [&](const std::string& target, const std::string& loss,
                       ir::OpKind read_again = ir::OpKind::kMatmul) {
    const std::string units = target.substr(target.find('=') + 1);
    runtime::Plan* plan = PlanOf(
        "    - {name: a, dense: {units: 16}}\n    - {name: b, dense: {units: " + units + "}}\n", "FP16", target, loss);
    const auto of = [&](ir::OpKind op) {
      return std::find_if(plan->steps.begin(), plan->steps.end(), [op](const auto& step) { return step.op == op; });
    };
    if (read_again != ir::OpKind::kMatmul) {
      runtime::PlanStep another;
      another.op = ir::OpKind::kReduceMean;
      another.name = "another";
      another.attributes = of(ir::OpKind::kReduceMean)->attributes;
      another.inputs = {of(read_again)->inputs[0]};
      another.outputs = of(ir::OpKind::kReduceMean)->outputs;
      another.outputs[0].offset = int64_t{1} << 20;
      plan->steps.insert(of(ir::OpKind::kSquaredErrorGrad) + 1, std::move(another));
    }
    const auto stack = cuda::FindResidentStack(*plan);
    EXPECT_TRUE(stack);
    const auto program = cuda::CompileResident(*plan, &*stack, [](const runtime::PlannedTensor& tensor) {
      // Spaces of their own.
      return absl::StatusOr<void*>(cuda::InShared((static_cast<int64_t>(tensor.space) << 32) + tensor.offset));
    });
    EXPECT_TRUE(program.ok()) << program.status();
    std::vector<cuda::ResidentOp> found;
    for (const cuda::ResidentInstruction& instruction : program->instructions) found.push_back(instruction.op);
    EXPECT_FALSE(program->interprets);
    return found;
  };
  using Op = cuda::ResidentOp;
  const std::vector<Op> joined = {Op::kStackForward, Op::kMeanLoss, Op::kStackBackward};
  const std::vector<Op> apart = {Op::kStackForward, Op::kLoss,     Op::kMean,
                                 Op::kMeanGrad,     Op::kLossGrad, Op::kStackBackward};
  for (const char* loss : {"mean_squared_error", "l1", "smooth_l1", "hinge", "sigmoid_cross_entropy"}) {
    EXPECT_EQ(ops("features=1", loss), joined) << loss;
  }
  EXPECT_EQ(ops("features=8", "mean_squared_error"), joined);
  // A thread would take so long a row alone.
  EXPECT_EQ(ops("features=9", "mean_squared_error"), apart);
  // The mean reads the losses, the loss's gradient the gradient by each.
  std::vector<Op> read = apart;
  read.insert(read.begin() + 5, Op::kMean);
  EXPECT_EQ(ops("features=1", "mean_squared_error", ir::OpKind::kSquaredErrorGrad), read);
  EXPECT_EQ(ops("features=1", "mean_squared_error", ir::OpKind::kReduceMean), read);
}

TEST_F(Stacks, AreNotOfWhatHasOtherOperands) {
  const std::string layers = Dense("a", 16, kRelu) + Dense("b", 1);
  EXPECT_EQ(Found(layers, "FP32"), 0);
  EXPECT_EQ(Found(layers, "TF32"), 0);
}

TEST_F(Stacks, AreNotOfLayersThatOthersRead) {
  // The sum reads what the second layer reads.
  EXPECT_EQ(
      Found(Dense("a", 16, kRelu) + Dense("b", 16) + "    - {name: s, inputs: [b, a], add: {}}\n" + Dense("c", 1)), 0);
  EXPECT_EQ(Found(Dense("a", 16, kRelu) + "    - {name: d, dropout: {rate: 0.5}}\n" + Dense("c", 1)), 0);
  EXPECT_EQ(Found(Dense("a", 16) + "    - {name: n, layer_norm: {}}\n" + Dense("c", 1)), 1);
  // Behind the last product the loss begins, in f32.
  EXPECT_EQ(Found(Dense("a", 16, kRelu) + Dense("c", 1, ", activation: SIGMOID")), 2);
}

TEST_F(Stacks, AreNotOfAPlanThatShowsWhatLiesWithin) {
  runtime::Plan* plan = PlanOf(Dense("a", 16, kRelu) + Dense("b", 16, kRelu) + Dense("c", 1), "FP16");
  ASSERT_NE(plan, nullptr);
  const auto hidden = std::find_if(plan->steps.begin(), plan->steps.end(),
                                   [](const runtime::PlanStep& step) { return step.name == "b.relu"; });
  ASSERT_NE(hidden, plan->steps.end());
  ASSERT_TRUE(cuda::FindResidentStack(*plan));
  // By whatever name, and even in part.
  runtime::PlannedTensor shown = hidden->outputs[0];
  shown.name = "view";
  shown.offset += 32;
  shown.type.shape = {1, 16};
  plan->outputs["shown"] = shown;
  // It is overwritten by what follows, of which the last that lies there counts.
  const bool still_there = std::none_of(hidden + 1, plan->steps.end(), [&](const runtime::PlanStep& step) {
    return std::any_of(step.outputs.begin(), step.outputs.end(), [&](const runtime::PlannedTensor& tensor) {
      return tensor.space == runtime::Space::kArena && tensor.offset < shown.offset + 32 &&
             shown.offset < tensor.offset + runtime::BytesOf(tensor);
    });
  });
  ASSERT_TRUE(still_there) << "the plan has changed: choose another tensor";
  EXPECT_FALSE(cuda::FindResidentStack(*plan));
}

// A mask that makes more columns zero than pad is the network's own.
TEST_F(Stacks, AreNotOfMasksThatDoMoreThanPad) {
  runtime::Plan* plan = PlanOf(Dense("a", 13, ", activation: SIGMOID") + Dense("b", 16) + Dense("c", 1), "FP16");
  ASSERT_NE(plan, nullptr);
  ASSERT_TRUE(cuda::FindResidentStack(*plan));
  bool changed = false;
  for (auto& constant : plan->constants) {
    if (constant->view().dtype != DType::kBool || constant->view().size() != 16) continue;
    auto mask = std::make_shared<Tensor>(DType::kBool, Shape{16});
    std::fill_n(mask->view().as<uint8_t>(), 12, 1);
    constant = mask;
    changed = true;
  }
  ASSERT_TRUE(changed);
  EXPECT_FALSE(cuda::FindResidentStack(*plan));
}

}  // namespace
}  // namespace ampd::train
