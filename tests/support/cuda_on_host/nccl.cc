#include "tests/support/cuda_on_host/nccl.h"

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/cuda_on_host/cuda_on_host.h"

namespace {

struct Request {
  const float* from;
  float* to;
  size_t count;
  cudaStream_t stream;
};

}  // namespace

// Those of one id.
struct Clique {
  std::vector<ncclComm_t> comms;
  std::vector<std::deque<Request>> requests;
  std::vector<cudaEvent_t> events;
  int open = 0;
  bool broken = false;

  ~Clique() {
    for (cudaEvent_t event : events) cudaEventDestroy(event);
  }
};

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank;
  int device;
};

namespace {

// Over everything here.
std::mutex mutex;
std::map<int, std::weak_ptr<Clique>> cliques;
int next_id = 1;

thread_local std::string last_error;
thread_local int group_depth = 0;
thread_local std::vector<std::pair<ncclComm_t, Request>> grouped;

cudaEvent_t NewEvent(Clique* clique) {
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  clique->events.push_back(event);
  return event;
}

void Sum(const std::vector<Request>& requests) {
  std::vector<float> sum(requests[0].from, requests[0].from + requests[0].count);
  for (size_t r = 1; r < requests.size(); ++r) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += requests[r].from[i];
  }
  for (const Request& request : requests) std::memcpy(request.to, sum.data(), sum.size() * sizeof(float));
}

// The first stream adds once all have come so far, and the others go on behind it.
void Enqueue(Clique* clique, const std::vector<Request>& requests) {
  cudaStream_t first = requests[0].stream;
  for (size_t r = 1; r < requests.size(); ++r) {
    cudaEvent_t arrived = NewEvent(clique);
    cudaEventRecord(arrived, requests[r].stream);
    cudaStreamWaitEvent(first, arrived);
  }
  cuda_on_host::Enqueue(first, "ncclAllReduce", [requests] { Sum(requests); });
  cudaEvent_t done = NewEvent(clique);
  cudaEventRecord(done, first);
  for (size_t r = 1; r < requests.size(); ++r) cudaStreamWaitEvent(requests[r].stream, done);
}

ncclResult_t Match(Clique* clique) {
  while (!clique->broken) {
    std::vector<Request> together;
    for (const auto& requests : clique->requests) {
      if (requests.empty()) return ncclSuccess;
      together.push_back(requests.front());
      if (together.back().count != together.front().count) return ncclInvalidArgument;
    }
    for (auto& requests : clique->requests) requests.pop_front();
    Enqueue(clique, together);
  }
  return ncclSuccess;
}

// Until all ranks are there, and all that this one asked for is enqueued.
ncclResult_t StateOf(const ncclComm& comm) {
  const Clique& clique = *comm.clique;
  const bool settled = !clique.broken && clique.open == static_cast<int>(clique.comms.size()) &&
                       clique.requests[static_cast<size_t>(comm.rank)].empty();
  return settled ? ncclSuccess : ncclInProgress;
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclInvalidArgument ? "invalid argument" : result == ncclInvalidUsage ? "invalid usage" : "error";
}

const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclGetVersion(int* version) {
  *version = 22707;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex);
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id->internal, &next_id, sizeof(next_id));
  ++next_id;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  int number = 0, device = 0;
  std::memcpy(&number, id.internal, sizeof(number));
  cudaGetDevice(&device);
  const std::lock_guard lock(mutex);
  std::shared_ptr<Clique> clique = cliques[number].lock();
  if (clique == nullptr) {
    clique = std::make_shared<Clique>();
    clique->comms.resize(static_cast<size_t>(ranks));
    clique->requests.resize(static_cast<size_t>(ranks));
    cliques[number] = clique;
  }
  if (config->blocking != 0 || clique->comms.at(static_cast<size_t>(rank)) != nullptr) return ncclInvalidUsage;
  for (const ncclComm_t other : clique->comms) {
    if (other != nullptr && other->device == device) return ncclInvalidUsage;
  }
  *comm = clique->comms[static_cast<size_t>(rank)] = new ncclComm{clique, rank, device};
  ++clique->open;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const std::lock_guard lock(mutex);
  *result = StateOf(*comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard lock(mutex);
    comm->clique->broken = true;
    comm->clique->comms[static_cast<size_t>(comm->rank)] = nullptr;
  }
  // What was enqueued is finished, for all have come to it.
  cudaDeviceSynchronize();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  const std::lock_guard lock(mutex);
  ncclResult_t result = ncclSuccess;
  for (const auto& [comm, request] : grouped) {
    comm->clique->requests[static_cast<size_t>(comm->rank)].push_back(request);
    const ncclResult_t matched = Match(comm->clique.get());
    if (result == ncclSuccess) result = matched == ncclSuccess ? StateOf(*comm) : matched;
  }
  grouped.clear();
  return result;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t comm,
                           cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (const cudaError_t error = cudaStreamIsCapturing(stream, &capture); error != cudaSuccess) {
    last_error = std::string("Cuda failure '") + cudaGetErrorName(error) + "'";
    return ncclUnhandledCudaError;
  }
  ncclGroupStart();
  grouped.push_back({comm, {static_cast<const float*>(from), static_cast<float*>(to), count, stream}});
  return ncclGroupEnd();
}
