#include "engine/backend/cuda/matmul.h"

#include <algorithm>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/backend/cuda/byte_tiles.h"
#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/quantize.h"
#include "engine/core/status.h"
#include "engine/ops/compute.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

// A batch axis, and which operands move along it.
struct Axis {
  int64_t extent;
  bool a, b;
};

std::vector<Axis> BatchAxes(const Shape& a, const Shape& b) {
  const size_t rank = std::max(a.size(), b.size()) - 2;
  const auto extent = [rank](const Shape& s, size_t i) {
    const size_t missing = rank + 2 - s.size();
    return i < missing ? int64_t{1} : s[i - missing];
  };
  std::vector<Axis> axes;
  for (size_t i = 0; i < rank; ++i) {
    const int64_t from_a = extent(a, i), from_b = extent(b, i);
    if (from_a == 1 && from_b == 1) continue;
    const Axis axis{std::max(from_a, from_b), from_a != 1, from_b != 1};
    if (!axes.empty() && axes.back().a == axis.a && axes.back().b == axis.b) {
      axes.back().extent *= axis.extent;
    } else {
      axes.push_back(axis);
    }
  }
  return axes;
}

// The largest power of two that divides all that a pointer is moved by, up to what tensors are aligned to.
int64_t AlignmentOf(const MatmulProducts& p) {
  int64_t alignment = kTensorAlignment;
  const auto limit = [&](int64_t elements, DType dtype) {
    while (elements * SizeOf(dtype) % alignment != 0) alignment /= 2;
  };
  for (const MatmulLoop& loop : p.loops) {
    limit(loop.a, p.gemm.a.dtype);
    limit(loop.b, p.gemm.b.dtype);
    limit(loop.d, p.gemm.d.dtype);
  }
  return alignment;
}

}  // namespace

MatmulProducts ProductsOf(const NodeDesc& desc) {
  const Shape &a = desc.inputs[0].shape, &b = desc.inputs[1].shape, &y = desc.outputs[0].shape;
  MatmulProducts p;
  GemmDesc& gemm = p.gemm;
  gemm.a = {.dtype = desc.inputs[0].dtype, .transposed = desc.attributes.Bool("transpose_a"), .leading = a.back()};
  gemm.b = {.dtype = desc.inputs[1].dtype, .transposed = desc.attributes.Bool("transpose_b"), .leading = b.back()};
  gemm.d = {.dtype = desc.outputs[0].dtype, .leading = y.back()};
  gemm.rows = y[y.size() - 2];
  gemm.columns = y.back();
  gemm.inner = a[a.size() - (gemm.a.transposed ? 2 : 1)];
  gemm.tf32 = absl::string_view(desc.attributes.String(ops::kComputeAttribute)) == ops::kComputeTf32 &&
              gemm.a.dtype == DType::kF32;
  std::vector<Axis> axes = BatchAxes(a, b);
  if (!axes.empty() && !axes.back().b && !gemm.a.transposed) {
    gemm.rows *= axes.back().extent;
    axes.pop_back();
  }
  MatmulLoop next{1, gemm.rows * gemm.inner, gemm.inner * gemm.columns, gemm.rows * gemm.columns};
  for (size_t i = axes.size(); i-- > 0;) {
    p.loops.insert(p.loops.begin(), {axes[i].extent, axes[i].a ? next.a : 0, axes[i].b ? next.b : 0, next.d});
    if (axes[i].a) next.a *= axes[i].extent;
    if (axes[i].b) next.b *= axes[i].extent;
    next.d *= axes[i].extent;
  }
  const auto longest = std::max_element(p.loops.begin(), p.loops.end(),
                                        [](const auto& x, const auto& z) { return x.extent < z.extent; });
  if (longest != p.loops.end()) {
    gemm.batch = longest->extent;
    gemm.a.batch_stride = longest->a;
    gemm.b.batch_stride = longest->b;
    gemm.d.batch_stride = longest->d;
    p.loops.erase(longest);
  }
  gemm.alignment_bytes = AlignmentOf(p);
  return p;
}

