#include "server/service/upload_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "proto/spec/resolve.h"
#include "proto/spec/upload_path.h"
#include "server/files/files.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;

constexpr char kPartial[] = ".partial-";
constexpr char kUser[] = ".user";
// Clients read it: without a path of the server's.
constexpr char kCannotKeep[] = "the server cannot keep the file";

absl::Status KeepUser(const std::string& path, const std::string& user) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return FileError(kCannotKeep, errno);
  AMPD_RETURN_IF_ERROR(WriteAll(fd.get(), user, kCannotKeep));
  return fsync(fd.get()) == 0 ? absl::OkStatus() : FileError(kCannotKeep, errno);
}

// Of ".CHECKSUM.user"; empty: of nothing.
std::string ChecksumOfUserFile(absl::string_view name) {
  return absl::ConsumePrefix(&name, ".") && absl::ConsumeSuffix(&name, kUser) ? std::string(name) : "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<UploadStore>> UploadStore::Open(const std::string& folder, const Limits& limits,
                                                               const FileSharing& workers) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return FileError(folder, error.value());
  std::unique_ptr<UploadStore> store(new UploadStore(folder, limits, workers));
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (absl::StartsWith(name, kPartial)) {
      fs::remove(it->path(), ignored);
    } else if (const std::optional<int64_t> size = store->Size(name)) {
      store->budgets_.Of(store->UserOf(name))->Count(*size + limits.entry_bytes);
    } else if (const std::string of = ChecksumOfUserFile(name); !of.empty() && !store->Size(of)) {
      fs::remove(it->path(), ignored);
    }
  }
  if (error) return FileError(folder, error.value());
  AMPD_RETURN_IF_ERROR(workers.LetPass(folder));
  AMPD_RETURN_IF_ERROR(workers.LetReadAllIn(folder));
  return store;
}

std::string UploadStore::PathOf(const std::string& checksum) const { return absl::StrCat(folder_, "/", checksum); }

std::string UploadStore::UserPathOf(const std::string& checksum) const {
  return absl::StrCat(folder_, "/.", checksum, kUser);
}

