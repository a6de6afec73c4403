// What ran on the device in the last moments of a process, and for how long: a library that CUDA loads into a program
// whose environment has CUDA_INJECTION64_PATH=THIS. At its end it writes to the file AMPD_KERNEL_TIMES, of the last
// AMPD_KERNEL_TIMES_MS milliseconds (default 250) before the last kernel's end: kernels, copies and fills by time, the
// same by grid and block, and the last of them in order with the gaps between them. PyTorch's programs can be looked at
// in the same way. The program runs a little slower.
#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kMostRows = 160, kMostInOrder = 900;

struct Record {
  uint64_t start, end;  // ns
  int name;
  uint32_t grid, block, shared_bytes, registers;
};

struct Sum {
  uint64_t time = 0, count = 0;
};

// Never freed: records come until the process has ended.
struct State {
  std::mutex mutex;
  std::vector<Record> records;
  std::vector<std::string> names;
  std::map<std::string, int> ids;

  int IdOf(const char* name) {
    const auto [it, is_new] = ids.insert({name != nullptr ? name : "?", static_cast<int>(names.size())});
    if (is_new) names.push_back(it->first);
    return it->second;
  }
};

State& TheState() {
  static State& state = *new State;
  return state;
}

void Keep(const CUpti_Activity* activity) {
  State& state = TheState();
  if (activity->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const auto& k = *reinterpret_cast<const CUpti_ActivityKernel9*>(activity);
    state.records.push_back({k.start, k.end, state.IdOf(k.name), static_cast<uint32_t>(k.gridX * k.gridY * k.gridZ),
                             static_cast<uint32_t>(k.blockX * k.blockY * k.blockZ),
                             static_cast<uint32_t>(k.staticSharedMemory + k.dynamicSharedMemory),
                             k.registersPerThread});
  } else if (activity->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto& c = *reinterpret_cast<const CUpti_ActivityMemcpy5*>(activity);
    const std::string name = "[copy of kind " + std::to_string(c.copyKind) + "]";
    state.records.push_back({c.start, c.end, state.IdOf(name.c_str()), 0, 0, 0, 0});
  } else if (activity->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    const auto& f = *reinterpret_cast<const CUpti_ActivityMemset4*>(activity);
    state.records.push_back({f.start, f.end, state.IdOf("[fill]"), 0, 0, 0, 0});
  }
}

void CUPTIAPI RequestBuffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *size = kBufferBytes;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(64, kBufferBytes));
  *max_records = 0;
}

void CUPTIAPI TakeBuffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_size) {
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  CUpti_Activity* activity = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_size, &activity) == CUPTI_SUCCESS) Keep(activity);
  std::free(buffer);
}

std::string Readable(const std::string& name, size_t most) {
  int failed = 0;
  const std::unique_ptr<char, void (*)(void*)> demangled(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &failed),
                                                         std::free);
  return std::string(failed == 0 && demangled ? demangled.get() : name.c_str()).substr(0, most);
}

double Ms(uint64_t ns) { return static_cast<double>(ns) / 1e6; }
double Us(uint64_t ns) { return static_cast<double>(ns) / 1e3; }

void PrintSorted(std::vector<std::pair<uint64_t, std::string>> rows, std::FILE* file) {
  std::sort(rows.rbegin(), rows.rend());
  for (size_t i = 0; i < std::min(rows.size(), kMostRows); ++i) std::fprintf(file, "%s\n", rows[i].second.c_str());
}

std::string Row(const Sum& sum, const std::string& what) {
  char times[96];
  std::snprintf(times, sizeof(times), "%9.3f ms, %6lu times, mean %9.2f us  ", Ms(sum.time),
                static_cast<unsigned long>(sum.count), Us(sum.time) / static_cast<double>(sum.count));
  return times + what;
}

void Print(const std::vector<Record>& records, const std::vector<std::string>& names, std::FILE* file) {
  std::map<int, Sum> by_name;
  std::map<std::tuple<int, uint32_t, uint32_t, uint32_t, uint32_t>, Sum> by_shape;
  uint64_t busy = 0, until = 0;
  for (const Record& r : records) {
    const uint64_t time = r.end - r.start;
    for (Sum* sum : {&by_name[r.name], &by_shape[{r.name, r.grid, r.block, r.shared_bytes, r.registers}]}) {
      sum->time += time;
      ++sum->count;
    }
    if (r.end > until) busy += r.end - std::max(until, r.start), until = r.end;
  }
  std::fprintf(file, "%zu records in %.3f ms, of which %.3f ms something ran\n", records.size(),
               Ms(until - records.front().start), Ms(busy));
  std::vector<std::pair<uint64_t, std::string>> rows;
  for (const auto& [name, sum] : by_name) rows.push_back({sum.time, Row(sum, Readable(names[name], 230))});
  PrintSorted(std::move(rows), file);
  std::fprintf(file, "\nby grid, block, shared bytes, registers\n");
  rows.clear();
  for (const auto& [shape, sum] : by_shape) {
    const auto& [name, grid, block, shared, registers] = shape;
    const std::string launch = std::to_string(grid) + " " + std::to_string(block) + " " + std::to_string(shared) + " " +
                               std::to_string(registers) + "  ";
    rows.push_back({sum.time, Row(sum, launch + Readable(names[name], 230))});
  }
  PrintSorted(std::move(rows), file);
  std::fprintf(file, "\nin order: us, gap before it, what, grid, block\n");
  for (size_t i = records.size() - std::min(records.size(), kMostInOrder); i < records.size(); ++i) {
    const Record& r = records[i];
    const double gap = i == 0 ? 0 : (static_cast<double>(r.start) - static_cast<double>(records[i - 1].end)) / 1e3;
    std::fprintf(file, "%.2f %.2f %s %u %u\n", Us(r.end - r.start), gap, Readable(names[r.name], 120).c_str(), r.grid,
                 r.block);
  }
}

void Report() {
  cuptiActivityFlushAll(1);
  State& state = TheState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  const char* const path = std::getenv("AMPD_KERNEL_TIMES");
  std::FILE* const file = path != nullptr ? std::fopen(path, "w") : nullptr;
  if (file == nullptr) return;
  const char* const ms = std::getenv("AMPD_KERNEL_TIMES_MS");
  const auto window = static_cast<uint64_t>((ms != nullptr ? std::atof(ms) : 250) * 1e6);
  uint64_t last = 0;
  for (const Record& r : state.records) last = std::max(last, r.end);
  std::vector<Record> records;
  for (const Record& r : state.records) {
    if (r.start + window >= last) records.push_back(r);
  }
  std::sort(records.begin(), records.end(), [](const Record& a, const Record& b) { return a.start < b.start; });
  if (records.empty()) {
    std::fprintf(file, "nothing ran\n");
  } else {
    Print(records, state.names, file);
  }
  std::fclose(file);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  TheState();
  if (cuptiActivityRegisterCallbacks(RequestBuffer, TakeBuffer) != CUPTI_SUCCESS) return 0;
  for (CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    cuptiActivityEnable(kind);
  }
  std::atexit(Report);
  return 1;
}
