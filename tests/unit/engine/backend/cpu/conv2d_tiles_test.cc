// Convolutions on matrix tiles, against the float64 reference: random windows, counts that fill no tile, and operands
// packed part by part. Skipped on processors without tiles.
#include "engine/backend/cpu/conv2d_tiles.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cpu/tile_sums.h"
#include "tests/support/reference.h"
#include "tests/unit/engine/backend/cpu/random_convolutions.h"
#include "tests/unit/engine/backend/kernel_runner.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::NodeDesc;

constexpr OpKind kOps[] = {OpKind::kConv2d, OpKind::kConv2dGradInput, OpKind::kConv2dGradFilter};

// A convolution that TilesConvolveFaster prefers, both ways: many cells, a stride, narrow results.
Convolution Preferred() {
  return {{33, 12, 11, 64},
          {48, 7, 7, 64},
          {33, 6, 6, 48},
          {{"strides", std::vector<int64_t>{2, 2}}, {"pads", std::vector<int64_t>{3, 3, 3, 3}}}};
}

class Conv2dTilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cpu::HasTiles()) GTEST_SKIP() << "this processor has no matrix tiles (AMX)";
  }

  static runtime::KernelTable Table(const cpu::ConvTileLimits& limits) {
    runtime::KernelTable table;
    for (OpKind op : kOps) {
      table.Add(op, {DType::kBF16, DType::kBF16}, {DType::kBF16}, [limits](const NodeDesc& desc) {
        return absl::StatusOr<std::unique_ptr<runtime::Kernel>>(cpu::MakeConvTiles(desc, limits));
      });
    }
    return table;
  }

  // Filters are a parameter, which the kernels read in their own layout.
  static NodeDesc Node(OpKind op, const Convolution& convolution) {
    NodeDesc desc = ConvolutionNode(op, convolution, DType::kBF16);
    if (op != OpKind::kConv2dGradFilter) desc.parameter_inputs = {false, true};
    return desc;
  }

  static std::vector<RefTensor> Inputs(Random* random, const NodeDesc& desc) {
    std::vector<RefTensor> inputs;
    for (const ir::TensorType& t : desc.inputs) inputs.push_back(RandomTensor(random, t.shape, t.dtype));
    return inputs;
  }

  static void ExpectReference(const runtime::KernelTable& table, const NodeDesc& desc,
                              const std::vector<RefTensor>& inputs) {
    SCOPED_TRACE(DescribeWindows(desc));
    ASSERT_TRUE(cpu::TilesCanConvolve(desc));
    const auto outputs = RunKernel(table, desc, inputs, {});
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    const std::vector<RefTensor> expected = ReferenceOp(desc, inputs, {});
    const std::vector<RefTensor> bound = ErrorBound(desc, inputs, expected, {});
    EXPECT_EQ(Compare(FromTensor((*outputs)[0].view()), expected[0], bound[0], DType::kBF16), "");
  }

  static void ExpectReferenceInOneAndInParts(const Convolution& convolution, Random* random) {
    for (const cpu::ConvTileLimits& limits : {cpu::ConvTileLimits{}, cpu::ConvTileLimits{1, 1, 1}}) {
      for (OpKind op : kOps) {
        const NodeDesc desc = Node(op, convolution);
        ExpectReference(Table(limits), desc, Inputs(random, desc));
      }
    }
  }
};

TEST_F(Conv2dTilesTest, AgreeWithTheReferenceOnRandomWindows) {
  Random random(23);
  for (int i = 0; i < 400; ++i) {
    Convolution c = RandomConvolution(&random);
    while (c.attributes.Int("groups") != 1) c = RandomConvolution(&random);
    // Up to three tiles of images.
    c.image[0] = c.output[0] = 1 + random.Below(random.Below(3) == 0 ? 40 : 4);
    ExpectReferenceInOneAndInParts(c, &random);
  }
}

TEST_F(Conv2dTilesTest, AgreeWithTheReferenceOnManyTiles) {
  Random random(29);
  const Convolution c = {{70, 6, 5, 70},
                         {50, 3, 3, 70},
                         {70, 3, 3, 50},
                         {{"strides", std::vector<int64_t>{2, 2}}, {"pads", std::vector<int64_t>{1, 1, 1, 1}}}};
  ExpectReferenceInOneAndInParts(c, &random);
}

// Of 70 images 64 are taken first, and 6, which are less deep, so that results are made in other strips: cells far
// apart see other columns of dy.
TEST_F(Conv2dTilesTest, AgreeWithTheReferenceWherePartsAreNotAlike) {
  Random random(30);
  const Convolution c = {{70, 8, 8, 3},
                         {2, 13, 13, 3},
                         {70, 32, 32, 2},
                         {{"strides", std::vector<int64_t>{1, 1}},
                          {"pads", std::vector<int64_t>{24, 24, 24, 24}},
                          {"dilations", std::vector<int64_t>{2, 2}}}};
  const NodeDesc desc = Node(OpKind::kConv2dGradFilter, c);
  const std::vector<RefTensor> inputs = Inputs(&random, desc);
  for (int64_t window_bytes : {1 << 17, 3 << 16, 1 << 18, 3 << 17, 1 << 19, 3 << 18}) {
    for (int64_t rows_bytes : {1 << 16, 1 << 20}) {
      ExpectReference(Table({3200000, rows_bytes, window_bytes}), desc, inputs);
    }
  }
}

