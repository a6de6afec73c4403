#include <algorithm>
#include <limits>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

struct Pool {
  int64_t batch, height, width, channels;  // input
  int64_t out_height, out_width;
  int64_t size[2], strides[2], pad_top, pad_left;
  int parts_by_row;    // over output rows
  int parts_by_image;  // over images

  int64_t row_size() const { return width * channels; }
  int64_t out_row_size() const { return out_width * channels; }
  int64_t image_size() const { return height * row_size(); }
  // Real cells of window `out` along one axis: [begin, end).
  static int64_t Begin(int64_t out, int64_t stride, int64_t pad) { return std::max<int64_t>(out * stride - pad, 0); }
  static int64_t End(int64_t out, int64_t stride, int64_t pad, int64_t size, int64_t extent) {
    return std::min(out * stride - pad + size, extent);
  }
  int64_t RowBegin(int64_t p) const { return Begin(p, strides[0], pad_top); }
  int64_t RowEnd(int64_t p) const { return End(p, strides[0], pad_top, size[0], height); }
  int64_t ColumnBegin(int64_t q) const { return Begin(q, strides[1], pad_left); }
  int64_t ColumnEnd(int64_t q) const { return End(q, strides[1], pad_left, size[1], width); }
};

Pool MakePool(const NodeDesc& desc, const Shape& in, const Shape& out) {
  const std::vector<int64_t> size = desc.attributes.Ints("size");
  const std::vector<int64_t> strides = desc.attributes.Ints("strides");
  const std::vector<int64_t> pads = desc.attributes.Ints("pads");
  Pool pool = {in[0],   in[1],   in[2], in[3], out[1], out[2], {size[0], size[1]}, {strides[0], strides[1]},
               pads[0], pads[1], 1,     1};
  const int parts = PartsFor(desc.threads, NumElements(in), kMinElementsPerThread / 4);
  pool.parts_by_row = static_cast<int>(std::min<int64_t>(parts, pool.batch * pool.out_height));
  pool.parts_by_image = static_cast<int>(std::min<int64_t>(parts, pool.batch));
  return pool;
}

// `rows` holds the window's real rows one after the other. NaN is kept: once in, no comparison removes it.
AMPD_CPU_CLONES void MaxPoolRow(const Pool& pool, const float* rows, int64_t row_count, float* y) {
  const int64_t channels = pool.channels;
  for (int64_t q = 0; q < pool.out_width; ++q, y += channels) {
    float* __restrict out = y;
    std::fill(out, out + channels, -std::numeric_limits<float>::infinity());
    for (int64_t r = 0; r < row_count; ++r) {
      for (int64_t w = pool.ColumnBegin(q); w < pool.ColumnEnd(q); ++w) {
        const float* __restrict x = rows + r * pool.row_size() + w * channels;
        for (int64_t c = 0; c < channels; ++c) out[c] = (x[c] > out[c]) | (x[c] != x[c]) ? x[c] : out[c];
      }
    }
  }
}

AMPD_CPU_CLONES void AvgPoolRow(const Pool& pool, const float* rows, int64_t row_count, float* y) {
  const int64_t channels = pool.channels;
  for (int64_t q = 0; q < pool.out_width; ++q, y += channels) {
    float* __restrict out = y;
    std::fill(out, out + channels, 0.0f);
    for (int64_t r = 0; r < row_count; ++r) {
      for (int64_t w = pool.ColumnBegin(q); w < pool.ColumnEnd(q); ++w) {
        const float* __restrict x = rows + r * pool.row_size() + w * channels;
        for (int64_t c = 0; c < channels; ++c) out[c] += x[c];
      }
    }
    const int64_t columns = pool.ColumnEnd(q) - pool.ColumnBegin(q);
    const float count = static_cast<float>(std::max<int64_t>(row_count * columns, 1));
    for (int64_t c = 0; c < channels; ++c) out[c] /= count;
  }
}

