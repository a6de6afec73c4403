#include "server/service/data_paths.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/spec/dataset_path.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve.h"
#include "proto/spec/upload_path.h"

namespace ampd {
namespace {

bool IsBeneath(const std::string& path, const std::string& root) {
  return root == "/" || (absl::StartsWith(path, root) && path.size() > root.size() && path[root.size()] == '/');
}

class PathList {
 public:
  void Dataset(const std::string& field, const v1::DatasetSpec& dataset) {
    Add(field + ".idx.images", dataset.idx().images());
    Add(field + ".idx.labels", dataset.idx().labels());
    for (int i = 0; i < dataset.cifar10().paths_size(); ++i) {
      Add(absl::StrCat(field, ".cifar10.paths[", i, "]"), dataset.cifar10().paths(i));
    }
    Add(field + ".npy.inputs", dataset.npy().inputs());
    Add(field + ".npy.targets", dataset.npy().targets());
    Add(field + ".npy.lengths", dataset.npy().lengths());
    Add(field + ".npy.target_lengths", dataset.npy().target_lengths());
    Add(field + ".image_folder.path", dataset.image_folder().path());
    Add(field + ".quickdraw.path", dataset.quickdraw().path());
    Add(field + ".csv.path", dataset.csv().path());
    Add(field + ".safetensors.path", dataset.safetensors().path());
    Add(field + ".safetensors.targets_path", dataset.safetensors().targets_path());
    Add(field + ".wav_folder.path", dataset.wav_folder().path());
    Add(field + ".wav_folder.transcripts", dataset.wav_folder().transcripts());
    Add(field + ".text.path", dataset.text().path());
    Add(field + ".tokens.path", dataset.tokens().path());
  }

  void Model(const std::string& field, const std::string& path) {
    if (!path.empty()) paths_.push_back({field, path, true});
  }

  std::vector<NamedPath> Take() && { return std::move(paths_); }

 private:
  void Add(const std::string& field, const std::string& path) {
    if (!path.empty()) paths_.push_back({field, path, false});
  }

  std::vector<NamedPath> paths_;
};

std::string WhatIsWrong(const std::string& path, const std::vector<std::string>& roots) {
  if (path.find('\0') != std::string::npos) return "a path cannot hold a zero byte";
  constexpr size_t kShown = 200;
  const std::string quoted = absl::StrCat("\"", Cut(path, kShown), "\"");
  if (roots.empty()) {
    return absl::StrCat(quoted, " cannot be read: the server has no data root (ampd --data-root DIR)");
  }
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part == "..") return absl::StrCat(quoted, " leaves the data roots: \"..\" is not allowed");
  }
  const bool beneath =
      std::any_of(roots.begin(), roots.end(), [&](const std::string& root) { return IsBeneath(path, root); });
  if (path[0] != '/' || beneath) return "";
  return absl::StrCat(quoted, " is outside the data roots (", absl::StrJoin(roots, ", "), ")");
}

}  // namespace

std::vector<NamedPath> PathsOf(const v1::JobSpec& spec) {
  PathList list;
  list.Dataset("data.train", spec.data().train());
  list.Dataset("data.eval", spec.data().eval());
  list.Model("model.onnx.path", spec.model().onnx().path());
  list.Model("start_from.path", spec.start_from().path());
  return std::move(list).Take();
}

absl::Status CheckDataPaths(const v1::JobSpec& spec, const std::vector<std::string>& data_roots) {
  std::vector<FieldViolation> violations;
  for (const NamedPath& named : PathsOf(spec)) {
    if ((named.is_model && NamesUpload(named.path)) || NamesDataset(named.path)) continue;
    std::string wrong = WhatIsWrong(named.path, data_roots);
    if (!wrong.empty()) violations.push_back({named.field, std::move(wrong)});
  }
  return violations.empty() ? absl::OkStatus() : InvalidFields(violations);
}

}  // namespace ampd
