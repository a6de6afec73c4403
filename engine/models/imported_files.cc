#include "engine/models/imported_files.h"

#include <map>
#include <utility>

#include "engine/core/mutex.h"

namespace ampd::models {
namespace {

struct Files {
  Mutex mutex;
  std::map<std::string, std::shared_ptr<const onnx::Model>> by_path ABSL_GUARDED_BY(mutex);
  std::map<std::string, ImportedValues> values ABSL_GUARDED_BY(mutex);
};

Files& All() {
  static Files* const files = new Files();
  return *files;
}

}  // namespace

void ProvideOnnxFile(const std::string& path, std::shared_ptr<const onnx::Model> file) {
  Files& files = All();
  const MutexLock lock(&files.mutex);
  files.by_path[path] = std::move(file);
}

std::shared_ptr<const onnx::Model> FindOnnxFile(const std::string& path) {
  Files& files = All();
  const MutexLock lock(&files.mutex);
  const auto found = files.by_path.find(path);
  return found == files.by_path.end() ? nullptr : found->second;
}

void KeepImportedValues(const std::string& path, ImportedValues values) {
  Files& files = All();
  const MutexLock lock(&files.mutex);
  files.values[path] = std::move(values);
}

ImportedValues FindImportedValues(const std::string& path) {
  Files& files = All();
  const MutexLock lock(&files.mutex);
  const auto found = files.values.find(path);
  return found == files.values.end() ? ImportedValues() : found->second;
}

}  // namespace ampd::models
