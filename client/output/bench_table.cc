#include "client/output/bench_table.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/output/event_line.h"
#include "client/output/svg.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "proto/spec/text.h"

namespace ampd::client {
namespace {

using v1::BenchCell;
using v1::PrecisionSpec;

std::string SizeOf(const BenchCell& cell) {
  return cell.size().empty() ? absl::StrCat(cell.batch_size()) : cell.size();
}

std::string Milliseconds(double seconds) {
  const double ms = seconds * 1e3;
  return ms >= 100 ? absl::StrFormat("%.0f", ms) : ms >= 1 ? absl::StrFormat("%.2f", ms) : absl::StrFormat("%.4f", ms);
}

struct Column {
  std::string header;
  // Empty: the cell has no such figure.
  std::function<std::string(const BenchCell&)> text;
};

std::vector<Column> Columns() {
  return {
      {">ms/STEP", [](const BenchCell& c) { return c.steps() == 0 ? "" : Milliseconds(c.step_seconds()); }},
      {">p10", [](const BenchCell& c) { return c.steps() == 0 ? "" : Milliseconds(c.step_seconds_p10()); }},
      {">p90", [](const BenchCell& c) { return c.steps() == 0 ? "" : Milliseconds(c.step_seconds_p90()); }},
      {">SAMPLES/s",
       [](const BenchCell& c) { return c.samples_per_second() <= 0 ? "" : Count(c.samples_per_second()); }},
      {">SPEED-UP", [](const BenchCell& c) { return c.has_speed_up() ? absl::StrFormat("%.2fx", c.speed_up()) : ""; }},
      {">MEMORY", [](const BenchCell& c) { return c.has_peak_memory_bytes() ? Bytes(c.peak_memory_bytes()) : ""; }},
      {">BUSY", [](const BenchCell& c) { return c.has_device_utilization() ? Percent(c.device_utilization()) : ""; }},
      {">GFLOP/s",
       [](const BenchCell& c) {
         return c.has_flops_per_second() ? absl::StrFormat("%.4g", c.flops_per_second() / 1e9) : "";
       }},
      {">MFU",
       [](const BenchCell& c) { return c.has_model_flops_utilization() ? Percent(c.model_flops_utilization()) : ""; }},
      {">LOSS", [](const BenchCell& c) { return c.has_loss() ? Figure(c.loss()) : ""; }},
      {">GAP",
       [](const BenchCell& c) { return c.has_loss_gap() ? absl::StrFormat("%+.2f%%", 100 * c.loss_gap()) : ""; }},
      {">FLUSHED", [](const BenchCell& c) { return c.has_underflow_share() ? Percent(c.underflow_share()) : ""; }},
      {">SKIPS", [](const BenchCell& c) { return c.has_loss() ? absl::StrCat(c.steps_skipped()) : ""; }},
      {">$/M SAMPLES",
       [](const BenchCell& c) { return c.has_usd_per_million_samples() ? Figure(c.usd_per_million_samples()) : ""; }},
      {">$/M STEPS",
       [](const BenchCell& c) { return c.has_usd_per_million_steps() ? Figure(c.usd_per_million_steps()) : ""; }},
  };
}

std::string Quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

// Every field of a cell but the failure, which is a message.
std::vector<const google::protobuf::FieldDescriptor*> PlainFields() {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  for (int i = 0; i < BenchCell::descriptor()->field_count(); ++i) {
    const auto* field = BenchCell::descriptor()->field(i);
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) fields.push_back(field);
  }
  return fields;
}

std::string CsvValue(const BenchCell& cell, const google::protobuf::FieldDescriptor* field) {
  using google::protobuf::FieldDescriptor;
  const auto* reflection = BenchCell::GetReflection();
  if (field->has_presence() && !reflection->HasField(cell, field)) return "";
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return cell.has_failure() ? "" : absl::StrFormat("%.9g", reflection->GetDouble(cell, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection->GetInt64(cell, field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->GetEnum(cell, field)->name();
    default:
      return Quoted(reflection->GetString(cell, field));
  }
}

std::string ColorOf(PrecisionSpec::Mode mode) {
  // Told apart by the colour-blind too (Okabe and Ito).
  static const auto* const colors = new std::map<PrecisionSpec::Mode, std::string>{
      {PrecisionSpec::FP32, "#4d4d4d"}, {PrecisionSpec::TF32, "#e69f00"}, {PrecisionSpec::FP16, "#0072b2"},
      {PrecisionSpec::BF16, "#d55e00"}, {PrecisionSpec::FP8, "#009e73"},
  };
  const auto it = colors->find(mode);
  return it == colors->end() ? "#cc79a7" : it->second;
}

// Sizes and modes in the order in which they first come.
template <typename T>
void AddOnce(const T& value, std::vector<T>* values) {
  if (std::find(values->begin(), values->end(), value) == values->end()) values->push_back(value);
}

std::vector<ChartLine> LinesOf(const std::vector<BenchCell>& cells, const std::vector<std::string>& sizes,
                               const std::function<std::optional<double>(const BenchCell&)>& figure) {
  std::vector<PrecisionSpec::Mode> modes;
  for (const BenchCell& cell : cells) AddOnce(cell.mode(), &modes);
  std::vector<ChartLine> lines;
  for (const PrecisionSpec::Mode mode : modes) {
    ChartLine line{PrecisionSpec::Mode_Name(mode), ColorOf(mode), {}};
    line.values.resize(sizes.size());
    for (const BenchCell& cell : cells) {
      if (cell.mode() != mode || cell.has_failure()) continue;
      const auto at = std::find(sizes.begin(), sizes.end(), SizeOf(cell));
      line.values[static_cast<size_t>(at - sizes.begin())] = figure(cell);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> NotesOf(const std::vector<BenchCell>& cells) {
  constexpr size_t kMost = 8;
  std::vector<std::string> notes;
  size_t failed = 0;
  for (const BenchCell& cell : cells) {
    if (!cell.has_failure() || ++failed > kMost) continue;
    notes.push_back(absl::StrCat("no figures for ", PrecisionSpec::Mode_Name(cell.mode()), " at ", SizeOf(cell), ": ",
                                 v1::Failure::Class_Name(cell.failure().class_())));
  }
  if (failed > kMost) notes.push_back(absl::StrCat("and for ", failed - kMost, " more"));
  return notes;
}

}  // namespace

void BenchCells::Observe(const v1::JobEvent& event) {
  if (event.has_bench_cell()) cells_.push_back(event.bench_cell());
  if (!event.has_rewound()) return;
  const int64_t kept = event.rewound().to_step();
  cells_.erase(std::remove_if(cells_.begin(), cells_.end(), [&](const BenchCell& cell) { return cell.index() > kept; }),
               cells_.end());
}

std::string BenchTable(const std::vector<BenchCell>& cells) {
  std::vector<Column> shown;
  for (const Column& column : Columns()) {
    if (std::any_of(cells.begin(), cells.end(),
                    [&](const BenchCell& c) { return !c.has_failure() && !column.text(c).empty(); })) {
      shown.push_back(column);
    }
  }
  const bool sweep = !cells.empty() && !cells.front().size().empty();
  const bool failures = std::any_of(cells.begin(), cells.end(), [](const BenchCell& c) { return c.has_failure(); });
  std::vector<std::string> headers = {sweep ? ">SIZE" : ">BATCH", "MODE"};
  for (const Column& column : shown) headers.push_back(column.header);
  if (failures) headers.push_back("FAILURE");
  Table table(headers);
  for (const BenchCell& cell : cells) {
    std::vector<std::string> row = {SizeOf(cell), PrecisionSpec::Mode_Name(cell.mode())};
    for (const Column& column : shown) {
      const std::string text = cell.has_failure() ? "" : column.text(cell);
      row.push_back(text.empty() ? "-" : text);
    }
    if (failures) row.push_back(cell.has_failure() ? FailureText(cell.failure()) : "");
    table.Add(row);
  }
  return table.ToString();
}

std::string BenchCsv(const std::vector<BenchCell>& cells) {
  const auto fields = PlainFields();
  std::vector<std::string> header;
  for (const auto* field : fields) header.push_back(field->name());
  std::string csv = absl::StrCat(absl::StrJoin(header, ","), ",failure\r\n");
  for (const BenchCell& cell : cells) {
    for (const auto* field : fields) absl::StrAppend(&csv, CsvValue(cell, field), ",");
    absl::StrAppend(&csv, cell.has_failure() ? Quoted(FailureText(cell.failure())) : "", "\r\n");
  }
  return csv;
}

std::string BenchJson(const std::vector<BenchCell>& cells) {
  std::vector<std::string> values;
  for (const BenchCell& cell : cells) values.push_back(ToJson(cell, JsonStyle::kCompact));
  return absl::StrCat("[\n", absl::StrJoin(values, ",\n"), "\n]\n");
}

std::string BenchSvg(const std::string& title, const std::vector<BenchCell>& cells) {
  std::vector<std::string> sizes;
  for (const BenchCell& cell : cells) AddOnce(SizeOf(cell), &sizes);
  const bool sweep = !cells.empty() && !cells.front().size().empty();
  Chart time{
      .title = sweep ? "Time of a run" : "Time of a step",
      .x_label = sweep ? "size" : "batch size",
      .y_label = "milliseconds",
      .categories = sizes,
      .lines = LinesOf(cells, sizes, [](const BenchCell& c) { return std::optional<double>(c.step_seconds() * 1e3); }),
      .logarithmic = true};
  Chart speed{.title = "Speed-up over FP32",
              .x_label = time.x_label,
              .y_label = "times as fast",
              .categories = sizes,
              .lines = LinesOf(cells, sizes,
                               [](const BenchCell& c) {
                                 return c.has_speed_up() ? std::optional<double>(c.speed_up()) : std::nullopt;
                               }),
              .reference = 1};
  return SvgOf(title, {time, speed}, NotesOf(cells));
}

}  // namespace ampd::client
