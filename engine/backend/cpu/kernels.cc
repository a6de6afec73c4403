#include "engine/backend/cpu/kernels.h"

#include <utility>

namespace ampd::cpu {
namespace {

class FunctionKernel : public runtime::Kernel {
 public:
  FunctionKernel(int64_t workspace_bytes, LaunchFunction launch)
      : workspace_bytes_(workspace_bytes), launch_(std::move(launch)) {}

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  absl::Status Launch(const runtime::KernelArgs& args) override {
    launch_(args);
    return absl::OkStatus();
  }

 private:
  const int64_t workspace_bytes_;
  const LaunchFunction launch_;
};

}  // namespace

std::unique_ptr<runtime::Kernel> MakeKernel(int64_t workspace_bytes, LaunchFunction launch) {
  return std::make_unique<FunctionKernel>(workspace_bytes, std::move(launch));
}

}  // namespace ampd::cpu
