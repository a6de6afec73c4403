#include "engine/data/image_folder.h"

#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "engine/data/loader.h"
#include "gmock/gmock.h"
#include "tests/unit/engine/data/data_folder.h"
#include "tests/unit/engine/data/image_files.h"

namespace ampd::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What a step sees.
struct Seen {
  std::vector<int64_t> samples;
  std::vector<float> inputs;
  std::vector<int32_t> labels;
  bool operator==(const Seen&) const = default;
};

class ImageFolderTest : public DataFolder {
 protected:
  ImageFolderTest() {
    data_.mutable_train()->mutable_image_folder()->set_path("set");
    data_.mutable_eval()->mutable_image_folder()->set_path("set");
    data_.mutable_image()->set_size(8);
    data_.set_max_corrupt_ratio(0.5);
  }

  void Put(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + "/set/" + name).parent_path());
    Write("set/" + name, bytes);
  }

  // Files a/0 to a/(n-1) and b/0 to b/(n-1), alternately JPEG and PNG, of different sizes.
  void PutImages(int n) const {
    for (int i = 0; i < 2 * n; ++i) {
      const Image image = SmoothImage(10 + i % 5, 9 + i % 3, i % 4 == 3 ? 1 : 3, i);
      Put((i < n ? "a/" : "b/") + std::to_string(i % n), i % 2 == 0 ? JpegFileBytes(image) : PngFileBytes(image));
    }
  }

  std::unique_ptr<Dataset> Open(bool is_eval = false, std::shared_ptr<SampleCache> cache = nullptr) const {
    auto dataset = OpenDataset(data_, roots_, is_eval, std::move(cache));
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return dataset.ok() ? *std::move(dataset) : nullptr;
  }
  absl::Status OpenError() const { return OpenDataset(data_, roots_, false).status(); }

  std::vector<Seen> Train(const Dataset& dataset, LoaderOptions options, int steps) const {
    const auto transform = Transform::Create(data_.image(), dataset, options.threads);
    EXPECT_TRUE(transform.ok()) << transform.status();
    const auto loader = *Loader::CreateTraining(dataset, *transform, options);
    std::vector<Seen> seen;
    for (int i = 0; i < steps; ++i) {
      const auto batch = loader->Next();
      EXPECT_TRUE(batch.ok()) << batch.status();
      if (!batch.ok()) break;
      const auto inputs = (*batch)->inputs.as<float>();
      const auto labels = (*batch)->labels.as<int32_t>();
      seen.push_back({(*batch)->samples, {inputs.begin(), inputs.end()}, {labels.begin(), labels.end()}});
      loader->Release(*batch);
    }
    return seen;
  }

  v1::DataSpec data_;
};

TEST_F(ImageFolderTest, ClassesAndFilesAreInTheOrderOfTheirNames) {
  Put("b/2", PngFileBytes(SmoothImage(8, 8, 3, 2)));
  Put("b/10", PngFileBytes(SmoothImage(8, 8, 3, 1)));
  Put("B/x.jpeg", JpegFileBytes(SmoothImage(8, 8, 3, 3)));
  Put("a/y", PngFileBytes(SmoothImage(8, 8, 3, 4)));
  Put("a/.hidden", "not an image");
  Put("readme.txt", "not in a class");
  const auto dataset = Open();
  ASSERT_EQ(dataset->size(), 4);
  EXPECT_EQ(dataset->info().classes, 3);
  EXPECT_EQ(dataset->info().input_shape, (Shape{8, 8, 3}));
  EXPECT_EQ(dataset->SampleName(0), "set/B/x.jpeg");
  EXPECT_EQ(dataset->SampleName(2), "set/b/10");
  const std::vector<int32_t> labels = {dataset->ReadLabel(0), dataset->ReadLabel(1), dataset->ReadLabel(2),
                                       dataset->ReadLabel(3)};
  EXPECT_THAT(labels, ElementsAre(0, 1, 2, 2));
  const Image image = SmoothImage(8, 8, 3, 1);
  EXPECT_EQ(Input(*dataset, 2), std::vector<float>(image.pixels.begin(), image.pixels.end()));
  const auto described = DescribeDataset(data_, roots_, false);
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_EQ(described->size, 4);
  EXPECT_EQ(described->input_shape, dataset->info().input_shape);
}

