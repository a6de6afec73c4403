#include "engine/train/data_checks.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/data/channels_first.h"
#include "proto/spec/presets.h"
#include "proto/spec/resolve.h"

namespace ampd::train {
namespace {

using Layers = google::protobuf::RepeatedPtrField<v1::Layer>;

struct Reader {
  std::string field;
  const v1::Layer* layer;
  // It reads the batch itself, rather than what layers made of its numbers one by one.
  bool direct;
};

// Whether each output is made of what stands at its place.
bool KeepsPlaces(const v1::Layer& layer) {
  switch (layer.kind_case()) {
    case v1::Layer::kBatchNorm:
    case v1::Layer::kGroupNorm:
    case v1::Layer::kInstanceNorm:
    case v1::Layer::kLayerNorm:
    case v1::Layer::kRmsNorm:
    case v1::Layer::kDropout:
    case v1::Layer::kAdd:
    case v1::Layer::kMul:
    case v1::Layer::kRelu:
    case v1::Layer::kLeakyRelu:
    case v1::Layer::kElu:
    case v1::Layer::kGelu:
    case v1::Layer::kSilu:
    case v1::Layer::kSigmoid:
    case v1::Layer::kTanh:
    case v1::Layer::kSoftplus:
      return true;
    default:
      return false;
  }
}

// `batch`: names by which the layers read it; `first`: the first layer does, unless it says otherwise.
void AddReaders(const Layers& layers, const std::string& field, const std::set<std::string>& batch, bool first,
                std::vector<Reader>* readers) {
  std::set<std::string> kept = batch;
  bool last_is_batch = first, last_is_kept = first;
  for (int i = 0; i < layers.size(); ++i) {
    const v1::Layer& layer = layers[i];
    bool direct = layer.inputs().empty() && last_is_batch, reads = layer.inputs().empty() && last_is_kept;
    for (const std::string& input : layer.inputs()) {
      direct = direct || batch.count(input) > 0;
      reads = reads || kept.count(input) > 0;
    }
    if (reads) readers->push_back({absl::StrCat(field, "[", i, "]"), &layer, direct});
    last_is_batch = false;
    last_is_kept = reads && KeepsPlaces(layer);
    if (last_is_kept) kept.insert(layer.name());
  }
}

// The inputs of `network` that are the batch in some call.
std::set<std::string> BatchInputs(const v1::JobSpec& spec, const v1::Network& network) {
  std::set<std::string> inputs;
  for (const v1::PhaseSpec& phase : spec.phases()) {
    for (const v1::NetworkCall& call : phase.calls()) {
      if (call.network() != network.name()) continue;
      for (int i = 0; i < std::min(call.inputs_size(), network.inputs_size()); ++i) {
        if (call.inputs(i) == "data") inputs.insert(network.inputs(i));
      }
    }
  }
  return inputs;
}

std::vector<Reader> ReadersOfBatch(const v1::JobSpec& spec) {
  std::vector<Reader> readers;
  AddReaders(spec.model().layers(), "model.layers", {"input"}, true, &readers);
  for (int i = 0; i < spec.model().networks_size(); ++i) {
    const v1::Network& network = spec.model().networks(i);
    const std::set<std::string> batch = BatchInputs(spec, network);
    const bool first = !network.inputs().empty() && batch.count(network.inputs(0)) > 0;
    AddReaders(network.layers(), absl::StrCat("model.networks[", i, "].layers"), batch, first, &readers);
  }
  return readers;
}

// Rows of the window that slides over an image; 0: there is none.
int64_t WindowRows(const v1::Layer& layer) {
  const auto first = [](const google::protobuf::RepeatedField<int64_t>& window) {
    return window.empty() ? 0 : window[0];
  };
  switch (layer.kind_case()) {
    case v1::Layer::kConv2D:
      return first(layer.conv2d().kernel());
    case v1::Layer::kConvTranspose2D:
      return first(layer.conv_transpose2d().kernel());
    case v1::Layer::kMaxPool:
      return first(layer.max_pool().size());
    case v1::Layer::kAvgPool:
      return first(layer.avg_pool().size());
    default:
      return 0;
  }
}

bool IsTokens(const v1::DatasetSpec& source) { return source.has_text() || source.has_tokens(); }

absl::Status CheckVocabulary(const v1::JobSpec& spec, const v1::DatasetSpec& source, const data::DatasetInfo& info) {
  if (!IsTokens(source)) return absl::OkStatus();
  for (const Reader& reader : ReadersOfBatch(spec)) {
    if (!reader.direct || !reader.layer->has_embedding()) continue;
    const int64_t vocabulary = reader.layer->embedding().vocabulary();
    if (vocabulary >= info.classes) continue;
    return InvalidFields(
        {{absl::StrCat(reader.field, ".embedding.vocabulary"),
          absl::StrCat("is ", vocabulary, ", but ids of ", info.name, " are 0 to ", info.classes - 1,
                       source.has_text() ? ", bytes" : ", the tokens' vocabulary", ", node ", reader.layer->name())}});
  }
  return absl::OkStatus();
}

// The embedding of the fewest rows that reads the batch itself; nullptr: none does.
const v1::Layer* SmallestTable(const v1::JobSpec& spec) {
  const v1::Layer* smallest = nullptr;
  for (const Reader& reader : ReadersOfBatch(spec)) {
    if (!reader.direct || !reader.layer->has_embedding()) continue;
    const int64_t rows = reader.layer->embedding().vocabulary();
    if (smallest == nullptr || rows < smallest->embedding().vocabulary()) smallest = reader.layer;
  }
  return smallest;
}

absl::Status CheckIds(const data::Dataset& dataset, const v1::Layer& table) {
  const data::DatasetInfo& info = dataset.info();
  const auto rows = static_cast<double>(table.embedding().vocabulary());
  std::vector<float> ids(static_cast<size_t>(info.input_elements()));
  for (int64_t i = 0; i < dataset.size(); ++i) {
    dataset.ReadInput(i, absl::MakeSpan(ids));
    const size_t step = ids.size() / static_cast<size_t>(info.input_shape[0]);
    const size_t counted = info.lengths.empty() ? ids.size() : step * static_cast<size_t>(info.lengths[i]);
    for (size_t place = 0; place < counted; ++place) {
      // What is between whole numbers is rounded towards 0.
      if (ids[place] > -1 && static_cast<double>(ids[place]) < rows) continue;
      return absl::DataLossError(absl::StrCat(dataset.SampleName(i), ": sample ", i, " holds ", ids[place],
                                              ", but node ", table.name(), " has ids 0 to ",
                                              table.embedding().vocabulary() - 1, " (vocabulary)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckImages(const v1::JobSpec& spec, const data::DatasetInfo& train) {
  if (!data::LooksChannelsFirst(train)) return absl::OkStatus();
  const v1::ImageTransform& image = spec.data().image();
  if (image.random_flip()) return data::CheckChannelsLast(train, "data.image.random_flip");
  if (image.random_crop_padding() > 0) return data::CheckChannelsLast(train, "data.image.random_crop_padding");
  for (const Reader& reader : ReadersOfBatch(spec)) {
    if (WindowRows(*reader.layer) <= 1) continue;
    return data::CheckChannelsLast(train, absl::StrCat("node ", reader.layer->name()));
  }
  return absl::OkStatus();
}

absl::Status CheckDrawnImages(const v1::JobSpec& spec, const data::DatasetInfo& train) {
  const absl::optional<AcganImages> images = AcganImagesOf(spec.model());
  if (!images.has_value()) return absl::OkStatus();
  const Shape drawn = {images->size, images->size, images->channels}, &real = train.input_shape;
  if (drawn == real) return absl::OkStatus();
  const bool same_size = train.is_image() && real[0] == images->size && real[1] == images->size;
  return InvalidFields(
      {{absl::StrCat("model.preset.acgan.", same_size ? "channels" : "size"),
        absl::StrCat("with size ", images->size, " and channels ", images->channels, " generated images are ",
                     ShapeString(drawn), ", but samples of ", train.name, " are ", ShapeString(real))}});
}

absl::Status CheckVocabularies(const v1::JobSpec& spec, const data::DatasetInfo& train, const data::DatasetInfo* eval) {
  AMPD_RETURN_IF_ERROR(CheckVocabulary(spec, spec.data().train(), train));
  return eval == nullptr ? absl::OkStatus() : CheckVocabulary(spec, spec.data().eval(), *eval);
}

absl::Status CheckNumbers(const v1::JobSpec& spec, const v1::DatasetSpec& source, const data::Dataset& dataset) {
  if (!source.has_csv() && !source.has_npy() && !source.has_safetensors()) return absl::OkStatus();
  for (int64_t i = 0; i < dataset.size(); ++i) AMPD_RETURN_IF_ERROR(dataset.CheckFinite(i));
  const v1::Layer* table = SmallestTable(spec);
  // What is resized is no id.
  return table == nullptr || dataset.info().decodes ? absl::OkStatus() : CheckIds(dataset, *table);
}

}  // namespace ampd::train
