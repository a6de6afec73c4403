#include "engine/backend/cuda/kernels.h"

namespace ampd::cuda {
namespace {

class FunctionKernel : public runtime::Kernel {
 public:
  FunctionKernel(int64_t workspace_bytes, LaunchFunction launch, int overwrites)
      : workspace_bytes_(workspace_bytes), launch_(std::move(launch)), overwrites_(overwrites) {}

  int64_t workspace_bytes() const override { return workspace_bytes_; }
  int overwrites(int output) const override { return output == 0 ? overwrites_ : -1; }
  absl::Status Launch(const runtime::KernelArgs& args) override { return launch_(args); }

 private:
  const int64_t workspace_bytes_;
  const LaunchFunction launch_;
  const int overwrites_;
};

}  // namespace

std::unique_ptr<runtime::Kernel> MakeKernel(int64_t workspace_bytes, LaunchFunction launch, int overwrites) {
  return std::make_unique<FunctionKernel>(workspace_bytes, std::move(launch), overwrites);
}

void RegisterCudaKernels(runtime::KernelTable* table, Context* context) {
#define X(name) Register##name(table, context);
#include "engine/backend/cuda/kernel_files.def"
#undef X
}

}  // namespace ampd::cuda
