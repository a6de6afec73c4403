#include "engine/backend/cuda/fused_program.h"

#include <algorithm>

#include "engine/backend/cuda/fused.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

using ops::ElementwiseFunction;

class Compiler {
 public:
  explicit Compiler(const runtime::NodeDesc& desc) : desc_(desc) {}

  absl::StatusOr<CompiledFused> Run() {
    constexpr size_t kMaxSteps = passes::kMaxFusedSteps;
    if (desc_.steps.size() > kMaxSteps || desc_.inputs.size() > kMaxFusedInputs || desc_.outputs.empty() ||
        desc_.outputs.size() > kMaxSteps) {
      return absl::UnimplementedError(absl::StrCat(
          "[fused] ", desc_.steps.size(), " steps from ", desc_.inputs.size(), " inputs to ", desc_.outputs.size(),
          " outputs, at most ", kMaxSteps, " from ", kMaxFusedInputs, " to 1-", kMaxSteps, ", node ", desc_.name));
    }
    PlaceInputs();
    for (size_t s = 0; s < desc_.steps.size(); ++s) AMPD_RETURN_IF_ERROR(AddStep(s));
    for (size_t i = 0; i < desc_.outputs.size(); ++i) program_.outputs[i].dtype = desc_.outputs[i].dtype;
    AssignSlots();
    return std::move(result_);
  }

 private:
  // Whole inputs first: the kernel fetches the first of them ahead.
  void PlaceInputs() {
    const Shape& shape = desc_.outputs[0].shape;
    program_.size = NumElements(shape);
    program_.columns = shape.empty() ? 1 : shape.back();
    if (program_.size <= int64_t{1} << 31) program_.divisor = Divisor(program_.columns);
    const auto is_whole = [&](int i) { return NumElements(desc_.inputs[i].shape) == program_.size; };
    for (size_t i = 0; i < desc_.inputs.size(); ++i) result_.inputs.push_back(static_cast<int>(i));
    const auto rest = std::stable_partition(result_.inputs.begin(), result_.inputs.end(), is_whole);
    program_.whole_inputs = static_cast<int32_t>(rest - result_.inputs.begin());
    sources_.resize(desc_.inputs.size());
    for (size_t place = 0; place < result_.inputs.size(); ++place) {
      const ir::TensorType& type = desc_.inputs[result_.inputs[place]];
      FusedInput& input = program_.inputs[place];
      input.dtype = type.dtype;
      input.bytes = static_cast<uint8_t>(SizeOf(type.dtype));
      input.extent = is_whole(result_.inputs[place]) ? FusedInput::kWhole
                     : NumElements(type.shape) == 1  ? FusedInput::kOne
                                                     : FusedInput::kRow;
      program_.has_rows = program_.has_rows || input.extent == FusedInput::kRow;
      sources_[result_.inputs[place]] = static_cast<int>(place);
    }
  }

  // Values are the places of inputs, then kSlots + the number of the code that computes them.
  absl::Status AddStep(size_t s) {
    const ir::FusedStep& step = desc_.steps[s];
    const bool is_cast = step.op == ir::OpKind::kCast;
    const auto output = std::find(desc_.results.begin(), desc_.results.end(), static_cast<int32_t>(s));
    if (is_cast && step.dtype == DType::kF32 && output == desc_.results.end()) {
      // Numbers are f32 already.
      sources_.push_back(sources_[step.operands[0]]);
      return absl::OkStatus();
    }
    FusedStepCode code{.constants = ops::ConstantsOf(step.op, step.attributes),
                       .function = ops::FunctionOf(step.op, step.attributes),
                       .dtype = step.dtype};
    if (!CanFuse(step.op) || step.operands.size() > 3 || (is_cast && IsF8(step.dtype))) {
      return absl::UnimplementedError(
          absl::StrCat("[fused] no function for ", ir::OpName(step.op), ", node ", desc_.name));
    }
    for (int32_t operand : step.operands) operands_.push_back({program_.steps, code.count++, sources_[operand]});
    if (output != desc_.results.end()) code.output = static_cast<int8_t>(output - desc_.results.begin());
    sources_.push_back(kSlots + program_.steps);
    program_.code[program_.steps++] = code;
    return absl::OkStatus();
  }

  // A slot for every result that is read by more than the step behind it, until its last reader: reading comes before
  // writing, so that one may take over its operand's.
  void AssignSlots() {
    std::vector<int> last_reader(program_.steps, -1);
    for (const Operand& operand : operands_) {
      if (operand.source >= kSlots) last_reader[operand.source - kSlots] = operand.reader;
    }
    std::vector<int8_t> free;
    for (int s = 0; s < program_.steps; ++s) {
      FusedStepCode& code = program_.code[s];
      for (int of = 0; of < s; ++of) {
        if (last_reader[of] == s && program_.code[of].slot >= 0) free.push_back(program_.code[of].slot);
      }
      if (last_reader[s] <= s + 1) continue;
      if (free.empty()) free.push_back(static_cast<int8_t>(program_.slots++));
      code.slot = free.back();
      free.pop_back();
    }
    for (const Operand& operand : operands_) {
      uint8_t& source = program_.code[operand.reader].operands[operand.index];
      const int of = operand.source - kSlots;
      source = static_cast<uint8_t>(of < 0                     ? operand.source
                                    : of + 1 == operand.reader ? kLast
                                                               : kSlots + program_.code[of].slot);
    }
  }

  struct Operand {
    int reader;
    int index;
    int source;
  };

  const runtime::NodeDesc& desc_;
  CompiledFused result_;
  FusedProgram& program_ = result_.program;
  std::vector<int> sources_;  // by value of the node
  std::vector<Operand> operands_;
};

}  // namespace

bool CanFuse(ir::OpKind op) { return op == ir::OpKind::kCast || ops::FunctionOf(op, {}) != ElementwiseFunction::kNone; }

absl::StatusOr<CompiledFused> CompileFused(const runtime::NodeDesc& desc) { return Compiler(desc).Run(); }

}  // namespace ampd::cuda
