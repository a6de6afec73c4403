// Operations that move elements without changing them.
#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/core/status.h"
#include "engine/models/onnx/node.h"

namespace ampd::models::onnx {
namespace {

using Ints = std::vector<int64_t>;

Ints Extents(const Shape& shape) { return {shape.begin(), shape.end()}; }

// An input of later opsets that was an attribute of earlier ones; `given` tells whether either is there.
absl::StatusOr<Ints> InputOrAttribute(const Node& n, int input, const char* attribute, bool* given) {
  *given = true;
  if (n.Attribute(attribute) != nullptr) return n.Ints(attribute);
  if (n.Has(input)) return n.KnownInts(input);
  *given = false;
  return Ints{};
}

// A shape that the model has for the batches it was written for becomes that of the actual ones: where it does not fit
// otherwise, or leaves another extent open, which would take in the samples of the batch. What the model computes from
// shapes follows the actual batch already.
void TakeActualBatch(const Node& n, Ints* to) {
  const ImportOptions& options = n.options();
  const int64_t written = options.written_batch, batch = options.batch;
  if (written == 0 || batch == written || to->empty() || n.rank(0) == 0) return;
  // Weights and constants hold no samples, however many elements they have.
  if (!n[0]->of_shape && !n.e.FollowsInput(n[0])) return;
  if ((*to)[0] < 1 || (*to)[0] % written != 0 || (n.Has(1) && n[1]->of_shape)) return;
  double elements = 1;
  for (size_t a = 0; a < to->size(); ++a) {
    const bool copied = (*to)[a] == 0 && static_cast<int>(a) < n.rank(0);
    elements *= static_cast<double>(copied ? n.shape(0)[a] : (*to)[a]);
  }
  const bool open = elements < 0 && n.shape(0)[0] % batch == 0;
  const double size = static_cast<double>(Emitter::Size(n[0]));
  if (open || elements * static_cast<double>(batch) == size * static_cast<double>(written)) {
    (*to)[0] = (*to)[0] / written * batch;
  }
}

absl::Status Reshape(Node& n) {
  bool given = false;
  AMPD_ASSIGN_OR_RETURN(Ints to, InputOrAttribute(n, 1, "shape", &given));
  if (!given) return n.Bad("has no shape");
  TakeActualBatch(n, &to);
  const bool allow_zero = n.Int("allowzero", 0) != 0;
  int64_t open = -1;
  double known = 1;
  for (size_t a = 0; a < to.size(); ++a) {
    if (to[a] == 0 && !allow_zero) {
      if (static_cast<int>(a) >= n.rank(0)) return n.Bad(absl::StrCat("shape is ", ShapeString(to)));
      to[a] = n.shape(0)[a];
    }
    if (to[a] < -1 || (to[a] == -1 && open >= 0)) return n.Bad(absl::StrCat("shape is ", ShapeString(to)));
    if (to[a] == -1) {
      open = static_cast<int64_t>(a);
    } else {
      known *= static_cast<double>(to[a]);
    }
  }
  const int64_t size = Emitter::Size(n[0]);
  if (open >= 0) {
    if (known == 0 || known > static_cast<double>(size) || size % static_cast<int64_t>(known) != 0) {
      if (size != 0 || known == 0)
        return n.Bad(absl::StrCat("shape ", ShapeString(to), " does not fit ", ShapeString(n.shape(0))));
    }
    to[open] = size / static_cast<int64_t>(known);
  }
  return n.Out(n.e.Reshape(n[0], Shape(to.begin(), to.end())));
}

absl::Status Flatten(Node& n) {
  const int64_t rank = n.rank(0), given = n.Int("axis", 1);
  if (given < -rank || given > rank) return n.Bad(absl::StrCat("axis is ", given));
  const int64_t axis = given < 0 ? given + rank : given;
  const absl::Span<const int64_t> all(n.shape(0).data(), n.shape(0).size());
  return n.Out(n.e.Reshape(n[0], {NumElements(all.subspan(0, axis)), NumElements(all.subspan(axis))}));
}

absl::Status Squeeze(Node& n) {
  bool given = false;
  AMPD_ASSIGN_OR_RETURN(Ints axes, InputOrAttribute(n, 1, "axes", &given));
  AMPD_ASSIGN_OR_RETURN(axes, n.Axes(axes, n.rank(0)));
  Shape shape;
  for (int a = 0; a < n.rank(0); ++a) {
    const bool named = std::find(axes.begin(), axes.end(), a) != axes.end();
    if (named && n.shape(0)[a] != 1) return n.Bad(absl::StrCat("axis ", a, " of ", ShapeString(n.shape(0))));
    if (given ? !named : n.shape(0)[a] != 1) shape.push_back(n.shape(0)[a]);
  }
  return n.Out(n.e.Reshape(n[0], shape));
}

absl::Status Unsqueeze(Node& n) {
  bool given = false;
  AMPD_ASSIGN_OR_RETURN(Ints axes, InputOrAttribute(n, 1, "axes", &given));
  const int rank = n.rank(0) + static_cast<int>(axes.size());
  if (rank > 32) return n.Bad(absl::StrCat("gives ", rank, " axes"));
  AMPD_ASSIGN_OR_RETURN(axes, n.Axes(axes, rank));
  Shape shape;
  auto next = n.shape(0).begin();
  for (int a = 0; a < rank; ++a) {
    shape.push_back(std::find(axes.begin(), axes.end(), a) != axes.end() ? 1 : *next++);
  }
  return n.Out(n.e.Reshape(n[0], shape));
}

absl::Status Transpose(Node& n) {
  Ints permutation = n.Ints("perm");
  if (n.Attribute("perm") == nullptr) {
    for (int a = n.rank(0); a-- > 0;) permutation.push_back(a);
  }
  AMPD_ASSIGN_OR_RETURN(permutation, n.Axes(permutation, n.rank(0)));
  if (static_cast<int>(permutation.size()) != n.rank(0)) return n.Bad("perm does not name every axis");
  return n.Out(n.e.Transpose(n[0], permutation));
}

absl::Status Concat(Node& n) {
  std::vector<V> parts;
  for (int i = 0; i < n.inputs(); ++i) {
    if (!n.Has(i)) return n.Bad(absl::StrCat("input ", i, " is missing"));
    parts.push_back(n[i]);
  }
  AMPD_ASSIGN_OR_RETURN(const int axis, n.Axis(n.Int("axis", 1), n.rank(0)));
  return n.Out(n.e.Concat(parts, axis));
}

absl::Status Split(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int axis, n.Axis(n.Int("axis", 0), n.rank(0)));
  bool given = false;
  AMPD_ASSIGN_OR_RETURN(Ints parts, InputOrAttribute(n, 1, "split", &given));
  const int64_t extent = n.shape(0)[axis], count = n.Int("num_outputs", n.outputs());
  if (count < 1 || (!given && count != n.outputs())) return n.Bad(absl::StrCat("num_outputs is ", count));
  const int64_t each = (extent + count - 1) / count;  // the last one is smaller where it does not divide
  for (int64_t left = extent; !given && static_cast<int64_t>(parts.size()) < count;) {
    parts.push_back(std::min(each, left));
    left -= parts.back();
  }
  if (static_cast<int>(parts.size()) < n.outputs()) return n.Bad("fewer parts than outputs");
  int64_t begin = 0;
  for (int i = 0; i < n.outputs(); ++i) {
    if (parts[i] < 0 || parts[i] > extent - begin) return n.Bad(absl::StrCat("parts are ", ShapeString(parts)));
    AMPD_RETURN_IF_ERROR(n.Out(i, n.e.SliceAxis(n[0], axis, begin, begin + parts[i])));
    begin += parts[i];
  }
  return absl::OkStatus();
}

absl::Status Slice(Node& n) {
  bool given = false, axes_given = false, steps_given = false;
  AMPD_ASSIGN_OR_RETURN(const Ints starts, InputOrAttribute(n, 1, "starts", &given));
  AMPD_ASSIGN_OR_RETURN(const Ints ends, InputOrAttribute(n, 2, "ends", &given));
  AMPD_ASSIGN_OR_RETURN(Ints axes, InputOrAttribute(n, 3, "axes", &axes_given));
  AMPD_ASSIGN_OR_RETURN(Ints steps, InputOrAttribute(n, 4, "steps", &steps_given));
  if (!axes_given) {
    axes.resize(starts.size());
    std::iota(axes.begin(), axes.end(), 0);
  }
  if (!steps_given) steps.assign(starts.size(), 1);
  AMPD_ASSIGN_OR_RETURN(axes, n.Axes(axes, n.rank(0)));
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size()) {
    return n.Bad("starts, ends, axes and steps have different lengths");
  }
  Ints from(static_cast<size_t>(n.rank(0)), 0), to = Extents(n.shape(0)), by(from.size(), 1);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t extent = n.shape(0)[axes[i]], step = steps[i];
    if (step == 0) return n.Bad("a step is 0");
    const int64_t high = step > 0 ? extent : extent - 1;
    const auto position = [&](int64_t p, int64_t low) { return std::clamp(p < 0 ? p + extent : p, low, high); };
    // Backwards too a start below the axis is its first element, where numpy's slice is empty.
    from[axes[i]] = position(starts[i], std::min<int64_t>(0, high));
    to[axes[i]] = position(ends[i], step > 0 ? 0 : -1);
    by[axes[i]] = std::clamp(step, -std::max<int64_t>(extent, 1), std::max<int64_t>(extent, 1));
  }
  return n.Out(n.e.Slice(n[0], from, to, by));
}

