#include "engine/data/wav_folder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/data/class_shares.h"
#include "engine/data/log_mel.h"
#include "engine/data/memory_dataset.h"
#include "engine/data/path.h"
#include "engine/data/transcripts.h"
#include "engine/data/wav.h"

namespace ampd::data {
namespace {

// As long as buckets can be.
constexpr int64_t kMaxFrames = int64_t{1} << 20;

struct Sound {
  std::string path;
  // Why it cannot be read, if so.
  absl::Status damage;
  WavHeader header;
  std::vector<int32_t> labels;
};

// What the headers tell.
struct Folder {
  std::vector<Sound> sounds;
  std::vector<LogMel> log_mel;  // one, unless all files are damaged
  DatasetInfo info;
};

absl::StatusOr<std::vector<std::string>> FileNames(const v1::WavFolderDataset& spec,
                                                   absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, ListBeneath(spec.path(), roots));
  std::vector<std::string> names;
  for (const FolderEntry& entry : entries) {
    if (!entry.is_folder && Takes(spec, entry.name)) names.push_back(entry.name);
  }
  if (!names.empty()) return names;
  return absl::NotFoundError(absl::StrCat(spec.path(), ": none of its ", entries.size(),
                                          " files is included: see wav_folder.include and exclude"));
}

absl::StatusOr<Sound> ReadSound(const std::string& path, const std::string& name, const Transcripts& transcripts,
                                const Alphabet& alphabet, absl::Span<const std::string> roots) {
  Sound sound{.path = path};
  AMPD_ASSIGN_OR_RETURN(const std::string said, transcripts.Of(name));
  absl::StatusOr<std::vector<int32_t>> labels = alphabet.Spell(said);
  if (!labels.ok()) return Annotate(labels.status(), path);
  sound.labels = *std::move(labels);
  AMPD_ASSIGN_OR_RETURN(const auto file, OpenBeneath(path, roots));
  absl::StatusOr<WavHeader> header = ReadWavHeader(*file);
  if (header.ok()) {
    sound.header = *header;
  } else if (header.status().code() == absl::StatusCode::kDataLoss) {
    sound.damage = header.status();
  } else {
    return header.status();
  }
  return sound;
}

absl::Status CheckRates(const std::vector<Sound>& sounds) {
  const Sound* first = nullptr;
  for (const Sound& sound : sounds) {
    if (!sound.damage.ok()) continue;
    if (first == nullptr) first = &sound;
    if (sound.header.sample_rate == first->header.sample_rate) continue;
    return absl::InvalidArgumentError(absl::StrCat(sound.path, ": is of ", sound.header.sample_rate, " Hz, but ",
                                                   first->path, " of ", first->header.sample_rate,
                                                   "; a dataset has one sample rate"));
  }
  if (first != nullptr) return absl::OkStatus();
  return Annotate(sounds[0].damage, absl::StrCat("all ", sounds.size(), " files are damaged, the first"));
}

absl::Status Describe(Folder& folder) {
  DatasetInfo& info = folder.info;
  info.size = static_cast<int64_t>(folder.sounds.size());
  int64_t longest = 1;
  for (const Sound& sound : folder.sounds) {
    const int64_t frames = sound.damage.ok() ? folder.log_mel[0].Frames(sound.header.samples) : 1;
    if (frames > kMaxFrames) {
      return absl::InvalidArgumentError(
          absl::StrCat(sound.path, ": makes ", frames, " frames; at most ", kMaxFrames, " are a sample"));
    }
    longest = std::max(longest, frames);
    info.lengths.push_back(static_cast<int32_t>(frames));
    info.label_lengths.push_back(static_cast<int32_t>(sound.labels.size()));
    info.label_count = std::max(info.label_count, static_cast<int64_t>(sound.labels.size()));
  }
  // Sounds in which nothing is said have labels all the same, none of which counts.
  info.label_count = std::max<int64_t>(info.label_count, 1);
  info.input_shape = {longest, folder.log_mel[0].mels()};
  return absl::OkStatus();
}

absl::StatusOr<Folder> ReadFolder(const v1::WavFolderDataset& spec, absl::Span<const std::string> roots) {
  AMPD_ASSIGN_OR_RETURN(const Alphabet alphabet, Alphabet::Create(spec));
  AMPD_ASSIGN_OR_RETURN(const Transcripts transcripts, Transcripts::Open(spec, roots));
  AMPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, FileNames(spec, roots));
  Folder folder;
  for (const std::string& name : names) {
    AMPD_ASSIGN_OR_RETURN(Sound sound,
                          ReadSound(absl::StrCat(spec.path(), "/", name), name, transcripts, alphabet, roots));
    folder.sounds.push_back(std::move(sound));
  }
  AMPD_RETURN_IF_ERROR(CheckRates(folder.sounds));
  const auto whole =
      std::find_if(folder.sounds.begin(), folder.sounds.end(), [](const Sound& sound) { return sound.damage.ok(); });
  AMPD_ASSIGN_OR_RETURN(LogMel log_mel, LogMel::Create(spec.log_mel(), whole->header.sample_rate));
  folder.log_mel.push_back(std::move(log_mel));
  folder.info.name = spec.path();
  folder.info.sample_rate = whole->header.sample_rate;
  folder.info.classes = alphabet.classes();
  folder.info.decodes = true;
  AMPD_RETURN_IF_ERROR(Describe(folder));
  return folder;
}

