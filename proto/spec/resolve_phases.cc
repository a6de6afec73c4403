// The phases of a job, and the sources that the networks of `model.networks` may read.
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve_internal.h"

namespace ampd {
namespace {

constexpr int kMaxPhases = 16;
constexpr int kMaxCalls = 256;
// Applied by all calls of all phases: every one becomes nodes of a graph.
constexpr int64_t kMaxAppliedLayers = 20000;
constexpr int kMaxLosses = 64;
constexpr int kMaxTrained = 100;
constexpr size_t kMaxPatternBytes = 100;
constexpr size_t kMaxNameBytes = 200;
constexpr int64_t kMaxEvery = int64_t{1} << 40;
const Interval kLossNumber = {.low = -1e6, .high = 1e6};

void CheckName(const std::string& field, const std::string& name, Violations* violations) {
  violations->CheckText(field, name, kMaxNameBytes);
  if (!name.empty() && name.size() <= kMaxNameBytes && !IsMadeOf(name, "_-")) {
    violations->Add(field, absl::StrCat("may hold letters, digits, '_' and '-' only, is ", Quoted(name)));
  }
}

// One phase of a job with networks.
class PhaseCheck {
 public:
  PhaseCheck(const v1::JobSpec& spec, std::string path, v1::PhaseSpec* phase, Violations* violations)
      : spec_(spec), path_(std::move(path)), phase_(phase), violations_(violations) {
    for (const v1::Network& network : spec.model().networks()) networks_[network.name()] = &network;
    for (const char* source : {"data", "labels", "targets"}) AddValue(source);
    for (const v1::NoiseSource& noise : spec.model().noise()) AddValue(noise.name());
    sources_ = values_.size();
  }

  // Adds the layers that the calls apply to `applied`, and the networks that they call to `called`.
  void Resolve(int64_t* applied, std::unordered_set<std::string>* called) {
    if (TooMany("calls", phase_->calls_size(), kMaxCalls) || TooMany("losses", phase_->losses_size(), kMaxLosses) ||
        TooMany("trains", phase_->trains_size(), kMaxTrained)) {
      return;
    }
    if (phase_->calls().empty()) violations_->Add(Field("calls"), "required, at least one call of a network");
    if (phase_->losses().empty()) violations_->Add(Field("losses"), "required, at least one loss");
    for (int i = 0; i < phase_->calls_size(); ++i) ResolveCall(i, applied);
    for (int i = 0; i < phase_->losses_size(); ++i) ResolveLossOf(i);
    if (phase_->trains().empty()) {
      violations_->Add(Field("trains"), "required: the networks, or globs of parameters, that this phase updates");
    }
    for (int i = 0; i < phase_->trains_size(); ++i) CheckTrained(Indexed(Field("trains"), i), phase_->trains(i));
    called->insert(called_.begin(), called_.end());
  }

 private:
  std::string Field(const char* name) const { return absl::StrCat(path_, ".", name); }

  bool TooMany(const char* field, int size, int most) {
    if (size <= most) return false;
    violations_->Add(Field(field), absl::StrCat("must be at most ", most, ", are ", size));
    return true;
  }

  void AddValue(const std::string& name) {
    if (known_.insert(name).second) values_.push_back(name);
  }

  void ResolveCall(int index, int64_t* applied) {
    v1::NetworkCall* call = phase_->mutable_calls(index);
    const std::string path = Indexed(Field("calls"), index);
    if (call->name().empty()) call->set_name(call->network());
    const auto network = networks_.find(call->network());
    if (network == networks_.end()) {
      if (violations_->full()) return;
      std::vector<std::string> names;
      for (const v1::Network& n : spec_.model().networks()) names.push_back(n.name());
      violations_->Add(path + ".network", absl::StrCat("no network is named ", Quoted(call->network()),
                                                       DidYouMean(call->network(), names)));
    } else {
      called_.insert(call->network());
      *applied += network->second->layers_size();
      if (call->inputs_size() != network->second->inputs_size()) {
        violations_->Add(path + ".inputs", absl::StrCat("network ", call->network(), " reads ",
                                                        network->second->inputs_size(), ", has ", call->inputs_size()));
      }
      for (int i = 0; i < call->inputs_size(); ++i) CheckValue(Indexed(path + ".inputs", i), call->inputs(i));
    }
    CheckName(path + ".name", call->name(), violations_);
    if (known_.count(call->name()) != 0) {
      violations_->Add(path + ".name",
                       absl::StrCat("another call or source is named ", Quoted(call->name()), " already"));
    }
    AddValue(call->name());
  }

  void CheckValue(const std::string& field, const std::string& name) {
    if (known_.count(name) != 0 || violations_->full()) return;
    violations_->Add(field,
                     absl::StrCat("no source and no earlier call is named ", Quoted(name), DidYouMean(name, values_)));
  }

  void ResolveLossOf(int index) {
    v1::PhaseLoss* loss = phase_->mutable_losses(index);
    const std::string path = Indexed(Field("losses"), index);
    ResolveLoss(path + ".loss", loss->mutable_loss(), violations_);
    if (!loss->has_weight()) loss->set_weight(1);
    violations_->CheckReal(path + ".weight", loss->weight(), kLossNumber);
    CheckValue(path + ".input", loss->input());
    const bool of_classes = loss->loss().has_softmax_cross_entropy();
    if (of_classes && loss->against_case() == v1::PhaseLoss::AGAINST_NOT_SET) loss->set_target_from("labels");
    if (of_classes && loss->target_from() != "labels") {
      violations_->Add(path + ".target_from", "softmax_cross_entropy is against 'labels'");
    } else if (loss->against_case() == v1::PhaseLoss::AGAINST_NOT_SET) {
      violations_->Add(path + ".target", "required, or target_from");
    } else if (loss->has_target()) {
      violations_->CheckReal(path + ".target", loss->target(), kLossNumber);
    } else if (!of_classes && loss->target_from() == "labels") {
      violations_->Add(path + ".target_from", "class labels are for softmax_cross_entropy alone");
    } else {
      CheckValue(path + ".target_from", loss->target_from());
    }
  }

