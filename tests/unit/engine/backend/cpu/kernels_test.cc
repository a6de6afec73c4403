// Walks every row of the CPU backend's kernel table against the float64 references.
#include <gtest/gtest.h>

#include <set>

#include "engine/backend/cpu/cpu_backend.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/kernel_runner.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::KernelTable;
using runtime::NodeDesc;

KernelTable CpuTable() {
  KernelTable table;
  RegisterCpuKernels(&table);
  return table;
}

void ExpectNearReference(const KernelTable& table, const KernelCase& c) {
  const auto results = RunKernel(table, c.desc, c.inputs, c.step);
  ASSERT_TRUE(results.ok()) << Describe(c.desc) << ": " << results.status();
  const std::vector<RefTensor> expected = ReferenceOp(c.desc, c.inputs, c.step);
  const std::vector<RefTensor> bounds = ErrorBound(c.desc, c.inputs, expected, c.step);
  const std::vector<DType> dtypes = ResultDTypes(c.desc);
  ASSERT_EQ(results->size(), expected.size()) << Describe(c.desc);
  for (size_t i = 0; i < expected.size(); ++i) {
    const std::string difference = Compare(FromTensor((*results)[i].view()), expected[i], bounds[i], dtypes[i]);
    EXPECT_EQ(difference, "") << Describe(c.desc) << ", " << c.desc.name << ", result " << i << ", threads "
                              << c.desc.threads;
  }
}

// Every row but reshape, which has no kernel, fused, which has no row (see random_graph_test), and region, which this
// backend does not ask for; and no row that the test does not know.
TEST(CpuKernels, CoverEveryOpAndDType) {
  const KernelTable table = CpuTable();
  std::set<std::pair<OpKind, KernelTable::Signature>> required;
  std::set<OpKind> ops = {OpKind::kReshape, OpKind::kFused, OpKind::kRegion};
  for (const auto& [op, signature] : RequiredKernels()) {
    EXPECT_TRUE(table.Has(op, signature)) << ir::OpName(op);
    required.insert({op, signature});
    ops.insert(op);
  }
  for (const auto& row : table.Rows()) EXPECT_EQ(required.count(row), 1u) << ir::OpName(row.first);
  for (OpKind op : ir::kAllOpKinds) EXPECT_EQ(ops.count(op), 1u) << ir::OpName(op);
}

class CpuKernelRow : public ::testing::TestWithParam<std::pair<OpKind, KernelTable::Signature>> {
 protected:
  std::vector<KernelCase> Cases(int threads) const {
    std::vector<KernelCase> cases = KernelCases(GetParam().first, GetParam().second);
    for (KernelCase& c : cases) c.desc.threads = threads;
    return cases;
  }
};

TEST_P(CpuKernelRow, AgreesWithReference) {
  const KernelTable table = CpuTable();
  for (int threads : {1, 2}) {
    for (const KernelCase& c : Cases(threads)) ExpectNearReference(table, c);
  }
}

TEST_P(CpuKernelRow, AgreesWithReferenceOnPublishedParameters) {
  const OpKind op = GetParam().first;
  if (op != OpKind::kMatmul && op != OpKind::kConv2d && op != OpKind::kConv2dGradInput) {
    return;  // only these read parameters in a layout of their own
  }
  const KernelTable table = CpuTable();
  for (KernelCase& c : Cases(2)) {
    c.desc.parameter_inputs = {false, true};
    ExpectNearReference(table, c);
  }
}

TEST_P(CpuKernelRow, RepeatsItsBits) {
  for (const KernelCase& c : Cases(2)) {
    const auto first = RunKernel(CpuTable(), c.desc, c.inputs, c.step);
    const auto second = RunKernel(CpuTable(), c.desc, c.inputs, c.step);
    ASSERT_TRUE(first.ok() && second.ok()) << Describe(c.desc);
    for (size_t i = 0; i < first->size(); ++i) {
      EXPECT_TRUE(SameBits((*first)[i], (*second)[i])) << Describe(c.desc) << ", result " << i;
    }
  }
}

std::string RowName(const ::testing::TestParamInfo<std::pair<OpKind, KernelTable::Signature>>& info) {
  std::string name(ir::OpName(info.param.first));
  for (DType t : info.param.second.first) absl::StrAppend(&name, "_", DTypeName(t));
  absl::StrAppend(&name, "_to");
  for (DType t : info.param.second.second) absl::StrAppend(&name, "_", DTypeName(t));
  return name;
}

INSTANTIATE_TEST_SUITE_P(Rows, CpuKernelRow, ::testing::ValuesIn(RequiredKernels()), RowName);

// A master between two 16-bit values is published rounded, as if the operand had been rounded first.
TEST(CpuKernels, PublishRoundsMasters) {
  const KernelTable table = CpuTable();
  Random random(7);
  for (DType t : {DType::kF32, DType::kF16, DType::kBF16}) {
    NodeDesc desc{
        .op = OpKind::kMatmul, .name = "dense", .inputs = {{t, {4, 33}}, {t, {33, 20}}}, .outputs = {{t, {4, 20}}}};
    const RefTensor x = RandomTensor(&random, {4, 33}, t);
    const RefTensor master = RandomTensor(&random, {33, 20}, DType::kF32);
    const RefTensor rounded = FromTensor(ToTensor(master, t).view());
    desc.parameter_inputs = {false, true};
    const auto from_master = RunKernel(table, desc, {x, rounded}, {}, {nullptr, &master});
    const auto from_rounded = RunKernel(table, desc, {x, rounded}, {});
    ASSERT_TRUE(from_master.ok() && from_rounded.ok());
    EXPECT_TRUE(SameBits((*from_master)[0], (*from_rounded)[0])) << DTypeName(t);
  }
}

// Two nodes that read one parameter alike share one copy; unlike readings do not.
TEST(CpuKernels, PublishedKeysNameTheLayout) {
  const KernelTable table = CpuTable();
  const auto key = [&](DType t, int64_t transpose) {
    NodeDesc desc{.op = OpKind::kMatmul,
                  .name = "dense",
                  .attributes = {{"transpose_b", transpose}},
                  .inputs = {{t, {8, 64}}, {t, {64, 64}}},
                  .outputs = {{t, {8, 64}}},
                  .threads = 1,
                  .parameter_inputs = {false, true}};
    const auto kernel = table.Prepare(desc);
    const auto layout = (*kernel)->published_layout(1);
    return layout ? layout->key : "";
  };
  EXPECT_EQ(key(DType::kF16, 0), key(DType::kF16, 0));
  EXPECT_NE(key(DType::kF16, 0), key(DType::kF16, 1));
  EXPECT_NE(key(DType::kF16, 0), key(DType::kBF16, 0));
}

TEST(CpuKernels, ImpossibleShapesAreErrorsThatNameTheNode) {
  NodeDesc desc{.op = OpKind::kConv2d,
                .name = "conv1.conv2d",
                .attributes = {{"strides", std::vector<int64_t>{1, 1}}, {"pads", std::vector<int64_t>{0, 0, 0, 0}}},
                .inputs = {{DType::kF32, {1, 4, 4, 3}}, {DType::kF32, {2, 3, 3, 3}}},
                .outputs = {{DType::kF32, {1, 9, 9, 2}}}};
  const auto kernel = CpuTable().Prepare(desc);
  ASSERT_FALSE(kernel.ok());
  EXPECT_EQ(kernel.status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(kernel.status().message().find("conv1.conv2d"), absl::string_view::npos) << kernel.status();
}

}  // namespace
}  // namespace ampd::testing
