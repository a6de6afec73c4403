// Ops that move elements, and pools, on random shapes: the same bits as the CPU backend's. Extents are often multiples
// of what moves in 16 bytes, so that the paths of whole packs are taken as often as those of single elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/cuda_backend_impl.h"
#include "engine/ops/op_def.h"
#include "tests/support/ref_tensor.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/kernel_runner.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using ir::TensorType;
using runtime::NodeDesc;
using Ints = std::vector<int64_t>;

constexpr int kCases = 60;

struct Backends {
  std::unique_ptr<runtime::Backend> cpu = MakeCpuBackend(1), cuda;

  Backends() {
    auto context = cuda::Context::Open("");
    EXPECT_TRUE(context.ok()) << context.status();
    cuda = std::make_unique<cuda::CudaBackend>(*std::move(context));
  }
};

class SameAsCpu : public ::testing::TestWithParam<DType> {
 protected:
  static Backends& backends() {
    static Backends& backends = *new Backends();
    return backends;
  }

  int64_t Pick(std::initializer_list<int64_t> values) {
    return *(values.begin() + random_.Below(static_cast<int64_t>(values.size())));
  }

  Shape RandomShape(size_t least, size_t most) {
    Shape shape(least + random_.Below(static_cast<int64_t>(most - least + 1)), 1);
    for (int64_t& extent : shape) {
      extent = Pick({1, 2, 3, 4, 7, 8, 16, 24, 33, 40, 64});
      if (NumElements(shape) > 60000) extent = 1;
    }
    return shape;
  }

  RefTensor Values(const TensorType& type) {
    RefTensor t = Filled(type.shape);
    for (double& v : t.data) v = static_cast<double>(random_.Below(type.dtype == DType::kBool ? 2 : 16));
    return t;
  }

  // Runs `op` of `inputs` on both, whose values are drawn but for those that `values` gives; returns the CPU's result.
  RefTensor Expect(OpKind op, const Attributes& attributes, const std::vector<TensorType>& inputs,
                   std::vector<RefTensor> values = {}) {
    NodeDesc desc{.op = op, .name = "node", .attributes = attributes, .inputs = inputs, .threads = 1};
    const auto types = ops::InferTypes(op, {.name = "node", .attributes = attributes, .inputs = inputs});
    EXPECT_TRUE(types.ok()) << types.status();
    if (!types.ok()) return {};
    desc.outputs = *types;
    while (values.size() < inputs.size()) values.push_back(Values(inputs[values.size()]));
    const auto expected = RunKernel(backends().cpu->kernels(), desc, values, {});
    const runtime::Backend& cuda = *backends().cuda;
    const auto results = RunKernel(cuda.kernels(), desc, values, {}, {}, cuda.memory());
    EXPECT_TRUE(expected.ok() && results.ok()) << Describe(desc) << results.status();
    if (!expected.ok() || !results.ok()) return {};
    EXPECT_TRUE(SameBits((*results)[0], (*expected)[0])) << Describe(desc);
    return FromTensor((*expected)[0].view());
  }

  Random random_{41};
};

TEST_P(SameAsCpu, Transposes) {
  for (int i = 0; i < kCases; ++i) {
    const Shape x = RandomShape(1, 5);
    Ints perm(x.size());
    std::iota(perm.begin(), perm.end(), 0);
    for (size_t d = perm.size(); d-- > 1;) std::swap(perm[d], perm[random_.Below(static_cast<int64_t>(d) + 1)]);
    Expect(OpKind::kTranspose, {{"perm", perm}}, {{GetParam(), x}});
  }
}

TEST_P(SameAsCpu, BroadcastsTo) {
  for (int i = 0; i < kCases; ++i) {
    const Shape y = RandomShape(1, 4);
    Shape x(y.begin() + random_.Below(static_cast<int64_t>(y.size())), y.end());
    for (int64_t& extent : x) extent = random_.Below(2) == 0 ? extent : 1;
    Expect(OpKind::kBroadcastTo, {{"shape", Ints(y.begin(), y.end())}}, {{GetParam(), x}});
  }
}

TEST_P(SameAsCpu, SlicesAndTheirGradients) {
  for (int i = 0; i < kCases; ++i) {
    const Shape x = RandomShape(1, 4);
    Ints starts, ends, steps;
    Shape part;
    for (int64_t extent : x) {
      const int64_t step = random_.Below(3) != 0 ? 1 : Pick({2, 3, -1, -2});
      const int64_t a = random_.Below(2) == 0 ? 0 : random_.Below(extent) / Pick({1, 8}) * Pick({1, 8}) % extent;
      const int64_t low = step > 0 ? a : random_.Below(a + 1);
      starts.push_back(a);
      steps.push_back(step);
      ends.push_back(step > 0 ? (random_.Below(2) == 0 ? extent : low + 1 + random_.Below(extent - low)) : low - 1);
      part.push_back(step > 0 ? (ends.back() - a + step - 1) / step : (a - ends.back() - step - 1) / -step);
    }
    Attributes attributes = {{"starts", starts}, {"ends", ends}, {"steps", steps}};
    Expect(OpKind::kSlice, attributes, {{GetParam(), x}});
    if (!IsFloat(GetParam()) || IsF8(GetParam())) continue;
    attributes.Set("shape", Ints(x.begin(), x.end()));
    Expect(OpKind::kSliceGrad, attributes, {{GetParam(), part}});
  }
}

