#include "engine/backend/cuda/resident_stack.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "engine/backend/cuda/matmul.h"
#include "engine/backend/cuda/narrow_stack.h"
#include "engine/core/status.h"
#include "engine/ops/elementwise_functions.h"

namespace ampd::cuda {
namespace {

using ir::OpKind;
using runtime::PlannedTensor;
using runtime::PlanStep;
using runtime::Space;

// A value of the plan, whatever name it is read by: in the arena the output of the step that wrote there last, which a
// view of it is, too; elsewhere where it lies.
using Value = std::tuple<Space, int64_t, int64_t>;

// Padding (decisions/0012) cuts matrices, pads them with zeros, and makes columns zero, which the stack need not do:
// its fragments reach beyond the last column anyway, and what stands there meets weights that are zero. So values that
// differ by such steps alone are one here, the one that the first of those steps reads: its base. Check() sees to it
// that they are about padding, which a network's own cuts and masks are not.
class Finder {
 public:
  explicit Finder(const runtime::Plan& plan) : plan_(plan) {
    found_.holds.assign(plan.steps.size(), false);
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      for (const PlannedTensor& input : plan.steps[s].inputs) values_[s].push_back(ValueBefore(s, input));
    }
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      for (size_t i = 0; i < plan.steps[s].inputs.size(); ++i) {
        const Value base = BaseOf(values_[s][i]);
        const auto padded = PaddedBy(s);
        (padded && padded->input == i ? paddings_ : readers_)[base].push_back({s, i});
      }
    }
    for (const auto& [name, tensor] : plan.outputs) shown_.push_back(ValueBefore(plan.steps.size(), tensor));
  }

  absl::optional<ResidentStack> Run() {
    if (!FindForward() || !FindBackward() || !FindOutput() || !Check() || !IsClosed() || !HasRoom())
      return absl::nullopt;
    Lay();
    return std::move(found_);
  }

 private:
  struct Reader {
    size_t step, input;
  };
  // What a step that only pads or cuts reads, and how many columns of it stay what they are.
  struct Padding {
    size_t input;
    int64_t keeps;
  };

  // --- values

  Value ValueBefore(size_t step, const PlannedTensor& tensor) const {
    if (tensor.space != Space::kArena) return {tensor.space, tensor.offset, 0};
    const int64_t end = tensor.offset + std::max<int64_t>(1, runtime::BytesOf(tensor));
    for (size_t s = step; s-- > 0;) {
      const std::vector<PlannedTensor>& outputs = plan_.steps[s].outputs;
      for (size_t o = 0; o < outputs.size(); ++o) {
        if (outputs[o].space == Space::kArena && outputs[o].offset < end &&
            tensor.offset < outputs[o].offset + std::max<int64_t>(1, runtime::BytesOf(outputs[o]))) {
          return OutputOf(s, o);
        }
      }
    }
    return {Space::kArena, -1, tensor.offset};
  }
  static Value OutputOf(size_t step, size_t output = 0) {
    return {Space::kArena, static_cast<int64_t>(step), static_cast<int64_t>(output)};
  }
  // The step that made a value, if one did.
  static absl::optional<size_t> MakerOf(const Value& value) {
    if (std::get<0>(value) != Space::kArena || std::get<1>(value) < 0) return absl::nullopt;
    return static_cast<size_t>(std::get<1>(value));
  }
  Value BaseOf(Value value) const {
    while (const auto maker = MakerOf(value)) {
      const auto padded = PaddedBy(*maker);
      if (!padded) break;
      value = values_.at(*maker)[padded->input];
    }
    return value;
  }
  Value BaseOf(const Reader& reader) const { return BaseOf(values_.at(reader.step)[reader.input]); }
  const std::vector<Reader>& ReadersOf(const Value& base) const {
    static const std::vector<Reader> none;
    const auto found = readers_.find(base);
    return found == readers_.end() ? none : found->second;
  }
  const PlanStep& At(size_t step) const { return plan_.steps[step]; }
  void Hold(size_t step) { found_.holds[step] = true; }
  void HoldBackward(size_t step) {
    Hold(step);
    found_.backward_at = std::min(found_.backward_at, step);
  }
  bool Is16(DType dtype) const { return dtype == found_.stack.dtype; }

