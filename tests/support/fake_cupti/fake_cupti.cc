// Stands in for libcupti: what a test says was launched is recorded as CUPTI would, ids in one buffer and kernels in
// the next, since the real one does not keep them together.
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "engine/backend/cuda/cupti_abi.h"

namespace cupti = ampd::cuda::cupti;

namespace {

struct State {
  cupti::BufferRequested requested = nullptr;
  cupti::BufferCompleted completed = nullptr;
  std::map<int32_t, bool> enabled;
  std::vector<uint64_t> ids;
  uint32_t correlation = 0;
  uint64_t now = 1000;
  // Records as bytes: of calls, and of what the device ran.
  std::string calls, runs;
} state;

template <typename Record>
void Append(const Record& record, std::string* to) {
  to->append(reinterpret_cast<const char*>(&record), sizeof(record));
}

void Complete(std::string* records) {
  if (records->empty()) return;
  uint8_t* buffer = nullptr;
  size_t size = 0, most = 0;
  state.requested(&buffer, &size, &most);
  std::memcpy(buffer, records->data(), records->size());
  state.completed(nullptr, 0, buffer, size, records->size());
  records->clear();
}

size_t SizeOf(cupti::Kind kind) {
  switch (kind) {
    case cupti::kExternalCorrelation:
      return sizeof(cupti::ExternalCorrelation);
    case cupti::kConcurrentKernel:
      return sizeof(cupti::Kernel);
    default:
      return sizeof(cupti::Transfer);
  }
}

}  // namespace

extern "C" {

cupti::Result cuptiActivityRegisterCallbacks(cupti::BufferRequested requested, cupti::BufferCompleted completed) {
  state.requested = requested;
  state.completed = completed;
  return cupti::kSuccess;
}

cupti::Result cuptiActivityEnable(cupti::Kind kind) {
#ifdef FAKE_CUPTI_REFUSES
  static_cast<void>(kind);
  return 39;  // CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
#else
  state.enabled[kind] = true;
  return cupti::kSuccess;
#endif
}

cupti::Result cuptiActivityDisable(cupti::Kind kind) {
  state.enabled[kind] = false;
  return cupti::kSuccess;
}

cupti::Result cuptiActivityFlushAll(uint32_t) {
  Complete(&state.runs);
  Complete(&state.calls);
  return cupti::kSuccess;
}

cupti::Result cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid_size, cupti::Activity** record) {
  uint8_t* next = buffer;
  if (*record != nullptr) next = reinterpret_cast<uint8_t*>(*record) + SizeOf((*record)->kind);
  if (next >= buffer + valid_size) return cupti::kMaxLimitReached;
  *record = reinterpret_cast<cupti::Activity*>(next);
  return cupti::kSuccess;
}

cupti::Result cuptiActivityPushExternalCorrelationId(int32_t kind, uint64_t id) {
  if (kind != cupti::kCustom0) return 1;
  state.ids.push_back(id);
  return cupti::kSuccess;
}

cupti::Result cuptiActivityPopExternalCorrelationId(int32_t, uint64_t* last) {
  if (state.ids.empty()) return 40;  // CUPTI_ERROR_QUEUE_EMPTY
  *last = state.ids.back();
  state.ids.pop_back();
  return cupti::kSuccess;
}

// For tests: a call of the runtime launches a kernel of this mangled name on `device`, or with `kind` a copy or a fill.
void FakeCuptiLaunch(int32_t kind, const char* name, uint64_t nanoseconds, uint32_t device) {
  ++state.correlation;
  if (state.enabled[cupti::kExternalCorrelation] && state.enabled[cupti::kRuntime] && !state.ids.empty()) {
    Append(cupti::ExternalCorrelation{cupti::kExternalCorrelation, cupti::kCustom0, state.ids.back(), state.correlation,
                                      0},
           &state.calls);
  }
  if (!state.enabled[kind]) return;
  const uint64_t start = state.now;
  state.now += nanoseconds;
  if (kind == cupti::kConcurrentKernel) {
    Append(cupti::Kernel{cupti::kConcurrentKernel, {}, start, state.now, 0, device, {}, state.correlation, 0, name},
           &state.runs);
  } else {
    Append(cupti::Transfer{static_cast<cupti::Kind>(kind), {}, start, state.now, device, {}, state.correlation},
           &state.runs);
  }
}

}  // extern "C"
