// What of CUPTI's binary interface is used, declared anew: the library is loaded at run time, since it comes with the
// toolkit and not with the driver. Numbers and layouts as in cupti_activity.h of CUDA 12 and 13; of the records what
// every version since CUpti_ActivityKernel4, CUpti_ActivityMemcpy and CUpti_ActivityMemset has at the same place.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CUPTI_ABI_H_
#define AMPD_ENGINE_BACKEND_CUDA_CUPTI_ABI_H_

#include <cstddef>
#include <cstdint>

namespace ampd::cuda::cupti {

using Result = int32_t;
inline constexpr Result kSuccess = 0;
inline constexpr Result kMaxLimitReached = 12;

enum Kind : int32_t {
  kMemcpy = 1,
  kMemset = 2,
  kDriver = 4,
  kRuntime = 5,
  kConcurrentKernel = 10,
  kExternalCorrelation = 39,
};
inline constexpr int32_t kCustom0 = 3;  // of CUpti_ExternalCorrelationKind
inline constexpr uint32_t kFlushForced = 1;

struct Activity {
  Kind kind;
};

// Precedes the record of a call into the runtime or the driver.
struct ExternalCorrelation {
  Kind kind;
  int32_t external_kind;
  uint64_t external_id;
  uint32_t correlation_id;
  uint32_t reserved;
};

struct Kernel {
  Kind kind;
  char before_start[12];
  uint64_t start;  // ns
  uint64_t end;
  uint64_t completed;
  uint32_t device_id;
  char before_correlation[48];
  uint32_t correlation_id;
  int64_t grid_id;
  const char* name;  // mangled
};
static_assert(offsetof(Kernel, start) == 16 && offsetof(Kernel, device_id) == 40 &&
              offsetof(Kernel, correlation_id) == 92 && offsetof(Kernel, name) == 104);

// Of a copy and of a fill.
struct Transfer {
  Kind kind;
  char before_start[12];
  uint64_t start;  // ns
  uint64_t end;
  uint32_t device_id;
  char before_correlation[8];
  uint32_t correlation_id;
};
static_assert(offsetof(Transfer, start) == 16 && offsetof(Transfer, device_id) == 32 &&
              offsetof(Transfer, correlation_id) == 44);

extern "C" {
using BufferRequested = void (*)(uint8_t** buffer, size_t* size, size_t* max_records);
using BufferCompleted = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid_size);
using RegisterCallbacks = Result (*)(BufferRequested, BufferCompleted);
using Switch = Result (*)(Kind);
using FlushAll = Result (*)(uint32_t flag);
using GetNextRecord = Result (*)(uint8_t* buffer, size_t valid_size, Activity** record);
using PushExternalId = Result (*)(int32_t kind, uint64_t id);
using PopExternalId = Result (*)(int32_t kind, uint64_t* last);
}

}  // namespace ampd::cuda::cupti

#endif  // AMPD_ENGINE_BACKEND_CUDA_CUPTI_ABI_H_
