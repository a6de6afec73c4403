#include "absl/strings/match.h"
#include "engine/backend/cpu/conv2d_tiles.h"
#include "engine/backend/cpu/conv2d_window.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/onednn_kernel.h"
#include "engine/backend/cpu/tile_sums.h"

namespace ampd::cpu {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;
using runtime::NodeDesc;

// An NHWC image in oneDNN's logical order NCHW.
memory::desc Image(const Shape& s, memory::data_type type) {
  return DenseDesc({s[0], s[3], s[1], s[2]}, type, {s[1] * s[2] * s[3], 1, s[2] * s[3], s[3]});
}

// A KRSC filter in oneDNN's OIHW, or GOIHW where there are several groups.
memory::desc Filter(const Shape& s, int64_t groups, memory::data_type type) {
  const int64_t cell = s[3], row = s[2] * s[3], filter = s[1] * s[2] * s[3];
  if (groups == 1) return DenseDesc({s[0], s[3], s[1], s[2]}, type, {filter, 1, row, cell});
  const int64_t each = s[0] / groups;
  return DenseDesc({groups, each, s[3], s[1], s[2]}, type, {each * filter, filter, 1, row, cell});
}

// Floating-point operations an element of image and result from which bringing both into another layout costs next to
// nothing.
constexpr double kFlopsToReorder = 2000;

// Of any of the three: every output pixel meets every cell of the filter.
double Flops(const Shape& y, const Shape& filter) {
  return 2.0 * static_cast<double>(NumElements(y)) * static_cast<double>(filter[1] * filter[2] * filter[3]);
}

dnnl::convolution_forward::primitive_desc ForwardDesc(const OneDnn& onednn, const Window& window, const memory::desc& x,
                                                      const memory::desc& w, const memory::desc& y) {
  return {dnnl::convolution_forward::desc(prop_kind::forward_training, algorithm::convolution_direct, x, w, y,
                                          window.strides, window.dilations, window.before, window.after),
          UserScratchpad(), onednn.engine};
}

// Where oneDNN 2.6's bf16 kernels with AMX cannot be trusted: they read and write past their buffers where windows lie
// in the padding altogether, skip rows or columns of the image (but for pointwise ones), or are larger than it.
bool ForwardNeedsF32(const Window& window, const Shape& image, const Shape& filter) {
  if (!HasTiles()) return false;
  const bool pointwise = filter[1] == 1 && filter[2] == 1;
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t span = (filter[axis + 1] - 1) * (window.dilations[axis] + 1) + 1;
    if (window.before[axis] >= span || window.after[axis] >= span) return true;
    if (!pointwise && (span < window.strides[axis] || span > image[axis + 1])) return true;
  }
  return false;
}

PrimitiveSpec MakeForward(const OneDnn& onednn, const NodeDesc& desc, memory::data_type compute) {
  const DType dtype = desc.inputs[0].dtype;
  const Window window = MakeWindow(desc);
  if (ForwardNeedsF32(window, desc.inputs[0].shape, desc.inputs[1].shape)) compute = memory::data_type::f32;
  const memory::desc x = Image(desc.inputs[0].shape, compute);
  const memory::desc w = Filter(desc.inputs[1].shape, window.groups, compute);
  const memory::desc y = Image(desc.outputs[0].shape, compute);
  // For large f32 filters oneDNN's faster kernels have the channels in blocks; its bf16 ones, and those of the
  // gradients, gain nothing by it.
  const double elements = static_cast<double>(NumElements(desc.inputs[0].shape) + NumElements(desc.outputs[0].shape));
  const bool reorders = compute == memory::data_type::f32 &&
                        Flops(desc.outputs[0].shape, desc.inputs[1].shape) >= kFlopsToReorder * elements;
  const auto pd = ForwardDesc(onednn, window, reorders ? AnyLayout(x) : x, AnyLayout(w), reorders ? AnyLayout(y) : y);
  PrimitiveSpec spec;
  spec.primitive = dnnl::convolution_forward(pd);
  spec.scratchpad = pd.scratchpad_desc();
  spec.inputs[0] = {DNNL_ARG_SRC, dtype, x, pd.src_desc()};
  spec.inputs[1] = {DNNL_ARG_WEIGHTS, dtype, w, pd.weights_desc()};
  spec.output = {DNNL_ARG_DST, dtype, y, pd.dst_desc()};
  spec.axes = "filter";
  return spec;
}

