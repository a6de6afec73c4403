// Regions, and a fixture that runs them each way: for tests of their results and of the choice among the ways.
#ifndef AMPD_TESTS_UNIT_ENGINE_BACKEND_CUDA_REGION_CASES_H_
#define AMPD_TESTS_UNIT_ENGINE_BACKEND_CUDA_REGION_CASES_H_

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/cuda_memory.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/region.h"
#include "engine/ops/op_def.h"
#include "tests/support/reference.h"
#include "tests/unit/engine/backend/kernel_runner.h"

namespace ampd::cuda {

using ampd::testing::RefTensor;
using ir::OpKind;
using runtime::NodeDesc;
using Behind = std::vector<std::pair<ir::OpKind, ir::Attributes>>;

inline const ir::Attributes kTanh = {{"approximate", std::string("tanh")}};

// A region whose steps behind the product read its inputs from the third on, one after the other.
inline NodeDesc Region(OpKind product, ir::Attributes attributes, std::vector<ir::TensorType> inputs,
                       const Behind& behind, std::vector<int32_t> results) {
  const bool scaled = IsF8(inputs[0].dtype);
  const DType dtype = scaled ? DType::kBF16 : inputs[0].dtype;
  NodeDesc desc{.op = OpKind::kRegion, .name = "layer", .inputs = std::move(inputs)};
  desc.steps.push_back({.op = product, .attributes = std::move(attributes), .operands = {0, 1}, .dtype = dtype});
  int32_t next = 2;
  if (scaled) {
    desc.steps[0].attributes.Set("dtype", std::string(DTypeName(dtype)));
    desc.steps[0].operands = {0, 1, 2, 3};
    next = 4;
  }
  for (const auto& [op, own] : behind) {
    const auto last = static_cast<int32_t>(desc.inputs.size() + desc.steps.size()) - 1;
    ir::FusedStep step{.op = op, .attributes = own, .operands = {last}, .dtype = dtype};
    if (ops::GetOpDef(op).inputs.size() > 1) step.operands.push_back(next++);
    desc.steps.push_back(std::move(step));
  }
  desc.results = std::move(results);
  const ir::Node node{.op = OpKind::kRegion, .steps = desc.steps, .results = desc.results};
  const auto types = ops::InferTypes(OpKind::kRegion, {desc.name, desc.attributes, desc.inputs, &node});
  EXPECT_TRUE(types.ok()) << types.status();
  if (types.ok()) desc.outputs = *types;
  return desc;
}

inline NodeDesc Dense(DType t, Shape x, const Behind& behind, std::vector<int32_t> results, int64_t units = 24) {
  const int64_t features = x.back();
  std::vector<ir::TensorType> inputs = {{t, std::move(x)}, {t, {units, features}}};
  for (const auto& [op, attributes] : behind) {
    Shape y = inputs[0].shape;
    y.back() = units;
    if (op == OpKind::kBiasAdd) inputs.push_back({t, {units}});
    if (op == OpKind::kGeluGrad || op == OpKind::kAdd) inputs.push_back({t, y});
  }
  return Region(OpKind::kMatmul, {{"transpose_b", int64_t{1}}}, std::move(inputs), behind, std::move(results));
}

// Codes of a gradient or of what the forward pass multiplies, times a weight's, and both scales.
inline NodeDesc DenseOfCodes(DType a, const Behind& behind, std::vector<int32_t> results) {
  std::vector<ir::TensorType> inputs = {
      {a, {3, 5, 32}}, {DType::kF8E4M3, {48, 32}}, {DType::kF32, {}}, {DType::kF32, {}}};
  for (const auto& [op, attributes] : behind) {
    if (op == OpKind::kBiasAdd) inputs.push_back({DType::kBF16, {48}});
    if (op == OpKind::kGeluGrad || op == OpKind::kAdd) inputs.push_back({DType::kBF16, {3, 5, 48}});
  }
  return Region(OpKind::kMatmul, {{"transpose_b", int64_t{1}}}, std::move(inputs), behind, std::move(results));
}

inline NodeDesc Convolution(DType t, const Behind& behind) {
  return Region(OpKind::kConv2d, {{"strides", std::vector<int64_t>{2, 1}}, {"pads", std::vector<int64_t>{1, 0, 1, 2}}},
                {{t, {2, 7, 5, 3}}, {t, {6, 3, 3, 3}}, {t, {6}}}, behind, {static_cast<int32_t>(behind.size())});
}

inline std::vector<NodeDesc> Regions() {
  std::vector<NodeDesc> regions;
  for (DType t : {DType::kF32, DType::kF16, DType::kBF16}) {
    regions.push_back(Dense(t, {5, 17}, {{OpKind::kBiasAdd, {}}}, {1}));
    regions.push_back(Dense(t, {2, 3, 17}, {{OpKind::kBiasAdd, {}}, {OpKind::kGelu, kTanh}}, {1, 2}));
    regions.push_back(Dense(t, {2, 3, 17}, {{OpKind::kBiasAdd, {}}, {OpKind::kGelu, kTanh}}, {2}));
    regions.push_back(Dense(t, {7, 9}, {{OpKind::kGeluGrad, kTanh}}, {1}));
    regions.push_back(Dense(t, {7, 9}, {{OpKind::kAdd, {}}}, {1}));
    regions.push_back(Dense(t, {2, 3, 17}, {{OpKind::kBiasAdd, {}}, {OpKind::kAdd, {}}}, {2}));
    regions.push_back(Convolution(t, {{OpKind::kBiasAdd, {}}}));
    regions.push_back(Convolution(t, {{OpKind::kBiasAdd, {}}, {OpKind::kRelu, {}}}));
  }
  for (DType t : {DType::kF8E4M3, DType::kF8E5M2}) {
    regions.push_back(DenseOfCodes(t, {{OpKind::kBiasAdd, {}}}, {1}));
    regions.push_back(DenseOfCodes(t, {{OpKind::kBiasAdd, {}}, {OpKind::kGelu, kTanh}}, {1, 2}));
    regions.push_back(DenseOfCodes(t, {{OpKind::kGeluGrad, kTanh}}, {1}));
    regions.push_back(DenseOfCodes(t, {{OpKind::kAdd, {}}}, {1}));
    regions.push_back(DenseOfCodes(t, {{OpKind::kBiasAdd, {}}, {OpKind::kAdd, {}}}, {2}));
  }
  return regions;
}

inline std::string Name(const NodeDesc& desc) {
  std::string name = std::string(DTypeName(desc.inputs[0].dtype));
  for (const ir::FusedStep& step : desc.steps) absl::StrAppend(&name, " ", std::string(ir::OpName(step.op)));
  return absl::StrCat(name, " of ", desc.results.size(), " results");
}

inline std::vector<RefTensor> Inputs(const NodeDesc& desc) {
  ampd::testing::Random random(11);
  std::vector<RefTensor> inputs;
  for (const ir::TensorType& type : desc.inputs) {
    const bool is_scale = type.shape.empty();
    inputs.push_back(
        ampd::testing::RandomTensor(&random, type.shape, type.dtype, is_scale ? 0.5 : -1, is_scale ? 2 : 1));
  }
  return inputs;
}

// By step, in float64.
inline std::vector<RefTensor> Steps(const NodeDesc& desc, const std::vector<RefTensor>& inputs) {
  std::vector<RefTensor> values = inputs;
  for (const ir::FusedStep& step : desc.steps) {
    NodeDesc part{.op = step.op, .name = "part", .attributes = step.attributes};
    std::vector<RefTensor> operands;
    for (int32_t operand : step.operands) {
      operands.push_back(values[static_cast<size_t>(operand)]);
      part.inputs.push_back({DType::kF32, operands.back().shape});
    }
    part.outputs = {{DType::kF32, desc.outputs[0].shape}};
    values.push_back(ampd::testing::ReferenceOp(part, operands, {})[0]);
  }
  values.erase(values.begin(), values.begin() + static_cast<int64_t>(inputs.size()));
  return values;
}

class RegionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto context = Context::Open("");
    if (!context.ok()) GTEST_SKIP() << context.status();
    context_ = *std::move(context);
  }

  absl::StatusOr<std::vector<Tensor>> Run(const NodeDesc& desc, const std::vector<RefTensor>& inputs, RegionWay way,
                                          const MakeConv& make = Conv::Create) {
    runtime::KernelTable table;
    RegisterCudaKernels(&table, context_.get());
    RegisterRegions(&table, context_.get(), make, way);
    CudaMemory memory(context_.get());
    return ampd::testing::RunKernel(table, desc, inputs, {}, {}, &memory);
  }

  // One rounding of the product, that the steps behind it make no larger than 1.2 times, and one of the result.
  void ExpectRight(const NodeDesc& desc, const std::vector<RefTensor>& inputs, const std::vector<Tensor>& results) {
    const std::vector<RefTensor> steps = Steps(desc, inputs);
    ASSERT_EQ(results.size(), desc.results.size());
    for (size_t o = 0; o < results.size(); ++o) {
      const RefTensor& expected = steps[static_cast<size_t>(desc.results[o])];
      RefTensor bounds = expected;
      const double u = UnitRoundoff(desc.outputs[o].dtype);
      for (size_t i = 0; i < bounds.data.size(); ++i) {
        bounds.data[i] = 2 * u * (1.2 * std::fabs(steps[0].data[i]) + std::fabs(expected.data[i])) + 1e-5;
      }
      EXPECT_EQ(
          ampd::testing::Compare(ampd::testing::FromTensor(results[o].view()), expected, bounds, desc.outputs[o].dtype),
          "")
          << Name(desc) << ", result " << o;
    }
  }

  std::unique_ptr<Context> context_;
};

}  // namespace ampd::cuda

#endif  // AMPD_TESTS_UNIT_ENGINE_BACKEND_CUDA_REGION_CASES_H_
