// What the walk over all rows does not reach: how a node becomes products, and 8-bit operands of every layout, on
// devices with and without matrix units for them.
#include "engine/backend/cuda/matmul.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/cuda_backend_impl.h"
#include "engine/core/float8.h"
#include "engine/ops/compute.h"
#include "engine/ops/op_def.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"
#include "tests/support/reference.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/kernel_runner.h"

namespace ampd::cuda {
namespace {

using ampd::testing::RefTensor;
using runtime::NodeDesc;

NodeDesc Matmul(DType a, DType b, DType y, Shape sa, Shape sb, Shape sy, bool ta, bool tb) {
  return {.op = ir::OpKind::kMatmul,
          .name = "dense",
          .attributes = {{"transpose_a", int64_t{ta}}, {"transpose_b", int64_t{tb}}},
          .inputs = {{a, std::move(sa)}, {b, std::move(sb)}},
          .outputs = {{y, std::move(sy)}}};
}

NodeDesc MatmulF32(Shape a, Shape b, Shape y, bool ta = false, bool tb = false) {
  return Matmul(DType::kF32, DType::kF32, DType::kF32, std::move(a), std::move(b), std::move(y), ta, tb);
}

TEST(MatmulProducts, OneRightOperandMakesOneProduct) {
  const MatmulProducts p = ProductsOf(MatmulF32({2, 3, 5, 7}, {7, 4}, {2, 3, 5, 4}));
  EXPECT_TRUE(p.loops.empty());
  EXPECT_EQ(p.gemm.rows, 30);
  EXPECT_EQ(p.gemm.batch, 1);
}

TEST(MatmulProducts, EqualBatchesAreOneBatch) {
  const MatmulProducts p = ProductsOf(MatmulF32({2, 3, 5, 7}, {2, 3, 4, 7}, {2, 3, 5, 4}, false, true));
  EXPECT_TRUE(p.loops.empty());
  EXPECT_EQ(p.gemm.batch, 6);
  EXPECT_EQ(p.gemm.a.batch_stride, 35);
  EXPECT_EQ(p.gemm.b.batch_stride, 28);
  EXPECT_EQ(p.gemm.d.batch_stride, 20);
  EXPECT_EQ(p.gemm.alignment_bytes, kTensorAlignment);  // the library itself goes from one matrix to the next
  EXPECT_TRUE(p.gemm.b.transposed);
}

TEST(MatmulProducts, ATransposedLeftOperandIsABatchThatReadsOneMatrix) {
  const MatmulProducts p = ProductsOf(MatmulF32({6, 7, 5}, {7, 4}, {6, 5, 4}, true));
  EXPECT_TRUE(p.loops.empty());
  EXPECT_EQ(p.gemm.batch, 6);
  EXPECT_EQ(p.gemm.b.batch_stride, 0);
}

TEST(MatmulProducts, BroadcastInTurnsLoopsOverTheShorterAxes) {
  const MatmulProducts p = ProductsOf(MatmulF32({3, 1, 5, 7}, {1, 9, 7, 4}, {3, 9, 5, 4}));
  EXPECT_EQ(p.gemm.batch, 9);
  EXPECT_EQ(p.gemm.a.batch_stride, 0);
  ASSERT_EQ(p.loops.size(), 1u);
  EXPECT_EQ(p.loops[0].extent, 3);
  EXPECT_EQ(p.loops[0].a, 35);
  EXPECT_EQ(p.loops[0].b, 0);
  EXPECT_EQ(p.loops[0].d, 9 * 20);
  EXPECT_EQ(p.gemm.alignment_bytes, 4);  // 35 floats are no multiple of 8 bytes
}

// Every product of every row of the table is one that a matrix unit of its kind is asked for in its own terms.
TEST(MatmulProducts, OfEveryRowAreValid) {
  const DeviceProperties hopper;
  int products = 0;
  for (const auto& [op, signature] : ampd::testing::RequiredKernels()) {
    if (op != ir::OpKind::kMatmul || IsF8(signature.first[0])) continue;
    for (const ampd::testing::KernelCase& c : ampd::testing::KernelCases(op, signature)) {
      const absl::Status status = CheckGemm(c.desc.name, ProductsOf(c.desc).gemm, hopper);
      EXPECT_TRUE(status.ok()) << ampd::testing::Describe(c.desc) << ": " << status;
      ++products;
    }
  }
  EXPECT_GT(products, 300);
}

class MatmulTest : public ::testing::Test {
 protected:
  void SetUp() override { cuda_on_host::Reset(); }
  void TearDown() override {
    backend_.reset();
    cuda_on_host::Reset();
  }

  void Open(int major, int minor) {
    backend_.reset();
    cudaDeviceProp properties = {};
    properties.major = major;
    properties.minor = minor;
    properties.multiProcessorCount = 4;
    properties.sharedMemPerBlockOptin = 48 << 10;
    properties.totalGlobalMem = size_t{1} << 30;
    cuda_on_host::SetProperties(properties);
    auto context = Context::Open("");
    ASSERT_TRUE(context.ok()) << context.status();
    backend_ = std::make_unique<CudaBackend>(*std::move(context));
  }

  absl::StatusOr<Tensor> Run(const NodeDesc& desc, const std::vector<RefTensor>& inputs) {
    auto results = ampd::testing::RunKernel(backend_->kernels(), desc, inputs, {}, {}, backend_->memory());
    if (!results.ok()) return results.status();
    return std::move((*results)[0]);
  }

