#include "engine/backend/cuda/parameters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/core/half.h"
#include "tests/support/ref_tensor.h"

namespace ampd::cuda {
namespace {

class ParametersTest : public ::testing::Test {
 protected:
  ParametersTest() {
    absl::StatusOr<std::unique_ptr<Context>> context = Context::Open("");
    EXPECT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
  }
  // Where the first element that is not finite is; nothing: none.
  NonFiniteFind Find(const TensorView& tensor) {
    NonFiniteFind found = {17, true};
    EXPECT_TRUE(FindNonFinite(context_.get(), tensor.data, tensor.size(), tensor.dtype, &found).ok());
    EXPECT_TRUE(context_->Wait().ok());
    return found;
  }

  std::unique_ptr<Context> context_;
};

float RoundedTo(DType dtype, float x) { return static_cast<float>(testing::RoundToDType(x, dtype)); }

float ElementOf(DType dtype, const char* data, int64_t i) {
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(data)[i];
  if (dtype == DType::kF16) return ToFloat(reinterpret_cast<const Half*>(data)[i]);
  return ToFloat(reinterpret_cast<const BFloat16*>(data)[i]);
}

TEST_F(ParametersTest, PublishesAnySizeFromAnyPlace) {
  testing::Random random(3);
  Tensor masters(DType::kF32, {5001});
  for (float& v : masters.as<float>()) v = static_cast<float>(random.Uniform(-300, 300));
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int64_t size : {1, 7, 8, 1027, 5000}) {
      for (int64_t from : {0, 1}) {
        Tensor copy(dtype, {5001});
        const float* begin = masters.as<float>().data() + from;
        ASSERT_TRUE(PublishDense(context_.get(), begin, size, dtype, copy.view().data).ok());
        ASSERT_TRUE(context_->Wait().ok());
        for (int64_t i = 0; i <= size; ++i) {
          const float expected = i < size ? RoundedTo(dtype, begin[i]) : 0;
          ASSERT_EQ(ElementOf(dtype, copy.view().as<char>(), i), expected)
              << DTypeName(dtype) << " " << size << " " << i;
        }
      }
    }
  }
}

struct PadCase {
  Shape shape, padded;
  int64_t from;  // elements past a multiple of 16 bytes
};

TEST_F(ParametersTest, PadsTheEndOfEachDimension) {
  for (const PadCase& c : {PadCase{{5}, {8}, 0},
                           {{3, 4}, {8, 8}, 0},
                           {{3, 4}, {8, 8}, 1},
                           {{2, 3, 5, 3}, {2, 3, 8, 8}, 0},
                           {{7, 3, 3, 16}, {8, 3, 3, 16}, 0},
                           {{4, 4}, {4, 4}, 3}}) {
    Tensor from(DType::kF32, {NumElements(c.shape) + c.from}), to(DType::kF32, c.padded);
    for (int64_t i = 0; i < from.size(); ++i) from.as<float>()[i] = static_cast<float>(i + 1);
    for (float& v : to.as<float>()) v = -1;
    ASSERT_TRUE(
        PadInto(context_.get(), from.as<float>().data() + c.from, c.shape, c.padded, to.as<float>().data()).ok());
    ASSERT_TRUE(context_->Wait().ok());
    for (int64_t i = 0; i < to.size(); ++i) {
      int64_t left = i, at = 0, stride = 1;
      bool inside = true;
      for (size_t d = c.padded.size(); d-- > 0;) {
        const int64_t along = left % c.padded[d];
        left /= c.padded[d];
        inside = inside && along < c.shape[d];
        at += along * stride;
        stride *= c.shape[d];
      }
      ASSERT_EQ(to.as<float>()[i], inside ? static_cast<float>(at + c.from + 1) : 0.0f)
          << ShapeString(c.shape) << " to " << ShapeString(c.padded) << ", element " << i;
    }
  }
  float nothing = 0;
  EXPECT_EQ(PadInto(context_.get(), &nothing, {3}, {2}, &nothing).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PadInto(context_.get(), &nothing, {1}, {1, 1}, &nothing).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ParametersTest, FindsTheFirstThatIsNotFinite) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Tensor x(dtype, {3001});
    const auto set = [&](int64_t i, float value) {
      if (dtype == DType::kF32) x.view().as<float>()[i] = value;
      if (dtype == DType::kF16) x.view().as<Half>()[i] = ToHalf(value);
      if (dtype == DType::kBF16) x.view().as<BFloat16>()[i] = ToBFloat16(value);
    };
    for (int64_t i = 0; i < x.size(); ++i) set(i, static_cast<float>(i));
    EXPECT_EQ(Find(x.view()).index, -1);
    set(3000, nan);
    EXPECT_EQ(Find(x.view()).index, 3000);
    EXPECT_TRUE(Find(x.view()).is_nan);
    set(1234, -inf);
    set(2000, nan);
    EXPECT_EQ(Find(x.view()).index, 1234);
    EXPECT_FALSE(Find(x.view()).is_nan);
    set(0, nan);
    EXPECT_EQ(Find(x.view()).index, 0);
    EXPECT_TRUE(Find(x.view()).is_nan);
    // From an address that is no multiple of 16 bytes.
    TensorView rest{x.view().as<char>() + SizeOf(dtype), dtype, {3000}};
    EXPECT_EQ(Find(rest).index, 1233);
  }
}

TEST_F(ParametersTest, FindsInEightBitsAndNotInIntegers) {
  Tensor e4m3(DType::kF8E4M3, {100}), e5m2(DType::kF8E5M2, {100}), integers(DType::kI32, {100});
  EXPECT_EQ(Find(e4m3.view()).index, -1);
  e4m3.view().as<uint8_t>()[40] = 0x7e;  // 448
  e4m3.view().as<uint8_t>()[41] = 0xff;
  EXPECT_EQ(Find(e4m3.view()).index, 41);
  EXPECT_TRUE(Find(e4m3.view()).is_nan);
  e5m2.view().as<uint8_t>()[99] = 0xfc;
  EXPECT_EQ(Find(e5m2.view()).index, 99);
  EXPECT_FALSE(Find(e5m2.view()).is_nan);
  for (int32_t& v : integers.as<int32_t>()) v = -1;
  EXPECT_EQ(Find(integers.view()).index, -1);
}

}  // namespace
}  // namespace ampd::cuda