  // --- steps

  absl::optional<Padding> PaddedBy(size_t s) const {
    const PlanStep& step = At(s);
    if (step.op == OpKind::kWhere) {
      const auto mask = MaskOf(step, {.op = step.op, .operands = {0, 1, 2}});
      if (!mask) return absl::nullopt;
      return Padding{1, mask->keeps};
    }
    if (!KeepsBeginning(step)) return absl::nullopt;
    const Shape &x = step.inputs[0].type.shape, &y = step.outputs[0].type.shape;
    if (x.size() == 2 && x[0] != y[0]) return absl::nullopt;
    return Padding{0, std::min(x.back(), y.back())};
  }

  // A part of a step that makes columns zero: of what, and how many it keeps.
  struct Mask {
    int32_t operand, keeps;
  };
  absl::optional<Mask> MaskOf(const PlanStep& step, const ir::FusedStep& part) const {
    const auto inputs = static_cast<int32_t>(step.inputs.size());
    if (part.op != OpKind::kWhere || part.operands.size() != 3 || part.operands[0] >= inputs ||
        part.operands[2] >= inputs) {
      return absl::nullopt;
    }
    const Tensor* const mask = ConstantOf(step.inputs[static_cast<size_t>(part.operands[0])]);
    const Tensor* const zero = ConstantOf(step.inputs[static_cast<size_t>(part.operands[2])]);
    if (mask == nullptr || zero == nullptr || mask->view().dtype != DType::kBool || mask->view().shape.size() != 1 ||
        step.outputs[0].type.shape.empty() || mask->view().size() != step.outputs[0].type.shape.back() ||
        zero->view().size() != 1) {
      return absl::nullopt;
    }
    const auto *keeps = static_cast<const uint8_t*>(mask->view().data), *end = keeps + mask->view().size();
    const auto kept = [](uint8_t keep) { return keep != 0; };
    const auto* bytes = static_cast<const char*>(zero->view().data);
    if (!std::is_partitioned(keeps, end, kept) ||
        !std::all_of(bytes, bytes + zero->view().bytes(), [](char byte) { return byte == 0; })) {
      return absl::nullopt;
    }
    return Mask{part.operands[1], static_cast<int32_t>(std::count_if(keeps, end, kept))};
  }
  const Tensor* ConstantOf(const PlannedTensor& tensor) const {
    return tensor.space == Space::kConstant ? plan_.constants[static_cast<size_t>(tensor.offset)].get() : nullptr;
  }

  // What a step does, as a fused step's parts.
  static std::vector<ir::FusedStep> PartsOf(const PlanStep& step) {
    if (step.op == OpKind::kFused) return step.fused;
    ir::FusedStep only{.op = step.op, .attributes = step.attributes};
    for (size_t i = 0; i < step.inputs.size(); ++i) only.operands.push_back(static_cast<int32_t>(i));
    return {only};
  }

  // Whether it is a product of rows with a trained weight [out, in], in 16 bits.
  static bool IsLayer(const PlanStep& step) {
    if (step.op != OpKind::kMatmul || step.inputs.size() != 2 || step.inputs[0].type.shape.size() != 2) return false;
    const DType dtype = step.inputs[0].type.dtype;
    return (dtype == DType::kF16 || dtype == DType::kBF16) && step.inputs[1].type.dtype == dtype &&
           step.inputs[1].space == Space::kPublished && step.inputs[1].type.shape.size() == 2 &&
           !step.attributes.Bool("transpose_a") && step.attributes.Bool("transpose_b");
  }

