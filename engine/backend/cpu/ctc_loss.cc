// Connectionist temporal classification (Graves et al. 2006, section 4.1), in log space and double. Beside the paper's
// alpha, which includes the emission of its own time step, this beta excludes it, so that their product is the
// probability of all paths through a state.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/row_kernel.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double LogAdd(double a, double b) {
  const double larger = std::max(a, b);
  if (larger == -kInfinity) return larger;
  return larger + std::log1p(std::exp(std::min(a, b) - larger));
}

struct CtcShape {
  int64_t time = 0, classes = 0, labels = 0, blank = 0;
  bool zero_infinity = false, mean_over_labels = false;

  CtcShape(const ir::Attributes& attributes, const Shape& logits, const Shape& label_shape)
      : time(logits[1]),
        classes(logits[2]),
        labels(label_shape[1]),
        blank(attributes.Int("blank")),
        zero_infinity(attributes.Bool("zero_infinity")),
        mean_over_labels(attributes.Bool("mean_over_labels")) {}
  int64_t states() const { return 2 * labels + 1; }
};

// One sample: its logits [time, classes], its labels, its lengths.
class Sample {
 public:
  // `inputs` are logits, labels, input lengths and label lengths of the whole batch.
  Sample(const CtcShape& shape, const TensorView* inputs, int64_t n)
      : shape_(shape),
        logits_(inputs[0].as<float>() + n * shape.time * shape.classes),
        labels_(inputs[1].as<int32_t>() + n * shape.labels),
        time_(inputs[2].as<int32_t>()[n]),
        length_(inputs[3].as<int32_t>()[n]) {}

  int64_t time() const { return time_; }
  int64_t states() const { return 2 * length_ + 1; }
  // What the loss is multiplied with.
  double share() const {
    return shape_.mean_over_labels ? 1.0 / static_cast<double>(std::max<int64_t>(length_, 1)) : 1;
  }

  // Lengths within the tensors, labels that are classes other than blank.
  bool valid() const {
    if (time_ < 0 || time_ > shape_.time || length_ < 0 || length_ > shape_.labels) return false;
    return std::all_of(labels_, labels_ + length_,
                       [&](int32_t c) { return c >= 0 && c < shape_.classes && c != shape_.blank; });
  }

  int64_t class_of(int64_t state) const { return state % 2 == 0 ? shape_.blank : labels_[state / 2]; }
  // Whether a path may skip the blank before `state`.
  bool skips(int64_t state) const { return state >= 2 && state % 2 == 1 && class_of(state) != class_of(state - 2); }

  double logit(int64_t t, int64_t c) const { return static_cast<double>(logits_[t * shape_.classes + c]); }
  // log sum exp of a time step's logits. Minus infinity is a class of no probability; NaN where nothing is possible.
  double LogSum(int64_t t) const {
    double largest = -kInfinity, sum = 0;
    for (int64_t c = 0; c < shape_.classes; ++c) {
      if (std::isnan(logit(t, c))) return kNaN;
      largest = std::max(largest, logit(t, c));
    }
    for (int64_t c = 0; c < shape_.classes; ++c) sum += std::exp(logit(t, c) - largest);
    return largest + std::log(sum);
  }

  // alpha of time step `t` from that of the step before; `log_sum` is LogSum(t).
  void Advance(int64_t t, double log_sum, const double* before, double* alpha) const {
    for (int64_t s = 0; s < states(); ++s) {
      double from = t == 0 ? (s < 2 ? 0.0 : -kInfinity) : before[s];
      if (t > 0 && s > 0) from = LogAdd(from, before[s - 1]);
      if (t > 0 && skips(s)) from = LogAdd(from, before[s - 2]);
      alpha[s] = from + (logit(t, class_of(s)) - log_sum);
    }
  }

  // beta of time step `t` from that of the step after; `log_sum` is LogSum(t + 1), unused for the last step.
  void Retreat(int64_t t, double log_sum, const double* after, double* beta) const {
    const int64_t n = states();
    if (t == time_ - 1) {
      for (int64_t s = 0; s < n; ++s) beta[s] = s >= n - 2 ? 0.0 : -kInfinity;
      return;
    }
    const auto emitted = [&](int64_t s) { return after[s] + (logit(t + 1, class_of(s)) - log_sum); };
    for (int64_t s = 0; s < n; ++s) {
      beta[s] = emitted(s);
      if (s + 1 < n) beta[s] = LogAdd(beta[s], emitted(s + 1));
      if (s + 2 < n && skips(s + 2)) beta[s] = LogAdd(beta[s], emitted(s + 2));
    }
  }

  double LogLikelihood(const double* last_alpha) const {
    const int64_t n = states();
    return n == 1 ? last_alpha[0] : LogAdd(last_alpha[n - 1], last_alpha[n - 2]);
  }

 private:
  const CtcShape& shape_;
  const float* logits_;
  const int32_t* labels_;
  int64_t time_;
  int64_t length_;
};

// `rows` holds two rows of states.
double Loss(const CtcShape& shape, const Sample& sample, double* rows) {
  if (!sample.valid()) return kNaN;
  if (sample.time() == 0) return sample.states() == 1 ? 0 : shape.zero_infinity ? 0 : kInfinity;
  double* before = rows;
  double* alpha = rows + shape.states();
  for (int64_t t = 0; t < sample.time(); ++t) {
    std::swap(before, alpha);
    sample.Advance(t, sample.LogSum(t), before, alpha);
  }
  const double loss = -sample.LogLikelihood(alpha) * sample.share();
  return loss == kInfinity && shape.zero_infinity ? 0 : loss;
}