TEST_F(ImageFolderTest, TakesListedClassesAndTheFirstSamples) {
  PutImages(3);
  data_.mutable_train()->mutable_image_folder()->add_classes("b");
  data_.mutable_train()->mutable_image_folder()->add_classes("a");
  data_.mutable_train()->set_limit(4);
  const auto dataset = Open();
  EXPECT_EQ(dataset->size(), 4);
  EXPECT_EQ(dataset->info().classes, 2);
  EXPECT_EQ(dataset->SampleName(0), "set/b/0");
  EXPECT_EQ(dataset->SampleName(1), "set/b/1");
  EXPECT_EQ(dataset->SampleName(2), "set/a/0");
  EXPECT_EQ(dataset->SampleName(3), "set/a/1");
  EXPECT_EQ(dataset->ReadLabel(3), 1);
}

TEST_F(ImageFolderTest, ALimitTakesOneOfEachClassInTurn) {
  for (const char* name : {"a/0", "b/0", "b/1", "b/2", "c/0", "c/1"}) Put(name, PngFileBytes(SmoothImage(8, 8, 3)));
  const std::vector<std::vector<std::string>> taken = {
      {},
      {"a/0"},
      {"a/0", "b/0"},
      {"a/0", "b/0", "c/0"},
      {"a/0", "b/0", "b/1", "c/0"},
      {"a/0", "b/0", "b/1", "c/0", "c/1"},
      {"a/0", "b/0", "b/1", "b/2", "c/0", "c/1"},
      {"a/0", "b/0", "b/1", "b/2", "c/0", "c/1"},
  };
  for (const bool is_eval : {false, true}) {
    for (size_t limit = 1; limit < taken.size(); ++limit) {
      (is_eval ? data_.mutable_eval() : data_.mutable_train())->set_limit(static_cast<int64_t>(limit));
      const auto dataset = Open(is_eval);
      ASSERT_EQ(dataset->size(), static_cast<int64_t>(taken[limit].size()));
      EXPECT_EQ(DescribeDataset(data_, roots_, is_eval)->size, dataset->size());
      EXPECT_THAT(dataset->info().class_names, ElementsAre("a", "b", "c"));
      for (int64_t i = 0; i < dataset->size(); ++i) {
        const std::string& name = taken[limit][static_cast<size_t>(i)];
        EXPECT_EQ(dataset->SampleName(i), "set/" + name);
        EXPECT_EQ(dataset->ReadLabel(i), name[0] - 'a');
      }
    }
  }
}

TEST_F(ImageFolderTest, ChangesChannels) {
  Put("a/gray", PngFileBytes(SmoothImage(8, 8, 1)));
  Put("a/rgb", PngFileBytes(SmoothImage(8, 8, 3)));
  const Image gray = SmoothImage(8, 8, 1);
  const std::vector<float> repeated = Input(*Open(), 0);
  for (size_t i = 0; i < repeated.size(); ++i) EXPECT_EQ(repeated[i], gray.pixels[i / 3]);
  data_.mutable_image()->set_channels(1);
  const auto dataset = Open();
  EXPECT_EQ(dataset->info().input_shape, (Shape{8, 8, 1}));
  EXPECT_EQ(Input(*dataset, 0), std::vector<float>(gray.pixels.begin(), gray.pixels.end()));
}

