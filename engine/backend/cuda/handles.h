// CUDA's handles, owned.
#ifndef AMPD_ENGINE_BACKEND_CUDA_HANDLES_H_
#define AMPD_ENGINE_BACKEND_CUDA_HANDLES_H_

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/status/statusor.h"
#include "engine/backend/cuda/status.h"

namespace ampd::cuda {

// Movable. Destroyed with its last owner; an error then is of no use to anyone, for a device that failed fails every
// call.
template <typename T, cudaError_t (*Destroy)(T)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T value) : value_(value) {}
  Handle(Handle&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Handle() {
    if (value_ != nullptr) static_cast<void>(Destroy(value_));
  }
  T get() const { return value_; }
  explicit operator bool() const { return value_ != nullptr; }

 private:
  T value_ = nullptr;
};

struct StreamHandle : Handle<cudaStream_t, cudaStreamDestroy> {
  using Handle::Handle;
  // Non-blocking.
  static absl::StatusOr<StreamHandle> Create() {
    cudaStream_t stream = nullptr;
    AMPD_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    return StreamHandle(stream);
  }
};

struct EventHandle : Handle<cudaEvent_t, cudaEventDestroy> {
  using Handle::Handle;
  // Without a time; who waits for it sleeps.
  static absl::StatusOr<EventHandle> Create() {
    cudaEvent_t event = nullptr;
    AMPD_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
                              "event");
    return EventHandle(event);
  }
  // For cudaEventElapsedTime.
  static absl::StatusOr<EventHandle> CreateTimed() {
    cudaEvent_t event = nullptr;
    AMPD_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, cudaEventDefault), "event");
    return EventHandle(event);
  }
};

// What was captured, and cannot be launched yet.
struct CapturedGraph : Handle<cudaGraph_t, cudaGraphDestroy> {
  using Handle::Handle;
};

struct GraphHandle : Handle<cudaGraphExec_t, cudaGraphExecDestroy> {
  using Handle::Handle;
  // Independent of `graph` from then on.
  static absl::StatusOr<GraphHandle> Instantiate(const CapturedGraph& graph) {
    cudaGraphExec_t exec = nullptr;
    AMPD_CUDA_RETURN_IF_ERROR(cudaGraphInstantiate(&exec, graph.get(), 0), "making a captured step ready");
    return GraphHandle(exec);
  }
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_HANDLES_H_
