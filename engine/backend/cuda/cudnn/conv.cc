#include "engine/backend/cuda/conv.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/autotune.h"
#include "engine/backend/cuda/cudnn/conv_graph.h"
#include "engine/backend/cuda/cudnn/graph.h"
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

  int64_t workspace_bytes() const override { return workspace_bytes_; }
  std::string algorithm() const override { return algorithm_; }

  absl::Status Run(const ConvArgs& args) override {
    if (plan_.descriptor == nullptr) AMPD_RETURN_IF_ERROR(Annotate(Choose(args), Where()));
    return Annotate(Execute(plan_, args), Where());
  }

 private:
  absl::Status InitWith(DType intermediate) {
    if (desc_.fusion == ConvFusion::kReluBatchNormGrad && desc_.filter[1] * desc_.filter[2] > kMostFusedCells) {
      return absl::UnimplementedError(absl::StrCat("not fused with a filter of more than ", kMostFusedCells, " cells"));
    }
    AMPD_ASSIGN_OR_RETURN(cudnn::ConvGraph described, cudnn::DescribeConv(desc_, intermediate));
    operands_ = std::move(described.operands);
    AMPD_ASSIGN_OR_RETURN(graph_, cudnn::Graph::Make(described.graph));
    AMPD_ASSIGN_OR_RETURN(std::vector<Engine> engines,
                          graph_.Engines(&context_->properties(), LimitsWithin(kMaxConvWorkspace)));
    // The heuristics may list what then cannot be built.
    absl::Status status;
    while (!engines.empty()) {
      const absl::StatusOr<Plan> plan = cudnn::Build(engines.front());
      status = plan.status();
      if (status.ok() && plan->workspace_bytes <= kMaxConvWorkspace) break;
      engines.erase(engines.begin());
    }
    if (engines.empty()) return absl::UnimplementedError(absl::StrCat("no engine builds: ", status.message()));
    algorithm_ = absl::StrCat(engines.front().name, engines.front().matrix_units ? ", matrix units" : "");
    engines.resize(std::min(engines.size(), kCandidates));
    for (const Engine& engine : engines) workspace_bytes_ = std::max(workspace_bytes_, engine.workspace_bytes);
    workspace_bytes_ = AlignUp(workspace_bytes_);
    return absl::OkStatus();
  }

  std::string Where() const { return absl::StrCat("[conv] ", name_); }

  cudnn::Limits LimitsWithin(int64_t bytes) const {
    return {.matrix_units = desc_.operands != DType::kF32 || desc_.tf32, .workspace_bytes = bytes};
  }

  absl::Status Execute(const Plan& plan, const ConvArgs& args) {
    AMPD_ASSIGN_OR_RETURN(const cudnnHandle_t handle, cudnn::Handle(context_));
    pointers_.clear();
    for (const auto& [tensor, operand] : operands_) pointers_.emplace_back(tensor, cudnn::PointerOf(args, operand));
    return cudnn::Execute(handle, plan, pointers_, args.workspace);
  }

  // Of the device itself, which may have others than its description made expect.
  absl::StatusOr<std::vector<Plan>> Plans(const std::string& only, size_t most) const {
    AMPD_ASSIGN_OR_RETURN(const std::vector<Engine> engines, graph_.Engines(nullptr, LimitsWithin(workspace_bytes_)));
    std::vector<Plan> plans;
    for (const Engine& engine : engines) {
      if (plans.size() == most) break;
      if (!only.empty() && engine.name != only) continue;
      absl::StatusOr<Plan> plan = cudnn::Build(engine);
      if (plan.ok() && plan->workspace_bytes <= workspace_bytes_) plans.push_back(*std::move(plan));
    }
    return plans;
  }

  absl::Status Choose(const ConvArgs& args) {
    const std::string key = AutotuneKey(*context_, ConvLibrary(), ConvKey(desc_));
    if (Recall(key)) return absl::OkStatus();
    AMPD_ASSIGN_OR_RETURN(const bool may_measure, MayMeasure(*context_));
    AMPD_ASSIGN_OR_RETURN(std::vector<Plan> plans, Plans("", may_measure ? kCandidates : 1));
    if (plans.empty()) {
      return absl::InternalError(absl::StrCat("the device has no plan within the ", workspace_bytes_,
                                              " bytes that were planned for ", ConvKey(desc_)));
    }
    int best = 0;
    if (may_measure) {
      const auto run = [&](int i) { return Execute(plans[static_cast<size_t>(i)], args); };
      AMPD_ASSIGN_OR_RETURN(best, FastestOf(*context_, static_cast<int>(plans.size()), run));
      context_->autotune()->Put(key, plans[static_cast<size_t>(best)].name);
    }
    Use(std::move(plans[static_cast<size_t>(best)]));
    return absl::OkStatus();
  }

  bool Recall(const std::string& key) {
    if (context_->autotune() == nullptr) return false;
    const absl::optional<std::string> known = context_->autotune()->Find(key);
    if (!known || known->empty()) return false;
    absl::StatusOr<std::vector<Plan>> plans = Plans(*known, 1);
    if (!plans.ok() || plans->empty()) return false;
    Use(std::move(plans->front()));
    return true;
  }

  void Use(Plan plan) {
    plan_ = std::move(plan);
    algorithm_ = plan_.name;
  }

  const std::string name_;
  const ConvDesc desc_;
  Context* const context_;
  cudnn::Graph graph_;
  std::vector<std::pair<int, cudnn::ConvOperand>> operands_;
  std::vector<std::pair<int64_t, void*>> pointers_;
  int64_t workspace_bytes_ = 0;
  std::string algorithm_;
  Plan plan_;
};

}  // namespace

std::string ConvLibrary() { return absl::StrCat("cudnn ", cudnnGetVersion()); }

absl::StatusOr<std::unique_ptr<Conv>> Conv::Create(std::string name, const ConvDesc& desc, Context* context) {
  const std::string where = absl::StrCat("[conv] ", name, ", ", ConvKey(desc));
  auto conv = std::make_unique<CudnnConv>(std::move(name), desc, context);
  AMPD_RETURN_IF_ERROR(Annotate(conv->Init(), where));
  return std::unique_ptr<Conv>(std::move(conv));
}

}  // namespace ampd::cuda
