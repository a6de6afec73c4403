#include "client/analysis/diff.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/analysis/environment.h"
#include "client/analysis/json_text.h"
#include "client/output/job_text.h"
#include "client/output/table.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

constexpr size_t kMostFields = 200;
constexpr size_t kMostSteps = 10;
constexpr int kValueWidth = 36;

struct CommonStep {
  int64_t step;
  double a, b;
};

std::map<std::string, std::vector<CommonStep>> CommonCurves(const Events& a, const Events& b) {
  std::map<std::string, std::vector<CommonStep>> common;
  const auto of_a = LossCurves(a), of_b = LossCurves(b);
  for (const auto& [phase, curve] : of_a) {
    const auto other = of_b.find(phase);
    if (other == of_b.end()) continue;
    for (const auto& [step, reported] : curve) {
      const auto same = other->second.find(step);
      // Reports cover as many steps as there were in a time: means over others are no match.
      if (same == other->second.end() || same->second.first_step != reported.first_step) continue;
      common[phase].push_back({step, reported.loss, same->second.loss});
    }
  }
  return common;
}

// NaN is NaN, as the determinism that is asked for is one of bits.
bool IsSame(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

std::string CurveText(const std::string& phase, const std::vector<CommonStep>& steps) {
  Table table({">STEP", ">LOSS A", ">LOSS B", ">B - A"});
  const size_t shown = std::min(kMostSteps, steps.size());
  for (size_t i = 0; i < shown; ++i) {
    const CommonStep& s = steps[shown == 1 ? 0 : i * (steps.size() - 1) / (shown - 1)];
    table.Add({absl::StrCat(s.step), Figure(s.a), Figure(s.b),
               std::isfinite(s.b - s.a) ? absl::StrFormat("%+.3g", s.b - s.a) : "-"});
  }
  size_t equal = 0;
  for (const CommonStep& s : steps) equal += IsSame(s.a, s.b) ? 1 : 0;
  return absl::StrCat("loss", phase == "main" ? "" : absl::StrCat(" of ", Clean(phase)), " in ", steps.size(),
                      steps.size() == 1 ? " report" : " reports", " of the same steps, equal to the bit at ", equal,
                      "\n", table.ToString());
}

std::string Or(bool has, const std::string& value) { return has ? value : "-"; }

std::string DevicesText(const JobAndEvents& of) {
  const std::vector<std::string> ids = DevicesOf(of.job, of.events);
  return ids.empty() ? "-" : Clean(absl::StrJoin(ids, ", "));
}

std::vector<EnvironmentPair> EnvironmentsOf(const JobAndEvents& a, const JobAndEvents& b) {
  return PairEnvironments(NewestEnvironment(a.events), NewestEnvironment(b.events));
}

std::string Value(const std::string& text, bool cut) { return cut ? Shorten(Clean(text), kValueWidth) : Clean(text); }

void AddFigures(const JobAndEvents& of_a, const JobAndEvents& of_b, bool cut, Table* table) {
  const v1::Job &a = of_a.job, &b = of_b.job;
  const auto add = [&](const std::string& name, const auto& value) { table->Add({name, value(a), value(b)}); };
  add("state", [](const v1::Job& j) { return v1::Job::State_Name(j.state()); });
  table->Add({"device", DevicesText(of_a), DevicesText(of_b)});
  add("mode", ModeText);
  add("attempts", [](const v1::Job& j) { return absl::StrCat(j.attempt()); });
  add("parameters", [](const v1::Job& j) { return Or(IsPlanned(j), absl::StrCat(j.plan().parameters())); });
  add("steps", [](const v1::Job& j) { return absl::StrCat(j.summary().step(), "/", j.summary().total_steps()); });
  add("skipped", [](const v1::Job& j) { return absl::StrCat(j.summary().steps_skipped()); });
  add("loss", [](const v1::Job& j) { return Or(j.summary().has_loss(), Figure(j.summary().loss())); });
  add("eval loss", [](const v1::Job& j) { return Or(j.summary().has_eval_loss(), Figure(j.summary().eval_loss())); });
  add("accuracy", [](const v1::Job& j) { return Or(j.summary().has_accuracy(), Figure(j.summary().accuracy())); });
  add("step time",
      [](const v1::Job& j) { return Or(j.summary().has_step_seconds(), StepTime(j.summary().step_seconds())); });
  add("samples/s", [](const v1::Job& j) { return Count(j.summary().samples_per_second()); });
  for (const EnvironmentPair& part : EnvironmentsOf(of_a, of_b)) {
    // Which ones they held is a row already.
    const std::string name = part.name == "device" ? "device name" : Clean(part.name);
    table->Add({name, Value(part.a, cut), Value(part.b, cut)});
  }
}

}  // namespace

