#include "engine/train/train_state.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/core/json.h"
#include "engine/core/status.h"
#include "engine/train/failure.h"
#include "proto/spec/names.h"

namespace ampd::train {
namespace {

std::string LossToJson(const std::optional<double>& loss) {
  // Seventeen significant digits name a double exactly.
  return loss ? absl::StrFormat(",\n     \"loss\": %.17g", *loss) : "";
}

std::string InheritedToJson(const PhaseState& phase) {
  if (phase.inherited_applied == 0 && phase.inherited_skipped == 0) return "";
  return absl::StrFormat(",\n     \"inherited\": {\"steps_applied\": %d, \"steps_skipped\": %d}",
                         phase.inherited_applied, phase.inherited_skipped);
}

std::string ToJson(const PhaseState& phase) {
  const optim::LossScalerState& s = phase.scaler;
  // Nine significant digits name a float exactly.
  return absl::StrFormat(
      "    {\"name\": %s,\n"
      "     \"loss_scaler\": {\"scale\": %.9g, \"good_steps\": %d, \"hysteresis_left\": %d, \"steps_applied\": %d,\n"
      "                     \"steps_skipped\": %d, \"last_overflow_step\": %d, \"rollbacks\": %d, \"fell_back\": %s},\n"
      "     \"skips\": {\"consecutive\": %d, \"recent\": [%s]}%s%s}",
      JsonQuoted(phase.name), s.scale, s.good_steps, s.hysteresis_left, s.steps_applied, s.steps_skipped,
      s.last_overflow_step, s.rollbacks, s.fell_back ? "true" : "false", phase.skips.consecutive,
      absl::StrJoin(phase.skips.recent, ","), LossToJson(phase.loss), InheritedToJson(phase));
}

// Reads the members of one object; the first error sticks.
class Reader {
 public:
  Reader(const Json& object, absl::string_view name) : object_(object), name_(name) {
    if (object.kind() != Json::Kind::kObject) Fail("no object");
  }

