// A kernel prepared for one node, with its buffers, to be run again and again.
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
  // true; parameters lie in the layout that the kernel asks for. `backend` is borrowed; null: a CPU backend of its own.
  // Errors of preparing and publishing are returned.
  static absl::StatusOr<std::unique_ptr<KernelRunner>> Make(runtime::NodeDesc desc, int64_t index_below = 2,
                                                            runtime::Backend* backend = nullptr);

  // So many times, and waits for the device.
  absl::Status Launch(int times = 1);

  // Of one launch.
  ops::Cost cost() const;

 private:
  explicit KernelRunner(runtime::NodeDesc desc) : desc_(std::move(desc)) {}
  absl::Status Prepare(int64_t index_below);
  absl::Status AddInput(int i, int64_t index_below);

  runtime::NodeDesc desc_;
  absl::Status Fill(const ir::TensorType& type, int64_t index_below, const runtime::PublishedLayout* layout, char* to);

  std::unique_ptr<runtime::Backend> own_backend_;
  runtime::Backend* backend_ = nullptr;
  std::unique_ptr<runtime::Kernel> kernel_;
  std::vector<runtime::Buffer> buffers_;
  std::vector<TensorView> inputs_, outputs_;
  runtime::Buffer workspace_, step_;
};

}  // namespace ampd::bench

#endif  // AMPD_TESTS_BENCH_KERNEL_RUNNER_H_
