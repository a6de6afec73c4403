#include <algorithm>
#include <limits>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

// Windows along one axis of the image.
struct Axis {
  int64_t extent, size, stride, dilation, before, after;
  int64_t padded_end;  // past the last cell that counts where padding does

  int64_t First(int64_t out) const { return out * stride - before; }
  // Real cells of window `out`: Begin, Begin + dilation, ... below End.
  int64_t Begin(int64_t out) const {
    const int64_t first = First(out);
    return first >= 0 ? first : first + (-first + dilation - 1) / dilation * dilation;
  }
  int64_t End(int64_t out) const { return std::min(First(out) + (size - 1) * dilation + 1, extent); }
  int64_t Count(int64_t out) const { return std::max<int64_t>((End(out) - Begin(out) + dilation - 1) / dilation, 0); }
  int64_t CountPadded(int64_t out) const {
    const int64_t end = std::min(First(out) + (size - 1) * dilation + 1, padded_end);
    return std::max<int64_t>((end - First(out) + dilation - 1) / dilation, 0);
  }
};

struct Pool {
  int64_t batch, channels;
  int64_t out_height, out_width;
  Axis rows, columns;
  bool count_include_pad;
  int parts_by_row;    // over output rows
  int parts_by_image;  // over images

  int64_t row_size() const { return columns.extent * channels; }
  int64_t out_row_size() const { return out_width * channels; }
  int64_t image_size() const { return rows.extent * row_size(); }
  // What the mean of window (p, q) divides by.
  float Count(int64_t p, int64_t q) const {
    const int64_t cells =
        count_include_pad ? rows.CountPadded(p) * columns.CountPadded(q) : rows.Count(p) * columns.Count(q);
    return static_cast<float>(std::max<int64_t>(cells, 1));
  }
};

Axis MakeAxis(const NodeDesc& desc, int axis, int64_t extent) {
  const auto number = [&](const char* name, int i, int64_t absent) {
    const std::vector<int64_t> numbers = desc.attributes.Ints(name);
    return numbers.empty() ? absent : numbers[i];
  };
  Axis a = {.extent = extent,
            .size = number("size", axis, 1),
            .stride = number("strides", axis, 1),
            .dilation = number("dilations", axis, 1),
            .before = number("pads", axis, 0),
            .after = number("pads", axis + 2, 0)};
  a.padded_end = extent + a.after - number("ceil_pads", axis, 0);
  return a;
}

Pool MakePool(const NodeDesc& desc, const Shape& in, const Shape& out) {
  Pool pool = {.batch = in[0],
               .channels = in[3],
               .out_height = out[1],
               .out_width = out[2],
               .rows = MakeAxis(desc, 0, in[1]),
               .columns = MakeAxis(desc, 1, in[2]),
               .count_include_pad = desc.attributes.Bool("count_include_pad")};
  const int parts = PartsFor(desc.threads, NumElements(in), kMinElementsPerThread / 4);
  pool.parts_by_row = static_cast<int>(std::min<int64_t>(parts, pool.batch * pool.out_height));
  pool.parts_by_image = static_cast<int>(std::min<int64_t>(parts, pool.batch));
  return pool;
}

// The real rows under window row `p`, as f32.
struct Rows {
  const float* data;
  int64_t count, stride;
};

// NaN is kept: once in, no comparison removes it.
AMPD_CPU_CLONES void MaxPoolRow(const Pool& pool, int64_t, const Rows& rows, float* y) {
  const int64_t channels = pool.channels;
  for (int64_t q = 0; q < pool.out_width; ++q, y += channels) {
    float* __restrict out = y;
    std::fill(out, out + channels, -std::numeric_limits<float>::infinity());
    for (int64_t r = 0; r < rows.count; ++r) {
      for (int64_t w = pool.columns.Begin(q); w < pool.columns.End(q); w += pool.columns.dilation) {
        const float* __restrict x = rows.data + r * rows.stride + w * channels;
        for (int64_t c = 0; c < channels; ++c) out[c] = (x[c] > out[c]) | (x[c] != x[c]) ? x[c] : out[c];
      }
    }
  }
}

