// Whether an evaluation set is of the same kind as the training set.
#include "engine/train/training_data.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include "engine/train/data_checks.h"
#include "engine/train/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kMlp = "model { layers { dense { units: 3 } } loss { softmax_cross_entropy {} } } ";

std::string Refused(const ResolvedJobSpec& spec, const data::DatasetInfo& train, const data::DatasetInfo& eval) {
  return std::string(SampleInfoOf(spec.proto(), train, &eval).status().message());
}

TEST(TrainingData, ColumnsOfOtherNamesAreNotTakenForTheSame) {
  data::DatasetInfo train;
  train.name = "train.csv";
  train.input_shape = {2};
  train.classes = 3;
  data::DatasetInfo eval = train;
  eval.name = "eval.csv";
  train.input_names = {"a", "b"};
  eval.input_names = {"b", "a"};
  const std::string sets =
      "data { train { csv { path: 't' label: 'y' INPUTS } } eval { csv { path: 'e' label: 'y' } } }";
  const auto spec = [&](const std::string& inputs) {
    std::string data = sets;
    data.replace(data.find("INPUTS"), 6, inputs);
    return Spec({kMlp, data});
  };
  EXPECT_THAT(Refused(spec(""), train, eval), HasSubstr("input 0 is column 'b' of eval.csv, but 'a' of train.csv"));
  EXPECT_THAT(Refused(spec("inputs: ['a', 'b']"), train, eval), HasSubstr("input 0 is column 'b'"));
  // Who names both says which are which.
  EXPECT_EQ(Refused(Spec({kMlp,
                          "data { train { csv { path: 't' label: 'y' inputs: ['a', 'b'] } }"
                          "       eval { csv { path: 'e' label: 'y' inputs: ['b', 'a'] } } }"}),
                    train, eval),
            "");
  // Who gives places does not.
  const ResolvedJobSpec places = Spec({kMlp,
                                       "data { train { csv { path: 't' label: 'y' inputs: ['0', '1'] } }"
                                       "       eval { csv { path: 'e' label: 'y' inputs: ['0', '1'] } } }"});
  EXPECT_THAT(Refused(places, train, eval), HasSubstr("input 0 is column 'b'"));
  eval.input_names = train.input_names;
  EXPECT_EQ(Refused(places, train, eval), "");
  EXPECT_EQ(Refused(spec(""), train, eval), "");
  // A file without names has the columns that it has.
  eval.input_names.clear();
  EXPECT_EQ(Refused(spec(""), train, eval), "");
}

// Here too names that the job gives say which column is which, and places do not.
TEST(TrainingData, TargetsOfOtherNamesAreNotTakenForTheSame) {
  data::DatasetInfo train;
  train.name = "train.csv";
  train.input_shape = {1};
  train.input_names = {"x"};
  train.target_kind = data::TargetKind::kFloat;
  train.target_features = 2;
  data::DatasetInfo eval = train;
  eval.name = "eval.csv";
  train.target_names = {"price", "area"};
  eval.target_names = {"area", "price"};
  const auto spec = [&](const std::string& of_train, const std::string& of_eval) {
    return Spec({"model { layers { dense { units: 2 } } loss { mean_squared_error {} } } ",
                 "data { train { csv { path: 't' " + of_train + " } } eval { csv { path: 'e' " + of_eval + " } } }"});
  };
  const std::string places = "targets: ['0', '1']";
  EXPECT_THAT(Refused(spec(places, places), train, eval),
              HasSubstr("data.eval: target 0 is column 'area' of eval.csv, but 'price' of train.csv; csv.targets of "
                        "both may name them in one order"));
  EXPECT_EQ(Refused(spec("targets: ['price', 'area']", "targets: ['area', 'price']"), train, eval), "");
  EXPECT_EQ(Refused(spec(places, places), train, train), "");
  // Of classes.
  train.target_kind = eval.target_kind = data::TargetKind::kClass;
  train.classes = eval.classes = 3;
  train.target_names = {"kind"};
  eval.target_names = {"size"};
  EXPECT_THAT(
      Refused(spec("label: '0'", "label: '0'"), train, eval),
      HasSubstr("the label is column 'size' of eval.csv, but 'kind' of train.csv; csv.label of both may name it"));
  EXPECT_EQ(Refused(spec("label: 'kind'", "label: 'size'"), train, eval), "");
  eval.target_names.clear();
  EXPECT_EQ(Refused(spec("label: '0'", "label: '0'"), train, eval), "");
}