std::vector<FieldDifference> SpecDifferences(const v1::JobSpec& a, const v1::JobSpec& b) {
  v1::JobSpec renamed = b;
  renamed.set_name(a.name());
  return Differences(a, renamed, kMostFields);
}

std::string DiffText(const JobAndEvents& a, const JobAndEvents& b, bool cut) {
  std::string text = absl::StrCat("A  ", a.job.id(), " ", Clean(a.job.spec().name()), "\nB  ", b.job.id(), " ",
                                  Clean(b.job.spec().name()), "\n\n");
  const std::vector<FieldDifference> fields = SpecDifferences(a.job.spec(), b.job.spec());
  Table specs({"FIELD", "A", "B"});
  for (const FieldDifference& f : fields) {
    specs.Add({Clean(f.field), Value(f.a, cut), Value(f.b, cut)});
  }
  absl::StrAppend(&text, fields.empty() ? "the specs are equal\n" : specs.ToString(), "\n");
  Table figures({"", "A", "B"});
  AddFigures(a, b, cut, &figures);
  const Determinism determinism = DeterminismOf(a.events, b.events);
  absl::StrAppend(&text, figures.ToString(), "\n", determinism.reason,
                  determinism.equal_bits && !fields.empty() ? "; these specs differ\n" : "\n");
  const auto curves = CommonCurves(a.events, b.events);
  for (const auto& [phase, steps] : curves) absl::StrAppend(&text, "\n", CurveText(phase, steps));
  if (curves.empty()) text += "\nno report of theirs is of the same steps (report: {every_steps: N} makes such)\n";
  return text;
}

std::string DiffJson(const JobAndEvents& a, const JobAndEvents& b) {
  std::vector<std::string> fields, environment, curves;
  for (const FieldDifference& f : SpecDifferences(a.job.spec(), b.job.spec())) {
    fields.push_back(
        absl::StrCat("{\"field\": ", JsonText(f.field), ", \"a\": ", JsonText(f.a), ", \"b\": ", JsonText(f.b), "}"));
  }
  for (const auto& [phase, steps] : CommonCurves(a.events, b.events)) {
    curves.push_back(absl::StrCat(JsonText(phase), ": [",
                                  absl::StrJoin(steps, ", ",
                                                [](std::string* out, const CommonStep& s) {
                                                  absl::StrAppend(out, "[", s.step, ", ", JsonNumber(s.a), ", ",
                                                                  JsonNumber(s.b), "]");
                                                }),
                                  "]"));
  }
  for (const EnvironmentPair& part : EnvironmentsOf(a, b)) {
    environment.push_back(absl::StrCat("{\"part\": ", JsonText(part.name), ", \"a\": ", JsonText(part.a),
                                       ", \"b\": ", JsonText(part.b), "}"));
  }
  const Determinism determinism = DeterminismOf(a.events, b.events);
  return absl::StrCat("{\"a\": ", JsonText(a.job.id()), ", \"b\": ", JsonText(b.job.id()), ", \"fields\": [",
                      absl::StrJoin(fields, ", "), "], \"environment\": [", absl::StrJoin(environment, ", "),
                      "], \"deterministic\": ", determinism.equal_bits ? "true" : "false",
                      ", \"deterministic_reason\": ", JsonText(determinism.reason), ", \"curves\": {",
                      absl::StrJoin(curves, ", "), "}}\n");
}

}  // namespace ampd::client
