#include "client/analysis/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/analysis/json_text.h"
#include "client/output/text.h"
#include "proto/spec/names.h"

namespace ampd::client {
namespace {

constexpr int kBarColumns = 32;
// Share of the gradients that a scale worth naming may flush.
constexpr double kMostFlushed = 0.1;
// Of numbers in fp32.
constexpr int kLowest = -149, kHighest = 127;

// floor(log2(scale)): exact for the powers of two that scales are.
int ShiftOf(double scale) {
  return scale > 0 && std::isfinite(scale) ? std::clamp(std::ilogb(scale), kLowest, kHighest) : 0;
}

void Add(const v1::TensorDiagnostics& tensor, Histogram* h) {
  const auto count = static_cast<double>(tensor.nonzero());
  for (int i = 0; i < tensor.exponent_counts_size(); ++i) {
    const int64_t exponent = int64_t{tensor.first_exponent()} + i;
    if (exponent < kLowest || exponent > kHighest || tensor.exponent_counts(i) <= 0) continue;
    h->counts[static_cast<int>(exponent)] += tensor.exponent_counts(i);
  }
  h->nonzero += tensor.nonzero();
  h->zeros += tensor.zeros();
  h->non_finite += tensor.non_finite();
  h->flushed_unscaled += tensor.flushed_unscaled() * count;
  h->flushed_scaled += tensor.flushed_scaled() * count;
  h->overflowed_scaled += tensor.overflowed_scaled() * count;
  if (h->tensors++ == 0 || tensor.flushed_unscaled() > h->worst_flushed) {
    h->worst = tensor.tensor();
    h->worst_flushed = tensor.flushed_unscaled();
  }
}

// Its largest_safe_scale stays 0 where nothing tells one.
class ScaleJudge {
 public:
  void Add(const v1::JobEvent& event) {
    if (event.has_gradient_diagnostics()) Add(event.gradient_diagnostics());
    // What overflowed is proof, also of steps that nobody looked at.
    const v1::OverflowSkip& skip = event.overflow_skip();
    const bool of_gradient = skip.stage() == v1::OverflowSkip::GRADIENT || skip.stage() == v1::OverflowSkip::REDUCE;
    if (of_gradient && skip.scale_before() > 1) overflowed_ = std::min(overflowed_, skip.scale_before());
  }

  void Tell(Histogram* h) const {
    for (const auto& [phase, newest] : newest_) {
      for (const v1::TensorDiagnostics& tensor : newest->tensors()) {
        h->unscalable += std::max<int64_t>(0, tensor.non_finite());
      }
    }
    h->judged_steps = static_cast<int64_t>(steps_.size());
    if (!steps_.empty()) h->first_judged_step = *steps_.begin();
    if (h->unscalable == 0 && safe_ > 0) h->largest_safe_scale = std::min(safe_, overflowed_ / 2);
  }

 private:
  void Add(const v1::GradientDiagnostics& diagnostics) {
    newest_[diagnostics.phase()] = &diagnostics;
    steps_.insert(diagnostics.step());
    for (const v1::TensorDiagnostics& tensor : diagnostics.tensors()) {
      // Zeros stay zeros at any scale.
      if (tensor.nonzero() <= 0 || !(tensor.largest_safe_scale() > 0)) continue;
      safe_ = safe_ > 0 ? std::min(safe_, tensor.largest_safe_scale()) : tensor.largest_safe_scale();
    }
  }

