#include <algorithm>
#include <utility>
#include <vector>

#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/index_math.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/place.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;
using Ints = std::vector<int64_t>;
using StatusOrKernel = absl::StatusOr<std::unique_ptr<runtime::Kernel>>;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

// y in order, `kN` elements at a time that lie in one row of the view.
template <typename T, int kN, typename Index>
__global__ void ReadView(const T* __restrict__ x, const StridedIndex view, int64_t stride, Index packs,
                         T* __restrict__ y) {
  for (Index i = ThreadInGrid<Index>(); i < packs; i += ThreadsInGrid<Index>()) {
    const T* from = x + view.At(i * kN);
    Pack<T, kN> out;
    for (int j = 0; j < kN; ++j) out.values[j] = from[j * stride];
    reinterpret_cast<Pack<T, kN>*>(y)[i] = out;
  }
}

// A view whose elements are `bytes` each.
struct ViewOfBytes {
  StridedView view;
  int64_t bytes;

  // Along the last axis.
  int64_t stride() const { return view.strides.empty() ? 0 : view.strides.back(); }
};

// Neighbours that move together become one element.
ViewOfBytes Widened(StridedView view, int64_t bytes) {
  if (view.extents.empty() || view.strides.back() != 1) return {std::move(view), bytes};
  Shape multiples = view.strides;
  multiples.back() = view.extents.back();
  multiples.push_back(view.offset);
  const int64_t together = ElementsTogether(bytes, multiples);
  for (int64_t& stride : view.strides) stride /= together;
  view.strides.back() = 1;
  view.extents.back() /= together;
  view.offset /= together;
  return {std::move(view), bytes * together};
}

template <typename T, int kN, typename Index>
StatusOrKernel MakeReading(Context* context, const NodeDesc& desc, const ViewOfBytes& from) {
  const auto packs = static_cast<Index>(from.view.size() / kN);
  const unsigned blocks = BlocksFor(packs, kThreads, context->properties().sm_count);
  AMPD_ASSIGN_OR_RETURN(const StridedIndex view, MakeStridedIndex(desc.name, from.view));
  return MakeKernel(0, [=, name = desc.name, stride = from.stride()](const KernelArgs& args) {
    return Launch(name, ReadView<T, kN, Index>, blocks, kThreads, 0, context->stream(), args.inputs[0].as<T>(), view,
                  stride, packs, args.outputs[0].as<T>());
  });
}

// The output is the first input through `view`, which is collapsed.
StatusOrKernel Reading(Context* context, const NodeDesc& desc, StridedView view) {
  const ViewOfBytes from = Widened(std::move(view), SizeOf(desc.outputs[0].dtype));
  return VisitIndex(from.view.size(), [&](auto index) {
    using Index = decltype(index);
    return VisitMove(from.bytes, [&](auto element) -> StatusOrKernel {
      using T = decltype(element);
      constexpr int kN = kPack<T>;
      // Strided or repeated in the view, but still in one row: written as one.
      const bool in_packs = !from.view.extents.empty() && from.stride() != 1 && from.view.extents.back() % kN == 0;
      if (in_packs) return MakeReading<T, kN, Index>(context, desc, from);
      return MakeReading<T, 1, Index>(context, desc, from);
    });
  });
}

// What a transposition does with each plane that two axes span: the one that is dense in x, down the rows of y, and the
// one that is dense in y, along its columns. The other axes choose the plane.
struct Planes {
  int64_t rows = 1, columns = 1;
  int64_t x_stride = 1;  // of x from column to column
  int64_t y_stride = 1;  // of y from row to row
  StridedView x_planes, y_planes;
};

template <typename Index>
struct DevicePlanes {
  int64_t rows, columns, x_stride, y_stride;
  IndexDivisor<Index> row_tiles, column_tiles;
  StridedIndex x_planes, y_planes;
};

// By way of shared memory, so that both sides are accessed in runs: tiles of kV elements by a warp's 32. Row c of a
// tile lies at c % kV * 32 + c / kV and rows are one access longer than needed, so that the 32 lanes meet 32 banks both
// along a row and down a column.
template <typename T, int kV, typename Index>
__global__ void TransposePlanes(const T* __restrict__ x, const DevicePlanes<Index> planes, Index tiles,
                                T* __restrict__ y) {
  constexpr int kTile = kWarp * kV;
  alignas(16) __shared__ T tile[kTile][kTile + kV];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  for (Index t = blockIdx.x; t < tiles; t += gridDim.x) {
    Index row_tile, column_tile;
    const Index plane = Divide(planes.row_tiles, Divide(planes.column_tiles, t, &column_tile), &row_tile);
    const int64_t first_row = int64_t{row_tile} * kTile, first_column = int64_t{column_tile} * kTile;
    const T* from = x + planes.x_planes.At(plane);
    T* to = y + planes.y_planes.At(plane);
    // The tile before is still being read.
    __syncthreads();
    for (int c = warp; c < kTile; c += kWarps) {
      const int64_t row = first_row + lane * kV, column = first_column + c;
      if (row >= planes.rows || column >= planes.columns) continue;
      *reinterpret_cast<Pack<T, kV>*>(&tile[c % kV * kWarp + c / kV][lane * kV]) =
          *reinterpret_cast<const Pack<T, kV>*>(from + column * planes.x_stride + row);
    }
    __syncthreads();
    for (int r = warp; r < kTile; r += kWarps) {
      const int64_t row = first_row + r, column = first_column + lane * kV;
      if (row >= planes.rows || column >= planes.columns) continue;
      Pack<T, kV> out;
      for (int j = 0; j < kV; ++j) out.values[j] = tile[j * kWarp + lane][r];
      *reinterpret_cast<Pack<T, kV>*>(to + row * planes.y_stride + column) = out;
    }
  }
}