// The places of the sounds that `limit` leaves: one of each transcript in turn.
std::vector<size_t> PlacesWithin(const std::vector<Sound>& sounds, int64_t limit) {
  std::map<std::vector<int32_t>, int64_t> transcripts;
  std::vector<int64_t> of_sound, sizes;
  for (const Sound& sound : sounds) {
    const auto [it, is_new] = transcripts.insert({sound.labels, static_cast<int64_t>(sizes.size())});
    if (is_new) sizes.push_back(0);
    ++sizes[static_cast<size_t>(it->second)];
    of_sound.push_back(it->second);
  }
  std::vector<size_t> places(sounds.size());
  std::iota(places.begin(), places.end(), size_t{0});
  KeepShares(
      SharesInTurn(sizes, limit), [&](size_t place) { return of_sound[place]; }, places);
  return places;
}

// `places` rise.
template <typename T>
void Keep(const std::vector<size_t>& places, std::vector<T>& values) {
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] != i) values[i] = std::move(values[places[i]]);
  }
  Shorten(values, static_cast<int64_t>(places.size()));
}

// Nothing tells how long a damaged sound is. Where the longest are, every whole one can take its place.
void PlaceDamaged(Folder& folder) {
  std::vector<int32_t>& lengths = folder.info.lengths;
  int32_t longest = 1;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (folder.sounds[i].damage.ok()) longest = std::max(longest, lengths[i]);
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (!folder.sounds[i].damage.ok()) lengths[i] = longest;
  }
}

// Cuts `folder` down to `limit` samples, 0: all.
void Limit(Folder& folder, int64_t limit, double max_corrupt_ratio) {
  DatasetInfo& info = folder.info;
  const std::vector<size_t> places = PlacesWithin(folder.sounds, limit);
  Keep(places, folder.sounds);
  Keep(places, info.lengths);
  Keep(places, info.label_lengths);
  info.size = static_cast<int64_t>(places.size());
  PlaceDamaged(folder);
  const double allowed = std::clamp(max_corrupt_ratio, 0.0, 1.0) * static_cast<double>(info.size);
  // A set of damaged samples alone is of no use.
  info.max_damaged = std::min(static_cast<int64_t>(std::floor(allowed)), info.size - 1);
  const int64_t frames = std::accumulate(info.lengths.begin(), info.lengths.end(), int64_t{0});
  info.cache_bytes =
      frames * folder.log_mel[0].mels() * static_cast<int64_t>(sizeof(float)) + info.size * SampleCache::kOverhead;
}

class WavDataset : public Dataset {
 public:
  WavDataset(Folder folder, absl::Span<const std::string> roots, std::shared_ptr<SampleCache> cache)
      : Dataset(std::move(folder.info)),
        sounds_(std::move(folder.sounds)),
        log_mel_(std::move(folder.log_mel[0])),
        roots_(roots.begin(), roots.end()),
        cache_(std::move(cache)),
        first_place_(cache_ == nullptr ? 0 : cache_->AddPlaces(size())) {}

  std::string SampleName(int64_t i) const override { return sounds_[static_cast<size_t>(i)].path; }

  void ReadInput(int64_t i, absl::Span<float> out) const override {
    if (!Read(i, out).ok()) std::fill(out.begin(), out.end(), 0.0f);
  }

  absl::Status ReadSample(int64_t i, const Draw*, absl::Span<float> out) const override { return Read(i, out); }

  int32_t ReadLabel(int64_t) const override { return -1; }

