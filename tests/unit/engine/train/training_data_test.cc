// Whether an evaluation set is of the same kind as the training set.
#include "engine/train/training_data.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

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

}  // namespace
}  // namespace ampd::train
