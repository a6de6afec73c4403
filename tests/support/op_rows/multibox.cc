// The multibox loss's decisions, by exhaustive loops.
#include <algorithm>
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

struct Rectangle {
  double left, top, right, bottom;
  double area() const { return (right - left) * (bottom - top); }
};

double Jaccard(const Rectangle& a, const Rectangle& b) {
  const Rectangle both = {std::max(a.left, b.left), std::max(a.top, b.top), std::min(a.right, b.right),
                          std::min(a.bottom, b.bottom)};
  if (both.right <= both.left || both.bottom <= both.top) return 0;
  return both.area() / (a.area() + b.area() - both.area());
}

// 1 + the box that each prior of a sample stands for, or 0.
std::vector<int64_t> MatchSample(const std::vector<Rectangle>& priors, const std::vector<Rectangle>& boxes,
                                 const std::vector<bool>& is_box, double threshold) {
  std::vector<int64_t> matched(priors.size(), 0);
  std::vector<bool> done(boxes.size(), false);
  for (size_t round = 0; round < boxes.size(); ++round) {
    double most = 0;
    size_t box = 0, prior = 0;
    for (size_t g = 0; g < boxes.size(); ++g) {
      for (size_t p = 0; p < priors.size(); ++p) {
        const bool free = is_box[g] && !done[g] && matched[p] == 0;
        if (free && Jaccard(priors[p], boxes[g]) > most) most = Jaccard(priors[p], boxes[g]), box = g, prior = p;
      }
    }
    if (most == 0) break;
    done[box] = true;
    matched[prior] = static_cast<int64_t>(box) + 1;
  }
  for (size_t p = 0; p < priors.size(); ++p) {
    double most = matched[p] == 0 ? threshold : 2;
    for (size_t g = 0; g < boxes.size(); ++g) {
      const double jaccard = is_box[g] ? Jaccard(priors[p], boxes[g]) : 0;
      if (jaccard > most) most = jaccard, matched[p] = static_cast<int64_t>(g) + 1;
    }
  }
  return matched;
}

RefTensors Match(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  const int64_t batch = in[1].shape[0], count = in[0].shape[0], boxes = in[1].shape[1] / 5;
  RefTensor labels = Filled({batch, count}), offsets = Filled({batch, count, 4}), shares = Filled({batch, count});
  std::vector<Rectangle> priors;
  for (int64_t p = 0; p < count; ++p) {
    const double* v = in[0].data.data() + 4 * p;
    priors.push_back({v[0] - v[2] / 2, v[1] - v[3] / 2, v[0] + v[2] / 2, v[1] + v[3] / 2});
  }
  const double center = desc.attributes.Double("center_variance", 0.1);
  const double size = desc.attributes.Double("size_variance", 0.2);
  for (int64_t n = 0; n < batch; ++n) {
    std::vector<Rectangle> of_sample;
    std::vector<bool> is_box;
    bool broken = false;
    const double* numbers = in[1].data.data() + n * boxes * 5;
    for (int64_t g = 0; g < boxes; ++g) {
      const double* v = numbers + 5 * g;
      of_sample.push_back({v[1], v[2], v[3], v[4]});
      is_box.push_back(v[0] >= 0 && v[3] > v[1] && v[4] > v[2]);
      broken = broken || !std::isfinite(std::accumulate(v, v + 5, 0.0)) || v[0] >= 1 << 20;
    }
    const std::vector<int64_t> matched =
        broken ? std::vector<int64_t>(priors.size(), 0)
               : MatchSample(priors, of_sample, is_box, desc.attributes.Double("threshold", 0.5));
    const auto positives =
        static_cast<double>(std::count_if(matched.begin(), matched.end(), [](int64_t m) { return m; }));
    for (int64_t p = 0; p < count; ++p) {
      const int64_t at = n * count + p;
      if (broken) shares.data[at] = std::numeric_limits<double>::quiet_NaN();
      if (matched[p] == 0) continue;
      const Rectangle& box = of_sample[matched[p] - 1];
      const double* prior = in[0].data.data() + 4 * p;
      labels.data[at] = 1 + std::floor(numbers[5 * (matched[p] - 1)]);
      shares.data[at] = 1 / positives;
      double* encoded = offsets.data.data() + at * 4;
      encoded[0] = ((box.left + box.right) / 2 - prior[0]) / (center * prior[2]);
      encoded[1] = ((box.top + box.bottom) / 2 - prior[1]) / (center * prior[3]);
      encoded[2] = std::log((box.right - box.left) / prior[2]) / size;
      encoded[3] = std::log((box.bottom - box.top) / prior[3]) / size;
    }
  }
  return {labels, offsets, shares};
}

