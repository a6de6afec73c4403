#include "engine/backend/cuda/kernel_activity.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/backend/cuda/status.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;
// Of a name, which templates make long.
constexpr size_t kNameBytes = 200;
// The calls are recorded for their external ids, which come with them.
constexpr cupti::Kind kKinds[] = {cupti::kExternalCorrelation, cupti::kRuntime, cupti::kDriver,
                                  cupti::kConcurrentKernel,    cupti::kMemcpy,  cupti::kMemset};

// Buffers that CUPTI filled, from whichever thread it calls.
struct Filled {
  Mutex mutex;
  // Else they are freed at once: between steps a job may run for long.
  bool wanted ABSL_GUARDED_BY(mutex) = false;
  std::vector<std::pair<uint8_t*, size_t>> buffers ABSL_GUARDED_BY(mutex);
};

Filled& AllFilled() {
  // Lives for ever: CUPTI may call while the process ends.
  static Filled* const filled = new Filled();
  return *filled;
}

extern "C" void AmpdCuptiBufferRequested(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;
}

extern "C" void AmpdCuptiBufferCompleted(void*, uint32_t, uint8_t* buffer, size_t, size_t valid_size) {
  const MutexLock lock(&AllFilled().mutex);
  if (!AllFilled().wanted) return std::free(buffer);
  AllFilled().buffers.emplace_back(buffer, valid_size);
}

void WantFilled() {
  const MutexLock lock(&AllFilled().mutex);
  AllFilled().wanted = true;
}

std::vector<std::pair<uint8_t*, size_t>> TakeFilled() {
  const MutexLock lock(&AllFilled().mutex);
  AllFilled().wanted = false;
  return std::exchange(AllFilled().buffers, {});
}

std::string Readable(const char* mangled) {
  if (mangled == nullptr) return "unnamed";
  int status = 0;
  char* const plain = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? plain : mangled;
  std::free(plain);
  if (name.size() > kNameBytes) name = absl::StrCat(name.substr(0, kNameBytes - 3), "...");
  return name;
}

// What the buffers of one Take() hold. An id's record may lie in another buffer than the kernel's.
class Reader {
 public:
  explicit Reader(uint32_t device) : device_(device) {}

  void Add(const cupti::Activity& record) {
    switch (record.kind) {
      case cupti::kExternalCorrelation: {
        const auto& external = reinterpret_cast<const cupti::ExternalCorrelation&>(record);
        if (external.external_kind == cupti::kCustom0) ids_[external.correlation_id] = external.external_id;
        break;
      }
      case cupti::kConcurrentKernel: {
        const auto& kernel = reinterpret_cast<const cupti::Kernel&>(record);
        AddRun(kernel, NameOf(kernel.name));
        break;
      }
      case cupti::kMemcpy:
      case cupti::kMemset:
        AddRun(reinterpret_cast<const cupti::Transfer&>(record), record.kind == cupti::kMemcpy ? "copy" : "fill");
        break;
      default:
        break;
    }
  }

  std::vector<ActivityRecord> Records() {
    for (size_t i = 0; i < records_.size(); ++i) {
      const auto id = ids_.find(correlations_[i]);
      if (id != ids_.end()) records_[i].id = id->second;
    }
    return std::move(records_);
  }

 private:
  template <typename Run>
  void AddRun(const Run& run, std::string name) {
    // Those of other devices, and those whose times could not be taken.
    if (run.device_id != device_ || run.start == 0 || run.end < run.start) return;
    records_.push_back({0, std::move(name), static_cast<double>(run.end - run.start) * 1e-9});
    correlations_.push_back(run.correlation_id);
  }
  // CUPTI keeps a kernel's name for the life of the process.
  const std::string& NameOf(const char* mangled) {
    const auto [at, inserted] = names_.insert({mangled, ""});
    if (inserted) at->second = Readable(mangled);
    return at->second;
  }

  const uint32_t device_;
  std::unordered_map<uint32_t, uint64_t> ids_;
  std::map<const char*, std::string> names_;
  std::vector<ActivityRecord> records_;
  std::vector<uint32_t> correlations_;
};

}  // namespace

struct KernelActivity::Library {
  // Kept for the process, by path: it is not made to be unloaded.
  static absl::StatusOr<Library*> Load(const std::vector<std::string>& names);
  absl::Status Open(void* handle, const std::string& name);
  absl::Status Check(cupti::Result result, const char* call) const {
    return result == cupti::kSuccess ? absl::OkStatus()
                                     : absl::UnavailableError(absl::StrCat("[CUPTI] ", call, ": error ", result));
  }

