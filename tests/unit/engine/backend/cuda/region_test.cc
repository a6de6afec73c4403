// A product and what follows it, in one call and in parts: both against float64.
#include <cmath>
#include <limits>

#include "tests/unit/engine/backend/cuda/region_cases.h"

namespace ampd::cuda {
namespace {

TEST_F(RegionTest, EveryWayAgreesWithFloat64) {
  for (const NodeDesc& desc : Regions()) {
    const std::vector<RefTensor> inputs = Inputs(desc);
    for (RegionWay way : {RegionWay::kJoined, RegionWay::kParts, RegionWay::kMeasured}) {
      const auto results = Run(desc, inputs, way);
      // A library need not have every call on every device; its stand-in has.
      if (absl::IsUnimplemented(results.status()) && context_->properties().name != "emulated") continue;
      ASSERT_TRUE(results.ok()) << Name(desc) << ": " << results.status();
      ExpectRight(desc, inputs, *results);
    }
  }
}

TEST_F(RegionTest, ReluKeepsANan) {
  const NodeDesc desc = Convolution(DType::kF16, {{OpKind::kBiasAdd, {}}, {OpKind::kRelu, {}}});
  std::vector<RefTensor> inputs = Inputs(desc);
  inputs[2].data[1] = std::numeric_limits<double>::quiet_NaN();
  for (RegionWay way : {RegionWay::kJoined, RegionWay::kParts}) {
    const auto results = Run(desc, inputs, way);
    if (absl::IsUnimplemented(results.status()) && context_->properties().name != "emulated") continue;
    ASSERT_TRUE(results.ok()) << results.status();
    const RefTensor y = ampd::testing::FromTensor((*results)[0].view());
    for (size_t i = 0; i < y.data.size(); ++i) EXPECT_EQ(std::isnan(y.data[i]), i % 6 == 1) << i;
  }
}

}  // namespace
}  // namespace ampd::cuda
