// Fused nodes as the passes make them of common networks: norms, biases and residuals with what follows them.
#ifndef AMPD_TESTS_UNIT_ENGINE_BACKEND_NETWORK_CHAINS_H_
#define AMPD_TESTS_UNIT_ENGINE_BACKEND_NETWORK_CHAINS_H_

#include <string>
#include <utility>
#include <vector>

#include "engine/runtime/kernel_table.h"

namespace ampd::testing {

class NetworkChain {
 public:
  NetworkChain(std::string name, DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)) {
    desc_.op = ir::OpKind::kFused;
    desc_.name = std::move(name);
  }

  // Inputs come before steps. Each returns its number for steps to come.
  int32_t Whole() { return Input(dtype_, shape_); }
  int32_t Row(DType dtype) { return Input(dtype, {shape_.back()}); }
  int32_t Step(ir::OpKind op, std::vector<int32_t> operands, ir::Attributes attributes = {}) {
    return Add(op, std::move(operands), std::move(attributes), dtype_);
  }
  // (x - mean) * factor + bias, whose rows begin at `rows`.
  int32_t Norm(int32_t x, int32_t rows) {
    const int32_t wide = Add(ir::OpKind::kCast, {x}, {{"dtype", std::string("f32")}}, DType::kF32);
    const int32_t centred = Add(ir::OpKind::kSub, {wide, rows}, {}, DType::kF32);
    const int32_t scaled = Add(ir::OpKind::kMul, {centred, rows + 1}, {}, DType::kF32);
    const int32_t shifted = Add(ir::OpKind::kAdd, {scaled, rows + 2}, {}, DType::kF32);
    return Step(ir::OpKind::kCast, {shifted}, {{"dtype", std::string(DTypeName(dtype_))}});
  }
  void Result(int32_t value) {
    desc_.results.push_back(value - static_cast<int32_t>(desc_.inputs.size()));
    desc_.outputs.push_back({dtype_, shape_});
  }
  runtime::NodeDesc Take() { return std::move(desc_); }

 private:
  int32_t Input(DType dtype, Shape shape) {
    desc_.inputs.push_back({dtype, std::move(shape)});
    return static_cast<int32_t>(desc_.inputs.size()) - 1;
  }
  int32_t Add(ir::OpKind op, std::vector<int32_t> operands, ir::Attributes attributes, DType dtype) {
    desc_.steps.push_back(
        {.op = op, .attributes = std::move(attributes), .operands = std::move(operands), .dtype = dtype});
    return static_cast<int32_t>(desc_.inputs.size() + desc_.steps.size()) - 1;
  }

  const DType dtype_;
  const Shape shape_;
  runtime::NodeDesc desc_;
};

// `shape` has two axes at least.
inline std::vector<runtime::NodeDesc> NetworkChains(DType dtype, const Shape& shape) {
  using ir::OpKind;
  const ir::Attributes slope = {{"alpha", 0.2}}, tanh = {{"approximate", std::string("tanh")}};
  std::vector<runtime::NodeDesc> nodes;
  const auto rows = [](NetworkChain* chain) {
    const int32_t first = chain->Row(DType::kF32);
    chain->Row(DType::kF32);
    chain->Row(DType::kF32);
    return first;
  };
  const auto norm = [&](const char* name, OpKind then, bool keeps) {
    NetworkChain chain(name, dtype, shape);
    const int32_t x = chain.Whole(), of = rows(&chain), y = chain.Norm(x, of);
    if (keeps || then == OpKind::kCast) chain.Result(y);
    if (then != OpKind::kCast) {
      chain.Result(chain.Step(then, {y}, then == OpKind::kLeakyRelu ? slope : ir::Attributes{}));
    }
    nodes.push_back(chain.Take());
  };
  norm("norm", OpKind::kCast, false);
  norm("norm_relu", OpKind::kRelu, false);
  norm("norm_and_leaky_relu", OpKind::kLeakyRelu, true);
  {
    NetworkChain chain("norm_add_relu", dtype, shape);
    const int32_t x = chain.Whole(), of = rows(&chain), past = chain.Whole(), y = chain.Norm(x, of);
    chain.Result(chain.Step(OpKind::kRelu, {chain.Step(OpKind::kAdd, {y, past})}));
    nodes.push_back(chain.Take());
  }
  {
    NetworkChain chain("norm_norm_add_relu", dtype, shape);
    const int32_t x = chain.Whole(), of_x = rows(&chain), z = chain.Whole(), of_z = rows(&chain);
    const int32_t a = chain.Norm(x, of_x), b = chain.Norm(z, of_z);
    chain.Result(chain.Step(OpKind::kRelu, {chain.Step(OpKind::kAdd, {a, b})}));
    nodes.push_back(chain.Take());
  }
  {
    NetworkChain chain("add_relu", dtype, shape);
    const int32_t a = chain.Whole(), b = chain.Whole();
    chain.Result(chain.Step(OpKind::kRelu, {chain.Step(OpKind::kAdd, {a, b})}));
    nodes.push_back(chain.Take());
  }
  {
    NetworkChain chain("add_relu_grad", dtype, shape);
    const int32_t a = chain.Whole(), b = chain.Whole(), y = chain.Whole();
    chain.Result(chain.Step(OpKind::kReluGrad, {chain.Step(OpKind::kAdd, {a, b}), y}));
    nodes.push_back(chain.Take());
  }
  const auto bias = [&](const char* name, OpKind then, const ir::Attributes& attributes, bool keeps) {
    NetworkChain chain(name, dtype, shape);
    const int32_t x = chain.Whole(), b = chain.Row(dtype), y = chain.Step(OpKind::kBiasAdd, {x, b});
    if (keeps) chain.Result(y);
    chain.Result(chain.Step(then, {y}, attributes));
    nodes.push_back(chain.Take());
  };
  bias("bias_relu", OpKind::kRelu, {}, false);
  bias("bias_and_leaky_relu", OpKind::kLeakyRelu, slope, true);
  bias("bias_gelu", OpKind::kGelu, {}, false);
  bias("bias_and_gelu", OpKind::kGelu, {}, true);
  bias("bias_gelu_tanh", OpKind::kGelu, tanh, false);
  bias("bias_and_gelu_tanh", OpKind::kGelu, tanh, true);
  {
    NetworkChain chain("bias_add", dtype, shape);
    const int32_t x = chain.Whole(), past = chain.Whole(), b = chain.Row(dtype);
    chain.Result(chain.Step(OpKind::kAdd, {chain.Step(OpKind::kBiasAdd, {x, b}), past}));
    nodes.push_back(chain.Take());
  }
  return nodes;
}

}  // namespace ampd::testing

#endif  // AMPD_TESTS_UNIT_ENGINE_BACKEND_NETWORK_CHAINS_H_
