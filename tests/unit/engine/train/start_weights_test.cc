// Weights from elsewhere: where they land, what is refused, and what a job makes of them.
#include "engine/train/start_weights.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/core/half.h"
#include "engine/train/disk_layout.h"
#include "engine/train/failure.h"
#include "engine/train/planned_model.h"
#include "engine/train/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A filter, a norm with statistics, and a matrix behind a flatten: every layout that differs on disk.
const std::string kNet =
    "model { layers { name: 'conv' conv2d { filters: 4 kernel: 3 } } layers { name: 'norm' batch_norm {} }"
    "        layers { name: 'flat' flatten {} } layers { name: 'head' dense { units: 3 } }"
    "        loss { softmax_cross_entropy {} } }"
    "data { train { glyphs {} } } train { batch_size: 4 }";
constexpr int64_t kSide = 5;
constexpr int64_t kChannels = 2;

// A tensor of a file that somebody else wrote.
struct Stored {
  std::string code;
  Shape shape;
  std::string bytes;
};
using Files = std::map<std::string, Stored>;

template <typename T>
void Append(T value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

Stored Values(const std::string& code, const Shape& shape, const std::vector<double>& values) {
  Stored stored{code, shape, ""};
  for (const double v : values) {
    if (code == "F64") Append(v, &stored.bytes);
    if (code == "F32") Append(static_cast<float>(v), &stored.bytes);
    if (code == "F16") Append(ToHalf(static_cast<float>(v)).bits, &stored.bytes);
    if (code == "BF16") Append(ToBFloat16(static_cast<float>(v)).bits, &stored.bytes);
    if (code == "I64") Append(static_cast<int64_t>(v), &stored.bytes);
    if (code == "I32") Append(static_cast<int32_t>(v), &stored.bytes);
  }
  return stored;
}

std::string Encode(const Files& files) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}", data;
  for (const auto& [name, stored] : files) {
    absl::StrAppend(&header, ",\"", name, "\":{\"dtype\":\"", stored.code, "\",\"shape\":[",
                    absl::StrJoin(stored.shape, ","), "],\"data_offsets\":[", data.size(), ",",
                    data.size() + stored.bytes.size(), "]}");
    data += stored.bytes;
  }
  header += "}";
  std::string file;
  Append(static_cast<uint64_t>(header.size()), &file);
  return file + header + data;
}

void Write(const std::string& path, const std::string& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

// Exact in every dtype.
double ValueAt(int64_t i) { return static_cast<double>(i % 91) * 0.5 - 20; }

class StartWeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    plan_ =
        PlanModel(Spec({kNet}), {.input_shape = {kSide, kSide, kChannels}, .classes = 3}, MakeCpuBackend(1), 1).value();
    model_ = LoadedModel::Create(*plan_).value();
    ASSERT_TRUE(model_->memory.Initialize(7).ok());
  }

  // Everything that the model has, in `code`, PyTorch's way.
  Files Whole(const std::string& code) {
    Files files;
    const auto add = [&](const ir::Persistent& tensor) {
      std::vector<double> values;
      const Shape shape = DiskShape(tensor);
      for (int64_t i = 0; i < NumElements(shape); ++i) values.push_back(ValueAt(i));
      files[tensor.name] = tensor.type.dtype == DType::kI64 ? Values("I64", shape, {5}) : Values(code, shape, values);
    };
    for (const ir::Persistent& parameter : plan_->layout.parameters()) add(parameter);
    for (const ir::Persistent& state : plan_->layout.states()) add(state);
    return files;
  }

  absl::StatusOr<std::vector<std::string>> Start(const std::string& bytes, bool allow_missing = false) {
    Write(folder_.path() + "/w.safetensors", bytes);
    v1::WeightSource source;
    source.set_path("w.safetensors");
    source.set_allow_missing(allow_missing);
    auto weights = StartWeights::Open(source, {{folder_.path()}, "", ""});
    if (!weights.ok()) return weights.status();
    auto notes = weights->Check(plan_->layout);
    if (!notes.ok()) return notes;
    const absl::Status loaded = weights->Load(&model_->memory);
    if (!loaded.ok()) return loaded;
    return notes;
  }
  absl::StatusOr<std::vector<std::string>> Start(const Files& files, bool allow_missing = false) {
    return Start(Encode(files), allow_missing);
  }
  // What is wrong, with the field first.
  std::string Refusal(const Files& files, bool allow_missing = false) {
    const auto result = Start(files, allow_missing);
    EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
    EXPECT_EQ(FailureOf(result.status()).class_(), v1::Failure::INVALID_SPEC);
    return std::string(result.status().message());
  }

  const float* Parameter(const std::string& name) {
    for (size_t i = 0; i < plan_->layout.parameters().size(); ++i) {
      if (plan_->layout.parameters()[i].name == name) {
        return model_->memory.Master(static_cast<int32_t>(i)).as<float>();
      }
    }
    ADD_FAILURE() << name;
    return nullptr;
  }
  template <typename T>
  const T* State(const std::string& name) {
    for (size_t i = 0; i < plan_->layout.states().size(); ++i) {
      if (plan_->layout.states()[i].name == name) return model_->memory.State(static_cast<int32_t>(i)).as<T>();
    }
    ADD_FAILURE() << name;
    return nullptr;
  }

  const ScratchFolder folder_;
  std::unique_ptr<PlannedModel> plan_;
  std::unique_ptr<LoadedModel> model_;
};

