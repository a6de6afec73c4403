// Attention as cuDNN's graphs. Its fused engines know it by the pattern of its operations, so each stands where
// NVIDIA's support matrix for scaled dot product attention wants it:
//   forward   scores = scale q k^T, hidden ones -infinity; max; e^(scores - max); sum; log_sum = max + log(sum);
//             y = (e^(scores - max) / sum) v
//   backward  delta = rowsum(dy y); p = e^(scores - log_sum); dv = p^T dy; ds = (dy v^T - delta) p scale; dk = ds^T q;
//             dq = ds k
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/cudnn/graph.h"
#include "engine/backend/cuda/cudnn/questions.h"
#include "engine/backend/cuda/device_failure.h"
#include "engine/backend/cuda/fused_attention.h"
#include "engine/core/status.h"
#include "engine/core/tensor.h"

namespace ampd::cuda {
namespace {

using cudnn::Op;
using cudnn::Tensor;

// Scores below which cuDNN's launches are not worth their time.
constexpr int64_t kFewestScores = int64_t{1} << 18;
// Deterministic gradients keep those of all scores, in 16 bits: up to this share of the device's memory.
constexpr int64_t kMemoryShare = 16;
constexpr int64_t kLargestHead = 128;
constexpr int64_t kKeyTile = 128;

enum Operand { kQ, kK, kV, kY, kLogSum, kDy, kDq, kDk, kDv, kDelta, kScale, kHidden, kOne, kOperands };

class Builder {
 public:
  explicit Builder(const FusedAttentionDesc& desc) : desc_(desc), d_(desc.dims) { places_.fill(-1); }

  void Forward() {
    const int scores = Scores(kNone);
    const int largest = Virtual(Column()), shifted = Virtual(Square()), exp = Virtual(Square());
    const int sum = Virtual(Column()), log = Virtual(Column());
    Emit(Op::kMaximum, {scores}, largest);
    Emit(Op::kSubtract, {scores, largest}, shifted);
    Emit(Op::kExp, {shifted}, exp);
    Emit(Op::kSum, {exp}, sum);
    Emit(Op::kLog, {sum}, log);
    Emit(Op::kAdd, {largest, log}, Stored(kLogSum, Column(), DType::kF32));
    Tensor weights = Square();
    weights.dtype = desc_.dtype;
    const int p = Virtual(weights);
    Emit(Op::kDivide, {exp, sum}, p);
    Emit(Op::kMatmul, {p, Stored(kV, Head(d_.kv_heads, d_.kv_length, d_.value_size))}, Stored(kY, Output()));
  }

  void Backward() {
    const int dy = Stored(kDy, Output()), y = Stored(kY, Output());
    const int product = Virtual(Output()), sum = Virtual(Column());
    Emit(Op::kMultiply, {dy, y}, product);
    Emit(Op::kSum, {product}, sum);
    const int delta = Stored(kDelta, Column(), DType::kF32);
    Emit(Op::kMultiply, {sum, Scalar(kOne)}, delta);
    const int p = Virtual(Square());
    Emit(Op::kExp, {Scores(Stored(kLogSum, Column(), DType::kF32))}, p);
    Emit(Op::kMatmul, {Turned(p), dy}, Stored(kDv, Head(d_.kv_heads, d_.kv_length, d_.value_size)));
    const int dp = Virtual(Square()), centred = Virtual(Square()), weighted = Virtual(Square());
    const int ds = Virtual(Square());
    Emit(Op::kMatmul, {dy, Stored(kV, Swapped(Head(d_.kv_heads, d_.kv_length, d_.value_size)))}, dp);
    Emit(Op::kSubtract, {dp, delta}, centred);
    Emit(Op::kMultiply, {centred, p}, weighted);
    Emit(Op::kMultiply, {weighted, Scalar(kScale)}, ds);
    const Tensor keys = Head(d_.kv_heads, d_.kv_length, d_.head_size);
    Emit(Op::kMatmul, {Turned(ds), places_[kQ]}, Stored(kDk, keys));
    const int k = Virtual(keys, desc_.dtype);
    Emit(Op::kReshape, {places_[kK]}, k);
    Emit(Op::kMatmul, {ds, k}, Stored(kDq, Head(d_.heads, d_.q_length, d_.head_size)));
  }

