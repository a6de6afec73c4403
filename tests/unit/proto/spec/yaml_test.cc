#include "proto/spec/yaml.h"

#include <cmath>
#include <random>
#include <string>

#include "ampd/v1/config.pb.h"
#include "ampd/v1/event.pb.h"
#include "ampd/v1/job.pb.h"
#include "ampd/v1/training_service.pb.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "proto/spec/text.h"

namespace ampd {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::HasSubstr;

constexpr char kJob[] = R"(# a comment
name: glyphs
seed: 7
model:
  layers:
    - {name: stem, conv2d: {filters: 32, kernel: [5, 5], stride: [2, 2], padding: SAME, activation: relu}}
    - name: bn1
      batch_norm: {}
    - {name: down, max_pool: {size: [2, 2]}}
    - {name: both, add: {}, inputs: [down, "bn1"]}
    - {name: head, dense: {units: 10, bias: false}}
  loss: {softmax_cross_entropy: {}}
data:
  train: {glyphs: {samples: 1e4}}
precision: {mode: fp16, loss_scale: {init: 1e30, growth_interval: "2000"}}
train: {epochs: 20, batch_size: 256}
labels: {team: vision, 7: "seven"}
)";

absl::Status ParseJob(absl::string_view text, v1::JobSpec* spec) { return ParseYaml(text, "job.yaml", spec); }

std::string ErrorOf(absl::string_view text) {
  v1::JobSpec spec;
  const absl::Status status = ParseJob(text, &spec);
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status));
  return std::string(status.message());
}

TEST(ParseYamlTest, ReadsAJob) {
  v1::JobSpec spec;
  ASSERT_EQ(ParseJob(kJob, &spec), absl::OkStatus());
  EXPECT_EQ(spec.name(), "glyphs");
  EXPECT_EQ(spec.seed(), 7);
  ASSERT_EQ(spec.model().layers_size(), 5);
  EXPECT_EQ(spec.model().layers(0).conv2d().kernel(1), 5);
  EXPECT_EQ(spec.model().layers(0).conv2d().activation(), v1::Activation::RELU);
  EXPECT_TRUE(spec.model().layers(1).has_batch_norm());
  EXPECT_EQ(spec.model().layers(3).inputs(1), "bn1");
  EXPECT_FALSE(spec.model().layers(4).dense().bias());
  EXPECT_TRUE(spec.model().loss().has_softmax_cross_entropy());
  EXPECT_EQ(spec.data().train().glyphs().samples(), 10000);
  EXPECT_EQ(spec.precision().mode(), v1::PrecisionSpec::FP16);
  EXPECT_EQ(spec.precision().loss_scale().init(), 1e30);
  EXPECT_EQ(spec.precision().loss_scale().growth_interval(), 2000);
  EXPECT_EQ(spec.labels().at("team"), "vision");
  EXPECT_EQ(spec.labels().at("7"), "seven");
}

TEST(ParseYamlTest, AgreesWithProtobufsOwnJsonParser) {
  v1::JobSpec yaml, json, again;
  ASSERT_EQ(ParseJob(kJob, &yaml), absl::OkStatus());
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(yaml, &text, options).ok());
  ASSERT_EQ(ParseJob(text, &json), absl::OkStatus()) << text;
  EXPECT_TRUE(MessageDifferencer::Equals(yaml, json));
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(ToJson(yaml, JsonStyle::kPretty), &again).ok());
  EXPECT_TRUE(MessageDifferencer::Equals(yaml, again));
}

TEST(ParseYamlTest, ANumberIsAListOfItWhereOneIsASquare) {
  v1::JobSpec numbers, lists;
  ASSERT_EQ(ParseJob("model:\n  layers:\n"
                     "    - conv2d: {kernel: 3, stride: 2, dilation: 1, pads: 0}\n"
                     "    - conv_transpose2d: {kernel: 4, stride: 2, pads: 1, output_padding: 0, dilation: 1}\n"
                     "    - max_pool: {size: 2, stride: \"2\", pads: 0, dilation: 1e0}\n",
                     &numbers),
            absl::OkStatus());
  ASSERT_EQ(
      ParseJob("model:\n  layers:\n"
               "    - conv2d: {kernel: [3], stride: [2], dilation: [1], pads: [0]}\n"
               "    - conv_transpose2d: {kernel: [4], stride: [2], pads: [1], output_padding: [0], dilation: [1]}\n"
               "    - max_pool: {size: [2], stride: [2], pads: [0], dilation: [1]}\n",
               &lists),
      absl::OkStatus());
  EXPECT_TRUE(MessageDifferencer::Equals(numbers, lists)) << numbers.DebugString();
}

