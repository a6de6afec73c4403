// match_priors and hard_negatives: samples one by one.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/row_kernel.h"
#include "engine/ops/box_overlap.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

struct MatchShape {
  int64_t batch = 0, priors = 0, boxes = 0;
  double threshold = 0, center_variance = 0, size_variance = 0;

  explicit MatchShape(const NodeDesc& desc)
      : batch(desc.inputs[1].shape[0]),
        priors(desc.inputs[0].shape[0]),
        boxes(desc.inputs[1].shape[1] / ops::kBoxNumbers),
        threshold(desc.attributes.Double("threshold", 0.5)),
        center_variance(desc.attributes.Double("center_variance", 0.1)),
        size_variance(desc.attributes.Double("size_variance", 0.2)) {}
};

// A box's free prior of the largest overlap; overlap 0: there is none.
struct Candidate {
  double overlap = 0;
  int64_t prior = -1;
};

// One sample's boxes against all priors.
class Matching {
 public:
  // `matched` has a place for each prior, `candidates` one for each box.
  Matching(const MatchShape& shape, const float* priors, const float* boxes, int32_t* matched, Candidate* candidates)
      : shape_(shape), priors_(priors), boxes_(boxes), matched_(matched), candidates_(candidates) {}

  // Fills `matched`: 1 + the box that a prior stands for, or 0. Returns how many do.
  int64_t Run() {
    std::fill_n(matched_, shape_.priors, 0);
    GiveEachBoxItsBest();
    int64_t count = 0;
    for (int64_t p = 0; p < shape_.priors; ++p) {
      if (matched_[p] == 0) matched_[p] = BestBox(p);
      count += matched_[p] != 0;
    }
    return count;
  }

 private:
  const float* box(int64_t g) const { return boxes_ + g * ops::kBoxNumbers; }
  double OverlapOf(int64_t g, int64_t p) const {
    return ops::Overlap(ops::CornersOfPrior(priors_ + 4 * p), ops::CornersOfBox(box(g)));
  }

  Candidate Best(int64_t g) const {
    Candidate best;
    if (!ops::IsBox(box(g))) return best;
    for (int64_t p = 0; p < shape_.priors; ++p) {
      if (matched_[p] != 0) continue;
      const double overlap = OverlapOf(g, p);
      if (overlap > best.overlap) best = {overlap, p};
    }
    return best;
  }

  // The largest overlap of all first, so that no prior stands for two boxes.
  void GiveEachBoxItsBest() {
    for (int64_t g = 0; g < shape_.boxes; ++g) candidates_[g] = Best(g);
    while (true) {
      int64_t of = 0;
      for (int64_t g = 1; g < shape_.boxes; ++g) {
        if (candidates_[g].overlap > candidates_[of].overlap) of = g;
      }
      const Candidate chosen = candidates_[of];
      if (chosen.overlap <= 0) return;
      matched_[chosen.prior] = static_cast<int32_t>(of + 1);
      candidates_[of] = {};
      for (int64_t g = 0; g < shape_.boxes; ++g) {
        if (candidates_[g].prior == chosen.prior) candidates_[g] = Best(g);
      }
    }
  }

  int32_t BestBox(int64_t p) const {
    double most = shape_.threshold;
    int32_t best = 0;
    for (int64_t g = 0; g < shape_.boxes; ++g) {
      const double overlap = ops::IsBox(box(g)) ? OverlapOf(g, p) : 0;
      if (overlap > most) most = overlap, best = static_cast<int32_t>(g + 1);
    }
    return best;
  }

  const MatchShape& shape_;
  const float* priors_;
  const float* boxes_;
  int32_t* matched_;
  Candidate* candidates_;
};

