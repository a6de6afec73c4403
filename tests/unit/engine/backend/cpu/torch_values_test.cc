// The kernels of losses and recurrent layers against what PyTorch 1.13 gives in float64 for the same numbers.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/ops/op_def.h"
#include "tests/support/op_rows.h"
#include "tests/unit/engine/backend/kernel_runner.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::NodeDesc;

struct CrossEntropyCase {
  bool weighted;
  double smoothing;
  int64_t ignored;
  double mean;
};

struct RecurrentCase {
  OpKind op;
  const char* direction;
  RefTensors inputs;  // behind x
  std::vector<double> y, h_n;
};

const RefTensor& Logits() {
  static const auto& t = *new RefTensor{{5, 4}, {-0.16, 0.72,  -1.56, 0.14, 2.1,  1.04, -0.34, 0.1,  0.8,  1.22,
                                                 1.52,  -0.06, 2,     0.92, 4.88, -0.3, 0.98,  0.42, 0.68, 2.7}};
  return t;
}
const RefTensor& Targets() {
  static const auto& t = *new RefTensor{
      {5, 4}, {0.265625, 0.234375, 0.390625, 0.109375, 0.171875, 0.640625, 0.015625, 0.15625, 0.265625, 0.171875,
               0.140625, 0.421875, 0.234375, 0.40625,  0.109375, 0.234375, 0.078125, 0.15625, 0.390625, 0.359375}};
  return t;
}
const std::vector<CrossEntropyCase>& CrossEntropyCases() {
  static const auto& cases = *new std::vector<CrossEntropyCase>{
      {false, 0.0, -100, 2.59096344}, {false, 0.0, 0, 3.63168669},   {false, 0.1, -100, 2.53116344},
      {false, 0.1, 0, 3.48852002},    {true, 0.0, -100, 2.49601676}, {true, 0.0, 0, 2.9471362},
      {true, 0.1, -100, 2.46247723},  {true, 0.1, 0, 2.84697239},
  };
  return cases;
}
constexpr double kSoft[] = {2.06027704, 2.07806488};
constexpr double kSigmoid = 1.17162039;
constexpr double kSmoothL1 = 0.733093485;
const RefTensor& Sounds() {
  static const auto& t =
      *new RefTensor{{2, 6, 4}, {0.72,  1.08,  1.73,  -1.47, 1.14,  2.06,  -0.44, 1.77,  0.34,  0.5,   0.55,  -0.26,
                                 -0.59, 0.87,  -1.31, 0.69,  0.32,  0.15,  -0.62, -0.01, -0.35, -0.84, -1.23, -0.68,
                                 0.52,  -0.88, 0.56,  1.44,  -0.21, -3.11, -0.43, 1.33,  0.66,  0.62,  0.45,  0.77,
                                 1.57,  0.53,  -1.44, 1.66,  1.17,  0.59,  0.78,  0.4,   -0.86, -0.21, 0.67,  -0.33}};
  return t;
}
constexpr double kCtc[] = {4.98846, 2.542161};
const RefTensor& Steps() {
  static const auto& t =
      *new RefTensor{{2, 3, 2}, {0.61, 0.68, 0.41, 0.03, -0.03, 1.46, 3.79, 0.27, 0.4, -0.61, 0.38, 0.49}};
  return t;
}
const RecurrentCase& LstmForward() {
  static const auto& c = *new RecurrentCase{OpKind::kLstm,
                                            "forward",
                                            {{{8, 2},
                                              {0.06, -0.485, -0.385, 0.125, -0.07, 0.145, -0.615, 0.355, 0.275, -0.32,
                                               0.09, 0.195, -0.34, 0.015, 0.17, -0.325}},
                                             {{8, 2},
                                              {1.075, 0.72, -0.145, 0.395, -0.15, -0.145, -0.99, -0.245, 0.225, -0.455,
                                               -0.485, -0.565, 0.245, 0.555, 0.6, 0.335}},
                                             {{8}, {-0.975, -0.185, -0.405, 0.01, 0.13, -0.11, -0.16, -0.745}},
                                             {{8}, {-0.855, 0.205, 0.15, 0.245, 0.36, -0.345, 0.125, 0.75}},
                                             {{2}, {3, 2}},
                                             {{2, 2}, {-1.97, -2.03, 0.57, -0.12}},
                                             {{2, 2}, {0.13, -0.47, -1.33, -1.71}}},
                                            {0.01092059, -0.01332885, 0.0497302, -0.1195533, 0.02892846, -0.08639622,
                                             -0.05963667, -0.1216009, -0.001881538, -0.1412315, 0, 0},
                                            {0.02892846, -0.08639622, -0.001881538, -0.1412315}};
  return c;
}
const RecurrentCase& LstmReverse() {
  static const auto& c = *new RecurrentCase{
      OpKind::kLstm,
      "reverse",
      {{{8, 2},
        {-0.41, -0.03, -0.28, -0.855, 0.245, -0.235, -0.62, -0.09, 0, 1.215, 1.12, -0.33, 0.175, -0.245, 0.14, 0.355}},
       {{8, 2},
        {0.285, -0.25, -0.085, -0.245, 0.245, 0.245, 0.1, -0.1, 0.25, 0.225, 1.05, -0.55, -0.435, 0.47, -0.2, 0.125}},
       {{8}, {-0.335, -0.45, 0.54, 1.115, 1.23, 1.245, -0.08, 0.08}},
       {{8}, {0.405, -0.585, 0.195, -0.68, 0.265, -0.57, 0.09, -0.045}},
       {{2}, {3, 2}},
       {{2, 2}, {-0.92, -0.74, 0.17, 0.01}},
       {{2, 2}, {0.12, -0.05, -0.37, 1.01}}},
      {0.3594112, 0.1173436, 0.3353969, 0.08449798, 0.2118259, -0.04797838, 0.1414811, 0.1255959, 0.02951838, 0.3256826,
       0, 0},
      {0.3594112, 0.1173436, 0.1414811, 0.1255959}};
  return c;
}
const RecurrentCase& GruForward() {
  static const auto& c = *new RecurrentCase{
      OpKind::kGru,
      "forward",
      {{{6, 2}, {0.31, -0.325, -0.77, -0.27, -0.375, 0.5, 0.565, 0.305, -0.085, -1.08, 0.135, 0.005}},
       {{6, 2}, {-0.715, -0.145, 0.855, 0.36, -0.235, -0.715, -0.025, -0.4, -0.29, 0.64, 0.33, 0.51}},
       {{6}, {-0.34, 0.13, -0.675, 0.665, -0.425, 0.15}},
       {{6}, {-0.245, -0.88, -0.33, -0.18, 0.5, -0.15}},
       {{2}, {3, 2}},
       {{2, 2}, {-1.97, -2.03, 0.57, -0.12}}},
      {-1.681607, -1.740233, -1.244012, -1.387298, -1.170076, -1.120933, -0.6043633, -0.07765139, 0.2514115,
       -0.00426689, 0, 0},
      {-1.170076, -1.120933, 0.2514115, -0.00426689}};
  return c;
}
const RecurrentCase& GruReverse() {
  static const auto& c = *new RecurrentCase{
      OpKind::kGru,
      "reverse",
      {{{6, 2}, {-0.415, -0.385, 0.69, 0.425, 0.195, -0.07, 0.165, 0.255, 0.625, -0.38, -0.27, -0.55}},
       {{6, 2}, {-0.49, 0.08, 0.185, -0.665, -0.175, 0.04, -0.67, 0.62, 0.04, -0.415, 0.425, -0.155}},
       {{6}, {-0.34, 1.395, 0.74, 0.05, -0.32, -0.09}},
       {{6}, {-0.125, -0.71, -0.53, -0.05, -0.895, 0.065}},
       {{2}, {3, 2}},
       {{2, 2}, {-0.92, -0.74, 0.17, 0.01}}},
      {-0.5495582, -0.5939254, -0.65291, -0.5724129, -0.8690177, -0.7571014, 0.2848074, -0.1794991, 0.02215643,
       0.1280949, 0, 0},
      {-0.5495582, -0.5939254, 0.2848074, -0.1794991}};
  return c;
}