TEST(ParseYamlTest, EmptyTextGivesAnEmptyMessage) {
  for (const char* text : {"", "\n\n", "# only a comment\n", "---\n", "{}"}) {
    v1::ServerConfig config;
    config.set_listen("before");
    EXPECT_EQ(ParseYaml(text, "c.yaml", &config), absl::OkStatus()) << text;
    EXPECT_EQ(config.ByteSizeLong(), 0);
  }
}

TEST(ParseYamlTest, RefusesWithFileLineAndPath) {
  const struct {
    const char* text;
    const char* error;
  } kCases[] = {
      {"name: a\n\ntrain:\n  batch_sise: 3\n", "job.yaml:4: train.batch_sise: no such field; did you mean batch_size?"},
      {"train: {batchSize: 3}", "job.yaml:1: train.batchSize: no such field; did you mean batch_size?"},
      {"batch_size: 3", "job.yaml:1: batch_size: no such field; did you mean train.batch_size?"},
      {"colour: red", "job.yaml:1: colour: no such field"},
      // What stands elsewhere in the whole.
      {"train: {learning_rate: 3}",
       "job.yaml:1: train.learning_rate: no such field; did you mean optimizer.<kind>.learning_rate?"},
      // What other programs call it.
      {"optimizer: {adamw: {lr: 3}}", "job.yaml:1: optimizer.adamw.lr: no such field; did you mean learning_rate?"},
      {"train: {lr: 3}", "job.yaml:1: train.lr: no such field; did you mean optimizer.<kind>.learning_rate?"},
      {"optimizer: {adamw: {wd: 3}}", "job.yaml:1: optimizer.adamw.wd: no such field; did you mean weight_decay?"},
      {"optimizer: {adamw: {weight-decay: 3}}",
       "job.yaml:1: optimizer.adamw.weight-decay: no such field; did you mean weight_decay?"},
      {"optimizer: {adamw: {betas: [0.9, 0.99]}}",
       "job.yaml:1: optimizer.adamw.betas: no such field; did you mean beta1 and beta2?"},
      {"precision: {mode: bfloat16}",
       "job.yaml:1: precision.mode: no such value 'bfloat16'; did you mean BF16? (one of FP32, TF32, FP16, BF16, FP8, "
       "AUTO)"},
      {"precision: {mode: half}",
       "job.yaml:1: precision.mode: no such value 'half'; did you mean FP16? (one of FP32, TF32, FP16, BF16, FP8, "
       "AUTO)"},
      {"optimizer: {epochs: 3}", "job.yaml:1: optimizer.epochs: no such field; did you mean train.epochs?"},
      {"name: a\ntrain:\n\tepochs: 3\n", "job.yaml:3: a tab; YAML indents with spaces"},
      {"train:\n  epochs: 3\n\tsteps: 3\n", "job.yaml:3: a tab; YAML indents with spaces"},
      {"model:\n  layers:\n  \t- dense: {units: 3}\n", "job.yaml:3: a tab; YAML indents with spaces"},
      {"model:\n  layers:\n    - dense: {units: 3}\n    - units: 4\n",
       "job.yaml:4: model.layers[1].units: no such field; did you mean dense.units?"},
      {"train: {batch_size: many}", "job.yaml:1: train.batch_size: expected an integer, got 'many'"},
      {"train: {batch_size: 1.5}", "job.yaml:1: train.batch_size: expected an integer, got the number 1.5"},
      {"train: {batch_size: [1]}", "job.yaml:1: train.batch_size: expected an integer, got a list"},
      {"train: {batch_size: true}", "job.yaml:1: train.batch_size: expected an integer, got true"},
      {"train: {batch_size: 010}",
       "job.yaml:1: train.batch_size: expected an integer, got the number 010; leading zeros are ambiguous"},
      {"train: {batch_size: 0x10}", "job.yaml:1: train.batch_size: expected an integer, got '0x10'"},
      {"train: {batch_size: ''}", "job.yaml:1: train.batch_size: expected an integer, got ''"},
      {"train: {batch_size: 9223372036854775808}",
       "job.yaml:1: train.batch_size: the number 9223372036854775808 is out of range, -9223372036854775808 to "
       "9223372036854775807"},
      {"resources: {gpus: 3000000000}",
       "job.yaml:1: resources.gpus: the number 3000000000 is out of range, -2147483648 to 2147483647"},
      {"seed: -1", "job.yaml:1: seed: the number -1 is out of range, 0 to 18446744073709551615"},
      {"seed: 1e300", "job.yaml:1: seed: the number 1e300 is out of range, 0 to 18446744073709551615"},
      {"report: {max_per_second: 1e999}", "job.yaml:1: report.max_per_second: the number 1e999 is out of range"},
      {"report: {max_per_second: fast}", "job.yaml:1: report.max_per_second: expected a number, got 'fast'"},
      {"data: {shuffle: yes}", "job.yaml:1: data.shuffle: expected true or false, got 'yes'"},
      {"data: {shuffle: \"true\"}", "job.yaml:1: data.shuffle: expected true or false, got 'true'"},
      {"data: {shuffle: 1}", "job.yaml:1: data.shuffle: expected true or false, got the number 1"},
      {"name: 5", "job.yaml:1: name: expected a string, got the number 5; write \"5\" in quotes"},
      {"name: true", "job.yaml:1: name: expected a string, got true; write \"true\" in quotes"},
      {"name: {a: 1}", "job.yaml:1: name: expected a string, got a map"},
      {"precision: {mode: FP17}",
       "job.yaml:1: precision.mode: no such value 'FP17'; did you mean FP16? (one of FP32, TF32, FP16, BF16, FP8, "
       "AUTO)"},
      {"precision: {mode: 99}",
       "job.yaml:1: precision.mode: no such value '99' (one of FP32, TF32, FP16, BF16, FP8, AUTO)"},
      {"precision: {mode: []}",
       "job.yaml:1: precision.mode: expected one of FP32, TF32, FP16, BF16, FP8, AUTO, got a list"},
      {"name: null", "job.yaml:1: name: null is no value; leave the field out for its default"},
      {"name: ~", "job.yaml:1: name: null is no value; leave the field out for its default"},
      {"train:\n", "job.yaml:1: train: null is no value; write {} for an empty one, or leave the field out"},
      {"train:\n\n\nseed: 1\n",
       "job.yaml:1: train: null is no value; write {} for an empty one, or leave the field out"},
      {"model:\n  layers:\n    - relu:\n",
       "job.yaml:3: model.layers[0].relu: null is no value; write {} for an empty one, or leave the field out"},
      {"model: {layers: [~]}", "job.yaml:1: model.layers[0]: null is no value"},
      {"labels: {a: null}", "job.yaml:1: labels.a: null is no value"},
      {"train: 5", "job.yaml:1: train: expected a map of fields, got the number 5"},
      {"train: [1]", "job.yaml:1: train: expected a map of fields, got a list"},
      {"labels: [a]", "job.yaml:1: labels: expected a map, got a list"},
      {"labels: {a: 5}", "job.yaml:1: labels.a: expected a string, got the number 5; write \"5\" in quotes"},
      {"phases: {name: main}", "job.yaml:1: phases: expected a list, got a map"},
      {"model: {layers: [{reshape: {shape: 5}}]}",
       "job.yaml:1: model.layers[0].reshape.shape: expected a list, got the number 5; write it in [ ]"},
      {"model:\n  layers:\n    - conv2d:\n        kernel: 2.5\n",
       "job.yaml:4: model.layers[0].conv2d.kernel: expected an integer, got the number 2.5"},
      {"model: {layers: [{conv2d: {stride: SAME}}]}",
       "job.yaml:1: model.layers[0].conv2d.stride: expected a number or a list of numbers, got 'SAME'"},
      {"model: {layers: [{max_pool: {size: {height: 2}}}]}",
       "job.yaml:1: model.layers[0].max_pool.size: expected a number or a list of numbers, got a map"},
      {"model: {layers: [{max_pool: {size: ~}}]}",
       "job.yaml:1: model.layers[0].max_pool.size: null is no value; leave the field out for its default"},
      {"seed: 1\nname: a\nseed: 2\n", "job.yaml:3: seed: duplicate key, first on line 1"},
      {"labels:\n  a: x\n  a: y\n", "job.yaml:3: labels.a: duplicate key, first on line 2"},
      {"model:\n  layers:\n    - relu: {}\n      flatten: {}\n",
       "job.yaml:4: model.layers[0].flatten: only one of its kind may be set, and relu is, on line 3"},
      {"[]", "job.yaml:1: expected a map of fields, got a list"},
      {"hello", "job.yaml:1: expected a map of fields, got 'hello'"},
      {"a: &x 1\nb: *x\n", "job.yaml:1: anchors are not supported"},
      {"name: !!str 5\n", "job.yaml:1: tags are not supported"},
      {"name: a\n---\nname: b\n", "job.yaml: holds more than one document"},
      {"? [a, b]\n: 1\n", "job.yaml:1: a key must be a name"},
      {"? {a: b}\n: 1\n", "job.yaml:1: a key must be a name"},
      {"~: 1\n", "job.yaml:1: a key must be a name"},
      {"name: a\n\xff\n", "job.yaml:2: not UTF-8 text"},
      {"name: \xed\xa0\x80\n", "job.yaml:1: not UTF-8 text"},
      {"name: \xc0\x80\n", "job.yaml:1: not UTF-8 text"},
      {"name: a\x1b\n", "job.yaml:1: control character 0x1b"},
      {"name: [a\n", "job.yaml:2: end of sequence flow not found"},
      {"\tname: a\n: b", nullptr},
  };
  for (const auto& c : kCases) {
    const std::string error = ErrorOf(c.text);
    if (c.error == nullptr) {
      EXPECT_NE(error, "") << c.text;
    } else {
      EXPECT_EQ(error, c.error) << c.text;
    }
  }
}

