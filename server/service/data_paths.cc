#include "server/service/data_paths.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/spec/resolve.h"

namespace ampd {
namespace {

bool IsBeneath(const std::string& path, const std::string& root) {
  return root == "/" || (absl::StartsWith(path, root) && path.size() > root.size() && path[root.size()] == '/');
}

class PathCheck {
 public:
  explicit PathCheck(const std::vector<std::string>& roots) : roots_(roots) {}

  void Dataset(const std::string& field, const v1::DatasetSpec& dataset) {
    Path(field + ".idx.images", dataset.idx().images());
    Path(field + ".idx.labels", dataset.idx().labels());
    for (int i = 0; i < dataset.cifar10().paths_size(); ++i) {
      Path(absl::StrCat(field, ".cifar10.paths[", i, "]"), dataset.cifar10().paths(i));
    }
    Path(field + ".npy.inputs", dataset.npy().inputs());
    Path(field + ".npy.targets", dataset.npy().targets());
    Path(field + ".image_folder.path", dataset.image_folder().path());
    Path(field + ".quickdraw.path", dataset.quickdraw().path());
    Path(field + ".csv.path", dataset.csv().path());
    Path(field + ".safetensors.path", dataset.safetensors().path());
    Path(field + ".safetensors.targets_path", dataset.safetensors().targets_path());
    Path(field + ".wav_folder.path", dataset.wav_folder().path());
    Path(field + ".wav_folder.transcripts", dataset.wav_folder().transcripts());
    Path(field + ".text.path", dataset.text().path());
    Path(field + ".tokens.path", dataset.tokens().path());
  }

  absl::Status Result() const { return violations_.empty() ? absl::OkStatus() : InvalidFields(violations_); }

 private:
  void Path(const std::string& field, const std::string& path) {
    if (path.empty()) return;
    if (const std::string wrong = WhatIsWrong(path); !wrong.empty()) violations_.push_back({field, wrong});
  }

  std::string WhatIsWrong(const std::string& path) const {
    if (path.find('\0') != std::string::npos) return "a path cannot hold a zero byte";
    if (roots_.empty()) {
      return absl::StrCat("\"", path, "\" cannot be read: the server has no data root (ampd --data-root DIR)");
    }
    for (const absl::string_view part : absl::StrSplit(path, '/')) {
      if (part == "..") return absl::StrCat("\"", path, "\" leaves the data roots: \"..\" is not allowed");
    }
    const bool beneath =
        std::any_of(roots_.begin(), roots_.end(), [&](const std::string& root) { return IsBeneath(path, root); });
    if (path[0] != '/' || beneath) return "";
    return absl::StrCat("\"", path, "\" is outside the data roots (", absl::StrJoin(roots_, ", "), ")");
  }

  const std::vector<std::string>& roots_;
  std::vector<FieldViolation> violations_;
};

}  // namespace

absl::Status CheckDataPaths(const v1::JobSpec& spec, const std::vector<std::string>& data_roots) {
  PathCheck check(data_roots);
  check.Dataset("data.train", spec.data().train());
  check.Dataset("data.eval", spec.data().eval());
  return check.Result();
}

}  // namespace ampd
