#include "proto/spec/named_files.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/spec/violations.h"
#include "proto/spec/yaml_reader.h"

namespace ampd {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

constexpr absl::string_view kOnnx = "model.onnx.path";
constexpr absl::string_view kFields[] = {kOnnx, "start_from.path"};

template <typename T>
std::map<std::string, T*> Sorted(google::protobuf::Map<std::string, T>* map) {
  std::map<std::string, T*> sorted;
  for (auto& [key, value] : *map) sorted[key] = &value;
  return sorted;
}

class Collector {
 public:
  // `field`: where `value` stands; `path`: of the spec's field that it is for.
  void AddValue(const std::string& field, const std::string& path, Value* value) {
    if (value->has_struct_value()) {
      for (absl::string_view file : kFields) {
        if (!absl::StartsWith(file, absl::StrCat(path, "."))) continue;
        AddWithin(field, file.substr(path.size() + 1), file == kOnnx, value->mutable_struct_value());
      }
    } else if (value->has_string_value() && std::count(std::begin(kFields), std::end(kFields), path) > 0) {
      files_.push_back({field, value->mutable_string_value(), path == kOnnx});
    }
  }
  void Add(absl::string_view field, std::string* path) { files_.push_back({std::string(field), path, field == kOnnx}); }

  std::vector<NamedFile> Take() && { return std::move(files_); }

 private:
  // What `message` has at `path`.
  void AddWithin(const std::string& field, absl::string_view path, bool is_onnx, Struct* message) {
    const absl::string_view name = path.substr(0, path.find('.'));
    const auto found = message->mutable_fields()->find(std::string(name));
    if (found == message->mutable_fields()->end()) return;
    const std::string inner = JoinPath(field, name);
    Value& value = found->second;
    if (name.size() < path.size()) {
      if (value.has_struct_value())
        AddWithin(inner, path.substr(name.size() + 1), is_onnx, value.mutable_struct_value());
    } else if (value.has_string_value()) {
      files_.push_back({inner, value.mutable_string_value(), is_onnx});
    }
  }

  std::vector<NamedFile> files_;
};

}  // namespace

std::vector<NamedFile> NamedFiles(v1::JobSpec* spec) {
  Collector collector;
  if (spec->model().has_onnx()) collector.Add(kOnnx, spec->mutable_model()->mutable_onnx()->mutable_path());
  if (spec->start_from().has_path()) collector.Add("start_from.path", spec->mutable_start_from()->mutable_path());
  if (!spec->has_sweep()) return std::move(collector).Take();
  for (const auto& [path, values] : Sorted(spec->mutable_sweep()->mutable_grid())) {
    const std::string field = JoinPath("sweep.grid", path);
    for (int i = 0; i < values->values_size(); ++i) {
      collector.AddValue(Indexed(field, i), path, values->mutable_values(i));
    }
  }
  for (int i = 0; i < spec->sweep().list_size(); ++i) {
    const std::string field = Indexed("sweep.list", i);
    for (const auto& [path, value] : Sorted(spec->mutable_sweep()->mutable_list(i)->mutable_fields())) {
      collector.AddValue(JoinPath(field, path), path, value);
    }
  }
  return std::move(collector).Take();
}

}  // namespace ampd
