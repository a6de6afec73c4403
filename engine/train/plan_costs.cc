#include "engine/train/plan_costs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/ops/attention_dims.h"
#include "engine/ops/compute.h"
#include "engine/passes/precision.h"
#include "proto/spec/device_models.h"

namespace ampd::train {
namespace {

using ir::OpKind;
using runtime::PlanStep;

constexpr int64_t kTile = 8;
constexpr char kLossLayer[] = "loss";

const Shape& In(const PlanStep& step, size_t i) { return step.inputs[i].type.shape; }

ProductShape MatrixProduct(const PlanStep& step) {
  const Shape &a = In(step, 0), &b = In(step, 1), &y = step.outputs[0].type.shape;
  const bool ta = step.attributes.Bool("transpose_a"), tb = step.attributes.Bool("transpose_b");
  ProductShape p;
  p.k = a[a.size() - (ta ? 2 : 1)];
  p.n = y.back();
  // One matrix for all of a batch multiplies all of its rows at once.
  p.m = b.size() == 2 ? NumElements(y) / p.n : y[y.size() - 2];
  const int64_t rows = y[y.size() - 2];
  p.contiguous.push_back(ta ? std::pair<std::string, int64_t>{"M", rows} : std::pair<std::string, int64_t>{"K", p.k});
  p.contiguous.push_back(tb ? std::pair<std::string, int64_t>{"K", p.k} : std::pair<std::string, int64_t>{"N", p.n});
  p.contiguous.push_back({"N", p.n});
  return p;
}

// `image` and `output` are the convolution's, whichever of them the step writes.
ProductShape Convolution(const PlanStep& step, const Shape& image, const Shape& filter, const Shape& output) {
  const int64_t groups = std::max<int64_t>(1, step.attributes.Int("groups", 1));
  const int64_t window = filter[1] * filter[2], channels = filter[3], filters = filter[0] / groups;
  const int64_t pixels = output[0] * output[1] * output[2];
  ProductShape p;
  p.contiguous = {{"channels", channels}, {"filters", filters}};
  if (step.op == OpKind::kConv2d) {
    p.m = pixels, p.n = filters, p.k = window * channels;
  } else if (step.op == OpKind::kConv2dGradFilter) {
    p.m = filters, p.n = window * channels, p.k = pixels;
  } else {
    p.m = image[0] * image[1] * image[2], p.n = channels, p.k = window * filters;
  }
  return p;
}

ProductShape Attention(const PlanStep& step) {
  const bool gradient = step.op == OpKind::kAttentionGrad || step.op == OpKind::kSelfAttentionGrad;
  const bool self = step.op == OpKind::kSelfAttention || step.op == OpKind::kSelfAttentionGrad;
  const size_t first = gradient ? 1 : 0;
  ProductShape p;
  if (step.inputs.size() < first + (self ? 1 : 3)) return p;
  const ops::AttentionDims d =
      self ? ops::SelfAttentionDimsOf(step.attributes, In(step, first))
           : ops::AttentionDimsOf(step.attributes, In(step, first), In(step, first + 1), In(step, first + 2));
  p.m = d.q_length, p.n = d.kv_length, p.k = d.head_size;
  p.contiguous = {{"head size", d.head_size}, {"value size", d.value_size}};
  return p;
}

ProductShape Recurrence(const PlanStep& step) {
  ProductShape p;
  const Shape& states = step.op == OpKind::kLstm || step.op == OpKind::kGru ? step.outputs[0].type.shape : In(step, 0);
  if (states.size() != 3) return p;
  const int64_t gates = step.op == OpKind::kLstm || step.op == OpKind::kLstmGrad ? 4 : 3;
  p.m = states[0], p.n = gates * states[2], p.k = states[2];
  p.contiguous = {{"units", states[2]}};
  return p;
}

absl::optional<ProductShape> ShapeOf(const PlanStep& step) {
  switch (step.op) {
    case OpKind::kMatmul:
      return MatrixProduct(step);
    case OpKind::kConv2d:
      return Convolution(step, In(step, 0), In(step, 1), step.outputs[0].type.shape);
    case OpKind::kConv2dGradInput:
    case OpKind::kConvTranspose2d:
      return Convolution(step, step.outputs[0].type.shape, In(step, 1), In(step, 0));
    case OpKind::kConv2dGradFilter:
      return Convolution(step, In(step, 1), step.outputs[0].type.shape, In(step, 0));
    case OpKind::kAttention:
    case OpKind::kAttentionGrad:
    case OpKind::kSelfAttention:
    case OpKind::kSelfAttentionGrad:
      return Attention(step);
    case OpKind::kLstm:
    case OpKind::kLstmGrad:
    case OpKind::kGru:
    case OpKind::kGruGrad:
      return Recurrence(step);
    default:
      return absl::nullopt;
  }
}

bool InTiles(OpKind op) {
  return op != OpKind::kAttention && op != OpKind::kAttentionGrad && op != OpKind::kSelfAttention &&
         op != OpKind::kSelfAttentionGrad;
}

// Rows, columns and sums that whole tiles have, over those that count.
double TileGrowth(const ProductShape& p) {
  double growth = 1;
  for (const int64_t extent : {p.m, p.n, p.k}) {
    growth *= static_cast<double>((extent + kTile - 1) / kTile * kTile) / static_cast<double>(extent);
  }
  return growth;
}

// Those of one multiple side by side.
std::string InWords(absl::Span<const Misalignment> extents) {
  std::map<int64_t, std::vector<std::string>> by_multiple;
  for (const Misalignment& e : extents) by_multiple[e.multiple].push_back(absl::StrCat(e.name, " = ", e.extent));
  std::vector<std::string> parts;
  for (const auto& [multiple, names] : by_multiple) {
    parts.push_back(absl::StrCat(absl::StrJoin(names, ", "),
                                 names.size() == 1 ? " is no multiple of " : " are no multiples of ", multiple));
  }
  return absl::StrJoin(parts, "; ");
}

v1::PrecisionSpec::Mode ModeOfDType(const std::string& dtype) {
  if (dtype == "tf32") return v1::PrecisionSpec::TF32;
  if (dtype == "f16") return v1::PrecisionSpec::FP16;
  if (dtype == "bf16") return v1::PrecisionSpec::BF16;
  if (absl::StartsWith(dtype, "e4m3") || absl::StartsWith(dtype, "e5m2")) return v1::PrecisionSpec::FP8;
  return v1::PrecisionSpec::FP32;
}

// Adds up what a step costs, by phase and layer.
class Adder {
 public:
  Adder(const ResolvedJobSpec& spec, const PlannedModel& planned, const v1::DeviceModel& model,
        absl::Span<const double> bucket_shares)
      : spec_(spec.proto()),
        planned_(planned),
        model_(model),
        bucket_shares_(bucket_shares),
        has_no_floor_(HasNoFloor(model, spec_.precision().mode())) {
    for (const passes::PaddedExtent& extent : planned.padding) padded_[extent.node].push_back(extent);
    for (const v1::LayerPlan& layer : planned.layers) plans_[layer.name()] = &layer;
  }

