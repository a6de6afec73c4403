// Resize and Upsample as graphs: places and weights by hand, the operations that they become, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/graph_reference.h"
#include "tests/unit/engine/models/onnx/build_model.h"

namespace ampd::models::onnx {
namespace {

using ampd::testing::GraphInputs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Texts = std::map<std::string, std::string>;

void SetText(::onnx::NodeProto* node, const std::string& name, const std::string& value) {
  auto* attribute = node->add_attribute();
  attribute->set_name(name);
  attribute->set_type(::onnx::AttributeProto::STRING);
  attribute->set_s(value);
}

// Resize of `shape` by `scales`, or to `sizes` where there are no scales.
::onnx::ModelProto ResizeModel(const std::vector<int64_t>& shape, const std::vector<float>& scales,
                               const std::vector<int64_t>& sizes, const Texts& texts, int type = Proto::FLOAT) {
  ::onnx::ModelProto m = EmptyModel(18);
  AddInput(&m, "x", shape, type);
  Proto list = Floats("scales", {static_cast<int64_t>(scales.size())});
  for (size_t i = 0; i < scales.size(); ++i) list.set_float_data(static_cast<int>(i), scales[i]);
  *m.mutable_graph()->add_initializer() = list;
  *m.mutable_graph()->add_initializer() = Ints("sizes", sizes);
  ::onnx::NodeProto* node = scales.empty() ? AddNode(&m, "Resize", {"x", "", "", "sizes"}, {"y"})
                                           : AddNode(&m, "Resize", {"x", "", "scales"}, {"y"});
  for (const auto& [name, value] : texts) SetText(node, name, value);
  AddOutput(&m, "y");
  return m;
}

// y for x = 0, 1, 2, ...
std::vector<double> ResultOf(const ::onnx::ModelProto& m) {
  const absl::StatusOr<ImportedModel> model = Import(m);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  GraphInputs in;
  in.inputs["x"] = testing::Filled(model->graph.type(model->graph.FindInput("x")).shape);
  double next = 0;
  for (double& v : in.inputs["x"].data) v = next++;
  return testing::RunGraphReference(model->graph, in).outputs.at("y").data;
}

std::vector<std::string> OpsOf(const ir::Graph& graph) {
  std::vector<std::string> ops;
  for (const ir::Node& node : graph.nodes) ops.emplace_back(ir::OpName(node.op));
  return ops;
}

TEST(OnnxResize, CoordinatesSayWhereElementsComeFrom) {
  const auto linear = [](const std::string& coordinates, float scale) {
    return ResultOf(
        ResizeModel({1, 4}, {1, scale}, {}, {{"mode", "linear"}, {"coordinate_transformation_mode", coordinates}}));
  };
  EXPECT_THAT(linear("half_pixel", 2), ElementsAre(0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3));
  EXPECT_THAT(linear("asymmetric", 2), ElementsAre(0, 0.5, 1, 1.5, 2, 2.5, 3, 3));
  EXPECT_THAT(linear("align_corners", 1.75), ElementsAre(0, 0.5, 1, 1.5, 2, 2.5, 3));
  EXPECT_THAT(linear("half_pixel", 0.5), ElementsAre(0.5, 2.5));
  EXPECT_THAT(linear("half_pixel", 0.25), ElementsAre(1.5));
  EXPECT_THAT(linear("pytorch_half_pixel", 0.25), ElementsAre(0));
  EXPECT_THAT(linear("align_corners", 0.25), ElementsAre(0));
}

TEST(OnnxResize, TheNearestElementIsTheOneTheModeRoundsTo) {
  const auto nearest = [](const std::string& mode, const std::string& coordinates) {
    return ResultOf(
        ResizeModel({3}, {}, {6}, {{"nearest_mode", mode}, {"coordinate_transformation_mode", coordinates}}));
  };
  EXPECT_THAT(nearest("floor", "asymmetric"), ElementsAre(0, 0, 1, 1, 2, 2));
  EXPECT_THAT(nearest("ceil", "asymmetric"), ElementsAre(0, 1, 1, 2, 2, 2));
  EXPECT_THAT(nearest("round_prefer_floor", "asymmetric"), ElementsAre(0, 0, 1, 1, 2, 2));
  EXPECT_THAT(nearest("round_prefer_ceil", "asymmetric"), ElementsAre(0, 1, 1, 2, 2, 2));
  EXPECT_THAT(nearest("round_prefer_floor", "half_pixel"), ElementsAre(0, 0, 1, 1, 2, 2));
  // 1/3 as a float: what rounding leaves is not half a step, and ten elements by 0.7 are seven.
  EXPECT_THAT(ResultOf(ResizeModel({9}, {1.0f / 3}, {},
                                   {{"coordinate_transformation_mode", "asymmetric"}, {"nearest_mode", "floor"}})),
              ElementsAre(0, 3, 6));
  EXPECT_EQ(ResultOf(ResizeModel({10}, {0.7f}, {}, {})).size(), 7u);
}

TEST(OnnxResize, OldOperatorsRepeatElements) {
  for (const auto& [opset, op] : std::vector<std::pair<int64_t, std::string>>{{9, "Upsample"}, {10, "Resize"}}) {
    ::onnx::ModelProto m = EmptyModel(opset);
    AddInput(&m, "x", {1, 1, 2, 2});
    Proto scales = Floats("scales", {4});
    for (int a = 0; a < 4; ++a) scales.set_float_data(a, a < 2 ? 1 : 2);
    *m.mutable_graph()->add_initializer() = scales;
    AddNode(&m, op, {"x", "scales"}, {"y"});
    AddOutput(&m, "y");
    EXPECT_THAT(ResultOf(m), ElementsAre(0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3)) << op;
  }
}

TEST(OnnxResize, ImagesKeepTheEnginesOrder) {
  const auto ops = [](const Texts& texts, float scale) {
    ::onnx::ModelProto m = ResizeModel({1, 2, 4, 4}, {1, 1, scale, scale}, {}, texts);
    m.mutable_graph()->mutable_node()->Mutable(0)->set_input(0, "image");
    *m.mutable_graph()->add_initializer() = Floats("w", {3, 2, 1, 1});
    AddNode(&m, "Conv", {"x", "w"}, {"image"});
    m.mutable_graph()->mutable_node()->SwapElements(0, 1);
    ImportOptions options;
    options.image_inputs = {"x"};
    options.image_outputs = {"y"};
    options.is_parameter = [](const std::string& name) { return name == "w"; };
    const absl::StatusOr<ImportedModel> model = Import(m, options);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? OpsOf(model->graph) : std::vector<std::string>();
  };
  const std::string coordinates = "coordinate_transformation_mode";
  EXPECT_THAT(ops({{coordinates, "asymmetric"}, {"nearest_mode", "floor"}}, 2),
              ElementsAre("conv2d", "reshape", "broadcast_to", "reshape"));
  EXPECT_THAT(ops({{coordinates, "asymmetric"}, {"nearest_mode", "floor"}}, 0.5),
              ElementsAre("conv2d", "slice", "slice"));
  EXPECT_THAT(ops({{coordinates, "asymmetric"}, {"nearest_mode", "floor"}}, 1.5),
              ElementsAre("conv2d", "gather", "gather"));
  const std::string axis = "gather mul gather mul add";
  EXPECT_EQ(absl::StrJoin(ops({{"mode", "linear"}}, 2), " "), absl::StrCat("conv2d ", axis, " ", axis));
}

TEST(OnnxResize, RefusesWhatItCannotSay) {
  const auto status = [](const ::onnx::ModelProto& m) { return Import(m).status(); };
  const auto reason = [&](const ::onnx::ModelProto& m) { return std::string(status(m).message()); };
  const ::onnx::ModelProto of_integers = ResizeModel({4}, {2}, {}, {{"mode", "linear"}}, Proto::INT32);
  EXPECT_EQ(status(of_integers).code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(reason(of_integers), HasSubstr("linear of i32"));
  ::onnx::ModelProto far = ResizeModel({1000}, {0.01f}, {}, {{"mode", "linear"}});
  SetInt(far.mutable_graph()->mutable_node(0), "antialias", 1);
  EXPECT_EQ(status(far).code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(reason(far), HasSubstr("antialiased reduction from 1000 to 10"));
  for (const auto& [name, value] : Texts{{"mode", "box"},
                                         {"nearest_mode", "up"},
                                         {"keep_aspect_ratio_policy", "no"},
                                         {"coordinate_transformation_mode", "polar"}}) {
    EXPECT_EQ(status(ResizeModel({4}, {}, {8}, {{name, value}})).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  for (const float scale : {0.0f, -1.0f, 1e30f, 0.1f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(status(ResizeModel({4}, {scale}, {}, {})).code(), absl::StatusCode::kInvalidArgument) << scale;
  }
  EXPECT_THAT(reason(ResizeModel({4}, {1, 2}, {}, {})), HasSubstr("2 scales for 1 axes"));
  EXPECT_THAT(reason(ResizeModel({4}, {}, {0}, {})), HasSubstr("sizes are [0]"));
  ::onnx::ModelProto without = ResizeModel({4}, {2}, {}, {});
  without.mutable_graph()->mutable_node(0)->mutable_input()->RemoveLast();
  EXPECT_THAT(reason(without), HasSubstr("has neither scales nor sizes"));
}

TEST(OnnxResize, RefusesPlacesThatAreNoNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto crop = [&](std::vector<float> region) {
    ::onnx::ModelProto m =
        ResizeModel({4, 4}, {1, 0.25f}, {}, {{"coordinate_transformation_mode", "tf_crop_and_resize"}});
    Proto roi = Floats("roi", {4});
    for (int i = 0; i < 4; ++i) roi.set_float_data(i, region[static_cast<size_t>(i)]);
    *m.mutable_graph()->add_initializer() = roi;
    m.mutable_graph()->mutable_node(0)->set_input(1, "roi");
    return Import(m).status();
  };
  EXPECT_TRUE(crop({0, 0, 1, 1}).ok());
  for (int i = 0; i < 4; ++i) {
    std::vector<float> region = {0, 0, 1, 1};
    region[static_cast<size_t>(i)] = nan;
    EXPECT_EQ(crop(region).code(), absl::StatusCode::kInvalidArgument) << i;
  }
  ::onnx::ModelProto cubic = ResizeModel({4}, {2}, {}, {{"mode", "cubic"}});
  auto* a = cubic.mutable_graph()->mutable_node(0)->add_attribute();
  a->set_name("cubic_coeff_a");
  a->set_type(::onnx::AttributeProto::FLOAT);
  a->set_f(nan);
  EXPECT_EQ(Import(cubic).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(OnnxResize, RefusesWhatIsEmptyBeforeItDivides) {
  for (const char* policy : {"stretch", "not_larger", "not_smaller"}) {
    const absl::Status status =
        Import(ResizeModel({0, 4}, {}, {2, 2}, {{"mode", "linear"}, {"keep_aspect_ratio_policy", policy}})).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << policy;
    EXPECT_THAT(std::string(status.message()), HasSubstr("an input without elements")) << policy;
  }
}

// The tables of all axes together are counted before one is made.
TEST(OnnxResize, CountsBeforeItMakesTables) {
  constexpr int kAxes = 40;
  const std::vector<float> scales(kAxes, 1 << 20);
  const absl::Status status =
      Import(ResizeModel(std::vector<int64_t>(kAxes, 1), scales, {}, {{"mode", "cubic"}})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("[Resize] gives "));
  const absl::Status two = Import(ResizeModel({1, 1}, {1 << 13, 1 << 12}, {}, {{"mode", "cubic"}})).status();
  EXPECT_TRUE(two.ok()) << two;
}

// With align_corners, PyTorch goes from the first element to the last one, whichever scale led to so many.
TEST(OnnxResize, CornersAreThoseOfTheProducer) {
  const auto corners = [](const char* producer) {
    ::onnx::ModelProto m =
        ResizeModel({1, 5}, {1, 0.5f}, {}, {{"mode", "linear"}, {"coordinate_transformation_mode", "align_corners"}});
    m.set_producer_name(producer);
    return ResultOf(m);
  };
  EXPECT_THAT(corners("pytorch"), ElementsAre(0, 4));
  EXPECT_THAT(corners(""), ElementsAre(0, ::testing::DoubleNear(8.0 / 3, 1e-6)));
}

}  // namespace
}  // namespace ampd::models::onnx