namespace {

constexpr int kThreads = 256;
static_assert(kThreads == kByteTileThreads);

template <typename From>
__global__ void WidenCodes(const From* __restrict__ codes, int64_t size, Half* __restrict__ wide) {
  constexpr int kN = 8;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = first; i < size / kN; i += stride) {
    const auto in = reinterpret_cast<const Pack<From, kN>*>(codes)[i];
    Pack<Half, kN> out;
    for (int j = 0; j < kN; ++j) out.values[j] = Store<Half>(Load(in.values[j]));
    reinterpret_cast<Pack<Half, kN>*>(wide)[i] = out;
  }
  const int64_t rest = size / kN * kN + first;
  if (rest < size) wide[rest] = Store<Half>(Load(codes[rest]));
}

constexpr int kTile = 64;
constexpr int kWord = 4;
constexpr int kTileWords = kTile / kWord;

// Turns matrices of [rows, columns] bytes into [columns, rows]; rows are a multiple of 4. A block does one tile: words
// in, words out, and a shared row is a word longer than the tile, so that a column's bytes lie in different banks.
__global__ void TransposeBytes(const uint8_t* __restrict__ from, int64_t rows, int64_t columns,
                               uint8_t* __restrict__ to) {
  alignas(kWord) __shared__ uint8_t tile[kTile][kTile + kWord];
  const TilePlace place(rows, columns, kTile, blockIdx.x);
  const int64_t row0 = place.row, column0 = place.column;
  from += place.matrix;
  to += place.matrix;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTileWords; i += kThreads) {
    const int r = i / kTileWords, c = i % kTileWords * kWord;
    const int64_t at = (row0 + r) * columns + column0 + c;
    if (row0 + r >= rows) continue;
    if (columns % kWord == 0) {
      if (column0 + c >= columns) continue;
      *reinterpret_cast<uint32_t*>(&tile[r][c]) = *reinterpret_cast<const uint32_t*>(from + at);
    } else {
      for (int j = 0; j < kWord && column0 + c + j < columns; ++j) tile[r][c + j] = from[at + j];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTileWords; i += kThreads) {
    const int c = i / kTileWords, r = i % kTileWords * kWord;
    if (column0 + c >= columns || row0 + r >= rows) continue;
    Pack<uint8_t, kWord> word;
    for (int j = 0; j < kWord; ++j) word.values[j] = tile[r + j][c];
    *reinterpret_cast<Pack<uint8_t, kWord>*>(to + (column0 + c) * rows + row0 + r) = word;
  }
}

// The same where columns are a multiple of 4, too.
__global__ void __launch_bounds__(kThreads)
    TransposeSquares(const uint8_t* __restrict__ from, int64_t rows, int64_t columns, uint8_t* __restrict__ to) {
  __shared__ ByteTile tile;
  const TilePlace place(rows, columns, kByteTileSide, blockIdx.x);
#pragma unroll
  for (int i = 0; i < ByteTile::kSquares; ++i) {
    const int64_t row = place.row + ByteTile::Row(i), column = place.column + ByteTile::Column(i);
    if (row >= rows || column >= columns) continue;
    uint32_t words[kByteSquare];
#pragma unroll
    for (int r = 0; r < kByteSquare; ++r) {
      words[r] = *reinterpret_cast<const uint32_t*>(from + place.matrix + (row + r) * columns + column);
    }
    tile.Put(i, words);
  }
  __syncthreads();
  tile.Write(place, rows, columns, to);
}

// How an operand is read.
enum class Reading { kDirect, kTransposed, kWidened };

class MatmulKernel : public runtime::Kernel {
 public:
  static absl::StatusOr<std::unique_ptr<runtime::Kernel>> Prepare(const NodeDesc& desc, Context* context) {
    auto kernel = std::make_unique<MatmulKernel>(desc, context);
    AMPD_ASSIGN_OR_RETURN(kernel->gemm_, Gemm::Create(desc.name, kernel->products_.gemm, context));
    kernel->gemm_at_ = kernel->layout_.Add(kernel->gemm_->workspace_bytes());
    return std::unique_ptr<runtime::Kernel>(std::move(kernel));
  }

