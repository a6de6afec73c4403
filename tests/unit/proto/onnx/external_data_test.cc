// What tensors have in other files is put where they are, and nothing that may not be.
#include "proto/onnx/external_data.h"

#include <google/protobuf/unknown_field_set.h>
#include <onnx/onnx_pb.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Tensor = ::onnx::TensorProto;

class ExternalDataTest : public testing::Test {
 protected:
  void Place(Tensor* tensor, const std::map<std::string, std::string>& entries) {
    tensor->set_name("w");
    tensor->set_data_location(Tensor::EXTERNAL);
    for (const auto& [key, value] : entries) {
      tensor->add_external_data()->set_key(key);
      tensor->mutable_external_data()->rbegin()->set_value(value);
    }
  }

  absl::StatusOr<std::optional<std::string>> Join() {
    asked_.clear();
    return JoinExternalData(
        model_.SerializeAsString(), [this](const ExternalPart& part) -> absl::StatusOr<std::string> {
          asked_.push_back(part.location);
          const auto file = files_.find(part.location);
          if (file == files_.end()) return absl::NotFoundError("none");
          const absl::StatusOr<int64_t> length = part.LengthWithin(static_cast<int64_t>(file->second.size()));
          if (!length.ok()) return length.status();
          return file->second.substr(static_cast<size_t>(part.offset), static_cast<size_t>(*length));
        });
  }
  ::onnx::ModelProto Joined() {
    const auto joined = Join();
    ::onnx::ModelProto model;
    EXPECT_TRUE(joined.ok() && joined->has_value() && model.ParseFromString(**joined)) << joined.status();
    return model;
  }
  // Of a model of one tensor, placed so.
  absl::Status Error(const std::map<std::string, std::string>& entries) {
    model_.Clear();
    Place(model_.mutable_graph()->add_initializer(), entries);
    return Join().status();
  }

  ::onnx::ModelProto model_;
  std::map<std::string, std::string> files_ = {{"a", "0123456789"}, {"sub/b", "xyz"}};
  std::vector<std::string> asked_;
};

TEST_F(ExternalDataTest, IsTakenWhereverTensorsStand) {
  ::onnx::GraphProto* graph = model_.mutable_graph();
  Place(graph->add_initializer(), {{"location", "a"}, {"offset", "2"}, {"length", "3"}});
  graph->add_initializer()->set_raw_data("own");
  Place(graph->add_node()->add_attribute()->mutable_t(), {{"location", "a"}, {"offset", "8"}});
  Place(graph->mutable_node(0)->add_attribute()->add_tensors(), {{"location", "a"}, {"length", "0"}});
  ::onnx::GraphProto* branch = graph->mutable_node(0)->add_attribute()->mutable_g();
  Place(branch->add_initializer(), {{"location", "sub/b"}});
  Place(graph->mutable_node(0)->add_attribute()->add_graphs()->add_initializer(), {{"location", "sub/b"}});
  Place(model_.add_functions()->add_node()->add_attribute()->mutable_t(), {{"location", "a"}});
  const ::onnx::ModelProto joined = Joined();
  const ::onnx::GraphProto& found = joined.graph();
  EXPECT_EQ(found.initializer(0).raw_data(), "234");
  EXPECT_FALSE(found.initializer(0).has_data_location());
  EXPECT_EQ(found.initializer(0).external_data_size(), 0);
  EXPECT_EQ(found.initializer(1).raw_data(), "own");
  EXPECT_EQ(found.node(0).attribute(0).t().raw_data(), "89");
  EXPECT_TRUE(found.node(0).attribute(1).tensors(0).has_raw_data());
  EXPECT_EQ(found.node(0).attribute(1).tensors(0).raw_data(), "");
  EXPECT_EQ(found.node(0).attribute(2).g().initializer(0).raw_data(), "xyz");
  EXPECT_EQ(found.node(0).attribute(3).graphs(0).initializer(0).raw_data(), "xyz");
  EXPECT_EQ(joined.functions(0).node(0).attribute(0).t().raw_data(), "0123456789");
}

// Of messages newer than those at hand: field 11 of FunctionProto.
TEST_F(ExternalDataTest, IsTakenIntoDefaultsOfFunctions) {
  ::onnx::AttributeProto attribute;
  attribute.set_name("value");
  Place(attribute.mutable_t(), {{"location", "sub/b"}});
  model_.mutable_graph();
  google::protobuf::UnknownFieldSet* fields = model_.add_functions()->mutable_unknown_fields();
  fields->AddLengthDelimited(11, "no attribute");
  fields->AddLengthDelimited(12, attribute.SerializeAsString());
  fields->AddLengthDelimited(11, attribute.SerializeAsString());
  const ::onnx::ModelProto joined = Joined();
  const google::protobuf::UnknownFieldSet& found = joined.functions(0).unknown_fields();
  ASSERT_EQ(found.field_count(), 3);
  EXPECT_EQ(found.field(0).length_delimited(), "no attribute");
  EXPECT_EQ(found.field(1).length_delimited(), attribute.SerializeAsString());
  ASSERT_TRUE(attribute.ParseFromString(found.field(2).length_delimited()));
  EXPECT_EQ(attribute.t().raw_data(), "xyz");
}

