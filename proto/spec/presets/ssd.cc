#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "proto/spec/presets/families.h"

namespace ampd::presets {
namespace {

constexpr int64_t kMaxClasses = 1 << 16;
constexpr int64_t kMaxSide = 2048;
constexpr int64_t kMaxWidth = 1 << 12;
// Stage i sees the image at 2^i of its side; those from kFirstMap on predict.
constexpr int kStages = 6;
constexpr int kFirstMap = 3;
constexpr int kMaps = kStages - kFirstMap;
// Filters double until here.
constexpr int kWidest = 3;
// Of the priors of the first map, and of the last (Liu et al. 2016, section 2.2).
constexpr double kLeastScale = 0.2;
constexpr double kLargestScale = 0.9;
constexpr int64_t kPriorsOfCell = 4;

double ScaleOf(int map) { return kLeastScale + (kLargestScale - kLeastScale) * map / (kMaps - 1); }

class SsdWriter {
 public:
  explicit SsdWriter(v1::ModelSpec* model) : layers_(model->mutable_layers()) {}

  void Write(int64_t width, int64_t outputs) {
    LayerWriter::Names maps, heads;
    for (int stage = 0; stage < kStages; ++stage) {
      if (stage > 0) layers_.Add(absl::StrCat("pool", stage))->mutable_max_pool()->add_size(2);
      for (int i = 1; i <= 2; ++i) Convolution(absl::StrCat("conv", stage, "_", i), width << std::min(stage, kWidest));
      if (stage >= kFirstMap) maps.push_back(layers_.last());
    }
    for (size_t i = 0; i < maps.size(); ++i) {
      const std::string name = absl::StrCat("head", i);
      layers_.Conv2d(name, kPriorsOfCell * outputs, 3, 1, {maps[i]});
      v1::ReshapeLayer* rows = layers_.Add(name + "_rows")->mutable_reshape();
      rows->add_shape(-1);
      rows->add_shape(outputs);
      heads.push_back(layers_.last());
    }
    layers_.Add("boxes", heads)->mutable_concat()->set_axis(1);
  }

 private:
  void Convolution(const std::string& name, int64_t filters) {
    v1::Conv2dLayer* conv = layers_.Conv2d(name, filters, 3);
    conv->set_activation(v1::Activation::RELU);
    conv->mutable_init()->set_he_fan_in(true);
  }

  LayerWriter layers_;
};

void AddMaps(int64_t size, v1::MultiboxLoss* loss) {
  for (int i = 0; i < kMaps; ++i) {
    v1::PriorMap* map = loss->add_maps();
    map->set_height(size >> (kFirstMap + i));
    map->set_width(size >> (kFirstMap + i));
    map->set_scale(ScaleOf(i));
    map->set_extra_scale(std::sqrt(ScaleOf(i) * ScaleOf(i + 1)));
    for (const double ratio : {1.0, 2.0, 0.5}) map->add_ratios(ratio);
  }
}

}  // namespace

void ExpandSsd(const v1::SsdPreset& preset, v1::JobSpec* spec, Violations* violations) {
  const std::string path = "model.preset.ssd";
  const int64_t width = preset.has_width() ? preset.width() : 32;
  const size_t before = violations->list().size();
  violations->CheckInteger(path + ".classes", preset.classes(), 1, kMaxClasses);
  violations->CheckInteger(path + ".size", preset.size(), 1 << (kStages - 1), kMaxSide);
  if (preset.size() % (1 << (kStages - 1)) != 0) {
    violations->Add(path + ".size", absl::StrCat("must be a multiple of ", 1 << (kStages - 1), ", is ", preset.size()));
  }
  violations->CheckInteger(path + ".width", width, 1, kMaxWidth);
  if (violations->list().size() != before) return;
  SsdWriter(spec->mutable_model()).Write(width, 5 + preset.classes());
  v1::LossSpec loss;
  AddMaps(preset.size(), loss.mutable_multibox());
  SetDefaultLoss(loss, spec->mutable_model());
}

}  // namespace ampd::presets