  // The only reader of a value that `wanted` accepts.
  template <typename Wanted>
  absl::optional<size_t> OnlyReader(const Value& base, const Wanted& wanted) const {
    absl::optional<size_t> only;
    for (const Reader& reader : ReadersOf(base)) {
      if (!wanted(At(reader.step), reader)) continue;
      if (only) return absl::nullopt;
      only = reader.step;
    }
    return only;
  }

  // --- forward

  // What a layer is besides what the stack holds of it. Values are bases.
  struct Layer {
    Value sums;    // what the activation is applied to, where somebody reads it
    Value result;  // with the bias, behind the activation
    Value sums_gradient, result_gradient;
    int64_t keeps = 0;  // columns of what masks within its steps leave
  };

  bool FindForward() {
    size_t at = 0;
    while (at < plan_.steps.size() && At(at).op != OpKind::kMatmul) ++at;
    if (at == plan_.steps.size() || !IsLayer(At(at))) return false;
    DenseStack& stack = found_.stack;
    stack.dtype = At(at).inputs[0].type.dtype;
    stack.rows = static_cast<int32_t>(At(at).inputs[0].type.shape[0]);
    found_.forward_at = at;
    HoldBatch({at, 0}, &found_.input, &input_);
    stack.input_dtype = found_.input->type.dtype;
    stack.input_columns = static_cast<int32_t>(found_.input->type.shape[1]);
    for (absl::optional<size_t> next = at; next;) {
      if (found_.layers.size() == kMostDenseLayers) return false;
      next = AddLayer(*next);
    }
    return true;
  }

  bool BringsBatch(size_t s) const {
    const PlanStep& step = At(s);
    if (step.inputs.empty() || step.inputs[0].type.shape.size() != 2 ||
        step.inputs[0].type.shape[0] != found_.stack.rows) {
      return false;
    }
    return step.op == OpKind::kCast ? step.inputs[0].type.dtype == DType::kF32 && Is16(step.outputs[0].type.dtype)
                                    : step.op == OpKind::kPad && PaddedBy(s);
  }
  // What brings the batch to 16 bits, and to whole packs of columns, for a reader of it.
  void HoldBatch(const Reader& reader, const PlannedTensor** tensor, Value* value) {
    *tensor = &At(reader.step).inputs[reader.input];
    *value = values_.at(reader.step)[reader.input];
    while (const auto maker = MakerOf(*value)) {
      if (!BringsBatch(*maker)) return;
      Hold(*maker);
      found_.forward_at = std::min(found_.forward_at, *maker);
      *tensor = &At(*maker).inputs[0];
      *value = values_.at(*maker)[0];
    }
  }

  // Of the product at step `at`; returns the next layer's.
  absl::optional<size_t> AddLayer(size_t at) {
    const PlanStep& product = At(at);
    DenseLayer& layer = found_.stack.layers[found_.layers.size()];
    layer.in = static_cast<int32_t>(product.inputs[1].type.shape[1]);
    layer.out = static_cast<int32_t>(product.inputs[1].type.shape[0]);
    layer.rounds_product = product.outputs[0].type.dtype != DType::kF32;
    found_.layers.push_back({&product.inputs[1], nullptr, nullptr, nullptr});
    layers_.push_back({.sums = OutputOf(at), .result = OutputOf(at), .keeps = layer.out});
    Hold(at);
    forward_end_ = at;
    bool more = true;
    while (more) {
      more = false;
      for (const Reader& reader : ReadersOf(layers_.back().result)) {
        if (At(reader.step).stage == ir::Stage::kGradient || !Follow(reader, &layer)) continue;
        more = true;
        break;
      }
    }
    for (const Reader& reader : ReadersOf(layers_.back().result)) {
      const PlanStep& step = At(reader.step);
      if (reader.input == 0 && step.stage != ir::Stage::kGradient && IsLayer(step) && Is16(step.inputs[0].type.dtype) &&
          step.inputs[0].type.shape[0] == found_.stack.rows) {
        return reader.step;
      }
    }
    return absl::nullopt;
  }

