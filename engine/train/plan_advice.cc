#include "engine/train/plan_advice.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "engine/core/status.h"
#include "engine/train/spec_configs.h"
#include "proto/spec/device_memory.h"
#include "proto/spec/device_models.h"
#include "proto/spec/yaml.h"

namespace ampd::train {
namespace {

using v1::Advice;
using v1::PrecisionSpec;

// Gains below these are not worth a change.
constexpr double kAlignGain = 1.005;
constexpr double kBatchGain = 1.1;
constexpr double kWidenGain = 1.1;
constexpr double kModeGain = 1.05;
// An output that many wide is a vocabulary, not a handful of classes.
constexpr int64_t kVocabulary = 1000;
// Of each kind, so that a large model is planned a bounded number of times.
constexpr size_t kMostAligned = 8;
constexpr int64_t kMostTimesTheBatch = 8;

std::string Time(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.3g us", seconds * 1e6);
  return seconds < 1 ? absl::StrFormat("%.3g ms", seconds * 1e3) : absl::StrFormat("%.3g s", seconds);
}

// A number of the spec that says how wide a layer is.
struct Width {
  std::string field;
  std::string layer;
  int64_t value = 0;
  bool is_vocabulary = false;
  // Of a network's last layer: what is predicted, not how.
  bool is_output = false;
};

void AddWidths(const google::protobuf::RepeatedPtrField<v1::Layer>& layers, const std::string& path,
               const std::string& prefix, std::vector<Width>* widths) {
  for (int i = 0; i < layers.size(); ++i) {
    const v1::Layer& layer = layers[i];
    const std::string at = absl::StrCat(path, "[", i, "]."), name = prefix + layer.name();
    const auto add = [&](const char* field, int64_t value, bool vocabulary = false) {
      widths->push_back({at + field, name, value, vocabulary, i + 1 == layers.size()});
    };
    if (layer.has_dense()) add("dense.units", layer.dense().units());
    if (layer.has_conv2d() && layer.conv2d().groups() <= 1) add("conv2d.filters", layer.conv2d().filters());
    if (layer.has_conv_transpose2d()) add("conv_transpose2d.filters", layer.conv_transpose2d().filters());
    if (layer.has_lstm()) add("lstm.units", layer.lstm().units());
    if (layer.has_gru()) add("gru.units", layer.gru().units());
    if (layer.has_embedding()) add("embedding.features", layer.embedding().features());
    if (layer.has_embedding()) add("embedding.vocabulary", layer.embedding().vocabulary(), true);
  }
}

std::vector<Width> WidthsOf(const v1::JobSpec& spec) {
  std::vector<Width> widths;
  AddWidths(spec.model().layers(), "model.layers", "", &widths);
  for (int i = 0; i < spec.model().networks_size(); ++i) {
    const v1::Network& network = spec.model().networks(i);
    AddWidths(network.layers(), absl::StrCat("model.networks[", i, "].layers"), network.name() + ".", &widths);
  }
  return widths;
}

class Adviser {
 public:
  Adviser(const DevicePlanner& planner, const ResolvedJobSpec& spec, const DevicePlan& plan, const StepCosts& costs,
          const v1::PlanReport& report)
      : planner_(planner),
        spec_(spec),
        plan_(plan),
        costs_(costs),
        by_library_(!report.library().empty()),
        modes_(report.modes()),
        widths_(WidthsOf(spec.proto())) {}

  std::vector<Advice> Run() {
    // The mode's advice depends on it, and stands before it.
    if (costs_.seconds > 0) AdviseAlignment();
    std::vector<Advice> alignment = std::exchange(advice_, {});
    AdviseMemory();
    if (costs_.seconds > 0 || !ModeRefusal(planner_.model(), mode()).empty()) AdviseMode();
    advice_.insert(advice_.end(), std::make_move_iterator(alignment.begin()), std::make_move_iterator(alignment.end()));
    if (costs_.seconds > 0) {
      AdviseBatch();
      AdviseWidth();
    }
    return std::move(advice_);
  }

 private:
  int64_t batch() const { return spec_.proto().train().batch_size(); }
  int64_t devices() const { return spec_.proto().resources().gpus(); }
  // What one device takes of a batch.
  int64_t share() const { return batch() / devices(); }
  bool in_one_piece() const { return share() == spec_.proto().train().micro_batch_size(); }
  PrecisionSpec::Mode mode() const { return spec_.proto().precision().mode(); }