PrimitiveSpec MakeGradInput(const OneDnn& onednn, const NodeDesc& desc, memory::data_type compute) {
  const DType dtype = desc.inputs[0].dtype;
  const Window window = MakeWindow(desc);
  const memory::desc dy = Image(desc.inputs[0].shape, compute);
  const memory::desc w = Filter(desc.inputs[1].shape, window.groups, compute);
  const memory::desc dx = Image(desc.outputs[0].shape, compute);
  const auto forward = ForwardDesc(onednn, window, dx, AnyLayout(w), dy);
  const dnnl::convolution_backward_data::primitive_desc pd(
      dnnl::convolution_backward_data::desc(algorithm::convolution_direct, dx, AnyLayout(w), dy, window.strides,
                                            window.dilations, window.before, window.after),
      UserScratchpad(), onednn.engine, forward);
  PrimitiveSpec spec;
  spec.primitive = dnnl::convolution_backward_data(pd);
  spec.scratchpad = pd.scratchpad_desc();
  spec.inputs[0] = {DNNL_ARG_DIFF_DST, dtype, dy, pd.diff_dst_desc()};
  spec.inputs[1] = {DNNL_ARG_WEIGHTS, dtype, w, pd.weights_desc()};
  spec.output = {DNNL_ARG_DIFF_SRC, dtype, dx, pd.diff_src_desc()};
  spec.axes = "filter";
  return spec;
}

// Whether a row or a column of the filter sees nothing but padding, wherever it stands.
bool HasBlindCells(const Window& window, const Shape& image, const Shape& filter, const Shape& output) {
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t stride = window.strides[axis], step = window.dilations[axis] + 1;
    for (int64_t cell = 0; cell < filter[axis + 1]; ++cell) {
      const int64_t first = cell * step - window.before[axis];
      const int64_t place = first >= 0 ? 0 : (stride - 1 - first) / stride;  // the first that is not in front
      if (place >= output[axis + 1] || first + place * stride >= image[axis + 1]) return true;
    }
  }
  return false;
}

// Where oneDNN 2.6's own kernels for the gradients of 1x1 filters cannot be trusted: with a stride on a few channels
// they write past their scratchpad (bf16's with AVX-512, f32's with AVX2).
bool OverrunsScratchpad(const Window& window, const Shape& filter) {
  const bool strided = window.strides[0] > 1 || window.strides[1] > 1;
  return filter[1] == 1 && filter[2] == 1 && strided && filter[3] % 16 != 0;
}

// Where oneDNN 2.6's bf16 kernels for filter gradients cannot be trusted: they leave the gradients of cells that see
// only padding as they find them, and read past an image of one channel that is narrower than its stride; with AMX that
// of dilated windows is wrong for every element where there are more than 32 channels and no multiple of 16.
bool NeedsF32(const Window& window, const Shape& image, const Shape& filter, const Shape& output) {
  const bool dilated = window.dilations[0] > 0 || window.dilations[1] > 0;
  return OverrunsScratchpad(window, filter) || window.strides[1] > image[2] || (dilated && filter[3] % 16 != 0) ||
         HasBlindCells(window, image, filter, output);
}

// Where oneDNN 2.6's f32 kernel with AVX-512 cannot be trusted: some dilated windows with a stride and much padding
// (seen with 15 pixels and more) give another gradient altogether. Its im2col, which takes the channels first, is
// right.
bool NeedsGemm(const Window& window) {
  return (window.dilations[0] > 0 || window.dilations[1] > 0) && (window.strides[0] > 1 || window.strides[1] > 1);
}