  const Json& Member(absl::string_view key) {
    static const Json* const kNone = new Json();
    const Json* member = object_.Find(key);
    if (member == nullptr) Fail(absl::StrCat("no '", key, "'"));
    return member == nullptr ? *kNone : *member;
  }
  int64_t Count(absl::string_view key) {
    const int64_t value = Take(key, Member(key).AsInt64());
    if (value < 0) Fail(absl::StrCat(key, " is ", value));
    return value;
  }
  uint64_t Uint64(absl::string_view key) { return Take(key, Member(key).AsUint64()); }
  bool Bool(absl::string_view key) { return Take(key, Member(key).AsBool()); }
  std::string String(absl::string_view key) { return Take(key, Member(key).AsString()); }
  // Written as text: the parser's numbers are whole ones and floats.
  double Double(absl::string_view key) {
    const std::string text = String(key);
    double value = 0;
    if (status_.ok() && !absl::SimpleAtod(text, &value)) Fail(absl::StrCat(key, " is ", text));
    return value;
  }
  float PositiveFloat(absl::string_view key) {
    const float value = Take(key, Member(key).AsFloat());
    if (value <= 0) Fail(absl::StrCat(key, " is ", value));
    return value;
  }
  void Fail(absl::string_view what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(name_, ": ", what));
  }
  void Fail(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  const absl::Status& status() const { return status_; }

 private:
  template <typename T>
  T Take(absl::string_view key, absl::StatusOr<T> value) {
    if (value.ok()) return *std::move(value);
    Fail(absl::StrCat(key, ": ", value.status().message()));
    return T();
  }

  const Json& object_;
  std::string name_;
  absl::Status status_;
};

absl::StatusOr<optim::LossScalerState> ParseScaler(const Json& json) {
  Reader reader(json, "loss_scaler");
  optim::LossScalerState state;
  state.scale = reader.PositiveFloat("scale");
  state.good_steps = reader.Count("good_steps");
  state.hysteresis_left = reader.Count("hysteresis_left");
  state.steps_applied = reader.Count("steps_applied");
  state.steps_skipped = reader.Count("steps_skipped");
  state.last_overflow_step = reader.Count("last_overflow_step");
  state.rollbacks = reader.Count("rollbacks");
  state.fell_back = reader.Bool("fell_back");
  AMPD_RETURN_IF_ERROR(reader.status());
  return state;
}

absl::StatusOr<SkipHistory> ParseSkips(const Json& json) {
  Reader reader(json, "skips");
  SkipHistory history;
  history.consecutive = reader.Count("consecutive");
  for (const Json& item : reader.Member("recent").items()) {
    AMPD_ASSIGN_OR_RETURN(const int64_t step, item.AsInt64());
    if (!history.recent.empty() && step <= history.recent.back()) reader.Fail("recent is not in order");
    history.recent.push_back(step);
  }
  AMPD_RETURN_IF_ERROR(reader.status());
  return history;
}

// Absent in checkpoints of jobs that keep none, and in those of earlier builds.
absl::StatusOr<std::optional<BestEvaluation>> ParseBest(const Json* json) {
  if (json == nullptr) return std::optional<BestEvaluation>();
  Reader reader(*json, "best");
  BestEvaluation best;
  best.step = reader.Count("step");
  best.metric = reader.Double("metric");
  AMPD_RETURN_IF_ERROR(reader.status());
  return std::optional<BestEvaluation>(best);
}

std::string BestToJson(const std::optional<BestEvaluation>& best) {
  if (!best) return "";
  // Seventeen significant digits name a double exactly.
  return absl::StrFormat("  \"best\": {\"step\": %d, \"metric\": \"%.17g\"},\n", best->step, best->metric);
}

// Absent in checkpoints of jobs that do not stop early.
absl::StatusOr<std::optional<StoppingState>> ParseStopping(const Json* json) {
  if (json == nullptr) return std::optional<StoppingState>();
  Reader reader(*json, "early_stopping");
  StoppingState stopping;
  stopping.best_step = reader.Count("best_step");
  stopping.best_metric = reader.Double("best_metric");
  stopping.step = reader.Count("step");
  stopping.waited = reader.Count("waited");
  stopping.applied = reader.Count("applied");
  AMPD_RETURN_IF_ERROR(reader.status());
  return std::optional<StoppingState>(stopping);
}

std::string StoppingToJson(const std::optional<StoppingState>& stopping) {
  if (!stopping) return "";
  return absl::StrFormat(
      "  \"early_stopping\": {\"best_step\": %d, \"best_metric\": \"%.17g\", \"step\": %d, \"waited\": %d, "
      "\"applied\": %d},\n",
      stopping->best_step, stopping->best_metric, stopping->step, stopping->waited, stopping->applied);
}

std::string BucketsToJson(const std::vector<int64_t>& buckets) {
  if (buckets.empty()) return "";
  return absl::StrCat(",\n            \"length_buckets\": [", absl::StrJoin(buckets, ", "), "]");
}

std::string InputToJson(const InputNotes& input) {
  if (input.mean.empty()) return "";
  const auto number = [](std::string* out, double value) { absl::StrAppendFormat(out, "%.17g", value); };
  const auto quoted = [](std::string* out, const std::string& name) { absl::StrAppend(out, JsonQuoted(name)); };
  return absl::StrCat("  \"input\": {\"mean\": [", absl::StrJoin(input.mean, ", ", number),
                      "],\n            \"std\": [", absl::StrJoin(input.std, ", ", number),
                      "],\n            \"classes\": [", absl::StrJoin(input.classes, ", ", quoted),
                      "],\n            \"samples\": ", input.samples, BucketsToJson(input.length_buckets), "},\n");
}

std::string OnnxToJson(const std::string& sha256) {
  return sha256.empty() ? "" : absl::StrCat("  \"onnx_sha256\": ", JsonQuoted(sha256), ",\n");
}

// Absent where no data was opened.
absl::StatusOr<InputNotes> ParseInput(const Json* json) {
  InputNotes input;
  if (json == nullptr) return input;
  Reader reader(*json, "input");
  for (const Json& mean : reader.Member("mean").items()) {
    AMPD_ASSIGN_OR_RETURN(input.mean.emplace_back(), mean.AsDouble());
  }
  for (const Json& std : reader.Member("std").items()) {
    AMPD_ASSIGN_OR_RETURN(input.std.emplace_back(), std.AsDouble());
  }
  for (const Json& name : reader.Member("classes").items()) {
    AMPD_ASSIGN_OR_RETURN(input.classes.emplace_back(), name.AsString());
  }
  if (json->Find("samples") != nullptr) input.samples = reader.Count("samples");
  if (const Json* buckets = json->Find("length_buckets"); buckets != nullptr) {
    for (const Json& length : buckets->items()) {
      AMPD_ASSIGN_OR_RETURN(input.length_buckets.emplace_back(), length.AsInt64());
    }
  }
  AMPD_RETURN_IF_ERROR(reader.status());
  return input;
}

// Builds may round differently.
bool AreClose(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) {
    return std::abs(x - y) <= 1e-9 * std::max({1.0, std::abs(x), std::abs(y)});
  });
}

std::string ClassNamed(const std::vector<std::string>& names, size_t i) {
  return i < names.size() ? Quoted(names[i]) : "none";
}

