#include "engine/backend/cuda/region.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/autotune.h"
#include "engine/backend/cuda/device_failure.h"
#include "engine/backend/cuda/gemm.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/matmul.h"
#include "engine/backend/cuda/quantize.h"
#include "engine/backend/cuda/region_trial.h"
#include "engine/core/status.h"
#include "engine/ops/compute.h"

namespace ampd::cuda {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;

// Of a trial's codes.
constexpr float kCodeScale = 64;
// What the cache holds of a region; of kParts more may follow.
constexpr char kJoined[] = "joined", kParts[] = "parts";

// The steps of a region behind its product, by what they are for.
struct Behind {
  bool has_gelu = false, has_relu = false;
  // Inputs of the region: what bias_add adds, what gelu_grad is a slope at, and what add adds; -1: there is no such
  // step.
  int32_t bias = -1, aux = -1, added = -1;
  // Outputs of the region: of the whole, and of the sum with the bias where something follows; -1: none.
  int result = -1, sum = -1;
};

Behind BehindOf(const NodeDesc& region) {
  Behind behind;
  for (size_t s = 1; s < region.steps.size(); ++s) {
    const ir::FusedStep& step = region.steps[s];
    behind.has_gelu |= step.op == OpKind::kGelu;
    behind.has_relu |= step.op == OpKind::kRelu;
    if (step.op == OpKind::kBiasAdd) behind.bias = step.operands[1];
    if (step.op == OpKind::kGeluGrad) behind.aux = step.operands[1];
    if (step.op == OpKind::kAdd) behind.added = step.operands[1];
  }
  const auto last = static_cast<int32_t>(region.steps.size()) - 1;
  for (size_t o = 0; o < region.results.size(); ++o) {
    if (region.results[o] == last) behind.result = static_cast<int>(o);
    if (region.results[o] == 1 && last > 1) behind.sum = static_cast<int>(o);
  }
  return behind;
}

// The library's call for a whole region.
class Joined {
 public:
  virtual ~Joined() = default;
  virtual int64_t workspace_bytes() const = 0;
  virtual absl::Status Run(const KernelArgs& args, void* workspace) = 0;
};

class JoinedMatmul : public Joined {
 public:
  // `scaled`: the operands are codes, and their scales inputs 2 and 3.
  JoinedMatmul(Context* context, std::string name, std::unique_ptr<Gemm> gemm, const Behind& behind, bool scaled)
      : context_(context), name_(std::move(name)), gemm_(std::move(gemm)), behind_(behind) {
    if (scaled) factors_at_ = layout_.Add(2 * kFactorStride * SizeOf(DType::kF32));
    gemm_at_ = layout_.Add(gemm_->workspace_bytes());
  }
  int64_t workspace_bytes() const override { return layout_.bytes(); }
  absl::Status Run(const KernelArgs& args, void* workspace) override {
    GemmArgs gemm{.a = args.inputs[0].data, .b = args.inputs[1].data};
    if (factors_at_ >= 0) {
      auto* const factors = reinterpret_cast<float*>(static_cast<char*>(workspace) + factors_at_);
      AMPD_RETURN_IF_ERROR(
          LaunchReciprocals(*context_, name_, args.inputs[2].as<float>(), args.inputs[3].as<float>(), factors));
      gemm.a_scale = factors, gemm.b_scale = factors + kFactorStride;
    }
    gemm.d = args.outputs[static_cast<size_t>(behind_.result)].data;
    if (behind_.bias >= 0) gemm.bias = args.inputs[static_cast<size_t>(behind_.bias)].data;
    if (behind_.added >= 0) gemm.c = args.inputs[static_cast<size_t>(behind_.added)].data;
    if (behind_.aux >= 0) gemm.aux = args.inputs[static_cast<size_t>(behind_.aux)].data;
    if (behind_.sum >= 0) gemm.aux = args.outputs[static_cast<size_t>(behind_.sum)].data;
    gemm.workspace = static_cast<char*>(workspace) + gemm_at_;
    return gemm_->Run(gemm);
  }

