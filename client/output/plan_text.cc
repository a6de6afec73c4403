#include "client/output/plan_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/output/table.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

using v1::PrecisionSpec;

constexpr int kLayerColumns = 21;
constexpr int kKindColumns = 10;

bool KnowsSpeed(const v1::PlanReport& report) {
  return report.device_model().memory_bandwidth() > 0 && report.device_model().fp32_flops() > 0;
}

std::string Peaks(const v1::DeviceModel& model) {
  std::vector<std::string> peaks;
  const auto add = [&](const char* mode, double flops) {
    if (flops > 0) peaks.push_back(absl::StrFormat("%s %.4g", mode, flops / 1e12));
  };
  add("FP32", model.fp32_flops());
  add("TF32", model.tf32_flops());
  add("FP16", model.fp16_flops());
  add("BF16", model.bf16_flops());
  add("FP8", model.fp8_flops());
  return peaks.empty() ? "" : absl::StrCat(absl::StrJoin(peaks, ", "), " TFLOP/s");
}

std::string DeviceLine(const v1::DeviceModel& model) {
  std::vector<std::string> facts;
  if (const std::string peaks = Peaks(model); !peaks.empty()) facts.push_back(peaks);
  if (model.memory_bandwidth() > 0) facts.push_back(absl::StrFormat("%.4g GB/s", model.memory_bandwidth() / 1e9));
  if (model.memory_bytes() > 0) facts.push_back(Bytes(model.memory_bytes()));
  if (model.usd_per_hour() > 0) facts.push_back(absl::StrFormat("$%.4g/h", model.usd_per_hour()));
  return absl::StrCat(Clean(model.name()), facts.empty() ? "" : ": ", absl::StrJoin(facts, ", "), "\n");
}

std::string Head(const v1::PlanReport& report) {
  const v1::TrainSpec& train = report.spec().train();
  std::string batch = absl::StrCat("batch ", train.batch_size());
  if (train.micro_batch_size() != train.batch_size()) {
    absl::StrAppend(&batch, " in micro-batches of ", train.micro_batch_size());
  }
  return absl::StrCat(Clean(report.spec().name()), ", ", PrecisionSpec::Mode_Name(report.spec().precision().mode()),
                      ", ", batch, ", ", report.plan().parameters(), " parameters\n",
                      DeviceLine(report.device_model()));
}

std::string DTypeText(const v1::LayerCost& layer, PrecisionSpec::Mode mode) {
  const std::string of_mode = absl::StrCat("mode ", PrecisionSpec::Mode_Name(mode));
  if (layer.mnk().empty() || layer.dtype_reason() == of_mode) return layer.dtype();
  return absl::StrCat(layer.dtype(), " (", layer.dtype_reason(), ")");
}

// Short enough for a column; a line below the table tells the letters.
std::string CoresText(const v1::LayerCost& layer) {
  if (layer.mnk().empty()) return "-";
  const std::string text = absl::StrReplaceAll(
      layer.tensor_core_eligible() ? layer.padding() : layer.tensor_core_reason(), {{" is no multiple of ", " not x"},
                                                                                    {" are no multiples of ", " not x"},
                                                                                    {" = ", " "},
                                                                                    {" -> ", "->"},
                                                                                    {"channels", "C"},
                                                                                    {"filters", "F"}});
  if (layer.tensor_core_eligible()) return text.empty() ? "yes" : absl::StrCat("yes: ", text);
  return absl::StrCat("no: ", text);
}

std::string BoundText(const v1::LayerCost& layer) {
  if (layer.bound() == v1::LayerCost::MEMORY) return "mem";
  return layer.bound() == v1::LayerCost::COMPUTE ? "comp" : "-";
}

std::string Seconds(double seconds) { return seconds > 0 ? StepTime(seconds) : "-"; }

std::string Decimal(double value) { return absl::StrFormat(value < 99.95 ? "%.1f" : "%.0f", value); }

