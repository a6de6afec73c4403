// Gradients of biases over more rows than one block sums.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/engine/backend/tested_backend.h"

namespace ampd::testing {
namespace {

class BiasAddGrad : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (TheBackend() == nullptr) GTEST_SKIP() << "no device here";
  }
};

TEST_P(BiasAddGrad, SumsManyRows) {
  for (const Shape& shape :
       {Shape{5003, 1}, Shape{4099, 3}, Shape{3001, 40}, Shape{700, 517}, Shape{70, 2056}, Shape{9001, 72}}) {
    Random random(7);
    const RefTensor x = RandomTensor(&random, shape, GetParam());
    const runtime::NodeDesc desc{.op = ir::OpKind::kBiasAddGrad,
                                 .name = "grad",
                                 .inputs = {{GetParam(), shape}},
                                 .outputs = {{DType::kF32, {shape[1]}}}};
    const auto results = RunTested(desc, {x});
    ASSERT_TRUE(results.ok()) << results.status();
    for (int64_t c = 0; c < shape[1]; ++c) {
      double sum = 0, magnitude = 0;
      for (int64_t r = 0; r < shape[0]; ++r) {
        sum += x.data[r * shape[1] + c];
        magnitude += std::fabs(x.data[r * shape[1] + c]);
      }
      // Four rows are added in fp32, then double; the sum is rounded once.
      ASSERT_NEAR((*results)[0].as<float>()[c], sum, 0x1p-24 * (3 * magnitude + std::fabs(sum)) + 1e-12)
          << ShapeString(shape) << " column " << c;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, BiasAddGrad, ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace ampd::testing