TEST(TrainingData, SoundsOfBothSetsAreOfOneRate) {
  data::DatasetInfo train;
  train.name = "train";
  train.input_shape = {20, 8};
  train.classes = 5;
  train.label_count = 4;
  train.lengths = {20, 7};
  train.label_lengths = {4, 1};
  train.sample_rate = 16000;
  data::DatasetInfo eval = train;
  eval.name = "eval";
  const ResolvedJobSpec spec = Spec({"model { layers { lstm { units: 5 } } loss { ctc {} } }", kGlyphs});
  EXPECT_EQ(Refused(spec, train, eval), "");
  eval.sample_rate = 8000;
  EXPECT_THAT(Refused(spec, train, eval), HasSubstr("the sounds of eval are of 8000 Hz, those of train of 16000"));
  // Stored spectrograms do not tell.
  eval.sample_rate = 0;
  EXPECT_EQ(Refused(spec, train, eval), "");
}

TEST(TrainingData, TellsTheNetworkHowNumbersWereChanged) {
  data::DatasetInfo bytes;
  bytes.input_shape = {6};
  bytes.classes = 3;
  bytes.byte_inputs = true;
  const auto normalized = [&](const std::string& image) {
    return SampleInfoOf(Spec({kMlp, kGlyphs, "data { image { " + image + " } }"}).proto(), bytes, nullptr)->normalized;
  };
  EXPECT_EQ(normalized(""), "UNIT");
  EXPECT_EQ(normalized("normalize: STANDARD"), "STANDARD");
  EXPECT_EQ(normalized("normalize: NONE"), "");
  bytes.byte_inputs = false;
  EXPECT_EQ(normalized(""), "");
}

TEST(TrainingData, DamagedFilesOfAnyNameAreTold) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path() + "/set/a");
  std::ofstream(folder.path() + "/set/a/caf\xe9.png") << "no image";
  std::ofstream(folder.path() + "/set/a/other.png") << "no image";
  const auto spec =
      Spec({"model { layers { flatten {} } layers { dense { units: 2 } } loss { softmax_cross_entropy {} } }"
            "data { train { image_folder { path: 'set' } } image { size: 8 } max_corrupt_ratio: 0.5 }"
            "train { batch_size: 1 }"});
  const auto data = TrainingData::Open(spec, {folder.path()}, folder.path(), 1);
  ASSERT_TRUE(data.ok()) << data.status();
  const absl::Status damage = absl::DataLossError("set/a/caf\xe9.png: begins with '\xe9'");
  ASSERT_TRUE((*data)->train().NoteDamage(0, damage).ok());
  const std::vector<v1::CorruptSample> corrupt = (*data)->TakeCorrupt();
  ASSERT_EQ(corrupt.size(), 1u);
  v1::CorruptSample parsed;
  ASSERT_TRUE(parsed.ParseFromString(corrupt[0].SerializeAsString()));
  EXPECT_EQ(parsed.file(), "set/a/caf\xef\xbf\xbd.png");
  EXPECT_EQ(parsed.reason(), "begins with '\xef\xbf\xbd'");
}

// A job on arrays "<name>_x.npy", [n, features] or images, with class labels.
class StoredArrays : public testing::Test {
 protected:
  void Write(const std::string& name, const Shape& sample, std::vector<float> values) const {
    Shape shape = sample;
    const int64_t n = static_cast<int64_t>(values.size()) / NumElements(sample);
    shape.insert(shape.begin(), n);
    WriteNpy<float>(absl::StrCat(folder_.path(), "/", name, "_x.npy"), "<f4", shape, values);
    WriteNpy<int32_t>(absl::StrCat(folder_.path(), "/", name, "_y.npy"), "<i4", {n},
                      std::vector<int32_t>(static_cast<size_t>(n), 0));
  }
  static std::string Set(const std::string& name) {
    return absl::StrCat("npy { inputs: '", name, "_x.npy' targets: '", name, "_y.npy' }");
  }
  v1::Failure Opened(const std::string& model, const std::string& sets = "") const {
    const auto spec = Spec({"model { " + model + " loss { softmax_cross_entropy {} } } train { batch_size: 1 }",
                            "data { train { " + Set("train") + " } " + sets + " }"});
    const auto data = TrainingData::Open(spec, {folder_.path()}, folder_.path(), 1);
    return data.ok() ? v1::Failure() : FailureOf(data.status());
  }
  std::string PlanErrors(const std::string& model, const std::string& image = "") const {
    const auto plan = PlanJob(Spec({"model { " + model + " loss { softmax_cross_entropy {} } } train { batch_size: 1 }",
                                    "data { train { " + Set("train") + " } image { " + image + " } }"}),
                              {folder_.path()});
    std::string errors = plan.data_error();
    for (const v1::FieldError& error : plan.errors())
      absl::StrAppend(&errors, error.field(), ": ", error.description(), "\n");
    return errors;
  }

