// Connectionist temporal classification (Graves et al. 2006, section 4.1): losses and gradients to double's accuracy
// without a logarithm in the recursion. A probability is a double and an exponent of its own beside it, so that steps
// multiply and add as the paper's formulas do, and nothing underflows. Alpha includes the emission of its own time
// step, beta excludes it: their product is the probability of all paths through a state.
#include <bit>
#include <cmath>
#include <limits>

#include "engine/backend/cuda/block_sum.h"
#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int kRowThreads = 128;
constexpr int kRowsPerBlock = kRowThreads / kWarp;
constexpr int kMostLatticeThreads = 1024;
// Rows of states up to here are kept in shared memory: what a launch may ask for without leave, but for the block's
// sums.
constexpr int64_t kMostSharedBytes = (48 << 10) - 1024;
constexpr double kLn2 = 0.69314718055994530942;
constexpr double kLog2E = 1.44269504088896340736;

struct CtcShape {
  int64_t batch = 0, time = 0, classes = 0, labels = 0;
  int32_t blank = 0;
  bool zero_infinity = false, mean_over_labels = false;

  __host__ __device__ int64_t states() const { return 2 * labels + 1; }
  // The blank's and the labels'.
  __host__ __device__ int64_t emissions() const { return labels + 1; }
  // No step is less probable than 2^this, so that exponents of whole paths fit in 31 bits.
  __host__ __device__ double floor() const { return -1073741824.0 / static_cast<double>(time + 1); }
};

// m * 2^e: m is 0 (with the lowest e), at least 1, or NaN.
struct Scaled {
  double m;
  int32_t e;
};
// The same where single precision will do: tables of the gradient.
struct SmallScaled {
  float m;
  int32_t e;
};

constexpr int32_t kLowest = -(1 << 30) - (1 << 29);

__device__ __forceinline__ double PowerOfTwo(int32_t e) {
  return e < -1022 ? 0.0 : std::bit_cast<double>(static_cast<int64_t>(1023 + e) << 52);
}

// Sums need no normalising: the next product does it.
__device__ __forceinline__ Scaled operator+(Scaled a, Scaled b) {
  const bool larger = a.e >= b.e;
  const Scaled big = larger ? a : b, small = larger ? b : a;
  return {big.m + small.m * PowerOfTwo(small.e - big.e), big.e};
}

// An emission is a probability of at least 2^-1000 or 0, or (negative) the binary logarithm of one below.
constexpr double kSmallEmission = -1000;

__device__ __forceinline__ Scaled operator*(Scaled a, double emission) {
  if (emission < 0) {
    const double whole = floor(emission);
    a.m *= exp2(emission - whole);
    a.e += static_cast<int32_t>(whole);
  } else {
    a.m *= emission;
  }
  if (!(a.m > 0)) return {a.m, kLowest};
  const auto bits = std::bit_cast<int64_t>(a.m);
  const auto exponent = static_cast<int32_t>(bits >> 52) - 1023;
  return {std::bit_cast<double>(bits - (static_cast<int64_t>(exponent) << 52)), a.e + exponent};
}

struct Tensors {
  const float* logits;     // [batch, time, classes]
  const int32_t* labels;   // [batch, labels]
  const int32_t* times;    // [batch]
  const int32_t* lengths;  // [batch]

  // As the op's inputs from `first` on.
  Tensors(const KernelArgs& args, size_t first)
      : logits(args.inputs[first].as<float>()),
        labels(args.inputs[first + 1].as<int32_t>()),
        times(args.inputs[first + 2].as<int32_t>()),
        lengths(args.inputs[first + 3].as<int32_t>()) {}

  __device__ bool FitsLengths(const CtcShape& s, int64_t n) const {
    return times[n] >= 0 && times[n] <= s.time && lengths[n] >= 0 && lengths[n] <= s.labels;
  }
};

// What becomes of a sample's gradient.
enum Outcome : int32_t { kGradient, kZeros, kNaNSteps, kNaNSample };

