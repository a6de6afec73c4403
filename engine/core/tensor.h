// Tensors as kernels see them, and a tensor that owns its memory.
#ifndef AMPD_ENGINE_CORE_TENSOR_H_
#define AMPD_ENGINE_CORE_TENSOR_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "absl/types/span.h"
#include "engine/core/dtype.h"
#include "engine/core/shape.h"

namespace ampd {

// Every tensor in an arena, and every workspace, starts at a multiple of this many bytes: a cache line takes 64, cuBLAS
// asks 256 of its workspace.
inline constexpr int64_t kTensorAlignment = 256;

constexpr int64_t AlignUp(int64_t bytes, int64_t alignment = kTensorAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// A dense, row-major tensor in memory owned by someone else. Cheap to copy.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  int64_t size() const { return NumElements(shape); }
  int64_t bytes() const { return size() * SizeOf(dtype); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Zero-filled bytes, aligned to kTensorAlignment. Movable.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t bytes)
      : bytes_(bytes),
        data_(static_cast<char*>(::operator new (AlignUp(bytes > 0 ? bytes : 1), std::align_val_t{kTensorAlignment}))) {
    std::memset(data_.get(), 0, AlignUp(bytes > 0 ? bytes : 1));
  }
  char* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Delete {
    void operator()(char* p) const { ::operator delete (p, std::align_val_t{kTensorAlignment}); }
  };
  int64_t bytes_ = 0;
  std::unique_ptr<char, Delete> data_;
};

// A dense tensor that owns its memory, zero-filled at first. Movable.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, Shape shape)
      : dtype_(dtype), shape_(std::move(shape)), buffer_(NumElements(shape_) * SizeOf(dtype)) {}

  TensorView view() const { return {buffer_.data(), dtype_, shape_}; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t size() const { return NumElements(shape_); }
  // Gives it another shape, of no more elements than it was made with. The elements keep their order in memory.
  void Reshape(Shape shape) { shape_ = std::move(shape); }
  template <typename T>
  absl::Span<T> as() const {
    return {reinterpret_cast<T*>(buffer_.data()), static_cast<size_t>(size())};
  }

 private:
  DType dtype_ = DType::kF32;
  Shape shape_;
  AlignedBuffer buffer_;
};

}  // namespace ampd

#endif  // AMPD_ENGINE_CORE_TENSOR_H_
