// Tensors of doubles for reference calculations, and their way from and to the engine's dtypes. Independent of the
// engine's own conversions.
#ifndef AMPD_TESTS_SUPPORT_REF_TENSOR_H_
#define AMPD_TESTS_SUPPORT_REF_TENSOR_H_

#include <cstdint>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/shape.h"
#include "engine/core/tensor.h"

namespace ampd::testing {

// Dense and row-major. Integers are stored as doubles.
struct RefTensor {
  Shape shape;
  std::vector<double> data;

  int64_t size() const { return static_cast<int64_t>(data.size()); }
};

RefTensor Filled(Shape shape, double value = 0);

// The nearest value of a float dtype, ties to even, infinite past the largest (IEEE 754-2019, section 4.3.1); NaN in
// e4m3fn, which has no infinity. Other dtypes: the nearest integer.
double RoundToDType(double value, DType dtype);

// Rounds into `dtype`.
Tensor ToTensor(const RefTensor& reference, DType dtype);
RefTensor FromTensor(const TensorView& tensor);
// As ToTensor, into memory that exists, of the same size.
void CopyTo(const RefTensor& reference, const TensorView& tensor);

// A small deterministic generator (SplitMix64, Steele et al. 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  double Uniform(double low, double high);
  int64_t Below(int64_t bound) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound)); }

 private:
  uint64_t state_;
};

// Values that `dtype` holds exactly, mostly uniform in [low, high), with one in eight a zero, a repeat of the value
// before (so that maxima tie), or much smaller than the rest.
RefTensor RandomTensor(Random* random, Shape shape, DType dtype, double low = -1, double high = 1);

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_REF_TENSOR_H_
