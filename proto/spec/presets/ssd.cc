#include <cmath>

#include "absl/strings/str_cat.h"
#include "proto/spec/presets/families.h"

namespace ampd::presets {
namespace {

constexpr int64_t kMaxClasses = 1 << 14;
constexpr int64_t kMaxSize = 4096;
constexpr int64_t kMaxWidth = 1 << 12;
// Sides of the square priors of the three maps, of which the paper's equation 4 makes a straight line, and of one that
// would come after them.
constexpr double kScales[] = {0.2, 0.4, 0.7, 1.0};
// Of each cell: of three ratios, and an extra square.
constexpr int64_t kPriorsOfCell = 4;

class SsdWriter {
 public:
  SsdWriter(int64_t classes, v1::ModelSpec* model) : classes_(classes), layers_(model->mutable_layers()) {}

  void Write(int64_t size, int64_t width, v1::MultiboxLoss* loss) {
    Stage(1, width, 1);
    Stage(2, 2 * width, 1);
    Stage(3, 4 * width, 2);
    std::vector<std::string> heads;
    for (int map = 0; map < 3; ++map) {
      // Of stages 3 to 5, each halved before it predicts.
      if (map > 0) Stage(3 + map, 4 * width, 2);
      heads.push_back(Head(map + 1));
      const int64_t cells = size >> (3 + map);
      v1::PriorMap* priors = loss->add_maps();
      priors->set_height(cells);
      priors->set_width(cells);
      priors->set_scale(kScales[map]);
      priors->set_extra_scale(std::sqrt(kScales[map] * kScales[map + 1]));
    }
    layers_.Add("predictions", heads)->mutable_concat()->set_axis(1);
  }

 private:
  // Convolutions at one size, then a halving, where the trunk ends so far.
  void Stage(int number, int64_t filters, int convolutions) {
    for (int i = 1; i <= convolutions; ++i) {
      v1::Conv2dLayer* conv = layers_.Conv2d(absl::StrCat("conv", number, "_", i), filters, 3, 1, Trunk());
      conv->set_activation(v1::Activation::RELU);
      conv->mutable_init()->set_he_fan_in(true);
      trunk_ = layers_.last();
    }
    layers_.Add(absl::StrCat("pool", number))->mutable_max_pool()->add_size(2);
    trunk_ = layers_.last();
  }

  std::string Head(int number) {
    const std::string name = absl::StrCat("head", number);
    layers_.Conv2d(name, kPriorsOfCell * (5 + classes_), 3, 1, Trunk());
    v1::ReshapeLayer* boxes = layers_.Add(name + ".priors")->mutable_reshape();
    boxes->add_shape(-1);
    boxes->add_shape(5 + classes_);
    return layers_.last();
  }

  LayerWriter::Names Trunk() const { return trunk_.empty() ? LayerWriter::Names{} : LayerWriter::Names{trunk_}; }

  const int64_t classes_;
  LayerWriter layers_;
  std::string trunk_;
};

}  // namespace

void ExpandSsd(const v1::SsdPreset& preset, v1::JobSpec* spec, Violations* violations) {
  const std::string path = "model.preset.ssd";
  const int64_t width = preset.has_width() ? preset.width() : 32;
  const size_t before = violations->list().size();
  if (preset.classes() == 0) violations->Add(path + ".classes", "required, at least 1");
  if (preset.size() == 0) violations->Add(path + ".size", "required, a multiple of 32");
  if (violations->list().size() != before) return;
  violations->CheckInteger(path + ".classes", preset.classes(), 1, kMaxClasses);
  violations->CheckInteger(path + ".size", preset.size(), 32, kMaxSize);
  violations->CheckInteger(path + ".width", width, 1, kMaxWidth);
  if (preset.size() % 32 != 0) {
    violations->Add(path + ".size", absl::StrCat("must be a multiple of 32, is ", preset.size()));
  }
  if (violations->list().size() != before) return;
  v1::LossSpec loss;
  SsdWriter(preset.classes(), spec->mutable_model()).Write(preset.size(), width, loss.mutable_multibox());
  SetDefaultLoss(loss, spec->mutable_model());
}

}  // namespace ampd::presets
