#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve_internal.h"
#include "proto/spec/resolve_onnx.h"

namespace ampd {
namespace {

using google::protobuf::RepeatedField;

// Bounds that no sensible model meets, so that products of a few extents stay far below 2^63.
constexpr int kMaxLayers = 10000;
constexpr int kMaxInputs = 1024;
constexpr int kMaxNetworks = 64;
constexpr int kMaxNetworkInputs = 64;
constexpr int64_t kMaxChannels = 1 << 20;
constexpr int64_t kMaxExtent = int64_t{1} << 40;
constexpr int64_t kMaxKernel = 1024;
constexpr double kMaxSlope = 1e6;
constexpr int64_t kMaxRecurrentLayers = 64;
constexpr double kMaxDeviation = 10;
constexpr double kMaxInit = 100;
constexpr size_t kMaxNameBytes = 200;
constexpr char kBatch[] = "input";

const char kLayerKinds[] =
    "dense, conv2d, batch_norm, relu, leaky_relu, elu, gelu, silu, sigmoid, tanh, softplus, max_pool, avg_pool, "
    "global_avg_pool, flatten, dropout, add, mul, concat, reshape, transpose, slice, embedding, positional_embedding, "
    "conv_transpose2d, layer_norm, group_norm, instance_norm, rms_norm, multi_head_attention, lstm, gru";

// [height, width] from one number or two; `fallback` when none is given.
void ResolvePair(const std::string& field, const std::vector<int64_t>& fallback, RepeatedField<int64_t>* pair,
                 Violations* violations) {
  if (pair->empty()) pair->Add(fallback.begin(), fallback.end());
  if (pair->size() == 1) pair->Add(pair->Get(0));
  if (pair->empty()) {
    violations->Add(field, "required");
  } else if (pair->size() != 2) {
    violations->Add(field, absl::StrCat("must be one number or [height, width], has ", pair->size(), " numbers"));
  } else {
    for (int i = 0; i < 2; ++i) violations->CheckInteger(Indexed(field, i), pair->Get(i), 1, kMaxKernel);
  }
}

// [top, left, bottom, right] from one number, [height, width] or all four; left empty where none is given.
void ResolvePads(const std::string& field, RepeatedField<int64_t>* pads, Violations* violations) {
  const int given = pads->size();
  if (given == 0) return;
  if (given != 1 && given != 2 && given != 4) {
    return violations->Add(
        field,
        absl::StrCat("must be one number, [height, width] or [top, left, bottom, right], has ", given, " numbers"));
  }
  while (pads->size() < 4) pads->Add(pads->Get(given == 1 ? 0 : pads->size() - 2));
  for (int i = 0; i < 4; ++i) violations->CheckInteger(Indexed(field, i), pads->Get(i), 0, kMaxKernel);
}

// Explicit pads instead of a kind of padding, whose default is VALID.
void ResolvePadding(const std::string& path, v1::Padding::Kind padding, RepeatedField<int64_t>* pads,
                    Violations* violations) {
  if (!pads->empty() && padding == v1::Padding::SAME) {
    violations->Add(absl::StrCat(path, ".pads"), "cannot be given with padding SAME");
  }
  ResolvePads(absl::StrCat(path, ".pads"), pads, violations);
}

void CheckEpsilon(const std::string& path, double epsilon, Violations* violations) {
  // Below 1e-30 an fp32 sum could lose it altogether.
  violations->CheckReal(absl::StrCat(path, ".epsilon"), epsilon, {.low = 1e-30, .high = 1});
}

// A required count such as dense.units.
void CheckCount(const std::string& field, int64_t value, Violations* violations) {
  if (value == 0) {
    violations->Add(field, "required, at least 1");
  } else {
    violations->CheckInteger(field, value, 1, kMaxChannels);
  }
}

v1::Activation::Kind OrNone(v1::Activation::Kind kind) {
  return kind == v1::Activation::ACTIVATION_UNSPECIFIED ? v1::Activation::NONE : kind;
}

v1::Padding::Kind OrValid(v1::Padding::Kind kind) {
  return kind == v1::Padding::PADDING_UNSPECIFIED ? v1::Padding::VALID : kind;
}

void CheckInit(const std::string& field, const v1::WeightInit& init, Violations* violations) {
  const Interval deviation = {.low = 0, .high = kMaxInit, .low_open = true};
  switch (init.kind_case()) {
    case v1::WeightInit::kNormal:
      return violations->CheckReal(absl::StrCat(field, ".normal"), init.normal(), deviation);
    case v1::WeightInit::kUniform:
      return violations->CheckReal(absl::StrCat(field, ".uniform"), init.uniform(), deviation);
    case v1::WeightInit::kHeFanOut:
      if (!init.he_fan_out()) violations->Add(absl::StrCat(field, ".he_fan_out"), "must be true, or left out");
      return;
    case v1::WeightInit::kHeFanIn:
      if (!init.he_fan_in()) violations->Add(absl::StrCat(field, ".he_fan_in"), "must be true, or left out");
      return;
    case v1::WeightInit::KIND_NOT_SET:
      return violations->Add(field, "needs one of normal, uniform, he_fan_out, he_fan_in");
  }
}

// Of a layer that has such a field.
template <typename LayerOfKind>
void CheckInitOf(const std::string& path, const LayerOfKind& layer, Violations* violations) {
  if (layer.has_init()) CheckInit(absl::StrCat(path, ".init"), layer.init(), violations);
}

void ResolveDense(const std::string& path, v1::DenseLayer* dense, Violations* violations) {
  CheckCount(absl::StrCat(path, ".units"), dense->units(), violations);
  if (!dense->has_bias()) dense->set_bias(dense->weight_of().empty());
  dense->set_activation(OrNone(dense->activation()));
  CheckInitOf(path, *dense, violations);
}

// What convolutions of both directions have: filters and where they are laid, ...
template <typename Convolution>
void ResolveWindow(const std::string& path, Convolution* conv, Violations* violations) {
  CheckCount(absl::StrCat(path, ".filters"), conv->filters(), violations);
  ResolvePair(absl::StrCat(path, ".kernel"), {}, conv->mutable_kernel(), violations);
  ResolvePair(absl::StrCat(path, ".stride"), {1, 1}, conv->mutable_stride(), violations);
  ResolvePair(absl::StrCat(path, ".dilation"), {1, 1}, conv->mutable_dilation(), violations);
}

// ... groups, and what follows the sums.
template <typename Convolution>
void ResolveGroups(const std::string& path, Convolution* conv, Violations* violations) {
  if (!conv->has_groups()) conv->set_groups(1);
  violations->CheckInteger(absl::StrCat(path, ".groups"), conv->groups(), 1, kMaxChannels);
  if (conv->groups() > 0 && conv->filters() % conv->groups() != 0) {
    violations->Add(absl::StrCat(path, ".groups"),
                    absl::StrCat("must divide filters ", conv->filters(), ", is ", conv->groups()));
  }
  if (!conv->has_bias()) conv->set_bias(true);
  conv->set_activation(OrNone(conv->activation()));
  CheckInitOf(path, *conv, violations);
}

void ResolveConv2d(const std::string& path, v1::Conv2dLayer* conv, Violations* violations) {
  ResolveWindow(path, conv, violations);
  ResolvePadding(path, conv->padding(), conv->mutable_pads(), violations);
  conv->set_padding(OrValid(conv->padding()));
  ResolveGroups(path, conv, violations);
}

void ResolveOutputPadding(const std::string& field, v1::ConvTranspose2dLayer* conv, Violations* violations) {
  RepeatedField<int64_t>* padding = conv->mutable_output_padding();
  if (padding->empty()) padding->Add(0);
  if (padding->size() == 1) padding->Add(padding->Get(0));
  if (padding->size() != 2) {
    return violations->Add(field,
                           absl::StrCat("must be one number or [height, width], has ", padding->size(), " numbers"));
  }
  if (conv->stride_size() != 2) return;
  for (int i = 0; i < 2; ++i) {
    if (conv->stride(i) >= 1) violations->CheckInteger(Indexed(field, i), padding->Get(i), 0, conv->stride(i) - 1);
  }
}

void ResolveConvTranspose2d(const std::string& path, v1::ConvTranspose2dLayer* conv, Violations* violations) {
  ResolveWindow(path, conv, violations);
  if (conv->pads().empty()) conv->add_pads(0);
  ResolvePads(absl::StrCat(path, ".pads"), conv->mutable_pads(), violations);
  ResolveOutputPadding(absl::StrCat(path, ".output_padding"), conv, violations);
  ResolveGroups(path, conv, violations);
}

void ResolveLayerNorm(const std::string& path, v1::LayerNormLayer* norm, Violations* violations) {
  if (!norm->has_epsilon()) norm->set_epsilon(1e-5);
  if (!norm->has_bias()) norm->set_bias(true);
  CheckEpsilon(path, norm->epsilon(), violations);
}

void ResolveGroupNorm(const std::string& path, v1::GroupNormLayer* norm, Violations* violations) {
  CheckCount(absl::StrCat(path, ".groups"), norm->groups(), violations);
  if (!norm->has_epsilon()) norm->set_epsilon(1e-5);
  if (!norm->has_affine()) norm->set_affine(true);
  CheckEpsilon(path, norm->epsilon(), violations);
}

void ResolveInstanceNorm(const std::string& path, v1::InstanceNormLayer* norm, Violations* violations) {
  if (!norm->has_epsilon()) norm->set_epsilon(1e-5);
  if (!norm->has_affine()) norm->set_affine(false);
  CheckEpsilon(path, norm->epsilon(), violations);
}

void ResolveRmsNorm(const std::string& path, v1::RmsNormLayer* norm, Violations* violations) {
  if (!norm->has_epsilon()) norm->set_epsilon(0x1p-23);
  CheckEpsilon(path, norm->epsilon(), violations);
}

void ResolveAttention(const std::string& path, v1::MultiHeadAttentionLayer* attention, Violations* violations) {
  CheckCount(absl::StrCat(path, ".heads"), attention->heads(), violations);
  if (!attention->has_bias()) attention->set_bias(true);
  CheckInitOf(path, *attention, violations);
  if (attention->has_out_init()) CheckInit(absl::StrCat(path, ".out_init"), attention->out_init(), violations);
}

void ResolveBatchNorm(const std::string& path, v1::BatchNormLayer* norm, Violations* violations) {
  if (!norm->has_momentum()) norm->set_momentum(0.1);
  if (!norm->has_epsilon()) norm->set_epsilon(1e-5);
  violations->CheckReal(absl::StrCat(path, ".momentum"), norm->momentum(), {.low = 0, .high = 1, .low_open = true});
  CheckEpsilon(path, norm->epsilon(), violations);
}

void ResolvePool(const std::string& path, bool averages, v1::Pool2dLayer* pool, Violations* violations) {
  ResolvePair(absl::StrCat(path, ".size"), {}, pool->mutable_size(), violations);
  const std::vector<int64_t> size(pool->size().begin(), pool->size().end());
  // Without a size there is nothing to default to, and one error is enough.
  if (size.size() == 2) ResolvePair(absl::StrCat(path, ".stride"), size, pool->mutable_stride(), violations);
  ResolvePair(absl::StrCat(path, ".dilation"), {1, 1}, pool->mutable_dilation(), violations);
  ResolvePadding(path, pool->padding(), pool->mutable_pads(), violations);
  pool->set_padding(OrValid(pool->padding()));
  if (averages) {
    pool->set_count_include_pad(pool->count_include_pad());
  } else if (pool->has_count_include_pad()) {
    violations->Add(absl::StrCat(path, ".count_include_pad"), "is for avg_pool; padding never wins a maximum");
  }
}

void ResolveRecurrent(const std::string& path, v1::RecurrentLayer* layer, Violations* violations) {
  CheckCount(absl::StrCat(path, ".units"), layer->units(), violations);
  if (!layer->has_layers()) layer->set_layers(1);
  violations->CheckInteger(absl::StrCat(path, ".layers"), layer->layers(), 1, kMaxRecurrentLayers);
  violations->CheckReal(absl::StrCat(path, ".dropout"), layer->dropout(), {.low = 0, .high = 1, .high_open = true});
  if (!layer->has_bias()) layer->set_bias(true);
  if (layer->output() == v1::RecurrentLayer::OUTPUT_UNSPECIFIED) layer->set_output(v1::RecurrentLayer::ALL_STEPS);
}

void CheckReshape(const std::string& field, const RepeatedField<int64_t>& shape, Violations* violations) {
  if (shape.empty() || shape.size() > 3) {
    return violations->Add(field, absl::StrCat("must be one to three numbers, are ", shape.size()));
  }
  int left_open = 0;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape.Get(i) == -1) {
      ++left_open;
    } else {
      violations->CheckInteger(Indexed(field, i), shape.Get(i), 1, kMaxChannels);
    }
  }
  if (left_open > 1) violations->Add(field, "only one extent may be -1");
}