 private:
  Context* const context_;
  const std::string name_;
  const std::unique_ptr<Gemm> gemm_;
  const Behind behind_;
  WorkspaceLayout layout_;
  int64_t gemm_at_ = 0, factors_at_ = -1;
};

class JoinedConv : public Joined {
 public:
  JoinedConv(std::unique_ptr<Conv> conv, const Behind& behind) : conv_(std::move(conv)), behind_(behind) {}
  int64_t workspace_bytes() const override { return conv_->workspace_bytes(); }
  absl::Status Run(const KernelArgs& args, void* workspace) override {
    ConvArgs conv{.a = args.inputs[0].data, .b = args.inputs[1].data};
    conv.result = args.outputs[static_cast<size_t>(behind_.result)].data;
    conv.bias = args.inputs[static_cast<size_t>(behind_.bias)].data;
    conv.workspace = workspace;
    return conv_->Run(conv);
  }

 private:
  const std::unique_ptr<Conv> conv_;
  const Behind behind_;
};

// The product alone, and the steps behind it as they would be without regions: a fused node, or one op, that reads its
// result first.
NodeDesc ProductPart(const NodeDesc& region) {
  const ir::FusedStep& first = region.steps.front();
  NodeDesc desc{.op = first.op, .name = region.name, .attributes = first.attributes, .threads = region.threads};
  for (int32_t operand : first.operands) desc.inputs.push_back(region.inputs[static_cast<size_t>(operand)]);
  desc.outputs = {{first.dtype, region.outputs.front().shape}};
  return desc;
}

struct FusedPart {
  NodeDesc desc;
  std::vector<size_t> inputs;  // of the region, behind the product's result
};

FusedPart FusedPartOf(const NodeDesc& region, const ir::TensorType& product) {
  FusedPart part;
  NodeDesc& desc = part.desc;
  desc = {.op = OpKind::kFused, .name = region.name, .outputs = region.outputs, .threads = region.threads};
  desc.inputs = {product};
  const size_t inputs = region.inputs.size();
  std::vector<int32_t> place(inputs + region.steps.size(), -1);  // of what the region's steps read
  place[inputs] = 0;
  for (size_t s = 1; s < region.steps.size(); ++s) {
    for (int32_t operand : region.steps[s].operands) {
      const auto at = static_cast<size_t>(operand);
      if (at >= inputs || place[at] >= 0) continue;
      place[at] = static_cast<int32_t>(desc.inputs.size());
      desc.inputs.push_back(region.inputs[at]);
      part.inputs.push_back(at);
    }
  }
  for (size_t s = 1; s < region.steps.size(); ++s) {
    place[inputs + s] = static_cast<int32_t>(desc.inputs.size() + s) - 1;
    ir::FusedStep step = region.steps[s];
    for (int32_t& operand : step.operands) operand = place[static_cast<size_t>(operand)];
    desc.steps.push_back(std::move(step));
  }
  for (int32_t result : region.results) desc.results.push_back(result - 1);
  if (desc.steps.size() > 1) return part;
  // One op alone has a kernel of its own.
  desc.op = desc.steps[0].op;
  desc.attributes = desc.steps[0].attributes;
  desc.steps.clear();
  desc.results.clear();
  return part;
}

struct JoinedCall {
  std::unique_ptr<Joined> joined;
  std::string key;
};

absl::StatusOr<JoinedCall> JoinMatmul(const NodeDesc& product, const Behind& behind, Context* context) {
  const MatmulProducts products = ProductsOf(product);
  GemmDesc gemm = products.gemm;
  if (!products.loops.empty() || behind.has_relu) {
    return absl::UnimplementedError(absl::StrCat("[region] ", product.name, ": several products, or a relu behind"));
  }
  const bool scaled = IsF8(product.inputs[0].dtype);
  // The product alone would turn them around first (matmul.cu).
  if (scaled && (gemm.a.transposed || !gemm.b.transposed)) {
    return absl::UnimplementedError(absl::StrCat("[region] ", product.name, ": codes that have to be turned around"));
  }
  gemm.scaled = scaled;
  gemm.added = behind.added >= 0;
  if (gemm.added && (behind.has_gelu || behind.aux >= 0 || behind.sum >= 0)) {
    return absl::UnimplementedError(absl::StrCat("[region] ", product.name, ": a sum and more than a bias"));
  }
  gemm.epilogue = behind.aux >= 0                 ? GemmEpilogue::kGeluGrad
                  : gemm.added && behind.bias < 0 ? GemmEpilogue::kNone
                  : !behind.has_gelu              ? GemmEpilogue::kBias
                  : behind.sum >= 0               ? GemmEpilogue::kBiasGeluAux
                                                  : GemmEpilogue::kBiasGelu;
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<Gemm> call, Gemm::Create(product.name, gemm, context));
  return JoinedCall{std::make_unique<JoinedMatmul>(context, product.name, std::move(call), behind, scaled),
                    AutotuneKey(*context, GemmLibrary(), absl::StrCat("region ", GemmKey(gemm)))};
}

