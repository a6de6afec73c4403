#include "server/web/sent_job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/spec/resolve.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string RefusalOf(const SentJobFile& file, const absl::Status& status) {
  const HttpResponse response = file.Refusal(status);
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.content_type, "application/json");
  return response.body;
}

TEST(SentJobFile, ReadsYamlAndJson) {
  for (const char* text : {"name: a\nseed: 5\n", "{\"name\": \"a\", \"seed\": 5}"}) {
    const SentJobFile file(text);
    ASSERT_EQ(file.status(), absl::OkStatus());
    EXPECT_EQ(file.spec().name(), "a");
    EXPECT_EQ(file.spec().seed(), 5);
  }
}

TEST(SentJobFile, TellsTheLineOfEachFieldThatIsNone) {
  const SentJobFile file("name: a\ntrain:\n  batch_sise: 3\nsead: 1\n");
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string body = RefusalOf(file, file.status());
  EXPECT_THAT(
      body,
      HasSubstr(
          R"({"field": "train.batch_sise", "description": "no such field; did you mean batch_size?", "line": 3})"));
  EXPECT_THAT(body, HasSubstr(R"("field": "sead")"));
  EXPECT_THAT(body, HasSubstr(R"("line": 4})"));
}

TEST(SentJobFile, TellsTheLineOfTextThatIsNoYaml) {
  const SentJobFile file("name: a\ntrain: [\n");
  const std::string body = RefusalOf(file, file.status());
  EXPECT_THAT(body, HasSubstr(R"("violations": [{"field": "", )"));
  EXPECT_THAT(body, HasSubstr(R"("line": 3)"));
  const SentJobFile two("name: a\n---\nname: b\n");
  EXPECT_THAT(RefusalOf(two, two.status()),
              HasSubstr(R"({"field": "", "description": "holds more than one document"})"));
}

std::string Nested(int depth) {
  std::string value = "1";
  for (int i = 0; i < depth; ++i) value = absl::StrCat("{a: ", value, "}");
  return absl::StrCat("name: a\nsweep:\n  list:\n    - x: ", value, "\n");
}

// Deeper ones would pass here and fail in the request to the service, without a word.
TEST(SentJobFile, BoundsTheDepthOfFreeValues) {
  const SentJobFile deep(Nested(22));
  EXPECT_EQ(deep.status(), absl::OkStatus());
  EXPECT_TRUE(v1::JobSpec().ParseFromString(deep.spec().SerializeAsString()));
  const SentJobFile deeper(Nested(40));
  EXPECT_THAT(RefusalOf(deeper, deeper.status()), HasSubstr("nest more than 24 deep\", \"line\": 4}"));
}

// Each of many fields far within others has a path of its own, which is much longer than what it says.
TEST(SentJobFile, KeepsLinesOfAsMuchAsFits) {
  std::string inner = "{", outer = "{";
  for (int i = 0; i < 12000; ++i) absl::StrAppend(&inner, i, ",");
  for (int i = 0; i < 20; ++i)
    outer = absl::StrCat("{", std::string(100, static_cast<char>('a' + i)), ": ", i == 0 ? inner + "}" : outer, "}");
  const auto before = mallinfo2().uordblks + mallinfo2().hblkhd;
  const SentJobFile file(absl::StrCat("sweep: {list: [", outer, "]}"));
  EXPECT_EQ(file.status(), absl::OkStatus()) << file.status();
  EXPECT_LT(mallinfo2().uordblks + mallinfo2().hblkhd, before + (size_t{24} << 20));
}

TEST(SentJobFile, PutsTheServicesViolationsAtTheirLines) {
  const SentJobFile file("name: a\nsweep:\n  list:\n    - {seed: 1}\n    - {train.steps: 0}\n");
  ASSERT_EQ(file.status(), absl::OkStatus());
  const absl::Status refused = InvalidFields(
      {{"sweep.list[1].train.steps", "must be at least 1, is 0"}, {"name", "taken"}, {"model", "required"}});
  const std::string body = RefusalOf(file, refused);
  EXPECT_THAT(body, HasSubstr(R"("description": "must be at least 1, is 0", "line": 5})"));
  EXPECT_THAT(body, HasSubstr(R"({"field": "name", "description": "taken", "line": 1})"));
  EXPECT_THAT(body, HasSubstr(R"({"field": "model", "description": "required"})"));
}

