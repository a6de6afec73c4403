// Matching from a sorted list of all overlaps, mining from a sorted list of all cross-entropies, and the loss as the
// sum that Liu et al. (2016, section 2.2) write down.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;

constexpr DType kF = DType::kF32;
constexpr DType kI = DType::kI32;

using Corners = std::array<double, 4>;

double SharedLength(double a0, double a1, double b0, double b1) {
  return std::max(0.0, std::min(a1, b1) - std::max(a0, b0));
}

double Jaccard(const Corners& a, const Corners& b) {
  const double shared = SharedLength(a[0], a[2], b[0], b[2]) * SharedLength(a[1], a[3], b[1], b[3]);
  const double all = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared;
  return shared == 0 ? 0 : shared / all;
}

Corners PriorCorners(const RefTensor& priors, int64_t p) {
  const double* v = priors.data.data() + 4 * p;
  return {v[0] - v[2] / 2, v[1] - v[3] / 2, v[0] + v[2] / 2, v[1] + v[3] / 2};
}

struct Box {
  int64_t c;
  Corners corners;
};

struct Pair {
  double overlap;
  int64_t box, prior;
};

// By prior: its box, or -1.
std::vector<int64_t> Assign(const RefTensor& priors, const std::vector<Box>& boxes, double threshold) {
  const int64_t count = priors.shape[0];
  std::vector<int64_t> box_of(count, -1), prior_of(boxes.size(), -1);
  std::vector<Pair> pairs;
  for (size_t b = 0; b < boxes.size(); ++b) {
    for (int64_t p = 0; p < count; ++p) {
      const double overlap = Jaccard(PriorCorners(priors, p), boxes[b].corners);
      if (overlap > 0) pairs.push_back({overlap, static_cast<int64_t>(b), p});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.overlap > b.overlap; });
  for (const Pair& pair : pairs) {
    if (box_of[pair.prior] >= 0 || prior_of[pair.box] >= 0) continue;
    box_of[pair.prior] = pair.box;
    prior_of[pair.box] = pair.prior;
  }
  for (const Pair& pair : pairs) {
    if (pair.overlap > threshold && box_of[pair.prior] < 0) box_of[pair.prior] = pair.box;
  }
  return box_of;
}

RefTensors Match(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  const int64_t batch = in[1].shape[0], count = in[0].shape[0], places = in[1].shape[1] / 5;
  const double center = desc.attributes.Double("center_variance", 0.1);
  const double size = desc.attributes.Double("size_variance", 0.2);
  RefTensor classes = Filled({batch, count}), offsets = Filled({batch, count, 4});
  for (int64_t n = 0; n < batch; ++n) {
    std::vector<Box> boxes;
    bool wrong = false;
    for (int64_t b = 0; b < places; ++b) {
      const double* v = in[1].data.data() + (n * places + b) * 5;
      if (v[0] < 0) continue;
      wrong = wrong || v[0] != std::trunc(v[0]) || v[0] >= static_cast<double>(desc.attributes.Int("classes"));
      if (v[3] <= v[1] || v[4] <= v[2]) continue;
      boxes.push_back({static_cast<int64_t>(v[0]), {v[1], v[2], v[3], v[4]}});
    }
    const std::vector<int64_t> box_of =
        wrong ? std::vector<int64_t>(count, -1) : Assign(in[0], boxes, desc.attributes.Double("threshold", 0.5));
    for (int64_t p = 0; p < count; ++p) {
      classes.data[n * count + p] = wrong ? -1 : 0;
      if (box_of[p] < 0) continue;
      const Box& box = boxes[box_of[p]];
      const double* prior = in[0].data.data() + 4 * p;
      double* offset = offsets.data.data() + (n * count + p) * 4;
      classes.data[n * count + p] = static_cast<double>(box.c + 1);
      for (int axis : {0, 1}) {
        const double low = box.corners[axis], high = box.corners[axis + 2];
        offset[axis] = ((low + high) / 2 - prior[axis]) / prior[axis + 2] / center;
        offset[axis + 2] = std::log((high - low) / prior[axis + 2]) / size;
      }
    }
  }
  return {classes, offsets};
}

// Classes are exact; offsets are computed in double.
RefTensors MatchError(const NodeDesc&, const RefTensors&, const RefTensors& out) {
  return {Filled(out[0].shape), Filled(out[1].shape, 1e-12)};
}

double LogSoftmax(const RefTensor& z, int64_t row, int64_t c) {
  const int64_t width = z.shape[2];
  const double* logits = z.data.data() + row * width + 4;
  const double largest = *std::max_element(logits, logits + width - 4);
  double sum = 0;
  for (int64_t i = 0; i < width - 4; ++i) sum += std::exp(logits[i] - largest);
  return logits[c] - largest - std::log(sum);
}