absl::StatusOr<JoinedCall> JoinConv(const NodeDesc& product, const Behind& behind, Context* context,
                                    const MakeConv& make) {
  ConvDesc conv = ConvOf(product, context->properties());
  if (behind.bias < 0 || behind.has_gelu || behind.aux >= 0 || behind.added >= 0 || behind.sum >= 0) {
    return absl::UnimplementedError(absl::StrCat("[region] ", product.name, ": only a bias and a relu are joined"));
  }
  conv.fusion = behind.has_relu ? ConvFusion::kBiasRelu : ConvFusion::kBias;
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<Conv> call, make(product.name, conv, context));
  return JoinedCall{std::make_unique<JoinedConv>(std::move(call), behind),
                    AutotuneKey(*context, ConvLibrary(), absl::StrCat("region ", ConvKey(conv)))};
}

absl::StatusOr<JoinedCall> Join(const NodeDesc& region, const NodeDesc& product, Context* context,
                                const MakeConv& make) {
  const Behind behind = BehindOf(region);
  std::vector<int32_t> operands(product.inputs.size());
  std::iota(operands.begin(), operands.end(), 0);
  if (behind.result < 0 || region.steps.front().operands != operands) {
    return absl::UnimplementedError(absl::StrCat("[region] ", region.name, ": nobody reads the whole"));
  }
  return product.op == OpKind::kMatmul ? JoinMatmul(product, behind, context)
                                       : JoinConv(product, behind, context, make);
}

// Terms of each sum of the product.
double TermsOf(const NodeDesc& product) {
  const double filter = static_cast<double>(NumElements(product.inputs[1].shape));
  const bool transposed = product.attributes.Bool("transpose_b");
  const Shape& b = product.inputs[1].shape;
  const int64_t results = product.op == OpKind::kMatmul ? b[transposed ? 0 : 1] : b[0];
  return filter / static_cast<double>(results);
}

class RegionKernel : public runtime::Kernel {
 public:
  RegionKernel(const NodeDesc& desc, Context* context, RegionWay way)
      : desc_(desc),
        product_desc_(ProductPart(desc)),
        behind_(FusedPartOf(desc, product_desc_.outputs.front())),
        context_(context),
        way_(way) {}

  absl::Status Init(const runtime::KernelTable& table, const MakeConv& make) {
    AMPD_ASSIGN_OR_RETURN(product_, table.Prepare(product_desc_));
    AMPD_ASSIGN_OR_RETURN(fused_, table.Prepare(behind_.desc));
    absl::StatusOr<JoinedCall> call = Join(desc_, product_desc_, context_, make);
    // What the library refuses, for whatever reason, the parts can do.
    if (!call.ok() && way_ == RegionWay::kJoined) return call.status();
    // Not the library: it was not asked any more, of a device that is not there.
    if (absl::IsResourceExhausted(call.status()) && !context_->is_open()) return call.status();
    if (call.ok()) call_ = *std::move(call);
    if (call_.joined == nullptr) way_ = RegionWay::kParts;
    for (const ir::TensorType& type : product_desc_.inputs) operands_.push_back({nullptr, type.dtype, type.shape});
    for (const ir::TensorType& type : behind_.desc.inputs) fused_operands_.push_back({nullptr, type.dtype, type.shape});
    const ir::TensorType& result = product_desc_.outputs.front();
    between_at_ = layout_.Add(NumElements(result.shape) * SizeOf(result.dtype));
    const int64_t joined = call_.joined == nullptr ? 0 : call_.joined->workspace_bytes();
    workspace_at_ = layout_.Add(std::max({product_->workspace_bytes(), fused_->workspace_bytes(), joined}));
    return absl::OkStatus();
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }
  bool joined() const override { return call_.joined != nullptr; }

  absl::Status Launch(const KernelArgs& args) override {
    if (way_ == RegionWay::kMeasured) AMPD_RETURN_IF_ERROR(Annotate(Settle(args), "[region] " + desc_.name));
    return Run(way_, args);
  }

