// Dropout, all versions.
#include <random>

#include "engine/core/rng.h"
#include "engine/core/status.h"
#include "engine/models/onnx/node.h"

namespace ampd::models::onnx {
namespace {

// The mask that ONNX's reference evaluator draws from a seed: numpy's legacy generator, a Mersenne Twister whose
// doubles take 53 bits of two words (Matsumoto and Nishimura, genrand_res53).
TensorPtr ReferenceMask(const Shape& shape, int64_t seed, double ratio) {
  std::mt19937 generator(static_cast<uint32_t>(seed));
  auto mask = std::make_shared<Tensor>(DType::kBool, shape);
  for (uint8_t& kept : mask->as<uint8_t>()) {
    const uint32_t high = static_cast<uint32_t>(generator()) >> 5;
    const uint32_t low = static_cast<uint32_t>(generator()) >> 6;
    kept = (high * 67108864.0 + low) / 9007199254740992.0 >= ratio;
  }
  return mask;
}

struct Setting {
  double ratio = 0.5;
  bool training = false;
};

absl::StatusOr<Setting> SettingOf(const Node& n) {
  Setting s{n.Float("ratio", 0.5), n.opset() < 7 && n.Int("is_test", 0) == 0};
  if (n.Has(1)) {
    AMPD_ASSIGN_OR_RETURN(const TensorPtr ratio, n.Known(1));
    if (ratio->size() != 1) return n.Bad("the ratio has to be one number");
    s.ratio = DoubleAt(ratio->view(), 0);
  }
  if (n.Has(2)) {
    AMPD_ASSIGN_OR_RETURN(const TensorPtr training, n.Known(2));
    if (training->size() != 1) return n.Bad("training_mode has to be one bool");
    s.training = IntAt(training->view(), 0) != 0;
  }
  const bool of_job = n.options().updates_statistic != nullptr;
  s.training = n.options().training || (s.training && !of_job);
  if (!(s.ratio >= 0 && s.ratio < 1)) return n.Bad(absl::StrCat("ratio is ", s.ratio));
  return s;
}

absl::Status Dropout(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const Setting s, SettingOf(n));
  if (!s.training || s.ratio == 0) {
    AMPD_RETURN_IF_ERROR(n.Out(0, n[0]));
    if (!n.Wants(1)) return absl::OkStatus();
    const DType dtype = n.opset() < 10 ? n.dtype(0) : DType::kBool;
    return n.Out(1, n.e.Expand(n.e.Scalar(dtype, 1), n.shape(0)));
  }
  if (n.options().training) {
    const int64_t stream = RngStream(absl::StrCat(n.services().layer, ".dropout"));
    const ir::Attributes attributes{{"rate", s.ratio}, {"stream", stream}};
    AMPD_RETURN_IF_ERROR(n.Out(0, n.e.Op1("dropout", {n[0]}, attributes)));
    if (!n.Wants(1)) return absl::OkStatus();
    // What is kept of ones, by the same stream. They follow the data: so does where samples lie in them.
    const V zero = n.e.Scalar(n.dtype(0), 0);
    const V ones = n.e.AddScalar(n.e.Op1("zeros_like", {n[0]}), 1);
    const V mask = n.e.Binary("greater", n.e.Op1("dropout", {ones}, attributes), zero);
    return n.Out(1, n.opset() < 10 ? n.e.Cast(mask, n.dtype(0)) : mask);
  }
  if (n.Attribute("seed") == nullptr) {
    return n.Unsupported("in training mode without a seed, outside training: no result is the right one");
  }
  if (!n.e.AllowConstant(static_cast<double>(Emitter::Size(n[0])))) return absl::OkStatus();
  const V mask = n.e.Known(ReferenceMask(n.shape(0), n.Int("seed", 0), s.ratio));
  const V zero = n.e.Scalar(n.dtype(0), 0);
  AMPD_RETURN_IF_ERROR(n.Out(0, n.e.MulScalar(n.e.Where(mask, n[0], zero), 1 / (1 - s.ratio))));
  return n.Out(1, mask);
}

}  // namespace

std::vector<Rule> DropoutRules() { return {{"Dropout", Dropout, 1}}; }

}  // namespace ampd::models::onnx