  StepCosts Run() {
    const int64_t micro_batch = spec_.train().micro_batch_size() * spec_.resources().gpus();
    const double micro_batches =
        static_cast<double>(spec_.train().batch_size()) / static_cast<double>(std::max<int64_t>(1, micro_batch));
    for (const PlannedPhase& phase : planned_.phases) {
      phase_ = planned_.phases.size() > 1 ? phase.name : "";
      weight_ = 1.0 / static_cast<double>(phase.every);
      // The longest first: it is the one whose shapes are told.
      is_longest_ = true;
      for (size_t b = phase.plans.size(); b-- > 0;) {
        const double share = ShareOf(phase, b);
        if (!(share > 0)) continue;
        for (const PlanStep& step : phase.plans[b].steps) AddStep(step, micro_batches * share);
        is_longest_ = false;
      }
      AddUpdate(phase);
    }
    if (has_no_floor_) ForgetTimes();
    for (v1::LayerCost& layer : costs_.layers) Finish(&layer);
    return std::move(costs_);
  }

 private:
  double ShareOf(const PlannedPhase& phase, size_t bucket) const {
    if (bucket_shares_.size() == phase.plans.size()) return bucket_shares_[bucket];
    return bucket + 1 == phase.plans.size() ? 1 : 0;
  }

  void ForgetTimes() {
    costs_.seconds = 0;
    costs_.products.clear();
    for (v1::LayerCost& layer : costs_.layers) layer.clear_seconds();
  }

  v1::LayerCost* LayerOf(const std::string& name) {
    const auto [it, inserted] = index_.insert({{phase_, name}, costs_.layers.size()});
    if (inserted) {
      v1::LayerCost layer;
      layer.set_phase(phase_);
      layer.set_layer(name);
      Describe(name, &layer);
      costs_.layers.push_back(std::move(layer));
    }
    return &costs_.layers[it->second];
  }

