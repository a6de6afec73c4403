#include "engine/train/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace ampd::train {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr int32_t kRoot = 0;

double LogSum(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kNever ? a : a + std::log1p(std::exp(b - a));
}

// A beginning of a label sequence, in the tree of all that were kept.
struct Prefix {
  int32_t parent = -1;
  int32_t label = -1;
};

// A prefix after some steps: the logarithms of the probabilities of its paths.
struct Beam {
  int32_t prefix = kRoot;
  double ends_blank = kNever;
  double ends_label = kNever;
  double total() const { return LogSum(ends_blank, ends_label); }
};

// What the next step may keep: a beam of `prefix`, or of a prefix that does not exist yet.
struct Candidate {
  Beam beam;
  int32_t label = -1;
  double total = kNever;
};

class Search {
 public:
  Search(int64_t classes, int32_t blank, int64_t width)
      : classes_(static_cast<size_t>(classes)),
        blank_(static_cast<size_t>(blank)),
        width_(static_cast<size_t>(width)),
        prefixes_(1),
        place_(1, 0) {
    beams_.push_back({.prefix = kRoot, .ends_blank = 0});
  }

  void Step(absl::Span<const float> logits) {
    if (!Normalize(logits)) return;
    RankLabels();
    candidates_.clear();
    for (const Beam& beam : beams_) Stay(beam);
    for (const Beam& beam : beams_) Extend(beam);
    Keep();
  }

  BeamResult Best() const {
    BeamResult result{.log_probability = beams_[0].total()};
    for (int32_t at = beams_[0].prefix; at != kRoot; at = prefixes_[Index(at)].parent) {
      result.labels.push_back(prefixes_[Index(at)].label);
    }
    std::reverse(result.labels.begin(), result.labels.end());
    return result;
  }

 private:
  static size_t Index(int32_t i) { return static_cast<size_t>(i); }

  // The step's log-probabilities; false where there are none.
  bool Normalize(absl::Span<const float> logits) {
    log_p_.resize(classes_);
    double largest = kNever;
    for (size_t c = 0; c < classes_; ++c) {
      log_p_[c] = std::isnan(logits[c]) ? kNever : std::min<double>(logits[c], std::numeric_limits<float>::max());
      largest = std::max(largest, log_p_[c]);
    }
    if (largest == kNever) return false;
    double sum = 0;
    for (double p : log_p_) sum += std::exp(p - largest);
    const double norm = largest + std::log(sum);
    for (double& p : log_p_) p -= norm;
    return true;
  }

  // The labels that can extend a beam to one that is kept: of each beam no more than `width` can be, and no more than
  // `width` others are passed over because they are beams already.
  void RankLabels() {
    ranked_.clear();
    for (size_t c = 0; c < classes_; ++c) {
      if (c != blank_ && log_p_[c] != kNever) ranked_.push_back(static_cast<int32_t>(c));
    }
    const size_t count = std::min(ranked_.size(), 2 * width_ + 1);
    std::partial_sort(ranked_.begin(), ranked_.begin() + static_cast<std::ptrdiff_t>(count), ranked_.end(),
                      [&](int32_t a, int32_t b) {
                        return std::make_pair(-log_p_[Index(a)], a) < std::make_pair(-log_p_[Index(b)], b);
                      });
    ranked_.resize(count);
  }

  // The probability that a path of `beam` goes on to one more label: after the same label only through a blank.
  double ExtendedBy(const Beam& beam, int32_t label) const {
    const bool same = prefixes_[Index(beam.prefix)].label == label;
    return log_p_[Index(label)] + (same ? beam.ends_blank : beam.total());
  }

  void Stay(const Beam& beam) {
    const Prefix& prefix = prefixes_[Index(beam.prefix)];
    Beam next{.prefix = beam.prefix, .ends_blank = log_p_[blank_] + beam.total()};
    if (prefix.label >= 0) {
      next.ends_label = log_p_[Index(prefix.label)] + beam.ends_label;
      const int32_t parent = place_[Index(prefix.parent)];
      if (parent >= 0) next.ends_label = LogSum(next.ends_label, ExtendedBy(beams_[Index(parent)], prefix.label));
    }
    candidates_.push_back({next, -1, next.total()});
  }

  void Extend(const Beam& beam) {
    for (int32_t label : ranked_) {
      const auto child = children_.find({beam.prefix, label});
      if (child != children_.end() && place_[Index(child->second)] >= 0) continue;
      const double p = ExtendedBy(beam, label);
      candidates_.push_back({{.prefix = beam.prefix, .ends_label = p}, label, p});
    }
  }

  void Keep() {
    // Stable, so that equal ones stay in the order in which they were found.
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.total > b.total; });
    candidates_.resize(std::min(candidates_.size(), width_));
    for (const Beam& beam : beams_) place_[Index(beam.prefix)] = -1;
    beams_.clear();
    for (Candidate& candidate : candidates_) {
      if (candidate.total == kNever && !beams_.empty()) break;
      if (candidate.label >= 0) candidate.beam.prefix = Child(candidate.beam.prefix, candidate.label);
      place_[Index(candidate.beam.prefix)] = static_cast<int32_t>(beams_.size());
      beams_.push_back(candidate.beam);
    }
  }

  int32_t Child(int32_t parent, int32_t label) {
    const auto [at, added] = children_.try_emplace({parent, label}, static_cast<int32_t>(prefixes_.size()));
    if (added) {
      prefixes_.push_back({parent, label});
      place_.push_back(-1);
    }
    return at->second;
  }

  const size_t classes_, blank_, width_;
  std::vector<Prefix> prefixes_;
  absl::flat_hash_map<std::pair<int32_t, int32_t>, int32_t> children_;
  // By prefix: where it stands in beams_, or -1.
  std::vector<int32_t> place_;
  // The most probable one first.
  std::vector<Beam> beams_;
  std::vector<double> log_p_;
  std::vector<int32_t> ranked_;
  std::vector<Candidate> candidates_;
};

}  // namespace

BeamResult BeamSearch(absl::Span<const float> logits, int64_t classes, int32_t blank, int64_t width) {
  Search search(classes, blank, width);
  const size_t step = static_cast<size_t>(classes);
  for (size_t at = 0; at + step <= logits.size(); at += step) search.Step(logits.subspan(at, step));
  return search.Best();
}

}  // namespace ampd::train