absl::Status Gather(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int axis, n.Axis(n.Int("axis", 0), n.rank(0)));
  return n.Out(n.e.Gather(n[0], n[1], axis));
}

absl::Status GatherElements(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int axis, n.Axis(n.Int("axis", 0), n.rank(0)));
  if (n.rank(1) != n.rank(0)) return n.Bad("data and indices have different numbers of axes");
  return n.Out(n.e.GatherElements(n[0], n[1], axis));
}

absl::Status GatherNd(Node& n) {
  const int64_t batch = n.Int("batch_dims", 0), rank = n.rank(1);
  if (rank < 1 || batch < 0 || batch >= rank || batch >= n.rank(0)) return n.Bad(absl::StrCat("batch_dims is ", batch));
  const int64_t depth = n.shape(1)[rank - 1];
  if (depth < 1 || batch + depth > n.rank(0)) return n.Bad(absl::StrCat("indices of ", depth, " axes"));
  // The axes that indices replace, and those of the batch, become one.
  const Shape x = n.shape(0), to = n.shape(1);
  const absl::Span<const int64_t> extents(x.data(), x.size()), given(to.data(), to.size());
  const int64_t samples = NumElements(extents.subspan(0, batch)), inner = NumElements(extents.subspan(batch, depth));
  if (!std::equal(x.begin(), x.begin() + batch, to.begin())) return n.Bad("batches of data and indices differ");
  if (!n.e.AllowConstant(static_cast<double>(samples)) || !n.e.AllowIndices(n[0])) return absl::OkStatus();
  const bool elements = NumElements(x) > 0 && NumElements(to) > 0;
  if (elements && (n[0]->host == nullptr || n[1]->host == nullptr)) {
    std::vector<V> columns;
    for (int64_t k = 0; n[1]->host != nullptr && k < depth; ++k) {
      columns.push_back(n.e.Positions(n.e.SliceAxis(n[1], static_cast<int>(rank - 1), k, k + 1), x[batch + k]));
    }
    // The op knows negative indices; those that are known now are checked.
    const V places =
        n[1]->host == nullptr ? n.e.Cast(n[1], DType::kI32) : n.e.Concat(columns, static_cast<int>(rank - 1));
    return n.Out(n.e.Op1("gather_nd", {n[0], places}, {{"batch_dims", batch}}));
  }
  auto first = std::make_shared<Tensor>(DType::kI32, Shape{samples, 1});
  for (int64_t i = 0; i < samples; ++i) first->as<int32_t>()[i] = static_cast<int32_t>(i * inner);
  const int64_t each = NumElements(given.subspan(batch, rank - 1 - batch));
  V place = n.e.Known(std::move(first));
  int64_t stride = inner;
  for (int64_t k = 0; k < depth; ++k) {
    stride /= std::max<int64_t>(x[batch + k], 1);
    const V column = n.e.Reshape(n.e.SliceAxis(n[1], static_cast<int>(rank - 1), k, k + 1), {samples, each});
    const V position = n.e.Positions(column, x[batch + k]);
    place = n.e.Add(place, n.e.MulScalar(position, static_cast<double>(stride)));
  }
  Shape rows{samples * inner}, shape(to.begin(), to.end() - 1);
  rows.insert(rows.end(), x.begin() + batch + depth, x.end());
  shape.insert(shape.end(), x.begin() + batch + depth, x.end());
  return n.Out(n.e.Reshape(n.e.Gather(n.e.Reshape(n[0], rows), place, 0), shape));
}

