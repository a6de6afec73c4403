#include "engine/runtime/model_memory.h"

#include <algorithm>
#include <cmath>

#include "engine/core/rng.h"
#include "engine/core/status.h"
#include "engine/ir/printer.h"

namespace ampd::runtime {
namespace {

constexpr int64_t kAlignElements = kTensorAlignment / static_cast<int64_t>(sizeof(float));

absl::Status CheckSame(absl::string_view what, const std::vector<ir::Persistent>& a,
                       const std::vector<ir::Persistent>& b) {
  if (a.size() != b.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("[model_layout] ", a.size(), " ", what, " in one graph, ", b.size(), " in another"));
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].name == b[i].name && a[i].type == b[i].type) continue;
    return absl::InvalidArgumentError(absl::StrCat("[model_layout] ", what, " ", i, " is ", a[i].name, " ",
                                                   ir::TypeString(a[i].type), " in one graph, ", b[i].name, " ",
                                                   ir::TypeString(b[i].type), " in another"));
  }
  return absl::OkStatus();
}

// Box and Muller 1958.
float NextNormal(RngSequence* rng) {
  constexpr double kTwoPi = 6.283185307179586477;
  const double radius = std::sqrt(-2.0 * std::log(1.0 - static_cast<double>(rng->NextUniform())));
  return static_cast<float>(radius * std::cos(kTwoPi * static_cast<double>(rng->NextUniform())));
}

void Draw(const ir::Persistent& p, uint64_t seed, float* data) {
  RngSequence rng(seed, p.name);
  const auto bound = static_cast<float>(p.init.bound);
  for (int64_t i = 0; i < NumElements(p.type.shape); ++i) {
    data[i] = 0;
    if (p.init.kind == ir::Initializer::Kind::kOnes) data[i] = std::exp2(bound);
    if (p.init.kind == ir::Initializer::Kind::kUniform) data[i] = bound * (2.0f * rng.NextUniform() - 1.0f);
    if (p.init.kind == ir::Initializer::Kind::kNormal) data[i] = bound * NextNormal(&rng);
  }
}

absl::Status DrawInto(const ir::Persistent& p, uint64_t seed, const TensorView& view, Memory* memory) {
  if (p.init.kind == ir::Initializer::Kind::kZeros || view.dtype != DType::kF32) return absl::OkStatus();
  return WriteFromHost(memory, view.data, view.bytes(), [&](void* to) { Draw(p, seed, static_cast<float*>(to)); });
}

}  // namespace

ModelLayout::ModelLayout(const ir::Graph& graph) : parameters_(graph.parameters), states_(graph.states) {
  for (const ir::Persistent& p : parameters_) {
    const int64_t size = NumElements(p.type.shape);
    slots_.push_back({arena_elements_, size});
    arena_elements_ += AlignUp(size, kAlignElements);
  }
  for (const ir::Persistent& s : states_) {
    state_offsets_.push_back(state_bytes_);
    state_bytes_ += AlignUp(NumElements(s.type.shape) * SizeOf(s.type.dtype));
  }
}

absl::Status ModelLayout::Check(const ir::Graph& graph) const {
  AMPD_RETURN_IF_ERROR(CheckSame("parameters", parameters_, graph.parameters));
  return CheckSame("states", states_, graph.states);
}

int32_t ModelLayout::AddCopy(int32_t parameter, PublishedLayout layout) {
  const auto [it, inserted] = copy_index_.insert({{parameter, layout.key}, static_cast<int32_t>(copies_.size())});
  if (inserted) {
    const int64_t bytes = layout.bytes;
    publish_workspace_bytes_ = std::max(publish_workspace_bytes_, layout.workspace_bytes);
    copies_.push_back({parameter, std::move(layout), published_bytes_});
    published_bytes_ += AlignUp(bytes);
  }
  return it->second;
}

absl::StatusOr<ModelMemory> ModelMemory::Create(const ModelLayout* layout, Memory* memory) {
  ModelMemory model(layout, memory);
  const int64_t arena = layout->arena_elements() * SizeOf(DType::kF32);
  AMPD_ASSIGN_OR_RETURN(model.masters_, Buffer::Allocate(memory, arena, "parameters"));
  AMPD_ASSIGN_OR_RETURN(model.gradients_, Buffer::Allocate(memory, arena, "gradients"));
  AMPD_ASSIGN_OR_RETURN(model.published_,
                        Buffer::Allocate(memory, layout->published_bytes(), "published copies of parameters"));
  AMPD_ASSIGN_OR_RETURN(model.publish_workspace_,
                        Buffer::Allocate(memory, layout->publish_workspace_bytes(), "workspace of publishing"));
  AMPD_ASSIGN_OR_RETURN(model.state_, Buffer::Allocate(memory, layout->state_bytes(), "untrained state"));
  AMPD_ASSIGN_OR_RETURN(model.pending_state_, Buffer::Allocate(memory, layout->state_bytes(), "pending state"));
  return model;
}

absl::Status ModelMemory::Initialize(uint64_t seed) {
  AMPD_RETURN_IF_ERROR(memory_->Zero(masters_.data(), masters_.bytes()));
  AMPD_RETURN_IF_ERROR(memory_->Zero(state_.data(), state_.bytes()));
  for (size_t i = 0; i < layout_->parameters().size(); ++i) {
    AMPD_RETURN_IF_ERROR(DrawInto(layout_->parameters()[i], seed, Master(static_cast<int32_t>(i)), memory_));
  }
  for (size_t i = 0; i < layout_->states().size(); ++i) {
    AMPD_RETURN_IF_ERROR(DrawInto(layout_->states()[i], seed, State(static_cast<int32_t>(i)), memory_));
  }
  return absl::OkStatus();
}

absl::Status ModelMemory::PublishAll() {
  for (const ModelLayout::Copy& copy : layout_->copies()) AMPD_RETURN_IF_ERROR(Publish(copy));
  return absl::OkStatus();
}

absl::Status ModelMemory::Publish(const ModelLayout::Copy& copy) {
  const absl::Status status =
      copy.layout.write(Master(copy.parameter).as<float>(), published() + copy.offset, publish_workspace_.data());
  return Annotate(status, absl::StrCat("publishing ", layout_->parameters()[copy.parameter].name));
}

absl::Status ModelMemory::BeginUpdate(bool overwritten) {
  if (!overwritten) AMPD_RETURN_IF_ERROR(memory_->Zero(gradients_.data(), gradients_.bytes()));
  return memory_->Copy(state_.data(), state_.bytes(), pending_state_.data());
}

absl::Status ModelMemory::CommitState() { return memory_->Copy(pending_state_.data(), state_.bytes(), state_.data()); }

TensorView ModelMemory::Master(int32_t parameter) {
  const ir::TensorType& type = layout_->parameters()[parameter].type;
  return {masters() + layout_->slots()[parameter].offset, type.dtype, type.shape};
}

TensorView ModelMemory::Gradient(int32_t parameter) {
  const ir::TensorType& type = layout_->parameters()[parameter].type;
  return {gradients() + layout_->slots()[parameter].offset, type.dtype, type.shape};
}

TensorView ModelMemory::State(int32_t state) {
  const ir::TensorType& type = layout_->states()[state].type;
  return {this->state() + layout_->state_offsets()[state], type.dtype, type.shape};
}

}  // namespace ampd::runtime
