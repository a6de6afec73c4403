#include "absl/strings/str_cat.h"
#include "proto/spec/presets/families.h"

namespace ampd::presets {
namespace {

constexpr int64_t kMaxUnits = 1 << 20;
constexpr int64_t kKernel = 5;

// A convolution over time and mels that halves the mels, and time where `time_stride` says so.
void AddConvolution(const std::string& name, int64_t filters, int64_t time_stride, LayerWriter* layers) {
  v1::Conv2dLayer* conv = layers->Add(name)->mutable_conv2d();
  conv->set_filters(filters);
  conv->add_kernel(kKernel);
  conv->add_stride(time_stride);
  conv->add_stride(2);
  conv->add_pads(kKernel / 2);
  conv->set_activation(v1::Activation::RELU);
  layers->Add(name + "_norm")->mutable_layer_norm();
}

}  // namespace

void ExpandSpeech(const v1::SpeechPreset& preset, v1::JobSpec* spec, Violations* violations) {
  const std::string path = "model.preset.speech";
  const int64_t classes = preset.has_classes() ? preset.classes() : 29;
  const int64_t filters = preset.has_filters() ? preset.filters() : 32;
  const int64_t units = preset.has_units() ? preset.units() : 128;
  const int64_t levels = preset.has_layers() ? preset.layers() : 2;
  const double dropout = preset.has_dropout() ? preset.dropout() : 0.1;
  const int64_t beam_width = preset.has_beam_width() ? preset.beam_width() : 8;
  violations->CheckInteger(path + ".classes", classes, 2, kMaxUnits);
  violations->CheckInteger(path + ".filters", filters, 1, kMaxUnits);
  violations->CheckInteger(path + ".units", units, 1, kMaxUnits);
  violations->CheckInteger(path + ".layers", levels, 1, 64);
  violations->CheckReal(path + ".dropout", dropout, {.low = 0, .high = 1, .high_open = true});
  violations->CheckInteger(path + ".beam_width", beam_width, 0, 256);

  LayerWriter layers(spec->mutable_model()->mutable_layers());
  AddConvolution("conv1", filters, 2, &layers);
  AddConvolution("conv2", filters, 1, &layers);
  v1::Layer* rnn = layers.Add("rnn");
  const bool gru = preset.recurrent() == v1::SpeechPreset::GRU;
  v1::RecurrentLayer* recurrent = gru ? rnn->mutable_gru() : rnn->mutable_lstm();
  recurrent->set_units(units);
  recurrent->set_layers(levels);
  recurrent->set_dropout(dropout);
  recurrent->set_bidirectional(true);
  layers.Add("drop")->mutable_dropout()->set_rate(dropout);
  layers.Dense("head", classes);
  v1::LossSpec loss;
  // Short sounds of long words may leave fewer steps than there are letters.
  loss.mutable_ctc()->set_zero_infinity(true);
  loss.mutable_ctc()->set_beam_width(static_cast<int32_t>(beam_width));
  SetDefaultLoss(loss, spec->mutable_model());
}

}  // namespace ampd::presets
