// cuDNN's graphs of operations: a description is turned into an operation graph, the heuristics list the engines that
// could run it on a device, and plans are built from these; with the device or without.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CUDNN_GRAPH_H_
#define AMPD_ENGINE_BACKEND_CUDA_CUDNN_GRAPH_H_

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/device_properties.h"
#include "engine/core/dtype.h"

namespace ampd::cuda::cudnn {

// Dimensions in cuDNN's order, batch and channels first, whatever lies innermost in memory. A virtual tensor is never
// stored; its dtype is that of the arithmetic. A tensor of one f32 may be passed by value: its address in Execute is
// the host's.
struct Tensor {
  std::vector<int64_t> dims;
  std::vector<int64_t> strides;
  DType dtype = DType::kF32;
  bool is_virtual = false;
  bool by_value = false;
};

enum class Op {
  kConvForward,     // image, filter -> output
  kConvGradInput,   // output gradient, filter -> image gradient
  kConvGradFilter,  // output gradient, image -> filter gradient
  kAdd,             // x, y -> z; y may be a vector of one value a channel, here and below
  kSubtract,
  kMultiply,
  kDivide,
  kExp,  // x -> y, as the next two
  kLog,
  kIdentity,
  kRowIndex,  // x -> y, i32: the place along the last axis but one, here and below the last
  kColumnIndex,
  kGreaterEqual,  // x, y -> z, bool
  kSelect,        // x, y, condition -> z
  kMatmul,        // [..., m, k], [..., k, n] -> [..., m, n]
  kMaximum,       // x -> y: over the axes that have one place in y, here and below
  kSum,
  kReshape,            // x -> y: by the strides of both
  kRelu,               // x -> y
  kReluGrad,           // y's gradient, x -> x's gradient
  kStatistics,         // x -> sum, sum of squares
  kBatchNormFinalize,  // sum, sum of squares, scale, bias, epsilon, count -> mean, 1 / deviation, and the scale and
                       // bias that normalise x in one step
  kBatchNormGrad,      // dy, x, scale, mean, 1 / deviation -> scale's and bias's gradient, coefficients of dy, x and 1
};

// Indices into the graph's tensors. The rest is a convolution's.
struct Node {
  Op op;
  std::vector<int> inputs;
  std::vector<int> outputs;
  std::array<int64_t, 2> strides = {1, 1}, dilations = {1, 1}, before = {}, after = {};
};

struct GraphDesc {
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;
};

// Which engines will do. None sums in less than f32, uses Winograd's or Fourier's transforms, rounds operands to 16
// bits, or gives other bits from call to call.
struct Limits {
  // Engines that use matrix units: for f32 operands those that round them to TF32.
  bool matrix_units = false;
  int64_t workspace_bytes = 0;
};

using Descriptor = std::shared_ptr<void>;

// An engine with its settings: a way to run a graph.
struct Engine {
  Descriptor config;
  // cuDNN's number of the engine and its knobs, e.g. "engine 41: 2=12 5=1": the same in every process that has the same
  // library.
  std::string name;
  int64_t workspace_bytes = 0;
  bool matrix_units = false;
};

// Ready to run on the device that it was built for.
struct Plan {
  Descriptor descriptor;
  std::string name;
  int64_t workspace_bytes = 0;
};

class Graph {
 public:
  // `handle`: of the device that is to run it. Null: of none, and then what Engines() lists and Build() makes of it
  // runs nowhere: without a handle cuDNN takes no notice of the device that is there. UNIMPLEMENTED when cuDNN knows
  // no such operations, INTERNAL otherwise.
  static absl::StatusOr<Graph> Make(const GraphDesc& desc, cudnnHandle_t handle);

  // In the order of cuDNN's expectation, fastest first. `device`: not null, for a GPU that need not be there; null,
  // that of Make()'s handle. UNIMPLEMENTED when there is none within `limits`.
  absl::StatusOr<std::vector<Engine>> Engines(const DeviceProperties* device, const Limits& limits) const;

 private:
  static absl::Status Append(const Descriptor& heuristics, const Limits& limits, std::vector<Engine>* engines);

  Descriptor graph_;
  std::vector<Descriptor> parts_;
};

absl::StatusOr<Plan> Build(const Engine& engine);

// `pointers`: tensor's index and its address in device memory, of all that are not virtual.
absl::Status Execute(cudnnHandle_t handle, const Plan& plan, absl::Span<const std::pair<int64_t, void*>> pointers,
                     void* workspace);

// The context's, which runs on the context's stream; null where it has no device.
absl::StatusOr<cudnnHandle_t> Handle(Context* context);

// What cuDNN must know of a device, in its own JSON.
std::string DeviceJson(const DeviceProperties& properties);

// RESOURCE_EXHAUSTED: cuDNN got no memory.
absl::Status ToStatus(cudnnStatus_t status, const std::string& what);

// For a graph none of whose engines could be built, `why` an error of one: UNIMPLEMENTED, but RESOURCE_EXHAUSTED where
// that is why, which says nothing of the graph.
absl::Status NoneBuilds(const absl::Status& why);

}  // namespace ampd::cuda::cudnn

#endif  // AMPD_ENGINE_BACKEND_CUDA_CUDNN_GRAPH_H_
