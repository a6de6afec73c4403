// Rows of kernel_bench: uses of an op, and of what computes its gradients, registered with Google Benchmark.
#ifndef AMPD_TESTS_BENCH_KERNEL_ROWS_H_
#define AMPD_TESTS_BENCH_KERNEL_ROWS_H_

#include <benchmark/benchmark.h>

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/ops/op_def.h"
#include "engine/runtime/backend.h"

namespace ampd::bench {

// What rows are measured with; to be set before the first is registered.
struct Rows {
  int threads = 2;
  // Borrowed; null: the CPU backend. Launches of a device are timed twenty at a time, on the same memory: what fits its
  // cache is measured there.
  runtime::Backend* device = nullptr;
};
Rows& rows();

// One use of an op.
struct Use {
  ir::OpKind op = ir::OpKind::kAdd;
  ir::Attributes attributes;
  std::vector<ir::TensorType> inputs;
  // Inputs that are parameters: published in the layout that the kernel asks for.
  std::set<int> weights;
  // Of integer inputs.
  int64_t index_below = 2;
  bool gradients = true;
};

// The rate at which `amount` of something comes by each iteration.
benchmark::Counter PerSecond(double amount);

// A row for `desc`; nothing where there is one of this name.
void Measure(const std::string& name, const runtime::NodeDesc& desc, int64_t index_below);

// `node` of `graph`, with these of its values as parameters.
runtime::NodeDesc DescOf(const ir::Graph& graph, const ir::Node& node, const std::set<ir::ValueId>& weights);

// A row "OP/SIZES/DTYPE" for the op and one for each kind of node among its gradients by all float inputs.
absl::Status MeasureUse(const std::string& sizes, const Use& use);

// kernel_sweeps.cc: products and convolutions over sizes, in f32, tf32, f16 and bf16, with their gradients.
absl::Status RegisterSweeps();

}  // namespace ampd::bench

#endif  // AMPD_TESTS_BENCH_KERNEL_ROWS_H_