TEST_F(StartWeightsTest, ValuesLandWhereTheLayersReadThem) {
  for (const char* code : {"F32", "F16", "BF16", "F64"}) {
    ASSERT_TRUE(model_->memory.Initialize(7).ok());
    const auto notes = Start(Whole(code));
    ASSERT_TRUE(notes.ok()) << code << ": " << notes.status();
    EXPECT_THAT(*notes, IsEmpty());
    // Filters: [k, r, s, c] in memory, [k, c, r, s] on disk.
    const float* filter = Parameter("conv.weight");
    for (int64_t k = 0; k < 4; ++k) {
      for (int64_t c = 0; c < kChannels; ++c) {
        for (int64_t p = 0; p < 9; ++p) {
          ASSERT_EQ(filter[(k * 9 + p) * kChannels + c], ValueAt((k * kChannels + c) * 9 + p)) << code;
        }
      }
    }
    // The matrix behind the flatten: features in order of pixels in memory, of channels on disk.
    const float* head = Parameter("head.weight");
    // Without padding three by three are left.
    const int64_t pixels = (kSide - 2) * (kSide - 2);
    for (int64_t unit = 0; unit < 3; ++unit) {
      for (int64_t pixel = 0; pixel < pixels; ++pixel) {
        for (int64_t k = 0; k < 4; ++k) {
          ASSERT_EQ(head[(unit * pixels + pixel) * 4 + k], ValueAt((unit * 4 + k) * pixels + pixel)) << code;
        }
      }
    }
    for (int64_t k = 0; k < 4; ++k) {
      EXPECT_EQ(Parameter("norm.weight")[k], ValueAt(k));
      EXPECT_EQ(State<float>("norm.running_mean")[k], ValueAt(k));
      EXPECT_EQ(State<float>("norm.running_var")[k], ValueAt(k));
    }
    EXPECT_EQ(*State<int64_t>("norm.num_batches_tracked"), 5);
  }
}

TEST_F(StartWeightsTest, DoublesAreRoundedToNearest) {
  Files files = Whole("F64");
  files["head.bias"] = Values("F64", {3}, {0.1, 1 + 0x1p-25, -1e-300});
  ASSERT_TRUE(Start(files).ok());
  EXPECT_EQ(Parameter("head.bias")[0], 0.1f);
  EXPECT_EQ(Parameter("head.bias")[1], 1.0f);
  EXPECT_EQ(Parameter("head.bias")[2], 0.0f);
}

