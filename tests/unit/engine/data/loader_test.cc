#include "engine/data/loader.h"

#include <algorithm>
#include <limits>
#include <map>
#include <new>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
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

// Sample i has lengths[i] steps of two features, i + 1 everywhere, then 99; its labels are the numbers of its steps,
// then none.
Columns MakeSequences(const std::vector<int32_t>& lengths, int64_t time) {
  Columns columns;
  columns.info.name = "sequences";
  columns.info.size = static_cast<int64_t>(lengths.size());
  columns.info.input_shape = {time, 2};
  columns.info.label_count = time;
  columns.info.lengths = lengths;
  for (size_t i = 0; i < lengths.size(); ++i) {
    for (int64_t t = 0; t < time; ++t) {
      const bool counts = t < lengths[i];
      columns.floats.insert(columns.floats.end(), 2, counts ? static_cast<float>(i + 1) : 99.0f);
      columns.labels.push_back(static_cast<int32_t>(t));
    }
  }
  columns.info.classes = *MarkAndCountClasses(columns.info, "labels", columns.labels);
  return columns;
}

TEST(LengthBucketsTest, AreThoseThatSamplesNeed) {
  const std::vector<int32_t> train = {3, 8, 9, 40}, eval = {17, 1};
  EXPECT_THAT(*LengthBuckets(train, eval, {}), ElementsAre(8, 16, 24, 40));
  EXPECT_THAT(*LengthBuckets(train, {}, {}), ElementsAre(8, 16, 40));
  EXPECT_THAT(*LengthBuckets(train, eval, {16, 48, 64}), ElementsAre(16, 48));
  // 600 / 8 is 75: five times 8, of which 15 reach 600.
  EXPECT_THAT(*LengthBuckets(std::vector<int32_t>{1, 600, 300}, {}, {}), ElementsAre(40, 320, 600));
  const auto too_long = LengthBuckets(train, eval, {16, 32});
  EXPECT_THAT(std::string(too_long.status().message()), AllOf(HasSubstr("end at 32"), HasSubstr("40 steps")));
}

// One that no sample of the training set falls in takes none: batches are the same without it.
TEST(LengthBucketsTest, WhatTheOtherSetNeedsChangesNoBatch) {
  std::vector<int32_t> train;
  for (int i = 0; i < 103; ++i) train.push_back(i % 2 == 0 ? 1 + i * 7 % 16 : 60);
  const std::vector<int64_t> both = *LengthBuckets(train, std::vector<int32_t>{33, 64}, {16, 40, 60, 64});
  const std::vector<int64_t> used = UsedBuckets(train, both);
  EXPECT_THAT(both, ElementsAre(16, 40, 60, 64));
  EXPECT_THAT(used, ElementsAre(16, 60));
  const auto one = EpochBatches(train, both, 10, true, 5, 1), other = EpochBatches(train, used, 10, true, 5, 1);
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i].samples, other[i].samples) << i;
}

TEST(LengthBucketsTest, WhatIsLeftOverGoesToTheNextBucket) {
  const std::vector<int32_t> lengths = {5, 20, 6, 12, 7, 13, 8, 14, 1};
  const std::vector<int64_t> buckets = {8, 16, 24}, order = {8, 7, 6, 5, 4, 3, 2, 1, 0};
  const std::vector<BucketBatch> batches = BucketBatches(lengths, buckets, order, 2);
  ASSERT_EQ(batches.size(), 5u);
  // 8, 6, 4, 2 and 0 are short, of which 0 is left over; 7, 5, 3 are longer, and with 0 they make two batches.
  EXPECT_THAT(batches[0].samples, ElementsAre(8, 6));
  EXPECT_THAT(batches[1].samples, ElementsAre(4, 2));
  EXPECT_THAT(batches[2].samples, ElementsAre(7, 5));
  EXPECT_THAT(batches[3].samples, ElementsAre(3, 0));
  EXPECT_THAT(batches[4].samples, ElementsAre(1));
  EXPECT_EQ(batches[1].bucket, 0u);
  EXPECT_EQ(batches[3].bucket, 1u);
  EXPECT_EQ(batches[4].bucket, 2u);
}

