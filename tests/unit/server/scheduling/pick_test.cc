#include "server/scheduling/pick.h"

#include <gmock/gmock.h>

#include "absl/time/clock.h"

namespace ampd {
namespace {

using ::testing::ElementsAreArray;

struct PickCase {
  const char* name;
  SchedulingSnapshot snapshot;
  std::vector<Assignment> start;
  std::vector<Waiting> wait;
};

class PickTest : public ::testing::TestWithParam<PickCase> {};

TEST_P(PickTest, Decides) {
  const Decision decision = Pick(GetParam().snapshot, absl::Now());
  EXPECT_THAT(decision.start, ElementsAreArray(GetParam().start));
  EXPECT_THAT(decision.wait, ElementsAreArray(GetParam().wait));
}

constexpr auto kResources = v1::Job::RESOURCES;
constexpr auto kDraining = v1::Job::DRAINING;

INSTANTIATE_TEST_SUITE_P(
    Table, PickTest,
    ::testing::Values(
        PickCase{"Nothing", {}, {}, {}}, PickCase{"NoJobs", {{}, {"cpu-0"}, false}, {}, {}},
        PickCase{"NoDevices", {{{"a", 1}}, {}, false}, {}, {{"a", 1, kResources}}},
        PickCase{"One", {{{"a", 1}}, {"cpu-0"}, false}, {{"a", "cpu-0"}}, {}},
        PickCase{"OldestFirst",
                 {{{"c", 3}, {"a", 1}, {"b", 2}}, {"cpu-1"}, false},
                 {{"a", "cpu-1"}},
                 {{"b", 1, kResources}, {"c", 2, kResources}}},
        PickCase{"DevicesInOrder",
                 {{{"b", 9}, {"a", 4}}, {"cpu-1", "cpu-3", "cpu-0"}, false},
                 {{"a", "cpu-1"}, {"b", "cpu-3"}},
                 {}},
        PickCase{"Draining", {{{"b", 2}, {"a", 1}}, {"cpu-0"}, true}, {}, {{"a", 1, kDraining}, {"b", 2, kDraining}}},
        PickCase{"OnlyWhatTheyCanUse",
                 {{{"a", 1, {"t4"}}, {"b", 2}}, {"t4", "h200"}, false},
                 {{"a", "h200"}, {"b", "t4"}},
                 {}},
        PickCase{"NoneHoldsUpAnother",
                 {{{"a", 1, {"t4"}}, {"b", 2}, {"c", 3}}, {"t4"}, false},
                 {{"b", "t4"}},
                 {{"a", 1, kResources}, {"c", 2, kResources}}},
        PickCase{"HeldBack",
                 {{{"a", 1, {"t4", "h200"}}, {"b", 2, {"t4"}}, {"c", 3}},
                  {},
                  false,
                  {{"t4", v1::Job::FOREIGN_PROCESS}, {"h200", v1::Job::DEVICE_UNHEALTHY}}},
                 {},
                 {{"a", 1, kResources}, {"b", 2, v1::Job::DEVICE_UNHEALTHY}, {"c", 3, v1::Job::FOREIGN_PROCESS}}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ampd