// dy goes to the first cell that equals y; `taken` marks the channels already served.
AMPD_CPU_CLONES void MaxPoolGradRow(const Pool& pool, int64_t p, const float* dy, const float* x_image, const float* y,
                                    uint32_t* __restrict taken, float* dx_image) {
  const int64_t channels = pool.channels;
  for (int64_t q = 0; q < pool.out_width; ++q, dy += channels, y += channels) {
    std::fill(taken, taken + channels, 0u);
    for (int64_t h = pool.RowBegin(p); h < pool.RowEnd(p); ++h) {
      for (int64_t w = pool.ColumnBegin(q); w < pool.ColumnEnd(q); ++w) {
        const float* __restrict x = x_image + h * pool.row_size() + w * channels;
        float* __restrict dx = dx_image + h * pool.row_size() + w * channels;
        for (int64_t c = 0; c < channels; ++c) {
          const uint32_t equal = (x[c] == y[c]) | ((x[c] != x[c]) & (y[c] != y[c]));
          const uint32_t hit = equal & (taken[c] ^ 1u);
          const float sum = dx[c] + dy[c];
          dx[c] = hit ? sum : dx[c];
          taken[c] |= hit;
        }
      }
    }
  }
}

AMPD_CPU_CLONES void AvgPoolGradRow(const Pool& pool, int64_t p, const float* dy, float* dx_image) {
  const int64_t channels = pool.channels;
  for (int64_t q = 0; q < pool.out_width; ++q, dy += channels) {
    const int64_t rows = pool.RowEnd(p) - pool.RowBegin(p);
    const int64_t columns = pool.ColumnEnd(q) - pool.ColumnBegin(q);
    const float count = static_cast<float>(std::max<int64_t>(rows * columns, 1));
    for (int64_t h = pool.RowBegin(p); h < pool.RowEnd(p); ++h) {
      for (int64_t w = pool.ColumnBegin(q); w < pool.ColumnEnd(q); ++w) {
        float* __restrict dx = dx_image + h * pool.row_size() + w * channels;
        for (int64_t c = 0; c < channels; ++c) dx[c] += dy[c] / count;
      }
    }
  }
}

using ForwardRow = void (*)(const Pool&, const float* rows, int64_t row_count, float* y);

std::unique_ptr<runtime::Kernel> PrepareForward(const NodeDesc& desc, ForwardRow row_loop) {
  const Pool pool = MakePool(desc, desc.inputs[0].shape, desc.outputs[0].shape);
  WorkspaceLayout workspace;
  const int64_t rows_stride = AlignUp(pool.size[0] * pool.row_size() * 4);
  const int64_t out_stride = AlignUp(pool.out_row_size() * 4);
  const int64_t rows_at = workspace.Add(pool.parts_by_row * rows_stride);
  const int64_t out_at = workspace.Add(pool.parts_by_row * out_stride);
  return MakeKernel(workspace.bytes(), [=](const KernelArgs& args) {
    ParallelRange(pool.parts_by_row, pool.batch * pool.out_height, 1, [&](int part, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t p = i % pool.out_height;
        const int64_t h = pool.RowBegin(p);
        const int64_t count = std::max<int64_t>(pool.RowEnd(p) - h, 0);
        const int64_t first = (i / pool.out_height) * pool.image_size() + h * pool.row_size();
        const float* rows = Load(args.inputs[0], first, count * pool.row_size(),
                                 WorkspaceAt<float>(args, rows_at + part * rows_stride));
        float* y =
            Target(args.outputs[0], i * pool.out_row_size(), WorkspaceAt<float>(args, out_at + part * out_stride));
        row_loop(pool, rows, count, y);
        Store(args.outputs[0], i * pool.out_row_size(), pool.out_row_size(), y);
      }
    });
  });
}

// Workspace of one part of a gradient kernel.
struct GradBuffers {
  int64_t x = 0, dx = 0, dy = 0, y = 0, taken = 0, stride = 0;

