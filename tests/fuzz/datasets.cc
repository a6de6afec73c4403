#include "tests/fuzz/datasets.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/dataset.h"
#include "tests/fuzz/input.h"

namespace ampd::fuzz {
namespace {

// Samples that are read of a large dataset, and values of a sample that are not worth the memory.
constexpr int64_t kMaxSamples = 64;
constexpr int64_t kMaxValues = int64_t{1} << 22;

void ReadLabels(const data::Dataset& dataset, int64_t i) {
  const data::DatasetInfo& info = dataset.info();
  if (info.label_count == 0) {
    const int32_t label = dataset.ReadLabel(i);
    Check(label >= 0 && label < info.classes, absl::StrCat("label ", label, " of ", info.classes));
    return;
  }
  std::vector<int32_t> labels(static_cast<size_t>(info.label_count));
  dataset.ReadLabels(i, absl::MakeSpan(labels));
  for (int32_t label : labels) Check(label >= -1 && label < info.classes, absl::StrCat("label ", label));
}

void ReadSample(const data::Dataset& dataset, int64_t i, std::vector<float>& input, std::vector<float>& target) {
  Check(!dataset.SampleName(i).empty(), "a sample without a name");
  const absl::Status status = dataset.ReadSample(i, nullptr, absl::MakeSpan(input));
  CheckError(status);
  if (status.ok()) {
    Check(std::all_of(input.begin(), input.end(), [](float v) { return !std::isnan(v); }), "a NaN got through");
  }
  if (dataset.info().target_kind == data::TargetKind::kFloat) {
    dataset.ReadTarget(i, absl::MakeSpan(target));
  } else {
    ReadLabels(dataset, i);
  }
}

void CheckLengths(const data::DatasetInfo& info) {
  Check(info.size >= 1, "a dataset without samples");
  for (int64_t extent : info.input_shape) Check(extent >= 1, "an extent below 1");
  for (int32_t length : info.lengths) {
    Check(length >= 1 && length <= info.input_shape[0], absl::StrCat("length ", length));
  }
  for (int32_t length : info.label_lengths) {
    Check(length >= 0 && length <= info.label_count, absl::StrCat("label length ", length));
  }
}

}  // namespace

void ReadDataset(const v1::DatasetSpec& spec) {
  const std::vector<std::string> roots = {Folder()};
  const absl::StatusOr<data::DatasetInfo> described = data::DescribeDataset(spec, roots, /*is_eval=*/false);
  CheckError(described.status());
  const auto dataset = data::OpenDataset(spec, roots, /*is_eval=*/false);
  CheckError(dataset.status());
  if (!dataset.ok()) return;
  Check(described.ok(), absl::StrCat("opened, but not described: ", described.status().ToString()));
  const data::DatasetInfo& info = (*dataset)->info();
  CheckLengths(info);
  Check(info.size == described->size && info.input_shape == described->input_shape &&
            info.classes == described->classes && info.target_features == described->target_features,
        "described otherwise than opened");
  if (info.input_elements() > kMaxValues || info.target_features > kMaxValues || info.label_count > kMaxValues) return;
  std::vector<float> input(static_cast<size_t>(info.input_elements()));
  std::vector<float> target(static_cast<size_t>(info.target_features));
  for (int64_t i = 0; i < std::min(info.size, kMaxSamples); ++i) ReadSample(**dataset, i, input, target);
  ReadSample(**dataset, info.size - 1, input, target);
}

}  // namespace ampd::fuzz
