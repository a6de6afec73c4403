// Kernels that move elements: strided reads and writes, in parallel over what is dense.
#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/strided.h"

namespace ampd::cpu {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;
using Ints = std::vector<int64_t>;

// The output is the first input through `view`.
std::unique_ptr<runtime::Kernel> Reading(StridedView view, int threads) {
  return MakeKernel(0, [view = std::move(view), threads](const KernelArgs& args) {
    const TensorView& y = args.outputs[0];
    const int64_t n = y.size(), bytes = SizeOf(y.dtype);
    ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock, [&](int, int64_t begin, int64_t end) {
      ReadStrided(view, bytes, args.inputs[0].data, begin, end - begin, y.as<char>() + begin * bytes);
    });
  });
}

std::unique_ptr<runtime::Kernel> PrepareBroadcastTo(const NodeDesc& desc) {
  return Reading(BroadcastView(desc.inputs[0].shape, desc.outputs[0].shape), desc.threads);
}

// Tiles of this many elements a side fit the first-level cache, and their rows fill cache lines.
constexpr int64_t kTile = 32;

template <typename T>
void TransposeTile(const T* from, int64_t from_stride, int64_t rows, int64_t columns, T* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[r * to_stride + c] = from[c * from_stride + r];
  }
}

// A transposition [outer, A, B, inner] of which the planes A x B change places: outer and inner stay.
struct PlaneTranspose {
  int64_t planes = 1;  // matrices
  int64_t rows = 1;    // of the output
  int64_t columns = 1;

  template <typename T>
  void Run(int threads, const TensorView& x, const TensorView& y) const {
    const int64_t strips = (rows + kTile - 1) / kTile;
    ParallelRange(
        PartsFor(threads, y.size(), kMinElementsPerThread), planes * strips, 1, [&](int, int64_t begin, int64_t end) {
          for (int64_t s = begin; s < end; ++s) {
            const int64_t plane = s / strips * rows * columns, row = s % strips * kTile;
            const int64_t height = std::min(kTile, rows - row);
            for (int64_t column = 0; column < columns; column += kTile) {
              TransposeTile(x.as<T>() + plane + column * rows + row, rows, height, std::min(kTile, columns - column),
                            y.as<T>() + plane + row * columns + column, columns);
            }
          }
        });
  }
};

std::unique_ptr<runtime::Kernel> PrepareTranspose(const NodeDesc& desc) {
  StridedView view = TransposedView(desc.inputs[0].shape, desc.attributes.Ints("perm"));
  const size_t rank = view.extents.size();
  const bool planes = rank >= 2 && view.strides[rank - 2] == 1 && view.strides[rank - 1] == view.extents[rank - 2] &&
                      (rank == 2 || (rank == 3 && view.strides[0] == view.extents[1] * view.extents[2]));
  if (!planes) return Reading(std::move(view), desc.threads);
  const PlaneTranspose transpose{rank == 3 ? view.extents[0] : 1, view.extents[rank - 2], view.extents[rank - 1]};
  return MakeKernel(0, [transpose, threads = desc.threads](const KernelArgs& args) {
    const int64_t bytes = SizeOf(args.outputs[0].dtype);
    if (bytes == 1) transpose.Run<uint8_t>(threads, args.inputs[0], args.outputs[0]);
    if (bytes == 2) transpose.Run<uint16_t>(threads, args.inputs[0], args.outputs[0]);
    if (bytes == 4) transpose.Run<uint32_t>(threads, args.inputs[0], args.outputs[0]);
    if (bytes == 8) transpose.Run<uint64_t>(threads, args.inputs[0], args.outputs[0]);
  });
}

// Of the attributes of a slice.
StridedView CutView(const NodeDesc& desc, const Shape& whole, const Shape& part) {
  return SliceView(whole, part, desc.attributes.Ints("starts"), desc.attributes.Ints("steps"));
}

std::unique_ptr<runtime::Kernel> PrepareSlice(const NodeDesc& desc) {
  return Reading(CutView(desc, desc.inputs[0].shape, desc.outputs[0].shape), desc.threads);
}

std::unique_ptr<runtime::Kernel> PrepareSliceGrad(const NodeDesc& desc) {
  const StridedView view = CutView(desc, desc.outputs[0].shape, desc.inputs[0].shape);
  return MakeKernel(0, [view, threads = desc.threads](const KernelArgs& args) {
    const TensorView& y = args.outputs[0];
    const int64_t n = args.inputs[0].size(), bytes = SizeOf(y.dtype);
    ParallelRange(
        PartsFor(threads, y.size(), kMinElementsPerThread), y.size(), kBlock,
        [&](int, int64_t begin, int64_t end) { std::memset(y.as<char>() + begin * bytes, 0, (end - begin) * bytes); });
    ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock, [&](int, int64_t begin, int64_t end) {
      WriteStrided(view, bytes, args.inputs[0].as<char>() + begin * bytes, begin, end - begin, y.data);
    });
  });
}

std::unique_ptr<runtime::Kernel> PrepareConcat(const NodeDesc& desc) {
  const Shape& whole = desc.outputs[0].shape;
  const int64_t given = desc.attributes.Int("axis");
  const size_t axis = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(whole.size()) : given);
  int64_t outer = 1, inner = SizeOf(desc.outputs[0].dtype);
  for (size_t d = 0; d < axis; ++d) outer *= whole[d];
  for (size_t d = axis + 1; d < whole.size(); ++d) inner *= whole[d];
  Ints rows;  // bytes of each input's row
  for (const ir::TensorType& input : desc.inputs) rows.push_back(input.shape[axis] * inner);
  const int64_t row = whole[axis] * inner;
  const int parts =
      static_cast<int>(std::min<int64_t>(PartsFor(desc.threads, NumElements(whole), kMinElementsPerThread), outer));
  return MakeKernel(0, [=](const KernelArgs& args) {
    ParallelRange(parts, outer, 1, [&](int, int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        char* to = args.outputs[0].as<char>() + o * row;
        for (size_t i = 0; i < rows.size(); ++i) {
          std::memcpy(to, args.inputs[i].as<char>() + o * rows[i], rows[i]);
          to += rows[i];
        }
      }
    });
  });
}

}  // namespace

void RegisterMovement(runtime::KernelTable* table) {
  for (DType t : kAllDTypes) {
    table->Add(OpKind::kBroadcastTo, {t}, {t}, PrepareBroadcastTo);
    table->Add(OpKind::kTranspose, {t}, {t}, PrepareTranspose);
    table->Add(OpKind::kSlice, {t}, {t}, PrepareSlice);
    table->Add(OpKind::kConcat, {t}, {t}, PrepareConcat);
  }
  for (DType t : kDataTypes) table->Add(OpKind::kSliceGrad, {t}, {t}, PrepareSliceGrad);
}

}  // namespace ampd::cpu
