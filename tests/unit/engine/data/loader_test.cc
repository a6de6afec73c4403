#include "engine/data/loader.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "engine/data/memory_dataset.h"
#include "gmock/gmock.h"

namespace ampd::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// `size` samples of [2, 2, 1]; value e of sample i is 4 i + e (and 0.5 as a float), its label is i % 3.
Columns MakeColumns(int64_t size, bool bytes = true) {
  Columns columns;
  columns.info.name = "set";
  columns.info.size = size;
  columns.info.byte_inputs = bytes;
  columns.info.classes = 3;
  columns.info.input_shape = {2, 2, 1};
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t e = 0; e < 4; ++e) {
      if (bytes) {
        columns.bytes.push_back(static_cast<uint8_t>(4 * i + e));
      } else {
        columns.floats.push_back(static_cast<float>(4 * i + e) + 0.5f);
      }
    }
    columns.labels.push_back(static_cast<int32_t>(i % 3));
  }
  return columns;
}

struct Source {
  explicit Source(Columns columns, const v1::ImageTransform& spec = {})
      : dataset(*MakeMemoryDataset(std::move(columns), 0)), transform(*Transform::Create(spec, *dataset)) {}
  std::unique_ptr<Loader> Training(const LoaderOptions& options) const {
    auto loader = Loader::CreateTraining(*dataset, transform, options);
    EXPECT_TRUE(loader.ok()) << loader.status();
    return *std::move(loader);
  }
  std::unique_ptr<Dataset> dataset;
  Transform transform;
};

// What a training sees in one step.
struct Seen {
  int64_t step, epoch, batch;
  std::vector<int64_t> samples;
  std::vector<float> inputs;
  std::vector<int32_t> labels;
  bool operator==(const Seen&) const = default;
};

Seen Take(Loader& loader) {
  const absl::StatusOr<Batch*> batch = loader.Next();
  EXPECT_TRUE(batch.ok()) << batch.status();
  if (!batch.ok() || *batch == nullptr) return {};
  const Batch& b = **batch;
  const auto inputs = b.inputs.as<float>();
  const auto labels = b.labels.as<int32_t>();
  Seen seen = {b.step, b.epoch, b.batch, b.samples, {inputs.begin(), inputs.end()}, {labels.begin(), labels.end()}};
  loader.Release(*batch);
  return seen;
}

std::vector<Seen> TakeMany(Loader& loader, int count) {
  std::vector<Seen> seen;
  for (int i = 0; i < count; ++i) seen.push_back(Take(loader));
  return seen;
}

v1::ImageTransform Augmentation() {
  v1::ImageTransform spec;
  spec.set_random_flip(true);
  spec.set_random_crop_padding(1);
  return spec;
}

TEST(EpochOrderTest, IsAPermutationOfItsOwnForEverySeedAndEpoch) {
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed : {0, 1, 2}) {
    for (int64_t epoch : {1, 2, 3}) {
      std::vector<int64_t> order = EpochOrder(50, seed, epoch);
      EXPECT_EQ(order, EpochOrder(50, seed, epoch));
      orders.insert(order);
      std::sort(order.begin(), order.end());
      std::vector<int64_t> all(50);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(order, all);
    }
  }
  EXPECT_EQ(orders.size(), 9u);
  EXPECT_THAT(EpochOrder(1, 0, 1), ElementsAre(0));
}

// Each of the 24 orders of four samples is as likely as any other: chi-squared with 23 degrees of freedom.
TEST(EpochOrderTest, IsUniform) {
  std::map<std::vector<int64_t>, int> count;
  constexpr int kTrials = 24 * 200;
  for (int64_t epoch = 1; epoch <= kTrials; ++epoch) ++count[EpochOrder(4, 3, epoch)];
  ASSERT_EQ(count.size(), 24u);
  double chi2 = 0;
  for (const auto& [order, n] : count) chi2 += (n - 200.0) * (n - 200.0) / 200.0;
  EXPECT_LT(chi2, 49.7);  // exceeded by chance once in a thousand
}