  void Describe(const std::string& name, v1::LayerCost* layer) const {
    const auto plan = plans_.find(name);
    if (plan == plans_.end()) {
      layer->set_kind(kLossLayer);
      layer->set_dtype("f32");
      layer->set_dtype_reason("losses stay f32");
      return;
    }
    layer->set_kind(plan->second->kind());
    layer->set_dtype(plan->second->dtype());
  }

  std::string ReasonOf(const v1::LayerCost& layer) const {
    const v1::PrecisionSpec& precision = spec_.precision();
    const v1::PrecisionRule* rule = nullptr;
    for (const v1::PrecisionRule& r : precision.rules()) {
      if (passes::GlobMatch(r.match(), layer.layer())) rule = &r;
    }
    if (rule != nullptr) {
      const bool asks_f32 = rule->dtype() == v1::PrecisionSpec::FP32 || rule->dtype() == v1::PrecisionSpec::TF32;
      // What no rule rounds.
      if (!asks_f32 && layer.mnk().empty() && layer.dtype() == "f32") return "ids and sums stay f32";
      return absl::StrCat("rule ", rule->match());
    }
    if (layer.mnk().empty()) return layer.dtype() == "f32" ? "f32 or its inputs'" : "as its inputs";
    const bool other = ModeOfDType(layer.dtype()) != precision.mode();
    if (other && precision.mode() == v1::PrecisionSpec::FP8) return "FP8 spares ends and attention";
    return absl::StrCat("mode ", v1::PrecisionSpec::Mode_Name(precision.mode()));
  }

  void AddStep(const PlanStep& step, double times) {
    v1::LayerCost* layer = LayerOf(step.layer.empty() ? kLossLayer : step.layer);
    const absl::optional<ProductShape> product = ProductOf(step);
    double peak = model_.fp32_flops(), flops = step.cost.flops;
    if (product) {
      const Ineligibility why_not = IneligibilityOf(*product, model_);
      NoteProduct(step, *product, why_not, layer);
      costs_.product_flops += times * weight_ * flops;
      costs_.useful_flops += times * weight_ * flops * UsefulShare(step);
      if (!why_not.any()) {
        costs_.eligible_flops += times * weight_ * flops;
        peak = PeakFlops(model_, product->mode());
        if (InTiles(step.op) && model_.kind() != v1::Device::CPU) flops *= TileGrowth(*product);
      }
      if (HasNoFloor(model_, product->mode())) has_no_floor_ = true;
    }
    NoteFused(step, layer);
    if (step.kernel != nullptr) {
      layer->set_workspace_bytes(std::max(layer->workspace_bytes(), step.kernel->workspace_bytes()));
    }
    const double seconds = times * Add(step.cost.flops, flops, step.cost.bytes, peak, times, layer);
    if (product) costs_.products[absl::StrCat(phase_, "/", step.name)] += seconds * weight_;
  }

  // Returns the floor of one run.
  double Add(double flops, double tiled_flops, double bytes, double peak, double times, v1::LayerCost* layer) {
    double seconds = 0;
    if (peak > 0 && model_.memory_bandwidth() > 0) {
      seconds = std::max(tiled_flops / peak, bytes / model_.memory_bandwidth());
    }
    layer->set_flops(layer->flops() + times * weight_ * flops);
    layer->set_bytes(layer->bytes() + times * weight_ * bytes);
    layer->set_seconds(layer->seconds() + times * weight_ * seconds);
    costs_.flops += times * weight_ * flops;
    costs_.bytes += times * weight_ * bytes;
    costs_.seconds += times * weight_ * seconds;
    return seconds;
  }

  // Of its first product that is not, and where extents are why, those of its other products.
  void NoteIneligible(const Ineligibility& why_not, bool forward, v1::LayerCost* layer) {
    std::vector<Misalignment>& extents = misaligned_[{layer->phase(), layer->layer()}];
    const bool first = layer->tensor_core_eligible();
    layer->set_tensor_core_eligible(false);
    if (first) layer->set_tensor_core_reason(why_not.reason);
    // The backward pass has the same ones, by other names.
    if (!layer->tensor_core_reason().empty() && (extents.empty() || !forward || !is_longest_)) return;
    const std::vector<Misalignment> before = extents;
    for (const Misalignment& added : why_not.extents) {
      // What one product calls its columns another calls its sums.
      const bool known = std::any_of(before.begin(), before.end(), [&](const Misalignment& e) {
        return e.extent == added.extent && e.multiple == added.multiple;
      });
      if (!known && std::find(extents.begin(), extents.end(), added) == extents.end()) extents.push_back(added);
    }
    layer->set_tensor_core_reason(InWords(extents));
  }

