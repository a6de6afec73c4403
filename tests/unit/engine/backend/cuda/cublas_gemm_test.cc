// cuBLASLt's own descriptors for the products of every matmul row, made without a driver. Whether it has an algorithm
// for them, only a device can tell.
#include <gtest/gtest.h>

#include "engine/backend/cuda/gemm.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/matmul.h"
#include "tests/unit/engine/backend/kernel_cases.h"

namespace ampd::cuda {
namespace {

TEST(CublasGemm, PreparesEveryMatmulWithoutADevice) {
  for (auto [major, minor] : {std::pair{8, 0}, {9, 0}}) {
    DeviceProperties properties;
    properties.major = major, properties.minor = minor;
    Context context(properties);
    runtime::KernelTable table;
    RegisterMatmul(&table, &context);
    for (const auto& [op, signature] : ampd::testing::RequiredKernels()) {
      if (op != ir::OpKind::kMatmul) continue;
      for (const ampd::testing::KernelCase& c : ampd::testing::KernelCases(op, signature)) {
        const auto kernel = table.Prepare(c.desc);
        EXPECT_TRUE(kernel.ok()) << ampd::testing::Describe(c.desc) << ": " << kernel.status();
      }
    }
  }
}

TEST(CublasGemm, DescribesEveryEpilogue) {
  Context context{DeviceProperties()};
  for (GemmEpilogue epilogue :
       {GemmEpilogue::kNone, GemmEpilogue::kBias, GemmEpilogue::kBiasGelu, GemmEpilogue::kBiasGeluAux,
        GemmEpilogue::kGeluGrad, GemmEpilogue::kGeluGradBiasGradient, GemmEpilogue::kBiasGradient}) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const GemmDesc desc = {.rows = 32,
                             .columns = 64,
                             .inner = 16,
                             .a = {.dtype = dtype, .transposed = true, .leading = 32},
                             .b = {.dtype = dtype, .leading = 64},
                             .d = {.dtype = dtype, .leading = 64},
                             .epilogue = epilogue};
      const auto gemm = Gemm::Create("dense", desc, &context);
      ASSERT_TRUE(gemm.ok()) << gemm.status();
      EXPECT_EQ((*gemm)->workspace_bytes(), GemmWorkspaceBytes(desc, context.properties()));
    }
  }
}

// A machine without a driver gets an error that says so, from the first run.
TEST(CublasGemm, RunNeedsADevice) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) GTEST_SKIP() << "there is a CUDA device here";
  Context context{DeviceProperties()};
  const GemmMatrix m = {.dtype = DType::kF32, .leading = 1};
  const auto gemm = Gemm::Create("dense", {.rows = 1, .columns = 1, .inner = 1, .a = m, .b = m, .d = m}, &context);
  ASSERT_TRUE(gemm.ok()) << gemm.status();
  float x = 0;
  const absl::Status status = (*gemm)->Run({.a = &x, .b = &x, .d = &x, .workspace = &x});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

}  // namespace
}  // namespace ampd::cuda