TEST(LoaderTest, AnEpochHasEverySampleAtMostOnceAndDropsTheRest) {
  const Source source(MakeColumns(11));
  const auto loader = source.Training({.batch_size = 3, .seed = 4});
  EXPECT_EQ(loader->batches_per_epoch(), 3);
  for (int64_t epoch = 1; epoch <= 3; ++epoch) {
    std::set<int64_t> samples;
    for (int64_t batch = 0; batch < 3; ++batch) {
      const Seen seen = Take(*loader);
      EXPECT_EQ(seen.epoch, epoch);
      EXPECT_EQ(seen.batch, batch);
      EXPECT_EQ(seen.step, (epoch - 1) * 3 + batch);
      samples.insert(seen.samples.begin(), seen.samples.end());
    }
    EXPECT_EQ(samples.size(), 9u);
  }
}

TEST(LoaderTest, GathersInputsAndLabelsOfTheSamples) {
  const Source source(MakeColumns(20));
  const auto loader = source.Training({.batch_size = 4, .seed = 9});
  for (int i = 0; i < 12; ++i) {
    const Seen seen = Take(*loader);
    for (size_t s = 0; s < 4; ++s) {
      EXPECT_EQ(seen.labels[s], seen.samples[s] % 3);
      for (size_t e = 0; e < 4; ++e) {
        const double stored = static_cast<double>(4 * seen.samples[s]) + static_cast<double>(e);
        EXPECT_EQ(seen.inputs[s * 4 + e], static_cast<float>(stored / 255));
      }
    }
  }
}

TEST(LoaderTest, WithoutShuffleTheOrderIsTheFiles) {
  const Source source(MakeColumns(5));
  const auto loader = source.Training({.batch_size = 2, .shuffle = false});
  EXPECT_THAT(Take(*loader).samples, ElementsAre(0, 1));
  EXPECT_THAT(Take(*loader).samples, ElementsAre(2, 3));
  EXPECT_THAT(Take(*loader).samples, ElementsAre(0, 1));
}

TEST(LoaderTest, StartsAtAnyStepAsIfNeverInterrupted) {
  const Source source(MakeColumns(23), Augmentation());
  LoaderOptions options = {.batch_size = 4, .seed = 11};
  const std::vector<Seen> whole = TakeMany(*source.Training(options), 20);
  for (int64_t first = 0; first < 20; ++first) {
    options.first_step = first;
    EXPECT_EQ(TakeMany(*source.Training(options), static_cast<int>(20 - first)),
              std::vector<Seen>(whole.begin() + first, whole.end()));
  }
}

TEST(LoaderTest, DependsOnTheSeedButNotOnTheDepth) {
  const Source source(MakeColumns(23), Augmentation());
  const auto take = [&](uint64_t seed, int depth) {
    return TakeMany(*source.Training({.batch_size = 4, .seed = seed, .depth = depth}), 12);
  };
  EXPECT_EQ(take(1, 2), take(1, 7));
  EXPECT_NE(take(1, 3), take(2, 3));
}

TEST(LoaderTest, ABatchStaysUntouchedWhileItIsHeld) {
  const Source source(MakeColumns(40));
  const auto loader = source.Training({.batch_size = 4, .seed = 1});
  Batch* held = *loader->Next();
  const std::vector<int64_t> samples = held->samples;
  const std::vector<float> inputs(held->inputs.as<float>().begin(), held->inputs.as<float>().end());
  TakeMany(*loader, 20);
  EXPECT_EQ(held->samples, samples);
  EXPECT_TRUE(std::equal(inputs.begin(), inputs.end(), held->inputs.as<float>().begin()));
  EXPECT_GE(held->wait_seconds, 0);
}

TEST(LoaderTest, HoldingEveryBatchIsAnErrorNotADeadlock) {
  const Source source(MakeColumns(40));
  const auto loader = source.Training({.batch_size = 4});
  std::vector<Batch*> held;
  for (int i = 0; i < 3; ++i) held.push_back(*loader->Next());
  EXPECT_EQ(loader->Next().status().code(), absl::StatusCode::kFailedPrecondition);
  loader->Release(held[1]);
  EXPECT_TRUE(loader->Next().ok());
}

