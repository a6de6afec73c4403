// The contract of gemm.h, of whichever implementation is linked: on the host the one that stands in for cuBLASLt.
#include "engine/backend/cuda/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "tests/support/cuda_on_host/cuda_on_host.h"
#include "tests/support/ref_tensor.h"

namespace ampd::cuda {
namespace {

using ampd::testing::FromTensor;
using ampd::testing::Random;
using ampd::testing::RandomTensor;
using ampd::testing::RefTensor;
using ampd::testing::ToTensor;

GemmDesc Plain(int64_t rows, int64_t columns, int64_t inner, DType dtype) {
  return {.rows = rows,
          .columns = columns,
          .inner = inner,
          .a = {.dtype = dtype, .leading = inner},
          .b = {.dtype = dtype, .leading = columns},
          .d = {.dtype = dtype, .leading = columns}};
}

class GemmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda_on_host::Reset();
    auto context = Context::Open("");
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
  }
  void TearDown() override {
    context_.reset();
    cuda_on_host::Reset();
  }

  // Enqueues; `args` without a workspace.
  absl::Status Enqueue(const GemmDesc& desc, GemmArgs args) {
    auto gemm = Gemm::Create("product", desc, context_.get());
    if (!gemm.ok()) return gemm.status();
    workspace_ = AlignedBuffer((*gemm)->workspace_bytes());
    args.workspace = workspace_.data();
    return (*gemm)->Run(args);
  }
  absl::Status Run(const GemmDesc& desc, GemmArgs args) {
    const absl::Status status = Enqueue(desc, args);
    return status.ok() ? context_->Wait() : status;
  }

  std::unique_ptr<Context> context_;
  AlignedBuffer workspace_;
};

double At(const RefTensor& m, const GemmMatrix& layout, int64_t batch, int64_t i, int64_t j) {
  if (layout.transposed) std::swap(i, j);
  return m.data[static_cast<size_t>(batch * layout.batch_stride + i * layout.leading + j)];
}

// Rows farther apart than they are long, matrices with gaps, and one left operand for the whole batch.
TEST_F(GemmTest, HonoursLayouts) {
  GemmDesc desc = Plain(3, 5, 7, DType::kF32);
  desc.batch = 2;
  desc.a = {.dtype = DType::kF32, .transposed = true, .leading = 4, .batch_stride = 0};
  desc.b = {.dtype = DType::kF32, .transposed = true, .leading = 9, .batch_stride = 50};
  desc.d = {.dtype = DType::kF32, .leading = 6, .batch_stride = 20};
  Random random(1);
  const RefTensor a = RandomTensor(&random, {28}, DType::kF32), b = RandomTensor(&random, {95}, DType::kF32);
  const Tensor da = ToTensor(a, DType::kF32), db = ToTensor(b, DType::kF32);
  Tensor d = ToTensor(ampd::testing::Filled({38}, -100), DType::kF32);
  ASSERT_TRUE(Run(desc, {.a = da.view().data, .b = db.view().data, .d = d.view().data}).ok());
  const RefTensor got = FromTensor(d.view());
  std::set<size_t> written;
  for (int64_t n = 0; n < 2; ++n) {
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < 5; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < 7; ++k) sum += At(a, desc.a, n, i, k) * At(b, desc.b, n, k, j);
        const auto at = static_cast<size_t>(n * 20 + i * 6 + j);
        EXPECT_NEAR(got.data[at], sum, 1e-5);
        written.insert(at);
      }
    }
  }
  for (size_t i = 0; i < got.data.size(); ++i) EXPECT_TRUE(written.count(i) > 0 || got.data[i] == -100) << i;
}

double Gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

class Epilogues : public GemmTest {
 protected:
  static constexpr int64_t kRows = 6, kColumns = 8, kInner = 5;

  void SetUp() override {
    GemmTest::SetUp();
    Random random(2);
    a_ = RandomTensor(&random, {kRows, kInner}, DType::kF32);
    b_ = RandomTensor(&random, {kInner, kColumns}, DType::kF32);
    bias_ = RandomTensor(&random, {kColumns}, DType::kF32);
    aux_ = RandomTensor(&random, {kRows, kColumns}, DType::kF32, -3, 3);
    ta_ = ToTensor(a_, DType::kF32), tb_ = ToTensor(b_, DType::kF32);
    tbias_ = ToTensor(bias_, DType::kF32), taux_ = ToTensor(aux_, DType::kF32);
    d_ = ToTensor(ampd::testing::Filled({kRows, kColumns}, 1), DType::kF32);
    gradient_ = ToTensor(ampd::testing::Filled({kColumns}, -1), DType::kF32);
  }
  GemmDesc Desc(GemmEpilogue epilogue) const {
    GemmDesc desc = Plain(kRows, kColumns, kInner, DType::kF32);
    desc.epilogue = epilogue;
    return desc;
  }
  double Product(int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t k = 0; k < kInner; ++k) sum += a_.data[i * kInner + k] * b_.data[k * kColumns + j];
    return sum;
  }
  void Expect(const Tensor& actual, const std::function<double(int64_t, int64_t)>& expected) const {
    const RefTensor got = FromTensor(actual.view());
    for (int64_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got.data[i], expected(i / kColumns, i % kColumns), 1e-5) << i;
  }
  GemmArgs Args() const { return {.a = ta_.view().data, .b = tb_.view().data, .d = d_.view().data}; }

  RefTensor a_, b_, bias_, aux_;
  Tensor ta_, tb_, tbias_, taux_, d_, gradient_;
};