absl::Status Expand(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const Ints to, n.KnownInts(1));
  const absl::optional<Shape> shape = BroadcastShape(n.shape(0), Shape(to.begin(), to.end()));
  if (!shape || std::any_of(to.begin(), to.end(), [](int64_t extent) { return extent < 0; })) {
    return n.Bad(absl::StrCat(ShapeString(n.shape(0)), " does not broadcast with ", ShapeString(to)));
  }
  return n.Out(n.e.Expand(n[0], *shape));
}

absl::Status Tile(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const Ints repeats, n.KnownInts(1));
  if (static_cast<int>(repeats.size()) != n.rank(0)) return n.Bad("needs one repeat an axis");
  // Each axis becomes two, the first of which is repeated.
  Shape split, expanded, merged;
  for (int a = 0; a < n.rank(0); ++a) {
    const int64_t extent = n.shape(0)[a];
    if (repeats[a] < 0 || repeats[a] > (int64_t{1} << 40) / std::max<int64_t>(extent, 1))
      return n.Bad("repeats are too many");
    split.insert(split.end(), {1, extent});
    expanded.insert(expanded.end(), {repeats[a], extent});
    merged.push_back(repeats[a] * extent);
  }
  return n.Out(n.e.Reshape(n.e.Expand(n.e.Reshape(n[0], split), expanded), merged));
}

