#include "server/jobs/start_folders.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/core/status.h"
#include "proto/spec/names.h"
#include "server/files/checkpoint_name.h"
#include "server/files/files.h"
#include "server/files/unique_fd.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;

// MANIFEST last: what it is missing from is no checkpoint.
constexpr const char* kWeights[] = {"model.safetensors", "MANIFEST"};
constexpr const char* kAll[] = {"model.safetensors", "optimizer.safetensors", "state.json", "ema.safetensors",
                                "MANIFEST"};
// Not every training keeps a running average. Where MANIFEST lists it, whoever compares the files misses it.
constexpr absl::string_view kOptional = "ema.safetensors";
constexpr char kNew[] = ".new-";
constexpr char kOld[] = ".old-";
// Of one job that are not removed yet.
constexpr int kMostOld = 100;

// `names` of the folder that was opened, whatever has its name by now.
absl::Status LinkFiles(int directory, absl::Span<const char* const> names, const std::string& target) {
  for (const char* name : names) {
    // A worker made them: one that is no file could keep whoever opens it waiting for ever.
    const UniqueFd file(openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file.valid() && errno == ENOENT && name == kOptional) continue;
    if (!file.valid()) return FileError(name, errno);
    struct stat info {};
    if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
      return absl::DataLossError(absl::StrCat(name, " is not a regular file"));
    }
    AMPD_RETURN_IF_ERROR(LinkOrCopy(file.get(), absl::StrCat(target, "/", name)));
  }
  return absl::OkStatus();
}

absl::Status MakeRoot(const std::string& root) {
  std::error_code error;
  fs::create_directories(root, error);
  return error ? FileError(root, error.value()) : absl::OkStatus();
}

}  // namespace

HeldWeights::~HeldWeights() {
  if (!given_) remover_->Remove(folder_);
}

absl::Status HeldWeights::GiveTo(const std::string& job_id) {
  const std::string path = absl::StrCat(root_, "/", job_id);
  if (rename(folder_.c_str(), path.c_str()) != 0) return FileError(path, errno);
  given_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<HeldWeights>> StartFolders::Hold(const std::string& directory, const std::string& name,
                                                                HeldFiles files) const {
  if (!IsCheckpointName(name)) return absl::NotFoundError(absl::StrCat("no checkpoint is called ", Quoted(name)));
  const std::string source = absl::StrCat(directory, "/", name);
  const UniqueFd from(open(source.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!from.valid()) return FileError(absl::StrCat("checkpoint ", name), errno);
  AMPD_RETURN_IF_ERROR(MakeRoot(root_));
  std::string folder = absl::StrCat(root_, "/", kNew, "XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) return FileError(folder, errno);
  std::shared_ptr<HeldWeights> held(new HeldWeights(remover_, root_, folder, name));
  if (mkdir(held->checkpoint_dir().c_str(), 0700) != 0) return FileError(held->checkpoint_dir(), errno);
  const auto names =
      files == HeldFiles::kAll ? absl::Span<const char* const>(kAll) : absl::Span<const char* const>(kWeights);
  AMPD_RETURN_IF_ERROR(
      Annotate(LinkFiles(from.get(), names, held->checkpoint_dir()), absl::StrCat("checkpoint ", name)));
  AMPD_RETURN_IF_ERROR(workers_.LetRead(folder));
  AMPD_RETURN_IF_ERROR(SyncFolder(held->checkpoint_dir()));
  AMPD_RETURN_IF_ERROR(SyncFolder(folder));
  return held;
}

std::string StartFolders::PathOf(const std::string& job_id, const std::string& checkpoint) const {
  return absl::StrCat(root_, "/", job_id, "/", checkpoint);
}

absl::Status StartFolders::Sync() const { return SyncFolder(root_); }

void StartFolders::Release(const std::string& job_id) const {
  const std::string path = absl::StrCat(root_, "/", job_id);
  // Nothing is made, so that room comes free on a full disk too. A name may still be one's that is being removed.
  for (int i = 0; i < kMostOld; ++i) {
    std::string aside = absl::StrCat(root_, "/", kOld, job_id, ".", i);
    if (rename(path.c_str(), aside.c_str()) == 0) return remover_->Remove(std::move(aside));
    if (errno != ENOTEMPTY && errno != EEXIST) return;
  }
}

void StartFolders::KeepOnly(const std::set<std::string>& job_ids) const {
  std::error_code error;
  for (fs::directory_iterator it(root_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (job_ids.count(name) != 0) continue;
    if (absl::StartsWith(name, ".")) {
      remover_->Remove(it->path().string());
    } else {
      Release(name);
    }
  }
}

}  // namespace ampd
