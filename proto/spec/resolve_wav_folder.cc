#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"
#include "proto/spec/resolve_internal.h"

namespace ampd {
namespace {

constexpr size_t kMaxPathBytes = 4096;
constexpr size_t kMaxNameBytes = 255;
constexpr size_t kMaxTranscriptBytes = 4096;
constexpr size_t kMaxAlphabetBytes = 1 << 16;
constexpr int kMaxPatterns = 1000;
constexpr size_t kMaxPrefixes = 10000;
constexpr double kMaxSeconds = 60;
constexpr double kMaxHz = 1e6;
const char kDefaultAlphabet[] = " 'abcdefghijklmnopqrstuvwxyz";

void CheckPatterns(const std::string& path, const google::protobuf::RepeatedPtrField<std::string>& patterns,
                   Violations* violations) {
  if (patterns.size() > kMaxPatterns) {
    return violations->Add(path, absl::StrCat("must be at most ", kMaxPatterns, ", are ", patterns.size()));
  }
  for (int i = 0; i < patterns.size(); ++i) violations->CheckText(Indexed(path, i), patterns[i], kMaxNameBytes);
}

void CheckTranscripts(const std::string& path, const v1::WavFolderDataset& wav, Violations* violations) {
  const std::string by_prefix = path + ".transcript_by_prefix";
  if (wav.transcripts().empty() == wav.transcript_by_prefix().empty()) {
    return violations->Add(path, "needs exactly one of transcripts and transcript_by_prefix");
  }
  if (!wav.transcripts().empty()) {
    return violations->CheckText(path + ".transcripts", wav.transcripts(), kMaxPathBytes);
  }
  if (wav.transcript_by_prefix().size() > kMaxPrefixes) {
    return violations->Add(by_prefix,
                           absl::StrCat("must be at most ", kMaxPrefixes, ", are ", wav.transcript_by_prefix().size()));
  }
  for (const auto& [prefix, text] : wav.transcript_by_prefix()) {
    if (prefix.size() > kMaxNameBytes || text.size() > kMaxTranscriptBytes) {
      violations->Add(by_prefix, absl::StrCat("a prefix must be at most ", kMaxNameBytes, " bytes, a transcript ",
                                              kMaxTranscriptBytes));
    }
  }
}

void ResolveLogMel(const std::string& path, v1::LogMel* mel, Violations* violations) {
  if (!mel->has_mels()) mel->set_mels(40);
  if (!mel->has_window_seconds()) mel->set_window_seconds(0.025);
  if (!mel->has_hop_seconds()) mel->set_hop_seconds(0.01);
  if (!mel->has_low_hz()) mel->set_low_hz(20);
  violations->CheckInteger(path + ".mels", mel->mels(), 1, 512);
  violations->CheckReal(path + ".window_seconds", mel->window_seconds(),
                        {.low = 0, .high = kMaxSeconds, .low_open = true});
  violations->CheckReal(path + ".hop_seconds", mel->hop_seconds(), {.low = 0, .high = kMaxSeconds, .low_open = true});
  violations->CheckReal(path + ".low_hz", mel->low_hz(), {.low = 0, .high = kMaxHz});
  if (!mel->has_high_hz()) return;
  violations->CheckReal(path + ".high_hz", mel->high_hz(), {.low = mel->low_hz(), .high = kMaxHz, .low_open = true});
}

}  // namespace

void ResolveWavFolder(const std::string& path, v1::WavFolderDataset* wav, Violations* violations) {
  violations->CheckText(path + ".path", wav->path(), kMaxPathBytes);
  if (wav->include().empty()) wav->add_include("*.wav");
  CheckPatterns(path + ".include", wav->include(), violations);
  CheckPatterns(path + ".exclude", wav->exclude(), violations);
  CheckTranscripts(path, *wav, violations);
  if (!wav->has_alphabet()) wav->set_alphabet(kDefaultAlphabet);
  violations->CheckText(path + ".alphabet", wav->alphabet(), kMaxAlphabetBytes);
  ResolveLogMel(path + ".log_mel", wav->mutable_log_mel(), violations);
}

void CheckSameSpeech(const v1::DataSpec& data, Violations* violations) {
  if (!data.train().has_wav_folder() || !data.eval().has_wav_folder()) return;
  const v1::WavFolderDataset &train = data.train().wav_folder(), &eval = data.eval().wav_folder();
  if (train.alphabet() != eval.alphabet()) {
    violations->Add("data.eval.wav_folder.alphabet", "must be that of data.train");
  }
  if (!google::protobuf::util::MessageDifferencer::Equals(train.log_mel(), eval.log_mel())) {
    violations->Add("data.eval.wav_folder.log_mel", "must be that of data.train");
  }
}

}  // namespace ampd