  cupti::RegisterCallbacks register_callbacks;
  cupti::Switch enable, disable;
  cupti::FlushAll flush;
  cupti::GetNextRecord next;
  cupti::PushExternalId push;
  cupti::PopExternalId pop;
  std::atomic<bool> used{false};
};

absl::Status KernelActivity::Library::Open(void* handle, const std::string& name) {
  const std::pair<const char*, void*> functions[] = {
      {"cuptiActivityRegisterCallbacks", &register_callbacks},
      {"cuptiActivityEnable", &enable},
      {"cuptiActivityDisable", &disable},
      {"cuptiActivityFlushAll", &flush},
      {"cuptiActivityGetNextRecord", &next},
      {"cuptiActivityPushExternalCorrelationId", &push},
      {"cuptiActivityPopExternalCorrelationId", &pop},
  };
  for (const auto& [function, at] : functions) {
    void* const found = dlsym(handle, function);
    if (found == nullptr) return absl::UnavailableError(absl::StrCat("[CUPTI] ", name, " has no ", function));
    std::memcpy(at, &found, sizeof(found));
  }
  return Check(register_callbacks(AmpdCuptiBufferRequested, AmpdCuptiBufferCompleted), "registering its callbacks");
}

absl::StatusOr<KernelActivity::Library*> KernelActivity::Library::Load(const std::vector<std::string>& names) {
  static Mutex* const mutex = new Mutex();
  static std::map<std::string, Library*>* const loaded = new std::map<std::string, Library*>();
  const MutexLock lock(mutex);
  absl::Status why = absl::UnavailableError(absl::StrCat("[CUPTI] there is none of ", absl::StrJoin(names, ", ")));
  for (const std::string& name : names) {
    if (const auto known = loaded->find(name); known != loaded->end()) return known->second;
    void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    auto library = std::make_unique<Library>();
    const absl::Status opened = library->Open(handle, name);
    if (opened.ok()) return (*loaded)[name] = library.release();
    why = opened;
  }
  return why;
}

absl::StatusOr<std::unique_ptr<KernelActivity>> KernelActivity::Start(const std::vector<std::string>& libraries) {
  int device = 0;
  AMPD_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device), "the device to be profiled");
  AMPD_ASSIGN_OR_RETURN(Library* const library, Library::Load(libraries));
  if (library->used.exchange(true)) return absl::UnavailableError("[CUPTI] another profile is under way");
  std::unique_ptr<KernelActivity> activity(new KernelActivity(library, static_cast<uint32_t>(device)));
  AMPD_RETURN_IF_ERROR(activity->Enable());
  return activity;
}

absl::Status KernelActivity::Enable() {
  for (const cupti::Kind kind : kKinds) {
    AMPD_RETURN_IF_ERROR(library_->Check(library_->enable(kind), "recording kernels"));
  }
  return absl::OkStatus();
}

KernelActivity::~KernelActivity() {
  SetId(0).IgnoreError();
  for (const cupti::Kind kind : kKinds) static_cast<void>(library_->disable(kind));
  static_cast<void>(library_->flush(cupti::kFlushForced));
  for (const auto& [buffer, size] : TakeFilled()) std::free(buffer);
  library_->used = false;
}

absl::Status KernelActivity::SetId(uint64_t id) {
  uint64_t last = 0;
  if (std::exchange(has_id_, false)) {
    AMPD_RETURN_IF_ERROR(library_->Check(library_->pop(cupti::kCustom0, &last), "ending a part"));
  }
  if (id == 0) return absl::OkStatus();
  WantFilled();
  AMPD_RETURN_IF_ERROR(library_->Check(library_->push(cupti::kCustom0, id), "beginning a part"));
  has_id_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ActivityRecord>> KernelActivity::Take() {
  AMPD_RETURN_IF_ERROR(library_->Check(library_->flush(cupti::kFlushForced), "reading records"));
  Reader reader(device_);
  for (const auto& [buffer, size] : TakeFilled()) {
    cupti::Activity* record = nullptr;
    while (library_->next(buffer, size, &record) == cupti::kSuccess) reader.Add(*record);
    std::free(buffer);
  }
  return reader.Records();
}

}  // namespace ampd::cuda
