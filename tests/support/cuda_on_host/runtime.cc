// The runtime interface over one device thread.
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/cuda_on_host/cuda_on_host.h"
#include "tests/support/cuda_on_host/cuda_runtime.h"
#include "tests/support/cuda_on_host/run_grid.h"

namespace cuda_on_host {

struct Event {
  uint64_t recorded = 0;
  uint64_t reached = 0;
  std::chrono::steady_clock::time_point at;
  Graph* capture = nullptr;
};

struct Work {
  std::string name;
  std::function<void()> run;
  // Not null: waits until `event` has been reached this many times.
  Event* event = nullptr;
  uint64_t count = 0;
};

struct Graph {
  std::vector<Work> nodes;
  Stream* origin = nullptr;
};

struct GraphExec {
  std::shared_ptr<const std::vector<Work>> nodes;
};

struct Stream {
  std::deque<Work> queue;
  bool busy = false;
  Graph* capture = nullptr;
};

namespace {

constexpr int64_t kNoLimit = int64_t{1} << 50;

cudaDeviceProp DefaultProperties() {
  cudaDeviceProp p = {};
  std::strcpy(p.name, "emulated");
  std::memcpy(p.uuid.bytes, "ampd-emulated-0", 16);
  p.totalGlobalMem = size_t{80} << 30;
  p.sharedMemPerBlock = 48 << 10;
  p.sharedMemPerBlockOptin = 227 << 10;
  p.sharedMemPerMultiprocessor = 228 << 10;
  p.regsPerMultiprocessor = 65536;
  p.maxThreadsPerMultiProcessor = 2048;
  p.multiProcessorCount = 4;
  p.major = 9;
  p.l2CacheSize = 50 << 20;
  return p;
}

struct Fault {
  cudaError_t error;
  int after;
};

bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
      return true;
    default:
      return error >= cudaErrorIllegalAddress && error <= cudaErrorLaunchFailure;
  }
}

// All that the devices are. Its thread lives as long as the process.
class Machine {
 public:
  Machine() {
    std::thread([this] { Loop(); }).detach();
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::unique_ptr<Stream>> streams;
  int devices = 1;
  cudaDeviceProp properties = DefaultProperties();
  int64_t memory_limit = kNoLimit;
  int64_t device_bytes = 0;
  int64_t pinned_bytes = 0;
  int64_t handles = 0;
  std::map<char*, int64_t> allocations;
  std::map<char*, int64_t> pinned;
  std::map<std::string, Fault> faults;
  std::vector<std::string> calls;
  // Dynamic shared memory, by kernel.
  std::map<const void*, size_t> allowed_shared;
  std::set<const void*> launched;
  cudaError_t sticky = cudaSuccess;
  cudaError_t last = cudaSuccess;
  int capturing = 0;
  std::chrono::steady_clock::duration delayed{};
  Stream default_stream;

  // Records the call and gives the fault that stands for it; with `mutex` held.
  cudaError_t Enter(const std::string& name) {
    calls.push_back(name);
    if (sticky != cudaSuccess) return last = sticky;
    const auto it = faults.find(name);
    if (it == faults.end() || it->second.after-- > 0) return cudaSuccess;
    const cudaError_t error = it->second.error;
    faults.erase(it);
    if (IsSticky(error)) sticky = error;
    return last = error;
  }

  // With `mutex` held.
  void Push(Stream* stream, Work work) {
    if (stream == nullptr) stream = &default_stream;
    if (stream->capture != nullptr) {
      stream->capture->nodes.push_back(std::move(work));
      return;
    }
    stream->queue.push_back(std::move(work));
    changed.notify_all();
  }

  bool Idle(const Stream& stream) const { return stream.queue.empty() && !stream.busy; }

  void Wait(std::unique_lock<std::mutex>& lock, const Stream& stream) {
    changed.wait(lock, [&] { return Idle(stream); });
  }

  void WaitForAll(std::unique_lock<std::mutex>& lock) {
    changed.wait(lock, [&] {
      bool idle = Idle(default_stream);
      for (const auto& stream : streams) idle &= Idle(*stream);
      return idle;
    });
  }

  bool IsPinned(const void* memory) const {
    auto it = pinned.upper_bound(static_cast<char*>(const_cast<void*>(memory)));
    if (it == pinned.begin()) return false;
    --it;
    return static_cast<const char*>(memory) < it->first + it->second;
  }

  // Runs one piece of work, with `mutex` not held.
  void Run(const Work& work) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (work.name == "kernel" && Enter("kernel") != cudaSuccess) return;
      if (sticky != cudaSuccess) return;
    }
    if (work.run) work.run();
  }

 private:
  // Streams in an order drawn at random, so that what only luck orders goes wrong.
  Stream* Ready() {
    std::vector<Stream*> ready;
    const auto look = [&](Stream* stream) {
      if (stream->queue.empty()) return;
      const Work& head = stream->queue.front();
      // What a failed device still holds is passed over, not waited for.
      if (head.event == nullptr || head.event->reached >= head.count || sticky != cudaSuccess) ready.push_back(stream);
    };
    look(&default_stream);
    for (const auto& stream : streams) look(stream.get());
    return ready.empty() ? nullptr : ready[random_() % ready.size()];
  }

  void Loop() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      Stream* stream = nullptr;
      changed.wait(lock, [&] { return (stream = Ready()) != nullptr; });
      const Work work = std::move(stream->queue.front());
      stream->queue.pop_front();
      stream->busy = true;
      lock.unlock();
      Run(work);
      lock.lock();
      stream->busy = false;
      changed.notify_all();
    }
  }

  std::minstd_rand random_{7};
};

