// Completion and the manual, of the program as it is.
#include "client/completion/complete.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/completion/scripts.h"
#include "client/completion/values.h"
#include "client/man_page.h"
#include "client/program.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd::client {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class CompletionTest : public testing::Test {
 protected:
  void SetUp() override { AddProgram(&app_, &context_); }

  Completion Of(const std::vector<std::string>& words) {
    return Complete(app_, words, [this](const ValueQuery& query) {
      queries_.push_back(query);
      return query.kind == "JOB" ? std::vector<Candidate>{{"01aa", "demo"}, {"01ab", ""}, {"02", ""}}
                                 : FindValues(query);
    });
  }
  std::vector<std::string> Values(const std::vector<std::string>& words) {
    std::vector<std::string> values;
    for (const Candidate& candidate : Of(words).candidates) values.push_back(candidate.value);
    return values;
  }

  CommandContext context_;
  CLI::App app_{"about", "ampctl"};
  std::vector<ValueQuery> queries_;
};

TEST_F(CompletionTest, VerbsAndOptions) {
  EXPECT_THAT(Values({"can"}), ElementsAre("cancel"));
  EXPECT_THAT(Values({""}), Contains("submit"));
  EXPECT_THAT(Values({"tokens", ""}), ElementsAre("create", "revoke", "list"));
  EXPECT_THAT(Values({"tokens", "create", "--r"}), ElementsAre("--role"));
  // Those of the program as a whole, anywhere.
  EXPECT_THAT(Values({"cancel", "--tok"}), ElementsAre("--token-file"));
  EXPECT_THAT(Values({"--ser"}), ElementsAre("--server"));
  EXPECT_THAT(Values({"logs", "-"}), Contains("-f"));
  EXPECT_THAT(Values({"nosuchverb", "x"}), IsEmpty());
  EXPECT_FALSE(Of({"cancel", "--sweep"}).candidates[0].description.empty());
}