void CheckConcatAxis(const std::string& field, int64_t axis, Violations* violations) {
  violations->CheckInteger(field, axis, -3, 3);
  if (axis == 0) violations->Add(field, "0 is the batch, which cannot be joined");
}

void ResolvePositions(const std::string& path, v1::PositionalEmbeddingLayer* layer, Violations* violations) {
  CheckCount(absl::StrCat(path, ".positions"), layer->positions(), violations);
  if (!layer->has_deviation()) layer->set_deviation(0.02);
  violations->CheckReal(absl::StrCat(path, ".deviation"), layer->deviation(), {.low = 0, .high = kMaxDeviation});
}

void ResolveSlice(const std::string& path, v1::SliceLayer* slice, Violations* violations) {
  if (!slice->has_axis()) slice->set_axis(-1);
  violations->CheckInteger(absl::StrCat(path, ".axis"), slice->axis(), -3, 3);
  if (slice->axis() == 0) violations->Add(absl::StrCat(path, ".axis"), "0 is the batch, which cannot be cut");
  violations->CheckInteger(absl::StrCat(path, ".begin"), slice->begin(), -kMaxExtent, kMaxExtent);
  if (slice->has_end()) violations->CheckInteger(absl::StrCat(path, ".end"), slice->end(), -kMaxExtent, kMaxExtent);
}

