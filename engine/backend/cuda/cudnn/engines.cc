#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/backend/cuda/cudnn/graph.h"
#include "engine/backend/cuda/cudnn/maker.h"
#include "engine/backend/cuda/device_failure.h"
#include "engine/core/status.h"

namespace ampd::cuda::cudnn {
namespace {

// Per multiprocessor, by compute capability: CUDA's programming guide, "Technical Specifications per Compute
// Capability".
struct Residency {
  int threads, blocks;
};

Residency ResidencyOf(int capability) {
  if (capability < 75) return {2048, 32};
  if (capability < 80) return {1024, 16};
  if (capability == 80) return {2048, 32};
  if (capability < 89) return {1536, 16};
  if (capability == 89) return {1536, 24};
  if (capability < 120) return {2048, 32};
  return {1536, 24};
}

// All of an attribute's values; `largest` of them at most. Empty where there is none.
template <typename T>
std::vector<T> Values(const Descriptor& d, cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type,
                      int64_t largest) {
  int64_t count = 0;
  std::vector<T> values(static_cast<size_t>(largest));
  if (cudnnBackendGetAttribute(d.get(), attribute, type, largest, &count, values.data()) != CUDNN_STATUS_SUCCESS) {
    return {};
  }
  values.resize(static_cast<size_t>(std::clamp<int64_t>(count, 0, largest)));
  return values;
}

// The descriptors that an attribute holds, `largest` of them at most: cuDNN fills those that the caller has made.
absl::StatusOr<std::vector<Descriptor>> Parts(const Descriptor& of, cudnnBackendAttributeName_t attribute,
                                              cudnnBackendDescriptorType_t type, int64_t largest, const char* what) {
  std::vector<Descriptor> parts;
  std::vector<void*> pointers;
  for (int64_t i = 0; i < largest; ++i) {
    AMPD_ASSIGN_OR_RETURN(Descriptor part, NewDescriptor(type, what));
    pointers.push_back(part.get());
    parts.push_back(std::move(part));
  }
  int64_t count = 0;
  AMPD_RETURN_IF_ERROR(ToStatus(
      cudnnBackendGetAttribute(of.get(), attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, largest, &count, pointers.data()),
      what));
  parts.resize(static_cast<size_t>(std::clamp<int64_t>(count, 0, largest)));
  return parts;
}

using Notes = std::vector<cudnnBackendNumericalNote_t>;

bool WillDo(const Notes& notes, const Limits& limits) {
  return std::all_of(notes.begin(), notes.end(), [&](cudnnBackendNumericalNote_t note) {
    return note == CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP ||
           (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && limits.matrix_units);
  });
}

std::string NameOf(const Descriptor& config, const Descriptor& engine) {
  const auto number = Values<int64_t>(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1);
  std::string name = absl::StrCat("engine ", number.empty() ? -1 : number[0]);
  const auto knobs = Parts(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                           CUDNN_KNOB_TYPE_COUNTS, "knobs");
  if (!knobs.ok()) return name;
  std::vector<std::pair<int, int64_t>> choices;
  for (const Descriptor& knob : *knobs) {
    const auto type = Values<cudnnBackendKnobType_t>(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1);
    const auto value = Values<int64_t>(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1);
    if (!type.empty() && !value.empty()) choices.emplace_back(static_cast<int>(type[0]), value[0]);
  }
  std::sort(choices.begin(), choices.end());
  for (const auto& [type, value] : choices) absl::StrAppend(&name, " ", type, "=", value);
  return name;
}

}  // namespace

absl::Status ToStatus(cudnnStatus_t status, const std::string& what) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  char last[512] = "";
  cudnnGetLastErrorString(last, sizeof(last));
  const std::string message =
      absl::StrCat("[cudnn] ", what, ": ", cudnnGetErrorString(status), last[0] == '\0' ? "" : ": ", last);
  if (status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) {
    return absl::ResourceExhaustedError(message);
  }
  // Codes are grouped by thousands.
  switch (static_cast<int>(status) / 1000) {
    case static_cast<int>(CUDNN_STATUS_NOT_SUPPORTED) / 1000:
      return absl::UnimplementedError(message);
    case static_cast<int>(CUDNN_STATUS_BAD_PARAM) / 1000:
      return absl::InvalidArgumentError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status NoneBuilds(const absl::Status& why) {
  if (absl::IsResourceExhausted(why)) return why;
  return absl::UnimplementedError(absl::StrCat("no engine builds: ", why.message()));
}

absl::StatusOr<Descriptor> NewDescriptor(cudnnBackendDescriptorType_t type, const std::string& what) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  AMPD_RETURN_IF_ERROR(ToStatus(cudnnBackendCreateDescriptor(type, &descriptor), what));
  return Descriptor(descriptor, [](void* d) { static_cast<void>(cudnnBackendDestroyDescriptor(d)); });
}

absl::StatusOr<cudnnHandle_t> Handle(Context* context) {
  if (!context->is_open()) return nullptr;
  std::shared_ptr<void>& library = context->library(Library::kDnn);
  if (library == nullptr) {
    cudnnHandle_t handle = nullptr;
    AMPD_RETURN_IF_ERROR(DeviceFailureOr(*context, ToStatus(cudnnCreate(&handle), "cuDNN")));
    std::shared_ptr<void> made(handle, [](void* h) { static_cast<void>(cudnnDestroy(static_cast<cudnnHandle_t>(h))); });
    AMPD_RETURN_IF_ERROR(
        DeviceFailureOr(*context, ToStatus(cudnnSetStream(handle, context->stream()), "cuDNN's stream")));
    library = std::move(made);
  }
  return static_cast<cudnnHandle_t>(library.get());
}

std::string DeviceJson(const DeviceProperties& p) {
  const Residency residency = ResidencyOf(p.capability());
  return absl::StrCat(
      "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,",
      "\"multiProcessorCount\":", p.sm_count, ",\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,",
      "\"maxSharedMemoryPerBlockOptin\":", p.shared_bytes_per_block,
      ",\"reservedSharedMemoryPerBlock\":", p.major >= 8 ? 1024 : 0,
      ",\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":", residency.blocks,
      ",\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":", residency.threads,
      ",\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"totalGlobalMem\":", p.memory_bytes,
      // The clocks are any GPU's: what is fast is measured on the device itself.
      ",\"smClockRateKHz\":1500000,\"memClockRateKHz\":2000000,\"l2CacheSize\":", p.l2_bytes,
      ",\"cudaDeviceId\":0,\"deviceVer\":", 100 * p.major + 10 * p.minor, ",\"driverVer\":", CUDART_VERSION,
      ",\"deviceName\":\"", absl::StrReplaceAll(p.name, {{"\"", ""}, {"\\", ""}}), "\"}");
}

absl::StatusOr<std::vector<Engine>> Graph::Engines(const DeviceProperties* device, const Limits& limits) const {
  Descriptor properties;
  if (device != nullptr) {
    const std::string json = DeviceJson(*device);
    AMPD_ASSIGN_OR_RETURN(properties, Maker(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "device")
                                          .Set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                               absl::Span<const char>(json.data(), json.size()))
                                          .Finish());
  }
  std::vector<Engine> engines;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    Maker maker(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "heuristics");
    maker.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_)
        .Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
    if (properties != nullptr) maker.Set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, properties);
    const absl::StatusOr<Descriptor> heuristics = maker.Finish();
    if (absl::IsUnimplemented(heuristics.status())) continue;
    AMPD_RETURN_IF_ERROR(heuristics.status());
    AMPD_RETURN_IF_ERROR(Append(*heuristics, limits, &engines));
  }
  if (!engines.empty()) return engines;
  return absl::UnimplementedError("[cudnn] no engine within the limits");
}

