// Fused nodes of any backend against float64: every function alone, and random chains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/passes/fuse.h"
#include "tests/support/op_rows.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/network_chains.h"
#include "tests/unit/engine/backend/tested_backend.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::NodeDesc;

class FusedKernel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (TheBackend() == nullptr) GTEST_SKIP() << "no device here";
  }
};

// The extents that passes::Fuse() lets an input have.
bool Reaches(const Shape& input, const Shape& output) {
  return input == output || NumElements(input) == 1 ||
         (!input.empty() && !output.empty() && input.back() == output.back() && NumElements(input) == output.back());
}

bool CanBeFused(const NodeDesc& desc) {
  const auto holds = [](const ir::TensorType& type) { return IsFloat(type.dtype) || type.dtype == DType::kBool; };
  const ir::TensorType& output = desc.outputs[0];
  const bool is_cast = desc.op == OpKind::kCast;
  if (is_cast && !(IsFloat(desc.inputs[0].dtype) && IsFloat(output.dtype) && !IsF8(output.dtype))) return false;
  return holds(output) && std::all_of(desc.inputs.begin(), desc.inputs.end(), [&](const ir::TensorType& input) {
           return holds(input) && Reaches(input.shape, output.shape);
         });
}

TEST_F(FusedKernel, EveryFunctionAloneAgreesWithItsReference) {
  int cases = 0;
  for (const auto& [op, signature] : RequiredKernels()) {
    if (!TheBackend()->CanFuse(op)) continue;
    for (const KernelCase& c : KernelCases(op, signature)) {
      if (!CanBeFused(c.desc)) continue;
      NodeDesc fused{.op = OpKind::kFused, .name = c.desc.name, .inputs = c.desc.inputs, .outputs = c.desc.outputs};
      ir::FusedStep step{.op = op, .attributes = c.desc.attributes, .dtype = c.desc.outputs[0].dtype};
      for (size_t i = 0; i < c.inputs.size(); ++i) step.operands.push_back(static_cast<int32_t>(i));
      fused.steps = {step};
      fused.results = {0};
      const auto results = RunTested(fused, c.inputs, c.step);
      ASSERT_TRUE(results.ok()) << Describe(c.desc) << ": " << results.status();
      const std::vector<RefTensor> expected = ReferenceOp(c.desc, c.inputs, c.step);
      const std::vector<RefTensor> bounds = ErrorBound(c.desc, c.inputs, expected, c.step);
      EXPECT_EQ(Compare(FromTensor((*results)[0].view()), expected[0], bounds[0], fused.outputs[0].dtype), "")
          << Describe(c.desc);
      ++cases;
    }
  }
  EXPECT_GT(cases, 300);
}

// A value of a random node in float64, and how far f32 may be from it at any place.
struct Tracked {
  RefTensor data;
  double error = 0;
  DType dtype = DType::kF32;

  double Largest() const {
    double largest = 0;
    for (double v : data.data) largest = std::max(largest, std::fabs(v));
    return largest;
  }
};

// Steps whose results are continuous in their operands, so that roundings stay roundings.
class RandomNode {
 public:
  RandomNode(uint64_t seed, bool narrow) : random_(seed), narrow_(narrow) {
    const std::vector<Shape> shapes = {{3, 16}, {5, 7}, {2, 3, 8}, {1}, {130, 24}, {4, 33}, {9, 2}};
    shape_ = shapes[random_.Below(static_cast<int64_t>(shapes.size()))];
    desc_ = {.op = OpKind::kFused, .name = absl::StrCat("seed", seed)};
    AddInput(shape_, FloatType());
    AddInput(shape_, DType::kBool);
    AddInput({shape_.back()}, FloatType());
    AddInput({}, FloatType());
    while (random_.Below(3) != 0) AddInput(shape_, FloatType());
    const int64_t steps = 1 + random_.Below(passes::kMaxFusedSteps);
    while (static_cast<int64_t>(desc_.steps.size()) < steps) AddStep();
    for (size_t s = 0; s < desc_.steps.size(); ++s) {
      if (s + 1 < desc_.steps.size() && random_.Below(6) != 0) continue;
      desc_.results.push_back(static_cast<int32_t>(s));
      desc_.outputs.push_back({desc_.steps[s].dtype, shape_});
    }
  }

