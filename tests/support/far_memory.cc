#include "tests/support/far_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/core/status.h"
#include "engine/ir/op_kind.h"

namespace ampd::testing {
namespace {

// One range of addresses, unreadable while nobody has it open.
class FarMemory : public runtime::Memory {
 public:
  explicit FarMemory(const FarMemoryOptions& options)
      : total_(options.total_bytes), fail_allocation_(options.fail_allocation) {
    // Addresses are not used twice, so that what was freed stays closed.
    size_ = 4 * total_ + (int64_t{4} << 20);
    void* p = mmap(nullptr, static_cast<size_t>(size_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    base_ = p == MAP_FAILED ? nullptr : static_cast<char*>(p);
  }
  ~FarMemory() override {
    if (base_ != nullptr) munmap(base_, static_cast<size_t>(size_));
  }

  bool on_host() const override { return false; }
  int64_t total_bytes() const override { return total_; }
  int64_t free_bytes() const override { return total_ - used_; }

  absl::StatusOr<void*> Allocate(int64_t bytes, absl::string_view what) override {
    const int64_t pages = AlignUp(bytes, sysconf(_SC_PAGESIZE));
    const bool fails = ++allocations_ == fail_allocation_;
    if (fails || base_ == nullptr || used_ + bytes > total_ || next_ + pages > size_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(what, ": asked for ", bytes, " bytes of memory, ", fails ? 0 : free_bytes(), " are free"));
    }
    char* p = base_ + next_;
    next_ += pages;
    used_ += bytes;
    sizes_[p] = bytes;
    return p;
  }
  void Free(void* p) override {
    const auto it = sizes_.find(static_cast<char*>(p));
    if (it == sizes_.end()) return;
    used_ -= it->second;
    sizes_.erase(it);
  }

  absl::Status Upload(const void* host, int64_t bytes, void* to) override {
    AMPD_RETURN_IF_ERROR(CheckNear(host, "upload"));
    AMPD_RETURN_IF_ERROR(CheckFar(to, bytes, "upload"));
    return Move(host, bytes, to);
  }
  absl::Status Download(const void* from, int64_t bytes, void* host) override {
    AMPD_RETURN_IF_ERROR(CheckFar(from, bytes, "download"));
    AMPD_RETURN_IF_ERROR(CheckNear(host, "download"));
    return Move(from, bytes, host);
  }
  absl::Status Copy(const void* from, int64_t bytes, void* to) override {
    AMPD_RETURN_IF_ERROR(CheckFar(from, bytes, "copy"));
    AMPD_RETURN_IF_ERROR(CheckFar(to, bytes, "copy"));
    return Move(from, bytes, to);
  }
  absl::Status Zero(void* p, int64_t bytes) override {
    AMPD_RETURN_IF_ERROR(CheckFar(p, bytes, "zero"));
    return Opened([&] {
      if (bytes > 0) std::memset(p, 0, static_cast<size_t>(bytes));
      return absl::OkStatus();
    });
  }
  absl::Status Wait() override { return absl::OkStatus(); }

  // Runs `body` with the memory open.
  template <typename Body>
  absl::Status Opened(const Body& body) {
    if (next_ > 0) mprotect(base_, static_cast<size_t>(next_), PROT_READ | PROT_WRITE);
    const absl::Status status = body();
    if (next_ > 0) mprotect(base_, static_cast<size_t>(next_), PROT_NONE);
    return status;
  }

  // Within one living allocation.
  absl::Status CheckFar(const void* p, int64_t bytes, absl::string_view what) const {
    const char* at = static_cast<const char*>(p);
    auto it = sizes_.upper_bound(const_cast<char*>(at));
    if (it != sizes_.begin() && at + bytes <= std::prev(it)->first + std::max<int64_t>(std::prev(it)->second, 1)) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("[far memory] ", what, ": ", bytes, " bytes that are not the device's"));
  }

 private:
  absl::Status CheckNear(const void* p, absl::string_view what) const {
    const char* at = static_cast<const char*>(p);
    if (at < base_ || at >= base_ + size_) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("[far memory] ", what, ": a pointer that is not the host's"));
  }
  absl::Status Move(const void* from, int64_t bytes, void* to) {
    return Opened([&] {
      if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
      return absl::OkStatus();
    });
  }

  const int64_t total_;
  const int fail_allocation_;
  char* base_ = nullptr;
  int64_t size_ = 0;
  int64_t next_ = 0;
  int64_t used_ = 0;
  int allocations_ = 0;
  std::map<char*, int64_t> sizes_;
};

class FarKernel : public runtime::Kernel {
 public:
  FarKernel(std::unique_ptr<runtime::Kernel> kernel, std::string name, FarMemory* memory)
      : kernel_(std::move(kernel)), name_(std::move(name)), memory_(memory) {}

  int64_t workspace_bytes() const override { return kernel_->workspace_bytes(); }
  int overwrites(int output) const override { return kernel_->overwrites(output); }