absl::Status Graph::Append(const Descriptor& heuristics, const Limits& limits, std::vector<Engine>* engines) {
  int64_t count = 0;
  AMPD_RETURN_IF_ERROR(ToStatus(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
                                "heuristics' results"));
  AMPD_ASSIGN_OR_RETURN(const std::vector<Descriptor> configs,
                        Parts(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, count,
                              "heuristics' results"));
  for (const Descriptor& config : configs) {
    AMPD_ASSIGN_OR_RETURN(const std::vector<Descriptor> engine,
                          Parts(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1, "engine"));
    const auto workspace = Values<int64_t>(config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1);
    if (engine.empty() || workspace.empty() || workspace[0] > limits.workspace_bytes) continue;
    const auto notes = Values<cudnnBackendNumericalNote_t>(engine[0], CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                           CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
    if (!WillDo(notes, limits)) continue;
    const bool matrix_units = std::count(notes.begin(), notes.end(), CUDNN_NUMERICAL_NOTE_TENSOR_CORE) > 0;
    std::string name = NameOf(config, engine[0]);
    const bool known = std::any_of(engines->begin(), engines->end(), [&](const Engine& e) { return e.name == name; });
    if (!known) engines->push_back({config, std::move(name), workspace[0], matrix_units});
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> Build(const Engine& engine) {
  AMPD_ASSIGN_OR_RETURN(Descriptor plan, Maker(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, engine.name)
                                             .Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine.config)
                                             .Finish());
  const auto bytes = Values<int64_t>(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1);
  if (bytes.empty()) return absl::InternalError(absl::StrCat("[cudnn] ", engine.name, " has no workspace size"));
  return Plan{std::move(plan), engine.name, bytes[0]};
}

absl::Status Execute(cudnnHandle_t handle, const Plan& plan, absl::Span<const std::pair<int64_t, void*>> pointers,
                     void* workspace) {
  std::vector<int64_t> ids;
  std::vector<void*> addresses;
  for (const auto& [id, address] : pointers) {
    ids.push_back(id);
    addresses.push_back(address);
  }
  // An engine that wants none gets none, rather than the address of something else.
  if (plan.workspace_bytes == 0) workspace = nullptr;
  AMPD_ASSIGN_OR_RETURN(
      const Descriptor pack,
      Maker(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, plan.name)
          .Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids)
          .Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, absl::Span<void* const>(addresses))
          .Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
          .Finish());
  return ToStatus(cudnnBackendExecute(handle, plan.descriptor.get(), pack.get()), plan.name);
}

}  // namespace ampd::cuda::cudnn
