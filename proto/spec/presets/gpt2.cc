#include <cmath>

#include "absl/strings/str_cat.h"
#include "proto/spec/presets/families.h"

namespace ampd::presets {
namespace {

constexpr int64_t kMaxExtent = 1 << 20;
constexpr int64_t kMaxFeatures = 1 << 16;
// Nine layers each.
constexpr int64_t kMaxBlocks = 1000;
constexpr double kDeviation = 0.02;

v1::WeightInit Normal(double deviation) {
  v1::WeightInit init;
  init.set_normal(deviation);
  return init;
}

class Gpt2Writer {
 public:
  Gpt2Writer(const v1::Gpt2Preset& preset, LayerWriter* layers) : preset_(preset), layers_(layers) {}

  void Write() {
    v1::EmbeddingLayer* table = layers_->Add("wte")->mutable_embedding();
    table->set_vocabulary(preset_.vocabulary());
    table->set_features(preset_.features());
    *table->mutable_init() = Normal(kDeviation);
    v1::PositionalEmbeddingLayer* positions = layers_->Add("wpe")->mutable_positional_embedding();
    positions->set_positions(preset_.positions());
    positions->set_deviation(kDeviation);
    Drop("drop");
    for (int64_t i = 0; i < preset_.layers(); ++i) Block(absl::StrCat("h.", i, "."));
    layers_->Add("ln_f")->mutable_layer_norm();
    v1::DenseLayer* head = layers_->Dense("lm_head", preset_.vocabulary());
    head->set_bias(false);
    head->set_weight_of("wte");
  }

 private:
  void Block(const std::string& name) {
    const std::string before = layers_->last();
    layers_->Add(name + "ln_1")->mutable_layer_norm();
    v1::MultiHeadAttentionLayer* attention = layers_->Add(name + "attn")->mutable_multi_head_attention();
    attention->set_heads(preset_.heads());
    attention->set_causal(true);
    *attention->mutable_init() = Normal(kDeviation);
    *attention->mutable_out_init() = Normal(ResidualDeviation());
    Drop(name + "resid_dropout");
    layers_->Add(name + "add_1", {before, layers_->last()})->mutable_add();
    const std::string middle = layers_->last();
    layers_->Add(name + "ln_2")->mutable_layer_norm();
    v1::DenseLayer* wide = layers_->Dense(name + "mlp.c_fc", 4 * preset_.features());
    wide->set_activation(v1::Activation::GELU_TANH);
    *wide->mutable_init() = Normal(kDeviation);
    *layers_->Dense(name + "mlp.c_proj", preset_.features())->mutable_init() = Normal(ResidualDeviation());
    Drop(name + "mlp.dropout");
    layers_->Add(name + "add_2", {middle, layers_->last()})->mutable_add();
  }

  void Drop(const std::string& name) {
    if (preset_.dropout() > 0) layers_->Add(name)->mutable_dropout()->set_rate(preset_.dropout());
  }

  // Two branches a block add to the residual stream: its variance shall not grow with their number.
  double ResidualDeviation() const { return kDeviation / std::sqrt(2.0 * static_cast<double>(preset_.layers())); }

  const v1::Gpt2Preset& preset_;
  LayerWriter* layers_;
};

void Check(const v1::Gpt2Preset& preset, Violations* violations) {
  const std::string path = "model.preset.gpt2.";
  violations->CheckInteger(path + "vocabulary", preset.vocabulary(), 1, kMaxExtent);
  violations->CheckInteger(path + "positions", preset.positions(), 1, kMaxExtent);
  violations->CheckInteger(path + "layers", preset.layers(), 1, kMaxBlocks);
  violations->CheckInteger(path + "heads", preset.heads(), 1, kMaxFeatures);
  violations->CheckInteger(path + "features", preset.features(), 1, kMaxFeatures);
  violations->CheckReal(path + "dropout", preset.dropout(), {.low = 0, .high = 1, .high_open = true});
  if (preset.heads() >= 1 && preset.features() % preset.heads() != 0) {
    violations->Add(path + "heads", absl::StrCat("must divide features ", preset.features(), ", is ", preset.heads()));
  }
}

}  // namespace

void ExpandGpt2(v1::Gpt2Preset preset, v1::JobSpec* spec, Violations* violations) {
  if (!preset.has_vocabulary()) preset.set_vocabulary(spec->data().train().has_text() ? 256 : 50257);
  if (!preset.has_positions()) preset.set_positions(1024);
  if (!preset.has_layers()) preset.set_layers(12);
  if (!preset.has_heads()) preset.set_heads(12);
  if (!preset.has_features()) preset.set_features(768);
  if (!preset.has_dropout()) preset.set_dropout(0.1);
  const size_t before = violations->list().size();
  Check(preset, violations);
  if (violations->list().size() != before) return;
  LayerWriter layers(spec->mutable_model()->mutable_layers());
  Gpt2Writer(preset, &layers).Write();
  v1::LossSpec loss;
  loss.mutable_softmax_cross_entropy();
  SetDefaultLoss(loss, spec->mutable_model());
}

}  // namespace ampd::presets
