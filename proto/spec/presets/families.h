// One function a family of models, and what they write layers with. Each adds to the spec what its preset stands for;
// fields that the user gave are left alone. Fields of the preset that are out of range add a violation of
// "model.preset.<family>.<field>", after which what the function wrote is not used.
#ifndef AMPD_PROTO_SPEC_PRESETS_FAMILIES_H_
#define AMPD_PROTO_SPEC_PRESETS_FAMILIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ampd/v1/job.pb.h"
#include "proto/spec/violations.h"

namespace ampd::presets {

// Appends layers to a list. Layers read the one before unless `inputs` names others.
class LayerWriter {
 public:
  using Names = std::vector<std::string>;

  // `layers` outlives the writer.
  explicit LayerWriter(google::protobuf::RepeatedPtrField<v1::Layer>* layers) : layers_(layers) {}

  // A layer without a kind: the caller sets it.
  v1::Layer* Add(const std::string& name, const Names& inputs = {});
  // Square kernels; pads of (kernel - 1) / 2 on each side, so stride 1 and an odd kernel keep the extents.
  v1::Conv2dLayer* Conv2d(const std::string& name, int64_t filters, int64_t kernel, int64_t stride = 1,
                          const Names& inputs = {});
  v1::DenseLayer* Dense(const std::string& name, int64_t units, const Names& inputs = {});
  v1::BatchNormLayer* BatchNorm(const std::string& name, const Names& inputs = {});
  void Relu(const std::string& name, const Names& inputs = {});
  // The name of the layer that was added last.
  const std::string& last() const { return layers_->rbegin()->name(); }

 private:
  google::protobuf::RepeatedPtrField<v1::Layer>* layers_;
};

// Gives the model a preset's loss, unless the job gives one.
void SetDefaultLoss(const v1::LossSpec& loss, v1::ModelSpec* model);

void ExpandAcgan(const v1::AcganPreset& preset, v1::JobSpec* spec, Violations* violations);
void ExpandMlp(const v1::MlpPreset& preset, v1::JobSpec* spec, Violations* violations);
void ExpandConvnet(const v1::ConvnetPreset& preset, v1::JobSpec* spec, Violations* violations);
void ExpandResnet(const v1::ResnetPreset& preset, v1::JobSpec* spec, Violations* violations);
void ExpandUnet(const v1::UnetPreset& preset, v1::JobSpec* spec, Violations* violations);
void ExpandGpt2(v1::Gpt2Preset preset, v1::JobSpec* spec, Violations* violations);
void ExpandSpeech(const v1::SpeechPreset& preset, v1::JobSpec* spec, Violations* violations);
void ExpandSsd(const v1::SsdPreset& preset, v1::JobSpec* spec, Violations* violations);

}  // namespace ampd::presets

#endif  // AMPD_PROTO_SPEC_PRESETS_FAMILIES_H_
