#include "absl/strings/str_cat.h"
#include "proto/spec/presets/families.h"

namespace ampd::presets {
namespace {

constexpr int64_t kMaxUnits = 1 << 20;
constexpr int kMaxHidden = 1000;

v1::LossSpec LossOf(const v1::MlpPreset& preset, int64_t outputs) {
  if (preset.has_loss()) return preset.loss();
  v1::LossSpec loss;
  if (outputs > 1) {
    loss.mutable_softmax_cross_entropy();
  } else {
    loss.mutable_mean_squared_error();
  }
  return loss;
}

}  // namespace

void ExpandMlp(const v1::MlpPreset& preset, v1::JobSpec* spec, Violations* violations) {
  const std::string path = "model.preset.mlp";
  std::vector<int64_t> hidden(preset.hidden().begin(), preset.hidden().end());
  if (hidden.empty()) hidden = {16, 16};
  const int64_t outputs = preset.has_outputs() ? preset.outputs() : 1;
  if (hidden.size() > kMaxHidden) {
    return violations->Add(path + ".hidden", absl::StrCat("must be at most ", kMaxHidden, ", are ", hidden.size()));
  }
  if (preset.has_loss() && spec->model().has_loss()) {
    violations->Add(path + ".loss", "model.loss is given too: give one of them");
  }
  LayerWriter layers(spec->mutable_model()->mutable_layers());
  // Nothing where the data has features; of images it makes them.
  layers.Add("flatten")->mutable_flatten();
  for (size_t i = 0; i < hidden.size(); ++i) {
    violations->CheckInteger(Indexed(path + ".hidden", static_cast<int>(i)), hidden[i], 1, kMaxUnits);
    layers.Dense(absl::StrCat("hidden_", i + 1), hidden[i])->set_activation(v1::Activation::RELU);
  }
  violations->CheckInteger(path + ".outputs", outputs, 1, kMaxUnits);
  layers.Dense("output", outputs);
  SetDefaultLoss(LossOf(preset, outputs), spec->mutable_model());
}

}  // namespace ampd::presets