  // What extents are padded to for matrix units. A CPU's ask for none.
  int64_t Multiple() const {
    if (planner_.model().kind() == v1::Device::CPU) return 1;
    if (mode() == PrecisionSpec::FP8) return 16;
    return mode() == PrecisionSpec::TF32 ? 4 : mode() == PrecisionSpec::FP32 ? 1 : 8;
  }

  absl::optional<StepCosts> CostsWith(const ResolvedJobSpec& spec) const {
    const auto planned = planner_.Plan(spec);
    if (!planned.ok()) return absl::nullopt;
    return planner_.Costs(spec, *planned);
  }

  // Layers of one width, which often have to keep one width, and what that becomes.
  struct Change {
    std::vector<Width> widths;
    int64_t to = 0;

    int64_t from() const { return widths[0].value; }
  };

  absl::optional<StepCosts> CostsWith(absl::Span<const Change> changes) const {
    v1::JobSpec changed = spec_.proto();
    for (const Change& change : changes) {
      for (const Width& width : change.widths) {
        if (!ApplySet(&changed, absl::StrCat(width.field, "=", change.to)).ok()) return absl::nullopt;
      }
    }
    const auto resolved = ResolveJobSpec(std::move(changed));
    if (!resolved.ok()) return absl::nullopt;
    return CostsWith(*resolved);
  }

  Advice* Add(Advice::Kind kind, const std::string& layer, const std::string& text) {
    advice_.emplace_back();
    advice_.back().set_kind(kind);
    advice_.back().set_layer(layer);
    advice_.back().set_text(text);
    return &advice_.back();
  }

  std::string Gain(double before, double after) const {
    return absl::StrCat("the step's floor falls from ", Time(before), " to ", Time(after));
  }

  // Whether the job would fit in micro-batches of that size.
  bool Fits(int64_t micro_batch) const {
    v1::JobSpec changed = spec_.proto();
    changed.mutable_train()->set_micro_batch_size(micro_batch);
    const auto resolved = ResolveJobSpec(std::move(changed));
    if (!resolved.ok()) return false;
    const auto planned = by_library_ ? planner_.PlanByLibrary(*resolved) : planner_.Plan(*resolved);
    return planned.ok() && TotalBytes(*planned) <= planner_.room_bytes();
  }

  // Of those that cut a device's share of the batch evenly and are smaller than the job's; 0: none fits.
  int64_t LargestMicroBatch() const {
    const v1::ModeEstimate* own = nullptr;
    for (const v1::ModeEstimate& m : modes_) own = m.mode() == mode() && m.supported() ? &m : own;
    // What does not fit as a batch of its own does not as a part of one; what fits mostly does, and is tried first.
    int64_t most = spec_.proto().train().micro_batch_size() - 1;
    if (own != nullptr) most = std::min(most, own->largest_batch());
    std::vector<int64_t> sizes;
    for (int64_t size = 1; size <= most; ++size) {
      if (share() % size == 0) sizes.push_back(size);
    }
    auto first = sizes.begin(), last = sizes.end();
    for (auto at = first == last ? last : last - 1; first != last; at = first + (last - first) / 2) {
      if (Fits(*at)) {
        first = at + 1;
      } else {
        last = at;
      }
    }
    return first == sizes.begin() ? 0 : *(first - 1);
  }

  void AdviseMemory() {
    const int64_t needed = TotalBytes(plan_), has = planner_.model().memory_bytes();
    if (has == 0 || needed <= planner_.room_bytes()) return;
    const int64_t micro = LargestMicroBatch();
    const std::string left = planner_.model().kind() == v1::Device::CUDA
                                 ? absl::StrCat(" less ", kProcessBytes >> 20, " MiB for the process")
                                 : "";
    const std::string head =
        absl::StrCat("needs ", Gibibytes(needed), ", ", planner_.model().name(), " has ", Gibibytes(has), left, ": ");
    if (micro == 0) {
      Add(Advice::MEMORY, "", head + "micro-batches of one sample do not fit either");
      return;
    }
    Advice* advice = Add(
        Advice::MEMORY, "",
        absl::StrCat(head, "micro-batches of ", micro, " fit, and batch ", batch(), " is still what an update sees"));
    advice->set_field("train.micro_batch_size");
    advice->set_value(absl::StrCat(micro));
  }