void CheckTranspose(const std::string& field, const RepeatedField<int64_t>& axes, Violations* violations) {
  std::vector<int64_t> sorted(axes.begin(), axes.end());
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] == static_cast<int64_t>(i) + 1 && sorted.size() <= 3) continue;
    return violations->Add(field, "must be 1 to the input's last axis, at most 3, each once");
  }
}

void ResolveKind(const std::string& path, v1::Layer* layer, Violations* violations) {
  switch (layer->kind_case()) {
    case v1::Layer::kDense:
      return ResolveDense(absl::StrCat(path, ".dense"), layer->mutable_dense(), violations);
    case v1::Layer::kConv2D:
      return ResolveConv2d(absl::StrCat(path, ".conv2d"), layer->mutable_conv2d(), violations);
    case v1::Layer::kBatchNorm:
      return ResolveBatchNorm(absl::StrCat(path, ".batch_norm"), layer->mutable_batch_norm(), violations);
    case v1::Layer::kMaxPool:
      return ResolvePool(absl::StrCat(path, ".max_pool"), false, layer->mutable_max_pool(), violations);
    case v1::Layer::kAvgPool:
      return ResolvePool(absl::StrCat(path, ".avg_pool"), true, layer->mutable_avg_pool(), violations);
    case v1::Layer::kDropout:
      return violations->CheckReal(absl::StrCat(path, ".dropout.rate"), layer->dropout().rate(),
                                   {.low = 0, .high = 1, .high_open = true});
    case v1::Layer::kConvTranspose2D:
      return ResolveConvTranspose2d(absl::StrCat(path, ".conv_transpose2d"), layer->mutable_conv_transpose2d(),
                                    violations);
    case v1::Layer::kLayerNorm:
      return ResolveLayerNorm(absl::StrCat(path, ".layer_norm"), layer->mutable_layer_norm(), violations);
    case v1::Layer::kGroupNorm:
      return ResolveGroupNorm(absl::StrCat(path, ".group_norm"), layer->mutable_group_norm(), violations);
    case v1::Layer::kInstanceNorm:
      return ResolveInstanceNorm(absl::StrCat(path, ".instance_norm"), layer->mutable_instance_norm(), violations);
    case v1::Layer::kRmsNorm:
      return ResolveRmsNorm(absl::StrCat(path, ".rms_norm"), layer->mutable_rms_norm(), violations);
    case v1::Layer::kMultiHeadAttention:
      return ResolveAttention(absl::StrCat(path, ".multi_head_attention"), layer->mutable_multi_head_attention(),
                              violations);
    case v1::Layer::kLstm:
      return ResolveRecurrent(absl::StrCat(path, ".lstm"), layer->mutable_lstm(), violations);
    case v1::Layer::kGru:
      return ResolveRecurrent(absl::StrCat(path, ".gru"), layer->mutable_gru(), violations);
    case v1::Layer::kLeakyRelu:
      if (!layer->leaky_relu().has_negative_slope()) layer->mutable_leaky_relu()->set_negative_slope(0.01);
      return violations->CheckReal(absl::StrCat(path, ".leaky_relu.negative_slope"),
                                   layer->leaky_relu().negative_slope(), {.low = -kMaxSlope, .high = kMaxSlope});
    case v1::Layer::kElu:
      if (!layer->elu().has_alpha()) layer->mutable_elu()->set_alpha(1);
      return violations->CheckReal(absl::StrCat(path, ".elu.alpha"), layer->elu().alpha(),
                                   {.low = -kMaxSlope, .high = kMaxSlope});
    case v1::Layer::kEmbedding:
      CheckCount(absl::StrCat(path, ".embedding.vocabulary"), layer->embedding().vocabulary(), violations);
      CheckInitOf(absl::StrCat(path, ".embedding"), layer->embedding(), violations);
      return CheckCount(absl::StrCat(path, ".embedding.features"), layer->embedding().features(), violations);
    case v1::Layer::kPositionalEmbedding:
      return ResolvePositions(absl::StrCat(path, ".positional_embedding"), layer->mutable_positional_embedding(),
                              violations);
    case v1::Layer::kSlice:
      return ResolveSlice(absl::StrCat(path, ".slice"), layer->mutable_slice(), violations);
    case v1::Layer::kTranspose:
      return CheckTranspose(absl::StrCat(path, ".transpose.axes"), layer->transpose().axes(), violations);
    case v1::Layer::kReshape:
      return CheckReshape(absl::StrCat(path, ".reshape.shape"), layer->reshape().shape(), violations);
    case v1::Layer::kConcat:
      if (!layer->concat().has_axis()) layer->mutable_concat()->set_axis(-1);
      return CheckConcatAxis(absl::StrCat(path, ".concat.axis"), layer->concat().axis(), violations);
    case v1::Layer::kRelu:
    case v1::Layer::kGelu:
    case v1::Layer::kSilu:
    case v1::Layer::kSigmoid:
    case v1::Layer::kTanh:
    case v1::Layer::kSoftplus:
    case v1::Layer::kGlobalAvgPool:
    case v1::Layer::kFlatten:
    case v1::Layer::kAdd:
    case v1::Layer::kMul:
      return;
    case v1::Layer::KIND_NOT_SET:
      return violations->Add(path, absl::StrCat("needs a kind, one of ", kLayerKinds));
  }
}

