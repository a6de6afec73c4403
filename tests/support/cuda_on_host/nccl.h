// The part of NCCL that the CUDA backend uses, over emulated devices: communicators that do not block, sums in the
// order of ranks. A sum begins when every rank has asked for it and its stream has come to it.
#ifndef AMPD_TESTS_SUPPORT_CUDA_ON_HOST_NCCL_H_
#define AMPD_TESTS_SUPPORT_CUDA_ON_HOST_NCCL_H_

#include <cstddef>

#include "tests/support/cuda_on_host/cuda_runtime_api.h"

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};
enum ncclDataType_t { ncclFloat32 = 7 };
enum ncclRedOp_t { ncclSum = 0 };

struct ncclComm;
using ncclComm_t = ncclComm*;
struct ncclUniqueId {
  char internal[128];
};
struct ncclConfig_t {
  int blocking;
};
#define NCCL_CONFIG_INITIALIZER \
  { -1 }

const char* ncclGetErrorString(ncclResult_t result);
// Of the thread's last failure; the communicator is not asked for.
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
// Refuses what blocks, two ranks on one device, and a rank that there is already.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
// Asks CUDA whether the stream is captured: ncclUnhandledCudaError where that fails.
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);

#endif  // AMPD_TESTS_SUPPORT_CUDA_ON_HOST_NCCL_H_
