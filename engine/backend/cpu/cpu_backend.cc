#include "engine/backend/cpu/cpu_backend.h"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "engine/backend/cpu/arena_passes.h"
#include "engine/backend/cpu/block_functions.h"
#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/core/status.h"

namespace ampd {
namespace {

class CpuBackend : public runtime::Backend {
 public:
  CpuBackend(int threads, passes::PaddingPolicy padding) : threads_(std::max(threads, 1)), padding_(padding) {
    omp_set_num_threads(threads_);
    RegisterCpuKernels(&kernels_);
  }

  absl::string_view name() const override { return "cpu"; }
  const runtime::KernelTable& kernels() const override { return kernels_; }

  bool CanFuse(ir::OpKind op) const override { return cpu::HasBlockFunction(op); }

  passes::PaddingPolicy padding() const override { return padding_; }

  absl::Status CheckGradients(const float* gradients, absl::Span<const runtime::ArenaSlot> slots, float factor,
                              runtime::GradientCheck* check) override {
    checker_.Run(threads_, gradients, slots, factor, check);
    return absl::OkStatus();
  }

  absl::Status Update(const runtime::UpdateArgs& args) override {
    const int needed = args.config.moments();
    const float* given[optim::kMaxMoments] = {args.moment1, args.moment2, args.moment3};
    for (int i = 0; i < needed; ++i) {
      if (given[i] != nullptr) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("cpu update: the optimizer keeps ", needed, " moments and was given fewer"));
    }
    updater_.Run(threads_, args);
    return absl::OkStatus();
  }

  absl::Status Publish(const float* masters, int64_t size, DType dtype, void* copy) override {
    if (!IsFloat(dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("cpu publish: no copy of masters in ", DTypeName(dtype)));
    }
    cpu::ParallelFromF32(threads_, masters, size, dtype, copy);
    return absl::OkStatus();
  }

  absl::Status PadInto(const float* from, const Shape& shape, const Shape& padded, float* to) override {
    std::fill_n(to, NumElements(padded), 0.0f);
    if (NumElements(shape) == 0) return absl::OkStatus();
    const int64_t row = shape.back(), rows = NumElements(shape) / row;
    for (int64_t r = 0; r < rows; ++r) {
      int64_t at = 0, left = r, stride = padded.back();
      for (size_t d = shape.size() - 1; d-- > 0; left /= shape[d], stride *= padded[d]) at += left % shape[d] * stride;
      std::copy_n(from + r * row, row, to + at);
    }
    return absl::OkStatus();
  }

  absl::Status FindNonFinite(const TensorView& tensor, bool* found, bool* is_nan) override {
    const int64_t index = cpu::FirstNonFinite(threads_, tensor);
    *found = index >= 0;
    *is_nan = false;
    if (index < 0) return absl::OkStatus();
    float value = 0;
    cpu::ToF32(tensor.dtype, tensor.as<char>() + index * SizeOf(tensor.dtype), 1, &value);
    *is_nan = std::isnan(value);
    return absl::OkStatus();
  }

 private:
  const int threads_;
  const passes::PaddingPolicy padding_;
  runtime::KernelTable kernels_;
  cpu::GradientChecker checker_;
  cpu::Updater updater_;
};

}  // namespace

void RegisterCpuKernels(runtime::KernelTable* table) {
#define X(name) cpu::Register##name(table);
#include "engine/backend/cpu/kernel_files.def"
#undef X
  cpu::RegisterReducedOperands(table);
}

std::unique_ptr<runtime::Backend> MakeCpuBackend(int threads, passes::PaddingPolicy padding) {
  return std::make_unique<CpuBackend>(threads, padding);
}

}  // namespace ampd
