#include "tests/bench/bench_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/core/rng.h"
#include "engine/core/status.h"
#include "engine/train/files.h"
#include "proto/spec/yaml.h"

namespace ampd::bench {
namespace {

constexpr int64_t kMaxSpecBytes = 1 << 20;

absl::StatusOr<std::vector<int64_t>> ParseNumbers(absl::string_view text, char separator) {
  std::vector<int64_t> numbers;
  for (absl::string_view part : absl::StrSplit(text, separator)) {
    int64_t n = 0;
    if (!absl::SimpleAtoi(part, &n) || n < 1) return absl::InvalidArgumentError(absl::StrCat("no number: ", text));
    numbers.push_back(n);
  }
  return numbers;
}

absl::Status ParseInput(absl::string_view text, Sample* sample) {
  models::SampleInfo& info = sample->info;
  if (absl::ConsumePrefix(&text, "ids=")) {
    AMPD_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, ParseNumbers(text, ':'));
    sample->ids = ids[0];
    info.input_shape = {ids.back()};
    return absl::OkStatus();
  }
  const bool timed = absl::ConsumePrefix(&text, "time=");
  AMPD_ASSIGN_OR_RETURN(const std::vector<int64_t> extents, ParseNumbers(text, timed ? ':' : ','));
  info.input_shape = Shape(extents.begin(), extents.end());
  if (!timed) return absl::OkStatus();
  info.lengths = true;
  info.buckets = {extents[0]};
  return absl::OkStatus();
}

absl::Status ParseTarget(absl::string_view text, Sample* sample) {
  models::SampleInfo& info = sample->info;
  const absl::string_view whole = text;
  const bool spelled = absl::ConsumePrefix(&text, "spelled=");
  const bool classes = spelled || absl::ConsumePrefix(&text, "classes=");
  if (!classes && !absl::ConsumePrefix(&text, "features=")) {
    return absl::InvalidArgumentError(absl::StrCat("TARGET: ", whole));
  }
  AMPD_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, ParseNumbers(text, ':'));
  (classes ? info.classes : info.target_features) = numbers[0];
  if (numbers.size() > 1) info.label_shape = {numbers[1]};
  info.label_lengths = spelled;
  return absl::OkStatus();
}

Tensor DrawLengths(int64_t size, int64_t longest, RngSequence* rng) {
  Tensor lengths(DType::kI32, {size});
  for (int32_t& v : lengths.as<int32_t>()) {
    v = static_cast<int32_t>(longest - static_cast<int64_t>(rng->NextBelow(longest / 2 + 1)));
  }
  lengths.as<int32_t>()[0] = static_cast<int32_t>(longest);
  return lengths;
}

Shape WithBatch(Shape shape, int64_t size) {
  shape.insert(shape.begin(), size);
  return shape;
}

}  // namespace

absl::StatusOr<ResolvedJobSpec> ReadSpec(const std::string& path, const std::string& mode,
                                         const std::vector<std::string>& settings) {
  AMPD_ASSIGN_OR_RETURN(const std::string text, train::ReadFile(path, kMaxSpecBytes));
  v1::JobSpec spec;
  AMPD_RETURN_IF_ERROR(ParseYaml(text, path, &spec));
  AMPD_RETURN_IF_ERROR(ApplySet(&spec, absl::StrCat("precision.mode=", mode)));
  for (const std::string& setting : settings) AMPD_RETURN_IF_ERROR(ApplySet(&spec, setting));
  return ResolveJobSpec(std::move(spec));
}

absl::StatusOr<Sample> ParseSample(absl::string_view input, absl::string_view target) {
  Sample sample;
  AMPD_RETURN_IF_ERROR(ParseInput(input, &sample));
  AMPD_RETURN_IF_ERROR(ParseTarget(target, &sample));
  return sample;
}

data::Batch DrawBatch(const Sample& sample, int64_t size) {
  const models::SampleInfo& info = sample.info;
  RngSequence rng(1, "bench");
  data::Batch batch;
  batch.inputs = Tensor(DType::kF32, WithBatch(info.input_shape, size));
  for (float& v : batch.inputs.as<float>()) {
    v = sample.ids > 0 ? static_cast<float>(rng.NextBelow(sample.ids)) : 2 * rng.NextUniform() - 1;
  }
  if (info.classes > 0) {
    batch.labels = Tensor(DType::kI32, WithBatch(info.label_shape, size));
    const int64_t first = info.label_lengths ? 1 : 0;
    for (int32_t& v : batch.labels.as<int32_t>()) {
      v = static_cast<int32_t>(first + static_cast<int64_t>(rng.NextBelow(info.classes - first)));
    }
  } else {
    batch.targets = Tensor(DType::kF32, {size, info.target_features});
    for (float& v : batch.targets.as<float>()) v = rng.NextUniform();
  }
  if (info.lengths) batch.lengths = DrawLengths(size, info.input_shape[0], &rng);
  if (info.label_lengths) batch.label_lengths = DrawLengths(size, info.label_shape[0], &rng);
  batch.valid = size;
  return batch;
}

}  // namespace ampd::bench