std::vector<RefTensor> RunOp(OpKind op, const RefTensors& inputs, ir::Attributes attributes) {
  runtime::KernelTable table;
  RegisterCpuKernels(&table);
  NodeDesc desc{.op = op, .name = "torch", .attributes = std::move(attributes)};
  const ops::OpDef& def = ops::GetOpDef(op);
  for (size_t i = 0; i < inputs.size(); ++i) {
    desc.inputs.push_back({ops::RoleOf(def, i) == ops::Role::kIndex ? DType::kI32 : DType::kF32, inputs[i].shape});
  }
  auto outputs = ops::InferTypes(op, {desc.name, desc.attributes, desc.inputs});
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  desc.outputs = *outputs;
  const auto results = RunKernel(table, desc, inputs, {});
  EXPECT_TRUE(results.ok()) << results.status();
  std::vector<RefTensor> values;
  for (const Tensor& t : *results) values.push_back(FromTensor(t.view()));
  return values;
}

double Mean(const RefTensor& t) {
  double sum = 0;
  for (double v : t.data) sum += v / static_cast<double>(t.size());
  return sum;
}

constexpr double kTolerance = 2e-6;
const RefTensor kWeights = {{4}, {0.5, 2, 1, 0.25}};

TEST(Torch, CrossEntropy) {
  const RefTensor labels = {{5}, {2, 0, 0, 3, 1}};
  for (const CrossEntropyCase& c : CrossEntropyCases()) {
    RefTensors inputs = {Logits(), labels};
    if (c.weighted) inputs.push_back(kWeights);
    const auto losses =
        RunOp(OpKind::kSoftmaxCrossEntropy, inputs, {{"smoothing", c.smoothing}, {"ignore_index", c.ignored}});
    const auto mean = RunOp(OpKind::kNormalizedSum, losses, {});
    EXPECT_NEAR(mean[0].data[0], c.mean, kTolerance) << c.weighted << " " << c.smoothing << " " << c.ignored;
  }
  EXPECT_NEAR(Mean(RunOp(OpKind::kSoftCrossEntropy, {Logits(), Targets()}, {{"smoothing", 0.2}})[0]), kSoft[0],
              kTolerance);
  EXPECT_NEAR(Mean(RunOp(OpKind::kSoftCrossEntropy, {Logits(), Targets(), kWeights}, {{"smoothing", 0.2}})[0]),
              kSoft[1], kTolerance);
}