Machine& TheMachine() {
  static Machine& machine = *new Machine();
  return machine;
}

thread_local int current_device = 0;

#define ENTER(name)                           \
  Machine& m = TheMachine();                  \
  std::unique_lock<std::mutex> lock(m.mutex); \
  if (const cudaError_t fault = m.Enter(name); fault != cudaSuccess) return fault

// As ENTER, of a call that gives something back: it does so even of a device that failed.
#define ENTER_TO_FREE(name)                   \
  Machine& m = TheMachine();                  \
  std::unique_lock<std::mutex> lock(m.mutex); \
  [[maybe_unused]] const cudaError_t fault = m.Enter(name)

bool IsCapturing(const Stream* stream) { return stream != nullptr && stream->capture != nullptr; }

}  // namespace

void Reset() {
  Machine& m = TheMachine();
  std::unique_lock<std::mutex> lock(m.mutex);
  m.WaitForAll(lock);
  m.devices = 1;
  m.properties = DefaultProperties();
  m.memory_limit = kNoLimit;
  m.faults.clear();
  m.calls.clear();
  m.launched.clear();
  m.sticky = m.last = cudaSuccess;
}

void SetDevices(int count) {
  Machine& m = TheMachine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  m.devices = count;
}

void SetProperties(const cudaDeviceProp& properties) {
  Machine& m = TheMachine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  m.properties = properties;
}

void SetMemory(int64_t bytes) {
  Machine& m = TheMachine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  m.memory_limit = bytes;
}

void Fail(const std::string& call, cudaError_t error, int after) {
  Machine& m = TheMachine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  m.faults[call] = {error, after};
}

std::vector<std::string> Calls() {
  Machine& m = TheMachine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  return m.calls;
}

void ClearCalls() {
  Machine& m = TheMachine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  m.calls.clear();
}

int64_t DeviceBytes() {
  Machine& m = TheMachine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  return m.device_bytes;
}

int64_t PinnedBytes() {
  Machine& m = TheMachine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  return m.pinned_bytes;
}

int64_t Handles() {
  Machine& m = TheMachine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  return m.handles;
}

void Delay(double milliseconds) {
  Machine& m = TheMachine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  m.delayed += std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double, std::milli>(milliseconds));
}

cudaError_t Enqueue(cudaStream_t stream, const std::string& name, std::function<void()> work) {
  ENTER(name);
  m.Push(stream, {name, std::move(work)});
  return cudaSuccess;
}

cudaError_t AllowShared(const void* kernel, int bytes) {
  Machine& m = TheMachine();
  const std::unique_lock<std::mutex> lock(m.mutex);
  if (bytes < 0 || static_cast<size_t>(bytes) > m.properties.sharedMemPerBlockOptin) {
    return m.last = cudaErrorInvalidValue;
  }
  m.allowed_shared[kernel] = static_cast<size_t>(bytes);
  return cudaSuccess;
}

cudaError_t EnqueueKernel(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                          std::function<void()> body) {
  ENTER("cudaLaunchKernel");
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu ||
      grid.y > 65535 || grid.z > 65535 || shared_bytes > m.properties.sharedMemPerBlockOptin) {
    return m.last = cudaErrorInvalidConfiguration;
  }
  // What any kernel may ask for without leave, less what static arrays, which are not counted here, may take of it.
  constexpr size_t kFree = (48 << 10) - 1024;
  const auto allowed = m.allowed_shared.find(kernel);
  if (shared_bytes > (allowed == m.allowed_shared.end() ? kFree : allowed->second)) {
    return m.last = cudaErrorInvalidValue;
  }
  if (m.launched.insert(kernel).second && IsCapturing(stream)) m.calls.push_back(kKernelMetInCapture);
  m.Push(stream, {"kernel", [=, body = std::move(body)] { RunGrid(grid, block, shared_bytes, body); }});
  return cudaSuccess;
}

}  // namespace cuda_on_host