TEST_P(SameAsCpu, ConcatenatesMoreThanOneLaunchTakes) {
  for (int i = 0; i < kCases / 2; ++i) {
    const Shape whole = RandomShape(1, 3);
    const int64_t axis = random_.Below(static_cast<int64_t>(whole.size()));
    std::vector<TensorType> inputs(1 + random_.Below(i % 5 == 0 ? 70 : 4), {GetParam(), whole});
    for (TensorType& input : inputs) input.shape[axis] = Pick({1, 2, 8, 16});
    Expect(OpKind::kConcat, {{"axis", axis}}, inputs);
  }
}

TEST_P(SameAsCpu, Pads) {
  for (int i = 0; i < kCases; ++i) {
    const Shape x = RandomShape(1, 4);
    const std::string mode = i % 3 == 0 ? "constant" : i % 3 == 1 ? "reflect" : "edge";
    Ints pads(2 * x.size(), 0);
    for (size_t d = 0; d < pads.size(); ++d) {
      const int64_t extent = x[d % x.size()];
      if (random_.Below(2) == 0) continue;
      pads[d] = Pick({0, 1, 2, 8, 16});
      if (mode == "reflect") pads[d] = std::min(pads[d], extent - 1);
      if (mode == "constant" && extent > 2 && random_.Below(3) == 0) pads[d] = -1;
    }
    Expect(OpKind::kPad, {{"pads", pads}, {"mode", mode}, {"value", 3.0}}, {{GetParam(), x}});
  }
}

TEST_P(SameAsCpu, Gathers) {
  for (int i = 0; i < kCases; ++i) {
    const Shape x = RandomShape(1, 4);
    const int64_t axis = random_.Below(static_cast<int64_t>(x.size())), count = Pick({1, 3, 8, 50});
    RefTensor indices = Filled({count});
    for (double& index : indices.data) index = static_cast<double>(random_.Below(2 * x[axis] + 2) - x[axis] - 1);
    const TensorType data = {GetParam(), x}, picks = {DType::kI32, {count}};
    Expect(OpKind::kGather, {{"axis", axis}}, {data, picks}, {Values(data), indices});
    const int64_t batch = random_.Below(static_cast<int64_t>(x.size()));
    Shape tuples(x.begin(), x.begin() + batch);
    tuples.push_back(count);
    tuples.push_back(1);
    RefTensor many = Filled(tuples);
    for (double& index : many.data) index = static_cast<double>(random_.Below(2 * x[batch] + 2) - x[batch] - 1);
    Expect(OpKind::kGatherNd, {{"batch_dims", batch}}, {data, {DType::kI32, tuples}}, {Values(data), many});
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, SameAsCpu,
                         ::testing::Values(DType::kF32, DType::kF16, DType::kF8E4M3, DType::kI64, DType::kBool),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

class PoolsSameAsCpu : public SameAsCpu {};

TEST_P(PoolsSameAsCpu, OnRandomWindows) {
  for (int i = 0; i < kCases; ++i) {
    const Shape x = {1 + random_.Below(3), 1 + random_.Below(12), 1 + random_.Below(12), Pick({1, 3, 4, 8, 16, 24})};
    Ints size, strides, dilations, pads(4, 0);
    for (int axis = 0; axis < 2; ++axis) {
      dilations.push_back(1 + random_.Below(2));
      size.push_back(1 + random_.Below(3));
      strides.push_back(1 + random_.Below(3));
      const int64_t span = (size[axis] - 1) * dilations[axis] + 1;
      pads[axis] = random_.Below(span);
      pads[axis + 2] = random_.Below(span);
      if (x[axis + 1] + pads[axis] + pads[axis + 2] < span) size[axis] = 1, pads[axis] = pads[axis + 2] = 0;
    }
    Attributes pool = {{"size", size}, {"strides", strides}, {"dilations", dilations}, {"pads", pads}};
    const TensorType image = {GetParam(), x};
    const RefTensor values = Values(image);
    const RefTensor y = Expect(OpKind::kMaxPool2d, pool, {image}, {values});
    const TensorType out = {GetParam(), y.shape};
    Expect(OpKind::kMaxPool2dIndex, pool, {image, out}, {values, y});
    Expect(OpKind::kMaxPool2dGrad, pool, {out, image, out}, {Values(out), values, y});
    pool.Set("count_include_pad", random_.Below(2));
    Expect(OpKind::kAvgPool2d, pool, {image});
    pool.Set("input_shape", Ints(x.begin(), x.end()));
    Expect(OpKind::kAvgPool2dGrad, pool, {out});
  }
}

// So many that blocks take the largest tiles, some of them cut off.
TEST_P(PoolsSameAsCpu, OnManyTiles) {
  const TensorType image = {GetParam(), {64, 33, 33, 128 / static_cast<int64_t>(SizeOf(GetParam()))}};
  for (int64_t size : {2, 3, 4}) {
    const Attributes pool = {{"size", Ints{size, size}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 0, 0, 1}}};
    const RefTensor values = Values(image);
    const RefTensor y = Expect(OpKind::kMaxPool2d, pool, {image}, {values});
    const TensorType out = {GetParam(), y.shape};
    Expect(OpKind::kMaxPool2dGrad, pool, {out, image, out}, {Values(out), values, y});
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, PoolsSameAsCpu, ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace ampd::testing
