// What is said in each file of a folder, and as which labels.
#ifndef AMPD_ENGINE_DATA_TRANSCRIPTS_H_
#define AMPD_ENGINE_DATA_TRANSCRIPTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"

namespace ampd::data {

// Whether all of `name` matches: '*' any bytes, '?' one, "[a-c]" one of those named, "[!a-c]" one that is not; a '['
// without its
// ']' stands for itself. In time |pattern| |name|.
bool GlobMatchesName(absl::string_view pattern, absl::string_view name);

// Whether a wav_folder takes a file: it matches one of `include` and none of `exclude`.
bool Takes(const v1::WavFolderDataset& spec, absl::string_view name);

// The characters that transcripts are made of. Immutable.
class Alphabet {
 public:
  // Of UTF-8 text, each character once; default as data.proto says. INVALID_ARGUMENT when it is empty, too long or has
  // a character twice.
  static absl::StatusOr<Alphabet> Create(const v1::WavFolderDataset& spec);

  // Labels, with the blank: 0 is the blank, i + 1 character i.
  int64_t classes() const { return static_cast<int64_t>(labels_.size()) + 1; }

  // Of a transcript, its ASCII letters made lower case. INVALID_ARGUMENT naming the character that is not in the
  // alphabet.
  absl::StatusOr<std::vector<int32_t>> Spell(absl::string_view transcript) const;

 private:
  std::map<std::string, int32_t> labels_;
};

// The transcripts of a wav_folder. Immutable.
class Transcripts {
 public:
  // Reads the file of `spec`, if it names one. DATA_LOSS naming file and line for one without a tab, or a name twice;
  // errors of OpenBeneath.
  static absl::StatusOr<Transcripts> Open(const v1::WavFolderDataset& spec, absl::Span<const std::string> roots);

  // Of a file: by its name, or its name without what follows the last '.'; or by its prefix. NOT_FOUND when there is
  // none.
  absl::StatusOr<std::string> Of(const std::string& name) const;

 private:
  // By the name or the prefix.
  std::map<std::string, std::string> texts_;
  bool by_prefix_ = false;
  std::string source_;
};

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_TRANSCRIPTS_H_
