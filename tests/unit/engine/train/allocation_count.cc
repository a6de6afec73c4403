#include "tests/unit/engine/train/allocation_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> allocations{0};

void* TryAllocate(std::size_t alignment, std::size_t bytes) {
  ++allocations;
  // aligned_alloc wants a multiple of the alignment.
  return std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}

void* Allocate(std::size_t alignment, std::size_t bytes) {
  void* memory = TryAllocate(alignment, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return Allocate(__STDCPP_DEFAULT_NEW_ALIGNMENT__, bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return Allocate(static_cast<std::size_t>(alignment), bytes);
}
// The standard library's call those above, but a sanitizer's have memory of their own.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return TryAllocate(__STDCPP_DEFAULT_NEW_ALIGNMENT__, bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return TryAllocate(static_cast<std::size_t>(alignment), bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace ampd::train {

int64_t AllocationCount() { return allocations; }

}  // namespace ampd::train