  std::map<std::string, const v1::GradientDiagnostics*> newest_;
  std::set<int64_t> steps_;
  double safe_ = 0;
  double overflowed_ = std::numeric_limits<double>::infinity();
};

const char* NameOf(Fp16Range range) {
  switch (range) {
    case Fp16Range::kFlushed:
      return "flushed to 0";
    case Fp16Range::kSubnormal:
      return "subnormal";
    case Fp16Range::kNormal:
      return "normal";
    case Fp16Range::kInfinite:
      return "infinite";
  }
  return "";
}

std::string Power(double value) {
  int exponent;
  return std::frexp(value, &exponent) == 0.5 ? absl::StrCat("2^", exponent - 1) : Figure(value);
}

std::string Small(double share) {
  return share > 0 && share < 0.001 ? absl::StrFormat("%.2g%%", 100 * share) : Percent(share);
}

int64_t CountAt(const Histogram& h, int exponent) {
  const auto it = h.counts.find(exponent);
  return it == h.counts.end() ? 0 : it->second;
}

struct Rows {
  int first = 0, last = 0;
  int64_t most = 1;
  int shift = 0;
};

// Exponents that either histogram has, with fp16's borders in view.
Rows RowsOf(const Histogram& h) {
  Rows rows;
  rows.shift = ShiftOf(h.scale);
  rows.first = h.counts.empty() ? -24 : h.counts.begin()->first;
  rows.last = h.counts.empty() ? 0 : h.counts.rbegin()->first;
  rows.first = std::min(rows.first, rows.first + rows.shift);
  rows.last = std::max(rows.last, rows.last + rows.shift);
  for (const auto& [exponent, count] : h.counts) rows.most = std::max(rows.most, count);
  return rows;
}

std::string Bar(int64_t count, int64_t most) {
  if (count == 0) return "";
  const int columns =
      static_cast<int>(std::lround(static_cast<double>(count) / static_cast<double>(most) * kBarColumns));
  return std::string(static_cast<size_t>(std::clamp(columns, 1, kBarColumns)), '#');
}

// The lowest exponent that has a row of its own: values that differ by dozens of powers of two, a few of each, are one
// row beneath, if fp16 makes all of them 0 either way.
int LowestRow(const Histogram& h, const Rows& rows) {
  constexpr int kFewest = 4;
  int e = rows.first;
  while (e <= rows.last && RangeOf(e) == Fp16Range::kFlushed && Bar(CountAt(h, e), rows.most).size() <= 1 &&
         Bar(CountAt(h, e - rows.shift), rows.most).size() <= 1) {
    ++e;
  }
  return e - rows.first < kFewest ? rows.first : e;
}

int64_t CountBelow(const Histogram& h, int exponent) {
  int64_t count = 0;
  for (auto it = h.counts.begin(); it != h.counts.end() && it->first < exponent; ++it) count += it->second;
  return count;
}

// Share of the drawn values that are not 0 which fp16 flushes at `scale`.
double FlushedAt(const Histogram& h, double scale) {
  int64_t flushed = 0, all = 0;
  for (const auto& [exponent, count] : h.counts) {
    all += count;
    if (RangeOf(exponent + ShiftOf(scale)) == Fp16Range::kFlushed) flushed += count;
  }
  return all > 0 ? static_cast<double>(flushed) / static_cast<double>(all) : 0;
}

std::string ScaleText(const Histogram& h) {
  if (h.unscalable > 0) {
    return absl::StrCat("Of all the job's gradients ", h.unscalable,
                        " values are not finite in fp32 either: no scale helps.\n");
  }
  if (!(h.largest_safe_scale > 0)) return "All the job's gradients are 0: which scale would be safe is not known.\n";
  const double flushed = FlushedAt(h, h.largest_safe_scale / 2);
  if (flushed > kMostFlushed) {
    return absl::StrCat("No static scale holds the job's gradients: at ", Power(h.largest_safe_scale / 2),
                        ", which leaves the largest of them room to double, fp16 flushes ", Small(flushed),
                        " of those above.\n");
  }
  return absl::StrCat("Of all the job's gradients in ", h.judged_steps, h.judged_steps == 1 ? " step" : " steps",
                      " that were looked at, from ", h.first_judged_step, " on, none overflows up to scale ",
                      Power(h.largest_safe_scale), "; as a static scale ", Power(h.largest_safe_scale / 2),
                      " leaves them room to double:\n  precision: {loss_scale: {kind: STATIC, init: ",
                      absl::StrFormat("%.17g", h.largest_safe_scale / 2), "}}\n");
}

std::string Verdict(const Histogram& h) {
  std::string text =
      absl::StrCat("fp16 flushes ", Small(h.flushed_unscaled), " of the values that are not 0 without a scale, ",
                   Small(h.flushed_scaled), " with ", Power(h.scale));
  if (h.overflowed_scaled > 0) absl::StrAppend(&text, ", and makes ", Small(h.overflowed_scaled), " infinite");
  absl::StrAppend(&text, ".\nMost is lost in ", Clean(h.worst), ": ", Small(h.worst_flushed), " without a scale.\n");
  return text + ScaleText(h);
}

// A drawing of one histogram.
class Panel {
 public:
  Panel(const Rows& rows, double top) : rows_(rows), top_(top) {}

