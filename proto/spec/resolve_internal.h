// The parts of ResolveJobSpec, one for each concept. Each fills the defaults of its message and adds what is wrong.
#ifndef AMPD_PROTO_SPEC_RESOLVE_INTERNAL_H_
#define AMPD_PROTO_SPEC_RESOLVE_INTERNAL_H_

#include <string>
#include <vector>

#include "ampd/v1/job.pb.h"
#include "google/protobuf/message.h"
#include "proto/spec/violations.h"

namespace ampd {

// What holds for every message: no field that this build does not know, no enum value without a name, no number that is
// not finite.
void CheckWellFormed(const google::protobuf::Message& message, Violations* violations);

void ResolveModel(v1::ModelSpec* model, Violations* violations);
// Layer names as precision rules see them: "<layer>", of networks "<network>.<layer>".
std::vector<std::string> LayerNamesOf(const v1::ModelSpec& model);
// `path`: where the loss stands, e.g. "model.loss".
void ResolveLoss(const std::string& path, v1::LossSpec* loss, Violations* violations);
// Images are not moved away from the boxes of the multibox loss. The data is resolved.
void CheckBoxesStay(const v1::JobSpec& spec, Violations* violations);
// Losses that parts of a batch do not add up to. All is resolved.
void CheckLossesOfParts(const v1::JobSpec& spec, Violations* violations);
// Everything but the phases is resolved.
void ResolvePhases(v1::JobSpec* spec, Violations* violations);
// `path`: where the dataset stands, e.g. "data.train.wav_folder".
void ResolveWavFolder(const std::string& path, v1::WavFolderDataset* wav, Violations* violations);
// Two wav_folders must mean the same by a frame and a label.
void CheckSameSpeech(const v1::DataSpec& data, Violations* violations);
void ResolveData(v1::DataSpec* data, Violations* violations);
// `path`: where the source stands, e.g. "data.train.image_folder".
void CheckImageFolder(const std::string& path, const v1::ImageFolderDataset& folder, Violations* violations);
// data.image, and how samples are decoded; sources are resolved.
void ResolveImages(v1::DataSpec* data, Violations* violations);
void ResolveDecoding(v1::DataSpec* data, Violations* violations);
// `model` is resolved: rules are matched against its layers' names.
void ResolvePrecision(const v1::ModelSpec& model, v1::PrecisionSpec* precision, Violations* violations);
// `has_eval`, `has_samples`: data.eval and report.samples are given.
void ResolveOptimizer(bool has_eval, bool has_samples, v1::OptimizerSpec* optimizer, Violations* violations);
// Of the optimizer.
void ResolveSchedule(v1::ScheduleSpec* schedule, Violations* violations);
// `model` is resolved.
void ResolveSamples(const v1::JobSpec& spec, v1::SampleSpec* samples, Violations* violations);
void ResolveTrain(bool has_eval, v1::TrainSpec* train, Violations* violations);
// The default of train.micro_batch_size where several devices share a batch: a device's part of it. Before
// ResolveTrain.
void ShareMicroBatches(v1::JobSpec* spec);
// `spec->train` is resolved.
void ResolveResources(v1::JobSpec* spec, Violations* violations);
// not_before, after, after_ok. Whether there are such jobs is not looked at.
void CheckTurn(const v1::JobSpec& spec, Violations* violations);
// `spec` has `bench`; everything else that goes with it is resolved.
void ResolveBench(v1::JobSpec* spec, Violations* violations);
// `spec` has `start_from`. Whether there is such a file, job or checkpoint is not looked at.
void ResolveStartFrom(const v1::JobSpec& spec, Violations* violations);
// What mode AUTO needs; the model, with its preset expanded, and the mode are resolved.
void ResolveAuto(v1::JobSpec* spec, Violations* violations);

}  // namespace ampd

#endif  // AMPD_PROTO_SPEC_RESOLVE_INTERNAL_H_