  // Globs are tried on parameters once these are known.
  void CheckTrained(const std::string& field, const std::string& trained) {
    if (trained.empty() || trained.size() > kMaxPatternBytes) {
      return violations_->CheckText(field, trained, kMaxPatternBytes);
    }
    if (trained.find_first_of(".*?") != std::string::npos || violations_->full()) return;
    if (called_.count(trained) != 0) return;
    std::vector<std::string> names(called_.begin(), called_.end());
    violations_->Add(field, networks_.count(trained) != 0
                                ? absl::StrCat("no call of the phase applies network ", Quoted(trained))
                                : absl::StrCat("no network is named ", Quoted(trained), DidYouMean(trained, names)));
  }

  const v1::JobSpec& spec_;
  const std::string path_;
  v1::PhaseSpec* phase_;
  Violations* violations_;
  std::unordered_map<std::string, const v1::Network*> networks_;
  std::unordered_set<std::string> known_;
  std::vector<std::string> values_;
  size_t sources_ = 0;
  std::unordered_set<std::string> called_;
};

void ResolvePhaseOptimizer(const std::string& path, v1::OptimizerSpec* optimizer, Violations* violations) {
  if (optimizer->has_ema()) {
    violations->Add(path + ".optimizer.ema", "the running average is the job's: give it in optimizer.ema");
    return;
  }
  Violations own;
  ResolveOptimizer(/*has_eval=*/false, /*has_samples=*/false, optimizer, &own);
  for (const FieldViolation& violation : own.list()) {
    violations->Add(absl::StrCat(path, ".", violation.field), violation.description);
  }
}

void ResolveNames(v1::JobSpec* spec, Violations* violations) {
  std::unordered_set<std::string> names;
  bool every_step = false;
  for (int i = 0; i < spec->phases_size(); ++i) {
    v1::PhaseSpec* phase = spec->mutable_phases(i);
    const std::string path = Indexed("phases", i);
    if (phase->name().empty() && spec->phases_size() == 1) phase->set_name("main");
    if (!phase->has_every()) phase->set_every(1);
    CheckName(path + ".name", phase->name(), violations);
    if (!names.insert(phase->name()).second) {
      violations->Add(path + ".name", absl::StrCat("duplicate name ", Quoted(phase->name())));
    }
    violations->CheckInteger(path + ".every", phase->every(), 1, kMaxEvery);
    every_step = every_step || phase->every() <= 1;
  }
  if (!every_step) violations->Add("phases[0].every", "one phase at least must run in every step");
}

// Of a job without networks.
void CheckPlain(const v1::JobSpec& spec, Violations* violations) {
  if (spec.phases_size() > 1) {
    violations->Add("phases", absl::StrCat("more than one needs model.networks, are ", spec.phases_size()));
  }
  if (!spec.model().noise().empty()) violations->Add("model.noise", "needs model.networks");
  const v1::PhaseSpec& phase = spec.phases(0);
  if (!phase.trains().empty()) violations->Add("phases[0].trains", "needs model.networks");
  if (!phase.calls().empty()) violations->Add("phases[0].calls", "needs model.networks");
  if (!phase.losses().empty()) violations->Add("phases[0].losses", "needs model.networks");
  if (phase.has_optimizer()) violations->Add("phases[0].optimizer", "needs model.networks; else give optimizer");
}

void CheckCalled(const v1::JobSpec& spec, const std::unordered_set<std::string>& called, Violations* violations) {
  for (int i = 0; i < spec.model().networks_size(); ++i) {
    const std::string& name = spec.model().networks(i).name();
    if (called.count(name) != 0 || violations->full()) continue;
    violations->Add(Indexed("model.networks", i), absl::StrCat("no phase calls ", Quoted(name)));
  }
}

}  // namespace

void ResolvePhases(v1::JobSpec* spec, Violations* violations) {
  if (spec->phases_size() > kMaxPhases) {
    violations->Add("phases", absl::StrCat("must be at most ", kMaxPhases, ", are ", spec->phases_size()));
    return;
  }
  if (spec->phases().empty()) spec->add_phases();
  ResolveNames(spec, violations);
  if (spec->model().networks().empty()) return CheckPlain(*spec, violations);
  if (spec->data().has_eval()) {
    violations->Add("data.eval", "jobs with model.networks are not evaluated yet: leave it out");
  }
  int64_t applied = 0;
  std::unordered_set<std::string> called;
  for (int i = 0; i < spec->phases_size(); ++i) {
    v1::PhaseSpec* phase = spec->mutable_phases(i);
    PhaseCheck(*spec, Indexed("phases", i), phase, violations).Resolve(&applied, &called);
    if (phase->has_optimizer()) ResolvePhaseOptimizer(Indexed("phases", i), phase->mutable_optimizer(), violations);
  }
  if (applied > kMaxAppliedLayers) {
    violations->Add("phases", absl::StrCat("the calls apply ", applied, " layers in all, at most ", kMaxAppliedLayers));
  }
  CheckCalled(*spec, called, violations);
}

}  // namespace ampd