std::string LayerTable(const v1::PlanReport& report) {
  Table table({"LAYER", "KIND", "DTYPE", "TENSOR CORES", "M x N x K", ">GFLOP", ">MB", ">FLOP/B", "BOUND", ">FLOOR"});
  double seconds = 0;
  std::string phase;
  for (const v1::LayerCost& layer : report.layers()) {
    if (layer.phase() != phase) table.Add({absl::StrCat("phase ", layer.phase(), ":")});
    phase = layer.phase();
    seconds += layer.seconds();
    table.Add({Truncate(Clean(layer.layer()), kLayerColumns), Truncate(layer.kind(), kKindColumns),
               DTypeText(layer, report.spec().precision().mode()), CoresText(layer), absl::StrJoin(layer.mnk(), "x"),
               Decimal(layer.flops() / 1e9), Decimal(layer.bytes() / 1e6), Decimal(layer.intensity()), BoundText(layer),
               Seconds(layer.seconds())});
  }
  table.Add({"a step", "", "", "", "", Decimal(report.step_flops() / 1e9), Decimal(report.step_bytes() / 1e6),
             Decimal(report.step_bytes() > 0 ? report.step_flops() / report.step_bytes() : 0), "", Seconds(seconds)});
  return table.ToString();
}

// Memory is one arena, in which a kernel's workspace takes what tensors leave free at its time: a mode's is what that
// adds.
std::string OverlapLine(const v1::PlanReport& report) {
  int64_t most = 0;
  for (const v1::LayerCost& layer : report.layers()) most = std::max(most, layer.workspace_bytes());
  for (const v1::ModeEstimate& mode : report.modes()) {
    const bool own = mode.mode() == report.spec().precision().mode() && mode.supported();
    if (own && most > mode.workspace_bytes()) {
      return "A workspace lies where no activation does at its time; WORKSPACE below is what that adds to them.\n";
    }
  }
  return "";
}

// What runs as one, with how much memory beside its operands, and whose word that is.
std::string CallsText(const v1::PlanReport& report) {
  Table table({"LAYER", "RUNS AS ONE", ">WORKSPACE"});
  bool any = false;
  for (const v1::LayerCost& layer : report.layers()) {
    if (layer.fused().empty() && layer.workspace_bytes() == 0) continue;
    any = true;
    table.Add({Truncate(Clean(absl::StrCat(layer.phase(), layer.phase().empty() ? "" : ": ", layer.layer())), 40),
               layer.fused().empty() ? "-" : Clean(layer.fused()), Bytes(layer.workspace_bytes())});
  }
  if (!any) return "";
  std::string said;
  if (!report.library().empty()) {
    said = absl::StrCat("Convolutions and attention as ", Clean(report.library()), " plans them for ",
                        Clean(report.device_model().name()), ", products of matrices at most.\n");
  } else if (!report.library_not_asked().empty()) {
    said = absl::StrCat("At most, and what could run as one; no plans of cuDNN: ", Clean(report.library_not_asked()),
                        ".\n");
  }
  return absl::StrCat(table.ToString(), said, OverlapLine(report));
}

// Of the product layers, by the modes in which they compute.
std::string RidgeLine(const v1::PlanReport& report) {
  double least = 0, most = 0;
  for (const v1::LayerCost& layer : report.layers()) {
    if (!(layer.ridge() > 0)) continue;
    least = least == 0 ? layer.ridge() : std::min(least, layer.ridge());
    most = std::max(most, layer.ridge());
  }
  if (most == 0) return "";
  const std::string ridge = least == most ? Decimal(most) : absl::StrCat(Decimal(least), " (f32) to ", Decimal(most));
  return absl::StrCat("Below ", ridge, " FLOP/B memory bounds a layer on ", Clean(report.device_model().name()),
                      ", above it compute.\n");
}

std::string Legend(const v1::PlanReport& report) {
  for (const v1::LayerCost& layer : report.layers()) {
    if (!layer.padding().empty() || (!layer.mnk().empty() && !layer.tensor_core_eligible())) {
      return "M, N, K: rows, columns and inner extent of a product; C, F: channels and filters; x8: a multiple of 8.\n";
    }
  }
  return "";
}

std::string LargestBatch(const v1::ModeEstimate& mode) {
  return absl::StrCat(mode.largest_batch(), mode.largest_batch_is_all_samples() ? " (all samples)" : "");
}

// Of no mode.
std::string DataLine(const v1::PlanReport& report) {
  if (report.data_bytes() <= 0) return "";
  return absl::StrCat("Data: up to ", Bytes(report.data_bytes()),
                      " more of the host's memory for samples (data.cache, spectrograms, arrays), in no total.\n");
}