// As a plan has them: chosen by the backend, filters published.
TEST_F(Conv2dTilesTest, TheBackendTakesThem) {
  const auto backend = MakeCpuBackend(2);
  Random random(59);
  for (OpKind op : kOps) {
    const NodeDesc desc = Node(op, Preferred());
    ASSERT_TRUE(cpu::TilesConvolveFaster(desc)) << DescribeWindows(desc);
    ExpectReference(backend->kernels(), desc, Inputs(&random, desc));
  }
}

// The product of a convolution's input gradient, under its other name.
TEST_F(Conv2dTilesTest, TransposedConvolutionsAreInputGradients) {
  const auto backend = MakeCpuBackend(2);
  Random random(61);
  const NodeDesc gradient = Node(OpKind::kConv2dGradInput, Preferred());
  NodeDesc transposed = gradient;
  transposed.op = OpKind::kConvTranspose2d;
  const std::vector<RefTensor> inputs = Inputs(&random, gradient);
  const auto one = RunKernel(backend->kernels(), gradient, inputs, {});
  const auto other = RunKernel(backend->kernels(), transposed, inputs, {});
  ASSERT_TRUE(one.ok() && other.ok()) << one.status() << other.status();
  EXPECT_TRUE(SameBits((*one)[0], (*other)[0]));
}

// However many threads there are, each sum has one order.
TEST_F(Conv2dTilesTest, ThreadsDoNotChangeBits) {
  Random random(31);
  for (int i = 0; i < 50; ++i) {
    Convolution c = RandomConvolution(&random);
    while (c.attributes.Int("groups") != 1) c = RandomConvolution(&random);
    c.image[0] = c.output[0] = 1 + random.Below(80);
    // Every other one in parts.
    const cpu::ConvTileLimits limits = i % 2 == 0 ? cpu::ConvTileLimits{} : cpu::ConvTileLimits{1, 1, 1};
    for (OpKind op : kOps) {
      NodeDesc desc = Node(op, c);
      const std::vector<RefTensor> inputs = Inputs(&random, desc);
      const auto two = RunKernel(Table(limits), desc, inputs, {});
      ASSERT_TRUE(two.ok()) << two.status();
      for (int threads : {1, 3, 8}) {
        desc.threads = threads;
        const auto other = RunKernel(Table(limits), desc, inputs, {});
        ASSERT_TRUE(other.ok()) << other.status();
        EXPECT_TRUE(SameBits((*two)[0], (*other)[0])) << DescribeWindows(desc) << " threads " << threads;
      }
    }
  }
}

// oneDNN and the tiles take turns in one network: neither may leave the processor's tiles as the other does not expect.
TEST_F(Conv2dTilesTest, TakeTurnsWithOneDnn) {
  const auto backend = MakeCpuBackend(2);
  Random random(37);
  const NodeDesc tiles =
      Node(OpKind::kConv2d, {{16, 5, 5, 64},
                             {64, 3, 3, 64},
                             {16, 5, 5, 64},
                             {{"strides", std::vector<int64_t>{1, 1}}, {"pads", std::vector<int64_t>{1, 1, 1, 1}}}});
  NodeDesc product{.op = OpKind::kMatmul, .name = "matmul", .threads = 2};
  product.inputs = {{DType::kBF16, {40, 70}}, {DType::kBF16, {70, 33}}};
  product.outputs = {{DType::kBF16, {40, 33}}};
  for (int i = 0; i < 5; ++i) {
    ExpectReference(Table({}), tiles, Inputs(&random, tiles));
    const std::vector<RefTensor> inputs = Inputs(&random, product);
    const auto outputs = RunKernel(backend->kernels(), product, inputs, {});
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    const std::vector<RefTensor> expected = ReferenceOp(product, inputs, {});
    const std::vector<RefTensor> bound = ErrorBound(product, inputs, expected, {});
    EXPECT_EQ(Compare(FromTensor((*outputs)[0].view()), expected[0], bound[0], DType::kBF16), "");
  }
}

// What is not finite reaches exactly the results that it is part of: padding and empty places of tiles are no part.
TEST_F(Conv2dTilesTest, WhatIsNotFiniteStaysWhereItBelongs) {
  Random random(41);
  for (int i = 0; i < 100; ++i) {
    Convolution c = RandomConvolution(&random);
    while (c.attributes.Int("groups") != 1) c = RandomConvolution(&random);
    for (OpKind op : kOps) {
      const NodeDesc desc = Node(op, c);
      std::vector<RefTensor> inputs = Inputs(&random, desc);
      for (double& value : inputs[i % 2].data) {
        if (random.Below(20) == 0) value = random.Below(2) == 0 ? INFINITY : NAN;
      }
      const auto outputs = RunKernel(Table({}), desc, inputs, {});
      ASSERT_TRUE(outputs.ok()) << outputs.status();
      const RefTensor expected = ReferenceOp(desc, inputs, {})[0], got = FromTensor((*outputs)[0].view());
      for (size_t j = 0; j < expected.data.size(); ++j) {
        EXPECT_EQ(std::isfinite(got.data[j]), std::isfinite(expected.data[j])) << DescribeWindows(desc) << " " << j;
      }
    }
  }
}

}  // namespace
}  // namespace ampd::testing
