// The multibox loss and the ssd preset: defaults, what they stand for, and what is refused by field.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"
#include "proto/spec/text.h"
#include "proto/spec/yaml.h"

namespace ampd {
namespace {

v1::JobSpec Parse(const std::string& model, const std::string& image) {
  v1::JobSpec spec;
  const std::string yaml = absl::StrCat("data: {train: {npy: {inputs: a.npz}}, image: {", image, "}}\nmodel: ", model);
  EXPECT_EQ(ParseYaml(yaml, "f", &spec), absl::OkStatus());
  return spec;
}

v1::JobSpec Resolved(const std::string& model) {
  const absl::StatusOr<ResolvedJobSpec> resolved = ResolveJobSpec(Parse(model, ""));
  EXPECT_TRUE(resolved.ok()) << model << ": " << resolved.status();
  return resolved.ok() ? resolved->proto() : v1::JobSpec();
}

std::string Violated(const std::string& model, const std::string& image = "") {
  const absl::StatusOr<ResolvedJobSpec> resolved = ResolveJobSpec(Parse(model, image));
  if (resolved.ok()) return "";
  return absl::StrJoin(FieldViolationsOf(resolved.status()), "\n", [](std::string* out, const FieldViolation& v) {
    absl::StrAppend(out, v.field, ": ", v.description);
  });
}

std::string WithLoss(const std::string& multibox) {
  return absl::StrCat("{layers: [{relu: {}}], loss: {multibox: {", multibox, "}}}");
}

constexpr char kMap[] = "{height: 2, width: 3, scale: 0.5}";

TEST(MultiboxTest, HasThePapersDefaults) {
  const v1::MultiboxLoss loss = Resolved(WithLoss(absl::StrCat("maps: [", kMap, "]"))).model().loss().multibox();
  EXPECT_EQ(loss.threshold(), 0.5);
  EXPECT_EQ(loss.negative_ratio(), 3);
  EXPECT_EQ(loss.location_weight(), 1);
  EXPECT_EQ(loss.center_variance(), 0.1);
  EXPECT_EQ(loss.size_variance(), 0.2);
  EXPECT_EQ(absl::StrJoin(loss.maps(0).ratios(), " "), "1 2 0.5");
  EXPECT_FALSE(loss.maps(0).has_extra_scale());
}

TEST(MultiboxTest, NamesItsFields) {
  const std::string at = "model.loss.multibox.";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "maps: required, at least one"},
      {"maps: [{height: 0, width: 1, scale: 1}]", "maps[0].height: must be at least 1, is 0"},
      {"maps: [{height: 1, width: 5000, scale: 1}]", "maps[0].width: must be at most 4096, is 5000"},
      {"maps: [{height: 1, width: 1}]", "maps[0].scale: must be in (0, 10], is 0"},
      {"maps: [{height: 1, width: 1, scale: 1, extra_scale: 11}]", "maps[0].extra_scale: must be in (0, 10], is 11"},
      {"maps: [{height: 1, width: 1, scale: 1, ratios: [1, -2]}]", "maps[0].ratios[1]: must be in (0, 100], is -2"},
      {"maps: [{height: 1, width: 1, scale: 1, ratios: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}]",
       "maps[0].ratios: must be at most 16, are 17"},
      {"maps: [{height: 1024, width: 1024, scale: 1}]", "maps: must have at most 1048576 priors in all, have 3145728"},
      {absl::StrCat("threshold: 1.5, maps: [", kMap, "]"), "threshold: must be in [0, 1], is 1.5"},
      {absl::StrCat("negative_ratio: -1, maps: [", kMap, "]"), "negative_ratio: must be in [0, 1e+06], is -1"},
      {absl::StrCat("location_weight: -1, maps: [", kMap, "]"), "location_weight: must be in [0, 1e+06], is -1"},
      {absl::StrCat("center_variance: 0, maps: [", kMap, "]"), "center_variance: must be in [0.001, 1000], is 0"},
      {absl::StrCat("size_variance: 1e4, maps: [", kMap, "]"), "size_variance: must be in [0.001, 1000], is 10000"},
  };
  for (const auto& [fields, violation] : cases) EXPECT_EQ(Violated(WithLoss(fields)), at + violation) << fields;
  std::string many = kMap;
  for (int i = 0; i < 64; ++i) absl::StrAppend(&many, ", ", kMap);
  EXPECT_EQ(Violated(WithLoss(absl::StrCat("maps: [", many, "]"))), at + "maps: must be at most 64, are 65");
}