  MatmulKernel(const NodeDesc& desc, Context* context)
      : context_(context), name_(desc.name), products_(ProductsOf(desc)) {
    if (!IsF8(desc.inputs[0].dtype)) return;
    GemmDesc& gemm = products_.gemm;
    const bool fits =
        context->properties().has_fp8() && gemm.inner % kFloat8Multiple == 0 && gemm.columns % kFloat8Multiple == 0;
    Read(desc.inputs[0], !fits, gemm.a.transposed, &gemm.a, &a_);
    Read(desc.inputs[1], !fits, !gemm.b.transposed, &gemm.b, &b_);
    if (desc.inputs.size() > 2) Scale(desc.outputs[0], fits);
    gemm.alignment_bytes = AlignmentOf(products_);
    if (!fits) return;
    gemm.a.transposed = false;
    gemm.b.transposed = true;
    gemm.a.leading = gemm.b.leading = gemm.inner;
  }

  int64_t workspace_bytes() const override { return layout_.bytes(); }

  absl::Status Launch(const KernelArgs& args) override {
    AMPD_ASSIGN_OR_RETURN(const char* a, Place(args, 0, a_));
    AMPD_ASSIGN_OR_RETURN(const char* b, Place(args, 1, b_));
    auto* d = sums_at_ < 0 ? static_cast<char*>(args.outputs[0].data) : WorkspaceAt<char>(args, sums_at_);
    if (reciprocals_at_ >= 0) {
      AMPD_RETURN_IF_ERROR(LaunchReciprocals(*context_, name_, args.inputs[2].as<float>(), args.inputs[3].as<float>(),
                                             WorkspaceAt<float>(args, reciprocals_at_)));
    }
    AMPD_RETURN_IF_ERROR(Multiply(args, 0, a, b, d));
    if (sums_at_ < 0) return absl::OkStatus();
    return LaunchDequantize(*context_, name_, reinterpret_cast<const float*>(d), args.inputs[2].as<float>(),
                            args.inputs[3].as<float>(), args.outputs[0]);
  }

 private:
  struct Operand {
    Reading reading = Reading::kDirect;
    int64_t at = 0;
    int64_t size = 0;
    // Of a stored matrix.
    int64_t rows = 0, columns = 0;
  };

  void Read(const ir::TensorType& type, bool widen, bool transpose, GemmMatrix* matrix, Operand* operand) {
    operand->size = NumElements(type.shape);
    operand->rows = type.shape[type.shape.size() - 2];
    operand->columns = type.shape.back();
    if (widen) {
      operand->reading = Reading::kWidened;
      matrix->dtype = DType::kF16;
    } else if (transpose) {
      operand->reading = Reading::kTransposed;
    } else {
      return;
    }
    operand->at = layout_.Add(operand->size * SizeOf(matrix->dtype));
  }

  // The result is what codes stand for: by the products themselves where they read codes, else after them.
  void Scale(const ir::TensorType& result, bool in_products) {
    products_.gemm.scaled = in_products;
    if (in_products) {
      reciprocals_at_ = layout_.Add(2 * kFactorStride * SizeOf(DType::kF32));
      return;
    }
    products_.gemm.d.dtype = DType::kF32;
    sums_at_ = layout_.Add(NumElements(result.shape) * SizeOf(DType::kF32));
  }