TEST_F(StartWeightsTest, NamesAndShapesMustBeTheModels) {
  Files files = Whole("F32");
  files.erase("conv.bias");
  files.erase("norm.running_var");
  files["fc.weight"] = Values("F32", {2}, {1, 2});
  files["head.bias"] = Values("F32", {4}, {1, 2, 3, 4});
  const std::string why = Refusal(files);
  EXPECT_THAT(why,
              HasSubstr("start_from.path: w.safetensors does not fit the model: it lacks conv.bias, norm.running_var; "
                        "the model has no fc.weight; of another shape: head.bias is "));
  for (int i = 0; i < 9; ++i) files["x" + std::to_string(i)] = Values("F32", {1}, {1});
  EXPECT_THAT(Refusal(files), HasSubstr("the model has no fc.weight, x0, x1, x2, x3 and 5 more"));
  files = Whole("F32");
  const std::string hint = "; to draw these anew, give their layers other names and set start_from.allow_missing";
  EXPECT_THAT(why, testing::Not(HasSubstr(hint))) << "names differ too";
  files["head.bias"] = Values("F32", {4}, {1, 2, 3, 4});
  EXPECT_THAT(Refusal(files), testing::EndsWith(hint));
  EXPECT_THAT(Refusal(files, true), testing::EndsWith(hint));
  files = Whole("F32");
  files["head.bias"] = Values("I32", {3}, {1, 2, 3});
  EXPECT_THAT(Refusal(files), HasSubstr("of a dtype other than F32, F16, BF16 and F64: head.bias (I32)"));
}

TEST_F(StartWeightsTest, WhatIsMissingIsDrawnWhereThatIsAllowed) {
  const float drawn = Parameter("head.weight")[0];
  Files files = Whole("F32");
  files.erase("head.weight");
  files["other"] = Values("F32", {1}, {1});
  const auto notes = Start(files, true);
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_THAT(*notes, ElementsAre("start_from: w.safetensors: it lacks head.weight",
                                  "start_from: w.safetensors: the model has no other"));
  EXPECT_EQ(Parameter("head.weight")[0], drawn);
  EXPECT_EQ(Parameter("head.bias")[1], ValueAt(1));
  files["head.bias"] = Values("F32", {4}, {1, 2, 3, 4});
  EXPECT_THAT(Refusal(files, true), AllOf(HasSubstr("of another shape: head.bias"), testing::Not(HasSubstr("lacks"))));
  EXPECT_THAT(Refusal({{"other", Values("F32", {1}, {1})}}, true), HasSubstr("it lacks conv.weight"))
      << "nothing of the model's";
}

TEST_F(StartWeightsTest, CountsOfBatchesMayBeMissing) {
  Files files = Whole("F32");
  files.erase("norm.num_batches_tracked");
  EXPECT_TRUE(Start(files).ok());
  files["other.num_batches_tracked"] = Values("I64", {}, {5});
  EXPECT_TRUE(Start(files).ok());
}

TEST_F(StartWeightsTest, ValuesMustBeFinite) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(), 1e39}) {
    Files files = Whole("F32");
    files["head.bias"] = Values("F64", {3}, {0, bad, 0});
    EXPECT_THAT(Refusal(files), HasSubstr("'head.bias' is not finite in FP32: "));
    EXPECT_THAT(Refusal(files), HasSubstr("at element 1 of 3"));
  }
  for (const char* code : {"F16", "BF16", "F32"}) {
    Files files = Whole(code);
    files["norm.running_mean"] = Values(code, {4}, {0, 0, 0, -std::numeric_limits<double>::infinity()});
    EXPECT_THAT(Refusal(files), HasSubstr("'norm.running_mean' is not finite in FP32: -inf at element 3"));
  }
}

TEST_F(StartWeightsTest, ChecksumsOfUploadsAreHeld) {
  std::string bytes = Encode(Whole("F16"));
  const std::string sum = Sha256Hex(bytes);
  v1::WeightSource source;
  source.set_path("upload:" + sum);
  const StartSources sources{{}, folder_.path() + "/uploads", ""};
  EXPECT_TRUE(absl::IsNotFound(StartWeights::Open(source, sources).status()));
  Write(sources.upload_dir + "/" + sum, bytes);
  auto weights = StartWeights::Open(source, sources);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_TRUE(weights->Load(&model_->memory).ok());
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  Write(sources.upload_dir + "/" + sum, bytes);
  weights = StartWeights::Open(source, sources);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_TRUE(absl::IsDataLoss(weights->Load(&model_->memory)));
}