  // Takes the step of `reader`, which reads what the last layer makes, into that layer: bias, activation, cast to f32.
  // False, and nothing is changed, where it is another kind of step.
  bool Follow(const Reader& reader, DenseLayer* layer) {
    const PlanStep& step = At(reader.step);
    const std::vector<ir::FusedStep> parts = PartsOf(step);
    const auto inputs = static_cast<int32_t>(step.inputs.size());
    DenseLayer changed = *layer;
    ResidentStack::Tensors tensors = found_.layers.back();
    Layer values = layers_.back();
    bool widens = widens_;
    const auto result_of = [&](size_t part) -> absl::optional<size_t> {
      if (step.op != OpKind::kFused) return 0;
      const auto at = std::find(step.fused_results.begin(), step.fused_results.end(), static_cast<int32_t>(part));
      if (at == step.fused_results.end()) return absl::nullopt;
      return static_cast<size_t>(at - step.fused_results.begin());
    };
    for (size_t p = 0; p < parts.size(); ++p) {
      const ir::FusedStep& part = parts[p];
      const int32_t own = p == 0 ? static_cast<int32_t>(reader.input) : inputs + static_cast<int32_t>(p) - 1;
      const bool last = p + 1 == parts.size();
      const auto mask = p > 0 ? MaskOf(step, part) : absl::nullopt;
      const auto function = ops::FunctionOf(part.op, part.attributes);
      if (widens || part.operands.empty() || (mask ? mask->operand : part.operands[0]) != own) return false;
      if (mask) {
        values.keeps = std::min<int64_t>(values.keeps, mask->keeps);
      } else if (part.op == OpKind::kBiasAdd) {
        if (changed.activation != ops::ElementwiseFunction::kNone || tensors.bias != nullptr ||
            part.operands.size() != 2 || part.operands[1] >= inputs) {
          return false;
        }
        tensors.bias = &step.inputs[static_cast<size_t>(part.operands[1])];
        if (tensors.bias->space != Space::kPublished || !Is16(tensors.bias->type.dtype) ||
            tensors.bias->type.shape != Shape({layer->out})) {
          return false;
        }
        changed.rounds_sum = last && Is16(step.outputs[0].type.dtype);
        if (const auto result = result_of(p)) values.sums = OutputOf(reader.step, *result);
      } else if (IsStackActivation(function)) {
        if (changed.activation != ops::ElementwiseFunction::kNone) return false;
        changed.activation = function;
        changed.constants = ops::ConstantsOf(part.op, part.attributes);
      } else if (part.op == OpKind::kCast && last && step.outputs[0].type.dtype == DType::kF32) {
        widens = true;
      } else {
        return false;
      }
    }
    const auto result = result_of(parts.size() - 1);
    if (!result) return false;
    values.result = OutputOf(reader.step, *result);
    *layer = changed, found_.layers.back() = tensors, layers_.back() = values, widens_ = widens;
    Hold(reader.step);
    forward_end_ = std::max(forward_end_, reader.step);
    return true;
  }

  // --- backward

  bool FindBackward() {
    found_.backward_at = plan_.steps.size();
    if (found_.stack.layers[found_.layers.size() - 1].activation != ops::ElementwiseFunction::kNone) return false;
    for (size_t l = found_.layers.size(); l-- > 0;) {
      if (!FindWeightGradient(l) || !FindBiasGradient(l) || (l > 0 && !FindBelow(l))) return false;
    }
    return true;
  }