TEST_F(CompletionTest, ValuesByKind) {
  EXPECT_THAT(Values({"cancel", "01"}), ElementsAre("01aa", "01ab"));
  EXPECT_EQ(queries_.back().verb, "cancel");
  EXPECT_THAT(Values({"cancel", "01aa", "02"}), ElementsAre("02"));
  // One job is all that `get` takes.
  EXPECT_THAT(Values({"get", "01aa", ""}), IsEmpty());
  EXPECT_THAT(Values({"-o", "js"}), ElementsAre("json", "jsonl"));
  EXPECT_THAT(Values({"--output=y"}), ElementsAre("--output=yaml"));
  EXPECT_THAT(Values({"--output="}), ElementsAre("--output=table", "--output=json", "--output=jsonl", "--output=yaml"));
  EXPECT_THAT(Values({"tokens", "create", "--role", "a"}), ElementsAre("admin"));
  EXPECT_THAT(Values({"list", "--state", "ca"}), ElementsAre("cancelling", "cancelled"));
  EXPECT_THAT(Values({"init", "--preset", "res"}), ElementsAre("resnet"));
  EXPECT_THAT(Values({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(Values({"bench", ""}), ElementsAre("gemm", "conv"));
  EXPECT_TRUE(Of({"bench", ""}).files) << "or a job file";
  EXPECT_THAT(Values({"bench", "gemm", "--svg", ""}), IsEmpty());
  EXPECT_THAT(Values({"submit", ""}), IsEmpty());
  EXPECT_THAT(Values({"plan", "job.yaml", "--modes", "f"}), ElementsAre("fp32", "fp16", "fp8"));
  EXPECT_THAT(Values({"bench", "gemm", "--modes", "fp16,bf16,f"}), ElementsAre("fp16,bf16,fp32", "fp16,bf16,fp8"));
  EXPECT_THAT(Values({"list", "--sort", "p"}), ElementsAre("priority"));
  EXPECT_TRUE(Of({"submit", ""}).files);
  EXPECT_TRUE(Of({"--ca", ""}).files);
  EXPECT_FALSE(Of({"cancel", ""}).files);
}

TEST_F(CompletionTest, OptionsSoFarAreHandedOn) {
  Values({"--server", "h:1", "download", "--tls", "01aa", "--checkpoint", ""});
  EXPECT_EQ(queries_.back().kind, "CHECKPOINT");
  EXPECT_THAT(queries_.back().globals, ElementsAre("--server", "h:1", "--tls"));
  EXPECT_THAT(queries_.back().values, ElementsAre("01aa"));
}

TEST_F(CompletionTest, FieldsOfTheJobFile) {
  EXPECT_THAT(Values({"submit", "job.yaml", "--set", "tr"}), ElementsAre("train."));
  EXPECT_TRUE(Of({"submit", "job.yaml", "--set", "tr"}).open);
  EXPECT_THAT(Values({"submit", "job.yaml", "--set", "train.b"}), ElementsAre("train.batch_size="));
  EXPECT_THAT(Values({"submit", "job.yaml", "--set", "precision.mode=B"}), ElementsAre("precision.mode=BF16"));
  EXPECT_FALSE(Of({"submit", "job.yaml", "--set", "precision.mode=B"}).open);
  EXPECT_THAT(Values({"submit", "job.yaml", "--set", "model.preset.res"}), ElementsAre("model.preset.resnet."));
  EXPECT_THAT(Values({"submit", "job.yaml", "--set", "model.layers[0].conv2d.fil"}),
              ElementsAre("model.layers[0].conv2d.filters="));
  EXPECT_THAT(Values({"submit", "job.yaml", "--set", "nothing.such"}), IsEmpty());
  EXPECT_THAT(Values({"submit", "job.yaml", "--set", "seed.x.y"}), IsEmpty());
}

TEST_F(CompletionTest, TextForTheShells) {
  Completion completion;
  completion.files = true;
  completion.open = true;
  completion.candidates = {{"a", "the\x1b letter"}, {"b", ""}};
  EXPECT_EQ(CompletionText(completion), ":files\n:open\na\tthe? letter\nb\n");
  for (const char* shell : {"bash", "zsh", "fish"}) EXPECT_THAT(CompletionScript(shell), HasSubstr("__complete"));
  EXPECT_STREQ(CompletionScript("csh"), "");
}

void ForEveryVerb(const CLI::App& app, const std::string& name,
                  const std::function<void(const CLI::App&, const std::string&)>& look) {
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string whole = name.empty() ? verb->get_name() : absl::StrCat(name, " ", verb->get_name());
    look(*verb, whole);
    ForEveryVerb(*verb, whole, look);
  }
}

TEST_F(CompletionTest, EveryVerbHasAnExampleAndIsInTheManual) {
  const std::string page = ManPage(app_);
  int verbs = 0;
  ForEveryVerb(app_, "", [&](const CLI::App& verb, const std::string& name) {
    ++verbs;
    EXPECT_THAT(verb.get_footer(), testing::ContainsRegex("Examples?:\n  (.*)ampctl")) << name;
    EXPECT_FALSE(verb.get_description().empty()) << name;
    EXPECT_THAT(page, HasSubstr(absl::StrCat(".SS \"\\fB", name, "\\fR"))) << name;
    for (const CLI::Option* option : verb.get_options()) {
      EXPECT_FALSE(option->get_description().empty()) << name << " " << option->get_name();
    }
  });
  EXPECT_GT(verbs, 40);
  EXPECT_THAT(page, HasSubstr("\\fB\\-\\-token\\-file\\fR \\fIFILE\\fR"));
  // Nothing is a macro that is not meant to be one.
  EXPECT_THAT(page, Not(testing::ContainsRegex("\n\\.[a-z]+ctl")));
}

}  // namespace
}  // namespace ampd::client