// Whatever a file holds, it is an error or taken; nothing is read outside it.
TEST_F(StartWeightsTest, MutatedFilesAreErrors) {
  const std::string whole = Encode(Whole("F32"));
  std::mt19937 random(3);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    std::string bytes = whole;
    if (i % 4 == 0) {
      bytes.resize(random() % bytes.size());
    } else {
      // In the header mostly.
      for (int n = 0; n < 3; ++n) bytes[random() % (i % 2 == 0 ? 700 : bytes.size())] = static_cast<char>(random());
    }
    refused += Start(bytes).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 200);
}

// Trainings.

const std::string kSgd = "optimizer { sgd { learning_rate: 0.05 momentum: 0.9 } } seed: 3 ";
const std::string kSteps = "train { batch_size: 32 steps: 6 } report { every_steps: 1 } ";
const std::string kStill =
    "optimizer { sgd { learning_rate: 0 } } train { batch_size: 32 steps: 1 } report { every_steps: 1 } ";

class StartedTraining : public testing::Test {
 protected:
  void SetUp() override {
    Recorder first;
    const auto outcome = Train(Spec({kConvNet, kGlyphs, kSgd, kSteps}), Options(first_.path()), &first);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    evaluation_ = first.evaluations().back();
    checkpoint_ = first_.path() + "/checkpoints/" + first.checkpoints().back().checkpoint();
  }
  static std::string FromJob() {
    return "start_from { job_id: '01hq3v7m0000000000000000aa' checkpoint: 'step-000000006' } ";
  }
  TrainerOptions StartOptions(const std::string& folder) {
    TrainerOptions options = Options(folder);
    options.start_checkpoint_dir = checkpoint_;
    return options;
  }

  const ScratchFolder first_, second_, third_;
  v1::Evaluation evaluation_;
  std::string checkpoint_;
};

// A batch norm's statistics would change with the first step: without one the evaluation says all.
const std::string kPlainNet =
    "model { layers { name: 'conv1' conv2d { filters: 6 kernel: 3 stride: 2 activation: RELU } }"
    "        layers { name: 'flat' flatten {} } layers { name: 'head' dense { units: 10 } }"
    "        loss { softmax_cross_entropy {} } }";

TEST(StartedPlainTraining, EvaluatesAsTheOneItStartedFrom) {
  for (const char* precision : {"precision { mode: FP32 }", "precision { mode: BF16 }"}) {
    const ScratchFolder first, second;
    Recorder a, b;
    ASSERT_TRUE(Train(Spec({kPlainNet, kGlyphs, kSgd, kSteps, precision}), Options(first.path()), &a).ok());
    TrainerOptions options = Options(second.path());
    options.start_checkpoint_dir = first.path() + "/checkpoints/" + a.checkpoints().back().checkpoint();
    // Its own seed draws other weights.
    const auto spec = Spec({kPlainNet, kGlyphs, kStill, precision, "seed: 99 optimizer { ema { evaluate: true } }",
                            "start_from { job_id: '01hq3v7m0000000000000000aa' checkpoint: 'step-000000006' }"});
    const auto outcome = Train(spec, options, &b);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(b.evaluations().back().loss(), a.evaluations().back().loss())
        << precision << ": the average begins there";
    EXPECT_EQ(b.evaluations().back().accuracy(), a.evaluations().back().accuracy());
    EXPECT_EQ(b.steps().front().first_step(), 1) << "steps begin anew";
  }
}

TEST_F(StartedTraining, AFileAndTheJobItIsOfAreTheSameStart) {
  Recorder from_job, from_file;
  const std::vector<std::string> job = {kConvNet, kGlyphs, kSgd, kSteps, "seed: 8"};
  std::vector<std::string> parts = job;
  parts.push_back(FromJob());
  ASSERT_TRUE(Train(Spec(parts), StartOptions(second_.path()), &from_job).ok());
  std::filesystem::copy_file(checkpoint_ + "/model.safetensors", third_.path() + "/w.safetensors");
  parts.back() = "start_from { path: 'w.safetensors' }";
  ASSERT_TRUE(Train(Spec(parts), Options(third_.path()), &from_file).ok());
  EXPECT_EQ(from_job.losses(), from_file.losses());
  Recorder drawn;
  const ScratchFolder fourth;
  ASSERT_TRUE(Train(Spec(job), Options(fourth.path()), &drawn).ok());
  EXPECT_NE(from_job.losses(), drawn.losses());
  ASSERT_FALSE(from_job.logs().empty());
  EXPECT_THAT(from_job.logs()[0].text(), HasSubstr("starts from checkpoint step-000000006 of job 01hq3v7m"));
}

