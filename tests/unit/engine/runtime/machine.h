// A graph made ready on the CPU backend, with given numbers in it, and how far results are from a reference.
#ifndef AMPD_TESTS_UNIT_ENGINE_RUNTIME_MACHINE_H_
#define AMPD_TESTS_UNIT_ENGINE_RUNTIME_MACHINE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/plan.h"
#include "tests/support/graph_reference.h"

namespace ampd::runtime {

using testing::GraphInputs;
using testing::GraphResults;
using testing::RefTensor;

// One model on the CPU backend, with the numbers of `in` in it.
class Machine {
 public:
  Machine(const ir::Graph& graph, const GraphInputs& in, int threads)
      : backend_(MakeCpuBackend(threads)), layout_(graph) {
    auto plan = MakePlan(graph, *backend_, threads, &layout_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    plan_ = std::make_unique<Plan>(*std::move(plan));
    memory_ = std::make_unique<ModelMemory>(ModelMemory::Create(&layout_, backend_->memory()).value());
    for (size_t p = 0; p < in.parameters.size(); ++p) Fill(in.parameters[p], memory_->Master(static_cast<int32_t>(p)));
    for (size_t s = 0; s < in.states.size(); ++s) Fill(in.states[s], memory_->State(static_cast<int32_t>(s)));
    EXPECT_TRUE(memory_->PublishAll().ok());
    arena_ = Buffer::Allocate(backend_->memory(), plan_->arena_bytes, "arena").value();
    Poison();
    executor_ = Executor::Create(plan_.get(), memory_.get(), &arena_).value();
    for (const PlannedTensor& input : plan_->inputs) {
      inputs_.emplace_back(input.type.dtype, input.type.shape);
      Fill(in.inputs.at(input.name), inputs_.back().view());
      EXPECT_TRUE(executor_->BindInput(input.name, inputs_.back().view().data).ok());
    }
  }

  // Fills the arena with NaN, and gradients that a run overwrites: nothing may read what was not written in it.
  void Poison() {
    std::memset(arena_.data(), 0xff, static_cast<size_t>(plan_->arena_bytes));
    if (!plan_->overwrites_gradients) return;
    for (const ArenaSlot& slot : layout_.slots()) {
      std::memset(memory_->gradients() + slot.offset, 0xff, static_cast<size_t>(slot.size) * sizeof(float));
    }
  }

  void Run(const StepState& step, const Executor::Hook& hook = nullptr) {
    EXPECT_TRUE(memory_->BeginUpdate(plan_->overwrites_gradients).ok());
    const absl::Status status = executor_->Run(step, hook);
    EXPECT_TRUE(status.ok()) << status;
  }

  const Plan& plan() const { return *plan_; }
  Plan& plan() { return *plan_; }
  ModelMemory& memory() { return *memory_; }
  Executor& executor() { return *executor_; }

 private:
  static void Fill(const RefTensor& from, TensorView to) {
    for (int64_t i = 0; i < to.size(); ++i) {
      if (to.dtype == DType::kF32) to.as<float>()[i] = static_cast<float>(from.data[i]);
      if (to.dtype == DType::kI32) to.as<int32_t>()[i] = static_cast<int32_t>(from.data[i]);
      if (to.dtype == DType::kI64) to.as<int64_t>()[i] = static_cast<int64_t>(from.data[i]);
    }
  }

  std::unique_ptr<Backend> backend_;
  ModelLayout layout_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<ModelMemory> memory_;
  Buffer arena_;
  std::unique_ptr<Executor> executor_;
  std::vector<Tensor> inputs_;
};

inline double Largest(const RefTensor& t) {
  double largest = 0;
  for (double x : t.data) largest = std::max(largest, std::abs(x));
  return largest;
}

// Largest deviation over the largest reference value, or over `scale` where that is more.
inline double Deviation(const RefTensor& expected, TensorView actual, double scale = 1e-30) {
  double worst = 0;
  for (int64_t i = 0; i < actual.size(); ++i) {
    scale = std::max(scale, std::abs(expected.data[i]));
    const double d = std::abs(expected.data[i] - actual.as<float>()[i]);
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  return worst / scale;
}

}  // namespace ampd::runtime

#endif  // AMPD_TESTS_UNIT_ENGINE_RUNTIME_MACHINE_H_