  // Where the products read input i, after writing it there if need be.
  absl::StatusOr<const char*> Place(const KernelArgs& args, int i, const Operand& operand) {
    const TensorView& x = args.inputs[i];
    if (operand.reading == Reading::kDirect) return static_cast<const char*>(x.data);
    auto* to = WorkspaceAt<char>(args, operand.at);
    if (operand.reading == Reading::kTransposed) {
      const bool squares = operand.columns % kWord == 0;
      const int64_t tiles = ByteTiles(operand.rows, operand.columns, squares ? kByteTileSide : kTile) *
                            (operand.size / (operand.rows * operand.columns));
      AMPD_RETURN_IF_ERROR(cuda::Launch(name_, squares ? TransposeSquares : TransposeBytes,
                                        static_cast<unsigned>(tiles), kThreads, 0, context_->stream(),
                                        static_cast<const uint8_t*>(x.data), operand.rows, operand.columns,
                                        reinterpret_cast<uint8_t*>(to)));
    } else {
      AMPD_RETURN_IF_ERROR(x.dtype == DType::kF8E4M3 ? Widen<Float8E4M3>(x, to) : Widen<Float8E5M2>(x, to));
    }
    return static_cast<const char*>(to);
  }

  template <typename T>
  absl::Status Widen(const TensorView& codes, char* to) const {
    const unsigned blocks = BlocksFor(CeilDiv(codes.size(), 8), kThreads, context_->properties().sm_count);
    return cuda::Launch(name_, WidenCodes<T>, blocks, kThreads, 0, context_->stream(), codes.as<T>(), codes.size(),
                        reinterpret_cast<Half*>(to));
  }

  absl::Status Multiply(const KernelArgs& args, size_t depth, const char* a, const char* b, char* d) {
    if (depth == products_.loops.size()) {
      GemmArgs gemm{.a = a, .b = b, .d = d, .workspace = WorkspaceAt<char>(args, gemm_at_)};
      if (reciprocals_at_ >= 0) {
        gemm.a_scale = WorkspaceAt<float>(args, reciprocals_at_);
        gemm.b_scale = gemm.a_scale + kFactorStride;
      }
      return gemm_->Run(gemm);
    }
    const GemmDesc& gemm = products_.gemm;
    const MatmulLoop& loop = products_.loops[depth];
    for (int64_t i = 0; i < loop.extent; ++i) {
      AMPD_RETURN_IF_ERROR(Multiply(args, depth + 1, a, b, d));
      a += loop.a * SizeOf(gemm.a.dtype);
      b += loop.b * SizeOf(gemm.b.dtype);
      d += loop.d * SizeOf(gemm.d.dtype);
    }
    return absl::OkStatus();
  }

  Context* const context_;
  const std::string name_;
  MatmulProducts products_;
  WorkspaceLayout layout_;
  // 8-bit codes: matrix units want `inner` contiguous in both, and multiples of 16. Another order is turned around in
  // the workspace; other extents are multiplied as f16, in which codes are exact.
  Operand a_, b_;
  int64_t gemm_at_ = 0;
  // In the workspace: what the scales are divided by, and sums that are still to be; -1: none.
  int64_t reciprocals_at_ = -1, sums_at_ = -1;
  std::unique_ptr<Gemm> gemm_;
};

}  // namespace

void RegisterMatmul(runtime::KernelTable* table, Context* context) {
  const runtime::PrepareKernel prepare = [context](const NodeDesc& desc) {
    return MatmulKernel::Prepare(desc, context);
  };
  for (DType t : kDataTypes) table->Add(ir::OpKind::kMatmul, {t, t}, {t}, prepare);
  for (DType t : {DType::kF16, DType::kBF16}) table->Add(ir::OpKind::kMatmul, {t, t}, {DType::kF32}, prepare);
  constexpr DType kForward = DType::kF8E4M3, kGradient = DType::kF8E5M2;
  for (auto [a, b] : {std::pair{kForward, kForward}, {kGradient, kForward}, {kForward, kGradient}}) {
    table->Add(ir::OpKind::kMatmul, {a, b}, {DType::kF32}, prepare);
    for (DType t : kDataTypes) table->Add(ir::OpKind::kMatmul, {a, b, DType::kF32, DType::kF32}, {t}, prepare);
  }
}

}  // namespace ampd::cuda
