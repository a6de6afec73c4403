// The loss of single-shot detectors (Liu et al. 2016, section 2.2), sample by sample, in double.
#include <algorithm>
#include <limits>

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/row_kernel.h"
#include "engine/ops/multibox_elements.h"

namespace ampd::cpu {
namespace {

using ops::kBoxNumbers;
using ops::kOffsets;
using ops::kPriorNumbers;
using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// Of a prior that stands for no box yet. Left there, it says that the sample's targets are wrong.
constexpr int32_t kFree = -1;

struct MatchShape {
  int64_t priors = 0, boxes = 0, classes = 0;
  double threshold = 0, center_variance = 0, size_variance = 0;

  explicit MatchShape(const NodeDesc& desc)
      : priors(desc.inputs[0].shape[0]),
        boxes(desc.inputs[1].shape[1] / kBoxNumbers),
        classes(desc.attributes.Int("classes")),
        threshold(desc.attributes.Double("threshold", 0.5)),
        center_variance(desc.attributes.Double("center_variance", 0.1)),
        size_variance(desc.attributes.Double("size_variance", 0.2)) {}
};

// The free prior that a box overlaps most; none where the overlap is 0.
struct Candidate {
  double overlap;
  int64_t prior;
};

// One sample. While boxes are given out, `classes` holds the numbers of the boxes that priors stand for.
class Matching {
 public:
  Matching(const MatchShape& shape, const float* priors, const float* targets, Candidate* candidates, int32_t* classes,
           float* offsets)
      : shape_(shape),
        priors_(priors),
        targets_(targets),
        candidates_(candidates),
        classes_(classes),
        offsets_(offsets) {}

  void Run() {
    std::fill_n(classes_, shape_.priors, kFree);
    std::fill_n(offsets_, shape_.priors * kOffsets, 0.0f);
    for (int64_t b = 0; b < shape_.boxes; ++b) {
      if (KindOf(b) == ops::BoxKind::kWrong) return;
    }
    GiveEachBoxItsPrior();
    for (int64_t p = 0; p < shape_.priors; ++p) {
      const int64_t box = classes_[p] == kFree ? ops::BoxOver(ops::CornersOfPrior(priors_ + p * kPriorNumbers),
                                                              targets_, shape_.boxes, shape_.classes, shape_.threshold)
                                               : classes_[p];
      classes_[p] = box < 0 ? 0 : static_cast<int32_t>(Target(box)[0]) + 1;
      if (box < 0) continue;
      ops::EncodeOffsets(priors_ + p * kPriorNumbers, Target(box), shape_.center_variance, shape_.size_variance,
                         offsets_ + p * kOffsets);
    }
  }

 private:
  const float* Target(int64_t box) const { return targets_ + box * kBoxNumbers; }
  ops::BoxKind KindOf(int64_t box) const { return ops::KindOfBox(Target(box), shape_.classes); }
  double OverlapOf(int64_t box, int64_t prior) const {
    return ops::Overlap(ops::CornersOfPrior(priors_ + prior * kPriorNumbers), ops::CornersOfBox(Target(box)));
  }

  Candidate BestPrior(int64_t box) const {
    Candidate best{0, -1};
    if (KindOf(box) != ops::BoxKind::kBox) return best;
    for (int64_t p = 0; p < shape_.priors; ++p) {
      if (classes_[p] != kFree) continue;
      const double overlap = OverlapOf(box, p);
      if (overlap > best.overlap) best = {overlap, p};
    }
    return best;
  }

  // The greatest overlap first; of equals the first box, and of its priors the first.
  void GiveEachBoxItsPrior() {
    for (int64_t b = 0; b < shape_.boxes; ++b) candidates_[b] = BestPrior(b);
    while (true) {
      int64_t next = -1;
      for (int64_t b = 0; b < shape_.boxes; ++b) {
        if (candidates_[b].overlap > (next < 0 ? 0 : candidates_[next].overlap)) next = b;
      }
      if (next < 0) return;
      const int64_t taken = candidates_[next].prior;
      classes_[taken] = static_cast<int32_t>(next);
      candidates_[next] = {0, -1};
      for (int64_t b = 0; b < shape_.boxes; ++b) {
        if (candidates_[b].prior == taken) candidates_[b] = BestPrior(b);
      }
    }
  }

  const MatchShape& shape_;
  const float* const priors_;
  const float* const targets_;
  Candidate* const candidates_;
  int32_t* const classes_;
  float* const offsets_;
};

std::unique_ptr<runtime::Kernel> PrepareMatch(const NodeDesc& desc) {
  const MatchShape shape(desc);
  const int64_t batch = desc.inputs[1].shape[0];
  const int parts = RowParts(desc.threads, batch, shape.priors * (shape.boxes + 1) * 20);
  WorkspaceLayout layout;
  layout.Add(shape.boxes * static_cast<int64_t>(sizeof(Candidate)));
  const int64_t bytes = layout.bytes();
  return MakeKernel(bytes * parts, [=](const KernelArgs& args) {
    ParallelRange(parts, batch, 1, [&](int part, int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        Matching(shape, args.inputs[0].as<float>(), args.inputs[1].as<float>() + n * shape.boxes * kBoxNumbers,
                 WorkspaceAt<Candidate>(args, part * bytes), args.outputs[0].as<int32_t>() + n * shape.priors,
                 args.outputs[1].as<float>() + n * shape.priors * kOffsets)
            .Run();
      }
    });
  });
}

struct LossShape {
  int64_t priors = 0, width = 0;
  double negative_ratio = 0, location_weight = 0;