  cudnn::GraphDesc Take() { return std::move(graph_); }
  // Of each operand; -1 where there is none.
  const std::array<int, kOperands>& places() const { return places_; }

 private:
  static constexpr int kNone = -1;

  // Of q, k, v and their gradients.
  Tensor Head(int64_t heads, int64_t length, int64_t size) const {
    return Matrices(heads, length, size, d_.RowOf(heads * size));
  }
  // Packed ones lie `row` elements from one time to the next.
  Tensor Matrices(int64_t heads, int64_t length, int64_t size, int64_t row) const {
    if (d_.packed) return {{d_.batch, heads, length, size}, {length * row, size, row, 1}};
    return {{d_.batch, heads, length, size}, {heads * length * size, length * size, size, 1}};
  }
  Tensor Output() const { return Matrices(d_.heads, d_.q_length, d_.value_size, d_.heads * d_.value_size); }
  Tensor Square() const {
    const int64_t q = d_.q_length, k = d_.kv_length;
    return {{d_.batch, d_.heads, q, k}, {d_.heads * q * k, q * k, k, 1}};
  }
  Tensor Column() const { return {{d_.batch, d_.heads, d_.q_length, 1}, {d_.heads * d_.q_length, d_.q_length, 1, 1}}; }
  static Tensor Swapped(Tensor t) {
    std::swap(t.dims[2], t.dims[3]);
    std::swap(t.strides[2], t.strides[3]);
    return t;
  }

  int Add(Tensor tensor) {
    graph_.tensors.push_back(std::move(tensor));
    return static_cast<int>(graph_.tensors.size()) - 1;
  }
  int Virtual(Tensor tensor, DType dtype) {
    tensor.dtype = dtype;
    tensor.is_virtual = true;
    return Add(std::move(tensor));
  }
  int Virtual(const Tensor& tensor) { return Virtual(tensor, tensor.dtype); }
  int Stored(Operand operand, Tensor tensor, DType dtype) {
    if (places_[operand] >= 0) return places_[operand];
    tensor.dtype = dtype;
    return places_[operand] = Add(std::move(tensor));
  }
  int Stored(Operand operand, const Tensor& tensor) { return Stored(operand, tensor, desc_.dtype); }
  int Scalar(Operand operand) {
    if (places_[operand] >= 0) return places_[operand];
    Tensor tensor{{1, 1, 1, 1}, {1, 1, 1, 1}};
    tensor.by_value = true;
    return places_[operand] = Add(std::move(tensor));
  }
  void Emit(Op op, std::vector<int> inputs, int output) { graph_.nodes.push_back({op, std::move(inputs), {output}}); }

  // A square on its way to a product with its queries' axis summed over.
  int Turned(int square) {
    const int turned = Virtual(Swapped(Square()), desc_.dtype);
    Emit(Op::kReshape, {square}, turned);
    return turned;
  }

  // Scaled products of queries and keys less `subtracted` (or kNone), -infinity where they are hidden.
  int Scores(int subtracted) {
    const int q = Stored(kQ, Head(d_.heads, d_.q_length, d_.head_size));
    const int k = Stored(kK, Swapped(Head(d_.kv_heads, d_.kv_length, d_.head_size)));
    const int product = Virtual(Square());
    int scores = Virtual(Square());
    Emit(Op::kMatmul, {q, k}, product);
    Emit(Op::kMultiply, {product, Scalar(kScale)}, scores);
    if (subtracted != kNone) {
      const int less = Virtual(Square());
      Emit(Op::kSubtract, {scores, subtracted}, less);
      scores = less;
    }
    if (!d_.causal) return scores;
    const int row = Virtual(Square(), DType::kI32), column = Virtual(Square(), DType::kI32);
    const int seen = Virtual(Square(), DType::kBool), masked = Virtual(Square());
    Emit(Op::kRowIndex, {scores}, row);
    Emit(Op::kColumnIndex, {scores}, column);
    Emit(Op::kGreaterEqual, {row, column}, seen);
    Emit(Op::kSelect, {scores, Scalar(kHidden), seen}, masked);
    return masked;
  }

