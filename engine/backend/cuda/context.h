// One device as the backend uses it: its properties, the stream that every kernel is enqueued on, and what CUDA's
// libraries keep for it.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CONTEXT_H_
#define AMPD_ENGINE_BACKEND_CUDA_CONTEXT_H_

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cuda/autotune_cache.h"
#include "engine/backend/cuda/device_properties.h"

namespace ampd::cuda {

// Who may keep something in a context.
enum class Library { kBlas, kDnn, kConvs, kAttention, kRegions, kCount };

// Thread-compatible, as the backend it belongs to. Kernels hold pointers to it, so it outlives them.
class Context {
 public:
  // The device that `uuid` names ("GPU-..."), or the first visible one if it is empty. UNAVAILABLE without a driver or
  // device, or when the driver is older than the runtime it must serve (both versions are named); NOT_FOUND, naming
  // those there are, when none has this uuid.
  static absl::StatusOr<std::unique_ptr<Context>> Open(const std::string& uuid);
  // For plans only: a device that need not be there. stream() is the default stream, and must not be used.
  explicit Context(DeviceProperties properties) : properties_(std::move(properties)) {}
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const DeviceProperties& properties() const { return properties_; }
  // Whether there is a device behind it.
  bool is_open() const { return open_; }
  // Non-blocking.
  cudaStream_t stream() const { return stream_; }
  // Makes this context's device the calling thread's; needed before anything else in a thread that uses several.
  absl::Status Enter() const;
  // Waits for all that was enqueued on stream(). Errors of kernels that ran before appear here.
  absl::Status Wait() const;

  // What a library's wrapper keeps from call to call (handles, tuned choices); null at first. Destroyed before the
  // stream.
  std::shared_ptr<void>& library(Library library) { return libraries_[static_cast<size_t>(library)]; }

  // What was measured of the libraries' algorithms and of launches, and is still to be (autotune.h); null: nothing is
  // measured, and every run of a program chooses alike. At first a cache in memory.
  AutotuneCache* autotune() const { return autotune_.get(); }
  void set_autotune(std::unique_ptr<AutotuneCache> cache) { autotune_ = std::move(cache); }

 private:
  DeviceProperties properties_;
  int device_ = 0;
  bool open_ = false;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<AutotuneCache> autotune_ = std::make_unique<AutotuneCache>();
  std::array<std::shared_ptr<void>, static_cast<size_t>(Library::kCount)> libraries_;
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_CONTEXT_H_