  void NoteProduct(const PlanStep& step, const ProductShape& product, const Ineligibility& why_not,
                   v1::LayerCost* layer) {
    const bool first = layer->mnk().empty(), forward = step.stage == ir::Stage::kForward;
    if (first) layer->set_tensor_core_eligible(true);
    if (why_not.any()) NoteIneligible(why_not, forward, layer);
    if (!forward) return;
    const ProductShape logical = WithoutPadding(step, product);
    if (!first && static_cast<double>(logical.m) * static_cast<double>(logical.n) * static_cast<double>(logical.k) <=
                      static_cast<double>(layer->mnk(0)) * static_cast<double>(layer->mnk(1)) *
                          static_cast<double>(layer->mnk(2))) {
      return;
    }
    layer->clear_mnk();
    for (const int64_t extent : {logical.m, logical.n, logical.k}) layer->add_mnk(extent);
    const auto padded = padded_.find(step.name);
    if (padded == padded_.end()) return;
    layer->set_padding(absl::StrJoin(padded->second, ", ", [](std::string* out, const passes::PaddedExtent& e) {
      absl::StrAppend(out, Name(e.dimension), " ", e.from, " -> ", e.to);
    }));
  }

  static std::string Name(const std::string& dimension) {
    if (dimension == "rows") return "M";
    if (dimension == "inner") return "K";
    return dimension == "columns" ? "N" : dimension;
  }

  ProductShape WithoutPadding(const PlanStep& step, ProductShape p) const {
    const auto padded = padded_.find(step.name);
    if (padded == padded_.end()) return p;
    for (const passes::PaddedExtent& e : padded->second) {
      if (e.dimension == "rows") p.m = p.m / e.to * e.from;
      if (e.dimension == "inner" || e.dimension == "channels") p.k = p.k / e.to * e.from;
      if (e.dimension == "columns" || e.dimension == "filters") p.n = p.n / e.to * e.from;
    }
    return p;
  }

  double UsefulShare(const PlanStep& step) const {
    const auto padded = padded_.find(step.name);
    double share = 1;
    if (padded == padded_.end()) return share;
    for (const passes::PaddedExtent& e : padded->second) {
      share *= static_cast<double>(e.from) / static_cast<double>(e.to);
    }
    return share;
  }

  static void NoteFused(const PlanStep& step, v1::LayerCost* layer) {
    absl::Span<const ir::FusedStep> fused = step.fused;
    // What is behind a product that no library joins with it is one kernel still.
    if (!fused.empty() && step.kernel != nullptr && !step.kernel->joined()) fused.remove_prefix(1);
    if (fused.size() < 2 || step.stage == ir::Stage::kGradient || !layer->fused().empty()) return;
    layer->set_fused(absl::StrJoin(fused, ", ", [](std::string* out, const ir::FusedStep& f) {
      absl::StrAppend(out, std::string(ir::OpName(f.op)));
    }));
  }

  // The check reads every gradient; the update reads it, the master and the moments, writes the last two and the copies
  // that kernels read; and the gradient is cleared, where no plan overwrites it.
  void AddUpdate(const PlannedPhase& phase) {
    const int cleared = phase.plans[0].overwrites_gradients ? 0 : 1;
    const double touched = 1 + 1 + cleared + 2 + 2 * phase.optimizer.moments() + (planned_.keeps_average ? 2 : 0);
    std::map<int32_t, int64_t> copies;
    for (const runtime::ModelLayout::Copy& copy : planned_.layout.copies()) copies[copy.parameter] += copy.layout.bytes;
    for (const int32_t i : phase.parameters) {
      const ir::Persistent& parameter = planned_.layout.parameters()[static_cast<size_t>(i)];
      const double count = static_cast<double>(NumElements(parameter.type.shape));
      const double bytes = count * 4 * touched + static_cast<double>(copies[i]);
      const double flops = count * 2 * (1 + phase.optimizer.moments());
      Add(flops, flops, bytes, model_.fp32_flops(), 1, LayerOf(LayerOfParameter(parameter.name)));
    }
  }

  std::string LayerOfParameter(std::string name) const {
    while (plans_.count(name) == 0) {
      const size_t dot = name.rfind('.');
      if (dot == std::string::npos) return kLossLayer;
      name.resize(dot);
    }
    return name;
  }