// Pads as [begin..., end...] for every axis, from those of the named axes.
absl::StatusOr<Ints> PadsOf(const Node& n) {
  bool given = false, axes_given = false;
  const char* attribute = n.Attribute("paddings") != nullptr ? "paddings" : "pads";
  AMPD_ASSIGN_OR_RETURN(const Ints pads, InputOrAttribute(n, 1, attribute, &given));
  AMPD_ASSIGN_OR_RETURN(Ints axes, InputOrAttribute(n, 3, "axes", &axes_given));
  const size_t rank = static_cast<size_t>(n.rank(0));
  if (!axes_given) {
    axes.resize(rank);
    std::iota(axes.begin(), axes.end(), 0);
  }
  AMPD_ASSIGN_OR_RETURN(axes, n.Axes(axes, n.rank(0)));
  if (pads.size() != 2 * axes.size()) return n.Bad(absl::StrCat("has ", pads.size(), " pads"));
  Ints all(2 * rank, 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    all[axes[i]] = pads[i];
    all[rank + axes[i]] = pads[axes.size() + i];
  }
  for (size_t a = 0; a < rank; ++a) {
    const int64_t extent = n.shape(0)[a], limit = int64_t{1} << 32;
    if (std::max(std::abs(all[a]), std::abs(all[rank + a])) > limit || extent + all[a] + all[rank + a] < 0) {
      return n.Bad(absl::StrCat("pads are ", ShapeString(pads)));
    }
  }
  return all;
}

