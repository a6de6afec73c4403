#include "proto/spec/data_parts.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
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

bool ShareClasses(const Part& a, const Part& b) {
  if (a.classes.empty() || b.classes.empty()) return true;
  return std::any_of(a.classes.begin(), a.classes.end(), [&](const std::string& c) { return b.classes.contains(c); });
}

std::string InWords(const Part& part) {
  return absl::StrCat("from ", part.begin, part.end == kAll ? " on" : absl::StrCat(" to ", part.end));
}

}  // namespace

absl::Status CheckDataParts(const v1::DataSpec& data) {
  const std::optional<Part> train = PartOf("data.train", data.train()), eval = PartOf("data.eval", data.eval());
  if (!train || !eval || train->path != eval->path || !ShareClasses(*train, *eval)) return absl::OkStatus();
  const bool overlap = train->begin < eval->end && eval->begin < train->end;
  if (!overlap || (train->begin == eval->begin && train->end == eval->end)) return absl::OkStatus();
  // May end before the other begins.
  if (train->begin != eval->begin && (train->begin < eval->begin ? *train : *eval).limited) return absl::OkStatus();
  const std::string why = absl::StrCat("data.train is ", InWords(*train), " and data.eval ", InWords(*eval),
                                       " of the same data: what both have would be evaluated after it was trained on");
  return InvalidFields({{train->end_field, why}});
}

}  // namespace ampd