void MatchSample(const MatchShape& shape, const KernelArgs& args, int64_t n, int32_t* matched, Candidate* candidates) {
  const float* priors = args.inputs[0].as<float>();
  const float* boxes = args.inputs[1].as<float>() + n * shape.boxes * ops::kBoxNumbers;
  int32_t* labels = args.outputs[0].as<int32_t>() + n * shape.priors;
  float* offsets = args.outputs[1].as<float>() + n * shape.priors * 4;
  float* shares = args.outputs[2].as<float>() + n * shape.priors;
  bool broken = false;
  for (int64_t g = 0; g < shape.boxes; ++g) broken = broken || ops::IsBroken(boxes + g * ops::kBoxNumbers);
  const int64_t count = broken ? 0 : Matching(shape, priors, boxes, matched, candidates).Run();
  const float share = 1.0f / static_cast<float>(std::max<int64_t>(count, 1));
  for (int64_t p = 0; p < shape.priors; ++p) {
    const int32_t of = broken ? 0 : matched[p];
    const float* box = boxes + (of - 1) * ops::kBoxNumbers;
    labels[p] = of == 0 ? 0 : 1 + static_cast<int32_t>(box[0]);
    shares[p] = broken ? std::numeric_limits<float>::quiet_NaN() : of == 0 ? 0 : share;
    std::fill_n(offsets + 4 * p, 4, 0.0f);
    if (of == 0) continue;
    ops::EncodeBox(priors + 4 * p, ops::CornersOfBox(box), shape.center_variance, shape.size_variance, offsets + 4 * p);
  }
}

std::unique_ptr<runtime::Kernel> PrepareMatch(const NodeDesc& desc) {
  const MatchShape shape(desc);
  const int parts = RowParts(desc.threads, shape.batch, shape.priors * (shape.boxes + 1) * 16);
  WorkspaceLayout layout;
  layout.Add(shape.priors * static_cast<int64_t>(sizeof(int32_t)));
  const int64_t candidates_at = layout.Add(shape.boxes * static_cast<int64_t>(sizeof(Candidate)));
  const int64_t bytes = layout.bytes();
  return MakeKernel(bytes * parts, [=](const KernelArgs& args) {
    ParallelRange(parts, shape.batch, 1, [&](int part, int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        MatchSample(shape, args, n, WorkspaceAt<int32_t>(args, part * bytes),
                    WorkspaceAt<Candidate>(args, part * bytes + candidates_at));
      }
    });
  });
}

// A NaN is larger than any number.
bool Larger(float a, float b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

// `order` has a place for each prior.
void ChooseNegatives(const float* losses, const int32_t* labels, int64_t priors, double ratio, int32_t* order,
                     int32_t* chosen) {
  int64_t positives = 0, negatives = 0;
  for (int64_t p = 0; p < priors; ++p) {
    chosen[p] = labels[p] > 0 ? labels[p] : -1;
    positives += labels[p] > 0;
    if (labels[p] == 0) order[negatives++] = static_cast<int32_t>(p);
  }
  const auto wanted = static_cast<int64_t>(
      std::min(std::floor(ratio * static_cast<double>(positives)), static_cast<double>(negatives)));
  std::nth_element(order, order + wanted, order + negatives, [&](int32_t a, int32_t b) {
    return Larger(losses[a], losses[b]) || (!Larger(losses[b], losses[a]) && a < b);
  });
  for (int64_t i = 0; i < wanted; ++i) chosen[order[i]] = 0;
}

std::unique_ptr<runtime::Kernel> PrepareChoose(const NodeDesc& desc) {
  const int64_t batch = desc.inputs[0].shape[0], priors = desc.inputs[0].shape[1];
  const double ratio = desc.attributes.Double("ratio", 3);
  const int parts = RowParts(desc.threads, batch, priors * 8);
  const int64_t bytes = AlignUp(priors * static_cast<int64_t>(sizeof(int32_t)));
  return MakeKernel(bytes * parts, [=](const KernelArgs& args) {
    ParallelRange(parts, batch, 1, [&](int part, int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        ChooseNegatives(args.inputs[0].as<float>() + n * priors, args.inputs[1].as<int32_t>() + n * priors, priors,
                        ratio, WorkspaceAt<int32_t>(args, part * bytes), args.outputs[0].as<int32_t>() + n * priors);
      }
    });
  });
}

}  // namespace

void RegisterMultibox(runtime::KernelTable* table) {
  constexpr DType f = DType::kF32;
  constexpr DType i = DType::kI32;
  table->Add(ir::OpKind::kMatchPriors, {f, f}, {i, f, f}, PrepareMatch);
  table->Add(ir::OpKind::kHardNegatives, {f, i}, {i}, PrepareChoose);
}

}  // namespace ampd::cpu