TEST(LengthBucketsTest, AnEpochHasTheSamplesThatItHasWithoutBuckets) {
  std::vector<int32_t> lengths;
  for (int i = 0; i < 103; ++i) lengths.push_back(1 + i * 7 % 40);
  const std::vector<int64_t> buckets = *LengthBuckets(lengths, {}, {});
  std::set<std::vector<int64_t>> firsts;
  for (int64_t epoch : {1, 2, 3}) {
    const std::vector<BucketBatch> batches = EpochBatches(lengths, buckets, 10, true, 5, epoch);
    std::vector<int64_t> samples, whole = EpochOrder(103, 5, epoch);
    for (const BucketBatch& batch : batches) {
      EXPECT_EQ(batch.samples.size(), 10u);
      for (int64_t sample : batch.samples) EXPECT_LE(lengths[sample], buckets[batch.bucket]);
      samples.insert(samples.end(), batch.samples.begin(), batch.samples.end());
    }
    firsts.insert(batches[0].samples);
    whole.resize(100);
    EXPECT_THAT(samples, ::testing::UnorderedElementsAreArray(whole));
    // The buckets do not come in order.
    EXPECT_FALSE(std::is_sorted(batches.begin(), batches.end(),
                                [](const BucketBatch& a, const BucketBatch& b) { return a.bucket < b.bucket; }));
  }
  EXPECT_EQ(firsts.size(), 3u);
}

TEST(LoaderTest, PadsSequencesToTheirBucket) {
  const Source source(MakeSequences({3, 12, 8, 9, 5, 20}, 21));
  LoaderOptions options;
  options.batch_size = 2;
  options.target_width = 20;
  options.buckets = {8, 16, 24};
  auto loader = Loader::CreateEvaluation(*source.dataset, source.transform, options);
  ASSERT_TRUE(loader.ok()) << loader.status();
  std::vector<int64_t> times;
  for (int i = 0; i < 3; ++i) {
    const Batch* batch = *(*loader)->Next();
    ASSERT_NE(batch, nullptr);
    const int64_t time = options.buckets[batch->bucket];
    times.push_back(time);
    EXPECT_EQ(batch->inputs.shape(), (Shape{2, time, 2}));
    EXPECT_EQ(batch->labels.shape(), (Shape{2, time}));
    for (int64_t p = 0; p < batch->valid; ++p) {
      const int64_t sample = batch->samples[p], length = source.dataset->info().lengths[sample];
      EXPECT_EQ(batch->lengths.as<int32_t>()[p], length);
      for (int64_t t = 0; t < time; ++t) {
        EXPECT_EQ(batch->inputs.as<float>()[(p * time + t) * 2 + 1], t < length ? static_cast<float>(sample + 1) : 0);
        EXPECT_EQ(batch->labels.as<int32_t>()[p * time + t], t < length ? t : -1);
      }
    }
    (*loader)->Release(const_cast<Batch*>(batch));
  }
  // 0 and 2; then 4, left over, with 1; then 3 and 5.
  EXPECT_THAT(times, ElementsAre(8, 16, 24));
}

TEST(LoaderTest, ResumesAmidBuckets) {
  std::vector<int32_t> lengths;
  for (int i = 0; i < 53; ++i) lengths.push_back(1 + i * 5 % 31);
  const Source source(MakeSequences(lengths, 31));
  LoaderOptions options;
  options.batch_size = 4;
  options.target_width = 31;
  options.seed = 9;
  options.buckets = *LengthBuckets(lengths, {}, {});
  const std::vector<Seen> all = TakeMany(*source.Training(options), 40);
  for (int64_t first : {1, 13, 26}) {
    options.first_step = first;
    const std::vector<Seen> rest = TakeMany(*source.Training(options), 8);
    EXPECT_EQ(rest, std::vector<Seen>(all.begin() + first, all.begin() + first + 8)) << first;
  }
}