  const FusedAttentionDesc& desc_;
  const ops::AttentionDims& d_;
  cudnn::GraphDesc graph_;
  std::array<int, kOperands> places_;
};

// Why cuDNN's pattern is not this use; empty when it is.
std::string Refusal(const FusedAttentionDesc& desc, const DeviceProperties& properties) {
  const ops::AttentionDims& d = desc.dims;
  if (!properties.has_bf16()) return "needs compute capability 8.0";
  if (desc.dtype != DType::kF16 && desc.dtype != DType::kBF16) return "operands are not of 16 bits";
  if (d.softcap != 0) return "softcap";
  if (d.causal && d.causal_offset != 0) return "causal_offset";
  if (d.head_size % 8 != 0 || d.value_size % 8 != 0) return "heads are not multiples of 8";
  if (d.head_size > kLargestHead || d.value_size > kLargestHead) return "heads are larger than 128";
  // The engines' maximum is that of unscaled scores.
  if (!(static_cast<float>(d.scale) > 0)) return "a scale that is not above 0";
  if (desc.gradient && d.heads != d.kv_heads) return "the gradient of grouped heads";
  // The gradient's engines take the scores of a last tile's keys that are not there for 0 where no causal mask hides
  // them: e^(0 - log_sum) is infinity for a log_sum below -88.7, and NaN follows (cudnn-frontend's issue 160 and pull
  // request 628). Of one query they do so of any keys (issue 1072). No version is known not to.
  const bool tail_is_hidden = d.causal && d.q_length <= d.kv_length;
  if (desc.gradient && d.kv_length % kKeyTile != 0 && !tail_is_hidden) {
    return "the gradient of keys that are no multiple of 128";
  }
  if (desc.gradient && d.q_length == 1) return "the gradient of one query";
  if (d.batch * d.heads * d.q_length * d.kv_length < kFewestScores) return "too small to pay";
  return "";
}

class CudnnAttention : public FusedAttention {
 public:
  CudnnAttention(const FusedAttentionDesc& desc, Context* context)
      : desc_(desc), context_(context), scale_(static_cast<float>(desc.dims.scale)) {}

  absl::Status Init() {
    Builder builder(desc_);
    desc_.gradient ? builder.Backward() : builder.Forward();
    places_ = builder.places();
    AMPD_ASSIGN_OR_RETURN(const cudnnHandle_t handle, cudnn::Handle(context_));
    AMPD_ASSIGN_OR_RETURN(graph_, cudnn::Graph::Make(builder.Take(), handle));
    AMPD_RETURN_IF_ERROR(Choose());
    if (desc_.gradient) delta_bytes_ = AlignUp(desc_.dims.batch * desc_.dims.heads * desc_.dims.q_length * 4);
    return absl::OkStatus();
  }

  int64_t workspace_bytes() const override { return plan_bytes_ + delta_bytes_; }
  std::string algorithm() const override { return algorithm_; }

  absl::Status Run(const FusedAttentionArgs& args) override {
    AMPD_ASSIGN_OR_RETURN(const cudnnHandle_t handle, cudnn::Handle(context_));
    pointers_.clear();
    for (int i = 0; i < kOperands; ++i) {
      if (places_[i] >= 0) pointers_.emplace_back(places_[i], PointerOf(i, args));
    }
    return DeviceFailureOr(*context_, cudnn::Execute(handle, plan_, pointers_, args.workspace));
  }