// Which element of `extent` stands at `i`, which may lie outside, in a mode that repeats elements.
int64_t Repeated(const std::string& mode, int64_t i, int64_t extent) {
  const auto modulo = [](int64_t a, int64_t b) { return ((a % b) + b) % b; };
  if (mode == "edge") return std::clamp<int64_t>(i, 0, extent - 1);
  if (mode == "wrap" || extent == 1) return modulo(i, extent);
  const int64_t place = modulo(i, 2 * (extent - 1));
  return place < extent ? place : 2 * (extent - 1) - place;
}

// Pads with elements of the tensor itself: at its edge, mirrored at it, or going on from its other end.
V PadWithItself(Node& n, V x, const Ints& pads, const std::string& mode) {
  // What the op reaches: anything beyond the edge, less than the extent beyond a mirror.
  bool reached = mode != "wrap" && x->host == nullptr;
  for (int a = 0; a < n.rank(0); ++a) {
    const int64_t most = mode == "edge" ? std::numeric_limits<int64_t>::max() : Emitter::Extent(x, a) - 1;
    reached = reached && Emitter::Extent(x, a) > 0 && pads[a] <= most && pads[n.rank(0) + a] <= most;
  }
  if (reached) return n.e.Op1("pad", {x}, {{"pads", pads}, {"mode", mode}});
  for (int a = 0; a < n.rank(0); ++a) {
    const int64_t extent = Emitter::Extent(x, a), begin = pads[a], end = pads[n.rank(0) + a];
    if (begin == 0 && end == 0) continue;
    if (extent == 0) return n.e.Fail(n.Bad("pads an axis without elements by its elements"));
    if (!n.e.AllowConstant(static_cast<double>(extent) + static_cast<double>(begin) + static_cast<double>(end)))
      return x;
    std::vector<int64_t> indices;
    for (int64_t i = -begin; i < extent + end; ++i) indices.push_back(Repeated(mode, i, extent));
    x = n.e.Gather(x, n.e.Ints(indices), a);
  }
  return x;
}

absl::Status Pad(Node& n) {
  AMPD_ASSIGN_OR_RETURN(Ints pads, PadsOf(n));
  const size_t rank = static_cast<size_t>(n.rank(0));
  const std::string mode = n.String("mode", "constant");
  double value = n.Float("value", 0);
  if (n.Has(2)) {
    AMPD_ASSIGN_OR_RETURN(const TensorPtr given, n.Known(2));
    if (given->size() != 1) return n.Bad("the value has to be one element");
    value = DoubleAt(given->view(), 0);
  }
  // Negative pads cut off; the rest pads what is left.
  Ints starts(rank, 0), ends = Extents(n.shape(0));
  for (size_t a = 0; a < rank; ++a) {
    starts[a] = std::max<int64_t>(-pads[a], 0);
    ends[a] -= std::max<int64_t>(-pads[rank + a], 0);
    if (ends[a] < starts[a]) return n.Bad("pads cut off more than there is");
    pads[a] = std::max<int64_t>(pads[a], 0);
    pads[rank + a] = std::max<int64_t>(pads[rank + a], 0);
  }
  const V x = n.e.Slice(n[0], starts, ends, Ints(rank, 1));
  if (mode == "wrap" || mode == "reflect" || mode == "edge") return n.Out(PadWithItself(n, x, pads, mode));
  if (mode != "constant") return n.Bad(absl::StrCat("mode is ", mode));
  return n.Out(n.e.Pad(x, Ints(pads.begin(), pads.begin() + rank), Ints(pads.begin() + rank, pads.end()), value));
}