TEST(SentJobFile, RefusesFilesOfTheClientsMachine) {
  const SentJobFile file("name: a\nmodel:\n  onnx:\n    path: ./net.onnx\nstart_from: {path: ../w.safetensors}\n");
  const std::string body = RefusalOf(file, file.status());
  EXPECT_THAT(body, HasSubstr(R"("field": "model.onnx.path", "description": "'./net.onnx' is a file of the machine)"));
  EXPECT_THAT(body, HasSubstr(R"("line": 4)"));
  EXPECT_THAT(body, HasSubstr(R"("field": "start_from.path")"));
  EXPECT_THAT(body, HasSubstr("ampctl"));
  for (const char* path : {"net.onnx", "/data/net.onnx", ".net.onnx", "upload:0123"}) {
    EXPECT_EQ(SentJobFile(absl::StrCat("model: {onnx: {path: \"", path, "\"}}")).status(), absl::OkStatus()) << path;
  }
}

TEST(SentJobFile, RefusesThemAsValuesOfASweep) {
  const SentJobFile grid("name: a\nsweep:\n  grid:\n    seed: [1]\n    start_from.path: [w.st,\n      ./w.st]\n");
  const std::string body = RefusalOf(grid, grid.status());
  EXPECT_THAT(body,
              HasSubstr(R"("violations": [{"field": "sweep.grid.start_from.path[1]", "description": "'./w.st' is)"));
  EXPECT_THAT(body, HasSubstr(R"("line": 5})"));
  const SentJobFile list("sweep:\n  list:\n  - {seed: 1}\n  - {model: {onnx: {path: ../net.onnx}}, name: ./a}\n");
  EXPECT_THAT(RefusalOf(list, list.status()), HasSubstr(R"("violations": [{"field": "sweep.list[1].model.onnx.path")"));
  std::string many = "sweep: {grid: {start_from.path: [";
  for (int i = 0; i < 10000; ++i) many += "./a,";
  EXPECT_LT(RefusalOf(SentJobFile(many + "]}}"), SentJobFile(many + "]}}").status()).size(), 20000u);
}

TEST(SentJobFile, BoundsNesting) {
  const SentJobFile file(std::string(60000, '['));
  EXPECT_THAT(RefusalOf(file, file.status()), HasSubstr("nested deeper than 64"));
  std::string levels;
  for (int i = 0; i < 500; ++i) absl::StrAppend(&levels, std::string(i, ' '), "a:\n");
  EXPECT_THAT(RefusalOf(SentJobFile(levels), SentJobFile(levels).status()), HasSubstr("nested deeper than 64"));
}

// Each error has the whole path of its field.
TEST(SentJobFile, BoundsWhatItQuotes) {
  std::string value = "{";
  for (int i = 0; i < 20; ++i) absl::StrAppend(&value, "n", i, ": 9007199254740993, ");
  value += "}";
  for (int i = 0; i < 20; ++i)
    value = absl::StrCat("{", std::string(1000, static_cast<char>('a' + i)), ": ", value, "}");
  const SentJobFile file(absl::StrCat("sweep: {list: [", value, "]}"));
  const std::string body = RefusalOf(file, file.status());
  EXPECT_THAT(body, HasSubstr("... (900 more bytes)"));
  EXPECT_THAT(body, HasSubstr("\"line\": 1}"));
  EXPECT_LT(body.size(), 24000u);
}

TEST(SentJobFile, LeavesOtherErrorsAsTheyAre) {
  const SentJobFile file("name: a");
  const HttpResponse response = file.Refusal(absl::PermissionDeniedError("no"));
  EXPECT_EQ(response.status, 403);
  EXPECT_THAT(response.body, Not(HasSubstr("violations")));
}

}  // namespace
}  // namespace ampd