TEST(LoaderTest, ChecksLabelsThatAreToBeFound) {
  Columns columns = MakeSequences({3, 4}, 6);
  columns.info.label_lengths = {3, 2};
  LoaderOptions options;
  options.batch_size = 2;
  options.target_width = 6;
  options.buckets = {8};
  options.spelled_labels = true;
  options.blank = 5;
  {
    const Source source(columns);
    auto loader = source.Training(options);
    const auto batch = loader->Next();
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_EQ((*batch)->labels.shape(), (Shape{2, 6}));
    EXPECT_EQ((*batch)->label_lengths.size(), 2);
  }
  options.blank = 2;
  const Source with_blank(columns);
  EXPECT_THAT(std::string(with_blank.Training(options)->Next().status().message()),
              HasSubstr("sequences: sample 0 has the blank at place 2 of its 3 labels"));
  columns.info.label_lengths = {3, 5};
  options.blank = 5;
  const Source too_few(columns);
  EXPECT_THAT(std::string(too_few.Training(options)->Next().status().message()),
              HasSubstr("sample 1 has no label at place 4 of its 5 labels"));
}

TEST(LoaderTest, LengthsAndBucketsBelongTogether) {
  const Source plain(MakeColumns(4)), sequences(MakeSequences({3, 12}, 12));
  LoaderOptions options;
  options.target_width = 12;
  EXPECT_FALSE(Loader::CreateTraining(*sequences.dataset, sequences.transform, options).ok());
  options.buckets = {8};
  EXPECT_FALSE(Loader::CreateTraining(*sequences.dataset, sequences.transform, options).ok());
  EXPECT_FALSE(Loader::CreateTraining(*plain.dataset, plain.transform, options).ok());
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

std::vector<int32_t> LabelsOf(const Batch& batch) {
  const auto labels = batch.labels.as<int32_t>();
  return {labels.begin(), labels.end()};
}

TEST(LoaderTest, ReadsWhatItChoseWhenItIsAskedFor) {
  const Source source(MakeColumns(23), Augmentation());
  LoaderOptions options;
  options.batch_size = 4;
  options.seed = 3;
  options.first_step = 2;
  options.depth = 6;
  const std::vector<Seen> expected = TakeMany(*source.Training(options), 40);
  for (const ReadAhead ahead : {ReadAhead::kNothing, ReadAhead::kLabels}) {
    options.read_ahead = ahead;
    const auto loader = source.Training(options);
    std::vector<Batch*> held;
    for (size_t i = 0; i < expected.size(); ++i) {
      // Now and then by Next(), which reads.
      const bool reads = i % 3 == 0;
      const auto batch = reads ? loader->Next() : loader->NextUnread();
      ASSERT_TRUE(batch.ok()) << batch.status();
      EXPECT_EQ((*batch)->read, reads);
      EXPECT_EQ((*batch)->inputs.shape().empty(), !reads);
      EXPECT_EQ((*batch)->labels.shape().empty(), !reads && ahead == ReadAhead::kNothing);
      if (ahead == ReadAhead::kLabels) {
        EXPECT_EQ(LabelsOf(**batch), expected[i].labels);
      }
      EXPECT_EQ((*batch)->samples, expected[i].samples);
      EXPECT_EQ((*batch)->valid, 4);
      held.push_back(*batch);
      if (held.size() < 6) continue;
      EXPECT_EQ(loader->NextUnread().status().code(), absl::StatusCode::kFailedPrecondition);
      // All at once, the last first.
      for (size_t k = held.size(); k-- > 0;) {
        Batch* b = held[k];
        const Seen& e = expected[i + 1 - held.size() + k];
        ASSERT_TRUE(loader->Read(b).ok());
        ASSERT_TRUE(b->read);
        const auto inputs = b->inputs.as<float>();
        EXPECT_EQ(std::vector<float>(inputs.begin(), inputs.end()), e.inputs);
        EXPECT_EQ(LabelsOf(*b), e.labels);
        EXPECT_EQ(b->step, e.step);
        EXPECT_EQ(b->epoch, e.epoch);
        EXPECT_EQ(b->batch, e.batch);
      }
      for (Batch* b : held) loader->Release(b);
      held.clear();
    }
  }
}

TEST(LoaderTest, DoesNotChooseAheadWhatFollowsFromReading) {
  LoaderOptions options;
  options.read_ahead = ReadAhead::kNothing;
  const Source plain(MakeColumns(5));
  EXPECT_TRUE(Loader::CreateTraining(*plain.dataset, plain.transform, options).ok());
  EXPECT_FALSE(Loader::CreateEvaluation(*plain.dataset, plain.transform, options).ok());
  Columns tolerant = MakeColumns(5);
  tolerant.info.max_damaged = 0;
  const Source damaged(std::move(tolerant));
  EXPECT_FALSE(Loader::CreateTraining(*damaged.dataset, damaged.transform, options).ok());
  const Source sequences(MakeSequences({1, 3}, 3));
  options.buckets = {8};
  EXPECT_FALSE(Loader::CreateTraining(*sequences.dataset, sequences.transform, options).ok());
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
  // A label that the loss ignores needs no output, unless targets are one-hot; nor does it hide others.
  const auto ignoring = [&](int64_t ignored, TargetFormat targets, int64_t width) {
    return Loader::CreateTraining(*source.dataset, source.transform,
                                  {.batch_size = 4, .targets = targets, .target_width = width, .ignored = ignored})
        .status();
  };
  EXPECT_TRUE(ignoring(2, TargetFormat::kLabels, 2).ok());
  EXPECT_FALSE(ignoring(1, TargetFormat::kLabels, 2).ok());
  EXPECT_FALSE(ignoring(2, TargetFormat::kFloats, 2).ok());
  EXPECT_THAT(std::string(ignoring(2, TargetFormat::kLabels, 1).message()), HasSubstr("labels up to 1"));
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
  columns.non_finite.push_back({5, std::numeric_limits<double>::quiet_NaN(), "x.npy"});
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

// Of ten samples of one value; there is no memory for sample 5.
class TooLarge : public Dataset {
 public:
  TooLarge() : Dataset(Info()) {}
  void ReadInput(int64_t, absl::Span<float> out) const override { std::fill(out.begin(), out.end(), 1.0f); }
  absl::Status ReadSample(int64_t i, const Draw* draw, absl::Span<float> out) const override {
    if (i == 5) throw std::bad_alloc();
    return Dataset::ReadSample(i, draw, out);
  }
  std::string SampleName(int64_t i) const override { return absl::StrCat(i, ".png"); }
  int32_t ReadLabel(int64_t) const override { return 0; }
  void ReadTarget(int64_t, absl::Span<float>) const override {}
  absl::Status CheckFinite(int64_t) const override { return absl::OkStatus(); }

 private:
  static DatasetInfo Info() {
    DatasetInfo info;
    info.name = "set";
    info.size = 10;
    info.input_shape = {1};
    info.classes = 1;
    info.decodes = true;
    // What is damaged is passed over, but it is not that.
    info.max_damaged = 5;
    return info;
  }
};

TEST(LoaderTest, ALackOfMemoryOnAnyThreadIsAnError) {
  const TooLarge dataset;
  const Transform transform = *Transform::Create({}, dataset);
  for (const int threads : {1, 4}) {
    const LoaderOptions options = {.batch_size = 2, .shuffle = false, .threads = threads};
    for (const bool training : {true, false}) {
      const auto loader = training ? *Loader::CreateTraining(dataset, transform, options)
                                   : *Loader::CreateEvaluation(dataset, transform, options);
      EXPECT_THAT(Take(*loader).samples, ElementsAre(0, 1));
      EXPECT_THAT(Take(*loader).samples, ElementsAre(2, 3));
      const absl::Status status = loader->Next().status();
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("batch 2: 5.png: no memory left to read sample 5"));
    }
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
