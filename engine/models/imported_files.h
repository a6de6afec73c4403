// The files that model.onnx names, read once and turned into graphs as often as a model is planned.
#ifndef AMPD_ENGINE_MODELS_IMPORTED_FILES_H_
#define AMPD_ENGINE_MODELS_IMPORTED_FILES_H_

#include <map>
#include <memory>
#include <string>

#include "engine/core/tensor.h"
#include "engine/models/onnx/import.h"

namespace ampd::models {

// Makes `file` what `path` of model.onnx stands for in this process, which works for one job, from now on. BuildModel
// reads no files: who plans or trains a job provides them. Thread-safe.
void ProvideOnnxFile(const std::string& path, std::shared_ptr<const onnx::Model> file);

// Null where none was provided. Thread-safe.
std::shared_ptr<const onnx::Model> FindOnnxFile(const std::string& path);

// First values of parameters and states that are not drawn, by name, in memory's layout.
using ImportedValues = std::map<std::string, std::shared_ptr<const Tensor>>;

// What the training graph that was built last from `path` begins with: kept by whoever builds it, for whoever makes its
// memory. Empty where there is none. Thread-safe.
void KeepImportedValues(const std::string& path, ImportedValues values);
ImportedValues FindImportedValues(const std::string& path);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_IMPORTED_FILES_H_