std::string UploadStore::UserOf(const std::string& checksum) const {
  std::ifstream file(UserPathOf(checksum), std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::optional<int64_t> UploadStore::Size(const std::string& checksum) const {
  struct stat info {};
  if (!IsUploadChecksum(checksum) || lstat(PathOf(checksum).c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return std::nullopt;
  }
  return info.st_size;
}

std::optional<int64_t> UploadStore::Use(const std::string& checksum) {
  const MutexLock lock(&use_);
  const std::optional<int64_t> size = Size(checksum);
  if (size) utimensat(AT_FDCWD, PathOf(checksum).c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  return size;
}

std::set<std::string> UploadStore::UnusedSince(absl::Time before) const {
  std::set<std::string> unused;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (IsUnusedSince(name, before)) unused.insert(name);
  }
  return unused;
}

bool UploadStore::IsUnusedSince(const std::string& checksum, absl::Time before) const {
  struct stat info {};
  return Size(checksum) && lstat(PathOf(checksum).c_str(), &info) == 0 && absl::TimeFromTimespec(info.st_mtim) < before;
}

std::vector<std::string> UploadStore::RemoveUnused(const std::set<std::string>& checksums, absl::Time before) {
  std::vector<std::string> removed;
  for (const std::string& checksum : checksums) {
    const MutexLock lock(&use_);
    if (RemoveIfUnused(checksum, before)) removed.push_back(checksum);
  }
  return removed;
}

bool UploadStore::RemoveIfUnused(const std::string& checksum, absl::Time before) {
  const std::optional<int64_t> size = Size(checksum);
  const std::string user = UserOf(checksum);
  if (!IsUnusedSince(checksum, before) || unlink(PathOf(checksum).c_str()) != 0) return false;
  unlink(UserPathOf(checksum).c_str());
  budgets_.Of(user)->GiveBack(size.value_or(0) + limits_.entry_bytes);
  return true;
}

absl::StatusOr<std::unique_ptr<UploadStore::Upload>> UploadStore::Begin(const std::string& checksum,
                                                                        const std::string& user) {
  if (!IsUploadChecksum(checksum)) {
    return InvalidFields({{"sha256", "must be 64 lower-case hex digits, in the first message"}});
  }
  AMPD_RETURN_IF_ERROR(CheckRoom());
  std::shared_ptr<ByteBudget> budget = budgets_.Of(user);
  AMPD_RETURN_IF_ERROR(Take(*budget, limits_.entry_bytes));
  std::string path = absl::StrCat(folder_, "/", kPartial, "XXXXXX");
  UniqueFd fd(mkostemp(path.data(), O_CLOEXEC));
  if (!fd.valid()) {
    budget->GiveBack(limits_.entry_bytes);
    return FileError(kCannotKeep, errno);
  }
  return std::unique_ptr<Upload>(new Upload(this, checksum, user, std::move(budget), std::move(path), std::move(fd)));
}

absl::Status UploadStore::CheckRoom() const {
  const std::string shortage = limits_.shortage ? limits_.shortage() : "";
  if (shortage.empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("nothing more is taken: ", shortage));
}

absl::Status UploadStore::Take(ByteBudget& budget, int64_t bytes) {
  if (budget.Take(bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no room for this file: those that were uploaded take ", budget.InTheWayOf(bytes)));
}

absl::Status UploadStore::Reserve(ByteBudget& budget, int64_t file_bytes, int64_t more) {
  if (file_bytes + more > limits_.file_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the file has more than ", limits_.file_bytes,
                                                     " bytes, the most this server takes (max_upload_bytes)"));
  }
  AMPD_RETURN_IF_ERROR(CheckRoom());
  return Take(budget, more);
}

absl::StatusOr<bool> UploadStore::Publish(const std::string& path, const std::string& checksum,
                                          const std::string& user) {
  const MutexLock lock(&use_);
  if (Size(checksum)) return false;
  const std::string user_path = UserPathOf(checksum);
  absl::Status status = user.empty() ? absl::OkStatus() : KeepUser(user_path, user);
  if (status.ok() && renameat2(AT_FDCWD, path.c_str(), AT_FDCWD, PathOf(checksum).c_str(), RENAME_NOREPLACE) != 0) {
    status = FileError(kCannotKeep, errno);
  }
  if (status.ok()) return true;
  unlink(user_path.c_str());
  return status;
}

UploadStore::Upload::Upload(UploadStore* store, std::string checksum, std::string user,
                            std::shared_ptr<ByteBudget> budget, std::string path, UniqueFd fd)
    : store_(store),
      checksum_(std::move(checksum)),
      user_(std::move(user)),
      budget_(std::move(budget)),
      path_(std::move(path)),
      fd_(std::move(fd)) {}

UploadStore::Upload::~Upload() {
  if (kept_) return;
  unlink(path_.c_str());
  budget_->GiveBack(bytes_ + store_->limits_.entry_bytes);
}

absl::Status UploadStore::Upload::Append(absl::string_view bytes) {
  AMPD_RETURN_IF_ERROR(store_->Reserve(*budget_, bytes_, static_cast<int64_t>(bytes.size())));
  bytes_ += static_cast<int64_t>(bytes.size());
  digest_.Update(bytes);
  return WriteAll(fd_.get(), bytes, kCannotKeep);
}

absl::StatusOr<int64_t> UploadStore::Upload::Finish() {
  const std::string found = digest_.HexDigest();
  if (found != checksum_) {
    return InvalidFields(
        {{"sha256", absl::StrCat(checksum_, " was announced, the ", bytes_, " bytes that came have ", found)}});
  }
  if (fsync(fd_.get()) != 0) return FileError(kCannotKeep, errno);
  AMPD_RETURN_IF_ERROR(store_->workers_.LetRead(path_));
  AMPD_ASSIGN_OR_RETURN(kept_, store_->Publish(path_, checksum_, user_));
  if (kept_) AMPD_RETURN_IF_ERROR(SyncFolder(store_->folder_));
  return bytes_;
}

}  // namespace ampd
