#include "server/service/dataset_store.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/dataset_path.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve.h"
#include "server/files/files.h"
#include "server/service/try_again.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;

constexpr char kNew[] = ".new";
constexpr char kMaking[] = ".making-";
constexpr char kGone[] = ".gone-";
constexpr char kManifest[] = "MANIFEST";
constexpr char kJournal[] = "JOURNAL";
// Clients read it: without a path of the server's.
constexpr char kCannotKeep[] = "the server cannot keep the dataset";
constexpr size_t kMaxDatasets = 10000;
constexpr size_t kMaxUnfinished = 256;
// Around what a MANIFEST says of the files.
constexpr int64_t kManifestSlackBytes = 64 << 10;
constexpr absl::Duration kDeletionDelay = absl::Milliseconds(500);

absl::Status CheckName(const std::string& name) {
  const std::string wrong = WrongDatasetName(name);
  if (wrong.empty()) return absl::OkStatus();
  return InvalidFields({{"name", absl::StrCat(Quoted(name), " ", wrong)}});
}

absl::Status NotThere(const std::string& name) {
  return absl::NotFoundError(absl::StrCat("no dataset is called ", Quoted(name)));
}

absl::Status IsBeingDeleted(const std::string& name) {
  return WithRetryInfo(absl::AbortedError(absl::StrCat("dataset ", name, " is being deleted")), kDeletionDelay);
}

absl::Status IsDamaged(const std::string& name, const std::string& damage) {
  return absl::DataLossError(absl::StrCat("dataset ", name, " is damaged: ", damage, "; delete it and send it again"));
}

// Whose it is, for who asks for more than they may.
std::string Whose(const std::string& name, const std::string& user) {
  if (user.empty()) return absl::StrCat("dataset ", name, " is not known to be any user's");
  return absl::StrCat("dataset ", name, " is user ", user, "'s");
}

void RemoveTree(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

// The sizes and the number of all files of a dataset without a header, as far as they can be seen.
DatasetHeader Measure(const std::string& folder) {
  DatasetHeader header;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored) && !it->is_symlink(ignored)) {
      const uintmax_t size = it->file_size(ignored);
      if (!ignored) header.size_bytes += static_cast<int64_t>(size);
      ++header.file_count;
    }
  }
  return header;
}

// What a whole dataset's MANIFEST begins with; only the first line is looked at: there may be many files.
absl::StatusOr<DatasetHeader> ReadHeader(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line(kManifestSlackBytes, '\0');
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(std::min(line.find('\n'), static_cast<size_t>(file.gcount())));
  AMPD_ASSIGN_OR_RETURN(DatasetHeader header, ParseHeaderLine(line));
  if (header.content.empty()) return absl::DataLossError("is damaged: it does not say what the files are");
  return header;
}

// The names in a folder; those that end in what was made or removed only halfway are taken away.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::vector<std::string> names, leftovers;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool leftover = absl::StartsWith(name, kMaking) || absl::StartsWith(name, kGone);
    (leftover ? leftovers : names).push_back(name);
  }
  if (error) return FileError(folder, error.value());
  for (const std::string& name : leftovers) RemoveTree(absl::StrCat(folder, "/", name));
  return names;
}

}  // namespace

DatasetStore::Hold::~Hold() {
  const MutexLock lock(&store_->mutex_);
  for (const auto& [name, content] : contents_) {
    const auto held = store_->held_.find(name);
    if (--held->second == 0) store_->held_.erase(held);
  }
}

void DatasetStore::Deletion::GiveUp() {
  if (std::exchange(over_, true)) return;
  const MutexLock lock(&store_->mutex_);
  store_->deleting_.erase(name_);
}

absl::Status DatasetStore::Deletion::Finish() {
  std::string aside = absl::StrCat(store_->folder(), "/", kGone, "XXXXXX");
  if (mkdtemp(aside.data()) == nullptr) return FileError(absl::StrCat("dataset ", name_), errno);
  absl::Status status = store_->MoveAside(name_, aside);
  // The name comes back with a power cut until that is on disk: nobody is to have begun another by then.
  if (status.ok()) status = store_->options_.sync_folder(store_->folder());
  GiveUp();
  RemoveTree(aside);
  return status;
}

absl::StatusOr<v1::Dataset> DatasetStore::Upload::Commit() {
  absl::Status synced;
  AMPD_ASSIGN_OR_RETURN(const DatasetHeader header, dataset_->Commit(turn_, [&](const DatasetHeader& whole) {
    return store_->Publish(name_, whole, &synced);
  }));
  if (!synced.ok()) {
    return absl::Status(synced.code(), absl::StrCat("dataset ", name_,
                                                    " is whole, but the server could not force its "
                                                    "name to disk: a power cut may undo that"));
  }
  return DatasetOf(name_, header, true);
}