TEST_F(StartedTraining, AResumedAttemptTakesItsOwnCheckpoint) {
  const auto spec = Spec({kConvNet, kGlyphs, kSgd, kSteps, FromJob()});
  Recorder whole, cut;
  ASSERT_TRUE(Train(spec, StartOptions(second_.path()), &whole).ok());
  ASSERT_EQ(Train(spec, StartOptions(third_.path()), &cut, 3).value(), Outcome::kStopped);
  // Not looked at any more.
  TrainerOptions options = StartOptions(third_.path());
  options.start_checkpoint_dir = third_.path() + "/gone";
  options.last_reported_step = 3;
  const auto outcome = Train(spec, options, &cut);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(cut.losses(), whole.losses());
}

TEST_F(StartedTraining, WithoutTheCheckpointItFailsAndSaysWhich) {
  TrainerOptions options = StartOptions(second_.path());
  options.start_checkpoint_dir = second_.path() + "/gone";
  Recorder recorder;
  const auto spec = Spec({kConvNet, kGlyphs, kSgd, kSteps, FromJob()});
  const auto outcome = Train(spec, options, &recorder);
  EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::DATA) << outcome.status();
  EXPECT_THAT(std::string(outcome.status().message()),
              HasSubstr("start_from: checkpoint step-000000006 of job 01hq3v7m0000000000000000aa: "));
  // Damaged where it lies.
  const std::string path = checkpoint_ + "/model.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end).put('x');
  file.close();
  const auto damaged = Train(spec, StartOptions(second_.path()), &recorder);
  EXPECT_THAT(std::string(damaged.status().message()), HasSubstr("is damaged: its bytes have the checksum "));
}

// The comparison measures what will be trained: a mode's first loss is that of the weights it starts from.
TEST_F(StartedTraining, AutoComparesFromTheSameWeights) {
  const auto spec = Spec({kConvNet, kGlyphs, kStill, FromJob(),
                          "train { steps: 12 } precision { mode: AUTO auto { modes: BF16 steps: 10 } }"});
  Recorder recorder;
  const auto outcome = Train(spec, StartOptions(second_.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const auto chosen = std::find_if(recorder.events.begin(), recorder.events.end(),
                                   [](const v1::JobEvent& event) { return event.has_mode_chosen(); });
  ASSERT_NE(chosen, recorder.events.end());
  // Nothing is learned: every loss is that of the first weights, the last five of ten in each mode.
  const double mean = recorder.MeanLoss(5, 5);
  for (const v1::BenchCell& cell : chosen->mode_chosen().cells()) {
    EXPECT_NEAR(cell.loss(), mean, 0.02 * mean) << cell.DebugString();
  }
  EXPECT_LT(mean, 2.0) << "drawn weights know nothing: log(10)";
}

TEST_F(StartedTraining, PlanningRefusesWhatDoesNotFit) {
  const auto fits = Spec({kConvNet, kGlyphs, FromJob()});
  EXPECT_EQ(PlanJob(fits, {}, "", nullptr, {}, checkpoint_).errors_size(), 0);
  const auto other = Spec({kPlainNet, kGlyphs, FromJob()});
  const v1::PlanResponse response = PlanJob(other, {}, "", nullptr, {}, checkpoint_);
  ASSERT_EQ(response.errors_size(), 1);
  EXPECT_EQ(response.errors(0).field(), "start_from.job_id");
  EXPECT_THAT(response.errors(0).description(), HasSubstr("the model has no bn1.bias"));
  const auto later = Spec({kConvNet, kGlyphs, "start_from { path: 'later.safetensors' }"});
  EXPECT_THAT(PlanJob(later, {first_.path()}).data_error(), HasSubstr("later.safetensors"));
}

}  // namespace
}  // namespace ampd::train
