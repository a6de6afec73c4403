#include "engine/backend/cpu/conv2d_tiles.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/backend/cpu/conv2d_window.h"
#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/tile_sums.h"

namespace ampd::cpu {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;

// Output pixels by filter cells of one axis.
constexpr int64_t kMostPairs = int64_t{1} << 20;

// What meets along one axis: output pixel o and filter cell f at image pixel o * stride + f * step - before.
template <typename Visit>
void ForMeetings(const Window& window, int axis, int64_t image, int64_t filter, int64_t output, const Visit& visit) {
  for (int64_t o = 0; o < output; ++o) {
    for (int64_t f = 0; f < filter; ++f) {
      const int64_t i = o * window.strides[axis] + f * (window.dilations[axis] + 1) - window.before[axis];
      if (i >= 0 && i < image) visit(i, f, o);
    }
  }
}

// Puts each `stride`-th place next to each other.
void Regroup(int64_t stride, TileAxis* axis) {
  std::vector<TileAxis::Pairs> places;
  for (int64_t first = 0; first < stride; ++first) {
    for (int64_t i = first; i < static_cast<int64_t>(axis->places.size()); i += stride) {
      axis->order.push_back(i);
      places.push_back(std::move(axis->places[i]));
    }
  }
  axis->places = std::move(places);
}

TileAxis AxisOf(OpKind op, const Window& window, int axis, int64_t image, int64_t filter, int64_t output) {
  TileAxis sums;
  const auto places = [&](int64_t n, int64_t a, int64_t b) {
    sums.places.resize(n);
    sums.a_places = a;
    sums.b_places = b;
  };
  if (op == OpKind::kConv2d) {
    places(output, image, filter);
    ForMeetings(window, axis, image, filter, output,
                [&](int64_t i, int64_t f, int64_t o) { sums.places[o].emplace_back(i, f); });
  } else if (op == OpKind::kConv2dGradFilter) {
    places(filter, output, image);
    ForMeetings(window, axis, image, filter, output,
                [&](int64_t i, int64_t f, int64_t o) { sums.places[f].emplace_back(o, i); });
  } else {
    places(image, output, filter);
    ForMeetings(window, axis, image, filter, output,
                [&](int64_t i, int64_t f, int64_t o) { sums.places[i].emplace_back(o, f); });
    // Only pixels a stride apart meet the same cells.
    if (axis == 1 && window.strides[1] > 1) Regroup(window.strides[1], &sums);
  }
  return sums;
}

// The shapes of a convolution's operands, whichever of them `desc` computes.
struct Shapes {
  Shape image, filter, output;
};

Shapes ShapesOf(const NodeDesc& desc) {
  switch (desc.op) {
    case OpKind::kConv2d:
      return {desc.inputs[0].shape, desc.inputs[1].shape, desc.outputs[0].shape};
    case OpKind::kConv2dGradFilter:
      return {desc.inputs[1].shape, desc.outputs[0].shape, desc.inputs[0].shape};
    default:
      return {desc.outputs[0].shape, desc.inputs[1].shape, desc.inputs[0].shape};
  }
}

TileSum SumOf(const NodeDesc& desc) {
  const Shapes s = ShapesOf(desc);
  const Window window = MakeWindow(desc);
  TileSum sum;
  sum.y = AxisOf(desc.op, window, 0, s.image[1], s.filter[1], s.output[1]);
  sum.x = AxisOf(desc.op, window, 1, s.image[2], s.filter[2], s.output[2]);
  const int64_t images = s.image[0], channels = s.image[3], filters = s.filter[0];
  if (desc.op == OpKind::kConv2d) {
    sum.m = images, sum.n = filters, sum.depth = channels;
  } else if (desc.op == OpKind::kConv2dGradFilter) {
    sum.m = filters, sum.n = channels, sum.depth = images;
  } else {
    sum.m = images, sum.n = channels, sum.depth = filters;
  }
  return sum;
}

// How many of `images`, all of which take `bytes` when packed, to take at a time: in equal turns, the last of which may
// have fewer.
int64_t ImagesAtATime(int64_t images, int64_t bytes, int64_t packed_bytes) {
  const int64_t each = bytes / std::max<int64_t>(images, 1);
  const int64_t most = std::max<int64_t>(packed_bytes / std::max<int64_t>(each, 1) / kTileDepth, 1) * kTileDepth;
  const int64_t turns = TilesOf(images, most);
  return TilesOf(TilesOf(images, turns), kTileDepth) * kTileDepth;
}

// y or dx: images [m] by filters or channels [n].
class ImageTiles : public runtime::Kernel {
 public:
  ImageTiles(const NodeDesc& desc, const ConvTileLimits& limits)
      : threads_(desc.threads),
        images_(desc.inputs[0].shape[0]),
        forward_(desc.op == OpKind::kConv2d),
        window_bytes_(limits.window_bytes),
        sum_(SumOf(desc)),
        each_(std::min(images_, ImagesAtATime(images_, sum_.a_bytes(), limits.packed_bytes))) {
    sum_.m = each_;
    workspace_bytes_ = sum_.a_bytes();
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  absl::optional<runtime::PublishedLayout> published_layout(int input) const override {
    if (input != 1) return absl::nullopt;
    runtime::PublishedLayout layout;
    layout.key = absl::StrCat("bf16:tiles:", forward_ ? "filters by channels " : "channels by filters ",
                              absl::StrJoin({sum_.b_places(), sum_.n, sum_.depth}, ","));
    layout.bytes = sum_.b_bytes();
    const int64_t elements = sum_.b_places() * sum_.n * sum_.depth;
    layout.workspace_bytes = elements * static_cast<int64_t>(sizeof(BFloat16));
    const auto pack = forward_ ? PackColumnsByDepth : PackDepthByColumns;
    layout.write = [sum = sum_.WithoutPairs(), threads = threads_, elements, pack](const float* master, void* copy,
                                                                                   void* workspace) {
      ParallelFromF32(threads, master, elements, DType::kBF16, workspace);
      pack(threads, sum, static_cast<const uint16_t*>(workspace), static_cast<uint16_t*>(copy));
      return absl::OkStatus();
    };
    return layout;
  }

  absl::Status Launch(const KernelArgs& args) override {
    const uint16_t* from = args.inputs[0].as<uint16_t>();
    uint16_t* to = args.outputs[0].as<uint16_t>();
    uint16_t* packed = static_cast<uint16_t*>(args.workspace);
    for (int64_t image = 0; image < images_; image += each_) {
      sum_.m = std::min(each_, images_ - image);
      PackRows(threads_, sum_, from + image * sum_.a_places() * sum_.depth, packed);
      RunTileSum(threads_, sum_,
                 {.a = packed,
                  .b = args.inputs[1].as<uint16_t>(),
                  .result = to + image * sum_.places() * sum_.n,
                  .window_bytes = window_bytes_});
    }
    return absl::OkStatus();
  }

 private:
  int threads_;
  int64_t images_;
  bool forward_;
  int64_t window_bytes_;
  TileSum sum_;
  int64_t each_;
  int64_t workspace_bytes_ = 0;
};

// dw: filters [m] by channels [n], summed over the images.
class GradFilterTiles : public runtime::Kernel {
 public:
  GradFilterTiles(const NodeDesc& desc, const ConvTileLimits& limits)
      : threads_(desc.threads),
        images_(desc.inputs[0].shape[0]),
        window_bytes_(limits.window_bytes),
        sum_(SumOf(desc)) {
    each_ = std::min(images_, ImagesAtATime(images_, sum_.a_bytes() + sum_.b_bytes(), limits.packed_bytes));
    sum_.depth = each_;
    const int64_t row = (sum_.x.a_places + sum_.x.b_places) * TilesOf(each_, kTileDepth) * 4 * kTileElements;
    const int64_t turns = TilesOf(sum_.y.a_places, std::max<int64_t>(limits.rows_bytes / row, 1));
    rows_ = TilesOf(sum_.y.a_places, turns);
    a_at_ = layout_.Add(sum_.a_bytes());
    b_at_ = layout_.Add(sum_.b_bytes());
    const bool once = each_ == images_ && rows_ == sum_.y.a_places;
    if (!once) sums_at_ = layout_.Add(sum_.sum_bytes());
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  absl::Status Launch(const KernelArgs& args) override {
    const uint16_t* dy = args.inputs[0].as<uint16_t>();
    const uint16_t* image = args.inputs[1].as<uint16_t>();
    TileRun run = {.sums = WorkspaceAt<float>(args, sums_at_),
                   .result = args.outputs[0].as<uint16_t>(),
                   .window_bytes = window_bytes_};
    for (int64_t first = 0; first < images_; first += each_) {
      sum_.depth = std::min(each_, images_ - first);
      uint16_t* a = WorkspaceAt<uint16_t>(args, a_at_);
      uint16_t* b = WorkspaceAt<uint16_t>(args, b_at_);
      PackColumns(threads_, sum_, dy + first * sum_.a_places() * sum_.m, a);
      PackDepthByColumns(threads_, sum_, image + first * sum_.b_places() * sum_.n, b);
      run.a = a, run.b = b;
      for (int64_t row = 0; row < sum_.y.a_places; row += rows_) {
        run.y_begin = row, run.y_end = row + rows_;
        run.first = first == 0 && row == 0;
        run.last = first + each_ >= images_ && row + rows_ >= sum_.y.a_places;
        RunTileSum(threads_, sum_, run);
      }
    }
    return absl::OkStatus();
  }

 private:
  int threads_;
  int64_t images_;
  int64_t window_bytes_;
  TileSum sum_;
  int64_t each_ = 0, rows_ = 0;  // images, and rows of dy, at a time
  WorkspaceLayout layout_;
  int64_t a_at_ = 0, b_at_ = 0, sums_at_ = 0;
};

}  // namespace

bool TilesCanConvolve(const NodeDesc& desc) {
  if (desc.inputs[0].dtype != DType::kBF16 || MakeWindow(desc).groups != 1) return false;
  return desc.op == OpKind::kConv2dGradFilter || desc.IsParameter(1);
}

// Measured on two cores of a Sapphire Rapids with oneDNN 2.6.3, one layer at a time (tests/bench/results).
bool TilesConvolveFaster(const NodeDesc& desc) {
  if (!TilesCanConvolve(desc) || !HasTiles()) return false;
  const Shapes s = ShapesOf(desc);
  const int64_t images = s.image[0], channels = s.image[3], filters = s.filter[0], cells = s.filter[1] * s.filter[2];
  // Else what meets would take much memory to write down.
  for (int axis = 1; axis <= 2; ++axis) {
    if (s.output[axis] * s.filter[axis] > kMostPairs) return false;
  }
  // Else much of each tile would be empty.
  if (images < kTileEdge || channels < kTileDepth || filters < kTileDepth) return false;
  switch (desc.op) {
    case OpKind::kConv2d:
      // oneDNN's tiles hold pixels of one row, and what lies outside the image costs as much as what lies within.
      return channels >= 2 * kTileDepth && cells >= 49 && s.output[2] <= kTileEdge;
    case OpKind::kConv2dGradFilter:
      return images >= kTileDepth;
    default: {
      const Window window = MakeWindow(desc);
      return cells > 1 && (window.strides[0] > 1 || window.strides[1] > 1);
    }
  }
}

std::unique_ptr<runtime::Kernel> MakeConvTiles(const NodeDesc& desc, const ConvTileLimits& limits) {
  if (desc.op == OpKind::kConv2dGradFilter) return std::make_unique<GradFilterTiles>(desc, limits);
  return std::make_unique<ImageTiles>(desc, limits);
}

}  // namespace ampd::cpu