  bool FindWeightGradient(size_t l) {
    DenseLayer& layer = found_.stack.layers[l];
    const auto wanted = [&](const PlanStep& step, const Reader& reader) {
      return step.op == OpKind::kMatmul && reader.input == 1 && step.stage == ir::Stage::kGradient &&
             step.inputs.size() == 2 && Is16(step.inputs[0].type.dtype) && step.attributes.Bool("transpose_a") &&
             !step.attributes.Bool("transpose_b") && step.outputs[0].type.dtype == DType::kF32 &&
             step.outputs[0].type.shape == Shape({layer.out, layer.in});
    };
    absl::optional<size_t> product;
    if (l > 0) {
      product = OnlyReader(layers_[l - 1].result, wanted);
    } else {
      // The batch may have been brought to 16 bits again.
      for (size_t s = 0; s < plan_.steps.size(); ++s) {
        if (At(s).inputs.size() != 2 || !wanted(At(s), {s, 1}) || !ReadsBatch({s, 1})) continue;
        if (product) return false;
        product = s;
      }
    }
    if (!product) return false;
    if (l == 0) {
      const PlannedTensor* tensor;
      Value value;
      const size_t forward_at = found_.forward_at;
      HoldBatch({*product, 1}, &tensor, &value);
      found_.forward_at = forward_at;
    }
    HoldBackward(*product);
    const Value gradient = BaseOf({*product, 0});
    if (l + 1 == found_.layers.size()) {
      if (!FindOutputGradient(gradient, {*product, 0})) return false;
    } else if (gradient != layers_[l].sums_gradient) {
      return false;
    }
    found_.layers[l].weight_grad = SlotBehind(*product);
    if (found_.layers[l].weight_grad == nullptr) return false;
    layer.grad_out = static_cast<int32_t>(found_.layers[l].weight_grad->type.shape[0]);
    layer.grad_in = static_cast<int32_t>(found_.layers[l].weight_grad->type.shape[1]);
    return true;
  }

  bool ReadsBatch(const Reader& reader) const {
    Value value = values_.at(reader.step)[reader.input];
    while (value != input_) {
      const auto maker = MakerOf(value);
      if (!maker || !BringsBatch(*maker)) return false;
      value = values_.at(*maker)[0];
    }
    return true;
  }

  // What brings the output's gradient to 16 bits is the stack's own.
  bool FindOutputGradient(Value gradient, Reader reader) {
    Layer& last = layers_.back();
    last.sums_gradient = gradient;
    output_gradient_ = gradient;
    while (const auto maker = MakerOf(gradient)) {
      const PlanStep& step = At(*maker);
      if (step.op != OpKind::kCast || step.stage != ir::Stage::kGradient || step.inputs[0].type.dtype != DType::kF32)
        break;
      HoldBackward(*maker);
      reader = {*maker, 0};
      gradient = BaseOf(reader);
      output_gradient_ = gradient;
    }
    // Its tensor, as whoever reads it first has it, without what pads it.
    found_.output_grad = &At(reader.step).inputs[reader.input];
    Value value = values_.at(reader.step)[reader.input];
    while (value != gradient) {
      const auto maker = MakerOf(value);
      HoldBackward(*maker);
      const size_t input = PaddedBy(*maker)->input;
      found_.output_grad = &At(*maker).inputs[input];
      value = values_.at(*maker)[input];
    }
    // What is fed and constants are not in shared memory.
    if (found_.output_grad->space != runtime::Space::kArena) return false;
    const ir::TensorType& type = found_.output_grad->type;
    if ((type.dtype != DType::kF32 && !Is16(type.dtype)) || type.shape.size() != 2 ||
        type.shape[0] != found_.stack.rows) {
      return false;
    }
    found_.stack.output_grad_dtype = type.dtype;
    found_.stack.output_grad_columns = static_cast<int32_t>(type.shape[1]);
    return true;
  }

  bool FindBiasGradient(size_t l) {
    if (found_.layers[l].bias == nullptr) return true;
    const auto sum = OnlyReader(layers_[l].sums_gradient, [&](const PlanStep& step, const Reader&) {
      return step.op == OpKind::kBiasAddGrad && step.outputs[0].type.dtype == DType::kF32 &&
             Is16(step.inputs[0].type.dtype);
    });
    if (!sum) return false;
    HoldBackward(*sum);
    found_.layers[l].bias_grad = SlotBehind(*sum);
    return found_.layers[l].bias_grad != nullptr &&
           found_.layers[l].bias_grad->type.shape == Shape({found_.stack.layers[l].grad_out});
  }