absl::StatusOr<PhaseState> ParsePhase(const Json& json) {
  Reader reader(json, "phase");
  PhaseState phase;
  phase.name = reader.String("name");
  const Json& scaler = reader.Member("loss_scaler");
  const Json& skips = reader.Member("skips");
  AMPD_RETURN_IF_ERROR(reader.status());
  AMPD_ASSIGN_OR_RETURN(phase.scaler, ParseScaler(scaler));
  AMPD_ASSIGN_OR_RETURN(phase.skips, ParseSkips(skips));
  if (const Json* loss = json.Find("loss"); loss != nullptr) {
    AMPD_ASSIGN_OR_RETURN(phase.loss, loss->AsDouble());
  }
  if (const Json* inherited = json.Find("inherited"); inherited != nullptr) {
    Reader counts(*inherited, "inherited");
    phase.inherited_applied = counts.Count("steps_applied");
    phase.inherited_skipped = counts.Count("steps_skipped");
    if (phase.inherited_applied > phase.scaler.steps_applied || phase.inherited_skipped > phase.scaler.steps_skipped) {
      counts.Fail("more than loss_scaler counts");
    }
    AMPD_RETURN_IF_ERROR(counts.status());
  }
  return phase;
}

}  // namespace

std::string ToJson(const TrainState& state) {
  const auto phase = [](std::string* out, const PhaseState& p) { absl::StrAppend(out, ToJson(p)); };
  return absl::StrCat("{\n  \"format_version\": ", kStateFormatVersion, ",\n  \"step\": ", state.step,
                      ",\n  \"seed\": ", state.seed, ",\n  \"spec_hash\": ", JsonQuoted(state.spec_hash),
                      ",\n  \"spec\": ", JsonQuoted(state.spec), ",\n", BestToJson(state.best),
                      StoppingToJson(state.stopping), InputToJson(state.input), OnnxToJson(state.onnx_sha256),
                      "  \"phases\": [\n", absl::StrJoin(state.phases, ",\n", phase), "\n  ]\n}\n");
}

absl::StatusOr<TrainState> TrainStateFromJson(absl::string_view json) {
  AMPD_ASSIGN_OR_RETURN(const Json document, ParseJson(json));
  Reader reader(document, "state");
  const int64_t version = reader.Count("format_version");
  AMPD_RETURN_IF_ERROR(reader.status());
  if (version != kStateFormatVersion && version != kStateFormatVersion - 1) {
    return absl::FailedPreconditionError(absl::StrCat("checkpoint format ", version, ", this build reads formats ",
                                                      kStateFormatVersion - 1, " and ", kStateFormatVersion));
  }
  TrainState state;
  state.step = reader.Count("step");
  state.seed = reader.Uint64("seed");
  state.spec_hash = reader.String("spec_hash");
  if (version >= 3) state.spec = reader.String("spec");
  AMPD_ASSIGN_OR_RETURN(state.best, ParseBest(document.Find("best")));
  AMPD_ASSIGN_OR_RETURN(state.stopping, ParseStopping(document.Find("early_stopping")));
  AMPD_ASSIGN_OR_RETURN(state.input, ParseInput(document.Find("input")));
  if (document.Find("onnx_sha256") != nullptr) state.onnx_sha256 = reader.String("onnx_sha256");
  for (const Json& item : reader.Member("phases").items()) {
    AMPD_ASSIGN_OR_RETURN(PhaseState phase, ParsePhase(item));
    state.phases.push_back(std::move(phase));
  }
  AMPD_RETURN_IF_ERROR(reader.status());
  return state;
}

absl::StatusOr<std::vector<std::string>> CompareInputs(const InputNotes& before, const InputNotes& now) {
  std::vector<std::string> lines;
  if (before.mean.empty()) return lines;
  for (size_t i = 0; i < std::max(before.classes.size(), now.classes.size()); ++i) {
    if (i < std::min(before.classes.size(), now.classes.size()) && before.classes[i] == now.classes[i]) continue;
    const std::string was = ClassNamed(before.classes, i), is = ClassNamed(now.classes, i);
    return WithFailureClass(
        absl::FailedPreconditionError(absl::StrCat(
            "data.train: class ", i, " was ", was, " when the checkpoint was written and is ",
            was == is ? "another that begins alike" : is,
            " now, so labels stand for other classes than those learned; put the data back, or begin another job")),
        v1::Failure::DATA);
  }
  if (before.samples > 0 && before.samples != now.samples) {
    lines.push_back(absl::StrCat("data.train has ", now.samples, " samples; it had ", before.samples,
                                 " when the checkpoint was written, and its epochs are others from here on"));
  } else if (!before.length_buckets.empty() && before.length_buckets != now.length_buckets) {
    lines.push_back(absl::StrCat("data.length_buckets: sequences are padded to ",
                                 absl::StrJoin(now.length_buckets, ", "), " steps; it was to ",
                                 absl::StrJoin(before.length_buckets, ", "),
                                 " when the checkpoint was written, and batches are others from here on"));
  }
  if (!AreClose(before.mean, now.mean) || !AreClose(before.std, now.std)) {
    lines.push_back(
        "data.image.normalize: mean or deviation of the training samples are others than when the "
        "checkpoint was written, so the network is fed other numbers from here on");
  }
  return lines;
}

}  // namespace ampd::train
