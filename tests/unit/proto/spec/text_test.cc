#include "proto/spec/text.h"

#include <cmath>
#include <limits>
#include <string>

#include "ampd/v1/event.pb.h"
#include "ampd/v1/job.pb.h"
#include "ampd/v1/training_service.pb.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "proto/spec/yaml.h"

namespace ampd {
namespace {

using google::protobuf::util::MessageDifferencer;

v1::JobEvent StepEvent() {
  v1::JobEvent event;
  event.set_sequence(12);
  event.mutable_time()->set_seconds(1767225600);
  event.mutable_time()->set_nanos(250000000);
  v1::PhaseReport* phase = event.mutable_step()->add_phases();
  phase->set_name("main");
  phase->set_loss(std::numeric_limits<double>::quiet_NaN());
  phase->set_loss_scale(65536);
  phase->set_learning_rate(0.1);
  phase->set_gradient_norm(std::numeric_limits<double>::infinity());
  return event;
}

TEST(ToJsonTest, PrintsDefaultsAndProtoNames) {
  EXPECT_EQ(ToJson(StepEvent(), JsonStyle::kCompact),
            "{\"first_sequence\":0,\"sequence\":12,\"time\":\"2026-01-01T00:00:00.250Z\",\"attempt\":0,\"step\":{"
            "\"first_step\":0,\"last_step\":0,\"phases\":[{\"name\":\"main\",\"loss\":\"NaN\",\"loss_scale\":65536,"
            "\"learning_rate\":0.1,\"gradient_norm\":\"Infinity\",\"steps_applied\":0,\"steps_skipped\":0}],"
            "\"samples_per_second\":0,\"input_wait_seconds\":0,\"total_steps\":0,\"epoch\":0}}");
}

TEST(ToJsonTest, IndentsWhenPretty) {
  v1::ServerInfo info;
  info.set_version("0.1.0");
  info.add_apis("ampd.v1");
  EXPECT_EQ(ToJson(info, JsonStyle::kPretty),
            "{\n  \"version\": \"0.1.0\",\n  \"apis\": [\n    \"ampd.v1\"\n  ],\n  \"draining\": false,\n"
            "  \"default_precision_mode\": \"MODE_UNSPECIFIED\",\n  \"device_models\": []\n}\n");
}

TEST(ToJsonTest, ProtobufReadsItBack) {
  v1::JobSpec spec;
  (*spec.mutable_labels())["b\"\\\n\x7f\xc3\xa9"] = "\t";
  (*spec.mutable_labels())["a"] = "";
  spec.set_seed(std::numeric_limits<uint64_t>::max());
  spec.mutable_train()->set_steps(int64_t{1} << 53);
  spec.mutable_precision()->mutable_loss_scale()->set_max(8.507059173023462e+37);
  spec.add_phases();
  v1::JobSpec again;
  const std::string text = ToJson(spec, JsonStyle::kCompact);
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, &again).ok()) << text;
  EXPECT_TRUE(MessageDifferencer::Equals(spec, again)) << text;
  EXPECT_NE(text.find("\"seed\":\"18446744073709551615\""), std::string::npos);
  EXPECT_NE(text.find("\"steps\":9007199254740992"), std::string::npos);
}

TEST(ToYamlTest, WritesAJobAsAPersonWould) {
  v1::JobSpec spec;
  ASSERT_EQ(
      ParseYaml(R"({name: "a b", model: {layers: [{name: c, conv2d: {filters: 2, kernel: [3, 3]}}, {relu: {}}, {}],
    loss: {mean_squared_error: {}}}, labels: {k: "5"}, precision: {mode: FP16}})",
                "f", &spec),
      absl::OkStatus());
  EXPECT_EQ(ToYaml(spec), R"(name: "a b"
model:
  layers:
    - name: c
      conv2d:
        filters: 2
        kernel: [3, 3]
    - relu: {}
    - {}
  loss:
    mean_squared_error: {}
precision:
  mode: FP16
labels:
  k: "5"
)");
  EXPECT_EQ(ToYaml(v1::JobSpec()), "{}\n");
}

TEST(ToYamlTest, EveryStringSurvives) {
  for (const char* text : {"null",
                           "~",
                           "true",
                           "No",
                           "1",
                           "-1",
                           "1e5",
                           ".5",
                           "a: b",
                           "a #b",
                           "- a",
                           "#",
                           "",
                           " a",
                           "a ",
                           "a\nb",
                           "\\n",
                           "\"",
                           "'",
                           "{",
                           "*a",
                           "&a",
                           "!a",
                           "NaN",
                           ".inf",
                           "0x10",
                           "\xc3\xa9",
                           "\xe2\x80\xa8",
                           "\xef\xbb\xbf",
                           "\x01",
                           "\x7f",
                           "\xf0\x9f\x98\x80",
                           "a,b",
                           "a/b.c-d_e",
                           "=",
                           "<<"}) {
    v1::JobSpec spec, again;
    spec.set_name(text);
    (*spec.mutable_labels())[text] = text;
    ASSERT_EQ(ParseYaml(ToYaml(spec), "f", &again), absl::OkStatus()) << ToYaml(spec);
    EXPECT_TRUE(MessageDifferencer::Equals(spec, again)) << ToYaml(spec);
  }
}

TEST(ToYamlTest, EventsSurvive) {
  v1::JobEvent again;
  ASSERT_EQ(ParseYaml(ToYaml(StepEvent()), "f", &again), absl::OkStatus()) << ToYaml(StepEvent());
  EXPECT_TRUE(std::isnan(again.step().phases(0).loss()));
  EXPECT_TRUE(std::isinf(again.step().phases(0).gradient_norm()));
  EXPECT_EQ(again.time().nanos(), 250000000);
}

}  // namespace
}  // namespace ampd
