#include "server/web/series_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/text.h"

namespace ampd {
namespace {

constexpr const char* kPhaseColumns[] = {"loss", "loss_scale", "learning_rate", "gradient_norm"};
constexpr const char* kThroughputColumns[] = {"samples_per_second", "step_seconds", "input_wait_seconds",
                                              "model_flops_utilization"};

// The shortest text that reads back as the same number.
void AppendReal(double value, std::string* out) {
  if (!std::isfinite(value)) {
    out->append("null");
    return;
  }
  char buffer[64];
  out->append(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr);
}

using Buckets = std::vector<SeriesBucket>;

void AppendIntegers(const char* name, const Buckets& buckets, absl::FunctionRef<int64_t(const SeriesBucket&)> of,
                    std::string* out) {
  absl::StrAppend(
      out, "\"", name, "\": [",
      absl::StrJoin(buckets, ",", [&](std::string* text, const SeriesBucket& b) { absl::StrAppend(text, of(b)); }),
      "]");
}

void AppendReals(const char* name, const Buckets& buckets, absl::FunctionRef<double(const SeriesBucket&)> of,
                 std::string* out) {
  absl::StrAppend(out, "\"", name, "\": [");
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendReal(of(buckets[i]), out);
  }
  out->push_back(']');
}

void AppendColumn(const char* name, int column, const Buckets& buckets, std::string* out) {
  const auto cell = [column](const SeriesBucket& b) -> const Cell& { return b.row.cells[column]; };
  absl::StrAppend(out, "\"", name, "\": {");
  // Those of a cell without finite values are not finite.
  AppendReals(
      "min", buckets, [&](const SeriesBucket& b) { return cell(b).min; }, out);
  out->append(", ");
  AppendReals(
      "max", buckets, [&](const SeriesBucket& b) { return cell(b).max; }, out);
  out->append(", ");
  // A sum of finite values may be infinite, and is of no use then; their mean is not.
  const auto mean = [&](const SeriesBucket& b) {
    const double mean = cell(b).sum / static_cast<double>(cell(b).finite);
    return cell(b).finite > 0 && !std::isfinite(mean) ? cell(b).last : mean;
  };
  AppendReals("mean", buckets, mean, out);
  out->append(", ");
  AppendReals(
      "last", buckets, [&](const SeriesBucket& b) { return cell(b).last; }, out);
  out->append(", ");
  AppendIntegers(
      "non_finite", buckets, [&](const SeriesBucket& b) { return cell(b).non_finite; }, out);
  out->push_back('}');
}

// Without the braces around them.
void AppendSeries(const Buckets& buckets, const char* const (&columns)[kSeriesColumns], bool with_skips,
                  std::string* out) {
  AppendIntegers(
      "first_step", buckets, [](const SeriesBucket& b) { return b.row.first_step; }, out);
  out->append(", ");
  AppendIntegers(
      "last_step", buckets, [](const SeriesBucket& b) { return b.row.last_step; }, out);
  out->append(", ");
  AppendIntegers(
      "reports", buckets, [](const SeriesBucket& b) { return b.row.reports; }, out);
  if (with_skips) {
    out->append(", ");
    AppendIntegers(
        "skipped", buckets, [](const SeriesBucket& b) { return b.skipped; }, out);
  }
  out->append(", \"columns\": {");
  for (int i = 0; i < kSeriesColumns; ++i) {
    if (i > 0) out->append(", ");
    AppendColumn(columns[i], i, buckets, out);
  }
  out->push_back('}');
}

// Of the range; the newest of each bucket where they are too many.
std::vector<const EvaluationPoint*> Choose(const std::vector<EvaluationPoint>& all, const SeriesRange& range,
                                           int64_t width) {
  std::vector<const EvaluationPoint*> chosen;
  // One is at the end of a step, the first may be before any.
  for (const EvaluationPoint& point : all) {
    if (point.step <= range.to && point.step >= range.from - 1) chosen.push_back(&point);
  }
  if (static_cast<int64_t>(chosen.size()) <= range.points) return chosen;
  std::vector<const EvaluationPoint*> newest;
  for (const EvaluationPoint* point : chosen) {
    const bool same = !newest.empty() && (newest.back()->step - 1) / width == (point->step - 1) / width;
    if (same) newest.pop_back();
    newest.push_back(point);
  }
  return newest;
}

std::string EvaluationsJson(const std::vector<const EvaluationPoint*>& points) {
  std::set<std::string> names;
  for (const EvaluationPoint* point : points) {
    for (const auto& [name, value] : point->metrics) names.insert(name);
  }
  const auto join = [&](auto of) {
    return absl::StrJoin(points, ",", [&](std::string* out, const EvaluationPoint* point) { of(*point, out); });
  };
  std::string json = absl::StrCat(
      "{\"step\": [", join([](const EvaluationPoint& point, std::string* out) { absl::StrAppend(out, point.step); }),
      "], \"epoch\": [",
      join([](const EvaluationPoint& point, std::string* out) { absl::StrAppend(out, point.epoch); }),
      "], \"metrics\": {");
  const char* separator = "";
  for (const std::string& name : names) {
    absl::StrAppend(&json, separator, QuoteJson(name), ": [", join([&](const EvaluationPoint& point, std::string* out) {
      const auto found = point.metrics.find(name);
      AppendReal(found == point.metrics.end() ? std::nan("") : found->second, out);
    }),
                    "]");
    separator = ", ";
  }
  return absl::StrCat(json, "}}");
}

}  // namespace

std::string SeriesJson(const std::string& job_id, const JobDigest& digest, const SeriesRange& asked) {
  SeriesRange range = asked;
  range.to = range.to == 0 ? digest.last_step() : std::min(range.to, digest.last_step());
  const bool empty = range.to < range.from;
  const int64_t width = empty ? 1 : BucketWidth(range.from, range.to, range.points);
  const auto buckets_of = [&](const Series& series) {
    return empty ? Buckets() : series.Buckets(range.from, range.to, width);
  };
  std::string json =
      absl::StrCat("{\"job_id\": ", QuoteJson(job_id), ", \"last_sequence\": ", digest.sequence(),
                   ", \"first_step\": ", empty ? 0 : range.from, ", \"last_step\": ", empty ? 0 : range.to,
                   ", \"total_steps\": ", digest.total_steps(), ", \"bucket_steps\": ", width, ",\n\"phases\": [");
  const char* separator = "";
  for (const auto& [name, series] : digest.phases()) {
    absl::StrAppend(&json, separator, "{\"name\": ", QuoteJson(name), ", ");
    AppendSeries(buckets_of(series), kPhaseColumns, true, &json);
    json.push_back('}');
    separator = ",\n";
  }
  json.append("],\n\"throughput\": {");
  AppendSeries(buckets_of(digest.throughput()), kThroughputColumns, false, &json);
  absl::StrAppend(
      &json, "},\n\"evaluations\": ",
      EvaluationsJson(empty ? std::vector<const EvaluationPoint*>() : Choose(digest.evaluations(), range, width)),
      "}\n");
  return json;
}

}  // namespace ampd