TEST(ParseYamlTest, RefusesAQuoteThatIsNotClosed) {
  constexpr char kError[] = ": a quote without its end";
  const struct {
    const char* text;
    int line;
  } kCases[] = {
      {"name: \"first try\ntrain: {epochs: 3}\nseed: 7\n", 1},
      {"name: \"first try\ntrain: {epochs: 3}\nseed: 7", 1},
      {"name: \"first try\nseed: 7\n  ", 1},
      {"seed: 7\nname: 'first try\n", 2},
      {"seed: 7\nname: 'first try", 2},
      {"seed: 7\n\nname: 'it''s\nlabels: {a: b}\n", 3},
      {"name: \"a\r\nseed: 7\r\n", 1},
      {"name: \"a\\\n", 1},
      {"seed: 7\nlabels:\n  a:\n\n    \"x\n\n\n", 5},
      {"seed: 7\n\"name: a\ntrain: {epochs: 3}\n", 2},
      {"labels: {a: 'x', b: \"y}\nseed: 7\n", 1},
      {"seed: 7\nphases:\n  - name: main\n  - name: \"b\n", 4},
      {"name: \"a\n# the end\n", 1},
      {"name: a\nseed: \"7\n...  \xc3\xa9\n", 2},
      {"\"", 1},
  };
  for (const auto& c : kCases) {
    const std::string error = ErrorOf(c.text);
    // A mark of a document's end within the quote is told as such, where it stands.
    if (absl::string_view(c.text).find("...") != absl::string_view::npos) {
      EXPECT_EQ(error, "job.yaml:3: illegal document indicator in scalar");
    } else {
      EXPECT_EQ(error, "job.yaml:" + std::to_string(c.line) + kError) << c.text;
    }
  }
  v1::ServerConfig config;
  EXPECT_EQ(ParseYaml("listen: \"127.0.0.1:0\ndata_roots: [/data]\n", "ampd.yaml", &config).message(),
            "ampd.yaml:1: a quote without its end");
}

