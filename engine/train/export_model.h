// A trained model in another form, in one file: what `ampd-worker --export FILE` does.
#ifndef AMPD_ENGINE_TRAIN_EXPORT_MODEL_H_
#define AMPD_ENGINE_TRAIN_EXPORT_MODEL_H_

#include <string>

#include "absl/status/status.h"
#include "ampd/v1/worker_link.pb.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

// Writes the weights of the checkpoint `request.checkpoint_dir` to the new file `path`: as safetensors, names and
// layouts as in model.safetensors, f32 tensors rounded to the dtype asked for, others as they are; or as ONNX
// (engine/models/onnx/export.h), for which samples are of the shapes that request.plan has. Input "input", of samples
// with lengths also "lengths" i32 [batch]; output "output". Of a job that began as an ONNX file input and output are
// the file's: names, shapes but for the batch, types, and what stands at the end. Of one network of several what
// models::BuildExportForward says: inputs "input" for the data, "labels", "targets", and noise by its name, or
// "noise.<name>" where that is one of "input" and "output"; the graph's doc_string is the call that it is. Its
// safetensors are those named "<network>....", without that. `spec` is request.spec.
//
// INVALID_ARGUMENT: a form, dtype or network that there is not, or ONNX in 16 bits. FAILED_PRECONDITION: the model has
// what the form cannot say, naming it; a finite weight is infinite in the dtype, naming the tensor; the running average
// is asked for and the job keeps none; the checkpoint is of another model. NOT_FOUND: there is no such checkpoint.
// DATA_LOSS: it is damaged. RESOURCE_EXHAUSTED, marked DISK_FULL: no room for the file. After an error what `path`
// holds is undefined.
absl::Status ExportModel(const ResolvedJobSpec& spec, const v1::ExportRequest& request, const std::string& path);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_EXPORT_MODEL_H_