 private:
  absl::Status Run(RegionWay way, const KernelArgs& args) {
    void* const workspace = WorkspaceAt<char>(args, workspace_at_);
    if (way == RegionWay::kJoined) return call_.joined->Run(args, workspace);
    for (size_t i = 0; i < operands_.size(); ++i) {
      operands_[i].data = args.inputs[static_cast<size_t>(desc_.steps.front().operands[i])].data;
    }
    fused_operands_.front().data = WorkspaceAt<char>(args, between_at_);
    AMPD_RETURN_IF_ERROR(product_->Launch({.inputs = operands_,
                                           .outputs = absl::MakeConstSpan(fused_operands_).first(1),
                                           .workspace = workspace,
                                           .step = args.step}));
    for (size_t i = 0; i < behind_.inputs.size(); ++i) {
      fused_operands_[i + 1].data = args.inputs[behind_.inputs[i]].data;
    }
    return fused_->Launch(
        {.inputs = fused_operands_, .outputs = args.outputs, .workspace = workspace, .step = args.step});
  }

  // Leaves it open where nothing may be measured now. A call is compared in every process that uses it: the library may
  // have come by another algorithm than the one that was measured.
  absl::Status Settle(const KernelArgs& args) {
    AutotuneCache* const cache = context_->autotune();
    if (cache == nullptr) return absl::OkStatus();
    if (Tried().crowded.count(call_.key) > 0) {
      way_ = RegionWay::kParts;
      return absl::OkStatus();
    }
    absl::optional<std::string> known = cache->Find(call_.key);
    if (!known || (*known == kJoined && Tried().compared.count(call_.key) == 0)) {
      AMPD_ASSIGN_OR_RETURN(const bool may_measure, MayMeasure(*context_));
      if (!may_measure) return absl::OkStatus();
      absl::StatusOr<std::string> tried = Try(args, known.has_value());
      if (absl::IsResourceExhausted(tried.status())) {
        Tried().crowded.insert(call_.key);
        way_ = RegionWay::kParts;
        return absl::OkStatus();
      }
      AMPD_RETURN_IF_ERROR(tried.status());
      if (!known || *tried != *known) cache->Put(call_.key, *tried);
      known = *std::move(tried);
    }
    way_ = *known == kJoined ? RegionWay::kJoined : RegionWay::kParts;
    return absl::OkStatus();
  }

  // Keys of calls that were tried in this process.
  struct Calls {
    // They gave what their parts give.
    std::set<std::string> compared;
    // There was no memory to try them, which another process may have.
    std::set<std::string> crowded;
  };
  Calls& Tried() {
    std::shared_ptr<void>& kept = context_->library(Library::kRegions);
    if (kept == nullptr) kept = std::make_shared<Calls>();
    return *static_cast<Calls*>(kept.get());
  }

  // Both ways on operands of its own: what the cache is to hold. `measured`: the joined one was measured to be faster.
  absl::StatusOr<std::string> Try(const KernelArgs& args, bool measured) {
    AMPD_ASSIGN_OR_RETURN(const RegionTrial trial,
                          RegionTrial::Create(context_, desc_.inputs, Bounds(), desc_.outputs));
    const KernelArgs on_trial{
        .inputs = trial.inputs(), .outputs = trial.outputs(), .workspace = args.workspace, .step = args.step};
    // Whoever runs first may try algorithms out.
    const absl::Status runs = Run(RegionWay::kJoined, on_trial);
    if (!runs.ok()) {
      // What fails with its device says nothing of the call, and a kernel's fault shows when it is waited for.
      AMPD_RETURN_IF_ERROR(context_->Wait());
      const absl::Status why = DeviceFailureOr(*context_, runs);
      if (absl::IsUnavailable(why) || absl::IsResourceExhausted(why)) return why;
      return absl::StrCat(kParts, ": ", why.message());
    }
    AMPD_RETURN_IF_ERROR(Run(RegionWay::kParts, on_trial));
    AMPD_ASSIGN_OR_RETURN(std::string difference, Compare(trial, on_trial));
    if (difference.empty() && !measured) {
      AMPD_ASSIGN_OR_RETURN(const int fastest, FastestOf(*context_, 2, [&](int i) {
                              return Run(i == 0 ? RegionWay::kJoined : RegionWay::kParts, on_trial);
                            }));
      if (fastest != 0) return std::string(kParts);
    }
    // Whether it keeps what a step is skipped for.
    if (difference.empty()) {
      AMPD_RETURN_IF_ERROR(trial.Spoil());
      AMPD_ASSIGN_OR_RETURN(difference, Compare(trial, on_trial));
    }
    if (!difference.empty()) return absl::StrCat(kParts, ": ", difference);
    Tried().compared.insert(call_.key);
    return std::string(kJoined);
  }

