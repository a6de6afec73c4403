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

}  // namespace

void ResolveLoss(const std::string& path, v1::LossSpec* loss, Violations* violations) {
  switch (loss->kind_case()) {
    case v1::LossSpec::KIND_NOT_SET:
      return violations->Add(path,
                             "required, one of softmax_cross_entropy, mean_squared_error, sigmoid_cross_entropy, l1, "
                             "smooth_l1, hinge, ctc");
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
    // Refused by name, as not supported yet.
    case v1::LossSpec::kMultibox:
    case v1::LossSpec::kMeanSquaredError:
    case v1::LossSpec::kL1:
      return;
  }
}

}  // namespace ampd