  LossShape(const NodeDesc& desc, const Shape& prediction)
      : priors(prediction[1]),
        width(prediction[2]),
        negative_ratio(desc.attributes.Double("negative_ratio", 3)),
        location_weight(desc.attributes.Double("location_weight", 1)) {}
  // The background's and the classes'.
  int64_t logits() const { return width - kOffsets; }
  bool is_class(int32_t c) const { return c >= 0 && c < logits(); }
};

// Predictions and targets of one sample.
struct Sample {
  const float* predictions;  // [priors, width]
  const int32_t* classes;    // [priors]
  const float* offsets;      // [priors, 4]

  // `inputs`: prediction, classes and offsets of the batch.
  Sample(const LossShape& shape, const TensorView* inputs, int64_t n)
      : predictions(inputs[0].as<float>() + n * shape.priors * shape.width),
        classes(inputs[1].as<int32_t>() + n * shape.priors),
        offsets(inputs[2].as<float>() + n * shape.priors * kOffsets) {}
};

double CrossEntropy(const LossShape& shape, const float* prediction, int32_t c) {
  const float* logits = prediction + kOffsets;
  return ops::LogSumExp(logits, shape.logits()) - static_cast<double>(logits[c]);
}

// `keys` [priors] is scratch.
float LossOf(const LossShape& shape, const Sample& sample, uint64_t* keys, float* shares) {
  std::fill_n(shares, shape.priors, 0.0f);
  int64_t matched = 0, others = 0;
  for (int64_t p = 0; p < shape.priors; ++p) {
    const int32_t c = sample.classes[p];
    if (!shape.is_class(c)) {
      std::fill_n(shares, shape.priors, kNaN);
      return kNaN;
    }
    if (c > 0) {
      ++matched;
    } else {
      keys[others++] = ops::HardnessKey(CrossEntropy(shape, sample.predictions + p * shape.width, 0), p);
    }
  }
  if (matched == 0) return 0;
  const auto share = static_cast<float>(1.0 / static_cast<double>(matched));
  const int64_t negatives = ops::CountedNegatives(shape.priors, matched, shape.negative_ratio);
  std::nth_element(keys, keys + negatives, keys + others, std::greater<>());
  for (int64_t i = 0; i < negatives; ++i) shares[0xffffffffu - static_cast<uint32_t>(keys[i])] = share;
  double sum = 0;
  for (int64_t p = 0; p < shape.priors; ++p) {
    const int32_t c = sample.classes[p];
    if (c > 0) shares[p] = share;
    if (shares[p] == 0) continue;
    const float* prediction = sample.predictions + p * shape.width;
    sum += CrossEntropy(shape, prediction, c);
    if (c > 0) sum += shape.location_weight * ops::OffsetLoss(prediction, sample.offsets + p * kOffsets);
  }
  return static_cast<float>(sum / static_cast<double>(matched));
}

std::unique_ptr<runtime::Kernel> PrepareLoss(const NodeDesc& desc) {
  const LossShape shape(desc, desc.inputs[0].shape);
  const int64_t batch = desc.inputs[0].shape[0];
  const int parts = RowParts(desc.threads, batch, shape.priors * shape.width * 20);
  WorkspaceLayout layout;
  layout.Add(shape.priors * static_cast<int64_t>(sizeof(uint64_t)));
  const int64_t bytes = layout.bytes();
  return MakeKernel(bytes * parts, [=](const KernelArgs& args) {
    ParallelRange(parts, batch, 1, [&](int part, int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        args.outputs[0].as<float>()[n] =
            LossOf(shape, Sample(shape, args.inputs.data(), n), WorkspaceAt<uint64_t>(args, part * bytes),
                   args.outputs[1].as<float>() + n * shape.priors);
      }
    });
  });
}

std::unique_ptr<runtime::Kernel> PrepareLossGrad(const NodeDesc& desc) {
  const LossShape shape(desc, desc.inputs[1].shape);
  return MakeRowKernel(desc, desc.inputs[1].shape, 20, [shape](const KernelArgs& args, int64_t row) {
    const double dloss = static_cast<double>(args.inputs[0].as<float>()[row / shape.priors]);
    const auto share = static_cast<double>(args.inputs[4].as<float>()[row]);
    // A prior that does not count has no gradient, whatever its sample's loss gets.
    ops::PriorGrad(args.inputs[1].as<float>() + row * shape.width, shape.logits(), args.inputs[2].as<int32_t>()[row],
                   args.inputs[3].as<float>() + row * kOffsets, shape.location_weight, share == 0 ? 0 : dloss * share,
                   args.outputs[0].as<float>() + row * shape.width);
  });
}

}  // namespace

void RegisterMultibox(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32, i = DType::kI32;
  table->Add(ir::OpKind::kMultiboxMatch, {f, f}, {i, f}, PrepareMatch);
  table->Add(ir::OpKind::kMultiboxLoss, {f, i, f}, {f, f}, PrepareLoss);
  table->Add(ir::OpKind::kMultiboxLossGrad, {f, f, i, f, f}, {f}, PrepareLossGrad);
}

}  // namespace ampd::cpu