using cuda_on_host::Machine;
using cuda_on_host::TheMachine;
using cuda_on_host::Work;

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorECCUncorrectable:
      return "cudaErrorECCUncorrectable";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    default:
      return "cudaError";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the emulated device";
}

cudaError_t cudaPeekAtLastError() {
  Machine& m = TheMachine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  return m.sticky != cudaSuccess ? m.sticky : m.last;
}
cudaError_t cudaGetLastError() {
  Machine& m = TheMachine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  const cudaError_t error = m.sticky != cudaSuccess ? m.sticky : m.last;
  m.last = cudaSuccess;
  return error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  ENTER("cudaGetDeviceCount");
  if (m.devices == 0) return m.last = cudaErrorNoDevice;
  *count = m.devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  ENTER("cudaSetDevice");
  if (device < 0 || device >= m.devices) return m.last = cudaErrorInvalidDevice;
  cuda_on_host::current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  ENTER("cudaGetDevice");
  *device = cuda_on_host::current_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  ENTER("cudaGetDeviceProperties");
  if (device < 0 || device >= m.devices) return m.last = cudaErrorInvalidDevice;
  *properties = m.properties;
  properties->uuid.bytes[14] = static_cast<char>('0' + device);
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  ENTER("cudaDriverGetVersion");
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  ENTER("cudaRuntimeGetVersion");
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  ENTER("cudaDeviceSynchronize");
  if (m.capturing > 0) return m.last = cudaErrorStreamCaptureUnsupported;
  m.WaitForAll(lock);
  return m.sticky;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  ENTER("cudaMemGetInfo");
  *total = std::min<size_t>(m.properties.totalGlobalMem, static_cast<size_t>(m.memory_limit));
  *free = *total > static_cast<size_t>(m.device_bytes) ? *total - static_cast<size_t>(m.device_bytes) : 0;
  return cudaSuccess;
}

namespace {

// Undefined memory is NaN in every float dtype.
char* NewMemory(size_t bytes) {
  const size_t rounded = (std::max<size_t>(bytes, 1) + 255) / 256 * 256;
  char* memory = static_cast<char*>(std::aligned_alloc(256, rounded));
  std::memset(memory, 0xff, rounded);
  return memory;
}

}  // namespace

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  ENTER("cudaMalloc");
  if (m.capturing > 0) return m.last = cudaErrorStreamCaptureUnsupported;
  if (static_cast<int64_t>(bytes) > m.memory_limit - m.device_bytes) return m.last = cudaErrorMemoryAllocation;
  char* p = NewMemory(bytes);
  m.allocations[p] = static_cast<int64_t>(bytes);
  m.device_bytes += static_cast<int64_t>(bytes);
  *memory = p;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  ENTER_TO_FREE("cudaFree");
  if (memory == nullptr) return fault;
  m.WaitForAll(lock);
  const auto it = m.allocations.find(static_cast<char*>(memory));
  if (it == m.allocations.end()) return m.last = cudaErrorInvalidValue;
  m.device_bytes -= it->second;
  m.allocations.erase(it);
  std::free(memory);
  return fault;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  ENTER("cudaHostAlloc");
  if (m.capturing > 0) return m.last = cudaErrorStreamCaptureUnsupported;
  char* p = NewMemory(bytes);
  m.pinned[p] = static_cast<int64_t>(bytes);
  m.pinned_bytes += static_cast<int64_t>(bytes);
  *memory = p;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return cudaHostAlloc(memory, bytes, 0); }
