// What a job's step moves and computes on a GPU that need not be there, as its plan for one says:
//   plan_traffic [--fusion=none|chains|all] [--set=PATH=VALUE]... GPU JOB.yaml INPUT TARGET MODE
// GPU: a name of `ampctl plan --gpu`, as "H200". INPUT, TARGET and MODE as of bench_steps. Prints for each op, and for
// each shape of it, how often a step of the plan does it, the bytes that it reads and writes (inputs once, outputs
// once), its FLOPs and the seconds that both take at the GPU's peaks, whichever is longer; most seconds first, and the
// sum. What cuBLAS and cuDNN read again, and the update of parameters, are not in it.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "engine/ir/printer.h"
#include "engine/ops/compute.h"
#include "engine/ops/op_def.h"
#include "engine/train/planned_model.h"
#include "engine/train/sizing_backend.h"
#include "proto/spec/device_models.h"
#include "tests/bench/bench_job.h"

namespace ampd::train {
namespace {

struct Sum {
  int64_t steps = 0;
  double bytes = 0, flops = 0, seconds = 0;
  void Add(const Sum& other) {
    steps += other.steps;
    bytes += other.bytes;
    flops += other.flops;
    seconds += other.seconds;
  }
};

// "fused(cast add)" of joined steps.
std::string OpsOf(const runtime::PlanStep& step) {
  std::string ops(ir::OpName(step.op));
  if (step.fused.empty()) return ops;
  return absl::StrCat(
      ops, "(",
      absl::StrJoin(step.fused, " ",
                    [](std::string* out, const ir::FusedStep& fused) { absl::StrAppend(out, ir::OpName(fused.op)); }),
      ")");
}

std::string Types(const std::vector<runtime::PlannedTensor>& tensors) {
  return absl::StrJoin(tensors, " ", [](std::string* out, const runtime::PlannedTensor& tensor) {
    absl::StrAppend(out, ir::TypeString(tensor.type));
  });
}

void Print(const std::string& heading, const std::map<std::string, Sum>& sums, const Sum& all) {
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [name, sum] : sums) order.emplace_back(sum.seconds, name);
  std::sort(order.rbegin(), order.rend());
  std::printf("%10s %6s %6s %10s %10s  %s\n", "us", "share", "steps", "MB", "GFLOP", heading.c_str());
  for (const auto& [seconds, name] : order) {
    const Sum& sum = sums.at(name);
    std::printf("%10.1f %5.1f%% %6lld %10.1f %10.2f  %s\n", seconds * 1e6, 100 * seconds / all.seconds,
                static_cast<long long>(sum.steps), sum.bytes / 1e6, sum.flops / 1e9, name.c_str());
  }
}

// Of the units that a step computes with: those for vectors, or for products of its operands' dtype where the GPU has
// them.
double PeakOf(const v1::DeviceModel& gpu, const runtime::PlanStep& step) {
  const ir::OpKind op = step.op == ir::OpKind::kRegion ? step.fused.front().op : step.op;
  const bool recurrent = op == ir::OpKind::kLstmGrad || op == ir::OpKind::kGruGrad;
  double peak = 0;
  if ((ops::GetOpDef(op).precision == ops::PrecisionClass::kAllow || recurrent) && !step.inputs.empty()) {
    const DType dtype = step.inputs[0].type.dtype;
    const bool tf32 = step.attributes.String(ops::kComputeAttribute) == ops::kComputeTf32;
    peak = PeakFlops(gpu, IsF8(dtype)             ? v1::PrecisionSpec::FP8
                          : dtype == DType::kF16  ? v1::PrecisionSpec::FP16
                          : dtype == DType::kBF16 ? v1::PrecisionSpec::BF16
                          : tf32                  ? v1::PrecisionSpec::TF32
                                                  : v1::PrecisionSpec::FP32);
  }
  return peak > 0 ? peak : gpu.fp32_flops();
}

absl::Status Run(const std::vector<std::string>& words, const std::vector<std::string>& settings, Fusion fusion) {
  const v1::DeviceModel* gpu = FindDeviceModel(BuiltInDeviceModels(), words[0]);
  if (gpu == nullptr) return absl::NotFoundError(absl::StrCat("no GPU is known by the name ", words[0]));
  AMPD_ASSIGN_OR_RETURN(const ResolvedJobSpec spec, bench::ReadSpec(words[1], words[4], settings));
  AMPD_ASSIGN_OR_RETURN(const bench::Sample sample, bench::ParseSample(words[2], words[3]));
  AMPD_ASSIGN_OR_RETURN(const auto planned, PlanModel(spec, sample.info, MakeSizingBackend(*gpu), 1, fusion));
  std::map<std::string, Sum> by_op, by_shape;
  Sum all;
  for (const PlannedPhase& phase : planned->phases) {
    for (const runtime::PlanStep& step : phase.plans.back().steps) {
      const double seconds = std::max(step.cost.bytes / gpu->memory_bandwidth(), step.cost.flops / PeakOf(*gpu, step));
      const Sum own{1, step.cost.bytes, step.cost.flops, seconds};
      by_op[OpsOf(step)].Add(own);
      by_shape[absl::StrCat(OpsOf(step), " ", Types(step.inputs), " -> ", Types(step.outputs))].Add(own);
      all.Add(own);
    }
  }
  Print("op", by_op, all);
  Print("op, inputs -> outputs", by_shape, all);
  std::printf("%10.1f %5.1f%% %6lld %10.1f %10.2f  all, on %s; arena %.1f MB\n", all.seconds * 1e6, 100.0,
              static_cast<long long>(all.steps), all.bytes / 1e6, all.flops / 1e9, gpu->name().c_str(),
              static_cast<double>(planned->activation_bytes()) / 1e6);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  std::vector<std::string> words, settings;
  Fusion fusion = Fusion::kAll;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (absl::ConsumePrefix(&word, "--set=")) {
      settings.emplace_back(word);
    } else if (absl::ConsumePrefix(&word, "--fusion=")) {
      fusion = word == "none" ? Fusion::kNone : word == "chains" ? Fusion::kChains : Fusion::kAll;
    } else {
      words.emplace_back(word);
    }
  }
  const absl::Status status =
      words.size() == 5 ? Run(words, settings, fusion) : absl::InvalidArgumentError("needs GPU JOB INPUT TARGET MODE");
  if (status.ok()) return 0;
  std::fprintf(stderr, "plan_traffic: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace ampd::train

int main(int argc, char** argv) { return ampd::train::Main(argc, argv); }