double Slope(double d) { return std::fabs(d) < 1 ? d : d > 0 ? 1 : -1; }

// The rows of sample `n` that count: those with a box, and the hardest of the others.
std::vector<int64_t> CountedRows(const NodeDesc& desc, const RefTensor& z, const RefTensor& classes, int64_t n) {
  const int64_t count = z.shape[1];
  std::vector<int64_t> counted, others;
  for (int64_t row = n * count; row < (n + 1) * count; ++row) (classes.data[row] > 0 ? counted : others).push_back(row);
  // As kernels rank them: rounded to f32.
  const auto surprise = [&](int64_t row) { return static_cast<float>(-LogSoftmax(z, row, 0)); };
  std::stable_sort(others.begin(), others.end(), [&](int64_t a, int64_t b) { return surprise(a) > surprise(b); });
  const double wanted = std::floor(desc.attributes.Double("negative_ratio", 3) * static_cast<double>(counted.size()));
  if (wanted < static_cast<double>(others.size())) others.resize(static_cast<size_t>(wanted));
  counted.insert(counted.end(), others.begin(), others.end());
  return counted;
}

double Matched(const RefTensor& classes, int64_t n) {
  const auto first = classes.data.begin() + n * classes.shape[1];
  return static_cast<double>(std::count_if(first, first + classes.shape[1], [](double c) { return c > 0; }));
}

RefTensors Losses(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  const RefTensor &z = in[0], &classes = in[1], &offsets = in[2];
  const int64_t width = z.shape[2];
  const double weight = desc.attributes.Double("location_weight", 1);
  RefTensor losses = Filled({z.shape[0]}), shares = Filled({z.shape[0], z.shape[1]});
  for (int64_t n = 0; n < z.shape[0]; ++n) {
    const double matched = Matched(classes, n);
    if (matched == 0) continue;
    for (int64_t row : CountedRows(desc, z, classes, n)) {
      const auto c = static_cast<int64_t>(classes.data[row]);
      shares.data[row] = 1 / matched;
      losses.data[n] -= LogSoftmax(z, row, c) / matched;
      for (int64_t i = 0; c > 0 && i < 4; ++i) {
        const double d = std::fabs(z.data[row * width + i] - offsets.data[row * 4 + i]);
        losses.data[n] += weight * (d < 1 ? d * d / 2 : d - 0.5) / matched;
      }
    }
  }
  return {losses, shares};
}

// Sums in double.
RefTensors LossError(const NodeDesc&, const RefTensors&, const RefTensors& out) {
  return {Filled(out[0].shape, 1e-10), Filled(out[1].shape)};
}

RefTensors Gradient(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  const RefTensor &z = in[1], &classes = in[2], &offsets = in[3], &shares = in[4];
  const int64_t width = z.shape[2], count = z.shape[1];
  const double weight = desc.attributes.Double("location_weight", 1);
  RefTensor dz = Filled(z.shape);
  for (int64_t row = 0; row < z.shape[0] * count; ++row) {
    const double factor = in[0].data[row / count] * shares.data[row];
    if (shares.data[row] == 0) continue;
    const auto c = static_cast<int64_t>(classes.data[row]);
    for (int64_t i = 0; i < width; ++i) {
      double& out = dz.data[row * width + i];
      if (i >= 4) {
        out = factor * (std::exp(LogSoftmax(z, row, i - 4)) - (i - 4 == c ? 1 : 0));
      } else if (c > 0) {
        out = factor * weight * Slope(z.data[row * width + i] - offsets.data[row * 4 + i]);
      }
    }
  }
  return {dz};
}

RefTensors GradientError(const NodeDesc&, const RefTensors& in, const RefTensors& out) {
  RefTensor error = Filled(out[0].shape);
  const int64_t of_sample = error.size() / in[0].size();
  for (int64_t i = 0; i < error.size(); ++i) error.data[i] = 1e-13 * std::fabs(in[0].data[i / of_sample]);
  return {error};
}