  void ReadLabels(int64_t i, absl::Span<int32_t> out) const override {
    const std::vector<int32_t>& labels = sounds_[static_cast<size_t>(i)].labels;
    std::fill(std::copy(labels.begin(), labels.end(), out.begin()), out.end(), -1);
  }

  void ReadTarget(int64_t, absl::Span<float>) const override {}

  absl::Status CheckFinite(int64_t i) const override {
    std::vector<float> frames(FloatsOf(i));
    return Read(i, absl::MakeSpan(frames));
  }

 private:
  size_t FloatsOf(int64_t i) const {
    return static_cast<size_t>(info().lengths[static_cast<size_t>(i)]) * static_cast<size_t>(log_mel_.mels());
  }

  // `out` has the sample's frames, or more places, which become zeros.
  absl::Status Read(int64_t i, absl::Span<float> out) const {
    AMPD_RETURN_IF_ERROR(sounds_[static_cast<size_t>(i)].damage);
    const absl::Span<float> frames = out.subspan(0, FloatsOf(i));
    std::fill(out.begin() + frames.size(), out.end(), 0.0f);
    // An exception must not leave the thread.
    try {
      if (TakeKept(i, frames)) return absl::OkStatus();
      AMPD_RETURN_IF_ERROR(Compute(i, frames));
      Keep(i, frames);
      return absl::OkStatus();
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(absl::StrCat(SampleName(i), ": no memory left to read it"));
    }
  }

  // Whatever is wrong with a file by now is damage, but not a lack of memory.
  absl::Status Compute(int64_t i, absl::Span<float> frames) const {
    absl::StatusOr<std::vector<float>> samples = Samples(i);
    if (samples.ok()) {
      log_mel_.Compute(*samples, frames);
      return absl::OkStatus();
    }
    if (absl::IsResourceExhausted(samples.status())) return samples.status();
    return absl::DataLossError(samples.status().message());
  }

  absl::StatusOr<std::vector<float>> Samples(int64_t i) const {
    AMPD_ASSIGN_OR_RETURN(const auto file, OpenBeneath(SampleName(i), roots_));
    const WavHeader& header = sounds_[static_cast<size_t>(i)].header;
    // The training may have begun long ago.
    AMPD_ASSIGN_OR_RETURN(const WavHeader now, ReadWavHeader(*file));
    if (now != header)
      return absl::DataLossError(absl::StrCat(SampleName(i), ": its header changed while it was used"));
    return ReadWavSamples(*file, header);
  }

  // Kept as rows of bytes, one a frame.
  bool TakeKept(int64_t i, absl::Span<float> frames) const {
    const std::shared_ptr<const Image> kept = cache_ == nullptr ? nullptr : cache_->Get(first_place_ + i);
    if (kept == nullptr) return false;
    std::memcpy(frames.data(), kept->pixels.data(), kept->pixels.size());
    return true;
  }

  void Keep(int64_t i, absl::Span<const float> frames) const {
    if (cache_ == nullptr) return;
    const auto* bytes = reinterpret_cast<const uint8_t*>(frames.data());
    const int64_t row = log_mel_.mels() * static_cast<int64_t>(sizeof(float));
    cache_->Put(first_place_ + i, {info().lengths[static_cast<size_t>(i)], row, 1,
                                   std::vector<uint8_t>(bytes, bytes + frames.size() * sizeof(float))});
  }

  const std::vector<Sound> sounds_;
  const LogMel log_mel_;
  const std::vector<std::string> roots_;
  const std::shared_ptr<SampleCache> cache_;
  const int64_t first_place_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenWavFolder(const v1::WavFolderDataset& spec,
                                                       absl::Span<const std::string> roots, int64_t limit,
                                                       double max_corrupt_ratio, std::shared_ptr<SampleCache> cache) {
  AMPD_ASSIGN_OR_RETURN(Folder folder, ReadFolder(spec, roots));
  Limit(folder, limit, max_corrupt_ratio);
  return std::make_unique<WavDataset>(std::move(folder), roots, std::move(cache));
}

absl::StatusOr<DatasetInfo> DescribeWavFolder(const v1::WavFolderDataset& spec, absl::Span<const std::string> roots,
                                              int64_t limit, double max_corrupt_ratio) {
  AMPD_ASSIGN_OR_RETURN(Folder folder, ReadFolder(spec, roots));
  Limit(folder, limit, max_corrupt_ratio);
  return std::move(folder.info);
}

}  // namespace ampd::data
