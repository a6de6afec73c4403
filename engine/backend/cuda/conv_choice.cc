#include "engine/backend/cuda/conv_choice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "engine/backend/cuda/autotune.h"
#include "engine/backend/cuda/region_trial.h"
#include "engine/backend/cuda/status.h"
#include "engine/core/status.h"
#include "engine/core/tensor.h"

namespace ampd::cuda {
namespace {

using Extents = std::array<int64_t, 4>;

TensorView View(const void* data, DType dtype, const Extents& extents) {
  return {const_cast<void*>(data), dtype, Shape(extents.begin(), extents.end())};
}

class Chooser {
 public:
  Chooser(Context* context, const ConvDesc& desc, const ConvArgs& args) : context_(context), desc_(desc), args_(args) {}

  absl::Status Renew() const { return args_.renew ? args_.renew() : absl::OkStatus(); }

  // By a sample of each operand.
  absl::StatusOr<bool> OperandsAreFinite() const {
    AMPD_RETURN_IF_ERROR(Renew());
    std::vector<TensorView> operands = {
        View(args_.a, desc_.operands, desc_.kind == ConvKind::kForward ? desc_.image : desc_.output),
        View(args_.b, desc_.operands, desc_.kind == ConvKind::kGradFilter ? desc_.image : desc_.filter)};
    if (args_.bias != nullptr) operands.push_back(View(args_.bias, desc_.operands, {1, 1, 1, desc_.filter[0]}));
    for (const TensorView& operand : operands) {
      AMPD_ASSIGN_OR_RETURN(const bool finite, IsFinite(operand));
      if (!finite) return false;
    }
    return true;
  }

  // Whether a sample of the result is finite, where the result and the workspace were NaN before.
  absl::StatusOr<bool> IsSound(const ConvPlan& plan) const {
    const TensorView result = View(args_.result, desc_.result,
                                   desc_.kind == ConvKind::kForward     ? desc_.output
                                   : desc_.kind == ConvKind::kGradInput ? desc_.image
                                                                        : desc_.filter);
    AMPD_RETURN_IF_ERROR(Renew());
    AMPD_RETURN_IF_ERROR(Fill(result.data, result.bytes()));
    if (plan.workspace_bytes > 0) AMPD_RETURN_IF_ERROR(Fill(args_.workspace, plan.workspace_bytes));
    AMPD_RETURN_IF_ERROR(plan.run(args_));
    return IsFinite(result);
  }

  // `best`, unless it leaves values that are not finite and another plan leaves none: an engine that does not write all
  // of its result, or reads what was there or in the workspace, costs speed and not a training. None where every plan
  // leaves some: then so the result is, as one that overflows.
  absl::StatusOr<absl::optional<size_t>> SoundestOf(const std::vector<ConvPlan>& plans, size_t best) const {
    AMPD_ASSIGN_OR_RETURN(const bool sound, IsSound(plans[best]));
    if (sound) return absl::make_optional(best);
    for (size_t i = 0; i < plans.size(); ++i) {
      if (i == best) continue;
      const absl::StatusOr<bool> other = IsSound(plans[i]);
      if (absl::IsUnavailable(other.status())) return other.status();
      // Any other error: it does not run on this device, as FastestOf() has seen.
      if (other.ok() && *other) return absl::make_optional(i);
    }
    return absl::optional<size_t>();
  }

 private:
  absl::StatusOr<bool> IsFinite(const TensorView& tensor) const {
    AMPD_ASSIGN_OR_RETURN(const std::vector<float> values, SampleOf(context_, tensor));
    return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  }

  absl::Status Fill(void* data, int64_t bytes) const {
    return ToStatus(cudaMemsetAsync(data, 0xff, static_cast<size_t>(bytes), context_->stream()), "a trial");
  }

  Context* const context_;
  const ConvDesc& desc_;
  const ConvArgs& args_;
};

// The plan that the cache names, or none.
std::vector<ConvPlan> Recall(const AutotuneCache* cache, const std::string& key, const ListConvPlans& list) {
  if (cache == nullptr) return {};
  const absl::optional<std::string> name = cache->Find(key);
  if (!name || name->empty()) return {};
  absl::StatusOr<std::vector<ConvPlan>> plans = list(*name, 1);
  return plans.ok() ? *std::move(plans) : std::vector<ConvPlan>();
}

}  // namespace

// Also what the cache remembers is tried in every process: it may be from before an engine was seen to be wrong. It
// stays where no other does better, so that a resumed job goes on with its own.
absl::StatusOr<ConvPlan> ChooseConvPlan(Context* context, const std::string& key, const ConvDesc& desc,
                                        const ConvArgs& args, const ListConvPlans& list) {
  const Chooser chooser(context, desc, args);
  AMPD_ASSIGN_OR_RETURN(const bool may_measure, MayMeasure(*context));
  std::vector<ConvPlan> plans = Recall(context->autotune(), key, list);
  const bool known = !plans.empty();
  bool may_judge = false;
  if (may_measure) {
    AMPD_ASSIGN_OR_RETURN(may_judge, chooser.OperandsAreFinite());
  }
  bool keep = known;
  if (known && may_judge) {
    AMPD_ASSIGN_OR_RETURN(keep, chooser.IsSound(plans[0]));
  }
  if (!keep) {
    AMPD_ASSIGN_OR_RETURN(std::vector<ConvPlan> candidates, list("", may_measure ? kConvCandidates : 1));
    std::move(candidates.begin(), candidates.end(), std::back_inserter(plans));
  }
  if (plans.empty()) {
    return absl::InternalError(
        absl::StrCat("the device has no plan within the workspace that was planned for ", ConvKey(desc)));
  }
  size_t best = 0;
  if (may_measure && !keep) {
    if (!known) {
      const auto run = [&](int i) { return plans[static_cast<size_t>(i)].run(args); };
      AMPD_ASSIGN_OR_RETURN(const int fastest, FastestOf(*context, static_cast<int>(plans.size()), run));
      best = static_cast<size_t>(fastest);
    }
    if (may_judge) {
      AMPD_ASSIGN_OR_RETURN(const absl::optional<size_t> soundest, chooser.SoundestOf(plans, best));
      if (soundest) {
        best = *soundest;
        context->autotune()->Put(key, plans[best].name);
      }
    }
  }
  // What was tried may have spoilt them.
  if (may_measure) AMPD_RETURN_IF_ERROR(chooser.Renew());
  return std::move(plans[best]);
}

}  // namespace ampd::cuda