std::string MemoryTable(const v1::PlanReport& report) {
  Table table({"MODE", ">WEIGHTS", ">GRADIENTS", ">OPTIMIZER", ">ACTIVATIONS", ">WORKSPACE", ">TOTAL", ">MAX BATCH"});
  std::string refused;
  for (const v1::ModeEstimate& mode : report.modes()) {
    const std::string name = PrecisionSpec::Mode_Name(mode.mode());
    if (!mode.supported()) {
      absl::StrAppend(&refused, name, ": no. ", Clean(mode.reason()), "\n");
      continue;
    }
    table.Add({name, Bytes(mode.weight_bytes()), Bytes(mode.gradient_bytes()), Bytes(mode.optimizer_bytes()),
               Bytes(mode.activation_bytes()), Bytes(mode.workspace_bytes()), Bytes(mode.total_bytes()),
               report.device_model().memory_bytes() == 0 ? "-" : LargestBatch(mode)});
  }
  return absl::StrCat(table.ToString(), refused, DataLine(report));
}

std::string SpeedTable(const v1::PlanReport& report) {
  if (!KnowsSpeed(report)) return "";
  Table table({"MODE", ">FLOOR", ">SPEED-UP", ">IN FASTER PRODUCTS", ">BY", ">AMDAHL", ">$/M SAMPLES"});
  for (const v1::ModeEstimate& mode : report.modes()) {
    if (!mode.supported()) continue;
    const double share = mode.accelerated_share(), by = std::max(1.0, mode.accelerated_by());
    table.Add({PrecisionSpec::Mode_Name(mode.mode()), Seconds(mode.step_seconds()),
               mode.speed_up() > 0 ? absl::StrFormat("%.2fx", mode.speed_up()) : "-", share > 0 ? Percent(share) : "-",
               share > 0 ? absl::StrFormat("%.1fx", by) : "-",
               share > 0 ? absl::StrFormat("%.2fx", 1 / (1 - share + share / by)) : "-",
               mode.has_usd_per_million_samples() ? Figure(mode.usd_per_million_samples()) : "-"});
  }
  return table.ToString();
}

bool IsNote(const v1::Advice& advice) { return advice.kind() == v1::Advice::KIND_UNSPECIFIED; }

std::string NotesText(const v1::PlanReport& report) {
  std::string text;
  for (const v1::Advice& advice : report.advice()) {
    if (IsNote(advice)) absl::StrAppend(&text, Clean(advice.text()), "\n");
  }
  return text;
}

std::string AdviceText(const v1::PlanReport& report) {
  if (std::all_of(report.advice().begin(), report.advice().end(), IsNote)) {
    return KnowsSpeed(report) ? "Nothing to advise.\n" : "";
  }
  std::string text = "Advice, each tried by planning it:\n";
  int number = 0;
  for (const v1::Advice& advice : report.advice()) {
    if (IsNote(advice)) continue;
    absl::StrAppend(&text, "  ", ++number, ". ", Clean(advice.text()), "\n");
    if (!advice.field().empty()) {
      absl::StrAppend(&text, "     --set ", Clean(advice.field()), "=", Clean(advice.value()), "\n");
    }
  }
  return text;
}

std::string Unknown(const v1::PlanReport& report) {
  if (KnowsSpeed(report)) return "";
  return absl::StrCat("How fast ", Clean(report.device_model().name()),
                      " is is not known, so there are no times: give its peaks and bandwidth in the daemon's\n"
                      "configuration (device_models), or plan for another kind with --gpu, e.g. --gpu H100-SXM.\n");
}

}  // namespace

std::string PlanReportText(const v1::PlanReport& report) {
  std::vector<std::string> parts = {
      Head(report),       absl::StrCat(LayerTable(report), RidgeLine(report), Legend(report)),
      CallsText(report),  MemoryTable(report),
      SpeedTable(report), Unknown(report),
      NotesText(report),  AdviceText(report)};
  parts.erase(std::remove(parts.begin(), parts.end(), ""), parts.end());
  return absl::StrJoin(parts, "\n");
}

}  // namespace ampd::client