  // Random inputs against the float64 reference.
  void Check(const NodeDesc& desc) {
    ampd::testing::Random random(5);
    std::vector<RefTensor> inputs;
    for (const ir::TensorType& type : desc.inputs) {
      inputs.push_back(ampd::testing::RandomTensor(&random, type.shape, type.dtype, -3, 3));
    }
    const auto y = Run(desc, inputs);
    ASSERT_TRUE(y.ok()) << ampd::testing::Describe(desc) << ": " << y.status();
    const std::vector<RefTensor> expected = ampd::testing::ReferenceOp(desc, inputs, {});
    const std::vector<RefTensor> bound = ampd::testing::ErrorBound(desc, inputs, expected, {});
    EXPECT_EQ(ampd::testing::Compare(ampd::testing::FromTensor(y->view()), expected[0], bound[0], DType::kF32), "")
        << ampd::testing::Describe(desc);
  }

  std::unique_ptr<CudaBackend> backend_;
};

// Aligned extents reach the 8-bit product, with none, one or both operands turned around; tiles of the turning are
// whole, cut off, and longer than a word allows.
TEST_F(MatmulTest, EightBitOperandsOfEveryLayout) {
  constexpr DType kForward = DType::kF8E4M3, kGradient = DType::kF8E5M2;
  for (auto [major, minor] : {std::pair{9, 0}, {8, 0}, {7, 5}}) {
    Open(major, minor);
    for (auto [a, b] : {std::pair{kForward, kForward}, {kGradient, kForward}, {kForward, kGradient}}) {
      for (auto [m, k, n] :
           {std::tuple<int64_t, int64_t, int64_t>{64, 64, 64}, {5, 16, 80}, {67, 144, 16}, {132, 272, 144}}) {
        for (int layout = 0; layout < 4; ++layout) {
          const bool ta = layout & 1, tb = layout & 2;
          Check(Matmul(a, b, DType::kF32, ta ? Shape{k, m} : Shape{m, k}, tb ? Shape{n, k} : Shape{k, n}, {m, n}, ta,
                       tb));
        }
      }
      Check(Matmul(a, b, DType::kF32, {2, 3, 16, 5}, {3, 16, 16}, {2, 3, 5, 16}, true, false));
    }
  }
}

// More tiles than blocks, so that each does several, in whatever order its threads run between barriers.
TEST_F(MatmulTest, CodesOfManyTilesAreTurned) {
  Open(9, 0);
  constexpr int64_t kRows = 1540, kColumns = 1600;  // 169 tiles; 4 multiprocessors have 128 blocks
  const Shape shape = {kRows, kColumns};
  NodeDesc desc{.op = ir::OpKind::kQuantize,
                .name = "codes",
                .attributes = {{"dtype", std::string("e4m3fn")}, {"amax", int64_t{1}}, {"turned", int64_t{1}}},
                .inputs = {{DType::kBF16, shape}, {DType::kF32, {}}}};
  desc.outputs = *ops::InferTypes(desc.op, {desc.name, desc.attributes, desc.inputs});
  ampd::testing::Random random(5);
  RefTensor x = ampd::testing::RandomTensor(&random, shape, DType::kBF16, -3, 3);
  x.data[kRows * kColumns - 1] = 3.5;
  for (unsigned order : {0u, 1u, 2u}) {
    cuda_on_host::SetFiberOrder(order);
    const auto results =
        ampd::testing::RunKernel(backend_->kernels(), desc, {x, {{}, {2}}}, {}, {}, backend_->memory());
    cuda_on_host::SetFiberOrder(0);
    ASSERT_TRUE(results.ok()) << results.status();
    EXPECT_EQ((*results)[1].as<float>()[0], 3.5f);
    const auto codes = (*results)[0].as<uint8_t>(), turned = (*results)[2].as<uint8_t>();
    int64_t wrong = 0;
    for (int64_t i = 0; i < kRows * kColumns; ++i) {
      const uint8_t code = ToFloat8E4M3(static_cast<float>(2 * x.data[static_cast<size_t>(i)])).bits;
      const int64_t across = i % kColumns * kRows + i / kColumns;
      wrong += codes[static_cast<size_t>(i)] != code || turned[static_cast<size_t>(across)] != code ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0) << "order " << order;
  }
}

// The mode a device lacks is refused when the plan is made, not when it runs.
TEST_F(MatmulTest, PlansRefuseWhatTheDeviceLacks) {
  Open(7, 5);
  const NodeDesc bf16 = Matmul(DType::kBF16, DType::kBF16, DType::kBF16, {4, 4}, {4, 4}, {4, 4}, false, false);
  EXPECT_TRUE(absl::IsUnimplemented(backend_->kernels().Prepare(bf16).status()));
  NodeDesc tf32 = MatmulF32({4, 4}, {4, 4}, {4, 4});
  tf32.attributes.Set(ops::kComputeAttribute, std::string(ops::kComputeTf32));
  EXPECT_TRUE(absl::IsUnimplemented(backend_->kernels().Prepare(tf32).status()));
}

// Rounded bits decide the result: see the CPU backend's test of the same name.
TEST_F(MatmulTest, Tf32DropsTheBitsOfOperandsAlone) {
  Open(9, 0);
  NodeDesc desc = MatmulF32({1, 2}, {2, 1}, {1, 1});
  desc.attributes.Set(ops::kComputeAttribute, std::string(ops::kComputeTf32));
  const auto y = Run(desc, {{{1, 2}, {1 + 0x1p-11, 1 + 0x1p-9}}, {{2, 1}, {1 + 0x3p-11, 1 + 0x1p-9}}});
  ASSERT_TRUE(y.ok()) << y.status();
  EXPECT_EQ(y->as<float>()[0], (1 + 0x1p-9) + (1 + 0x1p-8 + 0x1p-18));
}

}  // namespace
}  // namespace ampd::cuda