  std::string Draw(const Histogram& h, int shift, const std::string& title) const {
    std::string svg =
        absl::StrFormat("<text x='60' y='%.0f' font-size='14' font-weight='bold'>%s</text>\n", top_ - 8, title);
    for (int e = rows_.first; e <= rows_.last; ++e) {
      const double share = static_cast<double>(CountAt(h, e - shift)) / static_cast<double>(rows_.most);
      const double height = share > 0 ? std::max(1.0, share * kHeight) : 0;
      absl::StrAppendFormat(&svg, "<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='%s'/>\n", X(e) + 0.5,
                            top_ + kHeight - height, Width() - 1, height, Colour(RangeOf(e)));
    }
    absl::StrAppendFormat(&svg, "<line x1='60' y1='%.0f' x2='930' y2='%.0f' stroke='#444'/>\n", top_ + kHeight,
                          top_ + kHeight);
    for (int e = rows_.first; e <= rows_.last; ++e) {
      if (e % 4 != 0) continue;
      absl::StrAppendFormat(&svg, "<text x='%.1f' y='%.0f' font-size='11' text-anchor='middle'>2^%d</text>\n", X(e),
                            top_ + kHeight + 14, e);
    }
    for (const auto& [e, name] :
         {std::pair<int, const char*>{-25, "0 below"}, {-14, "normal from"}, {16, "infinite from"}}) {
      if (e < rows_.first || e > rows_.last) continue;
      absl::StrAppendFormat(&svg,
                            "<line x1='%.1f' y1='%.0f' x2='%.1f' y2='%.0f' stroke='#999' stroke-dasharray='4 3'/>"
                            "<text x='%.1f' y='%.0f' font-size='11' fill='#555'>%s</text>\n",
                            X(e), top_, X(e), top_ + kHeight, X(e) + 3, top_ + 10, name);
    }
    return svg;
  }

 private:
  static constexpr double kHeight = 170;

  static const char* Colour(Fp16Range range) {
    switch (range) {
      case Fp16Range::kFlushed:
        return "#c0392b";
      case Fp16Range::kSubnormal:
        return "#e6a23c";
      case Fp16Range::kNormal:
        return "#2e7d5b";
      case Fp16Range::kInfinite:
        return "#6a1b9a";
    }
    return "";
  }

  double Width() const { return 870.0 / (rows_.last - rows_.first + 1); }
  double X(int exponent) const { return 60 + Width() * (exponent - rows_.first); }