TEST_F(ImageFolderTest, RefusesFoldersThatAreNone) {
  EXPECT_EQ(OpenError().code(), absl::StatusCode::kNotFound);
  Put("file", "");
  EXPECT_THAT(std::string(OpenError().message()), HasSubstr("no classes"));
  std::filesystem::create_directories(root_ + "/set/a");
  EXPECT_THAT(std::string(OpenError().message()), AllOf(HasSubstr("set/a"), HasSubstr("no files")));
  Put("a/inner/1", "");
  EXPECT_THAT(std::string(OpenError().message()), AllOf(HasSubstr("set/a"), HasSubstr("inner")));
  data_.mutable_train()->mutable_image_folder()->add_classes("../set/a");
  EXPECT_EQ(OpenError().code(), absl::StatusCode::kInvalidArgument);
  data_.mutable_train()->mutable_image_folder()->set_classes(0, "zebra");
  EXPECT_EQ(OpenError().code(), absl::StatusCode::kNotFound);
  data_.mutable_train()->mutable_image_folder()->clear_classes();
  data_.mutable_train()->mutable_image_folder()->set_path("set/file");
  EXPECT_EQ(OpenError().code(), absl::StatusCode::kPermissionDenied);
  data_.mutable_train()->mutable_image_folder()->set_path("../set");
  EXPECT_EQ(OpenError().code(), absl::StatusCode::kPermissionDenied);
}

// Classes are written down as text, in checkpoints.
TEST_F(ImageFolderTest, AClassWhoseNameIsNoUtf8IsNamed) {
  PutImages(1);
  Put("caf\xe9/0", "x");
  EXPECT_EQ(OpenError().message(),
            "set: the name of class folder 'caf\\xe9' is no UTF-8, as a class's name must be: rename it");
  EXPECT_EQ(DescribeDataset(data_, roots_, false).status(), OpenError());
  // A file of such a name is a sample.
  std::filesystem::remove_all(root_ + "/set/caf\xe9");
  Put("a/caf\xe9", PngFileBytes(SmoothImage(9, 9, 3)));
  EXPECT_EQ(Open()->SampleName(1), "set/a/caf\xe9");
}

TEST_F(ImageFolderTest, NeedsASize) {
  PutImages(1);
  data_.mutable_image()->clear_size();
  EXPECT_EQ(OpenError().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DescribeDataset(data_, roots_, false).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ImageFolderTest, WhatLeadsOutOrIsNoFileIsNotRead) {
  Put("a/good", PngFileBytes(SmoothImage(8, 8, 3)));
  const std::string outside = root_ + "-outside.png";
  std::ofstream(outside, std::ios::binary) << PngFileBytes(SmoothImage(8, 8, 3));
  std::filesystem::create_symlink(outside, root_ + "/set/a/link");
  ASSERT_EQ(::mkfifo((root_ + "/set/a/pipe").c_str(), 0600), 0);
  const auto dataset = Open();
  ASSERT_EQ(dataset->size(), 3);
  std::vector<float> out(8 * 8 * 3);
  EXPECT_TRUE(dataset->ReadSample(0, nullptr, absl::MakeSpan(out)).ok());
  for (int64_t i : {1, 2}) {
    const absl::Status status = dataset->ReadSample(i, nullptr, absl::MakeSpan(out));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(i == 1 ? "outside the data roots" : "not a regular file"));
  }
  // A folder that leads out is refused as a whole.
  std::filesystem::create_directory_symlink(std::filesystem::temp_directory_path(), root_ + "/set/z");
  EXPECT_EQ(OpenError().code(), absl::StatusCode::kPermissionDenied);
  std::filesystem::remove(outside);
}

TEST_F(ImageFolderTest, ThreadsChangeNothing) {
  PutImages(9);
  Put("a/4", "no image");
  data_.mutable_image()->set_random_flip(true);
  data_.mutable_image()->mutable_random_resized_crop();
  data_.mutable_image()->set_normalize(v1::ImageTransform::STANDARD);
  const auto train = [&](int threads) { return Train(*Open(), {.batch_size = 5, .seed = 3, .threads = threads}, 12); };
  const std::vector<Seen> one = train(1);
  EXPECT_EQ(one.size(), 12u);
  EXPECT_EQ(one, train(2));
  EXPECT_EQ(one, train(7));
}

