#include "absl/strings/str_cat.h"
#include "proto/spec/presets/families.h"

namespace ampd::presets {
namespace {

constexpr int64_t kMaxFilters = 1 << 20;
constexpr int64_t kMaxKernel = 1024;
constexpr size_t kMaxConvolutions = 40;

}  // namespace

void ExpandConvnet(const v1::ConvnetPreset& preset, v1::JobSpec* spec, Violations* violations) {
  const std::string path = "model.preset.convnet";
  std::vector<int64_t> filters(preset.filters().begin(), preset.filters().end());
  std::vector<int64_t> kernels(preset.kernels().begin(), preset.kernels().end());
  if (filters.empty()) filters = {32, 64, 128};
  if (kernels.empty()) kernels = {5, 7, 11};
  if (filters.size() != kernels.size() || filters.size() > kMaxConvolutions) {
    return violations->Add(path + ".kernels",
                           absl::StrCat("must be as many as filters, which are ", filters.size(), ", and at most ",
                                        kMaxConvolutions, ", are ", kernels.size()));
  }
  LayerWriter layers(spec->mutable_model()->mutable_layers());
  for (size_t i = 0; i < filters.size(); ++i) {
    violations->CheckInteger(Indexed(path + ".filters", static_cast<int>(i)), filters[i], 1, kMaxFilters);
    violations->CheckInteger(Indexed(path + ".kernels", static_cast<int>(i)), kernels[i], 1, kMaxKernel);
    layers.Conv2d(absl::StrCat("conv", i + 1), filters[i], kernels[i], 2)->set_activation(v1::Activation::RELU);
    layers.BatchNorm(absl::StrCat("bn", i + 1));
  }
  const int64_t classes = preset.has_classes() ? preset.classes() : 10;
  violations->CheckInteger(path + ".classes", classes, 1, kMaxFilters);
  layers.Add("pool")->mutable_global_avg_pool();
  layers.Dense("head", classes);
  v1::LossSpec loss;
  loss.mutable_softmax_cross_entropy();
  SetDefaultLoss(loss, spec->mutable_model());
}

}  // namespace ampd::presets
