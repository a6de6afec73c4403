#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
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

// Along one axis, where each padded place reads from; -1: the constant.
Ints SourcesOf(const std::string& mode, int64_t extent, int64_t before, int64_t padded) {
  Ints sources;
  for (int64_t i = 0; i < padded; ++i) {
    int64_t from = i - before;
    if (mode == "edge") from = std::clamp<int64_t>(from, 0, extent - 1);
    if (mode == "reflect") from = from < 0 ? -from : (from >= extent ? 2 * (extent - 1) - from : from);
    sources.push_back(from >= 0 && from < extent ? from : -1);
  }
  return sources;
}

// Rows along the last axis of padded tensors, and where they come from.
struct Padding {
  std::vector<Ints> sources;  // by axis
  Shape padded, strides;      // of the padded tensor, of the tensor
  int64_t width = 1;          // of a padded row
  int64_t rows = 1;

  Padding(const NodeDesc& desc, const Shape& x, const Shape& y) : padded(y), strides(DenseStrides(x)) {
    const Ints pads = desc.attributes.Ints("pads");
    for (size_t d = 0; d < x.size(); ++d) {
      sources.push_back(SourcesOf(desc.attributes.String("mode"), x[d], pads[d], y[d]));
    }
    width = y.empty() ? 1 : y.back();
    rows = NumElements(y) / width;
  }

  // The tensor's element behind the begin of padded row `row`, without the last axis; -1: all of it is constant.
  int64_t RowSource(int64_t row) const {
    int64_t at = 0;
    for (size_t d = padded.size() - 1; d-- > 0;) {
      const int64_t from = sources[d][row % padded[d]];
      if (from < 0) return -1;
      at += from * strides[d];
      row /= padded[d];
    }
    return at;
  }
};

template <typename T>
void PadRow(const Ints& sources, const T* row, T value, T* to) {
  const auto n = static_cast<int64_t>(sources.size());
  for (int64_t i = 0; i < n; ++i) to[i] = row == nullptr || sources[i] < 0 ? value : row[sources[i]];
}

template <typename T>
void RunPad(const Padding& padding, int parts, T value, const KernelArgs& args) {
  ParallelRange(parts, padding.rows, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t from = padding.RowSource(r);
      const T* row = from < 0 ? nullptr : args.inputs[0].as<T>() + from;
      PadRow(padding.sources.back(), row, value, args.outputs[0].as<T>() + r * padding.width);
    }
  });
}

// Rounds f32 numbers into their places.
void RunRoundedPad(const Padding& padding, int parts, float value, const KernelArgs& args) {
  const TensorView& y = args.outputs[0];
  const Ints& sources = padding.sources.back();
  ParallelRange(parts, padding.rows, 1, [&](int, int64_t begin, int64_t end) {
    float block[kBlock];
    for (int64_t r = begin; r < end; ++r) {
      const int64_t from = padding.RowSource(r);
      for (int64_t first = 0; first < padding.width; first += kBlock) {
        const int64_t n = std::min(kBlock, padding.width - first);
        for (int64_t i = 0; i < n; ++i) {
          const int64_t source = from < 0 ? -1 : sources[first + i];
          block[i] = source < 0 ? value : args.inputs[0].as<float>()[from + source];
        }
        FromF32(block, n, y.dtype, y.as<char>() + (r * padding.width + first) * SizeOf(y.dtype));
      }
    }
  });
}

// The constant as bits of `dtype`: floats rounded, integers cut toward zero within their range.
uint64_t ConstantBits(DType dtype, double value) {
  uint64_t bits = 0;
  if (IsFloat(dtype)) {
    const float narrow = static_cast<float>(value);
    FromF32(&narrow, 1, dtype, &bits);
    return bits;
  }
  if (dtype == DType::kBool) return value != 0 ? 1 : 0;
  const double low = dtype == DType::kU8 ? 0 : dtype == DType::kI32 ? -0x1p31 : -0x1p63;
  const double high = dtype == DType::kU8 ? 255 : dtype == DType::kI32 ? 0x1p31 - 1 : 0x1.fffffffffffffp62;
  return std::isnan(value) ? 0 : static_cast<uint64_t>(static_cast<int64_t>(std::clamp(value, low, high)));
}

std::unique_ptr<runtime::Kernel> PrepareScalarPad() {
  return MakeKernel(0, [](const KernelArgs& args) {
    const TensorView &x = args.inputs[0], &y = args.outputs[0];
    if (x.dtype != y.dtype) return FromF32(x.as<float>(), 1, y.dtype, y.data);
    std::memcpy(y.data, x.data, SizeOf(y.dtype));
  });
}

