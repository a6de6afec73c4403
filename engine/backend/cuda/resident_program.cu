#include "engine/backend/cuda/resident_program.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/block_product.h"
#include "engine/backend/cuda/fused.h"
#include "engine/backend/cuda/fused_program.h"
#include "engine/backend/cuda/matmul.h"
#include "engine/backend/cuda/resident_operands.h"
#include "engine/backend/cuda/resident_stack.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

using ir::OpKind;
using runtime::PlannedTensor;
using runtime::PlanStep;

// What one multiprocessor's matrix units are asked to do in a step, at most: a large GPU has a hundred times as many,
// and the launches that a resident step saves are the time of about so much.
constexpr double kMostFlops = 16e6;
// Of f32, which has no matrix unit.
constexpr double kMostPlainFlops = 4e6;
// Of a loss that is taken with its mean and gradients at once: a thread takes a row alone.
constexpr int64_t kMostJoinedFeatures = 8;

runtime::NodeDesc DescOf(const PlanStep& step) {
  runtime::NodeDesc desc{.op = step.op, .name = step.name, .attributes = step.attributes};
  for (const runtime::PlannedTensor& input : step.inputs) desc.inputs.push_back(input.type);
  for (const runtime::PlannedTensor& output : step.outputs) desc.outputs.push_back(output.type);
  desc.steps = step.fused;
  desc.results = step.fused_results;
  return desc;
}

