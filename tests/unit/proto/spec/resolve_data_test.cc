// What is asked of datasets.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"
#include "proto/spec/yaml.h"
#include "tests/unit/proto/spec/resolve_test_util.h"

namespace ampd {
namespace {

TEST(ResolveDataTest, ChecksTablesAndDrawings) {
  ExpectViolations({
      {"data.train={csv: {path: a.csv}}", "data.train.csv: needs exactly one of label and targets"},
      {"data.train={csv: {path: a.csv, label: y, delimiter: ';;'}}",
       "data.train.csv.delimiter: must be one character of one byte, no quote and no line end"},
      {"data.train={csv: {label: y}}", "data.train.csv.path: required"},
      {"data.train={csv: {path: a.csv, targets: ['']}}", "data.train.csv.targets[0]: required"},
      {"data.train={quickdraw: {}}", "data.train.quickdraw.path: required"},
      {"data.train={quickdraw: {path: a, skip_per_class: -1}}",
       "data.train.quickdraw.skip_per_class: must be at least 0, is -1"},
      {"data.train={safetensors: {}}", "data.train.safetensors.path: required"},
      {"data.train={safetensors: {path: a}}", ""},
      {"data.train={csv: {path: a.csv, targets: [y, z], delimiter: ;}}", ""},
  });
}

TEST(ResolveDataTest, ChecksImagesAndHowTheyAreDecoded) {
  const std::string decoded = "is for sources whose samples are decoded one by one: image_folder, wav_folder";
  ExpectViolations({
      {"data.train={image_folder: {path: a}}", "data.image.size: required for image_folder"},
      {"data.train={image_folder: {path: a, classes: ['']}}",
       "data.train.image_folder.classes[0]: required\ndata.image.size: required for image_folder"},
      {"data.image={size: 8193}", "data.image.size: must be at most 8192, is 8193"},
      {"data.image={resize: STRETCH}", "data.image.resize: needs size"},
      {"data.image={random_resized_crop: {}}", "data.image.random_resized_crop: needs size"},
      {"data.image={size: 8, random_resized_crop: {min_area: 0.5, max_area: 0.4}}",
       "data.image.random_resized_crop.max_area: must be in [0.5, 1], is 0.4"},
      {"data.image={channels: 3}", "data.image.channels: is for image_folder"},
      {"data.cache={kind: DISK}", "data.cache: " + decoded},
      {"data.max_corrupt_ratio=0.5", "data.max_corrupt_ratio: " + decoded},
      {"data.decode_threads=0", "data.decode_threads: must be at least 1, is 0"},
      {"data.device_cache={max_bytes: -1}", "data.device_cache.max_bytes: must be at least 0, is -1"},
      {"data.device_cache={max_bytes: 1125899906842625}",
       "data.device_cache.max_bytes: must be at most 1125899906842624, is 1125899906842625"},
      {"data.device_cache={max_bytes: 0}", ""},
      {"data.device_cache={}", ""},
      {"data={train: {wav_folder: {path: a, transcripts: b}}, cache: {kind: DISK, max_bytes: 5}}", ""},
      {"data={train: {wav_folder: {path: a, transcripts: b}}, cache: {max_bytes: -1}}",
       "data.cache.max_bytes: must be at least 0, is -1"},
  });
}

TEST(ResolveDataTest, PromptsOfTokensAreIds) {
  const auto of_tokens = [](const std::string& text) {
    return Minimal({"data={train: {tokens: {path: a, sequence_length: 8, vocabulary: 600}}}",
                    "report.samples={text: " + text + "}"});
  };
  const auto resolved = ResolveJobSpec(of_tokens("{}"));
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->proto().report().samples().text().prompt(), "0");
  const std::string field = "report.samples.text.prompt: ";
  for (const auto& [prompt, violation] : std::vector<std::pair<std::string, std::string>>{
           {"'0 599'", ""},
           {"'  17\t18 '", ""},
           {"'17'", ""},
           {"'17 600'", field + "has '600', but ids are 0 to 599, the tokens' vocabulary"},
           {"'99999999999'", field + "has '99999999999', but ids are 0 to 599, the tokens' vocabulary"},
           {"'-1'", field + "has '-1', which is no token's id: ids are whole numbers separated by spaces"},
           {"'1,2'", field + "has '1,2', which is no token's id: ids are whole numbers separated by spaces"},
           {"'ROMEO:'", field + "has 'ROMEO:', which is no token's id: ids are whole numbers separated by spaces"},
           {"' '", field + "must not be empty: something has to be continued"},
           {"'" + std::string(4097, '1') + "'", field + "must be at most 4096 bytes, is 4097"}}) {
    EXPECT_EQ(Violated(of_tokens("{prompt: " + prompt + "}")), violation);
  }
  EXPECT_EQ(Violated(Minimal({"report.samples={text: {}}"})),
            "report.samples.text: needs data.train.text or data.train.tokens");
  // Bytes may be any.
  EXPECT_EQ(Violated(Minimal(
                {"data={train: {text: {path: a, sequence_length: 8}}}", "report.samples={text: {prompt: ROMEO 600}}"})),
            "");
}

TEST(ResolveDataTest, WhatIsDecodedIsKeptInMemoryUnlessTheJobSaysOtherwise) {
  const auto resolved = [](const std::string& data) {
    return ResolveJobSpec(Minimal({"data={train: " + data + "}"}))->proto().data();
  };
  const std::string sounds = "{wav_folder: {path: a, transcripts: b}}";
  for (const std::string& source : {sounds, std::string("{image_folder: {path: a}}, image: {size: 8}")}) {
    EXPECT_EQ(resolved(source).cache().kind(), v1::CacheSpec::MEMORY) << source;
    EXPECT_EQ(resolved(source).max_corrupt_ratio(), 0.01) << source;
    EXPECT_EQ(resolved(source + ", cache: {kind: NONE}").cache().kind(), v1::CacheSpec::NONE) << source;
  }
  EXPECT_EQ(resolved(sounds + ", cache: {max_bytes: 7}").cache().kind(), v1::CacheSpec::MEMORY);
  EXPECT_FALSE(resolved("{glyphs: {}}").has_cache());
}

}  // namespace
}  // namespace ampd
