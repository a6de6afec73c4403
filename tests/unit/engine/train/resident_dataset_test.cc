// Slots of the feed ring that a CUDA device fills by itself from samples in its memory: the bits of what a loader
// reads.
#include "engine/backend/cuda/resident_dataset.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cuda/cuda_memory.h"
#include "engine/data/loader.h"
#include "engine/data/memory_dataset.h"
#include "engine/data/transform.h"
#include "engine/train/stored_samples.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ampd::train {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSlots = 5;
constexpr uint8_t kUntouched = 0xa5;

// Samples that the loop is to keep, and how a training reads them.
struct Case {
  std::string name;
  Shape shape;
  bool bytes = true;
  // Of data.image.
  std::string transform;
  data::TargetFormat format = data::TargetFormat::kLabels;
  // Floats of a target; 0: classes.
  int64_t target_features = 0;
  // Labels of a sample; 0: one.
  int64_t labels = 0;
  int64_t micro_batches = 1;
  bool shuffle = true;
  int64_t size = 23;
  int64_t first_step = 0;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> Cases() {
  using data::TargetFormat;
  const std::string augmented = "random_flip: true random_crop_padding: 2 ";
  return {
      {.name = "Bytes", .shape = {7}},
      {.name = "BytesAsTheyAre", .shape = {4, 3, 1}, .transform = "normalize: NONE"},
      {.name = "BytesStandard", .shape = {5, 4, 3}, .transform = "normalize: STANDARD"},
      // Of more channels than there are tables.
      {.name = "BytesComputed", .shape = {70}, .transform = "normalize: STANDARD"},
      {.name = "BytesImageNet", .shape = {5, 4, 3}, .transform = augmented + "normalize: IMAGENET"},
      {.name = "BytesMoved", .shape = {6, 5, 2}, .transform = augmented + "normalize: STANDARD"},
      {.name = "BytesMirrored", .shape = {4, 5, 1}, .transform = "random_flip: true"},
      {.name = "BytesCropped", .shape = {9, 4, 3}, .transform = "random_crop_padding: 3", .micro_batches = 3},
      {.name = "Floats", .shape = {33}, .bytes = false},
      {.name = "FloatsStandard", .shape = {40}, .bytes = false, .transform = "normalize: STANDARD"},
      {.name = "FloatsMoved",
       .shape = {6, 7, 3},
       .bytes = false,
       .transform = augmented + "normalize: STANDARD",
       .micro_batches = 2},
      {.name = "FloatsAsTheyAreMoved", .shape = {6, 7, 3}, .bytes = false, .transform = augmented},
      {.name = "OneHot", .shape = {6}, .format = TargetFormat::kFloats, .micro_batches = 2},
      {.name = "Regression", .shape = {6}, .bytes = false, .format = TargetFormat::kFloats, .target_features = 3},
      {.name = "WideRegression",
       .shape = {2},
       .format = TargetFormat::kFloats,
       .target_features = 41,
       .micro_batches = 3},
      {.name = "LabelsByStep", .shape = {5, 2}, .bytes = false, .labels = 5, .micro_batches = 3},
      {.name = "InOrder", .shape = {3, 3, 1}, .transform = augmented, .shuffle = false},
      {.name = "Resumed", .shape = {3, 3, 1}, .transform = augmented, .first_step = (int64_t{1} << 32) + 11},
      // Of several pieces.
      {.name = "ManyBytes", .shape = {64, 64, 3}, .transform = augmented, .size = 400},
  };
}

data::Columns MakeColumns(const Case& c) {
  data::Columns columns;
  columns.info.name = "set";
  columns.info.size = c.size;
  columns.info.input_shape = c.shape;
  columns.info.byte_inputs = c.bytes;
  columns.info.label_count = c.labels;
  const int64_t values = c.size * NumElements(c.shape);
  uint32_t state = 1;
  for (int64_t i = 0; i < values; ++i) {
    state = state * 1664525 + 1013904223;
    if (c.bytes) {
      columns.bytes.push_back(static_cast<uint8_t>(state >> 24));
    } else {
      columns.floats.push_back(static_cast<float>(static_cast<int32_t>(state)) * 1.7e-8f);
    }
  }
  // What arithmetic could lose: signed zeros, numbers below the normal ones, and above what a float64 was rounded to.
  if (!c.bytes && c.transform.find("STANDARD") == std::string::npos) {
    const float infinity = std::numeric_limits<float>::infinity();
    const float special[] = {-0.0f, 1e-41f, std::numeric_limits<float>::max(), infinity, -infinity};
    std::copy(std::begin(special), std::end(special), columns.floats.begin());
  }
  columns.info.target_kind = c.target_features > 0 ? data::TargetKind::kFloat : data::TargetKind::kClass;
  columns.info.target_features = c.target_features;
  for (int64_t i = 0; i < c.size * c.target_features; ++i) columns.targets.push_back(std::sin(static_cast<float>(i)));
  if (c.target_features > 0) return columns;
  columns.info.classes = 9;
  for (int64_t i = 0; i < c.size * std::max<int64_t>(1, c.labels); ++i) {
    columns.labels.push_back(c.labels > 0 && i % 7 == 3 ? -1 : static_cast<int32_t>(i * 5 % 9));
  }
  return columns;
}

class ResidentDatasetTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    auto context = cuda::Context::Open("");
    if (!context.ok()) GTEST_SKIP() << context.status();
    context_ = *std::move(context);
    memory_ = std::make_unique<cuda::CudaMemory>(context_.get());
    Open(GetParam());
  }

  void Open(const Case& c) {
    dataset_ = *data::MakeMemoryDataset(MakeColumns(c), 0);
    v1::ImageTransform spec;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(c.transform, &spec));
    transform_ = std::make_unique<data::Transform>(*data::Transform::Create(spec, *dataset_));
    options_.batch_size = 6;
    options_.targets = c.format;
    // More outputs than the data has classes.
    options_.target_width = c.target_features > 0 ? c.target_features : 11;
    options_.seed = 77;
    options_.shuffle = c.shuffle;
    options_.first_step = c.first_step;
    LayOut(c.micro_batches);
    const int64_t bytes = layout_.slots * layout_.bytes_per_slot;
    auto ring = cuda::DeviceArray::Allocate(bytes, "ring");
    ASSERT_TRUE(ring.ok()) << ring.status();
    ring_ = *std::move(ring);
    layout_.ring = ring_.as<char>();
    const std::vector<uint8_t> untouched(static_cast<size_t>(bytes), kUntouched);
    ASSERT_TRUE(memory_->Upload(untouched.data(), bytes, layout_.ring).ok());
  }

  void LayOut(int64_t micro_batches) {
    const auto place = [&](int64_t at, int64_t words) {
      const int64_t bytes = options_.batch_size / micro_batches * words * int64_t{sizeof(float)};
      return cuda::FeedPlace{at, bytes, AlignUp(bytes)};
    };
    layout_.slots = kSlots;
    layout_.micro_batches = micro_batches;
    layout_.micro_batch_size = options_.batch_size / micro_batches;
    // Of two phases.
    layout_.weight_bytes = 2 * micro_batches * int64_t{sizeof(runtime::MicroBatchWeight)};
    layout_.target = place(AlignUp(layout_.weight_bytes), TargetWords());
    layout_.input =
        place(layout_.target.offset + micro_batches * layout_.target.stride, dataset_->info().input_elements());
    layout_.bytes_per_slot = layout_.input.offset + micro_batches * layout_.input.stride;
  }

  int64_t TargetWords() const {
    if (options_.targets == data::TargetFormat::kFloats) return options_.target_width;
    return std::max<int64_t>(1, dataset_->info().label_count);
  }

  // Different in every step, phase and micro-batch.
  std::vector<runtime::MicroBatchWeight> WeightsOf(int64_t step) const {
    std::vector<runtime::MicroBatchWeight> weights;
    for (int64_t i = 0; i < 2 * layout_.micro_batches; ++i) {
      weights.push_back({static_cast<double>(step) + 0.1 * static_cast<double>(i), 3.0 + static_cast<double>(i)});
    }
    return weights;
  }

  void ExpectRows(const std::vector<char>& slot, const cuda::FeedPlace& place, const Tensor& expected,
                  const std::string& what) const {
    const char* from = static_cast<const char*>(expected.view().data);
    ASSERT_EQ(expected.view().bytes(), layout_.micro_batches * place.bytes);
    for (int64_t m = 0; m < layout_.micro_batches; ++m) {
      const char* at = slot.data() + place.offset + m * place.stride;
      EXPECT_EQ(std::memcmp(at, from + m * place.bytes, static_cast<size_t>(place.bytes)), 0) << what << " of " << m;
      for (int64_t i = place.bytes; i < place.stride; ++i) ASSERT_EQ(static_cast<uint8_t>(at[i]), kUntouched) << what;
    }
  }

  void ExpectSlot(const data::Batch& batch) const {
    SCOPED_TRACE(absl::StrCat("step ", batch.step));
    std::vector<char> slot(static_cast<size_t>(layout_.bytes_per_slot));
    ASSERT_TRUE(
        memory_
            ->Download(layout_.ring + batch.step % kSlots * layout_.bytes_per_slot, layout_.bytes_per_slot, slot.data())
            .ok());
    const std::vector<runtime::MicroBatchWeight> weights = WeightsOf(batch.step);
    EXPECT_EQ(std::memcmp(slot.data(), weights.data(), static_cast<size_t>(layout_.weight_bytes)), 0);
    ExpectRows(slot, layout_.input, batch.inputs, "inputs");
    const bool floats = options_.targets == data::TargetFormat::kFloats;
    ExpectRows(slot, layout_.target, floats ? batch.targets : batch.labels, "targets");
  }

  std::unique_ptr<cuda::Context> context_;
  std::unique_ptr<cuda::CudaMemory> memory_;
  std::unique_ptr<data::Dataset> dataset_;
  std::unique_ptr<data::Transform> transform_;
  data::LoaderOptions options_;
  cuda::SlotLayout layout_;
  cuda::DeviceArray ring_;
};

