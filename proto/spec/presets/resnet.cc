#include "absl/strings/str_cat.h"
#include "proto/spec/presets/families.h"

namespace ampd::presets {
namespace {

constexpr int64_t kMaxWidth = 1 << 14;
constexpr int64_t kMaxClasses = 1 << 20;

// He et al. 2016: table 1, and 4.2 for small images, but with projections where shapes change (option B; 4.2 has A).
struct Architecture {
  std::vector<int> blocks;  // by stage
  bool small = false;
  bool bottleneck = false;
};

// Without blocks where there is no network of this depth.
Architecture OfDepth(int64_t depth) {
  switch (depth) {
    case 18:
      return {{2, 2, 2, 2}};
    case 34:
      return {{3, 4, 6, 3}};
    case 50:
      return {{3, 4, 6, 3}, false, true};
    case 101:
      return {{3, 4, 23, 3}, false, true};
    case 152:
      return {{3, 8, 36, 3}, false, true};
    case 20:
    case 32:
    case 44:
    case 56:
    case 110: {
      const int n = static_cast<int>((depth - 2) / 6);
      return {{n, n, n}, true};
    }
    default:
      return {};
  }
}

// Writes layers by the names that torchvision gives their parameters.
class ResnetWriter {
 public:
  ResnetWriter(const Architecture& architecture, int64_t width, v1::ModelSpec* model)
      : architecture_(architecture), width_(width), layers_(model->mutable_layers()) {}

  void Write(int64_t classes) {
    Convolution("conv1", width_, architecture_.small ? 3 : 7, architecture_.small ? 1 : 2);
    layers_.BatchNorm("bn1");
    layers_.Relu("relu");
    channels_ = width_;
    if (!architecture_.small) {
      v1::Pool2dLayer* pool = layers_.Add("maxpool")->mutable_max_pool();
      pool->add_size(3);
      pool->add_stride(2);
      pool->add_pads(1);
    }
    for (size_t stage = 0; stage < architecture_.blocks.size(); ++stage) {
      for (int block = 0; block < architecture_.blocks[stage]; ++block) {
        Block(absl::StrCat("layer", stage + 1, ".", block), width_ << stage, stage > 0 && block == 0 ? 2 : 1);
      }
    }
    layers_.Add("avgpool")->mutable_global_avg_pool();
    layers_.Dense("fc", classes);
  }

 private:
  void Convolution(const std::string& name, int64_t filters, int64_t kernel, int64_t stride,
                   const LayerWriter::Names& inputs = {}) {
    v1::Conv2dLayer* conv = layers_.Conv2d(name, filters, kernel, stride, inputs);
    conv->set_bias(false);
    conv->mutable_init()->set_he_fan_out(true);
  }

  void Block(const std::string& name, int64_t filters, int64_t stride) {
    const std::string input = layers_.last();
    const int64_t outputs = architecture_.bottleneck ? 4 * filters : filters;
    if (architecture_.bottleneck) {
      Convolution(name + ".conv1", filters, 1, 1);
      layers_.BatchNorm(name + ".bn1");
      layers_.Relu(name + ".relu1");
      Convolution(name + ".conv2", filters, 3, stride);
      layers_.BatchNorm(name + ".bn2");
      layers_.Relu(name + ".relu2");
      Convolution(name + ".conv3", outputs, 1, 1);
    } else {
      Convolution(name + ".conv1", filters, 3, stride);
      layers_.BatchNorm(name + ".bn1");
      layers_.Relu(name + ".relu1");
      Convolution(name + ".conv2", outputs, 3, 1);
    }
    // Blocks begin as identities (Goyal et al. 2017, 5.1; torchvision's zero_init_residual).
    layers_.BatchNorm(name + (architecture_.bottleneck ? ".bn3" : ".bn2"))->set_zero_weight(true);
    Join(name, input, layers_.last(), outputs, stride);
  }

  // The sum of a block's branch and its input, which is projected where their shapes differ.
  void Join(const std::string& name, std::string input, const std::string& branch, int64_t outputs, int64_t stride) {
    const std::string residual = branch;
    if (stride != 1 || channels_ != outputs) {
      Convolution(name + ".downsample.0", outputs, 1, stride, {input});
      layers_.BatchNorm(name + ".downsample.1");
      input = layers_.last();
    }
    layers_.Add(name + ".add", {residual, input})->mutable_add();
    layers_.Relu(name + ".relu");
    channels_ = outputs;
  }

  const Architecture& architecture_;
  const int64_t width_;
  LayerWriter layers_;
  int64_t channels_ = 0;
};

}  // namespace

void ExpandResnet(const v1::ResnetPreset& preset, v1::JobSpec* spec, Violations* violations) {
  const std::string path = "model.preset.resnet";
  const Architecture architecture = OfDepth(preset.depth());
  if (architecture.blocks.empty()) {
    violations->Add(path + ".depth",
                    absl::StrCat(preset.depth() == 0 ? "required, one of " : "must be one of ",
                                 "20, 32, 44, 56, 110 for small images and 18, 34, 50, 101, 152 for large ones",
                                 preset.depth() == 0 ? "" : absl::StrCat(", is ", preset.depth())));
  }
  const int64_t width = preset.has_width() ? preset.width() : architecture.small ? 16 : 64;
  const int64_t classes = preset.has_classes() ? preset.classes() : architecture.small ? 10 : 1000;
  const size_t before = violations->list().size();
  violations->CheckInteger(path + ".width", width, 1, kMaxWidth);
  violations->CheckInteger(path + ".classes", classes, 1, kMaxClasses);
  if (architecture.blocks.empty() || violations->list().size() != before) return;
  ResnetWriter(architecture, width, spec->mutable_model()).Write(classes);
  v1::LossSpec loss;
  loss.mutable_softmax_cross_entropy();
  SetDefaultLoss(loss, spec->mutable_model());
}

}  // namespace ampd::presets