AMPD_CPU_CLONES void AvgPoolRow(const Pool& pool, int64_t p, const Rows& rows, float* y) {
  const int64_t channels = pool.channels;
  for (int64_t q = 0; q < pool.out_width; ++q, y += channels) {
    float* __restrict out = y;
    std::fill(out, out + channels, 0.0f);
    for (int64_t r = 0; r < rows.count; ++r) {
      for (int64_t w = pool.columns.Begin(q); w < pool.columns.End(q); w += pool.columns.dilation) {
        const float* __restrict x = rows.data + r * rows.stride + w * channels;
        for (int64_t c = 0; c < channels; ++c) out[c] += x[c];
      }
    }
    const float count = pool.Count(p, q);
    for (int64_t c = 0; c < channels; ++c) out[c] /= count;
  }
}

// dy goes to the first cell that equals y; `taken` marks the channels already served.
AMPD_CPU_CLONES void MaxPoolGradRow(const Pool& pool, int64_t p, const float* dy, const float* x_image, const float* y,
                                    uint32_t* __restrict taken, float* dx_image) {
  const int64_t channels = pool.channels;
  for (int64_t q = 0; q < pool.out_width; ++q, dy += channels, y += channels) {
    std::fill(taken, taken + channels, 0u);
    for (int64_t h = pool.rows.Begin(p); h < pool.rows.End(p); h += pool.rows.dilation) {
      for (int64_t w = pool.columns.Begin(q); w < pool.columns.End(q); w += pool.columns.dilation) {
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
    const float count = pool.Count(p, q);
    for (int64_t h = pool.rows.Begin(p); h < pool.rows.End(p); h += pool.rows.dilation) {
      for (int64_t w = pool.columns.Begin(q); w < pool.columns.End(q); w += pool.columns.dilation) {
        float* __restrict dx = dx_image + h * pool.row_size() + w * channels;
        for (int64_t c = 0; c < channels; ++c) dx[c] += dy[c] / count;
      }
    }
  }
}

// Row h of image n, as f32.
const float* LoadRow(const Pool& pool, const TensorView& x, int64_t n, int64_t h, float* buffer) {
  return Load(x, n * pool.image_size() + h * pool.row_size(), pool.row_size(), buffer);
}

Rows LoadRows(const Pool& pool, const TensorView& x, int64_t n, int64_t p, float* buffer) {
  const int64_t first = pool.rows.Begin(p), count = pool.rows.Count(p);
  if (x.dtype == DType::kF32) {
    const float* data = x.as<float>() + n * pool.image_size() + first * pool.row_size();
    return {data, count, pool.rows.dilation * pool.row_size()};
  }
  for (int64_t r = 0; r < count; ++r) {
    LoadRow(pool, x, n, first + r * pool.rows.dilation, buffer + r * pool.row_size());
  }
  return {buffer, count, pool.row_size()};
}

using ForwardRow = void (*)(const Pool&, int64_t p, const Rows& rows, float* y);

std::unique_ptr<runtime::Kernel> PrepareForward(const NodeDesc& desc, ForwardRow row_loop) {
  const Pool pool = MakePool(desc, desc.inputs[0].shape, desc.outputs[0].shape);
  WorkspaceLayout workspace;
  const bool loads = desc.inputs[0].dtype != DType::kF32;
  const int64_t rows_stride = loads ? AlignUp(std::min(pool.rows.size, pool.rows.extent) * pool.row_size() * 4) : 0;
  const int64_t out_stride = AlignUp(pool.out_row_size() * 4);
  const int64_t rows_at = workspace.Add(pool.parts_by_row * rows_stride);
  const int64_t out_at = workspace.Add(pool.parts_by_row * out_stride);
  return MakeKernel(workspace.bytes(), [=](const KernelArgs& args) {
    ParallelRange(pool.parts_by_row, pool.batch * pool.out_height, 1, [&](int part, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t p = i % pool.out_height;
        const Rows rows = LoadRows(pool, args.inputs[0], i / pool.out_height, p,
                                   WorkspaceAt<float>(args, rows_at + part * rows_stride));
        float* y =
            Target(args.outputs[0], i * pool.out_row_size(), WorkspaceAt<float>(args, out_at + part * out_stride));
        row_loop(pool, p, rows, y);
        Store(args.outputs[0], i * pool.out_row_size(), pool.out_row_size(), y);
      }
    });
  });
}

// visit(first output element, first input element, pixel of the image) over the real cells of output rows begin..end-1,
// in the window's order.
template <typename Visit>
void ForEachCell(const Pool& pool, int64_t begin, int64_t end, const Visit& visit) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t n = i / pool.out_height, p = i % pool.out_height;
    for (int64_t q = 0; q < pool.out_width; ++q) {
      for (int64_t h = pool.rows.Begin(p); h < pool.rows.End(p); h += pool.rows.dilation) {
        for (int64_t w = pool.columns.Begin(q); w < pool.columns.End(q); w += pool.columns.dilation) {
          visit((i * pool.out_width + q) * pool.channels,
                n * pool.image_size() + h * pool.row_size() + w * pool.channels, h * pool.columns.extent + w);
        }
      }
    }
  }
}

