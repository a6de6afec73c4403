#include "engine/data/wav_folder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/data/byte_source.h"
#include "engine/data/class_shares.h"
#include "engine/data/log_mel.h"
#include "engine/data/memory_dataset.h"
#include "engine/data/path.h"
#include "engine/data/transcripts.h"
#include "engine/data/wav.h"
#include "engine/data/worker_pool.h"

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
}

class WavDataset : public Dataset {
 public:
  // Decode() comes next.
  explicit WavDataset(Folder folder)
      : Dataset(std::move(folder.info)), sounds_(std::move(folder.sounds)), log_mel_(std::move(folder.log_mel[0])) {}

  absl::Status Decode(absl::Span<const std::string> roots, int thread_count) {
    size_t floats = 0;
    for (size_t i = 0; i < sounds_.size(); ++i) {
      if (sounds_[i].damage.ok()) floats += static_cast<size_t>(info().lengths[i]) * mels();
    }
    if (floats > PhysicalMemory() / sizeof(float)) {
      return absl::ResourceExhaustedError(absl::StrCat(info().name, ": its spectrograms need ", floats * sizeof(float),
                                                       " bytes of memory; this process may have ", PhysicalMemory()));
    }
    frames_.resize(sounds_.size());
    WorkerPool pool(thread_count);
    pool.ForEach(size(), [&](int64_t i, int) { DecodeOne(static_cast<size_t>(i), roots); });
    for (const Sound& sound : sounds_) {
      if (absl::IsResourceExhausted(sound.damage)) return sound.damage;
    }
    return absl::OkStatus();
  }

  std::string SampleName(int64_t i) const override { return sounds_[static_cast<size_t>(i)].path; }

  void ReadInput(int64_t i, absl::Span<float> out) const override {
    const std::vector<float>& frames = frames_[static_cast<size_t>(i)];
    std::fill(std::copy(frames.begin(), frames.end(), out.begin()), out.end(), 0.0f);
  }

  int32_t ReadLabel(int64_t) const override { return -1; }

  void ReadLabels(int64_t i, absl::Span<int32_t> out) const override {
    const std::vector<int32_t>& labels = sounds_[static_cast<size_t>(i)].labels;
    std::fill(std::copy(labels.begin(), labels.end(), out.begin()), out.end(), -1);
  }

  void ReadTarget(int64_t, absl::Span<float>) const override {}

  absl::Status CheckFinite(int64_t i) const override { return sounds_[static_cast<size_t>(i)].damage; }

 private:
  size_t mels() const { return static_cast<size_t>(log_mel_.mels()); }

  // Touches what belongs to sample `i` alone.
  void DecodeOne(size_t i, absl::Span<const std::string> roots) {
    Sound& sound = sounds_[i];
    // An exception must not leave the thread.
    try {
      if (sound.damage.ok()) sound.damage = MakeFrames(i, roots);
    } catch (const std::bad_alloc&) {
      sound.damage = absl::ResourceExhaustedError(absl::StrCat(sound.path, ": no memory left to read it"));
    }
    if (!sound.damage.ok()) frames_[i].clear();
  }

  absl::Status MakeFrames(size_t i, absl::Span<const std::string> roots) {
    AMPD_ASSIGN_OR_RETURN(const auto file, OpenBeneath(sounds_[i].path, roots));
    AMPD_ASSIGN_OR_RETURN(const std::vector<float> samples, ReadWavSamples(*file, sounds_[i].header));
    frames_[i].resize(static_cast<size_t>(info().lengths[i]) * mels());
    log_mel_.Compute(samples, absl::MakeSpan(frames_[i]));
    return absl::OkStatus();
  }

  std::vector<Sound> sounds_;
  const LogMel log_mel_;
  // By sample, [frames, mels].
  std::vector<std::vector<float>> frames_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenWavFolder(const v1::WavFolderDataset& spec,
                                                       absl::Span<const std::string> roots, int64_t limit,
                                                       double max_corrupt_ratio, int threads) {
  AMPD_ASSIGN_OR_RETURN(Folder folder, ReadFolder(spec, roots));
  Limit(folder, limit, max_corrupt_ratio);
  auto dataset = std::make_unique<WavDataset>(std::move(folder));
  AMPD_RETURN_IF_ERROR(dataset->Decode(roots, threads));
  return dataset;
}

absl::StatusOr<DatasetInfo> DescribeWavFolder(const v1::WavFolderDataset& spec, absl::Span<const std::string> roots,
                                              int64_t limit, double max_corrupt_ratio) {
  AMPD_ASSIGN_OR_RETURN(Folder folder, ReadFolder(spec, roots));
  Limit(folder, limit, max_corrupt_ratio);
  return std::move(folder.info);
}

}  // namespace ampd::data