TEST_F(ImageFolderTest, AnotherSampleTakesTheDamagedOnesPlace) {
  PutImages(4);
  const std::vector<Seen> whole = Train(*Open(), {.batch_size = 4, .seed = 3}, 8);
  Put("a/1", "no image");
  Put("a/2", PngFileBytes(SmoothImage(8, 8, 3)).substr(0, 60));
  Put("b/3", "");
  const auto dataset = Open();
  const std::vector<Seen> seen = Train(*dataset, {.batch_size = 4, .seed = 3}, 8);
  for (size_t step = 0; step < 8; ++step) {
    for (size_t i = 0; i < 4; ++i) {
      const int64_t sample = whole[step].samples[i];
      const int64_t expected = sample == 1 || sample == 2 ? 3 : sample == 7 ? 0 : sample;
      EXPECT_EQ(seen[step].samples[i], expected);
      EXPECT_EQ(seen[step].labels[i], expected / 4);
    }
  }
  const std::vector<DamagedSample> damaged = dataset->damage().Take();
  ASSERT_EQ(damaged.size(), 3u);
  std::set<std::string> files;
  for (size_t i = 0; i < 3; ++i) {
    files.insert(damaged[i].file);
    EXPECT_EQ(damaged[i].found, static_cast<int64_t>(i + 1));
    EXPECT_THAT(damaged[i].reason, ::testing::Not(HasSubstr("set/")));
  }
  EXPECT_THAT(files, ElementsAre("set/a/1", "set/a/2", "set/b/3"));
  EXPECT_TRUE(dataset->damage().Take().empty());
}

TEST_F(ImageFolderTest, AResumeSeesTheSame) {
  PutImages(7);
  Put("a/1", "no image");
  Put("b/6", "no image");
  data_.mutable_image()->mutable_random_resized_crop();
  const std::vector<Seen> whole = Train(*Open(), {.batch_size = 3, .seed = 5}, 14);
  for (int64_t first : {1, 6, 11}) {
    EXPECT_EQ(Train(*Open(), {.batch_size = 3, .seed = 5, .first_step = first}, static_cast<int>(14 - first)),
              std::vector<Seen>(whole.begin() + first, whole.end()));
  }
}

TEST_F(ImageFolderTest, TooMuchDamageEndsTheTraining) {
  PutImages(10);
  for (const char* name : {"a/0", "a/1", "b/9"}) Put(name, "no image");
  data_.set_max_corrupt_ratio(0.1);
  const auto dataset = Open();
  const auto transform = *Transform::Create(data_.image(), *dataset);
  const auto loader = *Loader::CreateTraining(*dataset, transform, {.batch_size = 20, .shuffle = false});
  const absl::Status status = loader->Next().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("3 of 20"), HasSubstr("allows 2"), HasSubstr("set/b/9")));
  EXPECT_EQ(dataset->damage().count(), 3);
  data_.set_max_corrupt_ratio(0);
  data_.mutable_image()->set_normalize(v1::ImageTransform::STANDARD);
  const absl::Status measured = Transform::Create(data_.image(), *Open(), 2).status();
  EXPECT_THAT(std::string(measured.message()), AllOf(HasSubstr("1 of 20"), HasSubstr("set/a/0")));
}

