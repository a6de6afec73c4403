// A random graph as the step of a mode, with and without the passes that only make it faster.
#ifndef AMPD_TESTS_UNIT_ENGINE_RUNTIME_RANDOM_STEP_H_
#define AMPD_TESTS_UNIT_ENGINE_RUNTIME_RANDOM_STEP_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "engine/autodiff/differentiate.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/passes/add_to_norm_grads.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/fuse.h"
#include "engine/passes/gate_norm_grads.h"
#include "engine/passes/overwrite_gradients.h"
#include "engine/passes/pad_for_tensor_cores.h"
#include "engine/passes/pipeline.h"
#include "engine/passes/precision.h"
#include "engine/passes/publish_parameters.h"
#include "engine/passes/quantize_fp8.h"
#include "engine/passes/read_narrow.h"
#include "engine/passes/round_pads.h"
#include "engine/passes/scale_products.h"
#include "engine/passes/split_norms.h"
#include "engine/passes/turn_codes.h"
#include "engine/passes/widen_gradients.h"
#include "engine/runtime/backend.h"

namespace ampd::runtime {

struct Mode {
  std::string name;
  passes::ComputeType compute;
};

inline const std::vector<Mode>& AllModes() {
  static const auto& modes = *new std::vector<Mode>{{"FP32", DType::kF32},
                                                    {"TF32", passes::kTf32},
                                                    {"FP16", DType::kF16},
                                                    {"BF16", DType::kBF16},
                                                    {"FP8", passes::kFp8}};
  return modes;
}

// Graphs a property is tried on; AMPD_RANDOM_GRAPHS in the environment for more.
inline uint64_t RandomGraphCount() {
  const char* given = std::getenv("AMPD_RANDOM_GRAPHS");
  return given == nullptr ? 60 : std::strtoull(given, nullptr, 10);
}

enum class Passes {
  kNone,       // casts, gradients and 8-bit operands: what the mode means
  kTidied,     // and dead nodes removed
  kPublished,  // and parameters read from published copies
  kExact,  // and losses of 16 bits, batches rounded as they are padded, norms split, their gradients gated: what rounds
           // nothing otherwise
  kAll,    // and 8-bit products scaled, gradients left in f32 and overwritten, chains fused
};

// A gtest failure when a pass refuses.
inline ir::Graph StepOf(ir::Graph forward, const Mode& mode, Passes passes, const passes::PaddingPolicy& padding = {}) {
  const auto backend = MakeCpuBackend(1);
  const auto can_fuse = [&](ir::OpKind op) { return backend->CanFuse(op); };
  passes::Pipeline pipeline;
  pipeline.Add("precision", [&](ir::Graph g) { return passes::ApplyPrecision(g, {.compute = mode.compute}); })
      .Add("differentiate",
           [](ir::Graph g) {
             const ir::ValueId loss = g.outputs.at("loss");
             return autodiff::Differentiate(std::move(g), loss);
           })
      .Add("quantize_fp8", [](ir::Graph g) { return passes::QuantizeFp8(std::move(g), true); });
  if (passes >= Passes::kTidied) pipeline.Add("dead_nodes", passes::RemoveDeadNodes);
  pipeline.Add("pad_for_tensor_cores", [&](ir::Graph g) { return passes::PadForTensorCores(std::move(g), padding); });
  if (passes >= Passes::kPublished) pipeline.Add("publish_parameters", passes::PublishParameters);
  if (passes >= Passes::kExact) {
    pipeline.Add("read_narrow", [](ir::Graph g) { return passes::ReadNarrow(std::move(g), 0); })
        .Add("round_pads", [](ir::Graph g) { return passes::RoundPads(std::move(g), 0); });
    if (passes == Passes::kAll) {
      pipeline.Add("scale_products", passes::ScaleProducts)
          .Add("turn_codes", passes::TurnCodes)
          .Add("widen_gradients", passes::WidenGradients)
          .Add("add_to_norm_grads", passes::AddToNormGrads);
    }
    pipeline.Add("split_norms", [&](ir::Graph g) { return passes::SplitNorms(std::move(g), can_fuse); });
    pipeline.Add("gate_norm_grads", passes::GateNormGrads);
  }
  if (passes == Passes::kAll) {
    pipeline.Add("fuse", [&](ir::Graph g) { return passes::Fuse(std::move(g), can_fuse); })
        .Add("overwrite_gradients", passes::OverwriteGradients);
  }
  auto graph = pipeline.Run(std::move(forward));
  EXPECT_TRUE(graph.ok()) << graph.status();
  return graph.ok() ? *std::move(graph) : ir::Graph();
}

}  // namespace ampd::runtime

#endif  // AMPD_TESTS_UNIT_ENGINE_RUNTIME_RANDOM_STEP_H_