  ScratchFolder folder_;
};

TEST_F(StoredArrays, NumbersThatAreNoneEndAJobBeforeItBegins) {
  const std::string model = "layers { dense { units: 2 } }";
  Write("train", {2}, {1, 2, 3, 4});
  Write("eval", {2}, {1, 2, 3, 4, 5, NAN});
  EXPECT_EQ(Opened(model).message(), "");
  const v1::Failure failure = Opened(model, "eval { " + Set("eval") + " }");
  EXPECT_EQ(failure.class_(), v1::Failure::DATA);
  EXPECT_EQ(failure.message(), "data.eval: eval_x.npy: sample 2 holds a NaN");
  EXPECT_EQ(Opened(model, "eval { limit: 2 " + Set("eval") + " }").message(), "") << "it is not used";
  Write("train", {2}, {1, 2, HUGE_VALF, 4});
  EXPECT_EQ(Opened(model).message(), "data.train: train_x.npy: sample 1 holds an infinity");
}

TEST_F(StoredArrays, IdsThatATableHasNotEndAJobBeforeItBegins) {
  const std::string head = "layers { lstm { units: 2 output: LAST_STEP } }";
  const auto table = [&](int64_t rows) {
    return absl::StrCat("layers { name: 'table' embedding { vocabulary: ", rows, " features: 2 } } ", head);
  };
  Write("train", {3}, {0, 1, 2, 3, 6, 5});
  EXPECT_EQ(Opened(table(7)).message(), "");
  const v1::Failure failure = Opened(table(6));
  EXPECT_EQ(failure.class_(), v1::Failure::DATA);
  EXPECT_EQ(failure.message(), "data.train: train_x.npy: sample 1 holds 6, but node table has ids 0 to 5 (vocabulary)");
  Write("train", {3}, {0, 1, -1, 3, 6, 5});
  EXPECT_THAT(Opened(table(7)).message(), HasSubstr("sample 0 holds -1"));
  // Behind a slice, which need not give the embedding all of them.
  EXPECT_EQ(Opened("layers { name: 's' slice { axis: 1 begin: 1 end: 2 } } " + table(2)).message(), "");
  // Steps past a sample's length are padding.
  WriteNpy<int32_t>(folder_.path() + "/lengths.npy", "<i4", {2}, {2, 3});
  const auto spec =
      Spec({"model { " + table(7) + " loss { softmax_cross_entropy {} } } train { batch_size: 1 }",
            "data { train { npy { inputs: 'train_x.npy' targets: 'train_y.npy' lengths: 'lengths.npy' } } }"});
  const auto data = TrainingData::Open(spec, {folder_.path()}, folder_.path(), 1);
  EXPECT_TRUE(data.ok()) << data.status();
}