TEST(ParseYamlTest, TheEndOfAFileChangesNoText) {
  const struct {
    const char* text;
    const char* name;
  } kCases[] = {
      {"name: \"a\"\n", "a"},
      {"name: \"a\"", "a"},
      {"name: 'it''s'\n...\n", "it's"},
      {"name: \"a\"\n...", "a"},
      {"name: \"a\"\n...\n...\n", "a"},
      {"---\nname: \"a\"\n# \"the end\n", "a"},
      {"name: \"a\" # it's\n", "a"},
      {"name: |\n  a\n", "a\n"},
      {"name: |\n  a", "a"},
      {"name: |+\n  a\n\n\n", "a\n\n\n"},
      {"name: |+\n  a", "a"},
      {"name: |-\n  a\n\n", "a"},
      {"name: >+\n  a\n  b\n\n", "a b\n"},
      {"name: |\n  \"a\n  ...\n", "\"a\n...\n"},
      {"name: \"a\n  b\"\n", "a b"},
      {"name: don't\n", "don't"},
  };
  for (const auto& c : kCases) {
    v1::JobSpec spec;
    EXPECT_EQ(ParseJob(c.text, &spec), absl::OkStatus()) << c.text;
    EXPECT_EQ(spec.name(), c.name) << c.text;
  }
  EXPECT_EQ(ErrorOf("name: \"a\"\n---\nname: \"b\n"), "job.yaml: holds more than one document");
  EXPECT_EQ(ErrorOf("name: \"a\"\nseed: x\n...\n"), "job.yaml:2: seed: expected an integer, got 'x'");
  EXPECT_EQ(ErrorOf("name: \"a\"\ncolour: 'red'\n"), "job.yaml:2: colour: no such field");
}