TEST(LoaderTest, OneHotEncodesClassesForFloatTargets) {
  const Source source(MakeColumns(6));
  const auto loader = source.Training({.batch_size = 2, .targets = TargetFormat::kFloats, .target_width = 4});
  for (int i = 0; i < 30; ++i) {
    Batch* batch = *loader->Next();
    EXPECT_EQ(batch->targets.shape(), (Shape{2, 4}));
    for (size_t s = 0; s < 2; ++s) {
      for (int64_t c = 0; c < 4; ++c) {
        const float expected = batch->samples[s] % 3 == c ? 1.0f : 0.0f;
        EXPECT_EQ(batch->targets.as<float>()[s * 4 + static_cast<size_t>(c)], expected);
      }
    }
    loader->Release(batch);
  }
}

TEST(LoaderTest, AugmentsAnewInEveryStepAndPlace) {
  // One sample over and over: only the augmentation can tell its copies apart.
  Columns columns = MakeColumns(20);
  for (size_t i = 0; i < columns.bytes.size(); ++i) columns.bytes[i] = static_cast<uint8_t>(1 + i % 4);
  const Source source(std::move(columns), Augmentation());
  const auto loader = source.Training({.batch_size = 20, .shuffle = false});
  std::set<std::vector<float>> batches, images;
  for (const Seen& seen : TakeMany(*loader, 10)) {
    batches.insert(seen.inputs);
    for (auto image = seen.inputs.begin(); image != seen.inputs.end(); image += 4) images.insert({image, image + 4});
  }
  EXPECT_EQ(batches.size(), 10u);
  EXPECT_GT(images.size(), 10u);  // 9 windows, each mirrored or not; some look alike
}

TEST(LoaderTest, PassesFloatTargetsOn) {
  Columns columns = MakeColumns(4);
  columns.info.target_kind = TargetKind::kFloat;
  columns.info.target_features = 2;
  columns.labels.clear();
  columns.targets = {0, 1, 2, 3, 4, 5, 6, 7};
  const Source source(std::move(columns));
  const auto loader = source.Training({.batch_size = 2, .targets = TargetFormat::kFloats, .shuffle = false});
  EXPECT_THAT((*loader->Next())->targets.as<float>(), ElementsAre(0, 1, 2, 3));
  const auto code = [&](const LoaderOptions& options) {
    return Loader::CreateTraining(*source.dataset, source.transform, options).status().code();
  };
  EXPECT_EQ(code({.batch_size = 2}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.batch_size = 2, .targets = TargetFormat::kFloats, .target_width = 3}),
            absl::StatusCode::kInvalidArgument);
}

TEST(LoaderTest, RefusesASetSmallerThanABatch) {
  const Source source(MakeColumns(3));
  const auto loader = Loader::CreateTraining(*source.dataset, source.transform, {.batch_size = 4});
  EXPECT_EQ(loader.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(loader.status().message()), AllOf(HasSubstr("set"), HasSubstr("3"), HasSubstr("4")));
}