// Scratch of the whole batch. The tables of the gradient may be null: then there is but the loss.
struct Tables {
  double* emissions = nullptr;   // [batch, time, labels + 1]
  double* log_sums = nullptr;    // [batch, time]
  SmallScaled* alpha = nullptr;  // [batch, time, states]
  SmallScaled* beta = nullptr;
  Scaled* likelihoods = nullptr;  // [batch]
  int32_t* outcomes = nullptr;    // [batch]
  int32_t* next = nullptr;        // [batch, labels]: the next place of the same label, or -1
  uint8_t* is_first = nullptr;    // [batch, labels]: no such place before
  Scaled* rows = nullptr;         // [batch, 2, 2, states] where shared memory is too small for them
};

// One warp a time step: the logarithm of the sum of its exponentials, and the emissions of the sample's labels.
__global__ void __launch_bounds__(kRowThreads) Emissions(CtcShape s, Tensors in, Tables tables) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRowsPerBlock;
  const double floor_log2 = s.floor();
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kWarp; row < s.batch * s.time;
       row += stride) {
    const int64_t n = row / s.time;
    if (!in.FitsLengths(s, n) || row % s.time >= in.times[n]) continue;
    const float* z = in.logits + row * s.classes;
    float largest = -std::numeric_limits<float>::infinity();
    for (int64_t c = lane; c < s.classes; c += kWarp) largest = MaxOf()(largest, z[c]);
    largest = WarpReduce(largest, MaxOf());
    double sum = 0;
    for (int64_t c = lane; c < s.classes; c += kWarp)
      sum += exp(static_cast<double>(z[c]) - static_cast<double>(largest));
    // NaN where a logit is, where one is +infinity, and where all are -infinity.
    const double log_sum = static_cast<double>(largest) + log(WarpReduce(sum, SumOf()));
    if (lane == 0 && tables.log_sums != nullptr) tables.log_sums[row] = log_sum;
    for (int64_t j = lane; j <= in.lengths[n]; j += kWarp) {
      const int32_t c = j == 0 ? s.blank : in.labels[n * s.labels + j - 1];
      // The sample is not valid then, which the lattice finds.
      if (c < 0 || c >= s.classes) continue;
      const double log2 = (static_cast<double>(z[c]) - log_sum) * kLog2E;
      const double emission =
          log2 < kSmallEmission && log2 > -std::numeric_limits<double>::infinity() ? max(log2, floor_log2) : exp2(log2);
      tables.emissions[row * s.emissions() + j] = emission;
    }
  }
}

// Whether all labels are classes other than blank; by the whole block.
__device__ bool ValidSample(const CtcShape& s, const Tensors& in, int64_t n) {
  const bool fits = in.FitsLengths(s, n);
  int wrong = fits ? 0 : 1;
  for (int64_t l = threadIdx.x; fits && l < in.lengths[n]; l += blockDim.x) {
    const int32_t c = in.labels[n * s.labels + l];
    wrong += c < 0 || c >= s.classes || c == s.blank ? 1 : 0;
  }
  return BlockSum(wrong) == 0;
}

// The lattice of one sample, walked by one block: forward for alpha, else backward for beta.
template <bool kForward>
class Walk {
 public:
  __device__ Walk(const CtcShape& s, const Tensors& in, const Tables& tables, int64_t n, Scaled* rows)
      : n_(static_cast<int64_t>(2) * in.lengths[n] + 1),
        time_(in.times[n]),
        width_(s.states()),
        labels_(in.labels + n * s.labels),
        emissions_(tables.emissions + n * s.time * s.emissions()),
        emissions_width_(s.emissions()),
        table_(kForward ? tables.alpha : tables.beta),
        rows_(rows) {
    if (table_ != nullptr) table_ += n * s.time * width_;
  }

  // The last row: products of states and emissions at the last step walked.
  __device__ const Scaled* Run() {
    double emission = Emission(0, threadIdx.x);
    for (int64_t step = 0; step < time_; ++step) {
      // Loaded a step ahead.
      const double ahead = Emission(step + 1, threadIdx.x);
      const Scaled* before = Row(step + 1);
      Scaled* now = Row(step);
      SmallScaled* table = table_ == nullptr ? nullptr : table_ + At(step) * width_;
      for (int64_t state = threadIdx.x; state < n_; state += blockDim.x) {
        const Scaled reached = step == 0 ? Start(state) : From(before, state);
        const Scaled left = reached * (state < blockDim.x ? emission : Emission(step, state));
        now[state] = left;
        const Scaled entry = kForward ? left : reached * 1.0;
        if (table != nullptr) table[state] = {static_cast<float>(entry.m), entry.e};
      }
      emission = ahead;
      __syncthreads();
    }
    return Row(time_ - 1);
  }