TEST(ParseYamlTest, ReportsAllErrorsUpToTwenty) {
  EXPECT_EQ(ErrorOf("a: 1\nseed: x\n"), "job.yaml:1: a: no such field\njob.yaml:2: seed: expected an integer, got 'x'");
  std::string text = "model:\n  layers:\n";
  for (int i = 0; i < 50; ++i) text += "    - {x: 1}\n";
  EXPECT_THAT(ErrorOf(text), HasSubstr("job.yaml:22: model.layers[19].x: no such field\njob.yaml: 30 more errors"));
}

TEST(ParseYamlTest, RefusesDeepNestingAndHugeTexts) {
  EXPECT_EQ(ErrorOf(std::string(100, '[') + std::string(100, ']')), "job.yaml:1: nested deeper than 64");
  EXPECT_EQ(ErrorOf(std::string(100000, '[')), "job.yaml: nested deeper than 64");
  EXPECT_EQ(ErrorOf(std::string((4 << 20) + 1, ' ')), "job.yaml: must be at most 4194304 bytes, is 4194305");
}

TEST(ParseYamlTest, DoublesTakeEveryForm) {
  for (const char* text : {"NaN", "\"NaN\"", ".nan"}) {
    v1::PhaseReport report;
    ASSERT_EQ(ParseYaml(std::string("loss: ") + text, "f", &report), absl::OkStatus());
    EXPECT_TRUE(std::isnan(report.loss()));
  }
  const struct {
    const char* text;
    double value;
  } kCases[] = {{"Infinity", INFINITY},
                {"-Infinity", -INFINITY},
                {"-.inf", -INFINITY},
                {"1e30", 1e30},
                {"\"2.5\"", 2.5},
                {"-0.5", -0.5},
                {"1.", 1},
                {"+3", 3}};
  for (const auto& c : kCases) {
    v1::PhaseReport report;
    ASSERT_EQ(ParseYaml(std::string("loss: ") + c.text, "f", &report), absl::OkStatus()) << c.text;
    EXPECT_EQ(report.loss(), c.value) << c.text;
  }
}

TEST(ParseYamlTest, ReadsBytesTimesAndBigIntegers) {
  v1::FileChunk chunk;
  ASSERT_EQ(ParseYaml("{data: \"AP+A\", offset: \"-9223372036854775808\"}", "f", &chunk), absl::OkStatus());
  EXPECT_EQ(chunk.data(), std::string("\x00\xff\x80", 3));
  EXPECT_EQ(chunk.offset(), INT64_MIN);
  EXPECT_EQ(ParseYaml("{data: \"!\"}", "f", &chunk).message(), "f:1: data: expected base64, got '!'");
  v1::JobEvent event;
  ASSERT_EQ(ParseYaml("{time: '2026-01-31T12:00:00.5Z', sequence: 18446744073709551615}", "f", &event),
            absl::OkStatus());
  EXPECT_EQ(event.time().nanos(), 500000000);
  EXPECT_EQ(event.sequence(), UINT64_MAX);
  EXPECT_EQ(ParseYaml("time: today", "f", &event).message(),
            "f:1: time: expected a time such as 2026-01-31T12:00:00Z, got 'today'");
}

TEST(FieldLinesTest, FindsTheNearestFieldAround) {
  v1::JobSpec spec;
  FieldLines lines;
  ASSERT_EQ(ParseYaml(kJob, "job.yaml", &spec, &lines), absl::OkStatus());
  EXPECT_EQ(lines.LineOf("seed"), 3);
  EXPECT_EQ(lines.LineOf("model.layers[1].batch_norm.epsilon"), 8);
  EXPECT_EQ(lines.LineOf("model.layers[2].max_pool.size[1]"), 9);
  EXPECT_EQ(lines.LineOf("train.micro_batch_size"), 16);
  EXPECT_EQ(lines.LineOf("checkpoint.keep_last"), 0);
  EXPECT_EQ(lines.LineOf(""), 0);
}

TEST(ParseYamlTest, MutationsNeverCrashAndWhatPassesRoundTrips) {
  std::mt19937 random(20240607);
  const std::string valid = kJob;
  const std::string alphabet = "{}[]:,-#'\"&*!|>%@`?~ \n\tabz019.eE_\\\x01\xc3\xa9\xff";
  int accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = valid;
    for (int edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          text.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        case 2:
          text.erase(at, 1 + random() % 5);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
      }
    }
    v1::JobSpec spec, again;
    if (!ParseJob(text, &spec).ok()) continue;
    ++accepted;
    ASSERT_EQ(ParseJob(ToYaml(spec), &again), absl::OkStatus()) << ToYaml(spec);
    ASSERT_TRUE(MessageDifferencer::Equals(spec, again)) << ToYaml(spec);
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace ampd
