#include "engine/backend/cuda/conv.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/autotune.h"
#include "engine/backend/cuda/conv_choice.h"
#include "engine/backend/cuda/cudnn/conv_graph.h"
#include "engine/backend/cuda/cudnn/graph.h"
#include "engine/backend/cuda/cudnn/questions.h"
#include "engine/backend/cuda/device_failure.h"
#include "engine/core/status.h"
#include "engine/core/tensor.h"

namespace ampd::cuda {
namespace {

using cudnn::Engine;
using cudnn::Plan;

// cuDNN 9.19 writes past its own memory while it plans batch norm's gradient fused into the gradient by the input, for
// filters of 9x9 and 11x21; 7x7 and 5x11 are sound.
constexpr int64_t kMostFusedCells = 49;

// What cuDNN has for a convolution, on the device that a context describes.
struct Listed {
  cudnn::Graph graph;
  std::vector<std::pair<int, cudnn::ConvOperand>> operands;
  int64_t workspace_bytes = 0;  // the most of the candidates'
  std::string algorithm;
};

// Whether a window sees nothing but padding, which no network of use has: gradients by such a filter came out as NaN on
// an H200.
bool HasBlindWindows(const ConvDesc& desc) {
  for (size_t axis = 0; axis < 2; ++axis) {
    for (int64_t i = 0; i < desc.output[axis + 1]; ++i) {
      const int64_t first = i * desc.strides[axis] - desc.before[axis], step = desc.dilations[axis];
      // The first tap that is not in front of the image.
      const int64_t tap = first < 0 ? (step - 1 - first) / step : 0;
      if (tap >= desc.filter[axis + 1] || first + tap * step >= desc.image[axis + 1]) return true;
    }
  }
  return false;
}

cudnn::Limits LimitsWithin(const ConvDesc& desc, int64_t bytes) {
  return {.matrix_units = desc.operands != DType::kF32 || desc.tf32, .workspace_bytes = bytes};
}

absl::StatusOr<std::shared_ptr<const Listed>> List(const ConvDesc& desc, DType intermediate, Context* context) {
  if (desc.fusion == ConvFusion::kReluBatchNormGrad && desc.filter[1] * desc.filter[2] > kMostFusedCells) {
    return absl::UnimplementedError(absl::StrCat("not fused with a filter of more than ", kMostFusedCells, " cells"));
  }
  if (HasBlindWindows(desc)) return absl::UnimplementedError("windows that see nothing but padding");
  auto listed = std::make_shared<Listed>();
  AMPD_ASSIGN_OR_RETURN(cudnn::ConvGraph described, cudnn::DescribeConv(desc, intermediate));
  listed->operands = std::move(described.operands);
  AMPD_ASSIGN_OR_RETURN(const cudnnHandle_t handle, cudnn::Handle(context));
  AMPD_ASSIGN_OR_RETURN(listed->graph, cudnn::Graph::Make(described.graph, handle));
  // A device that is there is asked itself: its engines may need more than those of its description.
  const DeviceProperties* const described_device = context->is_open() ? nullptr : &context->properties();
  AMPD_ASSIGN_OR_RETURN(std::vector<Engine> engines,
                        listed->graph.Engines(described_device, LimitsWithin(desc, kMaxConvWorkspace)));
  // The heuristics may list what then cannot be built.
  absl::Status status;
  while (!engines.empty()) {
    const absl::StatusOr<Plan> plan = cudnn::Build(engines.front());
    if (!absl::IsResourceExhausted(status)) status = plan.status();
    if (plan.ok() && plan->workspace_bytes <= kMaxConvWorkspace) {
      // What is built may need more than its engine said.
      listed->workspace_bytes = plan->workspace_bytes;
      break;
    }
    engines.erase(engines.begin());
  }
  if (engines.empty()) return cudnn::NoneBuilds(status);
  listed->algorithm = absl::StrCat(engines.front().name, engines.front().matrix_units ? ", matrix units" : "");
  engines.resize(std::min(engines.size(), kConvCandidates));
  for (const Engine& engine : engines) {
    listed->workspace_bytes = std::max(listed->workspace_bytes, engine.workspace_bytes);
  }
  listed->workspace_bytes = AlignUp(listed->workspace_bytes);
  return listed;
}

absl::StatusOr<std::shared_ptr<const Listed>> ListOnce(const ConvDesc& desc, DType intermediate, Context* context) {
  const auto ask = [&]() -> absl::StatusOr<std::shared_ptr<const void>> { return List(desc, intermediate, context); };
  const std::string key = absl::StrCat("conv ", ConvKey(desc), " ", DTypeName(intermediate));
  AMPD_ASSIGN_OR_RETURN(const std::shared_ptr<const void> answer, cudnn::AskOnce(key, context, ask));
  return std::static_pointer_cast<const Listed>(answer);
}

class CudnnConv : public Conv {
 public:
  CudnnConv(std::string name, const ConvDesc& desc, Context* context)
      : name_(std::move(name)), desc_(desc), context_(context) {}

