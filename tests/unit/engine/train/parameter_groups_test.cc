#include "engine/train/parameter_groups.h"

#include <map>
#include <string>

#include "engine/train/planned_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

absl::StatusOr<std::unique_ptr<PlannedModel>> Plan(const std::string& optimizer) {
  return PlanModel(Spec({kConvNet, kGlyphs, "optimizer { " + optimizer + " }"}),
                   {.input_shape = {28, 28, 1}, .classes = 10}, MakeBackend("cpu-0", 1).value(), 1);
}

// The range that a parameter lies in, by name.
std::map<std::string, runtime::UpdateRange> RangesOf(const PlannedModel& plan) {
  std::map<std::string, runtime::UpdateRange> found;
  for (size_t i = 0; i < plan.layout.parameters().size(); ++i) {
    const runtime::ArenaSlot slot = plan.layout.slots()[i];
    for (const runtime::UpdateRange& range : plan.phases[0].update_ranges) {
      if (range.slot.offset <= slot.offset && slot.offset + slot.size <= range.slot.offset + range.slot.size) {
        found[plan.layout.parameters()[i].name] = range;
      }
    }
  }
  EXPECT_EQ(found.size(), plan.layout.parameters().size());
  return found;
}

TEST(ParameterGroups, WithoutGroupsOneRangeCoversAll) {
  const auto plan = Plan("adamw { weight_decay: 0.25 }");
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ((*plan)->phases[0].update_ranges.size(), 1u);
  EXPECT_EQ((*plan)->phases[0].update_ranges[0].weight_decay, 0.25f);
  EXPECT_EQ((*plan)->phases[0].update_ranges[0].learning_rate_scale, 1);
  for (const auto& [name, range] : RangesOf(**plan)) EXPECT_EQ(range.weight_decay, 0.25f) << name;
}

TEST(ParameterGroups, LambTakesEachParameterByItself) {
  const auto plan = Plan("lamb {}");
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ((*plan)->phases[0].update_ranges.size(), (*plan)->layout.parameters().size());
  for (size_t i = 0; i < (*plan)->phases[0].update_ranges.size(); ++i) {
    EXPECT_EQ((*plan)->phases[0].update_ranges[i].slot.offset, (*plan)->layout.slots()[i].offset);
    EXPECT_EQ((*plan)->phases[0].update_ranges[i].slot.size, (*plan)->layout.slots()[i].size);
  }
}

TEST(ParameterGroups, TheLastMatchHolds) {
  const auto plan = Plan(
      "sgd { weight_decay: 0.25 } groups { match: '*' learning_rate_scale: 3 }"
      "groups { match: '*.bias' weight_decay: 0 learning_rate_scale: 0.5 } groups { match: 'bn?.*' weight_decay: 2 }");
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto ranges = RangesOf(**plan);
  EXPECT_EQ(ranges.at("conv1.weight").learning_rate_scale, 3);
  EXPECT_EQ(ranges.at("conv1.weight").weight_decay, 0.25f);
  EXPECT_EQ(ranges.at("head.bias").learning_rate_scale, 0.5f);
  EXPECT_EQ(ranges.at("head.bias").weight_decay, 0);
  EXPECT_EQ(ranges.at("bn1.bias").learning_rate_scale, 1) << "a group holds as a whole";
  EXPECT_EQ(ranges.at("bn1.bias").weight_decay, 2);
}

TEST(ParameterGroups, NormsAndBiasesWithoutDecay) {
  const auto plan =
      Plan("adamw { weight_decay: 0.25 } decay_norms_and_biases: false groups { match: 'head.bias' weight_decay: 4 }");
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto ranges = RangesOf(**plan);
  EXPECT_EQ(ranges.at("conv1.weight").weight_decay, 0.25f);
  EXPECT_EQ(ranges.at("head.weight").weight_decay, 0.25f);
  EXPECT_EQ(ranges.at("conv1.bias").weight_decay, 0);
  EXPECT_EQ(ranges.at("bn1.weight").weight_decay, 0);
  EXPECT_EQ(ranges.at("bn1.bias").weight_decay, 0);
  EXPECT_EQ(ranges.at("head.bias").weight_decay, 4);
}

TEST(ParameterGroups, AGroupThatMatchesNothingIsAnErrorWithANearName) {
  const auto status = Plan("groups { match: 'head.bais' } groups { match: 'x*' } groups { match: 'head.*' }").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const auto violations = FieldViolationsOf(status);
  ASSERT_EQ(violations.size(), 2u) << status;
  EXPECT_EQ(violations[0].field, "optimizer.groups[0].match");
  EXPECT_EQ(violations[0].description, "no parameter matches 'head.bais'; did you mean head.bias?");
  EXPECT_EQ(violations[1].field, "optimizer.groups[1].match");
}

}  // namespace
}  // namespace ampd::train