  // The gradient's slot that step `s` fills, by itself or by the cut behind it, which is held, too; null: none.
  const PlannedTensor* SlotBehind(size_t s) {
    if (At(s).outputs[0].space == Space::kGradient) return &At(s).outputs[0];
    absl::optional<size_t> cut;
    for (const auto& [step, values] : values_) {
      for (const Value& value : values) {
        if (value != OutputOf(s)) continue;
        if (cut) return nullptr;
        cut = step;
      }
    }
    if (!cut || At(*cut).op != OpKind::kSlice || !KeepsBeginning(At(*cut)) ||
        At(*cut).outputs[0].space != Space::kGradient) {
      return nullptr;
    }
    Hold(*cut);
    return &At(*cut).outputs[0];
  }

  // From the gradient behind layer l's product to the one behind layer l - 1's.
  bool FindBelow(size_t l) {
    DenseLayer& below = found_.stack.layers[l - 1];
    Layer& values = layers_[l - 1];
    const PlannedTensor& weight = *found_.layers[l].weight;
    const auto product = OnlyReader(layers_[l].sums_gradient, [&](const PlanStep& step, const Reader& reader) {
      return step.op == OpKind::kMatmul && reader.input == 0 && step.inputs[1].space == weight.space &&
             step.inputs[1].offset == weight.offset && step.inputs[1].type.shape == weight.type.shape &&
             !step.attributes.Bool("transpose_a") && !step.attributes.Bool("transpose_b") &&
             Is16(step.outputs[0].type.dtype);
    });
    if (!product) return false;
    HoldBackward(*product);
    values.result_gradient = values.sums_gradient = OutputOf(*product);
    if (below.activation == ops::ElementwiseFunction::kNone) return true;
    const auto s =
        OnlyReader(values.result_gradient, [](const PlanStep&, const Reader& reader) { return reader.input == 0; });
    if (!s) return false;
    const PlanStep& step = At(*s);
    const std::vector<ir::FusedStep> parts = PartsOf(step);
    if (parts.size() > 2 || step.outputs.size() != 1 || !Is16(step.outputs[0].type.dtype)) return false;
    if (parts.size() == 2) {
      const auto mask = MaskOf(step, parts[1]);
      if (!mask || mask->operand != static_cast<int32_t>(step.inputs.size())) return false;
      values.keeps = std::min<int64_t>(values.keeps, mask->keeps);
    }
    const ir::FusedStep& part = parts[0];
    if (part.operands.size() != 2 || part.operands[0] != 0 ||
        part.operands[1] >= static_cast<int32_t>(step.inputs.size()) || !IsGradientOf(&below, part)) {
      return false;
    }
    const Value kept = BaseOf({*s, static_cast<size_t>(part.operands[1])});
    if (kept != values.result) {
      if (kept != values.sums) return false;
      below.sums_at = 0;
    }
    HoldBackward(*s);
    values.sums_gradient = OutputOf(*s);
    return true;
  }

  // Whether `part` is the gradient of the layer's activation, which it then is in the layer, too.
  static bool IsGradientOf(DenseLayer* layer, const ir::FusedStep& part) {
    using F = ops::ElementwiseFunction;
    constexpr std::pair<F, F> kPairs[] = {{F::kRelu, F::kReluGrad}, {F::kLeakyRelu, F::kLeakyReluGrad},
                                          {F::kGelu, F::kGeluGrad}, {F::kGeluTanh, F::kGeluTanhGrad},
                                          {F::kSilu, F::kSiluGrad}, {F::kSigmoid, F::kSigmoidGrad},
                                          {F::kTanh, F::kTanhGrad}};
    layer->activation_grad = ops::FunctionOf(part.op, part.attributes);
    const ops::ElementwiseConstants constants = ops::ConstantsOf(part.op, part.attributes);
    return constants.alpha == layer->constants.alpha && constants.beta == layer->constants.beta &&
           std::any_of(std::begin(kPairs), std::end(kPairs), [&](const auto& pair) {
             return pair.first == layer->activation && pair.second == layer->activation_grad;
           });
  }

