// Specs of models from text.
#ifndef AMPD_TESTS_UNIT_ENGINE_MODELS_MODEL_TEST_UTIL_H_
#define AMPD_TESTS_UNIT_ENGINE_MODELS_MODEL_TEST_UTIL_H_

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

#include "proto/spec/resolve.h"

namespace ampd::models {

// Of the text formats of a ModelSpec and a PrecisionSpec.
inline ResolvedJobSpec Resolve(const std::string& model, const std::string& precision = "mode: FP32") {
  v1::JobSpec spec;
  const std::string text = "data { train { glyphs {} } } precision { " + precision + " } model { " + model + " }";
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  auto resolved = ResolveJobSpec(spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return *resolved;
}

}  // namespace ampd::models

#endif  // AMPD_TESTS_UNIT_ENGINE_MODELS_MODEL_TEST_UTIL_H_