absl::StatusOr<std::unique_ptr<DatasetStore>> DatasetStore::Open(Options options) {
  std::unique_ptr<DatasetStore> store(new DatasetStore(std::move(options)));
  AMPD_RETURN_IF_ERROR(store->Load());
  return store;
}

std::string DatasetStore::PathOf(const std::string& name) const { return absl::StrCat(folder(), "/", name); }

std::string DatasetStore::NewPathOf(const std::string& name) const {
  return absl::StrCat(folder(), "/", kNew, "/", name);
}

void DatasetStore::Log(const std::string& text) const {
  if (options_.log) options_.log(text);
}

absl::Status DatasetStore::Load() {
  const std::string unfinished = absl::StrCat(folder(), "/", kNew);
  std::error_code error;
  fs::create_directories(unfinished, error);
  if (error) return FileError(unfinished, error.value());
  AMPD_ASSIGN_OR_RETURN(const std::vector<std::string> whole, NamesIn(folder()));
  for (const std::string& name : whole) {
    if (name != kNew) LoadWhole(name);
  }
  AMPD_ASSIGN_OR_RETURN(const std::vector<std::string> begun, NamesIn(unfinished));
  for (const std::string& name : begun) LoadUnfinished(name);
  AMPD_RETURN_IF_ERROR(options_.workers.LetPass(folder()));
  return options_.workers.LetReadAllIn(folder());
}

void DatasetStore::LoadWhole(const std::string& name) {
  if (!CheckName(name).ok()) {
    return Log(absl::StrCat(folder(), ": ", Quoted(name), " is no name of a dataset; passed over"));
  }
  Whole whole;
  const std::string path = absl::StrCat(PathOf(name), "/", kManifest);
  if (absl::StatusOr<DatasetHeader> header = ReadHeader(path); header.ok()) {
    whole.header = *std::move(header);
  } else {
    whole.damage = absl::StrCat("its MANIFEST ", header.status().message());
    whole.header = Measure(PathOf(name));
    Log(absl::StrCat(path, ": ", header.status().message(), "; the dataset is kept as damaged"));
  }
  const MutexLock lock(&mutex_);
  budgets_.Of(whole.header.user)->Count(CountedBytes(whole.header));
  whole_[name] = std::move(whole);
}

void DatasetStore::LoadUnfinished(const std::string& name) {
  absl::StatusOr<std::shared_ptr<UnfinishedDataset>> dataset =
      CheckName(name).ok()
          ? UnfinishedDataset::Open(name, NewPathOf(name), [this](const std::string& user) { return LimitsOf(user); })
          : absl::DataLossError("no dataset has such a name");
  if (dataset.ok()) {
    const MutexLock lock(&mutex_);
    unfinished_[name] = *std::move(dataset);
    return;
  }
  Log(absl::StrCat("the unfinished dataset ", Quoted(name), " is removed: ", dataset.status().message()));
  RemoveTree(NewPathOf(name));
}

DatasetLimits DatasetStore::LimitsOf(const std::string& user) {
  DatasetLimits limits = options_.limits;
  limits.all = budgets_.Of(user);
  return limits;
}

absl::StatusOr<std::shared_ptr<UnfinishedDataset>> DatasetStore::FindBegun(const std::string& name,
                                                                           const std::string& user) const {
  const MutexLock lock(&mutex_);
  if (deleting_.count(name) > 0) return IsBeingDeleted(name);
  if (whole_.count(name) > 0) {
    return absl::AlreadyExistsError(absl::StrCat("there is a dataset ", name, " already: delete it first"));
  }
  const auto found = unfinished_.find(name);
  if (found == unfinished_.end()) {
    AMPD_RETURN_IF_ERROR(CheckRoomForOneMore(user));
    return nullptr;
  }
  const std::string& owner = found->second->user();
  if (user.empty() || owner == user) return found->second;
  return absl::PermissionDeniedError(absl::StrCat(Whose(name, owner), ", and only they may go on with its upload"));
}

