#include "engine/backend/cuda/conv.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/autotune.h"
#include "engine/backend/cuda/cudnn/conv_graph.h"
#include "engine/backend/cuda/cudnn/graph.h"
#include "engine/backend/cuda/cudnn/questions.h"
#include "engine/backend/cuda/device_failure.h"
#include "engine/backend/cuda/region_trial.h"
#include "engine/backend/cuda/status.h"
#include "engine/core/status.h"
#include "engine/core/tensor.h"

namespace ampd::cuda {
namespace {

using cudnn::Engine;
using cudnn::Plan;

// Engines that are measured, of those that cuDNN expects to be fastest.
constexpr size_t kCandidates = 10;
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

// Whether a window may lie in the padding altogether, which no network of use has: gradients by such a filter came out
// as NaN on an H200.
bool HasBlindWindows(const ConvDesc& desc) {
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t span = (desc.filter[axis + 1] - 1) * desc.dilations[axis] + 1;
    if (desc.before[axis] >= span || desc.after[axis] >= span) return true;
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
  if (HasBlindWindows(desc)) return absl::UnimplementedError("padding as wide as the filter");
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
    status = plan.status();
    if (status.ok() && plan->workspace_bytes <= kMaxConvWorkspace) {
      // What is built may need more than its engine said.
      listed->workspace_bytes = plan->workspace_bytes;
      break;
    }
    engines.erase(engines.begin());
  }
  if (engines.empty()) return absl::UnimplementedError(absl::StrCat("no engine builds: ", status.message()));
  listed->algorithm = absl::StrCat(engines.front().name, engines.front().matrix_units ? ", matrix units" : "");
  engines.resize(std::min(engines.size(), kCandidates));
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
    if (plan_.descriptor == nullptr) {
      AMPD_RETURN_IF_ERROR(DeviceFailureOr(*context_, Annotate(Choose(args), Where())));
    }
    return Annotate(Execute(plan_, args), Where());
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
  absl::StatusOr<std::vector<Plan>> Plans(const std::string& only, size_t most) const {
    AMPD_ASSIGN_OR_RETURN(const std::vector<Engine> engines,
                          listed_->graph.Engines(nullptr, LimitsWithin(desc_, workspace_bytes())));
    std::vector<Plan> plans;
    for (const Engine& engine : engines) {
      if (plans.size() == most) break;
      if (!only.empty() && engine.name != only) continue;
      absl::StatusOr<Plan> plan = cudnn::Build(engine);
      if (plan.ok() && plan->workspace_bytes <= workspace_bytes()) plans.push_back(*std::move(plan));
    }
    return plans;
  }

  // Also what the cache remembers is tried in every process: it may be from before an engine was seen to be wrong. It
  // stays where no other does better, so that a resumed job goes on with its own.
  absl::Status Choose(const ConvArgs& args) {
    const std::string key = AutotuneKey(*context_, ConvLibrary(), ConvKey(desc_));
    AMPD_ASSIGN_OR_RETURN(const bool may_measure, MayMeasure(*context_));
    std::vector<Plan> plans = Recall(key);
    const bool known = !plans.empty();
    bool sound = known && !may_measure;
    if (known && may_measure) {
      AMPD_ASSIGN_OR_RETURN(const int64_t wrong, NonFinite(plans[0], args));
      sound = wrong == 0;
    }
    if (!sound) {
      AMPD_ASSIGN_OR_RETURN(std::vector<Plan> candidates, Plans("", may_measure ? kCandidates : 1));
      std::move(candidates.begin(), candidates.end(), std::back_inserter(plans));
    }
    if (plans.empty()) {
      return absl::InternalError(absl::StrCat("the device has no plan within the ", workspace_bytes(),
                                              " bytes that were planned for ", ConvKey(desc_)));
    }
    int best = 0;
    if (may_measure && !sound) {
      if (!known) {
        const auto run = [&](int i) { return Execute(plans[static_cast<size_t>(i)], args); };
        AMPD_ASSIGN_OR_RETURN(best, FastestOf(*context_, static_cast<int>(plans.size()), run));
      }
      AMPD_ASSIGN_OR_RETURN(best, SoundestOf(plans, best, args));
      context_->autotune()->Put(key, plans[static_cast<size_t>(best)].name);
    }
    // What was tried may have spoilt them.
    if (may_measure) AMPD_RETURN_IF_ERROR(Renew(args));
    Use(std::move(plans[static_cast<size_t>(best)]));
    return absl::OkStatus();
  }

  // The plan that the cache names, or none.
  std::vector<Plan> Recall(const std::string& key) const {
    if (context_->autotune() == nullptr) return {};
    const absl::optional<std::string> name = context_->autotune()->Find(key);
    if (!name || name->empty()) return {};
    absl::StatusOr<std::vector<Plan>> plans = Plans(*name, 1);
    return plans.ok() ? *std::move(plans) : std::vector<Plan>();
  }

  static absl::Status Renew(const ConvArgs& args) { return args.renew ? args.renew() : absl::OkStatus(); }

  // How many values of a sample of the result are not finite, where the result and the workspace were NaN before.
  absl::StatusOr<int64_t> NonFinite(const Plan& plan, const ConvArgs& args) {
    const std::array<int64_t, 4>& extents = desc_.kind == ConvKind::kForward     ? desc_.output
                                            : desc_.kind == ConvKind::kGradInput ? desc_.image
                                                                                 : desc_.filter;
    const TensorView result{args.result, desc_.result, Shape(extents.begin(), extents.end())};
    const auto fill = [&](void* data, int64_t bytes) {
      return ToStatus(cudaMemsetAsync(data, 0xff, static_cast<size_t>(bytes), context_->stream()), Where());
    };
    AMPD_RETURN_IF_ERROR(Renew(args));
    AMPD_RETURN_IF_ERROR(fill(result.data, result.bytes()));
    if (plan.workspace_bytes > 0) AMPD_RETURN_IF_ERROR(fill(args.workspace, plan.workspace_bytes));
    AMPD_RETURN_IF_ERROR(Execute(plan, args));
    AMPD_ASSIGN_OR_RETURN(const std::vector<float> values, SampleOf(context_, result));
    return std::count_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
  }

  // `best`, unless it leaves values that are not finite and another plan leaves fewer: an engine that does not write
  // all of its result, or reads what was there or in the workspace, costs speed and not a training.
  absl::StatusOr<int> SoundestOf(const std::vector<Plan>& plans, int best, const ConvArgs& args) {
    AMPD_ASSIGN_OR_RETURN(int64_t fewest, NonFinite(plans[static_cast<size_t>(best)], args));
    const int fastest = best;
    for (int i = 0; fewest > 0 && i < static_cast<int>(plans.size()); ++i) {
      if (i == fastest) continue;
      const absl::StatusOr<int64_t> count = NonFinite(plans[static_cast<size_t>(i)], args);
      if (absl::IsUnavailable(count.status())) return count.status();
      // Any other error: it does not run on this device, as FastestOf() has seen.
      if (count.ok() && *count < fewest) best = i, fewest = *count;
    }
    return best;
  }

  void Use(Plan plan) {
    plan_ = std::move(plan);
    algorithm_ = plan_.name;
  }

  const std::string name_;
  const ConvDesc desc_;
  Context* const context_;
  std::shared_ptr<const Listed> listed_;
  std::vector<std::pair<int64_t, void*>> pointers_;
  std::string algorithm_;
  Plan plan_;
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