  // Of modes whose floors differ by less than kModeGain the simplest is best: they stand in that order but for FP16,
  // which alone needs a loss scale.
  const v1::ModeEstimate* BestMode() const {
    const v1::ModeEstimate* best = nullptr;
    for (const v1::ModeEstimate& m : modes_) {
      if (!m.supported() || !(m.step_seconds() > 0)) continue;
      const bool same_class = best != nullptr && best->mode() == PrecisionSpec::FP16 && m.mode() == PrecisionSpec::BF16;
      const double needed = same_class ? 1 : kModeGain;
      if (best == nullptr || best->step_seconds() >= needed * m.step_seconds()) best = &m;
    }
    return best;
  }

  void AdviseMode() {
    const v1::ModeEstimate *best = BestMode(), *own = nullptr;
    for (const v1::ModeEstimate& m : modes_) own = m.mode() == mode() && m.supported() ? &m : own;
    if (best == nullptr || (own != nullptr && own->mode() == best->mode())) return;
    const std::string name = PrecisionSpec::Mode_Name(best->mode()), current = PrecisionSpec::Mode_Name(mode());
    std::string text;
    if (own == nullptr) {
      text = absl::StrCat(planner_.model().name(), " cannot do ", current, "; ", name, " is its fastest mode");
    } else if (own->step_seconds() >= kModeGain * best->step_seconds()) {
      text =
          absl::StrFormat("%s would be %.2f times as fast as %s: %s", name, own->step_seconds() / best->step_seconds(),
                          current, Gain(own->step_seconds(), best->step_seconds()));
    } else if (best->mode() == PrecisionSpec::FP32) {
      // It pays once widths are aligned.
      if (aligned_seconds_ > 0 && best->step_seconds() >= kModeGain * aligned_seconds_) return;
      text = absl::StrFormat("%s does not pay here: its floor is %s a step, FP32's %s", current,
                             Time(own->step_seconds()), Time(best->step_seconds()));
    } else {
      return;
    }
    Advice* advice = Add(Advice::MODE, "", text);
    advice->set_field("precision.mode");
    advice->set_value(name);
  }

  void AdviseAlignment() {
    const int64_t multiple = Multiple();
    if (multiple == 1) return;
    std::map<int64_t, std::vector<Width>> groups;
    std::vector<int64_t> order;
    for (const Width& width : widths_) {
      if (width.value % multiple == 0 || (width.is_output && width.value < kVocabulary)) continue;
      if (groups[width.value].empty()) order.push_back(width.value);
      groups[width.value].push_back(width);
    }
    std::vector<Change> possible, paying;
    std::vector<StepCosts> alone;
    for (size_t i = 0; i < order.size(); ++i) {
      Change change{groups[order[i]], (order[i] + multiple - 1) / multiple * multiple};
      if (i < kMostAligned) {
        const absl::optional<StepCosts> costs = AlignedAlone(multiple, &change);
        if (!costs) continue;
        if (IsAligned(costs_, *costs)) paying.push_back(change), alone.push_back(*costs);
      }
      possible.push_back(std::move(change));
    }
    AdviseTogether(possible, paying, multiple);
    for (size_t i = 0; i < paying.size(); ++i) AdviseAligned(paying[i], alone[i], multiple);
    if (share() % multiple != 0 && in_one_piece()) TryAlignedBatch(multiple);
  }

  static double UsefulRate(const StepCosts& costs) { return costs.useful_flops / costs.seconds; }
  static bool IsFaster(const StepCosts& before, const StepCosts& after) {
    return before.seconds >= kAlignGain * after.seconds;
  }
  // Whether aligning took the job from `before` to `after` and that was worth it.
  static bool IsAligned(const StepCosts& before, const StepCosts& after) {
    return IsFaster(before, after) || UsefulRate(after) >= kAlignGain * UsefulRate(before);
  }

  // Where heads and groups have to divide it, `change->to` grows.
  absl::optional<StepCosts> AlignedAlone(int64_t multiple, Change* change) const {
    absl::optional<StepCosts> costs = CostsWith(absl::MakeConstSpan(change, 1));
    for (int i = 0; i < 3 && !costs; ++i) {
      change->to += multiple;
      costs = CostsWith(absl::MakeConstSpan(change, 1));
    }
    return costs;
  }