cudaError_t cudaFreeHost(void* memory) {
  ENTER_TO_FREE("cudaFreeHost");
  if (memory == nullptr) return fault;
  m.WaitForAll(lock);
  const auto it = m.pinned.find(static_cast<char*>(memory));
  if (it == m.pinned.end()) return m.last = cudaErrorInvalidValue;
  m.pinned_bytes -= it->second;
  m.pinned.erase(it);
  std::free(memory);
  return fault;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  ENTER("cudaHostGetDevicePointer");
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  ENTER("cudaMemcpyAsync");
  // As CUDA, which takes null pointers then; memcpy() does not.
  if (bytes == 0) return m.sticky;
  const bool pageable =
      (kind == cudaMemcpyHostToDevice && !m.IsPinned(from)) || (kind == cudaMemcpyDeviceToHost && !m.IsPinned(to));
  if (pageable) m.calls.push_back(cuda_on_host::kPageableCopy);
  const bool capturing = cuda_on_host::IsCapturing(stream);
  if (kind == cudaMemcpyHostToDevice && pageable) {
    // A graph would read this memory whenever it is launched: never meant.
    if (capturing) return m.last = cudaErrorStreamCaptureUnsupported;
    if (m.properties.pageableMemoryAccessUsesHostPageTables != 0) {
      m.Push(stream, {"memcpy", [=] { std::memcpy(to, from, bytes); }});
      return cudaSuccess;
    }
    auto copy =
        std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    m.Push(stream, {"memcpy", [=] { std::memcpy(to, copy->data(), bytes); }});
    return cudaSuccess;
  }
  const bool waits = pageable;
  if (waits && capturing) return m.last = cudaErrorStreamCaptureUnsupported;
  m.Push(stream, {"memcpy", [=] { std::memmove(to, from, bytes); }});
  if (waits) m.Wait(lock, stream == nullptr ? m.default_stream : *stream);
  return m.sticky;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  ENTER("cudaMemsetAsync");
  m.Push(stream, {"memset", [=] { std::memset(memory, value, bytes); }});
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  ENTER("cudaStreamCreateWithFlags");
  m.streams.push_back(std::make_unique<cuda_on_host::Stream>());
  ++m.handles;
  *stream = m.streams.back().get();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  ENTER_TO_FREE("cudaStreamDestroy");
  m.Wait(lock, *stream);
  for (auto it = m.streams.begin(); it != m.streams.end(); ++it) {
    if (it->get() != stream) continue;
    m.streams.erase(it);
    --m.handles;
    return fault;
  }
  return m.last = cudaErrorInvalidResourceHandle;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ENTER("cudaStreamSynchronize");
  if (cuda_on_host::IsCapturing(stream)) return m.last = cudaErrorStreamCaptureUnsupported;
  m.Wait(lock, stream == nullptr ? m.default_stream : *stream);
  return m.sticky;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  ENTER("cudaStreamQuery");
  return m.Idle(*stream) ? m.sticky : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  ENTER("cudaStreamWaitEvent");
  if (event->capture != nullptr) {
    // The stream joins the capture; its nodes come behind what was captured so far.
    stream->capture = event->capture;
    return cudaSuccess;
  }
  if (stream->capture != nullptr) return m.last = cudaErrorStreamCaptureUnsupported;
  m.Push(stream, {"wait", nullptr, event, event->recorded});
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  ENTER("cudaStreamIsCapturing");
  *status = cuda_on_host::IsCapturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  ENTER("cudaEventCreateWithFlags");
  *event = new cuda_on_host::Event();
  ++m.handles;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  ENTER_TO_FREE("cudaEventDestroy");
  m.WaitForAll(lock);
  --m.handles;
  delete event;
  return fault;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ENTER("cudaEventRecord");
  if (cuda_on_host::IsCapturing(stream)) {
    event->capture = stream->capture;
    return cudaSuccess;
  }
  event->capture = nullptr;
  ++event->recorded;
  m.Push(stream, {"event", [event] {
                    Machine& machine = TheMachine();
                    const std::lock_guard<std::mutex> guard(machine.mutex);
                    ++event->reached;
                    event->at = std::chrono::steady_clock::now() + machine.delayed;
                    machine.changed.notify_all();
                  }});
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ENTER("cudaEventSynchronize");
  m.changed.wait(lock, [&] { return event->reached >= event->recorded || m.sticky != cudaSuccess; });
  return m.sticky;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  ENTER("cudaEventQuery");
  return event->reached >= event->recorded ? m.sticky : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  ENTER("cudaEventElapsedTime");
  *milliseconds = std::chrono::duration<float, std::milli>(end->at - start->at).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  ENTER("cudaStreamBeginCapture");
  if (stream == nullptr || stream->capture != nullptr) return m.last = cudaErrorIllegalState;
  stream->capture = new cuda_on_host::Graph{{}, stream};
  ++m.capturing;
  ++m.handles;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  ENTER("cudaStreamEndCapture");
  if (stream->capture == nullptr || stream->capture->origin != stream) return m.last = cudaErrorIllegalState;
  *graph = stream->capture;
  for (const auto& other : m.streams) {
    if (other->capture == *graph) other->capture = nullptr;
  }
  --m.capturing;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  ENTER("cudaGraphGetNodes");
  if (nodes == nullptr) {
    *count = graph->nodes.size();
    return cudaSuccess;
  }
  *count = std::min(*count, graph->nodes.size());
  for (size_t i = 0; i < *count; ++i) nodes[i] = &graph->nodes[i];
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  ENTER("cudaGraphInstantiate");
  *exec = new cuda_on_host::GraphExec{std::make_shared<const std::vector<Work>>(graph->nodes)};
  ++m.handles;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  ENTER("cudaGraphLaunch");
  m.Push(stream, {"graph", [nodes = exec->nodes] {
                    for (const Work& node : *nodes) TheMachine().Run(node);
                  }});
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  ENTER_TO_FREE("cudaGraphExecDestroy");
  --m.handles;
  delete exec;
  return fault;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  ENTER_TO_FREE("cudaGraphDestroy");
  --m.handles;
  delete graph;
  return fault;
}