TEST_F(StoredArrays, ImagesWithTheirChannelsFirstAreNotTakenForOthers) {
  const auto conv = [](const std::string& kernel) {
    return "layers { name: 'conv' conv2d { filters: 2 padding: SAME kernel: " + kernel +
           " } } layers { global_avg_pool {} } layers { dense { units: 2 } }";
  };
  const std::string dense = "layers { flatten {} } layers { dense { units: 2 } }";
  for (const int64_t channels : {1, 3, 4}) {
    Write("train", {channels, 6, 6}, std::vector<float>(static_cast<size_t>(channels) * 36, 0.5f));
    const std::string errors = PlanErrors(conv("3"));
    EXPECT_THAT(errors, AllOf(HasSubstr("data.train: samples of train_x.npy are [" + absl::StrCat(channels) + ","),
                              HasSubstr("node conv takes them for images"), HasSubstr("x.transpose(0, 2, 3, 1)")));
    EXPECT_THAT(PlanErrors("layers { batch_norm {} } layers { relu {} } " + conv("3")), HasSubstr("node conv"));
    EXPECT_THAT(PlanErrors(dense, "random_flip: true"), HasSubstr("data.image.random_flip takes them for images"));
    // Nothing here says that they are images; a window of one row.
    EXPECT_EQ(PlanErrors(dense), "");
    EXPECT_EQ(PlanErrors(conv("1 kernel: 3")), "");
  }
  for (const Shape& shape :
       {Shape{6, 5, 3}, Shape{3, 4, 9}, Shape{3, 9, 4}, Shape{2, 6, 5}, Shape{1, 6, 5}, Shape{4, 6, 5}, Shape{6, 5}}) {
    Write("train", shape, std::vector<float>(static_cast<size_t>(NumElements(shape)), 0.5f));
    EXPECT_EQ(PlanErrors(conv("3")), "") << ShapeString(shape);
  }
}

TEST_F(StoredArrays, NetworksOfPhasesAreLookedAtToo) {
  Write("train", {3, 6, 5}, std::vector<float>(90, 0.5f));
  const auto spec =
      Spec({"model { networks { name: 'trunk' inputs: ['noise', 'image'] "
            "          layers { name: 'conv' inputs: 'image' conv2d { filters: 2 kernel: 3 } } layers { flatten {} } "
            "          layers { dense { units: 1 } } } noise { name: 'z' shape: 2 } } "
            "phases { name: 'p' calls { network: 'trunk' inputs: ['z', 'data'] } "
            "         losses { input: 'trunk' loss { sigmoid_cross_entropy {} } target: 1 } trains: 'trunk' } "
            "train { batch_size: 1 steps: 1 }",
            "data { train { " + Set("train") + " } }"});
  const auto plan = PlanJob(spec, {folder_.path()});
  ASSERT_FALSE(plan.errors().empty());
  EXPECT_THAT(plan.errors(0).description(), HasSubstr("node conv takes them for images"));
}

TEST(TrainingData, AnEmbeddingHasARowForEachIdOfATextOrOfTokens) {
  data::DatasetInfo train;
  train.name = "file";
  train.input_shape = {8};
  train.classes = 256;
  train.label_count = 8;
  const auto refused = [&](const std::string& source, int64_t vocabulary, const std::string& before = "") {
    const auto spec =
        Spec({absl::StrCat("model { ", before, " layers { name: 'wte' embedding { vocabulary: ", vocabulary,
                           " features: 4 } } layers { dense { units: 300 } } "
                           "loss { softmax_cross_entropy {} } } data { train { ",
                           source, " } }")});
    const absl::Status status = CheckVocabularies(spec.proto(), train, nullptr);
    const std::vector<FieldViolation> violations = FieldViolationsOf(status);
    return violations.empty() ? std::string(status.message())
                              : absl::StrCat(violations[0].field, ": ", violations[0].description);
  };
  const std::string text = "text { path: 'file' sequence_length: 8 }";
  EXPECT_EQ(refused(text, 256), "");
  EXPECT_EQ(refused(text, 255),
            "model.layers[0].embedding.vocabulary: is 255, but ids of file are 0 to 255, bytes, node wte");
  EXPECT_EQ(refused(text, 255, "layers { slice { axis: 1 begin: 4 } }"), "") << "it does not read the batch itself";
  train.classes = 300;
  const std::string tokens = "tokens { path: 'file' sequence_length: 8 vocabulary: 300 }";
  EXPECT_EQ(refused(tokens, 300), "");
  EXPECT_THAT(refused(tokens, 299), HasSubstr("is 299, but ids of file are 0 to 299, the tokens' vocabulary"));
  // Labels of other sources are no ids.
  EXPECT_EQ(refused("npy { inputs: 'x.npy' targets: 'y.npy' }", 10), "");
}

}  // namespace
}  // namespace ampd::train