  void NoteAligned(const StepCosts& costs) {
    if (aligned_seconds_ == 0 || costs.seconds < aligned_seconds_) aligned_seconds_ = costs.seconds;
  }

  std::string AlignGain(const StepCosts& costs) const {
    if (IsFaster(costs_, costs)) return Gain(costs_.seconds, costs.seconds);
    return absl::StrFormat("the step does %.3f times the operations a second that count",
                           UsefulRate(costs) / UsefulRate(costs_));
  }

  static std::string NamesOf(const Change& change) {
    std::set<std::string> seen;
    std::vector<std::string> names;
    for (const Width& w : change.widths) {
      if (seen.insert(w.layer).second) names.push_back(w.layer);
    }
    if (names.size() > 4) names.resize(4), names.push_back("...");
    return absl::StrJoin(names, ", ");
  }

  void AdviseAligned(const Change& change, const StepCosts& costs, int64_t multiple) {
    NoteAligned(costs);
    const std::vector<Width>& widths = change.widths;
    const bool vocabulary =
        change.from() >= kVocabulary &&
        std::any_of(widths.begin(), widths.end(), [](const Width& w) { return w.is_vocabulary || w.is_output; });
    Advice* advice = Add(vocabulary ? Advice::PAD_VOCABULARY : Advice::ALIGN, widths.size() == 1 ? widths[0].layer : "",
                         absl::StrCat(NamesOf(change), ": ", change.from(), " is no multiple of ", multiple, "; with ",
                                      change.to, " ", AlignGain(costs)));
    if (widths.size() != 1 || !spec_.proto().model().made_from().empty()) return;
    advice->set_field(widths[0].field);
    advice->set_value(absl::StrCat(change.to));
  }

  // A product runs on matrix units when all of its extents are aligned: widths may pay only together. All `possible`
  // changes are advised in one piece, but for those without which it is as good, where that is better than those that
  // are `paying` one by one.
  void AdviseTogether(std::vector<Change> possible, const std::vector<Change>& paying, int64_t multiple) {
    if (possible.size() == paying.size()) return;
    const std::vector<Change> whole = possible;
    const absl::optional<StepCosts> of_whole = CostsWith(whole);
    const StepCosts one_by_one = CostsWith(paying).value_or(costs_);
    if (!of_whole || !IsAligned(one_by_one, *of_whole)) return;
    StepCosts all = *of_whole;
    const size_t tries = std::min(possible.size(), kMostAligned);
    for (size_t i = 0, at = 0; i < tries && possible.size() > 1; ++i) {
      std::vector<Change> fewer = possible;
      fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(at));
      absl::optional<StepCosts> costs = CostsWith(fewer);
      if (!costs || IsAligned(*costs, *of_whole)) {
        ++at;
      } else {
        possible = std::move(fewer);
        all = *std::move(costs);
      }
    }
    // Many that bring next to nothing one by one, or some that pay by themselves already.
    if (possible.size() == 1 || !IsAligned(one_by_one, all)) {
      possible = whole;
      all = *of_whole;
    }
    NoteAligned(all);
    std::vector<std::string> changes;
    for (const Change& c : possible) changes.push_back(absl::StrCat(NamesOf(c), " ", c.from(), " -> ", c.to));
    Add(Advice::ALIGN, "",
        absl::StrCat(absl::StrJoin(changes, "; "), ": together, as multiples of ", multiple, ", ", AlignGain(all)));
  }

  // `share`: samples of a device.
  absl::optional<double> SecondsASample(int64_t share) const {
    if (!planner_.CanFill(share * devices())) return absl::nullopt;
    const auto changed = WithBatch(spec_, share);
    if (!changed.ok()) return absl::nullopt;
    const auto planned = planner_.Plan(*changed);
    if (!planned.ok()) return absl::nullopt;
    const bool known = planner_.model().memory_bytes() > 0;
    if (known && TotalBytes(*planned) > planner_.room_bytes()) return absl::nullopt;
    return planner_.Costs(*changed, *planned).seconds / static_cast<double>(share * devices());
  }

