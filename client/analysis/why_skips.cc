#include "client/analysis/why_skips.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/exit_code.h"
#include "client/output/job_text.h"
#include "client/output/text.h"
#include "proto/spec/start_step.h"

namespace ampd::client {
namespace {

using v1::Job;
using SkipList = std::vector<const v1::OverflowSkip*>;

constexpr double kManySkips = 0.01;
constexpr int64_t kDefaultGrowthInterval = 2000;
// A dynamic scale begins at 65536 and halves: this many skips bring it to its floor, 1. More are of another scale,
// which begins far too high or falls too slowly, and are told of.
constexpr size_t kMostOfDefaultCalibration = 16;
constexpr double kDefaultBackoff = 0.5;

// The scale's way: from the first skip to the last.
std::string Trend(const SkipList& skips) {
  const double first = skips.front()->scale_before(), last = skips.back()->scale_after();
  if (first != last) return absl::StrCat("the scale went from ", Figure(first), " to ", Figure(last));
  double least = last, most = last;
  for (const v1::OverflowSkip* skip : skips) {
    least = std::min({least, skip->scale_before(), skip->scale_after()});
    most = std::max({most, skip->scale_before(), skip->scale_after()});
  }
  if (least == most) return absl::StrCat("the scale stays at ", Figure(last));
  return absl::StrCat("the scale went up and down between ", Figure(least), " and ", Figure(most), ", to ",
                      Figure(last));
}

std::string MostCommon(const std::map<std::string, int>& counts) {
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return absl::StrCat(most->first, " (", most->second, " times)");
}

// Whether BF16 has more range.
bool IsNarrowerThanBf16(v1::PrecisionSpec::Mode mode) {
  return mode == v1::PrecisionSpec::FP16 || mode == v1::PrecisionSpec::FP8;
}

// What was not finite before the backward pass, no loss scale reaches.
bool IsForward(const v1::OverflowSkip& skip) {
  return skip.stage() == v1::OverflowSkip::FORWARD || skip.stage() == v1::OverflowSkip::LOSS ||
         skip.stage() == v1::OverflowSkip::INPUT;
}

bool OverflowsForward(const SkipList& skips) {
  const auto forward = std::count_if(skips.begin(), skips.end(), [](const auto* skip) { return IsForward(*skip); });
  return 2 * static_cast<size_t>(forward) > skips.size();
}

// The layer of the spec that a tensor is of, as precision.rules match it. Empty: presets and networks do not tell.
std::string LayerOf(const Job& job, const std::string& tensor) {
  std::string found;
  for (const v1::Layer& layer : job.spec().model().layers()) {
    const std::string& name = layer.name();
    const bool of = !name.empty() && (tensor == name || absl::StartsWith(tensor, absl::StrCat(name, ".")));
    if (of && name.size() > found.size()) found = name;
  }
  return found;
}

std::vector<std::string> AgainstForwardOverflow(const Job& job, const std::string& tensor) {
  std::vector<std::string> advice = {
      "no loss scale cures what overflows forward: lower the learning rate, warm it up, clip gradients "
      "(optimizer.clip_global_norm), and look at the data"};
  if (ModeOf(job) != v1::PrecisionSpec::FP16) return advice;
  const std::string layer = LayerOf(job, tensor);
  advice.push_back(absl::StrCat(
      "where inputs or activations are beyond FP16's 65504 by themselves, normalise them, use BF16, or keep the layer "
      "in FP32 with precision.rules",
      layer.empty() ? " (ampctl plan names the layers)" : absl::StrCat(" [{match: ", Clean(layer), ", dtype: FP32}]")));
  return advice;
}

std::vector<std::string> AgainstSkips(const SkipList& skips, const Job& job) {
  if (OverflowsForward(skips)) return AgainstForwardOverflow(job, skips.back()->first_tensor());
  if (IsNarrowerThanBf16(ModeOf(job))) {
    return {
        "a skip now and then is how a dynamic scale finds its height; if they do not stop, lower the "
        "learning rate, clip gradients (optimizer.clip_global_norm) or use BF16"};
  }
  return {"lower the learning rate, warm it up, or clip gradients (optimizer.clip_global_norm)"};
}

std::string LowerStaticScale(const v1::LossScaleSpec& scale) {
  return absl::StrCat("the scale is static: lower precision.loss_scale.init, which is ",
                      absl::StrFormat("%.17g", scale.init()), ", or let it find its own (kind: DYNAMIC)");
}

// Whether a lower scale is what the skips of a calibration led to, or may.
bool IsForTheScale(const SkipList& skips, bool applied, const v1::LossScaleSpec& scale) {
  const double last = skips.back()->scale_after(), floor = scale.has_min() ? scale.min() : 1;
  return last < skips.front()->scale_before() && (applied || last > floor);
}

// What else may end a job before its first update is not the scale's doing.
bool IsDiverged(const Job& job) { return job.has_failure() && job.failure().class_() == v1::Failure::DIVERGED; }

// Before the first update no learning rate matters. `applied`: a step was, with the scale after the last skip.
std::vector<std::string> AgainstCalibration(const SkipList& skips, bool applied, const Job& job) {
  const v1::LossScaleSpec& scale = job.spec().precision().loss_scale();
  if (OverflowsForward(skips)) return AgainstForwardOverflow(job, skips.back()->first_tensor());
  if (scale.kind() == v1::LossScaleSpec::STATIC) return {LowerStaticScale(scale)};
  if (!IsForTheScale(skips, applied, scale)) {
    return {absl::StrCat("no update was made before these: look at the data and the initial weights",
                         IsNarrowerThanBf16(ModeOf(job)) ? ", or use BF16" : "")};
  }
  if (skips.size() <= kMostOfDefaultCalibration && !IsDiverged(job)) {
    return {"that is how a dynamic scale finds its height"};
  }
  const double first = skips.front()->scale_before(), last = skips.back()->scale_after();
  std::vector<std::string> advice = {
      absl::StrCat("begin lower: precision.loss_scale.init, ", Figure(first), " here, 65536 by default",
                   applied ? absl::StrCat("; the first step that was applied had ", Figure(last)) : "")};
  if (scale.has_backoff_factor() && scale.backoff_factor() > kDefaultBackoff) {
    advice.push_back(absl::StrCat("a skip leaves ", Figure(scale.backoff_factor()),
                                  " of the scale (precision.loss_scale.backoff_factor, 0.5 by default): less finds its "
                                  "height in fewer steps"));
  }
  return advice;
}

// `when`: beside how many they are.
Finding Skipping(const SkipList& skips, int64_t attempted, const std::string& when) {
  std::map<std::string, int> tensors, stages;
  for (const v1::OverflowSkip* skip : skips) {
    ++tensors[Clean(skip->first_tensor())];
    ++stages[v1::OverflowSkip::Stage_Name(skip->stage())];
  }
  Finding finding{"skipping", {}, {}};
  finding.because.push_back(
      absl::StrCat(skips.size(), " of ", attempted, " steps were skipped", when, ", the last ", skips.back()->step()));
  finding.because.push_back(absl::StrCat("first not finite: ", MostCommon(tensors), "; stage ", MostCommon(stages)));
  finding.because.push_back(Trend(skips));
  return finding;
}

// Of skipped steps. A growing scale makes one in growth_interval + 1 by itself.
double ManySkips(const v1::LossScaleSpec& scale) {
  const int64_t interval = scale.has_growth_interval() ? scale.growth_interval() : kDefaultGrowthInterval;
  return std::max(kManySkips, 2 / static_cast<double>(interval + 1));
}

SkipList SkipsOf(const WhyInput& input, bool calibration) {
  SkipList skips;
  for (const v1::OverflowSkip* skip : StandingSkips(input.events)) {
    if (skip->calibration() == calibration) skips.push_back(skip);
  }
  return skips;
}

// Those of calibration are how a scale is found, and are what ended a job where nothing else came of it.
bool EndedInCalibration(const WhyInput& input) {
  return IsDiverged(input.job) && input.job.summary().steps_applied() == 0 && SkipsOf(input, false).empty();
}

// Whether the phase is through with calibration, as far as was told.
bool WasApplied(const Events& events, const std::string& phase) {
  for (auto event = events.rbegin(); event != events.rend(); ++event) {
    if (event->has_overflow_skip() && event->overflow_skip().phase() == phase) {
      if (!event->overflow_skip().calibration()) return true;
    }
    if (!event->has_step()) continue;
    for (const v1::PhaseReport& report : event->step().phases()) {
      if (report.name() == phase) return report.steps_applied() > 0;
    }
  }
  return false;
}

std::vector<Finding> Calibrations(const WhyInput& input, int64_t attempted) {
  std::map<std::string, SkipList> by_phase;
  for (const v1::OverflowSkip* skip : SkipsOf(input, true)) by_phase[skip->phase()].push_back(skip);
  std::vector<Finding> findings;
  for (const auto& [phase, skips] : by_phase) {
    const bool many = skips.size() > kMostOfDefaultCalibration, applied = WasApplied(input.events, phase);
    const bool goes_on = !applied && !IsTerminal(input.job.state());
    if (!many && !goes_on) continue;
    const std::string of = phase.empty() || phase == "main" ? "" : absl::StrCat(" in phase ", Clean(phase));
    Finding finding = Skipping(
        skips, attempted,
        absl::StrCat(of, applied ? " before the first was applied" : ", none was applied", goes_on ? " yet" : ""));
    finding.what = many ? "skipping: calibrating" : "calibrating";
    finding.advice = AgainstCalibration(skips, applied, input.job);
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace

int64_t OwnSteps(const Job& job, int64_t step) { return std::max<int64_t>(0, step - StepsBefore(job.spec())); }

std::vector<Finding> Skips(const WhyInput& input) {
  const int64_t attempted = OwnSteps(input.job, LastStepOf(input.events));
  const bool in_calibration = EndedInCalibration(input);
  std::vector<Finding> findings;
  if (const SkipList skips = SkipsOf(input, in_calibration); !skips.empty()) {
    const bool many = static_cast<double>(skips.size()) > ManySkips(input.job.spec().precision().loss_scale()) *
                                                              static_cast<double>(std::max<int64_t>(attempted, 1));
    Finding finding = Skipping(skips, attempted, in_calibration ? ", none was applied" : " after calibration");
    finding.advice = in_calibration ? AgainstCalibration(skips, false, input.job) : AgainstSkips(skips, input.job);
    if (!many) finding.what = "skips, few";
    findings.push_back(std::move(finding));
  }
  if (in_calibration) return findings;
  for (Finding& finding : Calibrations(input, attempted)) findings.push_back(std::move(finding));
  return findings;
}

std::vector<std::string> AgainstDivergence(const WhyInput& input) {
  const v1::LossScaleSpec& scale = input.job.spec().precision().loss_scale();
  const v1::PrecisionSpec::Mode mode = ModeOf(input.job);
  std::vector<std::string> advice = {
      "lower the learning rate, warm it up, or clip gradients (optimizer.clip_global_norm)"};
  // Skips has what helps then.
  if (OverflowsForward(SkipsOf(input, EndedInCalibration(input)))) return advice;
  if (scale.kind() == v1::LossScaleSpec::STATIC) advice.insert(advice.begin(), LowerStaticScale(scale));
  if (mode == v1::PrecisionSpec::FP16 && scale.kind() != v1::LossScaleSpec::STATIC &&
      scale.kind() != v1::LossScaleSpec::NONE) {
    advice.emplace_back("BF16 has FP32's range; precision.loss_scale.on_floor: FALLBACK_BF16 changes over by itself");
  } else if (IsNarrowerThanBf16(mode)) {
    advice.emplace_back("BF16 has FP32's range");
  }
  return advice;
}

}  // namespace ampd::client
