#include "proto/spec/presets/families.h"

namespace ampd::presets {

v1::Layer* LayerWriter::Add(const std::string& name, const Names& inputs) {
  v1::Layer* layer = layers_->Add();
  layer->set_name(name);
  for (const std::string& input : inputs) layer->add_inputs(input);
  return layer;
}

v1::Conv2dLayer* LayerWriter::Conv2d(const std::string& name, int64_t filters, int64_t kernel, int64_t stride,
                                     const Names& inputs) {
  v1::Conv2dLayer* conv = Add(name, inputs)->mutable_conv2d();
  conv->set_filters(filters);
  conv->add_kernel(kernel);
  conv->add_stride(stride);
  conv->add_pads((kernel - 1) / 2);
  return conv;
}

v1::DenseLayer* LayerWriter::Dense(const std::string& name, int64_t units, const Names& inputs) {
  v1::DenseLayer* dense = Add(name, inputs)->mutable_dense();
  dense->set_units(units);
  return dense;
}

v1::BatchNormLayer* LayerWriter::BatchNorm(const std::string& name, const Names& inputs) {
  return Add(name, inputs)->mutable_batch_norm();
}

void LayerWriter::Relu(const std::string& name, const Names& inputs) { Add(name, inputs)->mutable_relu(); }

void SetDefaultLoss(const v1::LossSpec& loss, v1::ModelSpec* model) {
  if (!model->has_loss()) *model->mutable_loss() = loss;
}

}  // namespace ampd::presets
