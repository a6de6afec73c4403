#include "absl/strings/str_cat.h"
#include "proto/spec/presets/families.h"

namespace ampd::presets {
namespace {

constexpr int64_t kMaxDepth = 8;
constexpr int64_t kMaxWidth = 1 << 12;
constexpr int64_t kMaxClasses = 1 << 16;

class UnetWriter {
 public:
  explicit UnetWriter(v1::ModelSpec* model) : layers_(model->mutable_layers()) {}

  void Write(int64_t depth, int64_t width, int64_t classes) {
    std::vector<std::string> skips;
    for (int64_t level = 0; level <= depth; ++level) {
      if (level > 0) layers_.Add(absl::StrCat("pool", level))->mutable_max_pool()->add_size(2);
      TwoConvolutions(absl::StrCat("down", level), width << level);
      skips.push_back(layers_.last());
    }
    for (int64_t level = depth - 1; level >= 0; --level) {
      const std::string up = absl::StrCat("up", level);
      v1::ConvTranspose2dLayer* conv = layers_.Add(up + ".conv")->mutable_conv_transpose2d();
      conv->set_filters(width << level);
      conv->add_kernel(2);
      conv->add_stride(2);
      layers_.Add(up + ".concat", {skips[static_cast<size_t>(level)], layers_.last()})->mutable_concat();
      TwoConvolutions(up, width << level);
    }
    layers_.Conv2d("head", classes, 1);
  }

 private:
  void TwoConvolutions(const std::string& name, int64_t filters) {
    for (int i = 1; i <= 2; ++i) {
      v1::Conv2dLayer* conv = layers_.Conv2d(absl::StrCat(name, ".conv", i), filters, 3);
      conv->set_bias(false);
      conv->mutable_init()->set_he_fan_in(true);
      layers_.BatchNorm(absl::StrCat(name, ".bn", i));
      layers_.Relu(absl::StrCat(name, ".relu", i));
    }
  }

  LayerWriter layers_;
};

}  // namespace

void ExpandUnet(const v1::UnetPreset& preset, v1::JobSpec* spec, Violations* violations) {
  const std::string path = "model.preset.unet";
  const int64_t classes = preset.has_classes() ? preset.classes() : 2;
  const int64_t depth = preset.has_depth() ? preset.depth() : 3;
  const int64_t width = preset.has_width() ? preset.width() : 16;
  const size_t before = violations->list().size();
  violations->CheckInteger(path + ".classes", classes, 2, kMaxClasses);
  violations->CheckInteger(path + ".depth", depth, 1, kMaxDepth);
  violations->CheckInteger(path + ".width", width, 1, kMaxWidth);
  if (violations->list().size() != before) return;
  UnetWriter(spec->mutable_model()).Write(depth, width, classes);
  v1::LossSpec loss;
  loss.mutable_softmax_cross_entropy();
  SetDefaultLoss(loss, spec->mutable_model());
}

}  // namespace ampd::presets
