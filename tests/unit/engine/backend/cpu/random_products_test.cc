// Products of matrices of random extents, batched and not, with operands as they are, transposed, or a parameter in the
// layout that the kernel asks for.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/ops/op_def.h"
#include "tests/support/reference.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/kernel_runner.h"

namespace ampd::testing {
namespace {

using ir::TensorType;
using runtime::NodeDesc;

NodeDesc RandomProduct(Random* random, DType dtype) {
  const auto extent = [&] { return 1 + random->Below(random->Below(2) == 0 ? 20 : 150); };
  NodeDesc desc{.op = ir::OpKind::kMatmul, .name = "node", .threads = 2};
  const bool transpose_a = random->Below(2) == 0, transpose_b = random->Below(2) == 0;
  desc.attributes = {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}};
  const int64_t rows = extent(), inner = extent(), columns = extent();
  Shape a = transpose_a ? Shape{inner, rows} : Shape{rows, inner};
  Shape b = transpose_b ? Shape{columns, inner} : Shape{inner, columns};
  // Batch axes, of which either operand may have one value for all.
  const int64_t axes = random->Below(3);
  for (int64_t axis = 0; axis < axes; ++axis) {
    const int64_t batch = 1 + random->Below(4), one = random->Below(3);
    a.insert(a.begin(), one == 0 ? 1 : batch);
    b.insert(b.begin(), one == 1 ? 1 : batch);
  }
  desc.inputs = {{dtype, a}, {dtype, b}};
  desc.parameter_inputs = {false, axes == 0 && random->Below(2) == 0};
  const auto types =
      ops::InferTypes(desc.op, {.name = desc.name, .attributes = desc.attributes, .inputs = desc.inputs});
  EXPECT_TRUE(types.ok()) << types.status();
  if (types.ok()) desc.outputs = *types;
  return desc;
}

class RandomProducts : public ::testing::TestWithParam<DType> {};

TEST_P(RandomProducts, AgreeWithTheReference) {
  const auto backend = MakeCpuBackend(2);
  Random random(53);
  for (int i = 0; i < 500; ++i) {
    const NodeDesc desc = RandomProduct(&random, GetParam());
    SCOPED_TRACE(absl::StrCat(Describe(desc), desc.attributes.Bool("transpose_a") ? " a transposed" : "",
                              desc.attributes.Bool("transpose_b") ? " b transposed" : "",
                              desc.IsParameter(1) ? " b a parameter" : ""));
    std::vector<RefTensor> inputs;
    for (const TensorType& t : desc.inputs) inputs.push_back(RandomTensor(&random, t.shape, t.dtype));
    const auto outputs = RunKernel(backend->kernels(), desc, inputs, {});
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    const std::vector<RefTensor> expected = ReferenceOp(desc, inputs, {});
    const std::vector<RefTensor> bound = ErrorBound(desc, inputs, expected, {});
    EXPECT_EQ(Compare(FromTensor((*outputs)[0].view()), expected[0], bound[0], desc.outputs[0].dtype), "");
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RandomProducts, ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace ampd::testing
