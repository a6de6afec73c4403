#include "tests/bench/floor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>

#include "engine/backend/cpu/parallel.h"
#include "engine/core/status.h"
#include "tests/bench/kernel_runner.h"

namespace ampd::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSecondsPerRate = 0.1;
constexpr int64_t kMatrix = 1024;
constexpr int64_t kLeastBytes = 64 << 10, kMostBytes = 256 << 20;

// Seconds of the fastest of the runs that fit the time; the first one warms up.
absl::StatusOr<double> Fastest(const std::function<absl::Status()>& run) {
  AMPD_RETURN_IF_ERROR(run());
  double best = 0, total = 0;
  for (int runs = 0; runs < 3 || total < kSecondsPerRate; ++runs) {
    const auto start = Clock::now();
    AMPD_RETURN_IF_ERROR(run());
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = runs == 0 ? seconds : std::min(best, seconds);
    total += seconds;
  }
  return best;
}

absl::StatusOr<double> ProductRate(DType dtype, int threads) {
  const ir::TensorType matrix = {dtype, {kMatrix, kMatrix}};
  AMPD_ASSIGN_OR_RETURN(auto runner, KernelRunner::Make({.op = ir::OpKind::kMatmul,
                                                         .name = "product",
                                                         .inputs = {matrix, matrix},
                                                         .outputs = {matrix},
                                                         .threads = threads,
                                                         .parameter_inputs = {false, true}}));
  AMPD_ASSIGN_OR_RETURN(const double seconds, Fastest([&] { return runner->Launch(); }));
  return runner->cost().flops / seconds;
}

absl::StatusOr<double> CopyRate(int threads, int64_t working_set) {
  const int64_t half = AlignUp(std::clamp(working_set, kLeastBytes, kMostBytes) / 2);
  const AlignedBuffer from(half), to(half);
  // Several copies a run, so that the clock and waking the threads do not count.
  const int64_t copies = std::max<int64_t>(1, (8 << 20) / half);
  AMPD_ASSIGN_OR_RETURN(const double seconds, Fastest([&] {
                          cpu::ParallelRange(threads, half, kTensorAlignment, [&](int, int64_t begin, int64_t end) {
                            for (int64_t i = 0; i < copies; ++i) {
                              std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
                              asm volatile("" ::: "memory");
                            }
                          });
                          return absl::OkStatus();
                        }));
  return 2.0 * static_cast<double>(half * copies) / seconds;
}

}  // namespace

absl::StatusOr<MachineRates> MeasureRates(int threads, int64_t working_set) {
  MachineRates rates;
  AMPD_ASSIGN_OR_RETURN(rates.f32_flops, ProductRate(DType::kF32, threads));
  AMPD_ASSIGN_OR_RETURN(rates.bf16_flops, ProductRate(DType::kBF16, threads));
  AMPD_ASSIGN_OR_RETURN(rates.bytes, CopyRate(threads, working_set));
  return rates;
}

Floor FloorOf(const runtime::Plan& plan, double update_bytes, const MachineRates& rates) {
  Floor floor{.bytes = update_bytes, .seconds = update_bytes / rates.bytes};
  for (const runtime::PlanStep& step : plan.steps) {
    const bool bf16 = !step.inputs.empty() && step.inputs[0].type.dtype == DType::kBF16;
    floor.flops += step.cost.flops;
    floor.bytes += step.cost.bytes;
    floor.seconds +=
        std::max(step.cost.bytes / rates.bytes, step.cost.flops / (bf16 ? rates.bf16_flops : rates.f32_flops));
  }
  return floor;
}

}  // namespace ampd::bench
