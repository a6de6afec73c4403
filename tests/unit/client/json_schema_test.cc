// The schema of job files against the descriptors of the generated messages, which are not those that it is made from.
#include "client/schema/json_schema.h"

#include <set>
#include <string>

#include "ampd/v1/job.pb.h"
#include "client/schema/descriptors.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"

namespace ampd::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::Struct;
using testing::HasSubstr;

class JsonSchemaTest : public testing::Test {
 protected:
  void SetUp() override {
    text_ = JsonSchemaOf(JobSpecWithComments(), "ampd job file");
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text_, &schema_).ok());
  }
  const Struct& Definition(const std::string& name) const {
    const Struct& all = schema_.fields().at("$defs").struct_value();
    return all.fields().at(name).struct_value();
  }
  const Struct& Property(const std::string& message, const std::string& field) const {
    return Definition(message).fields().at("properties").struct_value().fields().at(field).struct_value();
  }
  std::string Description(const std::string& message, const std::string& field) const {
    return Property(message, field).fields().at("description").string_value();
  }

  std::string text_;
  Struct schema_;
};

// Every message that `message` reaches, by its own fields.
void Reach(const Descriptor* message, std::set<const Descriptor*>* reached) {
  if (message->file()->package() != "ampd.v1" || !reached->insert(message).second) return;
  for (int i = 0; i < message->field_count(); ++i) {
    if (message->field(i)->message_type() != nullptr) Reach(message->field(i)->message_type(), reached);
  }
}

TEST_F(JsonSchemaTest, HasEveryFieldOfEveryMessageAndNoOther) {
  std::set<const Descriptor*> messages;
  Reach(v1::JobSpec::descriptor(), &messages);
  size_t fields = 0;
  for (const Descriptor* message : messages) {
    if (message->options().map_entry()) continue;
    const std::string name = message->full_name().substr(sizeof("ampd.v1"));
    const Struct& definition = Definition(name);
    EXPECT_FALSE(definition.fields().at("additionalProperties").bool_value());
    const Struct& properties = definition.fields().at("properties").struct_value();
    EXPECT_EQ(properties.fields_size(), message->field_count()) << name;
    for (int i = 0; i < message->field_count(); ++i, ++fields) {
      EXPECT_EQ(properties.fields().count(message->field(i)->name()), 1) << name << "." << message->field(i)->name();
    }
  }
  EXPECT_GT(fields, 200);
  EXPECT_EQ(schema_.fields().at("$ref").string_value(), "#/$defs/JobSpec");
}

TEST_F(JsonSchemaTest, ANumberMayStandForAListOfOneThatIsASquare) {
  const auto& kinds = Property("Conv2dLayer", "kernel").fields().at("anyOf").list_value();
  ASSERT_EQ(kinds.values_size(), 2);
  EXPECT_EQ(kinds.values(1).struct_value().fields().at("type").string_value(), "array");
  EXPECT_EQ(kinds.values(0).ShortDebugString(), kinds.values(1).struct_value().fields().at("items").ShortDebugString());
  EXPECT_THAT(Description("Conv2dLayer", "kernel"), HasSubstr("one number means a square"));
  EXPECT_EQ(Property("ReshapeLayer", "shape").fields().at("type").string_value(), "array");
}

TEST_F(JsonSchemaTest, CommentsAreDescriptions) {
  EXPECT_EQ(Description("TrainSpec", "batch_size"),
            "Samples per update, >= 1; at most those of the training set. Default 32.");
  // Of two lines.
  EXPECT_THAT(Description("TrainSpec", "micro_batch_size"),
              HasSubstr("device, >= 1; divides batch_size over resources.gpus. Losses"));
  // Shared with the field above.
  EXPECT_EQ(Description("RetrySpec", "max_backoff_seconds"), Description("RetrySpec", "backoff_seconds"));
  // Of a message that its field says nothing about.
  EXPECT_EQ(Property("DatasetSpec", "idx").fields().count("description"), 0);
  EXPECT_THAT(Definition("JobSpec").fields().at("description").string_value(), HasSubstr("What a job file says."));
  // Of a oneof.
  EXPECT_THAT(Definition("OptimizerSpec").fields().at("description").string_value(),
              HasSubstr("kind: Default: adamw with its defaults."));
  const auto& modes = Definition("PrecisionSpec.Mode").fields().at("anyOf").list_value();
  EXPECT_EQ(modes.values(0).struct_value().fields().at("const").string_value(), "FP32");
  EXPECT_THAT(modes.values(2).struct_value().fields().at("description").string_value(),
              HasSubstr("dynamic loss scaling"));
}

TEST_F(JsonSchemaTest, IsTheSameEachTime) { EXPECT_EQ(JsonSchemaOf(JobSpecWithComments(), "ampd job file"), text_); }

}  // namespace
}  // namespace ampd::client
