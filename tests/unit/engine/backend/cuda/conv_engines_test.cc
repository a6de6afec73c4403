// Every engine that cuDNN lists for a convolution, whichever of them is measured to be fastest: a result of finite
// values has to be right, and nothing else may be written. What leaves values that are not finite is said, since the
// backend passes over it (conv_choice.h). On a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/conv2d.h"
#include "engine/backend/cuda/cuda_backend_impl.h"
#include "engine/backend/cuda/cudnn/conv_graph.h"
#include "engine/backend/cuda/cudnn/graph.h"
#include "engine/core/status.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/kernel_runner.h"

namespace ampd::testing {
namespace {

using cuda::Context;
using cuda::Conv;
using cuda::ConvArgs;
using cuda::ConvDesc;
using Row = std::pair<ir::OpKind, runtime::KernelTable::Signature>;

// The plans of one convolution.
struct Plans {
  std::vector<std::pair<int, cuda::cudnn::ConvOperand>> operands;
  std::vector<cuda::cudnn::Plan> plans;
};

absl::StatusOr<Plans> PlansOf(const ConvDesc& desc, Context* context) {
  Plans made;
  AMPD_ASSIGN_OR_RETURN(cuda::cudnn::ConvGraph described, cuda::cudnn::DescribeConv(desc));
  made.operands = std::move(described.operands);
  AMPD_ASSIGN_OR_RETURN(const cudnnHandle_t handle, cuda::cudnn::Handle(context));
  AMPD_ASSIGN_OR_RETURN(const cuda::cudnn::Graph graph, cuda::cudnn::Graph::Make(described.graph, handle));
  const cuda::cudnn::Limits limits{.matrix_units = desc.operands != DType::kF32 || desc.tf32,
                                   .workspace_bytes = cuda::kMaxConvWorkspace};
  AMPD_ASSIGN_OR_RETURN(const std::vector<cuda::cudnn::Engine> engines, graph.Engines(nullptr, limits));
  for (const cuda::cudnn::Engine& engine : engines) {
    absl::StatusOr<cuda::cudnn::Plan> plan = cuda::cudnn::Build(engine);
    if (plan.ok() && plan->workspace_bytes <= cuda::kMaxConvWorkspace) made.plans.push_back(*std::move(plan));
  }
  return made;
}

class PlannedConv : public Conv {
 public:
  PlannedConv(const Plans* plans, size_t index, Context* context)
      : plans_(plans), plan_(plans->plans[index]), context_(context) {}
  int64_t workspace_bytes() const override { return plan_.workspace_bytes; }
  std::string algorithm() const override { return plan_.name; }
  absl::Status Run(const ConvArgs& args) override {
    AMPD_ASSIGN_OR_RETURN(const cudnnHandle_t handle, cuda::cudnn::Handle(context_));
    std::vector<std::pair<int64_t, void*>> pointers;
    for (const auto& [tensor, operand] : plans_->operands) {
      pointers.emplace_back(tensor, cuda::cudnn::PointerOf(args, operand));
    }
    return cuda::cudnn::Execute(handle, plan_, pointers, args.workspace);
  }

 private:
  const Plans* const plans_;
  const cuda::cudnn::Plan plan_;
  Context* const context_;
};

struct Device {
  Context* context;
  cuda::CudaBackend* backend;
};

// One for the whole program. Null where there is no device.
const Device* TheDevice() {
  static const Device* const device = []() -> const Device* {
    absl::StatusOr<std::unique_ptr<Context>> context = Context::Open("");
    if (!context.ok()) return nullptr;
    Context* const opened = context->get();
    return new Device{opened, new cuda::CudaBackend(*std::move(context))};
  }();
  return device;
}

bool IsFinite(const RefTensor& tensor) {
  return std::all_of(tensor.data.begin(), tensor.data.end(), [](double v) { return std::isfinite(v); });
}

class ConvEngines : public ::testing::TestWithParam<Row> {
 protected:
  void SetUp() override {
    if (TheDevice() == nullptr) GTEST_SKIP() << "no CUDA device here";
  }
};

TEST_P(ConvEngines, AreRightOrSeenToBeWrong) {
  int ran = 0, refused = 0, unsound = 0;
  for (const KernelCase& c : KernelCases(GetParam().first, GetParam().second)) {
    const std::vector<RefTensor> expected = ReferenceOp(c.desc, c.inputs, c.step);
    const std::vector<RefTensor> bounds = ErrorBound(c.desc, c.inputs, expected, c.step);
    Context* const context = TheDevice()->context;
    const ConvDesc desc = cuda::ConvOf(c.desc, context->properties());
    // The backend computes these by its own kernels.
    if (absl::IsUnimplemented(Conv::Create("a test's", desc, context).status())) continue;
    const absl::StatusOr<Plans> plans = PlansOf(desc, context);
    ASSERT_TRUE(plans.ok()) << Describe(c.desc) << ": " << plans.status();
    for (size_t i = 0; i < plans->plans.size(); ++i) {
      runtime::KernelTable table;
      cuda::RegisterConvolutions(&table, context, [&](std::string, const ConvDesc&, Context*) {
        return absl::StatusOr<std::unique_ptr<Conv>>(std::make_unique<PlannedConv>(&*plans, i, context));
      });
      const auto results = RunKernel(table, c.desc, c.inputs, c.step, {}, TheDevice()->backend->memory());
      // An engine need not run, but what runs writes nowhere else.
      if (!results.ok()) {
        EXPECT_FALSE(absl::IsInternal(results.status()) &&
                     absl::StrContains(results.status().message(), "wrote behind"))
            << Describe(c.desc) << ", " << plans->plans[i].name << ": " << results.status();
        ++refused;
        continue;
      }
      ++ran;
      const RefTensor found = FromTensor((*results)[0].view());
      if (IsFinite(expected[0]) && !IsFinite(found)) {
        std::cout << "[not finite] " << Describe(c.desc) << ", " << c.desc.name << ", " << plans->plans[i].name << "\n";
        ++unsound;
        continue;
      }
      EXPECT_EQ(Compare(found, expected[0], bounds[0], ResultDTypes(c.desc)[0]), "")
          << Describe(c.desc) << ", " << c.desc.name << ", " << plans->plans[i].name;
    }
  }
  std::cout << "[engines] " << ran << " ran, " << refused << " did not, " << unsound
            << " left values that are not finite\n";
  EXPECT_GT(ran, 0);
}

std::vector<Row> Rows() {
  std::vector<Row> rows;
  for (const Row& row : RequiredKernels()) {
    const ir::OpKind op = row.first;
    if (op == ir::OpKind::kConv2d || op == ir::OpKind::kConv2dGradInput || op == ir::OpKind::kConv2dGradFilter ||
        op == ir::OpKind::kConvTranspose2d) {
      rows.push_back(row);
    }
  }
  return rows;
}

std::string RowName(const ::testing::TestParamInfo<Row>& info) {
  std::string name(ir::OpName(info.param.first));
  for (DType t : info.param.second.first) absl::StrAppend(&name, "_", DTypeName(t));
  return name;
}

INSTANTIATE_TEST_SUITE_P(Rows, ConvEngines, ::testing::ValuesIn(Rows()), RowName);

}  // namespace
}  // namespace ampd::testing
