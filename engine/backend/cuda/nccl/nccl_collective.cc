#include "engine/backend/nccl_collective.h"

#include <nccl.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/cuda_backend_impl.h"
#include "engine/backend/cuda/device_failure.h"
#include "engine/backend/cuda/status.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace ampd {
namespace cuda {
namespace {

// INTERNAL: NCCL's codes do not tell a device that failed from a file or a socket that did, DeviceFailureOr() does.
absl::Status ToStatus(ncclResult_t result, absl::string_view what) {
  if (result == ncclSuccess) return absl::OkStatus();
  std::string message = absl::StrCat("[nccl] ", what, ": ", ncclGetErrorString(result));
  const char* const last = ncclGetLastError(nullptr);
  if (last != nullptr && *last != '\0') absl::StrAppend(&message, ": ", last);
  return absl::InternalError(message);
}

// NCCL's communicators, one a replica. They do not block: a call that waits for the other replicas returns, and is
// looked at again until it is done, so that an abort always finds the communicator free.
class Communicators {
 public:
  // `contexts`, by rank, outlive it.
  explicit Communicators(std::vector<Context*> contexts)
      : contexts_(std::move(contexts)),
        group_(std::make_shared<runtime::ReplicaGroup>(static_cast<int>(contexts_.size()))),
        members_(contexts_.size()) {
    group_->OnAbort([this] { Abort(); });
  }
  ~Communicators() {
    group_->OnAbort(nullptr);
    Abort();
  }

  const std::shared_ptr<runtime::ReplicaGroup>& group() const { return group_; }

  // On the calling thread's behalf for all devices; leaves the last one current.
  absl::Status Open() {
    const absl::Status status = Connect();
    if (status.ok()) return status;
    for (Context* context : contexts_) {
      AMPD_RETURN_IF_ERROR(context->Enter());
      const absl::Status why = DeviceFailureOr(*context, status);
      if (absl::IsUnavailable(why)) return why;
    }
    return status;
  }

  // Makes `call`, and returns once it has enqueued what it asks for.
  absl::Status Call(size_t rank, absl::string_view what, absl::FunctionRef<ncclResult_t(ncclComm_t)> call) {
    ncclResult_t result = ncclSuccess;
    {
      Member& member = members_[rank];
      const MutexLock lock(&member.mutex);
      if (member.comm == nullptr) return group_->status();
      result = call(member.comm);
    }
    return DeviceFailureOr(*contexts_[rank], Settle(rank, result, what));
  }

 private:
  struct Member {
    Mutex mutex;
    // Null: aborted.
    ncclComm_t comm ABSL_GUARDED_BY(mutex) = nullptr;
  };

  absl::Status Connect() {
    ncclUniqueId id;
    AMPD_RETURN_IF_ERROR(ToStatus(ncclGetUniqueId(&id), "naming the group"));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    AMPD_RETURN_IF_ERROR(ToStatus(ncclGroupStart(), "opening"));
    absl::Status status;
    for (size_t rank = 0; rank < contexts_.size() && status.ok(); ++rank) {
      status = contexts_[rank]->Enter();
      if (!status.ok()) break;
      const ncclResult_t result = ncclCommInitRankConfig(&members_[rank].comm, static_cast<int>(contexts_.size()), id,
                                                         static_cast<int>(rank), &config);
      if (result != ncclInProgress) status = ToStatus(result, absl::StrCat("opening replica ", rank));
    }
    const ncclResult_t ended = ncclGroupEnd();
    AMPD_RETURN_IF_ERROR(status);
    if (ended != ncclInProgress) AMPD_RETURN_IF_ERROR(ToStatus(ended, "opening"));
    for (size_t rank = 0; rank < members_.size(); ++rank) AMPD_RETURN_IF_ERROR(Settle(rank, ncclInProgress, "opening"));
    return absl::OkStatus();
  }

  absl::Status Settle(size_t rank, ncclResult_t result, absl::string_view what) {
    while (result == ncclInProgress) {
      std::this_thread::yield();
      Member& member = members_[rank];
      const MutexLock lock(&member.mutex);
      if (member.comm == nullptr) return group_->status();
      AMPD_RETURN_IF_ERROR(ToStatus(ncclCommGetAsyncError(member.comm, &result), what));
    }
    return ToStatus(result, what);
  }