  void Finish(v1::LayerCost* layer) const {
    if (layer->dtype_reason().empty()) layer->set_dtype_reason(ReasonOf(*layer));
    if (layer->mnk().empty()) layer->set_tensor_core_reason("no product");
    layer->set_intensity(layer->bytes() > 0 ? layer->flops() / layer->bytes() : 0);
    if (!(model_.memory_bandwidth() > 0) || !(model_.fp32_flops() > 0) || has_no_floor_) return;
    const double peak = layer->tensor_core_eligible() ? PeakFlops(model_, ModeOfDType(layer->dtype())) : 0;
    layer->set_ridge((peak > 0 ? peak : model_.fp32_flops()) / model_.memory_bandwidth());
    layer->set_bound(layer->intensity() < layer->ridge() ? v1::LayerCost::MEMORY : v1::LayerCost::COMPUTE);
  }

  const v1::JobSpec& spec_;
  const PlannedModel& planned_;
  const v1::DeviceModel& model_;
  const absl::Span<const double> bucket_shares_;
  // Of a product, or of the job's mode.
  bool has_no_floor_;
  std::map<std::string, std::vector<passes::PaddedExtent>> padded_;
  std::map<std::string, const v1::LayerPlan*> plans_;
  std::map<std::pair<std::string, std::string>, size_t> index_;
  // By phase and layer.
  std::map<std::pair<std::string, std::string>, std::vector<Misalignment>> misaligned_;
  std::string phase_;
  double weight_ = 1;
  // The bucket's plan is the phase's first.
  bool is_longest_ = true;
  StepCosts costs_;
};

}  // namespace

v1::PrecisionSpec::Mode ProductShape::mode() const {
  if (IsF8(dtype)) return v1::PrecisionSpec::FP8;
  if (dtype == DType::kF16) return v1::PrecisionSpec::FP16;
  if (dtype == DType::kBF16) return v1::PrecisionSpec::BF16;
  return tf32 ? v1::PrecisionSpec::TF32 : v1::PrecisionSpec::FP32;
}

absl::optional<ProductShape> ProductOf(const PlanStep& step) {
  if (step.op == OpKind::kRegion) {
    const ir::FusedStep& first = step.fused.front();
    return ProductOf({.op = first.op, .inputs = step.inputs, .outputs = step.outputs, .attributes = first.attributes});
  }
  absl::optional<ProductShape> product = ShapeOf(step);
  if (!product) return absl::nullopt;
  product->dtype = step.inputs[0].type.dtype;
  product->tf32 = step.attributes.String(ops::kComputeAttribute) == ops::kComputeTf32;
  return product;
}

bool IsEmulated(const v1::DeviceModel& model, v1::PrecisionSpec::Mode mode) {
  return model.kind() == v1::Device::CPU && mode != v1::PrecisionSpec::FP32 && !(PeakFlops(model, mode) > 0);
}

bool HasNoFloor(const v1::DeviceModel& model, v1::PrecisionSpec::Mode mode) {
  return IsEmulated(model, mode) || !ModeRefusal(model, mode).empty();
}

Ineligibility IneligibilityOf(const ProductShape& product, const v1::DeviceModel& model) {
  const v1::PrecisionSpec::Mode mode = product.mode();
  if (mode == v1::PrecisionSpec::FP32) return {.reason = "f32"};
  if (IsEmulated(model, mode)) {
    return {.reason = absl::StrCat(model.name(), " has no peak for ", v1::PrecisionSpec::Mode_Name(mode))};
  }
  if (model.kind() == v1::Device::CPU) return {};
  if (!model.tensor_cores()) return {.reason = absl::StrCat(model.name(), " has no Tensor Cores")};
  if (!(PeakFlops(model, mode) > 0)) {
    return {.reason = absl::StrCat(model.name(), " has none for ", v1::PrecisionSpec::Mode_Name(mode))};
  }
  Ineligibility ineligible;
  for (const auto& [name, extent] : product.contiguous) {
    if (extent % product.multiple() != 0) ineligible.extents.push_back({name, extent, product.multiple()});
  }
  return ineligible;
}

StepCosts CostsOf(const ResolvedJobSpec& spec, const PlannedModel& planned, const v1::DeviceModel& model,
                  absl::Span<const double> bucket_shares) {
  return Adder(spec, planned, model, bucket_shares).Run();
}

}  // namespace ampd::train
