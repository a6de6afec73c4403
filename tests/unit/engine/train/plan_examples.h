// Jobs, kinds of devices and parts of reports for the tests of plans.
#ifndef AMPD_TESTS_UNIT_ENGINE_TRAIN_PLAN_EXAMPLES_H_
#define AMPD_TESTS_UNIT_ENGINE_TRAIN_PLAN_EXAMPLES_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ampd/v1/plan.pb.h"
#include "proto/spec/device_models.h"
#include "proto/spec/resolve.h"
#include "proto/spec/yaml.h"

namespace ampd::train {

inline v1::JobSpec Spec(const std::string& yaml, const std::vector<std::string>& sets = {}) {
  v1::JobSpec spec;
  EXPECT_EQ(ParseYaml(yaml, "job", &spec), absl::OkStatus());
  for (const std::string& set : sets) EXPECT_EQ(ApplySet(&spec, set), absl::OkStatus()) << set;
  return spec;
}

inline ResolvedJobSpec Resolved(const v1::JobSpec& spec) {
  auto resolved = ResolveJobSpec(spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return *std::move(resolved);
}

inline v1::DeviceModel Model(const std::string& name) { return *FindDeviceModel(BuiltInDeviceModels(), name); }

inline const v1::LayerCost& Layer(const v1::PlanReport& report, const std::string& name) {
  for (const v1::LayerCost& layer : report.layers()) {
    if (layer.layer() == name) return layer;
  }
  ADD_FAILURE() << "no layer " << name;
  return v1::LayerCost::default_instance();
}

inline const v1::ModeEstimate& Mode(const v1::PlanReport& report, v1::PrecisionSpec::Mode mode) {
  for (const v1::ModeEstimate& m : report.modes()) {
    if (m.mode() == mode) return m;
  }
  ADD_FAILURE() << "no mode " << v1::PrecisionSpec::Mode_Name(mode);
  return v1::ModeEstimate::default_instance();
}

}  // namespace ampd::train

#endif  // AMPD_TESTS_UNIT_ENGINE_TRAIN_PLAN_EXAMPLES_H_
