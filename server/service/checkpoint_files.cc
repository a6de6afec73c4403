#include "server/service/checkpoint_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/core/status.h"
#include "server/files/checkpoint_name.h"
#include "server/service/checkpoint_manifest.h"
#include "server/service/json_skim.h"
#include "server/service/sha256.h"

namespace ampd {
namespace {

// As train_state.h of the engine names it. It holds the spec, of at most 64 MiB, as JSON in JSON.
constexpr char kState[] = "state.json";
constexpr int64_t kMaxStateBytes = int64_t{256} << 20;
constexpr int64_t kReadBytes = 1 << 20;

UniqueFd OpenDirectory(int parent, const std::string& name) {
  return UniqueFd(openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

absl::StatusOr<CheckpointFile> OpenFile(int directory, const std::string& name) {
  CheckpointFile file{name, 0,
                      UniqueFd(openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC))};
  if (!file.fd.valid()) return absl::DataLossError(absl::StrCat(name, ": ", strerror(errno)));
  struct stat info {};
  if (fstat(file.fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::DataLossError(absl::StrCat(name, " is not a regular file"));
  }
  file.size = info.st_size;
  return file;
}

absl::StatusOr<std::string> Sha256OfFile(const CheckpointFile& file, const Comparison& comparison) {
  Sha256Stream digest;
  for (int64_t offset = 0; offset < file.size; offset += kReadBytes) {
    if (comparison.is_left && comparison.is_left()) return absl::CancelledError("nobody waits for the files");
    AMPD_ASSIGN_OR_RETURN(const std::string bytes, ReadChunk(file, offset, kReadBytes));
    digest.Update(bytes);
  }
  return digest.HexDigest();
}

absl::StatusOr<std::vector<ListedFile>> ReadManifest(const CheckpointFile& file) {
  if (file.size > kMaxManifestBytes) return absl::DataLossError(absl::StrCat(kManifest, " is too large"));
  AMPD_ASSIGN_OR_RETURN(const std::string text, ReadChunk(file, 0, file.size));
  return ParseCheckpointManifest(text);
}

absl::StatusOr<CheckpointFile> OpenListed(int directory, const ListedFile& listed) {
  AMPD_ASSIGN_OR_RETURN(CheckpointFile file, OpenFile(directory, listed.name));
  if (file.size == listed.size) return file;
  return absl::DataLossError(absl::StrCat(file.name, " has ", file.size, " bytes, not ", listed.size));
}

absl::Status CompareWith(const ListedFile& listed, const CheckpointFile& file, const Comparison& comparison) {
  const absl::Time begin = absl::Now();
  const auto version = comparison.verified == nullptr ? std::nullopt : VerifiedFiles::VersionOf(file.fd.get());
  if (version && comparison.verified->Knows(*version, listed.checksum)) return absl::OkStatus();
  AMPD_ASSIGN_OR_RETURN(const std::string checksum, Sha256OfFile(file, comparison));
  if (checksum != listed.checksum) {
    return absl::DataLossError(absl::StrCat(file.name, " does not match its checksum"));
  }
  if (version && VerifiedFiles::VersionOf(file.fd.get()) == version) {
    comparison.verified->Add(*version, begin, checksum);
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenCheckpoint> OpenWhole(int parent, const std::string& name, const std::string& only,
                                         const Comparison& comparison) {
  const UniqueFd directory = OpenDirectory(parent, name);
  if (!directory.valid()) return absl::NotFoundError(absl::StrCat("no checkpoint ", name));
  AMPD_ASSIGN_OR_RETURN(CheckpointFile manifest, OpenFile(directory.get(), kManifest));
  AMPD_ASSIGN_OR_RETURN(std::vector<ListedFile> lines, ReadManifest(manifest));
  OpenCheckpoint checkpoint;
  checkpoint.name = name;
  const auto is_left_out = [&](const ListedFile& listed) { return !only.empty() && listed.name != only; };
  lines.erase(std::remove_if(lines.begin(), lines.end(), is_left_out), lines.end());
  if (!only.empty() && lines.empty() && only != kManifest) {
    return absl::NotFoundError(absl::StrCat(kManifest, " does not list ", absl::CHexEscape(only.substr(0, 100))));
  }
  // All are open before the first is read, which may take longer than a running job leaves the checkpoint there.
  for (const ListedFile& listed : lines) {
    AMPD_ASSIGN_OR_RETURN(CheckpointFile file, OpenListed(directory.get(), listed));
    checkpoint.files.push_back(std::move(file));
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    AMPD_RETURN_IF_ERROR(CompareWith(lines[i], checkpoint.files[i], comparison));
  }
  checkpoint.files.push_back(std::move(manifest));
  return checkpoint;
}

// Fills in size and time; an error is the damage.
absl::Status Describe(int parent, v1::Checkpoint* checkpoint) {
  const UniqueFd directory = OpenDirectory(parent, checkpoint->name());
  if (!directory.valid()) return absl::DataLossError(absl::StrCat("the folder cannot be opened: ", strerror(errno)));
  AMPD_ASSIGN_OR_RETURN(const CheckpointFile manifest, OpenFile(directory.get(), kManifest));
  struct stat info {};
  if (fstat(manifest.fd.get(), &info) == 0) {
    checkpoint->mutable_time()->set_seconds(info.st_mtim.tv_sec);
    checkpoint->mutable_time()->set_nanos(static_cast<int32_t>(info.st_mtim.tv_nsec));
  }
  AMPD_ASSIGN_OR_RETURN(const std::vector<ListedFile> lines, ReadManifest(manifest));
  int64_t bytes = manifest.size;
  for (const ListedFile& listed : lines) {
    AMPD_RETURN_IF_ERROR(OpenListed(directory.get(), listed).status());
    bytes += listed.size;
  }
  checkpoint->set_size_bytes(bytes);
  return absl::OkStatus();
}

struct Best {
  int64_t step = 0;
  std::optional<double> metric;
};

// The best checkpoint so far, as the training state in this one tells it; none where it keeps no best, or does not
// read.
std::optional<Best> BestOf(int parent, const std::string& name) {
  const UniqueFd directory = OpenDirectory(parent, name);
  const absl::StatusOr<CheckpointFile> file = OpenFile(directory.get(), kState);
  if (!file.ok() || file->size > kMaxStateBytes) return std::nullopt;
  // Read in pieces: it may be as large as many specs, and a message of all of it many times that.
  JsonSkimmer state("best", "step", "metric");
  for (int64_t offset = 0; offset < file->size && !(state.plain() && state.quoted()); offset += kReadBytes) {
    const absl::StatusOr<std::string> piece = ReadChunk(*file, offset, kReadBytes);
    if (!piece.ok()) return std::nullopt;
    state.Feed(*piece);
  }
  const std::optional<double> step = state.plain();
  if (!step || !(*step >= 0 && *step < 1e15)) return std::nullopt;
  return Best{static_cast<int64_t>(*step), state.quoted()};
}

void MarkBest(int parent, std::vector<v1::Checkpoint>* checkpoints) {
  const auto newest = std::find_if(checkpoints->begin(), checkpoints->end(),
                                   [](const v1::Checkpoint& checkpoint) { return checkpoint.damage().empty(); });
  if (newest == checkpoints->end()) return;
  const std::optional<Best> best = BestOf(parent, newest->name());
  for (v1::Checkpoint& checkpoint : *checkpoints) {
    checkpoint.set_best(best && checkpoint.step() == best->step);
    if (checkpoint.best() && best->metric) checkpoint.set_best_metric(*best->metric);
  }
}

// Newest first.
std::vector<std::string> CheckpointNames(int directory) {
  std::vector<std::string> names;
  // Not a duplicate, which would share the position with the listing before.
  DIR* listing = fdopendir(openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (listing == nullptr) return names;
  while (const dirent* entry = readdir(listing)) {
    if (IsCheckpointName(entry->d_name)) names.emplace_back(entry->d_name);
  }
  closedir(listing);
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a > b;
  });
  return names;
}

absl::StatusOr<OpenCheckpoint> OpenFirstWhole(int parent, const std::vector<std::string>& names,
                                              const std::string& only, const Comparison& comparison) {
  absl::Status first_error = absl::NotFoundError("the job has no checkpoint");
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StatusOr<OpenCheckpoint> checkpoint = OpenWhole(parent, names[i], only, comparison);
    if (checkpoint.ok() || absl::IsCancelled(checkpoint.status())) return checkpoint;
    if (i == 0) first_error = Annotate(checkpoint.status(), absl::StrCat("checkpoint ", names[i]));
  }
  return first_error;
}

}  // namespace

std::vector<std::string> ListCheckpoints(const std::string& directory) {
  const UniqueFd fd = OpenDirectory(AT_FDCWD, directory);
  return fd.valid() ? CheckpointNames(fd.get()) : std::vector<std::string>();
}

std::vector<v1::Checkpoint> DescribeCheckpoints(const std::string& directory) {
  std::vector<v1::Checkpoint> checkpoints;
  const UniqueFd parent = OpenDirectory(AT_FDCWD, directory);
  if (!parent.valid()) return checkpoints;
  for (const std::string& name : CheckpointNames(parent.get())) {
    v1::Checkpoint& checkpoint = checkpoints.emplace_back();
    checkpoint.set_name(name);
    int64_t step = 0;
    if (absl::SimpleAtoi(absl::string_view(name).substr(strlen("step-")), &step)) checkpoint.set_step(step);
    const absl::Status status = Describe(parent.get(), &checkpoint);
    if (status.ok()) continue;
    checkpoint.set_damage(absl::CHexEscape(status.message()));
    // A running job deletes old ones.
    if (!OpenDirectory(parent.get(), name).valid()) checkpoints.pop_back();
  }
  MarkBest(parent.get(), &checkpoints);
  return checkpoints;
}

absl::StatusOr<OpenCheckpoint> OpenCheckpointFiles(const std::string& directory, const std::string& name,
                                                   const std::string& only, const Comparison& comparison) {
  if (!name.empty() && !IsCheckpointName(name)) {
    return absl::InvalidArgumentError("a checkpoint's name is \"step-\" and digits");
  }
  const UniqueFd parent = OpenDirectory(AT_FDCWD, directory);
  if (!parent.valid()) return absl::NotFoundError("the job has no checkpoint");
  if (!name.empty()) return OpenFirstWhole(parent.get(), {name}, only, comparison);
  std::vector<std::string> names = CheckpointNames(parent.get());
  while (true) {
    absl::StatusOr<OpenCheckpoint> checkpoint = OpenFirstWhole(parent.get(), names, only, comparison);
    if (checkpoint.ok() || absl::IsCancelled(checkpoint.status())) return checkpoint;
    // A running job may have replaced all of them meanwhile.
    std::vector<std::string> now = CheckpointNames(parent.get());
    if (now == names) return checkpoint;
    names = std::move(now);
  }
}

absl::StatusOr<OpenCheckpoint> OpenArtifact(const std::string& directory, const std::string& name) {
  if (!IsPlainFileName(name) || name[0] == '.') {
    return absl::InvalidArgumentError("name: an artifact's name is that of a file, without '/' and no '.' in front");
  }
  const UniqueFd parent = OpenDirectory(AT_FDCWD, directory);
  if (!parent.valid()) return absl::NotFoundError("the job has no artifact, or has it no longer (retention.file_days)");
  absl::StatusOr<CheckpointFile> file = OpenFile(parent.get(), name);
  if (!file.ok()) {
    return absl::NotFoundError(absl::StrCat("the job has no artifact ", absl::CHexEscape(file.status().message())));
  }
  OpenCheckpoint opened;
  opened.files.push_back(*std::move(file));
  return opened;
}

absl::StatusOr<std::string> ReadChunk(const CheckpointFile& file, int64_t offset, int64_t size) {
  const int64_t wanted = std::min(size, file.size - offset);
  std::string bytes(static_cast<size_t>(std::max<int64_t>(wanted, 0)), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        pread(file.fd.get(), bytes.data() + done, bytes.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::DataLossError(absl::StrCat(file.name, " cannot be read at byte ", offset));
    done += static_cast<size_t>(n);
  }
  return bytes;
}

}  // namespace ampd