 private:
  __device__ int64_t At(int64_t step) const { return kForward ? step : time_ - 1 - step; }
  __device__ Scaled* Row(int64_t step) const { return rows_ + (step & 1) * width_; }
  __device__ double Emission(int64_t step, int64_t state) const {
    if (step >= time_ || state >= n_) return 0;
    return emissions_[At(step) * emissions_width_ + (state % 2 == 0 ? 0 : state / 2 + 1)];
  }
  __device__ Scaled Start(int64_t state) const {
    const bool there = kForward ? state < 2 : state >= n_ - 2;
    return there ? Scaled{1, 0} : Scaled{0, kLowest};
  }
  // Whether a path may skip the blank before `state`.
  __device__ bool Skips(int64_t state) const {
    return state >= 2 && state < n_ && state % 2 == 1 && labels_[state / 2] != labels_[state / 2 - 1];
  }
  __device__ Scaled From(const Scaled* before, int64_t state) const {
    Scaled sum = before[state];
    if (kForward) {
      if (state > 0) sum = sum + before[state - 1];
      if (Skips(state)) sum = sum + before[state - 2];
    } else {
      if (state + 1 < n_) sum = sum + before[state + 1];
      if (Skips(state + 2)) sum = sum + before[state + 2];
    }
    return sum;
  }

  const int64_t n_, time_, width_;
  const int32_t* const labels_;
  const double* const emissions_;
  const int64_t emissions_width_;
  SmallScaled* table_;
  Scaled* const rows_;
};

// The likelihood by the last row of alpha; time 0: only of no labels.
__device__ Scaled Likelihood(const Scaled* last, int64_t time, int64_t states) {
  if (time == 0) return states == 1 ? Scaled{1, 0} : Scaled{0, kLowest};
  return (states == 1 ? last[0] : last[states - 1] + last[states - 2]) * 1.0;
}

__device__ Outcome OutcomeOf(const CtcShape& s, Scaled likelihood) {
  if (likelihood.m != likelihood.m) return kNaNSteps;
  if (likelihood.m > 0) return kGradient;
  return s.zero_infinity ? kZeros : kNaNSteps;
}

__device__ float LossOf(const CtcShape& s, Scaled likelihood, int32_t length) {
  const double share = s.mean_over_labels ? 1.0 / static_cast<double>(max(length, 1)) : 1.0;
  if (likelihood.m == 0) return s.zero_infinity ? 0.0f : std::numeric_limits<float>::infinity();
  return static_cast<float>(-(log(likelihood.m) + static_cast<double>(likelihood.e) * kLn2) * share);
}

// Where each label stands next and whether it stood before, so that the states of a class are found in order.
__device__ void LinkLabels(const CtcShape& s, const Tensors& in, const Tables& tables, int64_t n) {
  const int32_t* labels = in.labels + n * s.labels;
  const int32_t length = in.lengths[n];
  for (int32_t l = static_cast<int32_t>(threadIdx.x); l < length; l += static_cast<int32_t>(blockDim.x)) {
    int32_t next = l + 1, before = l - 1;
    while (next < length && labels[next] != labels[l]) ++next;
    while (before >= 0 && labels[before] != labels[l]) --before;
    tables.next[n * s.labels + l] = next < length ? next : -1;
    tables.is_first[n * s.labels + l] = before < 0 ? 1 : 0;
  }
}

// One block a sample and direction (blockIdx.y): alpha with the likelihood, or beta.
__global__ void __launch_bounds__(kMostLatticeThreads) Lattice(CtcShape s, Tensors in, Tables tables, float* losses) {
  const int64_t n = blockIdx.x;
  const bool valid = ValidSample(s, in, n), forward = blockIdx.y == 0;
  Scaled* rows = tables.rows == nullptr ? DynamicShared<Scaled>() : tables.rows + (2 * n + blockIdx.y) * 2 * s.states();
  if (!valid) {
    if (forward && threadIdx.x == 0 && losses != nullptr) losses[n] = std::numeric_limits<float>::quiet_NaN();
    if (forward && threadIdx.x == 0 && tables.outcomes != nullptr) tables.outcomes[n] = kNaNSample;
    return;
  }
  if (!forward) {
    Walk<false>(s, in, tables, n, rows).Run();
    return;
  }
  const Scaled* last = Walk<true>(s, in, tables, n, rows).Run();
  if (tables.next != nullptr) LinkLabels(s, in, tables, n);
  if (threadIdx.x != 0) return;
  const Scaled likelihood = Likelihood(last, in.times[n], static_cast<int64_t>(2) * in.lengths[n] + 1);
  if (losses != nullptr) losses[n] = LossOf(s, likelihood, in.lengths[n]);
  if (tables.outcomes == nullptr) return;
  tables.likelihoods[n] = likelihood;
  tables.outcomes[n] = OutcomeOf(s, likelihood);
}

