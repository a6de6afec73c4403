// Walks every row of the CUDA backend's kernel table against the float64 references, as the CPU backend's test does.
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/cuda_backend_impl.h"
#include "engine/backend/cuda/kernels.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/kernel_runner.h"

namespace ampd::testing {
namespace {

using runtime::KernelTable;
using Row = std::pair<ir::OpKind, KernelTable::Signature>;

// One for the whole program. Null where there is no device.
cuda::CudaBackend* TheBackend() {
  static cuda::CudaBackend* const backend = []() -> cuda::CudaBackend* {
    absl::StatusOr<std::unique_ptr<cuda::Context>> context = cuda::Context::Open("");
    return context.ok() ? new cuda::CudaBackend(*std::move(context)) : nullptr;
  }();
  return backend;
}

absl::StatusOr<std::vector<Tensor>> RunCase(const KernelCase& c) {
  return RunKernel(TheBackend()->kernels(), c.desc, c.inputs, c.step, {}, TheBackend()->memory());
}

std::vector<Row> Rows() {
  std::vector<Row> rows;
  cuda::Context context{cuda::DeviceProperties()};
  KernelTable table;
  cuda::RegisterCudaKernels(&table, &context);
  const std::vector<Row> required = RequiredKernels();
  for (const Row& row : required) {
    if (table.Has(row.first, row.second)) rows.push_back(row);
  }
  return rows;
}

// Every row that every backend must have, and none that the test does not know.
TEST(CudaKernels, CoverEveryOpAndDType) {
  cuda::Context context{cuda::DeviceProperties()};
  KernelTable table;
  cuda::RegisterCudaKernels(&table, &context);
  std::set<Row> required;
  for (const Row& row : RequiredKernels()) {
    required.insert(row);
    EXPECT_TRUE(table.Has(row.first, row.second)) << ir::OpName(row.first);
  }
  for (const Row& row : table.Rows()) EXPECT_EQ(required.count(row), 1u) << ir::OpName(row.first);
}

class CudaKernelRow : public ::testing::TestWithParam<Row> {
 protected:
  void SetUp() override {
    if (TheBackend() == nullptr) GTEST_SKIP() << "no CUDA device here";
  }
};

// A GPU multiplies operands of 8 bits in units that align the addends of a block to the largest and keep some 14 bits
// of them, promoted to fp32 every so often (DeepSeek-V3 technical report, 3.3.2: "Increasing Accumulation Precision").
constexpr double kF8Roundings = 32;

std::vector<RefTensor> Bounds(const KernelCase& c, const std::vector<RefTensor>& expected) {
  std::vector<RefTensor> bounds = ErrorBound(c.desc, c.inputs, expected, c.step);
  if (c.desc.op != ir::OpKind::kMatmul || SizeOf(c.desc.inputs[0].dtype) > 1) return bounds;
  runtime::NodeDesc unrounded = c.desc;
  unrounded.outputs[0].dtype = DType::kF32;
  const RefTensor sums = ErrorBound(unrounded, c.inputs, expected, c.step)[0];
  for (int64_t i = 0; i < sums.size(); ++i) bounds[0].data[i] += kF8Roundings * sums.data[i];
  return bounds;
}

TEST_P(CudaKernelRow, AgreesWithReference) {
  for (const KernelCase& c : KernelCases(GetParam().first, GetParam().second)) {
    const auto results = RunCase(c);
    ASSERT_TRUE(results.ok()) << Describe(c.desc) << ": " << results.status();
    const std::vector<RefTensor> expected = ReferenceOp(c.desc, c.inputs, c.step);
    const std::vector<RefTensor> bounds = Bounds(c, expected);
    const std::vector<DType> dtypes = ResultDTypes(c.desc);
    ASSERT_EQ(results->size(), expected.size()) << Describe(c.desc);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(Compare(FromTensor((*results)[i].view()), expected[i], bounds[i], dtypes[i]), "")
          << Describe(c.desc) << ", " << c.desc.name << ", result " << i;
    }
  }
}

TEST_P(CudaKernelRow, RepeatsItsBits) {
  for (const KernelCase& c : KernelCases(GetParam().first, GetParam().second)) {
    const auto first = RunCase(c), second = RunCase(c);
    ASSERT_TRUE(first.ok() && second.ok()) << Describe(c.desc);
    for (size_t i = 0; i < first->size(); ++i) {
      EXPECT_TRUE(SameBits((*first)[i], (*second)[i])) << Describe(c.desc) << ", result " << i;
    }
  }
}

std::string RowName(const ::testing::TestParamInfo<Row>& info) {
  std::string name(ir::OpName(info.param.first));
  for (DType t : info.param.second.first) absl::StrAppend(&name, "_", DTypeName(t));
  absl::StrAppend(&name, "_to");
  for (DType t : info.param.second.second) absl::StrAppend(&name, "_", DTypeName(t));
  return name;
}

// What a report from a device that is not here has to tell.
TEST(KernelComparison, TellsWhatIsNotFinite) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  const RefTensor expected = {{6}, {1, 2, 3, kNan, 5, 6e4}}, bound = {{6}, {1, 1, 1, 1, 1, 1e4}};
  // What is expected, and a value that may round past f16's largest, are as they should be.
  EXPECT_EQ(Compare({{6}, {1, 2, 3, kNan, 5, kInf}}, expected, bound, DType::kF16), "");
  const std::string difference = Compare({{6}, {9, kNan, 3, kNan, -kInf, kInf}}, expected, bound, DType::kF16);
  EXPECT_NE(difference.find("element 0 of"), std::string::npos) << difference;
  EXPECT_NE(difference.find("; 2 of 6 elements are not finite where they should be: 1, 4"), std::string::npos)
      << difference;
  const std::string finite = Compare({{6}, {9, 2, 3, kNan, 5, 6e4}}, expected, bound, DType::kF16);
  EXPECT_EQ(finite.find("finite"), std::string::npos) << finite;
  const RefTensor many = {{20}, std::vector<double>(20, 1)}, none = {{20}, std::vector<double>(20, kNan)};
  const std::string all = Compare(none, many, many, DType::kF32);
  EXPECT_NE(all.find("20 of 20 elements are not finite where they should be: 0, 1, 2, 3, 4, 5, 6, 7, ..."),
            std::string::npos)
      << all;
}

INSTANTIATE_TEST_SUITE_P(Rows, CudaKernelRow, ::testing::ValuesIn(Rows()), RowName);

}  // namespace
}  // namespace ampd::testing