bool IsData(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

class Compiler {
 public:
  Compiler(const runtime::Plan& plan, const ResidentStack* stack, const AddressOf& address)
      : plan_(plan), stack_(stack), address_(address) {}

  absl::StatusOr<ResidentProgram> Run() {
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
      const PlanStep& step = plan_.steps[s];
      if (stack_ == nullptr || !stack_->holds[s]) {
        AMPD_RETURN_IF_ERROR(Add(step));
        continue;
      }
      if (s == stack_->forward_at) AMPD_RETURN_IF_ERROR(AddStack(step, ResidentOp::kStackForward));
      if (s == stack_->backward_at) AMPD_RETURN_IF_ERROR(AddStack(step, ResidentOp::kStackBackward));
    }
    for (size_t i = 0; i + 4 <= program_.instructions.size(); ++i) AMPD_RETURN_IF_ERROR(JoinLoss(i));
    return std::move(program_);
  }

 private:
  static absl::Status No(const PlanStep& step, absl::string_view why) {
    return absl::UnimplementedError(
        absl::StrCat("[resident step] ", ir::OpName(step.op), ": ", why, ", node ", step.name));
  }

  // Addresses of a step's operands.
  struct Places {
    std::vector<void*> inputs, outputs;
  };
  absl::StatusOr<Places> PlacesOf(const PlanStep& step) const {
    Places places;
    for (const runtime::PlannedTensor& input : step.inputs) {
      AMPD_ASSIGN_OR_RETURN(void* const at, address_(input));
      places.inputs.push_back(at);
    }
    for (const runtime::PlannedTensor& output : step.outputs) {
      AMPD_ASSIGN_OR_RETURN(void* const at, address_(output));
      places.outputs.push_back(at);
    }
    return places;
  }

  absl::Status Add(const PlanStep& step) {
    AMPD_ASSIGN_OR_RETURN(const Places places, PlacesOf(step));
    switch (step.op) {
      case OpKind::kMatmul:
        return AddProduct(step, places);
      case OpKind::kDropout:
        return AddDropout(step, places);
      case OpKind::kSlice:
      case OpKind::kPad:
        return AddBox(step, places);
      case OpKind::kBiasAddGrad:
        return AddVector(ResidentOp::kColumnSums, step, step.inputs[0].type, places);
      case OpKind::kAccumulateGrad:
        return AddAccumulate(step, places);
      case OpKind::kReduceMean:
      case OpKind::kReduceMeanGrad:
        return AddMean(step, places);
      case OpKind::kNormalizedSum:
      case OpKind::kNormalizedSumGrad:
        return AddNormalizedSum(step, places);
      case OpKind::kSoftmaxCrossEntropy:
      case OpKind::kSoftmaxCrossEntropyGrad:
        return AddCrossEntropy(step, places);
      case OpKind::kSquaredError:
      case OpKind::kL1Loss:
      case OpKind::kSmoothL1Loss:
      case OpKind::kHingeLoss:
      case OpKind::kSigmoidCrossEntropy:
        return AddLoss(step, places, /*gradient=*/false);
      case OpKind::kSquaredErrorGrad:
      case OpKind::kL1LossGrad:
      case OpKind::kSmoothL1LossGrad:
      case OpKind::kHingeLossGrad:
      case OpKind::kSigmoidCrossEntropyGrad:
        return AddLoss(step, places, /*gradient=*/true);
      default:
        return AddElementwise(step, places);
    }
  }

  template <typename Operands>
  absl::Status Push(ResidentOp op, const PlanStep& step, const Operands& operands) {
    static_assert(std::is_trivially_copyable_v<Operands> && alignof(Operands) <= 16);
    const size_t at = program_.operands.size();
    program_.instructions.push_back({op, step.op, static_cast<int64_t>(at)});
    steps_.push_back(static_cast<size_t>(&step - plan_.steps.data()));
    program_.operands.resize(at + (sizeof(Operands) + 15) / 16 * 16);
    std::memcpy(program_.operands.data() + at, &operands, sizeof(Operands));
    program_.interprets = program_.interprets || IsInterpreted(op);
    return absl::OkStatus();
  }
  static bool IsInterpreted(ResidentOp op) {
    return op == ResidentOp::kProduct || op == ResidentOp::kFused || op == ResidentOp::kDropout ||
           op == ResidentOp::kBox || op == ResidentOp::kColumnSums || op == ResidentOp::kAccumulate;
  }
  void Reserve(int64_t bytes) { program_.scratch_bytes = std::max(program_.scratch_bytes, bytes); }

  absl::Status AddStack(const PlanStep& step, ResidentOp op) {
    AMPD_ASSIGN_OR_RETURN(const DenseStack stack, stack_->WithAddresses(address_));
    if (op == ResidentOp::kStackForward) flops_ += stack_->flops();
    if (flops_ > kMostFlops) return No(step, "more work than one multiprocessor's");
    Reserve(StackScratch(stack));
    return Push(op, step, stack);
  }

  absl::Status AddProduct(const PlanStep& step, const Places& places) {
    if (!IsData(step.inputs[0].type.dtype) || step.inputs[1].type.dtype != step.inputs[0].type.dtype) {
      return No(step, "8-bit operands");
    }
    const MatmulProducts products = ProductsOf(DescOf(step));
    const GemmDesc& gemm = products.gemm;
    if (gemm.tf32) return No(step, "TF32");
    if (gemm.batch != 1 || !products.loops.empty()) return No(step, "a batch of matrices");
    const double flops = 2.0 * static_cast<double>(gemm.rows) * static_cast<double>(gemm.columns * gemm.inner);
    flops_ += gemm.a.dtype == DType::kF32 ? flops * kMostFlops / kMostPlainFlops : flops;
    if (flops_ > kMostFlops) return No(step, "more work than one multiprocessor's");
    BlockProduct p{.a = places.inputs[0],
                   .b = places.inputs[1],
                   .d = places.outputs[0],
                   .dtype = gemm.a.dtype,
                   .d_dtype = gemm.d.dtype,
                   .rows = static_cast<int32_t>(gemm.rows),
                   .columns = static_cast<int32_t>(gemm.columns),
                   .inner = static_cast<int32_t>(gemm.inner)};
    const auto a = static_cast<int32_t>(gemm.a.leading), b = static_cast<int32_t>(gemm.b.leading);
    p.a_row = gemm.a.transposed ? 1 : a;
    p.a_inner = gemm.a.transposed ? a : 1;
    p.b_inner = gemm.b.transposed ? 1 : b;
    p.b_column = gemm.b.transposed ? b : 1;
    p.d_row = static_cast<int32_t>(gemm.d.leading);
    p.splits = SplitsFor(p, kResidentThreads / kWarp);
    Reserve(ScratchOf(p));
    return Push(ResidentOp::kProduct, step, p);
  }

  // A fused node, or an elementwise one, which is a fused node of one step.
  absl::Status AddElementwise(const PlanStep& step, const Places& places) {
    runtime::NodeDesc desc = DescOf(step);
    if (step.op != OpKind::kFused) {
      if (!CanFuse(step.op) || step.outputs.size() != 1) return No(step, "has no resident form");
      ir::FusedStep only{.op = step.op, .attributes = step.attributes, .dtype = desc.outputs[0].dtype};
      for (size_t i = 0; i < desc.inputs.size(); ++i) only.operands.push_back(static_cast<int32_t>(i));
      desc.op = OpKind::kFused;
      desc.steps = {only};
      desc.results = {0};
      AMPD_RETURN_IF_ERROR(CheckFusable(step, desc));
    }
    AMPD_ASSIGN_OR_RETURN(CompiledFused compiled, CompileFused(desc));
    for (size_t place = 0; place < compiled.inputs.size(); ++place) {
      compiled.program.inputs[place].data = places.inputs[static_cast<size_t>(compiled.inputs[place])];
    }
    for (size_t i = 0; i < places.outputs.size(); ++i) compiled.program.outputs[i].data = places.outputs[i];
    Reserve(compiled.program.slots * int64_t{4 * sizeof(float)} * kResidentThreads);
    return Push(ResidentOp::kFused, step, compiled.program);
  }

  // That the kernel of fused nodes can hold it alone.
  static absl::Status CheckFusable(const PlanStep& step, const runtime::NodeDesc& desc) {
    const Shape& shape = desc.outputs[0].shape;
    const auto known = [](DType dtype) { return IsData(dtype) || dtype == DType::kBool; };
    if (!known(desc.outputs[0].dtype)) return No(step, "whole numbers or 8-bit codes");
    for (const ir::TensorType& input : desc.inputs) {
      const int64_t size = NumElements(input.shape);
      const bool row = !shape.empty() && !input.shape.empty() && size == shape.back() && input.shape.back() == size;
      if (!known(input.dtype)) return No(step, "whole numbers");
      if (input.shape != shape && size != 1 && !row) return No(step, "an operand that is repeated along an axis");
    }
    return absl::OkStatus();
  }

  absl::Status AddDropout(const PlanStep& step, const Places& places) {
    const ir::TensorType& x = step.inputs[0].type;
    return Push(ResidentOp::kDropout, step,
                ResidentDropout{RowRuns(x.shape, 4), DropoutConfig::Of(step.attributes), x.dtype, places.inputs[0],
                                places.outputs[0]});
  }

  absl::Status AddBox(const PlanStep& step, const Places& places) {
    const ir::TensorType &x = step.inputs[0].type, &y = step.outputs[0].type;
    if (!KeepsBeginning(step)) return No(step, "is no matrix, rounds, or does not begin where its input does");
    if (SizeOf(x.dtype) > 4) return No(step, "elements of eight bytes");
    const auto rows = [](const Shape& s) { return static_cast<int32_t>(s.size() == 2 ? s[0] : 1); };
    return Push(ResidentOp::kBox, step,
                ResidentBox{rows(x.shape), static_cast<int32_t>(x.shape.back()), rows(y.shape),
                            static_cast<int32_t>(y.shape.back()), static_cast<int32_t>(SizeOf(x.dtype)),
                            places.inputs[0], places.outputs[0]});
  }

  absl::Status AddVector(ResidentOp op, const PlanStep& step, const ir::TensorType& larger, const Places& places) {
    const int64_t size = NumElements(larger.shape), columns = larger.shape.empty() ? 1 : larger.shape.back();
    if (op == ResidentOp::kColumnSums) Reserve(int64_t{kResidentThreads} * int64_t{sizeof(double)});
    return Push(op, step,
                ResidentVector{size, static_cast<int32_t>(size / columns), static_cast<int32_t>(columns),
                               step.inputs[0].type.dtype, places.inputs[0], static_cast<float*>(places.outputs[0])});
  }

  // Its output is the gradient's slot, which is its second input too.
  absl::Status AddAccumulate(const PlanStep& step, const Places& places) {
    return AddVector(ResidentOp::kAccumulate, step, step.inputs[0].type, places);
  }

  absl::Status AddMean(const PlanStep& step, const Places& places) {
    const bool gradient = step.op == OpKind::kReduceMeanGrad;
    const ir::TensorType& one = gradient ? step.inputs[0].type : step.outputs[0].type;
    const ir::TensorType& all = gradient ? step.outputs[0].type : step.inputs[0].type;
    if (NumElements(one.shape) != 1) return No(step, "more than one mean");
    return AddVector(gradient ? ResidentOp::kMeanGrad : ResidentOp::kMean, step, all, places);
  }

  absl::Status AddNormalizedSum(const PlanStep& step, const Places& places) {
    const bool gradient = step.op == OpKind::kNormalizedSumGrad;
    return Push(gradient ? ResidentOp::kNormalizedSumGrad : ResidentOp::kNormalizedSum, step,
                ResidentWeighted{NumElements(step.inputs[1].type.shape), static_cast<const float*>(places.inputs[0]),
                                 static_cast<const float*>(places.inputs[1]), static_cast<float*>(places.outputs[0])});
  }

  absl::Status AddLoss(const PlanStep& step, const Places& places, bool gradient) {
    const size_t first = gradient ? 1 : 0;
    ResidentLoss loss{.dlosses = gradient ? static_cast<const float*>(places.inputs[0]) : nullptr,
                      .to = static_cast<float*>(places.outputs[0])};
    AMPD_ASSIGN_OR_RETURN(loss.samples, LossSamples::Of(DescOf(step), step.inputs[first].type.shape));
    loss.operands.prediction = static_cast<const float*>(places.inputs[first]);
    loss.operands.target = static_cast<const float*>(places.inputs[first + 1]);
    if (places.inputs.size() > first + 2) loss.operands.weights = static_cast<const float*>(places.inputs[first + 2]);
    return Push(gradient ? ResidentOp::kLossGrad : ResidentOp::kLoss, step, loss);
  }

  absl::Status AddCrossEntropy(const PlanStep& step, const Places& places) {
    const bool gradient = step.op == OpKind::kSoftmaxCrossEntropyGrad;
    const size_t first = gradient ? 1 : 0;
    const Shape& logits = step.inputs[first].type.shape;
    if (step.inputs[first].type.dtype != DType::kF32) return No(step, "16-bit logits");
    if (logits.back() > kMostResidentClasses) return No(step, "more classes than a warp holds");
    ResidentCrossEntropy c{.goal = Goal(step.attributes, logits.back()), .rows = NumElements(logits) / logits.back()};
    c.logits = static_cast<const float*>(places.inputs[first]);
    c.goal.labels = static_cast<const int32_t*>(places.inputs[first + 1]);
    if (places.inputs.size() > first + 2) c.goal.class_weights = static_cast<const float*>(places.inputs[first + 2]);
    c.dlosses = gradient ? static_cast<const float*>(places.inputs[0]) : nullptr;
    c.to = static_cast<float*>(places.outputs[0]);
    c.weights = gradient ? nullptr : static_cast<float*>(places.outputs[1]);
    return Push(gradient ? ResidentOp::kCrossEntropyGrad : ResidentOp::kCrossEntropy, step, c);
  }

  // --- losses

  static OpKind GradientOf(OpKind loss) {
    switch (loss) {
      case OpKind::kSquaredError:
        return OpKind::kSquaredErrorGrad;
      case OpKind::kL1Loss:
        return OpKind::kL1LossGrad;
      case OpKind::kSmoothL1Loss:
        return OpKind::kSmoothL1LossGrad;
      case OpKind::kHingeLoss:
        return OpKind::kHingeLossGrad;
      default:
        return OpKind::kSigmoidCrossEntropyGrad;
    }
  }

  template <typename Operands>
  Operands OperandsOf(size_t instruction) const {
    Operands operands;
    std::memcpy(&operands, program_.operands.data() + program_.instructions[instruction].operands, sizeof(Operands));
    return operands;
  }

  // Of one space.
  struct Range {
    int64_t begin, end;
  };
  static Range RangeOf(const PlannedTensor& tensor) {
    return {tensor.offset, tensor.offset + std::max<int64_t>(1, runtime::BytesOf(tensor))};
  }
  static bool Overlap(const Range& a, const Range& b) { return a.begin < b.end && b.begin < a.end; }
  static bool Overlap(const PlannedTensor& a, const PlannedTensor& b) {
    return a.space == b.space && Overlap(RangeOf(a), RangeOf(b));
  }

  // Whether anybody but step `reader` reads what step `maker` leaves, as far as it is still there. Of the plan's
  // outputs nobody sees others than the loss.
  bool IsReadBesides(size_t maker, size_t reader) const {
    const PlannedTensor& made = plan_.steps[maker].outputs[0];
    if (made.space != runtime::Space::kArena) return true;
    std::vector<Range> left = {RangeOf(made)};
    const auto reads = [&](const PlannedTensor& tensor) {
      return tensor.space == made.space &&
             std::any_of(left.begin(), left.end(), [&](const Range& range) { return Overlap(range, RangeOf(tensor)); });
    };
    for (size_t s = maker + 1; s < plan_.steps.size(); ++s) {
      const PlanStep& step = plan_.steps[s];
      if (s != reader && std::any_of(step.inputs.begin(), step.inputs.end(), reads)) return true;
      for (const PlannedTensor& output : step.outputs) {
        if (output.space != made.space) continue;
        const Range over = RangeOf(output);
        std::vector<Range> rest;
        for (const Range& range : left) {
          if (range.begin < over.begin) rest.push_back({range.begin, std::min(range.end, over.begin)});
          if (over.end < range.end) rest.push_back({std::max(range.begin, over.end), range.end});
        }
        left = std::move(rest);
      }
    }
    const auto loss = plan_.outputs.find("loss");
    return loss != plan_.outputs.end() && reads(loss->second);
  }

  // Makes a loss, its mean and the gradients of both, where they are the four instructions from `i` on, one: four times
  // to ask what to do, and to wait for all threads, takes longer than what they do.
  absl::Status JoinLoss(size_t i) {
    std::vector<ResidentInstruction>& all = program_.instructions;
    constexpr ResidentOp kOps[] = {ResidentOp::kLoss, ResidentOp::kMean, ResidentOp::kMeanGrad, ResidentOp::kLossGrad};
    for (size_t k = 0; k < 4; ++k) {
      if (all[i + k].op != kOps[k]) return absl::OkStatus();
    }
    const auto loss = OperandsOf<ResidentLoss>(i), gradient = OperandsOf<ResidentLoss>(i + 3);
    const auto mean = OperandsOf<ResidentVector>(i + 1), mean_gradient = OperandsOf<ResidentVector>(i + 2);
    const LossOperands &a = loss.operands, &b = gradient.operands;
    if (loss.samples.features > kMostJoinedFeatures || all[i + 3].kind != GradientOf(all[i].kind) ||
        loss.samples.number != gradient.samples.number || mean.from != loss.to || mean.size != loss.samples.samples ||
        gradient.dlosses != mean_gradient.to || mean_gradient.size != mean.size || a.prediction != b.prediction ||
        a.target != b.target || a.weights != b.weights) {
      return absl::OkStatus();
    }
    if (IsReadBesides(steps_[i], steps_[i + 1]) || IsReadBesides(steps_[i + 2], steps_[i + 3])) return absl::OkStatus();
    // What one writes no other thread still reads.
    const PlanStep& from = plan_.steps[steps_[i]];
    const PlannedTensor &average = plan_.steps[steps_[i + 1]].outputs[0], &seed = plan_.steps[steps_[i + 2]].inputs[0],
                        &to = plan_.steps[steps_[i + 3]].outputs[0];
    if (Overlap(to, average) || Overlap(to, seed) || Overlap(average, seed)) return absl::OkStatus();
    for (const PlannedTensor& input : from.inputs) {
      if (Overlap(input, average) || (Overlap(input, to) && input.offset != to.offset)) return absl::OkStatus();
    }
    const ResidentMeanLoss joined{loss.samples, a, static_cast<const float*>(mean_gradient.from), mean.to, gradient.to};
    const PlanStep& step = plan_.steps[steps_[i]];
    AMPD_RETURN_IF_ERROR(Push(ResidentOp::kMeanLoss, step, joined));
    const auto take_place = [i](auto* list) {
      const auto first = list->begin() + static_cast<std::ptrdiff_t>(i);
      *first = list->back();
      list->pop_back();
      list->erase(first + 1, first + 4);
    };
    take_place(&all);
    take_place(&steps_);
    return absl::OkStatus();
  }

  const runtime::Plan& plan_;
  const ResidentStack* const stack_;
  const AddressOf& address_;
  ResidentProgram program_;
  // Of each instruction.
  std::vector<size_t> steps_;
  double flops_ = 0;
};

}  // namespace

bool KeepsBeginning(const PlanStep& step) {
  if ((step.op != OpKind::kSlice && step.op != OpKind::kPad) || step.inputs.size() != 1) return false;
  const ir::TensorType &x = step.inputs[0].type, &y = step.outputs[0].type;
  const auto rank = static_cast<int64_t>(x.shape.size());
  if (rank < 1 || rank > 2 || x.shape.size() != y.shape.size() || x.dtype != y.dtype) return false;
  const auto all = [&](const char* name, int64_t value) {
    const std::vector<int64_t> numbers = step.attributes.Ints(name);
    return static_cast<int64_t>(numbers.size()) >= rank &&
           std::all_of(numbers.begin(), numbers.begin() + rank, [value](int64_t n) { return n == value; });
  };
  if (step.op == OpKind::kSlice) return all("starts", 0) && all("steps", 1);
  const std::string mode = step.attributes.String("mode");
  return all("pads", 0) && (mode.empty() || mode == "constant") && step.attributes.Double("value") == 0;
}

absl::StatusOr<ResidentProgram> CompileResident(const runtime::Plan& plan, const ResidentStack* stack,
                                                const AddressOf& address) {
  return Compiler(plan, stack, address).Run();
}

}  // namespace ampd::cuda