TEST_F(ImageFolderTest, ASetOfDamagedSamplesEndsTheTraining) {
  for (int i = 0; i < 6; ++i) Put("a/" + std::to_string(i), "no image");
  data_.set_max_corrupt_ratio(1);
  const auto dataset = Open();
  const auto transform = *Transform::Create(data_.image(), *dataset);
  const auto loader = *Loader::CreateTraining(*dataset, transform, {.batch_size = 2});
  EXPECT_EQ(loader->Next().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ImageFolderTest, AnEvaluationLeavesDamagedSamplesOut) {
  PutImages(4);
  for (const char* name : {"a/1", "b/2", "b/3"}) Put(name, "no image");
  const auto dataset = Open(/*is_eval=*/true);
  const auto transform = *Transform::Create(data_.image(), *dataset);
  const auto loader = *Loader::CreateEvaluation(*dataset, transform, {.batch_size = 3, .threads = 2});
  std::vector<std::vector<int64_t>> samples;
  while (true) {
    Batch* batch = *loader->Next();
    if (batch == nullptr) break;
    ASSERT_EQ(batch->valid, static_cast<int64_t>(batch->samples.size()));
    for (size_t i = 0; i < batch->samples.size(); ++i) {
      std::vector<float> expected(8 * 8 * 3);
      ASSERT_TRUE(transform.ReadPlain(*dataset, batch->samples[i], absl::MakeSpan(expected)).ok());
      const auto row = batch->inputs.as<float>().subspan(i * expected.size(), expected.size());
      EXPECT_EQ(std::vector<float>(row.begin(), row.end()), expected);
      EXPECT_EQ(batch->labels.as<int32_t>()[i], dataset->ReadLabel(batch->samples[i]));
    }
    for (size_t i = batch->samples.size(); i < 3; ++i) {
      EXPECT_EQ(batch->labels.as<int32_t>()[i], 0);
      EXPECT_EQ(batch->inputs.as<float>()[i * 8 * 8 * 3], 0);
    }
    samples.push_back(batch->samples);
    loader->Release(batch);
  }
  EXPECT_THAT(samples, ElementsAre(ElementsAre(0, 2), ElementsAre(3, 4, 5), ElementsAre()));
}

TEST_F(ImageFolderTest, StandardIsMeasuredOverTheResizedImages) {
  PutImages(5);
  Put("b/4", "no image");
  data_.mutable_image()->set_normalize(v1::ImageTransform::STANDARD);
  const auto dataset = Open();
  const auto transform = *Transform::Create(data_.image(), *dataset, 3);
  for (size_t c = 0; c < 3; ++c) {
    double sum = 0, squares = 0, count = 0;
    for (int64_t i = 0; i < 9; ++i) {
      const std::vector<float> values = Input(*dataset, i);
      for (size_t at = c; at < values.size(); at += 3, ++count) sum += values[at];
    }
    for (int64_t i = 0; i < 9; ++i) {
      const std::vector<float> values = Input(*dataset, i);
      for (size_t at = c; at < values.size(); at += 3) squares += std::pow(values[at] - sum / count, 2);
    }
    EXPECT_NEAR(transform.mean()[c], sum / count, 1e-9);
    EXPECT_NEAR(transform.std()[c], std::sqrt(squares / count), 1e-9);
  }
  EXPECT_EQ(dataset->damage().count(), 1);
}

// What the second epoch reads is what the cache holds: the files are gone by then.
TEST_F(ImageFolderTest, TheCacheServesLaterEpochs) {
  for (const bool crop : {false, true}) {
    for (const auto kind : {v1::CacheSpec::MEMORY, v1::CacheSpec::DISK}) {
      PutImages(4);
      data_.mutable_image()->clear_random_resized_crop();
      if (crop) data_.mutable_image()->mutable_random_resized_crop();
      v1::CacheSpec spec;
      spec.set_kind(kind);
      const std::vector<Seen> expected = Train(*Open(), {.batch_size = 4, .seed = 2}, 8);
      const auto cache = SampleCache::Create(spec, root_ + "/job/cache");
      ASSERT_TRUE(cache.ok()) << cache.status();
      const auto dataset = Open(false, *cache);
      EXPECT_EQ(Train(*dataset, {.batch_size = 4, .seed = 2, .threads = 2}, 2),
                std::vector<Seen>(expected.begin(), expected.begin() + 2));
      std::filesystem::remove_all(root_ + "/set");
      EXPECT_EQ(Train(*dataset, {.batch_size = 4, .seed = 2, .first_step = 2, .threads = 2}, 6),
                std::vector<Seen>(expected.begin() + 2, expected.end()));
      EXPECT_EQ(dataset->damage().count(), 0);
      EXPECT_GT((*cache)->bytes(), 8 * 8 * 8 * 3);
      // The file on disk has no name.
      EXPECT_EQ(std::filesystem::exists(root_ + "/job/cache"), kind == v1::CacheSpec::DISK);
      if (kind == v1::CacheSpec::DISK) {
        EXPECT_TRUE(std::filesystem::is_empty(root_ + "/job/cache"));
      }
      std::filesystem::remove_all(root_ + "/job");
    }
  }
}

// What is told before anything is decoded is what the cache holds when all is.
TEST_F(ImageFolderTest, TellsWhatACacheOfAllSamplesTakes) {
  PutImages(4);
  data_.mutable_cache()->set_kind(v1::CacheSpec::MEMORY);
  const auto cache = *SampleCache::Create(data_.cache(), "");
  const auto train = Open(false, cache), eval = Open(true, cache);
  for (const Dataset* dataset : {train.get(), eval.get()}) {
    std::vector<float> out(static_cast<size_t>(dataset->info().input_elements()));
    for (int64_t i = 0; i < dataset->size(); ++i)
      ASSERT_TRUE(dataset->ReadSample(i, nullptr, absl::MakeSpan(out)).ok());
  }
  const DatasetInfo of_train = *DescribeDataset(data_, roots_, false), of_eval = *DescribeDataset(data_, roots_, true);
  EXPECT_EQ(of_train.cache_bytes, train->info().cache_bytes);
  EXPECT_EQ(HostBytes(data_, of_train, &of_eval), cache->bytes());
  data_.mutable_cache()->set_max_bytes(500);
  EXPECT_EQ(HostBytes(data_, of_train, &of_eval), 500);
  // Of whole images only the bound is known.
  data_.mutable_image()->mutable_random_resized_crop();
  data_.mutable_cache()->set_max_bytes(1 << 30);
  EXPECT_EQ(HostBytes(data_, *DescribeDataset(data_, roots_, false), &of_eval), 1 << 30);
  for (const auto kind : {v1::CacheSpec::NONE, v1::CacheSpec::DISK}) {
    data_.mutable_cache()->set_kind(kind);
    EXPECT_EQ(HostBytes(data_, of_train, &of_eval), 0);
  }
}

TEST(SampleCacheTest, KeepsWhatFits) {
  for (const auto kind : {v1::CacheSpec::MEMORY, v1::CacheSpec::DISK}) {
    v1::CacheSpec spec;
    spec.set_kind(kind);
    spec.set_max_bytes(1000);
    const auto cache = *SampleCache::Create(spec, std::filesystem::temp_directory_path().string());
    EXPECT_EQ(cache->AddPlaces(3), 0);
    EXPECT_EQ(cache->AddPlaces(7), 3);
    const auto filled = [](uint8_t value, int64_t bytes) {
      return Image{1, bytes, 1, std::vector<uint8_t>(static_cast<size_t>(bytes), value)};
    };
    cache->Put(2, filled(7, 300));
    cache->Put(5, filled(8, 700));
    cache->Put(6, filled(9, 400));
    cache->Put(2, filled(10, 20));
    ASSERT_NE(cache->Get(2), nullptr);
    EXPECT_EQ(cache->Get(2)->pixels, std::vector<uint8_t>(300, 7));
    EXPECT_EQ(cache->Get(5), nullptr);
    EXPECT_EQ(cache->Get(6)->pixels, std::vector<uint8_t>(400, 9));
    EXPECT_EQ(cache->Get(0), nullptr);
    EXPECT_EQ(cache->bytes(), 300 + 400 + 2 * 64);
    for (int64_t i : {0, 1, 3, 4, 5, 7, 8, 9}) cache->Put(i, filled(1, 60));
    EXPECT_LE(cache->bytes(), 1000);
    EXPECT_GT(cache->bytes(), 900);
  }
}

TEST(SampleCacheTest, NoneIsNoCacheAndAFolderThatCannotBeIsAnError) {
  v1::CacheSpec spec;
  spec.set_kind(v1::CacheSpec::NONE);
  EXPECT_EQ(*SampleCache::Create(spec, ""), nullptr);
  spec.set_kind(v1::CacheSpec::DISK);
  EXPECT_EQ(SampleCache::Create(spec, "/proc/none").status().code(), absl::StatusCode::kUnavailable);
  spec.set_max_bytes(-1);
  EXPECT_EQ(SampleCache::Create(spec, "/tmp").status().code(), absl::StatusCode::kInvalidArgument);
}

class SampleCacheMemoryTest : public DataFolder {};

TEST_F(SampleCacheMemoryTest, WithoutABoundTheControlGroupCounts) {
  for (const char* folder : {"/proc/self", "/sys/fs/cgroup"}) std::filesystem::create_directories(root_ + folder);
  Write("proc/meminfo", "MemAvailable:   1000000 kB\n");
  Write("proc/self/cgroup", "0::/\n");
  v1::CacheSpec spec;
  spec.set_kind(v1::CacheSpec::MEMORY);
  EXPECT_EQ((*SampleCache::Create(spec, "", root_))->max_bytes(), 512000000);
  Write("sys/fs/cgroup/memory.max", "50000000\n");
  Write("sys/fs/cgroup/memory.current", "10000000\n");
  EXPECT_EQ((*SampleCache::Create(spec, "", root_))->max_bytes(), 20000000);
  v1::DataSpec data;
  *data.mutable_cache() = spec;
  DatasetInfo info;
  info.cache_bytes = 30000000;
  EXPECT_EQ(HostBytes(data, info, nullptr, root_), 20000000);
}

// Datasets in memory are resized too: as the same images in a folder are.
TEST_F(ImageFolderTest, ImagesInMemoryAreResizedAlike) {
  const Image image = SmoothImage(9, 12, 3);
  Put("a/0", PngFileBytes(image));
  Write("x.npy", NpyFileBytes("{'descr': '|u1', 'fortran_order': False, 'shape': (1, 9, 12, 3), }\n",
                              std::string(image.pixels.begin(), image.pixels.end())));
  Write("y.npy", NpyFileBytes("{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }\n", std::string(1, '\0')));
  v1::DataSpec npy = data_;
  npy.mutable_train()->mutable_npy()->set_inputs("x.npy");
  npy.mutable_train()->mutable_npy()->set_targets("y.npy");
  for (const bool crop : {false, true}) {
    if (crop) {
      data_.mutable_image()->mutable_random_resized_crop();
      *npy.mutable_image() = data_.image();
    }
    const auto folder = Open(), memory = *OpenDataset(npy, roots_, false);
    const Draw draw = {3, 4, 5};
    std::vector<float> a(8 * 8 * 3), b(8 * 8 * 3);
    ASSERT_TRUE(folder->ReadSample(0, &draw, absl::MakeSpan(a)).ok());
    ASSERT_TRUE(memory->ReadSample(0, &draw, absl::MakeSpan(b)).ok());
    EXPECT_EQ(a, b);
  }
  EXPECT_EQ(DescribeDataset(npy, roots_, false)->input_shape, (Shape{8, 8, 3}));
  npy.mutable_image()->set_channels(1);
  EXPECT_EQ(DescribeDataset(npy, roots_, false).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ImageFolderTest, ImagesWithTheirChannelsFirstAreNotResized) {
  v1::DataSpec npy = data_;
  npy.mutable_train()->mutable_npy()->set_inputs("x.npy");
  npy.mutable_train()->mutable_npy()->set_targets("y.npy");
  Write("y.npy", NpyFileBytes("{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }\n", std::string(1, '\0')));
  const auto refusal = [&](const std::string& shape, int64_t bytes) {
    Write("x.npy", NpyFileBytes("{'descr': '|u1', 'fortran_order': False, 'shape': " + shape + ", }\n",
                                std::string(static_cast<size_t>(bytes), '\1')));
    return std::string(DescribeDataset(npy, roots_, false).status().message());
  };
  for (const int channels : {1, 3, 4}) {
    EXPECT_THAT(refusal("(1, " + std::to_string(channels) + ", 6, 6)", channels * 36),
                AllOf(HasSubstr("looks like [channels, height, width]"), HasSubstr("x.transpose(0, 2, 3, 1)"),
                      HasSubstr("data.image.size")));
  }
  EXPECT_EQ(refusal("(1, 6, 5, 3)", 90), "");
  EXPECT_EQ(refusal("(1, 3, 4, 9)", 108), "") << "three rows of four pixels with nine channels";
  EXPECT_EQ(refusal("(1, 2, 6, 5)", 60), "");
  EXPECT_EQ(refusal("(1, 1, 6, 5)", 30), "") << "six values of five sensors";
  EXPECT_EQ(refusal("(1, 3, 6)", 18), "") << "a grayscale image of three rows";
}

// A label a pixel and boxes do not move with the image.
TEST_F(ImageFolderTest, TargetsInSpaceForbidToMoveImages) {
  Write("x.npy", NpyFileBytes("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3, 2), }\n", "abcdefghijkl"));
  Write("pixels.npy", NpyFileBytes("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3, 2), }\n",
                                   std::string("\0\1\2\3\4\5\6\7\0\1\2\3", 12)));
  Write("boxes.npy", NpyFloats("(2, 2, 5)", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}));
  Write("wide.npy", NpyFileBytes("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2, 3), }\n", "abcdefghijkl"));
  v1::DataSpec data;
  data.mutable_train()->mutable_npy()->set_inputs("x.npy");
  data.mutable_train()->mutable_npy()->set_targets("pixels.npy");
  const auto pixels = *OpenDataset(data, roots_, false);
  EXPECT_EQ(pixels->info().label_count, 6);
  EXPECT_EQ(pixels->info().classes, 8);
  std::vector<int32_t> labels(6);
  pixels->ReadLabels(1, absl::MakeSpan(labels));
  EXPECT_THAT(labels, ElementsAre(6, 7, 0, 1, 2, 3));
  data.mutable_train()->mutable_npy()->set_targets("boxes.npy");
  const auto boxes = *OpenDataset(data, roots_, false);
  EXPECT_EQ(boxes->info().target_features, 10);
  std::vector<float> target(10);
  boxes->ReadTarget(1, absl::MakeSpan(target));
  EXPECT_THAT(target, ElementsAre(10, 11, 12, 13, 14, 15, 16, 17, 18, 19));
  for (const Dataset* dataset : {pixels.get(), boxes.get()}) {
    v1::ImageTransform spec;
    spec.set_random_flip(true);
    EXPECT_EQ(CheckTransform(spec, dataset->info()).code(), absl::StatusCode::kInvalidArgument);
    spec.set_random_flip(false);
    EXPECT_TRUE(CheckTransform(spec, dataset->info()).ok());
    spec.set_random_crop_padding(1);
    EXPECT_EQ(CheckTransform(spec, dataset->info()).code(), absl::StatusCode::kInvalidArgument);
  }
  data.mutable_image()->set_size(2);
  EXPECT_EQ(OpenDataset(data, roots_, false).status().code(), absl::StatusCode::kInvalidArgument);
  data.mutable_image()->clear_size();
  data.mutable_train()->mutable_npy()->set_targets("wide.npy");
  EXPECT_THAT(std::string(OpenDataset(data, roots_, false).status().message()),
              AllOf(HasSubstr("wide.npy"), HasSubstr("a label a pixel")));
}

}  // namespace
}  // namespace ampd::data