// Kernels compute in double.
RefTensors MatchError(const NodeDesc&, const RefTensors&, const RefTensors& out) {
  RefTensors errors;
  for (const RefTensor& t : out) {
    errors.push_back(Filled(t.shape));
    for (int64_t i = 0; i < t.size(); ++i) errors.back().data[i] = 1e-12 * (1 + std::fabs(t.data[i]));
  }
  return errors;
}

// Priors and boxes of a tenth to six tenths of the image; of the boxes some are none, empty, or outside.
RefTensor MatchInput(const NodeDesc& desc, int i, Random* random) {
  RefTensor drawn = RandomTensor(random, desc.inputs[i].shape, kF, 0.1, 0.6);
  const int64_t width = i == 0 ? 4 : 5;
  for (int64_t row = 0; row < drawn.size() / width; ++row) {
    double* v = drawn.data.data() + row * width;
    if (i == 0) continue;
    v[0] = static_cast<double>(random->Below(5)) - 1;
    if (random->Below(8) == 0) v[1] = v[3];
    if (random->Below(8) == 0) v[2] += 4, v[4] += 4;
    v[3] = static_cast<double>(static_cast<float>(v[1] + v[3]));
    v[4] = static_cast<double>(static_cast<float>(v[2] + v[4]));
    if (random->Below(8) == 0) v[3] = v[1];
  }
  return drawn;
}

// A stable sort.
RefTensors Choose(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor chosen = Filled(in[1].shape, -1);
  const int64_t priors = in[0].shape[1];
  for (int64_t n = 0; n < in[0].shape[0]; ++n) {
    std::vector<int64_t> negatives;
    double positives = 0;
    for (int64_t at = n * priors; at < (n + 1) * priors; ++at) {
      if (in[1].data[at] > 0) chosen.data[at] = in[1].data[at], ++positives;
      if (in[1].data[at] == 0) negatives.push_back(at);
    }
    std::stable_sort(negatives.begin(), negatives.end(),
                     [&](int64_t a, int64_t b) { return in[0].data[a] > in[0].data[b]; });
    const double wanted = std::floor(desc.attributes.Double("ratio", 3) * positives);
    for (size_t i = 0; i < negatives.size() && static_cast<double>(i) < wanted; ++i) chosen.data[negatives[i]] = 0;
  }
  return {chosen};
}

// Losses with ties; few positives, and labels below 0.
RefTensor ChooseInput(const NodeDesc& desc, int i, Random* random) {
  RefTensor drawn = Filled(desc.inputs[i].shape);
  for (double& v : drawn.data) {
    v = i == 0                  ? static_cast<double>(random->Below(24)) / 8 - 0.5
        : random->Below(7) == 0 ? static_cast<double>(random->Below(4)) - 1
                                : 0;
  }
  return drawn;
}

}  // namespace

std::vector<OpRow> MultiboxRows() {
  const Attributes other{{"threshold", 0.2}, {"center_variance", 0.3}, {"size_variance", 0.7}};
  return {{.op = OpKind::kMatchPriors,
           .signatures = {{{kF, kF}, {kI, kF, kF}}},
           .cases = {{{}, {{30, 4}, {3, 20}}},
                     {other, {{301, 4}, {9, 35}}},
                     {{}, {{1, 4}, {1, 5}}},
                     {other, {{3, 4}, {2, 40}}},
                     {{}, {{700, 4}, {2, 400}}}},
           .reference = Match,
           .error = MatchError,
           .input = MatchInput},
          {.op = OpKind::kHardNegatives,
           .signatures = {{{kF, kI}, {kI}}},
           .cases = {{{}, {{5, 40}, {5, 40}}},
                     {{{"ratio", 1.5}}, {{17, 700}, {17, 700}}},
                     {{{"ratio", 1e6}}, {{3, 9}, {3, 9}}},
                     {{{"ratio", 0.0}}, {{2, 9}, {2, 9}}},
                     {{}, {{1, 1}, {1, 1}}}},
           .reference = Choose,
           .input = ChooseInput}};
}

}  // namespace ampd::testing