// Splits a collapsed permutation; its last axis is not dense in x. Null planes where tiles would be nearly empty.
bool FindPlanes(const StridedView& view, Planes* planes) {
  constexpr int64_t kLeast = kWarp / 2;
  const size_t last = view.extents.size() - 1;
  const Shape y_strides = DenseStrides(view.extents);
  for (size_t d = 0; d < last; ++d) {
    if (view.strides[d] == 1) {
      planes->rows = view.extents[d];
      planes->y_stride = y_strides[d];
      continue;
    }
    for (auto [side, strides] : {std::pair{&planes->x_planes, &view.strides}, {&planes->y_planes, &y_strides}}) {
      side->extents.push_back(view.extents[d]);
      side->strides.push_back((*strides)[d]);
    }
  }
  planes->columns = view.extents[last];
  planes->x_stride = view.strides[last];
  return planes->rows >= kLeast && planes->columns >= kLeast;
}

// Whether every row and plane begins at a multiple of `elements`.
bool InPacksOf(int64_t elements, const Planes& planes) {
  Shape multiples = {planes.rows, planes.columns, planes.x_stride, planes.y_stride};
  multiples.insert(multiples.end(), planes.x_planes.strides.begin(), planes.x_planes.strides.end());
  multiples.insert(multiples.end(), planes.y_planes.strides.begin(), planes.y_planes.strides.end());
  return std::all_of(multiples.begin(), multiples.end(), [=](int64_t m) { return m % elements == 0; });
}

template <typename T, int kV, typename Index>
StatusOrKernel MakeTiled(Context* context, const NodeDesc& desc, const Planes& planes) {
  constexpr int kTile = kWarp * kV;
  const int64_t row_tiles = CeilDiv(planes.rows, kTile), column_tiles = CeilDiv(planes.columns, kTile);
  const auto tiles = static_cast<Index>(row_tiles * column_tiles * planes.x_planes.size());
  AMPD_ASSIGN_OR_RETURN(const StridedIndex x_planes, MakeStridedIndex(desc.name, planes.x_planes));
  AMPD_ASSIGN_OR_RETURN(const StridedIndex y_planes, MakeStridedIndex(desc.name, planes.y_planes));
  const DevicePlanes<Index> on_device = {.rows = planes.rows,
                                         .columns = planes.columns,
                                         .x_stride = planes.x_stride,
                                         .y_stride = planes.y_stride,
                                         .row_tiles = IndexDivisor<Index>(row_tiles),
                                         .column_tiles = IndexDivisor<Index>(column_tiles),
                                         .x_planes = x_planes,
                                         .y_planes = y_planes};
  const unsigned blocks = BlocksFor(int64_t{tiles} * kThreads, kThreads, context->properties().sm_count);
  return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
    return Launch(name, TransposePlanes<T, kV, Index>, blocks, kThreads, 0, context->stream(), args.inputs[0].as<T>(),
                  on_device, tiles, args.outputs[0].as<T>());
  });
}

StatusOrKernel PrepareTranspose(Context* context, const NodeDesc& desc) {
  StridedView view = TransposedView(desc.inputs[0].shape, desc.attributes.Ints("perm"));
  Planes planes;
  if (view.extents.empty() || view.strides.back() == 1 || !FindPlanes(view, &planes)) {
    return Reading(context, desc, std::move(view));
  }
  return VisitIndex(view.size(), [&](auto index) {
    using Index = decltype(index);
    return VisitMove(SizeOf(desc.outputs[0].dtype), [&](auto element) -> StatusOrKernel {
      using T = decltype(element);
      constexpr int kV = std::max<int>(4 / static_cast<int>(sizeof(T)), 1);
      if (InPacksOf(kV, planes)) return MakeTiled<T, kV, Index>(context, desc, planes);
      return MakeTiled<T, 1, Index>(context, desc, planes);
    });
  });
}

StatusOrKernel PrepareBroadcastTo(Context* context, const NodeDesc& desc) {
  return Reading(context, desc, BroadcastView(desc.inputs[0].shape, desc.outputs[0].shape));
}

StatusOrKernel PrepareSlice(Context* context, const NodeDesc& desc) {
  return Reading(context, desc,
                 SliceView(desc.inputs[0].shape, desc.outputs[0].shape, desc.attributes.Ints("starts"),
                           desc.attributes.Ints("steps")));
}