  absl::optional<runtime::PublishedLayout> published_layout(int input) const override {
    absl::optional<runtime::PublishedLayout> layout = kernel_->published_layout(input);
    if (!layout.has_value()) return layout;
    layout->write = [memory = memory_, write = std::move(layout->write), bytes = layout->bytes,
                     workspace_bytes = layout->workspace_bytes](const float* master, void* copy, void* workspace) {
      AMPD_RETURN_IF_ERROR(memory->CheckFar(master, sizeof(float), "published master"));
      AMPD_RETURN_IF_ERROR(memory->CheckFar(copy, bytes, "published copy"));
      AMPD_RETURN_IF_ERROR(memory->CheckFar(workspace, workspace_bytes, "workspace of publishing"));
      return memory->Opened([&] { return write(master, copy, workspace); });
    };
    return layout;
  }

  absl::Status Launch(const runtime::KernelArgs& args) override {
    for (const auto* tensors : {&args.inputs, &args.outputs}) {
      for (const TensorView& tensor : *tensors) {
        // A published copy's bytes are its layout's affair.
        AMPD_RETURN_IF_ERROR(memory_->CheckFar(tensor.data, tensors == &args.outputs ? tensor.bytes() : 1, name_));
      }
    }
    AMPD_RETURN_IF_ERROR(memory_->CheckFar(args.workspace, workspace_bytes(), name_));
    AMPD_RETURN_IF_ERROR(memory_->CheckFar(args.step, sizeof(runtime::StepState), name_));
    return memory_->Opened([&] { return kernel_->Launch(args); });
  }

 private:
  std::unique_ptr<runtime::Kernel> kernel_;
  const std::string name_;
  FarMemory* memory_;
};

class FarMemoryBackend : public runtime::Backend {
 public:
  FarMemoryBackend(int threads, const FarMemoryOptions& options)
      : cpu_(MakeCpuBackend(threads, options.padding)), memory_(std::make_unique<FarMemory>(options)) {
    const auto prepare = [this](const runtime::NodeDesc& desc) -> absl::StatusOr<std::unique_ptr<runtime::Kernel>> {
      AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Kernel> kernel, cpu_->kernels().Prepare(desc));
      return std::make_unique<FarKernel>(std::move(kernel), desc.name, memory_.get());
    };
    for (ir::OpKind op : ir::kAllOpKinds) table_.AddForAnyDTypes(op, prepare);
  }

  absl::string_view name() const override { return cpu_->name(); }
  const runtime::KernelTable& kernels() const override { return table_; }
  runtime::Memory* memory() const override { return memory_.get(); }
  bool CanFuse(ir::OpKind op) const override { return cpu_->CanFuse(op); }
  passes::PaddingPolicy padding() const override { return cpu_->padding(); }

  absl::Status CheckGradients(const float* gradients, absl::Span<const runtime::ArenaSlot> slots, float factor,
                              runtime::GradientCheck* check) override {
    AMPD_RETURN_IF_ERROR(memory_->CheckFar(gradients, 1, "gradients"));
    return memory_->Opened([&] { return cpu_->CheckGradients(gradients, slots, factor, check); });
  }
  absl::Status Update(const runtime::UpdateArgs& args) override {
    const float* arenas[] = {args.masters, args.gradients, args.moment1, args.moment2, args.moment3, args.average};
    for (const float* arena : arenas) {
      if (arena != nullptr) AMPD_RETURN_IF_ERROR(memory_->CheckFar(arena, 1, "update"));
    }
    return memory_->Opened([&] { return cpu_->Update(args); });
  }
  absl::Status Publish(const float* masters, int64_t size, DType dtype, void* copy) override {
    AMPD_RETURN_IF_ERROR(memory_->CheckFar(masters, size * SizeOf(DType::kF32), "publish"));
    AMPD_RETURN_IF_ERROR(memory_->CheckFar(copy, size * SizeOf(dtype), "publish"));
    return memory_->Opened([&] { return cpu_->Publish(masters, size, dtype, copy); });
  }
  absl::Status PadInto(const float* from, const Shape& shape, const Shape& padded, float* to) override {
    AMPD_RETURN_IF_ERROR(memory_->CheckFar(from, NumElements(shape) * SizeOf(DType::kF32), "pad"));
    AMPD_RETURN_IF_ERROR(memory_->CheckFar(to, NumElements(padded) * SizeOf(DType::kF32), "pad"));
    return memory_->Opened([&] { return cpu_->PadInto(from, shape, padded, to); });
  }
  absl::Status FindNonFinite(const TensorView& tensor, bool* found, bool* is_nan) override {
    AMPD_RETURN_IF_ERROR(memory_->CheckFar(tensor.data, tensor.bytes(), "find non-finite"));
    return memory_->Opened([&] { return cpu_->FindNonFinite(tensor, found, is_nan); });
  }

 private:
  std::unique_ptr<runtime::Backend> cpu_;
  std::unique_ptr<FarMemory> memory_;
  runtime::KernelTable table_;
};

}  // namespace

std::unique_ptr<runtime::Backend> MakeFarMemoryBackend(int threads, FarMemoryOptions options) {
  return std::make_unique<FarMemoryBackend>(threads, options);
}

}  // namespace ampd::testing