// One warp a time step: d loss / d logit = softmax - the probability that a path of the labels is at the class then.
__global__ void __launch_bounds__(kRowThreads)
    Gradients(CtcShape s, Tensors in, Tables tables, const float* dlosses, float* dlogits) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRowsPerBlock;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kWarp; row < s.batch * s.time;
       row += stride) {
    const int64_t n = row / s.time;
    const int32_t outcome = tables.outcomes[n];
    float* dz = dlogits + row * s.classes;
    const bool inside = outcome == kNaNSample || row % s.time < in.times[n];
    if (!inside || outcome != kGradient) {
      const float fill = inside && outcome != kZeros ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
      for (int64_t c = lane; c < s.classes; c += kWarp) dz[c] = fill;
      continue;
    }
    const int32_t length = in.lengths[n];
    const double share = s.mean_over_labels ? 1.0 / static_cast<double>(max(length, 1)) : 1.0;
    const double factor = static_cast<double>(dlosses[n]) * share, log_sum = tables.log_sums[row];
    const float* z = in.logits + row * s.classes;
    const auto softmax = [&](int64_t c) { return exp(static_cast<double>(z[c]) - log_sum); };
    for (int64_t c = lane; c < s.classes; c += kWarp) dz[c] = static_cast<float>(factor * softmax(c));
    // Classes of the labels are written again.
    __syncwarp();
    const Scaled likelihood = tables.likelihoods[n];
    const double inverse = 1 / likelihood.m;
    const auto share_of = [&](int64_t state) {
      const SmallScaled a = tables.alpha[row * s.states() + state], b = tables.beta[row * s.states() + state];
      if (a.m == 0 || b.m == 0) return 0.0;
      const double paths = static_cast<double>(a.m) * static_cast<double>(b.m) * inverse;
      const int64_t e = static_cast<int64_t>(a.e) + b.e - likelihood.e;
      return paths * PowerOfTwo(static_cast<int32_t>(min(max(e, int64_t{-1100}), int64_t{1})));
    };
    double blanks = 0;
    for (int64_t l = lane; l <= length; l += kWarp) blanks += share_of(2 * l);
    blanks = WarpReduce(blanks, SumOf());
    if (lane == 0) dz[s.blank] = static_cast<float>(factor * (softmax(s.blank) - blanks));
    for (int64_t l = lane; l < length; l += kWarp) {
      if (tables.is_first[n * s.labels + l] == 0) continue;
      double sum = 0;
      for (int64_t at = l; at >= 0; at = tables.next[n * s.labels + at]) sum += share_of(2 * at + 1);
      const int32_t c = in.labels[n * s.labels + l];
      dz[c] = static_cast<float>(factor * (softmax(c) - sum));
    }
  }
}

// Places of the tables in the workspace, and how the kernels are launched.
class CtcPlan {
 public:
  // `first`: the input that is the logits.
  CtcPlan(Context* context, const NodeDesc& desc, size_t first, bool gradient)
      : context_(context), name_(desc.name), first_(first), gradient_(gradient) {
    const Shape& z = desc.inputs[first].shape;
    s_ = {z[0], z[1], z[2], desc.inputs[first + 1].shape[1]};
    s_.blank = static_cast<int32_t>(desc.attributes.Int("blank"));
    s_.zero_infinity = desc.attributes.Bool("zero_infinity");
    s_.mean_over_labels = desc.attributes.Bool("mean_over_labels");
    const int64_t rows = s_.batch * s_.time;
    emissions_at_ = layout_.Add(rows * s_.emissions() * 8);
    if (gradient) {
      log_sums_at_ = layout_.Add(rows * 8);
      alpha_at_ = layout_.Add(rows * s_.states() * static_cast<int64_t>(sizeof(SmallScaled)));
      beta_at_ = layout_.Add(rows * s_.states() * static_cast<int64_t>(sizeof(SmallScaled)));
      likelihoods_at_ = layout_.Add(s_.batch * static_cast<int64_t>(sizeof(Scaled)));
      outcomes_at_ = layout_.Add(s_.batch * 4);
      next_at_ = layout_.Add(s_.batch * s_.labels * 4);
      is_first_at_ = layout_.Add(s_.batch * s_.labels);
    }
    row_bytes_ = 2 * s_.states() * static_cast<int64_t>(sizeof(Scaled));
    in_shared_ = row_bytes_ <= kMostSharedBytes;
    if (!in_shared_) rows_at_ = layout_.Add(2 * s_.batch * row_bytes_);
  }