  // "" or how what is joined differs from its parts.
  absl::StatusOr<std::string> Compare(const RegionTrial& trial, const KernelArgs& args) {
    AMPD_RETURN_IF_ERROR(trial.Poison());
    AMPD_RETURN_IF_ERROR(Run(RegionWay::kParts, args));
    AMPD_ASSIGN_OR_RETURN(const std::vector<std::vector<float>> parts, Samples(trial));
    const ir::TensorType& result = product_desc_.outputs.front();
    AMPD_ASSIGN_OR_RETURN(const std::vector<float> product,
                          SampleOf(context_, {WorkspaceAt<char>(args, between_at_), result.dtype, result.shape}));
    AMPD_RETURN_IF_ERROR(trial.Poison());
    AMPD_RETURN_IF_ERROR(Run(RegionWay::kJoined, args));
    AMPD_ASSIGN_OR_RETURN(const std::vector<std::vector<float>> joined, Samples(trial));
    const bool tf32 = product_desc_.attributes.String(ops::kComputeAttribute) == ops::kComputeTf32;
    const SumsOf sums = IsF8(product_desc_.inputs.front().dtype) ? SumsOf::k8BitOperands
                        : result.dtype != DType::kF32            ? SumsOf::k16BitOperands
                        : tf32                                   ? SumsOf::kTf32Operands
                                                                 : SumsOf::kF32Operands;
    for (size_t o = 0; o < joined.size(); ++o) {
      std::string difference = DifferenceOf(product, parts[o], joined[o], result.dtype, sums);
      if (!difference.empty()) return difference;
    }
    return std::string();
  }

  // Of random operands: products of about 1, biases up to 1, gelu's argument up to 2, where its slope is anything from
  // 0 to 1. Codes reach so far that few are subnormal, and their scales take that away again.
  std::vector<float> Bounds() const {
    std::vector<float> bounds = {1, static_cast<float>(3 / std::sqrt(TermsOf(product_desc_)))};
    if (product_desc_.inputs.size() > 2) {
      for (float& bound : bounds) bound *= kCodeScale;
      bounds.resize(4, kCodeScale);
    }
    while (bounds.size() < desc_.inputs.size()) {
      bounds.push_back(desc_.inputs[bounds.size()].shape.size() == 1 ? 1 : 2);
    }
    return bounds;
  }

  absl::StatusOr<std::vector<std::vector<float>>> Samples(const RegionTrial& trial) const {
    std::vector<std::vector<float>> samples;
    for (const TensorView& output : trial.outputs()) {
      AMPD_ASSIGN_OR_RETURN(std::vector<float> values, SampleOf(context_, output));
      samples.push_back(std::move(values));
    }
    return samples;
  }

  const NodeDesc desc_;
  const NodeDesc product_desc_;
  const FusedPart behind_;
  Context* const context_;
  std::unique_ptr<runtime::Kernel> product_, fused_;
  JoinedCall call_;
  WorkspaceLayout layout_;
  int64_t between_at_ = 0, workspace_at_ = 0;
  // Of the parts, without addresses: the product's, and the fused steps', whose first is the product's result.
  std::vector<TensorView> operands_, fused_operands_;
  RegionWay way_;
};

}  // namespace

void RegisterRegions(runtime::KernelTable* table, Context* context, const MakeConv& make, RegionWay way) {
  table->AddForAnyDTypes(OpKind::kRegion,
                         [=](const NodeDesc& desc) -> absl::StatusOr<std::unique_ptr<runtime::Kernel>> {
                           auto kernel = std::make_unique<RegionKernel>(desc, context, way);
                           AMPD_RETURN_IF_ERROR(kernel->Init(*table, make));
                           return std::unique_ptr<runtime::Kernel>(std::move(kernel));
                         });
}

void RegisterRegion(runtime::KernelTable* table, Context* context) {
  RegisterRegions(table, context, Conv::Create, RegionWay::kMeasured);
}

}  // namespace ampd::cuda