// Boxes and priors of a third to all of the image; of the places some hold no box, and one in six is a corner of
// sixteenths, so that overlaps tie.
RefTensor MatchInput(const NodeDesc& desc, int i, Random* random) {
  RefTensor drawn = Filled(desc.inputs[i].shape);
  const int64_t numbers = i == 0 ? 4 : 5;
  const auto classes = desc.attributes.Int("classes");
  for (int64_t at = 0; at < drawn.size(); at += numbers) {
    double* v = drawn.data.data() + at;
    const bool coarse = random->Below(6) == 0;
    const auto draw = [&](double low, double high) {
      const double value = random->Uniform(low, high);
      return RoundToDType(coarse ? std::round(value * 16) / 16 : value, kF);
    };
    const double x = draw(0.2, 0.8), y = draw(0.2, 0.8), w = draw(0.1, 0.8), h = draw(0.1, 0.8);
    if (i == 0) {
      v[0] = x, v[1] = y, v[2] = w, v[3] = h;
      continue;
    }
    v[0] = static_cast<double>(random->Below(5) == 0 ? -1 : random->Below(classes));
    v[1] = RoundToDType(x - w / 2, kF), v[2] = RoundToDType(y - h / 2, kF);
    // Now and then a box without an area.
    v[3] = random->Below(8) == 0 ? v[1] : RoundToDType(x + w / 2, kF), v[4] = RoundToDType(y + h / 2, kF);
  }
  return drawn;
}

// Two in three priors have no box, and the first sample of a batch none at all.
RefTensor LossInput(const NodeDesc& desc, int i, Random* random) {
  const bool gradient = desc.op == OpKind::kMultiboxLossGrad;
  if (i != (gradient ? 2 : 1)) return {};
  RefTensor classes = Filled(desc.inputs[i].shape);
  const int64_t of_sample = classes.shape[1], logits = desc.inputs[gradient ? 1 : 0].shape[2] - 4;
  for (int64_t at = 0; at < classes.size(); ++at) {
    const bool empty = classes.shape[0] > 1 && at < of_sample;
    classes.data[at] = static_cast<double>(empty || random->Below(3) > 0 ? 0 : random->Below(logits));
  }
  return classes;
}

// Shares as the loss gives them, rounded.
void AdjustGradInputs(const NodeDesc& desc, RefTensors* inputs) {
  RefTensor shares = Losses(desc, {(*inputs)[1], (*inputs)[2], (*inputs)[3]}, {})[1];
  for (double& v : shares.data) v = RoundToDType(v, kF);
  (*inputs)[4] = shares;
}

OpShapes MatchCase(int64_t batch, int64_t priors, int64_t boxes, Attributes a) {
  return {std::move(a), {{priors, 4}, {batch, boxes * 5}}};
}

OpShapes LossCase(int64_t batch, int64_t priors, int64_t classes, Attributes a, bool grad) {
  OpShapes shapes{std::move(a), {{batch, priors, 5 + classes}, {batch, priors}, {batch, priors, 4}}};
  if (grad) shapes.inputs.insert(shapes.inputs.begin(), {batch}), shapes.inputs.push_back({batch, priors});
  return shapes;
}

std::vector<OpShapes> LossCases(bool grad) {
  const Attributes few{{"negative_ratio", 0.5}, {"location_weight", 0.25}}, none{{"negative_ratio", 0.0}};
  return {LossCase(3, 40, 3, {}, grad),    LossCase(1, 1, 1, {}, grad),   LossCase(5, 17, 4, few, grad),
          LossCase(2, 600, 20, few, grad), LossCase(4, 9, 2, none, grad), LossCase(60, 70, 7, {}, grad)};
}

}  // namespace

std::vector<OpRow> MultiboxRows() {
  const Attributes five{{"classes", int64_t{5}}},
      other{{"classes", int64_t{2}}, {"threshold", 0.2}, {"center_variance", 1.0}, {"size_variance", 0.5}};
  return {{.op = OpKind::kMultiboxMatch,
           .signatures = {{{kF, kF}, {kI, kF}}},
           .cases = {MatchCase(4, 30, 5, five), MatchCase(1, 1, 1, five), MatchCase(3, 7, 12, other),
                     MatchCase(2, 700, 20, other), MatchCase(40, 90, 3, five)},
           .reference = Match,
           .error = MatchError,
           .input = MatchInput},
          {.op = OpKind::kMultiboxLoss,
           .signatures = {{{kF, kI, kF}, {kF, kF}}},
           .cases = LossCases(false),
           .gradient_cases = {LossCase(3, 10, 3, {{"negative_ratio", 1.0}, {"location_weight", 0.5}}, false),
                              LossCase(2, 5, 1, {}, false)},
           .constant_inputs = {2},
           .reference = Losses,
           .error = LossError,
           .input = LossInput},
          {.op = OpKind::kMultiboxLossGrad,
           .signatures = {{{kF, kF, kI, kF, kF}, {kF}}},
           .cases = LossCases(true),
           .reference = Gradient,
           .error = GradientError,
           .input = LossInput,
           .adjust_inputs = AdjustGradInputs}};
}

}  // namespace ampd::testing
