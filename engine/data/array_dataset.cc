#include "engine/data/array_dataset.h"

#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/data/memory_dataset.h"

namespace ampd::data {
namespace {

// Of a box: class, and corners or centre and sides.
constexpr int64_t kBoxFeatures = 5;

// Whole numbers that fp32 holds exactly, such as ids.
absl::StatusOr<std::vector<float>> ReadIntegerInputs(const Array& array) {
  constexpr int32_t kLargest = 1 << 24;
  AMPD_ASSIGN_OR_RETURN(const std::vector<int32_t> values, ReadNpyIntegers(*array.source, array.header));
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= -kLargest && values[i] <= kLargest) continue;
    return absl::DataLossError(
        absl::StrCat(array.source->name(), ": element ", i, " is ", values[i], "; integers up to 2^24 can be inputs"));
  }
  return std::vector<float>(values.begin(), values.end());
}

// `shape` with the samples.
absl::Status DescribeTargetShape(bool floats, const std::string& dtype, const Shape& shape, DatasetInfo& info) {
  info.target_kind = floats ? TargetKind::kFloat : TargetKind::kClass;
  info.targets_in_space = shape.size() == 3;
  const bool pixels = info.is_image() && shape.size() == 3 && shape[1] == info.input_shape[0] &&
                      shape[2] == info.input_shape[1] && info.lengths.empty();
  if (shape.empty() || shape.size() > 3 || (shape.size() == 3 && !(floats ? shape[2] == kBoxFeatures : pixels))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "targets of dtype ", dtype, " and shape ", ShapeString(shape), " for inputs ", ShapeString(info.input_shape),
        "; expected integers [n], [n, labels] or, with a label a pixel, [n, h, w], or floats [n], [n, features] or [n, "
        "boxes, 5]"));
  }
  int64_t& places = floats ? info.target_features : info.label_count;
  places = floats ? 1 : 0;
  if (shape.size() > 1) places = shape[1] * (shape.size() == 3 ? shape[2] : 1);
  // A row of as many numbers as there are pixels, or several for each, is taken for theirs.
  const int64_t pixels_of_image = info.is_image() ? info.input_shape[0] * info.input_shape[1] : 0;
  if (pixels_of_image > 1 && places > 0 && places % pixels_of_image == 0) info.targets_in_space = true;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ReadBFloat16s(const Array& array, std::vector<NonFinite>& non_finite) {
  AMPD_ASSIGN_OR_RETURN(const std::vector<int32_t> bits, ReadNpyIntegers(*array.source, array.header));
  std::vector<float> values;
  values.reserve(bits.size());
  const size_t per_sample = bits.size() / static_cast<size_t>(array.header.shape[0]);
  for (size_t i = 0; i < bits.size(); ++i) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16));
    if (std::isfinite(values.back())) continue;
    non_finite.push_back({static_cast<int64_t>(i / per_sample), values.back(), array.source->name()});
  }
  return values;
}

absl::StatusOr<std::vector<float>> ReadFloats(const Array& array, std::vector<NonFinite>& non_finite) {
  if (array.bfloat16) return ReadBFloat16s(array, non_finite);
  return ReadNpyFloats(*array.source, array.header, non_finite);
}

}  // namespace

absl::Status DescribeInputs(const Array& array, DatasetInfo& info) {
  const NpyHeader& header = array.header;
  if (header.shape.size() < 2 || header.shape.size() > 4) {
    return absl::InvalidArgumentError(absl::StrCat(array.source->name(), ": inputs of shape ",
                                                   ShapeString(header.shape),
                                                   "; expected [n, features], [n, h, w] or [n, h, w, c]"));
  }
  info.size = header.shape[0];
  info.byte_inputs = header.is_byte();
  info.input_shape.assign(header.shape.begin() + 1, header.shape.end());
  if (header.shape.size() == 3) info.input_shape.push_back(1);
  return absl::OkStatus();
}

absl::Status DescribeTargets(const Array& array, DatasetInfo& info) {
  const NpyHeader& header = array.header;
  AMPD_RETURN_IF_ERROR(
      Annotate(DescribeTargetShape(array.is_float(), array.dtype(), header.shape, info), array.source->name()));
  if (header.shape[0] == info.size) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(info.name, " holds ", info.size, " inputs, but ", array.source->name(),
                                          " holds ", header.shape[0], " targets"));
}

absl::Status ReadClassLabels(ArrayParts& parts) {
  if (parts.info.target_kind != TargetKind::kClass) return absl::OkStatus();
  const std::string name = parts.targets.source->name();
  AMPD_ASSIGN_OR_RETURN(parts.labels, ReadNpyIntegers(*parts.targets.source, parts.targets.header));
  AMPD_ASSIGN_OR_RETURN(parts.info.classes, parts.info.label_count > 0
                                                ? MarkAndCountClasses(parts.info, name, parts.labels)
                                                : CountClasses(parts.labels, name));
  parts.info.other_classes = CountOtherClasses(parts.labels, parts.info.classes);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Dataset>> MakeArrayDataset(ArrayParts parts, int64_t limit) {
  Columns columns;
  columns.info = std::move(parts.info);
  columns.labels = std::move(parts.labels);
  if (columns.info.byte_inputs) {
    AMPD_ASSIGN_OR_RETURN(columns.bytes, ReadNpyBytes(*parts.inputs.source, parts.inputs.header));
  } else if (!parts.inputs.is_float()) {
    AMPD_ASSIGN_OR_RETURN(columns.floats, ReadIntegerInputs(parts.inputs));
  } else {
    AMPD_ASSIGN_OR_RETURN(columns.floats, ReadFloats(parts.inputs, columns.non_finite));
  }
  if (columns.info.target_kind == TargetKind::kFloat) {
    AMPD_ASSIGN_OR_RETURN(columns.targets, ReadFloats(parts.targets, columns.non_finite));
  }
  return MakeMemoryDataset(std::move(columns), limit);
}

}  // namespace ampd::data