std::string KindName(const v1::Layer& layer) {
  const auto* oneof = v1::Layer::descriptor()->FindOneofByName("kind");
  const auto* field = layer.GetReflection()->GetOneofFieldDescriptor(layer, oneof);
  return field == nullptr ? "layer" : field->name();
}

// Walks the layers in order and knows the names that may be read so far.
class LayerNames {
 public:
  // `path` is the list's; `inputs` are the names, one at least, that layers read besides each other's.
  LayerNames(std::string path, std::vector<std::string> inputs, Violations* violations)
      : path_(std::move(path)), inputs_(std::move(inputs)), violations_(violations) {}

  void Resolve(int index, v1::Layer* layer) {
    const std::string path = Indexed(path_, index);
    if (layer->name().empty()) layer->set_name(absl::StrCat(KindName(*layer), "_", index));
    ResolveInputs(path, layer);
    CheckName(absl::StrCat(path, ".name"), layer->name());
    if (known_.insert(layer->name()).second) order_.push_back(layer->name());
  }

 private:
  void CheckName(const std::string& field, const std::string& name) {
    if (name.size() > kMaxNameBytes) {
      violations_->Add(field, absl::StrCat("must be at most ", kMaxNameBytes, " bytes, is ", name.size()));
    } else if (!IsMadeOf(name, "_-.")) {
      violations_->Add(field, absl::StrCat("may hold letters, digits, '_', '-' and '.' only, is ", Quoted(name)));
    } else if (IsInput(name)) {
      violations_->Add(field, name == kBatch ? "'input' stands for the batch; a layer needs another name"
                                             : absl::StrCat(Quoted(name), " is an input of the network"));
    } else if (known_.count(name) != 0) {
      violations_->Add(field, absl::StrCat("duplicate name ", Quoted(name)));
    }
  }