  // Ends kernels that wait for other devices, and frees what a communicator holds without asking the others.
  void Abort() {
    for (Member& member : members_) {
      const MutexLock lock(&member.mutex);
      if (member.comm != nullptr) static_cast<void>(ncclCommAbort(std::exchange(member.comm, nullptr)));
    }
  }

  const std::vector<Context*> contexts_;
  const std::shared_ptr<runtime::ReplicaGroup> group_;
  std::vector<Member> members_;
};

class NcclCollective : public runtime::Collective {
 public:
  NcclCollective(int rank, std::shared_ptr<Communicators> communicators, Context* context)
      : Collective(rank, communicators->group()), communicators_(std::move(communicators)), context_(context) {}
  ~NcclCollective() override {
    if (started_ != nullptr) static_cast<void>(cudaEventDestroy(started_));
    if (done_ != nullptr) static_cast<void>(cudaEventDestroy(done_));
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  }

  absl::Status Open() {
    AMPD_RETURN_IF_ERROR(context_->Enter());
    AMPD_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream of sums");
    AMPD_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&started_, cudaEventDisableTiming), "event of sums");
    AMPD_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "event of sums");
    return absl::OkStatus();
  }

  absl::Status AllReduceSum(float* arena, absl::Span<const runtime::ArenaSlot> ranges) override {
    AMPD_CUDA_RETURN_IF_ERROR(cudaEventRecord(started_, context_->stream()), "begin of a sum");
    AMPD_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream_, started_, 0), "begin of a sum");
    AMPD_RETURN_IF_ERROR(communicators_->Call(static_cast<size_t>(rank()), "sum of gradients", [&](ncclComm_t comm) {
      ncclResult_t first = ncclGroupStart();
      for (const runtime::ArenaSlot& range : ranges) {
        float* at = arena + range.offset;
        const ncclResult_t result =
            ncclAllReduce(at, at, static_cast<size_t>(range.size), ncclFloat32, ncclSum, comm, stream_);
        if (first == ncclSuccess) first = result;
      }
      const ncclResult_t ended = ncclGroupEnd();
      return first == ncclSuccess || first == ncclInProgress ? ended : first;
    }));
    AMPD_CUDA_RETURN_IF_ERROR(cudaEventRecord(done_, stream_), "end of a sum");
    return absl::OkStatus();
  }

  absl::Status Finish() override {
    AMPD_RETURN_IF_ERROR(group()->status());
    AMPD_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(context_->stream(), done_, 0), "end of sums");
    return absl::OkStatus();
  }

  bool Done() override { return cudaEventQuery(done_) == cudaSuccess; }

 private:
  const std::shared_ptr<Communicators> communicators_;
  Context* const context_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t started_ = nullptr;
  cudaEvent_t done_ = nullptr;
};

}  // namespace
}  // namespace cuda

absl::StatusOr<std::vector<std::unique_ptr<runtime::Collective>>> MakeNcclCollectives(
    absl::Span<runtime::Backend* const> backends) {
  std::vector<cuda::Context*> contexts;
  for (runtime::Backend* backend : backends) {
    auto* of_cuda = dynamic_cast<cuda::CudaBackend*>(backend);
    if (of_cuda == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("training on several devices: NCCL does not serve the ", backend->name(), " backend"));
    }
    contexts.push_back(of_cuda->context());
  }
  const auto communicators = std::make_shared<cuda::Communicators>(contexts);
  std::vector<std::unique_ptr<runtime::Collective>> collectives;
  absl::Status status = communicators->Open();
  for (size_t rank = 0; rank < contexts.size() && status.ok(); ++rank) {
    auto collective = std::make_unique<cuda::NcclCollective>(static_cast<int>(rank), communicators, contexts[rank]);
    status = collective->Open();
    collectives.push_back(std::move(collective));
  }
  // The calling thread goes on with the first replica's device.
  if (!contexts.empty() && status.ok()) status = contexts[0]->Enter();
  if (!status.ok()) return status;
  return collectives;
}

std::string NcclVersion() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "";
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace ampd
