#include "engine/models/imported_files.h"

#include <map>
#include <mutex>
#include <utility>

namespace ampd::models {
namespace {

struct Files {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const onnx::Model>> by_path;
  std::map<std::string, ImportedValues> values;
};

Files& All() {
  static Files* const files = new Files();
  return *files;
}

}  // namespace

void ProvideOnnxFile(const std::string& path, std::shared_ptr<const onnx::Model> file) {
  const std::lock_guard lock(All().mutex);
  All().by_path[path] = std::move(file);
}

std::shared_ptr<const onnx::Model> FindOnnxFile(const std::string& path) {
  const std::lock_guard lock(All().mutex);
  const auto found = All().by_path.find(path);
  return found == All().by_path.end() ? nullptr : found->second;
}

void KeepImportedValues(const std::string& path, ImportedValues values) {
  const std::lock_guard lock(All().mutex);
  All().values[path] = std::move(values);
}

ImportedValues FindImportedValues(const std::string& path) {
  const std::lock_guard lock(All().mutex);
  const auto found = All().values.find(path);
  return found == All().values.end() ? ImportedValues() : found->second;
}

}  // namespace ampd::models
