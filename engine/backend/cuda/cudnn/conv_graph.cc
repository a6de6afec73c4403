#include "engine/backend/cuda/cudnn/conv_graph.h"

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd::cuda::cudnn {
namespace {

using Dims = std::array<int64_t, 4>;

// [n, h, w, c] in memory, filters too, in cuDNN's order.
Tensor ChannelsLast(const Dims& d, DType dtype) {
  return {{d[0], d[3], d[1], d[2]}, {d[1] * d[2] * d[3], 1, d[2] * d[3], d[3]}, dtype};
}

Op OpOf(ConvKind kind) {
  if (kind == ConvKind::kForward) return Op::kConvForward;
  return kind == ConvKind::kGradInput ? Op::kConvGradInput : Op::kConvGradFilter;
}

class Builder {
 public:
  Builder(const ConvDesc& desc, DType intermediate) : desc_(desc), intermediate_(intermediate) {}

  int Stored(Tensor tensor, ConvOperand operand) {
    const int id = Add(std::move(tensor));
    out_.operands.emplace_back(id, operand);
    return id;
  }
  // One value for each of `channels`.
  int Vector(int64_t channels, DType dtype, ConvOperand operand) {
    return Stored(ChannelsLast({1, 1, 1, channels}, dtype), operand);
  }
  // As `like`, never stored.
  int Virtual(const Dims& like) {
    Tensor tensor = ChannelsLast(like, intermediate_);
    tensor.is_virtual = true;
    return Add(std::move(tensor));
  }
  void Emit(Op op, std::vector<int> inputs, std::vector<int> outputs) {
    out_.graph.nodes.push_back({op, std::move(inputs), std::move(outputs)});
  }
  void EmitConv(int a, int b, int result) {
    out_.graph.nodes.push_back(
        {OpOf(desc_.kind), {a, b}, {result}, desc_.strides, desc_.dilations, desc_.before, desc_.after});
  }
  int A() {
    const Dims& d = desc_.kind == ConvKind::kForward ? desc_.image : desc_.output;
    return Stored(ChannelsLast(d, desc_.operands), ConvOperand::kA);
  }
  int B() {
    const Dims& d = desc_.kind == ConvKind::kGradFilter ? desc_.image : desc_.filter;
    return Stored(ChannelsLast(d, desc_.operands), ConvOperand::kB);
  }
  const Dims& ResultDims() const {
    if (desc_.kind == ConvKind::kForward) return desc_.output;
    return desc_.kind == ConvKind::kGradInput ? desc_.image : desc_.filter;
  }
  int Result() { return Stored(ChannelsLast(ResultDims(), desc_.result), ConvOperand::kResult); }
  ConvGraph Take() { return std::move(out_); }

 private:
  int Add(Tensor tensor) {
    out_.graph.tensors.push_back(std::move(tensor));
    return static_cast<int>(out_.graph.tensors.size()) - 1;
  }

  const ConvDesc& desc_;
  const DType intermediate_;
  ConvGraph out_;
};

void AddBias(const ConvDesc& desc, Builder* b) {
  const int conv = b->Virtual(desc.output), bias = b->Vector(desc.filter[0], desc.operands, ConvOperand::kBias);
  b->EmitConv(b->A(), b->B(), conv);
  if (desc.fusion == ConvFusion::kBias) return b->Emit(Op::kAdd, {conv, bias}, {b->Result()});
  const int sum = b->Virtual(desc.output);
  b->Emit(Op::kAdd, {conv, bias}, {sum});
  b->Emit(Op::kRelu, {sum}, {b->Result()});
}

void AddStatistics(const ConvDesc& desc, Builder* b) {
  const int64_t channels = desc.filter[0];
  const int result = b->Result();
  b->EmitConv(b->A(), b->B(), result);
  b->Emit(Op::kStatistics, {result},
          {b->Vector(channels, DType::kF32, ConvOperand::kSum),
           b->Vector(channels, DType::kF32, ConvOperand::kSumOfSquares)});
}

// relu(scale * x + bias) of a tensor with the image's dimensions.
int ScaleBiasRelu(const ConvDesc& desc, int x, Builder* b) {
  const int64_t channels = desc.image[3];
  const int scaled = b->Virtual(desc.image), sum = b->Virtual(desc.image), image = b->Virtual(desc.image);
  b->Emit(Op::kMultiply, {x, b->Vector(channels, desc.operands, ConvOperand::kScale)}, {scaled});
  b->Emit(Op::kAdd, {scaled, b->Vector(channels, desc.operands, ConvOperand::kBias)}, {sum});
  b->Emit(Op::kRelu, {sum}, {image});
  return image;
}

void AddReluBatchNormGrad(const ConvDesc& desc, Builder* b) {
  const int64_t channels = desc.image[3];
  const auto vector = [&](ConvOperand operand) { return b->Vector(channels, DType::kF32, operand); };
  const int gradient = b->Virtual(desc.image);
  b->EmitConv(b->A(), b->B(), gradient);
  const int x = b->Stored(ChannelsLast(desc.image, desc.operands), ConvOperand::kX);
  const int mean = vector(ConvOperand::kMean), inverse_deviation = vector(ConvOperand::kInverseDeviation);
  const int scale = vector(ConvOperand::kScale), bias = vector(ConvOperand::kBias);
  const int centred = b->Virtual(desc.image), normal = b->Virtual(desc.image);
  const int scaled = b->Virtual(desc.image), y = b->Virtual(desc.image), result = b->Result();
  b->Emit(Op::kSubtract, {x, mean}, {centred});
  b->Emit(Op::kMultiply, {centred, inverse_deviation}, {normal});
  b->Emit(Op::kMultiply, {normal, scale}, {scaled});
  b->Emit(Op::kAdd, {scaled, bias}, {y});
  b->Emit(Op::kReluGrad, {gradient, y}, {result});
  b->Emit(Op::kBatchNormGrad, {result, x, scale, mean, inverse_deviation},
          {vector(ConvOperand::kScaleGradient), vector(ConvOperand::kBiasGradient), vector(ConvOperand::kCoefficientDy),
           vector(ConvOperand::kCoefficientX), vector(ConvOperand::kCoefficient1)});
}

ConvKind KindOf(ConvFusion fusion, ConvKind otherwise) {
  switch (fusion) {
    case ConvFusion::kNone:
      return otherwise;
    case ConvFusion::kReluBatchNormGrad:
      return ConvKind::kGradInput;
    case ConvFusion::kScaleBiasRelu:
      return ConvKind::kGradFilter;
    default:
      return ConvKind::kForward;
  }
}

}  // namespace

absl::StatusOr<ConvGraph> DescribeConv(const ConvDesc& desc, DType intermediate) {
  if (desc.kind != KindOf(desc.fusion, desc.kind)) {
    return absl::InvalidArgumentError(absl::StrCat("[conv] no such fusion: ", ConvKey(desc)));
  }
  Builder b(desc, intermediate);
  switch (desc.fusion) {
    case ConvFusion::kNone:
      b.EmitConv(b.A(), b.B(), b.Result());
      break;
    case ConvFusion::kBias:
    case ConvFusion::kBiasRelu:
      AddBias(desc, &b);
      break;
    case ConvFusion::kStatistics:
      AddStatistics(desc, &b);
      break;
    case ConvFusion::kReluBatchNormGrad:
      AddReluBatchNormGrad(desc, &b);
      break;
    case ConvFusion::kScaleBiasRelu: {
      const int dy = b.A(), image = ScaleBiasRelu(desc, b.B(), &b);
      b.EmitConv(dy, image, b.Result());
      break;
    }
  }
  return b.Take();
}

void* PointerOf(const ConvArgs& args, ConvOperand operand) {
  const void* const pointers[] = {args.a,
                                  args.b,
                                  args.result,
                                  args.bias,
                                  args.scale,
                                  args.sum,
                                  args.sum_of_squares,
                                  args.x,
                                  args.mean,
                                  args.inverse_deviation,
                                  args.scale_gradient,
                                  args.bias_gradient,
                                  args.coefficient_dy,
                                  args.coefficient_x,
                                  args.coefficient_1};
  return const_cast<void*>(pointers[static_cast<int>(operand)]);
}

}  // namespace ampd::cuda::cudnn