  void AdviseBatchOf(Advice::Kind kind, int64_t to_share, double before, double after, const std::string& why) {
    const int64_t to = to_share * devices();
    Advice* advice = Add(kind, "",
                         absl::StrCat("batch ", batch(), why, "; with ", to, " the floor a sample falls from ",
                                      Time(before), " to ", Time(after)));
    advice->set_field("train.batch_size");
    advice->set_value(absl::StrCat(to));
  }

  void TryAlignedBatch(int64_t multiple) {
    const int64_t to = (share() + multiple - 1) / multiple * multiple;
    const double before = costs_.seconds / static_cast<double>(batch());
    const absl::optional<double> after = SecondsASample(to);
    if (!after || before < kAlignGain * *after) return;
    AdviseBatchOf(Advice::ALIGN, to, before, *after, absl::StrCat(" is no multiple of ", multiple * devices()));
  }

  // Doubles the batch while that pays: what an update costs besides is shared by more samples, and so are weights read.
  void AdviseBatch() {
    if (!in_one_piece()) return;
    const double before = costs_.seconds / static_cast<double>(batch());
    const int64_t multiple = std::max<int64_t>(Multiple(), 1);
    int64_t best = 0;
    double best_seconds = before;
    for (int64_t to = (2 * share() + multiple - 1) / multiple * multiple; to <= kMostTimesTheBatch * share() + multiple;
         to *= 2) {
      const absl::optional<double> after = SecondsASample(to);
      if (!after || best_seconds < kBatchGain * *after) break;
      best = to, best_seconds = *after;
    }
    if (best == 0) return;
    AdviseBatchOf(Advice::RAISE_BATCH, best, before, best_seconds, " leaves weights and updates to few samples");
  }

  // The layer with a product that memory bounds the longest.
  void AdviseWidth() {
    if (costs_.product_flops == 0) return;
    const v1::LayerCost* worst = nullptr;
    for (const v1::LayerCost& layer : costs_.layers) {
      if (!layer.tensor_core_eligible() || layer.bound() != v1::LayerCost::MEMORY) continue;
      if (worst == nullptr || layer.seconds() > worst->seconds()) worst = &layer;
    }
    if (worst == nullptr || worst->seconds() < 0.1 * costs_.seconds) return;
    const auto width = std::find_if(widths_.begin(), widths_.end(),
                                    [&](const Width& w) { return w.layer == worst->layer() && !w.is_vocabulary; });
    if (width == widths_.end() || width->is_output) return;
    std::vector<Width> group;
    for (const Width& w : widths_) {
      if (w.value == width->value && !w.is_vocabulary && !w.is_output) group.push_back(w);
    }
    const int64_t to = 2 * width->value;
    const Change change{group, to};
    const absl::optional<StepCosts> costs = CostsWith(absl::MakeConstSpan(&change, 1));
    if (!costs) return;
    const double before = costs_.useful_flops / costs_.seconds, after = costs->useful_flops / costs->seconds;
    if (after < kWidenGain * before) return;
    Advice* advice = Add(
        Advice::WIDEN, worst->layer(),
        absl::StrFormat("%s: memory bounds it, %.0f operations a byte where the ridge is %.0f; %d wide instead of %d "
                        "the step does %.2f times the operations a second",
                        worst->layer(), worst->intensity(), worst->ridge(), to, width->value, after / before));
    if (group.size() != 1 || !spec_.proto().model().made_from().empty()) return;
    advice->set_field(group[0].field);
    advice->set_value(absl::StrCat(to));
  }

  const DevicePlanner& planner_;
  const ResolvedJobSpec& spec_;
  const DevicePlan& plan_;
  const StepCosts& costs_;
  const bool by_library_;
  const google::protobuf::RepeatedPtrField<v1::ModeEstimate>& modes_;
  const std::vector<Width> widths_;
  std::vector<Advice> advice_;
  // The lowest floor that advised alignment brings; 0: none is advised.
  double aligned_seconds_ = 0;
};

}  // namespace

std::vector<Advice> AdviceFor(const DevicePlanner& planner, const ResolvedJobSpec& spec, const DevicePlan& plan,
                              const StepCosts& costs, const v1::PlanReport& report) {
  return Adviser(planner, spec, plan, costs, report).Run();
}

}  // namespace ampd::train
