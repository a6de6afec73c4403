#include "server/service/checkpoint_manifest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "server/service/sha256.h"

namespace ampd {
namespace {

constexpr size_t kDigits = 64;

bool IsChecksum(absl::string_view text) {
  return text.size() == kDigits &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

absl::StatusOr<ListedFile> ParseLine(absl::string_view line) {
  const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(' ', 2));
  ListedFile listed;
  if (fields.size() != 3 || !IsChecksum(fields[0]) || !absl::SimpleAtoi(fields[1], &listed.size) || listed.size < 0 ||
      !IsPlainFileName(fields[2])) {
    return absl::DataLossError(absl::StrCat(kManifest, " has a line that is not \"<sha256> <size> <name>\""));
  }
  listed.checksum = fields[0];
  listed.name = fields[2];
  return listed;
}

}  // namespace

bool IsPlainFileName(absl::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." && !absl::StrContains(name, '/') &&
         name.find('\0') == absl::string_view::npos;
}

absl::StatusOr<std::vector<ListedFile>> ParseCheckpointManifest(absl::string_view text) {
  const size_t seal = text.size() < 2 ? 0 : text.rfind('\n', text.size() - 2) + 1;
  AMPD_ASSIGN_OR_RETURN(const ListedFile sealed, ParseLine(absl::StripSuffix(text.substr(seal), "\n")));
  const absl::string_view lines = text.substr(0, seal);
  if (sealed.name != kManifest || sealed.checksum != Sha256Hex(lines)) {
    return absl::DataLossError(absl::StrCat(kManifest, " does not match its own checksum"));
  }
  std::vector<ListedFile> files;
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    AMPD_ASSIGN_OR_RETURN(ListedFile listed, ParseLine(line));
    files.push_back(std::move(listed));
  }
  return files;
}

}  // namespace ampd