  void ResolveInputs(const std::string& path, v1::Layer* layer) {
    const std::string field = absl::StrCat(path, ".inputs");
    const bool many = layer->has_add() || layer->has_mul() || layer->has_concat();
    if (many && layer->inputs_size() < 2) {
      violations_->Add(field, absl::StrCat(KindName(*layer), " needs two or more, has ", layer->inputs_size()));
    } else if (layer->has_multi_head_attention() && layer->inputs_size() > 2) {
      violations_->Add(field, absl::StrCat("multi_head_attention takes one or two, has ", layer->inputs_size()));
    } else if (!many && !layer->has_multi_head_attention() && layer->inputs_size() > 1) {
      violations_->Add(field, absl::StrCat(KindName(*layer), " takes one, has ", layer->inputs_size()));
    } else if (layer->inputs_size() > kMaxInputs) {
      violations_->Add(field, absl::StrCat("must be at most ", kMaxInputs, ", are ", layer->inputs_size()));
      return;
    }
    if (layer->inputs().empty()) layer->add_inputs(order_.empty() ? inputs_[0] : order_.back());
    for (int i = 0; i < layer->inputs_size(); ++i) CheckInput(Indexed(field, i), layer->inputs(i));
  }

  void CheckInput(const std::string& field, const std::string& input) {
    if (IsInput(input) || known_.count(input) != 0 || violations_->full()) return;
    std::vector<std::string> candidates = order_;
    candidates.insert(candidates.end(), inputs_.begin(), inputs_.end());
    violations_->Add(field, absl::StrCat("no earlier layer is named ", Quoted(input), DidYouMean(input, candidates)));
  }