StatusOrKernel PrepareSliceGrad(Context* context, const NodeDesc& desc) {
  const Ints starts = desc.attributes.Ints("starts"), steps = desc.attributes.Ints("steps");
  AMPD_ASSIGN_OR_RETURN(const Placement placement,
                        Placement::Make(desc.name, desc.inputs[0].shape, desc.outputs[0].shape, starts, steps,
                                        SizeOf(desc.outputs[0].dtype)));
  return MakeKernel(0, [context, placement, name = desc.name](const KernelArgs& args) {
    return Place(*context, name, placement, args.inputs[0].data, 0, args.outputs[0].data);
  });
}

// Inputs that one launch joins.
constexpr int kMostJoined = 32;

// A part of each of y's rows: input k goes to [begins[k], begins[k + 1]) of it.
template <typename T>
struct Joined {
  const T* inputs[kMostJoined];
  int64_t begins[kMostJoined + 1];
  int count;
};

template <typename T, typename Index>
__global__ void JoinRows(const Joined<T> joined, const IndexDivisor<Index> part, int64_t row, Index size,
                         T* __restrict__ y) {
  for (Index i = ThreadInGrid<Index>(); i < size; i += ThreadsInGrid<Index>()) {
    Index along;
    const int64_t o = Divide(part, i, &along);
    const int64_t at = joined.begins[0] + along;
    int k = 0;
    while (at >= joined.begins[k + 1]) ++k;
    const int64_t width = joined.begins[k + 1] - joined.begins[k];
    y[o * row + at] = joined.inputs[k][o * width + (at - joined.begins[k])];
  }
}

// A concatenation of [outer, widths[k]] along the second axis, in elements of `bytes`.
struct Concatenation {
  int64_t outer = 1;
  Ints begins = {0};
  int64_t bytes = 1;

  Concatenation(const NodeDesc& desc) : bytes(SizeOf(desc.outputs[0].dtype)) {
    const Shape& whole = desc.outputs[0].shape;
    const int64_t given = desc.attributes.Int("axis");
    const size_t axis = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(whole.size()) : given);
    int64_t inner = 1;
    for (size_t d = 0; d < axis; ++d) outer *= whole[d];
    for (size_t d = axis + 1; d < whole.size(); ++d) inner *= whole[d];
    for (const ir::TensorType& input : desc.inputs) begins.push_back(begins.back() + input.shape[axis] * inner);
    const int64_t together = ElementsTogether(bytes, begins);
    for (int64_t& begin : begins) begin /= together;
    bytes *= together;
  }

  // Inputs first to first + count - 1.
  template <typename T>
  absl::Status Run(const Context& context, const std::string& name, const KernelArgs& args, size_t first,
                   int count) const {
    Joined<T> joined;
    joined.count = count;
    for (int k = 0; k < count; ++k) joined.inputs[k] = args.inputs[first + k].as<T>();
    for (int k = 0; k <= count; ++k) joined.begins[k] = begins[first + k];
    const int64_t part = joined.begins[count] - joined.begins[0], size = outer * part;
    const unsigned blocks = BlocksFor(size, kThreads, context.properties().sm_count);
    return VisitIndex(size, [&](auto index) {
      using Index = decltype(index);
      return Launch(name, JoinRows<T, Index>, blocks, kThreads, 0, context.stream(), joined, IndexDivisor<Index>(part),
                    begins.back(), static_cast<Index>(size), args.outputs[0].as<T>());
    });
  }
};

StatusOrKernel PrepareConcat(Context* context, const NodeDesc& desc) {
  return MakeKernel(0, [context, concat = Concatenation(desc), name = desc.name](const KernelArgs& args) {
    return VisitMove(concat.bytes, [&](auto element) {
      for (size_t first = 0; first < args.inputs.size(); first += kMostJoined) {
        const int count = static_cast<int>(std::min<size_t>(args.inputs.size() - first, kMostJoined));
        AMPD_RETURN_IF_ERROR(concat.Run<decltype(element)>(*context, name, args, first, count));
      }
      return absl::OkStatus();
    });
  });
}

using PrepareWith = StatusOrKernel (*)(Context*, const NodeDesc&);

runtime::PrepareKernel With(Context* context, PrepareWith prepare) {
  return [=](const NodeDesc& desc) { return prepare(context, desc); };
}

}  // namespace

void RegisterMovement(runtime::KernelTable* table, Context* context) {
  for (DType t : kAllDTypes) {
    table->Add(OpKind::kBroadcastTo, {t}, {t}, With(context, PrepareBroadcastTo));
    table->Add(OpKind::kTranspose, {t}, {t}, With(context, PrepareTranspose));
    table->Add(OpKind::kSlice, {t}, {t}, With(context, PrepareSlice));
    table->Add(OpKind::kConcat, {t}, {t}, With(context, PrepareConcat));
  }
  for (DType t : kDataTypes) table->Add(OpKind::kSliceGrad, {t}, {t}, With(context, PrepareSliceGrad));
}

}  // namespace ampd::cuda