absl::Status DatasetStore::CheckRoomForOneMore(const std::string& user) const {
  if (unfinished_.size() >= kMaxUnfinished || unfinished_.size() + whole_.size() >= kMaxDatasets) {
    return absl::ResourceExhaustedError(absl::StrCat("too many datasets: at most ", kMaxUnfinished,
                                                     " that are being uploaded, and ", kMaxDatasets, " in all"));
  }
  if (user.empty()) return absl::OkStatus();
  const auto begun = std::count_if(unfinished_.begin(), unfinished_.end(),
                                   [&](const auto& entry) { return entry.second->user() == user; });
  const auto all = begun + std::count_if(whole_.begin(), whole_.end(),
                                         [&](const auto& entry) { return entry.second.header.user == user; });
  if (static_cast<size_t>(all) >= options_.datasets_per_user) {
    return absl::ResourceExhaustedError(absl::StrCat("user ", user, " has ", all,
                                                     " datasets, those that are being uploaded included, the most that "
                                                     "a user may have: delete one first"));
  }
  if (static_cast<size_t>(begun) < options_.unfinished_per_user) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("user ", user, " has begun ", begun,
                                                   " uploads of datasets and ended none of them, the most that a user "
                                                   "may have: end or delete one first"));
}

absl::StatusOr<std::shared_ptr<UnfinishedDataset>> DatasetStore::FindOrCreate(const std::string& name,
                                                                              const std::string& user) {
  const MutexLock folders(&folders_);
  absl::StatusOr<std::shared_ptr<UnfinishedDataset>> dataset = FindBegun(name, user);
  if (!dataset.ok() || *dataset != nullptr) return dataset;
  // Aside, so that a folder that has its name has its journal.
  std::string folder = absl::StrCat(this->folder(), "/", kNew, "/", kMaking, "XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) return FileError(kCannotKeep, errno);
  dataset = UnfinishedDataset::Create(name, user, options_.clock->Now(), folder, NewPathOf(name), LimitsOf(user));
  if (!dataset.ok()) {
    RemoveTree(folder);
    return dataset;
  }
  const MutexLock lock(&mutex_);
  return unfinished_[name] = *std::move(dataset);
}

absl::StatusOr<std::unique_ptr<DatasetStore::Upload>> DatasetStore::Begin(const std::string& name,
                                                                          const std::string& user) {
  AMPD_RETURN_IF_ERROR(CheckName(name));
  AMPD_ASSIGN_OR_RETURN(std::shared_ptr<UnfinishedDataset> dataset, FindOrCreate(name, user));
  return std::unique_ptr<Upload>(new Upload(this, name, std::move(dataset)));
}

absl::Status DatasetStore::MoveFolder(const std::string& from, const std::string& to, const std::string& what) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return absl::OkStatus();
  return FileError(what, errno);
}

absl::Status DatasetStore::Publish(const std::string& name, const DatasetHeader& header, absl::Status* synced) {
  AMPD_RETURN_IF_ERROR(options_.workers.LetRead(NewPathOf(name)));
  const MutexLock folders(&folders_);
  const std::string path = PathOf(name);
  AMPD_RETURN_IF_ERROR(MoveFolder(NewPathOf(name), path, kCannotKeep));
  unlink(absl::StrCat(path, "/", kJournal).c_str());
  *synced = options_.sync_folder(folder());
  const MutexLock lock(&mutex_);
  whole_[name] = {header, ""};
  unfinished_.erase(name);
  return absl::OkStatus();
}

v1::Dataset DatasetStore::DamagedDataset(const std::string& name, const Whole& whole) {
  v1::Dataset dataset;
  dataset.set_name(name);
  dataset.set_size_bytes(whole.header.size_bytes);
  dataset.set_committed(true);
  dataset.set_damage(whole.damage);
  return dataset;
}

std::vector<v1::Dataset> DatasetStore::List() const {
  std::map<std::string, v1::Dataset> by_name;
  {
    const MutexLock lock(&mutex_);
    for (const auto& [name, whole] : whole_) {
      by_name[name] = whole.damage.empty() ? DatasetOf(name, whole.header, true) : DamagedDataset(name, whole);
    }
    for (const auto& [name, dataset] : unfinished_) by_name[name] = dataset->Describe(false);
  }
  std::vector<v1::Dataset> list;
  for (auto& [name, dataset] : by_name) list.push_back(std::move(dataset));
  return list;
}