TEST_F(Epilogues, Accumulate) {
  GemmDesc desc = Desc(GemmEpilogue::kNone);
  desc.accumulate = true;
  ASSERT_TRUE(Run(desc, Args()).ok());
  Expect(d_, [&](int64_t i, int64_t j) { return 1 + Product(i, j); });
}

TEST_F(Epilogues, Added) {
  GemmDesc desc = Desc(GemmEpilogue::kNone);
  desc.added = true;
  GemmArgs args = Args();
  args.c = taux_.view().data;
  ASSERT_TRUE(Run(desc, args).ok());
  Expect(d_, [&](int64_t i, int64_t j) { return Product(i, j) + aux_.data[i * kColumns + j]; });
  desc.epilogue = GemmEpilogue::kBias;
  args.bias = tbias_.view().data;
  ASSERT_TRUE(Run(desc, args).ok());
  Expect(d_, [&](int64_t i, int64_t j) { return Product(i, j) + aux_.data[i * kColumns + j] + bias_.data[j]; });
}

TEST_F(Epilogues, NothingElseIsAddedWith) {
  GemmDesc desc = Desc(GemmEpilogue::kBiasGelu);
  desc.added = true;
  EXPECT_EQ(Run(desc, Args()).code(), absl::StatusCode::kUnimplemented);
  desc.epilogue = GemmEpilogue::kNone;
  desc.accumulate = true;
  EXPECT_EQ(Run(desc, Args()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Epilogues, Bias) {
  GemmArgs args = Args();
  args.bias = tbias_.view().data;
  ASSERT_TRUE(Run(Desc(GemmEpilogue::kBias), args).ok());
  Expect(d_, [&](int64_t i, int64_t j) { return Product(i, j) + bias_.data[j]; });
}

TEST_F(Epilogues, BiasGeluAux) {
  GemmArgs args = Args();
  args.bias = tbias_.view().data;
  args.aux = taux_.view().data;
  ASSERT_TRUE(Run(Desc(GemmEpilogue::kBiasGeluAux), args).ok());
  Expect(taux_, [&](int64_t i, int64_t j) { return Product(i, j) + bias_.data[j]; });
  Expect(d_, [&](int64_t i, int64_t j) { return Gelu(Product(i, j) + bias_.data[j]); });
}

TEST_F(Epilogues, BiasGeluAlone) {
  GemmArgs args = Args();
  args.bias = tbias_.view().data;
  ASSERT_TRUE(Run(Desc(GemmEpilogue::kBiasGelu), args).ok());
  Expect(d_, [&](int64_t i, int64_t j) { return Gelu(Product(i, j) + bias_.data[j]); });
}

TEST_F(Epilogues, GeluGradAlone) {
  GemmArgs args = Args();
  args.aux = taux_.view().data;
  ASSERT_TRUE(Run(Desc(GemmEpilogue::kGeluGrad), args).ok());
  Expect(d_, [&](int64_t i, int64_t j) {
    const double x = aux_.data[i * kColumns + j], h = 1e-5;
    return Product(i, j) * (Gelu(x + h) - Gelu(x - h)) / (2 * h);
  });
}

TEST_F(Epilogues, GeluGradBiasGradient) {
  GemmArgs args = Args();
  args.aux = taux_.view().data;
  args.bias_gradient = gradient_.view().data;
  ASSERT_TRUE(Run(Desc(GemmEpilogue::kGeluGradBiasGradient), args).ok());
  const auto expected = [&](int64_t i, int64_t j) {
    const double x = aux_.data[i * kColumns + j], h = 1e-5;
    return Product(i, j) * (Gelu(x + h) - Gelu(x - h)) / (2 * h);
  };
  Expect(d_, expected);
  Expect(gradient_, [&](int64_t, int64_t j) {
    double sum = 0;
    for (int64_t i = 0; i < kRows; ++i) sum += expected(i, j);
    return sum;
  });
}

TEST_F(Epilogues, BiasGradient) {
  GemmArgs args = Args();
  args.bias_gradient = gradient_.view().data;
  ASSERT_TRUE(Run(Desc(GemmEpilogue::kBiasGradient), args).ok());
  Expect(d_, [&](int64_t i, int64_t j) { return Product(i, j); });
  Expect(gradient_, [&](int64_t, int64_t j) {
    double sum = 0;
    for (int64_t k = 0; k < kInner; ++k) sum += b_.data[k * kColumns + j];
    return sum;
  });
}

// Codes with scales, into 16 bits.
TEST_F(GemmTest, ScalesEightBitOperands) {
  GemmDesc desc = Plain(2, 16, 16, DType::kF8E4M3);
  desc.a.dtype = DType::kF8E5M2;
  desc.b.transposed = true;
  desc.d.dtype = DType::kBF16;
  desc.scaled = true;
  const Tensor a = ToTensor(ampd::testing::Filled({2, 16}, 2), DType::kF8E5M2);
  const Tensor b = ToTensor(ampd::testing::Filled({16, 16}, 3), DType::kF8E4M3);
  Tensor d(DType::kBF16, {2, 16});
  const float a_scale = 0.5, b_scale = 0.125;
  ASSERT_TRUE(
      Run(desc, {.a = a.view().data, .b = b.view().data, .d = d.view().data, .a_scale = &a_scale, .b_scale = &b_scale})
          .ok());
  for (double v : FromTensor(d.view()).data) EXPECT_EQ(v, 16 * 2 * 3 * 0.5 * 0.125);
}

TEST_F(GemmTest, RunsWhenACapturedGraphIsLaunched) {
  const GemmDesc desc = Plain(1, 1, 1, DType::kF32);
  const Tensor a = ToTensor(ampd::testing::Filled({1}, 2), DType::kF32);
  const Tensor b = ToTensor(ampd::testing::Filled({1}, 3), DType::kF32);
  Tensor d = ToTensor(ampd::testing::Filled({1}, 0), DType::kF32);
  ASSERT_EQ(cudaStreamBeginCapture(context_->stream(), cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_TRUE(Enqueue(desc, {.a = a.view().data, .b = b.view().data, .d = d.view().data}).ok());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(context_->stream(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(d.as<float>()[0], 0);
  ASSERT_EQ(cudaGraphLaunch(exec, context_->stream()), cudaSuccess);
  ASSERT_TRUE(context_->Wait().ok());
  EXPECT_EQ(d.as<float>()[0], 6);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// cuBLASLt asks it of its callers, and so does what stands in for it.
TEST_F(GemmTest, RefusesAWorkspaceThatIsNotAligned) {
  const GemmDesc desc = Plain(1, 1, 1, DType::kF32);
  const Tensor x(DType::kF32, {1}), d(DType::kF32, {1});
  auto gemm = Gemm::Create("product", desc, context_.get());
  ASSERT_TRUE(gemm.ok()) << gemm.status();
  const AlignedBuffer workspace((*gemm)->workspace_bytes() + 512);
  GemmArgs args = {.a = x.view().data, .b = x.view().data, .d = d.view().data};
  for (const int64_t offset : {256, 128, 64, 16}) {
    args.workspace = workspace.data() + offset;
    const absl::Status status = (*gemm)->Run(args);
    EXPECT_EQ(status.ok(), offset == 256) << offset << ": " << status;
    EXPECT_EQ(std::string(status.message()).find("product: the workspace at ") != std::string::npos, offset != 256);
  }
  EXPECT_TRUE(context_->Wait().ok());
}

// Operands begin where tensors do, unless it is said that they may begin in one.
TEST_F(GemmTest, OperandsAreAsAlignedAsIsSaid) {
  EXPECT_EQ(GemmDesc().alignment_bytes, 256);
  GemmDesc desc = Plain(1, 1, 1, DType::kF32);
  const Tensor x(DType::kF32, {128});
  GemmArgs args = {.a = x.as<float>().data() + 4, .b = x.view().data, .d = x.as<float>().data() + 64};
  EXPECT_FALSE(Enqueue(desc, args).ok());
  desc.alignment_bytes = 16;
  EXPECT_TRUE(Run(desc, args).ok());
}

// What no library is asked to do.
TEST(GemmCheck, RefusesWithReasons) {
  const DeviceProperties hopper;
  DeviceProperties turing;
  turing.major = 7, turing.minor = 5, turing.name = "NVIDIA T4";
  const auto expect = [](const GemmDesc& desc, const DeviceProperties& p, absl::StatusCode code, const char* says) {
    const absl::Status status = CheckGemm("layer", desc, p);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(std::string(status.message()).find(says), std::string::npos) << status;
    EXPECT_NE(std::string(status.message()).find("layer"), std::string::npos) << status;
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument, kUnimplemented = absl::StatusCode::kUnimplemented;
  GemmDesc desc = Plain(4, 8, 16, DType::kBF16);
  EXPECT_TRUE(CheckGemm("layer", desc, hopper).ok());
  expect(desc, turing, kUnimplemented, "bf16 needs compute capability 8.0, NVIDIA T4 has 7.5");
  EXPECT_TRUE(CheckGemm("layer", Plain(4, 8, 16, DType::kF16), turing).ok());
  desc.a.leading = 15;
  expect(desc, hopper, kInvalid, "rows of 16 elements lie 15 apart");
  desc = Plain(0, 8, 16, DType::kF32);
  expect(desc, hopper, kInvalid, "rows 0");
  desc = Plain(4, int64_t{1} << 31, 16, DType::kF32);
  expect(desc, hopper, kInvalid, "columns 2147483648");
  desc = Plain(4, 8, 16, DType::kF32);
  desc.batch = 2, desc.d.batch_stride = 31;
  expect(desc, hopper, kInvalid, "overlap");
  desc = Plain(4, 8, 16, DType::kF32);
  desc.b.dtype = DType::kF16;
  expect(desc, hopper, kInvalid, "no product of f32 and f16");
  desc = Plain(4, 8, 16, DType::kF16);
  desc.tf32 = true;
  expect(desc, hopper, kInvalid, "tf32");
  desc = Plain(4, 8, 16, DType::kF32);
  desc.tf32 = true;
  expect(desc, turing, kUnimplemented, "tf32 needs");
  desc = Plain(4, 8, 16, DType::kF32);
  desc.batch = 2, desc.d.batch_stride = 32, desc.epilogue = GemmEpilogue::kBias;
  expect(desc, hopper, kInvalid, "an epilogue for a batch of 2");
  desc = Plain(4, 9, 16, DType::kF16);
  desc.epilogue = GemmEpilogue::kBiasGelu;
  expect(desc, hopper, kUnimplemented, "multiple of 8");
}

TEST(GemmCheck, EightBitOperandsHaveOneLayout) {
  const DeviceProperties hopper;
  GemmDesc good = Plain(3, 16, 32, DType::kF8E4M3);
  good.b = {.dtype = DType::kF8E5M2, .transposed = true, .leading = 32};
  good.d.dtype = DType::kF32;
  EXPECT_TRUE(CheckGemm("layer", good, hopper).ok()) << CheckGemm("layer", good, hopper);
  std::vector<GemmDesc> bad(5, good);
  bad[0].b = {.dtype = DType::kF8E4M3, .leading = 16};
  bad[1].a = {.dtype = DType::kF8E4M3, .transposed = true, .leading = 16};
  bad[2].inner = bad[2].a.leading = bad[2].b.leading = 24;
  bad[3].columns = bad[3].d.leading = 8;
  bad[4].a.dtype = DType::kF8E5M2;
  for (const GemmDesc& desc : bad) EXPECT_TRUE(absl::IsUnimplemented(CheckGemm("layer", desc, hopper)));
  DeviceProperties ampere;
  ampere.major = 8, ampere.minor = 0;
  EXPECT_TRUE(absl::IsUnimplemented(CheckGemm("layer", good, ampere)));
}

TEST(GemmKey, NamesEveryField) {
  GemmDesc base = Plain(4, 8, 16, DType::kF32);
  base.batch = 1;
  std::vector<GemmDesc> descs(19, base);
  descs[1].rows = 5;
  descs[2].columns = 9;
  descs[3].inner = 17;
  descs[4].batch = 2;
  descs[5].a.dtype = DType::kF16;
  descs[6].a.transposed = true;
  descs[7].a.leading = 99;
  descs[8].a.batch_stride = 1;
  descs[9].b.leading = 99;
  descs[10].d.leading = 99;
  descs[11].b.transposed = true;
  descs[12].d.dtype = DType::kBF16;
  descs[13].tf32 = true;
  descs[14].accumulate = true;
  descs[15].scaled = true;
  descs[16].epilogue = GemmEpilogue::kBias;
  descs[17].alignment_bytes = 2;
  descs[18].added = true;
  std::set<std::string> keys;
  for (const GemmDesc& desc : descs) keys.insert(GemmKey(desc));
  EXPECT_EQ(keys.size(), descs.size());
}

TEST(GemmWorkspace, IsBoundedByResultAndDevice) {
  DeviceProperties hopper, ampere;
  ampere.major = 8;
  EXPECT_EQ(GemmWorkspaceBytes(Plain(1 << 20, 1 << 20, 1, DType::kF32), hopper), 32 << 20);
  EXPECT_EQ(GemmWorkspaceBytes(Plain(1 << 20, 1 << 20, 1, DType::kF32), ampere), 8 << 20);
  EXPECT_LE(GemmWorkspaceBytes(Plain(16, 16, 1 << 20, DType::kF32), hopper), 1 << 16);
}

}  // namespace
}  // namespace ampd::cuda
