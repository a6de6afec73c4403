// The declarations of cupti_abi.h against NVIDIA's header.
#include "engine/backend/cuda/cupti_abi.h"

#include <cuda.h>
#include <cupti.h>

#include "gtest/gtest.h"

namespace ampd::cuda {
namespace {

static_assert(cupti::kSuccess == CUPTI_SUCCESS && cupti::kMaxLimitReached == CUPTI_ERROR_MAX_LIMIT_REACHED);
static_assert(static_cast<int>(cupti::kMemcpy) == CUPTI_ACTIVITY_KIND_MEMCPY);
static_assert(static_cast<int>(cupti::kMemset) == CUPTI_ACTIVITY_KIND_MEMSET);
static_assert(static_cast<int>(cupti::kDriver) == CUPTI_ACTIVITY_KIND_DRIVER);
static_assert(static_cast<int>(cupti::kRuntime) == CUPTI_ACTIVITY_KIND_RUNTIME);
static_assert(static_cast<int>(cupti::kConcurrentKernel) == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
static_assert(static_cast<int>(cupti::kExternalCorrelation) == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
static_assert(cupti::kCustom0 == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0);
static_assert(cupti::kFlushForced == CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);

template <typename Theirs>
constexpr bool SameKernel() {
  return offsetof(Theirs, start) == offsetof(cupti::Kernel, start) &&
         offsetof(Theirs, end) == offsetof(cupti::Kernel, end) &&
         offsetof(Theirs, deviceId) == offsetof(cupti::Kernel, device_id) &&
         offsetof(Theirs, correlationId) == offsetof(cupti::Kernel, correlation_id) &&
         offsetof(Theirs, name) == offsetof(cupti::Kernel, name);
}
template <typename Theirs>
constexpr bool SameTransfer() {
  return offsetof(Theirs, start) == offsetof(cupti::Transfer, start) &&
         offsetof(Theirs, end) == offsetof(cupti::Transfer, end) &&
         offsetof(Theirs, deviceId) == offsetof(cupti::Transfer, device_id) &&
         offsetof(Theirs, correlationId) == offsetof(cupti::Transfer, correlation_id);
}
static_assert(SameKernel<CUpti_ActivityKernel4>() && SameKernel<CUpti_ActivityKernel9>());
static_assert(SameTransfer<CUpti_ActivityMemcpy>() && SameTransfer<CUpti_ActivityMemcpy5>());
static_assert(SameTransfer<CUpti_ActivityMemset>() && SameTransfer<CUpti_ActivityMemset4>());
static_assert(sizeof(cupti::ExternalCorrelation) == sizeof(CUpti_ActivityExternalCorrelation));
static_assert(offsetof(cupti::ExternalCorrelation, external_id) ==
              offsetof(CUpti_ActivityExternalCorrelation, externalId));
static_assert(offsetof(cupti::ExternalCorrelation, correlation_id) ==
              offsetof(CUpti_ActivityExternalCorrelation, correlationId));

TEST(CuptiAbi, IsNvidias) { SUCCEED() << "what is compared is compared when this is compiled"; }

}  // namespace
}  // namespace ampd::cuda