  // Some fusions have engines only where what is computed on the way is rounded to the operands' dtype.
  absl::Status Init() {
    const absl::Status status = InitWith(DType::kF32);
    if (!absl::IsUnimplemented(status) || desc_.fusion != ConvFusion::kScaleBiasRelu) return status;
    return InitWith(desc_.operands);
  }

  int64_t workspace_bytes() const override { return listed_->workspace_bytes; }
  std::string algorithm() const override { return algorithm_; }

  absl::Status Run(const ConvArgs& args) override {
    if (!plan_.run) {
      AMPD_RETURN_IF_ERROR(DeviceFailureOr(*context_, Annotate(Choose(args), Where())));
    }
    return Annotate(plan_.run(args), Where());
  }

 private:
  absl::Status InitWith(DType intermediate) {
    AMPD_ASSIGN_OR_RETURN(listed_, ListOnce(desc_, intermediate, context_));
    algorithm_ = listed_->algorithm;
    return absl::OkStatus();
  }

  std::string Where() const { return absl::StrCat("[conv] ", name_); }

  absl::Status Execute(const Plan& plan, const ConvArgs& args) {
    AMPD_ASSIGN_OR_RETURN(const cudnnHandle_t handle, cudnn::Handle(context_));
    pointers_.clear();
    for (const auto& [tensor, operand] : listed_->operands) {
      pointers_.emplace_back(tensor, cudnn::PointerOf(args, operand));
    }
    return DeviceFailureOr(*context_, cudnn::Execute(handle, plan, pointers_, args.workspace));
  }

  // Of the device itself, which may have others than its description made expect.
  absl::StatusOr<std::vector<ConvPlan>> Plans(const std::string& only, size_t most) {
    AMPD_ASSIGN_OR_RETURN(const std::vector<Engine> engines,
                          listed_->graph.Engines(nullptr, LimitsWithin(desc_, workspace_bytes())));
    std::vector<ConvPlan> plans;
    for (const Engine& engine : engines) {
      if (plans.size() == most) break;
      if (!only.empty() && engine.name != only) continue;
      const absl::StatusOr<Plan> plan = cudnn::Build(engine);
      if (!plan.ok() || plan->workspace_bytes > workspace_bytes()) continue;
      const auto run = [this, built = *plan](const ConvArgs& args) { return Execute(built, args); };
      plans.push_back({plan->name, plan->workspace_bytes, run});
    }
    return plans;
  }

  absl::Status Choose(const ConvArgs& args) {
    const auto list = [this](const std::string& only, size_t most) { return Plans(only, most); };
    AMPD_ASSIGN_OR_RETURN(
        plan_, ChooseConvPlan(context_, AutotuneKey(*context_, ConvLibrary(), ConvKey(desc_)), desc_, args, list));
    algorithm_ = plan_.name;
    return absl::OkStatus();
  }

  const std::string name_;
  const ConvDesc desc_;
  Context* const context_;
  std::shared_ptr<const Listed> listed_;
  std::vector<std::pair<int64_t, void*>> pointers_;
  std::string algorithm_;
  // Without a call until it is chosen.
  ConvPlan plan_;
};

}  // namespace

std::string ConvLibrary() { return absl::StrCat("cudnn ", cudnnGetVersion()); }

std::string ConvLibraryName() {
  const size_t version = cudnnGetVersion();
  return absl::StrCat("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::string ConvLibraryFolder() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&cudnnGetVersion), &info) == 0 || info.dli_fname == nullptr) return "";
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(info.dli_fname, error);
  return error ? "" : file.parent_path().string();
}

absl::StatusOr<std::unique_ptr<Conv>> Conv::Create(std::string name, const ConvDesc& desc, Context* context) {
  const std::string where = absl::StrCat("[conv] ", name, ", ", ConvKey(desc));
  auto conv = std::make_unique<CudnnConv>(std::move(name), desc, context);
  AMPD_RETURN_IF_ERROR(DeviceFailureOr(*context, Annotate(conv->Init(), where)));
  return std::unique_ptr<Conv>(std::move(conv));
}

}  // namespace ampd::cuda