  // --- the whole

  // The one form of the last layer's result that others read.
  bool FindOutput() {
    absl::optional<Value> output;
    for (const Reader& reader : ReadersOf(layers_.back().result)) {
      if (found_.holds[reader.step]) continue;
      const Value value = values_.at(reader.step)[reader.input];
      if (output && *output != value) return false;
      output = value;
      found_.output = &At(reader.step).inputs[reader.input];
    }
    if (!output) return false;
    output_ = *output;
    const ir::TensorType& type = found_.output->type;
    if ((type.dtype != DType::kF32 && !Is16(type.dtype)) || type.shape.size() != 2 ||
        type.shape[0] != found_.stack.rows || type.shape[1] > found_.stack.layers[found_.layers.size() - 1].out) {
      return false;
    }
    found_.stack.output_dtype = type.dtype;
    found_.stack.output_columns = static_cast<int32_t>(type.shape[1]);
    for (Value value = output_; value != layers_.back().result;) {
      const size_t maker = *MakerOf(value);
      if (PaddedBy(maker)->keeps < type.shape[1]) return false;
      Hold(maker);
      forward_end_ = std::max(forward_end_, maker);
      value = values_.at(maker)[PaddedBy(maker)->input];
    }
    return true;
  }

  // That nothing but padding is cut off, padded or made zero between the layers: columns that are a layer's own stay.
  bool Check() {
    const auto keeps = [&](const Value& base, int64_t columns) {
      const auto own = paddings_.find(base);
      if (own == paddings_.end()) return true;
      return std::all_of(own->second.begin(), own->second.end(), [&](const Reader& padding) {
        // Those of forms that nobody reads here are not the stack's.
        if (IsRead(OutputOf(padding.step))) Hold(padding.step);
        return PaddedBy(padding.step)->keeps >= columns;
      });
    };
    for (size_t l = 0; l < layers_.size(); ++l) {
      const DenseLayer& layer = found_.stack.layers[l];
      const Layer& values = layers_[l];
      const bool last = l + 1 == layers_.size();
      if (!last) {
        const DenseLayer& above = found_.stack.layers[l + 1];
        if (FragmentsAcross(layer.out) != FragmentsAcross(above.in) ||
            values.keeps < std::max(layer.grad_out, above.grad_in))
          return false;
        if (!keeps(values.result, above.grad_in) || !keeps(values.sums, layer.grad_out) ||
            !keeps(values.result_gradient, layer.grad_out)) {
          return false;
        }
      } else if (values.keeps < layer.out) {
        return false;
      }
      if (!keeps(values.sums_gradient, layer.grad_out)) return false;
    }
    return keeps(output_gradient_, found_.stack.layers[found_.layers.size() - 1].grad_out);
  }
  // Whether any step reads a value that a padding step made.
  bool IsRead(const Value& value) const {
    return std::any_of(values_.begin(), values_.end(), [&](const auto& step) {
      return std::find(step.second.begin(), step.second.end(), value) != step.second.end();
    });
  }

  // Nobody outside reads what the held steps make, but for the output, whether they read all of it or a part.
  bool IsClosed() const {
    const auto within = [&](const Value& value) {
      const auto maker = MakerOf(value);
      return maker && found_.holds[*maker] && value != output_;
    };
    for (const auto& [step, values] : values_) {
      if (!found_.holds[step] && std::any_of(values.begin(), values.end(), within)) return false;
    }
    return std::none_of(shown_.begin(), shown_.end(), within);
  }

