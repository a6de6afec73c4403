#include "proto/spec/data_parts.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/spec/resolve.h"

namespace ampd {
namespace {

constexpr double kAll = std::numeric_limits<double>::infinity();

// What a set takes of its file or of each class, from and up to.
struct Part {
  std::string end_field, path;
  double begin = 0, end = kAll;
  std::set<std::string> classes;  // empty: all
  // It ends earlier, where only the data tell.
  bool limited = false;
};

// Nothing for sources that have no parts.
std::optional<Part> PartOf(const std::string& set, const v1::DatasetSpec& dataset) {
  const bool limited = dataset.limit() > 0;
  if (dataset.has_text()) {
    const auto& text = dataset.text();
    return Part{set + ".text.end", text.path(), text.begin(), text.end(), {}, limited};
  }
  if (dataset.has_tokens()) {
    const auto& tokens = dataset.tokens();
    return Part{set + ".tokens.end", tokens.path(), tokens.begin(), tokens.end(), {}, limited};
  }
  if (!dataset.has_quickdraw()) return std::nullopt;
  const v1::QuickDrawDataset& drawings = dataset.quickdraw();
  const auto skip = static_cast<double>(drawings.skip_per_class());
  const auto samples = static_cast<double>(drawings.samples_per_class());
  const double end = samples > 0 ? skip + samples : kAll;
  const std::set<std::string> classes(drawings.classes().begin(), drawings.classes().end());
  return Part{set + ".quickdraw.samples_per_class", drawings.path(), skip, end, classes, limited};
}

// `path` without what does not change what it names: empty parts and ".".
std::string Normalized(absl::string_view path) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(path, '/', [](absl::string_view part) { return !part.empty() && part != "."; });
  return absl::StrCat(absl::StartsWith(path, "/") ? "/" : "", absl::StrJoin(parts, "/"));
}

bool IsSamePath(absl::string_view one, absl::string_view other, const std::vector<std::string>& data_roots) {
  const std::string a = Normalized(one), b = Normalized(other);
  if (a == b) return true;
  return std::any_of(data_roots.begin(), data_roots.end(), [&](const std::string& root) {
    const auto beneath = [&](const std::string& path) { return Normalized(absl::StrCat(root, "/", path)); };
    return beneath(a) == b || beneath(b) == a;
  });
}

// Glyphs follow from their seed.
absl::Status CheckSeeds(const v1::DataSpec& data) {
  if (!data.train().has_glyphs() || !data.eval().has_glyphs()) return absl::OkStatus();
  // Who writes down both means it, as who evaluates on the very part of a file that is trained on.
  if (data.train().glyphs().has_seed() && data.eval().glyphs().has_seed()) return absl::OkStatus();
  const uint64_t train = data.train().glyphs().has_seed() ? data.train().glyphs().seed() : 1;
  const uint64_t eval = data.eval().glyphs().has_seed() ? data.eval().glyphs().seed() : 2;
  if (train != eval) return absl::OkStatus();
  return InvalidFields({{"data.eval.glyphs.seed", absl::StrCat("is ", eval,
                                                               ", as that of data.train: samples of one "
                                                               "seed are the same, and would be evaluated after they "
                                                               "were trained on")}});
}

bool ShareClasses(const Part& a, const Part& b) {
  if (a.classes.empty() || b.classes.empty()) return true;
  return std::any_of(a.classes.begin(), a.classes.end(), [&](const std::string& c) { return b.classes.contains(c); });
}

std::string InWords(const Part& part) {
  return absl::StrCat("from ", part.begin, part.end == kAll ? " on" : absl::StrCat(" to ", part.end));
}

}  // namespace

absl::Status CheckDataParts(const v1::DataSpec& data, const std::vector<std::string>& data_roots) {
  if (const absl::Status seeds = CheckSeeds(data); !seeds.ok()) return seeds;
  const std::optional<Part> train = PartOf("data.train", data.train()), eval = PartOf("data.eval", data.eval());
  if (!train || !eval || !IsSamePath(train->path, eval->path, data_roots)) return absl::OkStatus();
  if (!ShareClasses(*train, *eval)) return absl::OkStatus();
  const bool overlap = train->begin < eval->end && eval->begin < train->end;
  if (!overlap || (train->begin == eval->begin && train->end == eval->end)) return absl::OkStatus();
  // May end before the other begins.
  if (train->begin != eval->begin && (train->begin < eval->begin ? *train : *eval).limited) return absl::OkStatus();
  const std::string why = absl::StrCat("data.train is ", InWords(*train), " and data.eval ", InWords(*eval),
                                       " of the same data: what both have would be evaluated after it was trained on");
  return InvalidFields({{train->end_field, why}});
}

}  // namespace ampd