std::unique_ptr<runtime::Kernel> PreparePad(const NodeDesc& desc) {
  const Shape& y = desc.outputs[0].shape;
  if (y.empty()) return PrepareScalarPad();
  Padding padding(desc, desc.inputs[0].shape, y);
  const int parts =
      static_cast<int>(std::min<int64_t>(PartsFor(desc.threads, NumElements(y), kMinElementsPerThread), padding.rows));
  const double constant = desc.attributes.Double("value");
  if (desc.inputs[0].dtype != desc.outputs[0].dtype) {
    return MakeKernel(0, [padding = std::move(padding), parts, constant](const KernelArgs& args) {
      RunRoundedPad(padding, parts, static_cast<float>(constant), args);
    });
  }
  const uint64_t value = ConstantBits(desc.outputs[0].dtype, constant);
  return MakeKernel(0, [padding = std::move(padding), parts, value](const KernelArgs& args) {
    const int64_t bytes = SizeOf(args.outputs[0].dtype);
    if (bytes == 1) return RunPad(padding, parts, static_cast<uint8_t>(value), args);
    if (bytes == 2) return RunPad(padding, parts, static_cast<uint16_t>(value), args);
    if (bytes == 4) return RunPad(padding, parts, static_cast<uint32_t>(value), args);
    RunPad(padding, parts, value, args);
  });
}

// Which padded places read each place of an axis: lists one behind the other.
struct Readers {
  Ints begins, places;

  explicit Readers(const Ints& sources, int64_t extent) : begins(extent + 1, 0) {
    for (int64_t from : sources) ++begins[from + 1];
    for (int64_t i = 0; i < extent; ++i) begins[i + 1] += begins[i];
    places.resize(sources.size());
    Ints next(begins.begin(), begins.end() - 1);
    for (size_t i = 0; i < sources.size(); ++i) places[next[sources[i]]++] = static_cast<int64_t>(i);
  }
};

// Sum over all padded places that read one element: axis by axis, in order.
double SumReaders(const std::vector<Readers>& readers, const Shape& padded_strides, const Shape& index, size_t axis,
                  int64_t at, const TensorView& dy) {
  if (axis == readers.size()) {
    float value;
    ToF32(dy.dtype, dy.as<char>() + at * SizeOf(dy.dtype), 1, &value);
    return static_cast<double>(value);
  }
  double sum = 0;
  const Readers& r = readers[axis];
  for (int64_t k = r.begins[index[axis]]; k < r.begins[index[axis] + 1]; ++k) {
    sum += SumReaders(readers, padded_strides, index, axis + 1, at + r.places[k] * padded_strides[axis], dy);
  }
  return sum;
}

std::unique_ptr<runtime::Kernel> PreparePadGrad(const NodeDesc& desc) {
  const Shape &x = desc.outputs[0].shape, &y = desc.inputs[0].shape;
  if (x.empty()) return PrepareScalarPad();
  const Padding padding(desc, x, y);
  std::vector<Readers> readers;
  for (size_t d = 0; d < x.size(); ++d) readers.emplace_back(padding.sources[d], x[d]);
  const Shape strides = DenseStrides(y);
  return MakeKernel(0, [readers = std::move(readers), strides, x, threads = desc.threads](const KernelArgs& args) {
    const int64_t n = NumElements(x), bytes = SizeOf(args.outputs[0].dtype);
    ParallelRange(PartsFor(threads, n * 4, kMinElementsPerThread), n, 1, [&](int, int64_t begin, int64_t end) {
      Shape index(x.size(), 0);
      for (int64_t i = begin; i < end; ++i) {
        int64_t left = i;
        for (size_t d = x.size(); d-- > 0; left /= x[d]) index[d] = left % x[d];
        const auto sum = static_cast<float>(SumReaders(readers, strides, index, 0, 0, args.inputs[0]));
        FromF32(&sum, 1, args.outputs[0].dtype, args.outputs[0].as<char>() + i * bytes);
      }
    });
  });
}

}  // namespace

void RegisterPad(runtime::KernelTable* table) {
  for (DType t : kAllDTypes) table->Add(OpKind::kPad, {t}, {t}, PreparePad);
  for (DType t : {DType::kF16, DType::kBF16}) table->Add(OpKind::kPad, {DType::kF32}, {t}, PreparePad);
  for (DType t : kDataTypes) table->Add(OpKind::kPadGrad, {t}, {t}, PreparePadGrad);
}

}  // namespace ampd::cpu
