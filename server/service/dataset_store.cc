#include "server/service/dataset_store.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/dataset_path.h"
#include "proto/spec/names.h"
#include "server/files/files.h"

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

absl::Status CheckName(const std::string& name) {
  const std::string wrong = WrongDatasetName(name);
  if (wrong.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("name: ", Quoted(name), " ", wrong));
}

absl::Status NotThere(const std::string& name) {
  return absl::NotFoundError(absl::StrCat("no dataset is called ", Quoted(name)));
}

// Whose it is, for who asks for more than they may.
std::string Whose(const std::string& name, const std::string& user) {
  if (user.empty()) return absl::StrCat("dataset ", name, " is no user's: it was sent when none was told apart");
  return absl::StrCat("dataset ", name, " is user ", user, "'s");
}

void RemoveTree(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
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
  for (const std::string& name : names_) {
    const auto held = store_->held_.find(name);
    if (--held->second == 0) store_->held_.erase(held);
  }
}

DatasetStore::Deletion::~Deletion() {
  const MutexLock lock(&store_->mutex_);
  store_->deleting_.erase(name_);
}

absl::Status DatasetStore::Deletion::Finish() { return store_->Remove(name_); }

absl::StatusOr<v1::Dataset> DatasetStore::Upload::Commit() {
  AMPD_ASSIGN_OR_RETURN(const DatasetHeader header, dataset_->Commit(turn_, [this](const DatasetHeader& header) {
    return store_->Publish(name_, header);
  }));
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

// Only the first line is looked at: there may be many files.
void DatasetStore::LoadWhole(const std::string& name) {
  const std::string path = absl::StrCat(PathOf(name), "/", kManifest);
  std::ifstream file(path, std::ios::binary);
  std::string line;
  std::getline(file, line);
  const absl::StatusOr<DatasetHeader> header = ParseHeaderLine(line);
  if (!CheckName(name).ok() || !header.ok()) return Log(absl::StrCat(path, ": is damaged or none; passed over"));
  options_.limits.all->Count(header->size_bytes);
  const MutexLock lock(&mutex_);
  whole_[name] = *header;
}

void DatasetStore::LoadUnfinished(const std::string& name) {
  absl::StatusOr<std::shared_ptr<UnfinishedDataset>> dataset =
      CheckName(name).ok() ? UnfinishedDataset::Open(name, NewPathOf(name), options_.limits)
                           : absl::DataLossError("no dataset has such a name");
  if (dataset.ok()) {
    const MutexLock lock(&mutex_);
    unfinished_[name] = *std::move(dataset);
    return;
  }
  Log(absl::StrCat("the unfinished dataset ", Quoted(name), " is removed: ", dataset.status().message()));
  RemoveTree(NewPathOf(name));
}

absl::StatusOr<std::shared_ptr<UnfinishedDataset>> DatasetStore::FindOrCreate(const std::string& name,
                                                                              const std::string& user) {
  const MutexLock lock(&mutex_);
  if (whole_.count(name) > 0) {
    return absl::AlreadyExistsError(absl::StrCat("there is a dataset ", name, " already: delete it first"));
  }
  if (deleting_.count(name) > 0) return absl::AbortedError(absl::StrCat("dataset ", name, " is being deleted"));
  const auto found = unfinished_.find(name);
  if (found != unfinished_.end()) {
    const std::string& owner = found->second->user();
    if (user.empty() || owner == user) return found->second;
    return absl::PermissionDeniedError(absl::StrCat(Whose(name, owner), ", and only they may go on with its upload"));
  }
  if (unfinished_.size() >= kMaxUnfinished || unfinished_.size() + whole_.size() >= kMaxDatasets) {
    return absl::ResourceExhaustedError(absl::StrCat("too many datasets: at most ", kMaxUnfinished,
                                                     " that are being uploaded, and ", kMaxDatasets, " in all"));
  }
  // Aside, so that a folder that has its name has its journal.
  std::string folder = absl::StrCat(this->folder(), "/", kNew, "/", kMaking, "XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) return FileError(kCannotKeep, errno);
  absl::StatusOr<std::shared_ptr<UnfinishedDataset>> dataset =
      UnfinishedDataset::Create(name, user, options_.clock->Now(), folder, NewPathOf(name), options_.limits);
  if (!dataset.ok()) {
    RemoveTree(folder);
    return dataset;
  }
  return unfinished_[name] = *std::move(dataset);
}

absl::StatusOr<std::unique_ptr<DatasetStore::Upload>> DatasetStore::Begin(const std::string& name,
                                                                          const std::string& user) {
  AMPD_RETURN_IF_ERROR(CheckName(name));
  AMPD_ASSIGN_OR_RETURN(std::shared_ptr<UnfinishedDataset> dataset, FindOrCreate(name, user));
  return std::unique_ptr<Upload>(new Upload(this, name, std::move(dataset)));
}

absl::Status DatasetStore::Publish(const std::string& name, const DatasetHeader& header) {
  AMPD_RETURN_IF_ERROR(options_.workers.LetRead(NewPathOf(name)));
  const MutexLock lock(&mutex_);
  const std::string path = PathOf(name);
  if (renameat2(AT_FDCWD, NewPathOf(name).c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) != 0) {
    return FileError(kCannotKeep, errno);
  }
  whole_[name] = header;
  unfinished_.erase(name);
  unlink(absl::StrCat(path, "/", kJournal).c_str());
  return SyncFolder(folder());
}

std::vector<v1::Dataset> DatasetStore::List() const {
  const MutexLock lock(&mutex_);
  std::map<std::string, v1::Dataset> by_name;
  for (const auto& [name, header] : whole_) by_name[name] = DatasetOf(name, header, true);
  for (const auto& [name, dataset] : unfinished_) by_name[name] = dataset->Describe(false);
  std::vector<v1::Dataset> list;
  for (auto& [name, dataset] : by_name) list.push_back(std::move(dataset));
  return list;
}

absl::StatusOr<v1::Dataset> DatasetStore::Get(const std::string& name) const {
  std::shared_ptr<UnfinishedDataset> unfinished;
  DatasetHeader header;
  {
    const MutexLock lock(&mutex_);
    const auto begun = unfinished_.find(name);
    const auto whole = whole_.find(name);
    if (begun == unfinished_.end() && whole == whole_.end()) return NotThere(name);
    if (begun != unfinished_.end()) {
      unfinished = begun->second;
    } else {
      header = whole->second;
    }
  }
  if (unfinished != nullptr) return unfinished->Describe(true);
  std::ostringstream text;
  // Not by an iterator, which throws where a disk fails.
  text << std::ifstream(absl::StrCat(PathOf(name), "/", kManifest), std::ios::binary).rdbuf();
  absl::StatusOr<v1::Dataset> parsed = ParseManifest(text.str());
  if (!parsed.ok()) return Annotate(parsed.status(), absl::StrCat("the MANIFEST of dataset ", name));
  v1::Dataset dataset = DatasetOf(name, header, true);
  *dataset.mutable_files() = std::move(*parsed->mutable_files());
  return dataset;
}

absl::StatusOr<std::shared_ptr<DatasetStore::Hold>> DatasetStore::HoldAll(const std::set<std::string>& names) {
  const MutexLock lock(&mutex_);
  for (const std::string& name : names) {
    if (whole_.count(name) > 0 && deleting_.count(name) == 0) continue;
    if (unfinished_.count(name) == 0) return NotThere(name);
    return absl::NotFoundError(absl::StrCat("dataset ", Quoted(name), " is not whole yet: its upload goes on"));
  }
  for (const std::string& name : names) ++held_[name];
  return std::shared_ptr<Hold>(new Hold(this, names));
}

std::string DatasetStore::UserOf(const std::string& name) const {
  const auto whole = whole_.find(name);
  return whole != whole_.end() ? whole->second.user : unfinished_.at(name)->user();
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
  if (!deleting_.insert(name).second) {
    return absl::AbortedError(absl::StrCat("dataset ", name, " is being deleted already"));
  }
  return std::shared_ptr<Deletion>(new Deletion(this, name));
}

absl::Status DatasetStore::Remove(const std::string& name) {
  std::shared_ptr<UnfinishedDataset> unfinished;
  {
    const MutexLock lock(&mutex_);
    if (const auto begun = unfinished_.find(name); begun != unfinished_.end()) unfinished = begun->second;
  }
  // It may become whole while this waits.
  if (unfinished != nullptr) unfinished->End();
  std::string aside = absl::StrCat(folder(), "/", kGone, "XXXXXX");
  if (mkdtemp(aside.data()) == nullptr) return FileError(absl::StrCat("dataset ", name), errno);
  {
    const MutexLock lock(&mutex_);
    const auto whole = whole_.find(name);
    const std::string path = whole != whole_.end() ? PathOf(name) : NewPathOf(name);
    if (rename(path.c_str(), absl::StrCat(aside, "/", name).c_str()) != 0) {
      return FileError(absl::StrCat("dataset ", name), errno);
    }
    if (whole != whole_.end()) {
      options_.limits.all->GiveBack(whole->second.size_bytes);
      whole_.erase(whole);
    }
    unfinished_.erase(name);
  }
  const absl::Status synced = SyncFolder(folder());
  RemoveTree(aside);
  return synced;
}

}  // namespace ampd