  int64_t workspace_bytes() const { return layout_.bytes(); }

  absl::Status Launch(const KernelArgs& args) const {
    const Tensors in(args, first_);
    const Tables tables = TablesIn(args);
    const unsigned row_blocks = BlocksFor(s_.batch * s_.time * kWarp, kRowThreads, context_->properties().sm_count);
    const auto threads =
        static_cast<unsigned>(std::min<int64_t>(kMostLatticeThreads, CeilDiv(s_.states(), kWarp) * kWarp));
    const dim3 lattice(static_cast<unsigned>(s_.batch), gradient_ ? 2 : 1);
    AMPD_RETURN_IF_ERROR(
        cuda::Launch(name_, Emissions, row_blocks, kRowThreads, 0, context_->stream(), s_, in, tables));
    AMPD_RETURN_IF_ERROR(cuda::Launch(name_, Lattice, lattice, threads, in_shared_ ? row_bytes_ : 0, context_->stream(),
                                      s_, in, tables, gradient_ ? nullptr : args.outputs[0].as<float>()));
    if (!gradient_) return absl::OkStatus();
    return cuda::Launch(name_, Gradients, row_blocks, kRowThreads, 0, context_->stream(), s_, in, tables,
                        args.inputs[0].as<float>(), args.outputs[0].as<float>());
  }

 private:
  Tables TablesIn(const KernelArgs& args) const {
    Tables tables;
    tables.emissions = WorkspaceAt<double>(args, emissions_at_);
    if (!in_shared_) tables.rows = WorkspaceAt<Scaled>(args, rows_at_);
    if (!gradient_) return tables;
    tables.log_sums = WorkspaceAt<double>(args, log_sums_at_);
    tables.alpha = WorkspaceAt<SmallScaled>(args, alpha_at_);
    tables.beta = WorkspaceAt<SmallScaled>(args, beta_at_);
    tables.likelihoods = WorkspaceAt<Scaled>(args, likelihoods_at_);
    tables.outcomes = WorkspaceAt<int32_t>(args, outcomes_at_);
    tables.next = WorkspaceAt<int32_t>(args, next_at_);
    tables.is_first = WorkspaceAt<uint8_t>(args, is_first_at_);
    return tables;
  }

  Context* context_;
  std::string name_;
  size_t first_;
  bool gradient_;
  CtcShape s_;
  WorkspaceLayout layout_;
  bool in_shared_ = true;
  int64_t row_bytes_ = 0;
  int64_t emissions_at_ = 0, log_sums_at_ = 0, alpha_at_ = 0, beta_at_ = 0, likelihoods_at_ = 0, outcomes_at_ = 0;
  int64_t next_at_ = 0, is_first_at_ = 0, rows_at_ = 0;
};

runtime::PrepareKernel Prepare(Context* context, size_t first, bool gradient) {
  return [=](const NodeDesc& desc) {
    const CtcPlan plan(context, desc, first, gradient);
    return MakeKernel(plan.workspace_bytes(), [plan](const KernelArgs& args) { return plan.Launch(args); });
  };
}

}  // namespace

void RegisterCtcLoss(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32, i = DType::kI32;
  table->Add(ir::OpKind::kCtcLoss, {f, i, i, i}, {f}, Prepare(context, 0, false));
  table->Add(ir::OpKind::kCtcLossGrad, {f, f, i, i, i}, {f}, Prepare(context, 1, true));
}

}  // namespace ampd::cuda
