#include "engine/data/memory_dataset.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/status.h"

namespace ampd::data {
namespace {

std::string InWords(double non_finite) {
  if (std::isnan(non_finite)) return "a NaN";
  if (std::isinf(non_finite)) return "an infinity";
  return absl::StrCat(non_finite, ", beyond float32's range");
}

class MemoryDataset : public Dataset {
 public:
  explicit MemoryDataset(Columns columns) : Dataset(columns.info), columns_(std::move(columns)) {
    std::stable_sort(columns_.non_finite.begin(), columns_.non_finite.end(),
                     [](const NonFinite& a, const NonFinite& b) { return a.sample < b.sample; });
  }

  void ReadInput(int64_t i, absl::Span<float> out) const override {
    const int64_t n = info().input_elements();
    if (info().byte_inputs) {
      std::copy_n(columns_.bytes.data() + i * n, n, out.data());
    } else {
      std::copy_n(columns_.floats.data() + i * n, n, out.data());
    }
  }

  int32_t ReadLabel(int64_t i) const override { return columns_.labels[static_cast<size_t>(i)]; }

  void ReadLabels(int64_t i, absl::Span<int32_t> out) const override {
    const int64_t n = info().label_count;
    std::copy_n(columns_.labels.data() + i * n, n, out.data());
  }

  void ReadTarget(int64_t i, absl::Span<float> out) const override {
    const int64_t n = info().target_features;
    std::copy_n(columns_.targets.data() + i * n, n, out.data());
  }

  absl::Status CheckFinite(int64_t i) const override {
    const auto found = std::lower_bound(columns_.non_finite.begin(), columns_.non_finite.end(), i,
                                        [](const NonFinite& a, int64_t sample) { return a.sample < sample; });
    if (found == columns_.non_finite.end() || found->sample != i) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(found->file, ": sample ", i, " holds ", InWords(found->value)));
  }

 private:
  Columns columns_;
};

bool Fits(const Columns& c) {
  const size_t n = static_cast<size_t>(c.info.size);
  const size_t inputs = n * static_cast<size_t>(c.info.input_elements());
  const bool is_class = c.info.target_kind == TargetKind::kClass;
  return n >= 1 && c.bytes.size() == (c.info.byte_inputs ? inputs : 0) &&
         c.floats.size() == (c.info.byte_inputs ? 0 : inputs) &&
         c.labels.size() == (is_class ? n * static_cast<size_t>(std::max<int64_t>(c.info.label_count, 1)) : 0) &&
         c.targets.size() == (is_class ? 0 : n * static_cast<size_t>(c.info.target_features));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> MakeMemoryDataset(Columns columns, int64_t limit) {
  if (!Fits(columns)) return absl::InternalError(absl::StrCat(columns.info.name, ": decoded columns do not fit"));
  if (limit > 0 && limit < columns.info.size) {
    columns.info.size = limit;
    Shorten(columns.bytes, limit * columns.info.input_elements());
    Shorten(columns.floats, limit * columns.info.input_elements());
    Shorten(columns.labels, limit * std::max<int64_t>(columns.info.label_count, 1));
    Shorten(columns.info.lengths, limit);
    Shorten(columns.info.label_lengths, limit);
    Shorten(columns.targets, limit * columns.info.target_features);
  }
  columns.info.held_bytes = ColumnBytes(columns.info);
  return std::make_unique<MemoryDataset>(std::move(columns));
}

int64_t ColumnBytes(const DatasetInfo& info) {
  constexpr int64_t kNumber = 4;
  const int64_t labels = std::max<int64_t>(info.label_count, 1);
  const int64_t targets = info.target_kind == TargetKind::kClass ? labels : info.target_features;
  return info.size * (info.input_elements() * (info.byte_inputs ? 1 : kNumber) + targets * kNumber);
}

int64_t CountOtherClasses(absl::Span<const int32_t> labels, int64_t classes) {
  int32_t highest = -1;
  for (const int32_t label : labels) {
    if (label < classes - 1) highest = std::max(highest, label);
  }
  return int64_t{highest} + 1;
}

absl::StatusOr<int64_t> CountClasses(absl::Span<const int32_t> labels, absl::string_view name) {
  int32_t highest = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 0 || labels[i] >= kMaxClasses) {
      return absl::DataLossError(
          absl::StrCat(name, ": sample ", i, " has label ", labels[i], "; class labels are 0 to ", kMaxClasses - 1));
    }
    highest = std::max(highest, labels[i]);
  }
  return int64_t{highest} + 1;
}

absl::StatusOr<int64_t> MarkAndCountClasses(const DatasetInfo& info, absl::string_view name,
                                            std::vector<int32_t>& labels) {
  const bool by_step = info.label_lengths.empty() && info.label_count == info.input_shape[0];
  const std::vector<int32_t>& counts = by_step ? info.lengths : info.label_lengths;
  int32_t highest = 0;
  for (int64_t i = 0; i < info.size; ++i) {
    const int64_t count = counts.empty() ? info.label_count : counts[static_cast<size_t>(i)];
    for (int64_t p = 0; p < info.label_count; ++p) {
      int32_t& label = labels[static_cast<size_t>(i * info.label_count + p)];
      if (p >= count || label < 0) label = -1;
      if (label >= kMaxClasses) {
        return absl::DataLossError(absl::StrCat(name, ": sample ", i, " has label ", label, " at place ", p,
                                                "; class labels are 0 to ", kMaxClasses - 1));
      }
      highest = std::max(highest, label);
    }
  }
  return int64_t{highest} + 1;
}

}  // namespace ampd::data
