#include "engine/runtime/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd::runtime {
namespace {

class Host : public Memory {
 public:
  bool on_host() const override { return true; }
  int64_t total_bytes() const override { return int64_t{sysconf(_SC_PHYS_PAGES)} * PageBytes(); }
  int64_t free_bytes() const override { return int64_t{sysconf(_SC_AVPHYS_PAGES)} * PageBytes(); }

  absl::StatusOr<void*> Allocate(int64_t bytes, absl::string_view what) override {
    void* p = ::operator new (static_cast<size_t>(AlignUp(bytes)), std::align_val_t{kTensorAlignment}, std::nothrow);
    if (p == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat(what, ": asked for ", bytes, " bytes of memory, ", free_bytes(), " are free"));
    }
    AskForHugePages(static_cast<char*>(p), AlignUp(bytes));
    std::memset(p, 0, static_cast<size_t>(AlignUp(bytes)));
    return p;
  }
  void Free(void* p) override { ::operator delete (p, std::align_val_t{kTensorAlignment}); }

  absl::Status Upload(const void* host, int64_t bytes, void* to) override { return Copy(host, bytes, to); }
  absl::Status Download(const void* from, int64_t bytes, void* host) override { return Copy(from, bytes, host); }
  absl::Status Copy(const void* from, int64_t bytes, void* to) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  absl::Status Zero(void* p, int64_t bytes) override {
    if (bytes > 0) std::memset(p, 0, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  absl::Status Wait() override { return absl::OkStatus(); }

 private:
  static int64_t PageBytes() { return sysconf(_SC_PAGESIZE); }

  // Of arenas: a step goes over all of them, and with small pages, on virtual machines above all, much of its time goes
  // into looking up where they are. All of it is touched anyway; a refusal changes nothing.
  static void AskForHugePages(char* p, int64_t bytes) {
    constexpr int64_t kHugePage = int64_t{2} << 20;
    const auto address = reinterpret_cast<int64_t>(p);
    const int64_t begin = AlignUp(address, kHugePage), end = (address + bytes) / kHugePage * kHugePage;
    if (begin < end) madvise(p + (begin - address), static_cast<size_t>(end - begin), MADV_HUGEPAGE);
  }
};

}  // namespace

Memory* HostMemory() {
  static Host* const kHost = new Host();
  return kHost;
}

absl::StatusOr<Buffer> Buffer::Allocate(Memory* memory, int64_t bytes, absl::string_view what) {
  Buffer buffer;
  AMPD_ASSIGN_OR_RETURN(void* data, memory->Allocate(std::max<int64_t>(bytes, 1), what));
  buffer.memory_ = memory;
  buffer.data_ = static_cast<char*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

absl::StatusOr<TensorView> OnHost(Memory* memory, const TensorView& tensor, AlignedBuffer* staging) {
  if (memory->on_host()) return tensor;
  if (staging->bytes() < tensor.bytes()) *staging = AlignedBuffer(tensor.bytes());
  AMPD_RETURN_IF_ERROR(memory->Download(tensor.data, tensor.bytes(), staging->data()));
  return TensorView{staging->data(), tensor.dtype, tensor.shape};
}

absl::Status WriteFromHost(Memory* memory, void* to, int64_t bytes, const std::function<void(void*)>& write) {
  if (memory->on_host()) {
    write(to);
    return absl::OkStatus();
  }
  const AlignedBuffer staging(bytes);
  write(staging.data());
  return memory->Upload(staging.data(), bytes, to);
}

absl::Status EditOnHost(Memory* memory, void* p, int64_t bytes, const std::function<void(void*)>& edit) {
  if (memory->on_host()) {
    edit(p);
    return absl::OkStatus();
  }
  const AlignedBuffer staging(bytes);
  AMPD_RETURN_IF_ERROR(memory->Download(p, bytes, staging.data()));
  edit(staging.data());
  return memory->Upload(staging.data(), bytes, p);
}

}  // namespace ampd::runtime