// Scratch of one sample's gradient.
struct GradTables {
  double* alpha;    // [time, states]
  double* betas;    // two rows of states
  double* log_sum;  // [time]
};

// d loss / d logit[t][c] = softmax - the probability that a path of the labels passes t in a state of c.
void LossGrad(const CtcShape& shape, const Sample& sample, double dloss, const GradTables& tables, float* dlogits) {
  std::fill_n(dlogits, shape.time * shape.classes, 0.0f);
  const int64_t time = sample.valid() ? sample.time() : shape.time;
  double log_likelihood = sample.valid() ? 0 : kNaN;
  if (sample.valid()) {
    if (time == 0) return;
    for (int64_t t = 0; t < time; ++t) {
      tables.log_sum[t] = sample.LogSum(t);
      double* alpha = tables.alpha + t * shape.states();
      sample.Advance(t, tables.log_sum[t], t == 0 ? nullptr : alpha - shape.states(), alpha);
    }
    log_likelihood = sample.LogLikelihood(tables.alpha + (time - 1) * shape.states());
    if (log_likelihood == -kInfinity && shape.zero_infinity) return;
  }
  if (!std::isfinite(log_likelihood)) {
    std::fill_n(dlogits, time * shape.classes, static_cast<float>(kNaN));
    return;
  }
  const double factor = dloss * sample.share();
  double* after = tables.betas;
  double* beta = tables.betas + shape.states();
  for (int64_t t = time - 1; t >= 0; --t) {
    std::swap(after, beta);
    sample.Retreat(t, t + 1 < time ? tables.log_sum[t + 1] : 0, after, beta);
    const double* alpha = tables.alpha + t * shape.states();
    float* dz = dlogits + t * shape.classes;
    for (int64_t s = 0; s < sample.states(); ++s) {
      dz[sample.class_of(s)] -= static_cast<float>(std::exp(alpha[s] + beta[s] - log_likelihood));
    }
    for (int64_t c = 0; c < shape.classes; ++c) {
      const double softmax = std::exp(sample.logit(t, c) - tables.log_sum[t]);
      dz[c] = static_cast<float>(factor * (softmax + static_cast<double>(dz[c])));
    }
  }
}

int Parts(const NodeDesc& desc, const CtcShape& shape, int64_t batch) {
  const int64_t cost = shape.time * (shape.classes * 10 + shape.states() * 30);
  return RowParts(desc.threads, batch, cost);
}

std::unique_ptr<runtime::Kernel> PrepareLoss(const NodeDesc& desc) {
  const CtcShape shape(desc.attributes, desc.inputs[0].shape, desc.inputs[1].shape);
  const int64_t batch = desc.inputs[0].shape[0];
  const int parts = Parts(desc, shape, batch);
  WorkspaceLayout layout;
  const int64_t bytes = AlignUp(2 * shape.states() * static_cast<int64_t>(sizeof(double)));
  layout.Add(bytes * parts);
  return MakeKernel(layout.bytes(), [=](const KernelArgs& args) {
    ParallelRange(parts, batch, 1, [&](int part, int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        args.outputs[0].as<float>()[n] = static_cast<float>(
            Loss(shape, Sample(shape, args.inputs.data(), n), WorkspaceAt<double>(args, part * bytes)));
      }
    });
  });
}

std::unique_ptr<runtime::Kernel> PrepareGrad(const NodeDesc& desc) {
  const CtcShape shape(desc.attributes, desc.inputs[1].shape, desc.inputs[2].shape);
  const int64_t batch = desc.inputs[1].shape[0];
  const int parts = Parts(desc, shape, batch);
  WorkspaceLayout layout;
  const int64_t of_double = sizeof(double);
  layout.Add(shape.time * shape.states() * of_double);
  const int64_t betas_at = layout.Add(2 * shape.states() * of_double);
  const int64_t log_sum_at = layout.Add(shape.time * of_double);
  const int64_t bytes = layout.bytes();
  return MakeKernel(bytes * parts, [=](const KernelArgs& args) {
    ParallelRange(parts, batch, 1, [&](int part, int64_t begin, int64_t end) {
      const int64_t base = part * bytes;
      const GradTables tables{WorkspaceAt<double>(args, base), WorkspaceAt<double>(args, base + betas_at),
                              WorkspaceAt<double>(args, base + log_sum_at)};
      for (int64_t n = begin; n < end; ++n) {
        LossGrad(shape, Sample(shape, args.inputs.data() + 1, n), static_cast<double>(args.inputs[0].as<float>()[n]),
                 tables, args.outputs[0].as<float>() + n * shape.time * shape.classes);
      }
    });
  });
}

}  // namespace

void RegisterCtcLoss(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32;
  constexpr DType i = DType::kI32;
  table->Add(ir::OpKind::kCtcLoss, {f, i, i, i}, {f}, PrepareLoss);
  table->Add(ir::OpKind::kCtcLossGrad, {f, f, i, i, i}, {f}, PrepareGrad);
}

}  // namespace ampd::cpu