absl::Status OneHot(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const Ints depths, n.KnownInts(1));
  if (depths.size() != 1 || depths[0] < 1 || depths[0] > (1 << 30)) return n.Bad("depth has to be one number >= 1");
  const int64_t depth = depths[0];
  if (n.shape(2) != Shape{2}) return n.Bad("values have to be two");
  AMPD_ASSIGN_OR_RETURN(const int axis, n.Axis(n.Int("axis", -1), n.rank(0) + 1));
  V indices = n.e.Cast(n[0], DType::kI32);
  indices = n.e.Where(n.e.Binary("less", indices, n.e.Scalar(DType::kI32, 0)),
                      n.e.AddScalar(indices, static_cast<double>(depth)), indices);
  Shape shape = n.shape(0), classes(static_cast<size_t>(n.rank(0) + 1), 1);
  shape.insert(shape.begin() + axis, 1);
  classes[axis] = depth;
  if (!n.e.AllowConstant(static_cast<double>(depth))) return absl::OkStatus();
  auto counting = std::make_shared<Tensor>(DType::kI32, Shape{depth});
  std::iota(counting->as<int32_t>().begin(), counting->as<int32_t>().end(), 0);
  const V hit = n.e.Binary("equal", n.e.Reshape(indices, shape), n.e.Reshape(n.e.Known(std::move(counting)), classes));
  const V off = n.e.Reshape(n.e.SliceAxis(n[2], 0, 0, 1), {}), on = n.e.Reshape(n.e.SliceAxis(n[2], 0, 1, 2), {});
  return n.Out(n.e.Where(hit, on, off));
}

absl::StatusOr<int64_t> BlockOf(const Node& n) {
  const int64_t block = n.Int("blocksize", 0);
  if (n.rank(0) != 4 || block < 1 || block > 1024) return n.Bad(absl::StrCat("blocksize is ", block));
  return block;
}

absl::Status DepthToSpace(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int64_t b, BlockOf(n));
  const Shape& s = n.shape(0);
  if (s[1] % (b * b) != 0) return n.Bad(absl::StrCat(s[1], " channels"));
  const int64_t c = s[1] / (b * b);
  const bool columns_first = n.String("mode", "DCR") == "CRD";
  V x = columns_first ? n.e.Reshape(n[0], {s[0], c, b, b, s[2], s[3]}) : n.e.Reshape(n[0], {s[0], b, b, c, s[2], s[3]});
  x = n.e.Transpose(x, columns_first ? Ints{0, 1, 4, 2, 5, 3} : Ints{0, 3, 4, 1, 5, 2});
  return n.Out(n.e.Reshape(x, {s[0], c, s[2] * b, s[3] * b}));
}

absl::Status SpaceToDepth(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int64_t b, BlockOf(n));
  const Shape& s = n.shape(0);
  if (s[2] % b != 0 || s[3] % b != 0) return n.Bad(absl::StrCat("image of ", s[2], " by ", s[3]));
  V x = n.e.Reshape(n[0], {s[0], s[1], s[2] / b, b, s[3] / b, b});
  const bool columns_first = n.String("mode", "DCR") == "CRD";
  x = n.e.Transpose(x, columns_first ? Ints{0, 1, 3, 5, 2, 4} : Ints{0, 3, 5, 1, 2, 4});
  return n.Out(n.e.Reshape(x, {s[0], s[1] * b * b, s[2] / b, s[3] / b}));
}

}  // namespace

std::vector<Rule> MovementRules() {
  return {
      {"Reshape", Reshape, 1},
      {"Flatten", Flatten, 1},
      {"Squeeze", Squeeze, 1},
      {"Unsqueeze", Unsqueeze, 1},
      {"Transpose", Transpose, 1},
      {"Concat", Concat, 1},
      {"Split", Split, 1},
      {"Slice", Slice, 1},
      {"Gather", Gather, 2},
      {"GatherElements", GatherElements, 2},
      {"GatherND", GatherNd, 2},
      {"Expand", Expand, 2},
      {"Tile", Tile, 2},
      {"Pad", Pad, 1},
      {"OneHot", OneHot, 3},
      {"DepthToSpace", DepthToSpace, 1},
      {"SpaceToDepth", SpaceToDepth, 1},
  };
}

}  // namespace ampd::models::onnx