TEST_P(ResidentDatasetTest, FillsSlotsWithWhatTheLoaderReads) {
  const auto samples = StoredSamplesOf(*dataset_, *transform_, options_);
  ASSERT_TRUE(samples.ok()) << samples.status();
  const auto resident = cuda::ResidentDataset::Create(context_.get(), memory_.get(), *samples, layout_);
  ASSERT_TRUE(resident.ok()) << resident.status();
  options_.depth = kSlots + 1;
  const auto loader = data::Loader::CreateTraining(*dataset_, *transform_, options_);
  ASSERT_TRUE(loader.ok()) << loader.status();
  // Windows that end before, at and beyond the ring's end; several epochs of three batches.
  for (const int64_t steps : {1, 3, 5, 4, 2, 5}) {
    std::vector<data::Batch*> batches;
    for (int64_t i = 0; i < steps; ++i) {
      const auto batch = (*loader)->Next();
      ASSERT_TRUE(batch.ok()) << batch.status();
      batches.push_back(*batch);
      const auto step = static_cast<uint64_t>((*batch)->step);
      ASSERT_TRUE((*resident)->Note(step, (*batch)->samples, WeightsOf((*batch)->step)).ok());
    }
    const auto first = static_cast<uint64_t>(batches.front()->step);
    ASSERT_TRUE((*resident)->Expand(context_->stream(), first, first + static_cast<uint64_t>(steps)).ok());
    for (data::Batch* batch : batches) {
      ExpectSlot(*batch);
      (*loader)->Release(batch);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Samples, ResidentDatasetTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

class ResidentDatasetRefusals : public ResidentDatasetTest {
 protected:
  absl::Status Create(const runtime::StoredSamples& samples) const {
    return cuda::ResidentDataset::Create(context_.get(), memory_.get(), samples, layout_).status();
  }
};

TEST_P(ResidentDatasetRefusals, AreOfWhatDoesNotFit) {
  const auto stored = StoredSamplesOf(*dataset_, *transform_, options_);
  ASSERT_TRUE(stored.ok()) << stored.status();
  runtime::StoredSamples samples = *stored;
  samples.max_bytes = samples.total_bytes();
  EXPECT_TRUE(Create(samples).ok());
  --samples.max_bytes;
  const absl::Status large = Create(samples);
  EXPECT_EQ(large.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(large.message()), HasSubstr(absl::StrCat(samples.total_bytes(), " bytes")));
  samples.max_bytes = -1;
  layout_.input.bytes += 4;
  EXPECT_EQ(Create(samples).code(), absl::StatusCode::kUnimplemented);
  layout_.input.bytes = 0;
  EXPECT_TRUE(Create(samples).ok()) << "no plan reads them";
  samples.one_hot = 4;
  EXPECT_EQ(Create(samples).code(), absl::StatusCode::kUnimplemented);
}

TEST_P(ResidentDatasetRefusals, AreOfStepsThatAreNone) {
  const auto stored = StoredSamplesOf(*dataset_, *transform_, options_);
  ASSERT_TRUE(stored.ok()) << stored.status();
  const auto resident = cuda::ResidentDataset::Create(context_.get(), memory_.get(), *stored, layout_);
  ASSERT_TRUE(resident.ok()) << resident.status();
  const std::vector<runtime::MicroBatchWeight> weights = WeightsOf(0);
  EXPECT_TRUE((*resident)->Note(0, std::vector<int64_t>{0, 1, 2, 3, 4, 22}, weights).ok());
  for (const std::vector<int64_t>& wrong :
       {std::vector<int64_t>{0, 1, 2, 3, 4}, std::vector<int64_t>{0, 1, 2, 3, 4, 23},
        std::vector<int64_t>{-1, 1, 2, 3, 4, 5}, std::vector<int64_t>{0, 1, 2, 3, 4, int64_t{1} << 32}}) {
    EXPECT_EQ((*resident)->Note(0, wrong, weights).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE((*resident)->Note(0, std::vector<int64_t>{0, 1, 2, 3, 4, 5}, {weights[0]}).ok());
}

INSTANTIATE_TEST_SUITE_P(Samples, ResidentDatasetRefusals,
                         ::testing::Values(Case{.name = "Labels", .shape = {4, 3, 1}}),
                         [](const auto& info) { return info.param.name; });

// What is not a function of what is stored and of the step's draws.
TEST(StoredSamples, AreNoneOfWhatMayChange) {
  const Case c = {.name = "set", .shape = {4, 4, 1}};
  const auto reason = [&](const std::function<void(data::Columns*, data::LoaderOptions*)>& change) {
    data::Columns columns = MakeColumns(c);
    data::LoaderOptions options;
    change(&columns, &options);
    const auto dataset = *data::MakeMemoryDataset(std::move(columns), 0);
    const auto transform = *data::Transform::Create({}, *dataset);
    const absl::Status status = StoredSamplesOf(*dataset, transform, options).status();
    EXPECT_EQ(status.ok() ? absl::StatusCode::kUnimplemented : status.code(), absl::StatusCode::kUnimplemented);
    return std::string(status.message());
  };
  EXPECT_EQ(reason([](data::Columns*, data::LoaderOptions*) {}), "");
  EXPECT_THAT(reason([](data::Columns* columns, data::LoaderOptions*) { columns->info.windowed = true; }),
              HasSubstr("random_resized_crop"));
  EXPECT_THAT(reason([](data::Columns* columns, data::LoaderOptions*) { columns->info.max_damaged = 0; }),
              HasSubstr("damaged"));
  EXPECT_THAT(reason([](data::Columns*, data::LoaderOptions* options) { options->buckets = {8}; }),
              HasSubstr("lengths"));
  EXPECT_THAT(reason([](data::Columns* columns, data::LoaderOptions*) { columns->info.lengths.assign(23, 2); }),
              HasSubstr("lengths"));
  EXPECT_THAT(reason([](data::Columns*, data::LoaderOptions* options) { options->spelled_labels = true; }),
              HasSubstr("labels"));
  EXPECT_THAT(reason([](data::Columns*, data::LoaderOptions* options) { options->label_places = 4; }),
              HasSubstr("labels"));
}

TEST(StoredSamples, AreReadToTheFirstThatCannotBe) {
  data::Columns columns = MakeColumns({.name = "set", .shape = {3}, .bytes = false});
  columns.non_finite = {{.sample = 4, .value = std::nan(""), .file = "in.npy"}};
  const auto dataset = *data::MakeMemoryDataset(std::move(columns), 0);
  const auto transform = *data::Transform::Create({}, *dataset);
  const auto samples = StoredSamplesOf(*dataset, transform, {});
  ASSERT_TRUE(samples.ok()) << samples.status();
  std::vector<float> values(4 * 3);
  std::vector<int32_t> labels(4);
  EXPECT_TRUE(samples->read(0, 4, values.data(), labels.data()).ok());
  const absl::Status status = samples->read(1, 4, values.data(), labels.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("sample 4"));
}

}  // namespace
}  // namespace ampd::train