 private:
  using Engines = std::vector<cudnn::Engine>;

  // The first that builds.
  static absl::StatusOr<cudnn::Plan> FirstOf(const Engines& engines, int64_t workspace_bytes) {
    absl::Status status;
    for (const cudnn::Engine& engine : engines) {
      absl::StatusOr<cudnn::Plan> plan = cudnn::Build(engine);
      if (plan.ok() && plan->workspace_bytes <= workspace_bytes) return plan;
      if (!absl::IsResourceExhausted(status)) status = plan.status();
    }
    return cudnn::NoneBuilds(status);
  }

  // These engines load their code through the driver as soon as they are built. Where there is no device to run on, the
  // engine that cuDNN expects to be fastest stands for the plan.
  absl::Status Choose() {
    const DeviceProperties& device = context_->properties();
    const int64_t most = device.memory_bytes / kMemoryShare;
    AMPD_ASSIGN_OR_RETURN(const Engines engines, graph_.Engines(context_->is_open() ? nullptr : &device,
                                                                {.matrix_units = true, .workspace_bytes = most}));
    if (!context_->is_open()) {
      algorithm_ = engines.front().name;
      plan_bytes_ = AlignUp(engines.front().workspace_bytes);
      return absl::OkStatus();
    }
    AMPD_ASSIGN_OR_RETURN(plan_, FirstOf(engines, most));
    algorithm_ = plan_.name;
    plan_bytes_ = AlignUp(plan_.workspace_bytes);
    return absl::OkStatus();
  }

  void* PointerOf(int operand, const FusedAttentionArgs& args) {
    const void* const pointers[kOperands] = {
        args.q,  args.k,   args.v,  args.y,  args.log_sum,
        args.dy, args.dq,  args.dk, args.dv, static_cast<char*>(args.workspace) + plan_bytes_,
        &scale_, &hidden_, &one_};
    return const_cast<void*>(pointers[operand]);
  }

  const FusedAttentionDesc desc_;
  Context* const context_;
  // Passed by value.
  const float scale_, hidden_ = -std::numeric_limits<float>::infinity(), one_ = 1;
  cudnn::Graph graph_;
  std::array<int, kOperands> places_ = {};
  std::vector<std::pair<int64_t, void*>> pointers_;
  int64_t plan_bytes_ = 0, delta_bytes_ = 0;
  std::string algorithm_;
  cudnn::Plan plan_;
};

// Names all of a use.
std::string KeyOf(const FusedAttentionDesc& desc) {
  const ops::AttentionDims& d = desc.dims;
  return absl::StrCat(desc.gradient, " ", DTypeName(desc.dtype), " ", d.batch, " ", d.heads, " ", d.kv_heads, " ",
                      d.q_length, " ", d.kv_length, " ", d.head_size, " ", d.value_size, " ", d.packed, " ", d.row, " ",
                      d.causal, " ", static_cast<float>(d.scale));
}

}  // namespace

absl::StatusOr<std::shared_ptr<FusedAttention>> FusedAttention::Create(const FusedAttentionDesc& desc,
                                                                       Context* context) {
  if (const std::string refusal = Refusal(desc, context->properties()); !refusal.empty()) {
    return absl::UnimplementedError(absl::StrCat("[attention] ", refusal));
  }
  std::weak_ptr<FusedAttention>& made = AttentionUsesOf(context).made[KeyOf(desc)];
  if (std::shared_ptr<FusedAttention> known = made.lock()) return known;
  AMPD_RETURN_IF_ERROR(cudnn::CountQuestion(context));
  auto attention = std::make_shared<CudnnAttention>(desc, context);
  AMPD_RETURN_IF_ERROR(DeviceFailureOr(*context, Annotate(attention->Init(), "[attention]")));
  made = attention;
  return std::shared_ptr<FusedAttention>(std::move(attention));
}

}  // namespace ampd::cuda