TEST(Torch, ElementLosses) {
  EXPECT_NEAR(Mean(RunOp(OpKind::kSigmoidCrossEntropy, {Logits(), Targets(), kWeights}, {})[0]), kSigmoid, kTolerance);
  EXPECT_NEAR(Mean(RunOp(OpKind::kSmoothL1Loss, {Logits(), Targets()}, {{"beta", 0.7}})[0]), kSmoothL1, kTolerance);
}

TEST(Torch, Ctc) {
  const auto losses =
      RunOp(OpKind::kCtcLoss, {Sounds(), {{2, 3}, {1, 1, 2, 3, 2, 1}}, {{2}, {6, 5}}, {{2}, {3, 2}}}, {});
  for (int n : {0, 1}) EXPECT_NEAR(losses[0].data[n], kCtc[n], kTolerance);
}

TEST(Torch, RecurrentLayersOfPackedSequences) {
  for (const RecurrentCase& c : {LstmForward(), LstmReverse(), GruForward(), GruReverse()}) {
    RefTensors inputs = {Steps()};
    inputs.insert(inputs.end(), c.inputs.begin(), c.inputs.end());
    const auto results = RunOp(c.op, inputs, {{"direction", std::string(c.direction)}});
    for (size_t i = 0; i < c.y.size(); ++i)
      EXPECT_NEAR(results[0].data[i], c.y[i], kTolerance) << ir::OpName(c.op) << i;
    for (size_t i = 0; i < c.h_n.size(); ++i) EXPECT_NEAR(results[1].data[i], c.h_n[i], kTolerance) << ir::OpName(c.op);
  }
}

}  // namespace
}  // namespace ampd::testing