  GradBuffers(const Pool& pool, bool keeps_input) {
    WorkspaceLayout layout;
    if (keeps_input) x = layout.Add(pool.image_size() * 4);
    dx = layout.Add(pool.image_size() * 4);
    dy = layout.Add(pool.out_row_size() * 4);
    y = layout.Add(pool.out_row_size() * 4);
    taken = layout.Add(pool.channels * 4);
    stride = layout.bytes();
  }
};

std::unique_ptr<runtime::Kernel> PrepareMaxPoolGrad(const NodeDesc& desc) {
  const Pool pool = MakePool(desc, desc.outputs[0].shape, desc.inputs[0].shape);
  const GradBuffers at(pool, true);
  return MakeKernel(pool.parts_by_image * at.stride, [=](const KernelArgs& args) {
    ParallelRange(pool.parts_by_image, pool.batch, 1, [&](int part, int64_t begin, int64_t end) {
      const auto buffer = [&](int64_t offset) { return WorkspaceAt<float>(args, part * at.stride + offset); };
      for (int64_t n = begin; n < end; ++n) {
        const int64_t first = n * pool.image_size();
        const float* x = Load(args.inputs[1], first, pool.image_size(), buffer(at.x));
        float* dx = Target(args.outputs[0], first, buffer(at.dx));
        std::fill(dx, dx + pool.image_size(), 0.0f);
        for (int64_t p = 0; p < pool.out_height; ++p) {
          const int64_t row = (n * pool.out_height + p) * pool.out_row_size();
          const float* dy = Load(args.inputs[0], row, pool.out_row_size(), buffer(at.dy));
          const float* y = Load(args.inputs[2], row, pool.out_row_size(), buffer(at.y));
          MaxPoolGradRow(pool, p, dy, x, y, reinterpret_cast<uint32_t*>(buffer(at.taken)), dx);
        }
        Store(args.outputs[0], first, pool.image_size(), dx);
      }
    });
  });
}

std::unique_ptr<runtime::Kernel> PrepareAvgPoolGrad(const NodeDesc& desc) {
  const Pool pool = MakePool(desc, desc.outputs[0].shape, desc.inputs[0].shape);
  const GradBuffers at(pool, false);
  return MakeKernel(pool.parts_by_image * at.stride, [=](const KernelArgs& args) {
    ParallelRange(pool.parts_by_image, pool.batch, 1, [&](int part, int64_t begin, int64_t end) {
      const auto buffer = [&](int64_t offset) { return WorkspaceAt<float>(args, part * at.stride + offset); };
      for (int64_t n = begin; n < end; ++n) {
        float* dx = Target(args.outputs[0], n * pool.image_size(), buffer(at.dx));
        std::fill(dx, dx + pool.image_size(), 0.0f);
        for (int64_t p = 0; p < pool.out_height; ++p) {
          const int64_t row = (n * pool.out_height + p) * pool.out_row_size();
          AvgPoolGradRow(pool, p, Load(args.inputs[0], row, pool.out_row_size(), buffer(at.dy)), dx);
        }
        Store(args.outputs[0], n * pool.image_size(), pool.image_size(), dx);
      }
    });
  });
}

}  // namespace

void RegisterPool2d(runtime::KernelTable* table) {
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kMaxPool2d, {t}, {t}, [](const NodeDesc& d) { return PrepareForward(d, MaxPoolRow); });
    table->Add(ir::OpKind::kAvgPool2d, {t}, {t}, [](const NodeDesc& d) { return PrepareForward(d, AvgPoolRow); });
    table->Add(ir::OpKind::kMaxPool2dGrad, {t, t, t}, {t}, PrepareMaxPoolGrad);
    table->Add(ir::OpKind::kAvgPool2dGrad, {t}, {t}, PrepareAvgPoolGrad);
  }
}

}  // namespace ampd::cpu
