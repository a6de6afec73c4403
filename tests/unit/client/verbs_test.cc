// Verbs and options that read or change what program_test.cc does not look at.
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "client/output/color.h"
#include "client/output/table.h"
#include "client/program.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"
#include "proto/spec/yaml.h"
#include "tests/unit/client/fake_training_service.h"
#include "tests/unit/client/time_zone.h"

namespace ampd::client {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class VerbsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "verbs_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    file_ = folder_ + "/job.yaml";
    std::ofstream(file_) << "name: demo\nlabels: {team: a, old: b}\n";
    fake_.job.set_id("01abc");
    fake_.job.set_state(v1::Job::SUCCEEDED);
    fake_.events = ExampleEvents(3, v1::Job::SUCCEEDED);
    const auto log = [this](v1::LogLine::Severity severity, const std::string& text) {
      v1::JobEvent& event = fake_.events.emplace_back();
      event.set_first_sequence(fake_.events.size());
      event.set_sequence(fake_.events.size());
      event.mutable_time()->set_seconds(1769860900);
      event.mutable_log()->set_severity(severity);
      event.mutable_log()->set_text(text);
    };
    log(v1::LogLine::INFO, "reads the data");
    log(v1::LogLine::WARNING, "slow\x1b[2J disk");
    fake_.job.set_last_sequence(fake_.events.size());
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    unsetenv("NO_COLOR");
  }

  int Run(std::vector<std::string> arguments, bool terminal = false) {
    out_.str("");
    err_.str("");
    arguments.insert(arguments.begin(), {"ampctl", "--server", fake_.address()});
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    return RunProgram(static_cast<int>(argv.size()), argv.data(), &out_, &err_, terminal);
  }

  const ScopedTimeZone zone_{"UTC"};
  FakeTrainingService fake_;
  std::string folder_, file_;
  std::ostringstream out_, err_;
};