  // `desc` as it is, with random inputs.
  RandomNode(uint64_t seed, const NodeDesc& desc) : random_(seed), narrow_(true), shape_(desc.outputs[0].shape) {
    desc_ = {.op = OpKind::kFused, .name = desc.name};
    for (const ir::TensorType& input : desc.inputs) AddInput(input.shape, input.dtype);
    for (const ir::FusedStep& step : desc.steps) values_.push_back(Result(step));
    desc_ = desc;
  }

  void ExpectRight() const {
    std::vector<RefTensor> inputs;
    for (size_t i = 0; i < desc_.inputs.size(); ++i) inputs.push_back(values_[i].data);
    const auto results = RunTested(desc_, inputs);
    ASSERT_TRUE(results.ok()) << results.status();
    for (size_t i = 0; i < desc_.results.size(); ++i) {
      const Tracked& expected = values_[desc_.inputs.size() + static_cast<size_t>(desc_.results[i])];
      const DType dtype = desc_.outputs[i].dtype;
      RefTensor bounds = Filled(shape_, expected.error);
      // And the rounding into the output; below f16's normal numbers, of half their spacing.
      for (int64_t e = 0; e < bounds.size(); ++e) {
        bounds.data[e] += UnitRoundoff(dtype) * (std::fabs(expected.data.data[e]) + expected.error) + 0x1p-25;
      }
      EXPECT_EQ(Compare(FromTensor((*results)[i].view()), expected.data, bounds, dtype), "")
          << desc_.name << " result " << i << " of " << desc_.steps.size() << " steps";
    }
  }

 private:
  DType FloatType() {
    const std::vector<DType> wide = {DType::kF32, DType::kF16, DType::kBF16}, narrow = {DType::kF16, DType::kBF16};
    return narrow_ ? narrow[random_.Below(2)] : wide[random_.Below(3)];
  }

  void AddInput(Shape shape, DType dtype) {
    Tracked input{Filled(shape), 0, dtype};
    for (double& v : input.data.data) {
      v = dtype == DType::kBool ? static_cast<double>(random_.Below(2)) : RoundToDType(random_.Uniform(-1, 1), dtype);
    }
    desc_.inputs.push_back({dtype, std::move(shape)});
    values_.push_back(std::move(input));
  }

  // Any float value; `whole`: of the node's shape.
  int32_t AnyFloat(bool whole) {
    while (true) {
      // Often the last, which makes chains.
      const auto count = static_cast<int64_t>(values_.size());
      const int64_t v = random_.Below(3) == 0 ? count - 1 : random_.Below(count);
      if (values_[v].dtype != DType::kBool && (!whole || values_[v].data.shape == shape_)) {
        return static_cast<int32_t>(v);
      }
    }
  }

  void AddStep() {
    constexpr OpKind kOne[] = {OpKind::kTanh, OpKind::kRelu, OpKind::kSigmoid,   OpKind::kNeg,      OpKind::kAbs,
                               OpKind::kGelu, OpKind::kSilu, OpKind::kLeakyRelu, OpKind::kSoftplus, OpKind::kClip};
    constexpr OpKind kTwo[] = {OpKind::kAdd, OpKind::kSub, OpKind::kMul, OpKind::kMax, OpKind::kMin, OpKind::kBiasAdd};
    ir::FusedStep step{.dtype = FloatType()};
    const int32_t a = AnyFloat(true);
    step.operands = {a};
    const int64_t choice = random_.Below(8);
    if (values_[a].Largest() > 30) {
      step.op = OpKind::kTanh;
    } else if (choice < 3) {
      step.op = kOne[random_.Below(10)];
      if (step.op == OpKind::kClip) step.attributes = {{"min", -0.5}, {"max", 2.0}};
    } else if (choice < 6) {
      step.op = kTwo[random_.Below(6)];
      step.operands.push_back(step.op == OpKind::kBiasAdd ? 2 : AnyFloat(false));
      if (step.op == OpKind::kBiasAdd && shape_.size() < 2) step.op = OpKind::kAdd;
    } else if (choice == 6) {
      step.op = OpKind::kWhere;
      step.operands = {1, a, AnyFloat(false)};
    } else {
      step.op = OpKind::kCast;
    }
    values_.push_back(Result(step));
    desc_.steps.push_back(std::move(step));
  }

