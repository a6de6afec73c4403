// Which of a job's gradients fp16 can hold, from its gradient_diagnostics events. Pure.
#ifndef AMPD_CLIENT_ANALYSIS_HISTOGRAM_H_
#define AMPD_CLIENT_ANALYSIS_HISTOGRAM_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/analysis/events.h"

namespace ampd::client {

// What fp16 makes of 2^e <= |v| < 2^(e+1).
enum class Fp16Range { kFlushed, kSubnormal, kNormal, kInfinite };
// Round to nearest: below 2^-25 all is 0 (what lies above 2^-25 itself rounds up to 2^-24), from 2^-14 on normal, from
// 2^16 on infinite (and so is what lies above 65,520 below it).
Fp16Range RangeOf(int exponent);

struct Histogram {
  int64_t step = 0;
  std::string phase;
  // Powers of two make the second histogram the first, moved.
  double scale = 1;
  // Of all tensors that were chosen: values by exponent, unscaled.
  std::map<int, int64_t> counts;
  int64_t nonzero = 0, zeros = 0, non_finite = 0;
  // Of `nonzero`.
  double flushed_unscaled = 0, flushed_scaled = 0, overflowed_scaled = 0;
  int tensors = 0;
  // The tensor that loses most without a scale.
  std::string worst;
  double worst_flushed = 0;
  // A loss scale is the whole job's, for all of its steps, so it is judged by every tensor of all events and phases,
  // whatever was chosen, and by the scales at which gradients overflowed. The largest power of two at which none
  // overflows; half of it leaves room for gradients to grow. 0 where nothing is known: `unscalable` values of the
  // phases' newest events are not finite without a scale, or all are 0.
  double largest_safe_scale = 0;
  int64_t unscalable = 0;
  // Those of the events, and the first of them: gradients before may be larger.
  int64_t judged_steps = 0, first_judged_step = 0;
};

// Of the newest gradient_diagnostics event (of `phase`, where that is not empty), its tensors whose names match `glob`
// ('*', '?'; empty: those that are activations' gradients and parameters' alike). NOT_FOUND: there is no such event, or
// no tensor matches, with the names that there are.
absl::StatusOr<Histogram> HistogramOf(const Events& events, absl::string_view phase, absl::string_view glob);

// Bars for a terminal of 100 columns, fp16's ranges marked; before and after scaling side by side.
std::string HistogramText(const Histogram& histogram);
// One JSON object: {"job_id", "step", "phase", "scale", "tensors", "nonzero", "zeros", "non_finite",
// "counts": [[EXPONENT, VALUES], ...] of the values as they are,
// "flushed_unscaled", "flushed_scaled", "overflowed_scaled" (shares), "worst": {"tensor", "flushed_unscaled"},
// "largest_safe_scale" (where it is known), "unscalable", "judged_steps", "first_judged_step"}.
std::string HistogramJson(absl::string_view job_id, const Histogram& histogram);
// A picture of both, 960 x 560.
std::string HistogramSvg(const Histogram& histogram, absl::string_view title);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_ANALYSIS_HISTOGRAM_H_