TEST_F(VerbsTest, LogsAreWordsWithoutFigures) {
  EXPECT_EQ(Run({"logs", "01abc"}), 0) << err_.str();
  EXPECT_EQ(out_.str(),
            "12:00:01  QUEUED\n12:00:02  STARTING\n12:00:03  RUNNING\n12:00:08  SUCCEEDED\n12:01:40  reads the data\n"
            "12:01:40  WARNING slow?[2J disk\n");
  EXPECT_EQ(Run({"logs", "01abc", "--tail", "1"}), 0);
  EXPECT_EQ(out_.str(), "12:01:40  WARNING slow?[2J disk\n");
  EXPECT_EQ(Run({"logs", "01abc", "-n", "0", "-f"}), 0);
  EXPECT_EQ(out_.str(), "");
  EXPECT_EQ(Run({"logs", "01abc", "--since", "2026-01-31T12:01:00Z", "-o", "jsonl"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("{\"first_sequence\":"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("state_change\":{")));
  EXPECT_EQ(Run({"logs", "01abc", "--since", "yesterday"}), 2);
  EXPECT_EQ(Run({"logs", "01abc", "--tail", "-1"}), 2);
}

TEST_F(VerbsTest, TheServerIsAskedForTheEndOfALog) {
  const uint64_t last = fake_.events.size();
  EXPECT_EQ(Run({"logs", "01abc", "--tail", "2"}), 0);
  const v1::WatchJobRequest asked = fake_.watched.back();
  EXPECT_EQ(asked.tail(), 2);
  EXPECT_EQ(asked.until_sequence(), last);
  EXPECT_THAT(asked.kinds(), testing::Contains("log"));
  EXPECT_THAT(asked.kinds(), testing::Not(testing::Contains("step")));
  EXPECT_EQ(Run({"logs", "01abc"}), 0);
  EXPECT_FALSE(fake_.watched.back().has_tail());
  // Which are new enough is not for the server to say.
  EXPECT_EQ(Run({"logs", "01abc", "--tail", "2", "--since", "2026-01-31T12:01:00Z"}), 0);
  EXPECT_FALSE(fake_.watched.back().has_tail());
  // It may end with an event of another kind, by which the client knows that it has all.
  fake_.events.erase(fake_.events.begin(), fake_.events.end() - 3);
  fake_.job.set_last_sequence(last + 1);
  v1::JobEvent& step = fake_.events.emplace_back(ExampleEvents(3, v1::Job::SUCCEEDED)[3]);
  step.set_first_sequence(last + 1);
  step.set_sequence(last + 1);
  EXPECT_EQ(Run({"logs", "01abc", "--tail", "2"}), 0) << err_.str();
  EXPECT_EQ(out_.str(), "12:01:40  reads the data\n12:01:40  WARNING slow?[2J disk\n");
}

TEST_F(VerbsTest, AWatchWhoseTokenIsOverSaysWhatToDo) {
  fake_.streams = {{.until = 2, .status = absl::UnauthenticatedError("token 01tok expired at 2026-01-31T12:00:00Z")}};
  EXPECT_EQ(Run({"watch", "01abc"}), 5);
  EXPECT_THAT(err_.str(), HasSubstr("ampctl: not authorised: token 01tok expired at 2026-01-31T12:00:00Z (an "
                                    "administrator makes another: ampctl tokens create; --token-file FILE or "
                                    "AMPD_TOKEN takes it)\nthe job continues: ampctl watch 01abc\n"));
  fake_.get_status = absl::UnauthenticatedError("token 01tok was revoked");
  EXPECT_EQ(Run({"get", "01abc"}), 5);
  EXPECT_THAT(err_.str(), HasSubstr("was revoked (an administrator makes another"));
  fake_.get_status = absl::UnauthenticatedError("the token is not known here");
  EXPECT_EQ(Run({"get", "01abc"}), 5);
  EXPECT_THAT(err_.str(), Not(HasSubstr("another")));
}

TEST_F(VerbsTest, RefusalsNameTheOptionThatWasTyped) {
  const auto refuse = [](const std::string& field, const std::string& what) { return InvalidFields({{field, what}}); };
  fake_.creates = {refuse("resources.gpus", "is 9"), refuse("name", "too long"), refuse("labels.team", "too long"),
                   refuse("start_from.job_id", "no such job"), refuse("bench.steps", "too many")};
  EXPECT_EQ(Run({"submit", file_, "--gpus", "9"}), 2);
  EXPECT_EQ(err_.str(), "--gpus 9: resources.gpus: is 9\n");
  EXPECT_EQ(Run({"submit", file_, "--name", "n o"}), 2);
  EXPECT_EQ(err_.str(), "--name n o: name: too long\n");
  EXPECT_EQ(Run({"submit", file_, "--label", "team=x"}), 2);
  EXPECT_EQ(err_.str(), "--label team=x: labels.team: too long\n");
  EXPECT_EQ(Run({"submit", file_, "--resume-from", "01zzz"}), 2);
  EXPECT_EQ(err_.str(), "--resume-from 01zzz: start_from.job_id: no such job\n");
  EXPECT_EQ(Run({"bench", file_, "--steps", "7"}), 2);
  EXPECT_EQ(err_.str(), "--steps 7: bench.steps: too many\n");
  fake_.plan_status = refuse("device_model", "no such kind");
  EXPECT_EQ(Run({"plan", file_, "--gpu", "H9"}), 2);
  EXPECT_EQ(err_.str(), "--gpu H9: no such kind\n");
  EXPECT_EQ(Run({"plan", file_, "--gpu", "h100"}), 2);
  EXPECT_EQ(err_.str(), "--gpu h100: no such kind; did you mean H100-SXM or H100-PCIe?\n");
  fake_.update_status = refuse("priority", "is 5");
  EXPECT_EQ(Run({"update", "01abc", "--priority", "5"}), 2);
  EXPECT_EQ(err_.str(), "ampctl: --priority 5: is 5\n");
  fake_.list_status = refuse("filter", "at byte 0: what");
  EXPECT_EQ(Run({"list", "--filter", "x"}), 2);
  EXPECT_EQ(err_.str(), "ampctl: --filter: at byte 0: what\n");
  fake_.token_status = refuse("lifetime_seconds", "too long");
  EXPECT_EQ(Run({"tokens", "create", "--user", "a", "--role", "viewer", "--lifetime", "9d"}), 2);
  EXPECT_EQ(err_.str(), "ampctl: --lifetime 9d: too long\n");
}

TEST_F(VerbsTest, TheListFitsTheTerminal) {
  fake_.job.set_id("01m7z2rv60wygv8y37snyrexb9");
  fake_.job.mutable_spec()->set_name("a name of more than twelve characters");
  fake_.job.set_state(v1::Job::FAILED);
  fake_.job.mutable_failure()->set_message(std::string(200, 'x'));
  setenv("NO_COLOR", "1", 1);
  // Where the test's output is no terminal, that has 80 columns.
  EXPECT_EQ(Run({"list", "--limit", "1"}, true), 0);
  const std::vector<std::string> lines = absl::StrSplit(out_.str(), '\n');
  for (const std::string& line : lines) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(lines[0], StartsWith("ID "));
  EXPECT_THAT(lines[1], StartsWith("01m7z2rv60wygv8y37snyrexb9  a name"));
  EXPECT_THAT(lines[1], HasSubstr("..  FAILED"));
  EXPECT_EQ(Run({"list", "--limit", "1", "--wide"}, true), 0);
  EXPECT_THAT(out_.str(), HasSubstr("a name of more than twelve characters  FAILED"));
  EXPECT_THAT(out_.str(), HasSubstr(std::string(200, 'x') + "\n"));
  EXPECT_THAT(out_.str(), HasSubstr("ACCURACY  SKIPPED  CREATED"));
  EXPECT_EQ(Run({"list", "--limit", "1"}, false), 0);
  EXPECT_THAT(out_.str(), HasSubstr("a name of more than twelve characters  FAILED"));
}

TEST_F(VerbsTest, ANarrowTerminalHasNoLineTooLong) {
  fake_.job.set_id("01m7z2rv60wygv8y37snyrexb9");
  fake_.job.mutable_spec()->set_name("a name of more than twelve characters");
  fake_.job.set_state(v1::Job::QUEUED);
  fake_.job.set_queue_reason(v1::Job::RESOURCES);
  fake_.job.set_queue_position(2);
  setenv("NO_COLOR", "1", 1);
  const int real_stdout = dup(STDOUT_FILENO);
  for (const unsigned columns : {100, 60, 52}) {
    int terminal = -1, program = -1;
    winsize size = {};
    size.ws_col = static_cast<uint16_t>(columns);
    ASSERT_EQ(openpty(&terminal, &program, nullptr, nullptr, &size), 0);
    dup2(program, STDOUT_FILENO);
    const int code = Run({"list", "--limit", "1"}, true);
    dup2(real_stdout, STDOUT_FILENO);
    close(terminal);
    close(program);
    EXPECT_EQ(code, 0) << err_.str();
    const std::vector<std::string> lines = absl::StrSplit(out_.str(), '\n');
    for (const std::string& line : lines) EXPECT_LE(line.size(), columns) << line;
    EXPECT_THAT(out_.str(), HasSubstr("QUEUED"));
  }
  close(real_stdout);
}

TEST_F(VerbsTest, OnANarrowTerminalOtherTablesCutTheirTextAlone) {
  const std::string file = folder_ + "/" + std::string(100, 'x') + ".token";
  setenv("AMPCTL_CONFIG", (folder_ + "/config.yaml").c_str(), 1);
  std::ofstream(folder_ + "/config.yaml")
      << "contexts: {lab: {server: \"trainer:7070\", token_file: " << file << "}}\n";
  // Where the test's output is no terminal, that has 80 columns.
  EXPECT_EQ(Run({"contexts", "list"}, true), 0) << err_.str();
  const std::vector<std::string> lines = absl::StrSplit(out_.str(), '\n');
  for (const std::string& line : lines) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(out_.str(), testing::ContainsRegex("lab   trainer:7070  no   /.*\\.\\.\n"));
  EXPECT_EQ(Run({"contexts", "list"}, false), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr(file + "\n"));
  unsetenv("AMPCTL_CONFIG");
}

TEST_F(VerbsTest, WhoseAJobIsAndWhatItIsLabelledIsShown) {
  fake_.job.set_user("ann");
  fake_.job.mutable_spec()->mutable_resources()->set_priority(5);
  (*fake_.job.mutable_spec()->mutable_labels())["team"] = "vision";
  (*fake_.job.mutable_spec()->mutable_labels())["a"] = "b";
  EXPECT_EQ(Run({"get", "01abc"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("\nuser:       ann\n"));
  EXPECT_THAT(out_.str(), HasSubstr("\npriority:   5\nlabels:     a=b, team=vision\n"));
  EXPECT_EQ(Run({"list", "--limit", "1", "--wide"}), 0);
  EXPECT_THAT(out_.str(), testing::ContainsRegex("CREATED +USER +PRIORITY +LABELS +WHY\n"));
  EXPECT_THAT(out_.str(), testing::ContainsRegex(" ann +5 +a=b, team=vision +-\n"));
  EXPECT_EQ(Run({"list", "--limit", "1"}), 0);
  EXPECT_THAT(out_.str(), Not(HasSubstr("LABELS")));
}

TEST_F(VerbsTest, ListQuietlyPrintsIds) {
  EXPECT_EQ(Run({"list", "--limit", "1", "-q"}), 0) << err_.str();
  EXPECT_THAT(out_.str(), testing::MatchesRegex("[^ \n]+\n"));
  EXPECT_EQ(err_.str(), "more with --limit\n");
}

TEST_F(VerbsTest, ASweepsBestJobComesFirst) {
  fake_.sweep_status = absl::OkStatus();
  const std::string value(40, 'x');
  const auto add = [&](const char* id, double accuracy) {
    v1::Job* job = fake_.sweep.add_jobs();
    job->set_id(id);
    job->mutable_sweep()->set_index(fake_.sweep.jobs_size() - 1);
    (*job->mutable_sweep()->mutable_values()->mutable_fields())["name"].set_string_value(value);
    if (accuracy == 0) return;
    job->mutable_summary()->set_accuracy(accuracy);
    job->mutable_summary()->set_eval_loss(1 - accuracy);
  };
  add("01none", 0);
  add("01low", 0.5);
  add("01nan", NAN);
  add("01high", 0.75);
  add("01same", 0.5);
  const char* best_first = "01high\n01low\n01same\n01none\n01nan\n";
  for (const char* column : {"accuracy", "EVAL_LOSS"}) {
    EXPECT_EQ(Run({"sweep", "01sw", "--sort", column, "-q"}), 0) << err_.str();
    EXPECT_EQ(out_.str(), best_first);
  }
  EXPECT_EQ(Run({"sweep", "01sw", "-q"}), 0);
  EXPECT_EQ(out_.str(), "01none\n01low\n01nan\n01high\n01same\n");
  EXPECT_EQ(Run({"sweep", "01sw", "--sort", "speed"}), 2);
  // Values are cut on a screen alone.
  EXPECT_EQ(Run({"sweep", "01sw"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr(value));
  EXPECT_EQ(Run({"sweep", "01sw"}, true), 0);
  EXPECT_THAT(out_.str(), Not(HasSubstr(value)));
}

TEST_F(VerbsTest, WhoNamesASweepIsToldSo) {
  fake_.get_status = absl::NotFoundError("no job 01sw");
  EXPECT_EQ(Run({"get", "01sw"}), 2);
  EXPECT_EQ(err_.str(), "ampctl: no job 01sw\n");
  fake_.sweep_status = absl::OkStatus();
  for (const char* verb : {"get", "logs", "wait", "artifacts", "why"}) {
    EXPECT_EQ(Run({verb, "01sw"}), 2);
    EXPECT_EQ(err_.str(), "ampctl: 01sw is a sweep: ampctl sweep 01sw, ampctl cancel --sweep 01sw\n");
  }
  fake_.streams = {{.until = 0, .status = absl::NotFoundError("no job 01sw")}};
  EXPECT_EQ(Run({"watch", "01sw"}), 2);
  EXPECT_EQ(err_.str(), "ampctl: 01sw is a sweep: ampctl sweep 01sw, ampctl cancel --sweep 01sw\n");
}

TEST_F(VerbsTest, WaitTakesASweepAndKnowsAllIdsBeforeItWaits) {
  fake_.sweep_status = absl::OkStatus();
  for (const char* id : {"01one", "01two"}) fake_.sweep.add_jobs()->set_id(id);
  EXPECT_EQ(Run({"wait", "--sweep", "01sw"}), 0) << err_.str();
  EXPECT_EQ(out_.str(), "01abc SUCCEEDED applied=0 skipped=0\n01abc SUCCEEDED applied=0 skipped=0\n");
  EXPECT_EQ(fake_.got, (std::vector<std::string>{"01one", "01two"}));
  EXPECT_EQ(Run({"wait"}), 2);
  fake_.sweep_status = absl::NotFoundError("no such sweep");
  EXPECT_EQ(Run({"wait", "--sweep", "01sw"}), 2);
  fake_.unknown_job = "01none";
  fake_.job.set_state(v1::Job::RUNNING);
  fake_.streams = {{.until = 2, .hang = true}};
  EXPECT_EQ(Run({"wait", "01abc", "01none", "--timeout", "5"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("no such job"));
  EXPECT_TRUE(fake_.watched.empty());
}

TEST_F(VerbsTest, JsonIsOneDocument) {
  EXPECT_EQ(Run({"wait", "01abc", "01abc", "-o", "json"}), 0);
  v1::ListJobsResponse jobs;
  EXPECT_EQ(ParseYaml(out_.str(), "out", &jobs), absl::OkStatus()) << out_.str();
  EXPECT_EQ(jobs.jobs_size(), 2);
  EXPECT_EQ(Run({"cancel", "01abc", "01abc", "-o", "json"}), 0);
  EXPECT_EQ(ParseYaml(out_.str(), "out", &jobs), absl::OkStatus()) << out_.str();
  EXPECT_EQ(jobs.jobs_size(), 2);
  EXPECT_EQ(Run({"wait", "01abc", "-o", "json"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("{\n  \"id\": \"01abc\""));
  EXPECT_EQ(Run({"wait", "01abc", "01abc", "-o", "jsonl"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("{\"id\":\"01abc\""));
  EXPECT_EQ(Run({"logs", "01abc", "--tail", "2", "-o", "json"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("{\"events\": [\n  {\n    \"first_sequence\": "));
  EXPECT_THAT(out_.str(), HasSubstr("\"text\": \"reads the data\""));
  EXPECT_THAT(out_.str(), testing::EndsWith("\n  }\n]}\n"));
  EXPECT_EQ(Run({"logs", "01abc", "--tail", "0", "-o", "json"}), 0);
  EXPECT_EQ(out_.str(), "{\"events\": []}\n");
  EXPECT_EQ(Run({"logs", "01abc", "-f", "-o", "json"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("-o jsonl"));
  EXPECT_EQ(Run({"artifacts", "01abc", "-o", "json"}), 0);
  EXPECT_EQ(out_.str(), "{\"artifacts\": []}\n");
  EXPECT_EQ(Run({"artifacts", "01abc", "-o", "jsonl"}), 0);
  EXPECT_EQ(out_.str(), "");
  for (const char* name : {"a.png", "b.png"}) {
    v1::JobEvent& event = fake_.events.emplace_back();
    event.set_first_sequence(fake_.events.size());
    event.set_sequence(fake_.events.size());
    event.mutable_artifact()->set_name(name);
  }
  fake_.job.set_last_sequence(fake_.events.size());
  EXPECT_EQ(Run({"artifacts", "01abc", "-o", "json"}), 0);
  EXPECT_EQ(
      out_.str(),
      "{\"artifacts\": [\n  {\n    \"step\": 0,\n    \"name\": \"a.png\",\n    \"content_type\": \"\",\n    "
      "\"size_bytes\": 0\n  },\n  {\n    \"step\": 0,\n    \"name\": \"b.png\",\n    \"content_type\": \"\",\n    "
      "\"size_bytes\": 0\n  }\n]}\n");
}

TEST_F(VerbsTest, VerbsOfOtherProgramsAreKnown) {
  for (const auto& [word, verb] : std::vector<std::pair<std::string, std::string>>{{"status", "get"},
                                                                                   {"show", "get"},
                                                                                   {"ps", "list"},
                                                                                   {"queue", "list"},
                                                                                   {"squeue", "list"},
                                                                                   {"stop", "cancel"},
                                                                                   {"kill", "cancel"},
                                                                                   {"scancel", "cancel"},
                                                                                   {"sbatch", "submit"},
                                                                                   {"run", "submit"}}) {
    EXPECT_EQ(Run({word, "01abc"}), 2);
    EXPECT_THAT(err_.str(), StartsWith("ampctl has no command '" + word + "'; did you mean " + verb + "?\n"));
  }
}

TEST_F(VerbsTest, AHistogramIsDataToo) {
  v1::JobEvent& event = fake_.events.emplace_back();
  ASSERT_EQ(ParseYaml("gradient_diagnostics: {step: 4, phase: main, scale: 1024, tensors: [{tensor: head.weight, "
                      "first_exponent: -3, exponent_counts: [5, 0, 2], nonzero: 7, zeros: 1, largest_safe_scale: 64}]}",
                      "event", &event),
            absl::OkStatus());
  event.set_first_sequence(fake_.events.size());
  event.set_sequence(fake_.events.size());
  fake_.job.set_last_sequence(fake_.events.size());
  for (const char* format : {"json", "jsonl", "yaml"}) {
    EXPECT_EQ(Run({"histogram", "01abc", "-o", format}), 0) << err_.str();
    EXPECT_EQ(out_.str(),
              "{\"job_id\": \"01abc\", \"step\": 4, \"phase\": \"main\", \"scale\": 1024, \"tensors\": 1, \"nonzero\": "
              "7, \"zeros\": 1, \"non_finite\": 0, \"counts\": [[-3, 5], [-1, 2]], \"flushed_unscaled\": 0, "
              "\"flushed_scaled\": 0, \"overflowed_scaled\": 0, \"worst\": {\"tensor\": \"head.weight\", "
              "\"flushed_unscaled\": 0}, \"largest_safe_scale\": 64, \"unscalable\": 0, \"judged_steps\": 1, "
              "\"first_judged_step\": 4}\n");
  }
}

TEST_F(VerbsTest, AMeasurementThatMeasuredNothingFailed) {
  for (const bool one_is_measured : {true, false}) {
    fake_.events = ExampleEvents(0, v1::Job::SUCCEEDED);
    for (const bool fails : {true, !one_is_measured}) {
      v1::JobEvent& event = *fake_.events.insert(fake_.events.end() - 1, v1::JobEvent());
      event.mutable_bench_cell()->set_mode(v1::PrecisionSpec::FP32);
      if (fails) event.mutable_bench_cell()->mutable_failure()->set_class_(v1::Failure::OUT_OF_MEMORY);
    }
    for (size_t i = 0; i < fake_.events.size(); ++i) {
      fake_.events[i].set_first_sequence(i + 1);
      fake_.events[i].set_sequence(i + 1);
    }
    EXPECT_EQ(Run({"bench", file_}), one_is_measured ? 0 : 1);
    EXPECT_THAT(out_.str(), HasSubstr("OUT_OF_MEMORY"));
    EXPECT_EQ(absl::StrContains(err_.str(), "ampctl: nothing could be measured\n"), !one_is_measured) << err_.str();
  }
}

TEST_F(VerbsTest, AFileThatTheServerFindsTooLargeIsNamed) {
  fake_.creates = {absl::ResourceExhaustedError("Received message larger than max (2689080 vs. 1114112)")};
  EXPECT_EQ(Run({"submit", file_}), 2);
  EXPECT_EQ(err_.str(), file_ + ": too large for the server (max_spec_bytes)\n");
  fake_.plan_status = absl::ResourceExhaustedError("Received message larger than max (2689080 vs. 1114112)");
  EXPECT_EQ(Run({"plan", file_}), 2);
  EXPECT_EQ(err_.str(), file_ + ": too large for the server (max_spec_bytes)\n");
}

TEST_F(VerbsTest, WhoseServerHasAnsweredIsNotAskedForTls) {
  fake_.streams = {{.until = 0, .status = absl::UnavailableError("Socket closed")}};
  EXPECT_EQ(Run({"artifacts", "01abc"}), 4);
  EXPECT_THAT(err_.str(), testing::EndsWith("is unavailable: Socket closed\n"));
  fake_.get_status = absl::UnavailableError("Socket closed");
  EXPECT_EQ(Run({"artifacts", "01abc"}), 4);
  EXPECT_THAT(err_.str(), testing::EndsWith("Socket closed (if it speaks TLS: --tls, or --ca FILE)\n"));
}

TEST_F(VerbsTest, TheListSaysWhyAJobFailed) {
  fake_.job.set_state(v1::Job::FAILED);
  fake_.job.mutable_failure()->set_class_(v1::Failure::DIVERGED);
  fake_.job.mutable_failure()->set_message("the loss is NaN at step 9");
  EXPECT_EQ(Run({"list", "--limit", "1"}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("DIVERGED: the loss is NaN at step 9\n"));
  fake_.job.mutable_failure()->set_message(std::string(200, 'x'));
  fake_.job.mutable_spec()->set_name(std::string(60, 'n'));
  EXPECT_EQ(Run({"list", "--limit", "1"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("DIVERGED: " + std::string(200, 'x') + "\n"));
  EXPECT_THAT(out_.str(), HasSubstr(std::string(60, 'n') + " "));
}

TEST_F(VerbsTest, TimesForPeopleAreLocalAndThoseForProgramsUtc) {
  const ScopedTimeZone zone("IST-5:30");
  fake_.job.mutable_create_time()->set_seconds(1769860801);
  EXPECT_EQ(Run({"list", "--limit", "1"}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("CREATED              WHY\n"));
  EXPECT_THAT(out_.str(), HasSubstr("  2026-01-31 17:30:01  -\n"));
  EXPECT_EQ(Run({"logs", "01abc", "--tail", "1"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("17:31:40  WARNING"));
  for (const char* format : {"json", "jsonl", "yaml"}) {
    EXPECT_EQ(Run({"list", "--limit", "1", "-o", format}), 0);
    EXPECT_THAT(out_.str(), HasSubstr("2026-01-31T12:00:01Z"));
  }
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("Times are local (TZ)"));
}

TEST_F(VerbsTest, LogsFollowARunningJobToItsEnd) {
  fake_.job.set_state(v1::Job::RUNNING);
  fake_.events = ExampleEvents(3, v1::Job::FAILED);
  fake_.job.set_last_sequence(4);
  EXPECT_EQ(Run({"logs", "01abc", "-f", "--tail", "1"}), 0) << err_.str();
  EXPECT_EQ(out_.str(), "12:00:03  RUNNING\n12:00:08  FAILED DATA: x.npy: truncated\n");
  EXPECT_EQ(fake_.watched.back().after_sequence(), 4);
  // Without -f the rest is not waited for.
  EXPECT_EQ(Run({"logs", "01abc"}), 0);
  EXPECT_EQ(out_.str(), "12:00:01  QUEUED\n12:00:02  STARTING\n12:00:03  RUNNING\n");
}

TEST_F(VerbsTest, SubmitHasNamesForWhatIsSetMost) {
  EXPECT_EQ(Run({"submit", "-q", file_, "--name", "5", "--gpus", "2", "--priority", "-7", "--label", "team=b",
                 "--label", "x=y=z"}),
            0)
      << err_.str();
  const v1::JobSpec& spec = fake_.created.back().spec();
  EXPECT_EQ(spec.name(), "5");
  EXPECT_EQ(spec.resources().gpus(), 2);
  EXPECT_EQ(spec.resources().priority(), -7);
  EXPECT_THAT(spec.labels(), testing::UnorderedElementsAre(testing::Pair("team", "b"), testing::Pair("old", "b"),
                                                           testing::Pair("x", "y=z")));
  EXPECT_EQ(Run({"submit", file_, "--name", ""}), 2);
  EXPECT_EQ(err_.str(), "--name: must not be empty\n");
  EXPECT_EQ(Run({"submit", file_, "--gpus", "0"}), 2);
  EXPECT_EQ(Run({"submit", file_, "--label", "team"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("'team' is not KEY=VALUE"));
}

TEST_F(VerbsTest, ColoursAreForTerminalsThatWantThem) {
  setenv("TERM", "xterm", 1);
  EXPECT_EQ(Run({"list", "--limit", "1"}, true), 0);
  EXPECT_THAT(out_.str(), HasSubstr("\x1b[32mSUCCEEDED\x1b[0m"));
  EXPECT_EQ(Run({"logs", "01abc", "--tail", "1"}, true), 0);
  EXPECT_EQ(out_.str(), "\x1b[33m12:01:40  WARNING slow?[2J disk\x1b[0m\n");
  setenv("NO_COLOR", "1", 1);
  EXPECT_EQ(Run({"list", "--limit", "1"}, true), 0);
  EXPECT_THAT(out_.str(), Not(HasSubstr("\x1b")));
  // Set and empty is not set.
  setenv("NO_COLOR", "", 1);
  EXPECT_EQ(Run({"devices"}, true), 0);
  EXPECT_THAT(out_.str(), HasSubstr("\x1b["));
  setenv("TERM", "dumb", 1);
  EXPECT_EQ(Run({"devices"}, true), 0);
  EXPECT_THAT(out_.str(), Not(HasSubstr("\x1b")));
  setenv("TERM", "xterm", 1);
  EXPECT_EQ(Run({"devices"}, false), 0);
  EXPECT_THAT(out_.str(), Not(HasSubstr("\x1b")));
}

TEST(TableTest, ColoursDoNotChangeWidths) {
  Table table({"A", "B"});
  table.Add({"FAILED", "x"});
  table.Add({"RUNNING", "y"});
  const std::string plain = table.ToString();
  table.Paint(0, ColorOfState);
  EXPECT_EQ(table.ToString(), "A        B\n\x1b[31mFAILED\x1b[0m   x\n\x1b[32mRUNNING\x1b[0m  y\n");
  EXPECT_EQ(plain, "A        B\nFAILED   x\nRUNNING  y\n");
}

TEST_F(VerbsTest, OfflineVerbsNeedNoServer) {
  fake_.Stop();
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"schema"}, {"init"}, {"man"}, {"completion", "bash"}}) {
    EXPECT_EQ(Run(words), 0) << words[0];
    EXPECT_GT(out_.str().size(), 100) << words[0];
  }
  EXPECT_EQ(Run({"top"}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("needs a terminal; --once prints"));
  EXPECT_EQ(Run({"top", "--once"}), 4);
}

TEST_F(VerbsTest, TopPrintsOneScreen) {
  fake_.job.set_state(v1::Job::RUNNING);
  fake_.job.mutable_spec()->set_name("demo");
  EXPECT_EQ(Run({"top", "--once"}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("ampd 9.9.9 at " + fake_.address()));
  EXPECT_THAT(out_.str(), HasSubstr("cpu-0"));
  EXPECT_THAT(out_.str(), HasSubstr("demo"));
}

TEST_F(VerbsTest, ACallMayHaveLessTime) {
  fake_.get_status = absl::UnavailableError("nobody");
  EXPECT_EQ(Run({"--timeout", "0.001", "get", "01abc"}), 4);
  EXPECT_EQ(Run({"--timeout", "0", "get", "01abc"}), 2);
  EXPECT_EQ(Run({"--timeout", "abc", "get", "01abc"}), 2);
  EXPECT_THAT(err_.str(), StartsWith("--timeout: 'abc' is no number of seconds from 0.001 to 1000000000\n"));
  EXPECT_EQ(Run({"wait", "01abc", "--timeout", "nan"}), 2);
  EXPECT_THAT(err_.str(), StartsWith("--timeout: 'nan' is no number of seconds"));
}

TEST_F(VerbsTest, ALifetimeThatIsNoneIsToldTheLargest) {
  for (const char* wrong : {"1000000d", "0s", "soon"}) {
    EXPECT_EQ(Run({"tokens", "create", "--user", "ann", "--role", "viewer", "--lifetime", wrong}), 2);
    EXPECT_EQ(err_.str(), std::string("ampctl: --lifetime: '") + wrong +
                              "' is no time from 1s to 36600d, such as 90d, 12h or 30m\n");
  }
}

}  // namespace
}  // namespace ampd::client
