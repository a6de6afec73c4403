// Convolution and pooling, index by index.
#include <cmath>
#include <functional>
#include <limits>

#include "tests/support/reference_internal.h"

namespace ampd::testing {
namespace {

using runtime::NodeDesc;

double& At(RefTensor& t, int64_t a, int64_t b, int64_t c, int64_t d) {
  return t.data[((a * t.shape[1] + b) * t.shape[2] + c) * t.shape[3] + d];
}

double At(const RefTensor& t, int64_t a, int64_t b, int64_t c, int64_t d) {
  return t.data[((a * t.shape[1] + b) * t.shape[2] + c) * t.shape[3] + d];
}

struct Cell {
  int64_t h, w;  // in the image
  int64_t r, s;  // in the window
};

std::vector<int64_t> Dilations(const NodeDesc& desc) {
  const std::vector<int64_t> dilations = desc.attributes.Ints("dilations");
  return dilations.empty() ? std::vector<int64_t>{1, 1} : dilations;
}

// The real cells, row by row, that output pixel (p, q) sees of an image of `height` x `width`.
std::vector<Cell> Cells(const NodeDesc& desc, const std::vector<int64_t>& size, int64_t height, int64_t width,
                        int64_t p, int64_t q) {
  const std::vector<int64_t> strides = desc.attributes.Ints("strides");
  const std::vector<int64_t> pads = desc.attributes.Ints("pads");
  const std::vector<int64_t> dilations = Dilations(desc);
  std::vector<Cell> cells;
  for (int64_t r = 0; r < size[0]; ++r) {
    for (int64_t s = 0; s < size[1]; ++s) {
      const int64_t h = p * strides[0] + r * dilations[0] - pads[0];
      const int64_t w = q * strides[1] + s * dilations[1] - pads[1];
      if (h >= 0 && h < height && w >= 0 && w < width) cells.push_back({h, w, r, s});
    }
  }
  return cells;
}

// visit(n, p, q, cells) for every window over `image`, whose outputs are `out`.
void ForEachWindow(const NodeDesc& desc, const std::vector<int64_t>& size, const Shape& image, const Shape& out,
                   const std::function<void(int64_t, int64_t, int64_t, const std::vector<Cell>&)>& visit) {
  for (int64_t p = 0; p < out[1]; ++p) {
    for (int64_t q = 0; q < out[2]; ++q) {
      const std::vector<Cell> cells = Cells(desc, size, image[1], image[2], p, q);
      for (int64_t n = 0; n < out[0]; ++n) visit(n, p, q, cells);
    }
  }
}

// visit(image n, h, w, c; filter k, r, s and its channel; output p, q) for every product of a convolution.
void ForEachProduct(const NodeDesc& desc, const Shape& image, const Shape& filter, const Shape& out,
                    const std::function<void(int64_t n, const Cell& cell, int64_t c, int64_t fc, int64_t k, int64_t p,
                                             int64_t q)>& visit) {
  const int64_t filters_a_group = filter[0] / desc.attributes.Int("groups", 1);
  ForEachWindow(desc, {filter[1], filter[2]}, image, out,
                [&](int64_t n, int64_t p, int64_t q, const std::vector<Cell>& cells) {
                  for (const Cell& cell : cells) {
                    for (int64_t k = 0; k < filter[0]; ++k) {
                      for (int64_t c = 0; c < filter[3]; ++c) {
                        visit(n, cell, k / filters_a_group * filter[3] + c, c, k, p, q);
                      }
                    }
                  }
                });
}

// What an average divides by: the real cells, or with count_include_pad also those in the padding that is not
// ceil_pads.
double AvgPoolCount(const NodeDesc& desc, const Shape& image, const std::vector<Cell>& cells, int64_t p, int64_t q) {
  if (!desc.attributes.Bool("count_include_pad")) return static_cast<double>(cells.size());
  const std::vector<int64_t> size = desc.attributes.Ints("size"), strides = desc.attributes.Ints("strides"),
                             pads = desc.attributes.Ints("pads"), dilations = Dilations(desc);
  std::vector<int64_t> ceil_pads = desc.attributes.Ints("ceil_pads");
  if (ceil_pads.empty()) ceil_pads = {0, 0};
  double count = 0;
  for (int64_t r = 0; r < size[0]; ++r) {
    for (int64_t s = 0; s < size[1]; ++s) {
      const int64_t h = p * strides[0] + r * dilations[0] - pads[0];
      const int64_t w = q * strides[1] + s * dilations[1] - pads[1];
      count += h < image[1] + pads[2] - ceil_pads[0] && w < image[2] + pads[3] - ceil_pads[1] ? 1 : 0;
    }
  }
  return count;
}

}  // namespace

RefTensor Conv2dReference(const NodeDesc& desc, const RefTensors& in) {
  RefTensor y = Filled(desc.outputs[0].shape);
  ForEachProduct(desc, in[0].shape, in[1].shape, y.shape,
                 [&](int64_t n, const Cell& cell, int64_t c, int64_t fc, int64_t k, int64_t p, int64_t q) {
                   At(y, n, p, q, k) += At(in[0], n, cell.h, cell.w, c) * At(in[1], k, cell.r, cell.s, fc);
                 });
  return y;
}

RefTensor Conv2dGradInputReference(const NodeDesc& desc, const RefTensors& in) {
  RefTensor dx = Filled(desc.outputs[0].shape);
  ForEachProduct(desc, dx.shape, in[1].shape, in[0].shape,
                 [&](int64_t n, const Cell& cell, int64_t c, int64_t fc, int64_t k, int64_t p, int64_t q) {
                   At(dx, n, cell.h, cell.w, c) += At(in[0], n, p, q, k) * At(in[1], k, cell.r, cell.s, fc);
                 });
  return dx;
}

RefTensor Conv2dGradFilterReference(const NodeDesc& desc, const RefTensors& in) {
  RefTensor dw = Filled(desc.outputs[0].shape);
  ForEachProduct(desc, in[1].shape, dw.shape, in[0].shape,
                 [&](int64_t n, const Cell& cell, int64_t c, int64_t fc, int64_t k, int64_t p, int64_t q) {
                   At(dw, k, cell.r, cell.s, fc) += At(in[0], n, p, q, k) * At(in[1], n, cell.h, cell.w, c);
                 });
  return dw;
}

RefTensor MaxPoolReference(const NodeDesc& desc, const RefTensors& in) {
  const bool floats = IsFloat(desc.outputs[0].dtype);
  RefTensor y = Filled(desc.outputs[0].shape, floats ? -std::numeric_limits<double>::infinity() : 0);
  ForEachWindow(desc, desc.attributes.Ints("size"), in[0].shape, y.shape,
                [&](int64_t n, int64_t p, int64_t q, const std::vector<Cell>& cells) {
                  for (const Cell& cell : cells) {
                    for (int64_t c = 0; c < y.shape[3]; ++c) {
                      const double x = At(in[0], n, cell.h, cell.w, c);
                      double& best = At(y, n, p, q, c);
                      if (!std::isnan(best) && (std::isnan(x) || x > best)) best = x;
                    }
                  }
                });
  return y;
}

RefTensor MaxPoolGradReference(const NodeDesc& desc, const RefTensors& in) {
  RefTensor dx = Filled(desc.outputs[0].shape);
  ForEachWindow(desc, desc.attributes.Ints("size"), dx.shape, in[0].shape,
                [&](int64_t n, int64_t p, int64_t q, const std::vector<Cell>& cells) {
                  for (int64_t c = 0; c < dx.shape[3]; ++c) {
                    const double y = At(in[2], n, p, q, c);
                    for (const Cell& cell : cells) {
                      const double x = At(in[1], n, cell.h, cell.w, c);
                      if (x != y && !(std::isnan(x) && std::isnan(y))) continue;
                      At(dx, n, cell.h, cell.w, c) += At(in[0], n, p, q, c);
                      break;
                    }
                  }
                });
  return dx;
}

RefTensor AvgPoolReference(const NodeDesc& desc, const RefTensors& in) {
  RefTensor y = Filled(desc.outputs[0].shape);
  ForEachWindow(desc, desc.attributes.Ints("size"), in[0].shape, y.shape,
                [&](int64_t n, int64_t p, int64_t q, const std::vector<Cell>& cells) {
                  for (int64_t c = 0; c < y.shape[3]; ++c) {
                    double sum = 0;
                    for (const Cell& cell : cells) sum += At(in[0], n, cell.h, cell.w, c);
                    if (!cells.empty()) At(y, n, p, q, c) = sum / AvgPoolCount(desc, in[0].shape, cells, p, q);
                  }
                });
  return y;
}

RefTensor AvgPoolGradReference(const NodeDesc& desc, const RefTensors& in) {
  RefTensor dx = Filled(desc.outputs[0].shape);
  ForEachWindow(desc, desc.attributes.Ints("size"), dx.shape, in[0].shape,
                [&](int64_t n, int64_t p, int64_t q, const std::vector<Cell>& cells) {
                  for (const Cell& cell : cells) {
                    for (int64_t c = 0; c < dx.shape[3]; ++c) {
                      At(dx, n, cell.h, cell.w, c) += At(in[0], n, p, q, c) / AvgPoolCount(desc, dx.shape, cells, p, q);
                    }
                  }
                });
  return dx;
}

RefTensor GlobalAvgPoolReference(const RefTensors& in) {
  const Shape& s = in[0].shape;
  RefTensor y = Filled(Shape{s[0], s[3]});
  for (int64_t n = 0; n < s[0]; ++n) {
    for (int64_t c = 0; c < s[3]; ++c) {
      double sum = 0;
      for (int64_t h = 0; h < s[1]; ++h) {
        for (int64_t w = 0; w < s[2]; ++w) sum += At(in[0], n, h, w, c);
      }
      y.data[n * s[3] + c] = sum / static_cast<double>(s[1] * s[2]);
    }
  }
  return y;
}

RefTensor GlobalAvgPoolGradReference(const NodeDesc& desc, const RefTensors& in) {
  RefTensor dx = Filled(desc.outputs[0].shape);
  const Shape& s = dx.shape;
  for (int64_t n = 0; n < s[0]; ++n) {
    for (int64_t h = 0; h < s[1]; ++h) {
      for (int64_t w = 0; w < s[2]; ++w) {
        for (int64_t c = 0; c < s[3]; ++c) {
          At(dx, n, h, w, c) = in[0].data[n * s[3] + c] / static_cast<double>(s[1] * s[2]);
        }
      }
    }
  }
  return dx;
}

}  // namespace ampd::testing