// The filter's gradient is computed in f32 whatever the data, and rounded once.
PrimitiveSpec MakeGradFilter(const OneDnn& onednn, const NodeDesc& desc, memory::data_type compute) {
  const DType dtype = desc.inputs[0].dtype;
  Window window = MakeWindow(desc);
  // Nothing lies between the cells of one.
  for (int axis = 0; axis < 2; ++axis) {
    if (desc.outputs[0].shape[axis + 1] == 1) window.dilations[axis] = 0;
  }
  if (NeedsF32(window, desc.inputs[1].shape, desc.outputs[0].shape, desc.inputs[0].shape)) {
    compute = memory::data_type::f32;
  }
  const memory::desc dy = Image(desc.inputs[0].shape, compute);
  const memory::desc x = Image(desc.inputs[1].shape, compute);
  const memory::desc w = Filter(desc.outputs[0].shape, window.groups, compute);
  const memory::desc dw = Filter(desc.outputs[0].shape, window.groups, memory::data_type::f32);
  const auto forward = ForwardDesc(onednn, window, x, AnyLayout(w), dy);
  // With the channels in blocks the scratchpad is large enough for what is written.
  const bool blocks = OverrunsScratchpad(window, desc.outputs[0].shape);
  const bool gemm = compute == memory::data_type::f32 && NeedsGemm(window);
  const auto used = [&](const memory::desc& image) {
    if (gemm) return memory::desc(image.dims(), image.data_type(), memory::format_tag::nchw);
    return blocks ? AnyLayout(image) : image;
  };
  dnnl::convolution_backward_weights::primitive_desc pd(
      dnnl::convolution_backward_weights::desc(algorithm::convolution_direct, used(x), AnyLayout(dw), used(dy),
                                               window.strides, window.dilations, window.before, window.after),
      UserScratchpad(), onednn.engine, forward);
  while (gemm && absl::StartsWith(pd.impl_info_str(), "jit:")) {
    if (!pd.next_impl()) throw dnnl::error(dnnl_unimplemented, "no implementation that can be trusted");
  }
  PrimitiveSpec spec;
  spec.primitive = dnnl::convolution_backward_weights(pd);
  spec.scratchpad = pd.scratchpad_desc();
  spec.inputs[0] = {DNNL_ARG_DIFF_DST, dtype, dy, pd.diff_dst_desc()};
  spec.inputs[1] = {DNNL_ARG_SRC, dtype, x, pd.src_desc()};
  spec.output = {DNNL_ARG_DIFF_WEIGHTS, dtype, dw, pd.diff_weights_desc()};
  return spec;
}

absl::StatusOr<std::unique_ptr<runtime::Kernel>> Prepare(std::shared_ptr<OneDnn> onednn, const NodeDesc& desc,
                                                         double flops, const MakeSpec& make) {
  if (TilesConvolveFaster(desc)) return MakeConvTiles(desc);
  return PrepareOneDnn(std::move(onednn), desc, flops, make);
}

}  // namespace

void RegisterConv2d(runtime::KernelTable* table) {
  auto onednn = std::make_shared<OneDnn>();
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kConv2d, {t, t}, {t}, [onednn](const NodeDesc& desc) {
      return Prepare(onednn, desc, Flops(desc.outputs[0].shape, desc.inputs[1].shape), MakeForward);
    });
    for (ir::OpKind op : {ir::OpKind::kConv2dGradInput, ir::OpKind::kConvTranspose2d}) {
      table->Add(op, {t, t}, {t}, [onednn](const NodeDesc& desc) {
        return Prepare(onednn, desc, Flops(desc.inputs[0].shape, desc.inputs[1].shape), MakeGradInput);
      });
    }
    table->Add(ir::OpKind::kConv2dGradFilter, {t, t}, {t}, [onednn](const NodeDesc& desc) {
      return Prepare(onednn, desc, Flops(desc.inputs[0].shape, desc.outputs[0].shape), MakeGradFilter);
    });
  }
}

}  // namespace ampd::cpu
