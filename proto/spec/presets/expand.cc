#include <string>

#include "proto/spec/presets.h"
#include "proto/spec/presets/families.h"

namespace ampd {
namespace {

void Refuse(bool given, const char* field, Violations* violations) {
  if (given) violations->Add(field, "cannot be given with preset");
}

void Expand(const v1::PresetModel& preset, v1::JobSpec* spec, Violations* violations) {
  switch (preset.family_case()) {
    case v1::PresetModel::kMlp:
      return presets::ExpandMlp(preset.mlp(), spec, violations);
    case v1::PresetModel::kConvnet:
      return presets::ExpandConvnet(preset.convnet(), spec, violations);
    case v1::PresetModel::kResnet:
      return presets::ExpandResnet(preset.resnet(), spec, violations);
    case v1::PresetModel::kUnet:
      return presets::ExpandUnet(preset.unet(), spec, violations);
    case v1::PresetModel::kGpt2:
      return presets::ExpandGpt2(preset.gpt2(), spec, violations);
    case v1::PresetModel::kAcgan:
      return presets::ExpandAcgan(preset.acgan(), spec, violations);
    case v1::PresetModel::kSpeech:
      return presets::ExpandSpeech(preset.speech(), spec, violations);
    case v1::PresetModel::kSsd:
      return presets::ExpandSsd(preset.ssd(), spec, violations);
    case v1::PresetModel::FAMILY_NOT_SET:
      return violations->Add("model.preset", "required, one of mlp, convnet, acgan, resnet, gpt2, speech, unet, ssd");
  }
}

}  // namespace

void ExpandPreset(v1::JobSpec* spec, Violations* violations) {
  if (!spec->model().made_from().empty()) violations->CheckText("model.made_from", spec->model().made_from(), 200);
  if (!spec->model().has_preset()) return;
  const size_t before = violations->list().size();
  Refuse(!spec->model().layers().empty(), "model.layers", violations);
  Refuse(!spec->model().networks().empty(), "model.networks", violations);
  Refuse(spec->model().has_onnx(), "model.onnx", violations);
  if (violations->list().size() != before) return;
  const v1::PresetModel preset = spec->model().preset();
  Expand(preset, spec, violations);
  if (violations->list().size() != before) return;
  v1::ModelSpec* model = spec->mutable_model();
  if (model->layers().empty() && model->networks().empty()) return;
  const auto* family = v1::PresetModel::descriptor()->FindOneofByName("family");
  model->set_made_from(preset.GetReflection()->GetOneofFieldDescriptor(preset, family)->name());
  model->clear_preset();
}

}  // namespace ampd