  bool IsInput(const std::string& name) const {
    return std::find(inputs_.begin(), inputs_.end(), name) != inputs_.end();
  }

  const std::string path_;
  const std::vector<std::string> inputs_;
  Violations* violations_;
  std::unordered_set<std::string> known_;
  std::vector<std::string> order_;
};

// `tables`: of the embeddings before the layer, by name, how many rows they have.
void CheckWeightOf(const std::string& path, const v1::DenseLayer& dense,
                   const std::unordered_map<std::string, int64_t>& tables, Violations* violations) {
  if (dense.weight_of().empty() || violations->full()) return;
  const auto table = tables.find(dense.weight_of());
  if (dense.has_init()) violations->Add(absl::StrCat(path, ".init"), "goes to the embedding that weight_of names");
  if (table == tables.end()) {
    std::vector<std::string> names;
    for (const auto& [name, rows] : tables) names.push_back(name);
    std::sort(names.begin(), names.end());
    violations->Add(absl::StrCat(path, ".weight_of"),
                    absl::StrCat("no earlier embedding layer is named ", Quoted(dense.weight_of()),
                                 DidYouMean(dense.weight_of(), names)));
  } else if (table->second != dense.units()) {
    violations->Add(absl::StrCat(path, ".units"), absl::StrCat("must be ", table->second, ", the vocabulary of ",
                                                               table->first, ", is ", dense.units()));
  }
}

void ResolveLayers(const std::string& path, const std::vector<std::string>& inputs,
                   google::protobuf::RepeatedPtrField<v1::Layer>* layers, Violations* violations) {
  LayerNames names(path, inputs, violations);
  std::unordered_map<std::string, int64_t> tables;
  for (int i = 0; i < layers->size(); ++i) {
    v1::Layer* layer = layers->Mutable(i);
    names.Resolve(i, layer);
    ResolveKind(Indexed(path, i), layer, violations);
    if (layer->has_dense()) CheckWeightOf(absl::StrCat(Indexed(path, i), ".dense"), layer->dense(), tables, violations);
    if (layer->has_embedding()) tables.insert({layer->name(), layer->embedding().vocabulary()});
  }
}

void CheckSimpleName(const std::string& field, const std::string& name, Violations* violations) {
  violations->CheckText(field, name, kMaxNameBytes);
  if (!name.empty() && name.size() <= kMaxNameBytes && !IsMadeOf(name, "_-")) {
    violations->Add(field, absl::StrCat("may hold letters, digits, '_' and '-' only, is ", Quoted(name)));
  }
}

void ResolveNetworkInputs(const std::string& path, v1::Network* network, Violations* violations) {
  if (network->inputs().empty()) network->add_inputs(kBatch);
  std::unordered_set<std::string> known;
  for (int i = 0; i < network->inputs_size(); ++i) {
    const std::string field = Indexed(path + ".inputs", i);
    CheckSimpleName(field, network->inputs(i), violations);
    if (!known.insert(network->inputs(i)).second) {
      violations->Add(field, absl::StrCat("duplicate name ", Quoted(network->inputs(i))));
    }
  }
}