  const Rows& rows_;
  const double top_;
};

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(Clean(text), {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

}  // namespace

Fp16Range RangeOf(int exponent) {
  if (exponent < -25) return Fp16Range::kFlushed;
  if (exponent < -14) return Fp16Range::kSubnormal;
  return exponent < 16 ? Fp16Range::kNormal : Fp16Range::kInfinite;
}

absl::StatusOr<Histogram> HistogramOf(const Events& events, absl::string_view phase, absl::string_view glob) {
  const v1::GradientDiagnostics* newest = nullptr;
  ScaleJudge judge;
  for (const v1::JobEvent& event : events) {
    judge.Add(event);
    if (!event.has_gradient_diagnostics()) continue;
    const v1::GradientDiagnostics& diagnostics = event.gradient_diagnostics();
    if (phase.empty() || diagnostics.phase() == phase) newest = &diagnostics;
  }
  if (newest == nullptr) {
    return absl::NotFoundError(
        "the job has no gradient_diagnostics events; report: {diagnostics_every_steps: 100} in its file makes them");
  }
  Histogram h;
  h.step = newest->step();
  h.phase = newest->phase();
  h.scale = newest->scale();
  std::vector<std::string> names;
  for (const v1::TensorDiagnostics& tensor : newest->tensors()) {
    names.push_back(tensor.tensor());
    if (glob.empty() || GlobMatches(glob, tensor.tensor())) Add(tensor, &h);
  }
  if (h.tensors == 0) {
    return absl::NotFoundError(absl::StrCat("no tensor matches '", glob, "'; there are ", absl::StrJoin(names, ", ")));
  }
  judge.Tell(&h);
  if (h.nonzero > 0) {
    for (double* share : {&h.flushed_unscaled, &h.flushed_scaled, &h.overflowed_scaled}) {
      *share /= static_cast<double>(h.nonzero);
    }
  }
  return h;
}

std::string HistogramText(const Histogram& h) {
  const Rows rows = RowsOf(h);
  std::string text = absl::StrCat(
      "step ", h.step, h.phase.empty() || h.phase == "main" ? "" : absl::StrCat(", phase ", Clean(h.phase)), ": ",
      Count(static_cast<double>(h.nonzero)), " values that are not 0 in ", h.tensors,
      h.tensors == 1 ? " tensor, " : " tensors, ", Count(static_cast<double>(h.zeros)), " zeros\n");
  absl::StrAppendFormat(&text, "%6s  %-*s  %-*s  %s\n", "|v| >=", kBarColumns, "as they are", kBarColumns,
                        absl::StrCat("times ", Power(h.scale)), "in fp16");
  const auto row = [&](const std::string& label, int64_t plain, int64_t scaled, bool border, int e) {
    absl::StrAppendFormat(&text, "%6s  %-*s  %-*s  %s\n", label, kBarColumns, Bar(plain, rows.most), kBarColumns,
                          Bar(scaled, rows.most), border ? absl::StrCat("- ", NameOf(RangeOf(e))) : "|");
  };
  const int lowest = LowestRow(h, rows);
  for (int e = rows.last; e >= lowest; --e) {
    row(absl::StrCat("2^", e), CountAt(h, e), CountAt(h, e - rows.shift),
        e == rows.last || RangeOf(e) != RangeOf(e + 1), e);
  }
  if (lowest > rows.first) {
    row("less", CountBelow(h, lowest), CountBelow(h, lowest - rows.shift),
        lowest > rows.last || RangeOf(lowest) != RangeOf(lowest - 1), lowest - 1);
  }
  return absl::StrCat(text, Verdict(h));
}

std::string HistogramJson(absl::string_view job_id, const Histogram& h) {
  const std::string counts = absl::StrJoin(h.counts, ", ", [](std::string* out, const auto& bin) {
    absl::StrAppend(out, "[", bin.first, ", ", bin.second, "]");
  });
  const std::string safe =
      h.largest_safe_scale > 0 ? absl::StrCat(", \"largest_safe_scale\": ", JsonNumber(h.largest_safe_scale)) : "";
  return absl::StrCat(
      "{\"job_id\": ", JsonText(job_id), ", \"step\": ", h.step, ", \"phase\": ", JsonText(h.phase),
      ", \"scale\": ", JsonNumber(h.scale), ", \"tensors\": ", h.tensors, ", \"nonzero\": ", h.nonzero,
      ", \"zeros\": ", h.zeros, ", \"non_finite\": ", h.non_finite, ", \"counts\": [", counts,
      "], \"flushed_unscaled\": ", JsonNumber(h.flushed_unscaled),
      ", \"flushed_scaled\": ", JsonNumber(h.flushed_scaled),
      ", \"overflowed_scaled\": ", JsonNumber(h.overflowed_scaled), ", \"worst\": {\"tensor\": ", JsonText(h.worst),
      ", \"flushed_unscaled\": ", JsonNumber(h.worst_flushed), "}", safe, ", \"unscalable\": ", h.unscalable,
      ", \"judged_steps\": ", h.judged_steps, ", \"first_judged_step\": ", h.first_judged_step, "}\n");
}

std::string HistogramSvg(const Histogram& h, absl::string_view title) {
  const Rows rows = RowsOf(h);
  std::string svg =
      "<svg xmlns='http://www.w3.org/2000/svg' width='960' height='560' viewBox='0 0 960 560' "
      "font-family='sans-serif'>\n"
      "<rect width='960' height='560' fill='white'/>\n";
  absl::StrAppendFormat(&svg, "<text x='60' y='28' font-size='17'>%s</text>\n", Escaped(title));
  svg += Panel(rows, 80).Draw(h, 0, "gradients as they are: " + Small(h.flushed_unscaled) + " flushed to 0 by fp16");
  svg += Panel(rows, 310).Draw(h, rows.shift,
                               "times " + Power(h.scale) + ": " + Small(h.flushed_scaled) + " flushed to 0, " +
                                   Small(h.overflowed_scaled) + " infinite");
  const std::pair<const char*, const char*> legend[] = {
      {"#c0392b", "flushed to 0"}, {"#e6a23c", "subnormal"}, {"#2e7d5b", "normal"}, {"#6a1b9a", "infinite"}};
  double x = 60;
  for (const auto& [colour, name] : legend) {
    absl::StrAppendFormat(&svg,
                          "<rect x='%.0f' y='522' width='12' height='12' fill='%s'/>"
                          "<text x='%.0f' y='533' font-size='12'>%s</text>\n",
                          x, colour, x + 18, name);
    x += 130;
  }
  if (h.largest_safe_scale > 0) {
    absl::StrAppendFormat(&svg, "<text x='930' y='533' font-size='12' text-anchor='end'>largest safe scale %s</text>\n",
                          Power(h.largest_safe_scale));
  }
  return svg + "</svg>\n";
}

}  // namespace ampd::client
