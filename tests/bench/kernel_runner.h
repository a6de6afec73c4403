// A CPU kernel prepared for one node, with its buffers, to be run again and again.
#ifndef AMPD_TESTS_BENCH_KERNEL_RUNNER_H_
#define AMPD_TESTS_BENCH_KERNEL_RUNNER_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/core/tensor.h"
#include "engine/ops/op_def.h"
#include "engine/runtime/backend.h"

namespace ampd::bench {

// Thread-compatible.
class KernelRunner {
 public:
  // `desc` says how many threads. Floats are drawn between -0.25 and 0.75, integers below `index_below`, bools are
  // true; parameters lie in the layout that the kernel asks for. Errors of preparing and publishing are returned.
  static absl::StatusOr<std::unique_ptr<KernelRunner>> Make(runtime::NodeDesc desc, int64_t index_below = 2);

  absl::Status Launch();

  // Of one launch.
  ops::Cost cost() const;

 private:
  explicit KernelRunner(runtime::NodeDesc desc) : desc_(std::move(desc)) {}
  absl::Status Prepare(int64_t index_below);
  absl::Status AddInput(int i, int64_t index_below);

  runtime::NodeDesc desc_;
  std::unique_ptr<runtime::Backend> backend_;
  std::unique_ptr<runtime::Kernel> kernel_;
  std::vector<AlignedBuffer> buffers_;
  std::vector<TensorView> inputs_, outputs_;
  AlignedBuffer workspace_;
  runtime::StepState step_;
};

}  // namespace ampd::bench

#endif  // AMPD_TESTS_BENCH_KERNEL_RUNNER_H_