TEST(LoaderTest, RefusesBatchesThatDoNotFitMemory) {
  v1::DatasetSpec spec;
  spec.mutable_glyphs()->set_samples(std::numeric_limits<int64_t>::max());
  const auto dataset = *OpenDataset(spec, {}, false);
  const auto transform = *Transform::Create({}, *dataset);
  for (const LoaderOptions& options : {LoaderOptions{.batch_size = int64_t{1} << 60}, LoaderOptions{.batch_size = 32},
                                       LoaderOptions{.batch_size = int64_t{1} << 52, .shuffle = false}}) {
    EXPECT_EQ(Loader::CreateTraining(*dataset, transform, options).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
  const auto unshuffled = Loader::CreateTraining(*dataset, transform, {.batch_size = 2, .shuffle = false});
  ASSERT_TRUE(unshuffled.ok()) << unshuffled.status();
  EXPECT_THAT(Take(**unshuffled).samples, ElementsAre(0, 1));
}

TEST(LoaderTest, RefusesMoreClassesThanOutputsAndOtherShapes) {
  const Source source(MakeColumns(9));
  const auto few = Loader::CreateTraining(*source.dataset, source.transform, {.batch_size = 4, .target_width = 2});
  EXPECT_THAT(std::string(few.status().message()), AllOf(HasSubstr("labels up to 2"), HasSubstr("2 outputs")));
  const Source other(MakeColumns(9, /*bytes=*/false));
  EXPECT_EQ(Loader::CreateEvaluation(*other.dataset, source.transform, {.batch_size = 4}).status().code(),
            absl::StatusCode::kInvalidArgument);
  for (const LoaderOptions& bad :
       {LoaderOptions{.batch_size = 0}, LoaderOptions{.first_step = -1}, LoaderOptions{.depth = 1}}) {
    EXPECT_EQ(Loader::CreateTraining(*source.dataset, source.transform, bad).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(LoaderTest, AValueThatIsNotFiniteEndsTheBatchesBeforeItsOwn) {
  Columns columns = MakeColumns(8, /*bytes=*/false);
  columns.non_finite.push_back({5, true, "x.npy"});
  const Source source(std::move(columns));
  const auto loader = source.Training({.batch_size = 2, .shuffle = false});
  EXPECT_THAT(Take(*loader).samples, ElementsAre(0, 1));
  EXPECT_THAT(Take(*loader).samples, ElementsAre(2, 3));
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = loader->Next().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("x.npy"), HasSubstr("sample 5"), HasSubstr("NaN"), HasSubstr("epoch 1, batch 2")));
  }
}

TEST(LoaderTest, EvaluationReadsAllInOrderAndPadsTheLastBatch) {
  const Source source(MakeColumns(7), Augmentation());
  for (int pass = 0; pass < 2; ++pass) {
    const auto loader = *Loader::CreateEvaluation(*source.dataset, source.transform, {.batch_size = 3});
    EXPECT_EQ(loader->batches_per_epoch(), 3);
    for (int64_t b = 0; b < 3; ++b) {
      Batch* batch = *loader->Next();
      ASSERT_NE(batch, nullptr);
      EXPECT_EQ(batch->valid, b < 2 ? 3 : 1);
      EXPECT_EQ(batch->batch, b);
      EXPECT_EQ(batch->inputs.shape(), (Shape{3, 2, 2, 1}));
      for (int64_t s = 0; s < 3; ++s) {
        const int64_t sample = b * 3 + s;
        const float expected = sample < 7 ? static_cast<float>(static_cast<double>(4 * sample + 3) / 255) : 0.0f;
        EXPECT_EQ(batch->inputs.as<float>()[static_cast<size_t>(s * 4 + 3)], expected);
        EXPECT_EQ(batch->labels.as<int32_t>()[static_cast<size_t>(s)], sample < 7 ? sample % 3 : 0);
      }
      loader->Release(batch);
    }
    EXPECT_EQ(*loader->Next(), nullptr);
    EXPECT_EQ(*loader->Next(), nullptr);
  }
}

TEST(LoaderTest, EvaluationMayBeSmallerThanABatch) {
  const Source source(MakeColumns(2));
  const auto loader = *Loader::CreateEvaluation(*source.dataset, source.transform, {.batch_size = 100});
  EXPECT_EQ((*loader->Next())->valid, 2);
  EXPECT_EQ(*loader->Next(), nullptr);
}

TEST(LoaderTest, ShutsDownFromAnyState) {
  const Source source(MakeColumns(40));
  for (int taken = 0; taken < 40; ++taken) {
    const auto loader = source.Training({.batch_size = 4, .seed = 1});
    TakeMany(*loader, taken % 7);
    for (int held = 0; held < taken % 4; ++held) EXPECT_TRUE(loader->Next().ok());
  }
  for (int taken = 0; taken < 12; ++taken) {
    const auto loader = *Loader::CreateEvaluation(*source.dataset, source.transform, {.batch_size = 4});
    TakeMany(*loader, taken);
  }
}

}  // namespace
}  // namespace ampd::data
