#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/spec/presets.h"
#include "proto/spec/presets/families.h"

namespace ampd::presets {
namespace {

constexpr char kPath[] = "model.preset.acgan";
constexpr int64_t kMaxFilters = 1 << 18;
constexpr double kWeightDeviation = 0.02;
// The names that layers, phases and report.samples share.
constexpr char kGenerator[] = "generator";
constexpr char kTrunk[] = "trunk";
constexpr char kSource[] = "source";
constexpr char kClass[] = "class";
constexpr char kNoise[] = "z";
// Layers that tell what images are drawn.
constexpr char kPixels[] = "pixels";
constexpr char kPaint[] = "paint";
// Of the images, over that of the first pixels.
constexpr int64_t kGrowth = 4;

struct Sizes {
  int64_t size, channels, classes, noise, width;
};

Sizes SizesOf(const v1::AcganPreset& preset, Violations* violations) {
  const Sizes sizes{preset.has_size() ? preset.size() : 28, preset.has_channels() ? preset.channels() : 1,
                    preset.has_classes() ? preset.classes() : 10, preset.has_noise() ? preset.noise() : 100,
                    preset.has_width() ? preset.width() : 48};
  const auto check = [violations](const char* field, int64_t value, int64_t most) {
    violations->CheckInteger(absl::StrCat(kPath, ".", field), value, 1, most);
  };
  check("size", sizes.size, 4096);
  if (sizes.size % kGrowth != 0) {
    violations->Add(absl::StrCat(kPath, ".size"), absl::StrCat("must be a multiple of ", kGrowth, ", is ", sizes.size));
  }
  if (sizes.channels != 1 && sizes.channels != 3) {
    violations->Add(absl::StrCat(kPath, ".channels"), absl::StrCat("must be 1 or 3, are ", sizes.channels));
  }
  check("classes", sizes.classes, kMaxFilters);
  check("noise", sizes.noise, kMaxFilters);
  check("width", sizes.width, kMaxFilters);
  return sizes;
}

v1::Network* AddNetwork(const char* name, v1::ModelSpec* model) {
  v1::Network* network = model->add_networks();
  network->set_name(name);
  return network;
}

// Twice the extents.
void Double(const char* name, int64_t filters, LayerWriter* layers) {
  v1::ConvTranspose2dLayer* up = layers->Add(name)->mutable_conv_transpose2d();
  up->set_filters(filters);
  up->add_kernel(4);
  up->add_stride(2);
  up->add_pads(1);
  up->set_bias(false);
  up->mutable_init()->set_normal(kWeightDeviation);
}

// Noise and class to images of values in (0, 1).
void AddGenerator(const Sizes& sizes, v1::ModelSpec* model) {
  v1::Network* network = AddNetwork(kGenerator, model);
  network->add_inputs("noise");
  network->add_inputs("label");
  LayerWriter layers(network->mutable_layers());
  v1::EmbeddingLayer* table = layers.Add("table", {"label"})->mutable_embedding();
  table->set_vocabulary(sizes.classes);
  table->set_features(sizes.noise);
  // A product, as in Keras's AC-GAN: what ignores the noise cannot tell the class either. Side by side, the noise is
  // soon ignored, and every image of a class is the same.
  layers.Add("both", {"noise", "table"})->mutable_mul();
  const int64_t side = sizes.size / kGrowth;
  v1::DenseLayer* project = layers.Dense("project", side * side * 4 * sizes.width);
  project->set_bias(false);
  project->mutable_init()->set_normal(kWeightDeviation);
  auto* shape = layers.Add(kPixels)->mutable_reshape()->mutable_shape();
  for (const int64_t extent : {side, side, 4 * sizes.width}) shape->Add(extent);
  layers.BatchNorm("bn0");
  layers.Relu("relu0");
  Double("up1", 2 * sizes.width, &layers);
  layers.BatchNorm("bn1");
  layers.Relu("relu1");
  Double("up2", sizes.width, &layers);
  layers.BatchNorm("bn2");
  layers.Relu("relu2");
  v1::Conv2dLayer* paint = layers.Conv2d(kPaint, sizes.channels, 3);
  paint->set_activation(v1::Activation::SIGMOID);
  paint->mutable_init()->set_normal(kWeightDeviation);
}

// Without batch norm: real and generated images come in batches of their own, whose statistics would tell them apart.
void Look(const char* number, int64_t filters, int64_t kernel, int64_t stride, LayerWriter* layers) {
  v1::Conv2dLayer* conv = layers->Conv2d(absl::StrCat("down", number), filters, kernel, stride);
  conv->mutable_init()->set_normal(kWeightDeviation);
  layers->Add(absl::StrCat("lrelu", number))->mutable_leaky_relu()->set_negative_slope(0.2);
  layers->Add(absl::StrCat("drop", number))->mutable_dropout()->set_rate(0.3);
}

void AddHead(const char* name, int64_t outputs, v1::ModelSpec* model) {
  LayerWriter layers(AddNetwork(name, model)->mutable_layers());
  layers.Dense("fc", outputs)->mutable_init()->set_normal(kWeightDeviation);
}

// What the two heads share, and the heads.
void AddDiscriminator(const Sizes& sizes, v1::ModelSpec* model) {
  LayerWriter trunk(AddNetwork(kTrunk, model)->mutable_layers());
  Look("1", sizes.width, 4, 2, &trunk);
  Look("2", 2 * sizes.width, 4, 2, &trunk);
  Look("3", 4 * sizes.width, 3, 1, &trunk);
  trunk.Add("flat")->mutable_flatten();
  AddHead(kSource, 1, model);
  AddHead(kClass, sizes.classes, model);
}

void Call(const char* name, const char* network, const LayerWriter::Names& inputs, v1::PhaseSpec* phase) {
  v1::NetworkCall* call = phase->add_calls();
  call->set_name(name);
  call->set_network(network);
  for (const std::string& input : inputs) call->add_inputs(input);
}

void Judge(const char* input, double target, v1::PhaseSpec* phase) {
  v1::PhaseLoss* loss = phase->add_losses();
  loss->set_input(input);
  loss->mutable_loss()->mutable_sigmoid_cross_entropy();
  loss->set_target(target);
}

void Classify(const char* input, double weight, v1::PhaseSpec* phase) {
  v1::PhaseLoss* loss = phase->add_losses();
  loss->set_input(input);
  loss->mutable_loss()->mutable_softmax_cross_entropy();
  loss->set_weight(weight);
}

void SetAdam(double learning_rate, v1::PhaseSpec* phase) {
  v1::AdamOptimizer* adam = phase->mutable_optimizer()->mutable_adam();
  adam->set_learning_rate(learning_rate);
  adam->set_beta1(0.5);
}

// Generated images are judged, but their classes are not learnt from: else the two could agree on drawings of their own
// for a class.
void AddPhases(const v1::AcganPreset& preset, double class_weight, v1::JobSpec* spec) {
  v1::PhaseSpec* judge = spec->add_phases();
  judge->set_name("discriminator");
  for (const char* network : {kTrunk, kSource, kClass}) judge->add_trains(network);
  Call("fake", kGenerator, {kNoise, "labels"}, judge);
  Call("real_features", kTrunk, {"data"}, judge);
  Call("fake_features", kTrunk, {"fake"}, judge);
  Call("real_source", kSource, {"real_features"}, judge);
  Call("fake_source", kSource, {"fake_features"}, judge);
  Call("real_class", kClass, {"real_features"}, judge);
  // Not 1: a discriminator that is sure of itself teaches nothing (Salimans et al. 2016, 3.4).
  Judge("real_source", 0.9, judge);
  Judge("fake_source", 0, judge);
  Classify("real_class", class_weight, judge);
  SetAdam(preset.has_discriminator_learning_rate() ? preset.discriminator_learning_rate() : 2e-4, judge);

  v1::PhaseSpec* draw = spec->add_phases();
  draw->set_name("generator");
  draw->add_trains(kGenerator);
  Call("fake", kGenerator, {kNoise, "labels"}, draw);
  Call("fake_features", kTrunk, {"fake"}, draw);
  Call("fake_source", kSource, {"fake_features"}, draw);
  Call("fake_class", kClass, {"fake_features"}, draw);
  Judge("fake_source", 1, draw);
  Classify("fake_class", class_weight, draw);
  SetAdam(preset.has_generator_learning_rate() ? preset.generator_learning_rate() : 2e-4, draw);
}

void SetSamples(const Sizes& sizes, v1::SampleSpec* samples) {
  if (samples->kind_case() != v1::SampleSpec::KIND_NOT_SET) return;
  v1::ImageSamples* images = samples->mutable_images();
  images->set_network(kGenerator);
  images->set_rows(std::min<int64_t>(sizes.classes, 100));
  images->set_low(0);
  images->set_high(1);
}

}  // namespace

void ExpandAcgan(const v1::AcganPreset& preset, v1::JobSpec* spec, Violations* violations) {
  const Sizes sizes = SizesOf(preset, violations);
  const double class_weight = preset.has_class_weight() ? preset.class_weight() : 1;
  violations->CheckReal(absl::StrCat(kPath, ".class_weight"), class_weight, {.low = 0, .high = 1e6});
  if (!spec->phases().empty()) violations->Add("phases", "cannot be given with preset acgan, which has its own");
  if (!spec->model().noise().empty()) violations->Add("model.noise", "cannot be given with preset acgan");
  if (spec->model().has_loss()) violations->Add("model.loss", "cannot be given with preset acgan, which has its own");
  v1::OptimizerSpec optimizer = spec->optimizer();
  optimizer.clear_ema();
  if (optimizer.ByteSizeLong() != 0) {
    violations->Add("optimizer", absl::StrCat("the phases of acgan have their own: give ", kPath,
                                              ".generator_learning_rate and discriminator_learning_rate"));
  }
  AddGenerator(sizes, spec->mutable_model());
  AddDiscriminator(sizes, spec->mutable_model());
  v1::NoiseSource* noise = spec->mutable_model()->add_noise();
  noise->set_name(kNoise);
  noise->add_shape(sizes.noise);
  AddPhases(preset, class_weight, spec);
  SetSamples(sizes, spec->mutable_report()->mutable_samples());
}

}  // namespace ampd::presets

namespace ampd {

absl::optional<AcganImages> AcganImagesOf(const v1::ModelSpec& model) {
  if (model.made_from() != "acgan") return absl::nullopt;
  AcganImages images;
  for (const v1::Network& network : model.networks()) {
    if (network.name() != presets::kGenerator) continue;
    for (const v1::Layer& layer : network.layers()) {
      if (layer.name() == presets::kPixels && layer.reshape().shape_size() > 0) {
        images.size = layer.reshape().shape(0) * presets::kGrowth;
      }
      if (layer.name() == presets::kPaint) images.channels = layer.conv2d().filters();
    }
  }
  // Whoever submits a resolved spec may have changed its layers.
  if (images.size == 0 || images.channels == 0) return absl::nullopt;
  return images;
}

}  // namespace ampd