TEST_F(ExternalDataTest, OnlyWhatIsNeededIsRead) {
  ::onnx::GraphProto* graph = model_.mutable_graph();
  Place(graph->add_initializer(), {{"location", "../a"}});
  graph->mutable_initializer(0)->set_name("v");
  Place(graph->add_initializer(), {{"location", "a"}});
  Place(graph->add_node()->add_attribute()->mutable_g()->add_initializer(), {{"location", "a"}});
  graph->mutable_node(0)->mutable_attribute(0)->mutable_g()->mutable_initializer(0)->set_name("v");
  const auto read = [](const ExternalPart&) -> absl::StatusOr<std::string> { return "read"; };
  const absl::StatusOr<bool> found = TakeExternalData(
      0, [](const std::string& name) { return name == "w"; }, read, &model_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(*found);
  EXPECT_EQ(graph->initializer(0).data_location(), Tensor::EXTERNAL);
  EXPECT_EQ(graph->initializer(1).raw_data(), "read");
  EXPECT_EQ(graph->node(0).attribute(0).g().initializer(0).raw_data(), "read") << "another of its name";
}

// As ONNX has it: entries that were left behind say nothing.
TEST_F(ExternalDataTest, WhatLiesWithinStays) {
  Place(model_.mutable_graph()->add_initializer(), {{"location", "a"}});
  model_.mutable_graph()->mutable_initializer(0)->clear_data_location();
  model_.mutable_graph()->mutable_initializer(0)->set_raw_data("own");
  EXPECT_FALSE(Join()->has_value());
}

TEST_F(ExternalDataTest, NothingIsMadeOfWhatNeedsNothing) {
  model_.mutable_graph()->add_initializer()->set_raw_data("own");
  EXPECT_FALSE(Join()->has_value());
  model_.Clear();
  EXPECT_FALSE(Join()->has_value());
  EXPECT_FALSE(JoinExternalData("no model", nullptr)->has_value());
}

TEST_F(ExternalDataTest, WhatIsNotThereStaysElsewhere) {
  Place(model_.mutable_graph()->add_initializer(), {{"location", "none"}});
  EXPECT_FALSE(Join()->has_value());
  Place(model_.mutable_graph()->add_initializer(), {{"location", "a"}});
  const ::onnx::ModelProto joined = Joined();
  EXPECT_EQ(joined.graph().initializer(0).data_location(), Tensor::EXTERNAL);
  EXPECT_EQ(joined.graph().initializer(1).raw_data(), "0123456789");
}

TEST_F(ExternalDataTest, NoPathLeadsOutOfTheFolder) {
  for (const std::string& path : {std::string(), std::string("/a"), std::string("../a"), std::string("sub/../../a"),
                                  std::string("sub/.."), std::string("a\0b", 3), std::string(5000, 'x')}) {
    const absl::Status status = Error({{"location", path}});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tensor 'w' lies in"));
    EXPECT_THAT(asked_, testing::IsEmpty());
  }
  EXPECT_TRUE(Error({{"location", "a..b"}}).ok());
  EXPECT_THAT(asked_, ElementsAre("a..b"));
}

TEST_F(ExternalDataTest, NumbersAreChecked) {
  for (const char* number : {"-1", "", "1x", " 1", "+1", "9223372036854775808"}) {
    for (const char* key : {"offset", "length"}) {
      const absl::Status status = Error({{"location", "a"}, {key, number}});
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key << " " << number;
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("with ", key, " '", number)));
    }
  }
  const std::string most = absl::StrCat(std::numeric_limits<int64_t>::max());
  using Entries = std::map<std::string, std::string>;
  for (const Entries& entries : {Entries{{"offset", "11"}}, Entries{{"offset", "8"}, {"length", "3"}},
                                 Entries{{"offset", most}, {"length", most}}, Entries{{"length", most}}}) {
    Entries all = entries;
    all["location"] = "a";
    const absl::Status status = Error(all);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tensor 'w': 'a' ends at byte 10"));
  }
  EXPECT_TRUE(Error({{"location", "a"}, {"offset", "10"}}).ok());
}

TEST_F(ExternalDataTest, TensorsThatShareAPartDoNotGrowWithoutBound) {
  for (int i = 0; i < 4; ++i) Place(model_.mutable_graph()->add_initializer(), {{"location", "a"}});
  int read = 0;
  const auto all = [&](const ExternalPart& part) -> absl::StatusOr<std::string> {
    const absl::StatusOr<int64_t> length = part.LengthWithin(10);
    if (!length.ok()) return length.status();
    ++read;
    return std::string(static_cast<size_t>(*length), 'x');
  };
  ::onnx::ModelProto model = model_;
  EXPECT_TRUE(TakeExternalData(kMostOnnxBytes - 40, nullptr, all, &model).ok());
  model = model_;
  read = 0;
  const absl::Status status = TakeExternalData(kMostOnnxBytes - 39, nullptr, all, &model).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
  EXPECT_EQ(read, 3);
}

}  // namespace
}  // namespace ampd
