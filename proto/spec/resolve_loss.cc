#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/spec/resolve_internal.h"

namespace ampd {
namespace {

using google::protobuf::RepeatedField;

// As many as a layer may have channels.
constexpr int64_t kMaxChannels = 1 << 20;
constexpr double kMaxLossNumber = 1e6;
constexpr int64_t kMaxBeamWidth = 256;
constexpr int kMaxMaps = 64;
constexpr int kMaxRatios = 16;
constexpr int64_t kMaxCells = 1 << 12;
constexpr int64_t kMaxPriors = 1 << 20;
constexpr double kMaxScale = 10;

void CheckWeights(const std::string& field, const RepeatedField<float>& weights, Violations* violations) {
  if (weights.size() > kMaxChannels) {
    return violations->Add(field, absl::StrCat("must be at most ", kMaxChannels, ", are ", weights.size()));
  }
  bool any = weights.empty();
  for (int i = 0; i < weights.size(); ++i) {
    const double weight = static_cast<double>(weights.Get(i));
    violations->CheckReal(Indexed(field, i), weight, {.low = 0, .high = kMaxLossNumber});
    any = any || weight > 0;
  }
  if (!any) violations->Add(field, "must not all be 0");
}

// Adds its priors to `priors`, unless their number is wrong.
void ResolvePriorMap(const std::string& path, v1::PriorMap* map, int64_t* priors, Violations* violations) {
  const size_t before = violations->list().size();
  if (map->ratios().empty()) {
    for (const double ratio : {1.0, 2.0, 0.5}) map->add_ratios(ratio);
  }
  violations->CheckInteger(path + ".height", map->height(), 1, kMaxCells);
  violations->CheckInteger(path + ".width", map->width(), 1, kMaxCells);
  violations->CheckReal(path + ".scale", map->scale(), {.low = 0, .high = kMaxScale, .low_open = true});
  if (map->has_extra_scale()) {
    violations->CheckReal(path + ".extra_scale", map->extra_scale(), {.low = 0, .high = kMaxScale, .low_open = true});
  }
  if (map->ratios_size() > kMaxRatios) {
    violations->Add(path + ".ratios", absl::StrCat("must be at most ", kMaxRatios, ", are ", map->ratios_size()));
  } else {
    for (int i = 0; i < map->ratios_size(); ++i) {
      violations->CheckReal(Indexed(path + ".ratios", i), map->ratios(i), {.low = 0, .high = 100, .low_open = true});
    }
  }
  if (violations->list().size() != before) return;
  *priors += map->height() * map->width() * (map->ratios_size() + (map->has_extra_scale() ? 1 : 0));
}

void ResolveMultibox(const std::string& path, v1::MultiboxLoss* loss, Violations* violations) {
  if (!loss->has_threshold()) loss->set_threshold(0.5);
  if (!loss->has_negative_ratio()) loss->set_negative_ratio(3);
  if (!loss->has_location_weight()) loss->set_location_weight(1);
  if (!loss->has_center_variance()) loss->set_center_variance(0.1);
  if (!loss->has_size_variance()) loss->set_size_variance(0.2);
  violations->CheckReal(path + ".threshold", loss->threshold(), {.low = 0, .high = 1});
  violations->CheckReal(path + ".negative_ratio", loss->negative_ratio(), {.low = 0, .high = kMaxLossNumber});
  violations->CheckReal(path + ".location_weight", loss->location_weight(), {.low = 0, .high = kMaxLossNumber});
  violations->CheckReal(path + ".center_variance", loss->center_variance(), {.low = 1e-3, .high = 1e3});
  violations->CheckReal(path + ".size_variance", loss->size_variance(), {.low = 1e-3, .high = 1e3});
  const std::string maps = path + ".maps";
  if (loss->maps().empty()) return violations->Add(maps, "required, at least one");
  if (loss->maps_size() > kMaxMaps) {
    return violations->Add(maps, absl::StrCat("must be at most ", kMaxMaps, ", are ", loss->maps_size()));
  }
  int64_t priors = 0;
  for (int i = 0; i < loss->maps_size(); ++i) {
    ResolvePriorMap(Indexed(maps, i), loss->mutable_maps(i), &priors, violations);
  }
  if (priors > kMaxPriors) {
    violations->Add(maps, absl::StrCat("must have at most ", kMaxPriors, " priors in all, have ", priors));
  }
}

// A part whose labels all have weight 0 would lose what smoothing gives it of the other classes.
void CheckSmoothingIsWhole(const std::string& path, const v1::LossSpec& loss, Violations* violations) {
  const v1::SoftmaxCrossEntropyLoss& of = loss.softmax_cross_entropy();
  const auto& weights = of.class_weights();
  if (!(of.label_smoothing() > 0) || std::find(weights.begin(), weights.end(), 0) == weights.end()) return;
  violations->Add(path + ".softmax_cross_entropy.class_weights",
                  "cannot have a 0 together with label_smoothing where a batch is cut (train.micro_batch_size below "
                  "train.batch_size, or several resources.gpus)");
}

}  // namespace

void CheckBoxesStay(const v1::JobSpec& spec, Violations* violations) {
  if (!spec.model().loss().has_multibox()) return;
  const v1::ImageTransform& image = spec.data().image();
  const char why[] = "cannot be given with the multibox loss: the boxes would not be moved with the images";
  if (image.random_flip()) violations->Add("data.image.random_flip", why);
  if (image.random_crop_padding() > 0) violations->Add("data.image.random_crop_padding", why);
  if (image.size() > 0) violations->Add("data.image.size", why);
}

void CheckLossesOfParts(const v1::JobSpec& spec, Violations* violations) {
  if (spec.train().micro_batch_size() == spec.train().batch_size() && spec.resources().gpus() <= 1) return;
  CheckSmoothingIsWhole("model.loss", spec.model().loss(), violations);
  if (spec.model().networks().empty()) return;
  for (int i = 0; i < spec.phases_size(); ++i) {
    const std::string path = Indexed("phases", i);
    for (int j = 0; j < spec.phases(i).losses_size(); ++j) {
      CheckSmoothingIsWhole(absl::StrCat(Indexed(path + ".losses", j), ".loss"), spec.phases(i).losses(j).loss(),
                            violations);
    }
  }
}

void ResolveLoss(const std::string& path, v1::LossSpec* loss, Violations* violations) {
  switch (loss->kind_case()) {
    case v1::LossSpec::KIND_NOT_SET:
      return violations->Add(path,
                             "required, one of softmax_cross_entropy, mean_squared_error, sigmoid_cross_entropy, l1, "
                             "smooth_l1, hinge, ctc, multibox");
    case v1::LossSpec::kSoftmaxCrossEntropy:
      violations->CheckReal(path + ".softmax_cross_entropy.label_smoothing",
                            loss->softmax_cross_entropy().label_smoothing(), {.low = 0, .high = 1});
      return CheckWeights(path + ".softmax_cross_entropy.class_weights", loss->softmax_cross_entropy().class_weights(),
                          violations);
    case v1::LossSpec::kSigmoidCrossEntropy:
      return CheckWeights(path + ".sigmoid_cross_entropy.pos_weight", loss->sigmoid_cross_entropy().pos_weight(),
                          violations);
    case v1::LossSpec::kSmoothL1:
      if (!loss->smooth_l1().has_beta()) loss->mutable_smooth_l1()->set_beta(1);
      return violations->CheckReal(path + ".smooth_l1.beta", loss->smooth_l1().beta(),
                                   {.low = 0, .high = kMaxLossNumber});
    case v1::LossSpec::kHinge:
      if (!loss->hinge().has_margin()) loss->mutable_hinge()->set_margin(1);
      return violations->CheckReal(path + ".hinge.margin", loss->hinge().margin(), {.low = 0, .high = kMaxLossNumber});
    case v1::LossSpec::kCtc:
      if (!loss->ctc().has_blank()) loss->mutable_ctc()->set_blank(0);
      violations->CheckInteger(path + ".ctc.beam_width", loss->ctc().beam_width(), 0, kMaxBeamWidth);
      return violations->CheckInteger(path + ".ctc.blank", loss->ctc().blank(), 0, kMaxChannels - 1);
    case v1::LossSpec::kMultibox:
      return ResolveMultibox(path + ".multibox", loss->mutable_multibox(), violations);
    case v1::LossSpec::kMeanSquaredError:
    case v1::LossSpec::kL1:
      return;
  }
}

}  // namespace ampd