std::unique_ptr<runtime::Kernel> PrepareMaxPoolBytes(const NodeDesc& desc) {
  const Pool pool = MakePool(desc, desc.inputs[0].shape, desc.outputs[0].shape);
  return MakeKernel(0, [=](const KernelArgs& args) {
    const uint8_t* x = args.inputs[0].as<uint8_t>();
    uint8_t* y = args.outputs[0].as<uint8_t>();
    ParallelRange(pool.parts_by_row, pool.batch * pool.out_height, 1, [&](int, int64_t begin, int64_t end) {
      std::fill(y + begin * pool.out_row_size(), y + end * pool.out_row_size(), uint8_t{0});
      ForEachCell(pool, begin, end, [&](int64_t out, int64_t in, int64_t) {
        for (int64_t c = 0; c < pool.channels; ++c) y[out + c] = std::max(y[out + c], x[in + c]);
      });
    });
  });
}

// Where NaN stands for the maximum, NaN is what to look for.
bool Holds(float x, float y) { return x == y || (x != x && y != y); }
bool Holds(uint8_t x, uint8_t y) { return x == y; }
bool Holds(Half x, Half y) { return Holds(ToFloat(x), ToFloat(y)); }
bool Holds(BFloat16 x, BFloat16 y) { return Holds(ToFloat(x), ToFloat(y)); }

template <typename T>
std::unique_ptr<runtime::Kernel> PrepareMaxPoolIndex(const NodeDesc& desc) {
  const Pool pool = MakePool(desc, desc.inputs[0].shape, desc.outputs[0].shape);
  return MakeKernel(0, [=](const KernelArgs& args) {
    const T* x = args.inputs[0].as<T>();
    const T* y = args.inputs[1].as<T>();
    int32_t* index = args.outputs[0].as<int32_t>();
    ParallelRange(pool.parts_by_row, pool.batch * pool.out_height, 1, [&](int, int64_t begin, int64_t end) {
      std::fill(index + begin * pool.out_row_size(), index + end * pool.out_row_size(), -1);
      ForEachCell(pool, begin, end, [&](int64_t out, int64_t in, int64_t pixel) {
        for (int64_t c = 0; c < pool.channels; ++c) {
          if (index[out + c] < 0 && Holds(x[in + c], y[out + c])) index[out + c] = static_cast<int32_t>(pixel);
        }
      });
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
  constexpr DType kBytes = DType::kU8;
  table->Add(ir::OpKind::kMaxPool2d, {kBytes}, {kBytes}, PrepareMaxPoolBytes);
  const auto add_index = [&](DType t, const runtime::PrepareKernel& prepare) {
    table->Add(ir::OpKind::kMaxPool2dIndex, {t, t}, {DType::kI32}, prepare);
  };
  add_index(DType::kF32, PrepareMaxPoolIndex<float>);
  add_index(DType::kF16, PrepareMaxPoolIndex<Half>);
  add_index(DType::kBF16, PrepareMaxPoolIndex<BFloat16>);
  add_index(kBytes, PrepareMaxPoolIndex<uint8_t>);
}

}  // namespace ampd::cpu