absl::StatusOr<v1::Dataset> DatasetStore::Get(const std::string& name) const {
  std::shared_ptr<UnfinishedDataset> unfinished;
  Whole whole;
  {
    const MutexLock lock(&mutex_);
    const auto begun = unfinished_.find(name);
    const auto found = whole_.find(name);
    if (begun == unfinished_.end() && found == whole_.end()) return NotThere(name);
    if (begun != unfinished_.end()) {
      unfinished = begun->second;
    } else {
      whole = found->second;
    }
  }
  if (unfinished != nullptr) return unfinished->Describe(true);
  if (!whole.damage.empty()) return IsDamaged(name, whole.damage);
  // As the largest that was taken; what is cut off is missed by who parses it. Not by an iterator, which throws where a
  // disk fails.
  std::ifstream file(absl::StrCat(PathOf(name), "/", kManifest), std::ios::binary);
  const int64_t most = options_.limits.manifest_bytes + kManifestSlackBytes;
  std::error_code error;
  const uintmax_t size = fs::file_size(absl::StrCat(PathOf(name), "/", kManifest), error);
  std::string text(error ? 0 : static_cast<size_t>(std::min<uintmax_t>(size, static_cast<uintmax_t>(most))), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  absl::StatusOr<v1::Dataset> parsed = ParseManifest(text);
  if (!parsed.ok()) return Annotate(parsed.status(), absl::StrCat("the MANIFEST of dataset ", name));
  v1::Dataset dataset = DatasetOf(name, whole.header, true);
  *dataset.mutable_files() = std::move(*parsed->mutable_files());
  return dataset;
}

absl::StatusOr<std::shared_ptr<DatasetStore::Hold>> DatasetStore::HoldAll(const std::set<std::string>& names) {
  std::map<std::string, std::string> contents;
  const MutexLock lock(&mutex_);
  for (const std::string& name : names) {
    const auto whole = whole_.find(name);
    if (whole == whole_.end() && unfinished_.count(name) == 0) return NotThere(name);
    // That may still be refused.
    if (deleting_.count(name) > 0) return IsBeingDeleted(name);
    if (whole == whole_.end()) {
      return absl::NotFoundError(absl::StrCat("dataset ", Quoted(name), " is not whole yet: its upload goes on"));
    }
    if (!whole->second.damage.empty()) return IsDamaged(name, whole->second.damage);
    contents[name] = whole->second.header.content;
  }
  for (const std::string& name : names) ++held_[name];
  return std::shared_ptr<Hold>(new Hold(this, std::move(contents)));
}

std::string DatasetStore::UserOf(const std::string& name) const {
  const auto whole = whole_.find(name);
  return whole != whole_.end() ? whole->second.header.user : unfinished_.at(name)->user();
}

absl::StatusOr<std::shared_ptr<DatasetStore::Deletion>> DatasetStore::BeginDeletion(
    const std::string& name, const std::optional<std::string>& owner) {
  AMPD_RETURN_IF_ERROR(CheckName(name));
  const MutexLock lock(&mutex_);
  if (whole_.count(name) + unfinished_.count(name) == 0) return NotThere(name);
  if (const std::string user = UserOf(name); owner && *owner != user) {
    return absl::PermissionDeniedError(
        absl::StrCat(Whose(name, user), ", and only they or an administrator may delete it"));
  }
  if (held_.count(name) > 0) {
    return absl::FailedPreconditionError(absl::StrCat("a job that names dataset ", name, " is being submitted"));
  }
  if (!deleting_.insert(name).second) return IsBeingDeleted(name);
  return std::shared_ptr<Deletion>(new Deletion(this, name));
}

absl::Status DatasetStore::MoveAside(const std::string& name, const std::string& aside) {
  std::shared_ptr<UnfinishedDataset> unfinished;
  {
    const MutexLock lock(&mutex_);
    if (const auto begun = unfinished_.find(name); begun != unfinished_.end()) unfinished = begun->second;
  }
  // It may become whole while this waits.
  if (unfinished != nullptr) unfinished->End();
  const MutexLock folders(&folders_);
  std::vector<std::pair<std::string, std::string>> moves;
  {
    const MutexLock lock(&mutex_);
    // Both where a damaged one lay in the way of an upload.
    if (whole_.count(name) > 0) moves.emplace_back(PathOf(name), aside + "/whole");
    if (unfinished_.count(name) > 0) moves.emplace_back(NewPathOf(name), aside + "/unfinished");
  }
  for (const auto& [from, to] : moves) {
    AMPD_RETURN_IF_ERROR(MoveFolder(from, to, absl::StrCat("dataset ", name)));
  }
  const MutexLock lock(&mutex_);
  if (const auto whole = whole_.find(name); whole != whole_.end()) {
    budgets_.Of(whole->second.header.user)->GiveBack(CountedBytes(whole->second.header));
    whole_.erase(whole);
  }
  unfinished_.erase(name);
  return absl::OkStatus();
}

}  // namespace ampd