  bool HasRoom() const {
    // It goes in the place of steps that follow each other, so that what others keep in the arena is not overwritten.
    for (size_t s = found_.forward_at; s <= forward_end_; ++s) {
      if (!found_.holds[s]) return false;
    }
    if (found_.input->space != Space::kArena) return true;
    // Rows are read while others are written.
    const auto end = [](const PlannedTensor& tensor) { return tensor.offset + runtime::BytesOf(tensor); };
    return found_.input->offset >= end(*found_.output) || found_.output->offset >= end(*found_.input);
  }

  // Where fragments lie, and how sums over the rows are cut.
  void Lay() {
    DenseStack& stack = found_.stack;
    stack.layer_count = static_cast<int32_t>(found_.layers.size());
    stack.row_blocks = FragmentsAcross(stack.rows);
    const auto place = [&](int32_t across) {
      return std::exchange(stack.fragments, stack.fragments + stack.row_blocks * across);
    };
    for (int32_t l = 0; l < stack.layer_count; ++l) {
      DenseLayer& layer = stack.layers[l];
      layer.in_blocks = FragmentsAcross(layer.in), layer.out_blocks = FragmentsAcross(layer.out);
      layer.x_at = place(layer.in_blocks);
      layer.gradient_at = place(layer.out_blocks);
      if (layer.sums_at >= 0) layer.sums_at = place(layer.out_blocks);
      stack.weight_blocks += layer.in_blocks * layer.out_blocks;
    }
    const int32_t wanted = kResidentThreads / kWarp / stack.weight_blocks;
    stack.splits = std::clamp(wanted, 1, stack.row_blocks);
  }

  const runtime::Plan& plan_;
  std::map<size_t, std::vector<Value>> values_;    // by step: what it reads
  std::map<Value, std::vector<Reader>> readers_;   // by base, without those that only pad it
  std::map<Value, std::vector<Reader>> paddings_;  // by base: those
  std::vector<Value> shown_;                       // what the plan shows others
  ResidentStack found_;
  std::vector<Layer> layers_;
  Value input_, output_, output_gradient_;
  size_t forward_end_ = 0;
  bool widens_ = false;
};

}  // namespace

double ResidentStack::flops() const {
  double flops = 0;
  for (int32_t l = 0; l < stack.layer_count; ++l) {
    // The first layer's input needs no gradient.
    flops += (l == 0 ? 4.0 : 6.0) * stack.rows * static_cast<double>(stack.layers[l].in) *
             static_cast<double>(stack.layers[l].out);
  }
  return flops;
}

absl::StatusOr<DenseStack> ResidentStack::WithAddresses(const AddressOf& address) const {
  DenseStack placed = stack;
  const auto at = [&](const PlannedTensor* tensor) -> absl::StatusOr<void*> {
    if (tensor == nullptr) return nullptr;
    return address(*tensor);
  };
  for (size_t l = 0; l < layers.size(); ++l) {
    DenseLayer& layer = placed.layers[l];
    AMPD_ASSIGN_OR_RETURN(layer.weight, at(layers[l].weight));
    AMPD_ASSIGN_OR_RETURN(layer.bias, at(layers[l].bias));
    AMPD_ASSIGN_OR_RETURN(void* const weight_grad, at(layers[l].weight_grad));
    AMPD_ASSIGN_OR_RETURN(void* const bias_grad, at(layers[l].bias_grad));
    layer.weight_grad = static_cast<float*>(weight_grad);
    layer.bias_grad = static_cast<float*>(bias_grad);
  }
  AMPD_ASSIGN_OR_RETURN(placed.input, at(input));
  AMPD_ASSIGN_OR_RETURN(placed.output, at(output));
  AMPD_ASSIGN_OR_RETURN(placed.output_grad, at(output_grad));
  placed.narrow = IsNarrow(placed);
  return placed;
}

absl::optional<ResidentStack> FindResidentStack(const runtime::Plan& plan) { return Finder(plan).Run(); }

}  // namespace ampd::cuda