  Tracked Result(const ir::FusedStep& step) const {
    Tracked y{{}, 0, step.dtype};
    if (step.op == OpKind::kCast) {
      const Tracked& x = values_[step.operands[0]];
      y.data = x.data;
      for (double& v : y.data.data) v = RoundToDType(v, step.dtype);
      // What lies on either side of the middle between two numbers comes to lie a whole step apart.
      y.error = x.error + (step.dtype == DType::kF32 ? 0 : 2 * UnitRoundoff(step.dtype) * x.Largest() + 0x1p-23);
      y.error += kF32Roundoff * x.Largest();
      return y;
    }
    NodeDesc desc{.op = step.op, .name = desc_.name, .attributes = step.attributes, .outputs = {{DType::kF32, shape_}}};
    std::vector<RefTensor> operands;
    double largest = 1, error = 0;
    for (int32_t v : step.operands) {
      operands.push_back(values_[v].data);
      desc.inputs.push_back({values_[v].dtype == DType::kBool ? DType::kBool : DType::kF32, operands.back().shape});
      largest = std::max(largest, values_[v].Largest());
      error += values_[v].error;
    }
    y.data = ReferenceOp(desc, operands, {})[0];
    // Slopes are 1.2 at most but for products', whose factors are.
    y.error = error * (step.op == OpKind::kMul ? largest : 1.2) + 64 * kF32Roundoff * largest;
    return y;
  }

  Random random_;
  bool narrow_;
  Shape shape_;
  NodeDesc desc_;
  std::vector<Tracked> values_;  // inputs, then steps
};

TEST_F(FusedKernel, RandomNodesAgreeWithFloat64) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    for (bool narrow : {false, true}) RandomNode(seed, narrow).ExpectRight();
  }
}

TEST_F(FusedKernel, ChainsOfNetworksAgreeWithFloat64) {
  uint64_t seed = 0;
  for (const Shape& shape :
       {Shape{37, 24}, Shape{2, 5, 8}, Shape{1, 40}, Shape{3000, 16}, Shape{3, 7, 9, 264}, Shape{6, 7}}) {
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      for (const NodeDesc& desc : NetworkChains(dtype, shape)) RandomNode(++seed, desc).ExpectRight();
    }
  }
}

// An input that no step reads changes nothing but whether a backend knows the chain.
TEST_F(FusedKernel, ChainsOfNetworksAreToTheBitWhatOthersAre) {
  Random random(11);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (const NodeDesc& desc : NetworkChains(dtype, {150, 72})) {
      std::vector<RefTensor> inputs;
      for (const ir::TensorType& t : desc.inputs) inputs.push_back(RandomTensor(&random, t.shape, t.dtype, -3, 3));
      NodeDesc other = desc;
      other.inputs.push_back(desc.outputs[0]);
      for (ir::FusedStep& step : other.steps) {
        for (int32_t& operand : step.operands) operand += operand < static_cast<int32_t>(desc.inputs.size()) ? 0 : 1;
      }
      const auto results = RunTested(desc, inputs);
      inputs.push_back(RandomTensor(&random, desc.outputs[0].shape, dtype, -3, 3));
      const auto others = RunTested(other, inputs);
      ASSERT_TRUE(results.ok() && others.ok()) << desc.name << results.status() << others.status();
      for (size_t i = 0; i < results->size(); ++i) {
        EXPECT_TRUE(SameBits((*results)[i], (*others)[i])) << desc.name << " result " << i;
      }
    }
  }
}

TEST_F(FusedKernel, AStepWithoutAFunctionIsRefused) {
  const ir::TensorType type{DType::kF32, {4, 4}};
  const NodeDesc desc{.op = OpKind::kFused,
                      .name = "odd",
                      .inputs = {type, type},
                      .outputs = {type},
                      .steps = {{.op = OpKind::kMatmul, .operands = {0, 1}}},
                      .results = {0}};
  const absl::Status status = TheBackend()->kernels().Prepare(desc).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(::testing::HasSubstr("matmul"), ::testing::HasSubstr("odd")));
}

}  // namespace
}  // namespace ampd::testing