void ResolveNetworks(v1::ModelSpec* model, Violations* violations) {
  std::unordered_set<std::string> known;
  int64_t layers = 0;
  for (int i = 0; i < model->networks_size(); ++i) {
    v1::Network* network = model->mutable_networks(i);
    const std::string path = Indexed("model.networks", i);
    CheckSimpleName(path + ".name", network->name(), violations);
    if (!known.insert(network->name()).second) {
      violations->Add(path + ".name", absl::StrCat("duplicate name ", Quoted(network->name())));
    }
    layers += network->layers_size();
    if (network->inputs_size() > kMaxNetworkInputs || layers > kMaxLayers) {
      return violations->Add(
          path, absl::StrCat("at most ", kMaxNetworkInputs, " inputs and, over all networks, ", kMaxLayers, " layers"));
    }
    ResolveNetworkInputs(path, network, violations);
    if (network->layers().empty()) violations->Add(path + ".layers", "required, at least one layer");
    ResolveLayers(path + ".layers", {network->inputs().begin(), network->inputs().end()}, network->mutable_layers(),
                  violations);
  }
}

void ResolveNoise(v1::ModelSpec* model, Violations* violations) {
  std::unordered_set<std::string> known = {"data", "labels", "targets"};
  for (int i = 0; i < model->noise_size(); ++i) {
    v1::NoiseSource* noise = model->mutable_noise(i);
    const std::string path = Indexed("model.noise", i);
    CheckSimpleName(path + ".name", noise->name(), violations);
    if (!known.insert(noise->name()).second) {
      violations->Add(path + ".name", absl::StrCat("another source is named ", Quoted(noise->name()), " already"));
    }
    if (noise->shape().empty() || noise->shape_size() > 3) {
      violations->Add(path + ".shape", absl::StrCat("must be one to three numbers, are ", noise->shape_size()));
      continue;
    }
    for (int d = 0; d < noise->shape_size(); ++d) {
      violations->CheckInteger(Indexed(path + ".shape", d), noise->shape(d), 1, kMaxChannels);
    }
    if (noise->distribution() == v1::NoiseSource::DISTRIBUTION_UNSPECIFIED) {
      noise->set_distribution(v1::NoiseSource::NORMAL);
    }
  }
}

// Instead of layers and a loss.
void ResolveNetworksModel(v1::ModelSpec* model, Violations* violations) {
  if (!model->layers().empty()) violations->Add("model.layers", "cannot be given with networks");
  if (model->has_onnx()) violations->Add("model.onnx", "cannot be given with networks");
  if (model->has_loss()) violations->Add("model.loss", "goes with layers; the losses of networks are the phases'");
  if (model->networks_size() > kMaxNetworks || model->noise_size() > kMaxNetworks) {
    return violations->Add("model", absl::StrCat("at most ", kMaxNetworks, " networks and noise sources each, are ",
                                                 model->networks_size(), " and ", model->noise_size()));
  }
  ResolveNetworks(model, violations);
  ResolveNoise(model, violations);
}

}  // namespace

void ResolveModel(v1::ModelSpec* model, Violations* violations) {
  if (!model->networks().empty()) return ResolveNetworksModel(model, violations);
  ResolveLoss("model.loss", model->mutable_loss(), violations);
  if (model->has_onnx()) return ResolveOnnx(model, violations);
  if (model->layers_size() > kMaxLayers) {
    return violations->Add("model.layers",
                           absl::StrCat("must be at most ", kMaxLayers, ", are ", model->layers_size()));
  }
  if (model->layers().empty() && !model->has_preset()) {
    violations->Add("model.layers", "required, at least one layer");
  }
  ResolveLayers("model.layers", {kBatch}, model->mutable_layers(), violations);
}

std::vector<std::string> LayerNamesOf(const v1::ModelSpec& model) {
  std::vector<std::string> names;
  for (const v1::Layer& layer : model.layers()) names.push_back(layer.name());
  for (const v1::Network& network : model.networks()) {
    for (const v1::Layer& layer : network.layers()) names.push_back(absl::StrCat(network.name(), ".", layer.name()));
  }
  return names;
}

}  // namespace ampd
