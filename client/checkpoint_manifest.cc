#include "client/checkpoint_manifest.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/sha256.h"

namespace ampd::client {

absl::StatusOr<std::map<std::string, FileContent>> ParseManifest(absl::string_view text) {
  std::map<std::string, FileContent> files;
  std::string last;
  size_t before = 0;
  for (size_t begin = 0; begin < text.size();) {
    const absl::string_view line = text.substr(begin, text.find('\n', begin) - begin);
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(' ', 2));
    FileContent content;
    if (fields.size() != 3 || !absl::SimpleAtoi(fields[1], &content.size) || content.size < 0 || fields[2].empty()) {
      return absl::DataLossError(absl::StrCat(kManifest, " has a line that is not \"<sha256> <size> <name>\""));
    }
    content.sha256 = fields[0];
    last = fields[2];
    before = begin;
    if (!files.emplace(last, content).second) {
      return absl::DataLossError(absl::StrCat(kManifest, " lists a file twice"));
    }
    begin += line.size() + 1;
  }
  const absl::string_view lines = text.substr(0, before);
  Sha256 digest;
  digest.Update(lines);
  const auto own = files.find(kManifest);
  if (last != kManifest || !(own->second == FileContent{digest.HexDigest(), static_cast<int64_t>(lines.size())})) {
    return absl::DataLossError(absl::StrCat(kManifest, " does not match its own checksum"));
  }
  files.erase(own);
  return files;
}

}  // namespace ampd::client