// Whatever shape the targets come in.
TEST(MultiboxTest, RefusesToMoveImagesAwayFromTheirBoxes) {
  const std::string model = WithLoss(absl::StrCat("maps: [", kMap, "]"));
  const std::string why = ": cannot be given with the multibox loss: the boxes would not be moved with the images";
  EXPECT_EQ(Violated(model, "random_flip: true"), "data.image.random_flip" + why);
  EXPECT_EQ(Violated(model, "random_crop_padding: 2"), "data.image.random_crop_padding" + why);
  EXPECT_EQ(Violated(model, "size: 32"), "data.image.size" + why);
  EXPECT_EQ(Violated(model, "normalize: STANDARD"), "");
}

TEST(SsdTest, PredictsFromThreeMaps) {
  const v1::JobSpec spec = Resolved("{preset: {ssd: {classes: 3, size: 64, width: 8}}}");
  EXPECT_EQ(spec.model().made_from(), "ssd");
  const v1::MultiboxLoss& loss = spec.model().loss().multibox();
  ASSERT_EQ(loss.maps_size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(loss.maps(i).height(), 8 >> i);
    EXPECT_EQ(loss.maps(i).width(), 8 >> i);
    EXPECT_EQ(loss.maps(i).ratios_size(), 3);
    EXPECT_TRUE(loss.maps(i).has_extra_scale());
  }
  EXPECT_DOUBLE_EQ(loss.maps(0).scale(), 0.2);
  EXPECT_DOUBLE_EQ(loss.maps(1).scale(), 0.55);
  EXPECT_DOUBLE_EQ(loss.maps(2).scale(), 0.9);
  EXPECT_NEAR(loss.maps(0).extra_scale(), 0.33166, 1e-5);
  int heads = 0;
  for (const v1::Layer& layer : spec.model().layers()) {
    if (!layer.has_conv2d()) continue;
    const v1::Conv2dLayer& conv = layer.conv2d();
    heads += conv.filters() == 4 * (5 + 3) && conv.activation() != v1::Activation::RELU ? 1 : 0;
  }
  EXPECT_EQ(heads, 3);
  const v1::Layer& last = *spec.model().layers().rbegin();
  EXPECT_EQ(last.concat().axis(), 1);
  EXPECT_EQ(last.inputs_size(), 3);
}

TEST(SsdTest, NamesItsFields) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"size: 64", "classes: must be at least 1, is 0"},
      {"classes: 3", "size: must be at least 32, is 0"},
      {"classes: 3, size: 48", "size: must be a multiple of 32, is 48"},
      {"classes: 3, size: 4096", "size: must be at most 2048, is 4096"},
      {"classes: 3, size: 64, width: 0", "width: must be at least 1, is 0"},
      {"classes: 100000, size: 64", "classes: must be at most 65536, is 100000"},
  };
  for (const auto& [fields, violation] : cases) {
    EXPECT_EQ(Violated(absl::StrCat("{preset: {ssd: {", fields, "}}}")), "model.preset.ssd." + violation) << fields;
  }
}

// What is not given of the loss is the loss's default, not the preset's.
TEST(SsdTest, TakesAnotherMultiboxLoss) {
  const v1::JobSpec spec =
      Resolved(absl::StrCat("{preset: {ssd: {classes: 3, size: 64}}, loss: {multibox: {threshold: "
                            "0.4, maps: [",
                            kMap, "]}}}"));
  EXPECT_EQ(spec.model().loss().multibox().maps_size(), 1);
  EXPECT_EQ(spec.model().loss().multibox().threshold(), 0.4);
}

}  // namespace
}  // namespace ampd
