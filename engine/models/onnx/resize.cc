// Resize and Upsample. Each axis is resized by itself: an element of the result is a sum of a few elements of the axis,
// whose places and weights follow from extents alone. So they are constants, and the gradient is that of gathers and
// products.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "engine/core/status.h"
#include "engine/models/onnx/node.h"

namespace ampd::models::onnx {
namespace {

using Ints = std::vector<int64_t>;
using Doubles = std::vector<double>;

// Of an axis after it was resized; of elements that one is made of, which a reduction by far asks where it is
// antialiased; and of both together, over all axes.
constexpr double kMaxExtent = 1 << 20;
constexpr int64_t kMostTaps = 64;
constexpr int64_t kMostWeights = 1 << 24;

// One axis on its way from `from` elements to `to`.
struct Axis {
  int64_t axis = 0;
  int64_t from = 1, to = 1;
  double scale = 1;
  // The part of the axis that the result shows, of tf_crop_and_resize; 0 is the first element and 1 the last one.
  double begin = 0, end = 1;
};

// How elements come about: that at i is the sum over k of weights[k][i] times the axis's element at places[k][i].
struct Taps {
  std::vector<Ints> places;
  std::vector<Doubles> weights;
  // Where not empty: what is added, by element.
  Doubles added;
};

struct Modes {
  std::string mode, coordinates, nearest;
  double cubic = -0.75, extrapolation = 0;
  bool exclude_outside = false, antialias = false;
  // align_corners has the axis end at its last element, rather than where the scale says that it would.
  bool to_last = false;
};

// Scales are floats; what rounding leaves of a place between two elements, or at one, is no place of its own.
double Snapped(double x) {
  const double halves = std::round(2 * x) / 2;
  return std::abs(x - halves) <= 1e-6 * std::max(1.0, std::abs(x)) ? halves : x;
}

// Where element `i` of the result lies on the axis.
double PlaceOf(const Modes& modes, const Axis& a, int64_t i) {
  const std::string& coordinates = modes.coordinates;
  const double x = static_cast<double>(i), from = static_cast<double>(a.from);
  const bool to_last = modes.to_last && coordinates == "align_corners";
  const double length = to_last ? static_cast<double>(a.to) : a.scale * from;
  const bool one = Snapped(length) == 1;
  if (coordinates == "asymmetric") return x / a.scale;
  if (coordinates == "align_corners") return one ? 0 : x * (from - 1) / (length - 1);
  if (coordinates == "tf_half_pixel_for_nn") return (x + 0.5) / a.scale;
  if (coordinates == "tf_crop_and_resize") {
    const double first = a.begin * (from - 1), span = (a.end - a.begin) * (from - 1);
    return one ? first + span / 2 : first + x * span / (length - 1);
  }
  if (coordinates == "pytorch_half_pixel" && one) return 0;
  const double half = (x + 0.5) / a.scale - 0.5;
  if (coordinates != "half_pixel_symmetric") return half;
  return half + from / 2 * (1 - static_cast<double>(a.to) / length);
}

double NearestOf(const std::string& mode, double x) {
  if (mode == "floor") return std::floor(x);
  if (mode == "ceil") return std::ceil(x);
  return mode == "round_prefer_ceil" ? std::floor(x + 0.5) : std::ceil(x - 0.5);
}

// Of an element `distance` away from the place, in elements.
double WeightOf(const Modes& modes, double distance) {
  const double d = std::abs(distance), a = modes.cubic;
  if (modes.mode == "linear") return std::max(1 - d, 0.0);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

// What the elements around a place weigh. Where a reduction is antialiased they lie closer by its scale.
void AddTaps(const Modes& modes, const Axis& a, double x, int64_t i, Taps* taps) {
  const double closer = modes.antialias ? std::min(a.scale, 1.0) : 1;
  const int64_t count = static_cast<int64_t>(taps->places.size());
  const int64_t first = static_cast<int64_t>(std::ceil(x)) - count / 2;
  double sum = 0;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t place = first + k;
    const bool outside = place < 0 || place >= a.from;
    const double weight =
        outside && modes.exclude_outside ? 0 : WeightOf(modes, closer * (static_cast<double>(place) - x));
    taps->places[k][i] = std::clamp<int64_t>(place, 0, a.from - 1);
    taps->weights[k][i] = weight;
    sum += weight;
  }
  for (int64_t k = 0; k < count && sum != 0; ++k) taps->weights[k][i] /= sum;
}

int64_t TapsOf(const Modes& modes, double scale) {
  if (modes.mode == "nearest") return 1;
  const double reach = (modes.mode == "linear" ? 1 : 2) / (modes.antialias ? std::min(scale, 1.0) : 1);
  return reach > kMostTaps ? kMostTaps + 1 : 2 * static_cast<int64_t>(std::ceil(reach));
}

Taps MakeTaps(const Modes& modes, const Axis& a) {
  const size_t count = static_cast<size_t>(TapsOf(modes, a.scale)), to = static_cast<size_t>(a.to);
  Taps taps{std::vector<Ints>(count, Ints(to, 0)), std::vector<Doubles>(count, Doubles(to, 0)), {}};
  for (int64_t i = 0; i < a.to; ++i) {
    const double x = Snapped(PlaceOf(modes, a, i));
    if (modes.coordinates == "tf_crop_and_resize" && (x < 0 || x > static_cast<double>(a.from - 1))) {
      taps.added.resize(to, 0);
      taps.added[i] = modes.extrapolation;
    } else if (modes.mode == "nearest") {
      const double nearest = NearestOf(modes.nearest, x);
      taps.places[0][i] = static_cast<int64_t>(std::clamp(nearest, 0.0, static_cast<double>(a.from - 1)));
      taps.weights[0][i] = 1;
    } else {
      AddTaps(modes, a, x, i, &taps);
    }
  }
  return taps;
}

bool AllAre(const Doubles& values, double value) {
  return std::all_of(values.begin(), values.end(), [&](double v) { return v == value; });
}

// How often each element is repeated where the axis is its elements, each so many times; else 0.
int64_t Repeats(const Taps& taps, const Axis& a) {
  if (taps.places.size() != 1 || !taps.added.empty() || a.to % a.from != 0) return 0;
  const int64_t each = a.to / a.from;
  for (int64_t i = 0; i < a.to; ++i) {
    if (taps.places[0][i] != i / each) return 0;
  }
  return each;
}

// Repeats elements along several axes at once, as many times as `repeats` says.
V Repeat(Emitter& e, V x, const Ints& repeats) {
  Shape split, repeated, merged;
  for (int a = 0; a < Emitter::Rank(x); ++a) {
    const int64_t extent = Emitter::Extent(x, a);
    split.push_back(extent);
    repeated.push_back(extent);
    if (repeats[a] > 1) {
      split.push_back(1);
      repeated.push_back(repeats[a]);
    }
    merged.push_back(extent * repeats[a]);
  }
  return e.Reshape(e.Expand(e.Reshape(x, split), repeated), merged);
}

// The elements at `places` of an axis; as a slice where they follow each other evenly.
V Pick(Emitter& e, V x, int axis, const Ints& places) {
  const int64_t step = places.size() > 1 ? places[1] - places[0] : 1;
  bool even = step > 0;
  for (size_t i = 1; even && i < places.size(); ++i) even = places[i] - places[i - 1] == step;
  if (!even) return e.Gather(x, e.Ints(places), axis);
  Ints starts(x->type.shape.size(), 0), ends(x->type.shape.begin(), x->type.shape.end()), steps(starts.size(), 1);
  starts[axis] = places.front();
  ends[axis] = places.back() + 1;
  steps[axis] = step;
  return e.Slice(x, starts, ends, steps);
}

// Numbers along one axis of `x`.
V Along(Emitter& e, V x, int axis, const Doubles& values) {
  auto tensor = std::make_shared<Tensor>(DType::kF32, Shape{static_cast<int64_t>(values.size())});
  std::transform(values.begin(), values.end(), tensor->as<float>().begin(),
                 [](double value) { return static_cast<float>(value); });
  Shape shape(x->type.shape.size(), 1);
  shape[axis] = static_cast<int64_t>(values.size());
  return e.Cast(e.Reshape(e.Known(std::move(tensor)), shape), x->type.dtype);
}

V Resample(Emitter& e, V x, int axis, const Taps& taps) {
  V sum = nullptr;
  for (size_t k = 0; k < taps.places.size() && e.ok(); ++k) {
    if (AllAre(taps.weights[k], 0) && (sum != nullptr || k + 1 < taps.places.size())) continue;
    V part = Pick(e, x, axis, taps.places[k]);
    if (!AllAre(taps.weights[k], 1)) part = e.Mul(part, Along(e, x, axis, taps.weights[k]));
    sum = sum == nullptr ? part : e.Add(sum, part);
  }
  if (e.ok() && !taps.added.empty()) sum = e.Add(sum, Along(e, x, axis, taps.added));
  return sum == nullptr ? x : sum;
}

absl::Status ResizeAxes(Node& n, const Modes& modes, std::vector<Axis> axes) {
  Emitter& e = n.e;
  const bool nearest = modes.mode == "nearest" && modes.coordinates != "tf_crop_and_resize";
  if (!nearest && !IsFloat(n.dtype(0))) return n.Unsupported(absl::StrCat(modes.mode, " of ", DTypeName(n.dtype(0))));
  // Tables are made when all of them are known to fit.
  double elements = static_cast<double>(Emitter::Size(n[0]));
  int64_t weights = 0;
  for (const Axis& a : axes) {
    if (a.to < 1 || static_cast<double>(a.to) > kMaxExtent) return n.Bad(absl::StrCat("gives ", a.to, " elements"));
    if (TapsOf(modes, a.scale) > kMostTaps) {
      return n.Unsupported(absl::StrCat("antialiased reduction from ", a.from, " to ", a.to, " elements"));
    }
    weights += TapsOf(modes, a.scale) * a.to;
    elements *= static_cast<double>(a.to) / static_cast<double>(a.from);
  }
  if (weights > kMostWeights || elements > n.options().max_elements) {
    return absl::ResourceExhaustedError(absl::StrCat("[Resize] gives ", elements, " elements"));
  }
  // An image is resized as the graph has it.
  V x = n[0];
  const bool image = x->image >= 0 && x->ir < 0;
  if (image) {
    const Ints places = {0, 3, 1, 2};
    for (Axis& a : axes) a.axis = places[a.axis];
    x = e.FromGraph(x->image);
  }
  Ints repeats(x->type.shape.size(), 1);
  std::vector<std::pair<Axis, Taps>> left;
  for (const Axis& a : axes) {
    Taps taps = MakeTaps(modes, a);
    const int64_t each = Repeats(taps, a);
    if (each > 0) repeats[a.axis] = each;
    if (each == 0) left.emplace_back(a, std::move(taps));
  }
  // What an axis loses the others need not move.
  std::stable_sort(left.begin(), left.end(),
                   [](const auto& a, const auto& b) { return a.first.scale < b.first.scale; });
  for (const auto& [a, taps] : left) x = Resample(e, x, static_cast<int>(a.axis), taps);
  x = e.ok() ? Repeat(e, x, repeats) : x;
  return n.Out(image && e.ok() ? e.FromImage(e.Id(x)) : x);
}

absl::Status CheckModes(const Node& n, const Modes& modes) {
  if (Emitter::Size(n[0]) == 0) return n.Unsupported("an input without elements");
  const auto one_of = [](const std::string& value, const std::vector<std::string>& known) {
    return std::find(known.begin(), known.end(), value) != known.end();
  };
  if (!one_of(modes.mode, {"nearest", "linear", "cubic"})) return n.Bad(absl::StrCat("mode is ", modes.mode));
  if (!one_of(modes.nearest, {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"})) {
    return n.Bad(absl::StrCat("nearest_mode is ", modes.nearest));
  }
  if (!one_of(modes.coordinates, {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
                                  "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"})) {
    return n.Bad(absl::StrCat("coordinate_transformation_mode is ", modes.coordinates));
  }
  if (!std::isfinite(modes.cubic)) return n.Bad(absl::StrCat("cubic_coeff_a is ", modes.cubic));
  return absl::OkStatus();
}

// The operand's axes that scales and sizes are given for.
absl::StatusOr<Ints> AxesOf(const Node& n) {
  if (n.Attribute("axes") != nullptr) return n.Axes(n.Ints("axes"), n.rank(0));
  Ints axes(static_cast<size_t>(n.rank(0)));
  for (size_t a = 0; a < axes.size(); ++a) axes[a] = static_cast<int64_t>(a);
  return axes;
}

absl::StatusOr<std::vector<Axis>> AxesByScale(const Node& n, const Doubles& scales) {
  AMPD_ASSIGN_OR_RETURN(const Ints names, AxesOf(n));
  if (scales.size() != names.size()) return n.Bad(absl::StrCat(scales.size(), " scales for ", names.size(), " axes"));
  std::vector<Axis> axes;
  for (size_t i = 0; i < names.size(); ++i) {
    const int64_t from = n.shape(0)[names[i]];
    // As ONNX Runtime has it, in floats: 10 elements by 0.7 are 7.
    const float to = static_cast<float>(scales[i]) * static_cast<float>(from);
    if (!(scales[i] > 0) || !(to <= static_cast<float>(kMaxExtent))) return n.Bad(absl::StrCat("scale ", scales[i]));
    axes.push_back({.axis = names[i], .from = from, .to = static_cast<int64_t>(to), .scale = scales[i]});
  }
  return axes;
}

absl::StatusOr<std::vector<Axis>> AxesBySize(const Node& n, Ints sizes) {
  AMPD_ASSIGN_OR_RETURN(const Ints names, AxesOf(n));
  if (sizes.size() != names.size()) return n.Bad(absl::StrCat(sizes.size(), " sizes for ", names.size(), " axes"));
  const std::string policy = n.String("keep_aspect_ratio_policy", "stretch");
  const bool smaller = policy == "not_larger";
  if (policy != "stretch" && policy != "not_smaller" && !smaller) {
    return n.Bad(absl::StrCat("keep_aspect_ratio_policy is ", policy));
  }
  double common = smaller ? std::numeric_limits<double>::infinity() : 0;
  std::vector<Axis> axes;
  for (size_t i = 0; i < names.size(); ++i) {
    const int64_t from = n.shape(0)[names[i]], batch = n.options().batch;
    // A model that was written for another batch says so here too.
    const bool written = names[i] == 0 && n.options().written_batch > 0 && sizes[i] == n.options().written_batch;
    if (written && from == batch && !n[3]->of_shape) sizes[i] = batch;
    if (sizes[i] < 1) return n.Bad(absl::StrCat("sizes are ", ShapeString(sizes)));
    const double scale = static_cast<double>(sizes[i]) / static_cast<double>(from);
    axes.push_back({.axis = names[i], .from = from, .to = sizes[i], .scale = scale});
    common = smaller ? std::min(common, scale) : std::max(common, scale);
  }
  for (Axis& a : axes) {
    if (policy == "stretch") break;
    a.scale = common;
    a.to = static_cast<int64_t>(std::floor(std::min(common * static_cast<double>(a.from), 2 * kMaxExtent) + 0.5));
  }
  return axes;
}

absl::Status TakeRegions(const Node& n, std::vector<Axis>* axes) {
  AMPD_ASSIGN_OR_RETURN(const TensorPtr tensor, n.Known(1));
  const Doubles roi = ToDoubles(*tensor);
  if (roi.size() != 2 * axes->size()) return n.Bad(absl::StrCat("roi has ", roi.size(), " numbers"));
  for (size_t i = 0; i < axes->size(); ++i) {
    (*axes)[i].begin = roi[i];
    (*axes)[i].end = roi[axes->size() + i];
    // Far outside there is nothing; what is no number is nowhere.
    for (const double edge : {roi[i], roi[axes->size() + i]}) {
      if (!(std::abs(edge) <= kMaxExtent)) return n.Bad(absl::StrCat("roi has ", edge));
    }
  }
  return absl::OkStatus();
}

absl::Status Resize(Node& n) {
  const bool first = n.opset() < 11;
  Modes modes{.mode = n.String("mode", "nearest"),
              .coordinates = n.String("coordinate_transformation_mode", first ? "asymmetric" : "half_pixel"),
              .nearest = n.String("nearest_mode", first ? "floor" : "round_prefer_floor"),
              .cubic = n.Float("cubic_coeff_a", -0.75),
              .extrapolation = n.Float("extrapolation_value", 0),
              .exclude_outside = n.Int("exclude_outside", 0) != 0,
              .antialias = n.Int("antialias", 0) != 0,
              // What PyTorch does, and ONNX Runtime; ONNX's own tests go by the scale.
              .to_last = n.services().torch};
  AMPD_RETURN_IF_ERROR(CheckModes(n, modes));
  const int given = first ? 1 : 2;
  std::vector<Axis> axes;
  // Earlier opsets leave scales out as a tensor without elements.
  if (n.Has(given) && Emitter::Size(n[given]) > 0) {
    AMPD_ASSIGN_OR_RETURN(const TensorPtr scales, n.Known(given));
    AMPD_ASSIGN_OR_RETURN(axes, AxesByScale(n, ToDoubles(*scales)));
  } else if (!first && n.Has(3)) {
    AMPD_ASSIGN_OR_RETURN(Ints sizes, n.KnownInts(3));
    AMPD_ASSIGN_OR_RETURN(axes, AxesBySize(n, std::move(sizes)));
  } else {
    return n.Bad("has neither scales nor sizes");
  }
  const bool crops = modes.coordinates == "tf_crop_and_resize";
  if (crops) AMPD_RETURN_IF_ERROR(TakeRegions(n, &axes));
  const auto stays = [&](const Axis& a) { return !crops && a.to == a.from && a.scale == 1; };
  axes.erase(std::remove_if(axes.begin(), axes.end(), stays), axes.end());
  return ResizeAxes(n, modes, std::move(axes));
}

absl::Status Upsample(Node& n) {
  Doubles scales = n.Floats("scales");
  if (n.Has(1)) {
    AMPD_ASSIGN_OR_RETURN(const TensorPtr given, n.Known(1));
    scales = ToDoubles(*given);
  }
  const Modes modes{.mode = n.String("mode", "nearest"), .coordinates = "asymmetric", .nearest = "floor"};
  if (modes.mode == "cubic") return n.Bad("mode is cubic");
  AMPD_RETURN_IF_ERROR(CheckModes(n, modes));
  AMPD_ASSIGN_OR_RETURN(std::vector<Axis> axes, AxesByScale(n, scales));
  axes.erase(std::remove_if(axes.begin(), axes.end(), [](const Axis& a) { return a.to == a.from && a.scale == 1; }),
             axes.end());
  return ResizeAxes(n, modes, std::move(axes));
}

}  // namespace

std::vector<Rule> ResizeRules() { return {{"Resize", Resize, 1}, {"Upsample", Upsample, 1}}; }

}  // namespace ampd::models::onnx
