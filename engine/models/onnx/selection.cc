// Largest and smallest elements of an axis, and where they stand: found one after the other, each round without those
// of the rounds before. Places have no gradients; elements have that of the gather that fetches them.
#include <limits>
#include <numeric>

#include "engine/core/status.h"
#include "engine/models/onnx/node.h"

namespace ampd::models::onnx {
namespace {

// Rounds of one node; each is some operations on the whole operand.
constexpr int64_t kMostRounds = 16;

// The places of an axis, to be compared with those of an operand of `rank` axes.
V Places(Emitter& e, int64_t extent, int axis, int rank) {
  auto tensor = std::make_shared<Tensor>(DType::kI32, Shape{extent});
  std::iota(tensor->as<int32_t>().begin(), tensor->as<int32_t>().end(), 0);
  Shape shape(static_cast<size_t>(rank), 1);
  shape[axis] = extent;
  return e.Reshape(e.Known(std::move(tensor)), shape);
}

// By place along `axis` (of extent 1 in the results) the `count` largest elements of x, or smallest, the first ones
// (`last`: the last ones) of equals; i32.
std::vector<V> FindPlaces(Emitter& e, V x, int axis, int64_t count, bool largest, bool last) {
  const int64_t extent = Emitter::Extent(x, axis);
  const V places = Places(e, extent, axis, Emitter::Rank(x));
  const double beyond = std::numeric_limits<double>::infinity() * (largest ? -1 : 1);
  // Where no element is equal, as among NaNs, it is the place at the end.
  const V none = e.Scalar(DType::kI32, last ? 0 : static_cast<double>(extent - 1));
  std::vector<V> found;
  V free = nullptr;  // where nothing was found yet
  for (int64_t k = 0; k < count && e.ok(); ++k) {
    const V rest = free == nullptr ? x : e.Where(free, x, e.Scalar(x->type.dtype, beyond));
    const V best = e.Reduce(largest ? "reduce_max" : "reduce_min", rest, {axis}, true);
    V hit = e.Binary("equal", rest, best);
    if (free != nullptr) hit = e.Binary("logical_and", hit, free);
    found.push_back(e.Reduce(last ? "reduce_max" : "reduce_min", e.Where(hit, places, none), {axis}, true));
    const V left = e.Unary("logical_not", e.Binary("equal", places, found.back()));
    free = free == nullptr ? left : e.Binary("logical_and", free, left);
  }
  return found;
}

absl::Status CheckOperand(Node& n, int axis) {
  if (!IsFloat(n.dtype(0))) return n.Unsupported(absl::StrCat("an operand of ", DTypeName(n.dtype(0))));
  n.e.AllowConstant(static_cast<double>(n.shape(0)[axis]));
  return absl::OkStatus();
}

absl::Status TopK(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const int axis, n.Axis(n.Int("axis", -1), n.rank(0)));
  int64_t count = n.Int("k", 0);
  if (n.Has(1)) {
    AMPD_ASSIGN_OR_RETURN(const std::vector<int64_t> given, n.KnownInts(1));
    if (given.size() != 1) return n.Bad("K has to be one number");
    count = given[0];
  }
  if (count < 1 || count > n.shape(0)[axis]) {
    return n.Bad(absl::StrCat("K is ", count, " for an axis of ", n.shape(0)[axis]));
  }
  if (count > kMostRounds) return n.Unsupported(absl::StrCat("K of ", count, ", at most ", kMostRounds));
  AMPD_RETURN_IF_ERROR(CheckOperand(n, axis));
  if (!n.e.ok()) return absl::OkStatus();
  const std::vector<V> found = FindPlaces(n.e, n[0], axis, count, n.Int("largest", 1) != 0, false);
  if (!n.e.ok()) return absl::OkStatus();
  const V places = n.e.Concat(found, axis);
  AMPD_RETURN_IF_ERROR(n.Out(0, n.e.GatherElements(n[0], places, axis)));
  return n.Out(1, n.e.Cast(places, DType::kI64));
}

absl::Status ArgOf(Node& n, bool largest) {
  AMPD_ASSIGN_OR_RETURN(const int axis, n.Axis(n.Int("axis", 0), n.rank(0)));
  AMPD_RETURN_IF_ERROR(CheckOperand(n, axis));
  if (!n.e.ok()) return absl::OkStatus();
  const std::vector<V> found = FindPlaces(n.e, n[0], axis, 1, largest, n.Int("select_last_index", 0) != 0);
  if (!n.e.ok()) return absl::OkStatus();
  Shape shape = n.shape(0);
  shape[axis] = 1;
  if (n.Int("keepdims", 1) == 0) shape.erase(shape.begin() + axis);
  return n.Out(n.e.Cast(n.e.Reshape(found[0], shape), DType::kI64));
}

absl::Status ArgMax(Node& n) { return ArgOf(n, true); }
absl::Status ArgMin(Node& n) { return ArgOf(n, false); }

}  // namespace

std::vector<Rule> SelectionRules() {
  return NeverEmpty({{"TopK", TopK, 1}, {"ArgMax", ArgMax, 1}, {"ArgMin", ArgMin, 1}});
}

}  // namespace ampd::models::onnx
